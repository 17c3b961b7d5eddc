//! The results in sentences: no more than the verdicts allow.

use weir_record::results::{Results, VoidBias};
use weir_record::{Run, Scale};
use weir_stats::Comparison;
use weir_text::order;

use crate::curves;
use crate::escape::line;
use crate::failures::{self, MoreFailures};
use crate::path;
use crate::view::{Row, compared, everyone, rows, too_few};
use crate::words::{Tone, Words, plural};
use crate::{pairs, patterns};

/// A metric that was judged.
struct Judged {
    /// The workload, where the sentence does not begin with it.
    workload: Option<String>,
    label: String,
    scale: Scale,
    words: Words,
    /// Headline metrics can be the main result, details only where nothing else differs.
    headline: bool,
    /// The certain part of the effect: |ln ratio| at the near end of its interval, so that a wild estimate does not become the
    /// main result. Differences, which have units, come last.
    size: f64,
    /// Both shares, if this is a share of failed operations that is greater than the baseline's.
    fails: Option<MoreFailures>,
}

impl Judged {
    fn place(&self) -> String {
        self.workload.iter().chain([&self.label]).map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    /// ` in tcp-egress`, where the workload has to be named.
    fn within(&self) -> String {
        self.workload.as_ref().map(|w| format!(" in {w}")).unwrap_or_default()
    }
}

fn certain(comparison: Option<Comparison>) -> f64 {
    let near = |c: Comparison| {
        let (low, high) = c.effect_interval().unwrap_or((0.0, 0.0));
        low.abs().min(high.abs())
    };
    comparison.filter(|c| c.ratio).map_or(0.0, near)
}

/// The headline metrics of a variant.
fn of_variant(run: &Run, rows: &[Row<'_>], results: &Results, variant: &str) -> Vec<Judged> {
    let mut out = Vec::new();
    for row in rows {
        for entry in row.entries.iter().filter(|e| e.variant.name == variant) {
            let Some(words) = entry.words.clone() else { continue };
            let cell = results.cell(&row.workload.name, &row.def.name, variant);
            out.push(Judged {
                workload: Some(line(&row.workload.name)),
                label: line(&row.def.label),
                scale: row.def.scale,
                words,
                headline: row.def.headline,
                size: certain(cell.and_then(|c| c.comparison)),
                fails: MoreFailures::compare(run, results, (row.workload, row.def), variant),
            });
        }
    }
    out
}

/// How a variant stands against the baseline, over all its headline metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It fails more, or too many of its trials are void: nothing else counts.
    Fails,
    /// Worse in something, better in nothing.
    Worse,
    /// Worse in something, better in something else.
    Mixed,
    /// Better in something, worse in nothing.
    Better,
    /// Neither, and some comparisons are open.
    Open,
    /// No comparison is open, but some show no more than that a difference is below the noise floor.
    Unseen,
    /// Shown to be equal in everything.
    Equal,
}

/// The standing of each variant that was judged by itself, in the run's order.
pub(crate) fn standing<'a>(run: &'a Run, results: &Results) -> Vec<(&'a str, Standing)> {
    let rows = rows(run, results, true);
    let of = |name: &str| -> Option<Standing> {
        let judged = of_variant(run, &rows, results, name);
        let has = |tone: Tone| judged.iter().any(|j| j.words.tone == tone);
        let void = results.void_biases.iter().any(|b| b.variant == name);
        if judged.is_empty() {
            return None;
        }
        Some(match (has(Tone::Worse), has(Tone::Better)) {
            _ if void || has(Tone::Withheld) || judged.iter().any(|j| j.fails.is_some()) => Standing::Fails,
            (true, true) => Standing::Mixed,
            (true, false) => Standing::Worse,
            (false, true) => Standing::Better,
            (false, false) if has(Tone::Open) => Standing::Open,
            (false, false) if has(Tone::Different) => return None,
            (false, false) if has(Tone::NotSeen) => Standing::Unseen,
            (false, false) => Standing::Equal,
        })
    };
    let others = compared(run).filter(|v| !v.baseline);
    others.filter_map(|v| Some((v.name.as_str(), of(&v.name)?))).collect()
}

