//! Holds what really flows against what a client was given: what it asks for is checked before, and what comes is its doing.

use std::time::Instant;

use weir_load::{Direction, FlowFigures};

/// How far above its rate a client may stay, in whole: clocks differ, and so do the moments at which two ends count.
const SLACK: f64 = 1.1;

/// Largest burst, in seconds of its rate: a path may release this much after a stall.
const BURST_S: f64 = 2.0;

/// Further writes of each stream that a burst may hold: at low rates a single write is many seconds' worth.
const AHEAD: f64 = 2.0;

/// A bucket for each direction, which runs empty at the rate.
#[derive(Debug)]
pub(super) struct RateWatch {
    most_bps: Option<f64>,
    most_bits: f64,
    paced: bool,
    since: Instant,
    before: [u64; 2],
    level_bits: [f64; 2],
}

/// The rate that was exceeded, bits per second, and the one that was given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TooFast {
    pub(super) bps: f64,
    pub(super) most_bps: f64,
}

impl RateWatch {
    /// `writes_bytes` is the total of one write by each stream of a direction. Without a rate, nothing is watched. If the kernel
    /// paces this end's sending, that traffic is not watched: its socket accepts more bytes than have left.
    pub(super) fn new(most_bps: Option<f64>, writes_bytes: f64, paced: bool, since: Instant) -> Self {
        let most_bits = most_bps.unwrap_or(0.0) * BURST_S + AHEAD * writes_bytes * 8.0;
        RateWatch { most_bps, most_bits, paced, since, before: [0; 2], level_bits: [0.0; 2] }
    }

    /// Checks the rate, given the flows' totals from the beginning until now.
    ///
    /// # Errors
    /// It was too fast.
    pub(super) fn check(&mut self, flows: &[FlowFigures], now: Instant) -> Result<(), TooFast> {
        let Some(most_bps) = self.most_bps else { return Ok(()) };
        let watched = |f: &&FlowFigures| !(f.sends && self.paced);
        let sum = |way| flows.iter().filter(watched).filter(|f| f.way == way).map(|f| f.bytes).sum::<u64>();
        let bytes = [sum(Direction::Egress), sum(Direction::Ingress)];
        let seconds = now.saturating_duration_since(self.since).as_secs_f64();
        for ((now, before), level) in bytes.iter().zip(self.before).zip(&mut self.level_bits) {
            let bits = now.saturating_sub(before) as f64 * 8.0;
            *level = (*level + bits - most_bps * SLACK * seconds).max(0.0);
            if *level > self.most_bits {
                return Err(TooFast { bps: bits / seconds.max(f64::MIN_POSITIVE), most_bps });
            }
        }
        (self.since, self.before) = (now, bytes);
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::time::Duration;

    /// A stream that this end receives.
    pub(in crate::server) fn flow(way: Direction, bytes: u64) -> FlowFigures {
        let (number, sends) = (0, false);
        let (packets, lost, reordered, jitter_ns, retransmits, rtt_ns, cwnd, ok, failed) = Default::default();
        FlowFigures {
            way,
            number,
            sends,
            bytes,
            packets,
            lost,
            reordered,
            jitter_ns,
            retransmits,
            rtt_ns,
            cwnd,
            ok,
            failed,
        }
    }

    /// Whether bits that come second by second are let pass.
    fn passes(most_bps: Option<f64>, writes_bytes: f64, way: Direction, bits: &[u64]) -> bool {
        let begun = Instant::now();
        let mut watch = RateWatch::new(most_bps, writes_bytes, false, begun);
        let mut sum = 0;
        (1..).zip(bits).all(|(second, bits)| {
            sum += bits / 8;
            watch.check(&[flow(way, sum)], begun + Duration::from_secs(second)).is_ok()
        })
    }

    #[test]
    fn a_client_keeps_to_its_rate_in_each_direction() {
        for way in [Direction::Egress, Direction::Ingress] {
            assert!(passes(Some(1e6), 0.0, way, &[1_100_000; 100]));
            // A tenth of a second's worth too much each second fills two seconds in twenty.
            assert!(passes(Some(1e6), 0.0, way, &[1_200_000; 19]));
            assert!(!passes(Some(1e6), 0.0, way, &[1_200_000; 22]));
            assert!(!passes(Some(1e6), 0.0, way, &[4_000_000]));
            assert!(passes(None, 0.0, way, &[u64::MAX / 4]));
        }
    }

    #[test]
    fn what_a_path_held_back_may_come_and_what_was_not_used_may_not_be_saved() {
        assert!(passes(Some(1e6), 0.0, Direction::Egress, &[1_000_000, 0, 0, 3_000_000, 1_000_000]));
        assert!(!passes(Some(1e6), 0.0, Direction::Egress, &[0, 0, 0, 0, 0, 0, 0, 0, 3_200_000]));
    }

    #[test]
    fn what_is_paced_is_counted_where_it_is_received() {
        let begun = Instant::now();
        for (paced, sends, too_fast) in [(true, true, false), (true, false, true), (false, true, true)] {
            let mut watch = RateWatch::new(Some(1e6), 0.0, paced, begun);
            let flow = FlowFigures { sends, ..flow(Direction::Egress, 1_000_000) };
            assert_eq!(watch.check(&[flow], begun + Duration::from_secs(1)).is_err(), too_fast);
        }
    }

    #[test]
    fn writes_that_are_larger_than_a_second_s_worth_pass() {
        // Two writes of 128 KiB are 2.1 Mbit, at 10 kbit/s.
        let bits = 2 * 131_072 * 8;
        assert!(passes(Some(1e4), 131_072.0, Direction::Egress, &[bits, 0, 0]));
        assert!(!passes(Some(1e4), 65_536.0, Direction::Egress, &[bits]));
    }
}
