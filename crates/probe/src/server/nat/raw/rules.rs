//! Which packets are those of a check.
//!
//! A packet belongs to the check if it came to its ports and has the check's mark at the beginning of its data or in the number of a
//! SYN, or is an error about a packet of the check. So a client sees nothing of others behind the same NAT. Packets are sent only to
//! ports, identifiers and protocols from which such packets came, and only from the check's own endpoints.

use std::collections::{HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use weir_wire::{Datagram, Icmp, Ipv4, Ipv6, Tcp, Udp, protocol};

use crate::nat::{Endpoints, LONGEST_RAW, OTHER_PROTOCOLS};

/// Sources that are remembered.
const MOST_KNOWN: usize = 16_384;
/// Fragments that wait for the first one of their datagram, and datagrams whose first one came.
const MOST_FRAGMENTS: usize = 64;

/// Sender, receiver, protocol and identification of a datagram in fragments.
type Pieces = (IpAddr, IpAddr, u8, u32);

/// A source behind the NAT, as it is seen here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum NatSource {
    /// A port of UDP or TCP.
    Port(u8, SocketAddr),
    /// An identifier of echo requests.
    Echo(IpAddr, u16),
    /// A host that sent a protocol without ports, or with ports that nothing looks at here.
    Other(IpAddr, u8),
}

/// The packets of one check.
#[derive(Debug)]
pub(super) struct Rules {
    endpoints: Endpoints,
    mark: [u8; 4],
    known: HashSet<NatSource>,
    /// Datagrams of the check in fragments, each way.
    pieces: VecDeque<Pieces>,
    /// Fragments of datagrams whose first one has not come.
    early: VecDeque<(Pieces, Vec<u8>)>,
}

impl Rules {
    pub(super) fn new(endpoints: Endpoints, mark: [u8; 4]) -> Self {
        Rules { endpoints, mark, known: HashSet::new(), pieces: VecDeque::new(), early: VecDeque::new() }
    }

    /// The packets of the check that are complete with this one: it, and fragments that came before their first one.
    pub(super) fn arrived(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let Ok(packet) = Datagram::read(bytes) else { return Vec::new() };
        let Some(fragment) = packet.fragment else {
            return if self.is_of_check(&packet) { vec![bytes.to_vec()] } else { Vec::new() };
        };
        let pieces = (packet.source, packet.destination, packet.protocol, fragment.identification);
        if self.pieces.contains(&pieces) {
            return vec![bytes.to_vec()];
        }
        if fragment.offset > 0 {
            push(&mut self.early, (pieces, bytes.to_vec()));
            return Vec::new();
        }
        if !self.is_of_check(&packet) {
            return Vec::new();
        }
        push(&mut self.pieces, pieces);
        let (ours, others) = std::mem::take(&mut self.early).into_iter().partition(|(of, _)| *of == pieces);
        self.early = others;
        let ours: VecDeque<(Pieces, Vec<u8>)> = ours;
        ours.into_iter().map(|(_, early)| early).chain([bytes.to_vec()]).collect()
    }

    /// Whether a whole packet, or a first fragment, belongs to the check. If so, its sender is known from now on.
    fn is_of_check(&mut self, packet: &Datagram<'_>) -> bool {
        let from = packet.source;
        let source = match packet.protocol {
            protocol::UDP => match Udp::read_quoted(packet.payload) {
                Ok((udp, data)) if self.is_port(udp.destination_port) && data.starts_with(&self.mark) => {
                    NatSource::Port(protocol::UDP, SocketAddr::new(from, udp.source_port))
                }
                _ => return false,
            },
            protocol::TCP => match Tcp::read(packet.payload) {
                Ok((tcp, _, data)) if self.is_port(tcp.destination_port) => {
                    let source = NatSource::Port(protocol::TCP, SocketAddr::new(from, tcp.source_port));
                    if tcp.flags != Tcp::SYN || !self.numbers(tcp.sequence) {
                        // One of a connection, or one that left by another port or with another address.
                        return self.known.contains(&source) || data.starts_with(&self.mark);
                    }
                    source
                }
                _ => return false,
            },
            protocol::ICMP | protocol::ICMPV6 => match icmp(packet) {
                Some(Icmp::Echo { reply: false, identifier, data, .. }) if data.starts_with(&self.mark) => {
                    NatSource::Echo(from, identifier)
                }
                Some(message) => return message.quote().is_some_and(|quote| self.quotes_endpoint(quote)),
                None => return false,
            },
            // Its data comes last.
            other if OTHER_PROTOCOLS.contains(&other) && self.ends_in_data(packet.payload) => {
                NatSource::Other(from, other)
            }
            _ => return false,
        };
        self.known.contains(&source) || (self.known.len() < MOST_KNOWN && self.known.insert(source))
    }

