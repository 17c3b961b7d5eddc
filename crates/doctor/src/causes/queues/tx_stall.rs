//! A card stops sending.

use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Interface, Namespace};
use crate::finding::{Confidence, Fact, Finding, Fix, Severity};

pub(super) const CAUSE: Cause = Cause {
    id: "tx-stall",
    title: "a card stops sending",
    about: "A card takes packets to send from a ring and reports when they are out. When it reports nothing for some \
            seconds, the kernel's watchdog resets it: until then all packets for it wait or are lost, and with the reset \
            the link goes down for a moment. Firmware, drivers, faulty offloads and, on virtual machines, a host that does \
            not serve the queue are the usual reasons.",
    must: &["the kernel's log reports a transmit queue that timed out, or the driver's tx_timeout grows"],
    should: &["packets wait in the queue before it, and none left in the window"],
    must_not: &["the other end paused it (flow control): then its pause counters grow"],
    lookalikes: &[("qdisc-full", "the queue sends packets, but too few")],
    remedy: "Update driver and firmware; switch segmentation and scatter-gather offload off to see whether it stops.",
    sources: &[
        "net/sched/sch_generic.c: dev_watchdog",
        "Documentation/networking/netdevices.rst: ndo_tx_timeout",
    ],
    not_injected: Some("only a real card can stop"),
    ..Cause::of(Group::Queues, |view| view.each_interface(on_interface))
};

fn on_interface(view: &EvidenceView<'_>, namespace: &Namespace, interface: &Interface) -> Option<Finding> {
    // "NETDEV WATCHDOG: eth0 (virtio_net): transmit queue 0 timed out" (since 6.4 "NETDEV WATCHDOG: CPU: 1: transmit queue
    // 0 timed out 5120 ms" behind the name of the device).
    let named = |line: &&String| {
        line.contains("transmit queue") && line.contains("timed out") && mentions(line, &interface.name)
    };
    let line = view.evidence.machine.log.iter().find(named).filter(|_| interface.kind.is_empty());
    let counted: u64 = timeouts(interface).map(|(_, d)| d).sum();
    if line.is_none() && counted == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = Severity::Critical;
    finding.confidence = if line.is_some() && counted > 0 { Confidence::High } else { Confidence::Medium };
    finding.object = interface.name.clone();
    // Seconds of the window in which nothing could leave.
    finding.impact = 0.5;
    finding.summary = format!(
        "{} stopped sending until the kernel's watchdog reset it: packets for it waited or were lost.",
        interface.name
    );
    finding.evidence.extend(line.map(|l| Fact::seen(EvidenceSource::Log, l.clone())));
    for (name, times) in timeouts(interface) {
        finding.seen(EvidenceSource::Driver, format!("{name} of {} grew by {times}", interface.name));
    }
    finding.missing = view.missing(namespace, &[EvidenceSource::Log, EvidenceSource::Driver]);
    finding.fixes = fixes(interface);
    Some(finding)
}

/// True if the name stands there as a word.
fn mentions(line: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '@');
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].chars().next_back().is_none_or(|c| !is_part(c));
        before && line[at + name.len()..].chars().next().is_none_or(|c| !is_part(c))
    })
}

fn timeouts(interface: &Interface) -> impl Iterator<Item = (&str, u64)> {
    let counters = interface.driver_counters.iter();
    counters
        .filter(|(n, _)| n.contains("tx_timeout"))
        .map(|(n, d)| (n.as_str(), d.change()))
        .filter(|(_, n)| *n > 0)
}

fn fixes(interface: &Interface) -> Vec<Fix> {
    let dev = &interface.name;
    vec![
        Fix::look(
            "see driver, firmware and what it reported",
            [sh!("ethtool -i {}", dev), sh!("dmesg --level=err,warn | tail -50")],
        ),
        Fix::new(
            "try without segmentation offload",
            "costs CPU",
            [sh!("ethtool -K {} tso off gso off", dev)],
            [sh!("ethtool -K {} tso on gso on", dev)],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Delta, Evidence};

    fn host(log: &str, counters: &[(&str, u64)]) -> Evidence {
        let counters =
            counters.iter().map(|(n, v)| ((*n).to_owned(), Delta { before: 1, after: 1 + v })).collect();
        let eth1 = Interface { name: "eth1".into(), driver_counters: counters, ..Interface::default() };
        let eth10 = Interface { name: "eth10".into(), ..Interface::default() };
        let mut evidence = Evidence { window_s: 10.0, ..Evidence::default() };
        evidence.namespaces.push(Namespace { id: 5, interfaces: vec![eth1, eth10], ..Namespace::default() });
        evidence.machine.log.push(log.into());
        evidence
    }

    #[test]
    fn the_interface_that_the_log_names_is_found() {
        let old = "NETDEV WATCHDOG: eth1 (igb): transmit queue 2 timed out";
        let new = "igb 0000:02:00.0 eth1: NETDEV WATCHDOG: CPU: 3: transmit queue 2 timed out 5120 ms";
        for line in [old, new] {
            let found = (CAUSE.examine)(&EvidenceView::of(&host(line, &[])));
            assert_eq!(found.iter().map(|f| f.object.as_str()).collect::<Vec<_>>(), ["eth1"], "{line}");
        }
        let found = (CAUSE.examine)(&EvidenceView::of(&host("", &[("tx_timeout_count", 1)])));
        assert_eq!((found.len(), found[0].severity), (1, Severity::Critical));
    }

    #[test]
    fn other_lines_are_not_its() {
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&host("eth1: Link is Down", &[("tx_packets", 9)]))), []);
        assert_eq!(
            (CAUSE.examine)(&EvidenceView::of(&host(
                "NETDEV WATCHDOG: veth1 (x): transmit queue 0 timed out",
                &[]
            ))),
            []
        );
    }
}
