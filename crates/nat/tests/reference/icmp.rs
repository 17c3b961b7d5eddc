//! ICMP of the reference NAT (RFC 5508).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use weir_nat::{Packet, Side};
use weir_wire::{Icmp, Udp, protocol};

use super::behaviour::FIRST_HOST;
use super::rewrite::{Checksum, rewritten};
use super::{Defect, Output, Reference};

impl Reference {
    pub(super) fn icmp(&mut self, now: Duration, side: Side, packet: Packet) -> Output {
        let unsound = packet.quoted_icmp().filter(|_| self.has(Defect::BadErrorsPass));
        match packet.icmp_message().or(unsound) {
            Some(Icmp::Echo { reply, identifier, sequence, data }) => {
                self.echo(now, side, &packet, (reply, identifier, sequence, data))
            }
            Some(message) if message.quote().is_some() => self.error(now, side, &packet, &message),
            _ => Vec::new(),
        }
    }

    /// Queries from inside, and their replies; the identifier takes the place of the port.
    fn echo(
        &mut self,
        now: Duration,
        side: Side,
        packet: &Packet,
        (reply, identifier, sequence, data): (bool, u16, u16, &[u8]),
    ) -> Output {
        let header = packet.header;
        let echo = |identifier| Icmp::Echo { reply, identifier, sequence, data };
        let inside = SocketAddr::new(header.source, identifier);
        if side == Side::Inside && self.behaviour.addresses.contains(&header.destination) {
            return self.hairpinned_echo(now, packet, (reply, identifier, sequence, data));
        }
        match (side, reply) {
            // As for Basic NAT, to the host that has the address; here with an identifier that it has used.
            (Side::Outside, false) => {
                let from = SocketAddr::new(header.source, 0);
                let to = SocketAddr::new(header.destination, identifier);
                let found = self.table.find_inbound(protocol::ICMP, from, to, &self.behaviour);
                let Some(mapping) = found else { return Vec::new() };
                let inside = self.table.get(mapping).inside;
                let message = echo(identifier);
                vec![(Side::Inside, like(packet, Packet::icmp(header.source, inside.ip(), &message)))]
            }
            (Side::Inside, true) => {
                let outside = self.ports.address(protocol::ICMP, inside, &self.behaviour);
                let message = echo(identifier);
                vec![(Side::Outside, like(packet, Packet::icmp(outside, header.destination, &message)))]
            }
            (Side::Inside, false) if !self.has(Defect::QueriesDropped) => {
                let to = SocketAddr::new(header.destination, 0);
                let Some(mapping) = self.outbound(now, protocol::ICMP, inside, to) else {
                    return Vec::new();
                };
                let outside = self.table.get(mapping).outside;
                let message = echo(outside.port());
                vec![(Side::Outside, like(packet, Packet::icmp(outside.ip(), header.destination, &message)))]
            }
            (Side::Outside, true) => {
                let from = SocketAddr::new(header.source, 0);
                let to = SocketAddr::new(header.destination, identifier);
                let found = self.table.find_inbound(protocol::ICMP, from, to, &self.behaviour);
                let Some(mapping) = found else { return Vec::new() };
                let inside = self.table.get(mapping).inside;
                let message = echo(inside.port());
                vec![(Side::Inside, like(packet, Packet::icmp(header.source, inside.ip(), &message)))]
            }
            _ => Vec::new(),
        }
    }

