//! Packets are lost between this host and the servers.

use super::{losses, recipes};
use crate::causes::{Cause, EvidenceView, Group};
use crate::finding::Finding;

pub(super) const CAUSE: Cause = Cause {
    id: "transit-loss-behind",
    title: "packets are lost behind this host, on the side of the servers",
    about: "This host forwards the packets, and another host on the way to the servers loses them. A segment that passed here \
            and comes again was lost behind this host; a gap in the segments of a server, which a later copy fills, was lost \
            before it came here. The doctor watches the connections that pass and counts both, by the network of the servers. \
            Its own counters cannot show this: for them every packet went out.",
    must: &[
        "at least half a per cent of the TCP segments that passed, and 20 of them, were lost between this host and a network of \
         servers",
        "this machine lost less than half as many segments itself",
    ],
    should: &["the lower end of the 95 % interval is at least half a per cent"],
    must_not: &[
        "round trips to there show a queue",
        "only long segments are lost",
        "losses keep what arrives to one rate (transit-policing)",
    ],
    lookalikes: &[
        ("transit-loss-before", "the same on the side of the clients"),
        ("transit-policing", "the loss keeps what arrives to one rate"),
        ("transit-queue", "the loss is that of a full queue: round trips grow with it"),
        ("transit-mtu", "only long segments are lost, and all of those"),
        ("not-on-this-host", "connections of this host itself lose packets; it has no side then"),
    ],
    yields_to: super::HERE,
    remedy: "Measure the path from this host to the network (`mtr` with TCP to the port in question), look at the counters of \
             the next switch or router, and tell its operator the network, the direction and the share. This host needs no \
             change.",
    sources: &[
        "RFC 9293 (TCP), RFC 2883 (DSACK), RFC 3522 (Eifel); crates/flows/src/bpf/judge.h",
        "Mathis, Semke, Mahdavi, Ott: The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm (1997)",
    ],
    recipes: recipes::loss_behind,
    ..Cause::of(Group::Transit, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    losses::findings(view, CAUSE.id, true)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{dropped, host, network};
    use super::*;
    use crate::evidence::{Evidence, EvidenceSource, Repeated, Sight, TransitNetwork};
    use crate::finding::{Confidence, Severity};

    fn lossy() -> TransitNetwork {
        let lost_to = Repeated { lost: 200, of: 10_000, low: 0.017, high: 0.023 };
        TransitNetwork { lost_to, ..network(true) }
    }

    fn found(evidence: &Evidence) -> Vec<Finding> {
        examine(&EvidenceView::of(evidence))
    }

    #[test]
    fn the_network_its_direction_and_its_share_are_named() {
        let found = &found(&host(vec![lossy(), network(true)]))[0];
        assert_eq!((found.severity, found.confidence), (Severity::Critical, Confidence::High));
        assert_eq!((found.object.as_str(), found.impact), ("198.19.0.0/24", 0.02));
        assert!(found.summary.contains("on the way there: 200 of 10000"), "{}", found.summary);
        assert!(found.summary.contains("2.0 % [1.7, 2.3]"), "{}", found.summary);
        let back = TransitNetwork { lost_from: lossy().lost_to, ..network(true) };
        let back = &super::examine(&EvidenceView::of(&host(vec![back])))[0];
        assert!(back.summary.contains("on the way here: 200 of 10000"), "{}", back.summary);
    }

    #[test]
    fn many_networks_behind_one_interface_are_one_finding() {
        let other = TransitNetwork { network: "203.0.113.0/24".into(), ..lossy() };
        let found = found(&host(vec![lossy(), other, network(true)]));
        assert_eq!((found.len(), found[0].object.as_str()), (1, "2 of 3 networks behind outside"));
        assert!(found[0].summary.contains("400 of 20000"), "{}", found[0].summary);
    }

    #[test]
    fn little_loss_a_loss_here_and_the_other_side_are_not() {
        let few = Repeated { lost: 200, of: 100_000, low: 0.0017, high: 0.0023 };
        assert_eq!(found(&host(vec![TransitNetwork { lost_to: few, ..network(true) }])), []);
        let rare = Repeated { lost: 9, of: 100, low: 0.04, high: 0.2 };
        assert_eq!(found(&host(vec![TransitNetwork { lost_to: rare, ..network(true) }])), []);
        assert_eq!(found(&host(vec![TransitNetwork { servers: false, ..lossy() }])), []);
        let mut own = host(vec![lossy()]);
        own.drops.push(dropped(0x10, 150));
        assert_eq!(found(&own), []);
        // SYNs of a scan that the firewall drops are no lost segments.
        let mut scan = host(vec![lossy()]);
        scan.drops.push(dropped(0x02, 5000));
        assert_eq!(found(&scan).len(), 1);
    }

    #[test]
    fn without_sight_of_drops_it_is_less_sure() {
        let mut blind = host(vec![lossy()]);
        blind.evidence_sources.insert(EvidenceSource::Drops, Sight::Blind("no BTF".into()));
        assert_eq!(found(&blind)[0].confidence, Confidence::Low);
    }

    #[test]
    fn a_gateway_says_where_instead_of_elsewhere() {
        let mut evidence = host(vec![lossy()]);
        for (name, value) in [("tcp.OutSegs", 10_000), ("tcp.RetransSegs", 200)] {
            evidence.namespaces[0].counters.insert(name.into(), (0, value).into());
        }
        fn causes(evidence: &Evidence) -> Vec<String> {
            crate::diagnosis::diagnose(evidence).findings.into_iter().map(|f| f.cause).collect()
        }
        assert_eq!(causes(&evidence), ["transit-loss-behind"]);
        evidence.namespaces[0].transit = None;
        assert_eq!(causes(&evidence), ["not-on-this-host"]);
    }
}
