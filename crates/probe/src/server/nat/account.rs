//! The mappings of one check, what each may be sent, and how fast.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::nat::{Account, Transport};

/// Mappings of one check: every port of one address.
pub(super) const MOST: usize = 65_536;
/// Memory that they take at most, bytes: the table at its largest, and the sockets' buffers.
pub(super) const MEMORY: u64 = 4 << 20;
/// Packets per second that a check may have sent, and how many at once.
const PER_SECOND: u32 = 2_000;
const BURST: u32 = 200;

/// Accounts by the address and port that packets came from.
#[derive(Debug, Default)]
pub(super) struct Mappings(HashMap<(Transport, SocketAddr), Account>);

impl Mappings {
    /// The account of the source of a packet with the check's number; `None` if it is one too many.
    pub(super) fn source(&mut self, transport: Transport, from: SocketAddr) -> Option<&mut Account> {
        if self.0.len() >= MOST && !self.0.contains_key(&(transport, from)) {
            return None;
        }
        Some(self.0.entry((transport, from)).or_insert_with(|| Account::of(from.ip())))
    }

    /// The account of a destination, if it opened a mapping.
    pub(super) fn destination(&mut self, transport: Transport, to: SocketAddr) -> Option<&mut Account> {
        self.0.get_mut(&(transport, to))
    }

    /// Bytes that came and that were sent, over all of them.
    pub(super) fn total(&self) -> (u64, u64) {
        self.0.values().fold((0, 0), |(r, s), account| (r + account.received(), s + account.sent()))
    }
}

/// Spreads packets over time.
#[derive(Debug)]
pub(super) struct Pace {
    /// When the last one was due.
    last: Instant,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Pace { last: now }
    }

    /// How long the next packet has to wait.
    pub(super) fn wait(&mut self, now: Instant) -> Duration {
        let apart = Duration::from_secs(1) / PER_SECOND;
        let earliest = now.checked_sub(apart * BURST).unwrap_or(now);
        self.last = self.last.max(earliest) + apart;
        self.last.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sources_are_destinations_and_there_is_an_end_of_them() {
        let mut mappings = Mappings::default();
        let at = |n: u32| SocketAddr::new(std::net::Ipv4Addr::from(0xc000_0200 + (n >> 16)).into(), n as u16);
        assert!(mappings.destination(Transport::Udp, at(1)).is_none());
        mappings.source(Transport::Udp, at(1)).unwrap().received_datagram(100);
        assert!(mappings.destination(Transport::Udp, at(1)).is_some());
        assert!(mappings.destination(Transport::Tcp, at(1)).is_none());
        for n in 0..MOST as u32 {
            assert!(mappings.source(Transport::Udp, at(n)).is_some());
        }
        assert!(mappings.source(Transport::Udp, at(MOST as u32)).is_none());
        assert!(mappings.source(Transport::Udp, at(1)).is_some());
        assert_eq!(mappings.total(), (128, 0));
    }

    #[test]
    fn a_burst_passes_and_then_two_thousand_a_second_do() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        let waits: Vec<Duration> = (0..2_200).map(|_| pace.wait(now)).collect();
        // It begins with what a pause has saved: nothing here.
        assert_eq!(waits[0], Duration::from_micros(500));
        assert_eq!(waits[1_999], Duration::from_secs(1));
        let later = now + Duration::from_secs(10);
        let waits: Vec<Duration> = (0..300).map(|_| pace.wait(later)).collect();
        assert_eq!((waits[199], waits[200]), (Duration::ZERO, Duration::from_micros(500)));
    }
}
