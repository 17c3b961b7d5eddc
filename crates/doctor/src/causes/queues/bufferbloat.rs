//! A queue is so long that packets in it are late.

use super::lost::{named, per_second, rate, shaper};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::{Words, sh};
use crate::evidence::{EvidenceSource, Interface, Namespace, Qdisc, TcpFlow};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::{Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "bufferbloat",
    title: "a long queue delays everything behind it",
    about: "If more packets come than an interface or shaper sends, a queue that is long enough to lose nothing delays \
            everything instead: TCP fills it completely. DNS, calls and web pages that share it wait as long as the queue \
            is, tenths of seconds up to seconds. Throughput looks perfect, and users complain.",
    must: &["the bytes that wait in a queue take more than 50 ms to leave at the rate at which it lets out"],
    should: &["round-trip times of connections are many times their smallest"],
    must_not: &["the queue loses packets all the time: then it is full"],
    lookalikes: &[(
        "qdisc-full",
        "packets are lost; both at once are usual where the queue is long and full",
    )],
    yields_to: &["qdisc-full"],
    remedy: "Let the queue manage itself: fq_codel or cake keep the wait at a few milliseconds at the same throughput. If the \
             bottleneck is the line behind this host, shape to 95 % of what it carries, so that the queue stands here, where \
             it can be managed.",
    sources: &[
        "Gettys and Nichols, Bufferbloat: Dark Buffers in the Internet (2011)",
        "RFC 7567",
        "RFC 8289",
        "RFC 8290",
    ],
    recipes,
    ..Cause::of(Group::Queues, |view| view.each_interface(on_interface))
};

/// Wait from which on it is worth a word, and from which on people notice (ITU-T G.114: 150 ms one way for the whole path).
const LATE_S: f64 = 0.05;
const TOO_LATE_S: f64 = 0.1;

/// Time that a packet at the queue's end has to wait, s; `None` of a queue that is empty or lets nothing out.
fn wait(view: &EvidenceView<'_>, interface: &Interface, qdisc: &Qdisc) -> Option<f64> {
    // A queue that was empty at the beginning and is not at the end may be a burst that is just passing.
    if qdisc.backlog_packets == 0 || qdisc.backlog_packets_before == 0 {
        return None;
    }
    let sent = per_second(view, qdisc.bytes.change());
    let set = shaper(interface, qdisc).and_then(|s| s.rate_bps).map(|b| b as f64 / 8.0);
    // A shaper's rate is what it lets out when it has work, which it has: it waits.
    let pace = set.unwrap_or(sent);
    (pace > 0.0 && sent > 0.0).then(|| qdisc.backlog_bytes as f64 / pace)
}

fn on_interface(view: &EvidenceView<'_>, namespace: &Namespace, interface: &Interface) -> Option<Finding> {
    let queues = interface.qdiscs.iter().filter(|q| !q.class);
    let waits = queues.filter_map(|q| Some((q, wait(view, interface, q)?)));
    let (qdisc, wait) = waits.max_by(|a, b| a.1.total_cmp(&b.1))?;
    if wait < LATE_S {
        return None;
    }
    let shaper = shaper(interface, qdisc);
    let name = named(shaper.filter(|_| qdisc.handle == "0:").unwrap_or(qdisc));
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = if wait >= TOO_LATE_S { Severity::Warning } else { Severity::Note };
    finding.object = format!("{}: {name}", interface.name);
    finding.impact = (wait / 10.0).min(0.5);
    let pace = shaper
        .and_then(|s| s.rate_bps)
        .map_or_else(|| rate(per_second(view, qdisc.bytes.change()) * 8.0), |bps| rate(bps as f64));
    finding.summary = format!(
        "Packets that leave by {} wait {:.0} ms in {name}: {} bytes stand there, and it lets {pace} out.",
        interface.name,
        wait * 1e3,
        qdisc.backlog_bytes
    );
    let text = format!(
        "{} packets waited at the beginning, {} at the end; {} were dropped",
        qdisc.backlog_packets_before,
        qdisc.backlog_packets,
        qdisc.dropped.change()
    );
    finding.seen(EvidenceSource::Qdiscs, text);
    if let Some(flow) = swollen(namespace) {
        finding.confidence = Confidence::High;
        let (now, least) = (f64::from(flow.rtt_us) / 1e3, f64::from(flow.min_rtt_us) / 1e3);
        let text = format!("round trips to {} take {now:.0} ms, and {least:.1} ms at best", flow.remote);
        finding.seen(EvidenceSource::Sockets, text);
    }
    finding.missing = view.missing(namespace, &[EvidenceSource::Qdiscs]);
    finding.fixes = fixes(interface, qdisc);
    Some(finding)
}

