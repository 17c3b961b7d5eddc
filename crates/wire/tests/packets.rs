//! Packets that others made: from RFCs, and from Linux 6.18, whose checksums were computed in software.

use std::net::IpAddr;

use weir_wire::{Datagram, Error, Ethernet, Fragment, Icmp, Ipv4, Ipv6, Tcp, Udp, ethernet, ipv6, protocol};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).unwrap() as u8).collect();
    digits.as_chunks::<2>().0.iter().map(|[high, low]| high << 4 | low).collect()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// RFC 9235 section 4.1.1.
const SYN_V4: &str =
    "45 e0 00 4c dd 0f 40 00 ff 06 bf 6b 0a 0b 0c 0d ac 1b 1c 1d e9 d7 00 b3 fb fb ab 5a 00 00 00 00
    e0 02 ff ff ca c4 00 00 02 04 05 b4 01 03 03 08 04 02 08 0a 00 15 5a b7 00 00 00 00 1d 10 3d 54
    2e e4 37 c6 f8 ed e6 d7 c4 d6 02 e7";

/// RFC 9235 section 6.1.1.
const SYN_V6: &str =
    "6e 08 91 dc 00 38 06 40 fd 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01 fd 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 02 f7 e4 00 b3 17 6a 83 3f 00 00 00 00 e0 02 ff ff 47 21 00 00 02 04 05 a0
    01 03 03 08 04 02 08 0a 00 41 d0 87 00 00 00 00 1d 10 3d 54 90 33 ec 3d 73 34 b6 4c 5e dd 03 9f";

/// RFC 7400 appendix A: an RPL information solicitation, and a neighbour solicitation.
const RPL: &str = "60 00 00 00 00 08 3a ff fe 80 00 00 00 00 00 00 02 1c da ff fe 00 20 24
    ff 02 00 00 00 00 00 00 00 00 00 00 00 00 00 1a 9b 00 6b de 00 00 00 00";
const NEIGHBOUR: &str = "60 00 00 00 00 30 3a ff 20 02 0d b8 00 00 00 00 00 00 00 ff fe 00 3b d3
    fe 80 00 00 00 00 00 00 02 1c da ff fe 00 30 23 87 00 a7 68 00 00 00 00 fe 80 00 00 00 00 00 00
    02 1c da ff fe 00 30 23 01 01 3b d3 00 00 00 00 1f 02 00 00 00 00 00 06 00 1c da ff fe 00 20 24";

/// Datagrams with 5 bytes for a closed port, and what Linux answers.
const UDP_V4: &str = "45000021ef9f40004011bf04c6120001c61200029c400009000dd58a7765697221";
const UDP_V6: &str =
    "600ffc63000d114020010002000000000000000000000001200100020000000000000000000000029c400009000d21aa
    7765697221";
const CLOSED_V4: &str = "45c0003ddf5c000040010e7cc6120002c61200010303894300000000
    45000021ef9f40004011bf04c6120001c61200029c400009000dd58a7765697221";
const CLOSED_V6: &str = "6007f088003d3a402001000200000000000000000000000220010002000000000000000000000001010450d900000000
    600ffc63000d114020010002000000000000000000000001200100020000000000000000000000029c400009000d21aa7765697221";

/// The answer of a Linux router to packets that went too many hops.
const HOPS_V4: &str = "45c0003ddff5000040010de3c6120002c61200010b00814e00000000
    45000021a005400001114d97c6120001c61300099c400009000dd5827765697221";
const HOPS_V6: &str = "6003c948003d3a4020010002000000000000000000000002200100020000000000000000000000010300ceda00000000
    600f7ca5000d110120010002000000000000000000000001200100020000800000000000000000099c400009000da1a27765697221";

