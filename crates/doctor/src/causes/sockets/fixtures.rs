//! Evidence for the tests of this group: a healthy host, to which each test adds what it is about.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::evidence::{
    Counters, Delta, DropGroup, Evidence, EvidenceSource, Interface, Listener, Namespace, Sample, Sight,
    Sockets, TcpFlow, UdpSocket,
};

/// A counter that grew by so much.
pub(super) fn grew(by: u64) -> Delta {
    Delta { before: 1000, after: 1000 + by }
}

/// A host through which 10,000 packets went, with these counters grown.
pub(super) fn host(counters: &[(&str, u64)]) -> Namespace {
    let passed = Counters::from([("rx_packets".into(), grew(10_000)), ("tx_packets".into(), grew(9_000))]);
    Namespace {
        id: 1,
        name: "host".into(),
        own: true,
        counters: counters.iter().map(|(name, by)| ((*name).into(), grew(*by))).collect(),
        interfaces: vec![Interface {
            index: 2,
            name: "eth0".into(),
            counters: passed,
            ..Interface::default()
        }],
        sockets: Some(Sockets::default()),
        ..Namespace::default()
    }
}

/// Ten seconds of it, with every evidence source in sight.
pub(super) fn seen(namespace: Namespace, drops: Vec<DropGroup>) -> Evidence {
    let sources = [
        EvidenceSource::Counters,
        EvidenceSource::Drops,
        EvidenceSource::Sockets,
        EvidenceSource::Settings,
        EvidenceSource::Flows,
        EvidenceSource::Interfaces,
    ];
    Evidence {
        window_s: 10.0,
        evidence_sources: BTreeMap::from(sources.map(|p| (p, Sight::Seen))),
        namespaces: vec![namespace],
        drops,
        ..Evidence::default()
    }
}

/// The same without a view of drops.
pub(super) fn blind_to_drops(namespace: Namespace) -> Evidence {
    let mut evidence = seen(namespace, Vec::new());
    evidence.evidence_sources.insert(EvidenceSource::Drops, Sight::Blind("no BTF".into()));
    evidence
}

/// Packets of IPv4 that were dropped there.
pub(super) fn dropped(reason: &str, location: &str, protocol: u8, packets: u64) -> DropGroup {
    DropGroup {
        namespace: 1,
        reason: reason.into(),
        location: location.into(),
        interface: 2,
        ethertype: 0x0800,
        protocol,
        packets,
        bytes: 100 * packets,
        samples: Vec::new(),
    }
}

/// The first bytes of a packet of UDP, or of TCP with those flags (SYN is 2).
pub(super) fn packet(protocol: u8, source: &str, destination: &str, flags: u8) -> Sample {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (source.parse().unwrap(), destination.parse().unwrap())
    else {
        panic!("an IPv4 address and a port");
    };
    let mut header = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0];
    header.extend(from.ip().octets());
    header.extend(to.ip().octets());
    header.extend(from.port().to_be_bytes());
    header.extend(to.port().to_be_bytes());
    header.extend([0; 8]);
    header.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    Sample { came_in: 2, length: 40, header, ..Sample::default() }
}

/// A listening socket that is well.
pub(super) fn listener(port: u16) -> Listener {
    Listener {
        local: SocketAddr::from(([0, 0, 0, 0], port)),
        queued: 0,
        limit: 128,
        half_open: 0,
        drops: grew(0),
        process: Some("web (pid 7)".into()),
    }
}

/// A UDP socket that lost so many.
pub(super) fn udp_socket(lost: u64) -> UdpSocket {
    UdpSocket {
        local: "0.0.0.0:514".parse().unwrap(),
        queued_bytes: 212_000,
        limit_bytes: 212_992,
        drops: grew(lost),
        process: Some("syslog (pid 9)".into()),
    }
}

/// A connection that is well: 10 MB sent in the window over a path of 20 ms.
pub(super) fn flow() -> TcpFlow {
    TcpFlow {
        local: "198.18.0.1:40000".parse().unwrap(),
        remote: "198.19.0.2:443".parse().unwrap(),
        state: 1,
        retransmits: grew(0),
        segments_out: grew(7000),
        segments_in: grew(3500),
        out_of_order: grew(0),
        bytes_acked: grew(10_000_000),
        bytes_received: grew(1000),
        dsack: grew(0),
        rtt_us: 20_000,
        min_rtt_us: 19_000,
        mss: 1448,
        received_mss: 536,
        pmtu: 1500,
        window_scaling: true,
        timestamps: true,
        outgoing: true,
        send_window: 3_000_000,
        receive_window: 64_000,
        receive_limit: 131_072,
        send_limit: 2_000_000,
        busy_us: grew(9_000_000),
        window_limited_us: grew(0),
        buffer_limited_us: grew(0),
        send_queue: 0,
        receive_queue: 0,
        backoff: 0,
        process: Some("web (pid 7)".into()),
    }
}
