//! Mapping and filtering by a STUN server, through the reference NAT in memory.

mod reference;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use reference::{Behaviour, Reference};
use weir_nat::rows::judge::Dependence::{Address, AddressAndPort, EndpointIndependent};
use weir_nat::stun::{Exchange, StunError, measure};
use weir_nat::{Compliance, Packet, Side, Table};

const SERVER: &str = "198.19.0.10:3478";
const OTHER: &str = "198.19.0.11:3479";
/// The same over IPv6.
const SERVER_V6: &str = "[2001:2:0:1::a]:3478";
const OTHER_V6: &str = "[2001:2:0:1::b]:3479";

fn at(text: &str) -> SocketAddr {
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
fn answer(server: Server, request: &Packet) -> Option<(SocketAddr, Vec<u8>)> {
    let (client, asked) = (request.from()?, request.to()?);
    let data = request.udp_data()?;
    if server == Server::Silent || !data.starts_with(&[0, 1]) {
        return None;
    }
    let [a, b] = if asked.is_ipv4() { [SERVER, OTHER] } else { [SERVER_V6, OTHER_V6] }.map(at);
    let ip = if asked.ip() == a.ip() { b.ip() } else { a.ip() };
    let port = if asked.port() == a.port() { b.port() } else { a.port() };
    let away = SocketAddr::new(ip, port);
    let change = if server == Server::IgnoresChange { 0 } else { data.get(27).copied().unwrap_or_default() };
    let source = match change {
        6 => away,
        2 => SocketAddr::new(asked.ip(), away.port()),
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

fn attribute(kind: u16, address: SocketAddr) -> Vec<u8> {
    let (family, ip) = match address.ip() {
        IpAddr::V4(ip) => (1, ip.octets().to_vec()),
        IpAddr::V6(ip) => (2, ip.octets().to_vec()),
    };
    let mut bytes = kind.to_be_bytes().to_vec();
    bytes.extend([0, 4 + ip.len() as u8, 0, family]);
    bytes.extend(address.port().to_be_bytes());
    bytes.extend(ip);
    bytes
}

/// A client behind the reference NAT.
struct Behind {
    nat: Option<Reference>,
    server: Server,
    local: SocketAddr,
    now: Duration,
    received: VecDeque<(SocketAddr, Vec<u8>)>,
}

impl Behind {
    fn new(behaviour: Option<Behaviour>, server: Server) -> Self {
        let v6 = behaviour.as_ref().is_some_and(|behaviour| behaviour.addresses[0].is_ipv6());
        let nat = behaviour.map(Reference::new);
        let local = at(if v6 { "[2001:2::a]:30000" } else { "198.18.0.10:30000" });
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
    fn open(&mut self, _: SocketAddr) -> io::Result<SocketAddr> {
        self.local = SocketAddr::new(self.local.ip(), self.local.port() + 8);
        Ok(self.local)
    }

    fn send(&mut self, to: SocketAddr, data: &[u8]) -> io::Result<()> {
        for (_, packet) in self.through(Side::Inside, Packet::udp(self.local, to, data)) {
            let Some((source, bytes)) = answer(self.server, &packet) else { continue };
            let back = Packet::udp(source, packet.from().unwrap(), &bytes);
            for (_, packet) in self.through(Side::Outside, back) {
                self.received.push_back((packet.from().unwrap(), packet.udp_data().unwrap().to_vec()));
            }
        }
        Ok(())
    }

    fn receive(&mut self, patience: Duration) -> io::Result<Option<(SocketAddr, Vec<u8>)>> {
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
            for (nat, server, other) in
                [(Behaviour::default(), SERVER, OTHER), (Behaviour::v6(), SERVER_V6, OTHER_V6)]
            {
                let behaviour = Behaviour { mapping, filtering, ..nat };
                let mut client = Behind::new(Some(behaviour), Server::TwoAddresses);
                let (server, observations) = measure(&mut client, at(server)).unwrap();
                assert_eq!(server.other, at(other));
                let kind = Table::of(&observations).kind;
                let expected = (Some(true), Some(mapping), Some(filtering));
                assert_eq!((kind.translates, kind.mapping, kind.filtering), expected);
            }
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
