//! The flow table is full.

use super::commands::weir;
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::{EvidenceSource, FastPath, Namespace};
use crate::finding::{Confidence, Fact, Finding, Fix, Severity};
use crate::recipe::{FastPathSetup, LabHost, Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "fastpath-full",
    title: "flow table of the fast path full",
    about: "The flow table of `weir fastpath` grows as it fills, up to twice as many entries as directions of connections \
            that it was made for. A live entry is never evicted for a new one. When the bucket of a new flow has no free entry, its \
            packets stay with the kernel. They arrive, and cost what they cost without the fast path.",
    must: &["attempts to learn a flow end with `no-room`, a tenth of those that succeed or more"],
    should: &["the table holds as many directions as it was made for"],
    must_not: &["the table got more room in that time"],
    lookalikes: &[
        ("conntrack-full", "there the kernel's own table is full, and new connections are dropped"),
        ("fastpath-stale", "there flows leave the table all the time, because something changes"),
    ],
    remedy: "Ask for a larger table (`weir fastpath apply --connections 262144`), or leave flows to the kernel that need no speed \
             (`weir fastpath exclude`). If a flood of short flows fills it, learn flows later (`--packets N`).",
    sources: &["crates/fastpath/src/bpf/learn.h: room_for", "docs/explanation/fastpath.md"],
    recipes,
    ..Cause::of(Group::FastPath, |view| view.each_fastpath(of))
};

/// Fewer refusals in a window say nothing: flows of one bucket may meet by chance.
const LEAST: u64 = 10;
/// Share of the attempts with a place in the table at stake.
const SHARE: f64 = 0.1;

fn of(view: &EvidenceView<'_>, namespace: &Namespace, fastpath: &FastPath) -> Option<Finding> {
    let (refused, learnt) = (fastpath.attempts("no-room"), fastpath.attempts("learnt"));
    let share = refused as f64 / (refused + learnt).max(1) as f64;
    let has_grown = fastpath.changes.get("room").is_some_and(|times| times.change() > 0);
    if refused < LEAST || share < SHARE || has_grown {
        return None;
    }
    let (came, unknown) = (fastpath.came_in(), fastpath.packets("unknown"));
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = Severity::Warning;
    let is_full = fastpath.directions * 2 >= fastpath.room;
    finding.confidence = if is_full { Confidence::High } else { Confidence::Medium };
    finding.impact = unknown as f64 / came.max(1) as f64;
    finding.summary = format!(
        "The flow table of the fast path has no room: {refused} attempts to learn a flow failed, and those flows take the \
         kernel's way."
    );
    let seen = |text: String| Fact::seen(EvidenceSource::FastPath, text);
    finding.evidence.extend(fastpath.attempts.get("no-room").map(|delta| {
        let text = format!("{refused} attempts found no free entry, {learnt} found one");
        Fact::counter(EvidenceSource::FastPath, "no-room", *delta, text)
    }));
    finding.evidence.push(seen(format!(
        "the table holds {} directions of connections, and was made for {}",
        fastpath.directions, fastpath.room
    )));
    finding
        .evidence
        .push(seen(format!("{unknown} of {came} packets belonged to flows that it does not hold")));
    finding.fixes.extend(larger(namespace, fastpath));
    Some(finding)
}

/// A table of four times the size; none where that is more than can be asked for.
fn larger(namespace: &Namespace, fastpath: &FastPath) -> Option<Fix> {
    const MOST: u64 = 1 << 24;
    // A table that is not used has room for 64 connections.
    let now = (fastpath.room / 2).saturating_sub(64).max(64);
    let wanted = (now * 4).next_power_of_two().min(MOST);
    (wanted > now).then(|| {
        Fix::new(
            "make room for more connections, on trial until `weir fastpath confirm`",
            format!(
                "{} MB of memory for IPv4, twice that for IPv6; every flow takes the kernel's way until it is learnt anew; \
                 repeat other options of the last apply",
                (wanted * 272).div_ceil(1_000_000)
            ),
            [weir(namespace, &format!("apply --connections {wanted}"))],
            [weir(namespace, "rollback")],
        )
    })
}

fn recipes() -> Vec<Recipe> {
    let setup = FastPathSetup { connections: 64, packets: 1, ..FastPathSetup::default() };
    vec![Recipe {
        setup: vec![Step::masquerade(), Step::FastPath(LabHost::Gateway, setup)],
        // Each datagram is a flow of its own.
        traffic: Traffic::udp_across(64, 1000, 0),
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{count, healthy, host};
    use super::*;

    fn found(attempts: &[(&str, u64)]) -> Vec<Finding> {
        let attempts = attempts.iter().map(|(name, times)| count(name, *times)).collect();
        (CAUSE.examine)(&EvidenceView::of(&host(FastPath { attempts, ..healthy() })))
    }

    #[test]
    fn refusals_beside_many_successes_are_chance() {
        let [finding] = &found(&[("no-room", 400), ("learnt", 600)])[..] else { panic!() };
        assert_eq!((finding.severity, finding.confidence), (Severity::Warning, Confidence::Medium));
        assert_eq!(finding.fixes[0].commands, ["weir fastpath apply --connections 262144"]);
        assert_eq!(finding.fixes[0].undo, ["weir fastpath rollback"]);
        assert_eq!(found(&[("no-room", 50), ("learnt", 600)]), []);
        assert_eq!(found(&[("no-room", 9)]), []);
        let attempts = [count("no-room", 400)].into();
        let grown = FastPath { attempts, changes: [count("room", 1)].into(), ..healthy() };
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&host(grown))), [], "it has more room now");
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&host(healthy()))), []);
    }

    #[test]
    fn a_table_that_holds_what_it_was_made_for_makes_it_sure() {
        let attempts = [count("no-room", 400)].into();
        let evidence = host(FastPath { attempts, room: 256, directions: 200, ..healthy() });
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!(finding.confidence, Confidence::High);
        assert_eq!(finding.fixes[0].commands, ["weir fastpath apply --connections 256"]);
    }
}
