//! Packets wait in a queue of another host.

use super::{recipes, signs};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace, TransitNetwork};
use crate::finding::{Confidence, Finding, Fix, Severity};

pub(super) const CAUSE: Cause = Cause {
    id: "transit-queue",
    title: "packets wait in a queue beyond this host",
    about: "The next hop, or one behind it, sends more slowly than this host, and its queue is long: a modem, a radio link, a \
            shaper of the provider. TCP fills such a queue completely, so that everything through it waits tenths of seconds \
            and more. No queue of this host shows it. The connections that pass do: the time from a segment that passes here \
            to its acknowledgement grows from the smallest value to many times that.",
    must: &[
        "half of the time that round trips between this host and a network take, they take 50 ms more than the smallest one there, \
         and four times as long, on connections that vary so much by themselves and carry at least a tenth of the network's bytes",
        "one in twenty of their round trips takes 100 ms more than the smallest one",
        "no queue of this host holds so much",
    ],
    should: &["several connections show it"],
    must_not: &["a queue on this host is long (bufferbloat) or full (qdisc-full)"],
    lookalikes: &[
        ("bufferbloat", "the queue is one of this host"),
        ("transit-loss-behind", "segments are lost, and round trips stay as they are"),
    ],
    yields_to: super::HERE,
    remedy: "Shape on this host to 95 % of what the next hop carries, with fq_codel or cake, so that the queue stands here, where \
             it is managed; or have the operator of the next hop shorten its queue. A queue that is full through the whole \
             window looks like a long path, and is not found.",
    sources: &[
        "Gettys and Nichols, Bufferbloat: Dark Buffers in the Internet (2011)",
        "RFC 7567 (active queue management), RFC 8290 (FQ-CoDel)",
    ],
    recipes: recipes::queue,
    ..Cause::of(Group::Transit, examine)
};

/// A longer wait ends calls and games.
const GRAVE_MS: f64 = 300.0;

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let all = view.namespaces().flat_map(|n| signs::networks(n).map(move |network| (n, network)));
    all.filter(|(_, network)| signs::waits(network)).map(|(n, network)| of(view, n, network)).collect()
}

fn of(view: &EvidenceView<'_>, namespace: &Namespace, network: &TransitNetwork) -> Finding {
    let queueing = &network.queueing;
    let (least, usual, late) =
        (signs::ms(network.smallest_ns), signs::ms(queueing.usual_ns), signs::ms(queueing.p95_ns));
    let wait = usual - least;
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = if wait >= GRAVE_MS { Severity::Critical } else { Severity::Warning };
    finding.confidence = if queueing.flows >= 2 { Confidence::High } else { Confidence::Medium };
    finding.object.clone_from(&network.network);
    finding.impact = queueing.bytes as f64 / network.bytes.max(1) as f64;
    finding.summary = format!(
        "Packets wait about {wait:.0} ms in a queue between this host's {} and {}: half of the time a round trip there takes \
         {usual:.0} ms or more, and the shortest one took {least:.1} ms.",
        network.interface, network.network
    );
    let text = format!(
        "{} of {} flows vary so, in {} round trips; one in twenty takes more than {late:.0} ms",
        queueing.flows, network.flows, queueing.trips
    );
    finding.seen(EvidenceSource::Transit, text);
    if network.lost_to.lost + network.lost_from.lost > 0 {
        let text = format!(
            "{} of {} segments to there were lost, as a full queue does",
            network.lost_to.lost, network.lost_to.of
        );
        finding.seen(EvidenceSource::Transit, text);
    }
    finding.not.push("not on this host: none of its queues holds so much".into());
    finding.missing = view.missing(namespace, &[EvidenceSource::Qdiscs, EvidenceSource::Transit]);
    if finding.missing.contains(&EvidenceSource::Qdiscs) {
        finding.confidence = Confidence::Low;
    }
    let shaper = Fix::new(
        "shape here, below what the next hop carries, so that the queue is one that manages itself",
        "a little less throughput; too low a rate costs more of it",
        [sh!("tc qdisc replace dev {} root cake bandwidth RATE", network.interface)],
        [sh!("tc qdisc del dev {} root", network.interface)],
    );
    finding.fixes = vec![shaper];
    finding
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{host, network};
    use super::*;
    use crate::evidence::{Queueing, Repeated};

    fn queued(usual_ms: u64) -> TransitNetwork {
        let usual_ns = usual_ms * 1_000_000;
        let queueing = Queueing { flows: 3, bytes: 400_000, trips: 30, usual_ns, p95_ns: 2 * usual_ns };
        TransitNetwork { queueing, ..network(true) }
    }

    fn found(network: TransitNetwork) -> Vec<Finding> {
        examine(&EvidenceView::of(&host(vec![network])))
    }

    #[test]
    fn a_wait_that_grows_beyond_this_host_convicts() {
        let found = &found(queued(524))[0];
        assert_eq!((found.severity, found.confidence), (Severity::Critical, Confidence::High));
        assert!(found.summary.contains("about 522 ms"), "{}", found.summary);
        assert_eq!(super::super::fixture::network(true).smallest_ns, 2_000_000);
    }

    /// Transfers that leave a queue of half a second half empty, as seed 4711 of `scripts/soak-transit` draws them.
    #[test]
    fn a_queue_that_is_half_full_convicts() {
        let half = queued(98);
        assert_eq!(half.queueing.p95_ns, 196_000_000);
        let found = &found(half)[0];
        assert_eq!(found.severity, Severity::Warning);
        assert!(found.summary.contains("about 96 ms"), "{}", found.summary);
    }

    /// A queue that manages itself, the end of slow start on a path of 5 ms, and a radio link.
    #[test]
    fn short_queues_and_jitter_do_not() {
        let with = |least_ms: u64, usual_ms: u64, p95_ms: u64| {
            let queueing = Queueing {
                usual_ns: usual_ms * 1_000_000,
                p95_ns: p95_ms * 1_000_000,
                ..queued(98).queueing
            };
            found(TransitNetwork { smallest_ns: least_ms * 1_000_000, queueing, ..network(true) })
        };
        assert_eq!(with(2, 65, 98), []);
        assert_eq!(with(5, 24, 131), []);
        assert_eq!(with(30, 98, 196), [], "three times the shortest");
        assert_eq!(with(24, 98, 131).len(), 1);
    }

    #[test]
    fn a_short_wait_a_long_path_and_a_few_bytes_do_not() {
        assert_eq!(found(queued(49)), []);
        assert_eq!(found(TransitNetwork { smallest_ns: 200_000_000, ..queued(400) }), []);
        assert_eq!(found(TransitNetwork { bytes: 10_000_000, ..queued(524) }), []);
    }

    #[test]
    fn the_loss_of_a_full_queue_is_not_another_finding() {
        let lost_to = Repeated { lost: 200, of: 10_000, low: 0.017, high: 0.023 };
        let host = host(vec![TransitNetwork { lost_to, ..queued(524) }]);
        let causes: Vec<_> =
            crate::diagnosis::diagnose(&host).findings.into_iter().map(|f| f.cause).collect();
        assert_eq!(causes, [CAUSE.id]);
    }
}
