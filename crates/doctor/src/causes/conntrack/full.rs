//! The table of connections is full.

use std::net::SocketAddr;

use weir_netlink::conntrack::NewEntry;

use super::refused::{Refused, Where, claims, fact};
use super::relief;
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::{EvidenceSource, Namespace};
use crate::finding::{Claim, Confidence, Fact, Finding, Severity};
use crate::recipe::{LabHost, Recipe, Step, Traffic, UdpMode};

pub(super) const CAUSE: Cause = Cause {
    id: "conntrack-full",
    title: "connection-tracking table full",
    about: "Every connection that crosses the host takes an entry in the connection-tracking table. When a namespace has \
            as many entries as nf_conntrack_max allows, and none can be evicted, the kernel drops the first packet of \
            every new connection. Connections that are in the table continue to work. Clients see time-outs, and their \
            retries fill the table further.\n\n\
            The limit is one number for the whole machine, compared with the count of each network namespace by itself.",
    must: &[
        "conntrack `drop` grows, by more than `insert_failed`",
        "the table holds as many entries as nf_conntrack_max, or did in the window",
    ],
    should: &[
        "packets dropped as NETFILTER_DROP in nf_hook_slow, on the interface they came in through",
        "`nf_conntrack: table full, dropping packet` in the kernel's log",
    ],
    must_not: &["more entries are evicted (`early_drop`) than packets refused"],
    lookalikes: &[
        (
            "conntrack-early-drop",
            "there entries can be evicted, so that new connections get in at the cost of young ones",
        ),
        ("snat-ports-exhausted", "there `insert_failed` grows with `drop`, and other destinations work"),
        ("conntrack-memory", "there the table is far from its limit"),
    ],
    yields_to: &["conntrack-early-drop"],
    remedy: "First find out who holds the entries (`weir conntrack`). If they are real, allow more. If they are stale, \
             shorten their timeouts. Leave traffic untracked that needs no NAT and no state. Ports that a container engine \
             publishes can do without entries (`weir tune plan --profile published-ports`).",
    sources: &[
        "net/netfilter/nf_conntrack_core.c: __nf_conntrack_alloc, early_drop",
        "RFC 5382, REQ-5",
        "RFC 4787, REQ-5",
    ],
    recipes,
    ..Cause::of(Group::Conntrack, |view| view.each(in_namespace))
};

/// The count is read at the window's end, and the kernel evicts down to 95 % by itself (`gc_worker`).
const FULL: f64 = 0.9;
/// A table that nothing was refused by yet, and soon will.
const NEARLY: f64 = 0.95;

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let refused = Refused::of(namespace);
    let (max, count) = (relief::limit(view, namespace)?, relief::count(namespace)?);
    if !relief::is_filled(count, max, FULL) || refused.evicted > refused.no_entry {
        return None;
    }
    if refused.no_entry == 0 {
        return relief::is_filled(count, max, NEARLY).then(|| nearly(view, namespace, count, max));
    }
    let lost = refused.no_entry;
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.claims = claims(view, namespace, lost, "conntrack.drop", Where::Entering);
    let seen = matches!(finding.claims[..], [Claim::Drops { .. }, ..]);
    finding.confidence = if seen { Confidence::High } else { Confidence::Medium };
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops, EvidenceSource::Connections]);
    finding.summary = format!(
        "New connections are refused: the table holds {count} of {max} entries, and {lost} packets that wanted one more \
         were dropped."
    );
    fact(&mut finding, namespace, "drop", format!("{lost} packets got no entry"));
    finding.evidence.extend(fill(count, max));
    finding.evidence.extend(relief::holders(namespace));
    let said = view.evidence.machine.log.iter().find(|line| line.contains("nf_conntrack: table full"));
    finding.evidence.extend(said.map(|line| Fact::seen(EvidenceSource::Log, line.clone())));
    finding.not.push("not one busy destination: `insert_failed` did not grow with `drop`".into());
    finding.not.push(format!("not a flood that evicts: {} entries were evicted", refused.evicted));
    let why = format!("the table was full in the window and refused {lost} packets");
    finding.fixes.extend(relief::more_entries(view, namespace, &why));
    finding.fixes.extend(relief::sooner(view, namespace));
    finding.fixes.extend(relief::untracked(namespace));
    Some(finding)
}

