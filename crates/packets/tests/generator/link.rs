//! Live frames over a veth pair, counted by the interface at its other end and by an endpoint there.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use weir_netlink::ethtool::Ethtool;
use weir_netlink::{Rtnetlink, VethEnd};
use weir_packets::route;
use weir_packets::{
    Endpoint, Engine, Error, Family, Frame, Inject, Limit, Link, Offer, Order, Protocol, Received, Sending,
    Sent, Stop, Tuples, Way,
};
use weir_sys::privilege::test_needs_root;
use weir_sys::{NetNs, ProcRoot, sysctl};
use weir_testkit::measured;

const HERE: [u8; 6] = [0x02, 0, 0, 0, 0, 0x0a];
const THERE: [u8; 6] = [0x02, 0, 0, 0, 0, 0x0b];

/// The good attempts that sending as fast as it goes needs, and how many it has.
const NEEDED: usize = 2;
const ATTEMPTS: usize = 4;

/// Two hosts on one link.
pub(crate) struct Hosts {
    pub(crate) initiator: NetNs,
    responder: NetNs,
    family: Family,
}

impl Hosts {
    pub(crate) fn new(family: Family) -> Self {
        Hosts::with(family, true)
    }

    /// `acquainted`: each knows the other's Ethernet address without asking.
    fn with(family: Family, acquainted: bool) -> Self {
        let (initiator, responder) = (NetNs::create().unwrap(), NetNs::create().unwrap());
        if family == Family::Ipv4 {
            // Otherwise each end greets the other (RFC 4861), and the interfaces' counters are of more than our frames.
            for host in [&initiator, &responder] {
                host.run(|| {
                    let root = ProcRoot::new("/");
                    for scope in ["all", "default"] {
                        let name = format!("net.ipv6.conf.{scope}.disable_ipv6");
                        if sysctl::get_optional(&root, &name).unwrap().is_some() {
                            sysctl::set(&root, &name, "1").unwrap();
                        }
                    }
                })
                .unwrap();
            }
        }
        let mut net = Rtnetlink::open_in(&initiator).unwrap();
        let end = |name, namespace, mac| VethEnd { name, namespace, mtu: 1500, mac: Some(mac) };
        net.create_veth(end("out", None, HERE), end("in", Some(&responder), THERE)).unwrap();
        let mut there = Rtnetlink::open_in(&responder).unwrap();
        let hosts = Hosts { initiator, responder, family };
        let prefix = if family == Family::Ipv4 { 24 } else { 64 };
        for (net, name, own, other, mac) in [
            (&mut net, "out", hosts.own(), hosts.other(), THERE),
            (&mut there, "in", hosts.other(), hosts.own(), HERE),
        ] {
            net.set_up(name).unwrap();
            net.add_address(name, own, prefix).unwrap();
            if acquainted {
                net.add_neighbour(name, other, mac).unwrap();
            }
        }
        hosts
    }

    fn own(&self) -> IpAddr {
        if self.family == Family::Ipv4 { "198.18.0.1" } else { "2001:2::1" }.parse().unwrap()
    }

    fn other(&self) -> IpAddr {
        if self.family == Family::Ipv4 { "198.18.0.2" } else { "2001:2::2" }.parse().unwrap()
    }

    /// Lets frames that are redirected to the responder's end arrive there: a veth takes them only if its other end polls.
    pub(crate) fn gro(&self) {
        let wanted = BTreeMap::from([("gro".to_owned(), true)]);
        self.responder.run(|| Ethtool::open().unwrap().set("in", &wanted).unwrap()).unwrap();
    }

    pub(crate) fn link(&self, way: Way, cpus: Vec<usize>) -> Link {
        let (interface, address, target) = match way {
            Way::Egress => ("out", self.own(), self.other()),
            Way::Ingress => ("in", self.other(), self.own()),
        };
        Link {
            interface: interface.into(),
            address,
            target,
            way,
            inject: Inject::Wire,
            cpus,
            reference: false,
        }
    }

    pub(crate) fn initiator(&self, cpus: Vec<usize>) -> Endpoint {
        self.endpoint(Way::Egress, cpus, Engine::Xdp)
    }

    fn responder(&self) -> Endpoint {
        self.endpoint(Way::Ingress, vec![0], Engine::Xdp)
    }

    fn endpoint(&self, way: Way, cpus: Vec<usize>, engine: Engine) -> Endpoint {
        let link = self.link(way, cpus);
        let host = if way == Way::Egress { &self.initiator } else { &self.responder };
        let endpoint = host.run(|| Endpoint::open(&link, Some(engine)).unwrap()).unwrap();
        assert_eq!(endpoint.engine(), engine);
        endpoint
    }

