//! The run as every rendering shows it: rows of the result table, sentences, values of single trials.

use weir_record::results::{Cell, Results};
use weir_record::{MetricDef, Run, Scale, Source, Trial, Unit, VariantInfo, WorkloadInfo};
use weir_stats::Comparison;

use crate::escape::line;
use crate::units::{self, display_for_all, percent, quantity};
use crate::words::{self, Tone, Words, effect, floor_size, plural};

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
    pub(crate) floor: Option<String>,
    /// Without A/A twins: they are the noise floor.
    pub(crate) entries: Vec<Entry<'a>>,
}

/// Variants that are compared: all but the A/A twins.
pub(crate) fn compared(run: &Run) -> impl Iterator<Item = &VariantInfo> {
    run.variants.iter().filter(|v| v.twin_of.is_none())
}

/// Rows of the result table in the run's order, headline metrics or the other ones.
pub(crate) fn rows<'a>(run: &'a Run, results: &'a Results, headline: bool) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for workload in &run.workloads {
        for def in workload.metrics.iter().filter(|m| m.headline == headline) {
            let cells: Vec<(&VariantInfo, Option<&Cell>)> =
                compared(run).map(|v| (v, results.cell(&workload.name, &def.name, &v.name))).collect();
            let estimates = cells.iter().filter_map(|(_, c)| c.and_then(|c| c.estimate));
            let shown = display_for_all(def.unit, estimates.map(|e| e.center));
            let baseline = cells
                .iter()
                .find(|(v, _)| v.baseline)
                .and_then(|(_, c)| c.and_then(|c| c.estimate))
                .map(|e| e.center);
            let entries = cells.iter().map(|(v, c)| entry(def, v, *c, shown, baseline)).collect();
            rows.push(Row { workload, def, floor: floor(results, &workload.name, def), entries });
        }
    }
    rows
}

fn entry<'a>(
    def: &MetricDef,
    variant: &'a VariantInfo,
    cell: Option<&Cell>,
    shown: units::Display,
    baseline: Option<f64>,
) -> Entry<'a> {
    let estimate = cell.and_then(|c| c.estimate);
    let value = estimate.map_or("–".to_owned(), |e| {
        let text = units::bare(e.center, e.interval, shown);
        let (number, rest) = text.split_once(' ').unwrap_or((&text, ""));
        [number, shown.symbol, rest].into_iter().filter(|p| !p.is_empty()).collect::<Vec<_>>().join(" ")
    });
    let comparison = cell.and_then(|c| c.comparison.as_ref());
    Entry {
        variant,
        value,
        words: cell.and_then(|c| c.verdict).map(|v| words::verdict(def, comparison, v)),
        effect: comparison.map(|c| effect(def, c)),
        added: comparison.zip(baseline).and_then(|(c, b)| added(def, c, b)),
        n: estimate.map_or(0, |e| e.n),
        void: cell.map_or(0, |c| c.void),
    }
}

/// What a variant adds to the baseline's time: the ratio and its interval, applied to the baseline's value.
fn added(def: &MetricDef, c: &Comparison, baseline: f64) -> Option<String> {
    if def.unit != Unit::Ns || !c.ratio {
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
    found.floor.map(|f| floor_size(def, f))
}

/// The noise floor as a number on the comparison's own scale.
pub(crate) fn floor_value(results: &Results, workload: &str, metric: &str) -> Option<f64> {
    results.floors.iter().find(|f| f.workload == workload && f.metric == metric)?.floor
}

/// A trial's own value of a metric.
pub(crate) fn trial_value(trial: &Trial, def: &MetricDef) -> Option<f64> {
    match &def.source {
        Source::Value => trial.metrics.get(&def.name).copied(),
        Source::Quantile { histogram, q } => {
            trial.histograms.get(histogram)?.quantile(*q).map(|ns| ns as f64)
        }
    }
    .filter(|v| v.is_finite())
}

/// Trials of one workload on one variant, in the order they were made.
pub(crate) fn trials<'a>(
    run: &'a Run,
    workload: &'a str,
    variant: &'a str,
) -> impl Iterator<Item = &'a Trial> {
    run.trials.iter().filter(move |t| t.workload == workload && t.variant == variant)
}

/// What the run was, in one line of figures: rounds, trials, void ones, faults, length.
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
        units::duration(seconds),
    )
}

/// The widest interval and its place in words, e.g. `widest interval: ±4.1 % (tcp-rr, RTT p99, nft-snat)`.
pub(crate) fn widest(run: &Run, results: &Results) -> Option<String> {
    let (half, place) = results.widest.as_ref()?;
    let parts: Vec<&str> = place.split('/').collect();
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

/// A judged headline metric of a variant.
struct Judged<'a> {
    row: &'a Row<'a>,
    words: &'a Words,
    /// What is certain of the effect: |ln ratio| at the near end of its interval, so that a wild estimate does
    /// not become the main result. Differences, which have units, come last.
    size: f64,
}

