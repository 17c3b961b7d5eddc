//! The run as every rendering shows it: rows of the result table, sentences, values of single trials.

use std::collections::BTreeMap;

use weir_record::results::{Cell, Estimate, Results};
use weir_record::{MetricDef, Run, Scale, Source, Trial, Unit, VariantInfo, WorkloadInfo};
use weir_stats::signed_rank::least_rounds;
use weir_stats::{Censored, Comparison, Verdict};

use crate::escape::line;
use crate::units::{self, display_for_all, percent};
use crate::words::{self, Words, effect, floor_text, plural};

/// Level of significance of the verdicts.
const ALPHA: f64 = 0.05;

/// One variant's line of a metric.
pub(crate) struct Entry<'a> {
    pub(crate) variant: &'a VariantInfo,
    /// Value, unit and interval; a dash where nothing was measured.
    pub(crate) value: String,
    pub(crate) words: Option<Words>,
    /// Signed effect against the baseline.
    pub(crate) effect: Option<String>,
    /// For times: what the variant adds, in time units, since those add up along a path.
    pub(crate) added: Option<String>,
    pub(crate) n: usize,
    pub(crate) void: usize,
}

/// One metric of one workload.
pub(crate) struct Row<'a> {
    pub(crate) workload: &'a WorkloadInfo,
    pub(crate) def: &'a MetricDef,
    /// Noise floor in words, where known.
    floor: Option<String>,
    /// False where the run has too few rounds for any verdict, and so for a floor.
    judged: bool,
    /// Without A/A twins: they are the noise floor.
    pub(crate) entries: Vec<Entry<'a>>,
}

impl Row<'_> {
    /// `noise floor ±2 %`; nothing in a run that has too few rounds for any.
    pub(crate) fn floor_words(&self) -> Option<String> {
        match &self.floor {
            Some(floor) => Some(format!("noise floor {floor}")),
            None => self.judged.then(|| "noise floor unknown".to_owned()),
        }
    }

    /// Returns the baseline's text in the column of verdicts.
    pub(crate) fn baseline_words(&self) -> String {
        ["baseline".to_owned()].into_iter().chain(self.floor_words()).collect::<Vec<_>>().join(", ")
    }
}

/// Variants that are compared: all but the A/A twins.
pub(crate) fn everyone(run: &Run) -> impl Iterator<Item = &VariantInfo> {
    run.variants.iter().filter(|v| v.twin_of.is_none())
}

/// Those of them that stand in tables and figures by themselves: the points of a curve are shown in the curve. The baseline is
/// always there.
pub(crate) fn compared(run: &Run) -> impl Iterator<Item = &VariantInfo> {
    everyone(run).filter(|v| v.baseline || v.point.is_none())
}

/// Workloads that are no points of a curve.
pub(crate) fn workloads(run: &Run) -> impl Iterator<Item = &WorkloadInfo> {
    run.workloads.iter().filter(|w| w.point.is_none())
}

/// The metrics of a workload that stand in the result table: the share of operations that failed first, wherever it is not 0;
/// then its headline metrics.
pub(crate) fn headlines<'a>(results: &Results, workload: &'a WorkloadInfo) -> Vec<&'a MetricDef> {
    let fails = |m: &&MetricDef| m.failure.is_some() && is_seen(results, workload, m);
    let failures: Vec<&MetricDef> = workload.metrics.iter().filter(fails).collect();
    let others = workload.metrics.iter().filter(|m| m.headline && !failures.contains(m));
    failures.iter().copied().chain(others).collect()
}

/// True if a metric is not 0 in some trial that counts.
pub(crate) fn is_seen(results: &Results, workload: &WorkloadInfo, def: &MetricDef) -> bool {
    let cells = results.cells.iter().filter(|c| c.workload == workload.name && c.metric == def.name);
    cells.filter_map(|c| c.estimate).any(|e| e.range.1 > 0.0)
}

