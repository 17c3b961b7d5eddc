//! The details of a flow of UDP: both tuples, rates over time, and of DNS the answers by time.

use weir_flows::{Dns, UdpSide, end_of_bucket};
use weir_text::escape::line;
use weir_text::units;

use crate::details::{icmp_errors, network_name, over_time};
use crate::history::Ends;
use crate::paint::{Text, faint, rate, time};
use crate::udp::{failures, name, seconds};
use crate::view::View;

/// Columns of the longest bar.
const BAR: usize = 40;

/// The lines of the page about a flow.
pub(crate) fn lines(view: &View, wanted: &Ends, width: usize) -> Vec<Text> {
    let Some(flow) = view.udp_flow(wanted) else {
        return vec![
            Text::title(format!("{} > {}", wanted.0, wanted.1)),
            Text { text: "The flow is over and has left the table.".to_owned(), style: faint() },
        ];
    };
    let by = |name: &Option<String>| {
        name.as_deref().map_or("not seen yet".to_owned(), |n| format!("by {}", line(n)))
    };
    let outside = match (flow.client_outside, flow.server_inside) {
        (Some(client), Some(server)) => format!("{client} > {server}"),
        _ => "no answer yet".to_owned(),
    };
    let pair = |name: &str, text: String| Text::plain(format!("{name:<18}{text}"));
    let state = format!(
        "{}, {}, {:.0} s old, idle for {:.1} s",
        flow.kind.word(),
        flow.state.word(),
        flow.age_seconds,
        flow.idle_seconds
    );
    let mut lines = vec![
        Text::title(name(flow)),
        pair("state", state),
        pair(
            "the client's side",
            format!("{} > {}, {}", flow.client, flow.server, by(&flow.client_interface)),
        ),
        pair("the server's side", format!("{outside}, {}", by(&flow.server_interface))),
    ];
    lines.extend(flow.network_name.as_deref().map(network_name));
    lines.extend(flow.icmp_errors.as_ref().map(icmp_errors));
    for (side, who) in [(&flow.client_side, "client sent"), (&flow.server_side, "server sent")] {
        lines.push(pair(who, sent(side, flow.age_seconds)));
    }
    if let Some(past) = view.history.udp(wanted) {
        lines.extend(over_time(past, width));
    }
    lines.extend(flow.dns.iter().flat_map(dns_lines));
    lines
}

fn sent(side: &UdpSide, age: f64) -> String {
    let mut text = format!("{}, {} packets", units::bytes(side.bytes), units::count(side.packets));
    if age >= 1.0 {
        text.push_str(&format!(", {} on average", rate(side.bytes as f64 * 8.0 / age)));
    }
    if side.longest_silence_seconds > 0.0 {
        text.push_str(&format!(", up to {} without an answer", seconds(side.longest_silence_seconds)));
    }
    text
}

/// Counts, and the times by length.
fn dns_lines(dns: &Dns) -> Vec<Text> {
    let ns = |value: Option<u64>| value.map_or("-".to_owned(), time);
    let times = &dns.times;
    let mut lines = vec![
        Text::plain(format!(
            "{:<18}{} queries, {} answers, {} wait",
            "DNS",
            units::count(dns.queries),
            units::count(dns.answers),
            units::count(dns.waiting)
        )),
        Text::plain(format!(
            "{:<18}least {}, half {}, 95 % {}",
            "time to answer",
            ns(times.smallest_ns),
            ns(times.median_ns),
            ns(times.p95_ns)
        )),
    ];
    let of =
        |(number, words): (u64, &str)| Text::plain(format!("{:<18}{} {words}", "", units::count(number)));
    lines.extend(failures(dns).map(of));
    let used = |n: &usize| times.buckets.get(*n).is_some_and(|count| *count > 0);
    let length = times.buckets.len();
    let (Some(first), Some(last)) = ((0..length).find(used), (0..length).rev().find(used)) else {
        return lines;
    };
    let most = times.buckets.iter().copied().max().unwrap_or(1).max(1);
    lines.push(Text { text: "answers by time".to_owned(), style: faint() });
    for n in first..=last {
        let end =
            if n + 1 == length { "longer".to_owned() } else { format!("to {}", time(end_of_bucket(n))) };
        let bar = "█".repeat((times.buckets[n] as f64 / most as f64 * BAR as f64).ceil() as usize);
        let number = if used(&n) { units::count(times.buckets[n]) } else { String::new() };
        lines.push(Text::plain(format!("{end:>12}  {bar} {number}").trim_end().to_owned()));
    }
    lines
}