/// The same for packets of 1,428 and 1,448 bytes at a link of 1,280: headers and quote, which goes on with `w` to the length given.
const TOO_BIG_V4: (&str, usize) = (
    "45c00240e0ad000040010b28c6120002c61200010304df1200000500
    45000594000040004011a929c6120001c61300099c400009058021ca",
    0x240,
);
const TOO_BIG_V6: (&str, usize) = (
    "6004e52604d83a40200100020000000000000000000000022001000200000000000000000000000102002c6700000500
    600f7ca50580114020010002000000000000000000000001200100020000800000000000000000099c4000090580ede9",
    1280,
);

/// The two fragments of a datagram with 1,500 times `f`.
const FRAGMENTS: [(&str, usize); 2] = [
    (
        "600ffc6305b02c402001000200000000000000000000000120010002000000000000000000000002
        110000013c394b0f9c40000905e417d4",
        40 + 0x5b0,
    ),
    (
        "600ffc6300442c402001000200000000000000000000000120010002000000000000000000000002110005a83c394b0f",
        40 + 0x44,
    ),
];

fn filled((head, length): (&str, usize), with: u8) -> Vec<u8> {
    let mut bytes = hex(head);
    bytes.resize(length, with);
    bytes
}

#[test]
fn syns_of_rfc_9235() {
    for (text, source, destination, ports, sequence, checksum) in [
        (SYN_V4, "10.11.12.13", "172.27.28.29", (0xe9d7, 179), 0xfbfb_ab5a, 0xcac4),
        (SYN_V6, "fd00::1", "fd00::2", (0xf7e4, 179), 0x176a_833f, 0x4721),
    ] {
        let bytes = hex(text);
        let datagram = Datagram::read(&bytes).unwrap();
        assert_eq!((datagram.source, datagram.destination), (ip(source), ip(destination)));
        assert_eq!((datagram.protocol, datagram.fragment), (protocol::TCP, None));
        let (tcp, options, payload) = Tcp::read(datagram.payload).unwrap();
        assert_eq!((tcp.source_port, tcp.destination_port), ports);
        assert_eq!((tcp.sequence, tcp.acknowledgement, tcp.flags), (sequence, 0, Tcp::SYN));
        assert_eq!((tcp.window, tcp.checksum, tcp.urgent), (0xffff, checksum, 0));
        // Kind 29, 16 bytes: TCP-AO is the last option.
        assert_eq!((options.len(), options[20], options[21], payload.len()), (36, 29, 16, 0));
        // The RFC's IPv4 segments were taken behind a translation: only those of IPv6 have the checksum of their addresses.
        assert_eq!(
            Tcp::is_sound(datagram.source, datagram.destination, datagram.payload),
            datagram.source.is_ipv6()
        );
    }
    assert!(Ipv4::is_sound(&hex(SYN_V4)));
    let (ipv4, _) = Ipv4::read(&hex(SYN_V4)).map(|(h, p)| (h, p.len())).unwrap();
    assert_eq!((ipv4.tos, ipv4.identification, ipv4.ttl, ipv4.dont_fragment), (0xe0, 0xdd0f, 255, true));
    let (ipv6, _) = Ipv6::read(&hex(SYN_V6)).map(|(h, p)| (h, p.len())).unwrap();
    assert_eq!((ipv6.traffic_class, ipv6.flow_label, ipv6.hop_limit), (0xe0, 0x8_91dc, 64));
}

#[test]
fn icmpv6_of_rfc_7400() {
    for (text, kind) in [(RPL, 155), (NEIGHBOUR, 135)] {
        let bytes = hex(text);
        let datagram = Datagram::read(&bytes).unwrap();
        assert_eq!((datagram.protocol, datagram.hops), (protocol::ICMPV6, 255));
        assert!(Icmp::is_sound(datagram.source, datagram.destination, datagram.payload));
        let icmp = Icmp::read_v6(datagram.payload).unwrap();
        assert_eq!(icmp, Icmp::Other { kind, code: 0, rest: &datagram.payload[4..] });
        assert_written(icmp, &datagram);
    }
}

