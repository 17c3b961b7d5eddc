//! Everything that was seen since the beginning.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::Serialize;
use weir_bpf::Plain;

use crate::containers::Container;
use crate::icmp::{IcmpErrors, IcmpReporter};
use crate::networks::{Network, NetworkSum};
use crate::processes::{LocalEnd, ProcessSum};
use crate::shared::{self, WeirFlow};
use crate::side::{Side, SideSum};
use crate::table::{ends, has_ended, is};
use crate::udp::UdpFlow;
use crate::untracked::Untracked;

/// How long a SYN may be without an answer before it counts as unanswered, ns: three times the first time-out of RFC 6298.
const PATIENCE_NS: u64 = 3_000_000_000;

/// Everything that was seen since the beginning.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Reading {
    /// Interfaces whose incoming packets are watched.
    pub interfaces: Vec<String>,
    /// Time since the beginning, seconds.
    pub seconds: f64,
    /// Share of all flows that is tracked, 0 to 1.
    pub sample_share: f64,
    /// Time that the program took for a packet when the kernel last counted it, ns; `None` before, without a budget, and where too
    /// few packets came.
    pub packet_ns: Option<f64>,
    /// Share of one core that this makes at the rate of packets since then, with the readings of it, 0 to 1.
    pub core_share: Option<f64>,
    /// The part of `core_share` that readings took.
    pub readings_share: Option<f64>,
    /// Share of one core that both may take.
    pub core_budget: Option<f64>,
    /// Why the budget has no effect: the kernel does not take the time of the program for this process.
    pub budget_unknown: Option<String>,
    /// TCP flows that can be tracked at a time.
    pub capacity: u32,
    /// UDP flows that can be tracked at a time.
    pub udp_capacity: u32,
    /// TCP flows in the table now.
    pub flows_now: u64,
    /// TCP flows that were tracked and are over; they count in `networks`.
    pub flows_over: u64,
    /// UDP flows in the table now.
    pub udp_flows_now: u64,
    /// UDP flows that were tracked and are over; they count in `networks`.
    pub udp_flows_over: u64,
    /// Packets that were not tracked.
    pub not_tracked: NotTracked,
    /// The traffic of those packets by flow and network.
    pub untracked: Untracked,
    /// Sums over all networks.
    pub all: Network,
    /// Networks with flows since the beginning.
    pub networks_in_all: u64,
    /// Sums by network, the most bytes first.
    pub networks: Vec<Network>,
    /// TCP flows in the table, the most bytes first.
    pub flows: Vec<Flow>,
    /// UDP flows in the table, the most bytes first.
    pub udp_flows: Vec<UdpFlow>,
    /// ICMP errors about tracked flows by sender and kind, the most first.
    pub icmp_errors: Vec<IcmpReporter>,
    /// Containers, and other network namespaces of this machine, that are ends of these flows, by address.
    pub containers: Vec<Container>,
    /// Flows in the table by process, of those with the most bytes: the most bytes first. A flow between two processes of this machine
    /// counts with both.
    pub processes: Vec<ProcessSum>,
    /// Why some processes may be missing; null if nothing stood in the way.
    pub processes_missing: Option<String>,
}

impl Reading {
    /// The ends of all flows, behind NAT too.
    pub(crate) fn ends(&self) -> impl Iterator<Item = SocketAddr> {
        let tcp = self.flows.iter().map(|f| [Some(f.client), Some(f.server), f.server_inside]);
        let udp = self.udp_flows.iter().map(|f| [Some(f.client), Some(f.server), f.server_inside]);
        tcp.chain(udp).flatten().flatten()
    }

    /// Name of the container, or other network namespace of this machine, that has this address.
    pub fn container(&self, address: IpAddr) -> Option<&str> {
        self.containers.iter().find(|c| c.address == address).map(|c| c.name.as_str())
    }

    /// A reading of nothing.
    pub fn empty() -> Self {
        Reading { sample_share: 1.0, all: NetworkSum::default().report(None), ..Reading::default() }
    }
}

/// Packets by the reason why no flow was tracked for them. All went on unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NotTracked {
    /// Packets of TCP that were judged, for comparison.
    pub judged: u64,
    /// Packets of UDP that were judged, likewise.
    pub judged_udp: u64,
    /// The table had no room for their flow.
    pub no_room: u64,
    /// Their flow would have been one too many that awaits a first answer.
    pub too_many_opening: u64,
    /// Their flow is outside of the sample.
    pub outside_sample: u64,
    /// A reset or an end without a flow.
    pub stray: u64,
    /// ICMP errors about tracked flows.
    pub icmp_errors: u64,
    /// ICMP errors about anything else.
    pub stray_icmp_errors: u64,
    /// Neither IPv4 nor IPv6.
    pub not_ip: u64,
    /// Neither TCP nor UDP, nor an ICMP error.
    pub other_protocol: u64,
    /// Fragments, and packets behind IPv6 extension headers.
    pub fragments: u64,
    /// With a VLAN tag: they come again at the interface of the VLAN.
    pub tagged: u64,
    /// Broadcast, multicast, or to another host on the link.
    pub not_to_this_host: u64,
    /// Shorter than their headers.
    pub malformed: u64,
}

impl NotTracked {
    /// All packets that came in, with those that were judged.
    pub fn packets(&self) -> u64 {
        let outside = self.no_room + self.too_many_opening + self.outside_sample + self.stray;
        let others = self.not_ip + self.other_protocol + self.fragments + self.tagged + self.not_to_this_host;
        self.judged
            + self.judged_udp
            + outside
            + self.icmp_errors
            + self.stray_icmp_errors
            + others
            + self.malformed
    }

