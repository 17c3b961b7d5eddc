//! Sums of flows by network.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use weir_flows::{Counts, FlowCounts, Fraction, RoundTrips, SideCounts, end_of_bucket, masked};
use weir_text::order;

use crate::evidence::{Moment, Queueing, Repeated, SilentPort, StuckHost, TransitNetwork};

/// Lengths of the prefixes that networks have: what is routed by itself on the Internet at least.
const PREFIX4: u8 = 24;
const PREFIX6: u8 = 48;
/// Networks and stuck hosts that are kept.
const MOST_NETWORKS: usize = 64;
const MOST_HOSTS: usize = 8;
/// Bytes of data from which a segment is a long one: more than the 536 that every IPv4 host takes without asking (RFC 9293 section
/// 3.7.1).
const LONG: u32 = 600;
/// A segment that came again that many times is stuck: once is what a single loss looks like.
const TIMES: u32 = 2;
/// The time after which a SYN has no answer, ns: the first time-out of RFC 6298.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Ports of clients begin here on most systems (net.ipv4.ip_local_port_range), and those of services seldom do.
const EPHEMERAL: u16 = 32_768;
/// Segments lost on the way to a network from which on its moments are kept.
const MOMENTS_FROM: u64 = 20;
/// Networks with moments: 75 bytes of JSON for each of 600.
const MOST_WITH_MOMENTS: usize = 8;

/// Observations of one host.
#[derive(Debug, Default)]
struct Host {
    lost: u64,
    long: u64,
    times: u64,
    shortest: Option<u32>,
    longest: u32,
    short: u64,
    carried: u32,
    answers: bool,
}

/// Sums over the flows of a network on one side.
#[derive(Debug, Default)]
struct Sum {
    network: TransitNetwork,
    /// Lost and all of each flow.
    to: Vec<Counts>,
    from: Vec<Counts>,
    /// Time of the senders towards it that they waited for the network, and all of it, seconds.
    limited: (f64, f64),
    trips: Vec<u64>,
    hosts: BTreeMap<IpAddr, Host>,
    /// Unanswered and all attempts.
    ports: BTreeMap<(IpAddr, u16), (u64, u64)>,
}

/// A network: whether its ends answer, its address, and the length of its prefix.
pub(super) type Key = (bool, IpAddr, u8);

/// Moments of the networks of a namespace.
pub(super) type Moments = BTreeMap<Key, Vec<Moment>>;

/// The result of many looks at a namespace, by network.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Seen {
    pub(super) moments: Moments,
    pub(super) queueing: Vec<(Key, Queueing)>,
}

/// Networks of the client and of the server of a flow.
pub(super) fn keys(client: SocketAddr, server: SocketAddr, seen_from_start: bool) -> [Key; 2] {
    let turned = is_turned(client, server, seen_from_start);
    [(turned, client.ip()), (!turned, server.ip())].map(|(answers, end)| {
        let length = if end.is_ipv4() { PREFIX4 } else { PREFIX6 };
        (answers, masked(end, length), length)
    })
}

/// Sums by network on both sides, and how many networks more there are.
pub(super) fn networks(flows: &[FlowCounts], mut seen: Seen) -> (Vec<TransitNetwork>, u64) {
    let mut sums: BTreeMap<Key, Sum> = BTreeMap::new();
    for flow in flows {
        for (side, key) in keys(flow.client, flow.server, flow.seen_from_start).into_iter().enumerate() {
            sums.entry(key).or_default().add(flow, side, key.0);
        }
    }
    let finish = |(key, sum): (Key, Sum)| {
        let network = sum.finish(key);
        let loses = network.lost_to.lost >= MOMENTS_FROM;
        let moments = seen.moments.remove(&key).filter(|_| loses).unwrap_or_default();
        let queueing = seen.queueing.iter().find(|(of, _)| *of == key).map(|(_, queueing)| *queueing);
        TransitNetwork { moments, queueing: queueing.unwrap_or_default(), ..network }
    };
    let mut networks: Vec<TransitNetwork> = sums.into_iter().map(finish).collect();
    let lost = |n: &TransitNetwork| n.lost_to.lost + n.lost_from.lost + n.unanswered;
    order::by_key(&mut networks, |n| Reverse((lost(n), n.bytes)));
    let more = networks.len().saturating_sub(MOST_NETWORKS) as u64;
    networks.truncate(MOST_NETWORKS);
    networks.iter_mut().skip(MOST_WITH_MOMENTS).for_each(|network| network.moments.clear());
    (networks, more)
}

