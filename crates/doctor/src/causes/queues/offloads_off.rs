//! Offloads that make few large packets of many small ones are switched off.

use super::lost::{per_second, rate};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::{Words, sh};
use crate::evidence::{Core, EvidenceSource, Interface, Namespace};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::{LabHost, Recipe, Step, TcpMode, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "offloads-off",
    title: "segmentation or receive offload is off",
    about: "The kernel's cost is per packet. Segmentation offload (TSO, GSO) lets TCP hand down packets of up to 64 kB \
            that are cut at the last moment; generic receive offload (GRO) puts received ones together again before \
            routes, rules and sockets see them. With one of them off, each full-size frame takes the whole path by itself, \
            and bulk traffic costs several times the CPU. They are switched off by hand against old driver bugs, by XDP \
            programs and by some tunnels, and then forgotten.",
    must: &[
        "tx-generic-segmentation, tx-tcp-segmentation or rx-gro is off",
        "thousands of full-size packets a second pass there",
    ],
    should: &["a core has no time left"],
    must_not: &["traffic of small packets: offloads do not help it"],
    lookalikes: &[("hot-core", "one core is full; offloads are on")],
    remedy: "Switch them on again, one by one, and see whether the reason for which they were switched off still holds.",
    sources: &["Documentation/networking/segmentation-offloads.rst", "ethtool(8)"],
    recipes,
    ..Cause::of(Group::Queues, |view| view.each_interface(on_interface))
};

/// Packets in a second below which offloads make no difference worth a word.
const MANY: f64 = 4000.0;
/// Mean length of packets from which on they are bulk, bytes.
const BULK: u64 = 900;
/// Share of a core's time that must be left for it to be not full.
const LEFT: f64 = 0.1;

/// Bulk packets in a second in a direction; `None` if it is not bulk.
fn bulk(view: &EvidenceView<'_>, interface: &Interface, packets: &str, bytes: &str) -> Option<f64> {
    let (packets, bytes) = (interface.grew(packets), interface.grew(bytes));
    let often = per_second(view, packets);
    (often >= MANY && bytes / packets.max(1) >= BULK).then_some(often)
}

/// Finds useful offloads that are off, by ethtool's short names, and the affected packets per second.
fn missing(view: &EvidenceView<'_>, interface: &Interface) -> (Vec<&'static str>, f64) {
    let off = |name: &str| interface.features.get(name) == Some(&false);
    let mut found = Vec::new();
    let mut often: f64 = 0.0;
    // A bridge, tunnel or loopback hands on what it gets; whose ends are cards or veth pairs cut and merge.
    let ends = interface.kind.is_empty() && interface.name != "lo" || interface.kind == "veth";
    if !ends {
        return (found, often);
    }
    if let Some(out) = bulk(view, interface, "tx_packets", "tx_bytes") {
        if off("tx-tcp-segmentation") {
            found.push("tso");
        }
        if off("tx-generic-segmentation") {
            found.push("gso");
        }
        if !found.is_empty() {
            often = out;
        }
    }
    // Veth pairs have GRO off by default: their other end does not cut what need not be cut.
    if let Some(inward) = bulk(view, interface, "rx_packets", "rx_bytes")
        && interface.kind.is_empty()
        && off("rx-gro")
    {
        found.push("gro");
        often += inward;
    }
    (found, often)
}

