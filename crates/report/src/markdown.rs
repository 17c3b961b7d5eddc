//! GitHub's Markdown: for issues, pull requests and READMEs. No raw HTML.

use weir_record::{HostFacts, Run};

use crate::curves::{self, Curve};
use crate::escape::{line, markdown as text};
use crate::pairs::{self, PairRow};
use crate::patterns::{self, View};
use crate::sentences::sentences;
use crate::view::{self, Row};
use crate::{diagnosed, gateway, profile, setup_cost, spread, summary, words};

/// The run as Markdown: what came out in words, the result table, faults, and where it was made.
pub fn markdown(run: &Run) -> String {
    let mut out = format!("## {}\n\n", text(&run.title));
    let Some(results) = &run.results else {
        out.push_str(&format!("No results: {}.\n", text(&words::status(&run.status))));
        return out;
    };
    out.push_str(&format!("{}\n\n", text(&summary::text(run, results))));
    let details: String =
        sentences(run, results).iter().skip(1).map(|s| format!("- {}\n", text(s))).collect();
    if !details.is_empty() {
        out.push_str(&format!("{details}\n"));
    }
    if let Some(view) = patterns::view(run, results) {
        push_patterns(&mut out, &view);
    }
    let rows = view::rows(run, results, true);
    if !rows.is_empty() {
        out.push_str("| workload | metric | variant | value [95 % interval] | against the baseline | n |\n");
        out.push_str("|---|---|---|---:|---|---:|\n");
        rows.iter().for_each(|row| push_row(&mut out, row));
        out.push('\n');
    }
    curves::curves(run, results).iter().for_each(|curve| push_curve(&mut out, curve));
    push_pairs(&mut out, &pairs::rows(run, results));
    push_spread(&mut out, &spread::rows(run, results));
    push_gateway(&mut out, run, results);
    push_time_spent(&mut out, run, results);
    push_diagnoses(&mut out, run);
    push_takes(&mut out, run);
    out.push_str(&format!("{}; {}.\n\n", view::extent(run, results), text(&words::status(&run.status))));
    push_faults(&mut out, results);
    for host in &run.hosts {
        out.push_str(&format!("- {}\n", text(&host_line(host))));
    }
    out.push_str(&format!(
        "- scenario {}, testbed {}, seed {}, weir {}, started {}\n",
        text(&run.scenario),
        text(&run.testbed),
        run.seed,
        text(&run.weir),
        text(&run.started)
    ));
    for note in &run.notes {
        out.push_str(&format!("- {}\n", text(note)));
    }
    out.push('\n');
    for line in view::how_to_read(run, results) {
        out.push_str(&format!("{}\n", text(&line)));
    }
    out
}

/// The table of ways to connect, and what each dimension does.
fn push_patterns(out: &mut String, view: &View<'_>) {
    let once = view.found.once.is_some();
    let unit = view.shown.symbol;
    let first = if once { format!(" average {}, {unit} |", text(&view.once_head())) } else { String::new() };
    out.push_str(&format!(
        "| way to connect | labels |{first} {}, {unit} | between repeats | inside a repeat | n |\n",
        text(&view.range_head())
    ));
    out.push_str(&format!("|---|---|{}---:|---|---:|---:|\n", if once { "---:|" } else { "" }));
    for row in &view.rows {
        let first = if once { format!(" {} |", text(&row.once)) } else { String::new() };
        let levels = row.levels.as_ref().map(|l| format!("; {l}")).unwrap_or_default();
        let void = if row.pattern.void > 0 { format!(" ({} void)", row.pattern.void) } else { String::new() };
        out.push_str(&format!(
            "| {} | {} |{first} {} | {} | {} | {}{void} |\n",
            text(&row.name),
            text(&row.labels),
            text(&row.range),
            text(&format!("{} {}{levels}", row.words.tone.symbol(), row.words.text)),
            text(row.within.as_deref().unwrap_or("–")),
            row.pattern.repeats
        ));
    }
    out.push_str(&format!("\n{}\n\n", text(&view.floor())));
    if view.found.dimensions.is_empty() {
        return;
    }
    out.push_str("| dimension | values | difference | as a share | made comparable by | rounds |\n");
    out.push_str("|---|---|---|---:|---|---:|\n");
    for found in &view.found.dimensions {
        let words = view.effect_words(found);
        out.push_str(&format!(
            "| {} | {} | {} | {} | {} | {} |\n",
            text(&found.dimension),
            text(&patterns::sides(found)),
            text(&format!("{} {}", words.tone.symbol(), words.text)),
            text(&view.effect_share(found)),
            text(&patterns::matching(found)),
            found.difference.n
        ));
    }
    out.push('\n');
}

fn push_row(out: &mut String, row: &Row<'_>) {
    for (i, entry) in row.entries.iter().enumerate() {
        let (workload, label) = if i == 0 {
            (text(&row.workload.name), text(&row.def.label))
        } else {
            (String::new(), String::new())
        };
        let against = match (&entry.words, entry.variant.baseline) {
            (_, true) => row.baseline_words(),
            (Some(words), _) => format!("{} {}", words.tone.symbol(), words.text),
            (None, _) => "–".to_owned(),
        };
        let void = if entry.void > 0 { format!(" ({} void)", entry.void) } else { String::new() };
        out.push_str(&format!(
            "| {workload} | {label} | {} | {} | {} | {}{void} |\n",
            text(&entry.variant.name),
            text(&entry.value),
            text(&against),
            entry.n
        ));
    }
}

