//! On a veth pair between two namespaces of the test's own.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use weir_netlink::{Mac, Rtnetlink, VethEnd};
use weir_sys::privilege::test_needs_root;
use weir_sys::{NetNs, SendBatch};

use super::ring::Ring;
use super::socket::{bind, open};
use super::{RawReceiver, RawSender};
use crate::Error;
use crate::flow_order::{self, Tuple};
use crate::frame::{Marked, Tag, Template};
use crate::transfer::{
    Family, Frame, Inject, Limit, Link, Offer, Order, Protocol, Received, Sending, Stop, Tuples, Way,
};

const COOKIE: u32 = 0x7765_6972;
const MACS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const PATIENCE: Duration = Duration::from_secs(60);

/// Initiator and responder on one link.
struct Pair {
    hosts: [NetNs; 2],
    links: [Link; 2],
    indexes: [u32; 2],
}

impl Pair {
    fn new(family: Family, mtu: u32) -> Pair {
        let hosts = [NetNs::create().unwrap(), NetNs::create().unwrap()];
        let [addresses, prefix] = match family {
            Family::Ipv4 => [["198.18.0.2", "198.18.0.3"], ["24", ""]],
            Family::Ipv6 => [["2001:2::2", "2001:2::3"], ["64", ""]],
        };
        let addresses = addresses.map(|a| a.parse::<IpAddr>().unwrap());
        let names = ["initiator", "responder"];
        let end = |i: usize| VethEnd {
            name: names[i],
            namespace: (i == 1).then_some(&hosts[1]),
            mtu,
            mac: Some(MACS[i]),
        };
        let mut net = Rtnetlink::open_in(&hosts[0]).unwrap();
        net.create_veth(end(0), end(1)).unwrap();
        let indexes = [0, 1].map(|i| {
            let mut net = Rtnetlink::open_in(&hosts[i]).unwrap();
            net.add_address(names[i], addresses[i], prefix[0].parse().unwrap()).unwrap();
            net.set_up(names[i]).unwrap();
            net.add_neighbour(names[i], addresses[1 - i], MACS[1 - i]).unwrap();
            net.interface(names[i]).unwrap().index
        });
        for i in 0..2 {
            Rtnetlink::open_in(&hosts[i]).unwrap().wait_until_local(addresses[i], PATIENCE).unwrap();
        }
        let links = [0, 1].map(|i| Link {
            interface: names[i].into(),
            address: addresses[i],
            target: addresses[1 - i],
            way: [Way::Egress, Way::Ingress][i],
            inject: Inject::Wire,
            cpus: vec![0],
            reference: false,
        });
        Pair { hosts, links, indexes }
    }

    fn receiver(&self, host: usize) -> RawReceiver {
        self.hosts[host].run(|| RawReceiver::open(self.indexes[host], &self.links[host])).unwrap().unwrap()
    }

    fn outgoing(&self, sending: &Sending) -> Vec<(u32, Tuple)> {
        let link = &self.links[0];
        flow_order::order(&sending.tuples)
            .unwrap()
            .into_iter()
            .map(|flow| (flow, flow_order::outgoing(&sending.tuples, link.address, link.target, flow)))
            .collect()
    }

    fn send(&self, host: usize, sending: &Sending, flows: &[(u32, Tuple)]) -> Result<crate::Sent, Error> {
        let link = &self.links[host];
        self.hosts[host].run(|| RawSender::new(link).send(COOKIE, sending, flows, &Stop::default())).unwrap()
    }

    /// A socket of the initiator, for frames that no sender makes.
    fn socket(&self) -> OwnedFd {
        let open = || {
            let socket = open()?;
            bind(&socket, self.indexes[0], 0)?;
            Ok::<_, Error>(socket)
        };
        self.hosts[0].run(open).unwrap().unwrap()
    }

