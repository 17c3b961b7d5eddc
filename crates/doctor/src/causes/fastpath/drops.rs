//! The fast path drops packets.

use super::commands::weir;
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::{EvidenceSource, FastPath, Namespace};
use crate::finding::{Claim, Confidence, Fact, Finding, Fix};

pub(super) const CAUSE: Cause = Cause {
    id: "fastpath-drop",
    title: "fast path drops packets that it cannot rewrite",
    about: "The fast path writes new addresses, ports and checksums into a packet before it sends it on. The kernel refuses that \
            if it has no memory to make the packet's header writable. The packet is half changed then, so it is dropped and \
            counted as `failed`. All other packets that the fast path does not carry take the kernel's way.",
    must: &["packets are counted as `failed`"],
    should: &[
        "packets dropped as TC_INGRESS on an interface of the fast path",
        "the kernel has no memory for packets",
    ],
    lookalikes: &[
        (
            "tc-drop",
            "there another program or filter at the interface drops them, and `failed` does not grow",
        ),
        ("memory-pressure", "the reason behind it, in most cases"),
    ],
    remedy: "Leave everything to the kernel (`weir fastpath pause`), and look for the lack of memory.",
    sources: &[
        "crates/fastpath/src/bpf/carry.h: rewrite",
        "net/core/filter.c: bpf_l4_csum_replace, bpf_try_make_writable",
    ],
    not_injected: Some(
        "the kernel refuses a rewrite only if it has no memory, and no lab can take that away from one program",
    ),
    ..Cause::of(Group::FastPath, |view| view.each_fastpath(of))
};

fn of(view: &EvidenceView<'_>, namespace: &Namespace, fastpath: &FastPath) -> Option<Finding> {
    let failed = fastpath.packets("failed");
    if failed == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, failed);
    finding.claims = claims(view, namespace, fastpath, failed);
    let seen = matches!(finding.claims[..], [Claim::Drops { .. }, ..]);
    finding.confidence = if seen { Confidence::High } else { Confidence::Medium };
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops]);
    finding.object = "flow table of the fast path".into();
    finding.summary =
        format!("The fast path dropped {failed} packets that the kernel did not let it rewrite.");
    finding.evidence.extend(fastpath.packets.get("failed").map(|delta| {
        Fact::counter(
            EvidenceSource::FastPath,
            "failed",
            *delta,
            format!("{failed} packets could not be rewritten"),
        )
    }));
    finding.fixes.push(Fix::new(
        "leave everything to the kernel",
        "packets take the kernel's way, which is slower",
        [weir(namespace, "pause")],
        [weir(namespace, "resume")],
    ));
    Some(finding)
}

/// Its drops among those of the interfaces, as many as it counted: another program there may drop, too.
fn claims(view: &EvidenceView<'_>, namespace: &Namespace, fastpath: &FastPath, failed: u64) -> Vec<Claim> {
    let is_mine = |index| namespace.interface(index).is_some_and(|i| fastpath.interfaces.contains(&i.name));
    let taken = view.take(namespace, |drops| drops.reason == "TC_INGRESS" && is_mine(drops.interface));
    let mut left = failed;
    let mut claims = Vec::new();
    for claim in taken.claims {
        if let Claim::Drops { group, packets } = claim {
            let packets = packets.min(left);
            left -= packets;
            claims.extend((packets > 0).then_some(Claim::Drops { group, packets }));
        }
    }
    if left > 0 && !view.sees_drops() {
        claims.push(view.counted(namespace, "fastpath.failed", left));
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{count, healthy, host};
    use super::*;
    use crate::diagnosis::diagnose;
    use crate::evidence::{DropGroup, Evidence, Sight};

    fn dropping(failed: u64, dropped: u64) -> Evidence {
        let mut fastpath = healthy();
        fastpath.packets.extend([count("failed", failed)]);
        let mut evidence = host(fastpath);
        evidence.drops.push(DropGroup {
            namespace: 5,
            reason: "TC_INGRESS".into(),
            interface: 2,
            packets: dropped,
            ..DropGroup::default()
        });
        evidence
    }

    #[test]
    fn it_takes_as_many_drops_as_it_counted_and_another_program_the_rest() {
        let evidence = dropping(300, 500);
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!(finding.claims, [Claim::Drops { group: 0, packets: 300 }]);
        assert_eq!((finding.confidence, finding.fixes[0].commands.len()), (Confidence::High, 1));
        let all = diagnose(&evidence).findings;
        let explained: Vec<_> = all.iter().map(|f| (f.cause.as_str(), f.explains_packets)).collect();
        assert_eq!(explained, [("fastpath-drop", 300), ("tc-drop", 200)]);
        let own = diagnose(&dropping(500, 500)).findings;
        assert_eq!(own.iter().map(|f| f.cause.as_str()).collect::<Vec<_>>(), ["fastpath-drop"]);
    }

    #[test]
    fn its_own_counter_is_enough_where_drops_are_out_of_sight() {
        let mut evidence = dropping(300, 0);
        evidence.drops.clear();
        evidence.evidence_sources.insert(EvidenceSource::Drops, Sight::Blind("hidden".into()));
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert!(matches!(&finding.claims[..], [Claim::Counter { packets: 300, .. }]), "{finding:?}");
        assert_eq!(
            (finding.confidence, &finding.missing[..]),
            (Confidence::Medium, &[EvidenceSource::Drops][..])
        );
    }

    #[test]
    fn a_fast_path_that_drops_nothing_has_no_part_in_it() {
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&dropping(0, 500))), []);
    }
}
