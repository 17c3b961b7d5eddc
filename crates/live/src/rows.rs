//! Rows of the tables, how they are ordered, and which of them a filter leaves.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_flows::{Dns, Flow, FlowState, Fraction, IcmpReporter, Network, Reading, Side, UdpFlow, UdpKind};
use weir_text::escape::line;

use crate::history::{Ends, History, Past, ends};
use crate::udp;

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tab {
    /// By network, as the watch groups.
    Networks,
    /// By host inside.
    Hosts,
    /// TCP one by one.
    Flows,
    /// UDP other than DNS one by one.
    Udp,
    /// DNS by client and server.
    Dns,
    /// ICMP errors by sender and kind.
    Icmp,
}

impl Tab {
    pub(crate) const ALL: [Tab; 6] = [Tab::Networks, Tab::Hosts, Tab::Flows, Tab::Udp, Tab::Dns, Tab::Icmp];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Tab::Networks => "networks",
            Tab::Hosts => "inside hosts",
            Tab::Flows => "flows",
            Tab::Udp => "UDP",
            Tab::Dns => "DNS",
            Tab::Icmp => "ICMP",
        }
    }
}

/// By what rows are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    Rate,
    Bytes,
    RttClient,
    RttServer,
    LossClient,
    LossServer,
    Flows,
    Silence,
    Queries,
    Answer,
    Failures,
    Errors,
    Meaning,
    Mtu,
    Name,
}

impl Sort {
    const OF_TCP: [Sort; 8] = [
        Sort::Rate,
        Sort::Bytes,
        Sort::RttClient,
        Sort::RttServer,
        Sort::LossClient,
        Sort::LossServer,
        Sort::Flows,
        Sort::Name,
    ];
    const OF_UDP: [Sort; 4] = [Sort::Rate, Sort::Bytes, Sort::Silence, Sort::Name];
    const OF_DNS: [Sort; 4] = [Sort::Queries, Sort::Answer, Sort::Failures, Sort::Name];

    const OF_ICMP: [Sort; 4] = [Sort::Errors, Sort::Meaning, Sort::Mtu, Sort::Name];

    /// The orders of a table; the first one is the usual one.
    pub(crate) fn of(tab: Tab) -> &'static [Sort] {
        match tab {
            Tab::Networks | Tab::Hosts | Tab::Flows => &Sort::OF_TCP,
            Tab::Udp => &Sort::OF_UDP,
            Tab::Dns => &Sort::OF_DNS,
            Tab::Icmp => &Sort::OF_ICMP,
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Sort::Rate => "rate",
            Sort::Bytes => "bytes",
            Sort::RttClient => "RTT to the client",
            Sort::RttServer => "RTT to the server",
            Sort::LossClient => "loss at the client",
            Sort::LossServer => "loss at the server",
            Sort::Flows => "number of flows",
            Sort::Silence => "silence",
            Sort::Queries => "number of queries",
            Sort::Answer => "time to an answer",
            Sort::Failures => "failures",
            Sort::Errors => "number of errors",
            Sort::Meaning => "meaning",
            Sort::Mtu => "MTU",
            Sort::Name => "name",
        }
    }

    /// The next one of a table, or the one before.
    pub(crate) fn next(self, tab: Tab, back: bool) -> Sort {
        let all = Sort::of(tab);
        let at = all.iter().position(|s| *s == self).unwrap_or(0);
        all[(at + if back { all.len() - 1 } else { 1 }) % all.len()]
    }
}

/// The subject of a row, by which it stays selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Of {
    Network(Option<String>),
    Host(IpAddr),
    Flow(Ends),
    Udp(Ends),
    /// Sender, type, code.
    Icmp(IpAddr, u8, u8),
}

/// A row.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) of: Of,
    pub(crate) name: String,
    /// The state of a flow that is not simply open.
    pub(crate) state: Option<FlowState>,
    pub(crate) flows: u64,
    pub(crate) bytes: u64,
    pub(crate) bps: f64,
    /// The smallest round trips to the client and to the server, ns.
    pub(crate) rtt: [Option<u64>; 2],
    /// Lost by part of the path ([`crate::history::PARTS`]).
    pub(crate) lost: [Fraction; 4],
    /// The flow of UDP.
    pub(crate) udp: Option<UdpFlow>,
    /// ICMP errors.
    pub(crate) icmp: Option<IcmpReporter>,
    /// The text that a filter looks at, in small letters, and the addresses.
    pub(crate) searched: String,
    pub(crate) addresses: Vec<IpAddr>,
}

