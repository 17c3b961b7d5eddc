//! How large a sample the programs may follow, by the time that they and the reading of it take.

use std::time::Duration;

use weir_bpf::{ProgramFd, RunStatistics, count_run_time};

/// How long the kernel takes the time of runs, which slows each of them down a little.
const TIMED: Duration = Duration::from_millis(20);
/// Time between two such looks, ns: as long as the load seems to fit, and where it does not.
const EVERY_NS: u64 = 5_000_000_000;
const SOON_NS: u64 = 500_000_000;
/// Runs that a look must have to say anything.
const LEAST_RUNS: u64 = 20;
/// The sample aims below the budget, so that it does not change with every look.
const AIM: f64 = 0.85;
/// It grows only where the load was below this share of the budget at so many looks in turn, and at most so much at a time: a load
/// that comes and goes is the usual one.
const IDLE: f64 = 0.6;
const IDLE_LOOKS: u32 = 4;
const GROWTH: f64 = 2.0;
/// The smallest sample: looking at packets has a cost that no sample lowers.
pub(crate) const SMALLEST: f64 = 1.0 / 1024.0;

/// The time that all of it took, at the last look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cost {
    /// Time of the programs for one packet, ns.
    pub(crate) packet_ns: f64,
    /// Share of one core that this made since the look before.
    pub(crate) packets: f64,
    /// Share of one core that readings took since then.
    pub(crate) readings: f64,
}

impl Cost {
    /// Share of one core.
    pub(crate) fn core(&self) -> f64 {
        self.packets + self.readings
    }
}

/// The sample, and what it costs.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Share of one core that all may take; `None`: any.
    most: Option<f64>,
    /// Largest sample.
    ceiling: f64,
    share: f64,
    last: Option<Cost>,
    /// Time, ns, and packets of the last look, and of the last call.
    looked: (u64, u64),
    called: (u64, u64),
    /// Time of a core that readings took since the last look, ns, and when the first of them began.
    read_ns: u64,
    read_since: u64,
    /// Readings that do not count: they remove what a smaller sample leaves out, once.
    removing: u32,
    /// Looks in turn that found the load below [`IDLE`].
    idle_looks: u32,
    /// Why the time of runs cannot be taken.
    untimed: Option<String>,
}

/// Packets per second between two moments.
fn rate((then, before): (u64, u64), (now, packets): (u64, u64)) -> f64 {
    packets.saturating_sub(before) as f64 / (now.saturating_sub(then).max(1) as f64 / 1e9)
}

