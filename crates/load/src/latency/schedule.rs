//! When an open-loop sender means to send, and whether it kept to that.

use weir_record::{Fault, FaultCode};
use weir_stats::{Delays, Histogram};

use super::Span;

/// The intended times of one sender: one operation in every interval of `1/rate`, at a random point within it.
///
/// Evenly spaced probes run in step with whatever else is periodic on the path (timer ticks, interrupt moderation) and
/// then see one phase of it only (RFC 2330 section 11.1). One per interval at a random point breaks the step and still
/// offers the exact rate and count.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    begin_ns: u64,
    interval_ns: f64,
    count: u64,
    seed: u64,
}

impl Schedule {
    /// The `nth` of `of` senders that share `rate_per_second`, over the whole span.
    pub(crate) fn new(span: &Span, rate_per_second: f64, nth: u64, of: u64, cookie: u64) -> Self {
        let interval_ns = 1e9 / rate_per_second * of as f64;
        let length_ns = (span.end_ns - span.begin_ns) as f64;
        // The small allowance keeps 0.3 s x 10 / s = 3.0000..4 from becoming four.
        let count = (length_ns / interval_ns - 1e-6).ceil().max(0.0) as u64;
        Schedule {
            begin_ns: span.begin_ns,
            interval_ns,
            count,
            seed: cookie ^ nth.wrapping_mul(0xA076_1D64_78BD_642F),
        }
    }

    /// Operations in all.
    pub(crate) fn len(&self) -> u64 {
        self.count
    }

    /// When the `k`th one (from 0) is meant to start, ns. Never decreases with `k`.
    pub(crate) fn intended_ns(&self, k: u64) -> u64 {
        self.begin_ns + ((k as f64 + unit_interval(self.seed.wrapping_add(k))) * self.interval_ns) as u64
    }
}

/// A number in [0, 1) out of a counter: the mixing function of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), which
/// passes BigCrush over consecutive inputs of its golden-ratio sequence.
fn unit_interval(counter: u64) -> f64 {
    let mut z = counter.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)) as f64 / 2f64.powi(64) * (1.0 - f64::EPSILON)
}

/// How late a sleep ends on this machine right now. A sleep is set to end earlier by that much, and the rest is spent spinning.
/// Otherwise a latency timed from the intended send would hold the tester's own wake-up in every sample.
#[derive(Debug)]
pub(crate) struct WakeMargin {
    ns: f64,
}

impl WakeMargin {
    /// Least and greatest margin, ns. The upper bound keeps a disturbed machine from burning its time in spins:
    /// at 1,000 operations a second it is 5 % of a core.
    const RANGE_NS: (f64, f64) = (5_000.0, 50_000.0);

    pub(crate) fn new() -> Self {
        WakeMargin { ns: 20_000.0 }
    }

    pub(crate) fn ns(&self) -> u64 {
        self.ns as u64
    }

    /// A sleep ended that much after the time it was meant to end. Rises fast and falls slowly, so it settles near the
    /// upper end of what wake-ups take.
    pub(crate) fn learn(&mut self, late_ns: u64) {
        let off = late_ns as f64 - self.ns;
        self.ns += if off > 0.0 { off / 8.0 } else { off / 64.0 };
        self.ns = self.ns.clamp(Self::RANGE_NS.0, Self::RANGE_NS.1);
    }
}

/// Lateness below this is not told from the cost of a system call or a short interrupt, ns.
const MEDIAN_FLOOR_NS: u64 = 50_000;
/// The same for the tail, where a single preemption shows, ns.
const TAIL_FLOOR_NS: u64 = 200_000;
/// Operations that may remain unsent at the end of the trial, as a share.
const UNSENT_RATIO: f64 = 0.01;

/// How well one open-loop sender kept its schedule in the measuring window.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Actual minus intended start of what was sent, ns.
    pub(crate) lateness: Histogram,
    /// Operations meant to start in the window.
    pub(crate) scheduled: u64,
    /// Those never started.
    pub(crate) unsent: u64,
}

impl Kept {
    pub(crate) fn merge(&mut self, other: &Kept) {
        self.lateness.merge(&other.lateness);
        self.scheduled += other.scheduled;
        self.unsent += other.unsent;
    }

