//! Packets that the fast path must leave to the kernel, by a user's wish, by a rule, or since they leave by another interface.

use super::commands::weir;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, FastPath, Interface, Namespace};
use crate::finding::{Confidence, Fact, Finding, Fix, Severity};
use crate::recipe::{FastPathSetup, LabHost, Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "fastpath-excluded",
    title: "fast path must leave many packets to the kernel",
    about: "The fast path carries a flow only if it can do exactly what the kernel does with it. It leaves flows to the kernel that a \
            user excluded, that a helper of connection tracking must see, whose TTL or DSCP a rule changes, that are not tracked, \
            that come in with a VLAN tag or a mark, and that come in or leave by an interface without its programs: WireGuard, tun \
            and PPP have no Ethernet header, and ports of a bridge are used as that bridge. Nothing is lost. A host whose traffic \
            is mostly of that kind gains little from it.",
    must: &[
        "a quarter of the packets that came in, or more, were left to the kernel for one of these reasons",
    ],
    should: &["the exclusion, the rule or the interface is known"],
    lookalikes: &[
        ("fastpath-full", "there the flows may be carried, and find no entry"),
        ("fastpath-stale", "there they are carried until the next change"),
    ],
    yields_to: &["fastpath-full", "fastpath-stale", "fastpath-gone"],
    remedy: "If it is not on purpose: remove the exclusion (`weir fastpath exclude --remove`), have the rule change no packets of \
             established connections, or name the interface (`weir fastpath apply --interface`). `weir fastpath explain` tells the \
             reason for one flow.",
    sources: &["crates/fastpath/src/bpf/learn.h: judge, learn", "docs/guides/fastpath.md"],
    recipes,
    ..Cause::of(Group::FastPath, examine)
};

/// Share of the packets that came in.
const SHARE: f64 = 0.25;
/// Packets in a window of which a share says something.
const LEAST: u64 = 200;
/// After the first attempt to learn a flow, each 16th packet of it is another one (crates/fastpath/src/bpf/carry.h, `is_turn`).
const PACKETS_OF_ATTEMPT: u64 = 16;

/// A result of attempts to learn, or a reason of packets.
struct Kind {
    name: &'static str,
    /// `name` is a result of attempts.
    of_attempts: bool,
    object: &'static str,
    /// Behind "most packets are left to the kernel: ".
    why: &'static str,
}

const KINDS: [Kind; 6] = [
    Kind { name: "excluded", of_attempts: true, object: "exclusions", why: "their flows are excluded" },
    Kind {
        name: "header-changed",
        of_attempts: true,
        object: "rules that change TTL or DSCP",
        why: "a rule changes their TTL or DSCP",
    },
    Kind {
        name: "special",
        of_attempts: true,
        object: "helpers",
        why: "a helper of connection tracking or SYNPROXY must see them",
    },
    Kind {
        name: "no-connection",
        of_attempts: true,
        object: "rules without tracking",
        why: "they are not tracked, or in a zone",
    },
    Kind {
        name: "not-plain",
        of_attempts: false,
        object: "VLAN tags and marks",
        why: "they come in with a VLAN tag or a mark",
    },
    Kind {
        name: "otherwise",
        of_attempts: false,
        object: "interface or DSCP",
        why: "they come by another interface or with another DSCP than the flow's packets before",
    },
];

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let all = view.namespaces().filter_map(|n| Some((n, n.fastpath.as_ref()?)));
    all.filter(|(_, fastpath)| !fastpath.paused && fastpath.came_in() >= LEAST)
        .flat_map(|(namespace, fastpath)| {
            let kinds = KINDS.iter().filter_map(|kind| by_kind(view, namespace, fastpath, kind));
            kinds.chain(by_interface(view, namespace, fastpath)).collect::<Vec<_>>()
        })
        .collect()
}

