//! A queue before an interface is full.

use super::lost::{address, culprit, named, on, per_second, rate, shaper};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::{Words, sh};
use crate::evidence::{DropGroup, EvidenceSource, Interface, Namespace, Qdisc};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::{FastPathSetup, LabHost, Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "qdisc-full",
    title: "queue before an interface full, or a shaper's rate reached",
    about: "Packets that leave through an interface wait in its queueing discipline. If more come than the interface or \
            the configured rate lets out, the queue fills up to its limit and drops further packets. A shaper (tbf, htb, \
            cake) does so on purpose, to keep a bandwidth that was bought or promised. A plain queue also does so if it is \
            shorter than the bursts that reach it.\n\n\
            Queues that manage themselves (fq_codel, cake, pie, red) drop a few packets as a signal to the senders, before \
            they are full. This is normal, as long as the drops are few.",
    must: &["`dropped` of a queueing discipline grows"],
    should: &[
        "packets dropped as QDISC_DROP or QDISC_OVERLIMIT on the interface that they were to leave by",
        "`overlimits` grows, and the sent rate is close to the configured rate",
        "packets wait in it",
    ],
    must_not: &["the drops are on the receiving side"],
    lookalikes: &[
        (
            "tc-drop",
            "a filter drops by its rules, at any load: TC_EGRESS, and the queue's `dropped` stands still",
        ),
        ("bufferbloat", "the queue is long and nothing is lost: packets are late"),
    ],
    yields_to: &["link-down", "bridge-blocked"],
    remedy: "Find out whether the rate is intended: a shaper that is set to the rate of the line works correctly, and only \
             less traffic or a faster line helps. If it is set too low, raise the rate. If the queue is shorter than \
             normal bursts, raise its limit, or replace it by fq_codel, which keeps the wait short as well.",
    sources: &[
        "net/sched/sch_tbf.c",
        "net/sched/sch_htb.c",
        "net/core/dev.c: __dev_xmit_skb",
        "RFC 7567",
        "RFC 8290",
    ],
    recipes,
    ..Cause::of(Group::Queues, |view| view.each_interface(on_interface))
};

/// Disciplines that drop early on purpose.
const MANAGED: &[&str] =
    &["fq_codel", "codel", "cake", "fq_pie", "pie", "red", "gred", "sfb", "choke", "dualpi2"];

/// Share of its packets that such a one may throw away as a signal: at 2 % a single TCP flow with 20 ms gets about 6 Mbit/s,
/// which is a lack of bandwidth and no signal any more (Mathis et al. 1997).
const SIGNAL: f64 = 0.02;

fn is_mine(drops: &DropGroup) -> bool {
    drops.reason.starts_with("QDISC_")
        || matches!(
            drops.reason.as_str(),
            "CAKE_FLOOD" | "FQ_BAND_LIMIT" | "FQ_FLOW_LIMIT" | "DUALPI2_STEP_DROP"
        )
}

fn on_interface(view: &EvidenceView<'_>, namespace: &Namespace, interface: &Interface) -> Option<Finding> {
    let taken = on(view, namespace, interface, is_mine);
    let qdisc = culprit(interface);
    let counted = qdisc.map_or(0, |q| q.dropped.change());
    if counted == 0 && taken.is_empty() {
        return None;
    }
    let lost = if taken.is_empty() { counted } else { taken.packets };
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.claims = if taken.is_empty() {
        let counter = format!("qdisc.{}.{}", interface.name, qdisc.map_or("", |q| q.handle.as_str()));
        vec![view.counted(namespace, &counter, counted)]
    } else {
        taken.claims
    };
    finding.object = interface.name.clone();
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops]);
    if !taken.groups.is_empty() {
        let reason = &taken.groups[0].reason;
        let text =
            format!("{} packets dropped as {reason} on their way out of {}", taken.packets, interface.name);
        finding.seen(EvidenceSource::Drops, text);
    }
    match qdisc {
        Some(qdisc) => describe(view, interface, qdisc, lost, &mut finding),
        None => {
            finding.missing.extend(view.missing(namespace, &[EvidenceSource::Qdiscs]));
            finding.summary = format!(
                "{lost} packets had no room in the queue of {}; the queue itself was not visible.",
                interface.name
            );
        }
    }
    if qdisc.is_some() && !taken.groups.is_empty() {
        finding.confidence = Confidence::High;
    }
    Some(finding)
}

