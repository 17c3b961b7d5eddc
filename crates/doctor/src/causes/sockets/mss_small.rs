//! Segments that are far too small.

use super::flows::{carried, named, share_of_bytes};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace, TcpFlow};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::{LabHost, Recipe, Step, TcpMode, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "mss-small",
    title: "segments are far too small",
    about: "Each side of a TCP connection says in its SYN how large a segment may be (MSS). A rule that clamps it to a wrong number, \
            or a middlebox that does, makes every segment small: with 300 bytes a transfer takes five times as many packets, and \
            everything that costs per packet costs five times as much. Nothing is lost, and no counter moves.",
    must: &[
        "connections that carry something in segments below 536 bytes, while their path MTU allows far more",
    ],
    should: &["all connections through one hop have the same"],
    must_not: &[
        "the path MTU is small as well: then it was learned from ICMP or by probing",
        "the other side's window is so small that segments must be (no more than half of it)",
    ],
    lookalikes: &[
        ("pmtu-blackhole-remote", "MTU probing made the segments small after large ones were lost"),
        ("receive-window-limited", "a tiny window makes segments small"),
    ],
    remedy: "Look for a rule with `maxseg` (nft) or TCPMSS (iptables) on every hop. `set rt mtu` or --clamp-mss-to-pmtu never makes \
             it smaller than the path needs.",
    sources: &["RFC 9293 section 3.7.1, RFC 6691; net/ipv4/tcp_output.c: tcp_sync_mss, tcp_current_mss"],
    recipes,
    ..Cause::of(Group::Sockets, |view| view.each(in_namespace))
};

/// The segment size that every network carries (RFC 9293 section 3.7.1: MSS without the option).
const DEFAULT_MSS: u32 = 536;
/// A share of all bytes from which on it is more than a peer of its own kind.
const GOOD_PART: f64 = 0.1;

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    // Headers of IPv6 and TCP with timestamps are 92 bytes at most. A sender never fills more than half of a window with one
    // segment (net/ipv4/tcp_output.c, tcp_bound_to_half_wnd).
    let is_small = |f: &&TcpFlow| {
        let path = f.pmtu.saturating_sub(92);
        f.mss > 0
            && f.mss < DEFAULT_MSS
            && path >= 2 * f.mss
            && f.send_window > 2 * DEFAULT_MSS
            && carried(f) > 10_000
    };
    let flows: Vec<&TcpFlow> = namespace.sockets.iter().flat_map(|s| &s.tcp).filter(is_small).collect();
    let worst = flows.iter().max_by_key(|f| carried(f))?;
    let part = share_of_bytes(namespace, &flows);
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    // A receiver sends acknowledgements, which are small in any case: only the sender of data pays.
    let sends = flows.iter().any(|f| f.bytes_acked.change() > f.bytes_received.change());
    let costs = part >= GOOD_PART && sends;
    finding.severity = if costs { Severity::Warning } else { Severity::Note };
    finding.impact = if costs { part } else { 0.0 };
    finding.confidence = if flows.len() > 1 { Confidence::High } else { Confidence::Medium };
    finding.object = format!("{} to {}", named(worst), worst.remote);
    finding.summary = format!(
        "{} connections send segments of {} bytes, though their path carries {}.",
        flows.len(),
        worst.mss,
        worst.pmtu
    );
    for flow in flows.iter().take(5) {
        let text = format!(
            "{} to {}: segments of {} bytes, path MTU {}, {} segments sent",
            named(flow),
            flow.remote,
            flow.mss,
            flow.pmtu,
            flow.segments_out.change()
        );
        finding.seen(EvidenceSource::Sockets, text);
    }
    finding.not.push("not a small path MTU: the kernel knows of none".into());
    let capture = sh!("tcpdump -nn -v -c 4 'host {} and tcp[tcpflags] & tcp-syn != 0'", worst.remote.ip());
    finding.fixes.push(Fix::look(
        "look for a rule that sets it, here and on each hop in between; compare the MSS of a SYN",
        [sh!("nft list ruleset | grep -n maxseg"), sh!("iptables-save | grep TCPMSS"), capture],
    ));
    Some(finding)
}

fn recipes() -> Vec<Recipe> {
    let clamp = "nft 'add table ip n; add chain ip n c { type filter hook forward priority 0; }; \
                 add rule ip n c tcp flags syn / syn,rst tcp option maxseg size set 300'";
    vec![Recipe {
        at: LabHost::Initiator,
        setup: vec![Step::gateway(clamp)],
        traffic: Traffic::bulk(7092, TcpMode::Sink, 2, Some(50_000_000)),
        needs: vec!["nft"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{flow, grew, host, seen};
    use super::*;

    fn found(flows: Vec<TcpFlow>, all_bytes: u64) -> Vec<Finding> {
        let mut host = host(&[]);
        let sockets = host.sockets.as_mut().unwrap();
        sockets.totals.bytes = all_bytes;
        sockets.tcp = flows;
        (CAUSE.examine)(&EvidenceView::of(&seen(host, Vec::new())))
    }

    fn small() -> TcpFlow {
        TcpFlow { mss: 288, ..flow() }
    }

    #[test]
    fn senders_of_small_segments_are_told_with_their_path() {
        let found = &found(vec![small(), small()], 21_000_000)[0];
        assert_eq!((found.severity, found.confidence), (Severity::Warning, Confidence::High));
        assert!(found.summary.contains("segments of 288 bytes, though their path carries 1500"));
    }

    #[test]
    fn receivers_and_few_bytes_are_a_note() {
        let receiver = TcpFlow { bytes_acked: grew(1), bytes_received: grew(20_000_000), ..small() };
        assert_eq!(found(vec![receiver], 20_000_000)[0].severity, Severity::Note);
        assert_eq!(found(vec![small()], 1 << 40)[0].severity, Severity::Note);
    }

    #[test]
    fn a_small_path_a_tiny_window_and_the_default_are_not() {
        assert_eq!(found(vec![TcpFlow { pmtu: 340, ..small() }], 1), []);
        assert_eq!(found(vec![TcpFlow { send_window: 600, ..small() }], 1), []);
        assert_eq!(found(vec![TcpFlow { mss: 536, ..small() }, flow()], 1), []);
    }
}
