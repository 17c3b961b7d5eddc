//! The result table and the table of faults.

use weir_record::results::Results;
use weir_record::{Run, Unit, VariantInfo};

use crate::diagnosed::{self, Said};
use crate::escape::line;
use crate::gateway::{Handled, handled};
use crate::markup::Markup;
use crate::view::{self, Entry, Row, compared};
use crate::words::{self, Tone, Words};

/// One table per workload: metrics down, variants across. Metrics without a say in the stop rule follow,
/// folded.
pub(super) fn results(out: &mut Markup, run: &Run, results: &Results) {
    out.note(
        "Value with its 95 % interval over trials; under it the verdict against the baseline with the 95 % \
         interval of the effect, from ratios within rounds.",
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

/// With more variants than this, they go down the page and the metrics across: a page scrolls down.
const MOST_ACROSS: usize = 5;

/// Metrics across, where they go across.
const METRICS_ACROSS: usize = 4;

/// One table per workload. Headline rows end with what the gateway handled, for which `gateway` holds the results;
/// details say whose CPU time they are instead.
fn table(out: &mut Markup, run: &Run, rows: &[Row<'_>], gateway: Option<&Results>) {
    for block in rows.chunk_by(|a, b| a.workload.name == b.workload.name) {
        let workload = block[0].workload;
        out.open("h3", &[]).text(&line(&workload.name));
        out.leaf("small", &[], &line(&workload.description)).close();
        let handled = gateway.map(|results| handled(run, results, workload)).unwrap_or_default();
        let details = gateway.is_none();
        if compared(run).count() <= MOST_ACROSS {
            variants_across(out, run, block, &handled, details);
            continue;
        }
        let last = block.len().div_ceil(METRICS_ACROSS) - 1;
        for (i, metrics) in block.chunks(METRICS_ACROSS).enumerate() {
            metrics_across(out, run, metrics, if i == last { &handled } else { &[] }, details);
        }
    }
}

/// Begins a table; its columns are as wide as in the tables with as many, so that the eye can run down the page.
fn begin(out: &mut Markup, columns: usize) {
    let class = format!("result min-{}", columns.min(8));
    out.open("div", &[("class", "wide")]).open("table", &[("class", &class)]);
    out.open("thead", &[]).open("tr", &[]);
}

fn variants_across(out: &mut Markup, run: &Run, block: &[Row<'_>], handled: &[Handled<'_>], details: bool) {
    begin(out, compared(run).count());
    out.leaf("th", &[("scope", "col")], "metric");
    for variant in compared(run) {
        variant_head(out, variant, "col");
    }
    out.close().close().open("tbody", &[]);
    for row in block {
        out.open("tr", &[]);
        metric_head(out, row, "row", details);
        row.entries.iter().for_each(|entry| cell(out, entry));
        out.close();
    }
    if !handled.is_empty() {
        out.open("tr", &[]);
        gateway_head(out, "row");
        compared(run).for_each(|variant| gateway_cell(out, variant, handled));
        out.close();
    }
    out.close().close().close();
}

fn metrics_across(out: &mut Markup, run: &Run, block: &[Row<'_>], handled: &[Handled<'_>], details: bool) {
    begin(out, METRICS_ACROSS);
    out.leaf("th", &[("scope", "col")], "variant");
    block.iter().for_each(|row| metric_head(out, row, "col", details));
    if !handled.is_empty() {
        gateway_head(out, "col");
    }
    out.close().close().open("tbody", &[]);
    for (i, variant) in compared(run).enumerate() {
        out.open("tr", &[]);
        variant_head(out, variant, "row");
        block.iter().filter_map(|row| row.entries.get(i)).for_each(|entry| cell(out, entry));
        if !handled.is_empty() {
            gateway_cell(out, variant, handled);
        }
        out.close();
    }
    out.close().close().close();
}

fn variant_head(out: &mut Markup, variant: &VariantInfo, scope: &str) {
    out.open("th", &[("scope", scope)]).text(&line(&variant.name));
    if variant.baseline {
        out.leaf("span", &[("class", "what")], "baseline");
    }
    out.close();
}

fn metric_head(out: &mut Markup, row: &Row<'_>, scope: &str, details: bool) {
    let help = line(&row.def.help);
    out.open("th", &[("scope", scope), ("title", &help)]).text(&line(&row.def.label));
    if let Some(floor) = row.floor_words() {
        // A narrow column breaks its line; not between the number and its sign.
        out.leaf("span", &[("class", "what")], &floor.replace(" %", "\u{a0}%"));
    }
    // Whose CPU it is and for what cannot be left to a tooltip.
    let of_cpu = matches!(row.def.unit, Unit::Cores | Unit::CpuNs | Unit::CpuSecondsPerGbit);
    if details && of_cpu && !help.is_empty() {
        out.leaf("span", &[("class", "what")], &help);
    }
    out.close();
}

fn gateway_head(out: &mut Markup, scope: &str) {
    out.open("th", &[("scope", scope)]).text("at the gateway");
    out.leaf("span", &[("class", "what")], "skbs (packets) that its kernel handled, both ways").close();
}

/// How many packets a variant's gateway handled, and how large.
fn gateway_cell(out: &mut Markup, variant: &VariantInfo, handled: &[Handled<'_>]) {
    out.open("td", &[]);
    match handled.iter().find(|h| h.variant.name == variant.name) {
        Some(handled) => {
            out.leaf("b", &[], handled.rate()).leaf("span", &[("class", "what loose")], &handled.size());
        }
        None => {
            out.text("–");
        }
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

/// Writes the costs of variants apart from traffic, and how they were measured.
pub(super) fn setup_cost(out: &mut Markup, takes: &crate::setup_cost::SetupCost<'_>) {
    out.note("Measured when the variant was set up, with no traffic on it.");
    out.open("div", &[("class", "wide")]).open("table", &[]).open("thead", &[]).open("tr", &[]);
    out.leaf("th", &[("scope", "col")], "variant");
    takes.heads.iter().for_each(|head| {
        out.leaf("th", &[("scope", "col")], head);
    });
    out.close().close().open("tbody", &[]);
    for (variant, cells) in &takes.rows {
        out.open("tr", &[]);
        out.leaf("th", &[("scope", "row")], &line(&variant.name));
        cells.iter().for_each(|cell| {
            out.leaf("td", &[], cell);
        });
        out.close();
    }
    out.close().close().close();
    out.open("ul", &[]);
    takes.notes.iter().for_each(|note| {
        out.leaf("li", &[], note);
    });
    out.close();
}

/// Writes the doctor's findings at the gateway, and what it could not see.
pub(super) fn diagnoses(out: &mut Markup, run: &Run) {
    let said = diagnosed::said(run);
    if !said.is_empty() {
        causes(out, &said);
    }
    for note in diagnosed::notes(run) {
        out.leaf("p", &[], &note);
    }
}

fn causes(out: &mut Markup, said: &[Said<'_>]) {
    out.open("div", &[("class", "wide")]).open("table", &[]).open("thead", &[]).open("tr", &[]);
    for head in ["cause", "variant, workload", "how often", "what was seen, and what helps"] {
        out.leaf("th", &[("scope", "col")], head);
    }
    out.close().close().open("tbody", &[]);
    for said in said {
        out.open("tr", &[]);
        out.leaf("th", &[("scope", "row")], &line(&said.finding.cause));
        out.leaf("td", &[], &said.place());
        out.leaf("td", &[], &said.often());
        out.open("td", &[]).text(&line(&said.finding.summary));
        for command in &said.finding.commands {
            out.empty("br", &[]);
            out.leaf("code", &[], &line(command));
        }
        for (what, text) in said.aftermath() {
            out.empty("br", &[]).text(&format!("{what}: {text}"));
        }
        out.close().close();
    }
    out.close().close().close();
}

/// Writes the tester's own faults, and which trials are left out because of them.
pub(super) fn faults(out: &mut Markup, run: &Run, results: &Results) {
    if results.faults.is_empty() {
        let text = format!("None: in all {} the tester kept up.", words::plural(run.trials.len(), "trial"));
        out.leaf("p", &[], &text);
        return;
    }
    out.note(
        "A fault is something the tester did wrong; it never counts against a variant. Trials that are void \
         because of one are left out of every comparison and marked × under “Every trial”.",
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
