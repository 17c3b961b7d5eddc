//! Something changes all the time, and every flow is learnt anew each time.

use super::commands::weir;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::{Line, sh};
use crate::evidence::{EvidenceSource, FastPath, Namespace};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::{FastPathSetup, LabHost, Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "fastpath-stale",
    title: "fast path learns everything anew, again and again",
    about: "An entry of the fast path holds what rules, routes and neighbours decided about its flow. When one of them changes, \
            every entry becomes stale: the next packet of each flow takes the kernel's way, and the flow is learnt anew. A \
            change a minute costs nothing. A program that replaces rules or routes many times a second keeps most packets on \
            the kernel's way.",
    must: &[
        "the fast path forgets all flows five times in the window, and every two seconds or more often",
        "a tenth of the packets of known flows, or more, find a stale entry",
    ],
    should: &["one kind of change makes up most of them"],
    lookalikes: &[("fastpath-full", "there new flows find no entry, and nothing changes")],
    remedy: "Find the program that makes the changes (`ip monitor`, `nft monitor`), and have it change only what differs, in one \
             step: a route daemon that flaps, a script that reloads all rules, a blocker that adds addresses one by one.",
    sources: &[
        "crates/netlink/src/path_events.rs",
        "crates/fastpath/src/keeper.rs",
        "docs/explanation/fastpath.md",
    ],
    recipes,
    ..Cause::of(Group::FastPath, |view| view.each_fastpath(of))
};

/// Changes in a window that any host may have: a service that starts makes a few.
const LEAST: u64 = 5;
/// Changes in a second.
const RATE: f64 = 0.5;
/// Share of the packets of known flows.
const SHARE: f64 = 0.1;
/// The same where most of the speed is gone.
const GRAVE: f64 = 0.3;

fn of(view: &EvidenceView<'_>, namespace: &Namespace, fastpath: &FastPath) -> Option<Finding> {
    let (times, stale) = (fastpath.learnt_anew.change(), fastpath.packets("stale"));
    let known = stale + fastpath.packets("carried");
    let share = stale as f64 / known.max(1) as f64;
    let rate = times as f64 / view.evidence.window_s.max(0.1);
    if times < LEAST || rate < RATE || share < SHARE {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = if share >= GRAVE { Severity::Warning } else { Severity::Note };
    finding.impact = share;
    finding.summary = format!(
        "The fast path learnt every flow anew {times} times in the window: {:.0} % of the packets of known flows took the \
         kernel's way.",
        100.0 * share
    );
    let text = format!("{times} changes, {rate:.1} in a second");
    finding.counter(EvidenceSource::FastPath, "generation", fastpath.learnt_anew, text);
    finding.seen(
        EvidenceSource::FastPath,
        format!("{stale} of {known} packets of known flows found a stale entry"),
    );
    let most = fastpath.changes.iter().max_by_key(|(_, delta)| delta.change());
    if let Some((kind, delta)) = most.filter(|(_, delta)| delta.change() > 0) {
        finding.object.clone_from(kind);
        let text = format!("{} of them were changes of {}", delta.change(), words(kind));
        finding.counter(EvidenceSource::FastPath, kind, *delta, text);
        if 2 * delta.change() >= times {
            finding.confidence = Confidence::High;
        }
        finding.fixes.push(Fix::look("see what changes, and which program does it", watch(kind)));
    }
    finding.fixes.push(Fix::new(
        "leave everything to the kernel until that has ended",
        "none: packets take the kernel's way, as most of them do now",
        [weir(namespace, "pause")],
        [weir(namespace, "resume")],
    ));
    Some(finding)
}

/// A kind as its process names it, for people.
fn words(kind: &str) -> String {
    let known = weir_fastpath::Change::ALL
        .into_iter()
        .find(|change| serde_json::to_value(change).is_ok_and(|value| value.as_str() == Some(kind)));
    known.map_or_else(|| kind.to_owned(), |change| change.words().to_owned())
}

fn watch(kind: &str) -> Vec<Line> {
    match kind {
        "packet-filter" => vec![sh!("nft monitor")],
        "ipsec" => vec![sh!("ip xfrm monitor")],
        "links" => vec![sh!("ip monitor link")],
        "addresses" => vec![sh!("ip monitor address")],
        "routes" => vec![sh!("ip monitor route")],
        "routing-rules" => vec![sh!("ip monitor rule")],
        "neighbours" => vec![sh!("ip monitor neigh")],
        _ => vec![sh!("ip monitor all")],
    }
}

fn recipes() -> Vec<Recipe> {
    // A route is added and removed: of no use to anyone, and each time a change.
    let churn = "while :; do ip route replace 198.18.9.0/24 dev outside; sleep 0.02; \
                 ip route del 198.18.9.0/24 dev outside; sleep 0.02; done";
    let mut traffic = Traffic::udp_across(64, 2000, 100);
    traffic.push(Traffic::Script(LabHost::Gateway, churn.into()));
    vec![Recipe {
        setup: vec![Step::masquerade(), Step::FastPath(LabHost::Gateway, FastPathSetup::default())],
        traffic,
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{count, healthy, host};
    use super::*;
    use crate::evidence::Delta;

    fn found(times: u64, stale: u64, carried: u64) -> Vec<Finding> {
        let fastpath = FastPath {
            learnt_anew: Delta { before: 65_530, after: 65_530 + times },
            changes: [count("packet-filter", times), count("links", 1)].into(),
            packets: [count("stale", stale), count("carried", carried)].into(),
            ..healthy()
        };
        (CAUSE.examine)(&EvidenceView::of(&host(fastpath)))
    }

    #[test]
    fn the_kind_of_change_is_named() {
        let [finding] = &found(100, 600, 400)[..] else { panic!() };
        assert_eq!((finding.severity, finding.confidence), (Severity::Warning, Confidence::High));
        assert_eq!((finding.object.as_str(), finding.impact), ("packet-filter", 0.6));
        assert!(finding.evidence.iter().any(|f| f.text == "100 of them were changes of nftables rules"));
        assert_eq!(finding.fixes[0].commands, ["nft monitor"]);
        assert_eq!(found(100, 150, 850)[0].severity, Severity::Note);
    }

    #[test]
    fn changes_without_harm_and_single_changes_are_none() {
        assert_eq!(found(100, 50, 950), [], "few packets find a stale entry");
        assert_eq!(found(4, 600, 400), [], "a service that starts");
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&host(healthy()))), []);
    }

    #[test]
    fn every_kind_has_words() {
        for change in weir_fastpath::Change::ALL {
            let kind = serde_json::to_value(change).unwrap();
            assert_eq!(words(kind.as_str().unwrap()), change.words());
        }
    }
}
