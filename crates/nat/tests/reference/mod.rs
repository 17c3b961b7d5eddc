//! A NAT of known behaviour: what the table is tested against, and its living document.
//!
//! It is a state machine without clock or sockets: it gets a packet and the time, and returns packets. [`memory::Memory`] gives it
//! two ends and a clock of its own, so that two hours pass at once.
#![allow(dead_code, unused_imports, reason = "each test program uses a part of it")]

mod behaviour;
pub(crate) mod memory;
mod ports;
mod state;
pub(crate) mod wire;

use std::net::SocketAddrV4;
use std::time::Duration;

use weir_nat::rows::judge::Dependence;
use weir_nat::{Packet, Side};
use weir_wire::protocol;

pub(crate) use behaviour::{ADDRESSES, Behaviour, Defect, PortRule, Strangers};
use state::{Mapping, Scope, Table};

/// Packets that come out, each with its side.
pub(crate) type Output = Vec<(Side, Packet)>;

/// The NAT.
pub(crate) struct Reference {
    behaviour: Behaviour,
    table: Table,
    ports: ports::Ports,
}

impl Reference {
    pub(crate) fn new(behaviour: Behaviour) -> Self {
        Reference { behaviour, table: Table::default(), ports: ports::Ports::default() }
    }

    /// One packet.
    pub(crate) fn handle(&mut self, now: Duration, side: Side, mut packet: Packet) -> Output {
        self.table.expire(now, &self.behaviour);
        if packet.header.protocol != protocol::UDP {
            return Vec::new();
        }
        packet.header.ttl -= 1;
        let (Some(from), Some(to)) = (packet.from(), packet.to()) else { return Vec::new() };
        match side {
            Side::Inside if ADDRESSES.contains(to.ip()) => self.hairpin(now, packet, from, to),
            Side::Inside => {
                let mapping = self.outbound(now, from, to);
                let outside = self.table.get(mapping).outside;
                vec![(Side::Outside, readdressed(packet, Some(outside), None))]
            }
            Side::Outside => self.inbound(now, packet, from, to),
        }
    }

    /// The mapping of a packet from inside, which it makes or refreshes.
    fn outbound(&mut self, now: Duration, inside: SocketAddrV4, to: SocketAddrV4) -> usize {
        let overlap = self.behaviour.has(Defect::PortsOverlap);
        let found = self.table.find_outbound(inside, to, overlap);
        let mapping = found.unwrap_or_else(|| {
            let scope = match self.behaviour.mapping {
                // A shared port belongs to a host for one destination only.
                _ if overlap && self.table.is_taken(inside, to) => Scope::Endpoint(to),
                Dependence::EndpointIndependent => Scope::Any,
                Dependence::Address => Scope::Address(*to.ip()),
                Dependence::AddressAndPort => Scope::Endpoint(to),
            };
            let outside = self.ports.choose(inside, to, &self.behaviour, &self.table);
            self.table.add(Mapping::new(inside, outside, scope, now))
        });
        let refreshes = found.is_none() || !self.behaviour.has(Defect::NoRefreshFromInside);
        self.table.carried_out(mapping, to, now, refreshes);
        mapping
    }

    fn inbound(&mut self, now: Duration, packet: Packet, from: SocketAddrV4, to: SocketAddrV4) -> Output {
        let Some(mapping) = self.table.find_inbound(from, to, &self.behaviour) else {
            return self.refuse(&packet);
        };
        let refreshes = self.behaviour.refresh_from_outside;
        self.table.carried_in(mapping, now, refreshes);
        let inside = self.table.get(mapping).inside;
        vec![(Side::Inside, readdressed(packet, None, Some(inside)))]
    }

    fn hairpin(&mut self, now: Duration, packet: Packet, from: SocketAddrV4, to: SocketAddrV4) -> Output {
        let sender = self.outbound(now, from, to);
        if self.behaviour.has(Defect::NoHairpin) {
            return Vec::new();
        }
        let source = self.table.get(sender).outside;
        let Some(receiver) = self.table.find_inbound(source, to, &self.behaviour) else { return Vec::new() };
        self.table.carried_in(receiver, now, self.behaviour.refresh_from_outside);
        let inside = self.table.get(receiver).inside;
        let shown = if self.behaviour.has(Defect::HairpinInsideSource) { from } else { source };
        vec![(Side::Inside, readdressed(packet, Some(shown), Some(inside)))]
    }

    /// An answer to a packet from outside that no mapping admits.
    fn refuse(&self, packet: &Packet) -> Output {
        match self.behaviour.strangers {
            Strangers::Silence => Vec::new(),
            Strangers::Unreachable => {
                let bytes = packet.bytes();
                let quote = &bytes[..bytes.len().min(28)];
                let message = weir_wire::Icmp::Unreachable { code: 3, quote };
                vec![(Side::Outside, Packet::icmp(packet.header.destination, packet.header.source, &message))]
            }
        }
    }
}

/// The packet with other endpoints and a right checksum.
fn readdressed(
    mut packet: Packet,
    source: Option<SocketAddrV4>,
    destination: Option<SocketAddrV4>,
) -> Packet {
    let (Some(from), Some(to)) = (source.or(packet.from()), destination.or(packet.to())) else {
        return packet;
    };
    packet.header.source = *from.ip();
    packet.header.destination = *to.ip();
    packet.seal_udp(from.port(), to.port());
    packet
}
