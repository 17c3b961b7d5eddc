//! The details of one flow: both tuples, both sides, round trips by length, and rates and losses over time.

use std::net::{IpAddr, SocketAddr};

use ratatui_core::style::Style;
use weir_flows::{Fraction, IcmpErrors, Limiter, Limits, LocalEnd, Side, end_of_bucket};
use weir_text::escape::line;
use weir_text::units::{self, Unit};

use crate::history::{Ends, PARTS, Past, Tick, ends};
use crate::paint::{Text, bad, faint, rate, sparkline, time, warning};
use crate::view::View;

/// Columns of a figure, of a sparkline and of the longest bar.
const FIGURE: usize = 26;
const BARS: usize = 40;
const BAR: usize = 22;

/// The lines of the page.
pub(crate) fn lines(view: &View, wanted: &Ends, width: usize) -> Vec<Text> {
    let Some(flow) = view.flow(wanted) else { return gone(wanted) };
    let state = format!(
        "{}, {:.0} s old, idle for {:.1} s{}{}",
        flow.state_words(),
        flow.age_seconds,
        flow.idle_seconds,
        if flow.seen_from_start { "" } else { ", began before the watch" },
        match flow.connections {
            0 | 1 => String::new(),
            n => format!(", {n} connections one after the other"),
        }
    );
    let title = format!("{} > {}", flow.client, flow.server);
    let outside = flow.client_outside.zip(flow.server_inside);
    let names = [&flow.client_interface, &flow.server_interface, &flow.network_name];
    let mut lines = tuples(title, state, ends(flow), outside, names, &flow.icmp_errors);
    lines.extend(containers(view, [Some(flow.client), Some(flow.server), flow.server_inside]));
    lines.extend(processes([&flow.client_here, &flow.server_here]));
    lines.extend(sides(&flow.client_side, &flow.server_side));
    if let Some(past) = view.history.flow(wanted) {
        lines.extend(over_time(past, width));
    }
    lines.extend(round_trips(&flow.client_side, &flow.server_side));
    lines
}

/// The page of a flow that is no longer there.
pub(crate) fn gone(wanted: &Ends) -> Vec<Text> {
    vec![
        Text::title(format!("{} > {}", wanted.0, wanted.1)),
        Text { text: "The flow is over and has left the table.".to_owned(), style: faint() },
    ]
}

/// State, both tuples (that of the server once it has answered), the interfaces, the network's name, and ICMP errors of a flow.
pub(crate) fn tuples(
    title: String,
    state: String,
    (client, server): Ends,
    outside: Option<Ends>,
    [client_interface, server_interface, network]: [&Option<String>; 3],
    errors: &Option<IcmpErrors>,
) -> Vec<Text> {
    let row = |name: &str, text: String| Text::plain(format!("{name:<18}{text}"));
    let by = |name: &Option<String>| {
        name.as_deref().map_or("not seen yet".to_owned(), |n| format!("by {}", line(n)))
    };
    let outside =
        outside.map_or("no answer yet".to_owned(), |(client, server)| format!("{client} > {server}"));
    let mut lines = vec![
        Text::title(title),
        row("state", state),
        row("the client's side", format!("{client} > {server}, {}", by(client_interface))),
        row("the server's side", format!("{outside}, {}", by(server_interface))),
    ];
    lines.extend(network.as_deref().map(|name| row("network", line(name))));
    lines.extend(errors.as_ref().map(|errors| {
        let text = format!("{}, latest: {}", errors.count, errors.words());
        Text { style: warning(), ..row("ICMP errors", text) }
    }));
    lines
}

/// The containers among the ends of a flow.
pub(crate) fn containers(view: &View, ends: [Option<SocketAddr>; 3]) -> Vec<Text> {
    let mut addresses: Vec<IpAddr> = ends.into_iter().flatten().map(|end| end.ip()).collect();
    addresses.dedup();
    let row = |address: IpAddr| {
        let name = view.reading.container(address)?;
        Some(Text::plain(format!("{:<18}{address} is {}", "container", line(name))))
    };
    addresses.into_iter().filter_map(row).collect()
}

/// The processes at the ends of a flow, as far as these are on this machine.
pub(crate) fn processes(ends: [&Option<LocalEnd>; 2]) -> Vec<Text> {
    let row = |(end, who): (&Option<LocalEnd>, &str)| {
        let text = line(&end.as_ref()?.words());
        Some(Text::plain(format!("{:<18}{text}", format!("{who} process"))))
    };
    ends.into_iter().zip(["client", "server"]).filter_map(row).collect()
}

/// A counter of a side.
type Count = fn(&Side) -> u64;

/// The share with its interval and counts; of nothing a dash.
fn loss(part: &Fraction) -> String {
    match (part.share, part.low, part.high) {
        (Some(share), Some(low), Some(high)) => {
            let share = units::quantity(Unit::Ratio, share, Some((low, high)));
            share.replace(", below ", ", < ")
        }
        _ => "-".to_owned(),
    }
}

/// Time of a limit, or that of none, seconds.
fn waited(limits: &Limits, limiter: Option<Limiter>) -> f64 {
    limiter.map_or(limits.unclear_seconds, |limiter| limits.of(limiter))
}

/// The same with its share of all time; a dash for a side that never sent.
fn wait(limits: &Limits, limiter: Option<Limiter>) -> String {
    let (part, all) = (waited(limits, limiter), limits.seconds());
    if all > 0.0 { format!("{part:.1} s, {}", units::percent(part / all)) } else { "-".to_owned() }
}

