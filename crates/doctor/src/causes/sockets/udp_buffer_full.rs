//! A UDP socket has no room for what comes.

use weir_text::{order, units};

use super::fixes::pid;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace, UdpSocket};
use crate::finding::{Confidence, Finding, Fix, Setting};
use crate::recipe::{LabHost, Recipe, Traffic, UdpMode};

pub(super) const CAUSE: Cause = Cause {
    id: "udp-buffer-full",
    title: "UDP receive buffer full",
    about: "Datagrams wait in the receive buffer of their socket until the program reads them. When it is full, the kernel \
            drops further ones, and the sender gets no error. The buffer counts what a datagram takes in memory, which for \
            a small one is ten times its length, so that 212,992 bytes (the usual default) hold some 280 small datagrams. \
            Either the program reads too slowly on the whole, or it pauses (a write to disk, a garbage collection) for \
            longer than the buffer lasts.",
    must: &["Udp RcvbufErrors (or Udp6) grows, or packets are dropped as SOCKET_RCVBUFF"],
    should: &["the drops of one socket grow by as much (`ss -uam`: d in skmem)"],
    must_not: &["MemErrors grows: then the memory of all UDP sockets together is used up"],
    lookalikes: &[
        ("udp-memory", "the limit of all sockets together: MemErrors and PROTO_MEM"),
        ("checksum-offload", "InErrors grows with InCsumErrors"),
    ],
    remedy: "If the buffer is empty most of the time, it is bursts: a larger one holds them. If it is always full, the program is \
             too slow, and only more readers (SO_REUSEPORT) or a faster one help.",
    sources: &["net/ipv4/udp.c: __udp_enqueue_schedule_skb, __udp_queue_rcv_skb", "socket(7): SO_RCVBUF"],
    recipes,
    ..Cause::of(Group::Sockets, |view| view.each(in_namespace))
};

const UDP: u8 = 17;
const UDP_LITE: u8 = 136;

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    // Raw sockets get copies: what one of them has no room for is no loss.
    let mine = |protocol| protocol == UDP || protocol == UDP_LITE;
    let taken = view.take(namespace, |d| d.reason == "SOCKET_RCVBUFF" && mine(d.protocol));
    let counted = namespace.grew("udp.RcvbufErrors") + namespace.grew("udp6.RcvbufErrors");
    let lost = taken.packets.max(counted);
    if lost == 0 {
        return None;
    }
    let sockets = namespace.sockets.iter().flat_map(|s| &s.udp).filter(|s| s.drops.change() > 0);
    let mut losing: Vec<&UdpSocket> = sockets.collect();
    order::by_key(&mut losing, |s| std::cmp::Reverse(s.drops.change()));
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.claims = view.claims(namespace, &taken, "udp.RcvbufErrors", counted);
    finding.missing = view.missing(namespace, &[EvidenceSource::Sockets]);
    finding.confidence = if losing.is_empty() { Confidence::Medium } else { Confidence::High };
    let lost = units::count(lost);
    finding.summary = format!("{lost} datagrams found the receive buffer of their socket full.");
    for name in ["udp.RcvbufErrors", "udp6.RcvbufErrors"] {
        finding.grew(namespace, name, "datagrams dropped");
    }
    if !taken.is_empty() {
        finding.seen(EvidenceSource::Drops, format!("{} packets dropped as SOCKET_RCVBUFF", taken.packets));
    }
    for socket in losing.iter().take(5) {
        let text = format!(
            "{}: {} lost; {} bytes wait of {}",
            named(socket),
            socket.drops.change(),
            socket.queued_bytes,
            socket.limit_bytes
        );
        finding.seen(EvidenceSource::Sockets, text);
    }
    if let Some(worst) = losing.first() {
        finding.object = named(worst);
        let how = if is_full(worst) { "is still full" } else { "was full in bursts" };
        finding.summary =
            format!("{lost} datagrams were lost: the receive buffer of {} {how}.", finding.object);
        finding.fixes = fixes(view, worst);
    }
    finding.not.push("not the memory of all UDP sockets together: MemErrors did not grow with it".into());
    Some(finding)
}

fn named(socket: &UdpSocket) -> String {
    match &socket.process {
        Some(process) => format!("{} of {process}", socket.local),
        None => socket.local.to_string(),
    }
}

/// The kernel refuses what would pass the limit, so a full buffer holds nearly that much: all but one packet, which in a small
/// buffer is a good part.
fn is_full(socket: &UdpSocket) -> bool {
    u64::from(socket.queued_bytes) * 10 >= u64::from(socket.limit_bytes) * 7
}

