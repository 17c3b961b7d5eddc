//! A NAT of known behaviour: the table is tested against it, and it is the table's living document.
//!
//! It is a state machine without clock or sockets: it gets a packet and the time, and returns packets. [`memory::Memory`] gives it
//! two ends and a clock of its own, so that two hours pass at once; [`wire::Wire`] makes it a hop of weir's lab.
#![allow(dead_code, unused_imports, reason = "each test program uses a part of it")]

mod behaviour;
mod carriage;
pub(crate) mod combinations;
pub(crate) mod consequences;
mod exhaustion;
mod icmp;
pub(crate) mod memory;
mod overlaps;
mod ports;
mod prefix;
mod rewrite;
mod state;
pub(crate) mod wire;
pub(crate) mod wire64;

use std::net::SocketAddr;
use std::time::Duration;

use weir_nat::fragments::{Reassembly, split};
use weir_nat::packet::Header;
use weir_nat::rows::judge::Dependence;
use weir_nat::{Packet, Side};
use weir_wire::{Icmp, Tcp, protocol};

pub(crate) use behaviour::{
    ADDRESSES, ADDRESSES_V6, Behaviour, Defect, FIRST_HOST, INSIDE_MTU, OUTSIDE_MTU, PortRule, Strangers,
};
pub(crate) use prefix::Prefixes;
use rewrite::readdressed;
use state::{Mapping, Scope, Table};

/// Length of the fragment header of IPv6, bytes.
const FRAGMENT_HEADER: usize = 8;

/// Packets that come out, each with its side.
pub(crate) type Output = Vec<(Side, Packet)>;

/// The NAT.
pub(crate) struct Reference {
    behaviour: Behaviour,
    table: Table,
    ports: ports::Ports,
    fragments: Reassembly,
    overlapping: overlaps::Overlapping,
    others: Vec<carriage::OtherFlow>,
    next_identification: u16,
    /// Number of the packets that came at once.
    batch: u64,
}

impl Reference {
    pub(crate) fn new(behaviour: Behaviour) -> Self {
        let mut table = Table::default();
        for port in behaviour.published.clone().into_iter().flatten() {
            let inside = SocketAddr::new(FIRST_HOST, port);
            let outside = SocketAddr::new(behaviour.addresses[0], port);
            for protocol in [protocol::UDP, protocol::TCP] {
                table.add(Mapping::published(protocol, inside, outside));
            }
        }
        Reference {
            behaviour,
            table,
            ports: ports::Ports::default(),
            fragments: Reassembly::default(),
            overlapping: overlaps::Overlapping::default(),
            others: Vec::new(),
            next_identification: 0,
            batch: 0,
        }
    }

    /// The packets that come from now on do not come at once with earlier ones.
    pub(crate) fn begin_batch(&mut self) {
        self.batch += 1;
    }

    fn has(&self, defect: Defect) -> bool {
        self.behaviour.has(defect)
    }

    /// One packet.
    pub(crate) fn handle(&mut self, now: Duration, side: Side, packet: Packet) -> Output {
        self.table.expire(now, &self.behaviour);
        if packet.header.is_fragment() {
            let first = packet.header.fragment_offset == 0;
            if self.has(Defect::FragmentsDropped)
                || (self.has(Defect::FragmentsInOrderOnly) && !first && !self.knows(&packet))
            {
                return Vec::new();
            }
            if self.has(Defect::FragmentsLeaked) && side == Side::Inside && !first {
                return vec![(Side::Outside, packet)];
            }
        }
        let was_fragment = packet.header.is_fragment();
        let whole = match self.has(Defect::OverlapsJoined) {
            true => self.overlapping.take(packet),
            false => self.fragments.take(packet),
        };
        let Some(mut packet) = whole else { return Vec::new() };
        // Only a sender's own fragments are fragmented again.
        packet.header.dont_fragment &= !was_fragment || packet.header.source.is_ipv4();
        let original = packet.clone();
        self.change_fields(&mut packet.header);
        if let Some(prefixes) = self.behaviour.prefixes {
            let out = self.prefix(side, packet, prefixes);
            return out.into_iter().flat_map(|(side, packet)| self.fit(side, packet, &original)).collect();
        }
        let out = match (packet.header.protocol, packet.from(), packet.to()) {
            _ if packet.is_icmp() => self.icmp(now, side, packet),
            (_, Some(from), Some(to)) => self.transport(now, side, packet, from, to),
            (protocol::UDP | protocol::TCP, ..) => Vec::new(),
            _ => self.other(side, packet),
        };
        out.into_iter().flat_map(|(side, packet)| self.fit(side, packet, &original)).collect()
    }

    /// Fragments of this packet are there already.
    fn knows(&self, packet: &Packet) -> bool {
        self.fragments.knows(packet) || self.overlapping.knows(packet)
    }

    fn change_fields(&self, header: &mut Header) {
        if !self.has(Defect::TtlKept) {
            header.ttl -= 1;
        }
        if self.has(Defect::TosCleared) {
            header.tos = 0;
        }
        if self.has(Defect::DfCleared) {
            header.dont_fragment = false;
        }
    }

