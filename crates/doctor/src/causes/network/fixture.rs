//! Evidence made by hand, for the tests of this group.

use std::net::IpAddr;

use crate::evidence::{
    Blame, Delta, DropGroup, Evidence, EvidenceSource, Interface, Lookup, Namespace, Neighbours,
    RouteOutcome, Routes, Rule, Sample, Sight, TcpFlow,
};

/// Number of the namespace.
pub(super) const HERE: u64 = 7;
/// Numbers of its interfaces.
pub(super) const INSIDE: u32 = 2;
pub(super) const OUTSIDE: u32 = 3;

/// A router with two interfaces through which 10,000 packets went in 10 s, and nothing wrong. Drops are in sight.
pub(super) fn healthy() -> Evidence {
    let interface = |index, name: &str, address: [u8; 4], v6: &str| Interface {
        index,
        name: name.into(),
        mtu: 1500,
        up: true,
        carrier: true,
        addresses: vec![(IpAddr::from(address), 24), (v6.parse().unwrap(), 64)],
        counters: [("rx_packets".into(), Delta { before: 5, after: 10_005 })].into(),
        ..Interface::default()
    };
    let settings = [("net.ipv4.ip_forward", "1"), ("net.ipv6.conf.all.forwarding", "1")];
    let here = Namespace {
        id: HERE,
        name: "gateway".into(),
        interfaces: vec![
            interface(INSIDE, "inside", [198, 18, 0, 1], "2001:2::1"),
            interface(OUTSIDE, "outside", [198, 19, 0, 1], "2001:2:0:1::1"),
        ],
        routes: Some(Routes::default()),
        neighbours: Some(Neighbours::default()),
        settings: settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        ..Namespace::default()
    };
    let mut evidence = Evidence { window_s: 10.0, namespaces: vec![here], ..Evidence::default() };
    evidence.evidence_sources.insert(EvidenceSource::Drops, Sight::Seen);
    for source in [
        EvidenceSource::Counters,
        EvidenceSource::Interfaces,
        EvidenceSource::Routes,
        EvidenceSource::Neighbours,
        EvidenceSource::Flows,
    ] {
        evidence.evidence_sources.insert(source, Sight::Seen);
    }
    evidence
}

/// The same with drops out of sight.
pub(super) fn blind(mut evidence: Evidence) -> Evidence {
    evidence.evidence_sources.insert(EvidenceSource::Drops, Sight::Blind("no BTF".into()));
    evidence.drops.clear();
    evidence
}

/// A UDP datagram of IPv4 or IPv6 as a sample.
pub(super) fn datagram(source: &str, destination: &str, came_in: u32) -> Sample {
    packet(source, destination, came_in, 17, &[0x90, 0, 0x1b, 0x58, 0, 12, 0, 0])
}

/// Any packet as a sample.
pub(super) fn packet(source: &str, destination: &str, came_in: u32, protocol: u8, payload: &[u8]) -> Sample {
    let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
    let mut header = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = vec![0x45, 0, 0, (20 + payload.len()) as u8, 0, 1, 0, 0, 1, protocol, 0, 0];
            header.extend(source.octets());
            header.extend(destination.octets());
            header
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut header = vec![0x60, 0, 0, 0, 0, payload.len() as u8, protocol, 1];
            header.extend(source.octets());
            header.extend(destination.octets());
            header
        }
        _ => panic!("addresses of two families"),
    };
    header.extend(payload);
    Sample { came_in, length: header.len() as u32, header, ..Sample::default() }
}

/// Drops in the namespace; the interface is the one that they came in through.
pub(super) fn drops(reason: &str, location: &str, packets: u64, samples: &[Sample]) -> DropGroup {
    let first = samples.first();
    let v6 = first.is_some_and(|s| s.header[0] >> 4 == 6);
    DropGroup {
        namespace: HERE,
        reason: reason.into(),
        location: location.into(),
        interface: first.map_or(0, |s| s.came_in),
        ethertype: if v6 { 0x86dd } else { 0x0800 },
        protocol: first.and_then(Sample::tuple).map_or(0, |t| t.protocol),
        packets,
        bytes: packets * 60,
        samples: samples.to_vec(),
    }
}

/// Builds the kernel's answer about a sample.
pub(super) fn answer(sample: &Sample, outcome: RouteOutcome, interface: u32) -> Lookup {
    let tuple = sample.tuple().unwrap();
    Lookup {
        source: tuple.source,
        destination: tuple.destination,
        came_in: sample.came_in,
        mark: sample.mark,
        outcome,
        interface,
        next_hop: None,
        table: 254,
        plain: Some(outcome),
        cached_mtu: None,
        return_interface: sample.came_in,
    }
}

/// Adds an answer.
pub(super) fn answered(evidence: &mut Evidence, lookup: Lookup) {
    evidence.namespaces[0].routes.get_or_insert_default().lookups.push(lookup);
}

/// Makes a counter grow.
pub(super) fn count(evidence: &mut Evidence, counter: &str, grew: u64) {
    evidence.namespaces[0].counters.insert(counter.into(), Delta { before: 3, after: 3 + grew });
}

/// Sets a setting.
pub(super) fn set(evidence: &mut Evidence, name: &str, value: &str) {
    evidence.namespaces[0].settings.insert(name.into(), value.into());
}

/// A TCP connection of port 40,001 here to port 9001 there, over which so many bytes were acknowledged in the window.
pub(super) fn connection(here: &str, there: &str, acked: u64) -> TcpFlow {
    let none = [0, 0];
    let fields = serde_json::json!({
        "local": here, "remote": there, "state": 1, "retransmits": [0, 3], "segments_out": [0, 9], "bytes_acked": [1, 1 + acked],
        "bytes_received": none, "dsack": none, "rtt_us": 100, "min_rtt_us": 90, "mss": 1448, "received_mss": 1448, "pmtu": 1500,
        "window_scaling": true, "send_window": 65_000, "busy_us": none, "window_limited_us": none, "buffer_limited_us": none,
        "send_queue": 0, "receive_queue": 0, "backoff": 0, "process": null,
    });
    serde_json::from_value(fields).unwrap()
}

/// A rule of nftables that drops, in the chain `o` of the table `ip f`.
pub(super) fn rule(text: &str) -> Rule {
    let fields = serde_json::json!({
        "backend": "nft", "family": "ip", "table": "f", "chain": "o", "handle": 4, "text": text, "verdict": "drop", "packets": null,
        "invalid": false, "limit": false, "set": null, "random": false, "logs": false, "decided": [0, 3],
    });
    serde_json::from_value(fields).unwrap()
}

/// Builds the blame of that rule, by its index, for that group of drops.
pub(super) fn blame(group: usize, rule: usize) -> Blame {
    let fields = serde_json::json!({
        "group": group, "rule": rule, "chain": 0, "hook": "output", "sure": 3, "share": 3.0, "asked": 3, "samples": [0], "missed": [],
    });
    serde_json::from_value(fields).unwrap()
}