/// Nothing is lost yet.
fn nearly(view: &EvidenceView<'_>, namespace: &Namespace, count: u64, max: u64) -> Finding {
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = Severity::Warning;
    finding.confidence = Confidence::High;
    finding.summary = format!(
        "The table holds {count} of {max} entries: soon the kernel will refuse new connections, or evict the youngest."
    );
    finding.evidence.extend(fill(count, max));
    finding.evidence.extend(relief::holders(namespace));
    finding.not.push("nothing was refused in the window".into());
    finding.fixes.extend(relief::more_entries(
        view,
        namespace,
        &format!("{count} of {max} entries are in use"),
    ));
    finding.fixes.extend(relief::sooner(view, namespace));
    finding.fixes.extend(relief::untracked(namespace));
    finding
}

/// How full it is.
pub(super) fn fill(count: u64, max: u64) -> Option<Fact> {
    let share = 100.0 * count as f64 / max as f64;
    Some(Fact::seen(
        EvidenceSource::Settings,
        format!("nf_conntrack_max = {max}, entries {count} ({share:.0} %)"),
    ))
}

/// Entries that may not be evicted, of clients that are not there.
fn assured() -> Vec<NewEntry> {
    let to = SocketAddr::from(([198, 19, 0, 2], 53));
    (0..600).map(|n| NewEntry::udp(SocketAddr::from(([198, 18, 0, 9], 10_000 + n)), to)).collect()
}

fn recipes() -> Vec<Recipe> {
    let max = |n: u64| vec![("net.netfilter.nf_conntrack_max", n.to_string())];
    vec![
        Recipe {
            at: LabHost::Gateway,
            setup: vec![Step::tracking(), Step::Entries(LabHost::Gateway, assured)],
            traffic: Traffic::datagrams(7000, UdpMode::Echo, 64, 1000, 0),
            machine: max(500),
            ..Recipe::default()
        },
        Recipe {
            name: "tcp-held",
            at: LabHost::Gateway,
            setup: vec![Step::tracking()],
            traffic: Traffic::connects("198.19.0.2:7000", 500, 64, true),
            machine: max(400),
            ..Recipe::default()
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::super::refused::tests::{counted, evidence, refusal};
    use super::*;
    use crate::evidence::Evidence;

    fn full(counters: &[(&str, u64)], count: u64, drops: u64) -> Evidence {
        let mut namespace = counted(counters);
        namespace.gauges.insert("conntrack.count".into(), count);
        let drops = if drops > 0 { vec![refusal(drops, 3)] } else { Vec::new() };
        let mut evidence = evidence(namespace, drops);
        evidence.machine.settings.insert("net.netfilter.nf_conntrack_max".into(), "1000".into());
        evidence
    }

    #[test]
    fn a_full_table_is_found_with_its_drops_and_without() {
        let seen = full(&[("drop", 500)], 1000, 500);
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&seen))[..] else { panic!() };
        assert_eq!(finding.claims, [Claim::Drops { group: 0, packets: 500 }]);
        assert_eq!((finding.severity, finding.confidence), (Severity::Critical, Confidence::High));
        let mut blind = full(&[("drop", 500)], 960, 0);
        blind.evidence_sources.remove(&EvidenceSource::Drops);
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&blind))[..] else { panic!() };
        assert!(matches!(&finding.claims[..], [Claim::Counter { packets: 500, .. }]));
        assert_eq!(
            (finding.confidence, finding.missing.contains(&EvidenceSource::Drops)),
            (Confidence::Medium, true)
        );
    }

    #[test]
    fn its_look_alikes_are_not_it() {
        // Ports used up: both counters move together, at any fill.
        let ports = full(&[("drop", 500), ("insert_failed", 500)], 900, 500);
        // Evictions: new connections get in.
        let churn = full(&[("drop", 5), ("early_drop", 900)], 1000, 5);
        // Memory, or a protocol that refuses: the table is not full.
        let roomy = full(&[("drop", 500)], 100, 500);
        let idle = full(&[], 500, 0);
        for evidence in [ports, churn, roomy, idle] {
            assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence)), []);
        }
    }

    #[test]
    fn a_nearly_full_table_is_a_warning_without_claims() {
        let evidence = full(&[], 970, 0);
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!((finding.severity, finding.claims.len()), (Severity::Warning, 0));
    }

    #[test]
    fn no_limit_is_never_full() {
        let mut evidence = full(&[("drop", 500)], 1000, 500);
        evidence.machine.settings.insert("net.netfilter.nf_conntrack_max".into(), "0".into());
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence)), []);
    }
}