/// Whether the ends of a flow have to change their roles: without its SYN, and without conntrack, the end whose packet came first counts as
/// the client.
fn is_turned(client: SocketAddr, server: SocketAddr, seen_from_start: bool) -> bool {
    !seen_from_start && client.port() < EPHEMERAL && server.port() >= EPHEMERAL
}

fn add_buckets(sum: &mut Vec<u64>, trips: &RoundTrips) {
    sum.resize(sum.len().max(trips.buckets.len()), 0);
    for (mine, its) in sum.iter_mut().zip(&trips.buckets) {
        *mine += its;
    }
}

/// A quantile of buckets, ns; 0 of none.
fn quantile(buckets: &[u64], share: f64) -> u64 {
    let wanted = (share * buckets.iter().sum::<u64>() as f64).ceil() as u64;
    let mut seen = 0;
    let at = buckets.iter().position(|n| {
        seen += n;
        seen >= wanted && seen > 0
    });
    at.map_or(0, end_of_bucket)
}

impl Sum {
    /// Adds the side of that number of a flow, whose end answers or began it.
    fn add(&mut self, flow: &FlowCounts, side: usize, answers: bool) {
        let (own, other) = (&flow.sides[side], &flow.sides[1 - side]);
        let end = [flow.client, flow.server][side];
        let network = &mut self.network;
        network.flows += 1;
        network.bytes += own.bytes + other.bytes;
        if let Some(name) = &flow.interfaces[side] {
            network.interface.clone_from(name);
        }
        self.to.push(other.lost_behind);
        self.from.push(own.lost_before);
        network.needless_to += other.needless;
        self.limited.0 += other.limits.network_seconds;
        self.limited.1 += other.limits.seconds();
        let trips = &own.round_trips;
        if let Some(smallest) = trips.smallest_ns {
            let before = Some(network.smallest_ns).filter(|ns| *ns > 0);
            network.smallest_ns = before.map_or(smallest, |ns| ns.min(smallest));
        }
        add_buckets(&mut self.trips, trips);
        if own.zero_windows > 0 {
            network.shut.0 += 1;
            network.shut.1 = network.shut.1.max(own.zero_window_ns);
        }
        self.hosts.entry(end.ip()).or_default().add(flow.seen_from_start && own.syns > 0, own, other);
        self.add_beginning(flow, side, answers);
    }

    /// How its connections began and ended.
    fn add_beginning(&mut self, flow: &FlowCounts, side: usize, answers: bool) {
        let (own, other) = (&flow.sides[side], &flow.sides[1 - side]);
        let network = &mut self.network;
        let no_data = own.segments == 0 && other.segments == 0;
        if own.resets > 0 && !no_data {
            network.aborted += 1;
        }
        if !answers {
            network.went_on += u64::from(own.packets > own.syns);
            let never_went_on = no_data && own.packets == own.syns && own.resets == 0;
            network.half_open += u64::from(never_went_on && other.syns >= u64::from(TIMES) && !flow.opening);
            return;
        }
        if !flow.seen_from_start {
            return;
        }
        let unanswered = flow.opening && flow.age_ns >= PATIENCE_NS;
        network.attempts += u64::from(flow.connections);
        network.unanswered += u64::from(unanswered);
        network.refused += u64::from(own.resets > 0 && no_data);
        let (silent, all) = self.ports.entry((flow.server.ip(), flow.server.port())).or_default();
        *silent += u64::from(unanswered);
        *all += u64::from(flow.connections);
    }

