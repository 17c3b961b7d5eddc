//! A rule drops packets that connection tracking marks INVALID.

use weir_text::order;
use weir_wire::Tcp;

use super::packet::{self, Step as Does};
use super::refused::{Refused, fact, nearly_all};
use super::relief;
use crate::causes::{Cause, EvidenceView, Group, is_noise};
use crate::command::{nft, sh};
use crate::evidence::{Backend, DropGroup, EvidenceSource, Namespace, Rule, RuleVerdict, Sample};
use crate::finding::{Claim, Confidence, Fact, Finding, Fix, Severity};
use crate::recipe::{LabHost, Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "conntrack-invalid-dropped",
    title: "packets of state INVALID dropped by a rule",
    about: "Connection tracking marks a packet INVALID if it fits no known connection: an answer whose request took \
            another path, a segment outside the tracked window, or a packet from the middle of a forgotten connection. \
            Most rule sets contain the rule `ct state invalid drop`, which drops such packets. The rule is right for \
            forged packets, and wrong for asymmetric routing or after the table was lost.\n\n\
            A few such packets are normal: late FINs and RSTs of connections that are over.",
    must: &[
        "a rule that matches `ct state invalid` dropped packets",
        "conntrack `invalid` grows by about as much",
    ],
    should: &["the packets are in the middle of connections, or answers to their opening"],
    must_not: &["only FINs and RSTs"],
    lookalikes: &[
        ("nft-rule-drop", "there the rule asks for something else, and `invalid` does not grow with it"),
        ("conntrack-checksum", "there the packets are damaged"),
        ("conntrack-invalid-reset", "there no rule drops them, and this host answers with resets"),
    ],
    yields_to: &["conntrack-checksum", "conntrack-zone-split", "asymmetric-path"],
    remedy: "Let both directions of a connection pass the same host. If they cannot, do not track that traffic, or make \
             connection tracking liberal about windows.",
    sources: &[
        "net/netfilter/nf_conntrack_proto_tcp.c: tcp_in_window, nf_conntrack_tcp_packet",
        "Documentation/networking/nf_conntrack-sysctl.rst: tcp_be_liberal, tcp_loose",
    ],
    recipes,
    ..Cause::of(Group::Conntrack, |view| view.each(in_namespace))
};

/// Drops that the rules for INVALID packets made.
#[derive(Default)]
struct Made<'a> {
    claims: Vec<Claim>,
    packets: u64,
    groups: Vec<&'a DropGroup>,
    rule: Option<&'a Rule>,
    /// True if the rule's own counter, or the samples, identified the rule.
    sure: bool,
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let invalid = Refused::of(namespace).invalid;
    let made = made(view, namespace, invalid)?;
    let lost = made.packets;
    let what = Contents::of(&made.groups);
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    if what.is_only_ends() {
        finding.severity = Severity::Note;
    }
    let rule = made.rule?;
    finding.claims = made.claims;
    finding.confidence = if made.sure { Confidence::High } else { Confidence::Medium };
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops, EvidenceSource::Connections]);
    finding.object = format!("{} {} {}: {}", rule.family, rule.table, rule.chain, rule.text);
    finding.summary = format!(
        "A rule dropped {lost} packets that connection tracking marks INVALID{}.",
        what.words().map_or_else(String::new, |w| format!(": {w}"))
    );
    fact(&mut finding, namespace, "invalid", format!("{invalid} packets were INVALID"));
    let counter = rule
        .packets
        .map(|d| Fact::counter(EvidenceSource::Rules, "packets of the rule", d, rule.text.clone()));
    finding.evidence.extend(counter.or_else(|| Some(Fact::seen(EvidenceSource::Rules, rule.text.clone()))));
    let joined = joined(namespace, &made.groups);
    finding.evidence.extend(joined.words());
    finding.not.push("not a rule about addresses or ports: it asks for the state of the connection".into());
    finding.fixes = fixes(view, namespace, rule, &what, &joined);
    Some(finding)
}

