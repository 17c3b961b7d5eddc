//! The table of networks, hosts or flows.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};
use weir_flows::{Dns, FlowState, Fraction, IcmpReporter, Limiter, UdpFlow, UdpSide};
use weir_text::layout::ellipsis;
use weir_text::units;

use crate::history::PARTS;
use crate::order::Sort;
use crate::paint::{bad, bold, faint, put, rate, time, warning};
use crate::rows::{Row, Tab};
use crate::udp;
use crate::untracked;
use crate::view::View;

/// From these widths on there is a column of limits, one of loss for each part of the path, and those of flows and bytes.
const WITH_LIMIT: u16 = 80;
const WITH_PARTS: u16 = 100;
const WITH_SUMS: u16 = 132;
/// The names of flows have two ends, those of processes a number and a container: each of these widths is so much greater.
const FOR_NAME: u16 = 8;

/// Loss beyond any doubt from which on it stands out: the lower end of the interval.
const NOTABLE: f64 = 0.001;
const GREAT: f64 = 0.01;

/// A column to the right of the name.
struct Column {
    title: &'static str,
    width: u16,
    sort: Sort,
    cell: fn(&Row) -> (String, Style),
}

const fn column(title: &'static str, width: u16, sort: Sort, cell: fn(&Row) -> (String, Style)) -> Column {
    Column { title, width, sort, cell }
}

const FLOWS: Column = column("flows", 9, Sort::Flows, |row| plain(units::count(row.flows)));
const BYTES: Column = column("bytes", 11, Sort::Bytes, |row| plain(units::bytes(row.bytes)));
const RATE: Column = column("rate", 12, Sort::Rate, |row| plain(rate(row.bps)));
const RTT_C: Column = column("RTT c", 8, Sort::RttClient, |row| round_trip(row.rtt[0]));
const RTT_S: Column = column("RTT s", 8, Sort::RttServer, |row| round_trip(row.rtt[1]));
const LOST_C: Column = column("loss c", 10, Sort::LossClient, |row| loss(&row.lost_at(false)));
const LOST_S: Column = column("loss s", 10, Sort::LossServer, |row| loss(&row.lost_at(true)));
const FROM_C: Column = column("from c", 10, Sort::LossClient, |row| loss(&row.lost[0]));
const TO_S: Column = column("to s", 10, Sort::LossServer, |row| loss(&row.lost[1]));
const FROM_S: Column = column("from s", 10, Sort::LossServer, |row| loss(&row.lost[2]));
const TO_C: Column = column("to c", 10, Sort::LossClient, |row| loss(&row.lost[3]));
const LIMIT: Column = column("limit", 7, Sort::Limit, |row| plain(short_limit(row)));
const LIMIT_SHARE: Column = column("limit", 20, Sort::Limit, |row| plain(limit(row)));

fn columns(tab: Tab, width: u16) -> &'static [Column] {
    let for_name = if matches!(tab, Tab::Flows | Tab::Processes) { FOR_NAME } else { 0 };
    match width.saturating_sub(for_name) {
        _ if tab == Tab::Udp => udp_columns(width >= WITH_PARTS),
        _ if tab == Tab::Icmp => &[MEANING, MTU, ERRORS],
        WITH_PARTS.. if tab == Tab::Untracked => &[INTERVAL, BYTES, RATE],
        _ if tab == Tab::Untracked => &[BYTES, RATE],
        _ if tab == Tab::Dns => dns_columns(width >= WITH_PARTS),
        WITH_SUMS.. => &[FLOWS, BYTES, RATE, LIMIT_SHARE, RTT_C, RTT_S, FROM_C, TO_S, FROM_S, TO_C],
        WITH_PARTS.. => &[RATE, LIMIT, RTT_C, RTT_S, FROM_C, TO_S, FROM_S, TO_C],
        WITH_LIMIT.. => &[RATE, LIMIT, RTT_C, RTT_S, LOST_C, LOST_S],
        _ => &[RATE, RTT_C, RTT_S, LOST_C, LOST_S],
    }
}

