//! Rows of the tables, and which of them a filter leaves.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use weir_flows::{
    BusierLimit, Estimate, Flow, FlowState, Fraction, IcmpReporter, Limits, LocalEnd, Network, Reading, Side,
    UdpFlow, UdpKind, UntrackedFlow,
};
use weir_text::escape::line;

use crate::history::{Direction, Ends, History, Past, direction, ends};
use crate::processes::{self, Owner, Share};
use crate::udp;

weir_text::listed! {
    /// A table.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Tab {
        /// By network, as the watch groups.
        Networks = "networks",
        /// By host inside.
        Hosts = "hosts",
        /// TCP one by one.
        Flows = "flows",
        /// UDP other than DNS one by one.
        Udp = "UDP",
        /// DNS by client and server.
        Dns = "DNS",
        /// ICMP errors by sender and kind.
        Icmp = "ICMP",
        /// Flows that are not tracked, by direction.
        Untracked = "rest",
        /// By process of this machine.
        Processes = "processes",
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
    Untracked(Direction),
    Process(Owner),
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
    /// Who limits the side that sent more; of TCP alone.
    pub(crate) limit: Option<BusierLimit>,
    /// The flow of UDP.
    pub(crate) udp: Option<UdpFlow>,
    /// ICMP errors.
    pub(crate) icmp: Option<IcmpReporter>,
    /// Bytes of a flow that is not tracked.
    pub(crate) untracked: Option<Estimate>,
    /// The text that a filter looks at, in small letters, and the addresses.
    pub(crate) searched: String,
    pub(crate) addresses: Vec<IpAddr>,
    /// Numbers of the processes at its ends.
    pub(crate) pids: Vec<u32>,
}

impl Row {
    /// A row of which nothing but its subject is known.
    fn new(of: Of, name: String) -> Self {
        Row {
            of,
            name,
            state: None,
            flows: 0,
            bytes: 0,
            bps: 0.0,
            rtt: [None; 2],
            lost: [Fraction::default(); 4],
            limit: None,
            udp: None,
            icmp: None,
            untracked: None,
            searched: String::new(),
            addresses: Vec::new(),
            pids: Vec::new(),
        }
    }

    /// A filter finds the row of a flow by its ends, the words for its state, and the names of its interfaces, network, containers and
    /// processes.
    fn found_by(
        self,
        sockets: [Option<SocketAddr>; 4],
        words: &str,
        names: [&Option<String>; 3],
        processes: [&Option<LocalEnd>; 2],
        reading: &Reading,
    ) -> Self {
        let sockets = || sockets.iter().flatten();
        let mut searched: Vec<String> = sockets().map(ToString::to_string).collect();
        searched.push(words.to_owned());
        let containers = sockets().filter_map(|socket| reading.container(socket.ip()));
        searched.extend(containers.map(|name| line(name).to_lowercase()));
        searched.extend(names.into_iter().flatten().map(|name| line(name).to_lowercase()));
        let (processes, pids) = processes::searched(processes);
        searched.push(processes);
        let addresses = sockets().map(|socket| socket.ip()).collect();
        Row { searched: searched.join(" "), addresses, pids, ..self }
    }

    /// The row with its limit, by whose word a filter finds it, too.
    fn limited(self, limit: BusierLimit) -> Self {
        Row { limit: Some(limit), ..self }.found_by_limit()
    }

    /// A filter finds it by the word for its limit, too.
    fn found_by_limit(mut self) -> Self {
        if let Some(by) = self.limit.and_then(|limit| limit.limits.by) {
            self.searched = format!("{} {}", self.searched, by.words());
        }
        self
    }

    /// Lost between here and the client, or the server, in both directions.
    pub(crate) fn lost_at(&self, server: bool) -> Fraction {
        let [from_client, to_server, from_server, to_client] = &self.lost;
        if server { Fraction::sum([to_server, from_server]) } else { Fraction::sum([from_client, to_client]) }
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
        flows: network.flows + network.udp.flows,
        bytes: network.bytes(),
        bps: history.network(&network.network),
        rtt: [client, server].map(|side| side.round_trips.smallest_ns),
        lost: parts(client, server).map(|part| *part),
        searched: name.to_lowercase(),
        addresses: address.into_iter().collect(),
        ..Row::new(Of::Network(network.network.clone()), name)
    }
    .limited(BusierLimit::of(client, server))
}

