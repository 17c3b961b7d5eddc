//! Flows by network: loss and delay on either side of TCP, rates of UDP, times and failures of DNS.

mod udp;

use std::collections::{BTreeMap, BTreeSet};

use weir_flows::{Limiter, Network, Reading, RoundTrips, Side, UdpSide, end_of_bucket};

use crate::page::{Group, Metric, Page, Text};

/// The networks that have series of their own: the first ones that were seen, up to a bound. All others share the label `other`. A network
/// keeps its place.
///
/// A loss that turns out to be a needless retransmission is moved there, so that a count of losses may go down. Prometheus takes that for a
/// restart. Here a counter waits instead until the count is above it again.
#[derive(Debug, Clone)]
pub struct Names {
    most: usize,
    named: BTreeSet<String>,
    /// The last value of each counter, by its name, network and other labels.
    shown: BTreeMap<(Text, String, [Text; 2]), f64>,
}

impl Names {
    /// At most `most` networks are named.
    pub fn new(most: usize) -> Self {
        Names { most, named: BTreeSet::new(), shown: BTreeMap::new() }
    }

    /// The value, or the last one if that was greater, of a series with these labels beside the network.
    fn grown(&mut self, metric: &'static Metric, network: &str, labels: [Text; 2], value: f64) -> f64 {
        let shown = self.shown.entry((metric.name, network.to_owned(), labels)).or_default();
        *shown = shown.max(value);
        *shown
    }

    fn label(&mut self, network: &Network) -> String {
        let Some(name) = &network.network else { return "other".into() };
        if !self.named.contains(name) {
            if self.named.len() >= self.most {
                return "other".into();
            }
            self.named.insert(name.clone());
        }
        name.clone()
    }
}

/// Networks by their label.
type Rows<'a> = BTreeMap<String, Vec<&'a Network>>;

/// One side of a network.
#[derive(Clone, Copy)]
struct OneSide<'a> {
    tcp: &'a Side,
    udp: &'a UdpSide,
}

/// Label, name of the side, and the sides of all networks with that label.
type SideRow<'a> = (&'a str, Text, Vec<OneSide<'a>>);