    pub(crate) fn send(&self, endpoint: &Endpoint, sending: &Sending, stop: &Stop) -> Result<Sent, Error> {
        self.initiator.run(|| endpoint.send(7, sending, stop)).unwrap()
    }

    pub(crate) fn arrived(&self) -> u64 {
        let mut net = Rtnetlink::open_in(&self.responder).unwrap();
        net.interface("in").unwrap().counters.rx_packets
    }

    pub(crate) fn sending(&self, offer: Offer, frames: u64, duration: Duration) -> Sending {
        let bytes = if self.family == Family::Ipv4 { 64 } else { 84 };
        Sending {
            frame: Frame { family: self.family, protocol: Protocol::Udp, bytes },
            tuples: Tuples {
                flows: 1000,
                source_ports: 1024..=65535,
                destination_ports: 1..=49151,
                order: Order::Permutation,
                seed: 3,
            },
            offer,
            limit: Limit { frames, duration },
            stamp_every: 10,
        }
    }
}

/// Much longer than what is measured takes, however busy the machine is.
pub(crate) const LONG: Duration = Duration::from_secs(30);

#[test]
fn root_what_is_sent_is_what_the_other_end_counts() {
    if test_needs_root() {
        return;
    }
    let hosts = Hosts::new(Family::Ipv4);
    hosts.gro();
    let endpoint = hosts.initiator(vec![0]);
    let before = hosts.arrived();
    let sent =
        hosts.send(&endpoint, &hosts.sending(Offer::Unlimited, 12_345, LONG), &Stop::default()).unwrap();
    assert_eq!((sent.frames, sent.refused, sent.bytes), (12_345, 0, 12_345 * 64));
    assert_eq!((sent.engine, sent.slip_ratio, sent.late_max_ns), (Engine::Xdp, 0.0, 0));
    assert!(sent.duration_ns > 0 && sent.cpu_s > 0.0);
    let deadline = Instant::now() + LONG;
    while hosts.arrived() - before < sent.frames && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(hosts.arrived() - before, sent.frames);
}

#[test]
fn root_the_schedule_is_kept_and_the_deadline_ends_it() {
    if test_needs_root() {
        return;
    }
    let hosts = Hosts::new(Family::Ipv4);
    hosts.gro();
    let endpoint = hosts.initiator(vec![0]);
    for rate in [20_000.0, 400_000.0] {
        let frames = (rate / 10.0) as u64;
        let sent =
            hosts.send(&endpoint, &hosts.sending(Offer::Rate(rate), frames, LONG), &Stop::default()).unwrap();
        assert_eq!(sent.frames, frames);
        // The first frame may have been late, no other early.
        let planned_ns = ((frames - 1) as f64 * 1e9 / rate) as u64;
        assert!(sent.duration_ns + sent.late_max_ns >= planned_ns, "{sent:?}, planned {planned_ns}");
        let took = planned_ns as f64 * (1.0 + sent.slip_ratio);
        assert!(sent.duration_ns as f64 <= took + 1000.0, "{sent:?}");
    }
    // 0.1 s of 20,000 a second are 2,000 frames: frame 2000 is due when the time is over.
    let limited = hosts.sending(Offer::Rate(20_000.0), u64::MAX, Duration::from_millis(100));
    let sent = hosts.send(&endpoint, &limited, &Stop::default()).unwrap();
    assert!(sent.frames <= 2000, "{sent:?}");
    assert!(sent.frames == 2000 || sent.slip_ratio > 0.0, "frames that are missing are told: {sent:?}");
    let unlimited = hosts.sending(Offer::Unlimited, u64::MAX, Duration::from_millis(50));
    let sent = hosts.send(&endpoint, &unlimited, &Stop::default()).unwrap();
    assert!(sent.frames > 0 && sent.duration_ns >= 50_000_000, "{sent:?}");
}

#[test]
fn root_a_raised_stop_ends_the_transfer_long_before_its_time() {
    if test_needs_root() {
        return;
    }
    let hosts = Hosts::new(Family::Ipv4);
    hosts.gro();
    let endpoint = hosts.initiator(vec![0]);
    for offer in [Offer::Unlimited, Offer::Rate(1000.0)] {
        let (stop, before) = (Stop::default(), hosts.arrived());
        let began = Instant::now();
        let sent = std::thread::scope(|scope| {
            let sender =
                scope.spawn(|| hosts.send(&endpoint, &hosts.sending(offer, u64::MAX, 10 * LONG), &stop));
            while hosts.arrived() == before && began.elapsed() < LONG {
                std::thread::sleep(Duration::from_millis(1));
            }
            stop.raise();
            sender.join().unwrap().unwrap()
        });
        assert!(sent.frames > 0, "{sent:?}");
        assert!(began.elapsed() < 5 * LONG, "of five minutes: {:?}", began.elapsed());
    }
}

