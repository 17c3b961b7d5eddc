//! A filter or program of tc drops packets.

use super::lost::on;
use super::programs::attach_tc;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::{Words, sh};
use crate::evidence::{BpfProgram, DropGroup, EvidenceSource, Interface, Namespace, TcFilter};
use crate::finding::{Confidence, Finding, Fix};
use crate::recipe::{Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "tc-drop",
    title: "a tc filter or BPF program drops packets",
    about: "Filters of tc and BPF programs attached to an interface (clsact, TCX) see every packet that comes in or goes \
            out, before the firewall on the way in and after it on the way out. Their drops appear in no counter of the IP \
            layer and in no rule: container networks (Cilium and others), rate limiters and security agents work there.",
    must: &["packets dropped as TC_INGRESS or TC_EGRESS, or `dropped` of an action or of clsact grows"],
    should: &["a program or an action on the interface and side where they vanish"],
    must_not: &["the queue's own `dropped` grows with them"],
    lookalikes: &[
        ("qdisc-full", "the queue drops by load: QDISC_DROP, and its `dropped` grows"),
        ("xdp-drop", "XDP works before tc, in the driver or in do_xdp_generic"),
        ("fastpath-drop", "the fast path of weir counts what it drops itself"),
    ],
    yields_to: &["fastpath-drop"],
    remedy: "See which software attached the filter or program, and why it drops: most have a log or a command of their \
             own (`cilium monitor --type drop`). If its program is gone, remove it.",
    sources: &[
        "net/core/dev.c: sch_handle_ingress, sch_handle_egress",
        "net/sched/cls_bpf.c",
        "kernel/bpf/tcx.c",
    ],
    recipes,
    ..Cause::of(Group::Queues, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let all = view.namespaces().flat_map(|n| n.interfaces.iter().map(move |i| (n, i)));
    let sides = ["ingress", "egress"];
    all.flat_map(|(n, i)| sides.map(|side| (n, i, side)))
        .filter_map(|(namespace, interface, side)| on_side(view, namespace, interface, side))
        .collect()
}

fn is_mine(drops: &DropGroup, side: &str) -> bool {
    match drops.reason.as_str() {
        "TC_EGRESS" => side == "egress",
        "TC_INGRESS" | "TC_COOKIE_ERROR" | "TC_CHAIN_NOTFOUND" | "TC_RECLASSIFY_LOOP" => side == "ingress",
        _ => false,
    }
}

fn on_side(
    view: &EvidenceView<'_>,
    namespace: &Namespace,
    interface: &Interface,
    side: &str,
) -> Option<Finding> {
    let taken = on(view, namespace, interface, |d| is_mine(d, side));
    let filters: Vec<&TcFilter> = interface.filters.iter().filter(|f| f.direction == side).collect();
    let counted = counted(interface, &filters, side);
    // If drops are in sight, they are exact: they also include drops by actions.
    let lost = if view.sees_drops() { taken.packets } else { counted };
    if lost == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.claims = view.claims(namespace, &taken, &format!("tc.{}.{side}", interface.name), counted);
    finding.missing =
        view.missing(namespace, &[EvidenceSource::Drops, EvidenceSource::Programs, EvidenceSource::Qdiscs]);
    // The first one in order has the first word; one whose counter moved is convicted.
    let culprit = filters.iter().find(|f| f.dropped.change() > 0).or(filters.first());
    finding.object =
        culprit.map_or_else(|| interface.name.clone(), |f| format!("{}: {}", interface.name, named(f)));
    let what = culprit.map_or("a filter that is gone by now".to_owned(), |f| named(f));
    let way = if side == "ingress" { "came in through" } else { "were to leave by" };
    finding.summary = format!("{what} dropped {lost} packets that {way} {}.", interface.name);
    if !taken.is_empty() {
        let text = format!("{lost} packets dropped as {} on {}", taken.groups[0].reason, interface.name);
        finding.seen(EvidenceSource::Drops, text);
        finding.evidence.extend(taken.example_as_fact());
    }
    for filter in &filters {
        let mut text = format!("on the {side} of {}: {}", interface.name, named(filter));
        if filter.dropped.change() > 0 {
            text += &format!(", which dropped {}", filter.dropped.change());
        }
        finding.seen(EvidenceSource::Programs, text);
    }
    if let ([_], false) = (&filters[..], taken.is_empty()) {
        finding.confidence = Confidence::High;
    }
    if filters.len() > 1 && counted == 0 {
        finding
            .not
            .push("several filters and programs work there; which of them drops, they do not count".into());
    }
    finding.fixes = fixes(interface, side, &filters);
    Some(finding)
}

/// Counts the drops by actions on this side or, if those do not count, by the hook that holds them. The counter of `clsact`
/// covers both sides: it belongs to this side only if the other one has no filters.
fn counted(interface: &Interface, filters: &[&TcFilter], side: &str) -> u64 {
    let by_actions: u64 = filters.iter().map(|f| f.dropped.change()).sum();
    let hooks = interface.qdiscs.iter().filter(|q| matches!(q.kind.as_str(), "clsact" | "ingress"));
    let by_hook: u64 = hooks.map(|q| q.dropped.change()).sum();
    let alone = !filters.is_empty() && interface.filters.iter().all(|f| f.direction == side);
    if alone { by_actions.max(by_hook) } else { by_actions }
}

/// As people would ask for it.
fn named(filter: &TcFilter) -> String {
    let actions = filter.actions.join(", ");
    match &filter.program {
        Some(program) => format!("BPF program {} ({}, {})", program.id, program.name, filter.kind),
        None if actions.is_empty() => format!("filter {} of preference {}", filter.kind, filter.preference),
        None => format!("filter {} of preference {} with action {actions}", filter.kind, filter.preference),
    }
}

fn fixes(interface: &Interface, side: &str, filters: &[&TcFilter]) -> Vec<Fix> {
    let dev = &interface.name;
    let mut fixes = vec![Fix::look(
        "see what is attached, and which program attached it",
        [sh!("tc -s filter show dev {} {}", dev, side), sh!("bpftool net show dev {}", dev)],
    )];
    if let [only] = filters
        && only.kind != "tcx"
    {
        fixes.extend(match &only.program {
            Some(program) => Some(remove(dev, side, only, program)),
            None => pass(interface, side, only),
        });
    }
    fixes
}

/// Takes a program away. Pinned, it lives on and can be attached again.
fn remove(dev: &str, side: &str, filter: &TcFilter, program: &BpfProgram) -> Fix {
    let (preference, kind, id) = (filter.preference, &filter.kind, program.id);
    let pin = format!("/sys/fs/bpf/tc-{id}");
    Fix::new(
        "remove it, if it is no longer needed",
        "packets that it blocked come in; an agent that owns it will restore it",
        [
            sh!("bpftool prog pin id {} {}", id, pin),
            sh!("tc filter del dev {} {} pref {} {}", dev, side, preference, kind),
        ],
        [
            sh!("tc filter add dev {} {} pref {} bpf da pinned {}", dev, side, preference, pin),
            sh!("rm {}", pin),
        ],
    )
}

/// Lets everything pass before it comes to a filter that cannot be typed in again from what is seen of it; `None` if there is no
/// place before it.
fn pass(interface: &Interface, side: &str, filter: &TcFilter) -> Option<Fix> {
    let dev = &interface.name;
    let taken = |p: &u32| interface.filters.iter().any(|f| f.direction == side && f.preference == *p);
    let before = (1..filter.preference).rev().find(|p| !taken(p))?;
    // A classifier of the same kind: that one is there. Classic BPF of one instruction, TC_ACT_OK; the others match anything.
    let (kind, all) = match filter.kind.as_str() {
        "bpf" => ("bpf", vec!["bpf", "da", "bytecode", "1,6 0 0 0"]),
        "u32" => ("u32", Words::of("u32 match u32 0 0 action ok").0),
        _ => ("matchall", vec!["matchall", "action", "ok"]),
    };
    Some(Fix::new(
        "let everything pass before it",
        "packets that it and the filters after it blocked come in",
        [sh!("tc filter add dev {} {} pref {} protocol all {}", dev, side, before, Words(all))],
        [sh!("tc filter del dev {} {} pref {} protocol all {}", dev, side, before, kind)],
    ))
}

fn recipes() -> Vec<Recipe> {
    // Classic BPF, direct action: IPv4 is dropped (TC_ACT_SHOT is 2), all else goes on (TC_ACT_UNSPEC is -1).
    let classic = "tc qdisc add dev outside clsact; \
                   tc filter add dev outside egress bpf da bytecode '4,40 0 0 12,21 0 1 2048,6 0 0 2,6 0 0 4294967295'";
    let traffic = || Traffic::udp_across(100, 1000, 4);
    vec![
        Recipe::named("ingress", vec![Step::gateway(attach_tc("inside", "ingress"))], traffic()),
        Recipe::named("egress", vec![Step::gateway(classic)], traffic()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Delta, Evidence, Sight};

    fn host(filters: Vec<TcFilter>, reason: &str, sees_drops: bool) -> Evidence {
        let interface = Interface { index: 2, name: "eth0".into(), filters, ..Interface::default() };
        let mut evidence = Evidence { window_s: 10.0, ..Evidence::default() };
        evidence.namespaces.push(Namespace { id: 5, interfaces: vec![interface], ..Namespace::default() });
        if sees_drops {
            evidence.evidence_sources.insert(EvidenceSource::Drops, Sight::Seen);
            evidence.drops.push(DropGroup {
                namespace: 5,
                reason: reason.into(),
                interface: 2,
                packets: 100,
                ..DropGroup::default()
            });
        }
        evidence
    }

    fn program(direction: &str) -> TcFilter {
        let program = BpfProgram { id: 77, name: "cil_from_netdev".into(), mode: direction.into() };
        TcFilter {
            direction: direction.into(),
            kind: "tcx".into(),
            program: Some(program),
            ..TcFilter::default()
        }
    }

    #[test]
    fn the_program_on_that_side_is_named() {
        let evidence = host(vec![program("egress"), program("ingress")], "TC_INGRESS", true);
        let found = examine(&EvidenceView::of(&evidence));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].object, "eth0: BPF program 77 (cil_from_netdev, tcx)");
        assert!(found[0].fixes.iter().all(|f| f.commands.iter().all(|c| !c.contains("filter del"))));
    }

    #[test]
    fn drops_of_a_queue_are_not_its() {
        assert_eq!(examine(&EvidenceView::of(&host(vec![program("egress")], "QDISC_DROP", true))), []);
        assert_eq!(examine(&EvidenceView::of(&host(vec![program("egress")], "", false))), []);
    }

    #[test]
    fn the_hook_counts_for_programs_that_do_not() {
        let mut evidence = host(vec![program("egress")], "", false);
        let dropped = Delta { before: 1, after: 31 };
        let hook = crate::evidence::Qdisc { kind: "clsact".into(), dropped, ..Default::default() };
        evidence.namespaces[0].interfaces[0].qdiscs.push(hook);
        let found = examine(&EvidenceView::of(&evidence));
        assert!(matches!(found[0].claims[..], [crate::finding::Claim::Counter { packets: 30, .. }]));
        // The side that dropped it is not known.
        evidence.namespaces[0].interfaces[0].filters.push(program("ingress"));
        assert_eq!(examine(&EvidenceView::of(&evidence)), []);
    }

    #[test]
    fn an_action_that_counts_is_believed_without_a_look_at_drops() {
        let police = TcFilter {
            direction: "ingress".into(),
            kind: "u32".into(),
            preference: 7,
            actions: vec!["police".into()],
            dropped: Delta { before: 5, after: 45 },
            ..TcFilter::default()
        };
        let evidence = host(vec![police], "", false);
        let found = examine(&EvidenceView::of(&evidence));
        assert_eq!(found[0].object, "eth0: filter u32 of preference 7 with action police");
        assert!(matches!(found[0].claims[..], [crate::finding::Claim::Counter { packets: 40, .. }]));
        let fix = found[0].remedy().unwrap();
        assert_eq!(
            fix.commands,
            ["tc filter add dev eth0 ingress pref 6 protocol all u32 match u32 0 0 action ok"]
        );
        assert_eq!(fix.undo, ["tc filter del dev eth0 ingress pref 6 protocol all u32"]);
    }
}