/// Returns the result in words. Traffic that the path does not carry at all comes before traffic that is slower on it, at the
/// front of the first sentence.
///
/// Before all of it stands what was found of ways to connect: a run that asks about them is about them.
pub(crate) fn sentences(run: &Run, results: &Results) -> Vec<String> {
    let others = other_sentences(run, results);
    let Some(view) = patterns::view(run, results) else { return others };
    let (lead, details) = view.sentences();
    // Failures come before the delay of operations that did not fail.
    let lead = failures::everywhere(run, results).into_iter().chain([lead]).collect::<Vec<_>>().join(" ");
    std::iter::once(lead).chain(details).chain(others).collect()
}

fn other_sentences(run: &Run, results: &Results) -> Vec<String> {
    let mut all = judged(run, results);
    let mut lead = path::sentences(run);
    lead.extend(void_sentences(results));
    if let (Some(first), false) = (all.first_mut(), lead.is_empty()) {
        lead.push(std::mem::take(first));
        *first = lead.join(" ");
    }
    all
}

/// The main result of comparisons: first the sentence for the whole run, then for each variant and each pair of workloads
/// how many metrics are worse, better, equal, open. Pairs of workloads lead: a scenario that names some asks about
/// them.
fn judged(run: &Run, results: &Results) -> Vec<String> {
    if let Some((made, needed)) = too_few(run, results) {
        let failures = failures::everywhere(run, results).map(|f| format!("{f} ")).unwrap_or_default();
        return vec![format!(
            "{failures}Too few rounds for verdicts: {made} made, {needed} needed. The values are what was measured; that they \
             differ shows nothing yet."
        )];
    }
    let mut leads = Vec::new();
    let mut details = Vec::new();
    if let Some((first, each)) = pair_sentences(run, results) {
        leads.push(first);
        details.extend(each);
    }
    let curves = curves::curves(run, results);
    match variant_sentences(run, results) {
        // The run compared points of curves, and the curves show the result.
        Err(_) if leads.is_empty() && !curves.is_empty() => leads.push(curves::lead(&curves)),
        Ok((first, each)) => {
            // A failure comes before any pair of workloads.
            let at = if failures::in_tables(run, results).is_none() { leads.len() } else { 0 };
            leads.insert(at, first);
            details.extend(each);
        }
        Err(none) if leads.is_empty() => leads.push(none),
        // The pairs are the result; that there is nothing else needs no words.
        Err(_) => {}
    }
    // Tables do not show the points of curves.
    leads.splice(0..0, failures::in_curves(run, results));
    details.extend(curves::sentences(&curves));
    std::iter::once(leads.join(" ")).chain(details).collect()
}

/// The sentence about all variants and one about each; the reason where there are none.
fn variant_sentences(run: &Run, results: &Results) -> Result<(String, Vec<String>), String> {
    let Some(baseline) = run.baseline() else {
        return Err("This run has no baseline, so nothing is compared.".to_owned());
    };
    let rows = rows(run, results, true);
    if rows.is_empty() {
        return Err("Nothing was measured.".to_owned());
    }
    let (mut leads, mut details) = (Vec::new(), Vec::new());
    for variant in compared(run).filter(|v| !v.baseline) {
        let judged = of_variant(run, &rows, results, &variant.name);
        let name = line(&variant.name);
        let fails = judged.iter().filter_map(|j| j.fails).map(|f| f.here).fold(0.0, f64::max);
        leads.push((fails, format!("{name} {}", lead(&judged))));
        details.push(format!("{name}: {}.", tally(&judged)));
    }
    if leads.is_empty() {
        let name = line(baseline);
        return Err(format!("Only {name} was measured; there is nothing to compare it with."));
    }
    // Those that fail most come first, the others in the run's order.
    order::by(&mut leads, |a, b| b.0.total_cmp(&a.0));
    let leads: Vec<String> = leads.into_iter().map(|(_, lead)| lead).collect();
    Ok((format!("Against {}, {}.", line(baseline), leads.join("; ")), details))
}

