//! The tables of connections cost more memory than there is.

use weir_text::order;

use super::refused::{Refused, Where, claims, fact};
use super::relief;
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::{EvidenceSource, Namespace};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::{Recipe, Step, Traffic, UdpMode};

pub(super) const CAUSE: Cause = Cause {
    id: "conntrack-memory",
    title: "connection tracking and memory",
    about: "An entry takes 256 bytes of kernel memory, and 128 more where it is translated or counted. nf_conntrack_max is \
            one number, but each network namespace may have that many entries: with a hundred containers a hundred times \
            as many. Such memory cannot be swapped out. When the kernel finds none for a new entry, it drops the packet, \
            long before the table is full; when programs find none, the kernel kills some.",
    must: &[
        "the tables take, or may grow to take, a large part of the machine's memory",
        "or: conntrack `drop` grows while the table is far from its limit and `insert_failed` stands still",
    ],
    should: &["memory is short: allocations stall (/proc/vmstat)"],
    lookalikes: &[("conntrack-full", "there the table is at its limit")],
    yields_to: &["conntrack-full", "conntrack-early-drop"],
    remedy: "Set nf_conntrack_max to a value that memory allows for all namespaces, shorten the timeouts, and find out who \
             holds the entries (`weir conntrack`).",
    sources: &[
        "net/netfilter/nf_conntrack_core.c: __nf_conntrack_alloc, resolve_normal_ct",
        "net/netfilter/nf_conntrack_extend.c",
    ],
    recipes,
    ..Cause::of(Group::Conntrack, examine)
};

const MAX: &str = "net.netfilter.nf_conntrack_max";
/// Share of the machine's memory that the entries there are may take.
const MUCH: f64 = 0.25;
/// Share that one table at its limit may take.
const TOO_MUCH: f64 = 0.5;
/// A limit that this much of is used is the reason itself.
const FULL: f64 = 0.9;

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = view.namespaces().filter_map(|n| refused(view, n)).collect();
    findings.extend(used(view).or_else(|| promised(view)));
    findings
}

/// Packets got no entry although the table had room.
fn refused(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let lost = Refused::of(namespace).no_entry;
    let count = relief::count(namespace)?;
    let full = relief::limit(view, namespace).is_some_and(|max| relief::is_filled(count, max, FULL));
    let events = &view.evidence.machine.memory_events;
    let stalls: u64 =
        events.iter().filter(|(n, _)| n.starts_with("allocstall")).map(|(_, d)| d.change()).sum();
    // A tracker of a protocol may refuse as well, with memory to spare.
    if lost == 0 || full || stalls == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.claims = claims(view, namespace, lost, "conntrack.drop", Where::Entering);
    finding.summary =
        format!("{lost} packets were dropped because the kernel had no memory for their entries.");
    fact(&mut finding, namespace, "drop", format!("{lost} packets got no entry"));
    finding.seen(EvidenceSource::Pressure, format!("allocations of memory stalled {stalls} times"));
    finding.not.push("not a full table: it is far from its limit".into());
    finding.fixes.extend(relief::sooner(view, namespace));
    Some(finding)
}

/// Reports tracked connections that take a large part of the memory.
fn used(view: &EvidenceView<'_>) -> Option<Finding> {
    let total = view.evidence.machine.memory_bytes.get("MemTotal").copied().filter(|t| *t > 0)?;
    let mut by: Vec<(u64, &Namespace)> =
        view.namespaces().filter_map(|n| Some((relief::count(n)?, n))).collect();
    order::by_key(&mut by, |(count, _)| std::cmp::Reverse(*count));
    let (_, most) = by.first()?;
    let entries: u64 = by.iter().map(|(count, _)| count).sum();
    let bytes = entries * relief::entry_bytes(most);
    if (bytes as f64) < MUCH * total as f64 {
        return None;
    }
    let mut finding = view.machine_finding(CAUSE.id, Severity::Warning);
    finding.confidence = Confidence::High;
    finding.summary = format!(
        "{entries} tracked connections take {} of {} MB of memory.",
        bytes / 1_000_000,
        total / 1_000_000
    );
    for (count, namespace) in by.iter().take(3) {
        finding.seen(EvidenceSource::Connections, format!("{}: {count} entries", namespace.name));
    }
    finding.evidence.extend(relief::holders(most));
    finding.fixes.extend(relief::sooner(view, most));
    Some(finding)
}

