//! All UDP sockets together have used up their memory.

use weir_text::order;

use super::memory::Memory;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace};
use crate::finding::{Confidence, Finding, Fix, Setting};
use crate::recipe::{LabHost, Recipe, Traffic, UdpMode};

pub(super) const CAUSE: Cause = Cause {
    id: "udp-memory",
    title: "memory of UDP used up",
    about: "Beside the limit of each socket there is one for all UDP sockets of the machine together, net.ipv4.udp_mem, in pages. \
            When it is reached, every UDP socket that holds more than a little loses datagrams, also those whose own buffers are \
            almost empty: usually one or a few programs that do not read fill it, and the others suffer.",
    must: &["Udp MemErrors (or Udp6) grows, or packets of UDP are dropped as PROTO_MEM"],
    should: &["`UDP: mem` of /proc/net/sockstat is near the third number of net.ipv4.udp_mem"],
    lookalikes: &[
        ("udp-buffer-full", "one socket's own buffer: RcvbufErrors and SOCKET_RCVBUFF"),
        ("cgroup-memory", "the limit of a control group was hit, and udp_mem is far away"),
    ],
    yields_to: &["cgroup-memory"],
    remedy: "Find the sockets that hold most of it, and why they are not read. Raise udp_mem only if they are right.",
    sources: &[
        "net/ipv4/udp.c: udp_rmem_schedule; net/core/sock.c: __sk_mem_raise_allocated",
        "udp(7): udp_mem",
    ],
    recipes,
    ..Cause::of(Group::Sockets, |view| view.each(in_namespace))
};

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let taken = view.take(namespace, |d| d.reason == "PROTO_MEM" && matches!(d.protocol, 17 | 136));
    let counted = namespace.grew("udp.MemErrors") + namespace.grew("udp6.MemErrors");
    let lost = taken.packets.max(counted);
    if lost == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.claims = view.claims(namespace, &taken, "udp.MemErrors", counted);
    finding.summary =
        format!("{lost} datagrams were lost because all UDP sockets together hold as much as they may.");
    finding.grew(namespace, "udp.MemErrors", "datagrams dropped");
    let setting = view.evidence.machine.settings.get("net.ipv4.udp_mem");
    let Memory { limits, used } = Memory::of(view, namespace, "UDP");
    if let (Some(limits), Some(used)) = (limits, used) {
        let text = format!("UDP holds {used} pages of the {} it may (net.ipv4.udp_mem)", limits.most);
        finding.seen(EvidenceSource::Counters, text);
        finding.confidence = if used * 10 >= limits.most * 8 { Confidence::High } else { Confidence::Medium };
    }
    let mut sockets: Vec<_> = namespace.sockets.iter().flat_map(|s| &s.udp).collect();
    order::by_key(&mut sockets, |s| std::cmp::Reverse(s.queued_bytes));
    for socket in sockets.iter().take(3) {
        let process = socket.process.as_deref().unwrap_or("a process that is not known");
        let text = format!("{} of {process} holds {} bytes", socket.local, socket.queued_bytes);
        finding.seen(EvidenceSource::Sockets, text);
    }
    finding.not.push("not one socket's own buffer: the kernel counts these as MemErrors".into());
    finding.fixes.push(Fix::look("see who holds it", [sh!("ss -uamnp"), sh!("cat /proc/net/sockstat")]));
    if let (Some(now), Some(limits)) = (setting, limits) {
        let why = format!("{lost} datagrams were lost at the limit");
        finding.fixes.push(Fix::set(
            "allow all UDP sockets more memory",
            "programs that do not read may take so much more of the machine's memory",
            vec![Setting::new("net.ipv4.udp_mem", now.clone(), limits.times(2), why)],
        ));
    }
    Some(finding)
}

fn recipes() -> Vec<Recipe> {
    const SERVERS: u16 = 20;
    let server = |n| Traffic::udp_server(7600 + n, UdpMode::Deaf);
    let send = |n| Traffic::udp(&format!("198.19.0.2:{}", 7600 + n), 1400, 100, 1);
    vec![Recipe {
        at: LabHost::Responder,
        traffic: (0..SERVERS).map(server).chain((0..SERVERS).map(send)).collect(),
        // Pages; the kernel keeps up to 1 MiB for each core before it counts.
        machine: vec![("net.ipv4.udp_mem", "64 96 128".into())],
        also: vec!["udp-buffer-full"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{blind_to_drops, dropped, host, seen};
    use super::*;
    use crate::evidence::Evidence;

    fn with_limit(mut evidence: Evidence, used: u64) -> Evidence {
        evidence.machine.settings.insert("net.ipv4.udp_mem".into(), "100\t200\t300".into());
        evidence.namespaces[0].gauges.insert("sockstat.UDP.mem".into(), used);
        evidence
    }

    #[test]
    fn losses_at_the_limit_are_told_with_the_setting() {
        let drops =
            vec![dropped("PROTO_MEM", "udp_queue_rcv_one_skb", 17, 90), dropped("PROTO_MEM", "y", 6, 5)];
        let evidence = with_limit(seen(host(&[("udp.MemErrors", 90)]), drops), 299);
        let found = &(CAUSE.examine)(&EvidenceView::of(&evidence))[0];
        assert_eq!((found.claims.len(), found.confidence), (1, Confidence::High));
        assert_eq!(found.fixes[1].commands, ["sysctl -w net.ipv4.udp_mem='200 400 600'"]);
        assert_eq!(found.fixes[1].undo, ["sysctl -w net.ipv4.udp_mem='100 200 300'"]);
        let blind = with_limit(blind_to_drops(host(&[("udp.MemErrors", 90)])), 299);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&blind)).len(), 1);
    }

    #[test]
    fn a_full_socket_is_not() {
        let evidence = with_limit(
            seen(host(&[("udp.RcvbufErrors", 90)]), vec![dropped("SOCKET_RCVBUFF", "x", 17, 90)]),
            299,
        );
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence)), []);
    }
}
