//! A BPF program of a control group, a security module, or a filter on a socket refuses packets.

use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{DropGroup, EvidenceSource, Namespace};
use crate::finding::{Confidence, Finding, Fix};

pub(super) const CAUSE: Cause = Cause {
    id: "cgroup-bpf-drop",
    title: "a BPF program or a security module refuses packets of a socket",
    about: "A control group may have BPF programs that see every packet of its sockets: systemd attaches them for \
            IPAddressDeny= and IPAddressAllow=, container managers for their policies. Security modules (SELinux, \
            AppArmor, Smack) may refuse packets as well, and so may a filter that a program put on its own socket. None of \
            it is in any rule set, and the firewall's counters do not move.",
    must: &[
        "packets dropped as BPF_CGROUP_EGRESS, SECURITY_HOOK or, on their way to a socket, SOCKET_FILTER",
    ],
    should: &["only programs of one unit or container are concerned"],
    must_not: &["a rule's counter moves with them"],
    lookalikes: &[
        ("nft-rule-drop", "a rule: NETFILTER_DROP in nft_do_chain"),
        ("tc-drop", "a program on the interface: TC_INGRESS or TC_EGRESS"),
    ],
    remedy: "Find the unit or container of the socket, and its policy: IPAddressDeny= of systemd, or `bpftool cgroup tree`.",
    sources: &[
        "kernel/bpf/cgroup.c: __cgroup_bpf_run_filter_skb; net/ipv4/ip_output.c: ip_finish_output; net/core/filter.c: sk_filter_trim_cap",
        "systemd.resource-control(5): IPAddressAllow=, IPAddressDeny=",
    ],
    not_injected: Some(
        "such a program hangs on a control group, and a lab is network namespaces and has none of its own",
    ),
    ..Cause::of(Group::Sockets, examine)
};

/// The meaning of each reason, and the confidence in it if it may mean several things.
const REASONS: [(&str, &str, Confidence); 3] = [
    ("BPF_CGROUP_EGRESS", "a BPF program of the sender's control group refused them", Confidence::High),
    ("SECURITY_HOOK", "a security module (SELinux, AppArmor, Smack) refused them", Confidence::High),
    (
        "SOCKET_FILTER",
        "a BPF program of the receiver's control group, or a filter on its socket, refused them",
        Confidence::Medium,
    ),
];

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let each = |namespace| {
        REASONS.iter().filter_map(move |(reason, words, c)| by(view, namespace, reason, words, *c))
    };
    view.namespaces().flat_map(each).collect()
}

fn by(
    view: &EvidenceView<'_>,
    namespace: &Namespace,
    reason: &str,
    words: &str,
    confidence: Confidence,
) -> Option<Finding> {
    // Raw and packet sockets get copies, and filters are how they choose among them.
    let mine = |d: &DropGroup| {
        d.reason == reason && (reason != "SOCKET_FILTER" || matches!(d.protocol, 6 | 17 | 132 | 136))
    };
    let taken = view.take(namespace, mine);
    if taken.is_empty() {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, taken.packets);
    finding.claims = taken.claims.clone();
    finding.confidence = confidence;
    finding.summary = format!("{} packets were lost: {words}.", taken.packets);
    finding.object = reason.to_owned();
    finding.seen(EvidenceSource::Drops, format!("{} packets dropped as {reason}", taken.packets));
    finding.evidence.extend(taken.example_as_fact());
    finding.not.push("not a rule: those drop as NETFILTER_DROP".into());
    let commands = match reason {
        "SECURITY_HOOK" => {
            vec![sh!("dmesg | grep -iE 'avc:|apparmor'"), sh!("ausearch -m avc -ts recent")]
        }
        _ => vec![
            sh!("bpftool cgroup tree"),
            sh!("systemctl show -p Id -p IPAddressDeny -p IPAddressAllow '*.service'"),
        ],
    };
    finding.fixes.push(Fix::look("find whose policy it is", commands));
    Some(finding)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{dropped, host, packet, seen};
    use super::*;

    #[test]
    fn each_reason_is_told_with_an_example() {
        let mut refused = dropped("BPF_CGROUP_EGRESS", "ip_finish_output", 17, 300);
        refused.samples = vec![packet(17, "198.18.0.1:5000", "198.19.0.2:53", 0)];
        let found =
            examine(&EvidenceView::of(&seen(host(&[]), vec![refused, dropped("SOCKET_FILTER", "x", 6, 40)])));
        let told: Vec<_> = found.iter().map(|f| (f.object.as_str(), f.confidence)).collect();
        assert_eq!(told, [("BPF_CGROUP_EGRESS", Confidence::High), ("SOCKET_FILTER", Confidence::Medium)]);
        assert!(found[0].evidence[1].text.contains("198.19.0.2 port 53"));
    }

    #[test]
    fn filters_of_raw_sockets_and_rules_are_not() {
        let drops = vec![
            dropped("SOCKET_FILTER", "raw_rcv", 1, 500),
            dropped("NETFILTER_DROP", "nft_do_chain", 6, 9),
        ];
        assert_eq!(examine(&EvidenceView::of(&seen(host(&[]), drops))), []);
    }
}