const INTERVAL: Column = column("bytes at 95 %", 24, Sort::Bytes, |row| {
    plain(row.untracked.as_ref().map_or("-".to_owned(), untracked::interval))
});
const MEANING: Column =
    column("meaning", 24, Sort::Meaning, |row| icmp(row, |one| one.meaning.words().to_owned()));
const MTU: Column = column("MTU", 7, Sort::Mtu, |row| {
    icmp(row, |one| one.smallest_mtu.map_or("-".to_owned(), |mtu| mtu.to_string()))
});
const ERRORS: Column = column("errors", 10, Sort::Errors, |row| icmp(row, |one| units::count(one.packets)));
const KIND: Column =
    column("kind", 7, Sort::Name, |row| cell(row, |flow| plain(flow.kind.words().to_owned())));
const SILENCE_C: Column =
    column("silence c", 11, Sort::Silence, |row| cell(row, |flow| silence(&flow.client_side)));
const SILENCE_S: Column =
    column("silence s", 11, Sort::Silence, |row| cell(row, |flow| silence(&flow.server_side)));
const PACKETS: Column = column("packets", 12, Sort::Bytes, |row| {
    cell(row, |flow| plain(units::count(flow.client_side.packets + flow.server_side.packets)))
});
const QUERIES: Column = column("queries", 10, Sort::Queries, |row| count(row, |dns| dns.queries));
const HALF: Column = column("half", 9, Sort::Answer, |row| answer(row, |dns| dns.times.median_ns));
const P95: Column = column("95 %", 9, Sort::Answer, |row| answer(row, |dns| dns.times.p95_ns));
const NO_ANSWER: Column = column("no answer", 11, Sort::Failures, |row| failed(row, |dns| dns.unanswered));
const SERVFAIL: Column = column("SERVFAIL", 10, Sort::Failures, |row| failed(row, |dns| dns.servfail));
const NXDOMAIN: Column = column("NXDOMAIN", 10, Sort::Failures, |row| count(row, |dns| dns.nxdomain));

fn udp_columns(wide: bool) -> &'static [Column] {
    if wide {
        &[KIND, PACKETS, BYTES, RATE, SILENCE_C, SILENCE_S]
    } else {
        &[KIND, RATE, SILENCE_C, SILENCE_S]
    }
}

fn dns_columns(wide: bool) -> &'static [Column] {
    if wide { &[QUERIES, HALF, P95, NO_ANSWER, SERVFAIL, NXDOMAIN] } else { &[QUERIES, HALF, P95, NO_ANSWER] }
}

/// Who limits the side that sent more, with the share of the time; a dash without one.
fn limit(row: &Row) -> String {
    row.limit.map_or("-".to_owned(), |limit| limit.words())
}

/// The same in five columns.
fn short_limit(row: &Row) -> String {
    let Some((limit, by)) = row.limit.and_then(|limit| Some((limit, limit.limits.by?))) else {
        return "-".to_owned();
    };
    let word = match by {
        Limiter::Application => "app",
        Limiter::Receiver => "recv",
        Limiter::Network => "net",
        Limiter::Sender => "send",
    };
    format!("{}{word}", limit.direction())
}

fn icmp(row: &Row, of: fn(&IcmpReporter) -> String) -> (String, Style) {
    plain(row.icmp.as_ref().map_or("-".to_owned(), of))
}

fn cell(row: &Row, of: impl Fn(&UdpFlow) -> (String, Style)) -> (String, Style) {
    row.udp.as_ref().map_or_else(|| plain("-".to_owned()), of)
}

fn count(row: &Row, of: fn(&Dns) -> u64) -> (String, Style) {
    cell(row, |flow| plain(flow.dns.as_ref().map_or("-".to_owned(), |dns| units::count(of(dns)))))
}

fn failed(row: &Row, of: fn(&Dns) -> u64) -> (String, Style) {
    let (text, _) = count(row, of);
    let style = if matches!(text.as_str(), "0" | "-") { Style::new() } else { warning() };
    (text, style)
}

fn answer(row: &Row, of: fn(&Dns) -> Option<u64>) -> (String, Style) {
    cell(row, |flow| plain(flow.dns.as_ref().and_then(of).map_or("-".to_owned(), time)))
}

