//! Shares of failed operations that are greater than the baseline's: they come first in every text.

use weir_record::results::Results;
use weir_record::{MetricDef, Run, VariantInfo, WorkloadInfo};
use weir_text::order;

use crate::escape::line;
use crate::units::percent;
use crate::view::everyone;

/// A share of failures above the baseline's by more than this is reported even if no test has shown it yet.
pub(crate) const LEAST_SAID: f64 = 0.001;

/// Shares of failed operations of a variant and of the baseline, of which the variant's is greater.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MoreFailures {
    pub(crate) here: f64,
    /// None if no trial of the baseline counts.
    there: Option<f64>,
}

impl MoreFailures {
    pub(crate) fn compare(
        run: &Run,
        results: &Results,
        (workload, def): (&WorkloadInfo, &MetricDef),
        variant: &str,
    ) -> Option<MoreFailures> {
        def.failure.as_ref()?;
        let share = |variant: &str| Some(results.cell(&workload.name, &def.name, variant)?.estimate?.center);
        let (here, there) = (share(variant)?, share(run.baseline()?));
        (here - there.unwrap_or(0.0) > LEAST_SAID).then_some(MoreFailures { here, there })
    }

    /// `fails 9 % of http (failed; the baseline 0 %)`. Pairs of workloads name their place before it.
    pub(crate) fn sentence(self, workload: Option<&str>, label: &str) -> String {
        let place = workload.map(|w| format!(" of {w}")).unwrap_or_default();
        let there = match self.there {
            Some(there) => format!("the baseline {}", percent(there)),
            None => "of the baseline no trial counts".to_owned(),
        };
        format!("fails {}{place} ({label}; {there})", percent(self.here))
    }
}

/// One share of a variant.
struct Found<'a> {
    variant: &'a VariantInfo,
    workload: &'a WorkloadInfo,
    def: &'a MetricDef,
    fails: MoreFailures,
}

/// Names the variants that fail more than the baseline in what stands in tables; those that fail most come first.
pub(crate) fn in_tables(run: &Run, results: &Results) -> Option<String> {
    told(run, worst(run, results, |found| !is_point(found)))
}

/// The same in what stands in curves: of each curve its worst point.
pub(crate) fn in_curves(run: &Run, results: &Results) -> Option<String> {
    told(run, worst(run, results, is_point))
}

/// Names the variants that fail more than the baseline, anywhere in a run: `Against routed, ours fails 9 % of http (failed; the
/// baseline 0 %).` Those that fail most come first, of each curve of variants its worst point; `None` if none does.
pub fn everywhere(run: &Run, results: &Results) -> Option<String> {
    told(run, worst(run, results, |_| true))
}

fn is_point(found: &Found<'_>) -> bool {
    found.workload.point.is_some() || (found.variant.point.is_some() && !found.variant.baseline)
}

/// The greatest share of each variant, or of each curve of variants.
fn worst<'a>(run: &'a Run, results: &Results, which: impl Fn(&Found<'_>) -> bool) -> Vec<Found<'a>> {
    let mut all: Vec<Found<'a>> = Vec::new();
    for variant in everyone(run).filter(|v| !v.baseline) {
        for (workload, def) in run.workloads.iter().flat_map(|w| w.metrics.iter().map(move |def| (w, def))) {
            let fails = MoreFailures::compare(run, results, (workload, def), &variant.name);
            let found = fails.map(|fails| Found { variant, workload, def, fails });
            all.extend(found.filter(|found| which(found)));
        }
    }
    order::by(&mut all, |a, b| b.fails.here.total_cmp(&a.fails.here));
    let curve = |v: &VariantInfo| v.point.as_ref().map_or_else(|| v.name.clone(), |p| p.family.clone());
    let mut named: Vec<String> = Vec::new();
    all.retain(|found| {
        let curve = curve(found.variant);
        let is_new = !named.contains(&curve);
        named.push(curve);
        is_new
    });
    all
}

fn told(run: &Run, found: Vec<Found<'_>>) -> Option<String> {
    let one = |found: Found<'_>| {
        let said = found.fails.sentence(Some(&line(&found.workload.name)), &line(&found.def.label));
        format!("{} {said}", line(&found.variant.name))
    };
    let all: Vec<String> = found.into_iter().map(one).collect();
    let baseline = run.baseline().filter(|_| !all.is_empty())?;
    Some(format!("Against {}, {}.", line(baseline), all.join("; ")))
}