    fn finish(self, (servers, network, length): (bool, IpAddr, u8)) -> TransitNetwork {
        let silent = self.ports.iter().max_by_key(|(_, (unanswered, _))| *unanswered);
        let silent = silent.filter(|(_, (unanswered, _))| *unanswered > 0);
        let example = self.hosts.iter().max_by_key(|(_, host)| host.lost).map(|(address, _)| *address);
        let stuck = self.hosts.iter().filter(|(_, host)| host.long + host.short > 0);
        let mut stuck: Vec<StuckHost> = stuck.map(|(address, host)| host.finish(*address)).collect();
        order::by_key(&mut stuck, |host| Reverse(host.long));
        stuck.truncate(MOST_HOSTS);
        TransitNetwork {
            network: format!("{network}/{length}"),
            servers,
            example,
            lost_to: repeated(&self.to),
            lost_from: repeated(&self.from),
            network_limited: self.limited.0 / self.limited.1.max(f64::MIN_POSITIVE),
            median_ns: quantile(&self.trips, 0.5),
            stuck,
            silent: silent.map(|((address, port), (unanswered, attempts))| SilentPort {
                address: *address,
                port: *port,
                unanswered: *unanswered,
                attempts: *attempts,
            }),
            ..self.network
        }
    }
}

impl Host {
    /// Adds what the host sent (`own`) and what was sent to it.
    fn add(&mut self, began: bool, own: &SideCounts, other: &SideCounts) {
        self.lost += own.lost_before.segments + other.lost_behind.segments;
        self.carried = self.carried.max(other.carried_bytes);
        let is_stuck = other.stuck >= TIMES;
        // A SYN and its answer are short.
        self.answers |= began || !is_stuck && own.packets > 0;
        if is_stuck && other.stuck_bytes >= LONG {
            self.long += 1;
            self.times += u64::from(other.stuck);
            self.longest = self.longest.max(other.stuck_bytes);
            self.shortest = Some(self.shortest.map_or(other.stuck_bytes, |n| n.min(other.stuck_bytes)));
        } else if is_stuck {
            self.short += 1;
        }
    }

    fn finish(&self, address: IpAddr) -> StuckHost {
        StuckHost {
            address,
            long: self.long,
            times: self.times,
            shortest: self.shortest.unwrap_or(0),
            longest: self.longest,
            short: self.short,
            carried: self.carried,
            answers: self.answers,
        }
    }
}