    /// Whether the check's SYNs have such a number.
    fn numbers(&self, sequence: u32) -> bool {
        sequence.to_be_bytes()[2..] == self.mark[..2]
    }

    /// Data of an experiment: the mark, and four bytes more.
    fn ends_in_data(&self, payload: &[u8]) -> bool {
        payload.last_chunk::<8>().is_some_and(|data| data.starts_with(&self.mark))
    }

    fn is_port(&self, port: u16) -> bool {
        self.endpoints.ports.contains(&port)
    }

    /// Whether an error is about a datagram that the check sent.
    fn quotes_endpoint(&self, quote: &[u8]) -> bool {
        let Some((source, _, protocol, payload)) = quoted(quote) else { return false };
        self.endpoints.addresses.contains(&source)
            && ports(protocol, payload).is_some_and(|(from, _)| self.is_port(from))
    }

    /// The destination of a packet that may be sent for the check.
    ///
    /// # Errors
    /// In words for the client.
    pub(super) fn may_be_sent(&mut self, bytes: &[u8]) -> Result<IpAddr, String> {
        if bytes.len() > LONGEST_RAW {
            return Err(format!("a raw packet has at most {LONGEST_RAW} bytes"));
        }
        let packet = Datagram::read(bytes).map_err(|e| format!("expected a packet: {e}"))?;
        let to = packet.destination;
        if !self.endpoints.addresses.contains(&packet.source) {
            return Err(format!("{} is no address of this check", packet.source));
        }
        let fragment = packet.fragment;
        let later = fragment.is_some_and(|fragment| fragment.offset > 0);
        let allowed = match packet.protocol {
            // A later fragment has no ports. It may be sent before the first one.
            protocol::UDP if later => {
                self.known.iter().any(|p| matches!(p, NatSource::Port(protocol::UDP, at) if at.ip() == to))
            }
            protocol::UDP | protocol::TCP if !later => {
                ports(packet.protocol, packet.payload).is_some_and(|(from, port)| {
                    let source = NatSource::Port(packet.protocol, SocketAddr::new(to, port));
                    self.is_port(from) && self.known.contains(&source)
                })
            }
            protocol::ICMP | protocol::ICMPV6 if fragment.is_none() => match icmp(&packet) {
                Some(Icmp::Echo { reply: true, identifier, .. }) => {
                    self.known.contains(&NatSource::Echo(to, identifier))
                }
                Some(message) => message.quote().is_some_and(|quote| self.quotes_known(to, quote)),
                None => false,
            },
            other => fragment.is_none() && self.known.contains(&NatSource::Other(to, other)),
        };
        if allowed { Ok(to) } else { Err(format!("nothing has come from {to} that this packet answers")) }
    }

    /// Whether an error to an address is about a packet from there to the check.
    fn quotes_known(&self, to: IpAddr, quote: &[u8]) -> bool {
        let Some((source, destination, protocol, payload)) = quoted(quote) else { return false };
        if source != to || !self.endpoints.addresses.contains(&destination) {
            return false;
        }
        if let Some((from, port)) = ports(protocol, payload) {
            let known = NatSource::Port(protocol, SocketAddr::new(source, from));
            return self.is_port(port) && self.known.contains(&known);
        }
        let read = if source.is_ipv4() { Icmp::read_v4 } else { Icmp::read_v6 };
        matches!(read(payload), Ok(Icmp::Echo { reply: false, identifier, .. })
            if matches!(protocol, protocol::ICMP | protocol::ICMPV6)
                && self.known.contains(&NatSource::Echo(source, identifier)))
    }
}

/// Adds to the end, and forgets the oldest one if there are too many.
fn push<T>(all: &mut VecDeque<T>, one: T) {
    if all.len() >= MOST_FRAGMENTS {
        all.pop_front();
    }
    all.push_back(one);
}