pub(crate) fn flow_row(flow: &Flow, reading: &Reading, history: &History) -> Row {
    let (client, server) = (&flow.client_side, &flow.server_side);
    let sockets = [Some(flow.client), Some(flow.server), flow.client_outside, flow.server_inside];
    let names = [&flow.client_interface, &flow.server_interface, &flow.network_name];
    Row {
        state: (flow.state != FlowState::Open).then_some(flow.state),
        flows: 1,
        bytes: flow.bytes(),
        bps: history.flow(&ends(flow)).map_or(0.0, Past::bps),
        rtt: [client, server].map(|side| side.round_trips.smallest_ns),
        lost: parts(client, server).map(|part| *part),
        ..Row::new(Of::Flow(ends(flow)), format!("{} > {}", flow.client, flow.server))
    }
    .found_by(sockets, flow.state_words(), names, [&flow.client_here, &flow.server_here], reading)
    .limited(BusierLimit::of(client, server))
}

/// A host by its address, and the container that has it.
fn host_name(host: IpAddr, reading: &Reading) -> String {
    reading.container(host).map_or_else(|| host.to_string(), |name| format!("{host}  {}", line(name)))
}

fn host_row(host: IpAddr, flows: &[&Flow], reading: &Reading, history: &History) -> Row {
    let name = host_name(host, reading);
    Row {
        searched: name.to_lowercase(),
        addresses: vec![host],
        ..sum_row(Of::Host(host), name, flows, &[], history)
    }
    .found_by_limit()
}

fn process_row(owner: Owner, share: Share<'_>, history: &History) -> Row {
    let name = processes::name(&owner);
    Row {
        searched: name.to_lowercase(),
        addresses: share.addresses,
        pids: owner.iter().filter_map(|(end, _)| end.pid).collect(),
        ..sum_row(Of::Process(owner), name, &share.flows, &share.udp, history)
    }
    .found_by_limit()
}

/// The sums of flows; round trips, losses and limits are of TCP alone.
fn sum_row(of: Of, name: String, flows: &[&Flow], udp: &[&UdpFlow], history: &History) -> Row {
    let rtt = |side: fn(&Flow) -> &Side| flows.iter().filter_map(|f| side(f).round_trips.smallest_ns).min();
    let part = |n: usize| Fraction::sum(flows.iter().map(|f| parts(&f.client_side, &f.server_side)[n]));
    let bps = |past: Option<&Past>| past.map_or(0.0, Past::bps);
    let sum = |side: fn(&Flow) -> &Side| {
        let bytes = flows.iter().map(|f| side(f).bytes).sum();
        (bytes, Limits::sum(flows.iter().map(|f| &side(f).limits)))
    };
    let udp_bps = udp.iter().map(|flow| bps(history.udp(&(flow.client, flow.server))));
    Row {
        flows: (flows.len() + udp.len()) as u64,
        bytes: flows.iter().map(|f| f.bytes()).chain(udp.iter().map(|f| f.bytes())).sum(),
        bps: flows.iter().map(|flow| bps(history.flow(&ends(flow)))).chain(udp_bps).sum(),
        rtt: [rtt(|flow| &flow.client_side), rtt(|flow| &flow.server_side)],
        lost: [part(0), part(1), part(2), part(3)],
        limit: Some(BusierLimit::of_sums([sum(|flow| &flow.client_side), sum(|flow| &flow.server_side)])),
        ..Row::new(of, name)
    }
}

fn udp_row(flow: &UdpFlow, reading: &Reading, history: &History) -> Row {
    let sockets = [Some(flow.client), Some(flow.server), flow.client_outside, flow.server_inside];
    let words = format!("{} {}", flow.kind.words(), flow.state.words()).to_lowercase();
    let names = [&flow.client_interface, &flow.server_interface, &flow.network_name];
    let ends = (flow.client, flow.server);
    Row {
        flows: 1,
        bytes: flow.bytes(),
        bps: history.udp(&ends).map_or(0.0, Past::bps),
        udp: Some(flow.clone()),
        ..Row::new(Of::Udp(ends), udp::name(flow))
    }
    .found_by(sockets, &words, names, [&flow.client_here, &flow.server_here], reading)
}

fn icmp_row(one: &IcmpReporter) -> Row {
    Row {
        icmp: Some(one.clone()),
        searched: format!("{} {}", one.from, one.meaning.words()),
        addresses: vec![one.from],
        ..Row::new(Of::Icmp(one.from, one.icmp_type, one.icmp_code), one.from.to_string())
    }
}

