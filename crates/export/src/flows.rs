//! The page: metrics in the text format 0.0.4 of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;

use weir_flows::{Network, Reading, Side, end_of_bucket};

/// The fill of the connection-tracking table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conntrack {
    /// Entries now.
    pub entries: u64,
    /// The limit.
    pub limit: u64,
}

/// The networks that have series of their own: the first ones that were seen, up to a bound. All others share the label `other`. A network
/// keeps its place.
///
/// A loss that turns out to be a needless retransmission is moved there, so that a count of losses may go down. Prometheus takes that for a
/// restart. Here a counter waits instead until the count is above it again.
#[derive(Debug, Clone)]
pub struct Names {
    most: usize,
    /// Whether a network that was seen is named.
    seen: BTreeMap<String, bool>,
    /// The last value of each counter, by its name, network and side.
    shown: BTreeMap<(&'static str, String, &'static str), f64>,
}

impl Names {
    /// At most `most` networks are named.
    pub fn new(most: usize) -> Self {
        Names { most, seen: BTreeMap::new(), shown: BTreeMap::new() }
    }

    /// The value, or the last one if that was greater.
    fn grown(&mut self, name: &'static str, network: &str, side: &'static str, value: f64) -> f64 {
        let shown = self.shown.entry((name, network.to_owned(), side)).or_default();
        *shown = shown.max(value);
        *shown
    }

    fn label(&mut self, network: &Network) -> String {
        let Some(name) = &network.network else { return "other".into() };
        // Beyond this many a new network is among the others without being remembered.
        const MOST_SEEN: usize = 100_000;
        let named = self.seen.get(name).copied().unwrap_or_else(|| {
            let named = self.seen.values().filter(|named| **named).count() < self.most;
            if named || self.seen.len() < MOST_SEEN {
                self.seen.insert(name.clone(), named);
            }
            named
        });
        if named { name.clone() } else { "other".into() }
    }
}

/// A family of series under construction.
struct Family<'a> {
    text: &'a mut String,
    name: String,
}

impl<'a> Family<'a> {
    fn new(text: &'a mut String, name: &str, kind: &str, help: &str) -> Self {
        let name = format!("weir_{name}");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { text, name }
    }

    fn value(&mut self, labels: &[(&str, &str)], value: f64) {
        self.part("", labels, value);
    }

    /// A value of `NAME` with an ending, as histograms have them.
    fn part(&mut self, ending: &str, labels: &[(&str, &str)], value: f64) {
        let name = &self.name;
        let labels: Vec<String> = labels.iter().map(|(k, v)| format!("{k}=\"{}\"", escaped(v))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.text, "{name}{ending}{labels} {value}");
    }
}

/// The value of a label (exposition format 0.0.4).
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

