//! A queue to a program is full, or no program listens.

use super::nft_rule_drop::{datagrams, gateway};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace, RuleVerdict};
use crate::finding::{Claim, Confidence, Finding, Fix};
use crate::recipe::Recipe;

pub(super) const CAUSE: Cause = Cause {
    id: "nfqueue-full",
    title: "packets wait for a program that does not take them",
    about: "A rule with the verdict queue (NFQUEUE) hands packets to a program, which decides for each whether it may \
            pass: intrusion prevention (Suricata, Snort), parental controls, security agents. If the program is slower \
            than the packets come, its queue fills, and the kernel drops further packets. If no program listens at all, \
            every packet is dropped, unless the rule says `bypass`.",
    must: &[
        "packets dropped in nf_queue, or the queue's own counters `queue_dropped` or `user_dropped` grow",
    ],
    should: &["a rule with the verdict queue"],
    lookalikes: &[("nft-rule-drop", "the rule itself drops, without asking a program")],
    remedy: "See whether the program runs. Spread over several queues (`queue to 0-3 fanout`), make the queue longer in the \
             program, and say `bypass` where packets may pass without it.",
    sources: &["net/netfilter/nf_queue.c: nf_queue", "net/netfilter/nfnetlink_queue.c: nfqnl_enqueue_packet"],
    recipes,
    ..Cause::of(Group::Firewall, |view| view.each(in_namespace))
};

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    const PLACES: &[&str] = &["nf_queue", "__nf_queue", "nf_reinject", "nfqnl_enqueue_packet", "nfqnl_flush"];
    let taken = view.take(namespace, |d| PLACES.contains(&d.location.as_str()));
    let counters = ["nfqueue.queue_dropped", "nfqueue.user_dropped"];
    let counted: u64 = counters.iter().map(|name| namespace.grew(name)).sum();
    let lost = taken.packets.max(counted);
    if lost == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.claims = if taken.is_empty() {
        let claim = |name: &&str| {
            let grew = namespace.grew(name);
            (grew > 0).then(|| view.counted(namespace, name, grew))
        };
        counters.iter().filter_map(claim).collect::<Vec<Claim>>()
    } else {
        taken.claims.clone()
    };
    finding.confidence = if taken.is_empty() || counted == 0 { Confidence::Medium } else { Confidence::High };
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops, EvidenceSource::Rules]);
    let full = counted > 0;
    finding.summary = if full {
        format!("{lost} packets found no room in the queue to a program.")
    } else {
        format!("{lost} packets were to be handed to a program, and no program listens.")
    };
    if !taken.is_empty() {
        let text = format!("{} packets dropped in {}()", taken.packets, taken.groups[0].location);
        finding.seen(EvidenceSource::Drops, text);
    }
    for name in counters {
        finding.grew(namespace, name, "more");
    }
    let rules = namespace.rules.iter().flat_map(|r| &r.rules);
    for rule in rules.filter(|r| r.verdict == RuleVerdict::Queue).take(5) {
        let place = format!("{} {} {} handle {}", rule.family, rule.table, rule.chain, rule.handle);
        finding.seen(EvidenceSource::Rules, format!("rule {place}: {}", rule.text));
        if finding.object.is_empty() {
            finding.object = format!("rule {place}");
        }
    }
    finding.fixes.push(Fix::new(
        "see the queues, and which process serves them",
        "none, it only shows; the second column is the port of the process",
        [sh!("cat /proc/net/netfilter/nfnetlink_queue")],
        [],
    ));
    finding.fixes.push(Fix::new(
        "start the program if none serves the queue; a program that cannot keep up needs more queues",
        "packets then go where the program sends them",
        [sh!("systemctl start NAME_OF_THE_PROGRAM")],
        [sh!("systemctl stop NAME_OF_THE_PROGRAM")],
    ));
    Some(finding)
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        name: "no-reader",
        setup: gateway("iptables-nft -A FORWARD -p udp --dport 7002 -j NFQUEUE --queue-num 5"),
        traffic: [datagrams(7001, 4), datagrams(7002, 4)].concat(),
        needs: vec!["iptables-nft"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Firewall, udp};
    use super::*;
    use crate::evidence::Delta;

    #[test]
    fn a_queue_without_a_reader_is_told_from_a_full_one() {
        let samples = || vec![udp("198.18.0.2:5", "198.19.0.2:7002")];
        let none = Firewall::new().dropped(300, samples()).at("nf_queue");
        let found = (CAUSE.examine)(&EvidenceView::of(&none.evidence()));
        assert!(found[0].summary.contains("no program listens"));
        let mut full = Firewall::new().blind();
        full.here().counters.insert("nfqueue.queue_dropped".into(), Delta { before: 1, after: 41 });
        let found = (CAUSE.examine)(&EvidenceView::of(&full.evidence()));
        assert!(matches!(found[0].claims[..], [Claim::Counter { packets: 40, .. }]));
        assert!(found[0].summary.contains("40 packets found no room"));
    }

    #[test]
    fn what_rules_drop_is_not_its() {
        let firewall = Firewall::new().dropped(300, vec![udp("198.18.0.2:5", "198.19.0.2:7002")]);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&firewall.evidence())), []);
    }
}
