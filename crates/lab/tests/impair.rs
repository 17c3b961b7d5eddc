//! The wan does what it says: packets are never early, and reordering is exactly what was asked for.

use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use weir_lab::impair::{Impairment, Reorder, Way};
use weir_lab::{Family, Lab, LabOptions, Role, Site, SiteSpec, Topology};
use weir_sys::privilege;
use weir_sys::process::which;

const LONG: Duration = Duration::from_secs(20);

fn lab(test: &str, family: Family) -> Lab {
    let spec = SiteSpec { name: "s".into(), topology: Topology::Direct, return_route: false, wan: true };
    let options = LabOptions { family, ..LabOptions::default() };
    Lab::build(&format!("test-impair-{test}-{}", std::process::id()), &options, &[spec]).unwrap()
}

fn cannot_run() -> bool {
    if privilege::test_needs_root() {
        return true;
    }
    if which("iptables").is_none() {
        println!("SKIP: iptables is not installed");
        return true;
    }
    false
}

/// A socket at each end, connected to each other.
fn ends(site: &Site) -> (UdpSocket, UdpSocket) {
    let a = site.addresses();
    let open = |role, address| {
        let socket = site.host(role).unwrap().run(|| UdpSocket::bind((address, 5000)).unwrap()).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        socket
    };
    let (initiator, responder) = (open(Role::Initiator, a.initiator), open(Role::Responder, a.responder));
    initiator.connect((a.responder, 5000)).unwrap();
    responder.connect((a.initiator, 5000)).unwrap();
    (initiator, responder)
}

/// Time of a word to the responder, and of the answer back.
fn ping(initiator: &UdpSocket, responder: &UdpSocket) -> (Duration, Duration) {
    let mut buffer = [0; 16];
    let start = Instant::now();
    initiator.send(b"ping").unwrap();
    responder.recv(&mut buffer).unwrap();
    let there = start.elapsed();
    let start = Instant::now();
    responder.send(b"pong").unwrap();
    initiator.recv(&mut buffer).unwrap();
    (there, start.elapsed())
}

fn delays(family: Family) {
    let lab = lab(&format!("delay-{family:?}"), family);
    let site = lab.site("s").unwrap();
    let (initiator, responder) = ends(site);
    ping(&initiator, &responder);
    let (there, back) = (Duration::from_millis(5), Duration::from_millis(2));
    let way = |delay| Way { delay, ..Way::default() };
    let impairment = Impairment::start(site, way(there), way(back)).unwrap();
    // No packet may be early. Noise makes packets late, so only some, within a long time, must be in time: 2 % of 5 ms.
    let deadline = Instant::now() + LONG;
    let mut pings = 0;
    loop {
        let (to, from) = ping(&initiator, &responder);
        pings += 1;
        assert!(to >= there && from >= back, "{to:?} {from:?}");
        if pings >= 20 && to <= there + Duration::from_micros(100) {
            break;
        }
        assert!(Instant::now() < deadline, "the delay is never within 2 %; the last was {to:?}");
    }
    let (egress, ingress) = impairment.finish().unwrap();
    assert_eq!((egress.packets, ingress.packets, egress.overflows), (pings, pings, 0));
    assert_eq!(egress.lateness.len(), pings);
    println!(
        "{family:?}: late p50 {:?} max {} ns of {pings}",
        egress.lateness.quantile(0.5),
        egress.lateness.max()
    );
    // Afterwards nothing waits.
    let deadline = Instant::now() + LONG;
    while ping(&initiator, &responder).0 >= there {
        assert!(Instant::now() < deadline, "packets still wait");
    }
}

#[test]
fn root_delay_is_never_early_and_ends() {
    if !cannot_run() {
        delays(Family::Ipv4);
        delays(Family::Ipv6);
    }
}

#[test]
fn root_every_tenth_datagram_is_overtaken_by_three() {
    if cannot_run() {
        return;
    }
    let lab = lab("reorder", Family::Ipv4);
    let site = lab.site("s").unwrap();
    let (initiator, responder) = ends(site);
    let egress = Way { reorder: Some(Reorder { every: 10, behind: 3 }), ..Way::default() };
    let impairment = Impairment::start(site, egress, Way::default()).unwrap();
    // Few enough for the receiver's buffer, and a number of packets after which none is held.
    for i in 0..95u8 {
        initiator.send(&[i]).unwrap();
    }
    let mut seen = Vec::new();
    let mut buffer = [0; 16];
    for _ in 0..95 {
        responder.recv(&mut buffer).unwrap();
        seen.push(buffer[0]);
    }
    let mut expected: Vec<u8> = (0..95).collect();
    // Numbers 9, 19, .., 89 (every tenth) each come three places later.
    for held in (9..90).step_by(10) {
        expected[held..=held + 3].rotate_left(1);
    }
    assert_eq!(seen, expected);
    let (passed, other) = impairment.finish().unwrap();
    assert_eq!((passed.packets, passed.reordered), (95, 9));
    assert_eq!(other.packets, 0);
}

#[test]
fn root_mistakes_are_named_and_rules_go() {
    if cannot_run() {
        return;
    }
    let lab = lab("mistakes", Family::Ipv4);
    let site = lab.site("s").unwrap();
    let reorder = |every, behind| Way { reorder: Some(Reorder { every, behind }), ..Way::default() };
    for (every, behind) in [(1, 1), (4, 0), (4, 4)] {
        let error = Impairment::start(site, reorder(every, behind), Way::default()).unwrap_err();
        assert!(error.to_string().contains("every >= 2"), "{error}");
    }
    drop(Impairment::start(site, reorder(4, 1), reorder(4, 1)).unwrap());
    let mut command = Command::new("iptables-save");
    site.wan().unwrap().enter_on_spawn(&mut command);
    let rules = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(!rules.contains("NFQUEUE"), "{rules}");

    let spec = SiteSpec { name: "s".into(), topology: Topology::Direct, return_route: false, wan: false };
    let run = format!("test-impair-none-{}", std::process::id());
    let lab = Lab::build(&run, &LabOptions::default(), &[spec]).unwrap();
    let error = Impairment::start(lab.site("s").unwrap(), reorder(4, 1), Way::default()).unwrap_err();
    assert!(error.to_string().contains("no wan"), "{error}");
}