fn describe(view: &EvidenceView<'_>, interface: &Interface, qdisc: &Qdisc, lost: u64, finding: &mut Finding) {
    // The one inside a shaper has no number of its own.
    let shaper = shaper(interface, qdisc);
    let name = named(shaper.filter(|_| qdisc.handle == "0:").unwrap_or(qdisc));
    let tc = &interface.name;
    let dropped = qdisc.dropped.change();
    finding.object = format!("{tc}: {name}");
    finding.counter(
        EvidenceSource::Qdiscs,
        &format!("qdisc.{tc}.{}.dropped", qdisc.handle),
        qdisc.dropped,
        format!("{name} on {tc} dropped {dropped} packets and sent {} on", qdisc.packets.change()),
    );
    if qdisc.backlog_packets > 0 {
        let text = format!("{} packets ({} bytes) wait in it", qdisc.backlog_packets, qdisc.backlog_bytes);
        finding.seen(EvidenceSource::Qdiscs, text);
    }
    let signal = (dropped as f64) < SIGNAL * (dropped + qdisc.packets.change()) as f64;
    if MANAGED.contains(&qdisc.kind.as_str()) && signal {
        finding.severity = finding.severity.min(Severity::Note);
        finding.summary = format!("{name} on {tc} dropped {lost} packets to slow down senders, as intended.");
        return;
    }
    if let Some(shaper) = shaper {
        let limit = shaper.rate_bps.unwrap_or_default() as f64;
        let sent = per_second(view, shaper.bytes.change()) * 8.0;
        let text = format!("{} is set to {}; it sent {}", named(shaper), rate(limit), rate(sent));
        finding.seen(EvidenceSource::Qdiscs, text);
        finding.summary = format!(
            "The shaper {} on {tc} lets {} through, and {lost} packets that came on top of it were dropped.",
            named(shaper),
            rate(limit)
        );
        finding.fixes.push(faster(interface, shaper));
    } else {
        finding.summary = format!("The queue {name} of {tc} was full, and {lost} packets were dropped.");
    }
    finding.fixes.extend(longer(interface, qdisc));
}

/// Proposes a higher rate. The administrator chose the old rate, and must choose the new one.
fn faster(interface: &Interface, shaper: &Qdisc) -> Fix {
    let dev = &interface.name;
    let rate = shaper.rate_bps.unwrap_or_default();
    let at = address(shaper);
    let kind = shaper.kind.as_str();
    // A change resets every option that it does not name to its default: the reader must copy options that the evidence lacks.
    let change = |rate: &str, extra: &'static str| match (kind, shaper.class) {
        ("htb", true) => sh!(
            "tc class change dev {} parent {} classid {} htb rate {} {}",
            dev,
            class_parent(shaper),
            shaper.handle,
            rate,
            Words::of(extra)
        ),
        ("tbf", _) => {
            let limit = shaper.limit_bytes.unwrap_or_default();
            sh!(
                "tc qdisc change dev {} {} tbf rate {} burst BURST limit {}",
                dev,
                Words::of(&at),
                rate,
                limit
            )
        }
        _ => sh!("tc qdisc change dev {} {} {} bandwidth {}", dev, Words::of(&at), kind, rate),
    };
    let show = match shaper.class {
        true => sh!("tc -d class show dev {}", dev),
        false => sh!("tc -d qdisc show dev {}", dev),
    };
    Fix::new(
        "raise the shaper's rate, if the line carries more",
        "above what the line carries, packets are lost there instead, beyond this host's control",
        [show, change("RATE", "ceil CEIL")],
        [change(&format!("{rate}bit"), "ceil CEIL_BEFORE")],
    )
}

fn class_parent(class: &Qdisc) -> String {
    let major = class.handle.split(':').next().unwrap_or_default();
    if class.parent == "root" { format!("{major}:") } else { class.parent.clone() }
}

/// A limit that bursts of a tenth of a second fit into.
fn longer(interface: &Interface, qdisc: &Qdisc) -> Option<Fix> {
    /// Full frames, and the queue that Linux gave an Ethernet interface for decades (`txqueuelen`).
    const PLAIN: u64 = 1000;
    let dev = &interface.name;
    let at = address(qdisc);
    let (word, now, proposed) = match (qdisc.limit_packets, qdisc.limit_bytes) {
        (Some(now), _) if now < PLAIN => ("packets", now, PLAIN.min(now.saturating_mul(10).max(100))),
        (None, Some(now)) if qdisc.kind == "bfifo" && qdisc.handle != "0:" => {
            ("bytes", now, now.saturating_mul(4))
        }
        _ => return None,
    };
    let kind = &qdisc.kind;
    Some(Fix::new(
        format!("let more {word} wait"),
        "packets that wait longer arrive later: delay grows if the load stays above the rate",
        [sh!("tc qdisc change dev {} {} {} limit {}", dev, Words::of(&at), kind, proposed)],
        [sh!("tc qdisc change dev {} {} {} limit {}", dev, Words::of(&at), kind, now)],
    ))
}

