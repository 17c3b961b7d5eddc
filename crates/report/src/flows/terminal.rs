//! The recording as text.

use weir_record::flows::{FlowsRecording, RecordedLimits};
use weir_text::escape::line;
use weir_text::layout::{Terminal, ellipsis};
use weir_text::page::{Page, Tone};
use weir_text::units::{self, Unit};

use super::{PARTS, figures, limits, name, parts, processes, sentences, steps, udp};

/// Rows of a table.
const SHOWN: usize = 10;
/// Columns of a name, by the width of the terminal, and the width that has losses with intervals.
const WIDE: usize = 160;
/// From this width on there is room for limits.
const WITH_LIMIT: usize = 116;
/// Heads of the tables of TCP behind the name.
const HEADS: [&str; 8] = ["limit", "bytes", "RTT c", "RTT s", "from c", "to s", "from s", "to c"];

/// The recording as text for people. No line is wider than the terminal.
pub fn flows_terminal(recording: &FlowsRecording, to: Terminal) -> String {
    let mut page = Page::new(to);
    let mut sentences = sentences(recording).into_iter();
    page.section(&sentences.next().unwrap_or_default());
    let last = &recording.last;
    let (from, until) = (&recording.ticks[0].time, &last.time);
    page.line(&format!("{from} to {until}, {}, weir {}", last.namespace, last.weir), 1, Some(Tone::Faint));
    for sentence in sentences {
        page.line(&sentence, 1, None);
    }
    let wide = to.width() >= WIDE;
    page.gap();
    range(&mut page, recording);
    // Limits are the first column.
    let first = usize::from(to.width() < WITH_LIMIT);
    let figures = |client: &_, server: &_| figures(client, server).split_off(first);
    let rows = last.networks.iter().take(SHOWN);
    let rows = rows.map(|n| (name(n), figures(&n.client_side, &n.server_side)));
    table(&mut page, "network", &HEADS[first..], rows, to, wide);
    let rows = last.flows.iter().take(SHOWN).map(|flow| {
        let name = format!("{} > {}, {}", flow.client, flow.server, flow.state);
        (line(&name), figures(&flow.client_side, &flow.server_side))
    });
    table(&mut page, "flow", &HEADS[first..], rows, to, wide);
    let rows = udp::flow_rows(recording).into_iter().take(SHOWN);
    table(&mut page, "UDP flow", &udp::FLOW, rows, to, wide);
    let rows = udp::dns_rows(recording).into_iter().take(SHOWN);
    table(&mut page, "DNS", &udp::DNS, rows, to, wide);
    let rows = processes::rows(recording).into_iter().take(SHOWN);
    table(&mut page, "process", &processes::HEADS, rows, to, wide);
    let rows = udp::icmp_rows(recording).into_iter().take(SHOWN);
    table(&mut page, "ICMP errors from", &udp::ICMP, rows, to, wide);
    page.finish()
}

/// The smallest, the middle and the greatest value of each step.
fn range(page: &mut Page, recording: &FlowsRecording) {
    let steps = steps(recording);
    let mut rows = Vec::new();
    let mut row = |name: String, unit: Unit, mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        if let (Some(least), Some(most)) = (values.first(), values.last()) {
            let cells = [*least, values[values.len() / 2], *most].map(|v| units::quantity(unit, v, None));
            rows.push([vec![name], cells.to_vec()].concat());
        }
    };
    for (n, side) in ["clients", "servers"].into_iter().enumerate() {
        row(format!("rate from {side}"), Unit::Bps, steps.iter().map(|s| s.bps[n]).collect());
        row(format!("median RTT to {side}"), Unit::Ns, steps.iter().filter_map(|s| s.median[n]).collect());
    }
    for (n, part) in PARTS.into_iter().enumerate() {
        if parts(&recording.last.all.client_side, &recording.last.all.server_side)[n].segments > 0 {
            row(format!("lost {part}"), Unit::Ratio, steps.iter().filter_map(|s| s.lost[n]).collect());
        }
    }
    let who = limits::subject(recording);
    for (n, word) in RecordedLimits::WORDS.into_iter().enumerate() {
        let shares: Vec<f64> = steps.iter().filter_map(|s| s.limits).map(|shares| shares[n]).collect();
        if shares.iter().any(|share| *share > 0.0) {
            row(format!("limit of {who}: {word}"), Unit::Ratio, shares);
        }
    }
    if !rows.is_empty() {
        page.matrix(&["over time", "least", "middle", "most"], &rows);
    }
}

fn table(
    page: &mut Page,
    head: &str,
    heads: &[&str],
    rows: impl Iterator<Item = (String, Vec<String>)>,
    to: Terminal,
    wide: bool,
) {
    // Without room for intervals the shares alone.
    let cell = |text: &String| if wide { text.clone() } else { short(text) };
    let rows: Vec<(String, Vec<String>)> =
        rows.map(|(name, cells)| (name, cells.iter().map(cell).collect())).collect();
    if rows.is_empty() {
        return;
    }
    let widest = |n: usize| {
        rows.iter()
            .map(|(_, cells)| cells[n].chars().count())
            .chain([heads[n].chars().count()])
            .max()
            .unwrap_or(0)
            + 2
    };
    let room = to.width().saturating_sub(2 + (0..heads.len()).map(widest).sum::<usize>()).max(12);
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|(name, cells)| [vec![ellipsis(&name, room)], cells].concat()).collect();
    page.gap();
    page.matrix(&[&[head], heads].concat(), &rows);
}

/// `0.12 % [0.10, 0.15]` without its interval, `0 %, below 0.08 %` as the bound alone.
fn short(text: &str) -> String {
    match text.split_once(", below ") {
        Some((_, bound)) => format!("< {bound}"),
        None => text.split(" [").next().unwrap_or(text).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_without_their_intervals() {
        let share = |value, low, high| units::quantity(Unit::Ratio, value, Some((low, high)));
        assert_eq!(short(&share(0.05, 0.04, 0.06)), "5.0 %");
        assert_eq!(short(&share(0.0, 0.0, 0.001)), "< 0.1 %");
    }
}
