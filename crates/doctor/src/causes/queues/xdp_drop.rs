//! An XDP program drops packets.

use super::lost::on;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{DropGroup, EvidenceSource, Interface, Namespace};
use crate::finding::{Confidence, Finding, Fix};
use crate::recipe::{Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "xdp-drop",
    title: "an XDP program drops packets",
    about: "An XDP program sees each packet before the kernel does. No socket, rule, capture or IP counter sees the \
            packets that it drops. If the card's driver runs the program, even the kernel's drop event is missing: only \
            the driver's own counters show the drops. Load balancers, protection against floods and intrusion prevention \
            work there.",
    must: &[
        "an XDP program on the interface",
        "packets dropped in the XDP hook, or the driver's `xdp_drop` counters grow",
    ],
    should: &["rx_packets of the interface stands still while its peer sends"],
    lookalikes: &[
        ("tc-drop", "tc works after XDP: TC_INGRESS"),
        ("ring-overflow", "a ring that overflows counts rx_missed or rx_fifo and no xdp_drop"),
    ],
    remedy: "Find out which software attached the program, and why it drops: most programs keep counters in a BPF map or \
             log their drops. If that software is gone, detach the program.",
    sources: &[
        "net/core/dev.c: do_xdp_generic",
        "drivers/net/veth.c: veth_xdp_rcv_skb",
        "Documentation/bpf/redirect.rst",
    ],
    recipes,
    ..Cause::of(Group::Queues, |view| view.each_interface(on_interface))
};

/// Functions that let go of a packet because an XDP program said so.
const PLACES: &[&str] = &[
    "do_xdp_generic",
    "netif_receive_generic_xdp",
    "veth_xdp_rcv_skb",
    "tun_get_user",
    "bpf_prog_run_generic_xdp",
];

fn is_mine(drops: &DropGroup) -> bool {
    drops.reason == "XDP"
        || matches!(drops.reason.as_str(), "NOT_SPECIFIED" | "UNKNOWN")
            && PLACES.contains(&drops.location.as_str())
}

/// Returns the driver's count: `rx_xdp_drop`, `rx_queue_3_xdp_drops`, `queue_0_rx_xdp_drop`, ... Some drivers have a sum beside
/// the queues.
fn counted(interface: &Interface) -> u64 {
    let of_xdp = |name: &str| name.contains("xdp_drop");
    let is_queue = |name: &str| name.contains("queue") || name.bytes().any(|b| b.is_ascii_digit());
    let sum = |queues: bool| {
        let counters = interface.driver_counters.iter();
        counters.filter(|(n, _)| of_xdp(n) && is_queue(n) == queues).map(|(_, d)| d.change()).sum::<u64>()
    };
    sum(true).max(sum(false))
}

fn on_interface(view: &EvidenceView<'_>, namespace: &Namespace, interface: &Interface) -> Option<Finding> {
    let taken = on(view, namespace, interface, is_mine);
    let counted = counted(interface);
    let lost = taken.packets.max(counted);
    // Without a program it was something else that let go there.
    if lost == 0 || interface.xdp.is_none() && counted == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.claims = taken.claims;
    if counted > taken.packets {
        // Frames that never became a kernel packet raise no event.
        let counter = format!("xdp.{}", interface.name);
        finding.claims.push(view.counted(namespace, &counter, counted - taken.packets));
    }
    finding.missing = view.missing(namespace, &[EvidenceSource::Programs, EvidenceSource::Driver]);
    let what = match &interface.xdp {
        Some(p) => format!("XDP program {} ({}, {})", p.id, p.name, p.mode),
        None => "an XDP program that is gone by now".to_owned(),
    };
    finding.object = format!("{}: {what}", interface.name);
    finding.summary = format!("{what} dropped {lost} packets that came in through {}.", interface.name);
    if let Some(group) = taken.groups.first() {
        let text = format!("{} packets dropped in {}() on {}", taken.packets, group.location, interface.name);
        finding.seen(EvidenceSource::Drops, text);
    }
    for (name, delta) in interface.driver_counters.iter().filter(|(n, _)| n.contains("xdp_drop")) {
        let text = format!("{name} of {} grew by {}", interface.name, delta.change());
        finding.counter(EvidenceSource::Driver, name, *delta, text);
    }
    if interface.xdp.is_some() && lost > 0 {
        finding.confidence = Confidence::High;
    }
    finding.fixes = fixes(interface);
    Some(finding)
}