/// Written again, a packet that was read is the same.
fn assert_written(icmp: Icmp<'_>, datagram: &Datagram<'_>) {
    let mut written = vec![0xaa; datagram.payload.len()];
    let length = icmp.write(datagram.source, datagram.destination, &mut written).unwrap();
    assert_eq!((&written[..], length), (datagram.payload, datagram.payload.len()));
    let short = datagram.payload.len() - 1;
    let refused = icmp.write(datagram.source, datagram.destination, &mut written[..short]);
    assert!(matches!(refused, Err(Error::Truncated { .. })));
}

#[test]
fn the_echo_request_of_windows() {
    // `ping` of Windows: 32 bytes of the alphabet's first 23 letters; identifier 1 and sequence 1 have checksum 4d5a.
    let mut bytes = hex("08 00 4d 5a 00 01 00 01");
    bytes.extend(b"abcdefghijklmnopqrstuvwabcdefghi");
    let icmp = Icmp::read_v4(&bytes).unwrap();
    assert_eq!(icmp, Icmp::Echo { reply: false, identifier: 1, sequence: 1, data: &bytes[8..] });
    let (source, destination) = (ip("198.18.0.1"), ip("198.18.0.2"));
    assert!(Icmp::is_sound(source, destination, &bytes));
    let mut written = [0; 64];
    assert_eq!(icmp.write(source, destination, &mut written), Ok(40));
    assert_eq!(written[..40], bytes);
    // The type of the answer is 0: the checksum grows by 8 in the upper byte.
    let Icmp::Echo { identifier, sequence, data, .. } = icmp else { unreachable!() };
    Icmp::Echo { reply: true, identifier, sequence, data }.write(source, destination, &mut written).unwrap();
    assert_eq!(written[..4], hex("00 00 55 5a"));
}

#[test]
fn datagrams_of_linux() {
    for text in [UDP_V4, UDP_V6] {
        let bytes = hex(text);
        let datagram = Datagram::read(&bytes).unwrap();
        assert_eq!((datagram.protocol, datagram.hops, datagram.fragment), (protocol::UDP, 64, None));
        let (udp, payload) = Udp::read(datagram.payload).unwrap();
        assert_eq!((udp.source_port, udp.destination_port, udp.length), (40000, 9, 13));
        assert_eq!(payload, b"weir!");
        assert!(Udp::is_sound(datagram.source, datagram.destination, datagram.payload));
        let mut sealed = vec![0xaa; 13];
        sealed[8..].copy_from_slice(b"weir!");
        Udp::seal((datagram.source, 40000), (datagram.destination, 9), &mut sealed).unwrap();
        assert_eq!(sealed, datagram.payload);
        let mut without = sealed;
        without[6..8].fill(0);
        assert_eq!(Udp::is_sound(datagram.source, datagram.destination, &without), datagram.source.is_ipv4());
    }
}

