//! The table at the end of a run.

use weir_record::Run;
use weir_record::results::Results;

use crate::columns::{Text, layout, paragraph};
use crate::escape::line;
use crate::units::duration;
use crate::view::{self, Row};
use crate::words;

pub use crate::columns::Terminal;

/// The run as text for people: one line per metric and variant with value, interval and verdict; under it how
/// many trials, which of them void and why, the noise floor, and how to read it. No line is wider than the
/// terminal.
pub fn terminal(run: &Run, to: Terminal) -> String {
    let mut out = String::new();
    let bold = |text: String| Text { text, bold: true, ..Text::default() };
    out.push_str(&to.paint(&bold(crate::columns::ellipsis(&line(&run.title), to.width()))));
    out.push('\n');
    let Some(results) = &run.results else {
        out.push_str(&paragraph(
            &format!(
                "{}; no results: {}",
                words::plural(run.trials.len(), "trial"),
                words::status(&run.status)
            ),
            0,
            to,
        ));
        return out;
    };
    let seconds = run.trials.iter().map(|t| t.start_s + t.took_s).fold(0.0, f64::max);
    out.push_str(&paragraph(&format!("scenario {}, {}", line(&run.scenario), line(&run.testbed)), 0, to));
    let wide = to.width() >= 100;
    let mut blocks: Vec<(String, Vec<Vec<Text>>)> = Vec::new();
    let mut workload = None;
    for row in &view::rows(run, results, true) {
        if workload != Some(&row.workload.name) {
            workload = Some(&row.workload.name);
            let title = format!("{}  {}", line(&row.workload.name), line(&row.workload.description));
            blocks.push((title, Vec::new()));
        }
        if let Some((_, lines)) = blocks.last_mut() {
            lines.extend(row_lines(row, wide));
        }
    }
    // All blocks share the widths of their columns.
    let all: Vec<Vec<Text>> = blocks.iter().flat_map(|(_, lines)| lines.clone()).collect();
    let limits: &[usize] = if wide { &[18, 26, 40] } else { &[22, 27] };
    for (title, lines) in &blocks {
        out.push('\n');
        out.push_str(&to.paint(&bold(crate::columns::ellipsis(title, to.width()))));
        out.push('\n');
        out.push_str(&layout_like(lines, &all, limits, to));
    }
    out.push('\n');
    out.push_str(&foot(run, results, seconds, to));
    out
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
    let floor = row.floor.as_ref().map_or("unknown".to_owned(), |f| format!("±{f}"));
    let label = |text: String| Text { text, bold: true, ..Text::default() };
    let mut lines = Vec::new();
    if !wide {
        lines.push(vec![label(line(&row.def.label))]);
    }
    for (i, entry) in row.entries.iter().enumerate() {
        let void = if entry.void > 0 { format!(" ({} void)", entry.void) } else { String::new() };
        let last = match &entry.words {
            _ if entry.variant.baseline => Text {
                text: format!("baseline, noise floor {floor}{void}"),
                short: Some(format!("baseline, floor {floor}{void}")),
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
        let mut cells = vec![line(&entry.variant.name).into(), entry.value.clone().into(), last];
        if wide {
            cells.insert(0, label(if i == 0 { line(&row.def.label) } else { String::new() }));
        } else if let Some(Text { text, .. }) = cells.first_mut() {
            text.insert(0, ' ');
        }
        lines.push(cells);
    }
    lines
}

fn foot(run: &Run, results: &Results, seconds: f64, to: Terminal) -> String {
    let mut out = String::new();
    let counts: Vec<usize> = view::rows(run, results, true)
        .iter()
        .flat_map(|r| r.entries.iter().map(|e| e.n).collect::<Vec<_>>())
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
    for fault in &results.faults {
        let left_out = match fault.void {
            0 => "left in".to_owned(),
            n if n == fault.trials => "left out".to_owned(),
            n => format!("{n} left out"),
        };
        out.push_str(&paragraph(
            &format!(
                "! {} in {} of {} on {} ({left_out}): {}",
                words::fault(fault.code),
                words::plural(fault.trials, "trial"),
                line(&fault.workload),
                line(&fault.variant),
                line(&fault.example)
            ),
            0,
            to,
        ));
    }
    for note in &run.notes {
        out.push_str(&paragraph(&format!("note: {}", line(note)), 0, to));
    }
    for text in view::how_to_read(run) {
        out.push_str(&paragraph(&text, 0, to));
    }
    out
}
