//! The queue of a core for packets that came in is full.

use weir_text::order;

use super::hot_core::{Hot, hottest};
use super::lost::per_second;
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::{Core, EvidenceSource, Namespace};
use crate::finding::{Confidence, Finding, Fix, Setting};
use crate::recipe::{Recipe, Step, TcpMode, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "softnet-backlog",
    title: "a core's backlog of received packets is full",
    about: "Packets that come in through veth pairs, tunnels, loopback or Receive Packet Steering wait in a queue of the \
            core that is to handle them. It holds net.core.netdev_max_backlog packets (1,000 by default), for all \
            namespaces together. While it is full, the kernel drops further packets before any rule or route sees them. \
            Containers behind veth pairs and gateways with RPS fill it with bursts.",
    must: &["packets dropped as CPU_BACKLOG, or column 2 of softnet_stat grows"],
    should: &["the core is busy with soft interrupts"],
    must_not: &["the drops come from the flow limit (column 11) alone"],
    lookalikes: &[
        ("softnet-squeeze", "the budget of a round ended early: a delay, and nothing is lost"),
        ("ring-overflow", "the card had no room: rx_missed, and no event"),
        ("hot-core", "one core does all the work while others idle"),
    ],
    yields_to: &["hot-core"],
    remedy: "If the core is not busy all the time, bursts are too long for the queue: allow a longer one. If it is busy all the \
             time, a longer queue only delays: spread the work over more cores, or do less per packet.",
    sources: &[
        "net/core/dev.c: enqueue_to_backlog",
        "Documentation/admin-guide/sysctl/net.rst",
        "Documentation/networking/scaling.rst",
    ],
    recipes,
    ..Cause::of(Group::Queues, examine)
};

/// The sysctl.
const NAME: &str = "net.core.netdev_max_backlog";

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let dropped: u64 = view.evidence.machine.cores.iter().map(|c| c.dropped.change()).sum();
    let found: Vec<Finding> = view.namespaces().filter_map(|n| in_namespace(view, n)).collect();
    // Counters of cores are those of all namespaces, also of such as are not looked at: they speak only where drops cannot.
    if view.sees_drops() || dropped == 0 {
        return found;
    }
    let machine = Namespace { name: "machine".into(), ..Namespace::default() };
    let mut finding = view.machine_finding(CAUSE.id, view.severity_for_all(dropped));
    finding.claims = vec![view.counted(&machine, "softnet.dropped", dropped)];
    finding.missing = view.missing(&machine, &[EvidenceSource::Drops]);
    finding.summary = format!("{dropped} packets had no room in the backlog of a core.");
    describe(view, &mut finding, dropped);
    vec![finding]
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let taken = view.take(namespace, |d| d.reason == "CPU_BACKLOG");
    if taken.is_empty() {
        return None;
    }
    let lost = taken.packets;
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.claims = taken.claims.clone();
    finding.missing = view.missing(namespace, &[EvidenceSource::Cores]);
    let names = taken.groups.iter().filter_map(|g| Some(namespace.interface(g.interface)?.name.as_str()));
    let through = order::set(names).into_iter().collect::<Vec<_>>().join(", ");
    finding.object = through.clone();
    finding.summary = format!(
        "{lost} packets that came in through {through} had no room in the backlog of the core that was to handle them."
    );
    finding.seen(EvidenceSource::Drops, format!("{lost} packets dropped as CPU_BACKLOG"));
    describe(view, &mut finding, lost);
    Some(finding)
}

