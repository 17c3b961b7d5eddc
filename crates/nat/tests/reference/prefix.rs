//! The reference NAT as a translator of prefixes (RFC 6296): two prefixes of 64 bits, and no state.

use std::net::{IpAddr, Ipv6Addr};

use weir_nat::{Packet, Side};
use weir_wire::{Icmp, checksum, protocol};

use super::icmp::requoted;
use super::rewrite::octets;
use super::{Defect, Output, Reference};

/// The prefixes; their last 64 bits are 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prefixes {
    pub(crate) inside: Ipv6Addr,
    pub(crate) outside: Ipv6Addr,
}

/// Sum of 16-bit words in one's complement.
fn sum(words: &[u16]) -> u16 {
    words.iter().fold(0, |sum, word| add(sum, *word))
}

fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

/// RFC 6296 sections 3.1 and 3.5, and appendix B: the first word behind the prefix that is not 0xffff takes up the difference.
fn mapped(address: Ipv6Addr, from: Ipv6Addr, to: Ipv6Addr, neutral: bool) -> Ipv6Addr {
    let mut words = address.segments();
    words[..4].copy_from_slice(&to.segments()[..4]);
    if neutral {
        let adjustment = add(sum(&from.segments()[..4]), !sum(&to.segments()[..4]));
        if let Some(word) = words[4..].iter_mut().find(|word| **word != u16::MAX) {
            *word = add(*word, adjustment);
            if *word == u16::MAX {
                *word = 0;
            }
        }
    }
    words.into()
}

/// An address of one prefix as it is in the other.
struct Change {
    from: Ipv6Addr,
    to: Ipv6Addr,
    neutral: bool,
}

impl Change {
    fn of(&self, address: IpAddr) -> Option<IpAddr> {
        match address {
            IpAddr::V6(address) if address.segments()[..4] == self.from.segments()[..4] => {
                Some(mapped(address, self.from, self.to, self.neutral).into())
            }
            _ => None,
        }
    }

    /// With another source or destination. A neutral change needs no other checksum.
    fn applied(&self, mut packet: Packet, source: bool) -> Option<Packet> {
        let before = packet.header;
        let field = if source { &mut packet.header.source } else { &mut packet.header.destination };
        *field = self.of(*field)?;
        let at = match packet.header.protocol {
            protocol::UDP => 6,
            protocol::TCP => 16,
            protocol::ICMPV6 => 2,
            _ => return Some(packet),
        };
        if let Some(field) = packet.payload.get_mut(at..at + 2).filter(|_| !self.neutral) {
            let both = |header: weir_nat::packet::Header| {
                [octets(header.source), octets(header.destination)].concat()
            };
            let old = u16::from_be_bytes([field[0], field[1]]);
            let new = checksum::updated_bytes(old, &both(before), &both(packet.header));
            let new = if at == 6 { checksum::udp_value(new) } else { new };
            field.copy_from_slice(&new.to_be_bytes());
        }
        Some(packet)
    }
}

impl Reference {
    pub(super) fn prefix(&self, side: Side, packet: Packet, prefixes: Prefixes) -> Output {
        let neutral = !self.has(Defect::PrefixNotNeutral);
        let out = Change { from: prefixes.inside, to: prefixes.outside, neutral };
        let back = Change { from: prefixes.outside, to: prefixes.inside, neutral };
        let hairpins = side == Side::Inside && back.of(packet.header.destination).is_some();
        if hairpins && self.has(Defect::NoHairpin) {
            return Vec::new();
        }
        let dropped = match side {
            Side::Inside => Defect::ErrorsOutDropped,
            Side::Outside => Defect::ErrorsInDropped,
        };
        if packet.icmp_message().is_some_and(|message| message.quote().is_some()) && self.has(dropped) {
            return Vec::new();
        }
        let outwards = match side {
            Side::Inside if hairpins && self.has(Defect::HairpinInsideSource) => Some(packet),
            Side::Inside => out.applied(packet, true).map(|packet| self.requoted(packet, &out, false)),
            Side::Outside => Some(packet),
        };
        let Some(packet) = outwards else { return Vec::new() };
        if side == Side::Inside && !hairpins {
            return vec![(Side::Outside, packet)];
        }
        let inwards = back.applied(packet, false).map(|packet| self.requoted(packet, &back, true));
        inwards.map(|packet| (Side::Inside, packet)).into_iter().collect()
    }

    /// An error whose quoted packet has the addresses of the side that it goes to.
    fn requoted(&self, packet: Packet, change: &Change, source: bool) -> Packet {
        let Some(message) = packet.icmp_message() else { return packet };
        let Some(inner) = message.quote().and_then(Packet::read_quoted) else { return packet };
        if self.has(Defect::InnerKept) {
            return packet;
        }
        let Some(inner) = change.applied(inner, source) else { return packet };
        let bytes = inner.bytes();
        let message: Icmp<'_> = requoted(&message, &bytes);
        let new = Packet::icmp(packet.header.source, packet.header.destination, &message);
        Packet { header: packet.header, payload: new.payload }
    }
}
