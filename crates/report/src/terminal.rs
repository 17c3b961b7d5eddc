//! The table at the end of a run.

use weir_record::results::Results;
use weir_record::{Run, WorkloadInfo};
use weir_text::layout::{GAP, ellipsis, wrap};
use weir_text::time::duration;

use crate::columns::{Text, layout, paragraph};
use crate::curves::{self, Curve, Spot};
use crate::escape::line;
use crate::pairs::{self, PairRow};
use crate::patterns::{self, View};
use crate::view::{self, Row};
use crate::{diagnosed, faults, gateway, profile, setup_cost, spread, summary, words};

pub use weir_text::layout::Terminal;

/// The run as text for people: one line per metric and variant with value, interval and verdict; under it how
/// many trials, which of them void and why, the noise floor, and how to read it. No line is wider than the
/// terminal.
pub fn terminal(run: &Run, to: Terminal) -> String {
    let mut out = String::new();
    let bold = |text: String| Text { text, bold: true, ..Text::default() };
    out.push_str(&bold(ellipsis(&line(&run.title), to.width())).painted(to));
    out.push('\n');
    let Some(results) = &run.results else {
        let text = format!(
            "{}; no results: {}",
            words::plural(run.trials.len(), "trial"),
            words::status(&run.status)
        );
        out.push_str(&paragraph(&text, 0, to));
        return out;
    };
    let seconds = run.trials.iter().map(|t| t.start_s + t.took_s).fold(0.0, f64::max);
    out.push_str(&paragraph(&format!("scenario {}, {}", line(&run.scenario), line(&run.testbed)), 0, to));
    out.push_str(&format!("\n{}", paragraph(&summary::text(run, results), 0, to)));
    if let Some(view) = patterns::view(run, results) {
        push_patterns(&mut out, &view, to);
    }
    let blocks = blocks(run, results, to.width() >= 100);
    // All blocks share the widths of their columns.
    let all: Vec<Vec<Text>> = blocks.iter().flat_map(|b| b.lines.clone()).collect();
    let limits: &[usize] = if to.width() >= 100 { &[18, 26, 40] } else { &[22, 27] };
    for block in &blocks {
        out.push('\n');
        for piece in wrap(&block.title, to.width(), to.width() - GAP) {
            out.push_str(&bold(piece).painted(to));
            out.push('\n');
        }
        out.push_str(&layout_like(&block.lines, &all, limits, to));
        if let Some(text) = &block.below {
            out.push_str(&paragraph(text, 1, to));
        }
    }
    push_spread(&mut out, run, results, to);
    for curve in curves::curves(run, results) {
        out.push('\n');
        push_curve(&mut out, &curve, to);
    }
    if diagnosed::any(run) {
        push_diagnoses(&mut out, run, to);
    }
    push_takes(&mut out, run, to);
    out.push('\n');
    out.push_str(&foot(run, results, seconds, to));
    out
}

/// The table of ways to connect, and what each dimension does.
fn push_patterns(out: &mut String, view: &View<'_>, to: Terminal) {
    let bold = |text: String| Text { text, bold: true, ..Text::default() };
    out.push_str(&format!(
        "\n{}\n",
        bold(format!("ways to connect: average round trip, {}", view.shown.symbol)).painted(to)
    ));
    let once = view.found.once.is_some();
    let mut head = vec![Text::default()];
    head.extend(once.then(|| bold(view.once_head())));
    head.extend([bold(view.range_head()), bold("between repeats".to_owned())]);
    let mut lines = vec![head];
    for row in &view.rows {
        let mut cells: Vec<Text> = vec![row.name.clone().into()];
        cells.extend(once.then(|| Text::from(row.once.clone())));
        let said = format!("{} {}", row.words.tone.symbol(), row.words.text);
        let levels = row.levels.as_ref().map(|l| format!("; {l}")).unwrap_or_default();
        let void = if row.pattern.void > 0 { format!(" ({} void)", row.pattern.void) } else { String::new() };
        cells.push(row.range.clone().into());
        cells.push(Text {
            text: format!("{said}{levels}{void}"),
            tone: Some(row.words.tone),
            ..Text::default()
        });
        lines.push(cells);
    }
    let limits: &[usize] = if once { &[18, 11, 24] } else { &[18, 24] };
    out.push_str(&layout(&lines, limits, 1, to));
    out.push_str(&paragraph(&view.floor(), 1, to));
    if view.found.dimensions.is_empty() {
        return;
    }
    out.push_str(&format!("\n{}\n", bold("by dimension, within rounds".to_owned()).painted(to)));
    let mut lines: Vec<Vec<Text>> = Vec::new();
    let mut last = "";
    for found in &view.found.dimensions {
        let name = if last == found.dimension { String::new() } else { line(&found.dimension) };
        last = &found.dimension;
        let words = view.effect_words(found);
        let marked =
            if found.confounded { format!("; {}", patterns::matching(found)) } else { String::new() };
        let text = format!("{} {}{marked}", words.tone.symbol(), words.text);
        let said = Text { text, tone: Some(words.tone), ..Text::default() };
        lines.push(vec![bold(name), patterns::sides(found).into(), said]);
    }
    out.push_str(&layout(&lines, &[12, 26], 1, to));
}

