//! Noticing that datagrams vanish for their length.
//!
//! If a stream's datagrams are longer than the packets that every path carries, a few controls of several lengths go before and
//! after them. Each control is one packet that must not be split. If no datagram of the stream arrives and some controls do, the
//! length is the cause, and the trial reports this instead of a rate of zero.

use std::collections::BTreeMap;
use std::io;
use std::net::UdpSocket;

use weir_mtu::fragments::pieces;
use weir_mtu::net::overhead;
use weir_record::{PathCause, PathFinding};
use weir_sys::dont_fragment::{self, Splitting};
use weir_text::order;
use weir_text::units::count;

use super::datagram::{Flow, GREETING_BYTES, control};
use crate::Part;

/// Lengths of IP packets that are tried in addition to the link's own MTU: the lengths that every host takes (RFC 791 section
/// 3.1), that every link of IPv6 carries, and that tunnels of all kinds carry.
pub(crate) const LENGTHS: [u32; 9] = [576, 1280, 1340, 1360, 1380, 1400, 1420, 1450, 1480];

/// Controls of each length at the beginning, and as many at the end.
const EACH: u32 = 3;

/// The controls that a stream's sender sent in addition to its data.
#[derive(Debug, Clone, Default)]
pub(super) struct Controls {
    /// Payload of the data, bytes.
    payload: u32,
    /// IP packets that each of its datagrams goes in.
    pieces: u32,
    /// Payload of the controls, ascending, and how many of each were sent.
    sent: BTreeMap<u32, u32>,
}

impl Controls {
    /// For datagrams of that payload over a connected socket. There are none where every path carries them.
    pub(super) fn new(socket: &UdpSocket, payload: usize, ipv6: bool) -> io::Result<Self> {
        let (payload, headers) = (payload as u32, overhead(ipv6));
        let mtu = dont_fragment::known_path_mtu(socket, ipv6)?;
        let lengths = LENGTHS.into_iter().chain([mtu]).filter(|l| *l <= mtu && *l < payload + headers);
        let mut sent = order::map(lengths.map(|l| (l.saturating_sub(headers), 0)));
        if !sent.is_empty() {
            sent.insert(GREETING_BYTES as u32, 0);
        }
        Ok(Controls { payload, pieces: pieces(payload, mtu, ipv6), sent })
    }

    /// Sends them, each length in turn.
    pub(super) fn send(&mut self, socket: &UdpSocket, flow: Flow, ipv6: bool) -> io::Result<()> {
        if self.sent.is_empty() {
            return Ok(());
        }
        dont_fragment::set(socket, ipv6, Splitting::Never)?;
        for _ in 0..EACH {
            for (length, sent) in &mut self.sent {
                let datagram = control(flow, *length as usize);
                // The first call reports an ICMP message about an earlier control, which is no reason not to send the next.
                *sent += u32::from(socket.send(&datagram).or_else(|_| socket.send(&datagram)).is_ok());
            }
        }
        dont_fragment::set(socket, ipv6, Splitting::Usual)
    }

    /// Into a part, for the direction `way`.
    pub(super) fn tell(&self, part: &mut Part, way: &str) {
        if self.sent.is_empty() {
            return;
        }
        part.set(&format!("{way}_payload_bytes"), self.payload.into());
        part.set(&format!("{way}_pieces"), self.pieces.into());
        for (length, sent) in &self.sent {
            add(part, &format!("{way}_control_sent_{length}"), *sent);
        }
    }
}

fn add(part: &mut Part, name: &str, more: u32) {
    let value = part.value(name) + f64::from(more);
    part.set(name, value);
}

/// Adds the controls that a receiver saw to a part.
pub(super) fn tell_received(came: &BTreeMap<u32, u32>, part: &mut Part, way: &str) {
    for (length, n) in came {
        add(part, &format!("{way}_control_came_{length}"), *n);
    }
}

