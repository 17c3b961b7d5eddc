//! The measuring window of one end, and what is counted in it.
//!
//! No clock is shared between the ends: each end's window begins with the first thing that it sees (a sender's first
//! send, a receiver's first byte), runs through the warm-up and then measures for the set duration.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weir_record::Series;
use weir_sys::clock::NS_PER_S;
use weir_sys::sched::thread_cpu_time;

use crate::TrialSettings;

/// One end's window, shared by its threads.
#[derive(Debug)]
pub(crate) struct Window {
    /// First thing seen; 0 before.
    first_ns: AtomicU64,
    warmup_ns: u64,
    duration_ns: u64,
    step_ns: u64,
}

/// The phase of a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before the window, or nothing was seen yet.
    Before,
    /// In the window's step of that number.
    Within(usize),
    /// After the window.
    After,
}

impl Window {
    /// A window that has not begun.
    pub(crate) fn new(setting: &TrialSettings) -> Self {
        let duration_ns = nanos(setting.duration).max(1);
        // Ten points a second for up to 100 s, then so that 1,000 points do.
        let step_ns = (NS_PER_S / 10).max(duration_ns.div_ceil(1000));
        Window { first_ns: AtomicU64::new(0), warmup_ns: nanos(setting.warmup), duration_ns, step_ns }
    }

    /// The first thing was seen; only the first call counts.
    #[inline]
    pub(crate) fn begin(&self, now_ns: u64) {
        if self.first_ns.load(Ordering::Relaxed) == 0 {
            // A failed exchange means that another thread was first.
            let _ = self.first_ns.compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// When the first thing was seen.
    pub(crate) fn first_ns(&self) -> Option<u64> {
        Some(self.first_ns.load(Ordering::Relaxed)).filter(|&t| t != 0)
    }

    /// When the window ends, if it has begun.
    pub(crate) fn end_ns(&self) -> Option<u64> {
        self.first_ns().map(|t| t + self.warmup_ns + self.duration_ns)
    }

    /// Returns the phase of `now_ns`.
    #[inline]
    pub(crate) fn phase(&self, now_ns: u64) -> Phase {
        let first = self.first_ns.load(Ordering::Relaxed);
        let from = first + self.warmup_ns;
        if first == 0 || now_ns < from {
            Phase::Before
        } else if now_ns < from + self.duration_ns {
            Phase::Within(((now_ns - from) / self.step_ns) as usize)
        } else {
            Phase::After
        }
    }

    /// Warm-up and window, ns.
    pub(crate) fn span_ns(&self) -> u64 {
        self.warmup_ns + self.duration_ns
    }

    /// Seconds of the measuring window that are over.
    pub(crate) fn elapsed_s(&self, now_ns: u64) -> f64 {
        let from = self.first_ns().map_or(now_ns, |t| t + self.warmup_ns);
        now_ns.saturating_sub(from).min(self.duration_ns) as f64 / NS_PER_S as f64
    }

    /// Steps in the window.
    pub(crate) fn steps(&self) -> usize {
        self.duration_ns.div_ceil(self.step_ns) as usize
    }

    /// Length in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.duration_ns as f64 / NS_PER_S as f64
    }

    /// Seconds from the window's start to the middle of a step, and the step's length (the last one may be short).
    fn step(&self, index: usize) -> (f64, f64) {
        let from = index as u64 * self.step_ns;
        let length = self.step_ns.min(self.duration_ns.saturating_sub(from)).max(1);
        ((from as f64 + length as f64 / 2.0) / NS_PER_S as f64, length as f64 / NS_PER_S as f64)
    }

    /// Counts per step as a rate per second, times `factor` (8 for bits out of bytes).
    pub(crate) fn rate_series(&self, name: &str, counts: &[u64], factor: f64) -> Series {
        let point = |(i, &n): (usize, &u64)| {
            let (middle, length) = self.step(i);
            (middle, n as f64 * factor / length)
        };
        Series { name: name.to_owned(), points: counts.iter().enumerate().map(point).collect() }
    }

    /// Means per step; steps without a sample have no point.
    pub(crate) fn mean_series(&self, name: &str, sums: &[Mean]) -> Series {
        let point = |(i, m): (usize, &Mean)| m.value().map(|v| (self.step(i).0, v));
        Series { name: name.to_owned(), points: sums.iter().enumerate().filter_map(point).collect() }
    }
}

/// A duration in nanoseconds.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}

/// A mean while it grows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mean {
    sum: f64,
    n: u64,
}