/// Widest name of a column of a curve.
const WIDEST_NAME: usize = 24;

/// A curve as a table, values down and lines across, as many of them side by side as fit.
fn push_curve(out: &mut String, curve: &Curve<'_>, to: Terminal) {
    use unicode_width::UnicodeWidthStr;
    let title = format!("{}: {} over {}", line(&curve.family), curve.axis(), curve.key);
    for piece in wrap(&title, to.width(), to.width() - GAP) {
        out.push_str(&Text { text: piece, bold: true, ..Text::default() }.painted(to));
        out.push('\n');
    }
    let values = curve.values();
    let mut columns: Vec<Vec<Text>> = vec![vec![Text::from(curve.key.clone())]];
    columns[0].extend(values.iter().map(|value| Text::from(curves::figure(*value))));
    for line in &curve.lines {
        let mut column = vec![Text::from(ellipsis(&line.name, WIDEST_NAME))];
        column.extend(values.iter().map(|value| curve_cell(curve, line.at(*value))));
        columns.push(column);
    }
    let widths: Vec<usize> =
        columns.iter().map(|c| c.iter().map(|t| t.text.width()).max().unwrap_or(0)).collect();
    let mut next = 1;
    while next < columns.len() {
        let (first, mut used) = (next, 1 + widths[0]);
        while next < columns.len() && (next == first || used + 2 + widths[next] <= to.width()) {
            used += 2 + widths[next];
            next += 1;
        }
        let shown: Vec<usize> = std::iter::once(0).chain(first..next).collect();
        let row = |i: usize| shown.iter().map(|c| columns[*c][i].clone()).collect::<Vec<Text>>();
        let rows: Vec<Vec<Text>> = (0..=values.len()).map(row).collect();
        let limits: Vec<usize> = shown[..shown.len() - 1].iter().map(|c| widths[*c]).collect();
        out.push_str(&layout(&rows, &limits, 1, to));
    }
}

/// Value, interval, and the sign of the verdict against the baseline.
fn curve_cell(curve: &Curve<'_>, spot: Option<&Spot>) -> Text {
    let value = curve.value(spot);
    match spot.and_then(|s| s.words.as_ref()) {
        Some(words) => Text {
            text: format!("{value} {}", words.tone.symbol()),
            tone: Some(words.tone),
            ..Text::default()
        },
        None => Text::from(value),
    }
}

/// Lines under a title.
struct Block {
    title: String,
    lines: Vec<Vec<Text>>,
    below: Option<String>,
}

/// One block per workload, and after them one per pair of workloads.
fn blocks(run: &Run, results: &Results, wide: bool) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let rows = view::rows(run, results, true);
    for group in rows.chunk_by(|a, b| a.workload.name == b.workload.name) {
        let workload = group[0].workload;
        blocks.push(Block {
            title: format!("{}: {}", line(&workload.name), line(&workload.description)),
            lines: group.iter().flat_map(|row| row_lines(row, wide)).collect(),
            below: gateway::sentence(&gateway::handled(run, results, workload)),
        });
    }
    blocks.extend(run.workloads.iter().filter_map(|workload| time_spent(run, results, workload, wide)));
    let rows: Vec<PairRow<'_>> = pairs::rows(run, results).into_iter().filter(|r| r.main).collect();
    for group in rows.chunk_by(PairRow::same_pair) {
        let of_metric = group.chunk_by(|a, b| a.def.name == b.def.name);
        blocks.push(Block {
            title: format!("{}, within rounds", group[0].title()),
            lines: of_metric.flat_map(|rows| pair_lines(rows, wide)).collect(),
            below: None,
        });
    }
    blocks
}

