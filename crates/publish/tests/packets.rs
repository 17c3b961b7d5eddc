//! Single packets through the programs by BPF_PROG_TEST_RUN: each byte of what comes out, and each checksum, is compared with what
//! `weir-wire` builds.

mod packet;
mod world;

use std::net::IpAddr;

use packet::{BOTH, DROPPED, Ends, LEFT, Packet, REDIRECTED, for_each_family, frame, reason_of, run};
use weir_publish::{Direction, Publish, Reason};
use weir_sys::privilege::test_needs_root;
use weir_wire::{Icmp, Sum, Tcp, protocol};
use world::{INNER, PUBLISHED, PublishWorld, SAME};

#[test]
fn root_every_byte_is_what_it_would_be_if_it_had_been_sent_so() {
    for_each_family(|world, publish| {
        for (published, inner) in [(SAME, SAME), (PUBLISHED, INNER)] {
            let ends = Ends::of(world, published, inner);
            for direction in BOTH {
                for protocol in [protocol::TCP, protocol::UDP] {
                    for length in [0, 1, 2, 7, 512, 1401] {
                        let (sent, expected) = ends.packet(direction, protocol, &world::noise(length, 3));
                        let (verdict, got) = run(world, publish, direction, &sent.datagram());
                        let case = format!("{direction:?} {protocol} {length} {published}->{inner}");
                        assert_eq!(verdict, REDIRECTED, "{case}");
                        assert_eq!(got, expected.datagram(), "{case}");
                    }
                }
            }
        }
    });
}

#[test]
fn root_udp_without_a_checksum_stays_so_and_none_becomes_one() {
    for_each_family(|world, publish| {
        let ends = Ends::of(world, PUBLISHED, INNER);
        let check_at = if world.published.is_ipv4() { 20 + 6 } else { 40 + 6 };
        for direction in BOTH {
            let (sent, expected) = ends.packet(direction, protocol::UDP, b"without");
            let (mut sent, mut expected) = (sent.datagram(), expected.datagram());
            sent[check_at..check_at + 2].fill(0);
            expected[check_at..check_at + 2].fill(0);
            assert_eq!(run(world, publish, direction, &sent), (REDIRECTED, expected));

            // A payload whose sum makes the checksum 0, which is written as all ones (RFC 768).
            let (_, plain) = ends.packet(direction, protocol::UDP, &[0, 0]);
            let plain = plain.datagram();
            let sum = u16::from_be_bytes([plain[check_at], plain[check_at + 1]]);
            let (sent, expected) = ends.packet(direction, protocol::UDP, &sum.to_be_bytes());
            assert_eq!(expected.datagram()[check_at..check_at + 2], [0xff, 0xff]);
            assert_eq!(run(world, publish, direction, &sent.datagram()), (REDIRECTED, expected.datagram()));
        }
    });
}

#[test]
fn root_a_wrong_checksum_stays_wrong() {
    for_each_family(|world, publish| {
        let ends = Ends::of(world, PUBLISHED, INNER);
        for direction in BOTH {
            let (sent, expected) = ends.packet(direction, protocol::TCP, b"payload");
            let mut sent = sent.datagram();
            *sent.last_mut().unwrap() ^= 1;
            let (_, got) = run(world, publish, direction, &sent);
            let transport = got.len() - expected.transport().len();
            assert!(!Tcp::is_sound(expected.source.ip(), expected.destination.ip(), &got[transport..]));
        }
    });
}

#[test]
fn root_errors_are_translated_with_what_they_quote() {
    for_each_family(|world, publish| {
        type Message = fn(&[u8]) -> Icmp<'_>;
        let messages: [Message; 4] = [
            |quote| Icmp::Unreachable { code: 3, quote },
            |quote| Icmp::TooBig { mtu: 1300, quote },
            |quote| Icmp::TimeExceeded { code: 0, quote },
            |quote| Icmp::ParameterProblem { code: 0, pointer: 9, quote },
        ];
        for (published, inner) in [(SAME, SAME), (PUBLISHED, INNER)] {
            let ends = Ends::of(world, published, inner);
            let header = if world.published.is_ipv4() { 20 } else { 40 };
            for direction in BOTH {
                for about in [protocol::TCP, protocol::UDP] {
                    // All of it, eight bytes of transport (RFC 792), and just not a segment's checksum.
                    for quoted in [1500, header + 8, header + 16] {
                        for message in messages {
                            let (sent, expected) = ends.error(direction, about, quoted, message);
                            let (verdict, got) = run(world, publish, direction, &sent.datagram());
                            let case = format!("{direction:?} {about} {quoted} {published}->{inner}");
                            assert_eq!(verdict, REDIRECTED, "{case}");
                            assert_eq!(got, expected.datagram(), "{case}");
                        }
                    }
                }
            }
        }
        // Half a checksum cannot be put right and stays; the message around it is still sound.
        let ends = Ends::of(world, PUBLISHED, INNER);
        let header = if world.published.is_ipv4() { 20 } else { 40 };
        let (sent, expected) = ends.error(Direction::Out, protocol::TCP, header + 17, messages[0]);
        let (_, got) = run(world, publish, Direction::Out, &sent.datagram());
        assert!(Icmp::is_sound(expected.source.ip(), expected.destination.ip(), &got[header..]));
        let translated = publish.status().unwrap().packets(Direction::In, Reason::TranslatedError);
        assert_eq!(translated, 2 * 2 * 3 * 4);
    });
}

