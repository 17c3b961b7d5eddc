//! The table of neighbours is full.

use super::frames::{Datagram, frame};
use super::ways::Loss;
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::{Delta, EvidenceSource, Namespace};
use crate::finding::{Claim, Confidence, Fact, Finding, Fix, Setting, Severity};
use crate::recipe::{LabHost, Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "neighbour-table-full",
    title: "neighbour table full",
    about: "Each host on a link that this machine speaks with takes an entry in a table, of which there is one for ARP and \
            one for IPv6 on the whole machine, all containers included. With as many entries as `gc_thresh3` (1024 by \
            default), and none that may be removed, packets to further hosts are dropped, and connections to them fail at \
            random. Large flat networks, Kubernetes nodes and scans of a network fill it.",
    must: &["packets dropped as NEIGH_CREATEFAIL, or table_fulls grows"],
    should: &["`neighbour table overflow` in the kernel's log", "as many entries as gc_thresh3 allows"],
    must_not: &["hosts that are in the table are affected"],
    lookalikes: &[("neighbour-unresolved", "there is an entry, and the host does not answer")],
    remedy: "Allow more entries: gc_thresh3 is the limit, gc_thresh2 is the number that may stay for a while, and below \
             gc_thresh1 the kernel removes none. An entry takes about half a kilobyte.",
    sources: &["net/core/neighbour.c: neigh_alloc", "arp(7)"],
    recipes,
    ..Cause::of(Group::Network, examine)
};

/// Kernel counters for the whole machine: it has one table for all namespaces.
const COUNTERS: [&str; 2] = ["arp_cache.table_fulls", "ndisc_cache.table_fulls"];

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    if !view.sees_drops() {
        return by_counter(view).into_iter().collect();
    }
    view.namespaces().filter_map(|n| in_namespace(view, n)).collect()
}

fn overflows(view: &EvidenceView<'_>) -> Vec<Fact> {
    let machine = &view.evidence.machine.counters;
    let moved = COUNTERS.iter().filter_map(|c| Some((*c, *machine.get(*c)?))).filter(|(_, d)| d.change() > 0);
    let fact = |(name, delta): (&str, Delta)| {
        Fact::counter(EvidenceSource::Counters, name, delta, format!("{name} grew by {}", delta.change()))
    };
    moved.map(fact).collect()
}

/// Which namespace it was, only the drops would tell.
fn by_counter(view: &EvidenceView<'_>) -> Option<Finding> {
    let machine = &view.evidence.machine;
    let grew = |c: &str| machine.counters.get(c).map_or(0, |d| d.change());
    let [v4, v6] = COUNTERS.map(grew);
    if v4 + v6 == 0 {
        return None;
    }
    let mut finding = view.machine_finding(CAUSE.id, Severity::Warning);
    finding.claims = COUNTERS
        .iter()
        .filter(|c| grew(c) > 0)
        .map(|c| Claim::Counter { namespace: 0, counter: (*c).into(), packets: grew(c) })
        .collect();
    finding.evidence = overflows(view);
    finding.missing = vec![EvidenceSource::Drops];
    let family = if v6 > v4 { "ipv6" } else { "ipv4" };
    finding.object = format!("net.{family}.neigh.default.gc_thresh3");
    finding.summary = format!(
        "The machine's neighbour table was full {} times: hosts that are not in it are out of reach.",
        v4 + v6
    );
    let limit = machine.setting(&finding.object);
    finding.fixes.extend(limit.map(|limit| larger(view, family, limit)));
    Some(finding)
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let taken = view.take(namespace, |d| d.reason == "NEIGH_CREATEFAIL");
    let loss = Loss::of(view, namespace, taken, &[]);
    let mut finding = loss.finding(view, CAUSE.id, namespace)?;
    let overflows = overflows(view);
    if !overflows.is_empty() {
        finding.confidence = Confidence::High;
    }
    finding.evidence.extend(overflows);
    let v6 = loss.taken.groups.iter().max_by_key(|g| g.packets).is_some_and(|g| g.ethertype == 0x86dd);
    let family = if v6 { "ipv6" } else { "ipv4" };
    let entries = namespace.neighbours.as_ref().map(|n| n.states.values().sum::<u64>());
    let example = loss.taken.example();
    let to = example.map_or(String::new(), |t| format!(", such as to {}", t.destination));
    let limit = view.evidence.machine.setting(&format!("net.{family}.neigh.default.gc_thresh3"));
    let words = limit.map_or(String::new(), |l| format!(" of {l} entries"));
    finding.object = format!("net.{family}.neigh.default.gc_thresh3");
    finding.summary = format!(
        "The neighbour table{words} is full: {} packets to hosts that are not in it were lost{to}.",
        loss.packets
    );
    finding.severity =
        finding.severity.max(if loss.packets >= 10 { Severity::Warning } else { Severity::Note });
    if let Some(entries) = entries {
        finding.seen(EvidenceSource::Neighbours, format!("{entries} entries are this namespace's"));
    }
    let log = view.evidence.machine.log.iter().filter(|l| l.contains("table overflow")).take(1);
    let facts: Vec<_> = log.map(|l| Fact::seen(EvidenceSource::Log, l.as_str())).collect();
    if !facts.is_empty() {
        finding.confidence = Confidence::High;
    }
    finding.evidence.extend(facts);
    finding.fixes.extend(limit.map(|limit| larger(view, family, limit)));
    Some(finding)
}