fn begin(
    view: &EvidenceView<'_>,
    namespace: &Namespace,
    fastpath: &FastPath,
    packets: u64,
) -> Option<Finding> {
    let came = fastpath.came_in();
    let share = packets as f64 / came.max(1) as f64;
    if share < SHARE {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = Severity::Note;
    finding.impact = share.min(1.0);
    let carried = fastpath.packets("carried");
    finding.seen(EvidenceSource::FastPath, format!("{carried} of {came} packets were carried"));
    Some(finding)
}

fn by_kind(
    view: &EvidenceView<'_>,
    namespace: &Namespace,
    fastpath: &FastPath,
    kind: &Kind,
) -> Option<Finding> {
    let Kind { name, of_attempts, object, why } = *kind;
    let (times, packets) = if of_attempts {
        let attempts = fastpath.attempts(name);
        (attempts, (attempts * PACKETS_OF_ATTEMPT).min(fastpath.packets("unknown")))
    } else {
        (fastpath.packets(name), fastpath.packets(name))
    };
    let mut finding = begin(view, namespace, fastpath, packets)?;
    finding.object = object.to_owned();
    finding.summary = format!("The fast path leaves many packets to the kernel: {why}.");
    let counts = if of_attempts { &fastpath.attempts } else { &fastpath.packets };
    finding.evidence.extend(counts.get(name).map(|delta| {
        let text = match of_attempts {
            true => format!(
                "{times} attempts to learn a flow ended so, one for about {PACKETS_OF_ATTEMPT} packets"
            ),
            false => format!("{times} packets were left to the kernel for this reason"),
        };
        Fact::counter(EvidenceSource::FastPath, name, *delta, text)
    }));
    finding.confidence = Confidence::High;
    finding.fixes.push(match name {
        "excluded" => {
            let texts = fastpath.excluded.iter().map(|text| format!("excluded: {text}"));
            finding.evidence.extend(texts.map(|text| Fact::seen(EvidenceSource::FastPath, text)));
            Fix::look(
                "see the exclusions; --remove ends one of them",
                [weir(namespace, "exclude"), weir(namespace, "status")],
            )
        }
        "header-changed" => Fix::look("see the rules that change packets", [sh!("nft list ruleset")]),
        "special" | "no-connection" => {
            Fix::look("see the rules that give helpers, zones and `notrack`", [sh!("nft list ruleset")])
        }
        _ => Fix::look("see what is counted", [weir(namespace, "status")]),
    });
    Some(finding)
}

/// Packets of flows that it never tried to learn: they left by an interface without its programs, if much left by one.
fn by_interface(view: &EvidenceView<'_>, namespace: &Namespace, fastpath: &FastPath) -> Option<Finding> {
    let tried: u64 = fastpath.attempts.values().map(|delta| delta.change()).sum();
    let untried = fastpath.packets("unknown").saturating_sub(tried * PACKETS_OF_ATTEMPT);
    let sent = |i: &Interface| i.counters.get("tx_packets").map_or(0, |delta| delta.change());
    let is_without = |i: &&Interface| {
        i.up && i.name != "lo" && i.master.is_none() && !fastpath.interfaces.contains(&i.name)
    };
    let other = namespace.interfaces.iter().filter(is_without).max_by_key(|i| sent(i))?;
    let mut finding = begin(view, namespace, fastpath, untried.min(sent(other)))?;
    finding.object = format!("interface {}", other.name);
    finding.summary = format!(
        "The fast path leaves many packets to the kernel: they leave by {}, which is no part of it.",
        other.name
    );
    let text = format!("{} packets left by {}, which has none of its programs", sent(other), other.name);
    finding.seen(EvidenceSource::Interfaces, text);
    let text = format!("about {untried} packets belonged to flows that it never tried to learn");
    finding.seen(EvidenceSource::FastPath, text);
    finding.fixes.push(Fix::look("see why it is left out", [weir(namespace, "plan")]));
    finding.fixes.push(Fix::new(
        "carry between all interfaces that forward, on trial until `weir fastpath confirm`",
        "every flow takes the kernel's way until it is learnt anew; repeat other options of the last apply",
        [weir(namespace, "apply")],
        [weir(namespace, "rollback")],
    ));
    Some(finding)
}

fn recipes() -> Vec<Recipe> {
    let case = |name, setup: FastPathSetup, rules: &[&str]| {
        let mut steps = vec![Step::masquerade(), Step::FastPath(LabHost::Gateway, setup)];
        steps.extend(rules.iter().map(|rule| Step::gateway(*rule)));
        Recipe { name, setup: steps, traffic: Traffic::udp_across(64, 2000, 8), ..Recipe::default() }
    };
    let excluded = FastPathSetup { excluded: &["198.19.0.2:7000/udp"], ..FastPathSetup::default() };
    let without = FastPathSetup { without: &["outside"], ..FastPathSetup::default() };
    let dscp = "nft 'add table ip mangle; add chain ip mangle f { type filter hook forward priority -150; }; \
                add rule ip mangle f ip dscp set ef'";
    vec![
        case("by-user", excluded, &[]),
        case("by-rule", FastPathSetup::default(), &[dscp]),
        case("interface", without, &[]),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{count, healthy, host};
    use super::*;
    use crate::evidence::Delta;

    fn objects(fastpath: FastPath) -> Vec<String> {
        let found = examine(&EvidenceView::of(&host(fastpath)));
        assert!(found.iter().all(|f| f.severity == Severity::Note && !f.fixes.is_empty()), "{found:#?}");
        found.into_iter().map(|f| f.object).collect()
    }

    #[test]
    fn the_reason_of_most_packets_is_named() {
        let attempts = |name: &str| {
            let packets = [count("unknown", 600), count("carried", 400)].into();
            FastPath { attempts: [count(name, 40)].into(), packets, ..healthy() }
        };
        for kind in KINDS.iter().filter(|kind| kind.of_attempts) {
            assert_eq!(objects(attempts(kind.name)), [kind.object]);
        }
        for kind in KINDS.iter().filter(|kind| !kind.of_attempts) {
            let packets = [count(kind.name, 300), count("carried", 700)].into();
            assert_eq!(objects(FastPath { packets, ..healthy() }), [kind.object]);
        }
    }

    #[test]
    fn few_packets_a_pause_and_flows_that_are_new_are_none() {
        assert!(objects(healthy()).is_empty(), "a healthy one");
        let with = |attempts: &[(&str, u64)], unknown, carried| FastPath {
            attempts: attempts.iter().map(|(name, times)| count(name, *times)).collect(),
            packets: [count("unknown", unknown), count("carried", carried)].into(),
            ..healthy()
        };
        assert!(objects(with(&[("excluded", 10)], 600, 400)).is_empty(), "a sixth of the packets");
        assert!(objects(with(&[("excluded", 40)], 100, 20)).is_empty(), "hardly any traffic");
        assert!(objects(with(&[("not-established", 60)], 900, 100)).is_empty(), "short connections");
        let paused = FastPath { paused: true, ..with(&[("excluded", 40)], 600, 400) };
        assert!(objects(paused).is_empty(), "a user paused it");
    }

    #[test]
    fn an_interface_without_programs_counts_if_much_leaves_by_it() {
        let fastpath = FastPath {
            interfaces: vec!["inside".into()],
            attempts: [].into(),
            packets: [count("unknown", 40_000), count("carried", 10_000)].into(),
            ..healthy()
        };
        assert_eq!(objects(fastpath.clone()), ["interface outside"]);
        let mut idle = host(fastpath.clone());
        idle.namespaces[0].interfaces[2].counters.insert("tx_packets".into(), Delta { before: 5, after: 90 });
        assert_eq!(examine(&EvidenceView::of(&idle)), [], "packets to this host itself");
        let mut port = host(fastpath);
        port.namespaces[0].interfaces[2].master = Some(9);
        assert_eq!(examine(&EvidenceView::of(&port)), [], "the port of a bridge");
    }
}