fn recipes() -> Vec<Recipe> {
    let flood = || Traffic::udp_across(600, 1500, 4);
    let shaper = "tc qdisc add dev outside root handle 1: tbf rate 2mbit burst 5000 limit 10000";
    let class = "tc qdisc add dev outside root handle 1: htb default 10; \
                 tc class add dev outside parent 1: classid 1:10 htb rate 3mbit; \
                 tc qdisc add dev outside parent 1:10 handle 10: pfifo limit 5";
    vec![
        Recipe::named("shaper", vec![Step::gateway(shaper)], flood()),
        Recipe::named("class", vec![Step::gateway(class)], flood()),
        // The fast path redirects what it carries, and does not go round the shaper.
        Recipe::named(
            "fastpath",
            vec![
                Step::masquerade(),
                Step::FastPath(LabHost::Gateway, FastPathSetup::default()),
                Step::gateway(shaper),
            ],
            flood(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Delta, Evidence, Sight};

    fn qdisc(kind: &str, handle: &str, parent: &str, sent: u64, dropped: u64) -> Qdisc {
        Qdisc {
            kind: kind.into(),
            handle: handle.into(),
            parent: parent.into(),
            packets: Delta { before: 10, after: 10 + sent },
            bytes: Delta { before: 0, after: sent * 1000 },
            dropped: Delta { before: 7, after: 7 + dropped },
            ..Qdisc::default()
        }
    }

    fn host(qdiscs: Vec<Qdisc>, drops: Vec<(u32, &str, u64)>, sees_drops: bool) -> Evidence {
        let outside = Interface { index: 3, name: "wan 0".into(), qdiscs, ..Interface::default() };
        let mut evidence = Evidence { window_s: 10.0, ..Evidence::default() };
        evidence.namespaces.push(Namespace { id: 5, interfaces: vec![outside], ..Namespace::default() });
        let group = |(interface, reason, packets): (u32, &str, u64)| DropGroup {
            namespace: 5,
            reason: reason.into(),
            location: "__dev_queue_xmit".into(),
            interface,
            packets,
            ..DropGroup::default()
        };
        evidence.drops = drops.into_iter().map(group).collect();
        let sight = if sees_drops { Sight::Seen } else { Sight::Blind("hidden".into()) };
        evidence.evidence_sources.insert(EvidenceSource::Drops, sight);
        evidence
    }

    #[test]
    fn the_class_that_sets_the_pace_and_its_queue_are_named() {
        let mut class = qdisc("htb", "1:10", "root", 500, 0);
        (class.class, class.rate_bps) = (true, Some(400_000));
        let mut leaf = qdisc("pfifo", "10:", "1:10", 500, 90);
        leaf.limit_packets = Some(5);
        let qdiscs = vec![qdisc("htb", "1:", "root", 500, 90), class, leaf];
        let evidence = host(qdiscs, vec![(3, "QDISC_DROP", 90), (4, "QDISC_DROP", 11)], true);
        let found = (CAUSE.examine)(&EvidenceView::of(&evidence));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].severity, found[0].confidence), (Severity::Critical, Confidence::High));
        assert_eq!(found[0].object, "wan 0: pfifo 10:");
        assert!(
            found[0].summary.contains("htb 1:10") && found[0].summary.contains("400 kbit/s"),
            "{:?}",
            found[0]
        );
        assert_eq!(found[0].claims, [crate::finding::Claim::Drops { group: 0, packets: 90 }]);
        assert_eq!(
            found[0].fixes[0].undo,
            ["tc class change dev 'wan 0' parent 1: classid 1:10 htb rate 400000bit ceil CEIL_BEFORE"]
        );
        assert_eq!(
            found[0].fixes[1].commands,
            ["tc qdisc change dev 'wan 0' parent 1:10 handle 10: pfifo limit 100"]
        );
    }

    #[test]
    fn without_a_look_at_drops_the_counter_convicts() {
        let mut shaper = qdisc("tbf", "1:", "root", 500, 60);
        (shaper.rate_bps, shaper.limit_bytes) = (Some(2_000_000), Some(9000));
        let inner = qdisc("bfifo", "0:", "1:1", 500, 60);
        let evidence = host(vec![shaper, inner], Vec::new(), false);
        let found = (CAUSE.examine)(&EvidenceView::of(&evidence));
        assert!(
            found[0].summary.contains("tbf 1:") && found[0].missing == [EvidenceSource::Drops],
            "{found:?}"
        );
        assert!(
            matches!(&found[0].claims[..], [crate::finding::Claim::Counter { packets: 60, .. }]),
            "{found:?}"
        );
        assert_eq!(found[0].fixes.len(), 1, "the inner queue is the shaper's own: {:?}", found[0].fixes);
    }

    #[test]
    fn a_queue_that_signals_is_no_fault() {
        let few =
            host(vec![qdisc("fq_codel", "8001:", "root", 50_000, 40)], vec![(3, "QDISC_DROP", 40)], true);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&few))[0].severity, Severity::Note);
        let many = host(vec![qdisc("fq_codel", "8001:", "root", 500, 90)], vec![(3, "QDISC_DROP", 90)], true);
        assert!((CAUSE.examine)(&EvidenceView::of(&many))[0].severity > Severity::Note);
        let none = host(vec![qdisc("tbf", "1:", "root", 500, 0)], vec![(3, "TC_EGRESS", 90)], true);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&none)), []);
    }
}
