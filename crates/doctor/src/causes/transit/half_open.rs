//! Answers pass here, and do not reach those who asked.

use super::{recipes, signs};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace, TransitNetwork};
use crate::finding::{Confidence, Finding, Fix, Severity};

pub(super) const CAUSE: Cause = Cause {
    id: "transit-half-open",
    title: "the way back to the clients is broken beyond this host",
    about: "SYNs come from a network and are answered; the answers pass here, again and again, and the clients never go on: they do \
            not get them. Packets pass one way and not the other. A router between this host and the clients has no route for \
            their addresses, or sends them elsewhere, or a firewall there saw the SYN by another way and drops the answer.",
    must: &[
        "at least five connections whose SYN came here and whose answer passed here twice or more, without anything from the \
         client but SYNs",
        "at least as many as the connections of that network that went on",
        "this machine dropped less than half as many SYNs and answers",
    ],
    should: &["no connection of that network was set up"],
    must_not: &["the addresses are those of a flood of SYNs, which belong to no host"],
    lookalikes: &[
        ("transit-unanswered", "no answer passes here"),
        ("asymmetric-path", "this host sees one direction alone"),
        ("syn-backlog-full", "this host is the server, and SYNs fill its queue"),
    ],
    yields_to: super::HERE,
    remedy: "Follow the way from this host to the clients (`mtr` to one of them), and look at the routes and firewalls there. If \
             the clients do not exist, their addresses are forged: have SYN cookies on at the server.",
    sources: &["RFC 9293 section 3.5", "RFC 4987 (SYN flooding)"],
    recipes: recipes::half_open,
    ..Cause::of(Group::Transit, examine)
};

/// Fewer are what a client that went away looks like.
const FEW: u64 = 5;

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let here = signs::lost_here(view).opening;
    let mut findings = Vec::new();
    for namespace in view.namespaces() {
        for network in signs::networks(namespace) {
            let many = network.half_open >= FEW && network.half_open >= network.went_on;
            if many && !signs::explains(here, network.half_open) {
                findings.push(of(view, namespace, network));
            }
        }
    }
    findings
}

fn of(view: &EvidenceView<'_>, namespace: &Namespace, network: &TransitNetwork) -> Finding {
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = Severity::Warning;
    finding.confidence = if network.went_on == 0 { Confidence::High } else { Confidence::Medium };
    finding.object.clone_from(&network.network);
    finding.impact = network.half_open as f64 / (network.half_open + network.went_on).max(1) as f64;
    finding.summary = format!(
        "The way from this host to {} is broken, and the way back works: {} of its connections were answered again and again \
         and never went on, {} did.",
        network.network, network.half_open, network.went_on
    );
    let text = format!(
        "SYNs came by {}, their answers passed here twice or more, and no acknowledgement came",
        network.interface
    );
    finding.seen(EvidenceSource::Transit, text);
    finding.not.push("not on this machine: it dropped less than half as many SYNs and answers".into());
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops, EvidenceSource::Transit]);
    if finding.missing.contains(&EvidenceSource::Drops) {
        finding.confidence = Confidence::Low;
    }
    if let Some(address) = network.example {
        finding.fixes.push(Fix::look(
            "see where the way to the clients ends",
            [sh!("mtr -n -c 10 -r {}", address), sh!("ip route get {}", address)],
        ));
    }
    finding
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{host, network};
    use super::*;

    fn found(half_open: u64, went_on: u64) -> Vec<Finding> {
        let host = host(vec![TransitNetwork { half_open, went_on, ..network(false) }]);
        examine(&EvidenceView::of(&host))
    }

    #[test]
    fn answers_that_change_nothing_convict() {
        let found = &found(20, 0)[0];
        assert_eq!((found.object.as_str(), found.confidence), ("198.18.0.0/24", Confidence::High));
    }

    #[test]
    fn clients_that_went_away_do_not() {
        assert_eq!((found(4, 0), found(6, 200)), (vec![], vec![]));
    }
}
