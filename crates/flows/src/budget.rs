//! How large a sample the programs may follow, by the time that they take.

use std::time::Duration;

use weir_bpf::{ProgramFd, RunStatistics, count_run_time};

/// How long the kernel takes the time of runs, which slows each of them down a little.
const TIMED: Duration = Duration::from_millis(20);
/// Time between two such looks, ns.
const EVERY_NS: u64 = 5_000_000_000;
/// Runs that a look must have to say anything.
const LEAST_RUNS: u64 = 20;
/// The sample aims below the budget, so that it does not change with every look.
const AIM: f64 = 0.85;
/// It grows only where the load is below this share of the budget, and at most so much at a time.
const IDLE: f64 = 0.6;
const GROWTH: f64 = 2.0;
/// The smallest sample: looking at packets has a cost that no sample lowers.
const SMALLEST: f64 = 1.0 / 1024.0;

/// The time that the programs took, at the last look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cost {
    /// Time for one packet, ns.
    pub(crate) packet_ns: f64,
    /// Share of one core since the look before.
    pub(crate) core: f64,
}

/// The sample, and what it costs.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Share of one core that the programs may take; `None`: any.
    most: Option<f64>,
    /// Largest sample.
    ceiling: f64,
    share: f64,
    last: Option<Cost>,
    /// Time, ns, and packets of the last look.
    looked: (u64, u64),
}

impl Budget {
    pub(crate) fn new(most: Option<f64>, ceiling: f64, now: u64) -> Self {
        Budget { most, ceiling, share: ceiling, last: None, looked: (now, 0) }
    }

    pub(crate) fn most(&self) -> Option<f64> {
        self.most
    }

    /// Share of all flows.
    pub(crate) fn share(&self) -> f64 {
        self.share
    }

    pub(crate) fn last(&self) -> Option<Cost> {
        self.last
    }

    /// Looks again, if it is time: `packets` have come since the beginning. True if the sample changed.
    pub(crate) fn look(&mut self, program: &ProgramFd, now: u64, packets: u64) -> bool {
        let (then, before) = self.looked;
        // The first look is after the first second, with all flows.
        let due = if self.last.is_none() { EVERY_NS / 10 } else { EVERY_NS };
        if self.most.is_none() || now.saturating_sub(then) < due {
            return false;
        }
        self.looked = (now, packets);
        // Without the statistics (Linux 5.8) nothing is known, and the reading says so.
        let Some(packet_ns) = time_runs(program) else { return false };
        let rate = packets.saturating_sub(before) as f64 / (now.saturating_sub(then) as f64 / 1e9);
        self.adapt(Cost { packet_ns, core: packet_ns * rate / 1e9 })
    }

    fn adapt(&mut self, cost: Cost) -> bool {
        self.last = Some(cost);
        let Some(most) = self.most else { return false };
        let wanted = if cost.core > most {
            self.share * AIM * most / cost.core
        } else if cost.core < IDLE * most {
            self.share * (AIM * most / cost.core.max(f64::MIN_POSITIVE)).min(GROWTH)
        } else {
            self.share
        };
        let before = self.share;
        self.share = wanted.max(SMALLEST).min(self.ceiling);
        self.share != before
    }
}

/// Time for one run, ns; `None` if too few came, or this kernel does not tell.
fn time_runs(program: &ProgramFd) -> Option<f64> {
    let counting = count_run_time().ok()?;
    let before = program.statistics().ok()?;
    std::thread::sleep(TIMED);
    let after = program.statistics().ok()?;
    drop(counting);
    per_run(before, after)
}

fn per_run(before: RunStatistics, after: RunStatistics) -> Option<f64> {
    let runs = after.runs.saturating_sub(before.runs);
    (runs >= LEAST_RUNS).then(|| after.time_ns.saturating_sub(before.time_ns) as f64 / runs as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gateway of so many packets per second, whose programs take a time that the sample lowers, and one that it does not.
    fn settled(rate: f64, fixed_ns: f64, tracked_ns: f64, ceiling: f64) -> (f64, Cost) {
        let mut budget = Budget::new(Some(0.02), ceiling, 0);
        for _ in 0..40 {
            let packet_ns = fixed_ns + budget.share() * tracked_ns;
            budget.adapt(Cost { packet_ns, core: packet_ns * rate / 1e9 });
        }
        (budget.share(), budget.last().unwrap())
    }

    #[test]
    fn a_quiet_gateway_is_followed_as_a_whole() {
        assert_eq!(settled(10_000.0, 40.0, 200.0, 1.0).0, 1.0);
        assert_eq!(settled(10_000.0, 40.0, 200.0, 0.25).0, 0.25);
        // Nothing comes: no time is taken.
        assert_eq!(settled(0.0, 40.0, 200.0, 1.0).0, 1.0);
    }

    #[test]
    fn a_busy_gateway_takes_no_more_than_the_budget() {
        let (share, cost) = settled(300_000.0, 30.0, 250.0, 1.0);
        assert!(cost.core <= 0.02 && cost.core > 0.02 * IDLE, "{cost:?}");
        // (0.85 * 0.02 / 300 kpps - 30 ns) / 250 ns.
        assert!((0.03..0.16).contains(&share), "{share}");
    }

    #[test]
    fn what_no_sample_lowers_leaves_the_smallest_sample() {
        let (share, cost) = settled(1e6, 30.0, 250.0, 1.0);
        assert_eq!(share, SMALLEST);
        assert!(cost.core > 0.02);
    }

    #[test]
    fn a_sample_grows_again_after_a_burst() {
        let mut budget = Budget::new(Some(0.02), 1.0, 0);
        assert!(budget.adapt(Cost { packet_ns: 200.0, core: 0.2 }));
        assert!((budget.share() - 0.085).abs() < 1e-9);
        assert!(budget.adapt(Cost { packet_ns: 200.0, core: 0.001 }));
        assert!((budget.share() - 0.17).abs() < 1e-9);
        // Between the two bounds it stays.
        assert!(!budget.adapt(Cost { packet_ns: 200.0, core: 0.015 }));
    }

    #[test]
    fn too_few_runs_say_nothing() {
        let at = |runs, time_ns| RunStatistics { time_ns, runs, missed: 0 };
        assert_eq!(per_run(at(5, 500), at(10, 2_000)), None);
        assert_eq!(per_run(at(0, 0), at(40, 4_000)), Some(100.0));
    }
}
