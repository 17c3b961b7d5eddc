//! A rule refuses packets, and tells the sender.

use super::attribution::{DropAttribution, Matter};
use super::commands::fixes;
use super::nft_rule_drop::{gateway, iptables};
use super::report::{example, findings, keeper, service};
use crate::causes::{Cause, EvidenceView, Group};
use crate::finding::Finding;
use crate::recipe::{Recipe, TcpMode, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "rule-reject",
    title: "a rule refuses packets",
    about: "A rule with the verdict reject drops packets and answers the sender with an ICMP message or a TCP reset. To \
            the client it looks as if the server refused (\"connection refused\", \"no route to host\"), at once and not \
            after a time-out. People then look for the fault on the server, though the gateway refused.",
    must: &["a rule with the verdict reject whose counter moved, or that the dropped packets match"],
    should: &["Icmp.OutDestUnreachs of the same host grows"],
    must_not: &["the sender hears nothing: that is a drop"],
    lookalikes: &[
        ("nft-rule-drop", "the sender gets no error, and the client waits"),
        ("no-listener", "the refusal is the host's own: no rule matches, and the reason is NO_SOCKET"),
        ("no-route", "the ICMP message is the router's own"),
    ],
    remedy: "Look at the rule. If it should not meet these packets, put a rule before it that accepts them, or delete it.",
    sources: &["net/ipv4/netfilter/nf_reject_ipv4.c", "nft(8), reject statement"],
    recipes,
    ..Cause::of(Group::Firewall, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    findings(view, CAUSE.id, Matter::Reject, tell)
}

fn tell(attribution: &DropAttribution<'_>, finding: &mut Finding) {
    finding.summary = format!(
        "A rule of {} refused {} packets{}, and sent errors to their senders: {}.",
        keeper(attribution),
        attribution.packets,
        service(attribution),
        attribution.rule.map(|r| r.text.as_str()).unwrap_or_default(),
    );
    for name in ["icmp.OutDestUnreachs", "icmp6.OutDestUnreachs"] {
        finding.grew(attribution.namespace, name, "ICMP errors were sent");
    }
    finding.not.push("not the server: the answer is made here, before the packets get there".into());
    finding.fixes = fixes(attribution, example(attribution));
}

fn recipes() -> Vec<Recipe> {
    let traffic = || {
        let server = |port| Traffic::TcpServer { port, backlog: 128, mode: TcpMode::Echo };
        let client =
            |port| Traffic::Connects { to: format!("198.19.0.2:{port}"), rate: 100, bytes: 64, hold: false };
        vec![server(7001), client(7001), server(7002), client(7002)]
    };
    let nft = "nft 'add table inet f; add chain inet f forward { type filter hook forward priority 0; }'\n\
               nft 'add rule inet f forward tcp dport 7002 reject'";
    vec![
        Recipe { setup: gateway(nft), traffic: traffic(), ..Recipe::default() },
        iptables("iptables-nft -A FORWARD -p tcp --dport 7002 -j REJECT --reject-with tcp-reset", traffic()),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Firewall, segment};
    use super::*;
    use crate::evidence::Delta;
    use crate::finding::Severity;

    #[test]
    fn a_refusal_is_told_from_a_drop() {
        let samples =
            || (0..8).map(|n| segment(&format!("198.18.0.2:{}", 9000 + n), "198.19.0.2:80", 2)).collect();
        let mut firewall =
            Firewall::new().rule("tcp dport 80 reject").dropped(300, samples()).blame(Some(0), 8);
        firewall.here().counters.insert("icmp.OutDestUnreachs".into(), Delta { before: 0, after: 290 });
        let found = examine(&EvidenceView::of(&firewall.evidence()));
        assert_eq!((found.len(), found[0].severity), (1, Severity::Warning));
        assert!(found[0].evidence.iter().any(|f| f.name.as_deref() == Some("icmp.OutDestUnreachs")));
        let drop = Firewall::new().rule("tcp dport 80 drop").dropped(300, samples()).blame(Some(0), 8);
        assert_eq!(examine(&EvidenceView::of(&drop.evidence())), []);
    }
}
