//! Frames as they are written and read.

use proptest::prelude::*;
use weir_wire::Datagram;

use super::*;

const MACS: (Mac, Mac) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);

fn template(family: Family, protocol: Protocol, bytes: u16) -> Template {
    Template::new(Frame { family, protocol, bytes }, MACS.0, MACS.1).unwrap()
}

fn marked(family: Family, protocol: Protocol, tag: Tag) -> Marked {
    let (source, destination) = match family {
        Family::Ipv4 => ("198.18.0.2", "198.19.0.2"),
        Family::Ipv6 => ("2001:2::2", "2001:2:0:8000::2"),
    };
    Marked {
        tag,
        protocol,
        source: source.parse().unwrap(),
        source_port: 1024,
        destination: destination.parse().unwrap(),
        destination_port: 49151,
    }
}

fn kinds() -> impl Iterator<Item = (Family, Protocol)> {
    [Family::Ipv4, Family::Ipv6]
        .into_iter()
        .flat_map(|family| [Protocol::Udp, Protocol::TcpSyn].map(|protocol| (family, protocol)))
}

const TAG: Tag = Tag { cookie: 0x8765_4321, seq: 0x0102_0304, flow: 77, sent_ns: 0xfedc_ba98 };

/// The part of a tag that the frame's protocol can carry.
fn carried(protocol: Protocol, tag: Tag) -> Tag {
    match protocol {
        Protocol::Udp => tag,
        Protocol::TcpSyn => Tag { cookie: tag.cookie & 0xffff, ..tag },
    }
}

fn assert_sound(frame: &[u8]) {
    let datagram = Datagram::in_frame(frame).unwrap().unwrap();
    let (source, destination) = (datagram.source, datagram.destination);
    if source.is_ipv4() {
        assert!(Ipv4::is_sound(&frame[Ethernet::LENGTH..]));
    }
    assert!(match datagram.protocol {
        protocol::UDP => Udp::is_sound(source, destination, datagram.payload),
        _ => Tcp::is_sound(source, destination, datagram.payload),
    });
}

#[test]
fn every_kind_of_frame_reads_as_it_was_marked_and_its_checksums_are_right() {
    for (family, protocol) in kinds() {
        let least = if family == Family::Ipv4 { LEAST_IPV4 } else { LEAST_IPV6 };
        for bytes in [least, 128, 129, 1518, GREATEST] {
            let template = template(family, protocol, bytes);
            let mark = marked(family, protocol, TAG);
            let mut frame = template.bytes().to_vec();
            assert_eq!(frame.len(), usize::from(bytes) - 4);
            template.mark(&mut frame, &mark);
            let expected = Marked { tag: carried(protocol, TAG), ..mark };
            assert_eq!(read(&frame), Some(expected), "{family:?} {protocol:?} {bytes}");
            assert!(expected.is_of(TAG.cookie) && !expected.is_of(TAG.cookie ^ 1));
            assert_sound(&frame);
        }
    }
}

#[test]
fn the_least_udp_frame_byte_by_byte() {
    let template = template(Family::Ipv4, Protocol::Udp, 64);
    let mut frame = template.bytes().to_vec();
    template.mark(&mut frame, &marked(Family::Ipv4, Protocol::Udp, TAG));
    #[rustfmt::skip]
    let expected = [
        // To 02:..:02, from 02:..:01, IPv4.
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0,
        // 46 bytes, DF, TTL 64, UDP. Checksum: 4500 + 002e + 4000 + 4011 + c612 + 0002 + c613 + 0002 = 25168, and ~516a = ae95.
        0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0xae, 0x95, 198, 18, 0, 2, 198, 19, 0, 2,
        // 1024 to 49151, 26 bytes. Checksum: c612 + 0002 + c613 + 0002 + 0011 + 001a + 0400 + bfff + 001a + 8765 + 4321
        // + 0102 + 0304 + 0000 + 004d + fedc + ba98 = 4d8ba, folded d8be, and ~d8be = 2741.
        4, 0, 0xbf, 0xff, 0, 26, 0x27, 0x41,
        0x87, 0x65, 0x43, 0x21, 1, 2, 3, 4, 0, 0, 0, 77, 0xfe, 0xdc, 0xba, 0x98, 0, 0,
    ];
    assert_eq!(frame, expected);
}

#[test]
fn lengths_that_no_frame_has_are_refused() {
    for (family, protocol) in kinds() {
        let least = if family == Family::Ipv4 { LEAST_IPV4 } else { LEAST_IPV6 };
        for bytes in [0, least - 1, GREATEST + 1, u16::MAX] {
            let made = Template::new(Frame { family, protocol, bytes }, MACS.0, MACS.1);
            assert!(matches!(made, Err(Error::Unfit(_))), "{family:?} {bytes}");
        }
    }
}

