//! Common parts of the latency workloads: the span of a trial, their metrics, windows, the lateness of the sender.

pub(crate) mod dial;
pub(crate) mod kernel;
pub(crate) mod preamble;
pub(crate) mod schedule;
pub(crate) mod windows;

use weir_record::{Better, Fault, FaultCode, MetricDef, Series, Unit};
use weir_sys::clock::now_ns;
use weir_sys::sched::pin_current_thread;

use crate::part::{Part, merged, sum};
use crate::window::Phase;
pub(crate) use crate::window::nanos;
use crate::{Error, TrialSettings};

/// How often a sleeping thread looks whether it should stop, ns. Keeps "stopped within 100 ms" with room, at 20
/// wake-ups a second.
pub(crate) const STOP_LOOK_NS: u64 = 50_000_000;

/// The times of one trial, CLOCK_MONOTONIC in ns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// Traffic begins.
    pub(crate) begin_ns: u64,
    /// The measuring window begins.
    pub(crate) window_ns: u64,
    /// The measuring window ends; nothing is started from here on.
    pub(crate) end_ns: u64,
}

impl Span {
    /// Begins now.
    pub(crate) fn starting_now(setting: &TrialSettings) -> Self {
        let begin_ns = now_ns();
        let window_ns = begin_ns + nanos(setting.warmup);
        Span { begin_ns, window_ns, end_ns: window_ns + nanos(setting.duration) }
    }

    /// Whether an operation started at this time counts.
    pub(crate) fn measures(&self, start_ns: u64) -> bool {
        (self.window_ns..self.end_ns).contains(&start_ns)
    }

    /// Returns the phase of a point in time; the whole window is one step.
    #[inline]
    pub(crate) fn phase(&self, now_ns: u64) -> Phase {
        if now_ns < self.window_ns {
            Phase::Before
        } else if now_ns < self.end_ns {
            Phase::Within(0)
        } else {
            Phase::After
        }
    }

    /// Seconds of the window that are over, the whole window at most.
    pub(crate) fn elapsed_s(&self, now_ns: u64) -> f64 {
        now_ns.min(self.end_ns).saturating_sub(self.window_ns) as f64 / 1e9
    }
}

/// Pin the calling thread to the `nth` of the setting's cores, if it names any.
pub(crate) fn pin(setting: &TrialSettings, nth: usize) -> Result<(), Error> {
    if setting.cpus.is_empty() {
        return Ok(());
    }
    pin_current_thread(&[setting.cpus[nth % setting.cpus.len()]]).map_err(|e| Error::Io {
        what: "pin a thread to its core",
        source: std::io::Error::other(e.to_string()),
    })
}

/// The metrics of one distribution: p50 and p99 as headlines, then the details. `stem` is the histogram's name and the
/// prefix of the metrics' names; `what` names in the plural what was timed.
pub(crate) fn distribution_metrics(stem: &str, label: &str, what: &str) -> (Vec<MetricDef>, Vec<MetricDef>) {
    let quantile = |suffix: &str, shown: &str, q: f64| {
        let help = format!(
            "The least time that at least {}% of {what} keep within (RFC 2330 section 11.3). Failed ones count as infinite, \
             unfinished ones as at least their age (RFC 7679 section 5.1).",
            q * 100.0
        );
        MetricDef::quantile(&format!("{stem}_{suffix}_ns"), &format!("{label} {shown}"), stem, q, &help)
    };
    let value = |suffix: &str, word: &str| {
        let name = format!("{stem}_{suffix}_ns");
        let help = format!("{word} over {what} without those that failed or did not end.");
        MetricDef::value(&name, &format!("{label} {suffix}"), Unit::Ns, Better::Lower, &help)
    };
    let headline = vec![quantile("p50", "p50", 0.5), quantile("p99", "p99", 0.99)];
    let detail = [
        value("mean", "Mean"),
        value("sd", "Standard deviation"),
        value("min", "Least time"),
        quantile("p90", "p90", 0.9),
        quantile("p95", "p95", 0.95),
        quantile("p999", "p99.9", 0.999),
        quantile("p9999", "p99.99", 0.9999),
        value("max", "Greatest time"),
    ];
    (headline, detail.map(MetricDef::detail).into())
}

