//! Datagrams and segments that vanish for their length: a stream says so, and why.

use std::net::SocketAddr;
use std::time::Duration;

use weir_lab::emulate::Emulation;
use weir_lab::{Family, Lab, LabOptions, Link, Role, SiteSpec, Topology};
use weir_load::tcp_stream::TcpStream;
use weir_load::udp_stream::UdpStream;
use weir_load::{Direction, Engine, Part, TrialSettings};
use weir_record::PathCause;
use weir_sys::privilege;
use weir_sys::process::which;

fn cannot_run() -> bool {
    if privilege::test_needs_root() {
        return true;
    }
    for program in ["nft", "iptables"] {
        if which(program).is_none() {
            println!("SKIP: {program} is not installed");
            return true;
        }
    }
    false
}

/// One short trial over a link.
fn trial(name: &str, family: Family, link: &str, work: &(dyn Engine + Sync)) -> Part {
    let spec = SiteSpec { name: "s".into(), topology: Topology::Direct, return_route: false, wan: true };
    let options = LabOptions { family, ..LabOptions::default() };
    let lab =
        Lab::build(&format!("test-vanishing-{name}-{}", std::process::id()), &options, &[spec]).unwrap();
    let site = lab.site("s").unwrap();
    let link: Link = serde_json::from_str(link).unwrap();
    let _emulation = (!link.is_plain()).then(|| Emulation::start(site, &link).unwrap());
    let setting = TrialSettings::new(Duration::from_millis(50), Duration::from_millis(250), 0x77);
    let target = SocketAddr::new(site.addresses().responder, 5000);
    let far = site.host(Role::Responder).unwrap().run(|| work.open(&setting, target).unwrap()).unwrap();
    let near = site.host(Role::Initiator).unwrap().run(|| work.drive(&setting, target).unwrap()).unwrap();
    work.combine(&[near], &[far.finish().unwrap()])
}

/// One short stream of datagrams over a link.
fn stream(name: &str, family: Family, link: &str, direction: Direction, payload_bytes: u16) -> Part {
    let work = UdpStream {
        direction,
        payload_bytes: Some(payload_bytes),
        rate_pps: Some(200.0),
        ..UdpStream::default()
    };
    trial(name, family, link, &work)
}

