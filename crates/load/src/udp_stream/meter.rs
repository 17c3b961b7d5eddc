//! The counters of a receiver.
//!
//! Rates are counted by time of arrival. Loss is counted by number: of the datagrams from the first expected one when the
//! window began up to the last one seen when it ended, those that came, then or in the drain after it, are not lost.
//! So neither what is under way at the window's edges nor a late arrival looks like loss.

use weir_stats::Histogram;

use super::datagram::{Header, TIME_SHIFT, header_time};
use super::sequence::{Arrival, Sequence};
use crate::observer::Flow;
use crate::window::{Phase, StepCounts, Window};

/// Counts of one flow.
#[derive(Debug)]
pub(super) struct Meter {
    sequence: Sequence,
    /// Greatest drop count seen so far (SO_RXQ_OVFL).
    dropped: u32,
    /// (next number, drop count) when the window began and when it ended.
    from: Option<(u64, u32)>,
    to: Option<(u64, u32)>,
    counts: Counts,
    delay: Delay,
    phase: Phase,
    /// Different datagrams that came so far, and those of them that were late, whatever the phase.
    came: u64,
    late: u64,
}

/// The result.
#[derive(Debug, Clone)]
pub(super) struct Counts {
    /// Numbers in the window's range: what was sent, as far as the receiver can know.
    pub sent: u64,
    /// Different ones of them that came.
    pub received: u64,
    /// Received datagrams that came after one with a greater number.
    pub reordered: u64,
    /// Further copies.
    pub duplicated: u64,
    /// Dropped by this socket's full buffer within the range.
    pub receiver_drops: u64,
    /// A number beyond the range came, so that its end is known and not just the last survivor.
    pub end_seen: bool,
    /// Different datagrams that arrived within the window, per step.
    pub datagrams: StepCounts,
    /// Their payload, per step.
    pub bytes: StepCounts,
    /// RFC 3550 jitter at the end of the window, ns.
    pub jitter_ns: f64,
    /// Delay above the least one so far, ns (RFC 5481's PDV with a running minimum).
    pub pdv: Histogram,
}

/// Estimators of delay variation.
#[derive(Debug, Default)]
struct Delay {
    last: Option<u32>,
    least: Option<u32>,
    jitter: f64,
}

impl Delay {
    /// Take a transit time (arrival - sending, with an unknown constant, modulo 2^32). Returns the excess over the least.
    fn take(&mut self, transit: u32) -> u64 {
        let ns = |difference: u32| f64::from(difference.cast_signed()) * f64::from(1u32 << TIME_SHIFT);
        if let Some(last) = self.last {
            // RFC 3550 section 6.4.1: J += (|D| - J) / 16.
            self.jitter += (ns(transit.wrapping_sub(last)).abs() - self.jitter) / 16.0;
        }
        self.last = Some(transit);
        let above = transit.wrapping_sub(self.least.unwrap_or(transit)).cast_signed();
        if self.least.is_none() || above < 0 {
            self.least = Some(transit);
        }
        u64::from(above.max(0).unsigned_abs()) << TIME_SHIFT
    }
}

impl Meter {
    pub(super) fn new(window: &Window) -> Self {
        let counts = Counts {
            sent: 0,
            received: 0,
            reordered: 0,
            duplicated: 0,
            receiver_drops: 0,
            end_seen: false,
            datagrams: StepCounts::new(window),
            bytes: StepCounts::new(window),
            jitter_ns: 0.0,
            pdv: Histogram::new(),
        };
        Meter {
            sequence: Sequence::new(),
            dropped: 0,
            from: None,
            to: None,
            counts,
            delay: Delay::default(),
            phase: Phase::Before,
            came: 0,
            late: 0,
        }
    }

    /// Sets the phase of the datagrams that arrive from now on. To be called before each datagram, and when none comes.
    #[inline]
    pub(super) fn enter(&mut self, phase: Phase) {
        if phase != self.phase {
            self.change(phase);
        }
    }

    fn change(&mut self, phase: Phase) {
        self.phase = phase;
        if phase != Phase::Before && self.from.is_none() {
            self.from = Some((self.sequence.next(), self.dropped));
        }
        if phase == Phase::After && self.to.is_none() {
            self.to = Some((self.sequence.next(), self.dropped));
            self.counts.jitter_ns = self.delay.jitter;
        }
    }

    /// A datagram of the flow. `arrived_ns` is by any clock that does not jump.
    #[inline]
    pub(super) fn arrive(&mut self, header: Header, length: usize, arrived_ns: u64, dropped: u32) {
        // The count is attached only once it is above zero; a reordered datagram carries a later count.
        if dropped.wrapping_sub(self.dropped).cast_signed() > 0 {
            self.dropped = dropped;
        }
        let arrival = self.sequence.arrive(header.number);
        if arrival == Arrival::Forgotten {
            return;
        }
        let above_least = self.delay.take(header_time(arrived_ns).wrapping_sub(header.time));
        let new = arrival != Arrival::Duplicate;
        self.came += u64::from(new);
        self.late += u64::from(arrival == Arrival::Reordered);
        if matches!(self.phase, Phase::Within(_)) {
            self.counts.pdv.record(above_least);
            if new {
                self.counts.datagrams.add(self.phase, 1);
                self.counts.bytes.add(self.phase, length as u64);
            }
        }
        let beyond = self.to.is_some_and(|(end, _)| header.number >= end);
        self.counts.end_seen |= beyond;
        if beyond || self.from.is_none_or(|(start, _)| header.number < start) {
            return;
        }
        self.counts.received += u64::from(new);
        self.counts.reordered += u64::from(arrival == Arrival::Reordered);
        self.counts.duplicated += u64::from(!new);
    }