impl Mean {
    /// Add a value.
    pub(crate) fn add(&mut self, value: f64) {
        self.sum += value;
        self.n += 1;
    }

    /// Add another mean's values.
    pub(crate) fn merge(&mut self, other: &Mean) {
        self.sum += other.sum;
        self.n += other.n;
    }

    /// The mean, if there is a value.
    pub(crate) fn value(&self) -> Option<f64> {
        (self.n > 0).then(|| self.sum / self.n as f64)
    }
}

/// Counts per step of a window.
#[derive(Debug, Clone)]
pub(crate) struct StepCounts {
    /// One per step.
    pub steps: Vec<u64>,
}

impl StepCounts {
    /// All zero.
    pub(crate) fn new(window: &Window) -> Self {
        StepCounts { steps: vec![0; window.steps()] }
    }

    /// Count `n` if the phase is within the window.
    #[inline]
    pub(crate) fn add(&mut self, phase: Phase, n: u64) {
        if let Phase::Within(step) = phase {
            self.steps[step] += n;
        }
    }

    /// Over the whole window.
    pub(crate) fn total(&self) -> u64 {
        self.steps.iter().sum()
    }

    /// Add another tally of the same window.
    pub(crate) fn merge(&mut self, other: &StepCounts) {
        for (a, b) in self.steps.iter_mut().zip(&other.steps) {
            *a += b;
        }
    }
}

/// CPU time of the calling thread within the window. Looked at often, it reads the clock only at the window's two edges.
#[derive(Debug, Default)]
pub(crate) struct CpuMeter {
    from: Option<Duration>,
    used: Option<Duration>,
}

impl CpuMeter {
    /// Note the phase.
    #[inline]
    pub(crate) fn look(&mut self, phase: Phase) {
        match phase {
            Phase::Before => {}
            Phase::Within(_) if self.from.is_none() => self.from = Some(thread_cpu_time()),
            Phase::After if self.used.is_none() => self.used = Some(self.so_far()),
            _ => {}
        }
    }

    /// Seconds used in the window (up to now, while it lasts).
    pub(crate) fn seconds(&self) -> f64 {
        self.used.unwrap_or_else(|| self.so_far()).as_secs_f64()
    }

    fn so_far(&self) -> Duration {
        self.from.map_or(Duration::ZERO, |from| thread_cpu_time().saturating_sub(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(duration_ms: u64) -> Window {
        Window::new(&TrialSettings::new(Duration::from_millis(500), Duration::from_millis(duration_ms), 1))
    }

    #[test]
    fn phases_follow_the_first_thing_seen() {
        let w = window(250);
        assert_eq!(w.phase(7), Phase::Before);
        w.begin(1_000_000_000);
        w.begin(2_000_000_000);
        assert_eq!(w.phase(1_499_999_999), Phase::Before);
        assert_eq!(w.phase(1_500_000_000), Phase::Within(0));
        assert_eq!(w.phase(1_749_999_999), Phase::Within(2));
        assert_eq!(w.phase(1_750_000_000), Phase::After);
        assert_eq!(w.end_ns(), Some(1_750_000_000));
        let elapsed = |ns| w.elapsed_s(ns);
        assert_eq!([7, 1_500_000_000, 1_700_000_000, 2_500_000_000].map(elapsed), [0.0, 0.0, 0.2, 0.25]);
    }

    #[test]
    fn a_short_last_step_is_scaled_by_its_own_length() {
        let w = window(250);
        let series = w.rate_series("x_bps", &[100, 100, 50], 8.0);
        for ((t, v), (t_want, v_want)) in
            series.points.iter().zip([(0.05, 8000.0), (0.15, 8000.0), (0.225, 8000.0)])
        {
            assert!((t - t_want).abs() < 1e-9 && (v - v_want).abs() < 1e-6, "{t} {v}");
        }
    }

    #[test]
    fn long_windows_have_a_thousand_steps() {
        assert_eq!(window(3_600_000).steps(), 1000);
        assert_eq!(window(10_000).steps(), 100);
    }
}