fn repeated(flows: &[Counts]) -> Repeated {
    let Fraction { segments, of, low, high, .. } = Fraction::over(flows);
    Repeated { lost: segments, of, low: low.unwrap_or(0.0), high: high.unwrap_or(0.0) }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn side() -> SideCounts {
        SideCounts {
            bytes: 100_000,
            packets: 100,
            segments: 80,
            lost_before: Counts { of: 80, ..Counts::default() },
            lost_behind: Counts { of: 80, ..Counts::default() },
            needless: 0,
            syns: 1,
            resets: 0,
            zero_windows: 0,
            zero_window_ns: 0,
            stuck: 0,
            stuck_bytes: 0,
            carried_bytes: 1448,
            round_trips: trips(&[(4, 10)]),
            limits: weir_flows::Limits::default(),
        }
    }

    fn trips(counts: &[(usize, u64)]) -> RoundTrips {
        let mut buckets = vec![0; 32];
        counts.iter().for_each(|(bucket, n)| buckets[*bucket] = *n);
        RoundTrips {
            smallest_ns: counts.first().map(|(bucket, _)| end_of_bucket(*bucket)),
            smoothed_ns: None,
            median_ns: None,
            p95_ns: None,
            count: buckets.iter().sum(),
            total_ns: 0,
            buckets,
        }
    }

    fn flow(server: &str) -> FlowCounts {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        FlowCounts {
            client: address("198.18.0.2:40000"),
            server: address(server),
            interfaces: ["inside", "outside"].map(|name| Some(name.to_owned())),
            opening: false,
            seen_from_start: true,
            connections: 1,
            age_ns: 3_000_000_000,
            sides: [side(), side()],
        }
    }

    fn servers(flows: &[FlowCounts]) -> Vec<TransitNetwork> {
        networks(flows, Seen::default()).0.into_iter().filter(|n| n.servers).collect()
    }

    #[test]
    fn flows_are_summed_up_by_network_and_side() {
        let mut flows = [flow("198.19.0.2:443"), flow("198.19.0.77:80"), flow("[2001:2:0:1::2]:80")];
        flows[0].sides[0].lost_behind.segments = 8;
        flows[1].sides[1].lost_before.segments = 3;
        let all = networks(&flows, Seen::default()).0;
        let names: Vec<_> = all.iter().map(|n| (n.network.as_str(), n.servers, n.flows)).collect();
        assert_eq!(names.len(), 3, "{names:?}");
        let net = all.iter().find(|n| n.network == "198.19.0.0/24").unwrap();
        assert_eq!((net.flows, net.interface.as_str(), net.attempts), (2, "outside", 2));
        assert_eq!((net.lost_to.lost, net.lost_to.of, net.lost_from.lost), (8, 160, 3));
        assert_eq!(net.example, Some([198, 19, 0, 2].into()));
        assert!(net.lost_to.low < 0.05 && 0.05 < net.lost_to.high, "{:?}", net.lost_to);
        let v6 = all.iter().find(|n| n.network == "2001:2::/48").unwrap();
        assert_eq!((v6.servers, v6.lost_to.lost), (true, 0));
        // A loss on the way to the server is none on the way from the client.
        let clients = all.iter().find(|n| !n.servers).unwrap();
        assert_eq!((clients.lost_to.lost, clients.lost_from.lost, clients.flows), (0, 0, 3));
    }

    #[test]
    fn a_queue_belongs_to_its_network() {
        let queueing = Queueing { us: 300_000, ..Queueing::default() };
        let key = (true, "198.19.0.0".parse().unwrap(), PREFIX4);
        let seen = Seen { queueing: vec![(key, queueing)], ..Seen::default() };
        let all = networks(&[flow("198.19.0.2:443"), flow("198.20.0.2:443")], seen).0;
        let with: Vec<_> =
            all.iter().filter(|n| n.queueing == queueing).map(|n| n.network.as_str()).collect();
        assert_eq!((all.len(), with), (3, vec!["198.19.0.0/24"]));
    }

    #[test]
    fn a_flow_from_before_has_its_server_at_the_port_of_a_service() {
        let mut old = flow("198.19.0.2:443");
        (old.client, old.server, old.seen_from_start) = (old.server, old.client, false);
        assert_eq!(servers(&[old.clone()])[0].network, "198.19.0.0/24");
        old.seen_from_start = true;
        assert_eq!(servers(&[old])[0].network, "198.18.0.0/24");
    }

    #[test]
    fn a_host_that_takes_no_long_segment_is_kept_with_what_it_takes() {
        let mut hangs = flow("198.19.0.2:443");
        hangs.sides[0].stuck = 4;
        hangs.sides[0].stuck_bytes = 1448;
        hangs.sides[0].carried_bytes = 200;
        let stuck = |flows: &[FlowCounts]| servers(flows)[0].stuck.clone();
        let [host] = stuck(&[hangs.clone()])[..] else { panic!() };
        assert_eq!(
            (host.long, host.times, host.shortest, host.carried, host.answers),
            (1, 4, 1448, 200, true)
        );
        hangs.sides[0].stuck = 1;
        assert_eq!(stuck(&[hangs.clone()]), [], "a single loss");
        hangs.sides[0].stuck = 4;
        hangs.sides[0].stuck_bytes = 100;
        assert_eq!((stuck(&[hangs])[0].long, stuck(&[flow("198.19.0.2:1")])), (0, vec![]));
    }

    #[test]
    fn beginnings_without_an_answer_and_with_one_that_changes_nothing_are_told_apart() {
        let mut asked = flow("198.19.0.2:443");
        for side in &mut asked.sides {
            (side.segments, side.packets, side.syns) = (0, 2, 2);
        }
        let half = networks(&[asked.clone()], Seen::default()).0;
        let clients = half.iter().find(|n| !n.servers).unwrap();
        assert_eq!((clients.half_open, clients.went_on), (1, 0));
        (asked.sides[1].packets, asked.sides[1].syns, asked.opening) = (0, 0, true);
        let silent = &servers(&[asked.clone()])[0];
        let port = silent.silent.unwrap();
        assert_eq!((silent.unanswered, port.unanswered, port.attempts, port.port), (1, 1, 1, 443));
        asked.age_ns = 500_000_000;
        assert_eq!(servers(&[asked])[0].silent, None);
        let mut refused = flow("198.19.0.2:443");
        refused.sides[1].resets = 1;
        assert_eq!(servers(&[refused.clone()])[0].aborted, 1);
        refused.sides.iter_mut().for_each(|side| side.segments = 0);
        let refused = &servers(&[refused])[0];
        assert_eq!((refused.aborted, refused.refused), (0, 1));
    }
}
