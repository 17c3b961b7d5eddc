//! One frame at a time: what is ours, what is not, and what is ours but wrong.

use weir_packets::frame::{Marked, Tag};
use weir_packets::{Family, Protocol, Way};

use crate::fixture::*;

/// The start of the network header, bytes from the beginning of the frame.
const NETWORK: usize = 14;

/// The start of the transport header.
fn transport(family: Family) -> usize {
    NETWORK + if family == Family::Ipv4 { 20 } else { 40 }
}

#[test]
fn root_each_kind_of_frame_is_counted_and_dropped_at_every_length() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let pair = Pair::new(9000);
    for (family, protocol, least) in KINDS {
        for incoming in [Way::Egress, Way::Ingress] {
            let mut receiver = pair.open(&link(family, incoming));
            // Sizes of RFC 2544 section 9.1, a jumbo frame, and an odd length.
            for length in [least, 128, 129, 512, 1024, 1518, 9018] {
                let s = sending(family, protocol, length, 100);
                receiver.expect(COOKIE, Some(&s), true).unwrap();
                for seq in 0..100 {
                    let verdict = run(&receiver, &frame(&s, incoming, tag(seq, seq))).0;
                    assert_eq!(verdict, DROP, "{family:?} {protocol:?} {length} {incoming:?} {seq}");
                }
                let received = receiver.received();
                assert_eq!(counts(&received), [100, 0, 0, 0, 0, 0], "{family:?} {protocol:?} {length}");
                assert_eq!(received.flows, 100);
                let source = if incoming == Way::Egress { nat(family) } else { ends(family).1 };
                assert_eq!(received.source, Some(source));
            }
        }
    }
}