fn fixes(interface: &Interface) -> Vec<Fix> {
    let dev = &interface.name;
    let Some(program) = &interface.xdp else { return Vec::new() };
    let hook = match program.mode.as_str() {
        "generic" => "xdpgeneric",
        "offloaded" => "xdpoffload",
        _ => "xdpdrv",
    };
    let pin = format!("/sys/fs/bpf/xdp-{}", program.id);
    vec![
        Fix::look(
            "see the program, its maps and counters",
            [sh!("bpftool prog show id {}", program.id), sh!("bpftool prog dump xlated id {}", program.id)],
        ),
        Fix::new(
            "detach it, if it is no longer needed",
            "packets that it blocked come in; only the owner of a BPF link can detach a program that the link holds",
            [sh!("bpftool prog pin id {} {}", program.id, pin), sh!("ip link set dev {} {} off", dev, hook)],
            [sh!("ip link set dev {} {} pinned {}", dev, hook, pin), sh!("rm {}", pin)],
        ),
    ]
}

fn recipes() -> Vec<Recipe> {
    let attach = |hook: &str| vec![Step::gateway(super::programs::attach_xdp("inside", hook))];
    let traffic = || Traffic::udp_across(100, 1000, 4);
    vec![
        Recipe::named("native", attach("xdpdrv"), traffic()),
        Recipe::named("generic", attach("xdpgeneric"), traffic()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{BpfProgram, Delta, Evidence};
    use crate::finding::Claim;

    fn host(program: bool, location: &str, dropped: u64, counters: &[(&str, u64)]) -> Evidence {
        let xdp = program.then(|| BpfProgram { id: 9, name: "guard".into(), mode: "native".into() });
        let counters =
            counters.iter().map(|(n, v)| ((*n).to_owned(), Delta { before: 0, after: *v })).collect();
        let interface = Interface {
            index: 2,
            name: "eth0".into(),
            xdp,
            driver_counters: counters,
            ..Interface::default()
        };
        let mut evidence = Evidence { window_s: 10.0, ..Evidence::default() };
        evidence.namespaces.push(Namespace { id: 5, interfaces: vec![interface], ..Namespace::default() });
        if dropped > 0 {
            evidence.drops.push(DropGroup {
                namespace: 5,
                reason: "NOT_SPECIFIED".into(),
                location: location.into(),
                interface: 2,
                packets: dropped,
                ..DropGroup::default()
            });
        }
        evidence
    }

    #[test]
    fn a_card_that_drops_before_the_kernel_is_seen_by_its_counters() {
        let counters = [("rx_xdp_drop", 500), ("rx0_xdp_drop", 300), ("rx1_xdp_drop", 200), ("rx_xdp_tx", 7)];
        let found = (CAUSE.examine)(&EvidenceView::of(&host(true, "", 0, &counters)));
        assert_eq!(
            found[0].claims,
            [Claim::Counter { namespace: 5, counter: "xdp.eth0".into(), packets: 500 }]
        );
        assert_eq!(found[0].object, "eth0: XDP program 9 (guard, native)");
        assert_eq!(found[0].fixes[1].commands[1], "ip link set dev eth0 xdpdrv off");
    }

    #[test]
    fn events_and_counters_of_the_same_packets_are_claimed_once() {
        let found = (CAUSE.examine)(&EvidenceView::of(&host(
            true,
            "veth_xdp_rcv_skb",
            40,
            &[("rx_queue_0_xdp_drops", 40)],
        )));
        assert_eq!(found[0].claims, [Claim::Drops { group: 0, packets: 40 }]);
    }

    #[test]
    fn without_a_program_or_elsewhere_it_is_another_cause() {
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&host(false, "do_xdp_generic", 40, &[]))), []);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&host(true, "ip_rcv_core", 40, &[]))), []);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&host(true, "", 0, &[("rx_xdp_redirect", 40)]))), []);
    }
}
