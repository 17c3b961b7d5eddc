//! Tables for people.

use weir_text::layout::Terminal;
use weir_text::page::{Page, Tone};
use weir_text::units::{self, Unit};

use crate::fraction::Fraction;
use crate::networks::Network;
use crate::reading::{Flow, FlowState, Reading};
use crate::side::Side;

const NETWORKS: [&str; 9] = [
    "network",
    "flows",
    "bytes",
    "RTT client",
    "RTT server",
    "from client",
    "to server",
    "from server",
    "to client",
];
const FLOWS: [&str; 8] =
    ["flow", "bytes", "RTT client", "RTT server", "from client", "to server", "from server", "to client"];

/// Smallest and smoothed round trip.
fn round_trips(side: &Side) -> String {
    let time = |ns: u64| units::quantity(Unit::Ns, ns as f64, None);
    match (side.round_trips.smallest_ns, side.round_trips.smoothed_ns) {
        (Some(least), Some(smoothed)) => format!("{} / {}", time(least), time(smoothed)),
        (Some(least), None) => time(least),
        _ => "-".to_owned(),
    }
}

/// The share with its interval; `0 < 0.1 %` where nothing was lost.
fn loss(part: &Fraction) -> String {
    match (part.share, part.low, part.high) {
        (Some(0.0), _, Some(high)) => format!("0 (< {})", units::bound_percent(high)),
        (Some(share), Some(low), Some(high)) => units::quantity(Unit::Ratio, share, Some((low, high))),
        (Some(share), ..) => units::percent(share),
        _ => "-".to_owned(),
    }
}

fn losses(client: &Side, server: &Side) -> [String; 4] {
    [&client.lost_from, &server.lost_to, &server.lost_from, &client.lost_to].map(loss)
}

fn network_row(network: &Network) -> Vec<String> {
    let name = network.network.clone().unwrap_or_else(|| "(others)".to_owned());
    let mut row = vec![name, units::count(network.flows), units::bytes(network.bytes())];
    row.extend([round_trips(&network.client_side), round_trips(&network.server_side)]);
    row.extend(losses(&network.client_side, &network.server_side));
    row
}

fn flow_row(flow: &Flow) -> Vec<String> {
    let state = match flow.state {
        FlowState::Open => "",
        FlowState::Opening => " opening",
        FlowState::Unanswered => " unanswered",
        FlowState::OneWay => " one way",
        FlowState::Ended => " ended",
        FlowState::Reset if flow.server_side.resets > 0 => " reset by server",
        FlowState::Reset => " reset by client",
    };
    let mut row = vec![format!("{} > {}{state}", flow.client, flow.server), units::bytes(flow.bytes())];
    row.extend([round_trips(&flow.client_side), round_trips(&flow.server_side)]);
    row.extend(losses(&flow.client_side, &flow.server_side));
    row
}

/// One line on each thing beyond the tables, where there was any.
fn remarks(reading: &Reading) -> Vec<(String, Option<Tone>)> {
    let (client, server) = (&reading.all.client_side, &reading.all.server_side);
    let sum = |field: fn(&Side) -> u64| field(client) + field(server);
    let mut lines = Vec::new();
    let mut say = |number: u64, words: &str, tone: Option<Tone>| {
        if number > 0 {
            lines.push((format!("{} {words}", units::count(number)), tone));
        }
    };
    say(reading.all.unanswered_syns, "SYNs without an answer", Some(Tone::Warning));
    say(sum(|s| s.reordered), "segments reordered, not lost", None);
    say(sum(|s| s.needless), "segments sent again needlessly", None);
    say(client.resets, "resets by clients", None);
    say(server.resets, "resets by servers", None);
    say(sum(|s| s.bypassed), "segments took another way: the path is asymmetric", Some(Tone::Warning));
    say(sum(|s| s.unjudged), "segments not judged: too many were missing at once", None);
    let not = &reading.not_tracked;
    say(
        not.no_room,
        "packets of flows that found no room: raise --flows, or lower --share",
        Some(Tone::Warning),
    );
    say(not.too_many_opening, "SYNs not tracked: too many await an answer", Some(Tone::Warning));
    say(not.outside_sample, "packets outside of the sample", None);
    lines
}

/// The reading as tables.
pub fn render(reading: &Reading, terminal: Terminal) -> String {
    let mut page = Page::new(terminal);
    page.section(&format!(
        "TCP through {}, {:.0} s: {} flows now, {} over; sample: {} of all flows",
        reading.interfaces.join(", "),
        reading.seconds,
        units::count(reading.flows_now),
        units::count(reading.flows_over),
        units::percent(reading.sample_share)
    ));
    page.line("RTT: smallest / smoothed, between here and that side. Loss: between here and that side, with its 95 % interval.", 1, Some(Tone::Faint));
    if reading.networks_in_all == 0 {
        page.line("no TCP packet has passed", 1, None);
    } else {
        page.gap();
        page.matrix(&NETWORKS, &reading.networks.iter().map(network_row).collect::<Vec<_>>());
        page.gap();
        page.matrix(&FLOWS, &reading.flows.iter().map(flow_row).collect::<Vec<_>>());
    }
    let lines = remarks(reading);
    if !lines.is_empty() {
        page.gap();
    }
    for (line, tone) in lines {
        page.line(&line, 1, tone);
    }
    page.finish()
}