    /// Faults of the schedule, given the latency (from the intended start) that it led to.
    ///
    /// The latency contains the lateness, so a late sender shows as a slow path. The trial is void if that decides its
    /// result: if more than 1 % was never sent, or if the median lateness makes up more than half of the median latency
    /// (and is more than 50 us). A busy machine wakes a sender late now and then: that is in the tail only, and is noted
    /// if the tail of the latency is mostly the sender's, but does not void the trial, since the same disturbance hits every
    /// variant and the median stands.
    pub(crate) fn faults(&self, latency: &Delays) -> Vec<Fault> {
        let mut faults = Vec::new();
        let unsent = self.unsent as f64 / self.scheduled.max(1) as f64;
        if unsent > UNSENT_RATIO {
            let detail = format!(
                "{} of {} scheduled operations were not started in time; lower the rate",
                self.unsent, self.scheduled
            );
            faults.push(Fault::void(FaultCode::LateSends, "initiator", detail));
        }
        let dominated = |q: f64, floor: u64| {
            let late = self.lateness.quantile(q).unwrap_or(0);
            // For failed operations the latency is infinite, and no lateness is more than half of that.
            let took = latency.quantile(q).map_or(0, |took| took.value as u64);
            (late > floor.max(took / 2)).then(|| {
                format!(
                    "p{} of the sender's own lateness is {:.0} us, of a latency of {:.0} us",
                    q * 100.0,
                    late as f64 / 1e3,
                    took as f64 / 1e3
                )
            })
        };
        if let Some(detail) = dominated(0.5, MEDIAN_FLOOR_NS) {
            faults.push(Fault::void(FaultCode::LateSends, "initiator", detail));
        } else if let Some(detail) = dominated(0.99, TAIL_FLOOR_NS) {
            faults.push(Fault::noted(FaultCode::LateSends, "initiator", detail));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Span = Span { begin_ns: 1_000, window_ns: 1_000, end_ns: 2_000_001_000 };

    #[test]
    fn one_operation_in_every_interval() {
        let schedule = Schedule::new(&SPAN, 1000.0, 0, 1, 7);
        assert_eq!(schedule.len(), 2000);
        let mut phases = [0u32; 4];
        for k in 0..schedule.len() {
            let offset = schedule.intended_ns(k) - 1_000;
            assert_eq!(offset / 1_000_000, k, "{k}");
            phases[(offset % 1_000_000 / 250_000) as usize] += 1;
        }
        // Uniform over the interval: 500 in each quarter, sd = sqrt(2000 x 1/4 x 3/4) = 19.4; five of them allowed.
        assert!(phases.iter().all(|&n| n.abs_diff(500) < 97), "{phases:?}");
    }

    #[test]
    fn senders_share_the_rate_and_differ() {
        let a = Schedule::new(&SPAN, 30.0, 0, 3, 7);
        let b = Schedule::new(&SPAN, 30.0, 1, 3, 7);
        assert_eq!((a.len(), b.len()), (20, 20));
        assert!((0..20).all(|k| a.intended_ns(k) != b.intended_ns(k)));
    }

    #[test]
    fn margin_settles_at_the_upper_end_and_stays_in_range() {
        let mut margin = WakeMargin::new();
        for i in 0..10_000 {
            margin.learn(if i % 10 == 0 { 30_000 } else { 8_000 });
        }
        assert!((8_000..30_000).contains(&margin.ns()), "{}", margin.ns());
        margin.learn(1_000_000_000);
        assert_eq!(margin.ns(), 50_000);
        (0..10_000).for_each(|_| margin.learn(0));
        assert_eq!(margin.ns(), 5_000);
    }

    fn kept(late_ns: &[(u64, u64)], unsent: u64) -> Kept {
        let mut lateness = Histogram::new();
        late_ns.iter().for_each(|&(ns, n)| lateness.record_n(ns, n));
        Kept { scheduled: lateness.len() + unsent, lateness, unsent }
    }

    fn latency(ns: u64) -> Delays {
        let mut h = Delays::new();
        h.record_n(ns, 1000);
        h
    }

    #[test]
    fn judges_by_what_decides_the_result() {
        let void = |k: Kept, l: u64| k.faults(&latency(l)).iter().map(|f| f.void).collect::<Vec<_>>();
        // Punctual.
        assert_eq!(void(kept(&[(1_000, 1000)], 0), 30_000), [false; 0]);
        // Late throughout, and most of the latency is that.
        assert_eq!(void(kept(&[(400_000, 1000)], 0), 500_000), [true]);
        // Late throughout, but the path takes far longer.
        assert_eq!(void(kept(&[(400_000, 1000)], 0), 50_000_000), [false; 0]);
        // A preempted sender: only the tail.
        assert_eq!(void(kept(&[(1_000, 950), (4_000_000, 50)], 0), 4_100_000), [false]);
        // 1 % unsent is allowed, more is not.
        assert_eq!(void(kept(&[(1_000, 990)], 10), 30_000), [false; 0]);
        assert_eq!(void(kept(&[(1_000, 989)], 11), 30_000), [true]);
    }
}
