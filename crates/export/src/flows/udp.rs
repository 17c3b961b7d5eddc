//! UDP by network.

use std::collections::BTreeMap;

use weir_flows::{Reading, Udp, UdpSide};

use super::{Names, histogram, of_network};
use crate::page::{Metric, Page};

/// A metric of one side, and how to read it.
type Counter = (Metric, fn(&UdpSide) -> f64);

/// Reads a count of a network.
type Count = fn(&Udp) -> u64;

/// Reads one side of a network.
type OfSide = fn(&Udp) -> &UdpSide;

pub(super) static FLOWS: Metric = Metric::gauge("udp_flows", &[], "UDP flows in the table.");
pub(super) static CAPACITY: Metric =
    Metric::gauge("udp_flows_capacity", &[], "UDP flows that the table has room for.");

pub(super) static COUNTERS: [Counter; 2] = [
    (of_network("network_udp_bytes_total", "Bytes of IP packets of UDP that the side sent."), |s| {
        s.bytes as f64
    }),
    (of_network("network_udp_packets_total", "Datagrams that the side sent."), |s| s.packets as f64),
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

/// Writes the metrics of a reading.
pub(super) fn write(page: &mut Page, reading: &Reading, names: &mut Names) {
    page.single(&FLOWS, reading.udp_flows_now as f64);
    page.single(&CAPACITY, f64::from(reading.udp_capacity));
    let mut rows: BTreeMap<String, Vec<&Udp>> = BTreeMap::new();
    for network in &reading.networks {
        rows.entry(names.label(network)).or_default().push(&network.udp);
    }
    let sides: [(&str, OfSide); 2] = [("client", |udp| &udp.client_side), ("server", |udp| &udp.server_side)];
    for (metric, read) in &COUNTERS {
        let mut family = page.family(metric);
        for (network, parts) in &rows {
            for (side, of) in sides {
                let value = parts.iter().map(|udp| read(of(udp))).sum();
                family.value(&[network, side], names.grown(metric.name, network, side, value));
            }
        }
    }
    let sums: [(&'static Metric, Count); 3] = [
        (&QUIC, |udp| udp.quic_bytes),
        (&QUERIES, |udp| udp.dns.queries),
        (&UNANSWERED, |udp| udp.dns.unanswered),
    ];
    for (metric, read) in sums {
        let mut family = page.family(metric);
        for (network, parts) in &rows {
            let value = parts.iter().map(|udp| read(udp) as f64).sum();
            family.value(&[network], names.grown(metric.name, network, "", value));
        }
    }
    let mut family = page.family(&ANSWERS);
    for (network, parts) in &rows {
        for (code, read) in CODES {
            let value = parts.iter().map(|udp| read(udp) as f64).sum();
            family.value(&[network, code], names.grown(ANSWERS.name, network, code, value));
        }
    }
    let mut family = page.family(&TIMES);
    for (network, parts) in &rows {
        let (cumulative, sum) = histogram(parts.iter().map(|udp| &udp.dns.times));
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
