//! Mapping and filtering by a STUN server, through the reference NAT in memory.

mod reference;

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;

use reference::{Behaviour, Reference};
use weir_nat::rows::judge::Dependence::{Address, AddressAndPort, EndpointIndependent};
use weir_nat::stun::{Exchange, StunError, measure};
use weir_nat::{Compliance, Packet, Side, Table};

const SERVER: &str = "198.19.0.10:3478";
const OTHER: &str = "198.19.0.11:3479";

fn at(text: &str) -> SocketAddrV4 {
    text.parse().unwrap()
}

/// A server of RFC 5780, as far as the client sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Server {
    TwoAddresses,
    OneAddress,
    IgnoresChange,
    Silent,
}

/// The server's answer, and its source.
fn answer(server: Server, request: &Packet) -> Option<(SocketAddrV4, Vec<u8>)> {
    let (SocketAddr::V4(client), SocketAddr::V4(asked)) = (request.from()?, request.to()?) else {
        return None;
    };
    let data = request.udp_data()?;
    if server == Server::Silent || !data.starts_with(&[0, 1]) {
        return None;
    }
    let other = |of: SocketAddrV4, a: &str, b: &str| {
        let [a, b] = [at(a), at(b)];
        let ip = if of.ip() == a.ip() { *b.ip() } else { *a.ip() };
        let port = if of.port() == a.port() { b.port() } else { a.port() };
        SocketAddrV4::new(ip, port)
    };
    let away = other(asked, SERVER, OTHER);
    let change = if server == Server::IgnoresChange { 0 } else { data.get(27).copied().unwrap_or_default() };
    let source = match change {
        6 => away,
        2 => SocketAddrV4::new(*asked.ip(), away.port()),
        _ => asked,
    };
    let mut attributes = attribute(0x0001, client);
    if server != Server::OneAddress {
        attributes.extend(attribute(0x802c, away));
    }
    let mut bytes = vec![1, 1, 0, attributes.len() as u8];
    bytes.extend(&data[4..20]);
    bytes.extend(attributes);
    Some((source, bytes))
}

fn attribute(kind: u16, address: SocketAddrV4) -> Vec<u8> {
    let mut bytes = kind.to_be_bytes().to_vec();
    bytes.extend([0, 8, 0, 1]);
    bytes.extend(address.port().to_be_bytes());
    bytes.extend(address.ip().octets());
    bytes
}

/// A client behind the reference NAT.
struct Behind {
    nat: Option<Reference>,
    server: Server,
    local: SocketAddrV4,
    now: Duration,
    received: VecDeque<(SocketAddrV4, Vec<u8>)>,
}

impl Behind {
    fn new(behaviour: Option<Behaviour>, server: Server) -> Self {
        let nat = behaviour.map(Reference::new);
        let local = at("198.18.0.10:30000");
        Behind { nat, server, local, now: Duration::from_secs(1), received: VecDeque::new() }
    }

    fn through(&mut self, side: Side, packet: Packet) -> Vec<(Side, Packet)> {
        let other = if side == Side::Inside { Side::Outside } else { Side::Inside };
        match &mut self.nat {
            Some(nat) => nat.handle(self.now, side, packet),
            None => vec![(other, packet)],
        }
    }
}

impl Exchange for Behind {
    fn open(&mut self, _: SocketAddrV4) -> io::Result<SocketAddrV4> {
        self.local = SocketAddrV4::new(*self.local.ip(), self.local.port() + 8);
        Ok(self.local)
    }

    fn send(&mut self, to: SocketAddrV4, data: &[u8]) -> io::Result<()> {
        for (_, packet) in self.through(Side::Inside, Packet::udp(self.local.into(), to.into(), data)) {
            let Some((source, bytes)) = answer(self.server, &packet) else { continue };
            let back = Packet::udp(source.into(), packet.from().unwrap(), &bytes);
            for (_, packet) in self.through(Side::Outside, back) {
                let Some(SocketAddr::V4(from)) = packet.from() else { continue };
                self.received.push_back((from, packet.udp_data().unwrap().to_vec()));
            }
        }
        Ok(())
    }

    fn receive(&mut self, patience: Duration) -> io::Result<Option<(SocketAddrV4, Vec<u8>)>> {
        let received = self.received.pop_front();
        if received.is_none() {
            self.now += patience;
        }
        Ok(received)
    }
}

#[test]
fn all_nine_classes_are_told_apart() {
    let classes = [EndpointIndependent, Address, AddressAndPort];
    for mapping in classes {
        for filtering in classes {
            let behaviour = Behaviour { mapping, filtering, ..Behaviour::default() };
            let mut client = Behind::new(Some(behaviour), Server::TwoAddresses);
            let (server, observations) = measure(&mut client, at(SERVER)).unwrap();
            assert_eq!(server.other, at(OTHER));
            let kind = Table::of(&observations).kind;
            let expected = (Some(true), Some(mapping), Some(filtering));
            assert_eq!((kind.translates, kind.mapping, kind.filtering), expected);
        }
    }
}

#[test]
fn without_a_nat_nothing_is_translated() {
    let (server, observations) = measure(&mut Behind::new(None, Server::TwoAddresses), at(SERVER)).unwrap();
    assert_eq!(server.local, server.mapped);
    let kind = Table::of(&observations).kind;
    assert_eq!((kind.translates, kind.filtering), (Some(false), Some(EndpointIndependent)));
}

#[test]
fn a_server_that_cannot_help_is_no_verdict() {
    let measured = |server| measure(&mut Behind::new(Some(Behaviour::default()), server), at(SERVER));
    assert!(matches!(measured(Server::OneAddress), Err(StunError::OneAddress)));
    assert!(matches!(measured(Server::Silent), Err(StunError::Silent)));
    // It answers from the endpoint that was asked, so every filter would look open.
    let (server, observations) = measured(Server::IgnoresChange).unwrap();
    assert!(server.ignores_change);
    let table = Table::of(&observations);
    assert_eq!(table.kind.filtering, None);
    assert_eq!(table.line("udp-filtering").unwrap().judgement.verdict, Compliance::NotTestable);
    assert_eq!(table.kind.mapping, Some(EndpointIndependent));
}
