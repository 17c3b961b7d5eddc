//! The rules of counting, on frames that the template writes.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::flow_order::Tuple;
use crate::frame::{CHECK_SEQUENCE, Marked, Tag, Template};
use crate::transfer::{Frame, Inject, Limit, Offer, Order, Protocol, Tuples};

const COOKIE: u32 = 0x1234_5678;
const OUTSIDE: &str = "198.19.0.1";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn responder() -> Link {
    Link {
        interface: "outside".into(),
        address: ip("198.19.0.2"),
        target: ip("198.18.0.2"),
        way: Way::Ingress,
        inject: Inject::Wire,
        cpus: vec![0],
        reference: false,
    }
}

fn initiator() -> Link {
    Link {
        interface: "inside".into(),
        address: ip("198.18.0.2"),
        target: ip("198.19.0.2"),
        way: Way::Egress,
        ..responder()
    }
}

fn sending(protocol: Protocol) -> Sending {
    Sending {
        frame: Frame { family: Family::Ipv4, protocol, bytes: 64 },
        tuples: Tuples {
            flows: 10,
            source_ports: 1024..=1025,
            destination_ports: 80..=81,
            order: Order::Permutation,
            seed: 1,
        },
        offer: Offer::Unlimited,
        limit: Limit { frames: 100, duration: Duration::from_secs(1) },
        stamp_every: 1,
    }
}

/// A frame of flow 3 (port 1025 to 81) as it arrives at the responder, translated to port 5000 of the outside.
fn arriving(protocol: Protocol, seq: u32) -> Marked {
    Marked {
        tag: Tag { cookie: COOKIE, seq, flow: 3, sent_ns: 0 },
        protocol,
        source: ip(OUTSIDE),
        source_port: 5000,
        destination: ip("198.19.0.2"),
        destination_port: 81,
    }
}

fn give(tally: &mut Tally, mark: &Marked, bytes: u16, at_ns: u64) {
    let family = if mark.source.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
    let template = Template::new(Frame { family, protocol: mark.protocol, bytes }, [2; 6], [4; 6]).unwrap();
    let mut frame = template.bytes().to_vec();
    template.mark(&mut frame, mark);
    let head = &frame[..frame.len().min(frame::HEAD)];
    tally.arrive(head, usize::from(bytes) - CHECK_SEQUENCE, at_ns);
}

/// A responder's tally that expects UDP.
fn expecting() -> Tally {
    let mut tally = Tally::new(&responder());
    tally.expect(COOKIE, Some(&sending(Protocol::Udp)), true).unwrap();
    tally
}

fn udp(seq: u32) -> Marked {
    arriving(Protocol::Udp, seq)
}

#[test]
fn tells_new_reordered_duplicated_apart() {
    let mut tally = expecting();
    // RFC 4737 section 7.3 has 1 4 2 3 5 as its example of two reordered ones; then 4 and 2 once more.
    for seq in [1, 4, 2, 3, 5, 4, 2] {
        give(&mut tally, &udp(seq), 64, 1_000 + u64::from(seq));
    }
    let received = tally.received();
    assert_eq!((received.frames, received.reordered, received.duplicated), (5, 2, 2));
    assert_eq!((received.late, received.foreign, received.mistranslated, received.flows), (0, 0, 0, 1));
    assert_eq!(received.duration_ns, 4, "from the first, at 1,001, to the last new one, at 1,005");
}

#[test]
fn sending_threads_count_for_themselves() {
    let mut tally = expecting();
    let of = |stream: u32, number: u32| udp(stream << WEIR_SEQ_BITS | number);
    for mark in [of(0, 7), of(15, 7), of(15, 6), of(0, 8), of(0, 7)] {
        give(&mut tally, &mark, 64, 1);
    }
    let received = tally.received();
    assert_eq!((received.frames, received.reordered, received.duplicated), (4, 1, 1));
}