    /// A ping to an outside address of its own, and the reply to it (RFC 5508 section 5). The reply goes to the host that the request
    /// was shown to come from.
    fn hairpinned_echo(
        &mut self,
        now: Duration,
        packet: &Packet,
        (reply, identifier, sequence, data): (bool, u16, u16, &[u8]),
    ) -> Output {
        let header = packet.header;
        let own = SocketAddr::new(header.source, identifier);
        if self.has(Defect::QueriesDropped) {
            return Vec::new();
        }
        let echo = |reply, identifier| Icmp::Echo { reply, identifier, sequence, data };
        if self.has(Defect::QueriesNotHairpinned) {
            let answer = Packet::icmp(header.destination, header.source, &echo(true, identifier));
            return if reply { Vec::new() } else { vec![(Side::Inside, answer)] };
        }
        let source = if reply {
            SocketAddr::new(self.ports.address(protocol::ICMP, own, &self.behaviour), identifier)
        } else {
            let to = SocketAddr::new(header.destination, 0);
            let Some(sender) = self.outbound(now, protocol::ICMP, own, to) else { return Vec::new() };
            self.table.get(sender).outside
        };
        if self.has(Defect::NoHairpin) {
            return Vec::new();
        }
        let (from, to) = (SocketAddr::new(source.ip(), 0), SocketAddr::new(header.destination, identifier));
        let found = self.table.find_inbound(protocol::ICMP, from, to, &self.behaviour);
        let Some(receiver) = found else { return Vec::new() };
        let inside = self.table.get(receiver).inside;
        let shown = if self.has(Defect::HairpinInsideSource) { header.source } else { source.ip() };
        let identifier = if reply { inside.port() } else { source.port() };
        vec![(Side::Inside, like(packet, Packet::icmp(shown, inside.ip(), &echo(reply, identifier))))]
    }

    fn error(&mut self, now: Duration, side: Side, packet: &Packet, message: &Icmp<'_>) -> Output {
        let dropped = match side {
            Side::Inside => Defect::ErrorsOutDropped,
            Side::Outside => Defect::ErrorsInDropped,
        };
        let Some(quote) = message.quote().filter(|_| !self.has(dropped)) else { return Vec::new() };
        let Some(inner) = Packet::read_quoted(quote).filter(|inner| self.accepts(quote, inner)) else {
            return Vec::new();
        };
        if side == Side::Outside && self.drops_type(message) {
            return Vec::new();
        }
        if inner.is_icmp() {
            return match side {
                Side::Inside => self.error_about_reply(packet, message, &inner),
                Side::Outside => self.error_about_query(now, packet, message, &inner),
            };
        }
        let (Some(from), Some(to)) = (inner.from(), inner.to()) else { return Vec::new() };
        let transport = inner.header.protocol;
        if side == Side::Inside && self.behaviour.addresses.contains(&packet.header.destination) {
            return self.hairpinned_error(packet, message, inner);
        }
        if side == Side::Inside && transport == protocol::TCP && self.has(Defect::TcpErrorsOutDropped) {
            return Vec::new();
        }
        let found = match side {
            Side::Inside => self.table.find_receiver(transport, to),
            Side::Outside => self.table.find_sender(transport, from, to),
        };
        let Some(found) = found else { return self.unmapped_error(side, packet, message) };
        let mapping = self.table.get(found).clone();
        let update = if self.has(Defect::InnerChecksumStale) { Checksum::Stale } else { Checksum::Updated };
        let inner = match side {
            _ if self.has(Defect::InnerKept) => inner,
            Side::Inside => rewritten(inner, None, Some(mapping.outside), update),
            Side::Outside => rewritten(inner, Some(mapping.inside), None, update),
        };
        if side == Side::Inside && self.has(Defect::ErrorsRefresh) {
            self.table.carried_out(found, from, now, true);
        }
        if self.has(Defect::ErrorsEndMapping) {
            self.table.remove(found);
        }
        if side == Side::Outside {
            return self.error_in(packet, message, &inner, mapping.inside.ip());
        }
        self.error_out(packet, message, &inner, mapping.outside.ip())
    }

    /// An error from an inside host, with what it quotes.
    fn error_out(&self, packet: &Packet, message: &Icmp<'_>, inner: &Packet, outside: IpAddr) -> Output {
        let bytes = self.quoted(message, inner);
        let kept = self.has(Defect::ErrorOutSourceKept);
        let source = if kept { packet.header.source } else { outside };
        let error = Packet::icmp(source, packet.header.destination, &requoted(message, &bytes));
        vec![(Side::Outside, like(packet, error))]
    }