    /// Tell what came so far, whatever the phase.
    pub(super) fn tell(&self, flow: &Flow) {
        flow.packets.set(self.came);
        flow.lost.set(self.sequence.next().saturating_sub(self.came));
        flow.reordered.set(self.late);
        flow.jitter_ns.set(self.delay.jitter as u64);
    }

    /// The counts. A window that was cut short ends with the last datagram.
    pub(super) fn finish(mut self) -> Counts {
        let now = (self.sequence.next(), self.dropped);
        let (start, dropped_before) = self.from.unwrap_or(now);
        let (end, dropped_after) = self.to.unwrap_or(now);
        self.counts.sent = end - start;
        self.counts.receiver_drops = u64::from(dropped_after.wrapping_sub(dropped_before));
        if self.to.is_none() {
            self.counts.jitter_ns = self.delay.jitter;
        }
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrialSettings;
    use std::time::Duration;

    fn window() -> Window {
        Window::new(&TrialSettings::new(Duration::from_millis(100), Duration::from_millis(200), 1))
    }

    fn header(number: u64) -> Header {
        Header { mark: 0, time: 0, number }
    }

    #[test]
    fn loss_is_counted_by_number_within_the_window() {
        let mut m = Meter::new(&window());
        let mut feed = |phase, numbers: &[u64]| {
            m.enter(phase);
            for &n in numbers {
                m.arrive(header(n), 100, 0, 0);
            }
        };
        // 3 is lost before the window; 12 and 17 in it; 14 comes twice; 16 after 18; 9 was sent before the window.
        feed(Phase::Before, &[0, 1, 2, 4, 5, 6, 7, 8, 10]);
        feed(Phase::Within(0), &[11, 13, 14, 14, 9]);
        feed(Phase::Within(1), &[15, 18, 16, 20]);
        // 19 is only late; 22 is beyond.
        feed(Phase::After, &[21, 19, 22, 24]);
        let c = m.finish();
        assert_eq!((c.sent, c.received), (10, 8));
        assert_eq!((c.reordered, c.duplicated), (2, 1));
        assert!(c.end_seen);
        // By time: 11 13 14 9 15 18 16 20.
        assert_eq!(c.datagrams.steps, [4, 4]);
        assert_eq!(c.bytes.total(), 800);
    }

    #[test]
    fn drops_of_the_own_buffer_are_those_between_the_window_s_edges() {
        let mut m = Meter::new(&window());
        m.enter(Phase::Before);
        m.arrive(header(0), 1, 0, 0);
        m.arrive(header(5), 1, 0, 4);
        m.enter(Phase::Within(0));
        m.arrive(header(6), 1, 0, 4);
        m.arrive(header(10), 1, 0, 7);
        m.enter(Phase::After);
        m.arrive(header(20), 1, 0, 16);
        let c = m.finish();
        assert_eq!((c.sent, c.received, c.receiver_drops), (5, 2, 3));
    }

    /// A hop that copies or reorders delivers no more than one that does not.
    #[test]
    fn copies_and_a_changed_order_deliver_nothing_more() {
        let delivered = |numbers: &[u64]| {
            let mut m = Meter::new(&window());
            m.enter(Phase::Within(0));
            numbers.iter().for_each(|n| m.arrive(header(*n), 100, 0, 0));
            m.enter(Phase::After);
            let c = m.finish();
            (c.sent, c.received, c.datagrams.total(), c.bytes.total())
        };
        let plain = delivered(&[0, 1, 2, 3, 4]);
        assert_eq!(plain, (5, 5, 5, 500));
        assert_eq!(delivered(&[0, 1, 1, 2, 3, 3, 3, 4, 0]), plain);
        assert_eq!(delivered(&[4, 2, 3, 1, 0]), plain);
        // A copy does not stand in for one that is lost.
        assert_eq!(delivered(&[0, 1, 1, 3, 4]), (5, 4, 4, 400));
    }

    #[test]
    fn an_end_that_nobody_saw_is_said() {
        let mut m = Meter::new(&window());
        m.enter(Phase::Within(0));
        m.arrive(header(0), 1, 0, 0);
        m.enter(Phase::After);
        assert!(!m.finish().end_seen);
    }

    #[test]
    fn jitter_is_rfc_3550_s() {
        let mut m = Meter::new(&window());
        m.enter(Phase::Within(0));
        // Transit 1000, 1160, 1000 units of 16 ns, with the counters wrapping at 2^32.
        let base = u64::from(u32::MAX - 500);
        let mut expected = 0.0f64;
        for (i, transit) in [1000u64, 1160, 1000].into_iter().enumerate() {
            let time = (base + i as u64 * 10_000) as u32;
            let arrived = (base + i as u64 * 10_000 + transit) << TIME_SHIFT;
            m.arrive(Header { mark: 0, time, number: i as u64 }, 1, arrived, 0);
            if i > 0 {
                expected += (160.0 * 16.0 - expected) / 16.0;
            }
        }
        let c = m.finish();
        assert!((c.jitter_ns - expected).abs() < 1e-9, "{} {expected}", c.jitter_ns);
        // 160 units of 16 ns are 2560 ns; the histogram is exact to 0.1 %.
        assert!((2558..=2562).contains(&c.pdv.max()) && c.pdv.min() == 1, "{:?}", c.pdv);
    }
}
