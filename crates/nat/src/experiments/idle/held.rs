//! Mappings that get one more packet before their idle time ends: whether that starts it anew (RFC 4787 section 4.3, RFC 5382
//! section 5, RFC 5508 section 4.3, RFC 7857 section 8).

use std::net::SocketAddr;
use std::time::Duration;

use weir_wire::{Icmp, Tcp};

use super::hold::{Hold, fits};
use super::known::Known;
use super::opened::{Mapped, Opened, question};
use super::{ASKED_AT, Purpose, REFRESH_RATIO, STEP, Wanted};
use crate::experiments::icmp::Codes;
use crate::session::{Segment, Session};
use crate::{Limits, Packet};

/// The last time, of the packet that asks, for which a run with these limits has still to wait.
pub(super) fn longest_left(limits: Limits, known: &Known) -> Duration {
    let last = |hold: Hold| times_left(hold, limits, known).into_iter().reduce(f64::max);
    let longest = Hold::ALL.into_iter().filter_map(last).fold(0.0, f64::max);
    Duration::from_secs_f64(longest * ASKED_AT).min(limits.idle.max(limits.connections))
}

/// Times of the packet that are still to be tried: any until it is known when such mappings end.
fn times_left(hold: Hold, limits: Limits, known: &Known) -> Vec<f64> {
    let limit = if hold.base() == Purpose::Established { limits.connections } else { limits.idle };
    let expiry = known.expiry(hold.base());
    let left = |at: &f64| {
        known.leaves_open(Purpose::Held(hold, *at), limit) && expiry.is_none_or(|expiry| fits(*at, expiry))
    };
    times(limit).into_iter().filter(left).collect()
}

/// Times of the packet.
fn times(limit: Duration) -> Vec<f64> {
    let mut at = limit.as_secs_f64() / ASKED_AT;
    let mut times = Vec::new();
    while at > STEP.as_secs_f64() {
        times.push(at);
        at /= REFRESH_RATIO;
    }
    times
}

/// The mappings of these packets, one for each time.
pub(super) fn wanted(session: &Session<'_>, known: &Known) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    for hold in Hold::ALL {
        // A published port never ends and needs no refresh; identifiers are not published.
        let published = session.conditions().published.is_some() && hold.base() != Purpose::Echo;
        let needs = Purpose::Held(hold, 0.0).needs_everything();
        if published || (needs && !session.carries_everything()) {
            continue;
        }
        let times = times_left(hold, session.conditions().limits, known);
        let until = |at: f64| Duration::from_secs_f64(at * ASKED_AT);
        wanted
            .extend(times.into_iter().map(|at| Wanted { purpose: Purpose::Held(hold, at), time: until(at) }));
    }
    wanted
}

/// The packet, for a mapping.
pub(super) fn packet(session: &mut Session<'_>, mapping: &Mapped, hold: Hold) -> Packet {
    let Mapped { inside, far, seen, .. } = *mapping;
    let bare =
        |from: SocketAddr, to: SocketAddr, segment: Segment| Packet::tcp(from, to, segment.header(), &[]);
    match (hold, mapping.opened) {
        (Hold::UdpError, _) => {
            let about = Packet::udp(far, inside, &session.data()).bytes();
            let message = Icmp::Unreachable { code: Codes::of(inside.ip()).port, quote: &about };
            Packet::icmp(inside.ip(), far.ip(), &message)
        }
        (Hold::QueryError, _) => {
            let data = session.data();
            let request = Icmp::Echo { reply: false, identifier: seen.port(), sequence: 1, data: &data };
            let about = Packet::icmp(seen.ip(), far.ip(), &request).bytes();
            let router = session.conditions().outside[1];
            Packet::icmp(router, seen.ip(), &Icmp::TimeExceeded { code: 0, quote: &about })
        }
        (Hold::TcpIn, Opened::Connection { sequence, acknowledgement }) => {
            bare(far, seen, Segment { sequence, acknowledgement, flags: Tcp::ACK })
        }
        (Hold::TcpOut | Hold::Reset, Opened::Connection { sequence: away, acknowledgement: near }) => {
            let flags = if hold == Hold::Reset { Tcp::RST | Tcp::ACK } else { Tcp::ACK };
            bare(inside, far, Segment { sequence: near, acknowledgement: away, flags })
        }
        _ => question(session, mapping, hold.side()).0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_time_fits_every_idle_time() {
        let limit = Duration::from_secs(60);
        for idle in (1..=53).map(f64::from) {
            assert!(times(limit).iter().any(|at| fits(*at, idle)), "{idle} s");
        }
    }
}