type Row = ((String, &'static str), Vec<Side>);

/// Counters of one side: name, help, and how to read it.
type Counter = (&'static str, &'static str, fn(&Side) -> f64);

const COUNTERS: [Counter; 14] = [
    ("network_bytes_total", "Bytes of IP packets that the side sent.", |s| s.bytes as f64),
    ("network_packets_total", "Packets that the side sent.", |s| s.packets as f64),
    ("network_segments_total", "TCP segments with data that the side sent.", |s| s.segments as f64),
    (
        "network_first_copies_total",
        "First copies of segments that the side sent; lost_from counts among them.",
        |s| s.lost_from.of as f64,
    ),
    ("network_lost_from_total", "First copies that were lost between the side and this host.", |s| {
        s.lost_from.segments as f64
    }),
    (
        "network_sent_to_total",
        "Segments of the other side that came here on their way to the side; lost_to counts among them.",
        |s| s.lost_to.of as f64,
    ),
    ("network_lost_to_total", "Segments that were lost between this host and the side.", |s| {
        s.lost_to.segments as f64
    }),
    ("network_reordered_total", "Segments of the side that came late and were not lost.", |s| {
        s.reordered as f64
    }),
    ("network_needless_total", "Segments that the side sent again although they had arrived.", |s| {
        s.needless as f64
    }),
    ("network_bypassed_total", "Segments of the side that took another way.", |s| s.bypassed as f64),
    ("network_syns_total", "SYNs of the side, with and without ACK.", |s| s.syns as f64),
    ("network_resets_total", "Resets of the side.", |s| s.resets as f64),
    ("network_zero_windows_total", "How often the side closed its receive window.", |s| {
        s.zero_windows as f64
    }),
    (
        "network_congestion_marks_total",
        "Packets of the side that were marked with congestion experienced.",
        |s| s.congestion_marks as f64,
    ),
];

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

fn flows(text: &mut String, reading: &Reading, names: &mut Names) {
    for (name, help, value) in [
        ("flows", "Flows in the table.", reading.flows_now as f64),
        ("flows_capacity", "Flows that the table has room for.", f64::from(reading.capacity)),
        ("flows_sample_ratio", "Share of all flows that is tracked.", reading.sample_share),
        (
            "flows_unanswered_syns",
            "SYNs of flows that have no answer yet, or never had one.",
            reading.all.unanswered_syns as f64,
        ),
    ] {
        Family::new(text, name, "gauge", help).value(&[], value);
    }
    let not = &reading.not_tracked;
    let mut packets = Family::new(
        text,
        "flows_packets_total",
        "counter",
        "Packets by what became of them in the table of flows.",
    );
    for (verdict, number) in [
        ("judged", not.judged),
        ("no-room", not.no_room),
        ("too-many-opening", not.too_many_opening),
        ("outside-sample", not.outside_sample),
        ("stray", not.stray),
        ("not-ip", not.not_ip),
        ("other-protocol", not.other_protocol),
        ("fragment", not.fragments),
        ("tagged", not.tagged),
        ("not-to-this-host", not.not_to_this_host),
        ("malformed", not.malformed),
    ] {
        packets.value(&[("verdict", verdict)], number as f64);
    }
    let rows = rows(reading, names);
    for (name, help, read) in COUNTERS {
        let mut family = Family::new(text, name, "counter", help);
        for ((network, side), sides) in &rows {
            let value = names.grown(name, network, side, sides.iter().map(read).sum());
            family.value(&[("network", network), ("side", side)], value);
        }
    }
    round_trips(text, &rows);
}

fn round_trips(text: &mut String, rows: &[Row]) {
    let help = "Round trips between this host and the side; delayed acknowledgements are part of them.";
    let mut family = Family::new(text, "network_round_trip_seconds", "histogram", help);
    for ((network, side), sides) in rows {
        let labels = [("network", network.as_str()), ("side", *side)];
        let buckets = sides.iter().map(|s| s.round_trips.buckets.len()).max().unwrap_or(0);
        let (mut sum, mut count) = (0.0, 0);
        for bucket in 0..buckets {
            count += sides.iter().filter_map(|s| s.round_trips.buckets.get(bucket)).sum::<u64>();
            // The last one is open.
            let end = if bucket + 1 == buckets {
                "+Inf".into()
            } else {
                (end_of_bucket(bucket) as f64 / 1e9).to_string()
            };
            family.part("_bucket", &[labels[0], labels[1], ("le", &end)], count as f64);
        }
        sum += sides.iter().map(|s| s.round_trips.total_ns as f64 / 1e9).sum::<f64>();
        family.part("_sum", &labels, sum);
        family.part("_count", &labels, count as f64);
    }
}

/// The page of one reading. `version` is weir's.
pub fn page(version: &str, reading: &Reading, conntrack: Option<Conntrack>, names: &mut Names) -> String {
    let mut text = String::new();
    Family::new(&mut text, "build_info", "gauge", "The version of weir.").value(&[("version", version)], 1.0);
    if let Some(table) = conntrack {
        Family::new(&mut text, "conntrack_entries", "gauge", "Entries of the connection-tracking table.")
            .value(&[], table.entries as f64);
        Family::new(
            &mut text,
            "conntrack_entries_limit",
            "gauge",
            "The limit of entries (nf_conntrack_max).",
        )
        .value(&[], table.limit as f64);
    }
    flows(&mut text, reading, names);
    text
}

#[cfg(test)]
mod tests {
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

    fn has(page: &str, line: &str) {
        assert!(page.lines().any(|l| l == line), "no `{line}` in:\n{page}");
    }

    #[test]
    fn series_have_the_values_of_the_reading() {
        let table = Conntrack { entries: 12, limit: 65_536 };
        let page = page("1.2.3", &reading(&["198.18.1.0/24"]), Some(table), &mut Names::new(10));
        has(&page, "weir_build_info{version=\"1.2.3\"} 1");
        has(&page, "weir_conntrack_entries 12");
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
    fn a_network_keeps_its_place_and_the_rest_is_one() {
        let mut names = Names::new(2);
        let bytes = |label: &str, value: u32| {
            format!("weir_network_bytes_total{{network=\"{label}\",side=\"client\"}} {value}")
        };
        let first = page("", &reading(&["a", "b", "c", "d"]), None, &mut names);
        has(&first, &bytes("a", 100));
        has(&first, &bytes("other", 200));
        // Another order, as other networks have more bytes now.
        let second = page("", &reading(&["d", "c", "b", "a"]), None, &mut names);
        assert_eq!(first, second);
    }

    #[test]
    fn a_counter_waits_where_a_count_goes_down() {
        let mut names = Names::new(2);
        let mut lost = |segments| {
            let mut reading = reading(&["a"]);
            reading.networks[0].server_side.lost_to.segments = segments;
            let page = page("", &reading, None, &mut names);
            let series = "weir_network_lost_to_total{network=\"a\",side=\"server\"} ";
            page.lines().find_map(|l| l.strip_prefix(series)).unwrap().to_owned()
        };
        assert_eq!([5, 3, 5, 6].map(&mut lost), ["5", "5", "5", "6"]);
    }

    #[test]
    fn labels_cannot_break_a_line() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