/// Cores, setting and fixes.
fn describe(view: &EvidenceView<'_>, finding: &mut Finding, lost: u64) {
    let machine = &view.evidence.machine;
    let limited: u64 = machine.cores.iter().map(|c| c.flow_limited.change()).sum();
    let mut core_seen = false;
    for core in machine.cores.iter().filter(|c| c.dropped.change() > 0) {
        core_seen = true;
        let text = format!(
            "core {} dropped {} and handled {}; {:.0} % of its time went to soft interrupts",
            core.number,
            core.dropped.change(),
            core.processed.change(),
            core.share("softirq") * 100.0
        );
        finding.counter(EvidenceSource::Cores, "softnet.dropped", core.dropped, text);
    }
    if core_seen {
        finding.confidence = Confidence::High;
    }
    if limited * 2 > lost {
        finding.seen(
            EvidenceSource::Cores,
            format!("{limited} of them by the flow limit: one flow took more than half of the queue"),
        );
    }
    let Some(now) = machine.setting(NAME) else { return };
    finding.seen(EvidenceSource::Settings, format!("{NAME} = {now}"));
    let busiest = machine.cores.iter().max_by(|a, b| a.share("softirq").total_cmp(&b.share("softirq")));
    let saturated = busiest.is_some_and(is_saturated);
    if let Hot::Alone(core) = hottest(machine) {
        finding.not.push(format!("see also core {}: it alone is busy", core.number));
    }
    if !saturated {
        finding.fixes.push(longer(now, per_second(view, lost)));
    } else {
        finding.not.push("a longer queue does not help: the core that handles it has no time left".into());
    }
}

fn is_saturated(core: &Core) -> bool {
    core.share("softirq") > 0.9
}

/// Bursts: at least the kernel's default, and four times what there is.
fn longer(now: u64, lost_per_second: f64) -> Fix {
    let proposed = now.saturating_mul(4).clamp(1000, 100_000).max(now);
    let why = format!("{lost_per_second:.0} packets a second had no room, and the core had time left");
    Fix::set(
        "let longer bursts wait",
        "packets that wait longer arrive later; each takes some hundred bytes up to some kilobytes of memory",
        vec![Setting::new(NAME, now, proposed, why)],
    )
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        // Without segmentation offload, one write leaves as a burst of some forty packets, handed over before the core that
        // sends them gets to handle them.
        setup: vec![Step::initiator("ethtool -K eth0 tso off gso off")],
        traffic: Traffic::bulk(7001, TcpMode::Sink, 4, None),
        machine: vec![(NAME, "8".into())],
        needs: vec!["ethtool"],
        also: vec!["offloads-off"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Delta, DropGroup, Evidence, Sight};
    use crate::finding::{Claim, Severity};

    fn host(softirq: u64, dropped: u64, seen: bool) -> Evidence {
        let mut evidence = Evidence { window_s: 10.0, ..Evidence::default() };
        let ticks = [("softirq", softirq), ("idle", 1000 - softirq)];
        let ticks = ticks.map(|(n, v)| (n.to_owned(), Delta { before: 5, after: 5 + v })).into();
        evidence.machine.cores =
            vec![Core { ticks, dropped: Delta { before: 1, after: 1 + dropped }, ..Core::default() }];
        evidence.machine.settings.insert(NAME.into(), "1000".into());
        evidence.namespaces.push(Namespace { id: 5, ..Namespace::default() });
        if seen {
            evidence.evidence_sources.insert(EvidenceSource::Drops, Sight::Seen);
            let group = DropGroup {
                namespace: 5,
                reason: "CPU_BACKLOG".into(),
                packets: dropped,
                ..DropGroup::default()
            };
            evidence.drops.push(group);
        }
        evidence
    }

    #[test]
    fn a_burst_asks_for_a_longer_queue_and_a_busy_core_does_not() {
        let evidence = host(300, 400, true);
        let found = examine(&EvidenceView::of(&evidence));
        assert_eq!((found.len(), found[0].namespace, found[0].severity), (1, 5, Severity::Critical));
        assert_eq!(found[0].fixes[0].tune[0].proposed, "4000");
        let evidence = host(990, 400, true);
        assert_eq!(examine(&EvidenceView::of(&evidence))[0].fixes, []);
    }

    #[test]
    fn without_a_look_at_drops_it_is_the_machines() {
        let found = examine(&EvidenceView::of(&host(300, 400, false)));
        assert_eq!(
            found[0].claims,
            [Claim::Counter { namespace: 0, counter: "softnet.dropped".into(), packets: 400 }]
        );
        assert_eq!(found[0].missing, [EvidenceSource::Drops]);
        assert_eq!(examine(&EvidenceView::of(&host(300, 0, false))), []);
        let mut others = host(300, 400, true);
        others.drops.clear();
        assert_eq!(examine(&EvidenceView::of(&others)), [], "packets of namespaces that are not looked at");
    }
}
