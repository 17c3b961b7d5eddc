//! The hash table has too few buckets for its entries.

use super::refused::{Refused, Where, claims, fact};
use super::relief;
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::{EvidenceSource, Namespace};
use crate::finding::{Confidence, Fact, Finding, Fix, Severity};
use crate::recipe::{LabHost, Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "conntrack-hash-small",
    title: "too few hash buckets for connection tracking",
    about: "Every packet looks up its connection in a hash table. Each entry hangs in two chains of it, so a table of N \
            entries in B buckets has chains of 2N/B entries on average, and the kernel walks a whole chain for a packet \
            that is in none. Long chains cost time for every packet. When a chain has 50 to 80 entries (the kernel draws \
            the limit at random), it takes no more, and the packet that would have opened a connection is dropped.\n\n\
            It comes from raising nf_conntrack_max without nf_conntrack_buckets. The hash table is one for all namespaces.",
    must: &["conntrack `chain_toolong` grows, or the mean chain is long"],
    should: &["`insert_failed` grows with it, and `drop` does not"],
    lookalikes: &[
        ("conntrack-full", "there the limit is reached; here it is far away"),
        ("snat-ports-exhausted", "there `drop` grows with `insert_failed`, and `chain_toolong` stands still"),
    ],
    remedy: "Set nf_conntrack_buckets to about nf_conntrack_max. It can be changed while packets flow, and takes some milliseconds \
             for each million entries.",
    sources: &[
        "net/netfilter/nf_conntrack_core.c: __nf_conntrack_confirm, MIN_CHAINLEN, nf_conntrack_hash_resize",
    ],
    recipes,
    ..Cause::of(Group::Conntrack, examine)
};

const BUCKETS: &str = "net.netfilter.nf_conntrack_buckets";
/// Mean chain from which on it is worth a note: 5 times as long as with the kernel's own choice.
const LONG: f64 = 10.0;
/// From here on it costs a look-up microseconds.
const VERY_LONG: f64 = 24.0;
/// Share of a core in softirq from which on look-ups are what is waited for.
const BUSY: f64 = 0.8;

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = view.namespaces().filter_map(|n| refusing(view, n)).collect();
    if findings.is_empty() {
        findings.extend(slow(view));
    }
    findings
}

/// Connections are refused.
fn refusing(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let lost = Refused::of(namespace).chain_too_long;
    if lost == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.claims = claims(view, namespace, lost, "conntrack.chain_toolong", Where::Leaving);
    finding.confidence = Confidence::High;
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops]);
    finding.summary = format!(
        "{lost} packets that would have opened connections were dropped: their hash chain was too long."
    );
    fact(&mut finding, namespace, "chain_toolong", format!("{lost} chains were too long"));
    fact(&mut finding, namespace, "insert_failed", "entries that did not get into the table");
    finding.evidence.extend(chains(view).map(|(text, _)| Fact::seen(EvidenceSource::Settings, text)));
    finding.not.push("not used-up ports: `chain_toolong` grew".into());
    finding.fixes.extend(more_buckets(view));
    Some(finding)
}

/// Nothing is refused, and every packet takes longer.
fn slow(view: &EvidenceView<'_>) -> Option<Finding> {
    let (text, mean) = chains(view)?;
    if mean < LONG {
        return None;
    }
    let busiest = view.evidence.machine.cores.iter().map(|c| c.share("softirq")).fold(0.0, f64::max);
    let costs = mean >= VERY_LONG && busiest >= BUSY;
    let mut finding = view.machine_finding(CAUSE.id, if costs { Severity::Warning } else { Severity::Note });
    finding.summary = format!("Each look-up of a connection walks {mean:.0} entries on average.");
    finding.seen(EvidenceSource::Settings, text);
    if !view.evidence.machine.cores.is_empty() {
        let text = format!("the busiest core spends {:.0} % of its time in softirq", 100.0 * busiest);
        finding.seen(EvidenceSource::Cores, text);
    }
    finding.not.push("nothing was refused: `chain_toolong` stands still".into());
    finding.fixes.extend(more_buckets(view));
    Some(finding)
}