/// A metric of one side, and how to read it.
type Counter = (Metric, fn(&OneSide<'_>) -> u64);

const fn of_side(name: Text, help: Text, read: fn(&OneSide<'_>) -> u64) -> Counter {
    (Metric::counter(name, &["network", "side"], help), read)
}

static COUNTERS: [Counter; 14] = [
    of_side("network_bytes_total", "Bytes of IP packets of TCP that the side sent.", |s| s.tcp.bytes),
    of_side("network_packets_total", "Packets of TCP that the side sent.", |s| s.tcp.packets),
    of_side("network_segments_total", "TCP segments with data that the side sent.", |s| s.tcp.segments),
    of_side(
        "network_first_copies_total",
        "First copies of segments that the side sent; lost_from counts among them.",
        |s| s.tcp.lost_from.of,
    ),
    of_side("network_lost_from_total", "First copies that were lost between the side and this host.", |s| {
        s.tcp.lost_from.segments
    }),
    of_side(
        "network_sent_to_total",
        "Segments of the other side that came here on their way to the side; lost_to counts among them.",
        |s| s.tcp.lost_to.of,
    ),
    of_side("network_lost_to_total", "Segments that were lost between this host and the side.", |s| {
        s.tcp.lost_to.segments
    }),
    of_side("network_reordered_total", "Segments of the side that came late and were not lost.", |s| {
        s.tcp.reordered
    }),
    of_side("network_needless_total", "Segments that the side sent again although they had arrived.", |s| {
        s.tcp.needless
    }),
    of_side("network_bypassed_total", "Segments of the side that took another way.", |s| s.tcp.bypassed),
    of_side("network_syns_total", "SYNs of the side, with and without ACK.", |s| s.tcp.syns),
    of_side("network_resets_total", "Resets of the side.", |s| s.tcp.resets),
    of_side("network_zero_windows_total", "How often the side closed its receive window.", |s| {
        s.tcp.zero_windows
    }),
    of_side(
        "network_congestion_marks_total",
        "Packets of the side that were marked with congestion experienced.",
        |s| s.tcp.congestion_marks,
    ),
];

static FLOWS: Metric = Metric::gauge("flows", &[], "TCP flows in the table.");
static CAPACITY: Metric = Metric::gauge("flows_capacity", &[], "TCP flows that the table has room for.");
static SAMPLE: Metric = Metric::gauge("flows_sample_ratio", &[], "Share of all flows that is tracked.");
static CORE: Metric = Metric::gauge(
    "flows_core_ratio",
    &[],
    "Share of one core that looking at packets and readings take; --budget is the most.",
);
static UNANSWERED: Metric =
    Metric::gauge("flows_unanswered_syns", &[], "SYNs of flows that have no answer yet, or never had one.");
static PACKETS: Metric = Metric::counter(
    "flows_packets_total",
    &["verdict"],
    "Packets by what became of them in the table of flows.",
);
static ICMP: Metric = Metric::counter(
    "flows_icmp_errors_total",
    &["meaning"],
    "ICMP errors about tracked flows; `weir flows` shows who sent them.",
);
static UNTRACKED: Metric = Metric::counter(
    "network_untracked_bytes_total",
    &["network", "direction"],
    "Bytes of flows that are not tracked, by an estimate from one packet of each 64 KiB; with the header of the link.",
);
static LIMITED: Metric = Metric::counter(
    "network_limited_seconds_total",
    &["network", "side", "limit"],
    "Time of all flows of the side as senders, by what limited them: application, receiver, network, sender, unclear.",
);
static ROUND_TRIPS: Metric = Metric::histogram(
    "network_round_trip_seconds",
    &["network", "side"],
    "Round trips between this host and the side; delayed acknowledgements are part of them.",
);

/// For the reference.
pub(crate) static GROUP: Group = Group {
    title: "Flows",
    about: "TCP and UDP that pass this host, as `weir flows` shows them, read every 2 s. `side` is `client` or `server`. The \
            first `--networks` networks (50) have series of their own, for as long as weir runs; all others share the label \
            `other`. Each network has 2 x 56 series, and 42 of QUIC and DNS. Idle connections count as limited by their \
            application. A network without tracked flows has no untracked bytes of its own, and `direction` is `from` or `to` it.",
    metrics: &[
        &FLOWS,
        &CAPACITY,
        &SAMPLE,
        &CORE,
        &UNANSWERED,
        &PACKETS,
        &COUNTERS[0].0,
        &COUNTERS[1].0,
        &COUNTERS[2].0,
        &COUNTERS[3].0,
        &COUNTERS[4].0,
        &COUNTERS[5].0,
        &COUNTERS[6].0,
        &COUNTERS[7].0,
        &COUNTERS[8].0,
        &COUNTERS[9].0,
        &COUNTERS[10].0,
        &COUNTERS[11].0,
        &COUNTERS[12].0,
        &COUNTERS[13].0,
        &LIMITED,
        &UNTRACKED,
        &ROUND_TRIPS,
        &ICMP,
        &udp::FLOWS,
        &udp::CAPACITY,
        &udp::COUNTERS[0].0,
        &udp::COUNTERS[1].0,
        &udp::QUIC,
        &udp::QUERIES,
        &udp::ANSWERS,
        &udp::UNANSWERED,
        &udp::TIMES,
    ],
};

/// Networks with the same label are one row.
fn rows<'a>(reading: &'a Reading, names: &mut Names) -> Rows<'a> {
    let mut rows = Rows::new();
    for network in &reading.networks {
        rows.entry(names.label(network)).or_default().push(network);
    }
    rows
}

fn by_side<'a>(rows: &'a Rows<'a>) -> Vec<SideRow<'a>> {
    let mut sides = Vec::new();
    for (label, networks) in rows {
        let client = |n: &&'a Network| OneSide { tcp: &n.client_side, udp: &n.udp.client_side };
        let server = |n: &&'a Network| OneSide { tcp: &n.server_side, udp: &n.udp.server_side };
        sides.push((label.as_str(), "client", networks.iter().map(client).collect()));
        sides.push((label.as_str(), "server", networks.iter().map(server).collect()));
    }
    sides
}

/// Writes the metrics of a reading.
pub fn flows(page: &mut Page, reading: &Reading, names: &mut Names) {
    page.single(&FLOWS, reading.flows_now as f64);
    page.single(&CAPACITY, f64::from(reading.capacity));
    page.single(&SAMPLE, reading.sample_share);
    if let Some(core) = reading.core_share {
        page.single(&CORE, core);
    }
    page.single(&UNANSWERED, reading.all.unanswered_syns as f64);
    let not = &reading.not_tracked;
    let packets = [
        ("judged", not.judged),
        ("judged-udp", not.judged_udp),
        ("no-room", not.no_room),
        ("too-many-opening", not.too_many_opening),
        ("outside-sample", not.outside_sample),
        ("stray", not.stray),
        ("icmp-error", not.icmp_errors),
        ("stray-icmp-error", not.stray_icmp_errors),
        ("not-ip", not.not_ip),
        ("other-protocol", not.other_protocol),
        ("fragment", not.fragments),
        ("tagged", not.tagged),
        ("not-to-this-host", not.not_to_this_host),
        ("malformed", not.malformed),
    ];
    page.series(&PACKETS, packets.map(|(verdict, number)| ([verdict], number as f64)));
    let mut errors: BTreeMap<&str, u64> = BTreeMap::new();
    for one in &reading.icmp_errors {
        *errors.entry(one.meaning.words()).or_default() += one.packets;
    }
    let errors = errors.into_iter();
    page.series(&ICMP, errors.map(|(meaning, packets)| ([meaning.replace(' ', "-")], packets as f64)));
    let rows = rows(reading, names);
    let sides = by_side(&rows);
    udp::write(page, reading, (&rows, &sides), names);
    counters(page, &COUNTERS, &sides, names);
    limited(page, &sides, names);
    untracked(page, reading, names);
    round_trips(page, &sides);
}

/// Strangers choose the addresses of what is not tracked, so it makes no series.
fn untracked(page: &mut Page, reading: &Reading, names: &mut Names) {
    let mut sums: BTreeMap<String, [f64; 2]> = BTreeMap::new();
    for network in &reading.untracked.networks {
        let name = network.network.as_ref().filter(|name| names.named.contains(*name));
        let sum = sums.entry(name.cloned().unwrap_or_else(|| "other".into())).or_default();
        *sum = [sum[0] + network.from.bytes, sum[1] + network.to.bytes];
    }
    let mut family = page.family(&UNTRACKED);
    for (network, values) in &sums {
        for (direction, value) in ["from", "to"].into_iter().zip(values) {
            // It would fall when a network gets a name of its own.
            let value = names.grown(&UNTRACKED, network, [direction, ""], *value);
            family.value(&[network, direction], value);
        }
    }
}

fn counters(page: &mut Page, counters: &'static [Counter], rows: &[SideRow<'_>], names: &mut Names) {
    for (metric, read) in counters {
        let mut family = page.family(metric);
        for (network, side, parts) in rows {
            let sum = parts.iter().map(|part| read(part) as f64).sum();
            family.value(&[network, side], names.grown(metric, network, [*side, ""], sum));
        }
    }
}

