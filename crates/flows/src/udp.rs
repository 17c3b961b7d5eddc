//! UDP: rates, silence, and DNS.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::Serialize;
use weir_bpf::Plain;

use crate::icmp::IcmpErrors;
use crate::processes::LocalEnd;
use crate::shared::{self, WeirDns, WeirUdpFlow, WeirUdpSide};
use crate::side::{RoundTrips, Trips};
use crate::table::{ends, is};

/// How long a side may send without an answer before the other one counts as silent, ns.
const PATIENCE_NS: u64 = 3_000_000_000;

weir_text::listed! {
    /// Content of a UDP flow.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum UdpKind {
        /// DNS to port 53: all queries of the client to that server, of whatever port; the port of the client is 0.
        Dns = "DNS",
        /// QUIC of version 1 or 2: a long header has passed (RFC 9000 section 17.2, RFC 9369).
        Quic = "QUIC",
        /// Anything else, also QUIC whose beginning was not seen.
        Other = "other",
    }
}

weir_text::listed! {
    /// State of a UDP flow.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum UdpState {
        /// It awaits its first answer.
        Waiting = "waiting",
        /// The server has not answered for three seconds.
        Unanswered = "unanswered",
        /// Packets of both sides pass.
        Open = "open",
        /// Both sides have sent; since then one of them has gone on for three seconds and more without an answer.
        Silent = "silent",
        /// Packets of one side alone pass here: this host is the other one, or the way back is another one.
        OneWay = "one way",
    }
}

/// A UDP flow.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct UdpFlow {
    /// The end that began it, as its packets come in; of DNS with port 0.
    pub client: SocketAddr,
    /// The end that it sent to.
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
    /// Content.
    pub kind: UdpKind,
    /// State.
    pub state: UdpState,
    /// Time since its first packet, seconds.
    pub age_seconds: f64,
    /// Time since its last packet, seconds.
    pub idle_seconds: f64,
    /// ICMP errors about its packets; null if there was none.
    pub icmp_errors: Option<IcmpErrors>,
    /// The side of the client.
    pub client_side: UdpSide,
    /// The side of the server.
    pub server_side: UdpSide,
    /// Queries and answers; null if it is no DNS.
    pub dns: Option<Dns>,
}

/// Packets that one side sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct UdpSide {
    /// Bytes of IP packets, as they came in.
    pub bytes: u64,
    /// Datagrams.
    pub packets: u64,
    /// Datagrams since the last one of the other side; of several flows their sum.
    pub unanswered: u64,
    /// The longest time over which it sent without an answer, from the first such datagram to the last, seconds.
    pub longest_silence_seconds: f64,
}

/// UDP of a network, or of all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Udp {
    /// Flows, with those that are over.
    pub flows: u64,
    /// Flows without an answer for three seconds.
    pub unanswered_flows: u64,
    /// Flows in which one side is silent now.
    pub silent_flows: u64,
    /// Flows of QUIC.
    pub quic_flows: u64,
    /// Bytes of QUIC of both sides.
    pub quic_bytes: u64,
    /// The side of the clients.
    pub client_side: UdpSide,
    /// The side of the servers.
    pub server_side: UdpSide,
    /// DNS.
    pub dns: Dns,
}

/// Queries to port 53, and their answers. An answer belongs to the query of the same client, port and identification.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Dns {
    /// Queries, each once.
    pub queries: u64,
    /// Queries that came again while they awaited their answer.
    pub repeated: u64,
    /// Answers within 5 s.
    pub answers: u64,
    /// Queries without an answer within 5 s.
    pub unanswered: u64,
    /// Queries that still wait.
    pub waiting: u64,
    /// Queries that were not judged: more than 32 of a client to a server waited at once, or one way does not lead through here.
    pub unjudged: u64,
    /// Answers to no query that was seen, or after more than 5 s.
    pub unasked: u64,
    /// Answers with SERVFAIL.
    pub servfail: u64,
    /// Answers with NXDOMAIN.
    pub nxdomain: u64,
    /// Answers with REFUSED.
    pub refused: u64,
    /// Answers with another failure.
    pub other_failures: u64,
    /// Answers that were cut (TC): the client asks again by TCP.
    pub truncated: u64,
    /// Times from a query to its answer, as they pass here.
    pub times: RoundTrips,
}

