//! Tables for people.

mod processes;
mod udp;

use weir_text::escape::line;
use weir_text::layout::{GAP, Terminal, ellipsis};
use weir_text::page::{Page, Tone};
use weir_text::units::{self, Unit};

use crate::budget::SMALLEST;
use crate::containers::Container;
use crate::fraction::Fraction;
use crate::icmp::IcmpReporter;
use crate::networks::Network;
use crate::reading::{Flow, FlowState, Reading};
use crate::side::{BusierLimit, Side};
use crate::untracked::{Estimate, UntrackedFlow, UntrackedNetwork};

const LEGEND: &str = "RTT: the smallest round trip between here and the client (c) or the server (s). From, to: the share of segments \
                      lost between here and that side. Limit: who keeps the side that sent more (> the client, < the server) from sending faster, and \
                      for what share of the time. A page of 180 columns has smoothed RTTs and 95 % intervals.";
/// From this width on a table has numbers of flows, bytes, and limits.
const MEDIUM: usize = 116;
/// From this width on a table has intervals and smoothed round trips.
const WIDE: usize = 180;
/// Least columns of a name.
const NAME: usize = 18;

const COLUMNS: [&str; 6] =
    ["RTT client", "RTT server", "from client", "to server", "from server", "to client"];

const SHORT_COLUMNS: [&str; 6] = ["RTT c", "RTT s", "from c", "to s", "from s", "to c"];

fn time(ns: u64) -> String {
    units::quantity(Unit::Ns, ns as f64, None)
}

/// The smallest round trip, and on a wide page the smoothed one.
fn round_trips(side: &Side, wide: bool) -> String {
    match (side.round_trips.smallest_ns, side.round_trips.smoothed_ns) {
        (Some(least), Some(smoothed)) if wide => format!("{} / {}", time(least), time(smoothed)),
        (Some(least), _) => time(least),
        _ => "-".to_owned(),
    }
}

/// The share, on a wide page with its interval. If none was lost, the bound alone.
fn loss(part: &Fraction, wide: bool) -> String {
    match (part.share, part.low, part.high) {
        (Some(0.0), _, Some(high)) if wide => format!("0 (< {})", units::bound_percent(high)),
        (Some(0.0), _, Some(high)) => format!("< {}", units::bound_percent(high)),
        (Some(share), Some(low), Some(high)) if wide => {
            units::quantity(Unit::Ratio, share, Some((low, high)))
        }
        (Some(share), ..) => units::percent(share),
        _ => "-".to_owned(),
    }
}

/// Round trips and losses of both sides.
fn path(client: &Side, server: &Side, wide: bool) -> impl Iterator<Item = String> {
    let trips = [client, server].map(|side| round_trips(side, wide));
    let losses = [&client.lost_from, &server.lost_to, &server.lost_from, &client.lost_to];
    trips.into_iter().chain(losses.map(|part| loss(part, wide)))
}

fn network_row(network: &Network, wide: bool) -> Vec<String> {
    let name = network.network.clone().unwrap_or_else(|| "(others)".to_owned());
    let bytes = network.client_side.bytes + network.server_side.bytes;
    let mut row = vec![name, units::count(network.flows), units::bytes(bytes)];
    row.push(BusierLimit::of(&network.client_side, &network.server_side).words());
    row.extend(path(&network.client_side, &network.server_side, wide));
    row
}

fn flow_row(flow: &Flow, wide: bool) -> Vec<String> {
    let state = if flow.state == FlowState::Open { "" } else { flow.state_words() };
    let name = format!("{} > {} {state}", flow.client, flow.server);
    let mut row = vec![name.trim_end().to_owned(), units::bytes(flow.bytes())];
    row.push(BusierLimit::of(&flow.client_side, &flow.server_side).words());
    row.extend(path(&flow.client_side, &flow.server_side, wide));
    row
}

/// A table whose names are shortened until it fits.
fn table(page: &mut Page, own: &[&str], mut rows: Vec<Vec<String>>, width: usize) {
    let columns = if width >= WIDE { COLUMNS } else { SHORT_COLUMNS };
    let mut head: Vec<&str> = own.iter().copied().chain(columns).collect();
    if width < MEDIUM {
        head.drain(1..own.len());
        for row in &mut rows {
            row.drain(1..own.len());
        }
    }
    fitted(page, &head, rows, width);
}

