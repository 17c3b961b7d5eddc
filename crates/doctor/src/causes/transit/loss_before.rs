//! Packets are lost between the clients and this host.

use super::{losses, recipes};
use crate::causes::{Cause, EvidenceView, Group};
use crate::finding::Finding;

pub(super) const CAUSE: Cause = Cause {
    id: "transit-loss-before",
    title: "packets are lost before this host, on the side of the clients",
    about: "Packets of connections that this host forwards are lost between the clients and this host, in either direction: on \
            a radio link, a bad cable, a switch, another router. A gap in the segments of a client that a later copy fills was \
            lost before this host; a segment of a server that passed here and comes again was lost on the way to the client.",
    must: &[
        "at least half a per cent of the TCP segments that passed, and 20 of them, were lost between a network of clients and \
         this host",
        "this machine lost less than half as many segments itself",
    ],
    should: &["the lower end of the 95 % interval is at least half a per cent"],
    must_not: &[
        "round trips to there show a queue",
        "only long segments are lost",
        "losses keep what arrives to one rate (transit-policing)",
    ],
    lookalikes: &[
        ("transit-loss-behind", "the same on the side of the servers"),
        ("ring-overflow", "this host's own card loses what comes in: its counters grow"),
        ("transit-policing", "the loss keeps what arrives to one rate"),
        ("transit-queue", "the loss is that of a full queue: round trips grow with it"),
    ],
    yields_to: super::HERE,
    remedy: "Look at the link and the counters of the hosts between the clients of that network and this host. This host needs \
             no change.",
    sources: &["RFC 9293 (TCP), RFC 2883 (DSACK), RFC 3522 (Eifel); crates/flows/src/bpf/judge.h"],
    recipes: recipes::loss_before,
    ..Cause::of(Group::Transit, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    losses::findings(view, CAUSE.id, false)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{host, network};
    use super::*;
    use crate::evidence::{Repeated, TransitNetwork};

    #[test]
    fn only_networks_of_clients_count() {
        let lost_from = Repeated { lost: 200, of: 10_000, low: 0.017, high: 0.023 };
        let clients = TransitNetwork { lost_from, ..network(false) };
        let servers = TransitNetwork { lost_from, ..network(true) };
        let found = examine(&EvidenceView::of(&host(vec![clients, servers])));
        assert_eq!((found.len(), found[0].object.as_str()), (1, "198.18.0.0/24"));
        assert!(found[0].summary.contains("this host's inside"), "{}", found[0].summary);
    }
}