fn silence(side: &UdpSide) -> (String, Style) {
    let style = if side.longest_silence_seconds >= udp::LONG { warning() } else { Style::new() };
    (udp::seconds(side.longest_silence_seconds), style)
}

fn plain(text: String) -> (String, Style) {
    (text, Style::new())
}

fn round_trip(ns: Option<u64>) -> (String, Style) {
    plain(ns.map_or_else(|| "-".to_owned(), time))
}

/// The share; if none was lost, the bound alone.
pub(crate) fn share(part: &Fraction) -> String {
    /// A smaller bound has no room. A greater one is true as well.
    const LEAST_BOUND: f64 = 1e-4;
    match (part.share, part.high) {
        (Some(0.0), Some(high)) => format!("< {}", units::bound_percent(high.max(LEAST_BOUND))),
        (Some(share), _) => units::percent(share),
        _ => "-".to_owned(),
    }
}

fn loss(part: &Fraction) -> (String, Style) {
    let style = match part.low {
        Some(low) if low > GREAT => bad(),
        Some(low) if low > NOTABLE => warning(),
        _ => Style::new(),
    };
    (share(part), style)
}

/// Everything about a row in one line.
pub(crate) fn words(row: &Row) -> String {
    let mut text = row.name.clone();
    if let Some(flow) = &row.udp {
        return udp::words(flow);
    }
    if let Some(size) = &row.untracked {
        return untracked::words(&row.name, size);
    }
    if let Some(one) = &row.icmp {
        let (kind, code) = (one.icmp_type, one.icmp_code);
        return format!(
            "{}, {}, type {kind}, code {code}, about tracked flows",
            row.name,
            one.meaning.words()
        );
    }
    if let Some(state) = row.state {
        text.push_str(&format!(", {}", state.words()));
    }
    if row.limit.is_some_and(|limit| limit.limits.by.is_some()) {
        text.push_str(&format!(", {}", limit(row)));
    }
    let parts = row.lost.iter().zip(PARTS).filter(|(part, _)| part.of > 0);
    for (part, name) in parts {
        text.push_str(&format!(", {name} {}", share(part)));
    }
    text
}

fn state_style(row: &Row) -> Style {
    if let Some(flow) = &row.udp {
        return udp::style(flow);
    }
    match row.state {
        Some(FlowState::Unanswered | FlowState::Reset) => bad(),
        Some(FlowState::Ended | FlowState::Opening) => faint(),
        _ => Style::new(),
    }
}

/// Draws the line of tables, the head and the rows.
pub(crate) fn draw(view: &mut View, buffer: &mut Buffer, area: Rect) {
    tabs(view, buffer, area);
    let columns = columns(view.tab, area.width);
    let figures: u16 = columns.iter().map(|column| column.width).sum();
    let room = area.width.saturating_sub(figures + 1).max(8);
    head(view, buffer, area, columns, room);
    let body = Rect { y: area.y + 2, height: area.height.saturating_sub(2), ..area };
    view.room = usize::from(body.height);
    if view.rows.is_empty() {
        let text = match view.filter.text.is_empty() {
            true => match view.tab {
                Tab::Networks | Tab::Processes => "no packet of TCP or UDP has passed".to_owned(),
                Tab::Hosts | Tab::Flows => "no TCP packet has passed".to_owned(),
                Tab::Icmp => "no ICMP error about a tracked flow has passed".to_owned(),
                Tab::Untracked => "no flow that is not tracked had 256 KiB or more".to_owned(),
                Tab::Udp => "no UDP packet other than DNS has passed".to_owned(),
                Tab::Dns => "no DNS packet has passed: queries to port 53 by UDP".to_owned(),
            },
            false => "no row has all words of the filter; Esc removes it".to_owned(),
        };
        put(buffer, body, (1, body.y), &text, faint());
        return;
    }
    let selected = view.selected_row();
    if let Some(at) = selected.filter(|_| view.room > 0) {
        view.top = view.top.clamp((at + 1).saturating_sub(view.room), at);
    }
    view.top = view.top.min(view.rows.len().saturating_sub(view.room));
    let shown = view.rows.iter().enumerate().skip(view.top).take(view.room);
    for (y, (at, row)) in (body.y..).zip(shown) {
        let whole = if selected == Some(at) { Modifier::REVERSED } else { Modifier::empty() };
        buffer.set_style(Rect { y, height: 1, ..body }, Style::new().add_modifier(whole));
        put(buffer, Rect { width: room + 1, ..body }, (1, y), &row.name, state_style(row));
        let mut x = room + 1;
        for column in columns {
            let (text, style) = (column.cell)(row);
            right(buffer, body, (x, y), column.width, &text, style);
            x += column.width;
        }
    }
}