impl Row {
    /// Lost between here and the client, or the server, in both directions.
    pub(crate) fn lost_at(&self, server: bool) -> Fraction {
        let [from_client, to_server, from_server, to_client] = &self.lost;
        if server { Fraction::sum([to_server, from_server]) } else { Fraction::sum([from_client, to_client]) }
    }
}

pub(crate) fn state_word(flow: &Flow) -> &'static str {
    match flow.state {
        FlowState::Open => "open",
        FlowState::Opening => "opening",
        FlowState::Unanswered => "unanswered",
        FlowState::OneWay => "one way",
        FlowState::Ended => "ended",
        FlowState::Reset if flow.server_side.resets > 0 => "reset by server",
        FlowState::Reset => "reset by client",
    }
}

/// The host of a flow on the inside: the one whose address NAT hides, otherwise the client.
pub(crate) fn inside(flow: &Flow) -> IpAddr {
    match flow.server_inside {
        Some(server) if server.ip() != flow.server.ip() => server.ip(),
        _ => flow.client.ip(),
    }
}

fn parts<'a>(client: &'a Side, server: &'a Side) -> [&'a Fraction; 4] {
    [&client.lost_from, &server.lost_to, &server.lost_from, &client.lost_to]
}

fn network_row(network: &Network, history: &History) -> Row {
    let name = network.network.as_deref().map_or_else(|| "(others)".to_owned(), line);
    let (client, server) = (&network.client_side, &network.server_side);
    let address = name.split('/').next().and_then(|text| text.parse().ok());
    Row {
        of: Of::Network(network.network.clone()),
        state: None,
        flows: network.flows + network.udp.flows,
        bytes: network.bytes(),
        bps: history.network(&network.network),
        rtt: [client, server].map(|side| side.round_trips.smallest_ns),
        lost: parts(client, server).map(|part| *part),
        udp: None,
        icmp: None,
        searched: name.clone(),
        addresses: address.into_iter().collect(),
        name,
    }
}

fn flow_row(flow: &Flow, history: &History) -> Row {
    let (client, server) = (&flow.client_side, &flow.server_side);
    let sockets = [Some(flow.client), Some(flow.server), flow.client_outside, flow.server_inside];
    let sockets = || sockets.iter().flatten();
    let mut searched: Vec<String> = sockets().map(|socket| socket.to_string()).collect();
    searched.push(state_word(flow).to_owned());
    let interfaces = flow.client_interface.iter().chain(&flow.server_interface);
    searched.extend(interfaces.map(|name| line(name).to_lowercase()));
    Row {
        of: Of::Flow(ends(flow)),
        name: format!("{} > {}", flow.client, flow.server),
        state: (flow.state != FlowState::Open).then_some(flow.state),
        flows: 1,
        bytes: flow.bytes(),
        bps: history.flow(&ends(flow)).map_or(0.0, Past::bps),
        rtt: [client, server].map(|side| side.round_trips.smallest_ns),
        lost: parts(client, server).map(|part| *part),
        udp: None,
        icmp: None,
        searched: searched.join(" "),
        addresses: sockets().map(|socket| socket.ip()).collect(),
    }
}

fn host_row(host: IpAddr, flows: &[&Flow], history: &History) -> Row {
    let rtt = |side: fn(&Flow) -> &Side| flows.iter().filter_map(|f| side(f).round_trips.smallest_ns).min();
    let part = |n: usize| Fraction::sum(flows.iter().map(|f| parts(&f.client_side, &f.server_side)[n]));
    let bps = |flow: &&Flow| history.flow(&ends(flow)).map_or(0.0, Past::bps);
    Row {
        of: Of::Host(host),
        name: host.to_string(),
        state: None,
        flows: flows.len() as u64,
        bytes: flows.iter().map(|flow| flow.bytes()).sum(),
        bps: flows.iter().map(bps).sum(),
        rtt: [rtt(|flow| &flow.client_side), rtt(|flow| &flow.server_side)],
        lost: [part(0), part(1), part(2), part(3)],
        udp: None,
        icmp: None,
        searched: host.to_string(),
        addresses: vec![host],
    }
}