/// Entries of all namespaces, and how long chains are with them.
fn chains(view: &EvidenceView<'_>) -> Option<(String, f64)> {
    let buckets = view.namespaces().find_map(|n| relief::buckets(view, n))?;
    let entries: u64 = view.namespaces().filter_map(relief::count).sum();
    let mean = 2.0 * entries as f64 / buckets as f64;
    Some((
        format!("{BUCKETS} = {buckets}, {entries} entries in all namespaces: chains of {mean:.1} on average"),
        mean,
    ))
}

fn more_buckets(view: &EvidenceView<'_>) -> Option<Fix> {
    let namespace = view.namespaces().max_by_key(|n| relief::count(n))?;
    let entries: u64 = view.namespaces().filter_map(relief::count).sum();
    let wanted = relief::limit(view, namespace).unwrap_or(0).max(entries).next_multiple_of(512);
    let now = relief::buckets(view, namespace)?;
    let why = format!("{entries} entries hang in {now} buckets");
    let setting = relief::setting(view, namespace, BUCKETS, wanted, &why).filter(|_| wanted > now)?;
    let risk = format!(
        "{} KB of memory; packets wait for some milliseconds for each million entries while they are hashed anew",
        wanted * 8 / 1000
    );
    Some(Fix::set("use more buckets", &risk, vec![setting]))
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        setup: vec![Step::tracking(), Step::Entries(LabHost::Gateway, entries)],
        traffic: Traffic::udp_across(64, 1000, 0),
        machine: vec![(BUCKETS, "512".into())],
        ..Recipe::default()
    }]
}

/// 20,000 entries: chains of 78 in 512 buckets.
fn entries() -> Vec<weir_netlink::conntrack::NewEntry> {
    use std::net::SocketAddr;
    let to = SocketAddr::from(([198, 19, 0, 2], 53));
    let from = |n: u16| SocketAddr::from(([198, 18, 0, 9], 10_000 + n));
    (0..20_000).map(|n| weir_netlink::conntrack::NewEntry::udp(from(n), to)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::refused::tests::{counted, evidence, refusal};
    use super::*;
    use crate::evidence::{Core, Evidence};
    use crate::finding::Claim;

    fn seen(counters: &[(&str, u64)], entries: u64) -> Evidence {
        let mut namespace = counted(counters);
        namespace.gauges.insert("conntrack.count".into(), entries);
        let mut evidence = evidence(namespace, vec![refusal(30, 2)]);
        evidence.machine.settings.insert(BUCKETS.into(), "1024".into());
        evidence.machine.settings.insert("net.netfilter.nf_conntrack_max".into(), "100000".into());
        evidence
    }

    #[test]
    fn refused_inserts_of_long_chains_are_it() {
        let evidence = seen(&[("chain_toolong", 30), ("insert_failed", 30)], 30_000);
        let [finding] = &examine(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!(finding.claims, [Claim::Drops { group: 0, packets: 30 }]);
        assert_eq!(finding.fixes[0].tune[0].proposed, "100352");
        let clash = seen(&[("drop", 30), ("insert_failed", 30)], 100);
        assert_eq!(examine(&EvidenceView::of(&clash)), []);
    }

    #[test]
    fn long_chains_are_a_warning_only_where_they_cost() {
        let mut evidence = seen(&[], 20_000);
        let severity = |e: &Evidence| examine(&EvidenceView::of(e)).first().map(|f| f.severity);
        assert_eq!(severity(&evidence), Some(Severity::Note));
        let mut core = Core::default();
        core.ticks.insert("softirq".into(), (0, 95).into());
        core.ticks.insert("idle".into(), (0, 5).into());
        evidence.machine.cores.push(core);
        assert_eq!(severity(&evidence), Some(Severity::Warning));
        assert_eq!(severity(&seen(&[], 1000)), None);
    }
}