#[test]
fn root_frames_that_the_other_end_cannot_take_are_told_as_refused() {
    if test_needs_root() {
        return;
    }
    // Neither GRO nor an XDP program there.
    let hosts = Hosts::new(Family::Ipv4);
    let sent = hosts
        .send(&hosts.initiator(vec![0]), &hosts.sending(Offer::Unlimited, 1000, LONG), &Stop::default())
        .unwrap();
    assert_eq!((sent.frames, sent.refused, sent.bytes), (0, 1000, 0));
}

#[test]
fn root_frames_too_long_for_live_ones_are_refused_where_xdp_is_asked_for() {
    if test_needs_root() {
        return;
    }
    let hosts = Hosts::new(Family::Ipv4);
    let open = |engine| {
        hosts.initiator.run(|| Endpoint::open(&hosts.link(Way::Egress, vec![0]), engine).unwrap()).unwrap()
    };
    let mut sending = hosts.sending(Offer::Rate(1000.0), 1, LONG);
    sending.frame.bytes = 3401;
    let asked = open(Some(Engine::Xdp));
    let error = hosts.send(&asked, &sending, &Stop::default()).unwrap_err().to_string();
    assert!(error.contains("live frames have at most 3400"), "{error}");
    assert!(!asked.describe().contains("packet sockets"), "{}", asked.describe());
    // If it is not, packet sockets take over, and say what this link lacks.
    let any = open(None);
    let error = hosts.send(&any, &sending, &Stop::default()).unwrap_err().to_string();
    assert!(error.contains("need an MTU of 3383"), "{error}");
    assert!(any.describe().contains("by packet sockets beyond 3400 bytes"), "{}", any.describe());
}

/// As fast as it goes, the queue of the other end may run full where others keep its core busy: then once more.
fn there_and_back(family: Family, protocol: Protocol, cpus: &[usize]) {
    measured(NEEDED, ATTEMPTS, |_| are_there_and_back(family, protocol, cpus.to_vec()));
}

/// Egress, and the flows answered in the other direction, counted by the endpoints themselves. False if the other end could not
/// take all of them.
fn are_there_and_back(family: Family, protocol: Protocol, cpus: Vec<usize>) -> bool {
    let hosts = Hosts::new(family);
    let threads = cpus.len();
    let (initiator, responder) = (hosts.initiator(cpus), hosts.responder());
    let mut sending = hosts.sending(Offer::Unlimited, 50_000, LONG);
    sending.frame.protocol = protocol;
    hosts.responder.run(|| responder.expect(7, Some(&sending), true).unwrap()).unwrap();
    hosts.initiator.run(|| initiator.expect(7, None, true).unwrap()).unwrap();
    let sent = hosts.send(&initiator, &sending, &Stop::default()).unwrap();
    assert_eq!(sent.frames + sent.refused, 50_000);
    let egress = settled(&hosts.responder, &responder, sent.frames);
    if sent.refused > 0 {
        println!("{} of 50,000 were refused", sent.refused);
        assert_eq!(egress.frames, sent.frames, "those that were not arrive");
        return false;
    }
    check(&egress, 50_000, threads);
    assert_eq!((egress.flows, egress.source), (1000, Some(hosts.own())));
    assert_eq!(
        (egress.delay.len(), sent.stamped),
        (5_000, 5_000),
        "each thread stamps its first frame and every tenth after"
    );

    sending.limit.frames = 3_000;
    hosts.initiator.run(|| initiator.expect(8, Some(&sending), false).unwrap()).unwrap();
    hosts.responder.run(|| responder.expect(8, None, false).unwrap()).unwrap();
    let sent = hosts.responder.run(|| responder.send(8, &sending, &Stop::default()).unwrap()).unwrap();
    assert_eq!((sent.frames, sent.refused), (3_000, 0));
    check(&settled(&hosts.initiator, &initiator, sent.frames), 3_000, 1);
    assert!(initiator.describe().contains("live frames") && initiator.engine() == Engine::Xdp);
    true
}