fn sides(client: &Side, server: &Side) -> Vec<Text> {
    let sides = [client, server];
    let row = |name: &str, cell: &dyn Fn(&Side) -> String| {
        let [client, server] = sides.map(cell);
        Text::plain(format!("{name:<18}{client:>FIGURE$}  {server:>FIGURE$}"))
    };
    let ns = |value: Option<u64>| value.map_or("-".to_owned(), time);
    let mut lines = vec![
        Text { text: format!("{:<18}{:>FIGURE$}  {:>FIGURE$}", "", "client", "server"), style: faint() },
        row("sent", &|s| format!("{}, {} packets", units::bytes(s.bytes), units::count(s.packets))),
        row("RTT least, smooth", &|s| {
            format!("{}, {}", ns(s.round_trips.smallest_ns), ns(s.round_trips.smoothed_ns))
        }),
        row("RTT half, 95 %", &|s| format!("{}, {}", ns(s.round_trips.median_ns), ns(s.round_trips.p95_ns))),
        row("lost from it", &|s| loss(&s.lost_from)),
        row("lost to it", &|s| loss(&s.lost_to)),
        row("limited by", &|s| s.limits.words()),
    ];
    let times = Limiter::ALL.map(|limiter| (limiter.words(), Some(limiter)));
    for (name, limiter) in times.into_iter().chain([("unclear", None)]) {
        if sides.iter().any(|side| waited(&side.limits, limiter) > 0.0) {
            lines.push(row(&format!("  {name}"), &|side| wait(&side.limits, limiter)));
        }
    }
    let counts: [(&str, Count); 7] = [
        ("reordered", |s| s.reordered),
        ("sent needlessly", |s| s.needless),
        ("took another way", |s| s.bypassed),
        ("not judged", |s| s.unjudged),
        ("resets", |s| s.resets),
        ("ECN marks", |s| s.congestion_marks),
        ("window closed", |s| s.zero_windows),
    ];
    for (name, count) in counts {
        if sides.iter().any(|side| count(side) > 0) {
            lines.push(row(name, &|side| units::count(count(side))));
        }
    }
    lines
}

pub(crate) fn over_time(past: &Past, width: usize) -> Vec<Text> {
    let bars = width.saturating_sub(FIGURE + 18).clamp(8, BARS.max(width / 2));
    let seconds = past.ticks().len().min(bars);
    let mut lines =
        vec![Text { text: format!("the last {seconds} readings, of a second each"), style: faint() }];
    let mut row = |name: &str, value: &dyn Fn(&Tick) -> f64, text: &dyn Fn(f64) -> String, style| {
        let most = past.ticks().rev().take(bars).map(value).fold(0.0, f64::max);
        let text = format!("{name:<18}{}  max {}", sparkline(past.ticks().map(value), bars), text(most));
        lines.push(Text { text, style });
    };
    for (n, name) in ["client sends", "server sends"].into_iter().enumerate() {
        row(name, &|tick| f64::from(tick.bps[n]), &rate, Style::new());
    }
    for (n, part) in PARTS.into_iter().enumerate() {
        if past.ticks().any(|tick| tick.lost[n] > 0) {
            let name = format!("lost {part}");
            row(&name, &|tick| f64::from(tick.lost[n]), &|n| units::count(n as u64), warning());
        }
    }
    lines
}

/// Round trips by length.
fn round_trips(client: &Side, server: &Side) -> Vec<Text> {
    let head = format!("{:<13} {:<width$} {}", "round trips", "client", "server", width = BAR + 9);
    let sides = [&client.round_trips.buckets[..], &server.round_trips.buckets];
    let lines = histogram(head, &sides, BAR, bad());
    match lines.is_empty() {
        true => vec![Text { text: "no round trip was measured".to_owned(), style: faint() }],
        false => lines,
    }
}

/// Counts by length: a row for each bucket from the first to the last that a side has any in, with bars of up to `longest` columns.
/// The bucket without an end has a style of its own.
pub(crate) fn histogram(head: String, sides: &[&[u64]], longest: usize, open: Style) -> Vec<Text> {
    let used = |n: &usize| sides.iter().any(|side| side.get(*n).is_some_and(|count| *count > 0));
    let length = sides.iter().map(|side| side.len()).max().unwrap_or(0);
    let (Some(first), Some(last)) = ((0..length).find(used), (0..length).rev().find(used)) else {
        return Vec::new();
    };
    let mut lines = vec![Text { text: head, style: faint() }];
    for n in first..=last {
        let (name, style) = match n + 1 == length {
            true => ("longer".to_owned(), open),
            false => (format!("to {}", time(end_of_bucket(n))), Style::new()),
        };
        let mut text = format!("{name:>12}  ");
        for side in sides {
            let (most, count) =
                (side.iter().copied().max().unwrap_or(0).max(1), side.get(n).copied().unwrap_or(0));
            let bar = "█".repeat((count as f64 / most as f64 * longest as f64).ceil() as usize);
            let number = if count == 0 { String::new() } else { format!(" {}", units::count(count)) };
            text.push_str(&format!("{bar}{number:<width$}", width = longest + 10 - bar.chars().count()));
        }
        lines.push(Text { text: text.trim_end().to_owned(), style });
    }
    lines
}
