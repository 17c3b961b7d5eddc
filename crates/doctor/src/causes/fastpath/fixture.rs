//! Evidence of a gateway with a fast path.

use crate::evidence::{
    Delta, Evidence, EvidenceSource, FastPath, FastPathProcess, Interface, Namespace, Sight,
};

/// Ten seconds of a gateway that carries nine of ten packets, and has no fault.
pub(super) fn healthy() -> FastPath {
    let counts =
        |list: &[(&str, u64)]| list.iter().map(|(n, v)| ((*n).to_owned(), (7, 7 + v).into())).collect();
    FastPath {
        process: FastPathProcess::Answers { pid: 31 },
        interfaces: vec!["inside".into(), "outside".into()],
        room: 131_072,
        directions: 2000,
        learnt_anew: Delta { before: 3, after: 4 },
        changes: counts(&[("routes", 1)]),
        packets: counts(&[("carried", 90_000), ("unknown", 8000), ("control", 1500), ("stale", 500)]),
        attempts: counts(&[("learnt", 900), ("not-established", 40), ("no-room", 2)]),
        ..FastPath::default()
    }
}

/// A host with that fast path.
pub(super) fn host(fastpath: FastPath) -> Evidence {
    let counted = |name: &str, index, packets: u64| Interface {
        index,
        name: name.into(),
        up: true,
        counters: [("rx_packets", packets), ("tx_packets", packets)]
            .map(|(name, packets)| (name.to_owned(), Delta { before: 5, after: 5 + packets }))
            .into(),
        ..Interface::default()
    };
    let namespace = Namespace {
        id: 5,
        name: "host".into(),
        own: true,
        interfaces: vec![
            counted("lo", 1, 900_000),
            counted("inside", 2, 50_000),
            counted("outside", 3, 50_000),
        ],
        fastpath: Some(fastpath),
        ..Namespace::default()
    };
    Evidence {
        window_s: 10.0,
        namespaces: vec![namespace],
        evidence_sources: EvidenceSource::ALL.map(|source| (source, Sight::Seen)).into(),
        ..Evidence::default()
    }
}

/// A count of so many in the window.
pub(super) fn count(name: &str, times: u64) -> (String, Delta) {
    (name.to_owned(), Delta { before: 9, after: 9 + times })
}