fn udp_row(flow: &UdpFlow, history: &History) -> Row {
    let sockets = [Some(flow.client), Some(flow.server), flow.client_outside, flow.server_inside];
    let sockets: Vec<_> = sockets.into_iter().flatten().collect();
    let mut searched: Vec<String> = sockets.iter().map(ToString::to_string).collect();
    searched.push(format!("{} {}", udp::kind_word(flow.kind), udp::state_word(flow.state)).to_lowercase());
    let interfaces = flow.client_interface.iter().chain(&flow.server_interface);
    searched.extend(interfaces.map(|name| line(name).to_lowercase()));
    let ends = (flow.client, flow.server);
    Row {
        of: Of::Udp(ends),
        name: udp::name(flow),
        state: None,
        flows: 1,
        bytes: flow.bytes(),
        bps: history.udp(&ends).map_or(0.0, Past::bps),
        rtt: [None; 2],
        lost: [Fraction::sum([]); 4],
        udp: Some(flow.clone()),
        icmp: None,
        searched: searched.join(" "),
        addresses: sockets.iter().map(|socket| socket.ip()).collect(),
    }
}

fn icmp_row(one: &IcmpReporter) -> Row {
    Row {
        of: Of::Icmp(one.from, one.icmp_type, one.icmp_code),
        name: one.from.to_string(),
        state: None,
        flows: 0,
        bytes: 0,
        bps: 0.0,
        rtt: [None; 2],
        lost: [Fraction::sum([]); 4],
        udp: None,
        icmp: Some(one.clone()),
        searched: format!("{} {}", one.from, one.meaning.words()),
        addresses: vec![one.from],
    }
}

/// All rows of a table.
pub(crate) fn rows(tab: Tab, reading: &Reading, history: &History) -> Vec<Row> {
    match tab {
        Tab::Networks => reading.networks.iter().map(|network| network_row(network, history)).collect(),
        Tab::Flows => reading.flows.iter().map(|flow| flow_row(flow, history)).collect(),
        Tab::Hosts => {
            let mut hosts: BTreeMap<IpAddr, Vec<&Flow>> = BTreeMap::new();
            for flow in &reading.flows {
                hosts.entry(inside(flow)).or_default().push(flow);
            }
            hosts.into_iter().map(|(host, flows)| host_row(host, &flows, history)).collect()
        }
        Tab::Icmp => reading.icmp_errors.iter().map(icmp_row).collect(),
        Tab::Udp | Tab::Dns => {
            let flows = reading.udp_flows.iter();
            let flows = flows.filter(|flow| (flow.kind == UdpKind::Dns) == (tab == Tab::Dns));
            flows.map(|flow| udp_row(flow, history)).collect()
        }
    }
}

/// Puts rows in order, the greatest first; names from A to Z. Loss counts by the lower end of its interval, so that one segment of two
/// is not the worst of all.
pub(crate) fn sort(rows: &mut [Row], by: Sort, reverse: bool) {
    let low = |row: &Row, server: bool| row.lost_at(server).low.unwrap_or(-1.0);
    let silence = |row: &Row| {
        let sides = row.udp.as_ref().map(|f| [f.client_side, f.server_side]);
        sides.map_or(0.0, |sides| sides.iter().map(|s| s.longest_silence_seconds).fold(0.0, f64::max))
    };
    let errors = |row: &Row| row.icmp.as_ref().map_or(0, |one| one.packets);
    let meaning = |row: &Row| row.icmp.as_ref().map(|one| one.meaning);
    let mtu = |row: &Row| row.icmp.as_ref().and_then(|one| one.smallest_mtu);
    let dns = |row: &Row, of: fn(&Dns) -> u64| row.udp.as_ref().and_then(|f| f.dns.as_ref()).map_or(0, of);
    let order = |a: &Row, b: &Row| -> Ordering {
        match by {
            Sort::Rate => b.bps.total_cmp(&a.bps),
            Sort::Bytes => b.bytes.cmp(&a.bytes),
            Sort::RttClient => b.rtt[0].cmp(&a.rtt[0]),
            Sort::RttServer => b.rtt[1].cmp(&a.rtt[1]),
            Sort::LossClient | Sort::LossServer => Ordering::Equal,
            Sort::Flows => b.flows.cmp(&a.flows),
            Sort::Silence => silence(b).total_cmp(&silence(a)),
            Sort::Queries => dns(b, |d| d.queries).cmp(&dns(a, |d| d.queries)),
            Sort::Answer => {
                dns(b, |d| d.times.p95_ns.unwrap_or(0)).cmp(&dns(a, |d| d.times.p95_ns.unwrap_or(0)))
            }
            Sort::Failures => dns(b, Dns::failures).cmp(&dns(a, Dns::failures)),
            Sort::Errors => errors(b).cmp(&errors(a)),
            Sort::Meaning => meaning(a).cmp(&meaning(b)),
            Sort::Mtu => mtu(b).cmp(&mtu(a)),
            Sort::Name => a.name.cmp(&b.name),
        }
    };
    if matches!(by, Sort::LossClient | Sort::LossServer) {
        // An interval takes its time: once for each row.
        rows.sort_by_cached_key(|row| {
            // Floats above 0 are ordered as their bits are; those without loss come last.
            let low = low(row, by == Sort::LossServer);
            std::cmp::Reverse(if low < 0.0 { 0 } else { low.to_bits() + 1 })
        });
    } else {
        rows.sort_by(|a, b| order(a, b).then(b.bytes.cmp(&a.bytes)));
    }
    if reverse {
        rows.reverse();
    }
}