/// Source and destination port of UDP and TCP, which begin with them.
fn ports(protocol: u8, payload: &[u8]) -> Option<(u16, u16)> {
    let [a, b, c, d] = *payload.first_chunk::<4>()?;
    let has_ports = matches!(protocol, protocol::UDP | protocol::TCP);
    has_ports.then(|| (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}

/// The ICMP message of a packet of either version.
fn icmp<'a>(packet: &Datagram<'a>) -> Option<Icmp<'a>> {
    let is_ipv4 = packet.source.is_ipv4();
    if is_ipv4 != (packet.protocol == protocol::ICMP) {
        return None;
    }
    let read = if is_ipv4 { Icmp::read_v4 } else { Icmp::read_v6 };
    read(packet.payload).ok()
}

/// Source, destination, protocol and payload of a quoted packet.
fn quoted(quote: &[u8]) -> Option<(IpAddr, IpAddr, u8, &[u8])> {
    match quote.first().map(|first| first >> 4) {
        Some(4) => Ipv4::read_quoted(quote).ok().map(|(header, payload)| {
            (header.source.into(), header.destination.into(), header.protocol, payload)
        }),
        Some(6) => Ipv6::read_quoted(quote).ok().map(|(header, payload)| {
            (header.source.into(), header.destination.into(), header.next_header, payload)
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MARK: [u8; 4] = *b"mark";
    /// Number of a SYN: its lower half is `ma`.
    const NUMBER: u32 = 0x0001_6d61;
    /// The server, the client as it is seen there, and a host that sent nothing.
    const SERVER: &str = "192.0.2.1";
    const CLIENT: &str = "198.51.100.7";
    const VICTIM: &str = "203.0.113.9";
    const PORTS: [u16; 2] = [9348, 9349];

    fn rules() -> Rules {
        let endpoints = Endpoints { addresses: vec![at(SERVER)], ports: PORTS };
        Rules::new(endpoints, MARK)
    }

    fn at(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// A packet of IPv4: `place` is the offset of a fragment, in units of 8 bytes, and whether more follow.
    fn packet(from: &str, to: &str, protocol: u8, payload: &[u8], place: (u16, bool)) -> Vec<u8> {
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (at(from), at(to)) else { unreachable!() };
        let mut bytes = [&[0; Ipv4::LENGTH][..], payload].concat();
        let header = Ipv4 {
            tos: 0,
            total_length: bytes.len() as u16,
            identification: 7,
            dont_fragment: false,
            more_fragments: place.1,
            fragment_offset: place.0,
            ttl: 64,
            protocol,
            source,
            destination,
        };
        header.write(&mut bytes).unwrap();
        bytes
    }

    fn datagram(from: (&str, u16), to: (&str, u16), data: &[u8]) -> Vec<u8> {
        let mut payload = [&[0; Udp::LENGTH][..], data].concat();
        Udp::seal((at(from.0), from.1), (at(to.0), to.1), &mut payload).unwrap();
        packet(from.0, to.0, protocol::UDP, &payload, (0, false))
    }

    fn segment(from: (&str, u16), to: (&str, u16), sequence: u32, flags: u8, data: &[u8]) -> Vec<u8> {
        let mut payload = [&[0; Tcp::LENGTH][..], data].concat();
        let (source_port, destination_port) = (from.1, to.1);
        let header = Tcp {
            source_port,
            destination_port,
            sequence,
            acknowledgement: 0,
            flags,
            window: 1,
            checksum: 0,
            urgent: 0,
        };
        header.seal(at(from.0), at(to.0), &mut payload).unwrap();
        packet(from.0, to.0, protocol::TCP, &payload, (0, false))
    }

    fn message(from: &str, to: &str, message: &Icmp<'_>) -> Vec<u8> {
        let mut payload = [0; 600];
        let length = message.write(at(from), at(to), &mut payload).unwrap();
        packet(from, to, protocol::ICMP, &payload[..length], (0, false))
    }

    fn echo(from: &str, to: &str, reply: bool, identifier: u16, data: &[u8]) -> Vec<u8> {
        message(from, to, &Icmp::Echo { reply, identifier, sequence: 1, data })
    }

    fn error(from: &str, to: &str, quote: &[u8]) -> Vec<u8> {
        message(from, to, &Icmp::Unreachable { code: 3, quote })
    }

    /// Rules that know a port, an identifier and a protocol of the client.
    fn knowing() -> Rules {
        let mut rules = rules();
        for packet in [
            datagram((CLIENT, 20_000), (SERVER, 9348), b"mark0001"),
            segment((CLIENT, 20_000), (SERVER, 9348), NUMBER, Tcp::SYN, b""),
            echo(CLIENT, SERVER, false, 5, b"mark0002"),
            packet(CLIENT, SERVER, 47, b"....mark0003", (0, false)),
        ] {
            assert_eq!(rules.arrived(&packet), [packet]);
        }
        rules
    }

    #[test]
    fn only_packets_of_the_check_are_told() {
        let mut rules = rules();
        let sent = datagram((SERVER, 9348), (CLIENT, 20_000), b"mark0009");
        for ours in [
            datagram((CLIENT, 20_001), (SERVER, 9349), b"mark0001"),
            error(CLIENT, SERVER, &sent),
            error(CLIENT, SERVER, &sent[..28]),
            segment((CLIENT, 20_001), (SERVER, 9349), NUMBER, Tcp::SYN, b""),
            segment((CLIENT, 20_001), (SERVER, 9349), 5, Tcp::FIN | Tcp::ACK, b""),
            segment((VICTIM, 20_009), (SERVER, 9349), 5, Tcp::ACK, b"mark0004"),
        ] {
            assert_eq!(rules.arrived(&ours), [ours]);
        }
        let other_server = datagram((SERVER, 53), (CLIENT, 20_000), b"mark0009");
        for foreign in [
            datagram((CLIENT, 20_000), (SERVER, 53), b"mark0001"),
            datagram((CLIENT, 20_000), (SERVER, 9348), b"other001"),
            datagram((CLIENT, 20_000), (SERVER, 9348), b"mar"),
            echo(CLIENT, SERVER, false, 5, b"12345678"),
            echo(CLIENT, SERVER, true, 5, b"mark0001"),
            error(CLIENT, SERVER, &other_server),
            error(CLIENT, SERVER, &other_server[..27]),
            packet(CLIENT, SERVER, 47, b"mark....12345678", (0, false)),
            packet(CLIENT, SERVER, 89, b"....mark0003", (0, false)),
            packet(CLIENT, SERVER, protocol::TCP, &[0; 20], (0, false)),
            segment((CLIENT, 20_002), (SERVER, 9349), NUMBER + 1, Tcp::SYN, b""),
            segment((CLIENT, 20_002), (SERVER, 80), NUMBER, Tcp::SYN, b"mark0004"),
            segment((CLIENT, 20_002), (SERVER, 9349), 5, Tcp::ACK, b"other001"),
            segment((VICTIM, 20_009), (SERVER, 9349), 5, Tcp::ACK, b""),
        ] {
            assert!(rules.arrived(&foreign).is_empty(), "{foreign:?}");
        }
    }

    #[test]
    fn fragments_are_told_once_their_first_one_is_known() {
        let whole = datagram((CLIENT, 20_000), (SERVER, 9348), &[&b"mark0001"[..], &[7; 40]].concat());
        let payload = &whole[Ipv4::LENGTH..];
        let piece = |from: &str, n: usize| {
            let last = n == 1;
            packet(from, SERVER, protocol::UDP, &payload[24 * n..][..24], (3 * n as u16, !last))
        };
        let (first, second) = (piece(CLIENT, 0), piece(CLIENT, 1));
        let mut rules = rules();
        assert_eq!(rules.arrived(&first), std::slice::from_ref(&first));
        assert_eq!(rules.arrived(&second), std::slice::from_ref(&second));
        let mut rules = self::rules();
        // Others' fragments, which never become known, push out none of a few.
        for n in 0..MOST_FRAGMENTS as u8 - 1 {
            assert!(rules.arrived(&piece(&format!("203.0.113.{n}"), 1)).is_empty());
        }
        assert!(rules.arrived(&second).is_empty());
        assert_eq!(rules.arrived(&first), [second, first]);
        assert_eq!(rules.early.len(), MOST_FRAGMENTS - 1);
    }

    #[test]
    fn answers_are_sent_only_to_what_sent_packets() {
        let mut rules = knowing();
        let theirs = datagram((CLIENT, 20_000), (SERVER, 9348), b"mark0001");
        let syn = segment((CLIENT, 20_000), (SERVER, 9348), NUMBER, Tcp::SYN, b"");
        let ping = echo(CLIENT, SERVER, false, 5, b"mark0002");
        for right in [
            datagram((SERVER, 9348), (CLIENT, 20_000), b"x"),
            datagram((SERVER, 9349), (CLIENT, 20_000), b"x"),
            packet(SERVER, CLIENT, protocol::UDP, &[1; 16], (3, false)),
            segment((SERVER, 9349), (CLIENT, 20_000), 1, Tcp::RST, b""),
            echo(SERVER, CLIENT, true, 5, b"x"),
            error(SERVER, CLIENT, &theirs),
            error(SERVER, CLIENT, &syn),
            error(SERVER, CLIENT, &ping),
            packet(SERVER, CLIENT, 47, b"x", (0, false)),
        ] {
            assert_eq!(rules.may_be_sent(&right), Ok(at(CLIENT)), "{right:?}");
        }
        let other_flow = datagram((CLIENT, 443), (SERVER, 9348), b"x");
        let other_service = datagram((CLIENT, 20_000), (SERVER, 53), b"x");
        let other_ping = echo(CLIENT, SERVER, false, 6, b"mark0002");
        let of_victim = datagram((VICTIM, 20_000), (SERVER, 9348), b"mark0001");
        for wrong in [
            datagram((VICTIM, 9348), (CLIENT, 20_000), b"x"),
            datagram((SERVER, 53), (CLIENT, 20_000), b"x"),
            datagram((SERVER, 9348), (CLIENT, 20_001), b"x"),
            datagram((SERVER, 9348), (VICTIM, 20_000), b"x"),
            packet(SERVER, VICTIM, protocol::UDP, &[1; 16], (3, false)),
            packet(SERVER, CLIENT, protocol::ICMP, &[8, 0, 0, 0], (3, false)),
            packet(SERVER, CLIENT, protocol::TCP, &[0; 20], (0, false)),
            segment((SERVER, 9349), (CLIENT, 20_001), 1, Tcp::RST, b""),
            segment((SERVER, 22), (CLIENT, 20_000), 1, Tcp::RST, b""),
            segment((SERVER, 9349), (VICTIM, 20_000), 1, Tcp::RST, b""),
            segment((VICTIM, 9349), (CLIENT, 20_000), 1, Tcp::RST, b""),
            packet(SERVER, CLIENT, protocol::TCP, &[1; 16], (3, false)),
            packet(SERVER, CLIENT, 50, b"x", (0, false)),
            packet(SERVER, CLIENT, 47, b"x", (1, false)),
            echo(SERVER, CLIENT, true, 6, b"x"),
            echo(SERVER, CLIENT, false, 5, b"x"),
            echo(SERVER, VICTIM, true, 5, b"x"),
            error(SERVER, CLIENT, &other_flow),
            error(SERVER, CLIENT, &other_service),
            error(SERVER, CLIENT, &other_ping),
            error(SERVER, CLIENT, &of_victim),
            error(SERVER, VICTIM, &of_victim),
            error(VICTIM, CLIENT, &theirs),
            error(SERVER, CLIENT, b""),
            vec![],
            vec![0x45; LONGEST_RAW + 1],
        ] {
            assert!(rules.may_be_sent(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn there_is_an_end_of_sources() {
        let mut rules = rules();
        let from = |port: usize| datagram((CLIENT, port as u16), (SERVER, 9348), b"mark0001");
        for port in 1..=MOST_KNOWN {
            assert_eq!(rules.arrived(&from(port)).len(), 1);
        }
        assert!(rules.arrived(&from(MOST_KNOWN + 1)).is_empty());
        assert_eq!(rules.arrived(&from(1)).len(), 1);
    }

    proptest! {
        /// Whatever bytes a client asks for: none go anywhere else than to it, or in another name.
        #[test]
        fn no_bytes_reach_others(
            which in 0..4_usize, at_byte in 0..60_usize, value: u8, cut in 0..70_usize, noise: Vec<u8>,
        ) {
            let mut rules = knowing();
            let valid = [
                datagram((SERVER, 9348), (CLIENT, 20_000), b"0123456789"),
                echo(SERVER, CLIENT, true, 5, b"0123456789"),
                error(SERVER, CLIENT, &datagram((CLIENT, 20_000), (SERVER, 9348), b"mark0001")),
                packet(SERVER, CLIENT, 47, b"0123456789", (0, false)),
            ];
            let mut bytes = valid[which].clone();
            if let Some(byte) = bytes.get_mut(at_byte) {
                *byte = value;
            }
            bytes.truncate(cut.max(1));
            bytes.extend(noise);
            if let Ok(to) = rules.may_be_sent(&bytes) {
                prop_assert_eq!(to, at(CLIENT));
                prop_assert_eq!(&bytes[12..16], &[192, 0, 2, 1]);
                prop_assert_eq!(&bytes[16..20], &[198, 51, 100, 7]);
            }
            rules.arrived(&bytes);
        }
    }
}
