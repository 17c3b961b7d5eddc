//! The state table (RFC 9693): what the receiver learns of each flow.

use weir_packets::flow_order::Tuple;
use weir_packets::{Family, Protocol, Way};

use crate::fixture::*;

#[test]
fn root_each_flow_is_learnt_as_it_was_translated() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let pair = Pair::new(1500);
    for (family, protocol, least) in KINDS {
        let mut receiver = pair.open(&link(family, Way::Egress));
        let s = sending(family, protocol, least, 1000);
        receiver.expect(COOKIE, Some(&s), true).unwrap();
        // Every second flow, twice.
        for (seq, flow) in (0..1000).step_by(2).chain((0..1000).step_by(2)).enumerate() {
            run(&receiver, &frame(&s, Way::Egress, tag(seq as u32, flow)));
        }
        assert_eq!(receiver.received().flows, 500);
        let learnt: Vec<_> = receiver.learnt().iter().collect();
        let expected: Vec<_> = (0..1000)
            .step_by(2)
            .map(|flow| {
                let learnt = Tuple {
                    source: nat(family),
                    source_port: 40_000 + flow as u16,
                    destination: ends(family).1,
                    // Flow = source port + 3 * destination port (+ 6 * address), see the fixture's tuples.
                    destination_port: 80 + (flow / 3 % 2) as u16,
                };
                (flow, learnt)
            })
            .collect();
        assert_eq!(learnt, expected, "{family:?} {protocol:?}");
        // A flow that comes through another port from now on is the same flow.
        let mut moved = marked(&s, Way::Egress, tag(2000, 4));
        moved.source_port = 50_000;
        run(&receiver, &bytes(&s, &moved));
        assert_eq!(receiver.received().flows, 500);
        assert_eq!(receiver.learnt().get(4).unwrap().source_port, 50_000);
    }
}

#[test]
fn root_the_table_stays_until_it_is_forgotten_and_grows_with_the_flows() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let pair = Pair::new(1500);
    for (family, protocol, least) in [KINDS[0], KINDS[3]] {
        let mut receiver = pair.open(&link(family, Way::Egress));
        let small = sending(family, protocol, least, 10);
        receiver.expect(1, Some(&small), true).unwrap();
        for flow in 0..10 {
            let mut mark = marked(&small, Way::Egress, tag(flow, flow));
            mark.tag.cookie = 1;
            run(&receiver, &bytes(&small, &mark));
        }
        assert_eq!(receiver.received().flows, 10);
        let large = sending(family, protocol, least, 300_000);
        receiver.expect(2, Some(&large), false).unwrap();
        assert!(receiver.learnt().room() >= 300_000);
        let mut mark = marked(&large, Way::Egress, tag(0, 299_999));
        mark.tag.cookie = 2;
        assert_eq!(run(&receiver, &bytes(&large, &mark)).0, DROP);
        let received = receiver.received();
        assert_eq!((counts(&received), received.flows), ([1, 0, 0, 0, 0, 0], 11));
        let known: Vec<u32> = receiver.learnt().iter().map(|(flow, _)| flow).collect();
        assert_eq!(known, (0..10).chain([299_999]).collect::<Vec<_>>());
        receiver.expect(3, None, true).unwrap();
        assert_eq!(receiver.learnt().iter().count(), 0);
        receiver.expect(4, Some(&small), false).unwrap();
        assert_eq!(receiver.received().flows, 0);
    }
}

#[test]
fn root_what_the_other_side_cannot_send_is_refused() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let mut receiver = Pair::new(1500).open(&link(Family::Ipv4, Way::Egress));
    let good = sending(Family::Ipv4, Protocol::Udp, 64, 1);
    for (what, bad) in [
        ("family", sending(Family::Ipv6, Protocol::Udp, 84, 1)),
        ("too short", sending(Family::Ipv4, Protocol::Udp, 63, 1)),
        ("too long", sending(Family::Ipv4, Protocol::Udp, 9019, 1)),
        ("no flows", sending(Family::Ipv4, Protocol::Udp, 64, 0)),
    ] {
        receiver.expect(COOKIE, Some(&good), true).unwrap();
        let error = receiver.expect(COOKIE, Some(&bad), true).unwrap_err();
        assert!(matches!(error, weir_packets::Error::Unfit(_)), "{what}: {error}");
        // And what was expected before still is.
        assert_eq!(run(&receiver, &frame(&good, Way::Egress, tag(0, 0))).0, DROP);
        assert_eq!(receiver.received().frames, 1, "{what}");
    }
}