/// Words that must all be in a row; a prefix such as `198.51.100.0/24` must hold one of its addresses.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Filter {
    pub(crate) text: String,
}

impl Filter {
    pub(crate) fn leaves(&self, row: &Row) -> bool {
        self.text.split_whitespace().all(|word| match prefix(word) {
            Some((network, length)) => row.addresses.iter().any(|a| is_within(*a, network, length)),
            None => row.searched.contains(&word.to_lowercase()),
        })
    }
}

fn prefix(word: &str) -> Option<(IpAddr, u32)> {
    let (address, length) = word.split_once('/')?;
    Some((address.parse().ok()?, length.parse().ok()?))
}

fn is_within(address: IpAddr, network: IpAddr, length: u32) -> bool {
    let differing = match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(n)) => (u32::from(a) ^ u32::from(n)).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(n)) => (u128::from(a) ^ u128::from(n)).leading_zeros(),
        _ => return false,
    };
    differing >= length
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{flow, reading};

    fn names(rows: &[Row]) -> Vec<&str> {
        rows.iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn hosts_are_those_that_nat_hides() {
        let mut translated = flow("10.0.0.2:4000", "198.51.100.7:443");
        translated.client_outside = Some("203.0.113.1:4000".parse().unwrap());
        translated.server_inside = Some(translated.server);
        assert_eq!(inside(&translated).to_string(), "10.0.0.2");
        let mut published = flow("198.51.100.7:4000", "203.0.113.1:80");
        published.server_inside = Some("10.0.0.3:8080".parse().unwrap());
        assert_eq!(inside(&published).to_string(), "10.0.0.3");
        let hosts =
            rows(Tab::Hosts, &reading(vec![translated.clone(), translated, published]), &History::default());
        assert_eq!(names(&hosts), ["10.0.0.2", "10.0.0.3"]);
        assert_eq!(hosts[0].flows, 2);
    }

    #[test]
    fn loss_is_ordered_by_what_is_sure() {
        let mut rows = Vec::new();
        for (name, segments, of) in
            [("one of two", 1, 2), ("5 %", 50, 1000), ("none", 0, 1000), ("unseen", 0, 0)]
        {
            let mut flow = flow("10.0.0.2:1", "198.51.100.7:443");
            flow.server_side.lost_to.segments = segments;
            flow.server_side.lost_to.of = of;
            let mut row = flow_row(&flow, &History::default());
            row.name = name.to_owned();
            rows.insert(0, row);
        }
        sort(&mut rows, Sort::LossServer, false);
        assert_eq!(names(&rows), ["5 %", "one of two", "none", "unseen"]);
        sort(&mut rows, Sort::Name, true);
        assert_eq!(names(&rows), ["unseen", "one of two", "none", "5 %"]);
    }

    #[test]
    fn filters_know_words_states_and_prefixes() {
        let mut one = flow("10.0.0.2:4000", "198.51.100.7:443");
        one.state = FlowState::Unanswered;
        one.client_interface = Some("Lan\u{1b}[31m0".to_owned());
        let row = flow_row(&one, &History::default());
        let leaves = |text: &str| Filter { text: text.to_owned() }.leaves(&row);
        for text in ["", "443", "UNANS", "198.51.100.0/24", "10.0.0.2/32 443", "lan0", "2001:db8::/0 443"] {
            assert_eq!(leaves(text), !text.starts_with("2001"), "{text}");
        }
        for text in ["444", "198.51.101.0/24", "443 open", "10.0.0.3/32"] {
            assert!(!leaves(text), "{text}");
        }
    }
}
