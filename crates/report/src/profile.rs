//! How the gateway spends its time: sampled profiles of a workload's trials, merged per variant.

use weir_record::results::Results;
use weir_record::{Profile, Run, Unit, VariantInfo, WorkloadInfo};
use weir_text::order;

use crate::escape::line;
use crate::units::{number, percent, quantity};
use crate::view::{compared, trials};

/// The metric that shares are applied to, where a workload has it.
const PER_PACKET: &str = "ns_per_packet";

/// Quantile of the normal distribution for 95 %.
const Z95: f64 = 1.96;

/// How one variant's kernel spent its time during one workload.
pub(crate) struct Spent<'a> {
    pub(crate) variant: &'a VariantInfo,
    /// All valid trials' together.
    pub(crate) profile: Profile,
    pub(crate) trials: usize,
    per_packet_ns: Option<f64>,
}

impl Spent<'_> {
    /// Returns the time that `samples` stand for: `98 ±6 ns` if the time per packet is known, else the share alone.
    pub(crate) fn amount(&self, samples: u64) -> String {
        match self.per_packet_ns {
            Some(ns) => nanoseconds(ns * self.share(samples), ns * self.half_width(samples)),
            None => self.percent(samples),
        }
    }

    /// The amount once more as a share, where it is not one already.
    pub(crate) fn also(&self, samples: u64) -> Option<String> {
        self.per_packet_ns.map(|_| self.percent(samples))
    }

    fn percent(&self, samples: u64) -> String {
        percent(self.share(samples))
    }

    /// Returns the share of the time that test traffic took, the tester's own included.
    fn share(&self, samples: u64) -> f64 {
        samples as f64 / self.profile.path_samples().max(1) as f64
    }

    /// Half of the 95 % interval of a share, as far as it is sampling's doing: samples are taken independently of what they
    /// hit, so their number is binomial (Wald's interval).
    fn half_width(&self, samples: u64) -> f64 {
        let n = self.profile.path_samples().max(1) as f64;
        let p = self.share(samples);
        Z95 * (p * (1.0 - p).max(0.0) / n).sqrt()
    }

    /// Samples of a part.
    pub(crate) fn part(&self, name: &str) -> u64 {
        self.profile.parts.iter().filter(|p| p.name == name).map(|p| p.samples).sum()
    }

    /// The whole path's time per packet in words.
    pub(crate) fn per_packet(&self) -> Option<String> {
        self.per_packet_ns.map(|ns| quantity(Unit::Ns, ns, None))
    }

    /// The parts with the most samples in one line: `NAT 98 ±6 ns, ...`.
    pub(crate) fn sentence(&self) -> String {
        let mut parts: Vec<(&str, u64)> =
            self.profile.parts.iter().map(|p| (p.name.as_str(), p.samples)).collect();
        order::by_key(&mut parts, |(_, samples)| std::cmp::Reverse(*samples));
        let one = |(name, samples): &(&str, u64)| format!("{} {}", line(name), self.amount(*samples));
        // Parts below a hundredth are in the page's table.
        let shown = parts.iter().filter(|(_, samples)| self.share(*samples) >= 0.01);
        shown.map(one).collect::<Vec<_>>().join(", ")
    }
}

/// Nanoseconds with their error, in the same digits.
fn nanoseconds(value: f64, half_width: f64) -> String {
    let decimals = usize::from(half_width < 0.95);
    format!("{} ±{} ns", number(value, decimals), number(half_width, decimals))
}

/// Every variant with a profile of this workload, in the run's order.
pub(crate) fn spent<'a>(run: &'a Run, results: &Results, workload: &WorkloadInfo) -> Vec<Spent<'a>> {
    let of = |variant: &'a VariantInfo| {
        let mut profile = Profile::default();
        let mut count = 0;
        for trial in trials(run, &workload.name, &variant.name).filter(|t| !t.is_void()) {
            if let Some(sampled) = &trial.profile {
                profile.merge(sampled);
                count += 1;
            }
        }
        let per_packet_ns = results
            .cell(&workload.name, PER_PACKET, &variant.name)
            .and_then(|c| Some(c.estimate?.center))
            .filter(|ns| ns.is_finite() && *ns > 0.0);
        (profile.gateway_samples > 0).then_some(Spent { variant, profile, trials: count, per_packet_ns })
    };
    compared(run).filter_map(of).collect()
}

/// True if any workload of the run was profiled.
pub(crate) fn any(run: &Run) -> bool {
    run.trials.iter().any(|t| !t.is_void() && t.profile.as_ref().is_some_and(|p| p.gateway_samples > 0))
}

/// Names of all parts, each after the one that it follows in some variant.
pub(crate) fn parts<'a>(all: &'a [Spent<'_>]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for spent in all {
        let mut after = 0;
        for part in &spent.profile.parts {
            match names.iter().position(|name| *name == part.name) {
                Some(at) => after = at + 1,
                None => {
                    names.insert(after, &part.name);
                    after += 1;
                }
            }
        }
    }
    names
}