/// Goes by what the rules said about the samples, or else by the rule's counter, or else by connection tracking's.
fn made<'a>(view: &EvidenceView<'a>, namespace: &'a Namespace, invalid: u64) -> Option<Made<'a>> {
    let rules = namespace.rules.as_ref()?;
    let throws = |r: &&Rule| r.invalid && matches!(r.verdict, RuleVerdict::Drop | RuleVerdict::Reject);
    let candidates: Vec<&Rule> = rules.rules.iter().filter(throws).collect();
    let counted: u64 = candidates.iter().filter_map(|r| r.packets).map(|d| d.change()).sum();
    let uncounted = candidates.iter().any(|r| r.packets.is_none());
    // Each packet may meet such a rule once, whatever it is counted as before.
    let most = if uncounted { invalid.max(counted) } else { counted };
    if candidates.is_empty() || invalid == 0 || most == 0 {
        return None;
    }
    let mut made = Made { rule: busiest(&candidates), sure: counted > 0, ..Made::default() };
    let mut left = most;
    for (group, drops) in view.evidence.drops.iter().enumerate() {
        if drops.namespace != namespace.id || is_noise(drops) || drops.reason != "NETFILTER_DROP" {
            continue;
        }
        let blamed =
            rules.blame.iter().filter(|b| b.group == group && b.rule.is_some_and(|r| rules.rules[r].invalid));
        let (sure, part) =
            blamed.fold((0, 0.0), |(s, p), b| (s + b.sure, p + b.share / b.asked.max(1) as f64));
        let asked = rules.blame.iter().any(|b| b.group == group);
        // If the rules were not checked against this group, they may have caused as many drops as they counted.
        let packets = if asked {
            (part.min(1.0) * drops.packets as f64).ceil() as u64
        } else {
            nearly_all(drops.packets, left)
        };
        if packets > 0 {
            left = left.saturating_sub(packets);
            made.sure |= sure > 0;
            made.packets += packets;
            made.claims.push(Claim::Drops { group, packets });
            made.groups.push(drops);
        }
    }
    if made.claims.is_empty() {
        // The visible drops had another cause.
        if view.sees_drops() {
            return None;
        }
        made.packets = most;
        made.claims.push(view.counted(namespace, "conntrack.invalid", most));
    }
    Some(made)
}

fn busiest<'a>(rules: &[&'a Rule]) -> Option<&'a Rule> {
    rules.iter().copied().max_by_key(|r| (r.packets.map_or(0, |d| d.change()), r.decided.0))
}

/// The kinds of packets, by their samples.
#[derive(Debug, Default)]
struct Contents {
    answers: u64,
    going_on: u64,
    ends: u64,
    other: u64,
}

impl Contents {
    fn of(groups: &[&DropGroup]) -> Self {
        let mut what = Contents::default();
        for sample in groups.iter().flat_map(|g| &g.samples) {
            match packet::step(sample) {
                Does::Answers => what.answers += 1,
                Does::GoesOn => what.going_on += 1,
                Does::Ends => what.ends += 1,
                Does::Opens | Does::Unknown => what.other += 1,
            }
        }
        what
    }

    /// Late packets of connections that are over: what every such rule sees.
    fn is_only_ends(&self) -> bool {
        self.ends > 0 && self.answers + self.going_on + self.other == 0
    }

    fn words(&self) -> Option<&'static str> {
        match self {
            c if c.answers > c.going_on + c.ends => {
                Some("answers to connections whose opening did not come through here (asymmetric routing)")
            }
            c if c.going_on > c.ends => Some("packets in the middle of connections"),
            c if c.ends > 0 => Some("mostly late FINs and RSTs"),
            _ => None,
        }
    }
}

/// Connections of the packets that are in the table, and those that are not.
#[derive(Debug, Default)]
struct Joined {
    known: u64,
    unknown: u64,
}

impl Joined {
    fn words(&self) -> Option<Fact> {
        let text = match (self.known, self.unknown) {
            (0, 0) => return None,
            (known, 0) => format!("all {known} connections asked about are in the table: windows do not fit"),
            (known, unknown) => {
                format!("of {} connections asked about, {unknown} are not in the table", known + unknown)
            }
        };
        Some(Fact::seen(EvidenceSource::Connections, text))
    }
}

fn joined(namespace: &Namespace, groups: &[&DropGroup]) -> Joined {
    let Some(table) = &namespace.connections else { return Joined::default() };
    let tuples = order::set(groups.iter().flat_map(|g| &g.samples).filter_map(Sample::tuple));
    let known = tuples.iter().filter(|t| table.joined.iter().any(|(j, _)| j == *t)).count() as u64;
    let unknown = tuples.iter().filter(|t| table.absent.contains(t)).count() as u64;
    Joined { known, unknown }
}

fn fixes(
    view: &EvidenceView<'_>,
    namespace: &Namespace,
    rule: &Rule,
    what: &Contents,
    joined: &Joined,
) -> Vec<Fix> {
    let set = |name: &str, value: u64, title: &str, why: &str, risk: &str| {
        relief::setting(view, namespace, &format!("net.netfilter.{name}"), value, why)
            .map(|s| Fix::set(title, risk, vec![s]))
    };
    let mut fixes = Vec::new();
    if joined.known > joined.unknown {
        fixes.extend(set(
            "nf_conntrack_tcp_be_liberal",
            1,
            "accept segments outside the window that connection tracking expects",
            "connections in the table are refused for their windows",
            "only resets are still checked against the window: less protection against forged segments",
        ));
    }
    if what.going_on > 0 {
        fixes.extend(set(
            "nf_conntrack_tcp_loose",
            1,
            "let connections be picked up in their middle",
            "packets in the middle of unknown connections are refused",
            "after a restart the host admits old connections as if they were new",
        ));
    }
    if what.answers > 0 || joined.unknown > 0 {
        fixes.push(Fix::new(
            "let both directions take the same path",
            "none, it only shows; change the routes of the hosts on both sides",
            [sh!("ip route get ADDRESS_OF_THE_CLIENT from ADDRESS_OF_THE_SERVER iif INTERFACE")],
            [],
        ));
    }
    if rule.backend == Backend::Nft {
        let (commands, undo) = nft::delete(rule);
        fixes.push(Fix::new("delete the rule (last resort)", "INVALID packets then meet the rules behind it; those that source NAT does not translate leave with \
                   their inside address", commands, undo));
    }
    fixes
}

