//! The comparison of two runs as text.

use weir_record::{Better, MetricDef, Scale, Unit};
use weir_stats::{Censored, Verdict};
use weir_text::layout::{Terminal, ellipsis};

use crate::columns::{Text, layout, paragraph};
use crate::compare::{Change, RunComparison};
use crate::escape::{line, markdown as md};
use crate::units::{FAILED, delay, percent, quantity};
use crate::words::{Tone, Words, effect, verdict};

/// Said under every comparison, because it bounds what follows from it.
const READING: &str = "Values are medians over trials; percentiles count operations that failed as infinite. The effect is after against before with its 95 % interval, from \
    trials as two independent samples. Each noise floor was measured within a run: a machine that changed \
    between the runs shows as changed values, and not as changed costs.";

/// The verdict in words. A run that fails more, or of which more trials are void, is never the better one, whatever its other figures.
fn words(change: &Change) -> Words {
    let said = verdict(&change.metric, Some(&change.comparison), change.verdict);
    let said = Words { text: plain(change, &said), ..said };
    let but = match said.tone {
        Tone::Better if change.fails_more => ", but fails more",
        Tone::Worse if change.fails_less && change.metric.failure.is_none() => ", but fails less",
        Tone::Better if change.void_more => ", but more of its trials are void",
        Tone::Worse if change.void_less => ", but fewer of its trials are void",
        Tone::Better if change.answered_only == (false, true) => " of those answered, once of all",
        Tone::Worse if change.answered_only == (true, false) => " of all, once of those answered",
        _ => return said,
    };
    Words { tone: Tone::Different, text: said.text + but }
}

/// The words for what failed, and for effects without a size.
fn plain(change: &Change, said: &Words) -> String {
    let (def, estimate) = (&change.metric, change.comparison.estimate);
    if !matches!(change.verdict, Verdict::Higher | Verdict::Lower) {
        return said.text.clone();
    }
    if def.failure.is_some() {
        let label = line(&def.label);
        let text = said.text.replacen(&format!("more {label}"), "fails more", 1);
        return text.replacen(&format!("less {label}"), "fails less", 1);
    }
    let is_dead = |better| change.comparison.ratio && def.better == better;
    match (is_dead(Better::Lower), is_dead(Better::Higher)) {
        (true, _) if estimate.is_infinite() => "slower: fails".to_owned(),
        (true, _) if estimate == 0.0 => "faster: failed before".to_owned(),
        (_, true) if estimate.is_infinite() => "faster: nothing came through before".to_owned(),
        (_, true) if estimate == 0.0 => "slower: nothing comes through".to_owned(),
        _ => endless(&said.text),
    }
}

/// The same with the sign for a bound that is infinite.
fn endless(text: &str) -> String {
    text.replace("inf]", "∞]").replace("[−inf", "[−∞").replace("×inf", "×∞").replace("[inf", "[∞")
}

/// Stands behind a percentile of those that were answered.
const ANSWERED: &str = "*";

/// Returns the meaning of that sign, if the comparison uses it.
fn answered_note(comparison: &RunComparison) -> Option<&'static str> {
    let mut changes = comparison.values.iter().chain(&comparison.costs);
    changes.any(|change| change.answered_only != (false, false)).then_some(
        "* percentile of those answered (record schema 1): what failed or did not end is left out.",
    )
}

/// Who fails more in the second run, with both shares.
fn failing(comparison: &RunComparison) -> Vec<String> {
    let more =
        comparison.values.iter().filter(|c| c.metric.failure.is_some() && c.verdict == Verdict::Higher);
    more.map(|c| {
        let (before, after) = (percent(c.before), percent(c.after));
        format!("{} fails more in {}: {after} {}, {before} before", c.variant, c.workload, c.metric.label)
    })
    .collect()
}

fn differing(changes: &[Change]) -> usize {
    changes.iter().filter(|c| matches!(c.verdict, Verdict::Higher | Verdict::Lower)).count()
}

/// The main result: who fails more, and how much changed.
fn sentence(comparison: &RunComparison) -> String {
    let part = |changes: &[Change], what: &str| {
        format!("{} of {} {what} changed", differing(changes), changes.len())
    };
    let costs = part(&comparison.costs, "costs against the baseline");
    let mut sentences = failing(comparison);
    sentences.push(format!("{}; {}.", part(&comparison.values, "values"), costs));
    sentences.join(". ")
}

/// A cost against the baseline as `−5.1 %` or in the metric's unit; a value as it is.
fn figure(change: &Change, value: Censored, cost: bool) -> String {
    let Censored { value, known } = value;
    let sign = if known { "" } else { "> " };
    if value.is_infinite() {
        return if value > 0.0 { FAILED.to_owned() } else { format!("baseline {FAILED}") };
    }
    if !cost {
        return match change.metric.unit {
            Unit::Ns => delay(Censored { value, known }),
            unit => quantity(unit, value, None),
        };
    }
    let as_comparison = weir_stats::Comparison {
        estimate: value,
        interval: None,
        ratio: is_ratio(&change.metric),
        ..change.comparison
    };
    if is_ratio(&change.metric) && value < 2.0 {
        let percent = (value - 1.0) * 100.0;
        return format!("{sign}{} %", crate::words::signed(percent, 1));
    }
    format!("{sign}{}", effect(&change.metric, &as_comparison))
}

