//! The mappings of the reference NAT.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use weir_nat::Side;
use weir_nat::rows::judge::Dependence;
use weir_wire::{Tcp, protocol};

use super::behaviour::{Behaviour, Defect};

/// The destinations for which a mapping is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Any,
    Address(IpAddr),
    Endpoint(SocketAddr),
}

impl Scope {
    fn covers(self, to: SocketAddr) -> bool {
        match self {
            Scope::Any => true,
            Scope::Address(address) => address == to.ip(),
            Scope::Endpoint(endpoint) => endpoint == to,
        }
    }
}

/// The stage of a connection of TCP (RFC 5382 section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Partly open.
    Transitory,
    /// Closed by both ends.
    Closed,
    Established,
    /// One end has sent its FIN.
    HalfClosed,
    /// One end has sent a reset (RFC 7857 section 2.2).
    Reset,
}

#[derive(Debug, Clone)]
pub(crate) struct Mapping {
    protocol: u8,
    pub(crate) inside: SocketAddr,
    pub(crate) outside: SocketAddr,
    scope: Scope,
    /// Endpoints that it has sent to.
    contacted: Vec<SocketAddr>,
    last: Duration,
    /// `last` before the last packet from inside.
    before: Duration,
    /// When its last packet from inside was sent.
    last_out: Duration,
    answered: bool,
    /// SYN and FIN of each end.
    syn: [bool; 2],
    fin: [bool; 2],
    reset: bool,
    /// Sequence number after the last segment of each end.
    next: [Option<u32>; 2],
    /// The packets at once of which one made it.
    pub(crate) batch: u64,
    /// It is configured: no packet makes it, no time ends it, and the choice of ports does not know it.
    published: bool,
}

impl Mapping {
    pub(crate) fn new(
        protocol: u8,
        inside: SocketAddr,
        outside: SocketAddr,
        scope: Scope,
        now: Duration,
    ) -> Self {
        Mapping {
            protocol,
            inside,
            outside,
            scope,
            contacted: Vec::new(),
            last: now,
            before: now,
            last_out: now,
            answered: false,
            syn: [false; 2],
            fin: [false; 2],
            reset: false,
            next: [None; 2],
            batch: 0,
            published: false,
        }
    }

    /// A published port.
    pub(crate) fn published(protocol: u8, inside: SocketAddr, outside: SocketAddr) -> Self {
        let mapping = Mapping::new(protocol, inside, outside, Scope::Any, Duration::ZERO);
        Mapping { published: true, ..mapping }
    }

    fn stage(&self) -> Stage {
        match (self.syn, self.fin) {
            _ if self.reset => Stage::Reset,
            ([true, true], [false, false]) => Stage::Established,
            ([true, true], [true, false] | [false, true]) => Stage::HalfClosed,
            (_, [true, true]) => Stage::Closed,
            _ => Stage::Transitory,
        }
    }

    /// It has sent to this endpoint.
    pub(crate) fn has_contacted(&self, endpoint: SocketAddr) -> bool {
        self.contacted.contains(&endpoint)
    }