/// Combines the parts into a finding about a direction in which none of `offered` datagrams arrived.
pub(super) fn finding(parts: &[Part], way: &str) -> Option<PathFinding> {
    let prefix = format!("{way}_control_sent_");
    let mut lengths: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for part in parts {
        for (name, value) in &part.values {
            if let Some(length) = name.strip_prefix(&prefix).and_then(|l| l.parse().ok()) {
                lengths.entry(length).or_default().0 += value;
            }
        }
    }
    for (length, (_, came)) in &mut lengths {
        *came = crate::part::sum(parts, &format!("{way}_control_came_{length}"));
    }
    let tell = |name: &str| parts.iter().find_map(|p| p.values.get(&format!("{way}_{name}"))).copied();
    let (payload, pieces) = (tell("payload_bytes")? as u32, tell("pieces")? as u32);
    // One that came by chance through loss is no proof; half of them are.
    let arrive = |(sent, came): &(f64, f64)| *sent > 0.0 && 2.0 * came >= *sent;
    let longest = lengths.iter().filter(|(_, n)| arrive(n)).map(|(l, _)| *l).next_back()?;
    let whole = lengths.keys().next_back().copied()?;
    let data = count(payload);
    let (cause, summary) = if pieces > 1 && longest == whole {
        let words = format!(
            "datagrams of {data} bytes are sent as {pieces} fragments; none arrived, while {}-byte ones do: something on the path \
             drops fragments; use -l {whole}",
            count(whole)
        );
        (PathCause::LargeDatagramsVanish, words)
    } else {
        let sent = if pieces > 1 { format!("as {pieces} fragments") } else { "whole".to_owned() };
        let words = format!(
            "datagrams of {data} bytes are sent {sent}; none arrived, while {}-byte ones do and those above do not: the path's MTU is \
             smaller than the link's, and no ICMP too-big says so; use -l {longest}",
            count(longest)
        );
        (PathCause::PathMtuBlackHole, words)
    };
    let came = |(l, (sent, came)): (&u32, &(f64, f64))| format!("{came} of {sent} of {} bytes", count(*l));
    let seen = lengths.iter().map(came).collect::<Vec<_>>().join(", ");
    let advice = vec![
        format!("controls that arrived {way}: {seen}"),
        "weir mtu TARGET finds the exact limit, and what becomes of single fragments".to_owned(),
    ];
    Some(PathFinding { cause, summary, advice })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(payload: f64, pieces: f64, came: &[(u32, f64)]) -> [Part; 2] {
        let (mut sender, mut receiver) = (Part::default(), Part::default());
        sender.set("egress_payload_bytes", payload);
        sender.set("egress_pieces", pieces);
        for (length, n) in came {
            sender.set(&format!("egress_control_sent_{length}"), 6.0);
            receiver.set(&format!("egress_control_came_{length}"), *n);
        }
        [sender, receiver]
    }

    #[test]
    fn fragments_that_vanish_are_told_as_such() {
        let found = finding(&parts(8192.0, 6.0, &[(24, 6.0), (1372, 6.0), (1472, 5.0)]), "egress").unwrap();
        assert_eq!(found.cause, PathCause::LargeDatagramsVanish);
        assert_eq!(
            found.summary,
            "datagrams of 8,192 bytes are sent as 6 fragments; none arrived, while 1,472-byte ones do: something on the path drops \
             fragments; use -l 1472"
        );
    }

    #[test]
    fn a_smaller_path_is_told_by_the_longest_that_arrives() {
        for (payload, pieces, whole) in [(8192.0, 6.0, 1472), (1472.0, 1.0, 1452)] {
            let parts = parts(payload, pieces, &[(24, 6.0), (1352, 6.0), (1372, 6.0), (whole, 0.0)]);
            let found = finding(&parts, "egress").unwrap();
            assert_eq!(found.cause, PathCause::PathMtuBlackHole);
            assert!(found.summary.ends_with("use -l 1372"), "{}", found.summary);
        }
    }

    #[test]
    fn where_nothing_arrives_it_is_not_the_length() {
        assert_eq!(finding(&parts(8192.0, 6.0, &[(24, 0.0), (1472, 0.0)]), "egress"), None);
        assert_eq!(finding(&parts(8192.0, 6.0, &[(24, 2.0), (1472, 1.0)]), "egress"), None);
        assert_eq!(finding(&[], "egress"), None);
    }
}