/// Shows how the gateway spends its time, one line per variant.
fn time_spent(run: &Run, results: &Results, workload: &WorkloadInfo, wide: bool) -> Option<Block> {
    let all = profile::spent(run, results, workload);
    let one = |spent: &profile::Spent<'_>| {
        let per_packet = spent.per_packet().unwrap_or_default();
        vec![line(&spent.variant.name).into(), per_packet.into(), spent.sentence().into()]
    };
    let lines: Vec<Vec<Text>> = all.iter().map(one).collect();
    let title = format!("{}: where the gateway's time goes, sampled", line(&workload.name));
    (!all.is_empty()).then(|| Block { title, lines: under("time per packet", lines, wide), below: None })
}

/// Adds the doctor's findings at the gateway: sentences, and the commands on lines of their own, for copying.
fn push_diagnoses(out: &mut String, run: &Run, to: Terminal) {
    let title =
        Text { text: "what the doctor found at the gateway".to_owned(), bold: true, ..Text::default() };
    out.push_str(&format!("\n{}\n", title.painted(to)));
    for said in diagnosed::said(run) {
        let tone = if said.finding.critical { words::Tone::Worse } else { words::Tone::Different };
        let head = format!("{}, {}: {}", said.place(), said.often(), line(&said.finding.cause));
        for piece in wrap(&head, to.width() - 1, to.width() - 1 - GAP) {
            let text = Text { text: piece, tone: Some(tone), ..Text::default() };
            out.push_str(&format!(" {}\n", text.painted(to)));
        }
        out.push_str(&paragraph(&line(&said.finding.summary), 3, to));
        for command in &said.finding.commands {
            out.push_str(&format!("     {}\n", line(command)));
        }
        for (what, text) in said.aftermath() {
            out.push_str(&paragraph(&format!("{what}: {text}"), 3, to));
        }
    }
    for note in diagnosed::notes(run) {
        out.push_str(&paragraph(&note, 1, to));
    }
}

/// How much the trials of compared workloads vary.
fn push_spread(out: &mut String, run: &Run, results: &Results, to: Terminal) {
    let all = spread::rows(run, results);
    if all.is_empty() {
        return;
    }
    let title = format!("{} (coefficient of variation)", spread::TITLE);
    out.push_str(&format!("\n{}\n", Text { text: title, bold: true, ..Text::default() }.painted(to)));
    let lines = all.chunk_by(|a, b| a.workload == b.workload).flat_map(|rows| {
        let lines = rows.iter().map(|row| {
            let what = Text::from(format!("{}, {}", row.metric, row.variant));
            vec![what, row.value.clone().into(), row.said.clone().into()]
        });
        under(&rows[0].workload, lines.collect(), to.width() >= 100)
    });
    let limits: &[usize] = if to.width() >= 100 { &[18, 34, 14] } else { &[34, 14] };
    out.push_str(&layout(&lines.collect::<Vec<_>>(), limits, 1, to));
}

/// Adds the variants' costs apart from traffic. A terminal has no room for how they were measured.
fn push_takes(out: &mut String, run: &Run, to: Terminal) {
    let Some(takes) = setup_cost::setup_cost(run) else { return };
    let title = Text { text: setup_cost::TITLE.to_owned(), bold: true, ..Text::default() };
    out.push_str(&format!("\n{}\n", title.painted(to)));
    let head = std::iter::once(Text::default()).chain(takes.heads.iter().cloned().map(Text::from));
    let row = |(variant, cells): &(&weir_record::VariantInfo, Vec<String>)| -> Vec<Text> {
        std::iter::once(line(&variant.name)).chain(cells.iter().cloned()).map(Text::from).collect()
    };
    let rows: Vec<Vec<Text>> = std::iter::once(head.collect()).chain(takes.rows.iter().map(row)).collect();
    out.push_str(&layout(&rows, &vec![WIDEST_NAME; takes.heads.len()], 1, to));
    out.push_str(&paragraph("How each was measured: weir report --html or --markdown.", 1, to));
}

/// [`layout`] of some lines with the column widths of all.
fn layout_like(lines: &[Vec<Text>], all: &[Vec<Text>], limits: &[usize], to: Terminal) -> String {
    use unicode_width::UnicodeWidthStr;
    let widest = |column: usize| all.iter().filter_map(|r| r.get(column)).map(|t| t.text.width()).max();
    let padded: Vec<Vec<Text>> = lines
        .iter()
        .map(|row| {
            let mut row = row.clone();
            for (column, cell) in row.iter_mut().enumerate().take(limits.len()) {
                let width = widest(column).unwrap_or(0).min(limits[column]);
                let missing = width.saturating_sub(cell.text.width());
                cell.text.push_str(&" ".repeat(missing));
            }
            row
        })
        .collect();
    layout(&padded, limits, 1, to)
}