    /// Makes a packet fit the link that it leaves by.
    fn fit(&self, side: Side, packet: Packet, original: &Packet) -> Output {
        let mtu = if side == Side::Inside { INSIDE_MTU } else { OUTSIDE_MTU };
        let room = mtu as usize - packet.header.length();
        if packet.payload.len() <= room {
            return vec![(side, packet)];
        }
        let room = if packet.header.source.is_ipv6() { room - FRAGMENT_HEADER } else { room };
        if side == Side::Inside {
            return split(&packet, room).into_iter().map(|piece| (side, piece)).collect();
        }
        if packet.header.dont_fragment {
            if self.has(Defect::TooLongVanishes) {
                return Vec::new();
            }
            let mtu = if self.has(Defect::TooLongWrongMtu) { 576 } else { OUTSIDE_MTU };
            let bytes = original.bytes();
            let message = Icmp::TooBig { mtu, quote: &bytes[..bytes.len().min(548)] };
            let answer = Packet::icmp(packet.header.source, original.header.source, &message);
            return vec![(Side::Inside, answer)];
        }
        if self.has(Defect::NothingFragmented) {
            return Vec::new();
        }
        split(&packet, room).into_iter().map(|piece| (side, piece)).collect()
    }

    fn transport(
        &mut self,
        now: Duration,
        side: Side,
        packet: Packet,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Output {
        match side {
            Side::Inside if self.behaviour.addresses.contains(&to.ip()) => {
                self.hairpin(now, packet, from, to)
            }
            Side::Inside => {
                if self.refuses_segment(&packet, from, to)
                    || self.loses_race(packet.header.protocol, from, to)
                {
                    return Vec::new();
                }
                let Some(mapping) = self.outbound(now, packet.header.protocol, from, to) else {
                    return self.without_port(&packet, from);
                };
                match self.wild(mapping, side, &packet) {
                    Some(Defect::SequenceLeaks) => return vec![(Side::Outside, packet)],
                    Some(_) => return Vec::new(),
                    None => self.note_segment(mapping, side, &packet),
                }
                let outside = self.table.get(mapping).outside;
                if self.ends_mapping(side, &packet) {
                    self.table.remove(mapping);
                }
                vec![(Side::Outside, self.carried(readdressed(packet, Some(outside), None)))]
            }
            Side::Outside => self.inbound(now, packet, from, to),
        }
    }

    fn is_wild(&self, mapping: usize, side: Side, packet: &Packet) -> bool {
        packet.tcp_segment().is_some_and(|(header, _)| {
            header.flags & Tcp::SYN == 0 && self.table.is_wild(mapping, side, header.sequence)
        })
    }

    /// The defect of the sequence check that takes a segment.
    fn wild(&self, mapping: usize, side: Side, packet: &Packet) -> Option<Defect> {
        let checks = [Defect::SequenceLeaks, Defect::SequenceChecked];
        let check = checks.into_iter().find(|defect| self.has(*defect))?;
        self.is_wild(mapping, side, packet).then_some(check)
    }

    fn note_segment(&mut self, mapping: usize, side: Side, packet: &Packet) {
        if let Some((header, _)) = packet.tcp_segment() {
            let refresh = self.has(Defect::ResetsRefresh);
            self.table.note_segment(mapping, side, header.flags, header.sequence, refresh);
        }
    }

    /// A defect drops a packet for one that came at once with it.
    fn loses_race(&self, protocol: u8, inside: SocketAddr, to: SocketAddr) -> bool {
        (self.has(Defect::FirstPacketsLost) && self.races(protocol, inside, to))
            || (self.has(Defect::FirstSynsLost) && self.rival(protocol, inside, to).is_some())
    }

    /// The outside endpoint of another host that came at once with a SYN from the same port to the same endpoint.
    fn rival(&self, protocol: u8, inside: SocketAddr, to: SocketAddr) -> Option<SocketAddr> {
        (protocol == protocol::TCP).then(|| self.table.rival(inside, to, self.batch)).flatten()
    }

    /// A packet that came at once with it made its mapping.
    fn races(&self, protocol: u8, inside: SocketAddr, to: SocketAddr) -> bool {
        let found = self.table.find_outbound(protocol, inside, to, self.has(Defect::PortsOverlap));
        protocol == protocol::UDP && found.is_some_and(|n| self.table.get(n).batch == self.batch)
    }

    /// The mapping of a packet from inside, which it makes or refreshes; `None` if no port is left for it.
    fn outbound(&mut self, now: Duration, protocol: u8, inside: SocketAddr, to: SocketAddr) -> Option<usize> {
        let overlap = self.has(Defect::PortsOverlap);
        let mut found = self.table.find_outbound(protocol, inside, to, overlap);
        if self.has(Defect::FirstPacketsSplit) && self.races(protocol, inside, to) {
            found = None;
        }
        if found.is_none() && !self.has_room(protocol, inside) {
            return None;
        }
        let mapping = found.unwrap_or_else(|| {
            let per_destination = match protocol {
                protocol::TCP => self.has(Defect::TcpMappingDependent),
                protocol::ICMP => self.has(Defect::QueriesPerDestination),
                _ => false,
            };
            let scope = match self.behaviour.mapping {
                // A shared port belongs to a host for one destination only.
                _ if overlap && self.table.is_taken(protocol, inside, to) => Scope::Endpoint(to),
                _ if per_destination => Scope::Endpoint(to),
                Dependence::EndpointIndependent => Scope::Any,
                Dependence::Address => Scope::Address(to.ip()),
                Dependence::AddressAndPort => Scope::Endpoint(to),
            };
            let rival = self.rival(protocol, inside, to).filter(|_| self.has(Defect::FirstSynsShared));
            let choose = || self.ports.choose(protocol, inside, to, &self.behaviour, &self.table);
            let outside = rival.unwrap_or_else(choose);
            let mut mapping = Mapping::new(protocol, inside, outside, scope, now);
            mapping.batch = self.batch;
            self.table.add(mapping)
        });
        let defect = match protocol {
            protocol::TCP => Defect::NoTcpRefreshFromInside,
            _ => Defect::NoRefreshFromInside,
        };
        let refreshes = found.is_none() || !self.has(defect);
        self.table.carried_out(mapping, to, now, refreshes);
        Some(mapping)
    }

    fn inbound(&mut self, now: Duration, packet: Packet, from: SocketAddr, to: SocketAddr) -> Output {
        let found = self.table.find_inbound(packet.header.protocol, from, to, &self.behaviour);
        let Some(mapping) = found else { return self.refuse(&packet, from, to) };
        let is_syn = packet.tcp_segment().is_some_and(|(header, _)| header.flags == Tcp::SYN);
        if is_syn && self.has(Defect::NoSimultaneousOpen) && self.table.get(mapping).has_contacted(from) {
            return Vec::new();
        }
        let is_reset = packet.tcp_segment().is_some_and(|(header, _)| header.flags & Tcp::RST != 0);
        if is_reset && self.has(Defect::ResetDropped) {
            return Vec::new();
        }
        if self.wild(mapping, Side::Outside, &packet).is_some() {
            return Vec::new();
        }
        self.table.carried_in(mapping, now, self.behaviour.refresh_from_outside);
        let wild = self.is_wild(mapping, Side::Outside, &packet);
        self.note_segment(mapping, Side::Outside, &packet);
        let Some(packet) = self.carried_in(packet) else { return Vec::new() };
        let inside = self.table.get(mapping).inside;
        let ends = is_reset && wild && self.has(Defect::WildResetEnds);
        if ends || self.ends_mapping(Side::Outside, &packet) {
            self.table.remove(mapping);
        }
        vec![(Side::Inside, readdressed(packet, None, Some(inside)))]
    }

    fn hairpin(&mut self, now: Duration, packet: Packet, from: SocketAddr, to: SocketAddr) -> Output {
        let protocol = packet.header.protocol;
        let Some(sender) = self.outbound(now, protocol, from, to) else { return Vec::new() };
        if self.has(Defect::NoHairpin) {
            return Vec::new();
        }
        let source = self.table.get(sender).outside;
        let Some(receiver) = self.table.find_inbound(protocol, source, to, &self.behaviour) else {
            return Vec::new();
        };
        self.table.carried_in(receiver, now, self.behaviour.refresh_from_outside);
        let inside = self.table.get(receiver).inside;
        let shown = if self.has(Defect::HairpinInsideSource) { from } else { source };
        vec![(Side::Inside, readdressed(packet, Some(shown), Some(inside)))]
    }

    /// An answer to a packet from outside that no mapping admits.
    fn refuse(&self, packet: &Packet, from: SocketAddr, to: SocketAddr) -> Output {
        if let Some((header, _)) = packet.tcp_segment() {
            let is_syn = header.flags == Tcp::SYN;
            let resets = if is_syn {
                self.has(Defect::SynReset)
            } else {
                self.behaviour.strangers == Strangers::Unreachable && header.flags & Tcp::RST == 0
            };
            let acknowledgement = header.sequence.wrapping_add(1);
            let reset = Tcp { sequence: 0, acknowledgement, flags: Tcp::RST | Tcp::ACK, ..header };
            let answer = Packet::tcp(to, from, reset, &[]);
            return if resets { vec![(Side::Outside, answer)] } else { Vec::new() };
        }
        match self.behaviour.strangers {
            Strangers::Silence => Vec::new(),
            Strangers::Unreachable => {
                let bytes = packet.bytes();
                let code = if to.is_ipv6() { 4 } else { 3 };
                let message = Icmp::Unreachable { code, quote: &bytes[..bytes.len().min(48)] };
                let answer = Packet::icmp(packet.header.destination, packet.header.source, &message);
                vec![(Side::Outside, answer)]
            }
        }
    }
}