/// Builds segments in the middle of connections that were never opened here.
fn strays(own: [u8; 6], peer: [u8; 6]) -> Vec<Vec<u8>> {
    let to = ([198, 19, 0, 2].into(), 7000);
    (0..50)
        .map(|n| {
            packet::frames::tcp((own, peer), ([198, 18, 0, 2].into(), 40_000 + n), to, Tcp::ACK | Tcp::PSH)
        })
        .collect()
}

const DROPS_INVALID: &str = "nft 'add table inet f; add chain inet f c { type filter hook forward priority 0; }; \
                             add rule inet f c ct state invalid counter drop'";

fn recipes() -> Vec<Recipe> {
    let drops = || Step::gateway(DROPS_INVALID);
    vec![
        Recipe {
            name: "asymmetric",
            setup: vec![
                drops(),
                // The gateway sees answers only, as if requests took another way.
                Step::gateway(
                    "nft 'add chain inet f raw { type filter hook prerouting priority raw; }; \
                     add rule inet f raw iifname inside notrack'",
                ),
            ],
            traffic: Traffic::connects("198.19.0.2:7000", 40, 64, false),
            also: vec!["asymmetric-path"],
            ..Recipe::default()
        },
        Recipe::named(
            "forgotten",
            vec![drops(), Step::gateway("sysctl -qw net.netfilter.nf_conntrack_tcp_loose=0")],
            vec![Traffic::Frames { from: LabHost::Initiator, rate: 200, frames: strays }],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::packet::tests::sampled;
    use super::super::refused::tests::{counted, evidence};
    use super::*;
    use crate::evidence::{Delta, Evidence, Ruleset};

    fn rule(invalid: bool, packets: Option<u64>) -> Rule {
        Rule {
            backend: Backend::Nft,
            family: "inet".into(),
            table: "f".into(),
            chain: "c".into(),
            handle: 4,
            position: 1,
            hooks: vec!["forward".into()],
            text: "ct state invalid drop".into(),
            comment: None,
            verdict: RuleVerdict::Drop,
            packets: packets.map(|n| Delta { before: 7, after: 7 + n }),
            invalid,
            limit: false,
            set: None,
            random: false,
            logs: false,
            decided: (0, 0),
        }
    }

    fn drops(packets: u64, flags: u8) -> DropGroup {
        let (from, to) = (([198, 18, 0, 2].into(), 4000), ([198, 19, 0, 2].into(), 80));
        DropGroup {
            namespace: 1,
            reason: "NETFILTER_DROP".into(),
            location: "nft_do_chain".into(),
            packets,
            samples: vec![sampled(&packet::frames::tcp(([2; 6], [4; 6]), from, to, flags))],
            ..DropGroup::default()
        }
    }

    fn seen(invalid: u64, rules: Vec<Rule>, drops: DropGroup) -> Evidence {
        let mut namespace = counted(&[("invalid", invalid)]);
        namespace.rules = Some(Ruleset { rules, ..Ruleset::default() });
        evidence(namespace, vec![drops])
    }

    #[test]
    fn a_rule_for_invalid_packets_takes_what_it_counted() {
        let evidence = seen(600, vec![rule(true, Some(600))], drops(900, Tcp::ACK));
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!(finding.claims, [Claim::Drops { group: 0, packets: 600 }]);
        assert_eq!((finding.severity, finding.confidence), (Severity::Critical, Confidence::High));
        assert!(finding.summary.contains("in the middle"), "{}", finding.summary);
    }

    /// Without a counter connection tracking's own says how many it can be.
    #[test]
    fn a_rule_without_a_counter_takes_no_more_than_was_invalid() {
        let evidence = seen(200, vec![rule(true, None)], drops(900, Tcp::SYN | Tcp::ACK));
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!(finding.claims, [Claim::Drops { group: 0, packets: 200 }]);
        assert!(finding.summary.contains("asymmetric"), "{}", finding.summary);
    }

    #[test]
    fn look_alikes_are_not_it() {
        // Another rule; a rule that met nothing; nothing INVALID.
        let other = seen(600, vec![rule(false, Some(600))], drops(600, Tcp::ACK));
        let silent = seen(600, vec![rule(true, Some(0))], drops(600, Tcp::ACK));
        let valid = seen(0, vec![rule(true, None)], drops(600, Tcp::ACK));
        for evidence in [other, silent, valid] {
            assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence)), []);
        }
    }

    #[test]
    fn late_ends_of_connections_are_no_more_than_a_note() {
        let evidence = seen(600, vec![rule(true, Some(600))], drops(600, Tcp::RST));
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!(finding.severity, Severity::Note);
    }
}