fn judged<'a>(rows: &'a [Row<'a>], results: &Results, variant: &str) -> Vec<Judged<'a>> {
    let mut out = Vec::new();
    for row in rows {
        for entry in row.entries.iter().filter(|e| e.variant.name == variant) {
            let Some(words) = &entry.words else { continue };
            let comparison =
                results.cell(&row.workload.name, &row.def.name, variant).and_then(|c| c.comparison);
            let near = |c: Comparison| {
                let (low, high) = c.effect_interval().unwrap_or((0.0, 0.0));
                low.abs().min(high.abs())
            };
            let size = comparison.filter(|c| c.ratio).map_or(0.0, near);
            out.push(Judged { row, words, size });
        }
    }
    out
}

/// The main result of each variant in words: how many headline metrics are worse, better, equal, open, and
/// the largest difference. The first element is the sentence for the whole run.
pub(crate) fn sentences(run: &Run, results: &Results) -> Vec<String> {
    let Some(baseline) = run.baseline() else {
        return vec!["This run has no baseline, so nothing is compared.".to_owned()];
    };
    let rows = rows(run, results, true);
    let mut leads = Vec::new();
    let mut details = Vec::new();
    for variant in compared(run).filter(|v| !v.baseline) {
        let judged = judged(&rows, results, &variant.name);
        let name = line(&variant.name);
        leads.push(format!("{name} {}", lead(&judged)));
        details.push(format!("{name}: {}.", tally(&judged)));
    }
    if leads.is_empty() {
        return vec![format!("Only {} was measured; there is nothing to compare it with.", line(baseline))];
    }
    let first = format!("Against {}, {}.", line(baseline), leads.join("; "));
    std::iter::once(first).chain(details).collect()
}

fn place(row: &Row<'_>) -> String {
    format!("{} {}", line(&row.workload.name), line(&row.def.label))
}

fn lead(judged: &[Judged<'_>]) -> String {
    let differing = judged.iter().filter(|j| matches!(j.words.tone, Tone::Better | Tone::Worse));
    match differing.max_by(|a, b| a.size.total_cmp(&b.size)) {
        Some(most) => {
            let others = judged.iter().filter(|j| j.words.tone == most.words.tone).count() - 1;
            let more = if others == 0 {
                String::new()
            } else {
                let way = if most.words.tone == Tone::Worse { "worse" } else { "better" };
                format!(" (and {way} in {})", plural(others, "more metric"))
            };
            format!("{}{more}", clause(most))
        }
        None if judged.is_empty() => "was not judged".to_owned(),
        None if judged.iter().all(|j| j.words.tone == Tone::Open) => "is not yet told apart".to_owned(),
        None => "shows no difference".to_owned(),
    }
}

/// `is slower by 12 % [9, 15] in tcp-egress goodput`, `has more CPU per Gbit by 8 % [5, 10] in tcp-egress`.
fn clause(judged: &Judged<'_>) -> String {
    let (text, workload) = (&judged.words.text, line(&judged.row.workload.name));
    let label = line(&judged.row.def.label);
    // A difference names its metric by itself ("more loss by ..").
    if judged.row.def.scale == Scale::Difference {
        return format!("has {text} in {workload}");
    }
    match text.split_once(" by ") {
        Some((word @ ("more" | "less"), amount)) => format!("has {word} {label} by {amount} in {workload}"),
        _ => format!("is {text} in {}", place(judged.row)),
    }
}

fn tally(judged: &[Judged<'_>]) -> String {
    let list = |tone: Tone, what: &str| -> Option<String> {
        let names: Vec<String> =
            judged.iter().filter(|j| j.words.tone == tone).map(|j| place(j.row)).collect();
        (!names.is_empty()).then(|| format!("{what} in {} ({})", names.len(), names.join(", ")))
    };
    let parts: Vec<String> = [
        list(Tone::Worse, "worse"),
        list(Tone::Better, "better"),
        list(Tone::Different, "different"),
        list(Tone::Equivalent, "equivalent"),
        list(Tone::NotSeen, "no difference seen"),
        list(Tone::Open, "open"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if parts.is_empty() { "not judged".to_owned() } else { parts.join("; ") }
}

/// How to read the verdicts, in short.
pub(crate) fn how_to_read(run: &Run) -> [String; 2] {
    let target = run.baseline().map_or("the baseline".to_owned(), line);
    [
        "value [95 % interval]; verdicts from ratios within rounds (Holm): ▲ better ▼ worse ◆ different"
            .to_owned(),
        format!(
            "= equivalent within ±{} ≈ below the noise floor ({target} against itself) ? open",
            percent(run.plan.equivalence_margin)
        ),
    ]
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
    cell.estimate.map_or("–".to_owned(), |e| quantity(def.unit, e.center, e.interval))
}