#[test]
fn root_a_quoted_header_with_options_is_found_behind_them() {
    if test_needs_root() {
        return;
    }
    let world = PublishWorld::new(false);
    let publish = world.load();
    let ends = Ends::of(&world, PUBLISHED, INNER);
    let with_options = |packet: Packet| {
        let mut bytes = packet.payload;
        // The quoted header becomes one word longer: no operation (RFC 791 section 3.1), four times.
        bytes[8] = 0x46;
        bytes.splice(28..28, [1; 4]);
        bytes[18..20].fill(0);
        let check = Sum::new().bytes(&bytes[8..32]).checksum().to_be_bytes();
        bytes[18..20].copy_from_slice(&check);
        bytes[2..4].fill(0);
        let check = Sum::new().bytes(&bytes).checksum().to_be_bytes();
        bytes[2..4].copy_from_slice(&check);
        Packet { payload: bytes, ..packet }
    };
    for direction in BOTH {
        let (sent, expected) =
            ends.error(direction, protocol::UDP, 1500, |quote| Icmp::Unreachable { code: 3, quote });
        let (verdict, got) = run(&world, &publish, direction, &with_options(sent).datagram());
        assert_eq!((verdict, got), (REDIRECTED, with_options(expected).datagram()));
    }
}

#[test]
fn root_errors_about_others_packets_are_left() {
    for_each_family(|world, publish| {
        let ends = Ends::of(world, PUBLISHED, INNER);
        let unreachable: fn(&[u8]) -> Icmp<'_> = |quote| Icmp::Unreachable { code: 3, quote };
        for direction in BOTH {
            let other = Ends {
                published: (world.published, 9).into(),
                inner: (world.inner, 9).into(),
                ..Ends::of(world, 1, 1)
            };
            let (sent, _) = other.error(direction, protocol::TCP, 1500, unreachable);
            assert_eq!(reason_of(world, publish, direction, &sent.datagram()), (LEFT, Reason::NotMapped));
            // Too short a quote to have ports.
            let header = if world.published.is_ipv4() { 20 } else { 40 };
            let (sent, _) = ends.error(direction, protocol::TCP, header + 3, unreachable);
            assert_eq!(reason_of(world, publish, direction, &sent.datagram()), (LEFT, Reason::NotMapped));
            // Not to, or not from, whom the quoted packet was of.
            let (mut sent, _) = ends.error(direction, protocol::TCP, 1500, unreachable);
            match direction {
                Direction::In => sent.destination = (world.inner, 0).into(),
                Direction::Out => sent.source = (world.published, 0).into(),
            }
            assert_eq!(reason_of(world, publish, direction, &sent.datagram()), (LEFT, Reason::NotMapped));
            // An echo is no error.
            let (mut sent, _) = ends.error(direction, protocol::TCP, 1500, unreachable);
            sent.payload[0] = if world.published.is_ipv4() { 8 } else { 128 };
            assert_eq!(reason_of(world, publish, direction, &sent.datagram()), (LEFT, Reason::NotMapped));
            let (mut sent, _) = ends.error(direction, protocol::TCP, 1500, unreachable);
            sent.hops = 1;
            assert_eq!(reason_of(world, publish, direction, &sent.datagram()), (LEFT, Reason::LastHop));
        }
    });
}

