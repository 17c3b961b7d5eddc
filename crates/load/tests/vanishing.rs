//! Datagrams that vanish for their length: a stream says so, and why.

use std::net::SocketAddr;
use std::time::Duration;

use weir_lab::emulate::Emulation;
use weir_lab::{Family, Lab, LabOptions, Link, Role, SiteSpec, Topology};
use weir_load::udp_stream::UdpStream;
use weir_load::{Direction, Engine, Part, Setting};
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

/// One short stream over a link.
fn stream(name: &str, family: Family, link: &str, direction: Direction, payload_bytes: u16) -> Part {
    let spec = SiteSpec { name: "s".into(), topology: Topology::Direct, return_route: false, wan: true };
    let options = LabOptions { family, ..LabOptions::default() };
    let lab =
        Lab::build(&format!("test-vanishing-{name}-{}", std::process::id()), &options, &[spec]).unwrap();
    let site = lab.site("s").unwrap();
    let link: Link = serde_json::from_str(link).unwrap();
    let _emulation = (!link.is_plain()).then(|| Emulation::start(site, &link).unwrap());
    let work = UdpStream {
        direction,
        payload_bytes: Some(payload_bytes),
        rate_pps: Some(200.0),
        ..UdpStream::default()
    };
    let setting = Setting::new(Duration::from_millis(50), Duration::from_millis(250), 0x77);
    let target = SocketAddr::new(site.addresses().responder, 5000);
    let far = site.host(Role::Responder).unwrap().run(|| work.open(&setting, target).unwrap()).unwrap();
    let near = site.host(Role::Initiator).unwrap().run(|| work.drive(&setting, target).unwrap()).unwrap();
    work.combine(&[near], &[far.finish().unwrap()])
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