/// The same for workloads that are compared with each other; `None` where none are.
fn pair_sentences(run: &Run, results: &Results) -> Option<(String, Vec<String>)> {
    let rows = pairs::rows(run, results);
    let (mut leads, mut details) = (Vec::new(), Vec::new());
    for group in rows.chunk_by(pairs::PairRow::same_pair) {
        for variant in everyone(run) {
            let of_it = group.iter().filter(|r| r.main && r.variant.name == variant.name);
            let judged: Vec<Judged> = of_it
                .filter_map(|r| {
                    Some(Judged {
                        workload: None,
                        label: line(&r.def.label),
                        scale: r.def.scale,
                        words: r.words.clone()?,
                        headline: r.def.headline,
                        size: certain(r.found.comparison),
                        fails: None,
                    })
                })
                .collect();
            let name = format!("{} on {}", group[0].title(), line(&variant.name));
            leads.push(format!("{name} {}", lead(&judged)));
            details.push(format!("{name}: {}.", tally(&judged)));
        }
    }
    (!leads.is_empty()).then(|| (format!("{}.", leads.join("; ")), details))
}

/// Names the failures first, then the worst of the worse metrics, then the best of the better ones: no praise hides a fault.
fn lead(judged: &[Judged]) -> String {
    let failing =
        judged.iter().filter_map(|j| Some((j, j.fails?))).max_by(|a, b| a.1.here.total_cmp(&b.1.here));
    let of = |tone: Tone| judged.iter().filter(move |j| j.words.tone == tone && j.fails.is_none());
    let first = failing.map(|(j, fails)| fails.sentence(j.workload.as_deref(), &j.label));
    let of_tone = |tone: Tone, way: &str| {
        let most = of(tone).max_by(|a, b| a.headline.cmp(&b.headline).then(a.size.total_cmp(&b.size)))?;
        let others = of(tone).count() - 1;
        let more = if others == 0 {
            String::new()
        } else {
            format!(" (and {way} in {})", plural(others, "more metric"))
        };
        Some(format!("{}{more}", clause(most)))
    };
    let (worse, better) = (of_tone(Tone::Worse, "worse"), of_tone(Tone::Better, "better"));
    let bad: Vec<String> = first.into_iter().chain(worse).collect();
    match (bad.is_empty(), better) {
        (false, Some(better)) => format!("{}, but {better}", bad.join(", ")),
        (false, None) => bad.join(", "),
        (true, Some(better)) => better,
        (true, None) if judged.is_empty() => "was not judged".to_owned(),
        (true, None) if judged.iter().all(|j| j.words.tone == Tone::Open) => {
            "is not yet told apart".to_owned()
        }
        (true, None) => "shows no difference".to_owned(),
    }
}

/// Variants of which no winner is named, since too many of their trials are void.
fn void_sentences(results: &Results) -> Vec<String> {
    let one = |b: &VoidBias| {
        format!(
            "No winner is named for {} in {}: {} of {} trials are void, of the baseline's {} of {}.",
            line(&b.variant),
            line(&b.workload),
            b.void,
            b.trials,
            b.baseline_void,
            b.baseline_trials
        )
    };
    results.void_biases.iter().map(one).collect()
}

/// `is slower by 12 % [9, 15] in tcp-egress goodput`, `has more CPU per Gbit by 8 % [5, 10] in tcp-egress`.
fn clause(judged: &Judged) -> String {
    let (text, within) = (&judged.words.text, judged.within());
    // A difference names its metric by itself ("more loss by ..").
    if judged.scale == Scale::Difference {
        return format!("has {text}{within}");
    }
    match text.split_once(" by ") {
        Some((word @ ("more" | "less"), amount)) => {
            format!("has {word} {} by {amount}{within}", judged.label)
        }
        _ => format!("is {text} in {}", judged.place()),
    }
}

fn tally(judged: &[Judged]) -> String {
    let list = |tone: Tone, what: &str| -> Option<String> {
        let names: Vec<String> = judged.iter().filter(|j| j.words.tone == tone).map(Judged::place).collect();
        (!names.is_empty()).then(|| format!("{what} in {} ({})", names.len(), names.join(", ")))
    };
    let parts: Vec<String> = [
        list(Tone::Worse, "worse"),
        list(Tone::Better, "better"),
        list(Tone::Different, "different"),
        list(Tone::Equivalent, "equivalent"),
        list(Tone::NotSeen, "no difference seen"),
        list(Tone::Withheld, "better only without what failed"),
        list(Tone::Open, "open"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if parts.is_empty() { "not judged".to_owned() } else { parts.join("; ") }
}