#[test]
fn frames_that_are_not_quite_ours_are_none() {
    let mark = marked(Family::Ipv4, Protocol::TcpSyn, TAG);
    let template = template(Family::Ipv4, Protocol::TcpSyn, 64);
    let mut frame = template.bytes().to_vec();
    template.mark(&mut frame, &mark);
    let with = |place: usize, value: u8| {
        let mut frame = frame.clone();
        frame[place] = value;
        read(&frame)
    };
    assert_eq!(with(0, 0xff).map(|m| m.source), Some(mark.source), "the Ethernet address is not looked at");
    // VLAN, version, options, longer than the frame, shorter than its headers, more fragments, offset, other protocol.
    for (place, value) in
        [(12, 0x81), (14, 0x65), (14, 0x46), (17, 47), (17, 19), (20, 0x20), (21, 1), (23, 47)]
    {
        assert_eq!(with(place, value), None, "byte {place} = {value:#x}");
    }
    // IPv4's reserved flag; TCP options, a header longer than the segment, reserved bits, SYN and ACK, no flags.
    for (place, value) in [(20, 0xc0), (46, 0x60), (46, 0x90), (46, 0x51), (47, 0x12), (47, 0)] {
        assert_eq!(with(place, value), None, "byte {place} = {value:#x}");
    }
    for length in 0..frame.len() {
        assert_eq!(read(&frame[..length]), None, "{length} bytes");
    }
}

#[test]
fn the_head_of_a_frame_is_enough_and_its_padding_does_not_count() {
    for (family, protocol) in kinds() {
        let template = template(family, protocol, 1518);
        let mark = marked(family, protocol, TAG);
        let mut frame = template.bytes().to_vec();
        template.mark(&mut frame, &mark);
        let expected = Some(Captured { marked: Marked { tag: carried(protocol, TAG), ..mark }, bytes: 1518 });
        assert_eq!(read_captured(&frame[..HEAD], 1514), expected);
        assert_eq!(read_captured(&frame[..HEAD], 1520), expected);
        assert_eq!(read_captured(&frame[..HEAD], 1513), None);
        assert_eq!(read_captured(&frame[..57], 1514), None);
    }
}

fn any_mark() -> impl Strategy<Value = (Marked, u16)> {
    let kind = (any::<bool>(), any::<bool>(), LEAST_IPV6..400);
    (kind, any::<[u32; 4]>(), any::<[u16; 2]>(), any::<[u128; 2]>()).prop_map(|(kind, tag, ports, hosts)| {
        let address = |bits: u128| match kind.0 {
            true => IpAddr::from((bits as u32).to_be_bytes()),
            false => IpAddr::from(bits.to_be_bytes()),
        };
        let mark = Marked {
            tag: Tag { cookie: tag[0], seq: tag[1], flow: tag[2], sent_ns: tag[3] },
            protocol: if kind.1 { Protocol::Udp } else { Protocol::TcpSyn },
            source: address(hosts[0]),
            source_port: ports[0],
            destination: address(hosts[1]),
            destination_port: ports[1],
        };
        (mark, kind.2)
    })
}

proptest! {
    #[test]
    fn marking_again_leaves_nothing_of_the_mark_before((first, bytes) in any_mark(), (mut second, _) in any_mark()) {
        let family = if first.source.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
        (second.source, second.destination) = (first.destination, first.source);
        second.protocol = first.protocol;
        let template = template(family, first.protocol, bytes);
        let mut once = template.bytes().to_vec();
        template.mark(&mut once, &second);
        let mut twice = template.bytes().to_vec();
        template.mark(&mut twice, &first);
        assert_sound(&twice);
        template.mark(&mut twice, &second);
        prop_assert_eq!(&once, &twice);
        let expected = Marked { tag: carried(second.protocol, second.tag), ..second };
        prop_assert_eq!(read(&once), Some(expected));
    }

    #[test]
    fn reading_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes);
    }

    #[test]
    fn reading_a_damaged_frame_never_panics((mark, bytes) in any_mark(), at in any::<[prop::sample::Index; 3]>(), to in any::<[u8; 3]>()) {
        let family = if mark.source.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
        let template = template(family, mark.protocol, bytes);
        let mut frame = template.bytes().to_vec();
        template.mark(&mut frame, &mark);
        for (at, to) in at.iter().zip(to) {
            let place = at.index(frame.len());
            frame[place] = to;
        }
        let _ = read(&frame);
    }
}