    pub(crate) fn of(verdicts: &[u64; shared::WEIR_VERDICTS as usize]) -> Self {
        let at = |verdict: u64| verdicts[verdict as usize];
        NotTracked {
            judged: at(shared::WEIR_JUDGED),
            judged_udp: at(shared::WEIR_JUDGED_UDP),
            no_room: at(shared::WEIR_NO_ROOM),
            too_many_opening: at(shared::WEIR_OPENING),
            outside_sample: at(shared::WEIR_UNSAMPLED),
            stray: at(shared::WEIR_STRAY),
            icmp_errors: at(shared::WEIR_ERROR),
            stray_icmp_errors: at(shared::WEIR_STRAY_ERROR),
            not_ip: at(shared::WEIR_NOT_IP),
            other_protocol: at(shared::WEIR_OTHER_PROTOCOL),
            fragments: at(shared::WEIR_FRAGMENT),
            tagged: at(shared::WEIR_TAGGED),
            not_to_this_host: at(shared::WEIR_NOT_OURS),
            malformed: at(shared::WEIR_MALFORMED),
        }
    }
}

weir_text::listed! {
    /// State of a flow.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum FlowState {
        /// Its SYN awaits an answer.
        Opening = "opening",
        /// Its SYN had no answer for three seconds.
        Unanswered = "unanswered",
        /// Packets of both sides pass.
        Open = "open",
        /// Packets of one side alone pass here: the other way is another one, or this host is one of the ends.
        OneWay = "one way",
        /// Both sides have ended it.
        Ended = "ended",
        /// One side has reset it.
        Reset = "reset",
    }
}

/// A TCP flow.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Flow {
    /// The end that began it, as its packets come in; of a flow that was there before the watch the one that conntrack names.
    pub client: SocketAddr,
    /// The end that it began it with, as the client sees it.
    pub server: SocketAddr,
    /// The client as the server sees it; null as long as no answer has come.
    pub client_outside: Option<SocketAddr>,
    /// The server as its own packets name it; null likewise.
    pub server_inside: Option<SocketAddr>,
    /// Interface by which the client's packets come.
    pub client_interface: Option<String>,
    /// Interface by which the server's packets come.
    pub server_interface: Option<String>,
    /// Name of the network that it is summed up with (`--names`); null if it has none.
    pub network_name: Option<String>,
    /// The client's end, if it is on this machine; null if it is not, or where processes were not looked for.
    pub client_here: Option<LocalEnd>,
    /// The server's end, likewise.
    pub server_here: Option<LocalEnd>,
    /// State.
    pub state: FlowState,
    /// Its SYN was seen.
    pub seen_from_start: bool,
    /// Connections that had these ends, one after the other; 0 for one that was there before the watch.
    pub connections: u32,
    /// Time since its first packet, seconds.
    pub age_seconds: f64,
    /// Time since its last packet, seconds.
    pub idle_seconds: f64,
    /// ICMP errors about its packets; null if there was none.
    pub icmp_errors: Option<IcmpErrors>,
    /// The side of the client.
    pub client_side: Side,
    /// The side of the server.
    pub server_side: Side,
}

/// Whether the SYN of a flow had no answer in time; `now` is CLOCK_MONOTONIC, ns.
fn is_unanswered(flow: &WeirFlow, now: u64) -> bool {
    is(flow, shared::WEIR_IS_OPENING) && now.saturating_sub(flow.born) > PATIENCE_NS
}

impl Flow {
    pub(crate) fn of(flow: &WeirFlow, interfaces: &BTreeMap<u32, String>, now: u64) -> Self {
        let [client, server] = [0, 1].map(|n| SideSum::of(flow, n, now).report());
        let (from, to) = ends(&flow.ends[0]);
        let answers = is(flow, shared::WEIR_IS_JOINED).then(|| ends(&flow.ends[1]));
        let state = match () {
            () if is(flow, shared::WEIR_IS_RESET) => FlowState::Reset,
            () if has_ended(flow) => FlowState::Ended,
            () if is_unanswered(flow, now) => FlowState::Unanswered,
            () if is(flow, shared::WEIR_IS_OPENING) => FlowState::Opening,
            () if client.packets == 0 || server.packets == 0 => FlowState::OneWay,
            () => FlowState::Open,
        };
        let seconds = |since: u64| now.saturating_sub(since) as f64 / 1e9;
        let name = |n: usize| interfaces.get(&flow.interfaces[n]).cloned();
        Flow {
            client: from,
            server: to,
            client_outside: answers.map(|(_, to)| to),
            server_inside: answers.map(|(from, _)| from),
            client_interface: name(0),
            server_interface: name(1),
            network_name: None,
            client_here: None,
            server_here: None,
            state,
            seen_from_start: is(flow, shared::WEIR_IS_WHOLE),
            connections: flow.connections,
            age_seconds: seconds(flow.born),
            idle_seconds: seconds(flow.last),
            icmp_errors: IcmpErrors::of(&flow.errors),
            client_side: client,
            server_side: server,
        }
    }

    /// A flow of which nothing was seen.
    pub fn empty() -> Self {
        Flow::of(&WeirFlow::zeroed(), &BTreeMap::new(), 0)
    }

    /// Its state in words for people; of a reset flow with the side that did it.
    pub fn state_words(&self) -> &'static str {
        match self.state {
            FlowState::Reset if self.server_side.resets > 0 => "reset by server",
            FlowState::Reset => "reset by client",
            state => state.words(),
        }
    }

    /// Bytes of both sides.
    pub fn bytes(&self) -> u64 {
        self.client_side.bytes + self.server_side.bytes
    }
}