/// Sums of [`Dns`].
#[derive(Debug, Clone, Default)]
struct DnsSum {
    /// All but the times.
    dns: Dns,
    times: Trips,
}

/// Sums over UDP flows.
#[derive(Debug, Clone, Default)]
pub(crate) struct UdpSum {
    /// All but DNS.
    udp: Udp,
    dns: DnsSum,
}

impl UdpSide {
    fn of(side: &WeirUdpSide) -> Self {
        UdpSide {
            bytes: side.bytes,
            packets: side.packets,
            unanswered: side.unanswered,
            longest_silence_seconds: side.silence as f64 / 1e9,
        }
    }

    fn add(&mut self, other: &UdpSide) {
        self.bytes += other.bytes;
        self.packets += other.packets;
        self.unanswered += other.unanswered;
        self.longest_silence_seconds = self.longest_silence_seconds.max(other.longest_silence_seconds);
    }
}

impl DnsSum {
    /// `now` is CLOCK_MONOTONIC, ns. `one_way`: the answers do not pass here, or the queries do not.
    fn of(dns: &WeirDns, one_way: bool, last: u64, now: u64) -> Self {
        let asked = || dns.waiting.iter().filter(|q| q.at > 0);
        let late = asked().filter(|q| now.saturating_sub(q.at) > shared::WEIR_DNS_PATIENCE).count() as u64;
        let waiting = asked().count() as u64 - late;
        let (unanswered, unjudged, times) =
            (dns.unanswered + late, dns.unjudged, Trips::of(&dns.times, last));
        let (unanswered, waiting, unjudged) = match one_way {
            true => (0, 0, unjudged + unanswered + waiting),
            false => (unanswered, waiting, unjudged),
        };
        let dns = Dns {
            queries: dns.queries,
            repeated: dns.repeated,
            answers: dns.answers,
            unanswered,
            waiting,
            unjudged,
            unasked: dns.unasked,
            servfail: dns.servfail,
            nxdomain: dns.nxdomain,
            refused: dns.refused,
            other_failures: dns.other_failure,
            truncated: dns.truncated,
            ..Dns::default()
        };
        DnsSum { dns, times }
    }

    fn add(&mut self, other: &DnsSum) {
        let (dns, its) = (&mut self.dns, &other.dns);
        dns.queries += its.queries;
        dns.repeated += its.repeated;
        dns.answers += its.answers;
        dns.unanswered += its.unanswered;
        dns.waiting += its.waiting;
        dns.unjudged += its.unjudged;
        dns.unasked += its.unasked;
        dns.servfail += its.servfail;
        dns.nxdomain += its.nxdomain;
        dns.refused += its.refused;
        dns.other_failures += its.other_failures;
        dns.truncated += its.truncated;
        self.times.add(&other.times);
    }

    fn report(&self) -> Dns {
        Dns { times: self.times.report(), ..self.dns.clone() }
    }
}

fn kind(flow: &WeirUdpFlow) -> UdpKind {
    if is(flow, shared::WEIR_IS_DNS) {
        UdpKind::Dns
    } else if is(flow, shared::WEIR_IS_QUIC) {
        UdpKind::Quic
    } else {
        UdpKind::Other
    }
}

/// `own`: addresses of this host; `now`: CLOCK_MONOTONIC, ns.
fn state(flow: &WeirUdpFlow, own: &BTreeSet<IpAddr>, now: u64) -> UdpState {
    let [client, server] = &flow.sides;
    let went_on = |side: &WeirUdpSide| {
        side.unanswered > 1 && side.last.saturating_sub(side.unanswered_at) >= PATIENCE_NS
    };
    if client.packets == 0 || server.packets == 0 && own.contains(&ends(&flow.ends[0]).1.ip()) {
        UdpState::OneWay
    } else if server.packets == 0 {
        match now.saturating_sub(flow.born) > PATIENCE_NS {
            true => UdpState::Unanswered,
            false => UdpState::Waiting,
        }
    } else if went_on(client) || went_on(server) {
        UdpState::Silent
    } else {
        UdpState::Open
    }
}