fn fixes(view: &EvidenceView<'_>, socket: &UdpSocket) -> Vec<Fix> {
    let port = socket.local.port();
    let show = Fix::look(
        "see how full it is, and whether the program reads",
        [sh!("ss -uamnp 'sport = :{}'", port), sh!("top -H -p {}", pid(socket.process.as_ref()))],
    );
    let now = view.evidence.machine.setting("net.core.rmem_max").unwrap_or(212_992);
    // The kernel doubles what a program asks for (net/core/sock.c, SO_RCVBUF).
    let proposed = (u64::from(socket.limit_bytes) * 8).clamp(4 << 20, 64 << 20);
    let larger = if proposed > now {
        let why = format!("{} lost {} datagrams", socket.local, socket.drops.change());
        Fix::set(
            "allow larger buffers; the program must ask for one (SO_RCVBUF, often a setting of its own)",
            "memory of each socket that asks for it; datagrams wait longer before they are read",
            vec![Setting::new("net.core.rmem_max", now, proposed, why)],
        )
    } else {
        let most = "net.core.rmem_max";
        Fix::new(
            format!("let the program ask for a larger buffer (SO_RCVBUF): {most} allows {now} bytes already"),
            "memory of the socket; datagrams wait longer before they are read",
            [],
            [],
        )
    };
    if is_full(socket) { vec![show, larger] } else { vec![larger, show] }
}

fn recipes() -> Vec<Recipe> {
    let send = |rate, size| Traffic::udp("198.19.0.2:7514", size, rate, 4);
    vec![Recipe {
        at: LabHost::Responder,
        traffic: vec![
            Traffic::UdpServer {
                on: LabHost::Responder,
                port: 7514,
                buffer: Some(16_384),
                mode: UdpMode::Deaf,
            },
            send(500, 400),
        ],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{blind_to_drops, dropped, grew, host, seen, udp_socket};
    use super::*;
    use crate::finding::{Claim, Severity};

    fn losing() -> Namespace {
        let mut host = host(&[("udp.RcvbufErrors", 400), ("udp.InErrors", 400)]);
        host.sockets.as_mut().unwrap().udp =
            vec![udp_socket(20), UdpSocket { drops: grew(380), ..udp_socket(0) }];
        host
    }

    #[test]
    fn the_socket_that_lost_most_is_named_and_the_drops_are_claimed() {
        let drops = vec![
            dropped("SOCKET_RCVBUFF", "udp_queue_rcv_one_skb", UDP, 400),
            dropped("SOCKET_RCVBUFF", "raw_rcv_skb", 1, 50),
        ];
        let found = &(CAUSE.examine)(&EvidenceView::of(&seen(losing(), drops)))[0];
        assert_eq!(found.claims, [Claim::Drops { group: 0, packets: 400 }]);
        assert_eq!(found.object, "0.0.0.0:514 of syslog (pid 9)");
        assert_eq!((found.severity, found.confidence), (Severity::Critical, Confidence::High));
        assert!(found.evidence.iter().any(|f| f.text.contains("380 lost")));
    }

    #[test]
    fn without_a_view_of_drops_the_counter_is_enough() {
        let found = &(CAUSE.examine)(&EvidenceView::of(&blind_to_drops(losing())))[0];
        assert!(matches!(&found.claims[..], [Claim::Counter { packets: 400, .. }]));
    }

    #[test]
    fn a_setting_that_is_large_enough_is_left_alone() {
        let mut evidence = seen(losing(), Vec::new());
        evidence.machine.settings.insert("net.core.rmem_max".into(), "4194304".into());
        let found = &(CAUSE.examine)(&EvidenceView::of(&evidence))[0];
        assert!(found.fixes.iter().all(|f| f.tune.is_empty() && f.undo.is_empty()), "{:?}", found.fixes);
        assert!(found.fixes.iter().any(|f| f.commands.contains(&"top -H -p 9".into())));
        evidence.machine.settings.insert("net.core.rmem_max".into(), "212992".into());
        let found = &(CAUSE.examine)(&EvidenceView::of(&evidence))[0];
        assert!(found.fixes.iter().any(|f| f.undo == ["sysctl -w net.core.rmem_max=212992"]));
    }

    #[test]
    fn errors_of_another_kind_are_not() {
        let host = host(&[("udp.InErrors", 400), ("udp.InCsumErrors", 300), ("udp.MemErrors", 100)]);
        assert_eq!(
            (CAUSE.examine)(&EvidenceView::of(&seen(host, vec![dropped("PROTO_MEM", "x", UDP, 100)]))),
            []
        );
    }
}
