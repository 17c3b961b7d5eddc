//! Connections that pass here are reset by the far side.

use super::{recipes, signs};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace, TransitNetwork};
use crate::finding::{Confidence, Finding, Fix, Severity};

pub(super) const CAUSE: Cause = Cause {
    id: "transit-resets",
    title: "connections that pass here are reset beyond this host",
    about: "A reset that comes from the side of the servers ends connections on which data had passed: a load balancer or a \
            firewall that has forgotten them, a service that is restarted or overloaded, a filter that forges resets. To the \
            client it looks as if this host had done it.",
    must: &[
        "at least ten connections, and a fifth of those of a network of servers, were reset from there after data had passed",
    ],
    should: &["they are half of its connections"],
    must_not: &["this host sends resets for packets that it takes for INVALID (conntrack-invalid-reset)"],
    lookalikes: &[
        ("conntrack-invalid-reset", "the resets are made here"),
        ("transit-unanswered", "no answer at all"),
        ("rule-reject", "a rule of this host refuses"),
    ],
    yields_to: &["conntrack-invalid-reset", "rule-reject"],
    remedy: "Look at the servers and at what stands before them: logs of the load balancer, its idle time-out against that of the \
             clients' keepalives, restarts of the service. A capture on this host shows by the TTL of the reset whether the server \
             or another host on the way sent it.",
    sources: &["RFC 9293 section 3.5.2", "RFC 5382 section 5 (idle time-outs of NATs)"],
    recipes: recipes::resets,
    ..Cause::of(Group::Transit, examine)
};

/// Servers that end a connection by a reset now and then are usual.
const FEW: u64 = 10;
const SHARE: f64 = 0.2;
const HALF: f64 = 0.5;

fn share(network: &TransitNetwork) -> f64 {
    network.aborted as f64 / network.flows.max(1) as f64
}

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let all = view.namespaces().flat_map(|n| signs::networks(n).map(move |network| (n, network)));
    let is_one =
        |network: &TransitNetwork| network.servers && network.aborted >= FEW && share(network) >= SHARE;
    all.filter(|(_, network)| is_one(network)).map(|(n, network)| of(view, n, network)).collect()
}

fn of(view: &EvidenceView<'_>, namespace: &Namespace, network: &TransitNetwork) -> Finding {
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    // Some protocols end that way on purpose, without harm.
    finding.severity = if share(network) >= HALF { Severity::Warning } else { Severity::Note };
    finding.confidence = Confidence::Medium;
    finding.object.clone_from(&network.network);
    finding.impact = share(network);
    finding.summary = format!(
        "{} resets connections that pass here: {} of {} after data had passed.",
        network.network, network.aborted, network.flows
    );
    let text = format!("the resets came by {}; {} more refused a SYN", network.interface, network.refused);
    finding.seen(EvidenceSource::Transit, text);
    finding.not.push("not made here: they came in by an interface".into());
    finding.missing = view.missing(namespace, &[EvidenceSource::Transit]);
    finding.fixes.push(Fix::look(
        "see the TTL of the resets beside that of the servers' other packets",
        [sh!("tcpdump -nvi {} -c 40 'tcp[13] & 4 != 0'", network.interface)],
    ));
    finding
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{host, network};
    use super::*;

    fn found(aborted: u64, flows: u64, servers: bool) -> Vec<Severity> {
        let host = host(vec![TransitNetwork { aborted, flows, ..network(servers) }]);
        examine(&EvidenceView::of(&host)).iter().map(|f| f.severity).collect()
    }

    #[test]
    fn servers_that_reset_most_connections_are_named() {
        assert_eq!(found(30, 40, true), [Severity::Warning]);
        assert_eq!(found(12, 40, true), [Severity::Note]);
        assert_eq!((found(9, 9, true), found(30, 400, true), found(30, 40, false)), (vec![], vec![], vec![]));
    }
}
