//! The result table and the table of faults.

use weir_record::results::Results;
use weir_record::{Run, Unit};

use crate::escape::line;
use crate::gateway::{Handled, handled};
use crate::markup::Markup;
use crate::view::{self, Entry, Row, compared};
use crate::words::{self, Tone, Words};

/// One table per workload: metrics down, variants across. Metrics without a say in the stop rule follow,
/// folded.
pub(super) fn results(out: &mut Markup, run: &Run, results: &Results) {
    out.leaf(
        "p",
        &[("class", "note")],
        "Value with its 95 % interval over trials; under it the verdict against the baseline with the 95 % \
         interval of \
         the effect, from ratios within rounds.",
    );
    table(out, run, &view::rows(run, results, true), Some(results));
    let details = view::rows(run, results, false);
    if !details.is_empty() {
        out.open("details", &[]);
        out.leaf("summary", &[], &words::plural(details.len(), "more metric"));
        table(out, run, &details, None);
        out.close();
    }
}

/// Headline rows end with what the gateway handled, for which `gateway` holds the results; details say whose CPU time
/// they are instead.
fn table(out: &mut Markup, run: &Run, rows: &[Row<'_>], gateway: Option<&Results>) {
    for block in rows.chunk_by(|a, b| a.workload.name == b.workload.name) {
        let workload = block[0].workload;
        out.open("h3", &[]).text(&line(&workload.name));
        out.leaf("small", &[], &line(&workload.description)).close();
        // Columns as wide as in the other workloads' tables, so that the eye can run down the page.
        let class = format!("result min-{}", compared(run).count().min(8));
        out.open("div", &[("class", "wide")]).open("table", &[("class", &class)]);
        out.open("thead", &[]).open("tr", &[]);
        out.leaf("th", &[("scope", "col")], "metric");
        for variant in compared(run) {
            out.open("th", &[("scope", "col")]).text(&line(&variant.name));
            if variant.baseline {
                out.leaf("span", &[("class", "what")], "baseline");
            }
            out.close();
        }
        out.close().close().open("tbody", &[]);
        for row in block {
            out.open("tr", &[]);
            let help = line(&row.def.help);
            out.open("th", &[("scope", "row"), ("title", &help)]).text(&line(&row.def.label));
            if let Some(floor) = row.floor_words() {
                out.leaf("span", &[("class", "what")], &floor);
            }
            // Whose CPU it is and for what cannot be left to a tooltip.
            let of_cpu = matches!(row.def.unit, Unit::Cores | Unit::CpuNs | Unit::CpuSecondsPerGbit);
            if gateway.is_none() && of_cpu && !help.is_empty() {
                out.leaf("span", &[("class", "what")], &help);
            }
            out.close();
            row.entries.iter().for_each(|entry| cell(out, entry));
            out.close();
        }
        if let Some(results) = gateway {
            gateway_row(out, run, &handled(run, results, workload));
        }
        out.close().close().close();
    }
}

/// How many packets the gateway's kernel handled, and how large.
fn gateway_row(out: &mut Markup, run: &Run, all: &[Handled<'_>]) {
    if all.is_empty() {
        return;
    }
    out.open("tr", &[]);
    out.open("th", &[("scope", "row")]).text("at the gateway");
    out.leaf("span", &[("class", "what")], "packets (skbs) that its kernel handled, both ways").close();
    for variant in compared(run) {
        out.open("td", &[]);
        match all.iter().find(|h| h.variant.name == variant.name) {
            Some(handled) => {
                out.leaf("b", &[], handled.rate()).leaf("span", &[("class", "what")], &handled.size());
            }
            None => {
                out.text("–");
            }
        }
        out.close();
    }
    out.close();
}

fn cell(out: &mut Markup, entry: &Entry<'_>) {
    out.open("td", &[]);
    let (value, interval) = split_interval(&entry.value);
    out.leaf("b", &[], value);
    if let Some(interval) = interval {
        out.text(" ").leaf("span", &[("class", "ci")], interval);
    }
    if let Some(words) = &entry.words {
        verdict(out, words);
        // An effect that the words leave out is still shown; a time in time units is, since those add up.
        let unsaid = entry.effect.clone().filter(|_| !words.is_difference());
        let extra: Vec<String> = [unsaid, entry.added.clone()].into_iter().flatten().collect();
        if !extra.is_empty() {
            out.leaf("span", &[("class", "what")], &extra.join("; "));
        }
    }
    let void = if entry.void > 0 { format!(", {} void", entry.void) } else { String::new() };
    if entry.n + entry.void > 0 {
        out.leaf("span", &[("class", "what")], &format!("n = {}{void}", entry.n));
    }
    out.close();
}

/// A verdict with its sign and colour.
pub(super) fn verdict(out: &mut Markup, words: &Words) {
    let class = format!("verdict {}", words.tone.class());
    // The row's head names the floor already.
    let text = if words.tone == Tone::NotSeen { words.short() } else { words.text.clone() };
    let (text, interval) = split_interval(&text);
    out.open("span", &[("class", &class)]).text(&format!("{} {text}", words.tone.symbol()));
    if let Some(interval) = interval {
        out.text(" ").leaf("span", &[("class", "whole")], interval);
    }
    out.close();
}

/// Text before and from its interval in brackets (or its bound), which must not be broken.
pub(super) fn split_interval(text: &str) -> (&str, Option<&str>) {
    let bound = || text.find(", below ").map(|at| at + 1);
    text.find('[')
        .or_else(bound)
        .map_or((text, None), |at| (text[..at].trim_end(), Some(text[at..].trim_start())))
}

/// What the tester itself did wrong, and which trials are left out because of it.
pub(super) fn faults(out: &mut Markup, run: &Run, results: &Results) {
    if results.faults.is_empty() {
        let text = format!("None: in all {} the tester kept up.", words::plural(run.trials.len(), "trial"));
        out.leaf("p", &[], &text);
        return;
    }
    out.leaf(
        "p",
        &[("class", "note")],
        "A fault is something the tester did wrong; it never counts against a variant. Trials that are void \
         because \
         of one are left out of every comparison and marked × under “Every trial”.",
    );
    out.open("div", &[("class", "wide")]).open("table", &[]).open("thead", &[]).open("tr", &[]);
    for head in ["fault", "workload", "variant", "trials", "left out", "the first one"] {
        out.leaf("th", &[("scope", "col")], head);
    }
    out.close().close().open("tbody", &[]);
    for fault in &results.faults {
        out.open("tr", &[]);
        let left_out = if fault.void == 0 { "none".to_owned() } else { fault.void.to_string() };
        out.leaf("th", &[("scope", "row")], words::fault(fault.code));
        for text in [
            line(&fault.workload),
            line(&fault.variant),
            fault.trials.to_string(),
            left_out,
            line(&fault.example),
        ] {
            out.leaf("td", &[], &text);
        }
        out.close();
    }
    out.close().close().close();
}
