//! The comparison of two runs as text.

use weir_record::{MetricDef, Scale};
use weir_stats::Verdict;

use crate::columns::{Terminal, Text, layout, paragraph};
use crate::compare::{Change, RunComparison};
use crate::escape::{line, markdown as md};
use crate::units::quantity;
use crate::words::{Words, effect, verdict};

/// Said under every comparison, because it bounds what follows from it.
const READING: &str = "Values are medians; the effect is after against before with its 95 % interval, from \
    trials as two independent samples. Each noise floor was measured within a run: a machine that changed \
    between the runs shows as changed values, and not as changed costs.";

fn words(change: &Change) -> Words {
    verdict(&change.metric, Some(&change.comparison), change.verdict)
}

fn differing(changes: &[Change]) -> usize {
    changes.iter().filter(|c| matches!(c.verdict, Verdict::Higher | Verdict::Lower)).count()
}

/// The main result in one sentence.
fn sentence(comparison: &RunComparison) -> String {
    let part = |changes: &[Change], what: &str| {
        format!("{} of {} {what} changed", differing(changes), changes.len())
    };
    let costs = part(&comparison.costs, "costs against the baseline");
    format!("{}; {}.", part(&comparison.values, "values"), costs)
}

/// A cost against the baseline as `−5.1 %` or in the metric's unit; a value as it is.
fn figure(change: &Change, value: f64, cost: bool) -> String {
    if !cost {
        return quantity(change.metric.unit, value, None);
    }
    let as_comparison = weir_stats::Comparison {
        estimate: value,
        interval: None,
        ratio: is_ratio(&change.metric),
        ..change.comparison
    };
    if is_ratio(&change.metric) && value < 2.0 {
        let percent = (value - 1.0) * 100.0;
        return format!("{} %", crate::words::signed(percent, 1));
    }
    effect(&change.metric, &as_comparison)
}

fn is_ratio(def: &MetricDef) -> bool {
    def.scale == Scale::Ratio
}

/// The comparison as text for people; no line is wider than the terminal.
pub fn comparison_terminal(comparison: &RunComparison, to: Terminal) -> String {
    let mut out = String::new();
    let title = format!("{}: {} against {}", comparison.scenario, comparison.after.id, comparison.before.id);
    let title =
        Text { text: crate::columns::ellipsis(&line(&title), to.width()), bold: true, ..Text::default() };
    out.push_str(&to.paint(&title));
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
        out.push_str(&to.paint(&Text { text: heading.to_owned(), bold: true, ..Text::default() }));
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
    out.push_str(&paragraph(READING, 0, to));
    out
}

fn terminal_row(change: &Change, cost: bool) -> Vec<Text> {
    let said = words(change);
    let text = format!("{} {}", said.tone.symbol(), said.text);
    let short = format!("{} {}", said.tone.symbol(), said.short());
    let figures = format!("{} → {}", figure(change, change.before, cost), figure(change, change.after, cost));
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
            out.push_str(&format!(
                "| {} | {} | {} | {} | {} | {} | {} {} | {}, {} |\n",
                md(&change.workload),
                md(&change.metric.label),
                md(&change.variant),
                md(&figure(change, change.before, cost)),
                md(&figure(change, change.after, cost)),
                md(&effect(&change.metric, &change.comparison)),
                said.tone.symbol(),
                md(&said.text),
                change.n.0,
                change.n.1
            ));
        }
    }
    out.push_str(&format!("\n{}\n", md(READING)));
    out
}