/// Merge the parts' histograms of that name into the trial, with the values of [`distribution_metrics`].
/// An empty one leaves the values out: nothing measured is not 0.
pub(crate) fn add_distribution(trial: &mut Part, parts: &[Part], stem: &str) {
    let all = merged(parts, stem);
    let ended = all.answered();
    if !ended.is_empty() {
        trial.set(&format!("{stem}_mean_ns"), ended.mean());
        trial.set(&format!("{stem}_sd_ns"), ended.sd());
        trial.set(&format!("{stem}_min_ns"), ended.min() as f64);
        trial.set(&format!("{stem}_max_ns"), ended.max() as f64);
    }
    trial.histograms.insert(stem.to_owned(), all);
}

/// Operations per second: each initiator's count over the seconds that it measured, summed.
pub(crate) fn per_second(initiators: &[Part], count: &str) -> f64 {
    let rate = |p: &Part| if p.value("window_s") > 0.0 { p.value(count) / p.value("window_s") } else { 0.0 };
    initiators.iter().map(rate).sum()
}

/// CPU nanoseconds per operation of all given ends together; `None` without operations.
pub(crate) fn cpu_ns_per(count: f64, initiators: &[Part], responders: &[Part]) -> Option<f64> {
    let cpu_s: f64 = initiators.iter().chain(responders).map(|p| p.cpu_s).sum();
    (count > 0.0).then(|| cpu_s * 1e9 / count)
}

/// The metric that [`cpu_ns_per`] fills.
pub(crate) fn cpu_metric() -> MetricDef {
    MetricDef::value(
        "tester_cpu_ns_per_transaction",
        "tester CPU / transaction",
        Unit::CpuNs,
        Better::Lower,
        "User and system time of the threads at both ends per answered transaction; that of failed ones is in it. If both ends share a machine with the \
         gateway, the kernel books part of the gateway's work on the sender.",
    )
}

/// The part that every `combine` starts from: all faults, all series one behind the other, the CPU time.
pub(crate) fn gathered(initiators: &[Part], responders: &[Part]) -> Part {
    let mut trial = Part::default();
    for part in initiators.iter().chain(responders) {
        trial.faults.extend(part.faults.iter().cloned());
        trial.cpu_s += part.cpu_s;
        for series in &part.series {
            add_points(&mut trial.series, &series.name, &series.points);
        }
    }
    trial
}

/// Add points to the series of that name.
pub(crate) fn add_points(all: &mut Vec<Series>, name: &str, points: &[(f64, f64)]) {
    match all.iter_mut().find(|s| s.name == name) {
        Some(series) => series.points.extend_from_slice(points),
        None => all.push(Series { name: name.to_owned(), points: points.to_vec() }),
    }
}

/// The share of operations that failed, with its count `failed` among those of the count `among`.
pub(crate) fn add_failed(trial: &mut Part, initiators: &[Part], ratio: &str, failed: f64, among: &str) {
    let all = sum(initiators, among);
    trial.set("failed", failed);
    trial.set(among, all);
    if all > 0.0 {
        trial.set(ratio, failed / all);
    }
}

/// Voids the trial if no operation was begun, since it then measured nothing. If operations were begun and none was completed, it
/// is a result.
pub(crate) fn require_some(trial: &mut Part, initiators: &[Part], begun: &str) {
    if sum(initiators, begun) == 0.0 {
        let detail = "no operation was begun in the measuring window";
        trial.faults.push(Fault::void(FaultCode::Timeout, "initiator", detail));
    }
}

/// The sender's own lateness, if there was a schedule.
pub(crate) fn add_lateness(trial: &mut Part, initiators: &[Part]) {
    let late = merged(initiators, "lateness");
    if !late.is_empty() {
        trial.histograms.insert("lateness".into(), late);
    }
}
