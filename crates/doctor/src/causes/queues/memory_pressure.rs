//! The kernel has no memory for packets.

use super::lost::per_second;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::EvidenceSource;
use crate::finding::{Claim, Confidence, Finding, Fix, Setting};

pub(super) const CAUSE: Cause = Cause {
    id: "memory-pressure",
    title: "no memory for packets",
    about: "Packets are received in interrupts, where the kernel cannot wait for memory to be freed: it takes from a \
            reserve (vm.min_free_kbytes), and when that is empty, the packet is lost. Before that, programs and the kernel \
            itself stall while memory is reclaimed, and their answers are late.",
    must: &[
        "packets dropped as NOMEM or PFMEMALLOC, or all programs stalled for memory (memory.full of PSI)",
    ],
    should: &["allocstall and direct reclaim in /proc/vmstat grow", "MemAvailable is small"],
    must_not: &["only a control group is at its limit: then that is the cause"],
    lookalikes: &[
        ("cgroup-memory", "the limit of one control group; the machine has memory"),
        ("tcp-memory", "net.ipv4.tcp_mem is reached; the machine has memory"),
        ("udp-memory", "net.ipv4.udp_mem is reached, likewise"),
    ],
    yields_to: &["cgroup-memory", "tcp-memory", "udp-memory"],
    remedy: "Find the program that takes the memory. Until then a larger reserve keeps packets alive in bursts.",
    sources: &[
        "mm/page_alloc.c",
        "Documentation/admin-guide/sysctl/vm.rst: min_free_kbytes",
        "Documentation/accounting/psi.rst",
    ],
    not_injected: Some("it would starve the machine that the self-test runs on"),
    ..Cause::of(Group::Queues, examine)
};

/// Reasons that are it. PROTO_MEM is a protocol's own limit.
const REASONS: &[&str] = &["NOMEM", "PFMEMALLOC"];
/// Share of the window in which nothing at all ran for want of memory, from which on it is worth a word.
const WORTH: f64 = 0.02;

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let machine = &view.evidence.machine;
    let mut claims = Vec::new();
    let mut lost = 0;
    for namespace in view.namespaces() {
        let taken = view.take(namespace, |d| REASONS.contains(&d.reason.as_str()));
        let counted = namespace.grew("tcpext.PFMemallocDrop");
        if taken.is_empty() && counted > 0 {
            claims.push(view.counted(namespace, "tcpext.PFMemallocDrop", counted));
        }
        lost += if taken.is_empty() { counted } else { taken.packets };
        claims.extend(taken.claims);
    }
    let stalled_us = machine.pressure_us.get("memory.full").copied().unwrap_or_default();
    let stalled = per_second(view, stalled_us.change()) / 1e6;
    let killed = machine.memory_events.get("oom_kill").copied().unwrap_or_default();
    if lost == 0 && stalled < WORTH {
        return Vec::new();
    }
    let mut finding = view.machine_finding(CAUSE.id, view.severity_for_all(lost));
    finding.claims = claims;
    finding.summary = if lost > 0 {
        format!("{lost} packets were lost because the kernel had no memory for them.")
    } else {
        format!(
            "For {:.0} % of the time all programs waited for memory; packets and answers are late.",
            stalled * 100.0
        )
    };
    if lost > 0 {
        finding.seen(EvidenceSource::Drops, format!("{lost} packets dropped because memory was missing"));
    }
    if stalled_us.change() > 0 {
        let text = format!("all programs stalled for {} ms", stalled_us.change() / 1000);
        finding.counter(EvidenceSource::Pressure, "memory.full", stalled_us, text);
    }
    for (name, delta) in machine.memory_events.iter().filter(|(_, d)| d.change() > 0) {
        finding.counter(EvidenceSource::Pressure, name, *delta, format!("{name} grew by {}", delta.change()));
    }
    let available = machine.memory_bytes.get("MemAvailable").copied();
    if let Some(bytes) = available {
        finding.seen(EvidenceSource::Pressure, format!("{} MB of memory are available", bytes / 1_000_000));
    }
    if killed.change() > 0 || lost > 0 && stalled >= WORTH {
        finding.confidence = Confidence::High;
    }
    finding.fixes = fixes(view, &finding.claims, lost);
    vec![finding]
}

fn fixes(view: &EvidenceView<'_>, claims: &[Claim], lost: u64) -> Vec<Fix> {
    const NAME: &str = "vm.min_free_kbytes";
    let mut fixes = vec![Fix::look(
        "find the program that takes the memory",
        [sh!("ps -eo pid,rss,comm --sort=-rss | head"), sh!("slabtop -o -s c | head -20")],
    )];
    let now = view.evidence.machine.setting(NAME).filter(|_| !claims.is_empty());
    if let Some(now) = now {
        let total = view.evidence.machine.memory_bytes.get("MemTotal").copied().unwrap_or_default();
        // Never more than a fiftieth of the memory.
        let proposed = now.saturating_mul(2).min(total / 1024 / 50).max(now);
        if proposed > now {
            let why = format!("{lost} packets found no memory in the window");
            fixes.push(Fix::set(
                "keep a larger reserve for packets",
                "programs get that much less memory",
                vec![Setting::new(NAME, now, proposed, why)],
            ));
        }
    }
    fixes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Delta, DropGroup, Evidence, Namespace};
    use crate::finding::Severity;

    fn host(reason: &str, lost: u64, stalled_us: u64) -> Evidence {
        let mut evidence = Evidence { window_s: 10.0, ..Evidence::default() };
        evidence.namespaces.push(Namespace { id: 5, ..Namespace::default() });
        evidence.machine.settings.insert("vm.min_free_kbytes".into(), "10000".into());
        evidence.machine.memory_bytes.insert("MemTotal".into(), 8 << 30);
        evidence.machine.pressure_us.insert("memory.full".into(), Delta { before: 5, after: 5 + stalled_us });
        if lost > 0 {
            let group =
                DropGroup { namespace: 5, reason: reason.into(), packets: lost, ..DropGroup::default() };
            evidence.drops.push(group);
        }
        evidence
    }

    #[test]
    fn packets_without_memory_are_a_loss_and_stalls_a_note() {
        let found = examine(&EvidenceView::of(&host("NOMEM", 40, 900_000)));
        assert_eq!((found[0].severity, found[0].confidence), (Severity::Critical, Confidence::High));
        assert_eq!(found[0].fixes[1].commands, ["sysctl -w vm.min_free_kbytes=20000"]);
        let found = examine(&EvidenceView::of(&host("", 0, 900_000)));
        assert_eq!((found[0].severity, found[0].claims.len()), (Severity::Note, 0));
        assert_eq!(examine(&EvidenceView::of(&host("PROTO_MEM", 40, 90_000))), []);
    }
}