    /// A number out of the responder's `/proc/net` statistics.
    fn counter(&self, protocol: &str, name: &str, v6: bool) -> u64 {
        let file = if v6 { "snmp6" } else { "snmp" };
        let text = self.hosts[1]
            .run(|| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")))
            .unwrap()
            .unwrap();
        if v6 {
            let line = text.lines().find(|l| l.split_whitespace().next() == Some(name)).unwrap();
            return line.split_whitespace().nth(1).unwrap().parse().unwrap();
        }
        let mut lines = text.lines().filter(|l| l.split(':').next() == Some(protocol));
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let column = names.split_whitespace().position(|n| n == name).unwrap();
        values.split_whitespace().nth(column).unwrap().parse().unwrap()
    }
}

fn sending(family: Family, protocol: Protocol, bytes: u16, frames: u64) -> Sending {
    Sending {
        frame: Frame { family, protocol, bytes },
        tuples: Tuples {
            flows: 100,
            source_ports: 1024..=65535,
            destination_ports: 1..=49151,
            order: Order::Permutation,
            seed: 3,
        },
        offer: Offer::Unlimited,
        limit: Limit { frames, duration: PATIENCE },
        stamp_every: 10,
    }
}

/// Asks until as many frames as expected have come, or the time is over.
fn wait_for(receiver: &mut RawReceiver, frames: u64) -> Received {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let received = receiver.received().unwrap();
        if received.frames + received.own_drops >= frames || Instant::now() >= deadline {
            return received;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn root_every_kind_of_frame_that_is_sent_is_counted_and_the_stack_finds_its_checksums_right() {
    if test_needs_root() {
        return;
    }
    for family in [Family::Ipv4, Family::Ipv6] {
        let pair = Pair::new(family, 9000);
        let mut receiver = pair.receiver(1);
        let v6 = family == Family::Ipv6;
        let least = if v6 { 84 } else { 64 };
        let mut sent_by_now = [0, 0];
        for (protocol, bytes) in [
            (Protocol::Udp, least),
            (Protocol::Udp, 1518),
            (Protocol::Udp, 9018),
            (Protocol::TcpSyn, least),
            (Protocol::TcpSyn, 1518),
        ] {
            let sending = sending(family, protocol, bytes, 250);
            receiver.expect(COOKIE, Some(&sending), true).unwrap();
            let sent = pair.send(0, &sending, &pair.outgoing(&sending)).unwrap();
            assert_eq!((sent.frames, sent.bytes, sent.refused), (250, 250 * u64::from(bytes), 0));
            let received = wait_for(&mut receiver, 250);
            let what = format!("{family:?} {protocol:?} {bytes}: {received:?}");
            assert_eq!((received.frames, received.duplicated, received.reordered), (250, 0, 0), "{what}");
            assert_eq!((received.mistranslated, received.foreign, received.late), (0, 0, 0), "{what}");
            assert_eq!((received.flows, received.own_drops), (100, 0), "{what}");
            assert_eq!(received.source, Some(pair.links[0].address), "{what}");
            assert_eq!(received.delay.len(), 25, "{what}");
            assert!(received.delay.max() < 4_000_000_000, "{what}");
            sent_by_now[usize::from(protocol == Protocol::TcpSyn)] += 250;
        }
        // The stack has no socket for these: it counts a datagram without a port, and answers a SYN with a reset, only after it has
        // found their checksums right.
        let udp = if v6 { "Udp6NoPorts" } else { "NoPorts" };
        let deadline = Instant::now() + PATIENCE;
        let counts = || [pair.counter("Udp", udp, v6), pair.counter("Tcp", "OutRsts", false)];
        while counts() != sent_by_now && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(counts(), sent_by_now, "{family:?}");
    }
}

#[test]
fn root_what_goes_wrong_on_the_way_is_counted_exactly() {
    if test_needs_root() {
        return;
    }
    let pair = Pair::new(Family::Ipv4, 1500);
    let mut receiver = pair.receiver(1);
    let sending = sending(Family::Ipv4, Protocol::Udp, 64, 1000);
    let template = Template::new(sending.frame, MACS[0], MACS[1]).unwrap();
    let socket = pair.socket();
    let mut batch = SendBatch::new(template.bytes().to_vec(), template.bytes().len());
    let mut give = |seq: u32, cookie: u32, change: &dyn Fn(&mut Marked)| {
        let flow = seq % 100;
        let tuple = flow_order::outgoing(&sending.tuples, pair.links[0].address, pair.links[0].target, flow);
        let mut mark = Marked {
            tag: Tag { cookie, seq, flow, sent_ns: 0 },
            protocol: Protocol::Udp,
            source: tuple.source,
            source_port: tuple.source_port,
            destination: tuple.destination,
            destination_port: tuple.destination_port,
        };
        change(&mut mark);
        template.mark(batch.message(0), &mark);
        assert_eq!(batch.send(&socket, 0, 1).unwrap(), 1);
    };
    receiver.expect(COOKIE, Some(&sending), true).unwrap();
    // Out of 1,000, every tenth is lost, every 25th comes twice, 3 and 503 come after two later ones; five have a wrong port, seven are
    // of another transfer.
    let mut order: Vec<u32> = (0..1000).filter(|seq| seq % 10 != 9).collect();
    for late in [3, 503] {
        let at = order.iter().position(|seq| *seq == late).unwrap();
        order[at..at + 3].rotate_left(1);
    }
    for seq in &order {
        give(*seq, COOKIE, &|_| {});
        if seq % 25 == 0 {
            give(*seq, COOKIE, &|_| {});
        }
    }
    (2000..2005).for_each(|seq| give(seq, COOKIE, &|mark| mark.destination_port ^= 1));
    (0..7).for_each(|seq| give(seq, COOKIE ^ 1, &|_| {}));
    // The kernel takes a VLAN's tag out of a frame, which is no less another network's for that.
    let mut tagged = template.bytes().to_vec();
    let flow = 9;
    let tuple = flow_order::outgoing(&sending.tuples, pair.links[0].address, pair.links[0].target, flow);
    let mark = Marked {
        tag: Tag { cookie: COOKIE, seq: 9, flow, sent_ns: 0 },
        protocol: Protocol::Udp,
        source: tuple.source,
        source_port: tuple.source_port,
        destination: tuple.destination,
        destination_port: tuple.destination_port,
    };
    template.mark(&mut tagged, &mark);
    tagged.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
    let length = tagged.len();
    assert_eq!(SendBatch::new(tagged, length).send(&socket, 0, 1).unwrap(), 1);
    // Behind it on the same link, so that it has arrived when this has.
    give(19, COOKIE, &|_| {});
    let received = wait_for(&mut receiver, 901);
    // 19 comes after all others.
    assert_eq!((received.frames, received.duplicated, received.reordered), (901, 40, 3));
    assert_eq!((received.mistranslated, received.foreign), (5, 7));
    assert_eq!((received.flows, received.late, received.own_drops), (91, 0, 0));
}

#[test]
fn root_the_responder_answers_where_flows_came_from() {
    if test_needs_root() {
        return;
    }
    let pair = Pair::new(Family::Ipv6, 1500);
    let mut receivers = [pair.receiver(0), pair.receiver(1)];
    let sending = sending(Family::Ipv6, Protocol::Udp, 100, 300);
    receivers[1].expect(COOKIE, Some(&sending), true).unwrap();
    pair.send(0, &sending, &pair.outgoing(&sending)).unwrap();
    assert_eq!(wait_for(&mut receivers[1], 300).flows, 100);
    let answers: Vec<(u32, Tuple)> = receivers[1].with_learnt(|table| {
        table
            .iter()
            .map(|(flow, seen)| {
                let tuple = Tuple {
                    source: seen.destination,
                    source_port: seen.destination_port,
                    destination: seen.source,
                    destination_port: seen.source_port,
                };
                (flow, tuple)
            })
            .collect()
    });
    receivers[0].expect(COOKIE, Some(&sending), true).unwrap();
    pair.send(1, &sending, &answers).unwrap();
    let received = wait_for(&mut receivers[0], 300);
    assert_eq!((received.frames, received.mistranslated, received.flows), (300, 0, 100));
    assert_eq!(received.source, Some(pair.links[1].address));
    // The receiver has not seen the responder's frames.
    let own = receivers[1].received().unwrap();
    assert_eq!((own.frames, own.mistranslated, own.duplicated, own.foreign), (300, 0, 0, 0));
    let nobody = pair.send(1, &sending, &[]);
    assert!(nobody.unwrap_err().to_string().contains("no flow has come through"));
}

#[test]
fn root_a_rate_is_kept_and_threads_take_turns() {
    if test_needs_root() {
        return;
    }
    let mut pair = Pair::new(Family::Ipv4, 1500);
    pair.links[0].cpus = weir_sys::sched::allowed_cpus().unwrap().into_iter().cycle().take(2).collect();
    let mut receiver = pair.receiver(1);
    let mut sending = sending(Family::Ipv4, Protocol::Udp, 64, u64::MAX);
    sending.offer = Offer::Rate(1_000.0);
    sending.limit.duration = Duration::from_millis(300);
    receiver.expect(COOKIE, Some(&sending), true).unwrap();
    let sent = pair.send(0, &sending, &pair.outgoing(&sending)).unwrap();
    let received = wait_for(&mut receiver, sent.frames);
    assert_eq!((received.frames, received.duplicated, received.own_drops), (sent.frames, 0, 0));
    // Frames k with k / 1,000 < 0.3 s, and none before its time: 299 intervals, less what the first one was late. A machine that
    // stalls at the end leaves some out and says so.
    assert!(sent.frames == 300 || (sent.frames < 300 && sent.late_max_ns > 0), "{sent:?}");
    let least = (sent.frames - 1) * 1_000_000;
    assert!(sent.duration_ns + sent.late_max_ns >= least, "{sent:?}");
    assert!(sent.slip_ratio >= 0.0 && sent.slip_ratio.is_finite());
    if sent.frames == 300 {
        assert_eq!(received.flows, 100);
        // Each of the two threads stamps the frames 0, 10, ..., 140 of its 150.
        assert_eq!((received.delay.len(), sent.stamped), (30, 30));
    }
}

#[test]
fn root_a_sender_stops_when_its_time_is_over_and_when_it_is_told() {
    if test_needs_root() {
        return;
    }
    let pair = Pair::new(Family::Ipv4, 1500);
    let mut receiver = pair.receiver(1);
    let mut sending = sending(Family::Ipv4, Protocol::Udp, 64, u64::MAX);
    sending.limit.duration = Duration::from_millis(50);
    receiver.expect(COOKIE, Some(&sending), true).unwrap();
    let flows = pair.outgoing(&sending);
    let sent = pair.send(0, &sending, &flows).unwrap();
    let received = wait_for(&mut receiver, sent.frames);
    assert_eq!(received.frames + received.own_drops, sent.frames);
    sending.limit.duration = Duration::from_secs(3600);
    for offer in [Offer::Unlimited, Offer::Rate(0.1)] {
        sending.offer = offer;
        let stop = Stop::default();
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let link = &pair.links[0];
            let sender = scope.spawn(|| {
                pair.hosts[0].run(|| RawSender::new(link).send(COOKIE, &sending, &flows, &stop)).unwrap()
            });
            let deadline = Instant::now() + PATIENCE;
            receiver.expect(COOKIE, Some(&sending), true).unwrap();
            while receiver.received().unwrap().frames == 0 && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            stop.raise();
            assert!(sender.join().unwrap().unwrap().frames > 0);
        });
        assert!(begun.elapsed() < PATIENCE, "{offer:?}");
    }
}

#[test]
fn root_what_the_receiver_has_no_room_for_is_its_own_doing() {
    if test_needs_root() {
        return;
    }
    let pair = Pair::new(Family::Ipv4, 1500);
    let mut receiver = pair.receiver(1);
    let frames = Ring::slots() as u64 + 1_000;
    let sending = sending(Family::Ipv4, Protocol::Udp, 64, frames);
    receiver.expect(COOKIE, Some(&sending), true).unwrap();
    // As long as someone looks at the table nothing is read.
    let sent = receiver.with_learnt(|_| pair.send(0, &sending, &pair.outgoing(&sending)).unwrap());
    assert_eq!(sent.frames, frames);
    let received = wait_for(&mut receiver, frames);
    assert_eq!((received.frames, received.own_drops), (Ring::slots() as u64, 1_000));
    // The next transfer begins with an empty ring and no drops.
    receiver.expect(COOKIE, Some(&sending), true).unwrap();
    assert_eq!(receiver.received().unwrap(), Received::default());
}

#[test]
fn root_what_cannot_be_sent_here_is_refused_with_its_reason() {
    if test_needs_root() {
        return;
    }
    let mut pair = Pair::new(Family::Ipv4, 1500);
    let jumbo = sending(Family::Ipv4, Protocol::Udp, 1519, 1);
    let error = pair.send(0, &jumbo, &pair.outgoing(&jumbo)).unwrap_err().to_string();
    assert_eq!(error, "frames of 1519 bytes need an MTU of 1501; that of initiator is 1500");
    let fine = sending(Family::Ipv4, Protocol::Udp, 1518, 1);
    let flows = pair.outgoing(&fine);
    for bad in [
        Sending { offer: Offer::Rate(f64::NAN), ..fine.clone() },
        Sending { offer: Offer::Rate(0.0), ..fine.clone() },
        Sending { limit: Limit { frames: 0, ..fine.limit }, ..fine.clone() },
        Sending { limit: Limit { duration: Duration::ZERO, ..fine.limit }, ..fine.clone() },
    ] {
        assert!(matches!(pair.send(0, &bad, &flows), Err(Error::Unfit(_))), "{bad:?}");
    }
    pair.links[0].inject = Inject::Gateway;
    assert!(matches!(pair.send(0, &fine, &flows), Err(Error::Unfit(_))));
    pair.links[0].inject = Inject::Wire;
    assert_eq!(pair.send(0, &fine, &flows).unwrap().frames, 1);
    let mut receiver = pair.receiver(1);
    let v6 = sending(Family::Ipv6, Protocol::Udp, 84, 1);
    assert!(matches!(receiver.expect(COOKIE, Some(&v6), true), Err(Error::Unfit(_))));
}

#[test]
fn root_without_the_privilege_the_message_says_which_one_and_how_to_get_it() {
    if test_needs_root() {
        return;
    }
    let pair = Pair::new(Family::Ipv4, 1500);
    // Capabilities are a thread's own, and this one ends here.
    let error = pair.hosts[1]
        .run(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::NET_RAW);
            set_capabilities(None, sets).unwrap();
            assert!(RawSender::new(&pair.links[1]).probe().is_err());
            RawReceiver::open(pair.indexes[1], &pair.links[1]).unwrap_err()
        })
        .unwrap();
    assert!(error.is_missing());
    let words = error.to_string();
    for part in ["CAP_NET_RAW", "run as root", "setcap cap_net_raw+ep", "--cap-add NET_RAW"] {
        assert!(words.contains(part), "{words}");
    }
}