/// The same of any columns; without rows nothing.
fn fitted(page: &mut Page, head: &[&str], mut rows: Vec<Vec<String>>, width: usize) {
    if rows.is_empty() {
        return;
    }
    let widest = |n: usize| {
        let cells = rows.iter().map(|row| row[n].chars().count());
        cells.chain([head[n].chars().count()]).max().unwrap_or(0) + GAP
    };
    // The page begins each row with a space.
    let figures: usize = 1 + (1..head.len()).map(widest).sum::<usize>();
    let room = width.saturating_sub(figures).max(NAME);
    for row in &mut rows {
        row[0] = ellipsis(&row[0], room);
    }
    page.gap();
    page.matrix(head, &rows);
}

/// The containers that are ends of the flows above.
fn containers(page: &mut Page, reading: &Reading, width: usize) {
    const MOST: usize = 20;
    let row = |one: &Container| vec![line(&one.name), one.address.to_string()];
    let rows = reading.containers.iter().take(MOST).map(row).collect();
    fitted(page, &["container", "address"], rows, width);
}

/// ICMP errors about flows by sender and kind.
fn icmp_errors(page: &mut Page, reading: &Reading) {
    /// More of them are seldom of use: a scan behind this host has one for each address.
    const MOST: usize = 20;
    let row = |one: &IcmpReporter| {
        let mtu = one.smallest_mtu.map_or("-".to_owned(), |mtu| mtu.to_string());
        vec![one.from.to_string(), one.meaning.words().to_owned(), mtu, units::count(one.packets)]
    };
    let rows: Vec<_> = reading.icmp_errors.iter().take(MOST).map(row).collect();
    if !rows.is_empty() {
        page.gap();
        page.matrix(&["ICMP errors from", "meaning", "MTU", "number"], &rows);
    }
}

/// The largest flows and networks among what was not tracked.
fn untracked(page: &mut Page, reading: &Reading, width: usize) {
    const MOST: usize = 10;
    let size = |size: Estimate| units::quantity(Unit::Bytes, size.bytes, Some((size.low, size.high)));
    let flow = |flow: &UntrackedFlow| vec![flow.words(), size(flow.size)];
    let flows = reading.untracked.flows.iter().take(MOST).map(flow).collect();
    fitted(page, &["flow that is not tracked", "bytes, about"], flows, width);
    let network = |network: &UntrackedNetwork| {
        let name = network.network.clone().unwrap_or_else(|| "(others)".to_owned());
        vec![name, size(network.from), size(network.to)]
    };
    let networks = reading.untracked.networks.iter().take(MOST).map(network).collect();
    fitted(page, &["network, not tracked", "bytes from it, about", "bytes to it, about"], networks, width);
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
    say(client.zero_windows, "times a client closed its receive window: it reads too slowly", None);
    say(server.zero_windows, "times a server closed its receive window: it reads too slowly", None);
    say(sum(|s| s.congestion_marks), "packets marked with congestion (ECN)", None);
    say(sum(|s| s.bypassed), "segments took another way: the path is asymmetric", Some(Tone::Warning));
    say(sum(|s| s.unjudged), "segments not judged: too many were missing at once", None);
    udp::remarks(&reading.all.udp, &mut say);
    let not = &reading.not_tracked;
    say(
        not.no_room,
        "packets of flows that found no room: raise --flows, or lower --share",
        Some(Tone::Warning),
    );
    let opening = "packets that begin flows, not tracked: too many await an answer";
    say(not.too_many_opening, opening, Some(Tone::Warning));
    say(not.outside_sample, "packets outside of the sample", None);
    lines.extend(cost(reading));
    lines
}

/// The time that watching takes, and whether a smaller sample keeps it within its budget.
fn cost(reading: &Reading) -> Option<(String, Option<Tone>)> {
    if let Some(reason) = &reading.budget_unknown {
        return Some((format!("--budget has no effect: {reason}"), Some(Tone::Warning)));
    }
    let (ns, core, budget) = (reading.packet_ns?, reading.core_share?, reading.core_budget?);
    let [core_words, budget_words, readings] = [core, budget, reading.readings_share?].map(units::percent);
    let took =
        format!("watching takes {core_words} of a core, {readings} for readings and {ns:.0} ns a packet");
    let next = if reading.sample_share > SMALLEST { "becomes smaller" } else { "is the smallest" };
    Some(if core > budget {
        (format!("{took}: more than the budget of {budget_words}; the sample {next}"), Some(Tone::Warning))
    } else {
        (format!("{took}; the budget is {budget_words}"), Some(Tone::Faint))
    })
}

