//! ICMP errors as damaged, simple or hostile senders make them.

use std::io;
use std::net::SocketAddr;

use weir_wire::{Icmp, Ipv4, Sum};

use super::icmp::{Codes, endpoints};
use crate::observed::{Craft, CraftedError};
use crate::packet::Header;
use crate::session::{Protocol, Session};
use crate::{Arrival, Observations, Packet, Side, nat64};

/// Bytes behind the IP header that every error quotes (RFC 792).
const SHORT: usize = 8;
/// Three times "no operation", and the end of the list (RFC 791 section 3.1).
const OPTIONS: [u8; 4] = [1, 1, 1, 0];
/// Changes each checksum, and never to 0, which would mean none.
const DAMAGE: u8 = 0x55;

/// RFC 5508 sections 4.1 and 4.2.1: one error of each kind, each about a mapping of its own.
pub(super) fn errors(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let mut seen = Vec::new();
    for craft in Craft::ALL {
        session.about(evidence_for(craft));
        seen.extend(error(session, craft)?);
    }
    observations.crafted_errors = Some(seen);
    Ok(())
}

fn evidence_for(craft: Craft) -> &'static [&'static str] {
    match craft {
        Craft::Checksum => &["icmp-error-bad-checksum"],
        Craft::QuotedHeader => &["icmp-error-bad-quote"],
        Craft::QuotedTransport => &["icmp-error-quote-unchecked"],
        Craft::QuotedOptions => &["icmp-error-quote-options"],
        Craft::Short => &["icmp-error-short-quote"],
        Craft::Unmapped => &["icmp-error-unmapped"],
    }
}

/// Opens a mapping and sends the error about its datagram; `None` if it could not be opened.
fn error(session: &mut Session<'_>, craft: Craft) -> io::Result<Option<CraftedError>> {
    let inside = session.fresh_inside();
    let port = session.fresh_port();
    let far = session.outside(0, port);
    let out = session.outbound(Protocol::Udp, inside, far)?;
    let (Some(mapped), Some(arrival)) = (out.from(), &out.arrived) else { return Ok(None) };
    let about = match craft {
        Craft::Unmapped => Packet::udp(session.unopened(mapped), far, &session.data()),
        _ => arrival.packet.clone(),
    };
    let Some(packet) = crafted(session, craft, &about) else { return Ok(None) };
    let trip = session.send(Side::Outside, &packet, &|a| a.side == Side::Inside && quoted(a).is_some())?;
    // The NAT may have ended the mapping for an error that was lost behind it, and drop the next one for that.
    let is_told = trip.arrived.is_some()
        || session.attempts() == 1
        || session.answer(Protocol::Udp, (inside, far), mapped)?.to() == Some(inside);
    let found = trip.arrived.as_ref().and_then(quoted).and_then(|quote| endpoints(&quote));
    Ok(Some(CraftedError {
        craft,
        arrived: trip.arrived.is_some(),
        inner: found == Some((inside, far)),
        sound: trip.arrived.as_ref().is_some_and(|arrival| arrival.packet.icmp_message().is_some()),
        answered: trip.others.iter().any(|other| answers(other, far)),
        sure: trip.is_sure() && is_told,
    }))
}

/// The error of the destination of that packet, in the version of the outside: IPv4.
fn crafted(session: &Session<'_>, craft: Craft, about: &Packet) -> Option<Packet> {
    let about = match session.nat64() {
        Some(prefix) => nat64::real(prefix, about)?,
        None => about.clone(),
    };
    let Header { source: mapped, destination: far, .. } = about.header;
    let quote = quote(craft, &about);
    let message = Icmp::Unreachable { code: Codes::of(far).port, quote: &quote };
    let mut packet = Packet::icmp(far, mapped, &message);
    if craft == Craft::Checksum {
        packet.payload[2] ^= DAMAGE;
    }
    Some(packet)
}

/// The bytes that the error quotes.
fn quote(craft: Craft, about: &Packet) -> Vec<u8> {
    let mut bytes = about.bytes();
    match craft {
        Craft::Checksum | Craft::Unmapped => {}
        Craft::QuotedHeader => bytes[10] ^= DAMAGE,
        // The checksum of UDP is behind ports and length.
        Craft::QuotedTransport => bytes[Ipv4::LENGTH + 6] ^= DAMAGE,
        Craft::QuotedOptions => bytes = with_options(&bytes),
        Craft::Short => bytes.truncate(Ipv4::LENGTH + SHORT),
    }
    bytes
}

/// A packet of IPv4 with options that mean nothing.
fn with_options(packet: &[u8]) -> Vec<u8> {
    let (header, payload) = packet.split_at(Ipv4::LENGTH);
    let mut bytes = [header, &OPTIONS, payload].concat();
    let length = Ipv4::LENGTH + OPTIONS.len();
    // Version 4, and the header's length in units of four bytes.
    bytes[0] = 4 << 4 | (length / 4) as u8;
    let total = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    bytes[2..4].copy_from_slice(&total.to_be_bytes());
    bytes[10..12].fill(0);
    let checksum = Sum::new().bytes(&bytes[..length]).checksum();
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

/// The packet that an error quotes, whatever the error's own checksum: the NAT may have left it as it was.
fn quoted(arrival: &Arrival) -> Option<Packet> {
    let message = arrival.packet.quoted_icmp()?;
    Packet::read_quoted(message.quote()?)
}

/// A packet that came back to the sender of the error.
fn answers(arrival: &Arrival, far: SocketAddr) -> bool {
    arrival.side == Side::Outside && arrival.packet.is_icmp() && arrival.packet.header.destination == far.ip()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram() -> Packet {
        let at = |text: &str| text.parse().unwrap();
        Packet::udp(at("198.19.1.1:20000"), at("198.19.0.10:53"), b"twelve bytes")
    }

    #[test]
    fn each_quote_is_odd_in_one_thing_only() {
        let about = datagram();
        let is_sound = |quote: &[u8]| {
            let inner = Packet::read_quoted(quote).unwrap();
            assert_eq!((inner.from(), inner.to()), (about.from(), about.to()));
            (Packet::header_is_sound(quote), inner.udp_data().is_some())
        };
        for (craft, sound) in [
            (Craft::Checksum, (true, true)),
            (Craft::QuotedHeader, (false, true)),
            (Craft::QuotedTransport, (true, false)),
            (Craft::QuotedOptions, (true, true)),
            // The data are not there to be checked.
            (Craft::Short, (true, false)),
        ] {
            assert_eq!(is_sound(&quote(craft, &about)), sound, "{craft:?}");
        }
        assert_eq!(quote(Craft::QuotedOptions, &about).len(), about.bytes().len() + 4);
        assert_eq!(quote(Craft::Short, &about).len(), 28);
    }
}