#[test]
fn root_datagrams_above_the_path_s_mtu_are_missed_by_their_length() {
    if cannot_run() {
        return;
    }
    for family in [Family::Ipv4, Family::Ipv6] {
        let headers = if family == Family::Ipv4 { 28 } else { 48 };
        for direction in [Direction::Egress, Direction::Ingress] {
            for link in [r#"{"fragments": "drop-rest"}"#, r#"{"fragments": "drop-all"}"#] {
                let trial = stream("fragments", family, link, direction, 8192);
                let [found] = trial.path.as_slice() else { panic!("{link} {direction}: {trial:?}") };
                assert_eq!(found.cause, PathCause::LargeDatagramsVanish);
                // (1500 - 20) / 8 * 8 = 1480 and (1500 - 48) / 8 * 8 = 1448: six fragments either way.
                let safe = 1500 - headers;
                let words = format!(
                    "datagrams of 8,192 bytes are sent as 6 fragments; none arrived, while 1,{}-byte ones do: something on the path \
                     drops fragments; use -l {safe}",
                    safe - 1000
                );
                assert_eq!(found.summary, words);
                assert_eq!(trial.value("loss_ratio"), 1.0);
            }
            let full = 1500 - headers;
            let trial = stream("hole", family, r#"{"mtu": 1400, "icmp": "drop"}"#, direction, full);
            let [found] = trial.path.as_slice() else { panic!("{direction}: {trial:?}") };
            assert_eq!(found.cause, PathCause::PathMtuBlackHole);
            assert!(found.summary.ends_with(&format!("use -l {}", 1400 - headers)), "{}", found.summary);
        }
    }
}

#[test]
fn root_what_arrives_is_no_finding() {
    if cannot_run() {
        return;
    }
    for (link, payload) in [
        ("{}", 8192),
        ("{}", 1472),
        (r#"{"fragments": "reorder"}"#, 8192),
        (r#"{"fragments": "drop-all"}"#, 1472),
        // A router that says so: the kernel splits from then on.
        (r#"{"mtu": 1400}"#, 1472),
    ] {
        for direction in [Direction::Egress, Direction::Ingress] {
            let trial = stream("clean", Family::Ipv4, link, direction, payload);
            assert_eq!(trial.path, [], "{link} {payload} {direction}");
            assert!(trial.value("loss_ratio") < 0.5, "{link} {payload} {direction}: {trial:?}");
        }
    }
}

#[test]
fn root_a_path_that_carries_nothing_is_not_blamed_on_length() {
    if cannot_run() {
        return;
    }
    let trial = stream("loss", Family::Ipv4, r#"{"loss": 0.3}"#, Direction::Egress, 1472);
    assert_eq!(trial.path, [], "{trial:?}");
}

#[test]
fn root_tcp_over_a_path_that_swallows_full_segments_is_a_result_of_nothing_with_its_reason() {
    if cannot_run() {
        return;
    }
    const HOLE: &str = r#"{"mtu": 1400, "icmp": "drop"}"#;
    for (family, streams, direction, link, holes) in [
        (Family::Ipv4, 1, Direction::Egress, HOLE, vec!["egress"]),
        (Family::Ipv4, 3, Direction::Ingress, HOLE, vec!["ingress"]),
        (Family::Ipv6, 1, Direction::Both, HOLE, vec!["egress", "ingress"]),
        (Family::Ipv4, 1, Direction::Both, r#"{"egress": {"mtu": 1400}, "icmp": "drop"}"#, vec!["egress"]),
    ] {
        let headers = if family == Family::Ipv4 { 40 } else { 60 };
        let work = TcpStream { direction, streams, ..TcpStream::default() };
        let trial = trial("segments", family, link, &work);
        let about = format!("{family:?} {direction} {link}: {trial:?}");
        assert_eq!(trial.path.len(), holes.len(), "{about}");
        for (found, way) in trial.path.iter().zip(&holes) {
            assert_eq!(found.cause, PathCause::PathMtuBlackHole);
            let words = format!(
                "path MTU black hole: TCP connects and then nothing moves {way}: packets of 1,420 bytes and more vanish, those of up to \
                 1,400 arrive, and no ICMP too-big says so; clamp TCP's MSS to 1,{}",
                400 - headers
            );
            assert_eq!(found.summary, words);
        }
        let failed = f64::from(streams) * holes.len() as f64;
        assert_eq!(trial.value("failed_streams"), failed, "{about}");
        // The path's doing: the trial counts.
        assert!(!trial.faults.iter().any(|fault| fault.void), "{about}");
        if direction == Direction::Both {
            assert_eq!(trial.value("egress_goodput_bps"), 0.0, "{about}");
            assert_eq!(trial.value("ingress_goodput_bps") > 0.0, holes.len() == 1, "{about}");
        } else {
            assert_eq!(trial.values["goodput_bps"], 0.0, "{about}");
        }
    }
}

#[test]
fn root_tcp_that_fits_or_is_told_so_moves_without_a_finding() {
    if cannot_run() {
        return;
    }
    let clamped = TcpStream { mss: Some(1360), ..TcpStream::default() };
    let usual = TcpStream::default();
    for (work, link) in [
        (&usual, "{}"),
        (&usual, r#"{"mtu": 1400}"#),
        // The clamp that the finding asks for.
        (&clamped, r#"{"mtu": 1400, "icmp": "drop"}"#),
    ] {
        let trial = trial("fits", Family::Ipv4, link, work);
        assert_eq!(trial.path, [], "{link}");
        assert!(trial.value("goodput_bps") > 1e6 && trial.faults.is_empty(), "{link}: {trial:?}");
    }
}

/// Streams that are stuck are a result, with a reason or without; one initiator's black hole is found beside another's silence.
#[test]
fn streams_that_get_nothing_through_count_as_failed_with_a_reason_or_without() {
    let work = TcpStream::default();
    let seen = |arrived: &[(u32, f64)]| {
        let mut part = Part::default();
        part.set("egress_stuck", 1.0);
        part.set("egress_begun", 1.0);
        part.set("egress_broken_0", 1.0);
        if !arrived.is_empty() {
            part.set("egress_control_headers_bytes", 40.0);
        }
        for (length, value) in arrived {
            part.set(&format!("egress_control_arrived_{length}"), *value);
        }
        part
    };
    let (hole, silence) = (seen(&[(576, 1.0), (1500, 0.0)]), seen(&[(576, 0.0), (1500, 0.0)]));
    let mut far = Part::default();
    far.set("egress_receivers", 1.0);
    far.set("egress_goodput_bps", 0.0);
    let far = [far.clone(), far];
    for (near, findings) in
        [([hole.clone(), silence.clone()], 1), ([hole.clone(), hole], 1), ([silence.clone(), silence], 0)]
    {
        let trial = work.combine(&near, &far);
        assert_eq!((trial.path.len(), trial.faults.len()), (findings, 0), "{trial:?}");
        assert_eq!((trial.value("streams"), trial.value("failed_streams")), (2.0, 2.0), "{trial:?}");
    }
}
