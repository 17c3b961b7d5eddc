//! Packets of a table's kinds, made up: rules are evaluated for them.

use std::net::IpAddr;

use weir_netlink::nftables::Hook;
use weir_netlink::{Asking, Rtnetlink};

use super::packet::{Packet, State, Through};
use crate::evidence::{DropGroup, NatSource, NatTable, Sample};

/// An outside and an inside port of the made-up packets.
const PORTS: (u16, u16) = (9347, 40_000);

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP6: u8 = 58;
/// Types and codes of ICMP, and those of ICMPv6 that mean the same: an unreachable port, the end of a packet's time, a packet too
/// long, a ping and its reply.
const SAME: [((u8, u8), (u8, u8)); 5] =
    [((3, 3), (1, 4)), ((11, 0), (3, 0)), ((3, 4), (2, 0)), ((8, 0), (128, 0)), ((0, 0), (129, 0))];
/// Bytes of a made-up packet.
const LENGTH: u8 = 80;
/// A later fragment begins here in its datagram, in units of eight bytes.
const OFFSET: u8 = 25;

/// Direction of a packet through the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// From outside to an inside host.
    In,
    /// From inside.
    Out,
    /// From outside to the gateway itself.
    Here,
    /// From the gateway to an inside host.
    Made,
}

/// A kind of packet: its name, direction, protocol, and the first bytes of its transport header that differ.
pub(super) struct Kind {
    pub(super) name: &'static str,
    direction: Direction,
    state: State,
    /// As over IPv4.
    protocol: u8,
    /// Type and code of ICMP, or flags of TCP and 0.
    what: (u8, u8),
    /// It is a later fragment.
    pub(super) fragment: bool,
}

const fn kind(name: &'static str, direction: Direction, state: State, protocol: u8, what: (u8, u8)) -> Kind {
    Kind { name, direction, state, protocol, what, fragment: false }
}

pub(super) const KINDS: &[Kind] = &[
    kind("error-in", Direction::In, State::Related, ICMP, (3, 3)),
    kind("time-exceeded-in", Direction::In, State::Related, ICMP, (11, 0)),
    kind("too-big-in", Direction::In, State::Related, ICMP, (3, 4)),
    kind("error-out", Direction::Out, State::Related, ICMP, (3, 3)),
    kind("too-big-made", Direction::Made, State::Related, ICMP, (3, 4)),
    kind("query-out", Direction::Out, State::New, ICMP, (8, 0)),
    kind("query-in", Direction::In, State::Established, ICMP, (0, 0)),
    // The SYN of the contacted endpoint: connection tracking knows the connection already.
    kind("crossing-syn", Direction::In, State::Established, TCP, (0x02, 0)),
    kind("syn-out", Direction::Out, State::New, TCP, (0x02, 0)),
    kind("reset-in", Direction::In, State::Established, TCP, (0x14, 0)),
    kind("unsolicited-syn", Direction::Here, State::New, TCP, (0x02, 0)),
    kind("gre-out", Direction::Out, State::New, 47, (0, 0)),
    kind("esp-out", Direction::Out, State::New, 50, (0, 0)),
    kind("dccp-out", Direction::Out, State::New, 33, (0, 0)),
    kind("sctp-out", Direction::Out, State::New, 132, (0, 0)),
    kind("udp-lite-out", Direction::Out, State::New, 136, (0, 0)),
    Kind { fragment: true, ..kind("fragment-in", Direction::In, State::Established, UDP, (0, 0)) },
    Kind { fragment: true, ..kind("fragment-out", Direction::Out, State::New, UDP, (0, 0)) },
];

/// The first packets of connections, which rules for source NAT meet.
pub(super) const OPENING: &[Kind] = &[
    kind("udp", Direction::Out, State::New, UDP, (0, 0)),
    kind("tcp", Direction::Out, State::New, TCP, (0x02, 0)),
    kind("icmp", Direction::Out, State::New, ICMP, (8, 0)),
];

/// The ends of the made-up packets, all of one version of IP.
pub(super) struct Path {
    inside: IpAddr,
    server: IpAddr,
    outside: IpAddr,
    /// Interfaces towards them.
    near: Through,
    away: Through,
}

impl Path {
    /// The ends that a table names. `None` if it lacks one, or if they differ in version: no NAT of the kernel translates so.
    pub(super) fn of(table: &NatTable) -> Option<Self> {
        let (inside, server) = (table.inside?.ip(), table.server?.ip());
        let same = |address: &IpAddr| address.is_ipv4() == inside.is_ipv4();
        let outside = table.outside.iter().copied().find(same)?;
        let (near, away) = match table.source {
            // The lab's addresses lead nowhere here.
            NatSource::Lab => (Through::Unknown, Through::Unknown),
            NatSource::Check => interfaces(inside, server),
        };
        same(&server).then_some(Path { inside, server, outside, near, away })
    }
}