/// One line per variant; the metric's name stands in front of the first one, or, where columns are scarce,
/// above.
fn row_lines(row: &Row<'_>, wide: bool) -> Vec<Vec<Text>> {
    let baseline = row.baseline_words();
    let mut lines = Vec::new();
    for entry in &row.entries {
        let void = if entry.void > 0 { format!(" ({} void)", entry.void) } else { String::new() };
        let last = match &entry.words {
            _ if entry.variant.baseline => Text {
                text: format!("{baseline}{void}"),
                short: Some(format!("{}{void}", baseline.replace("noise floor", "floor"))),
                ..Text::default()
            },
            Some(words) => {
                // The baseline's line names the floor already.
                let short = format!("{} {}{void}", words.tone.symbol(), words.short());
                let text = format!("{} {}{void}", words.tone.symbol(), words.text);
                let text = if words.tone == words::Tone::NotSeen { short.clone() } else { text };
                Text { text, tone: Some(words.tone), bold: false, short: Some(short) }
            }
            None => Text::from(void),
        };
        lines.push(vec![line(&entry.variant.name).into(), entry.value.clone().into(), last]);
    }
    under(&line(&row.def.label), lines, wide)
}

/// One line per variant of a pair of workloads.
fn pair_lines(rows: &[PairRow<'_>], wide: bool) -> Vec<Vec<Text>> {
    let one = |row: &PairRow<'_>| {
        let last = Text { text: row.said(), tone: row.words.as_ref().map(|w| w.tone), ..Text::default() };
        vec![line(&row.variant.name).into(), row.values.clone().into(), last]
    };
    under(&line(&rows[0].def.label), rows.iter().map(one).collect(), wide)
}

/// The lines of a metric with its name.
fn under(label: &str, mut lines: Vec<Vec<Text>>, wide: bool) -> Vec<Vec<Text>> {
    let bold = |text: String| Text { text, bold: true, ..Text::default() };
    if wide {
        for (i, cells) in lines.iter_mut().enumerate() {
            cells.insert(0, bold(if i == 0 { label.to_owned() } else { String::new() }));
        }
        return lines;
    }
    lines.iter_mut().filter_map(|cells| cells.first_mut()).for_each(|cell| cell.text.insert(0, ' '));
    lines.insert(0, vec![bold(label.to_owned())]);
    lines
}

/// Trials behind a spot.
fn spot_n(spot: &Spot) -> usize {
    spot.estimate.map_or(0, |e| e.n)
}

/// Most lines about faults; beyond these, only their number appears.
const MOST_FAULTS: usize = 6;

fn foot(run: &Run, results: &Results, seconds: f64, to: Terminal) -> String {
    let mut out = String::new();
    let counts: Vec<usize> = view::rows(run, results, true)
        .iter()
        .flat_map(|r| r.entries.iter().map(|e| e.n).collect::<Vec<_>>())
        .chain(curves::curves(run, results).iter().flat_map(|c| c.spots().map(spot_n).collect::<Vec<_>>()))
        .collect();
    let n = match (counts.iter().min(), counts.iter().max()) {
        (Some(low), Some(high)) if low == high => format!("n = {low} per cell"),
        (Some(low), Some(high)) => format!("n = {low} to {high} per cell"),
        _ => "nothing measured".to_owned(),
    };
    let void = run.trials.iter().filter(|t| t.is_void()).count();
    let void = if void == 0 { "none void".to_owned() } else { format!("{void} void and left out") };
    out.push_str(&paragraph(
        &format!(
            "{}, {} in {}, {void}; {n}; seed {}",
            words::plural(results.complete_rounds as usize, "complete round"),
            words::plural(run.trials.len(), "trial"),
            duration(seconds),
            run.seed
        ),
        0,
        to,
    ));
    let widest = view::widest(run, results).map(|w| format!("; {w}")).unwrap_or_default();
    out.push_str(&paragraph(&format!("{}{widest}", words::status(&run.status)), 0, to));
    for fault in faults::lines(run, MOST_FAULTS) {
        out.push_str(&paragraph(&format!("! {fault}"), 0, to));
    }
    for note in &run.notes {
        out.push_str(&paragraph(&format!("note: {}", line(note)), 0, to));
    }
    for text in view::how_to_read(run, results) {
        out.push_str(&paragraph(&text, 0, to));
    }
    out
}