#[test]
fn root_what_is_not_plain_is_left_with_its_reason() {
    for_each_family(|world, publish| {
        let ends = Ends::of(world, PUBLISHED, INNER);
        let ipv4 = world.published.is_ipv4();
        for direction in BOTH {
            let (packet, _) = ends.packet(direction, protocol::UDP, b"payload");
            let left = |bytes: &[u8]| {
                let (verdict, reason) = reason_of(world, publish, direction, bytes);
                assert_eq!(verdict, LEFT, "{reason:?}");
                reason
            };
            assert_eq!(left(&Packet { hops: 1, ..packet.clone() }.datagram()), Reason::LastHop);
            assert_eq!(left(&Packet { protocol: 47, ..packet.clone() }.datagram()), Reason::NotMapped);
            let mut other = packet.clone();
            other.source.set_port(9);
            other.destination.set_port(9);
            assert_eq!(left(&other.datagram()), Reason::NotMapped);
            // The same port of the other protocol would be mapped; a first fragment and a later one are not looked at.
            let whole = packet.datagram();
            if ipv4 {
                let changed = |at: usize, value: u8| {
                    let mut bytes = whole.clone();
                    bytes[at] = value;
                    bytes
                };
                assert_eq!(left(&changed(6, 0x20)), Reason::Fragment);
                assert_eq!(left(&changed(7, 0x01)), Reason::Fragment);
                assert_eq!(left(&changed(0, 0x46)), Reason::Options);
                assert_eq!(left(&changed(0, 0x44)), Reason::Malformed);
                // Longer than it is.
                assert_eq!(left(&changed(2, 0x10)), Reason::Malformed);
            } else {
                for (next, reason) in [
                    (44, Reason::Fragment),
                    (0, Reason::Options),
                    (60, Reason::Options),
                    (43, Reason::Options),
                ] {
                    assert_eq!(left(&Packet { protocol: next, ..packet.clone() }.datagram()), reason);
                }
                let mut longer = whole.clone();
                longer[4] = 0x10;
                assert_eq!(left(&longer), Reason::Malformed);
            }
            let header = if ipv4 { 20 } else { 40 };
            assert_eq!(left(&whole[..header + 3]), Reason::Malformed);
            let arp = [&[0; 6][..], &[2; 6], &[8, 6], &[0; 46]].concat();
            let run = world.host.run(|| publish.run(direction, &arp, 1)).unwrap().unwrap();
            assert_eq!((run.verdict, run.packet), (LEFT, arp));
            assert_eq!(world::packets(publish, direction, Reason::NotIp), 1);
        }
    });
}

/// The kernel cuts super-packets to their length field, too.
#[test]
fn root_super_packets_are_translated_if_their_length_is_what_is_there() {
    for_each_family(|world, publish| {
        let ends = Ends::of(world, PUBLISHED, INNER);
        for direction in BOTH {
            for protocol in [protocol::TCP, protocol::UDP] {
                let (packet, _) = ends.packet(direction, protocol, b"payload");
                let verdict = |bytes: &[u8]| {
                    let run = world.host.run(|| publish.run_super(direction, &frame(bytes), 3));
                    run.unwrap().unwrap().verdict
                };
                let whole = packet.datagram();
                assert_eq!(verdict(&whole), REDIRECTED);
                assert_eq!(verdict(&[&whole[..], &[9; 6]].concat()), LEFT);
                assert_eq!(verdict(&whole[..whole.len() - 1]), LEFT);
            }
        }
    });
}

#[test]
fn root_only_what_is_sent_to_this_host_is_taken() {
    for_each_family(|world, publish| {
        let ends = Ends::of(world, PUBLISHED, INNER);
        for (first, reason, direction) in [
            (2, Reason::NotOurs, Direction::In),
            (1, Reason::NotOurs, Direction::In),
            (1, Reason::NotOurs, Direction::Out),
            // To the bridge, whose address is not that of its port.
            (2, Reason::Translated, Direction::Out),
        ] {
            let before = world::packets(publish, direction, reason);
            let (packet, _) = ends.packet(direction, protocol::TCP, b"");
            let mut bytes = frame(&packet.datagram());
            bytes[0] = first;
            let run = world.host.run(|| publish.run(direction, &bytes, 1)).unwrap().unwrap();
            assert_eq!(run.verdict == REDIRECTED, reason == Reason::Translated);
            assert_eq!(world::packets(publish, direction, reason), before + 1);
        }
    });
}