#[test]
fn numbers_go_round_their_circle() {
    let mut tally = expecting();
    let last = (1u32 << WEIR_SEQ_BITS) - 1;
    for seq in [last - 1, last, 0, 1, last, 3, 2] {
        give(&mut tally, &udp(seq), 64, 1);
    }
    let received = tally.received();
    assert_eq!((received.frames, received.reordered, received.duplicated), (6, 1, 1));
}

#[test]
fn what_is_too_late_to_tell_is_counted_as_that_alone() {
    let mut tally = expecting();
    let far = REMEMBERED as u32 + 10;
    for seq in [5, far, 10, 11, 11] {
        give(&mut tally, &udp(seq), 64, 1);
    }
    let received = tally.received();
    // 11 is one less than REMEMBERED behind, 10 as many.
    assert_eq!((received.frames, received.reordered, received.duplicated, received.late), (3, 1, 1, 1));
}

#[test]
fn frames_that_their_flow_cannot_send_are_mistranslated() {
    let mut tally = expecting();
    let good = udp(0);
    for bad in [
        Marked { tag: Tag { flow: 10, ..good.tag }, ..good },
        Marked { destination_port: 80, ..good },
        Marked { destination: ip("198.19.0.3"), ..good },
        Marked { source_port: 0, ..good },
    ] {
        give(&mut tally, &bad, 64, 1);
    }
    give(&mut tally, &good, 65, 1);
    let received = tally.received();
    assert_eq!((received.frames, received.mistranslated, received.flows), (0, 5, 0));
    give(&mut tally, &good, 64, 1);
    assert_eq!(tally.received().frames, 1, "nothing of them was remembered");
}

#[test]
fn the_initiator_wants_its_own_flows_back() {
    let mut tally = Tally::new(&initiator());
    let mut sending = sending(Protocol::Udp);
    tally.expect(COOKIE, Some(&sending), true).unwrap();
    // Flow 7 is the fourth of the second host (two by two ports each): from 198.18.0.3 port 1025 to port 81.
    let good = Marked {
        tag: Tag { cookie: COOKIE, seq: 0, flow: 7, sent_ns: 0 },
        protocol: Protocol::Udp,
        source: ip("198.19.0.2"),
        source_port: 81,
        destination: ip("198.18.0.3"),
        destination_port: 1025,
    };
    for bad in [
        Marked { source: ip(OUTSIDE), ..good },
        Marked { source_port: 80, ..good },
        Marked { destination: ip("198.18.0.2"), ..good },
        Marked { destination_port: 1024, ..good },
    ] {
        give(&mut tally, &bad, 64, 1);
    }
    assert_eq!((tally.received().frames, tally.received().mistranslated), (0, 4));
    assert_eq!(tally.received().source, None);
    give(&mut tally, &good, 64, 1);
    assert_eq!((tally.received().frames, tally.received().source), (1, Some(ip("198.19.0.2"))));
    sending.frame.family = Family::Ipv6;
    assert!(matches!(tally.expect(1, Some(&sending), false), Err(Error::Unfit(_))));
}

#[test]
fn other_transfers_are_foreign_and_other_traffic_is_nothing() {
    for protocol in [Protocol::Udp, Protocol::TcpSyn] {
        let mut tally = Tally::new(&responder());
        tally.expect(COOKIE, Some(&sending(protocol)), true).unwrap();
        tally.expect(COOKIE ^ 0xff, Some(&sending(protocol)), true).unwrap();
        let of = |cookie: u32| {
            let mark = arriving(protocol, 0);
            Marked { tag: Tag { cookie, ..mark.tag }, ..mark }
        };
        let stray = Marked { destination: ip("198.19.0.9"), ..of(COOKIE) };
        // A straggler of the transfer before, wherever it goes; another sender's for us.
        for mark in [of(COOKIE), stray, of(7)] {
            give(&mut tally, &mark, 64, 1);
        }
        // Another sender's for others, of another length, and of another protocol.
        give(&mut tally, &Marked { destination: ip("198.19.0.9"), ..of(7) }, 64, 1);
        give(&mut tally, &of(7), 128, 1);
        let other = if protocol == Protocol::Udp { Protocol::TcpSyn } else { Protocol::Udp };
        give(&mut tally, &Marked { protocol: other, ..of(COOKIE ^ 0xff) }, 64, 1);
        tally.arrive(&[0; 60], 60, 1);
        let received = tally.received();
        assert_eq!((received.foreign, received.frames, received.mistranslated), (3, 0, 0), "{protocol:?}");
        give(&mut tally, &of(COOKIE ^ 0xff), 64, 1);
        assert_eq!(tally.received().frames, 1);
    }
}