/// By the routes of the namespace. If they lead to one interface, another router is between this host and the inside one.
fn interfaces(inside: IpAddr, server: IpAddr) -> (Through, Through) {
    let Ok(mut net) = Rtnetlink::open() else { return (Through::Unknown, Through::Unknown) };
    let mut towards = |to: IpAddr| net.resolve(&Asking::to(to)).ok().map(|route| route.interface);
    match (towards(inside), towards(server)) {
        (Some(near), Some(away)) if near != away => (Through::This(near), Through::This(away)),
        _ => (Through::Unknown, Through::Unknown),
    }
}

/// Shows the packet to `see` at each hook that it passes, until that returns true.
pub(super) fn pass(kind: &Kind, path: &Path, see: &mut dyn FnMut(&Packet<'_>) -> bool) {
    let ipv6 = path.inside.is_ipv6();
    let protocol = if ipv6 && kind.protocol == ICMP { ICMP6 } else { kind.protocol };
    let ethertype = if ipv6 { 0x86dd } else { 0x0800 };
    let group = DropGroup { ethertype, protocol, ..DropGroup::default() };
    for (hook, came_in, goes_out) in stops(kind, path) {
        let came = if let Through::This(index) = came_in { index } else { 0 };
        let (source, destination) = addresses(kind, path, hook);
        let header = header(kind, protocol, source, destination);
        let sample = Sample { came_in: came, length: header.len() as u32, header, ..Sample::default() };
        let mut packet = Packet::new(&sample, &group, hook, kind.state);
        (packet.came_in, packet.goes_out) = (came_in, goes_out);
        // Whether an earlier rule marks it is unknown.
        packet.marks_change = true;
        if see(&packet) {
            return;
        }
    }
}

fn stops(kind: &Kind, path: &Path) -> Vec<(Hook, Through, Through)> {
    let none = Through::None;
    let through = |from: Through, to: Through| {
        vec![
            (Hook::Ingress, from, none),
            (Hook::Prerouting, from, none),
            (Hook::Forward, from, to),
            (Hook::Postrouting, from, to),
        ]
    };
    match kind.direction {
        Direction::In => through(path.away, path.near),
        // The outside address is that of the inside host.
        Direction::Here if path.outside == path.inside => through(path.away, path.near),
        Direction::Out => through(path.near, path.away),
        Direction::Here => vec![
            (Hook::Ingress, path.away, none),
            (Hook::Prerouting, path.away, none),
            (Hook::Input, path.away, none),
        ],
        Direction::Made => vec![(Hook::Output, none, path.near), (Hook::Postrouting, none, path.near)],
    }
}

/// Source and destination at a hook: before routing packets from outside have the outside address still.
fn addresses(kind: &Kind, path: &Path, hook: Hook) -> (IpAddr, IpAddr) {
    match kind.direction {
        Direction::In if matches!(hook, Hook::Forward | Hook::Postrouting) => (path.server, path.inside),
        Direction::In | Direction::Here => (path.server, path.outside),
        Direction::Out => (path.inside, path.server),
        Direction::Made => (path.outside, path.inside),
    }
}

/// The header of IP and the first bytes behind it; no rule reads the checksums.
fn header(kind: &Kind, protocol: u8, source: IpAddr, destination: IpAddr) -> Vec<u8> {
    let mut bytes = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let offset = if kind.fragment { OFFSET } else { 0 };
            let mut bytes = vec![0x45, 0, 0, LENGTH, 0, 1, 0, offset, 60, protocol, 0, 0];
            bytes.extend([source.octets(), destination.octets()].concat());
            bytes
        }
        (source, destination) => {
            // 44 is the header of fragments.
            let next = if kind.fragment { 44 } else { protocol };
            let mut bytes = vec![0x60, 0, 0, 0, 0, LENGTH - 40, next, 60];
            bytes.extend([source, destination].into_iter().flat_map(octets));
            if kind.fragment {
                bytes.extend([protocol, 0, 0, OFFSET << 3, 0, 0, 0, 1]);
            }
            bytes
        }
    };
    let from_outside = matches!(kind.direction, Direction::In | Direction::Here);
    let (first, second) = if from_outside { PORTS } else { (PORTS.1, PORTS.0) };
    match protocol {
        ICMP => bytes.extend([kind.what.0, kind.what.1]),
        ICMP6 => {
            let (_, (kind, code)) = SAME.iter().find(|(v4, _)| *v4 == kind.what).unwrap_or(&SAME[0]);
            bytes.extend([*kind, *code]);
        }
        _ => bytes.extend([first.to_be_bytes(), second.to_be_bytes()].concat()),
    }
    if protocol == TCP {
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, kind.what.0, 0xff, 0xff, 0, 0, 0, 0]);
    }
    bytes.resize(LENGTH.into(), 0);
    bytes
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each type of ICMP has one of ICMPv6.
    #[test]
    fn every_kind_of_icmp_has_a_form_over_ipv6() {
        let icmp = KINDS.iter().chain(OPENING).filter(|kind| kind.protocol == ICMP);
        for kind in icmp {
            assert!(SAME.iter().any(|(v4, _)| *v4 == kind.what), "{}", kind.name);
        }
    }
}