#[test]
fn root_direct_access_is_dropped_and_other_ways_are_the_kernels() {
    for_each_family(|world, publish| {
        let ends = Ends::of(world, PUBLISHED, INNER);
        let (mut packet, _) = ends.packet(Direction::In, protocol::TCP, b"direct");
        packet.destination = ends.inner;
        assert_eq!(reason_of(world, publish, Direction::In, &packet.datagram()), (DROPPED, Reason::Direct));
        // To the host itself, and to a neighbour on the bridge.
        let neighbour: IpAddr = if world.published.is_ipv4() {
            [198, 18, 1, 77].into()
        } else {
            "2001:2:0:1::77".parse().unwrap()
        };
        for address in [world.published, neighbour] {
            let (mut packet, _) = ends.packet(Direction::Out, protocol::TCP, b"answer");
            packet.destination.set_ip(address);
            let got = reason_of(world, publish, Direction::Out, &packet.datagram());
            assert_eq!(got, (LEFT, Reason::OtherWay), "{address}");
        }
    });
}

#[test]
fn root_a_connection_that_the_container_opens_is_for_the_rules_to_judge() {
    for_each_family(|world, publish| {
        let header = if world.published.is_ipv4() { 20 } else { 40 };
        for (published, inner) in [(SAME, SAME), (PUBLISHED, INNER)] {
            for direction in BOTH {
                let (packet, _) = Ends::of(world, published, inner).packet(direction, protocol::TCP, b"");
                // Flags of TCP: SYN, alone and with those of ECN; SYN with ACK; RST.
                for (flags, opens) in [(0x02, true), (0xc2, true), (0x12, false), (0x04, false)] {
                    let mut bytes = packet.datagram();
                    bytes[header + 13] = flags;
                    let (verdict, got) = reason_of(world, publish, direction, &bytes);
                    let expected = match direction {
                        Direction::Out if opens => (LEFT, Reason::Opens),
                        _ => (REDIRECTED, Reason::Translated),
                    };
                    assert_eq!((verdict, got), expected, "{direction:?} {flags:#x}");
                }
            }
        }
    });
}

#[test]
fn root_a_source_that_nobody_outside_has_is_for_the_kernel_to_judge() {
    for_each_family(|world, publish| {
        let ends = Ends::of(world, PUBLISHED, INNER);
        let (of_its_network, beyond): (&[&str], &[&str]) = if world.published.is_ipv4() {
            (&["198.18.1.1", "198.18.1.2", "198.18.1.255"], &["198.18.0.255", "198.18.2.0"])
        } else {
            (
                &["2001:2:0:1::1", "2001:2:0:1:ffff:ffff:ffff:ffff", "fe80::1", "febf::1"],
                &["2001:2::1:0:0:1", "2001:2:0:2::", "fec0::1", "fe7f::1"],
            )
        };
        for protocol in [protocol::TCP, protocol::UDP] {
            let from = |address: &str| {
                let (mut packet, _) = ends.packet(Direction::In, protocol, b"from whom?");
                packet.source.set_ip(address.parse().unwrap());
                reason_of(world, publish, Direction::In, &packet.datagram())
            };
            for address in of_its_network {
                assert_eq!(from(address), (LEFT, Reason::FalseSource), "{address}");
            }
            for address in beyond {
                assert_eq!(from(address), (REDIRECTED, Reason::Translated), "{address}");
            }
        }
    });
}

#[test]
fn root_a_host_that_does_not_forward_is_told_apart() {
    for_each_family(|world, publish| {
        let ends = Ends::of(world, SAME, SAME);
        let version = if world.published.is_ipv4() { 4 } else { 6 };
        world::sh(&world.host, &format!("sysctl -q net.ipv{version}.conf.br0.forwarding=0"));
        let (packet, _) = ends.packet(Direction::Out, protocol::TCP, b"");
        let got = reason_of(world, publish, Direction::Out, &packet.datagram());
        assert_eq!(got, (LEFT, Reason::NoForwarding));
    });
}

#[test]
fn root_as_many_mappings_as_there_may_be() {
    if test_needs_root() {
        return;
    }
    let world = PublishWorld::new(false);
    let mappings: Vec<_> = (1..=4096_u16)
        .map(|port| weir_publish::Mapping {
            protocol: weir_publish::Protocol::Tcp,
            published: (world.published, port).into(),
            container: (world.inner, port + 10_000).into(),
        })
        .collect();
    let load = || Publish::load(&mappings, weir_publish::Links::find("in0", "v0").unwrap()).unwrap();
    let publish = world.host.run(load).unwrap();
    for port in [1, 2000, 4096] {
        let (sent, expected) =
            Ends::of(&world, port, port + 10_000).packet(Direction::In, protocol::TCP, b"x");
        let got = run(&world, &publish, Direction::In, &sent.datagram());
        assert_eq!(got, (REDIRECTED, expected.datagram()));
    }
}