fn untracked_row(flow: &UntrackedFlow, history: &History) -> Row {
    let words = flow.words();
    Row {
        flows: 1,
        bytes: flow.size.bytes as u64,
        bps: history.untracked(&direction(flow)),
        untracked: Some(flow.size),
        searched: words.to_lowercase(),
        addresses: vec![flow.source.ip(), flow.destination.ip()],
        ..Row::new(Of::Untracked(direction(flow)), words)
    }
}

/// All rows of a table.
pub(crate) fn rows(tab: Tab, reading: &Reading, history: &History) -> Vec<Row> {
    match tab {
        Tab::Networks => reading.networks.iter().map(|network| network_row(network, history)).collect(),
        Tab::Flows => reading.flows.iter().map(|flow| flow_row(flow, reading, history)).collect(),
        Tab::Hosts => {
            let mut hosts: BTreeMap<IpAddr, Vec<&Flow>> = BTreeMap::new();
            for flow in &reading.flows {
                hosts.entry(inside(flow)).or_default().push(flow);
            }
            hosts.into_iter().map(|(host, flows)| host_row(host, &flows, reading, history)).collect()
        }
        Tab::Processes => processes::shares(reading)
            .into_iter()
            .map(|(owner, share)| process_row(owner, share, history))
            .collect(),
        Tab::Icmp => reading.icmp_errors.iter().map(icmp_row).collect(),
        Tab::Untracked => reading.untracked.flows.iter().map(|flow| untracked_row(flow, history)).collect(),
        Tab::Udp | Tab::Dns => {
            let flows = reading.udp_flows.iter();
            let flows = flows.filter(|flow| (flow.kind == UdpKind::Dns) == (tab == Tab::Dns));
            flows.map(|flow| udp_row(flow, reading, history)).collect()
        }
    }
}

/// Words that must all be in a row; a prefix such as `198.51.100.0/24` must hold one of its addresses, and `pid=7` is one of its
/// processes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Filter {
    pub(crate) text: String,
}

impl Filter {
    pub(crate) fn leaves(&self, row: &Row) -> bool {
        self.text.split_whitespace().all(|word| match (prefix(word), word.strip_prefix("pid=")) {
            (Some((network, length)), _) => row.addresses.iter().any(|a| is_within(*a, network, length)),
            (None, Some(pid)) => pid.parse().is_ok_and(|pid| row.pids.contains(&pid)),
            (None, None) => row.searched.contains(&word.to_lowercase()),
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
mod process_tests;
#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{flow, reading};
    use weir_flows::Container;

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
    fn containers_are_named_and_found_by_their_names() {
        let mut reading = reading(vec![flow("172.17.0.2:4000", "198.51.100.7:443")]);
        let name = "docker \u{1b}[31mWeb".to_owned();
        reading.containers = vec![Container { address: "172.17.0.2".parse().unwrap(), name }];
        for tab in [Tab::Hosts, Tab::Flows] {
            let rows = rows(tab, &reading, &History::default());
            let leaves = |text: &str| Filter { text: text.to_owned() }.leaves(&rows[0]);
            assert!(leaves("docker") && leaves("WEB") && leaves("172.17.0.0/16") && !leaves("db"));
            assert_eq!(names(&rows)[0].contains("Web"), tab == Tab::Hosts);
            assert!(!names(&rows)[0].contains('\u{1b}'));
        }
    }

    #[test]
    fn filters_know_words_states_and_prefixes() {
        let mut one = flow("10.0.0.2:4000", "198.51.100.7:443");
        one.state = FlowState::Unanswered;
        one.client_interface = Some("Lan\u{1b}[31m0".to_owned());
        let row = flow_row(&one, &Reading::empty(), &History::default());
        let leaves = |text: &str| Filter { text: text.to_owned() }.leaves(&row);
        for text in ["", "443", "UNANS", "198.51.100.0/24", "10.0.0.2/32 443", "lan0", "2001:db8::/0 443"] {
            assert_eq!(leaves(text), !text.starts_with("2001"), "{text}");
        }
        one.network_name = Some("AS64500 Example, Inc.".to_owned());
        let named = flow_row(&one, &Reading::empty(), &History::default());
        assert!(Filter { text: "AS64500 Example, Inc.".to_owned() }.leaves(&named));
        for text in ["444", "198.51.101.0/24", "443 open", "10.0.0.3/32", "as64500"] {
            assert!(!leaves(text), "{text}");
        }
    }
}
