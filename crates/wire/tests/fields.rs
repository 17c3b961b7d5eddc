//! Fields of headers, bit by bit, and bytes that only nearly carry their checksum.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_wire::{Error, Fragment, Icmp, Ipv4, Ipv6, ipv6};

fn ipv4() -> Ipv4 {
    Ipv4 {
        tos: 0,
        total_length: 20,
        identification: 0xbeef,
        dont_fragment: false,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 9,
        protocol: 17,
        source: Ipv4Addr::new(198, 18, 0, 1),
        destination: Ipv4Addr::new(198, 18, 0, 2),
    }
}

#[test]
fn flags_and_offset_of_ipv4_share_sixteen_bits() {
    let whole = ipv4();
    let fragment = |offset, more| Some(Fragment { identification: 0xbeef, offset, more });
    // RFC 791 section 3.1: bit 1 is DF, bit 2 is MF, the other thirteen count units of 8 bytes.
    for (header, bits, expected) in [
        (whole, 0x0000, None),
        (Ipv4 { dont_fragment: true, ..whole }, 0x4000, None),
        (Ipv4 { more_fragments: true, ..whole }, 0x2000, fragment(0, true)),
        (Ipv4 { fragment_offset: 181, ..whole }, 0x00b5, fragment(1448, false)),
        (Ipv4 { fragment_offset: 181, more_fragments: true, ..whole }, 0x20b5, fragment(1448, true)),
        (Ipv4 { fragment_offset: 8191, ..whole }, 0x1fff, fragment(65_528, false)),
    ] {
        let mut bytes = [0xaa; 20];
        header.write(&mut bytes).unwrap();
        assert_eq!(u16::from_be_bytes([bytes[6], bytes[7]]), bits);
        assert_eq!(Ipv4::read(&bytes), Ok((header, &[][..])));
        assert_eq!(header.fragment(), expected, "{bits:#x}");
    }
}

#[test]
fn one_wrong_bit_makes_a_checksum_wrong() {
    let mut header = [0; 20];
    ipv4().write(&mut header).unwrap();
    assert!(Ipv4::is_sound(&header));
    header[8] ^= 1;
    assert!(!Ipv4::is_sound(&header));
    let (v4, v6) = ([IpAddr::from([198, 18, 0, 1]); 2], [IpAddr::from([0x2001, 2, 0, 0, 0, 0, 0, 1]); 2]);
    for [source, destination] in [v4, v6] {
        let mut bytes = [0; 12];
        let echo = Icmp::Echo { reply: false, identifier: 1, sequence: 2, data: b"weir" };
        echo.write(source, destination, &mut bytes).unwrap();
        assert!(Icmp::is_sound(source, destination, &bytes));
        bytes[11] ^= 1;
        assert!(!Icmp::is_sound(source, destination, &bytes));
        assert!(!Icmp::is_sound(source, destination, &bytes[..7]));
    }
}

#[test]
fn a_header_of_another_version_is_refused_with_that_version() {
    let wrong = |header, value| Error::Malformed { header, field: "version", value };
    assert_eq!(Ipv4::read(&[0x65; 40]).unwrap_err(), wrong("IPv4 header", 6));
    assert_eq!(Ipv6::read(&[0x45; 40]).unwrap_err(), wrong("IPv6 header", 4));
}

#[test]
fn the_first_word_of_ipv6_has_three_fields() {
    let header = Ipv6 {
        traffic_class: 0xb8,
        flow_label: 0xf_edcb,
        payload_length: 0,
        next_header: 59,
        hop_limit: 9,
        source: Ipv6Addr::LOCALHOST,
        destination: Ipv6Addr::LOCALHOST,
    };
    let mut bytes = [0xaa; 40];
    header.write(&mut bytes).unwrap();
    assert_eq!(bytes[..4], [0x6b, 0x8f, 0xed, 0xcb]);
    assert_eq!(Ipv6::read(&bytes), Ok((header, &[][..])));
}

#[test]
fn extension_headers_have_the_length_that_they_say() {
    // Destination options in units of 8 bytes, authentication in units of 4 (RFC 8200 section 4.6, RFC 4302 section 2.2).
    // Their bytes would be read as another header if the length was taken for a smaller one.
    for (number, length) in [(60, 8 + 3 * 8), (51, 8 + 3 * 4)] {
        let mut bytes = vec![0xff; length];
        bytes[..2].copy_from_slice(&[17, 3]);
        bytes.extend(b"udp");
        let upper = ipv6::upper_layer(number, &bytes).unwrap();
        assert_eq!((upper.protocol, upper.payload), (17, &b"udp"[..]));
    }
}
