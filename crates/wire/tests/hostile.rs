//! Nothing that comes from a wire makes a reader panic, and what is written reads as it was.

use std::net::IpAddr;

use proptest::prelude::*;
use weir_wire::{Datagram, Ethernet, Icmp, Ipv4, Ipv6, Tcp, Udp, ethernet, ipv6, protocol};

fn read_everything(bytes: &[u8]) {
    let _ = Ethernet::read(bytes);
    let _ = Ipv4::read(bytes);
    let _ = Ipv4::read_quoted(bytes);
    let _ = Ipv4::is_sound(bytes);
    let _ = Ipv6::read(bytes);
    let _ = Ipv6::read_quoted(bytes);
    let _ = Datagram::read(bytes);
    let _ = Datagram::in_frame(bytes);
    let _ = Udp::read(bytes);
    let _ = Tcp::read(bytes);
    let _ = Icmp::read_v4(bytes).map(|icmp| icmp.quote().map(Ipv4::read_quoted));
    let _ = Icmp::read_v6(bytes).map(|icmp| icmp.quote().map(Ipv6::read_quoted));
    for address in [IpAddr::from([127, 0, 0, 1]), IpAddr::from([0u16; 8])] {
        let _ = Udp::is_sound(address, address, bytes);
        let _ = Tcp::is_sound(address, address, bytes);
        let _ = Icmp::is_sound(address, address, bytes);
    }
}

/// Bytes that get past the first checks: a version and a next header that mean something.
fn nearly_ip() -> impl Strategy<Value = Vec<u8>> {
    let kinds = prop::sample::select(vec![0u8, 6, 17, 43, 44, 51, 58, 60, 135]);
    (prop::collection::vec(any::<u8>(), 0..160), any::<bool>(), kinds).prop_map(|(mut bytes, four, kind)| {
        let place = if four { 9 } else { 6 };
        if let Some(first) = bytes.first_mut() {
            *first = if four { 0x40 | *first & 0x7 } else { 0x60 };
        }
        if bytes.len() > place {
            bytes[place] = kind;
            // Lengths that are near the truth.
            let length = bytes.len() as u16;
            let (at, length) = if four { (2, length) } else { (4, length.saturating_sub(40)) };
            bytes[at..at + 2].copy_from_slice(&length.to_be_bytes());
        }
        bytes
    })
}

fn addresses() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    (any::<bool>(), any::<[u128; 2]>()).prop_map(|(four, bits)| {
        let address = |bits: u128| match four {
            true => IpAddr::from((bits as u32).to_be_bytes()),
            false => IpAddr::from(bits.to_be_bytes()),
        };
        (address(bits[0]), address(bits[1]))
    })
}

fn packet(source: IpAddr, destination: IpAddr, number: u8, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u16;
    let mut bytes = vec![0; Ipv6::LENGTH];
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            bytes.truncate(Ipv4::LENGTH);
            let header = Ipv4 {
                tos: 0,
                total_length: Ipv4::LENGTH as u16 + length,
                identification: 7,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: 0,
                ttl: 9,
                protocol: number,
                source,
                destination,
            };
            header.write(&mut bytes).unwrap();
            assert!(Ipv4::is_sound(&bytes));
            bytes.extend(payload);
            assert_eq!(Ipv4::read(&bytes), Ok((header, payload)));
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = Ipv6 {
                traffic_class: 0,
                flow_label: 7,
                payload_length: length,
                next_header: number,
                hop_limit: 9,
                source,
                destination,
            };
            header.write(&mut bytes).unwrap();
            bytes.extend(payload);
            assert_eq!(Ipv6::read(&bytes), Ok((header, payload)));
        }
        _ => unreachable!("both are of one family"),
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read_everything(&bytes);
    }

    #[test]
    fn bytes_that_are_nearly_packets(bytes in nearly_ip()) {
        read_everything(&bytes);
        let mut frame = vec![0; 14];
        frame[12..].copy_from_slice(&if bytes.first().is_some_and(|b| b >> 4 == 4) { ethernet::IPV4 } else { ethernet::IPV6 }.to_be_bytes());
        frame.extend(&bytes);
        read_everything(&frame);
    }

    #[test]
    fn arbitrary_chains_of_extension_headers(next in any::<u8>(), bytes in prop::collection::vec(prop::sample::select(vec![0u8, 1, 17, 43, 44, 51, 60, 255]), 0..300)) {
        if let Ok(upper) = ipv6::upper_layer(next, &bytes) {
            // A piece of what was given, from its end.
            prop_assert!(bytes.ends_with(upper.payload));
        }
    }

    #[test]
    fn udp_reads_as_it_was_written((source, destination) in addresses(), ports in any::<[u16; 2]>(), payload in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut segment = vec![0; Udp::LENGTH];
        segment.extend(&payload);
        Udp::seal((source, ports[0]), (destination, ports[1]), &mut segment).unwrap();
        let bytes = packet(source, destination, protocol::UDP, &segment);
        let datagram = Datagram::read(&bytes).unwrap();
        prop_assert_eq!((datagram.source, datagram.destination, datagram.hops), (source, destination, 9));
        prop_assert!(Udp::is_sound(source, destination, datagram.payload));
        let (udp, read) = Udp::read(datagram.payload).unwrap();
        prop_assert_eq!([udp.source_port, udp.destination_port], ports);
        prop_assert_eq!(read, &payload[..]);
    }

    #[test]
    fn tcp_reads_as_it_was_written((source, destination) in addresses(), ports in any::<[u16; 2]>(), numbers in any::<[u32; 2]>(), rest in any::<(u8, u16, u16)>(), payload in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut segment = vec![0xaa; Tcp::LENGTH];
        segment.extend(&payload);
        let mut header = Tcp {
            source_port: ports[0],
            destination_port: ports[1],
            sequence: numbers[0],
            acknowledgement: numbers[1],
            flags: rest.0,
            window: rest.1,
            checksum: 0,
            urgent: rest.2,
        };
        header.seal(source, destination, &mut segment).unwrap();
        let bytes = packet(source, destination, protocol::TCP, &segment);
        let datagram = Datagram::read(&bytes).unwrap();
        prop_assert!(Tcp::is_sound(source, destination, datagram.payload));
        let (read, options, data) = Tcp::read(datagram.payload).unwrap();
        header.checksum = read.checksum;
        prop_assert_eq!((read, options, data), (header, &[][..], &payload[..]));
    }

    #[test]
    fn echoes_read_as_they_were_written((source, destination) in addresses(), reply in any::<bool>(), identifier in any::<u16>(), sequence in any::<u16>(), data in prop::collection::vec(any::<u8>(), 0..100)) {
        let echo = Icmp::Echo { reply, identifier, sequence, data: &data };
        let mut bytes = vec![0xaa; 8 + data.len()];
        echo.write(source, destination, &mut bytes).unwrap();
        prop_assert!(Icmp::is_sound(source, destination, &bytes));
        let read = if source.is_ipv4() { Icmp::read_v4(&bytes) } else { Icmp::read_v6(&bytes) };
        prop_assert_eq!(read, Ok(echo));
    }
}
