//! IPsec policy refuses packets.

use weir_text::order;

use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{DropGroup, EvidenceSource, Namespace};
use crate::finding::{Confidence, Finding, Fix};
use crate::recipe::{LabHost, Recipe, Step, Traffic, UdpMode};

pub(super) const CAUSE: Cause = Cause {
    id: "ipsec-policy",
    title: "IPsec policy refuses packets",
    about: "A policy of IPsec (xfrm) defines which packets must be encrypted. The kernel drops packets that come in the \
            clear although they must not, that are encrypted in another way than agreed, or that have no key. A policy \
            with `action block` drops all packets that it matches. It happens after one side of a tunnel was restarted, \
            when the selectors of the two sides differ, or when NAT changes addresses before the policy sees them.",
    must: &["packets dropped as XFRM_POLICY, or a counter of /proc/net/xfrm_stat grows"],
    should: &[
        "the name of the counter says what is wrong (XfrmInNoPols, XfrmInTmplMismatch, XfrmOutNoStates, ...)",
    ],
    lookalikes: &[
        ("nft-rule-drop", "a rule: NETFILTER_DROP, and no counter of xfrm moves"),
        (
            "no-route",
            "a policy that blocks on the way out makes the route lookup fail; xfrm's counters tell them apart",
        ),
    ],
    remedy: "Compare the policies and states of both sides (`ip xfrm policy`, `ip -s xfrm state`) with the configuration \
             of the IPsec daemon, and let it negotiate again.",
    sources: &["net/xfrm/xfrm_policy.c: __xfrm_policy_check; Documentation/networking/xfrm_proc.rst"],
    recipes,
    ..Cause::of(Group::Sockets, |view| view.each(in_namespace))
};

/// IP protocols of encrypted and of authenticated packets (RFC 4303, RFC 4302).
const ESP: u8 = 50;
const AH: u8 = 51;

/// The meanings of the counters, without the prefix `Xfrm` that all share (Documentation/networking/xfrm_proc.rst).
const MEANINGS: [(&str, &str); 14] = [
    (
        "InNoStates",
        "no key for what came in: the other side uses one that this side does not have (any more)",
    ),
    ("InStateProtoError", "decryption failed: the keys differ"),
    ("InStateModeError", "tunnel mode on one side, transport mode on the other"),
    ("InStateSeqError", "sequence numbers outside the replay window: reordered, repeated, or too late"),
    ("InStateExpired", "the key has expired"),
    ("InStateMismatch", "the key is for other addresses (often UDP encapsulation on one side only)"),
    ("InTmplMismatch", "it came in the clear, or protected in another way than the policy wants"),
    ("InNoPols", "it came through IPsec, and no policy allows that"),
    ("InPolBlock", "a policy blocks it"),
    ("OutNoStates", "no key to send with yet"),
    ("OutPolBlock", "a policy blocks it on the way out"),
    ("OutStateExpired", "the key to send with has expired"),
    ("OutStateSeqError", "the sequence numbers of the key are used up"),
    ("FwdHdrError", "the forwarded packet cannot be parsed"),
];

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let is_encrypted = |d: &DropGroup| matches!(d.protocol, ESP | AH) && d.reason == "NOT_SPECIFIED";
    let taken = view.take(namespace, |d| d.reason == "XFRM_POLICY" || is_encrypted(d));
    let counters = namespace.counters.iter().filter(|(name, c)| name.starts_with("xfrm.") && c.change() > 0);
    let mut moved: Vec<_> = counters.collect();
    order::by_key(&mut moved, |(_, c)| std::cmp::Reverse(c.change()));
    let counted: u64 = moved.iter().map(|(_, c)| c.change()).sum();
    let lost = taken.packets.max(counted);
    if lost == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.claims = taken.claims.clone();
    // The two are read one after the other, and so differ a little; what is far more has no event.
    if counted > 2 * taken.packets {
        finding.claims.push(view.counted(namespace, "xfrm", counted - taken.packets));
    }
    finding.confidence = if moved.is_empty() { Confidence::Medium } else { Confidence::High };
    let meaning = |name: &str| {
        let name = name.trim_start_matches("xfrm.");
        MEANINGS.iter().find(|(n, _)| *n == name).map(|(_, words)| *words)
    };
    let why =
        moved.first().and_then(|(name, _)| meaning(name)).unwrap_or("the packets do not match the policy");
    finding.summary = format!("{lost} packets were refused by IPsec: {why}.");
    for (name, counter) in moved.iter().take(5) {
        let words = meaning(name).map(|w| format!(" ({w})")).unwrap_or_default();
        let text = format!("Xfrm{} by {}{words}", name.trim_start_matches("xfrm."), counter.change());
        finding.counter(EvidenceSource::Counters, name, **counter, text);
    }
    if !taken.is_empty() {
        finding.seen(
            EvidenceSource::Drops,
            format!("{} packets dropped as {}", taken.packets, taken.groups[0].reason),
        );
    }
    if let Some(t) = taken.example() {
        finding.object = format!("{} to {}", t.source, t.destination);
        finding.seen(EvidenceSource::Drops, format!("for example from {}", finding.object));
    }
    finding.not.push("not a rule of the firewall: those drop as NETFILTER_DROP".into());
    finding.fixes.push(Fix::look(
        "see the policies and keys, and what was refused",
        [sh!("ip xfrm policy"), sh!("ip -s xfrm state"), sh!("grep -v '\\b0$' /proc/net/xfrm_stat")],
    ));
    Some(finding)
}

fn recipes() -> Vec<Recipe> {
    let at = |place, name, policy: &str| Recipe {
        name,
        at: place,
        setup: vec![Step::Run(
            place,
            format!("ip xfrm policy add src 198.18.0.0/24 dst 198.19.0.0/24 {policy}"),
        )],
        traffic: Traffic::datagrams(7500, UdpMode::Echo, 200, 300, 4),
        ..Recipe::default()
    };
    vec![
        at(LabHost::Gateway, "default", "dir fwd action block"),
        // Packets that arrive in the clear should have come through a tunnel.
        at(LabHost::Responder, "clear", "dir in tmpl proto esp mode transport"),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{blind_to_drops, dropped, host, seen};
    use super::*;
    use crate::finding::{Claim, Severity};

    #[test]
    fn the_counter_says_what_is_wrong() {
        let counters = [("xfrm.InTmplMismatch", 300)];
        let drops = vec![dropped("XFRM_POLICY", "ip_forward", 17, 300)];
        let found = &(CAUSE.examine)(&EvidenceView::of(&seen(host(&counters), drops)))[0];
        assert_eq!(found.claims, [Claim::Drops { group: 0, packets: 300 }]);
        assert_eq!((found.severity, found.confidence), (Severity::Critical, Confidence::High));
        assert!(found.summary.contains("in the clear"), "{}", found.summary);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&blind_to_drops(host(&counters)))).len(), 1);
    }

    #[test]
    fn a_host_without_ipsec_has_none() {
        assert_eq!(
            (CAUSE.examine)(&EvidenceView::of(&seen(
                host(&[("ip.InDiscards", 5)]),
                vec![dropped("IP_INNOROUTES", "x", 6, 5)]
            ))),
            []
        );
    }
}