/// Four times as many, and the lower marks in the kernel's own proportion (1 : 4 : 8).
fn larger(view: &EvidenceView<'_>, family: &str, limit: u64) -> Fix {
    let machine = &view.evidence.machine;
    let most = limit.saturating_mul(4).max(1024);
    let marks = [("gc_thresh3", most), ("gc_thresh2", most / 2), ("gc_thresh1", most / 8)];
    let risk = format!("about {} KB of memory more when it fills", most.saturating_sub(limit) / 2);
    let settings = marks.into_iter().filter_map(|(mark, proposed)| {
        let name = format!("net.{family}.neigh.default.{mark}");
        let now = machine.setting(&name)?;
        Some(Setting::new(name, now, proposed, "the table was full in the window"))
    });
    Fix::set("allow more neighbours", risk, settings.collect())
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        setup: vec![
            // More addresses on the link than the table holds.
            Step::responder("ip addr add 198.19.0.2/20 dev eth0 && ip addr del 198.19.0.2/24 dev eth0"),
            Step::gateway("ip addr add 198.19.15.1/20 dev outside"),
        ],
        traffic: vec![Traffic::Frames {
            from: LabHost::Initiator,
            rate: 1000,
            frames: |own, peer| {
                let one = |number: u16| {
                    let [high, low] = (256 + number).to_be_bytes();
                    frame(own, peer, Datagram::whole([198, 18, 0, 2], [198, 19, high, low], number, 40))
                };
                (0..600).map(one).collect()
            },
        }],
        machine: vec![
            ("net.ipv4.neigh.default.gc_thresh1", "50".into()),
            ("net.ipv4.neigh.default.gc_thresh2", "100".into()),
            ("net.ipv4.neigh.default.gc_thresh3", "200".into()),
        ],
        also: vec!["neighbour-unresolved", "neighbour-queue-full"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{INSIDE, blind, datagram, drops, healthy};
    use super::*;

    #[test]
    fn the_limit_and_its_lower_marks_are_raised() {
        let mut evidence = healthy();
        let sample = datagram("198.18.0.2", "198.19.9.9", INSIDE);
        evidence.drops.push(drops("NEIGH_CREATEFAIL", "ip_finish_output2", 60, &[sample]));
        for (name, value) in [("gc_thresh1", "128"), ("gc_thresh2", "512"), ("gc_thresh3", "1024")] {
            evidence.machine.settings.insert(format!("net.ipv4.neigh.default.{name}"), value.into());
        }
        let found = examine(&EvidenceView::of(&evidence));
        let fix = &found[0].fixes[0];
        assert_eq!(fix.commands[0], "sysctl -w net.ipv4.neigh.default.gc_thresh3=4096");
        assert_eq!(fix.tune.iter().map(|s| s.proposed.as_str()).collect::<Vec<_>>(), ["4096", "2048", "512"]);
        assert_eq!(found[0].confidence, Confidence::Medium);
        evidence.machine.log.push("neighbour: arp_cache: neighbor table overflow!".into());
        assert_eq!(examine(&EvidenceView::of(&evidence))[0].confidence, Confidence::High);
    }

    #[test]
    fn the_counter_convicts_where_drops_are_out_of_sight() {
        let mut evidence = blind(healthy());
        assert_eq!(examine(&EvidenceView::of(&evidence)), []);
        evidence.machine.counters.insert("arp_cache.table_fulls".into(), Delta { before: 0, after: 40 });
        assert_eq!(examine(&EvidenceView::of(&evidence)).len(), 1);
        let mut failed = healthy();
        let sample = datagram("198.18.0.2", "198.19.9.9", INSIDE);
        failed.drops.push(drops("NEIGH_FAILED", "neigh_invalidate", 60, &[sample]));
        assert_eq!(examine(&EvidenceView::of(&failed)), []);
    }
}