    /// An error from inside about an echo reply. As with requests, its checksum is updated whatever the defects.
    fn error_about_reply(&mut self, packet: &Packet, message: &Icmp<'_>, inner: &Packet) -> Output {
        let Some(Icmp::Echo { reply: true, identifier, sequence, data }) = inner.quoted_icmp() else {
            return Vec::new();
        };
        let reached = SocketAddr::new(inner.header.destination, identifier);
        let found = self.table.find_receiver(protocol::ICMP, reached);
        let Some(found) = found.filter(|_| !self.has(Defect::ReplyErrorsDropped)) else { return Vec::new() };
        let outside = self.table.get(found).outside;
        if self.has(Defect::ErrorsEndMapping) {
            self.table.remove(found);
        }
        let mut quoted = inner.clone();
        if !self.has(Defect::InnerKept) {
            let echo = Icmp::Echo { reply: true, identifier: outside.port(), sequence, data };
            quoted.header.destination = outside.ip();
            quoted.payload = Packet::icmp(inner.header.source, outside.ip(), &echo).payload;
        }
        self.error_out(packet, message, &quoted, outside.ip())
    }

    /// Errors from outside that a defect drops by their type.
    fn drops_type(&self, message: &Icmp<'_>) -> bool {
        self.has(match message {
            // RFC 1812 section 5.2.7.1, RFC 4443 section 3.1.
            Icmp::Unreachable { code: 13, .. } => Defect::ProhibitedDropped,
            Icmp::Unreachable { code: 1, quote } if quote[0] >> 4 == 6 => Defect::ProhibitedDropped,
            Icmp::TooBig { .. } => Defect::TooBigDropped,
            Icmp::ParameterProblem { .. } => Defect::ProblemsDropped,
            _ => return false,
        })
    }

    /// Whether the quote of an error is as RFC 5508 section 4.1 asks, but for the defects.
    fn accepts(&self, quote: &[u8], inner: &Packet) -> bool {
        let header = inner.header;
        let is_sound = || {
            header.protocol != protocol::UDP
                || Udp::is_sound(header.source, header.destination, &inner.payload)
        };
        // Version and length of a header of IPv4 without options.
        let has_options = !header.source.is_ipv6() && quote[0] != 0x45;
        let whole = Udp::read(&inner.payload).is_ok();
        (self.has(Defect::BadQuotesPass) || Packet::header_is_sound(quote))
            && !(self.has(Defect::QuotesChecked) && whole && !is_sound())
            && !(self.has(Defect::QuoteOptionsUnread) && has_options)
            && !(self.has(Defect::ShortQuotesDropped) && header.protocol == protocol::UDP && !whole)
    }

    /// An error about a packet that was never sent.
    fn unmapped_error(&self, side: Side, packet: &Packet, message: &Icmp<'_>) -> Output {
        if side == Side::Inside || !self.has(Defect::UnmappedErrorsPass) {
            return Vec::new();
        }
        vec![(Side::Inside, like(packet, Packet::icmp(packet.header.source, FIRST_HOST, message)))]
    }

    /// An error from outside about an echo request. The request's checksum is updated whatever the defects: where identifiers are
    /// kept, a stale one is right.
    fn error_about_query(
        &mut self,
        now: Duration,
        packet: &Packet,
        message: &Icmp<'_>,
        inner: &Packet,
    ) -> Output {
        let Some(Icmp::Echo { reply: false, identifier, sequence, data }) = inner.quoted_icmp() else {
            return Vec::new();
        };
        let from = SocketAddr::new(inner.header.source, identifier);
        let to = SocketAddr::new(inner.header.destination, 0);
        let found = self.table.find_sender(protocol::ICMP, from, to);
        let Some(found) = found.filter(|_| !self.has(Defect::QueryErrorsDropped)) else { return Vec::new() };
        let inside = self.table.get(found).inside;
        if self.has(Defect::QueryErrorsRefresh) {
            self.table.carried_in(found, now, true);
        }
        if self.has(Defect::ErrorsEndMapping) {
            self.table.remove(found);
        }
        let mut quoted = inner.clone();
        if !self.has(Defect::InnerKept) {
            let echo = Icmp::Echo { reply: false, identifier: inside.port(), sequence, data };
            quoted.header.source = inside.ip();
            quoted.payload = Packet::icmp(inside.ip(), to.ip(), &echo).payload;
        }
        self.error_in(packet, message, &quoted, inside.ip())
    }