/// The time that is charged by the state of a silent flow is charged anew with its next packet, so that a sum may go down.
fn limited(page: &mut Page, rows: &[SideRow<'_>], names: &mut Names) {
    let mut family = page.family(&LIMITED);
    for (network, side, parts) in rows {
        let mut write = |limit: Text, seconds: f64| {
            let value = names.grown(&LIMITED, network, [*side, limit], seconds);
            family.value(&[network, side, limit], value);
        };
        for limiter in Limiter::ALL {
            write(limiter.words(), parts.iter().map(|part| part.tcp.limits.of(limiter)).sum());
        }
        write("unclear", parts.iter().map(|part| part.tcp.limits.unclear_seconds).sum());
    }
}

fn round_trips(page: &mut Page, rows: &[SideRow<'_>]) {
    let mut family = page.family(&ROUND_TRIPS);
    for (network, side, parts) in rows {
        let (cumulative, sum) = histogram(parts.iter().map(|part| &part.tcp.round_trips));
        family.histogram(&[network, side], &cumulative, sum);
    }
}

/// Cumulative counts by the upper ends of buckets, seconds, and the sum of all times.
fn histogram<'a>(times: impl Iterator<Item = &'a RoundTrips> + Clone) -> (Vec<(f64, u64)>, f64) {
    let buckets = times.clone().map(|t| t.buckets.len()).max().unwrap_or(0);
    let mut count = 0;
    let cumulative = (0..buckets)
        .map(|bucket| {
            count += times.clone().filter_map(|t| t.buckets.get(bucket)).sum::<u64>();
            // The last one is open.
            let is_last = bucket + 1 == buckets;
            (if is_last { f64::INFINITY } else { end_of_bucket(bucket) as f64 / 1e9 }, count)
        })
        .collect();
    (cumulative, times.map(|t| t.total_ns as f64 / 1e9).sum())
}

#[cfg(test)]
mod tests {
    use weir_flows::{Estimate, IcmpMeaning, IcmpReporter, UntrackedNetwork};

    use super::*;

    fn network(name: &str) -> Network {
        let mut network = Reading::empty().all;
        network.network = Some(name.into());
        network.client_side.bytes = 100;
        network.server_side.round_trips.buckets[3] = 2;
        network.server_side.round_trips.count = 2;
        network.server_side.round_trips.total_ns = 80_000;
        network
    }

    fn reading(networks: &[&str]) -> Reading {
        let mut reading = Reading::empty();
        reading.networks = networks.iter().map(|name| network(name)).collect();
        reading
    }

    fn page(reading: &Reading, names: &mut Names) -> String {
        let mut page = Page::default();
        flows(&mut page, reading, names);
        page.into_text()
    }

    fn has(page: &str, line: &str) {
        assert!(page.lines().any(|l| l == line), "no `{line}` in:\n{page}");
    }

    #[test]
    fn series_have_the_values_of_the_reading() {
        let page = page(&reading(&["198.18.1.0/24"]), &mut Names::new(10));
        has(&page, "weir_network_bytes_total{network=\"198.18.1.0/24\",side=\"client\"} 100");
        // Two of 32 to 48 us (bucket 3), none before.
        let series = |le: &str| {
            format!(
                "weir_network_round_trip_seconds_bucket{{network=\"198.18.1.0/24\",side=\"server\",le=\"{le}\"}}"
            )
        };
        has(&page, &format!("{} 0", series("0.000032")));
        has(&page, &format!("{} 2", series("0.000048")));
        has(&page, &format!("{} 2", series("+Inf")));
        has(&page, "weir_network_round_trip_seconds_sum{network=\"198.18.1.0/24\",side=\"server\"} 0.00008");
        has(&page, "weir_network_round_trip_seconds_count{network=\"198.18.1.0/24\",side=\"server\"} 2");
    }

    #[test]
    fn untracked_bytes_belong_to_networks_that_have_series_already() {
        let size = |bytes| Estimate { bytes, low: 0.0, high: 2.0 * bytes };
        let stranger = |name: Option<&str>| UntrackedNetwork {
            network: name.map(str::to_owned),
            from: size(65_536.0),
            to: size(0.0),
        };
        let mut one = reading(&["a"]);
        one.untracked.networks = vec![stranger(Some("a")), stranger(Some("b")), stranger(None)];
        let mut names = Names::new(10);
        let shown = page(&one, &mut names);
        has(&shown, "weir_network_untracked_bytes_total{network=\"a\",direction=\"from\"} 65536");
        has(&shown, "weir_network_untracked_bytes_total{network=\"a\",direction=\"to\"} 0");
        has(&shown, "weir_network_untracked_bytes_total{network=\"other\",direction=\"from\"} 131072");
        // A network that has flows from now on takes its bytes along, and no counter falls.
        let mut two = Reading { untracked: one.untracked, ..reading(&["a", "b"]) };
        two.untracked.networks[1].from = size(131_072.0);
        let shown = page(&two, &mut names);
        has(&shown, "weir_network_untracked_bytes_total{network=\"b\",direction=\"from\"} 131072");
        has(&shown, "weir_network_untracked_bytes_total{network=\"other\",direction=\"from\"} 131072");
    }

    #[test]
    fn udp_and_dns_have_the_values_of_the_reading() {
        let mut both = reading(&["a", "b"]);
        for network in &mut both.networks {
            let udp = &mut network.udp;
            (udp.server_side.bytes, udp.quic_bytes) = (5000, 3000);
            (udp.dns.queries, udp.dns.answers, udp.dns.servfail, udp.dns.nxdomain) = (10, 8, 1, 2);
            (udp.dns.unanswered, udp.dns.times.total_ns, udp.dns.times.buckets[3]) = (2, 320_000, 8);
        }
        let error = |from: &str, packets| IcmpReporter {
            from: from.parse().unwrap(),
            meaning: IcmpMeaning::TooBig,
            icmp_type: 3,
            icmp_code: 4,
            packets,
            smallest_mtu: Some(1400),
        };
        both.icmp_errors = vec![error("198.18.0.1", 3), error("198.18.0.2", 4)];
        let page = page(&both, &mut Names::new(1));
        has(&page, "weir_flows_icmp_errors_total{meaning=\"packet-too-big\"} 7");
        // The second network has the shared label.
        for label in ["a", "other"] {
            let label = format!("{{network=\"{label}\"");
            has(&page, &format!("weir_network_udp_bytes_total{label},side=\"server\"}} 5000"));
            has(&page, &format!("weir_network_quic_bytes_total{label}}} 3000"));
            has(&page, &format!("weir_network_dns_queries_total{label}}} 10"));
            for (code, number) in
                [("noerror", 5), ("servfail", 1), ("nxdomain", 2), ("refused", 0), ("other", 0)]
            {
                has(&page, &format!("weir_network_dns_answers_total{label},code=\"{code}\"}} {number}"));
            }
            has(&page, &format!("weir_network_dns_unanswered_total{label}}} 2"));
            has(&page, &format!("weir_network_dns_answer_seconds_bucket{label},le=\"0.000032\"}} 0"));
            has(&page, &format!("weir_network_dns_answer_seconds_count{label}}} 8"));
            has(&page, &format!("weir_network_dns_answer_seconds_sum{label}}} 0.00032"));
        }
    }

    #[test]
    fn limits_are_seconds_by_network_and_side_and_never_fall() {
        let mut names = Names::new(1);
        let mut pages = |receiver: f64, network: f64| {
            let mut reading = reading(&["a", "b", "c"]);
            for one in &mut reading.networks {
                let limits = &mut one.server_side.limits;
                (limits.receiver_seconds, limits.network_seconds, limits.unclear_seconds) =
                    (receiver, network, 0.25);
            }
            page(&reading, &mut names)
        };
        let series = |network: &str, side: &str, limit: &str, value: &str| {
            format!(
                "weir_network_limited_seconds_total{{network=\"{network}\",side=\"{side}\",limit=\"{limit}\"}} {value}"
            )
        };
        let first = pages(4.0, 1.5);
        for (limit, value, twice) in [
            ("application", "0", "0"),
            ("receiver", "4", "8"),
            ("network", "1.5", "3"),
            ("sender", "0", "0"),
            ("unclear", "0.25", "0.5"),
        ] {
            has(&first, &series("a", "server", limit, value));
            has(&first, &series("other", "server", limit, twice));
            has(&first, &series("a", "client", limit, "0"));
        }
        // The time of a silent flow goes to another limit with its next packet.
        let second = pages(3.0, 2.5);
        has(&second, &series("a", "server", "receiver", "4"));
        has(&second, &series("a", "server", "network", "2.5"));
    }

    #[test]
    fn a_network_keeps_its_place_and_the_rest_is_one() {
        let mut names = Names::new(2);
        let bytes = |label: &str, value: u32| {
            format!("weir_network_bytes_total{{network=\"{label}\",side=\"client\"}} {value}")
        };
        let first = page(&reading(&["a", "b", "c", "d"]), &mut names);
        has(&first, &bytes("a", 100));
        has(&first, &bytes("other", 200));
        // Another order, as other networks have more bytes now.
        let second = page(&reading(&["d", "c", "b", "a"]), &mut names);
        assert_eq!(first, second);
    }

    #[test]
    fn a_counter_waits_where_a_count_goes_down() {
        let mut names = Names::new(2);
        let mut lost = |segments| {
            let mut reading = reading(&["a"]);
            reading.networks[0].server_side.lost_to.segments = segments;
            let page = page(&reading, &mut names);
            let series = "weir_network_lost_to_total{network=\"a\",side=\"server\"} ";
            page.lines().find_map(|l| l.strip_prefix(series)).unwrap().to_owned()
        };
        assert_eq!([5, 3, 5, 6].map(&mut lost), ["5", "5", "5", "6"]);
    }
}