fn on_interface(view: &EvidenceView<'_>, namespace: &Namespace, interface: &Interface) -> Option<Finding> {
    let (off, often) = missing(view, interface);
    // TSO alone is no loss: GSO does the same in software just before the driver.
    if off.is_empty() || off == ["tso"] {
        return None;
    }
    let full = view.evidence.machine.cores.iter().find(|c| is_full(c));
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = if full.is_some() { Severity::Warning } else { Severity::Note };
    finding.confidence = if full.is_some() { Confidence::Medium } else { Confidence::Low };
    finding.object.clone_from(&interface.name);
    let list = off.join(" and ");
    finding.summary = format!(
        "{list} of {} is off, and {often:.0} full-size packets a second take the whole path one by one{}.",
        interface.name,
        if full.is_some() { ", while a core has no time left" } else { "" }
    );
    for name in ["tx-tcp-segmentation", "tx-generic-segmentation", "rx-gro"] {
        if let Some(on) = interface.features.get(name) {
            let state = if *on { "on" } else { "off" };
            finding.seen(EvidenceSource::Interfaces, format!("{name} of {} is {state}", interface.name));
        }
    }
    for (way, packets, bytes) in [("out", "tx_packets", "tx_bytes"), ("in", "rx_packets", "rx_bytes")] {
        let (packets, bytes) = (interface.grew(packets), interface.grew(bytes));
        let text = format!(
            "{way}: {:.0} packets a second of {} bytes on average, {}",
            per_second(view, packets),
            bytes / packets.max(1),
            rate(per_second(view, bytes) * 8.0)
        );
        finding.seen(EvidenceSource::Interfaces, text);
    }
    if let Some(core) = full {
        finding.impact = 0.02;
        let text = format!("core {} is idle for {:.0} % of the time", core.number, idle(core) * 100.0);
        finding.seen(EvidenceSource::Cores, text);
    }
    let dev = &interface.name;
    let switch = |state: &'static str| {
        let words = off.iter().flat_map(|o| o.split(' ').chain([state])).collect();
        sh!("ethtool -K {} {}", dev, Words(words))
    };
    finding.fixes.push(Fix::new(
        "switch it on",
        "the reason for switching it off may come back: watch for retransmissions and wrong checksums",
        [switch("on")],
        [switch("off")],
    ));
    Some(finding)
}

fn idle(core: &Core) -> f64 {
    core.share("idle") + core.share("iowait")
}

/// True if the core is full, with any kind of work: the time that packets cost is then missing elsewhere.
fn is_full(core: &Core) -> bool {
    !core.ticks.is_empty() && idle(core) < LEFT
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        at: LabHost::Gateway,
        setup: vec![Step::gateway("ethtool -K outside tso off gso off")],
        // Less than a busy machine carries: the receiver must not be what is short of time.
        traffic: Traffic::bulk(7001, TcpMode::Sink, 2, Some(200_000_000)),
        needs: vec!["ethtool"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Delta, Evidence};

    fn host(kind: &str, off: &[&str], packets: u64, size: u64, idle: u64) -> Evidence {
        let all = ["tx-tcp-segmentation", "tx-generic-segmentation", "rx-gro"];
        let features = all.map(|n| (n.to_owned(), !off.contains(&n))).into();
        let grown = |v: u64| Delta { before: 8, after: 8 + v };
        let counters = ["rx", "tx"].into_iter().flat_map(|way| {
            [(format!("{way}_packets"), grown(packets)), (format!("{way}_bytes"), grown(packets * size))]
        });
        let interface = Interface {
            name: "eth0".into(),
            kind: kind.into(),
            features,
            counters: counters.collect(),
            ..Interface::default()
        };
        let mut evidence = Evidence { window_s: 10.0, ..Evidence::default() };
        let ticks = [("system", 1000 - idle), ("idle", idle)];
        let ticks = ticks.map(|(n, v)| (n.to_owned(), Delta { before: 3, after: 3 + v })).into();
        evidence.machine.cores.push(Core { ticks, ..Core::default() });
        evidence.namespaces.push(Namespace { id: 5, interfaces: vec![interface], ..Namespace::default() });
        evidence
    }

    #[test]
    fn bulk_traffic_without_gro_is_found_and_worse_on_a_full_core() {
        let found = (CAUSE.examine)(&EvidenceView::of(&host("", &["rx-gro"], 500_000, 1500, 20)));
        assert_eq!(
            (found[0].severity, found[0].fixes[0].commands[0].as_str()),
            (Severity::Warning, "ethtool -K eth0 gro on")
        );
        let found = (CAUSE.examine)(&EvidenceView::of(&host("", &["rx-gro"], 500_000, 1500, 700)));
        assert_eq!(found[0].severity, Severity::Note);
        let both = ["tx-tcp-segmentation", "tx-generic-segmentation"];
        let found = (CAUSE.examine)(&EvidenceView::of(&host("veth", &both, 500_000, 1500, 20)));
        assert_eq!(found[0].fixes[0].undo, ["ethtool -K eth0 tso off gso off"]);
    }

    #[test]
    fn where_it_would_not_help_nothing_is_said() {
        for evidence in [
            host("veth", &["rx-gro"], 500_000, 1500, 20),
            host("", &["rx-gro"], 500_000, 120, 20),
            host("", &["rx-gro"], 20_000, 1500, 20),
            host("", &["tx-tcp-segmentation"], 500_000, 1500, 20),
            host("", &[], 500_000, 1500, 20),
            host("bridge", &["tx-generic-segmentation"], 500_000, 1500, 20),
        ] {
            assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence)), []);
        }
    }
}
