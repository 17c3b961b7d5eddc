//! Workloads that are compared with each other inside a variant, as every rendering shows them.

use weir_record::results::{Estimate, Results, WorkloadComparison};
use weir_record::{MetricDef, Run, VariantInfo};

use crate::escape::line;
use crate::units::{self, display_for_all};
use crate::view::{effect_text, everyone, floor_value, too_few};
use crate::words::{self, Words};

/// One metric of a pair of workloads on one variant.
pub(crate) struct PairRow<'a> {
    pub(crate) found: &'a WorkloadComparison,
    pub(crate) def: &'a MetricDef,
    pub(crate) variant: &'a VariantInfo,
    /// Both values in one unit: `324 against 143 kpps`.
    pub(crate) values: String,
    /// Signed effect, the judged workload against the other one.
    pub(crate) effect: Option<String>,
    pub(crate) words: Option<Words>,
    /// Rounds that the comparison rests on.
    pub(crate) n: usize,
    /// The greater noise floor of the two, on the comparison's own scale.
    pub(crate) floor: Option<f64>,
    /// Shown at once; the others are details.
    pub(crate) main: bool,
}

impl PairRow<'_> {
    /// `tcp-weir against tcp-iperf3`.
    pub(crate) fn title(&self) -> String {
        format!("{} against {}", line(&self.found.workload), line(&self.found.with))
    }

    pub(crate) fn same_pair(&self, other: &PairRow<'_>) -> bool {
        self.found.workload == other.found.workload && self.found.with == other.found.with
    }

    /// The effect, where the verdict's words do not hold it.
    pub(crate) fn unsaid(&self) -> Option<&str> {
        let said = |w: &Words| w.is_difference() || self.effect.as_ref() == Some(&w.text);
        self.effect.as_deref().filter(|_| !self.words.as_ref().is_some_and(said))
    }

    /// The verdict with its sign and the number of rounds: `▲ faster by 20 % [15, 25], n = 12`.
    pub(crate) fn said(&self) -> String {
        if self.effect.is_none() {
            return "not comparable".to_owned();
        }
        let words = self.words.as_ref().map(|w| format!("{} {}", w.tone.symbol(), w.short()));
        let unsaid = self.unsaid().map(str::to_owned);
        let n = format!("n = {}", self.n);
        words.into_iter().chain(unsaid).chain([n]).collect::<Vec<_>>().join(", ")
    }
}

/// Rows by pair, metric and variant, in the run's order, without A/A twins.
pub(crate) fn rows<'a>(run: &'a Run, results: &'a Results) -> Vec<PairRow<'a>> {
    let judged = too_few(run, results).is_none();
    results.workload_comparisons.iter().filter_map(|found| row(run, results, found, judged)).collect()
}

fn row<'a>(
    run: &'a Run,
    results: &'a Results,
    found: &'a WorkloadComparison,
    judged: bool,
) -> Option<PairRow<'a>> {
    let workload = run.workloads.iter().find(|w| w.name == found.workload)?;
    let def = workload.metrics.iter().find(|m| m.name == found.metric)?;
    let variant = everyone(run).find(|v| v.name == found.variant)?;
    let estimate = |workload: &str| results.cell(workload, &found.metric, &found.variant)?.estimate;
    let (own, other) = (estimate(&found.workload), estimate(&found.with));
    let shown = display_for_all(def.unit, own.iter().chain(&other).map(|e| e.center));
    let value = |e: Option<Estimate>| {
        let more = |e: &Estimate| if e.at_least { "> " } else { "" };
        e.map_or("–".to_owned(), |e| format!("{}{}", more(&e), units::bare(e.center, None, shown)))
    };
    let values = format!("{} against {} {}", value(own), value(other), shown.symbol).trim_end().to_owned();
    let comparison = found.comparison.as_ref();
    let effect = comparison.map(|c| effect_text(def, c, own, other));
    let words = found.verdict.map(|v| words::verdict(def, comparison, v));
    let words = match (words, &effect) {
        (Some(words), Some(text)) if !judged => Some(Words { text: text.clone(), ..words }),
        (words, _) => words,
    };
    let words = words.map(|w| words::with_reserve(w, found.reserve, &found.with));
    // A headline metric of one workload may be a detail of the other, which has a name of its own for it.
    let of_either = run.workloads.iter().filter(|w| [&found.workload, &found.with].contains(&&w.name));
    let is_headline = of_either.flat_map(|w| &w.metrics).any(|m| m.name == found.metric && m.headline);
    let floors = [&found.workload, &found.with].map(|w| floor_value(results, w, &found.metric));
    Some(PairRow {
        found,
        def,
        variant,
        values,
        effect,
        words,
        n: comparison.map_or(0, |c| c.n),
        floor: floors.into_iter().flatten().reduce(f64::max),
        // For two sending programs, their CPU use matters as much as their speed.
        main: is_headline || def.name.starts_with("tester_cpu_"),
    })
}
