//! The kernel evicts young connections from the table to admit new ones.

use std::net::SocketAddr;

use weir_netlink::conntrack::{NewEntry, Status};

use super::refused::{Refused, Where, claims, fact};
use super::{full, relief};
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::{EvidenceSource, Namespace};
use crate::finding::{Confidence, Finding, Severity};
use crate::recipe::{LabHost, Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "conntrack-early-drop",
    title: "connections evicted from a full tracking table",
    about: "When the connection-tracking table is full, the kernel looks through eight hash chains for an entry that is \
            not ASSURED: TCP before its handshake is done, UDP that was not answered for two seconds. It evicts that entry \
            and admits the new connection. The evicted connection is forgotten: a stateful rule refuses its answer, or the \
            answer is not translated back.\n\n\
            A SYN flood, a port scan or many unanswered datagrams do this to a full table. Established connections stay.",
    must: &[
        "conntrack `early_drop` grows, at least as much as packets are refused",
        "the table is at its limit",
    ],
    should: &["most entries are not ASSURED"],
    lookalikes: &[("conntrack-full", "there nothing can be evicted, and new connections are refused")],
    remedy: "Find the source of the unanswered connections (`weir conntrack`), and stop them there or with a rule in the \
             raw table. Otherwise shorten the timeouts of such entries, and raise the limit.",
    sources: &["net/netfilter/nf_conntrack_core.c: early_drop, early_drop_list, gc_worker_can_early_drop"],
    recipes,
    ..Cause::of(Group::Conntrack, |view| view.each(in_namespace))
};

/// The kernel's own eviction in the background ends at 95 %.
const FULL: f64 = 0.9;

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let refused = Refused::of(namespace);
    let (max, count) = (relief::limit(view, namespace)?, relief::count(namespace)?);
    let (evicted, lost) = (refused.evicted, refused.no_entry);
    if evicted == 0 || evicted < lost || !relief::is_filled(count, max, FULL) {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.severity = finding.severity.max(severity(evicted, view.evidence.window_s));
    finding.claims = claims(view, namespace, lost, "conntrack.drop", Where::Entering);
    finding.confidence = Confidence::High;
    finding.missing = view.missing(namespace, &[EvidenceSource::Connections]);
    // Evicted entries against those that could stay.
    finding.impact = evicted as f64 / (evicted + count) as f64;
    finding.summary = format!(
        "The table is full ({count} of {max}), and the kernel evicted {evicted} young connections to admit new ones."
    );
    fact(&mut finding, namespace, "early_drop", format!("{evicted} entries evicted"));
    fact(&mut finding, namespace, "drop", format!("{lost} packets still got no entry"));
    finding.evidence.extend(full::fill(count, max));
    if let Some(share) = namespace.connections.as_ref().and_then(relief::evictable) {
        let text = format!("{:.0} % of the entries may be evicted (not ASSURED)", 100.0 * share);
        finding.seen(EvidenceSource::Connections, text);
    }
    finding.evidence.extend(relief::holders(namespace));
    finding.not.push("not a table of long connections: those cannot be evicted".into());
    finding.fixes.extend(relief::sooner(view, namespace));
    let why = format!("{evicted} connections were evicted in the window");
    finding.fixes.extend(relief::more_entries(view, namespace, &why));
    finding.fixes.extend(relief::untracked(namespace));
    Some(finding)
}

/// By how many a second: each is a connection that may break.
fn severity(evicted: u64, window_s: f64) -> Severity {
    match evicted as f64 / window_s.max(0.1) {
        r if r >= 100.0 => Severity::Critical,
        r if r >= 1.0 => Severity::Warning,
        _ => Severity::Note,
    }
}

/// Builds entries of datagrams without an answer.
fn unanswered() -> Vec<NewEntry> {
    let to = SocketAddr::from(([198, 19, 0, 2], 53));
    let entry = |n: u16| NewEntry {
        status: Status(0),
        ..NewEntry::udp(SocketAddr::from(([198, 18, 0, 9], 10_000 + n)), to)
    };
    (0..2000).map(entry).collect()
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        at: LabHost::Gateway,
        setup: vec![Step::tracking(), Step::Entries(LabHost::Gateway, unanswered)],
        traffic: Traffic::udp_across(64, 1000, 0),
        // Few buckets, so that the eight that are looked through hold something (HASH_SIZE / 8 in early_drop).
        machine: vec![
            ("net.netfilter.nf_conntrack_max", "2000".into()),
            ("net.netfilter.nf_conntrack_buckets", "1024".into()),
        ],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::refused::tests::{counted, evidence, refusal};
    use super::*;
    use crate::evidence::Evidence;

    fn seen(counters: &[(&str, u64)], count: u64) -> Evidence {
        let mut namespace = counted(counters);
        namespace.gauges.insert("conntrack.count".into(), count);
        let mut evidence = evidence(namespace, vec![refusal(9, 3)]);
        evidence.machine.settings.insert("net.netfilter.nf_conntrack_max".into(), "1000".into());
        evidence
    }

    #[test]
    fn evictions_are_found_with_what_was_refused_all_the_same() {
        let evidence = seen(&[("early_drop", 900), ("drop", 9)], 990);
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!(finding.severity, Severity::Critical);
        assert_eq!(finding.claims, [crate::finding::Claim::Drops { group: 0, packets: 9 }]);
        assert!((finding.impact - 900.0 / 1890.0).abs() < 1e-9);
    }

    #[test]
    fn its_look_alikes_are_not_it() {
        // Mostly refused; evicted long ago; not full any more.
        for evidence in
            [seen(&[("early_drop", 9), ("drop", 900)], 1000), seen(&[], 1000), seen(&[("early_drop", 9)], 10)]
        {
            assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence)), []);
        }
    }
}