/// A cell, to the right of its column.
fn right(buffer: &mut Buffer, area: Rect, (x, y): (u16, u16), width: u16, text: &str, style: Style) {
    let text = ellipsis(text, usize::from(width) - 1);
    let taken = text.chars().count() as u16;
    put(buffer, area, (x + width.saturating_sub(taken), y), &text, style);
}

/// Name of a table; on a narrow terminal the order has no room beside the long ones.
fn tab_name(tab: Tab, width: u16) -> &'static str {
    match tab {
        Tab::Networks if width < WITH_PARTS => "nets",
        Tab::Processes if width < WITH_PARTS => "procs",
        _ => tab.words(),
    }
}

/// `1 networks 2 hosts 3 flows`, the order, the filter and the number of rows.
fn tabs(view: &View, buffer: &mut Buffer, area: Rect) {
    let mut x = 1;
    for (n, tab) in Tab::ALL.into_iter().enumerate() {
        let text = format!(" {} {} ", n + 1, tab_name(tab, area.width));
        let style = if tab == view.tab { bold().add_modifier(Modifier::REVERSED) } else { Style::new() };
        put(buffer, area, (x, area.y), &text, style);
        // Two names share the space between them.
        x += text.len() as u16 - 1;
    }
    let order = if view.reverse { ", reversed" } else { "" };
    let number = units::count(view.rows.len() as u64);
    let mut text = format!(" {number} rows by {}{order}", view.sort.title());
    let reading = &view.reading;
    let (shown, all) = match view.tab {
        Tab::Udp | Tab::Dns => (reading.udp_flows.len() as u64, reading.udp_flows_now),
        Tab::Icmp | Tab::Untracked => (0, 0),
        Tab::Networks | Tab::Hosts | Tab::Flows => (reading.flows.len() as u64, reading.flows_now),
        Tab::Processes => {
            let shown = reading.flows.len() + reading.udp_flows.len();
            (shown as u64, reading.flows_now + reading.udp_flows_now)
        }
    };
    if view.tab != Tab::Networks && all > shown {
        text.push_str(&format!(", of the {} flows with most bytes", units::count(shown)));
    }
    if view.tab == Tab::Networks && reading.networks_in_all > reading.networks.len() as u64 {
        text.push_str(&format!(", of {}", units::count(reading.networks_in_all)));
    }
    if !view.filter.text.is_empty() {
        text.push_str(&format!(", filter: {}", weir_text::escape::line(&view.filter.text)));
    }
    put(buffer, area, (x + 1, area.y), &text, faint());
}

fn head(view: &View, buffer: &mut Buffer, area: Rect, columns: &[Column], room: u16) {
    let y = area.y + 1;
    let name = match view.tab {
        Tab::Networks => "network",
        Tab::Hosts => "inside host",
        Tab::Flows | Tab::Udp | Tab::Dns => "client > server",
        Tab::Icmp => "sender",
        Tab::Processes => "process",
        Tab::Untracked => "source > destination",
    };
    let marked = |title: &str, sort: Sort| match (sort == view.sort, view.reverse) {
        (true, false) => format!("{title}▼"),
        (true, true) => format!("{title}▲"),
        (false, _) => title.to_owned(),
    };
    put(buffer, area, (1, y), &marked(name, Sort::Name), faint());
    let mut x = room + 1;
    for column in columns {
        right(buffer, area, (x, y), column.width, &marked(column.title, column.sort), faint());
        x += column.width;
    }
}