/// The reading as tables.
pub fn render(reading: &Reading, terminal: Terminal) -> String {
    let mut page = Page::new(terminal);
    page.section(&format!(
        "TCP and UDP through {}, {:.0} s: {} and {} flows now, {} over; sample: {} of all flows",
        reading.interfaces.join(", "),
        reading.seconds,
        units::count(reading.flows_now),
        units::count(reading.udp_flows_now),
        units::count(reading.flows_over + reading.udp_flows_over),
        units::percent(reading.sample_share)
    ));
    page.line(LEGEND, 1, Some(Tone::Faint));
    if reading.networks_in_all == 0 {
        let nothing = reading.untracked.all.bytes == 0.0;
        page.line(
            if nothing { "no packet of TCP or UDP has passed" } else { "no flow was followed" },
            1,
            None,
        );
    } else {
        let width = terminal.width();
        let wide = width >= WIDE;
        let networks = reading.networks.iter().filter(|n| n.flows > 0);
        let networks: Vec<_> = networks.map(|n| network_row(n, wide)).collect();
        table(&mut page, &["network", "flows", "bytes", "limit"], networks, width);
        let flows: Vec<_> = reading.flows.iter().map(|f| flow_row(f, wide)).collect();
        table(&mut page, &["flow", "bytes", "limit"], flows, width);
        udp::tables(&mut page, reading, width);
        processes::table(&mut page, reading, width);
        containers(&mut page, reading, width);
        icmp_errors(&mut page, reading);
    }
    untracked(&mut page, reading, terminal.width());
    let lines = remarks(reading);
    if !lines.is_empty() {
        page.gap();
    }
    for (line, tone) in lines {
        page.line(&line, 1, tone);
    }
    page.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use unicode_width::UnicodeWidthStr;
    use weir_bpf::Plain;

    use super::*;
    use crate::icmp::IcmpMeaning;
    use crate::networks::Grouping;
    use crate::reading::NotTracked;
    use crate::shared::WeirFlow;
    use crate::udp::{UdpFlow, UdpKind, UdpState};

    /// A flow of IPv6 with figures of many digits.
    fn reading() -> Reading {
        let mut flow = WeirFlow::zeroed();
        flow.ends[0].version = 6;
        flow.ends[0].source = [u32::MAX; 4];
        flow.ends[0].destination = [u32::MAX; 4];
        for side in &mut flow.sides {
            side.bytes = 1 << 50;
            side.segments = 99_999;
            side.fresh = 99_999;
            side.lost_before = 1234;
            side.lost_behind = 4321;
            side.trips.smallest = 123_456_789;
            side.trips.smoothed = 234_567_891;
            side.trips.count = 9;
            side.wait.by = [0, 0, 0, 3_000_000_000, 0];
        }
        let mut networks = BTreeMap::new();
        let grouping = Grouping::default();
        grouping.add(&mut networks, &flow, 0);
        let networks: Vec<Network> =
            networks.iter().map(|(key, sum)| sum.report(grouping.name(*key))).collect();
        Reading {
            interfaces: vec!["eth0".into()],
            seconds: 10.0,
            sample_share: 1.0,
            capacity: 1,
            flows_now: 1,
            not_tracked: NotTracked::default(),
            all: networks[0].clone(),
            networks_in_all: 1,
            networks,
            flows: vec![Flow::of(&flow, &BTreeMap::new(), 0)],
            ..Reading::empty()
        }
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for width in [80, 115, 116, 179, 180, 200] {
            let page = render(&reading(), Terminal { width, color: false });
            for line in page.lines() {
                assert!(line.width() <= width, "{width}: {line}");
            }
            assert_eq!(page.contains("[1.1"), width >= WIDE, "{width}:\n{page}");
            assert_eq!(page.contains("> sender 100 %"), width >= MEDIUM, "{width}:\n{page}");
            assert!(page.contains("1.2") && page.contains("4.3"), "{page}");
        }
    }

    #[test]
    fn the_cost_has_packets_and_readings() {
        let says = |core, share| {
            let mut reading = Reading { sample_share: share, packet_ns: Some(99.4), ..reading() };
            (reading.core_share, reading.readings_share, reading.core_budget) =
                (Some(core), Some(0.008), Some(0.02));
            cost(&reading).unwrap().0
        };
        let fits = "watching takes 1.5 % of a core, 0.8 % for readings and 99 ns a packet; the budget is 2 %";
        assert_eq!(says(0.015, 1.0), fits);
        assert!(says(0.03, 1.0).ends_with(": more than the budget of 2 %; the sample becomes smaller"));
        assert!(says(0.03, SMALLEST).ends_with(": more than the budget of 2 %; the sample is the smallest"));
    }

    #[test]
    fn what_is_not_tracked_has_tables_of_its_own() {
        let end = |text: &str| text.parse().unwrap();
        let size = Estimate { bytes: 3e9, low: 2.9e9, high: 3.1e9 };
        let mut reading = Reading { interfaces: vec!["eth0".into()], ..Reading::empty() };
        let terminal = Terminal { width: 80, color: false };
        assert!(render(&reading, terminal).contains("no packet of TCP or UDP has passed"));
        reading.untracked.all = size;
        let (source, destination) = (end("[2001:2::1]:0"), end("[2001:2::2]:0"));
        reading.untracked.flows = vec![UntrackedFlow { protocol: 50, source, destination, size }];
        reading.untracked.networks = vec![UntrackedNetwork { network: None, from: size, to: size }];
        let page = render(&reading, terminal);
        assert!(page.contains("no flow was followed"), "{page}");
        assert!(page.contains("2001:2::1 > 2001:2::2 protocol 50"), "{page}");
        assert!(page.contains("(others)") && page.contains("2.79 GiB"), "{page}");
        assert!(page.lines().all(|line| line.width() <= 80), "{page}");
    }

    #[test]
    fn udp_has_tables_of_rates_and_of_dns() {
        let mut flow = UdpFlow::empty();
        (flow.client, flow.server) = ("10.0.0.2:40000".parse().unwrap(), "198.51.100.7:443".parse().unwrap());
        (flow.kind, flow.state, flow.age_seconds) = (UdpKind::Quic, UdpState::Silent, 8.0);
        flow.client_side.bytes = 1_000_000;
        flow.client_side.longest_silence_seconds = 4.0;
        let mut dns = UdpFlow { kind: UdpKind::Dns, ..flow.clone() };
        let mut counts = Reading::empty().all.udp.dns;
        (counts.queries, counts.unanswered, counts.servfail, counts.nxdomain) = (100, 3, 2, 7);
        counts.times.median_ns = Some(12_300_000);
        dns.dns = Some(counts.clone());
        let mut reading = Reading { udp_flows: vec![flow, dns], ..reading() };
        reading.all.udp.dns = counts;
        let address = "10.0.0.2".parse().unwrap();
        reading.containers = vec![Container { address, name: "docker \u{1b}[31mweb".to_owned() }];
        reading.icmp_errors = vec![IcmpReporter {
            from: "198.51.100.1".parse().unwrap(),
            meaning: IcmpMeaning::TooBig,
            icmp_type: 3,
            icmp_code: 4,
            packets: 1234,
            smallest_mtu: Some(1400),
        }];
        for width in [80, 168] {
            let page = render(&reading, Terminal { width, color: false });
            println!("{page}");
            let has = |words: &str| {
                let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
                assert!(page.lines().any(|line| squeezed(line).contains(words)), "{words}:\n{page}");
            };
            has("QUIC 1.00 Mbit/s 0 bit/s 4.00 s -");
            has("10.0.0.2 > 198.51.100.7");
            has("100 12.3 ms - 3 2 7");
            has("198.51.100.1 packet too big 1400 1,234");
            has("web 10.0.0.2");
            assert!(!page.contains("\u{1b}[31m"), "{page}");
            has("3 queries of DNS without an answer within 5 s");
            assert!(page.lines().all(|line| line.width() <= width), "{page}");
        }
    }
}