/// Rows of the result table in the run's order, headline metrics or the other ones, without the points of curves.
pub(crate) fn rows<'a>(run: &'a Run, results: &'a Results, headline: bool) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    let judged = too_few(run, results).is_none();
    for workload in workloads(run) {
        let first = headlines(results, workload);
        let details = || workload.metrics.iter().filter(|m| !first.contains(m)).collect();
        for def in if headline { first.clone() } else { details() } {
            let cells: Vec<(&VariantInfo, Option<&Cell>)> =
                compared(run).map(|v| (v, results.cell(&workload.name, &def.name, &v.name))).collect();
            let estimates = cells.iter().filter_map(|(_, c)| c.and_then(|c| c.estimate));
            let shown = display_for_all(def.unit, estimates.map(|e| e.center));
            let baseline =
                cells.iter().find(|(v, _)| v.baseline).and_then(|(_, c)| c.and_then(|c| c.estimate));
            let entry =
                |(v, c): &(&'a VariantInfo, Option<&Cell>)| entry(def, (v, *c), shown, baseline, judged);
            let entries: Vec<Entry<'_>> = cells.iter().map(entry).collect();
            // A detail without measurements says nothing; a missing headline does.
            if !headline && entries.iter().all(|e| e.n == 0) {
                continue;
            }
            rows.push(Row { workload, def, floor: floor(results, &workload.name, def), judged, entries });
        }
    }
    rows
}

fn entry<'a>(
    def: &MetricDef,
    (variant, cell): (&'a VariantInfo, Option<&Cell>),
    shown: units::Display,
    baseline: Option<Estimate>,
    judged: bool,
) -> Entry<'a> {
    let estimate = cell.and_then(|c| c.estimate);
    let comparison = cell.and_then(|c| c.comparison.as_ref());
    let effect = comparison.map(|c| effect_text(def, c, estimate, baseline));
    let words = cell.and_then(|c| c.verdict).map(|v| words::verdict(def, comparison, v));
    // The run reports "Too few rounds" once; here the observed effect appears, marked as open.
    let (mut words, effect) = match (words, effect) {
        (Some(words), Some(text)) if !judged => (Some(Words { text, ..words }), None),
        pair => pair,
    };
    if let (Some(words), true) = (&mut words, disagrees(def, cell, baseline)) {
        words.text += DISAGREES_MARK;
    }
    Entry {
        variant,
        value: estimate.map_or("–".to_owned(), |e| value_text(def, &e, Some(shown))),
        words,
        effect,
        added: comparison.zip(baseline).and_then(|(c, b)| added(def, c, b.center)),
        n: estimate.map_or(0, |e| e.n),
        void: cell.map_or(0, |c| c.void),
    }
}

/// A value with its interval; `> 3 s` where it is only known from below, `failed` among operations that never end.
pub(crate) fn value_text(def: &MetricDef, estimate: &Estimate, shown: Option<units::Display>) -> String {
    let shown = shown.unwrap_or_else(|| units::display_for(def.unit, estimate.center));
    if estimate.at_least {
        return format!("> {}", units::in_display(def.unit, estimate.center, None, shown));
    }
    units::in_display(def.unit, estimate.center, estimate.interval, shown)
}

/// Marks an effect that the values beside it do not show.
pub(crate) const DISAGREES_MARK: &str = " †";

/// By how much more than its interval allows the ratio of two values may differ from the effect.
const DISAGREES_BY: f64 = 0.03;

/// A value is that of all trials: their median, or their merged percentile, where one bad trial owns the tail. An effect is
/// that of a typical round. True where the two say different things: too few rounds for an interval tell opposite directions only.
fn disagrees(def: &MetricDef, cell: Option<&Cell>, baseline: Option<Estimate>) -> bool {
    let Some((own, base)) = cell.and_then(|c| c.estimate).zip(baseline) else { return false };
    let Some(comparison) = cell.and_then(|c| c.comparison) else { return false };
    let direction = if comparison.estimate < 1.0 { (0.0, 1.0) } else { (1.0, f64::INFINITY) };
    let (low, high) = comparison.interval.unwrap_or(direction);
    let ratio = own.center / base.center;
    def.scale == Scale::Ratio
        && !ratio.is_nan()
        && !(low / (1.0 + DISAGREES_BY)..=high * (1.0 + DISAGREES_BY)).contains(&ratio)
}