/// A connection of this namespace whose round trips take far longer than they could.
fn swollen(namespace: &Namespace) -> Option<&TcpFlow> {
    let flows = namespace.sockets.iter().flat_map(|s| &s.tcp);
    let worst = flows.max_by_key(|f| f.rtt_us.saturating_sub(f.min_rtt_us))?;
    (worst.min_rtt_us > 0 && worst.rtt_us > 4 * worst.min_rtt_us && worst.rtt_us > 50_000).then_some(worst)
}

fn fixes(interface: &Interface, qdisc: &Qdisc) -> Vec<Fix> {
    let dev = &interface.name;
    // The queue inside a shaper may be replaced; that at the root, too.
    let below = format!("{}1", qdisc.handle);
    let at = match qdisc.parent.as_str() {
        // A shaper without a queue of its own in sight: hang one below it.
        "root" if qdisc.rate_bps.is_some() => vec!["parent", &below],
        "root" => vec!["root"],
        parent => vec!["parent", parent],
    };
    let limit = qdisc.limit_packets.or(qdisc.limit_bytes).map(|n| n.to_string());
    let mut options = limit.as_ref().map_or(Vec::new(), |n| vec!["limit", n]);
    // The evidence lacks the other options of the queue.
    if !matches!(qdisc.kind.as_str(), "pfifo" | "bfifo" | "pfifo_fast") {
        options.push("OPTIONS_AS_SHOWN");
    }
    vec![Fix::new(
        "let the queue manage itself",
        "what waits in the old queue at that moment is lost",
        [
            sh!("tc -d qdisc show dev {}", dev),
            sh!("tc qdisc replace dev {} {} fq_codel", dev, Words(at.clone())),
        ],
        [sh!("tc qdisc replace dev {} {} {} {}", dev, Words(at), qdisc.kind, Words(options))],
    )]
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        setup: vec![Step::gateway(
            "tc qdisc add dev outside root handle 1: tbf rate 8mbit burst 20000 limit 20000000",
        )],
        // A quarter more than the shaper lets out: the queue grows by 0.3 s in every second, and loses nothing.
        traffic: Traffic::udp_across(958, 1250, 4),
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Delta, Evidence};

    fn host(backlog: (u64, u64), bytes: u64, rate_bps: Option<u64>, sent: u64) -> Evidence {
        let qdisc = Qdisc {
            kind: "tbf".into(),
            handle: "1:".into(),
            parent: "root".into(),
            backlog_packets_before: backlog.0,
            backlog_packets: backlog.1,
            backlog_bytes: bytes,
            bytes: Delta { before: 4, after: 4 + sent },
            rate_bps,
            ..Qdisc::default()
        };
        let interface = Interface { name: "wan".into(), qdiscs: vec![qdisc], ..Interface::default() };
        let mut evidence = Evidence { window_s: 10.0, ..Evidence::default() };
        evidence.namespaces.push(Namespace { id: 5, interfaces: vec![interface], ..Namespace::default() });
        evidence
    }

    #[test]
    fn the_wait_is_what_stands_there_by_what_is_let_out() {
        // 200,000 bytes at 8 Mbit/s: 0.2 s.
        let found = (CAUSE.examine)(&EvidenceView::of(&host((90, 100), 200_000, Some(8_000_000), 5_000_000)));
        assert_eq!(found[0].severity, Severity::Warning);
        assert!(found[0].summary.contains("wait 200 ms"), "{}", found[0].summary);
        // No rate is set: 600,000 bytes a second passed, so 36,000 take 60 ms.
        let found = (CAUSE.examine)(&EvidenceView::of(&host((90, 100), 36_000, None, 6_000_000)));
        assert_eq!(found[0].severity, Severity::Note);
    }

    #[test]
    fn short_queues_and_passing_bursts_are_none() {
        for evidence in [
            host((90, 100), 36_000, Some(8_000_000), 5_000_000),
            host((0, 100), 200_000, Some(8_000_000), 5_000_000),
            host((90, 0), 0, Some(8_000_000), 5_000_000),
            host((90, 100), 200_000, None, 0),
        ] {
            assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence)), []);
        }
    }
}