#[test]
fn flows_are_learnt_until_they_are_forgotten() {
    let mut tally = expecting();
    let first = udp(0);
    let second = Marked { tag: Tag { seq: 1, flow: 1, ..first.tag }, source_port: 5001, ..first };
    // Flow 1 goes from port 1025 to 80.
    let second = Marked { destination_port: 80, ..second };
    give(&mut tally, &first, 64, 1);
    give(&mut tally, &second, 64, 1);
    let received = tally.received();
    assert_eq!((received.flows, received.source), (2, Some(ip(OUTSIDE))));
    let learnt = |mark: &Marked| Tuple {
        source: mark.source,
        source_port: mark.source_port,
        destination: mark.destination,
        destination_port: mark.destination_port,
    };
    let table: Vec<_> = tally.learnt().iter().collect();
    assert_eq!(table, [(1, learnt(&second)), (3, learnt(&first))]);
    // More flows: those learnt stay, and count.
    let mut larger = sending(Protocol::Udp);
    larger.tuples.flows = 5_000;
    tally.expect(COOKIE + 1, Some(&larger), false).unwrap();
    assert_eq!((tally.received().frames, tally.received().flows), (0, 2));
    assert_eq!(tally.learnt().iter().count(), 2);
    tally.expect(COOKIE + 2, None, false).unwrap();
    assert_eq!((tally.received(), tally.learnt().iter().count()), (Received::default(), 2));
    tally.expect(COOKIE + 3, Some(&larger), true).unwrap();
    assert_eq!((tally.received().flows, tally.learnt().iter().count()), (0, 0));
}

#[test]
fn delays_are_those_of_stamped_frames_across_the_wrap_of_their_clock() {
    for protocol in [Protocol::Udp, Protocol::TcpSyn] {
        let mut tally = Tally::new(&responder());
        tally.expect(COOKIE, Some(&sending(protocol)), true).unwrap();
        // Sent 100 ns before the low 32 bits begin anew, 1,000 ns under way; and one without a stamp.
        let sent_ns = u32::MAX - 99;
        let mark = arriving(protocol, 0);
        let at_ns = (7u64 << 32) + 900;
        give(&mut tally, &Marked { tag: Tag { sent_ns, ..mark.tag }, ..mark }, 64, at_ns);
        give(&mut tally, &arriving(protocol, 1), 64, at_ns);
        let delay = tally.received().delay;
        assert_eq!((delay.len(), delay.max()), (1, 1_000), "{protocol:?}");
    }
}

proptest! {
    // Each case has 2,000 steps.
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Against a plain set of the numbers, for streams that wander over several windows and round the circle.
    #[test]
    fn agrees_with_a_set_of_all_numbers(
        start in 0..CIRCLE,
        steps in prop::collection::vec((0u64..100, 0u64..200, prop::bool::weighted(0.01)), 1000..2_000),
    ) {
        let mut stream = Stream::default();
        let (mut seen, mut highest, mut base) = (HashSet::new(), None, ORIGIN + start);
        for (forward, back, leap) in steps {
            base += if leap { REMEMBERED / 2 + forward } else { forward };
            let number = base - back;
            let expected = match highest {
                Some(h) if number + REMEMBERED <= h => Arrival::Late,
                _ if seen.contains(&number) => Arrival::Duplicate,
                Some(h) if number < h => Arrival::Reordered,
                _ => Arrival::InOrder,
            };
            prop_assert_eq!(stream.arrive(number % CIRCLE), expected, "{}", number);
            seen.insert(number);
            highest = highest.max(Some(number));
        }
    }
}