/// Both figures of a change.
fn figures(change: &Change, cost: bool) -> [String; 2] {
    let (before, after) = change.at_least;
    let of = |value, at_least: bool, answered: bool| {
        let sign = if answered { ANSWERED } else { "" };
        format!("{}{sign}", figure(change, Censored { value, known: !at_least }, cost))
    };
    [of(change.before, before, change.answered_only.0), of(change.after, after, change.answered_only.1)]
}

fn is_ratio(def: &MetricDef) -> bool {
    def.scale == Scale::Ratio
}

/// The comparison as text for people; no line is wider than the terminal.
pub fn comparison_terminal(comparison: &RunComparison, to: Terminal) -> String {
    let mut out = String::new();
    let title = format!("{}: {} against {}", comparison.scenario, comparison.after.id, comparison.before.id);
    let title = Text { text: ellipsis(&line(&title), to.width()), bold: true, ..Text::default() };
    out.push_str(&title.painted(to));
    out.push('\n');
    out.push_str(&paragraph(&sentence(comparison), 0, to));
    for warning in &comparison.warnings {
        out.push_str(&paragraph(&format!("! {}", line(warning)), 0, to));
    }
    for (heading, changes, cost) in [
        ("values", &comparison.values, false),
        ("cost against the baseline of the same run", &comparison.costs, true),
    ] {
        if changes.is_empty() {
            continue;
        }
        out.push('\n');
        out.push_str(&Text { text: heading.to_owned(), bold: true, ..Text::default() }.painted(to));
        out.push('\n');
        let mut rows: Vec<Vec<Text>> = Vec::new();
        for group in changes.chunk_by(|a, b| a.workload == b.workload && a.metric.name == b.metric.name) {
            let label = format!("{} {}", line(&group[0].workload), line(&group[0].metric.label));
            rows.push(vec![Text { text: label, bold: true, ..Text::default() }]);
            rows.extend(group.iter().map(|change| terminal_row(change, cost)));
        }
        // A metric's name may be wider than the column of variants under it.
        let (labels, limits) = if to.width() >= 100 { (36, 27) } else { (22, 26) };
        out.push_str(&layout(&rows, &[labels, limits], 1, to));
    }
    out.push('\n');
    for note in answered_note(comparison).into_iter().chain([READING]) {
        out.push_str(&paragraph(note, 0, to));
    }
    out
}

fn terminal_row(change: &Change, cost: bool) -> Vec<Text> {
    let said = words(change);
    let text = format!("{} {}", said.tone.symbol(), said.text);
    let short = format!("{} {}", said.tone.symbol(), said.short());
    let figures = figures(change, cost).join(" → ");
    vec![
        format!(" {}", line(&change.variant)).into(),
        figures.into(),
        Text { text, tone: Some(said.tone), bold: false, short: Some(short) },
    ]
}

/// The comparison as GitHub's Markdown, without raw HTML.
pub fn comparison_markdown(comparison: &RunComparison) -> String {
    let mut out =
        format!("## {}: what changed\n\n{}\n\n", md(&comparison.scenario), md(&sentence(comparison)));
    for (which, run) in [("before", &comparison.before), ("after", &comparison.after)] {
        out.push_str(&format!("- {which}: {} ({}, weir {})\n", md(&run.id), md(&run.started), md(&run.weir)));
    }
    for warning in &comparison.warnings {
        out.push_str(&format!("- **differs:** {}\n", md(warning)));
    }
    for (heading, changes, cost) in [
        ("Values", &comparison.values, false),
        ("Cost against the baseline of the same run", &comparison.costs, true),
    ] {
        if changes.is_empty() {
            continue;
        }
        out.push_str(&format!("\n### {heading}\n\n"));
        out.push_str("| workload | metric | variant | before | after | effect | verdict | n |\n");
        out.push_str("|---|---|---|---:|---:|---:|---|---:|\n");
        for change in changes {
            let said = words(change);
            let [before, after] = figures(change, cost);
            out.push_str(&format!(
                "| {} | {} | {} | {} | {} | {} | {} {} | {}, {} |\n",
                md(&change.workload),
                md(&change.metric.label),
                md(&change.variant),
                md(&before),
                md(&after),
                md(&endless(&effect(&change.metric, &change.comparison))),
                said.tone.symbol(),
                md(&said.text),
                change.n.0,
                change.n.1
            ));
        }
    }
    for note in answered_note(comparison).into_iter().chain([READING]) {
        out.push_str(&format!("\n{}\n", md(note)));
    }
    out
}
