//! SYNs that pass here are not answered.

use super::{recipes, signs};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace, SilentPort, TransitNetwork};
use crate::finding::{Confidence, Finding, Fix, Severity};

pub(super) const CAUSE: Cause = Cause {
    id: "transit-unanswered",
    title: "connection attempts that pass here are not answered",
    about: "SYNs pass here, and nothing comes back: no answer, no reset. Beyond this host they are dropped (by a firewall, a \
            security group, an access list), the server is down, or it has no route back, so that its answers go elsewhere. To \
            the clients the connection just hangs, for a minute and more.",
    must: &[
        "one address and port left at least five connection attempts without an answer for a second, and at least half of those \
         that it was asked for",
        "this machine dropped less than half as many SYNs and answers",
    ],
    should: &["it answered none at all"],
    must_not: &["the attempts go to many ports, as those of a scan do"],
    lookalikes: &[
        ("transit-half-open", "answers come and do not reach the client"),
        ("transit-resets", "the far side refuses"),
        ("nft-rule-drop", "a rule of this host drops the SYNs"),
        ("neighbour-unresolved", "the server is on a link of this host, and is not there"),
    ],
    yields_to: super::HERE,
    remedy: "Try the port from this host itself (`nc -vz`): if that works, the server has no way back to the clients' addresses, \
             or a firewall there does not know them. Otherwise look at the server and at the firewalls before it.",
    sources: &["RFC 9293 section 3.5", "RFC 6298 section 2 (the first time-out is one second)"],
    recipes: recipes::unanswered,
    ..Cause::of(Group::Transit, examine)
};

/// Fewer are what a client's mistake looks like.
const FEW: u64 = 5;
/// Share of the attempts.
const SHARE: f64 = 0.5;

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let here = signs::lost_here(view).opening;
    let mut findings = Vec::new();
    for namespace in view.namespaces() {
        for network in signs::networks(namespace) {
            let Some(silent) = network.silent.filter(is_silent) else { continue };
            if !signs::explains(here, silent.unanswered) {
                findings.push(of(view, namespace, network, &silent));
            }
        }
    }
    findings
}

fn share(silent: &SilentPort) -> f64 {
    silent.unanswered as f64 / silent.attempts.max(1) as f64
}

fn is_silent(silent: &SilentPort) -> bool {
    silent.unanswered >= FEW && share(silent) >= SHARE
}

fn of(
    view: &EvidenceView<'_>,
    namespace: &Namespace,
    network: &TransitNetwork,
    silent: &SilentPort,
) -> Finding {
    let all = signs::networks(namespace).map(|n| n.attempts).sum::<u64>().max(silent.attempts);
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = Severity::Warning;
    finding.confidence =
        if silent.unanswered == silent.attempts { Confidence::High } else { Confidence::Medium };
    finding.object = std::net::SocketAddr::new(silent.address, silent.port).to_string();
    finding.impact = silent.unanswered as f64 / all.max(1) as f64;
    finding.summary = format!(
        "{} does not answer: {} of {} connections that clients asked for through this host had no answer for a second.",
        finding.object, silent.unanswered, silent.attempts
    );
    let text = format!(
        "{} of {} attempts to {} were not answered",
        network.unanswered, network.attempts, network.network
    );
    finding.seen(EvidenceSource::Transit, text);
    finding.not.push("not on this machine: it dropped less than half as many SYNs and answers".into());
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops, EvidenceSource::Transit]);
    if finding.missing.contains(&EvidenceSource::Drops) {
        finding.confidence = Confidence::Low;
    }
    finding.fixes.push(Fix::look(
        "see where the way ends, and whether answers come by another interface",
        [
            sh!("mtr -n -T -P {} -c 10 -r {}", silent.port, silent.address),
            sh!("tcpdump -ni any -c 20 host {}", silent.address),
        ],
    ));
    finding
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{dropped, host, network};
    use super::*;

    fn silent(unanswered: u64, attempts: u64) -> crate::evidence::Evidence {
        let silent = SilentPort { address: "198.19.0.2".parse().unwrap(), port: 443, unanswered, attempts };
        host(vec![TransitNetwork { silent: Some(silent), unanswered, attempts, ..network(true) }])
    }

    fn found(evidence: &crate::evidence::Evidence) -> Vec<Finding> {
        examine(&EvidenceView::of(evidence))
    }

    #[test]
    fn a_port_that_answers_none_convicts() {
        let found = &found(&silent(20, 20))[0];
        assert_eq!((found.object.as_str(), found.confidence), ("198.19.0.2:443", Confidence::High));
        assert_eq!((found.severity, found.impact), (Severity::Warning, 1.0));
    }

    #[test]
    fn a_few_a_scan_and_a_firewall_here_do_not() {
        assert_eq!(found(&silent(4, 4)), []);
        assert_eq!(found(&silent(5, 400)), []);
        let mut own = silent(20, 20);
        own.drops.push(dropped(0x02, 40));
        assert_eq!(found(&own), []);
        let mut full = silent(20, 20);
        full.namespaces[0].counters.insert("tcpext.ListenDrops".into(), (0, 40).into());
        assert_eq!(found(&full), [], "a listener on this machine");
        // Segments of other connections are no SYNs.
        let mut others = silent(20, 20);
        others.drops.push(dropped(0x18, 40));
        assert_eq!(found(&others).len(), 1);
    }
}