impl Budget {
    pub(crate) fn new(most: Option<f64>, ceiling: f64, now: u64) -> Self {
        let begun = (now, 0);
        Budget {
            most,
            ceiling,
            share: ceiling,
            last: None,
            looked: begun,
            called: begun,
            read_ns: 0,
            read_since: now,
            removing: 0,
            idle_looks: 0,
            untimed: None,
        }
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

    /// Why the budget has no effect, if the kernel does not take the time of runs for this process.
    pub(crate) fn untimed(&self) -> Option<&str> {
        self.untimed.as_deref()
    }

    /// A reading that began then took this time of a core.
    pub(crate) fn count_reading(&mut self, began: u64, time: Duration) {
        if self.removing > 0 {
            self.removing -= 1;
            return;
        }
        if self.read_ns == 0 {
            self.read_since = began;
        }
        self.read_ns += time.as_nanos() as u64;
    }

    /// Looks again, if it is time: `packets` have come since the beginning. True if the sample changed.
    pub(crate) fn look(&mut self, program: &ProgramFd, now: u64, packets: u64) -> bool {
        let Some(most) = self.most else { return false };
        let (since_call, since_look) = (rate(self.called, (now, packets)), rate(self.looked, (now, packets)));
        self.called = (now, packets);
        let is_much = self.last.is_none_or(|cost| cost.packet_ns * since_call / 1e9 > most);
        if now.saturating_sub(self.looked.0) < self.pause_ns(is_much) {
            return false;
        }
        let readings = self.take_readings(now);
        self.looked = (now, packets);
        let timed = time_runs(program);
        self.untimed = timed.as_ref().err().map(ToString::to_string);
        // Too few packets to time are no load.
        let known = timed.ok().flatten().or(self.last.map(|cost| cost.packet_ns));
        let Some(packet_ns) = known else { return false };
        let rate = if is_much { since_call } else { since_look };
        self.adapt(Cost { packet_ns, packets: packet_ns * rate / 1e9, readings })
    }

    /// Share of one core that readings took since the last look. They count once.
    fn take_readings(&mut self, now: u64) -> f64 {
        std::mem::take(&mut self.read_ns) as f64 / now.saturating_sub(self.read_since).max(1) as f64
    }

    /// Time between two looks, ns. A look has its own cost, and where the sample is the smallest it changes nothing soon.
    fn pause_ns(&self, is_much: bool) -> u64 {
        if is_much && self.share > SMALLEST { SOON_NS } else { EVERY_NS }
    }

    fn adapt(&mut self, cost: Cost) -> bool {
        self.last = Some(cost);
        let Some(most) = self.most else { return false };
        let core = cost.core();
        self.idle_looks = if core < IDLE * most { self.idle_looks + 1 } else { 0 };
        let wanted = if core > most {
            self.share * AIM * most / core
        } else if self.idle_looks >= IDLE_LOOKS {
            self.share * (AIM * most / core.max(f64::MIN_POSITIVE)).min(GROWTH)
        } else {
            self.share
        };
        let before = self.share;
        self.share = wanted.max(SMALLEST).min(self.ceiling);
        if self.share < before {
            // This one, one that removes flows, and one that frees their places.
            self.removing = 3;
        }
        self.share != before
    }
}

/// The time of one run, ns; `None` if too few came.
///
/// # Errors
/// Without CAP_SYS_ADMIN, which `bpf_enable_stats` asks for (kernel/bpf/syscall.c), and before Linux 5.8.
fn time_runs(program: &ProgramFd) -> Result<Option<f64>, weir_bpf::Error> {
    let counting = count_run_time()?;
    let before = program.statistics()?;
    std::thread::sleep(TIMED);
    let after = program.statistics()?;
    drop(counting);
    Ok(per_run(before, after))
}

fn per_run(before: RunStatistics, after: RunStatistics) -> Option<f64> {
    let runs = after.runs.saturating_sub(before.runs);
    (runs >= LEAST_RUNS).then(|| after.time_ns.saturating_sub(before.time_ns) as f64 / runs as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cost of packets alone.
    fn packets(packet_ns: f64, packets: f64) -> Cost {
        Cost { packet_ns, packets, readings: 0.0 }
    }

    /// A gateway of so many packets per second, whose programs take a time that the sample lowers, and one that it does not.
    fn settled(rate: f64, fixed_ns: f64, tracked_ns: f64, ceiling: f64) -> (f64, Cost) {
        settled_with(0.0, rate, fixed_ns, tracked_ns, ceiling)
    }

    /// The same where readings of all flows would take that share of a core.
    fn settled_with(readings: f64, rate: f64, fixed_ns: f64, tracked_ns: f64, ceiling: f64) -> (f64, Cost) {
        let mut budget = Budget::new(Some(0.02), ceiling, 0);
        for _ in 0..100 {
            let packet_ns = fixed_ns + budget.share() * tracked_ns;
            let readings = readings * budget.share();
            budget.adapt(Cost { readings, ..packets(packet_ns, packet_ns * rate / 1e9) });
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
        assert!(cost.core() <= 0.02 && cost.core() > 0.02 * IDLE, "{cost:?}");
        // (0.85 * 0.02 / 300 kpps - 30 ns) / 250 ns.
        assert!((0.03..0.16).contains(&share), "{share}");
    }

    #[test]
    fn what_no_sample_lowers_leaves_the_smallest_sample() {
        let (share, cost) = settled(1e6, 30.0, 250.0, 1.0);
        assert_eq!(share, SMALLEST);
        assert!(cost.core() > 0.02);
    }

    #[test]
    fn readings_of_many_flows_count_too() {
        // Few packets of many flows: half of the flows would be too many.
        let (share, cost) = settled_with(0.05, 1_000.0, 40.0, 200.0, 1.0);
        assert!((0.02 * IDLE..=0.02).contains(&cost.core()), "{cost:?}");
        assert!((0.24..=0.4).contains(&share), "{share}");
        // Each alone would fit.
        let (share, cost) = settled_with(0.015, 60_000.0, 30.0, 220.0, 1.0);
        assert!(share < 1.0 && cost.core() <= 0.02, "{share} {cost:?}");
    }

    #[test]
    fn readings_count_once() {
        let mut budget = Budget::new(Some(0.02), 1.0, 0);
        budget.count_reading(EVERY_NS, Duration::from_millis(40));
        budget.count_reading(EVERY_NS + SOON_NS, Duration::from_millis(10));
        assert_eq!([0, 1].map(|_| budget.take_readings(2 * EVERY_NS)), [0.01, 0.0]);
        // A sample that becomes smaller has its flows removed.
        assert!(budget.adapt(packets(200.0, 0.2)));
        for number in 0..3 {
            budget.count_reading(number * SOON_NS, Duration::from_secs(1));
        }
        budget.count_reading(3 * SOON_NS, Duration::from_millis(5));
        assert_eq!(budget.take_readings(4 * SOON_NS), 0.01);
    }

    #[test]
    fn a_sample_grows_again_after_a_burst() {
        let mut budget = Budget::new(Some(0.02), 1.0, 0);
        assert!(budget.adapt(packets(200.0, 0.2)));
        assert!((budget.share() - 0.085).abs() < 1e-9);
        for _ in 1..IDLE_LOOKS {
            assert!(!budget.adapt(packets(200.0, 0.001)));
        }
        assert!(budget.adapt(packets(200.0, 0.001)));
        assert!((budget.share() - 0.17).abs() < 1e-9);
        // Between the two bounds it stays.
        assert!(!budget.adapt(packets(200.0, 0.015)));
    }

    #[test]
    fn a_load_that_no_sample_lowers_is_looked_at_rarely() {
        let mut budget = Budget::new(Some(0.02), 1.0, 0);
        assert_eq!([true, false].map(|is_much| budget.pause_ns(is_much)), [SOON_NS, EVERY_NS]);
        while budget.adapt(packets(30.0, 0.03)) {}
        assert_eq!(budget.share(), SMALLEST);
        assert_eq!([true, false].map(|is_much| budget.pause_ns(is_much)), [EVERY_NS; 2]);
    }

    #[test]
    fn too_few_runs_say_nothing() {
        let at = |runs, time_ns| RunStatistics { time_ns, runs, missed: 0 };
        assert_eq!(per_run(at(5, 500), at(10, 2_000)), None);
        assert_eq!(per_run(at(0, 0), at(40, 4_000)), Some(100.0));
    }
}