impl UdpSum {
    pub(crate) fn bytes(&self) -> u64 {
        self.udp.bytes()
    }

    pub(crate) fn add_flow(&mut self, flow: &WeirUdpFlow, own: &BTreeSet<IpAddr>, now: u64) {
        let state = state(flow, own, now);
        let [client_side, server_side] = [0, 1].map(|n| UdpSide::of(&flow.sides[n]));
        let quic = kind(flow) == UdpKind::Quic;
        let udp = Udp {
            flows: 1,
            unanswered_flows: u64::from(state == UdpState::Unanswered),
            silent_flows: u64::from(state == UdpState::Silent),
            quic_flows: u64::from(quic),
            quic_bytes: if quic { client_side.bytes + server_side.bytes } else { 0 },
            client_side,
            server_side,
            ..Udp::default()
        };
        let dns = DnsSum::of(&flow.dns, state == UdpState::OneWay, flow.last, now);
        self.add(&UdpSum { udp, dns });
    }

    pub(crate) fn add(&mut self, other: &UdpSum) {
        let (udp, its) = (&mut self.udp, &other.udp);
        udp.flows += its.flows;
        udp.unanswered_flows += its.unanswered_flows;
        udp.silent_flows += its.silent_flows;
        udp.quic_flows += its.quic_flows;
        udp.quic_bytes += its.quic_bytes;
        udp.client_side.add(&its.client_side);
        udp.server_side.add(&its.server_side);
        self.dns.add(&other.dns);
    }

    pub(crate) fn report(&self) -> Udp {
        Udp { dns: self.dns.report(), ..self.udp.clone() }
    }
}

impl Udp {
    /// Bytes of both sides.
    pub fn bytes(&self) -> u64 {
        self.client_side.bytes + self.server_side.bytes
    }
}

impl Dns {
    /// Answers that tell of a failure of the server, and queries without one. NXDOMAIN is none: the name does not exist.
    pub fn failures(&self) -> u64 {
        self.unanswered + self.servfail + self.refused + self.other_failures
    }
}

impl UdpFlow {
    /// `own`: addresses of this host; `now`: CLOCK_MONOTONIC, ns.
    pub(crate) fn of(
        flow: &WeirUdpFlow,
        interfaces: &BTreeMap<u32, String>,
        own: &BTreeSet<IpAddr>,
        now: u64,
    ) -> Self {
        let (client, server) = ends(&flow.ends[0]);
        let answers = is(flow, shared::WEIR_IS_JOINED).then(|| ends(&flow.ends[1]));
        let (kind, state) = (kind(flow), state(flow, own, now));
        let dns = || DnsSum::of(&flow.dns, state == UdpState::OneWay, flow.last, now).report();
        let seconds = |since: u64| now.saturating_sub(since) as f64 / 1e9;
        let name = |n: usize| interfaces.get(&flow.interfaces[n]).cloned();
        UdpFlow {
            client,
            server,
            client_outside: answers.map(|(_, to)| to),
            server_inside: answers.map(|(from, _)| from),
            client_interface: name(0),
            server_interface: name(1),
            network_name: None,
            client_here: None,
            server_here: None,
            kind,
            state,
            age_seconds: seconds(flow.born),
            idle_seconds: seconds(flow.last),
            icmp_errors: IcmpErrors::of(&flow.errors),
            client_side: UdpSide::of(&flow.sides[0]),
            server_side: UdpSide::of(&flow.sides[1]),
            dns: (kind == UdpKind::Dns).then(dns),
        }
    }

    /// A flow of which nothing was seen.
    pub fn empty() -> Self {
        UdpFlow::of(&WeirUdpFlow::zeroed(), &BTreeMap::new(), &BTreeSet::new(), 0)
    }

    /// Bytes of both sides.
    pub fn bytes(&self) -> u64 {
        self.client_side.bytes + self.server_side.bytes
    }
}