/// Values down, lines across.
fn push_curve(out: &mut String, curve: &Curve<'_>) {
    let head: Vec<String> = curve.lines.iter().map(|line| text(&line.name)).collect();
    out.push_str(&format!("{}, {}:\n\n", text(&line(&curve.family)), text(&curve.axis())));
    out.push_str(&format!(
        "| {} | {} |\n|---:{}|\n",
        text(&curve.key),
        head.join(" | "),
        "|---:".repeat(head.len())
    ));
    for value in curve.values() {
        let cells = curve.lines.iter().map(|line| {
            let spot = line.at(value);
            let words = spot.and_then(|s| s.words.as_ref());
            let said = words.map(|w| format!(" {} {}", w.tone.symbol(), w.short())).unwrap_or_default();
            text(&format!("{}{said}", curve.value(spot)))
        });
        let cells: Vec<String> = cells.collect();
        out.push_str(&format!("| {} | {} |\n", curves::figure(value), cells.join(" | ")));
    }
    out.push('\n');
}

fn push_pairs(out: &mut String, rows: &[PairRow<'_>]) {
    if !rows.iter().any(|r| r.main) {
        return;
    }
    out.push_str("| workload | against | metric | variant | both values | within rounds |\n");
    out.push_str("|---|---|---|---|---:|---|\n");
    for row in rows.iter().filter(|r| r.main) {
        out.push_str(&format!(
            "| {} | {} | {} | {} | {} | {} |\n",
            text(&row.found.workload),
            text(&row.found.with),
            text(&row.def.label),
            text(&row.variant.name),
            text(&row.values),
            text(&row.said())
        ));
    }
    out.push('\n');
}

fn push_spread(out: &mut String, rows: &[spread::Spread]) {
    if rows.is_empty() {
        return;
    }
    out.push_str(&format!("| workload | metric | variant | value | {} |\n", spread::TITLE));
    out.push_str("|---|---|---|---:|---|\n");
    for row in rows {
        let cells = [&row.workload, &row.metric, &row.variant, &row.value, &row.said].map(|cell| text(cell));
        out.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    out.push('\n');
}

fn push_gateway(out: &mut String, run: &Run, results: &weir_record::results::Results) {
    let said = view::workloads(run).filter_map(|w| {
        let sentence = gateway::sentence(&gateway::handled(run, results, w))?;
        Some(format!("- {}: {}\n", text(&w.name), text(&sentence)))
    });
    let lines: String = said.collect();
    if !lines.is_empty() {
        out.push_str(&lines);
        out.push('\n');
    }
}

fn push_time_spent(out: &mut String, run: &Run, results: &weir_record::results::Results) {
    if !profile::any(run) {
        return;
    }
    out.push_str(
        "| workload | variant | time per packet | where the gateway's time goes, sampled | samples |\n",
    );
    out.push_str("|---|---|---:|---|---:|\n");
    for workload in &run.workloads {
        for spent in profile::spent(run, results, workload) {
            out.push_str(&format!(
                "| {} | {} | {} | {} | {} |\n",
                text(&workload.name),
                text(&spent.variant.name),
                text(&spent.per_packet().unwrap_or_else(|| "–".to_owned())),
                text(&spent.sentence()),
                spent.profile.gateway_samples
            ));
        }
    }
    out.push('\n');
}

fn push_diagnoses(out: &mut String, run: &Run) {
    if !diagnosed::any(run) {
        return;
    }
    let said = diagnosed::said(run);
    if !said.is_empty() {
        out.push_str(
            "| variant, workload | how often | what the doctor found at the gateway |\n|---|---|---|\n",
        );
        for said in said {
            let row = [said.place(), said.often(), said.sentence()].map(|cell| text(&cell));
            out.push_str(&format!("| {} |\n", row.join(" | ")));
        }
        out.push('\n');
    }
    diagnosed::notes(run).iter().for_each(|note| out.push_str(&format!("{}\n\n", text(note))));
}

fn push_takes(out: &mut String, run: &Run) {
    let Some(takes) = setup_cost::setup_cost(run) else { return };
    let heads: Vec<String> = takes.heads.iter().map(|head| text(head)).collect();
    out.push_str(&format!("{}:\n\n", setup_cost::TITLE));
    out.push_str(&format!("| variant | {} |\n|---{}|\n", heads.join(" | "), "|---:".repeat(heads.len())));
    for (variant, cells) in &takes.rows {
        let cells: Vec<String> = cells.iter().map(|cell| text(cell)).collect();
        out.push_str(&format!("| {} | {} |\n", text(&variant.name), cells.join(" | ")));
    }
    out.push('\n');
    takes.notes.iter().for_each(|note| out.push_str(&format!("- {}\n", text(note))));
    out.push('\n');
}

fn push_faults(out: &mut String, results: &weir_record::results::Results) {
    if results.faults.is_empty() {
        return;
    }
    out.push_str("| fault of the tester | workload | variant | trials | left out | first one |\n");
    out.push_str("|---|---|---|---:|---:|---|\n");
    for fault in &results.faults {
        out.push_str(&format!(
            "| {} | {} | {} | {} | {} | {} |\n",
            words::fault(fault.code),
            text(&fault.workload),
            text(&fault.variant),
            fault.trials,
            fault.void,
            text(&fault.example)
        ));
    }
    out.push('\n');
}

/// A host in one line.
pub(crate) fn host_line(host: &HostFacts) -> String {
    let memory = crate::units::quantity(weir_record::Unit::Bytes, host.memory_bytes as f64, None);
    let machine = if host.virtual_machine { ", virtual machine" } else { "" };
    format!(
        "{}: {} ({}), Linux {} {}, {}, {}, {memory}{machine}",
        host.role,
        host.hostname,
        host.transport,
        host.kernel,
        host.machine,
        host.cpu_model,
        words::plural(host.cpus as usize, "core")
    )
}