/// One table at its limit would take more than half of the memory.
fn promised(view: &EvidenceView<'_>) -> Option<Finding> {
    let total = view.evidence.machine.memory_bytes.get("MemTotal").copied().filter(|t| *t > 0)?;
    let namespace = view.namespaces().max_by_key(|n| relief::count(n))?;
    let max = relief::limit(view, namespace)?;
    let each = relief::entry_bytes(namespace);
    if (max.saturating_mul(each) as f64) < TOO_MUCH * total as f64 {
        return None;
    }
    // A twentieth of the memory, and never less than what is in use.
    let proposed = (total / 20 / each).max(2 * relief::count(namespace)?).next_multiple_of(512);
    let mut finding = view.machine_finding(CAUSE.id, Severity::Note);
    finding.confidence = Confidence::High;
    finding.summary = format!(
        "nf_conntrack_max allows each namespace {max} entries: {} MB when one table is full, of {} MB there are.",
        max.saturating_mul(each) / 1_000_000,
        total / 1_000_000
    );
    let entries = relief::count(namespace).unwrap_or(0);
    finding.seen(
        EvidenceSource::Settings,
        format!("{MAX} = {max}, {each} bytes an entry, {entries} entries in the largest table"),
    );
    let why = format!("a twentieth of the memory holds {proposed} entries of {each} bytes");
    let setting = relief::setting(view, namespace, MAX, proposed, &why);
    let risk = "if more connections are needed at once than that, new ones are refused";
    finding.fixes.extend(setting.map(|s| Fix::set("allow what memory can hold", risk, vec![s])));
    Some(finding)
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        setup: vec![Step::tracking()],
        traffic: Traffic::datagrams(7000, UdpMode::Echo, 64, 200, 10),
        // 770 GB when it is full.
        machine: vec![(MAX, "2000000000".into())],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::refused::tests::{counted, evidence, refusal};
    use super::*;
    use crate::evidence::Evidence;

    fn seen(counters: &[(&str, u64)], entries: u64, max: u64) -> Evidence {
        let mut namespace = counted(counters);
        namespace.gauges.insert("conntrack.count".into(), entries);
        namespace.connections.as_mut().unwrap().entry_bytes = Some(384);
        let mut evidence = evidence(namespace, vec![refusal(30, 3)]);
        evidence.machine.settings.insert(MAX.into(), max.to_string());
        evidence.machine.memory_bytes.insert("MemTotal".into(), 1 << 30);
        evidence
    }

    /// A gibibyte holds 2,796,202 entries of 384 bytes.
    #[test]
    fn entries_are_set_against_memory() {
        let findings = examine(&EvidenceView::of(&seen(&[], 700_000, 1_000_000)));
        assert_eq!((findings.len(), findings[0].severity), (1, Severity::Warning));
        assert_eq!(examine(&EvidenceView::of(&seen(&[], 600_000, 1_000_000))), []);
        let findings = examine(&EvidenceView::of(&seen(&[], 100, 1_400_000)));
        assert_eq!((findings.len(), findings[0].severity), (1, Severity::Note));
        assert_eq!(
            findings[0].fixes[0].tune[0].proposed,
            ((1_u64 << 30) / 20 / 384).next_multiple_of(512).to_string()
        );
    }

    #[test]
    fn refusals_of_a_roomy_table_are_memory_only_if_that_is_short() {
        let mut evidence = seen(&[("drop", 30)], 100, 1000);
        assert_eq!(examine(&EvidenceView::of(&evidence)), []);
        evidence.machine.memory_events.insert("allocstall_normal".into(), (5, 25).into());
        let [finding] = &examine(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!(finding.claims, [crate::finding::Claim::Drops { group: 0, packets: 30 }]);
        evidence.namespaces[0].gauges.insert("conntrack.count".into(), 990);
        assert_eq!(examine(&EvidenceView::of(&evidence)), []);
    }
}
