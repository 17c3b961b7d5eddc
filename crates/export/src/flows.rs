//! Flows by network: loss and delay on either side of TCP, rates of UDP, times and failures of DNS.

mod udp;

use std::collections::{BTreeMap, BTreeSet};

use weir_flows::{Limiter, Network, Reading, RoundTrips, Side, end_of_bucket};

use crate::page::{Group, Metric, Page};

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
    shown: BTreeMap<(&'static str, String, [&'static str; 2]), f64>,
}

impl Names {
    /// At most `most` networks are named.
    pub fn new(most: usize) -> Self {
        Names { most, named: BTreeSet::new(), shown: BTreeMap::new() }
    }

    /// The value, or the last one if that was greater. `label` is the side, or what tells series of the metric apart otherwise.
    pub(super) fn grown(
        &mut self,
        name: &'static str,
        network: &str,
        label: &'static str,
        value: f64,
    ) -> f64 {
        self.grown_by_two(name, network, [label, ""], value)
    }

    /// The same of a metric with two labels beside the network.
    fn grown_by_two(
        &mut self,
        name: &'static str,
        network: &str,
        labels: [&'static str; 2],
        value: f64,
    ) -> f64 {
        let shown = self.shown.entry((name, network.to_owned(), labels)).or_default();
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

type Row = ((String, &'static str), Vec<Side>);

/// A metric of one side, and how to read it.
type Counter = (Metric, fn(&Side) -> f64);

static COUNTERS: [Counter; 14] = [
    (of_network("network_bytes_total", "Bytes of IP packets of TCP that the side sent."), |s| s.bytes as f64),
    (of_network("network_packets_total", "Packets of TCP that the side sent."), |s| s.packets as f64),
    (of_network("network_segments_total", "TCP segments with data that the side sent."), |s| {
        s.segments as f64
    }),
    (
        of_network(
            "network_first_copies_total",
            "First copies of segments that the side sent; lost_from counts among them.",
        ),
        |s| s.lost_from.of as f64,
    ),
    (
        of_network("network_lost_from_total", "First copies that were lost between the side and this host."),
        |s| s.lost_from.segments as f64,
    ),
    (
        of_network(
            "network_sent_to_total",
            "Segments of the other side that came here on their way to the side; lost_to counts among them.",
        ),
        |s| s.lost_to.of as f64,
    ),
    (of_network("network_lost_to_total", "Segments that were lost between this host and the side."), |s| {
        s.lost_to.segments as f64
    }),
    (of_network("network_reordered_total", "Segments of the side that came late and were not lost."), |s| {
        s.reordered as f64
    }),
    (
        of_network("network_needless_total", "Segments that the side sent again although they had arrived."),
        |s| s.needless as f64,
    ),
    (of_network("network_bypassed_total", "Segments of the side that took another way."), |s| {
        s.bypassed as f64
    }),
    (of_network("network_syns_total", "SYNs of the side, with and without ACK."), |s| s.syns as f64),
    (of_network("network_resets_total", "Resets of the side."), |s| s.resets as f64),
    (of_network("network_zero_windows_total", "How often the side closed its receive window."), |s| {
        s.zero_windows as f64
    }),
    (
        of_network(
            "network_congestion_marks_total",
            "Packets of the side that were marked with congestion experienced.",
        ),
        |s| s.congestion_marks as f64,
    ),
];

const fn of_network(name: &'static str, help: &'static str) -> Metric {
    Metric::counter(name, &["network", "side"], help)
}

static FLOWS: Metric = Metric::gauge("flows", &[], "TCP flows in the table.");
static CAPACITY: Metric = Metric::gauge("flows_capacity", &[], "TCP flows that the table has room for.");
static SAMPLE: Metric = Metric::gauge("flows_sample_ratio", &[], "Share of all flows that is tracked.");
static CORE: Metric = Metric::gauge(
    "flows_core_ratio",
    &[],
    "Share of one core that looking at packets takes; --budget is the most.",
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
            `other`. Each network has 2 x 55 series, and 42 of QUIC and DNS. Idle connections count as limited by their \
            application.",
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

/// Rows by label and side; networks with the same label are one row.
fn rows(reading: &Reading, names: &mut Names) -> Vec<Row> {
    let mut rows: BTreeMap<(String, &'static str), Vec<Side>> = BTreeMap::new();
    for network in &reading.networks {
        let label = names.label(network);
        for (side, part) in [("client", &network.client_side), ("server", &network.server_side)] {
            rows.entry((label.clone(), side)).or_default().push(part.clone());
        }
    }
    rows.into_iter().collect()
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
    let mut packets = page.family(&PACKETS);
    for (verdict, number) in [
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
    ] {
        packets.value(&[verdict], number as f64);
    }
    let mut errors: BTreeMap<&str, u64> = BTreeMap::new();
    for one in &reading.icmp_errors {
        *errors.entry(one.meaning.words()).or_default() += one.packets;
    }
    let mut family = page.family(&ICMP);
    for (meaning, packets) in errors {
        family.value(&[&meaning.replace(' ', "-")], packets as f64);
    }
    udp::write(page, reading, names);
    let rows = rows(reading, names);
    for (metric, read) in &COUNTERS {
        let mut family = page.family(metric);
        for ((network, side), sides) in &rows {
            let value = names.grown(metric.name, network, side, sides.iter().map(read).sum());
            family.value(&[network, side], value);
        }
    }
    limited(page, &rows, names);
    round_trips(page, &rows);
}

/// The time that is charged by the state of a silent flow is charged anew with its next packet, so that a sum may go down.
fn limited(page: &mut Page, rows: &[Row], names: &mut Names) {
    let mut family = page.family(&LIMITED);
    for ((network, side), sides) in rows {
        let mut write = |limit: &'static str, seconds: f64| {
            let value = names.grown_by_two(LIMITED.name, network, [*side, limit], seconds);
            family.value(&[network, side, limit], value);
        };
        for limiter in Limiter::ALL {
            write(limiter.word(), sides.iter().map(|s| s.limits.of(limiter)).sum());
        }
        write("unclear", sides.iter().map(|s| s.limits.unclear_seconds).sum());
    }
}

fn round_trips(page: &mut Page, rows: &[Row]) {
    let mut family = page.family(&ROUND_TRIPS);
    for ((network, side), sides) in rows {
        let (cumulative, sum) = histogram(sides.iter().map(|s| &s.round_trips));
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
    use weir_flows::{IcmpMeaning, IcmpReporter};

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
