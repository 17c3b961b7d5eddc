//! The picture: title, totals, a table or a page, and two lines below.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};
use weir_text::escape::line;
use weir_text::units;

use crate::history::Past;
use crate::paint::{Text, bad, bold, faint, put, rate, sparkline, warning};
use crate::rows::Tab;
use crate::view::{Page, View};
use crate::{details, help, table, udp_details};

/// Lines of the totals; a lower terminal has none.
const TOTALS: u16 = 3;
const LEAST_WITH_TOTALS: u16 = 14;

/// Draws everything.
pub(crate) fn draw(view: &mut View, buffer: &mut Buffer) {
    let area = *buffer.area();
    if area.is_empty() {
        return;
    }
    title(view, buffer, area);
    let mut top = 1;
    if area.height >= LEAST_WITH_TOTALS {
        totals(&view.history.all, buffer, Rect { y: 1, height: TOTALS, ..area });
        top += TOTALS;
    }
    let below = 2.min(area.height - 1);
    let middle = Rect { y: top.min(area.height), height: area.height.saturating_sub(top + below), ..area };
    match view.page {
        Page::Table => table::draw(view, buffer, middle),
        Page::Help => page(view, help::lines(), buffer, middle),
        Page::Details(flow) => {
            let lines = details::lines(view, &flow, usize::from(area.width));
            page(view, lines, buffer, middle);
        }
        Page::UdpDetails(flow) => {
            let lines = udp_details::lines(view, &flow, usize::from(area.width));
            page(view, lines, buffer, middle);
        }
    }
    status(view, buffer, area);
    keys(view, buffer, area);
}

fn title(view: &View, buffer: &mut Buffer, area: Rect) {
    let reading = &view.reading;
    let names: Vec<String> = reading.interfaces.iter().map(|name| line(name)).collect();
    let mut text = match names.is_empty() {
        true => " waits for the first second".to_owned(),
        false => format!(
            " TCP, UDP through {}, {:.0} s, {} and {} flows now, {} over",
            names.join(", "),
            reading.seconds,
            units::count(reading.flows_now),
            units::count(reading.udp_flows_now),
            units::count(reading.flows_over + reading.udp_flows_over)
        ),
    };
    if reading.sample_share < 1.0 {
        text.push_str(&format!(", sample {}", units::percent(reading.sample_share)));
    }
    text.push_str(&format!(", {}", view.place));
    let style = Style::new().add_modifier(Modifier::REVERSED);
    buffer.set_style(Rect { height: 1, ..area }, style);
    let mark = if view.frozen { " FROZEN " } else { "" };
    let room = area.width.saturating_sub(mark.len() as u16);
    put(buffer, Rect { width: room, ..area }, (0, 0), &text, style);
    put(buffer, area, (room, 0), mark, style.add_modifier(Modifier::BOLD));
}

fn totals(past: &Past, buffer: &mut Buffer, area: Rect) {
    /// Columns before and behind the bars.
    const BEFORE: usize = 28;
    const BEHIND: usize = 17;
    let width = usize::from(area.width).saturating_sub(BEFORE + BEHIND).max(8);
    let mut row = |n: u16, name: &str, values: &[f64], text: &dyn Fn(f64) -> String| {
        let shown = values.iter().rev().take(width);
        let most = shown.copied().fold(0.0, f64::max);
        let latest = text(values.last().copied().unwrap_or(0.0));
        let bars = sparkline(values.iter().copied(), width);
        let line = format!(" {name:<13}{latest:>12}  {bars}  max {}", text(most));
        put(buffer, area, (0, area.y + n), &line, Style::new());
    };
    for (n, name) in ["from clients", "from servers"].into_iter().enumerate() {
        let values: Vec<f64> = past.ticks().map(|tick| f64::from(tick.bps[n])).collect();
        row(n as u16, name, &values, &rate);
    }
    let lost: Vec<f64> = past.ticks().map(|tick| tick.lost.iter().map(|n| f64::from(*n)).sum()).collect();
    row(2, "lost segments", &lost, &|n| units::count(n as u64));
}

/// A page of lines, from the first one that is to be shown.
fn page(view: &mut View, lines: Vec<Text>, buffer: &mut Buffer, area: Rect) {
    view.room = usize::from(area.height);
    view.top = view.top.min(lines.len().saturating_sub(view.room));
    for (n, text) in lines.iter().skip(view.top).take(view.room).enumerate() {
        put(buffer, area, (1, area.y + n as u16), &text.text, text.style);
    }
    let more = lines.len().saturating_sub(view.top + view.room);
    if more > 0 && area.height > 0 {
        let text = format!(" {more} more ");
        let x = area.width.saturating_sub(text.len() as u16);
        put(buffer, area, (x, area.bottom() - 1), &text, Style::new().add_modifier(Modifier::REVERSED));
    }
}

/// The line about the selected row, or about what is wrong with the watch.
fn status(view: &View, buffer: &mut Buffer, area: Rect) {
    if area.height < 3 {
        return;
    }
    let not = &view.reading.not_tracked;
    let selected =
        view.selected_row().filter(|_| view.page == Page::Table).map(|at| table::words(&view.rows[at]));
    let (text, style) = match (selected, &view.remark) {
        (_, Some((text, true))) => (text.clone(), bad()),
        (Some(text), _) => (text, Style::new()),
        _ if not.no_room > 0 => {
            let packets = units::count(not.no_room);
            (
                format!("{packets} packets of flows that found no room: raise --flows, or lower --share"),
                warning(),
            )
        }
        _ if not.too_many_opening > 0 => {
            let packets = units::count(not.too_many_opening);
            (format!("{packets} first packets of flows not tracked: too many await an answer"), warning())
        }
        _ if view.tab == Tab::Processes && view.reading.processes_missing.is_some() => {
            let why = view.reading.processes_missing.as_deref().unwrap_or_default();
            (line(why), warning())
        }
        (None, Some((text, false))) => (text.clone(), faint()),
        (None, None) => return,
    };
    put(buffer, area, (1, area.height - 2), &text, style);
}

fn keys(view: &View, buffer: &mut Buffer, area: Rect) {
    if area.height < 2 {
        return;
    }
    let y = area.height - 1;
    if view.writing {
        let text = format!("filter: {}", line(&view.filter.text));
        put(buffer, area, (1, y), &format!("{text}▏  Enter keeps it, Esc removes it"), bold());
        return;
    }
    let text = match view.page {
        Page::Table => "q quit  ? help  Tab table  j k select  Enter open  / filter  s r sort  f freeze",
        Page::Details(_) | Page::UdpDetails(_) | Page::Help => "q quit  Esc back  j k scroll  f freeze",
    };
    put(buffer, area, (1, y), text, faint());
}
