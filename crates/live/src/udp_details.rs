//! The details of a flow of UDP: both tuples, rates over time, and of DNS the answers by time.

use ratatui_core::style::Style;
use weir_flows::{Dns, UdpSide};
use weir_text::units;

use crate::details::{containers, gone, histogram, over_time, processes, tuples};
use crate::history::Ends;
use crate::paint::{Text, rate, time};
use crate::udp::{failures, name, seconds};
use crate::view::View;

/// Columns of the longest bar.
const BAR: usize = 40;

/// The lines of the page about a flow.
pub(crate) fn lines(view: &View, wanted: &Ends, width: usize) -> Vec<Text> {
    let Some(flow) = view.udp_flow(wanted) else { return gone(wanted) };
    let state = format!(
        "{}, {}, {:.0} s old, idle for {:.1} s",
        flow.kind.words(),
        flow.state.words(),
        flow.age_seconds,
        flow.idle_seconds
    );
    let outside = flow.client_outside.zip(flow.server_inside);
    let names = [&flow.client_interface, &flow.server_interface, &flow.network_name];
    let mut lines = tuples(name(flow), state, (flow.client, flow.server), outside, names, &flow.icmp_errors);
    lines.extend(containers(view, [Some(flow.client), Some(flow.server), flow.server_inside]));
    lines.extend(processes([&flow.client_here, &flow.server_here]));
    for (side, who) in [(&flow.client_side, "client sent"), (&flow.server_side, "server sent")] {
        lines.push(Text::plain(format!("{who:<18}{}", sent(side, flow.age_seconds))));
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
    lines.extend(histogram("answers by time".to_owned(), &[&times.buckets], BAR, Style::new()));
    lines
}