#[test]
fn root_what_is_not_of_our_form_goes_to_the_stack_uncounted() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let pair = Pair::new(1500);
    for (family, protocol, least) in KINDS {
        let mut receiver = pair.open(&link(family, Way::Egress));
        let s = sending(family, protocol, least + 64, 8);
        receiver.expect(COOKIE, Some(&s), true).unwrap();
        let good = frame(&s, Way::Egress, tag(0, 0));
        let at = transport(family);
        let mut hostile: Vec<(&str, Vec<u8>)> = Vec::new();
        for length in 14..good.len() {
            hostile.push(("truncated", good[..length].to_vec()));
        }
        let mut change = |what, at: usize, bytes: &[u8]| {
            let mut frame = good.clone();
            frame[at..at + bytes.len()].copy_from_slice(bytes);
            hostile.push((what, frame));
        };
        change("ARP", 12, &[0x08, 0x06]);
        change("VLAN", 12, &[0x81, 0x00]);
        change("QinQ", 12, &[0x88, 0xa8]);
        match family {
            Family::Ipv4 => {
                change("IPv6 by its Ethernet type", 12, &[0x86, 0xdd]);
                change("version 6", NETWORK, &[0x65]);
                change("options", NETWORK, &[0x46]);
                change("header too short", NETWORK, &[0x44]);
                change("more fragments", NETWORK + 6, &[0x20, 0x00]);
                change("later fragment", NETWORK + 6, &[0x00, 0x01]);
                change("later fragment, far", NETWORK + 6, &[0x1f, 0xff]);
                change("reserved bit", NETWORK + 6, &[0x80, 0x00]);
                change("packet longer than frame", NETWORK + 2, &[0x10, 0x00]);
                change("packet of no length", NETWORK + 2, &[0, 0]);
                change("packet of a header", NETWORK + 2, &[0, 20]);
                change("packet of a header without a tag", NETWORK + 2, &[0, 28]);
                change("ICMP", NETWORK + 9, &[1]);
                change("the other protocol", NETWORK + 9, &[if protocol == Protocol::Udp { 6 } else { 17 }]);
            }
            Family::Ipv6 => {
                change("IPv4 by its Ethernet type", 12, &[0x08, 0x00]);
                change("version 4", NETWORK, &[0x40]);
                change("packet longer than frame", NETWORK + 4, &[0x10, 0x00]);
                change("packet of no length", NETWORK + 4, &[0, 0]);
                for header in [0, 43, 44, 50, 51, 58, 59, 60] {
                    change("extension header, ICMPv6", NETWORK + 6, &[header]);
                }
            }
        }
        match protocol {
            Protocol::Udp => {
                change("UDP too short", at + 4, &[0, 8]);
                change("UDP longer than packet", at + 4, &[0xff, 0xff]);
                change("UDP shorter than packet", at + 4, &[0, 30]);
            }
            Protocol::TcpSyn => {
                change("options", at + 12, &[0x60]);
                change("header too short", at + 12, &[0x40]);
                for flags in [0x00, 0x10, 0x12, 0x04, 0x01, 0x42, 0xc2] {
                    change("other flags", at + 13, &[flags]);
                }
            }
        }
        for (what, frame) in &hostile {
            let (verdict, after) = run(&receiver, frame);
            assert_eq!(verdict, PASS, "{family:?} {protocol:?} {what}, {} bytes", frame.len());
            assert_eq!(after, *frame, "{what}: handed on as it was");
        }
        assert_eq!(counts(&receiver.received()), [0; 6], "{family:?} {protocol:?}");
        // And what they were made of is counted.
        assert_eq!(run(&receiver, &good).0, DROP);
        assert_eq!(counts(&receiver.received()), [1, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn root_padding_behind_the_packet_does_no_harm() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let mut receiver = Pair::new(1500).open(&link(Family::Ipv4, Way::Egress));
    let s = sending(Family::Ipv4, Protocol::Udp, 64, 1);
    receiver.expect(COOKIE, Some(&s), true).unwrap();
    let mut padded = frame(&s, Way::Egress, tag(0, 0));
    padded.extend([0; 6]);
    assert_eq!(run(&receiver, &padded).0, DROP);
    assert_eq!(counts(&receiver.received()), [1, 0, 0, 0, 0, 0]);
}

#[test]
fn root_our_frames_in_the_wrong_shape_or_place_are_mistranslated() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let pair = Pair::new(1500);
    for (family, protocol, least) in KINDS {
        for incoming in [Way::Egress, Way::Ingress] {
            let mut receiver = pair.open(&link(family, incoming));
            let s = sending(family, protocol, least, 20);
            receiver.expect(COOKIE, Some(&s), true).unwrap();
            // Flow 13 is source port 1025, destination port 80 and the third address: 13 = 1 + 3 * (0 + 2 * 2).
            let good = marked(&s, incoming, tag(7, 13));
            let other = if family == Family::Ipv4 { address("198.18.77.7") } else { address("2001:2::77") };
            let mut wrong = vec![
                ("destination", Marked { destination: other, ..good }),
                ("destination port", Marked { destination_port: good.destination_port + 1, ..good }),
                ("flow", Marked { tag: tag(7, 12), ..good }),
                ("no such flow", Marked { tag: tag(7, 20), ..good }),
                ("no such flow by far", Marked { tag: tag(7, u32::MAX), ..good }),
            ];
            if incoming == Way::Ingress {
                wrong.push(("source", Marked { source: other, ..good }));
                wrong.push(("source port", Marked { source_port: good.source_port ^ 1, ..good }));
            } else {
                wrong.push(("nobody can answer", Marked { source_port: 0, ..good }));
                // 13 and 14 differ in the source port alone, which a NAT may choose as it likes.
                wrong.retain(|(what, _)| *what != "flow");
                wrong.push(("flow", Marked { tag: tag(7, 16), ..good }));
            }
            for (what, mark) in &wrong {
                let verdict = run(&receiver, &bytes(&s, mark)).0;
                assert_eq!(verdict, DROP, "{family:?} {protocol:?} {incoming:?}: {what}");
            }
            let longer = sending(family, protocol, least + 1, 20);
            assert_eq!(run(&receiver, &bytes(&longer, &good)).0, DROP);
            let received = receiver.received();
            assert_eq!(counts(&received), [0, 0, 0, 0, wrong.len() as u64 + 1, 0], "{family:?} {incoming:?}");
            assert_eq!((received.flows, received.source), (0, None));
            // None of them has taken the place of the right one.
            assert_eq!(run(&receiver, &bytes(&s, &good)).0, DROP);
            assert_eq!(receiver.received().frames, 1);
        }
    }
}

#[test]
fn root_other_transfers_are_foreign_and_only_the_last_one_is_dropped() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let pair = Pair::new(1500);
    for (family, protocol, least) in KINDS {
        let mut receiver = pair.open(&link(family, Way::Egress));
        let s = sending(family, protocol, least, 8);
        let of = |cookie| frame(&s, Way::Egress, Tag { cookie, ..tag(0, 0) });
        assert_eq!(run(&receiver, &of(1)).0, PASS, "nothing is expected yet");
        assert_eq!(counts(&receiver.received()), [0; 6]);
        receiver.expect(1, Some(&s), true).unwrap();
        assert_eq!(run(&receiver, &of(1)).0, DROP);
        receiver.expect(2, Some(&s), false).unwrap();
        assert_eq!(run(&receiver, &of(1)).0, DROP, "a straggler");
        assert_eq!(run(&receiver, &of(3)).0, PASS, "of somebody else");
        assert_eq!(counts(&receiver.received()), [0, 0, 0, 0, 0, 2]);
        assert_eq!(run(&receiver, &of(2)).0, DROP);
        assert_eq!(counts(&receiver.received()), [1, 0, 0, 0, 0, 2], "the same number again is no duplicate");
        // For another host: no matter of ours.
        let mut elsewhere = marked(&s, Way::Egress, Tag { cookie: 3, ..tag(0, 0) });
        elsewhere.destination = nat(family);
        assert_eq!(run(&receiver, &bytes(&s, &elsewhere)).0, PASS);
        assert_eq!(receiver.received().foreign, 2);
        receiver.expect(4, None, false).unwrap();
        assert_eq!(run(&receiver, &of(2)).0, PASS, "nothing is expected any more");
        assert_eq!(counts(&receiver.received()), [0; 6]);
    }
}

#[test]
fn root_stamped_frames_are_sent_back_where_they_came_from() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let pair = Pair::new(1500);
    for (family, protocol, least) in KINDS {
        let mut receiver = pair.open(&link(family, Way::Egress));
        receiver.reflect(true);
        let s = sending(family, protocol, least, 8);
        receiver.expect(COOKIE, Some(&s), true).unwrap();
        let there = marked(&s, Way::Egress, Tag { sent_ns: 5, ..tag(0, 3) });
        let (verdict, after) = run(&receiver, &bytes(&s, &there));
        assert_eq!(verdict, REDIRECT);
        let back = Marked {
            source: there.destination,
            source_port: there.destination_port,
            destination: there.source,
            destination_port: there.source_port,
            ..there
        };
        // The oracle computes all checksums afresh.
        let template = weir_packets::frame::Template::new(s.frame, MACS.1, MACS.0).unwrap();
        let mut expected = template.bytes().to_vec();
        template.mark(&mut expected, &back);
        assert_eq!(after, expected, "{family:?} {protocol:?}");
        assert_eq!(run(&receiver, &frame(&s, Way::Egress, tag(1, 3))).0, DROP, "not stamped");
        assert_eq!(run(&receiver, &bytes(&s, &there)).0, DROP, "once is enough");
        assert_eq!(counts(&receiver.received()), [2, 1, 0, 0, 0, 0]);
    }
}
