//! No memory for fragments that wait.

use super::frames::first_pieces;
use super::ways::Loss;
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::{DropGroup, EvidenceSource, Namespace};
use crate::finding::{Claim, Finding, Fix, Setting};
use crate::recipe::{LabHost, Recipe, Step};

pub(super) const CAUSE: Cause = Cause {
    id: "reassembly-memory",
    title: "memory for fragments used up",
    about: "Fragments wait in a memory of limited size for the rest of their datagram (`net.ipv4.ipfrag_high_thresh`, 4 MB \
            by default, for each network namespace). When it is full, every fragment of a further datagram is dropped at \
            once. It happens with much fragmented traffic (VPNs, NFS over UDP), when fragments are lost on the way and the \
            rest waits for 30 s, and under attack.",
    must: &[
        "ReasmFails grows by more than ReasmTimeout does",
        "packets dropped in ip_defrag or ipv6_frag_rcv",
    ],
    should: &["the memory in use is near the limit"],
    must_not: &["the fragments wait for their time to end"],
    lookalikes: &[(
        "fragments-lost",
        "waiting fragments are dropped when their time is over: ReasmTimeout grows with ReasmFails",
    )],
    remedy: "Allow more memory, or let incomplete datagrams wait less long (`net.ipv4.ipfrag_time`). Better, avoid fragments.",
    sources: &[
        "net/ipv4/inet_fragment.c: inet_frag_alloc",
        "net/ipv4/ip_fragment.c: ip_defrag",
        "Documentation/networking/ip-sysctl.rst",
    ],
    recipes,
    ..Cause::of(Group::Network, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    view.namespaces().flat_map(|n| [in_family(view, n, false), in_family(view, n, true)]).flatten().collect()
}

fn in_family(view: &EvidenceView<'_>, namespace: &Namespace, v6: bool) -> Option<Finding> {
    let (protocol, setting, gauge) = if v6 {
        ("ip6", "net.ipv6.ip6frag_high_thresh", "sockstat6.FRAG6.memory")
    } else {
        ("ip", "net.ipv4.ipfrag_high_thresh", "sockstat.FRAG.memory")
    };
    let failed = namespace.grew(&format!("{protocol}.ReasmFails"));
    let refused = failed.saturating_sub(namespace.grew(&format!("{protocol}.ReasmTimeout")));
    let counter = if v6 { "ip6.ReasmFails" } else { "ip.ReasmFails" };
    let is_mine = |d: &DropGroup| {
        let place = if v6 { ["ipv6_frag_rcv", "nf_ct_frag6_gather"] } else { ["ip_defrag", "ip_defrag"] };
        place.contains(&d.location.as_str())
            && !matches!(d.reason.as_str(), "DUP_FRAG" | "FRAG_TOO_FAR" | "FRAG_REASM_TIMEOUT")
    };
    let mut loss = Loss::of(view, namespace, view.take(namespace, is_mine), &[counter]);
    let used = namespace.gauge(gauge);
    let limit = namespace.setting(setting);
    if loss.taken.is_empty() {
        // Overlaps and broken lengths are in the counter, too: without the drops only a full memory convicts.
        let full = used.zip(limit).is_some_and(|(used, limit)| used as f64 >= 0.9 * limit as f64);
        loss.packets = if full { refused } else { 0 };
        loss.claims =
            vec![Claim::Counter { namespace: namespace.id, counter: counter.into(), packets: refused }];
    }
    let mut finding = loss.finding(view, CAUSE.id, namespace)?;
    let words = match (used, limit) {
        (Some(used), Some(limit)) => format!(" ({used} of {limit} bytes are in use)"),
        (None, Some(limit)) => format!(" ({limit} bytes)"),
        _ => String::new(),
    };
    finding.object = setting.into();
    finding.summary =
        format!("{} fragments were refused: the memory for those that wait is full{words}.", loss.packets);
    if let Some(limit) = limit {
        finding.seen(EvidenceSource::Settings, format!("{setting} = {limit}"));
        finding.fixes.push(more(setting, limit));
    }
    if namespace.grew(&format!("{protocol}.ReasmTimeout")) < refused {
        finding.not.push("not fragments that were lost on the way: ReasmTimeout did not grow as much".into());
    }
    Some(finding)
}

/// The limit that the kernel comes with, or four times of one that is already larger.
fn more(setting: &str, now: u64) -> Fix {
    const USUAL: u64 = 4 << 20;
    let proposed = now.saturating_mul(4).max(USUAL);
    Fix::set(
        "allow more memory for fragments",
        format!(
            "up to {} MB of memory more in this namespace, also for an attacker",
            (proposed - now) / 1_000_000
        ),
        vec![Setting::new(setting, now, proposed, "fragments were refused in the window")],
    )
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        at: LabHost::Responder,
        setup: vec![Step::responder(
            "sysctl -qw net.ipv4.ipfrag_low_thresh=20000; sysctl -qw net.ipv4.ipfrag_high_thresh=30000",
        )],
        traffic: vec![first_pieces()],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{INSIDE, blind, count, datagram, drops, healthy, set};
    use super::*;
    use crate::evidence::Evidence;

    fn case() -> Evidence {
        let mut evidence = healthy();
        let sample = datagram("198.18.0.2", "198.19.0.2", INSIDE);
        evidence.drops.push(drops("NOT_SPECIFIED", "ip_defrag", 700, &[sample]));
        count(&mut evidence, "ip.ReasmFails", 700);
        set(&mut evidence, "net.ipv4.ipfrag_high_thresh", "30000");
        evidence
    }

    #[test]
    fn the_limit_is_raised_to_what_is_usual() {
        let found = examine(&EvidenceView::of(&case()));
        assert_eq!((found.len(), found[0].explains_packets), (1, 0));
        assert_eq!(found[0].fixes[0].commands, ["sysctl -w net.ipv4.ipfrag_high_thresh=4194304"]);
        assert_eq!(found[0].claims, [Claim::Drops { group: 0, packets: 700 }]);
    }

    #[test]
    fn without_drops_only_a_full_memory_convicts() {
        let mut evidence = blind(case());
        assert_eq!(examine(&EvidenceView::of(&evidence)), []);
        evidence.namespaces[0].gauges.insert("sockstat.FRAG.memory".into(), 29_000);
        assert_eq!(examine(&EvidenceView::of(&evidence)).len(), 1);
        count(&mut evidence, "ip.ReasmTimeout", 700);
        assert_eq!(examine(&EvidenceView::of(&evidence)), [], "all of them had waited");
    }

    #[test]
    fn fragments_that_overlap_are_not_this() {
        let mut evidence = case();
        evidence.drops[0].location = "ip_frag_queue".into();
        assert_eq!(examine(&EvidenceView::of(&evidence)), []);
    }
}