/// Returns the effect as it is. If neither side lost anything, every round's difference is zero. Then only the two sides' bounds
/// limit it: the greater of the two upper bounds.
pub(crate) fn effect_text(
    def: &MetricDef,
    c: &Comparison,
    own: Option<Estimate>,
    other: Option<Estimate>,
) -> String {
    let bound = |e: Option<Estimate>| e.and_then(|e| units::bound_of_zero(def.unit, e.center, e.interval));
    let none = !c.ratio && c.estimate == 0.0 && c.interval.is_none_or(|i| i == (0.0, 0.0));
    match bound(own).zip(bound(other)) {
        Some((a, b)) if none => {
            let bound = units::bound_percent(a.max(b));
            format!("0 ±{}", bound.replace(" %", " points"))
        }
        _ => effect(def, c),
    }
}

/// Rounds made and rounds needed, where no comparison of the run has enough of them for a verdict.
pub(crate) fn too_few(run: &Run, results: &Results) -> Option<(usize, usize)> {
    let twin = |name: &str| run.variants.iter().any(|v| v.name == name && v.twin_of.is_some());
    let cells = results.cells.iter().filter(|c| !twin(&c.variant)).map(|c| (c.comparison, c.verdict));
    let pairs = results.workload_comparisons.iter().map(|c| (c.comparison, c.verdict));
    let judged: Vec<_> = cells.chain(pairs).filter_map(|(c, v)| Some((c, v?))).collect();
    if judged.is_empty() || judged.iter().any(|(_, v)| *v != Verdict::TooFewRounds) {
        return None;
    }
    let made = judged.iter().filter_map(|(c, _)| Some(c.as_ref()?.n)).max().unwrap_or(0);
    Some((made, least_rounds(compared_at_once(run), ALPHA)))
}

/// Comparisons among which errors are held to 5 %, the most of them: variants that stand by themselves, or the points of one
/// curve.
fn compared_at_once(run: &Run) -> usize {
    let mut questions: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    for variant in everyone(run).filter(|v| !v.baseline) {
        *questions.entry(variant.point.as_ref().map(|p| p.family.as_str())).or_default() += 1;
    }
    questions.into_values().max().unwrap_or(0)
}

/// Returns the time that a variant adds to the baseline's time, elapsed or of a CPU: the ratio and its interval, applied to the
/// baseline's value.
fn added(def: &MetricDef, c: &Comparison, baseline: f64) -> Option<String> {
    if !matches!(def.unit, Unit::Ns | Unit::CpuNs) || !c.ratio {
        return None;
    }
    if !c.estimate.is_finite() || !baseline.is_finite() {
        return None;
    }
    let part = |r: f64| (r - 1.0) * baseline;
    let as_difference = Comparison {
        estimate: part(c.estimate),
        interval: c.interval.map(|(l, h)| (part(l), part(h))),
        ratio: false,
        ..*c
    };
    Some(effect(def, &as_difference))
}

fn floor(results: &Results, workload: &str, def: &MetricDef) -> Option<String> {
    let found = results.floors.iter().find(|f| f.workload == workload && f.metric == def.name)?;
    found.floor.map(|f| floor_text(def, f))
}

/// The noise floor as a number on the comparison's own scale.
pub(crate) fn floor_value(results: &Results, workload: &str, metric: &str) -> Option<f64> {
    results.floors.iter().find(|f| f.workload == workload && f.metric == metric)?.floor
}

/// A trial's own value of a metric: of a percentile also where it lies among operations that failed or did not end.
pub(crate) fn trial_value(trial: &Trial, def: &MetricDef) -> Option<Censored> {
    match &def.source {
        Source::Value => trial.metrics.get(&def.name).filter(|v| v.is_finite()).map(|v| (*v).into()),
        Source::Quantile { histogram, q } => trial.histograms.get(histogram)?.quantile(*q),
    }
}

/// Trials of one workload on one variant, in the order they were made.
pub(crate) fn trials<'a>(
    run: &'a Run,
    workload: &'a str,
    variant: &'a str,
) -> impl Iterator<Item = &'a Trial> {
    run.trials.iter().filter(move |t| t.workload == workload && t.variant == variant)
}

