//! Evidence of a gateway through which connections pass.

use crate::evidence::{
    DropGroup, Evidence, EvidenceSource, Interface, Namespace, Repeated, Sample, Sight, Transit,
    TransitNetwork,
};

/// Ten seconds of a gateway with these networks, and without any loss.
pub(super) fn host(networks: Vec<TransitNetwork>) -> Evidence {
    let counted = |name: &str, index| Interface {
        index,
        name: name.into(),
        up: true,
        counters: [("rx_packets".to_owned(), (5, 50_005).into())].into(),
        ..Interface::default()
    };
    let transit = Transit {
        interfaces: vec!["inside".into(), "outside".into()],
        flows: 20,
        judged: 100_000,
        networks,
        ..Transit::default()
    };
    let namespace = Namespace {
        id: 5,
        name: "gateway".into(),
        own: true,
        interfaces: vec![counted("inside", 2), counted("outside", 3)],
        transit: Some(transit),
        ..Namespace::default()
    };
    Evidence {
        window_s: 10.0,
        namespaces: vec![namespace],
        evidence_sources: EvidenceSource::ALL.map(|source| (source, Sight::Seen)).into(),
        ..Evidence::default()
    }
}

/// A network without any fault: servers behind `outside`, or clients behind `inside`.
pub(super) fn network(servers: bool) -> TransitNetwork {
    let (network, interface) =
        if servers { ("198.19.0.0/24", "outside") } else { ("198.18.0.0/24", "inside") };
    let none_lost = Repeated { lost: 0, of: 10_000, low: 0.0, high: 0.0003 };
    TransitNetwork {
        network: network.into(),
        servers,
        interface: interface.into(),
        example: Some(if servers { [198, 19, 0, 2] } else { [198, 18, 0, 2] }.into()),
        flows: 20,
        bytes: 500_000,
        lost_to: none_lost,
        lost_from: none_lost,
        smallest_ns: 2_000_000,
        median_ns: 3_000_000,
        attempts: 20,
        ..TransitNetwork::default()
    }
}

/// So many packets of TCP with these control bits that a rule of the gateway has dropped.
pub(super) fn dropped(flags: u8, packets: u64) -> DropGroup {
    let mut header = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 198, 18, 0, 2, 198, 19, 0, 2];
    header.extend([0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    DropGroup {
        namespace: 5,
        reason: "NETFILTER_DROP".into(),
        location: "nft_do_chain".into(),
        ethertype: 0x0800,
        protocol: 6,
        packets,
        bytes: 40 * packets,
        samples: vec![Sample { header, length: 40, ..Sample::default() }],
        ..DropGroup::default()
    }
}