    fn admits(&self, from: SocketAddr, behaviour: &Behaviour) -> bool {
        if self.published {
            return true;
        }
        if behaviour.has(Defect::FilterByPort) {
            return self.contacted.iter().any(|c| c.port() == from.port());
        }
        match behaviour.filtering {
            Dependence::EndpointIndependent => true,
            Dependence::Address => self.contacted.iter().any(|c| c.ip() == from.ip()),
            Dependence::AddressAndPort => self.contacted.contains(&from),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    mappings: Vec<Mapping>,
    /// When mappings were last ended.
    swept: Duration,
    /// Mappings of UDP and TCP that have ended, and when.
    ended: Vec<(Mapping, Duration)>,
}

/// Segments that are farther from the last one are outside of the window.
const WINDOW: u32 = 1 << 20;

/// How long a port of UDP is kept from other hosts (RFC 6888 section 3, REQ-8).
const HELD: Duration = Duration::from_secs(120);
/// When a NAT that forgets ports of TCP does so.
const FORGOTTEN: Duration = Duration::from_secs(30);

impl Table {
    pub(crate) fn expire(&mut self, now: Duration, behaviour: &Behaviour) {
        // Packets of one moment come by the thousand.
        if now == self.swept {
            return;
        }
        self.swept = now;
        let end = |m: &Mapping| m.last + behaviour.idle(m.protocol, m.answered, m.stage());
        let held = |m: &Mapping| if m.protocol == protocol::TCP { behaviour.tcp_held } else { HELD };
        self.ended.retain(|(m, at)| now < *at + held(m));
        let over = self.mappings.extract_if(.., |m| !m.published && now >= end(m));
        self.ended.extend(over.filter(|m| m.protocol != protocol::ICMP).map(|m| (m.clone(), end(&m))));
    }

    /// Another host's mapping of this outside endpoint has ended not long ago.
    pub(crate) fn holds(&self, protocol: u8, outside: SocketAddr, inside: SocketAddr) -> bool {
        let others =
            |m: &Mapping| m.protocol == protocol && m.outside == outside && m.inside.ip() != inside.ip();
        self.ended.iter().any(|(m, _)| others(m))
    }

    pub(crate) fn get(&self, mapping: usize) -> &Mapping {
        &self.mappings[mapping]
    }

    pub(crate) fn add(&mut self, mapping: Mapping) -> usize {
        self.mappings.push(mapping);
        self.mappings.len() - 1
    }

    /// The mapping of an inside endpoint for a destination. With `overlap` one that another host's mapping of the same port has
    /// contacted already does not count.
    pub(crate) fn find_outbound(
        &self,
        protocol: u8,
        inside: SocketAddr,
        to: SocketAddr,
        overlap: bool,
    ) -> Option<usize> {
        let own = |m: &Mapping| m.protocol == protocol && m.inside == inside && m.scope.covers(to);
        let disputed = |m: &Mapping| overlap && self.conflicts(protocol, m.outside, inside, to);
        self.mappings.iter().position(|m| own(m) && !disputed(m))
    }

    /// Another host uses this outside endpoint for that destination.
    pub(crate) fn conflicts(
        &self,
        protocol: u8,
        outside: SocketAddr,
        inside: SocketAddr,
        to: SocketAddr,
    ) -> bool {
        let others = |m: &&Mapping| {
            m.protocol == protocol && m.outside == outside && m.inside != inside && !m.published
        };
        self.mappings.iter().filter(others).any(|m| m.contacted.contains(&to))
    }

    /// An inside endpoint has a mapping that it cannot use for this destination.
    pub(crate) fn is_taken(&self, protocol: u8, inside: SocketAddr, to: SocketAddr) -> bool {
        let own = |m: &&Mapping| m.protocol == protocol && m.inside == inside;
        self.mappings.iter().filter(own).any(|m| self.conflicts(protocol, m.outside, inside, to))
    }

    pub(crate) fn uses(&self, protocol: u8, outside: SocketAddr) -> bool {
        self.mappings.iter().any(|m| m.protocol == protocol && m.outside == outside && !m.published)
    }

    /// The outside endpoint of another host's mapping of TCP for the same port and endpoint, which a packet of that batch made.
    pub(crate) fn rival(&self, inside: SocketAddr, to: SocketAddr, batch: u64) -> Option<SocketAddr> {
        let others = |m: &&Mapping| {
            m.protocol == protocol::TCP
                && m.batch == batch
                && m.inside.port() == inside.port()
                && m.inside.ip() != inside.ip()
                && m.contacted.contains(&to)
        };
        self.mappings.iter().find(others).map(|m| m.outside)
    }

    /// The mapping of TCP that uses it was forgotten.
    pub(crate) fn has_forgotten(&self, outside: SocketAddr) -> bool {
        let own = |m: &&Mapping| m.protocol == protocol::TCP && m.outside == outside;
        self.mappings.iter().filter(own).all(|m| self.swept >= m.last_out + FORGOTTEN)
    }

    /// The mapping that a packet from outside belongs to. If several have one port, it is the one which has contacted the
    /// sender; the newest where ports are overloaded.
    pub(crate) fn find_inbound(
        &self,
        protocol: u8,
        from: SocketAddr,
        to: SocketAddr,
        behaviour: &Behaviour,
    ) -> Option<usize> {
        let admits = |m: &Mapping| m.protocol == protocol && m.outside == to && m.admits(from, behaviour);
        if let Some(published) = self.mappings.iter().position(|m| m.published && admits(m)) {
            return Some(published);
        }
        if behaviour.has(Defect::PortsOverload) {
            return self.mappings.iter().rposition(admits);
        }
        let contacted = self.mappings.iter().position(|m| admits(m) && m.contacted.contains(&from));
        contacted.or_else(|| self.mappings.iter().position(admits))
    }

    pub(crate) fn carried_out(&mut self, mapping: usize, to: SocketAddr, now: Duration, refreshes: bool) {
        let mapping = &mut self.mappings[mapping];
        if !mapping.contacted.contains(&to) {
            mapping.contacted.push(to);
        }
        mapping.before = mapping.last;
        mapping.last_out = now;
        if refreshes {
            mapping.last = now;
        }
    }

    pub(crate) fn carried_in(&mut self, mapping: usize, now: Duration, refreshes: bool) {
        let mapping = &mut self.mappings[mapping];
        mapping.answered = true;
        if refreshes {
            mapping.last = now;
        }
    }

    /// The mapping that an error from outside is about: that of the packet's source, which has sent to its destination.
    pub(crate) fn find_sender(&self, protocol: u8, outside: SocketAddr, to: SocketAddr) -> Option<usize> {
        let sent = |m: &Mapping| m.protocol == protocol && m.outside == outside && m.contacted.contains(&to);
        self.mappings.iter().position(sent)
    }

    /// The mapping of a packet that reached this inside endpoint.
    pub(crate) fn find_receiver(&self, protocol: u8, inside: SocketAddr) -> Option<usize> {
        self.mappings.iter().position(|m| m.protocol == protocol && m.inside == inside)
    }

    /// The mappings of a hairpinned packet, by its source as it was shown and the inside endpoint that it reached: the receiver's
    /// and the sender's.
    pub(crate) fn find_hairpinned(
        &self,
        protocol: u8,
        source: SocketAddr,
        inside: SocketAddr,
    ) -> Option<(usize, usize)> {
        let of = |m: &Mapping| m.protocol == protocol && m.inside == inside;
        let receivers = self.mappings.iter().enumerate().filter(|(_, m)| of(m));
        receivers.filter_map(|(n, m)| Some((n, self.find_sender(protocol, source, m.outside)?))).next()
    }

    /// A segment of one end is far from the one that comes next.
    pub(crate) fn is_wild(&self, mapping: usize, side: Side, sequence: u32) -> bool {
        let next = self.mappings[mapping].next[usize::from(side == Side::Outside)];
        next.is_some_and(|next| sequence.wrapping_sub(next).min(next.wrapping_sub(sequence)) > WINDOW)
    }

    /// A segment of one end. Only the first reset starts a time (RFC 7857 sections 2.2 and 8), or each if they `refresh`.
    pub(crate) fn note_segment(
        &mut self,
        mapping: usize,
        side: Side,
        flags: u8,
        sequence: u32,
        refresh: bool,
    ) {
        if !self.is_wild(mapping, side, sequence) || flags & Tcp::SYN != 0 {
            self.mappings[mapping].next[usize::from(side == Side::Outside)] = Some(sequence);
        }
        let end = usize::from(side == Side::Outside);
        let mapping = &mut self.mappings[mapping];
        mapping.syn[end] |= flags & Tcp::SYN != 0;
        mapping.fin[end] |= flags & Tcp::FIN != 0;
        let reset = flags & Tcp::RST != 0;
        if reset && mapping.reset && side == Side::Inside && !refresh {
            mapping.last = mapping.before;
        }
        mapping.reset |= reset;
    }

    /// Mappings of a protocol of which that holds.
    pub(crate) fn count(&self, protocol: u8, which: impl Fn(&Mapping) -> bool) -> usize {
        self.mappings.iter().filter(|m| m.protocol == protocol && which(m)).count()
    }

    /// The oldest mapping of a protocol with that outside address.
    pub(crate) fn oldest(&self, protocol: u8, outside: IpAddr) -> Option<usize> {
        self.mappings.iter().position(|m| m.protocol == protocol && m.outside.ip() == outside)
    }

    pub(crate) fn remove(&mut self, mapping: usize) {
        self.mappings.remove(mapping);
    }
}