/// Summarises the run in one line of figures: rounds, trials, void ones, faults, length.
pub(crate) fn extent(run: &Run, results: &Results) -> String {
    let void = run.trials.iter().filter(|t| t.is_void()).count();
    let faulty = run.trials.iter().filter(|t| !t.faults.is_empty()).count();
    let seconds = run.trials.iter().map(|t| t.start_s + t.took_s).fold(0.0, f64::max);
    let voids = if void == 0 { "none void".to_owned() } else { format!("{void} void, left out") };
    format!(
        "{}, {} ({voids}; {} with a fault) in {}",
        plural(results.complete_rounds as usize, "complete round"),
        plural(run.trials.len(), "trial"),
        if faulty == 0 { "none".to_owned() } else { faulty.to_string() },
        weir_text::time::duration(seconds),
    )
}

/// The widest interval and its place in words, e.g. `widest interval: ±4.1 % (tcp-rr, RTT p99, nft-snat)`.
pub(crate) fn widest(run: &Run, results: &Results) -> Option<String> {
    let (half, place) = results.widest.as_ref()?;
    // A twin's name has a slash of its own: "routed (A/A)".
    let parts: Vec<&str> = place.splitn(3, '/').collect();
    let place = match parts.as_slice() {
        [workload, metric, variant] => {
            let label = run
                .workloads
                .iter()
                .find(|w| w.name == *workload)
                .and_then(|w| w.metrics.iter().find(|m| m.name == *metric))
                .map_or(*metric, |m| m.label.as_str());
            format!("{workload}, {label}, {variant}")
        }
        _ => place.clone(),
    };
    let target = percent(run.plan.target_half_width);
    Some(format!("widest interval ±{} ({}); aimed at ±{target}", words::rounded_percent(*half), line(&place)))
}

/// How to read the verdicts, in short.
pub(crate) fn how_to_read(run: &Run, results: &Results) -> Vec<String> {
    let target = run.baseline().map_or("the baseline".to_owned(), line);
    let mut lines = vec![
        "value [95 % interval]; verdicts from ratios within rounds (Holm): ▲ better ▼ worse ◆ different"
            .to_owned(),
        format!(
            "= equivalent within ±{} ≈ below the noise floor ({target} against itself) ? open",
            percent(run.plan.equivalence_margin)
        ),
    ];
    let all = rows(run, results, true);
    let entries = || all.iter().flat_map(|row| &row.entries);
    let said = |tone| entries().any(|e| e.words.as_ref().is_some_and(|w| w.tone == tone));
    if said(words::Tone::Withheld) {
        lines.push("! looks better only because what failed, or was void, is left out".to_owned());
    }
    if entries().any(|e| e.words.as_ref().is_some_and(|w| w.text.ends_with(DISAGREES_MARK))) {
        lines.push(
            "† value: of all trials, where one bad trial may weigh most; effect: a typical round".to_owned(),
        );
    }
    let is_percentile = |m: &MetricDef| m.headline && matches!(m.source, Source::Quantile { .. });
    if run.workloads.iter().any(|w| w.metrics.iter().any(is_percentile)) {
        lines.push(
            "the interval of a percentile spans the trials seen: a rare bad one may lie beyond it".to_owned(),
        );
    }
    lines
}

/// A series' or metric's unit by the suffix of its name.
pub(crate) fn unit_of_name(name: &str) -> Unit {
    let by_suffix = [
        ("_bps", Unit::Bps),
        ("_pps", Unit::Pps),
        ("_per_s", Unit::PerSecond),
        ("_ns", Unit::Ns),
        ("_bytes", Unit::Bytes),
        ("_ratio", Unit::Ratio),
        ("_cores", Unit::Cores),
    ];
    by_suffix.iter().find(|(suffix, _)| name.ends_with(suffix)).map_or(Unit::Count, |(_, unit)| *unit)
}

/// A name without its unit suffix, in words: `goodput_bps` is `goodput`.
pub(crate) fn label_of_name(name: &str) -> String {
    let suffixes = ["_bps", "_pps", "_per_s", "_ns", "_bytes", "_ratio", "_cores"];
    let bare = suffixes.iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name);
    line(bare).replace('_', " ")
}

/// The value of one estimate in words, for places that show it outside the table.
pub(crate) fn estimate_text(def: &MetricDef, cell: &Cell) -> String {
    cell.estimate.map_or("–".to_owned(), |e| value_text(def, &e, None))
}