    /// An error from outside to an inside host, with what it quotes.
    fn error_in(&self, packet: &Packet, message: &Icmp<'_>, inner: &Packet, inside: IpAddr) -> Output {
        let bytes = self.quoted(message, inner);
        let message = match self.has(Defect::ErrorCodeChanged) {
            true => Icmp::Unreachable { code: 7, quote: &bytes },
            false => requoted(message, &bytes),
        };
        let message = match message {
            Icmp::TooBig { quote, .. } if self.has(Defect::TooBigMtuChanged) => {
                Icmp::TooBig { mtu: 1_280, quote }
            }
            other => other,
        };
        vec![(Side::Inside, like(packet, Packet::icmp(packet.header.source, inside, &message)))]
    }

    /// The bytes of a packet in the quote of an error.
    fn quoted(&self, message: &Icmp<'_>, inner: &Packet) -> Vec<u8> {
        let mut bytes = inner.bytes();
        if let Some(quote) = message.quote().filter(|_| self.has(Defect::InnerIpChecksumStale)) {
            bytes[10..12].copy_from_slice(&quote[10..12]);
        }
        bytes
    }

    /// An error of an inside host about a packet that another one sent to its outside port (RFC 5508 section 5): the sender gets
    /// it about the packet as it sent it. Checksums are updated whatever the defects: the two changes of addresses may cancel, so
    /// that a stale checksum were right by chance.
    fn hairpinned_error(&mut self, packet: &Packet, message: &Icmp<'_>, inner: Packet) -> Output {
        let (Some(source), Some(reached)) = (inner.from(), inner.to()) else { return Vec::new() };
        let found = self.table.find_hairpinned(inner.header.protocol, source, reached);
        let Some((receiver, sender)) = found.filter(|_| !self.has(Defect::HairpinErrorsDropped)) else {
            return Vec::new();
        };
        let (sender, outside) = (self.table.get(sender).inside, self.table.get(receiver).outside);
        let shown = (!self.has(Defect::HairpinErrorHalf)).then_some(outside);
        let inner = match self.has(Defect::InnerKept) {
            true => inner,
            false => rewritten(inner, Some(sender), shown, Checksum::Updated),
        };
        if self.has(Defect::ErrorsEndMapping) {
            self.table.remove(receiver);
        }
        let bytes = inner.bytes();
        let error = Packet::icmp(outside.ip(), sender.ip(), &requoted(message, &bytes));
        vec![(Side::Inside, like(packet, error))]
    }
}

/// The error about another packet.
pub(super) fn requoted<'a>(message: &Icmp<'_>, quote: &'a [u8]) -> Icmp<'a> {
    match *message {
        Icmp::TooBig { mtu, .. } => Icmp::TooBig { mtu, quote },
        Icmp::TimeExceeded { code, .. } => Icmp::TimeExceeded { code, quote },
        Icmp::ParameterProblem { code, pointer, .. } => Icmp::ParameterProblem { code, pointer, quote },
        Icmp::Unreachable { code, .. } => Icmp::Unreachable { code, quote },
        Icmp::Echo { .. } | Icmp::Other { .. } => Icmp::Unreachable { code: 0, quote },
    }
}

/// With the other fields of the header of the packet that came in.
fn like(packet: &Packet, mut new: Packet) -> Packet {
    new.header.ttl = packet.header.ttl;
    new.header.tos = packet.header.tos;
    new
}
