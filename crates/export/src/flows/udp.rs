//! UDP by network.

use weir_flows::{Network, Reading, Udp};

use super::{Counter, Names, Rows, SideRow, counters, histogram, of_side};
use crate::page::{Metric, Page};

/// Reads a count of a network.
type Count = fn(&Udp) -> u64;

pub(super) static FLOWS: Metric = Metric::gauge("udp_flows", &[], "UDP flows in the table.");
pub(super) static CAPACITY: Metric =
    Metric::gauge("udp_flows_capacity", &[], "UDP flows that the table has room for.");

pub(super) static COUNTERS: [Counter; 2] = [
    of_side("network_udp_bytes_total", "Bytes of IP packets of UDP that the side sent.", |s| s.udp.bytes),
    of_side("network_udp_packets_total", "Datagrams that the side sent.", |s| s.udp.packets),
];

pub(super) static QUIC: Metric =
    Metric::counter("network_quic_bytes_total", &["network"], "Bytes of QUIC of both sides.");
pub(super) static QUERIES: Metric =
    Metric::counter("network_dns_queries_total", &["network"], "Queries of DNS, each once.");
pub(super) static ANSWERS: Metric = Metric::counter(
    "network_dns_answers_total",
    &["network", "code"],
    "Answers of DNS within 5 s by their code: noerror, servfail, nxdomain, refused, other.",
);
pub(super) static UNANSWERED: Metric = Metric::counter(
    "network_dns_unanswered_total",
    &["network"],
    "Queries of DNS without an answer within 5 s.",
);
pub(super) static TIMES: Metric = Metric::histogram(
    "network_dns_answer_seconds",
    &["network"],
    "Times from a query of DNS to its answer, as they pass here.",
);

/// Writes the metrics of a reading, from its rows and those by side.
pub(super) fn write(
    page: &mut Page,
    reading: &Reading,
    (rows, sides): (&Rows<'_>, &[SideRow<'_>]),
    names: &mut Names,
) {
    page.single(&FLOWS, reading.udp_flows_now as f64);
    page.single(&CAPACITY, f64::from(reading.udp_capacity));
    counters(page, &COUNTERS, sides, names);
    let sum = |parts: &[&Network], read: Count| parts.iter().map(|part| read(&part.udp) as f64).sum();
    let sums: [(&'static Metric, Count); 3] = [
        (&QUIC, |udp| udp.quic_bytes),
        (&QUERIES, |udp| udp.dns.queries),
        (&UNANSWERED, |udp| udp.dns.unanswered),
    ];
    for (metric, read) in sums {
        let grown = rows
            .iter()
            .map(|(network, parts)| ([network], names.grown(metric, network, ["", ""], sum(parts, read))));
        page.series(metric, grown);
    }
    let mut family = page.family(&ANSWERS);
    for (network, parts) in rows {
        for (code, read) in CODES {
            family.value(&[network, code], names.grown(&ANSWERS, network, [code, ""], sum(parts, read)));
        }
    }
    let mut family = page.family(&TIMES);
    for (network, parts) in rows {
        let (cumulative, sum) = histogram(parts.iter().map(|part| &part.udp.dns.times));
        family.histogram(&[network], &cumulative, sum);
    }
}

/// Codes of answers, and how to read them.
const CODES: [(&str, Count); 5] = [
    ("noerror", |udp| {
        let dns = &udp.dns;
        dns.answers.saturating_sub(dns.servfail + dns.nxdomain + dns.refused + dns.other_failures)
    }),
    ("servfail", |udp| udp.dns.servfail),
    ("nxdomain", |udp| udp.dns.nxdomain),
    ("refused", |udp| udp.dns.refused),
    ("other", |udp| udp.dns.other_failures),
];