#[test]
fn errors_of_linux() {
    let too_big = (filled(TOO_BIG_V4, b'w'), filled(TOO_BIG_V6, b'w'));
    for (bytes, first, protocol) in [
        (hex(CLOSED_V4), Icmp::Unreachable { code: 3, quote: &[] }, protocol::ICMP),
        (hex(CLOSED_V6), Icmp::Unreachable { code: 4, quote: &[] }, protocol::ICMPV6),
        (hex(HOPS_V4), Icmp::TimeExceeded { code: 0, quote: &[] }, protocol::ICMP),
        (hex(HOPS_V6), Icmp::TimeExceeded { code: 0, quote: &[] }, protocol::ICMPV6),
        (too_big.0, Icmp::TooBig { mtu: 1280, quote: &[] }, protocol::ICMP),
        (too_big.1, Icmp::TooBig { mtu: 1280, quote: &[] }, protocol::ICMPV6),
    ] {
        let datagram = Datagram::read(&bytes).unwrap();
        assert_eq!(datagram.protocol, protocol);
        assert!(Icmp::is_sound(datagram.source, datagram.destination, datagram.payload), "{first:?}");
        let v4 = datagram.source.is_ipv4();
        let icmp =
            if v4 { Icmp::read_v4(datagram.payload) } else { Icmp::read_v6(datagram.payload) }.unwrap();
        let quote = icmp.quote().unwrap();
        assert_eq!(without_quote(icmp), first);
        let (source, segment) = if v4 {
            let (header, rest) = Ipv4::read_quoted(quote).unwrap();
            assert!(Ipv4::is_sound(quote));
            (IpAddr::from(header.source), rest)
        } else {
            let (header, rest) = Ipv6::read_quoted(quote).unwrap();
            (IpAddr::from(header.source), rest)
        };
        assert_eq!(source, datagram.destination);
        let (udp, payload) = Udp::read_quoted(segment).unwrap();
        assert_eq!((udp.source_port, udp.destination_port), (40000, 9));
        assert_eq!(payload[0], b'w');
        assert_written(icmp, &datagram);
    }
}