/// The frames received, once all have come or no more come.
fn settled(host: &NetNs, endpoint: &Endpoint, frames: u64) -> Received {
    let deadline = Instant::now() + LONG;
    host.run(|| {
        loop {
            let received = endpoint.received().unwrap();
            if received.frames >= frames || Instant::now() >= deadline {
                return received;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    })
    .unwrap()
}

fn check(received: &Received, frames: u64, threads: usize) {
    assert_eq!(received.frames, frames, "{received:?}");
    assert_eq!((received.duplicated, received.late, received.mistranslated), (0, 0, 0), "{received:?}");
    if threads == 1 {
        assert_eq!(received.reordered, 0, "one thread's frames keep their order");
    }
}

#[test]
fn root_measured_udp_over_ipv4_there_and_back() {
    if !test_needs_root() {
        there_and_back(Family::Ipv4, Protocol::Udp, &[0]);
    }
}

#[test]
fn root_measured_udp_over_ipv6_there_and_back() {
    if !test_needs_root() {
        there_and_back(Family::Ipv6, Protocol::Udp, &[0]);
    }
}

#[test]
fn root_measured_syns_there_and_back() {
    if !test_needs_root() {
        there_and_back(Family::Ipv4, Protocol::TcpSyn, &[0]);
    }
}

#[test]
fn root_measured_two_threads_there_and_back() {
    if !test_needs_root() {
        // On one core, so that it runs on any machine: two threads, two programs, two parts of the order of flows.
        there_and_back(Family::Ipv4, Protocol::Udp, &[0, 0]);
    }
}

#[test]
fn root_a_station_by_packet_sockets_counts_what_another_sends() {
    if test_needs_root() {
        return;
    }
    let hosts = Hosts::new(Family::Ipv4);
    let initiator = hosts.endpoint(Way::Egress, vec![0], Engine::AfPacket);
    let responder = hosts.endpoint(Way::Ingress, vec![0], Engine::AfPacket);
    let sending = hosts.sending(Offer::Rate(5_000.0), 1_500, LONG);
    hosts.responder.run(|| responder.expect(7, Some(&sending), true).unwrap()).unwrap();
    let sent = hosts.send(&initiator, &sending, &Stop::default()).unwrap();
    assert_eq!((sent.frames, sent.engine), (1_500, Engine::AfPacket));
    let received = settled(&hosts.responder, &responder, sent.frames);
    check(&received, 1_500, 1);
    assert_eq!((received.flows, received.own_drops), (1000, 0));
    for endpoint in [&initiator, &responder] {
        assert!(endpoint.describe().contains("packet socket"), "{}", endpoint.describe());
    }
}

#[test]
fn root_the_next_hop_is_asked_for_its_ethernet_address() {
    if test_needs_root() {
        return;
    }
    for family in [Family::Ipv4, Family::Ipv6] {
        let hosts = Hosts::with(family, false);
        let link = hosts.link(Way::Egress, vec![0]);
        let path = hosts.initiator.run(|| route::find(&link, hosts.other()).unwrap()).unwrap();
        assert_eq!((path.source, path.destination), (HERE, THERE));
        // Into the stack of the host itself, as if from the other: for a gateway's inside interface.
        let link = Link { inject: Inject::Gateway, address: hosts.other(), ..link };
        let path = hosts.initiator.run(|| route::find(&link, hosts.other()).unwrap()).unwrap();
        assert_eq!((path.source, path.destination), (THERE, HERE));
    }
}

#[test]
fn root_what_cannot_be_sent_is_refused_with_its_reason() {
    if test_needs_root() {
        return;
    }
    let hosts = Hosts::new(Family::Ipv4);
    let endpoint = hosts.initiator(vec![0]);
    let good = hosts.sending(Offer::Rate(1000.0), 10, LONG);
    let refusal = |change: &dyn Fn(&mut Sending)| {
        let mut sending = good.clone();
        change(&mut sending);
        hosts.send(&endpoint, &sending, &Stop::default()).unwrap_err().to_string()
    };
    for (change, word) in [
        (&(|s: &mut Sending| s.limit.frames = 0) as &dyn Fn(&mut Sending), "limit"),
        (&|s: &mut Sending| s.limit.duration = Duration::ZERO, "limit"),
        (&|s: &mut Sending| s.limit.duration = Duration::from_secs(5 * 3600), "four hours"),
        (&|s: &mut Sending| s.offer = Offer::Rate(f64::NAN), "rate"),
        (&|s: &mut Sending| s.offer = Offer::Rate(-1.0), "rate"),
        (&|s: &mut Sending| s.frame.bytes = 1519, "MTU"),
        (&|s: &mut Sending| s.tuples.flows = 0, "flows"),
    ] {
        let words = refusal(change);
        assert!(words.contains(word), "{word}: {words}");
    }
    // A responder that has seen nothing has no flow to answer.
    let responder = hosts.responder();
    let error =
        hosts.responder.run(|| responder.send(7, &good, &Stop::default()).unwrap_err()).unwrap().to_string();
    assert!(error.contains("no flow"), "{error}");
    for cpus in [Vec::new(), vec![0; 17]] {
        let link = hosts.link(Way::Egress, cpus);
        let opened = hosts.initiator.run(|| Endpoint::open(&link, None)).unwrap();
        assert!(matches!(opened, Err(Error::Unfit(_))), "{opened:?}");
    }
}