fn without_quote(icmp: Icmp<'_>) -> Icmp<'static> {
    match icmp {
        Icmp::Unreachable { code, .. } => Icmp::Unreachable { code, quote: &[] },
        Icmp::TooBig { mtu, .. } => Icmp::TooBig { mtu, quote: &[] },
        Icmp::TimeExceeded { code, .. } => Icmp::TimeExceeded { code, quote: &[] },
        other => panic!("{other:?}"),
    }
}

#[test]
fn parameter_problems_point_at_the_field() {
    let (v4, v6) = ((ip("198.18.0.1"), ip("198.18.0.2")), (ip("2001:2::1"), ip("2001:2::2")));
    let problem = Icmp::ParameterProblem { code: 0, pointer: 6, quote: b"weir" };
    let mut bytes = [0; 12];
    problem.write(v4.0, v4.1, &mut bytes).unwrap();
    // RFC 792: type 12, the pointer is one byte.
    assert_eq!((bytes[0], &bytes[4..8]), (12, &[6, 0, 0, 0][..]));
    assert_eq!(Icmp::read_v4(&bytes), Ok(problem));
    problem.write(v6.0, v6.1, &mut bytes).unwrap();
    // RFC 4443 section 3.4: type 4, the pointer has four.
    assert_eq!((bytes[0], &bytes[4..8]), (4, &[0, 0, 0, 6][..]));
    assert_eq!(Icmp::read_v6(&bytes), Ok(problem));
    let far = Icmp::ParameterProblem { code: 0, pointer: 256, quote: &[] };
    assert!(far.write(v4.0, v4.1, &mut bytes).is_err() && far.write(v6.0, v6.1, &mut bytes).is_ok());
    let wide = Icmp::TooBig { mtu: 65_536, quote: &[] };
    assert!(wide.write(v4.0, v4.1, &mut bytes).is_err() && wide.write(v6.0, v6.1, &mut bytes).is_ok());
}

#[test]
fn fragments_of_linux_make_the_datagram() {
    let packets = FRAGMENTS.map(|fragment| filled(fragment, b'f'));
    let [first, second] = [0, 1].map(|i| Datagram::read(&packets[i]).unwrap());
    let identification = 0x3c39_4b0f;
    assert_eq!(first.fragment, Some(Fragment { identification, offset: 0, more: true }));
    assert_eq!(second.fragment, Some(Fragment { identification, offset: 1448, more: false }));
    assert_eq!((first.protocol, second.protocol), (protocol::UDP, protocol::UDP));
    assert_eq!(first.payload.len(), 1448);
    let whole = [first.payload, second.payload].concat();
    assert!(Udp::is_sound(first.source, first.destination, &whole));
    assert_eq!(whole.len(), 1508);
}

#[test]
fn extension_headers_are_skipped() {
    // Hop-by-hop (8 bytes, PadN), routing (24), destination options (8), authentication (24 bytes = (4 + 2) * 4), then UDP.
    let mut chain = vec![43, 0, 1, 4, 0, 0, 0, 0];
    chain.extend([60, 2, 0, 0]);
    chain.extend([0; 20]);
    chain.extend([51, 0, 1, 4, 0, 0, 0, 0]);
    chain.extend([17, 4]);
    chain.extend([0; 22]);
    chain.extend(b"udp");
    let upper = ipv6::upper_layer(0, &chain).unwrap();
    assert_eq!((upper.protocol, upper.payload, upper.fragment), (17, &b"udp"[..], None));
    for end in 0..chain.len() - 3 {
        assert!(matches!(ipv6::upper_layer(0, &chain[..end]), Err(Error::Truncated { .. })), "{end}");
    }
    // The bytes in a fragment from the middle are no header, whatever its bytes look like.
    let middle = [0, 0, 0x05, 0xa8, 0, 0, 0, 9, 0, 0xff];
    let upper = ipv6::upper_layer(44, &middle).unwrap();
    assert_eq!((upper.protocol, upper.payload), (0, &middle[8..]));
    assert_eq!(upper.fragment.unwrap().offset, 0x5a8);
    // Nine options headers: a sender wants us to be busy.
    let many = [0u8; 8 * 9];
    assert_eq!(
        ipv6::upper_layer(0, &many[..]).unwrap_err().to_string(),
        "IPv6 extension header: its number is 9"
    );
}

#[test]
fn padding_of_the_link_is_no_payload_and_other_frames_are_none() {
    let mut frame = vec![0; Ethernet::LENGTH];
    let header =
        Ethernet { destination: [2, 0, 0, 0, 0, 2], source: [2, 0, 0, 0, 0, 1], ethertype: ethernet::IPV4 };
    header.write(&mut frame).unwrap();
    assert_eq!(frame, hex("02 00 00 00 00 02 02 00 00 00 00 01 08 00"));
    frame.extend(hex(UDP_V4));
    frame.resize(60, 0);
    assert_eq!(Datagram::in_frame(&frame).unwrap().unwrap().payload.len(), 13);
    for ethertype in [ethernet::ARP, ethernet::VLAN] {
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        assert_eq!(Datagram::in_frame(&frame), Ok(None));
    }
    frame[12..14].copy_from_slice(&ethernet::IPV6.to_be_bytes());
    assert_eq!(Datagram::in_frame(&frame).unwrap_err().to_string(), "IP header: its version is 4");
}

#[test]
fn what_ends_too_early_says_how_much_is_missing() {
    let bytes = hex(UDP_V4);
    let says = |bytes: &[u8]| Datagram::read(bytes).unwrap_err().to_string();
    assert_eq!(says(&[]), "IP header: needs 20 bytes, there are 0");
    assert_eq!(says(&bytes[..19]), "IPv4 header: needs 20 bytes, there are 19");
    assert_eq!(says(&bytes[..32]), "IPv4 packet: needs 33 bytes, there are 32");
    assert_eq!(says(&hex(UDP_V6)[..52]), "IPv6 packet: needs 53 bytes, there are 52");
    let mut short = bytes.clone();
    short[0] = 0x44;
    assert_eq!(says(&short), "IPv4 header: its length is 16");
    short[0] = 0x46;
    short[3] = 23;
    assert_eq!(says(&short), "IPv4 header: its total length is 23");
    let udp = &bytes[20..];
    assert_eq!(Udp::read(&udp[..12]).unwrap_err().to_string(), "UDP datagram: needs 13 bytes, there are 12");
    let mut length = udp.to_vec();
    length[5] = 7;
    assert_eq!(Udp::read(&length).unwrap_err().to_string(), "UDP header: its length is 7");
}
