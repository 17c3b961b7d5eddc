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
            to its acknowledgement grows, and stays long until the queue is empty again. The doctor looks at it 20 times a second.",
    must: &[
        "for a quarter of a second or more, each look that finds new round trips between this host and a network, or one host in it, \
         finds them 50 ms longer than the shortest one of their flow, and half as long again; three looks in a row at least",
        "at the worst moment they take 100 ms more than the shortest one",
        "several segments pass in the time of each of these round trips, and their connections carry at least a tenth of the network's bytes",
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
             it is managed; or have the operator of the next hop shorten its queue. A queue that was full when each of its \
             connections began looks like a long path, and is not found. A way that became longer looks like a queue.",
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
    let (least, wait, longest) =
        (signs::ms(network.smallest_ns), signs::ms(queueing.usual_ns), signs::ms(queueing.longest_ns));
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = if longest >= GRAVE_MS { Severity::Critical } else { Severity::Warning };
    finding.confidence = if queueing.flows >= 2 { Confidence::High } else { Confidence::Medium };
    finding.object.clone_from(&network.network);
    finding.impact = queueing.bytes as f64 / network.bytes.max(1) as f64;
    finding.summary = format!(
        "Packets wait about {wait:.0} ms in a queue between this host's {} and {}, and {longest:.0} ms at worst; the shortest round trip \
         there took {least:.1} ms.",
        network.interface, network.network
    );
    let text = format!(
        "{} of {} flows waited, for {:.1} s in all, in which {} round trips were measured",
        queueing.flows,
        network.flows,
        queueing.us as f64 / 1e6,
        queueing.trips
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

    fn queued(usual_ms: u64, longest_ms: u64) -> TransitNetwork {
        let [usual_ns, longest_ns] = [usual_ms, longest_ms].map(|ms| ms * 1_000_000);
        let queueing = Queueing { flows: 3, bytes: 400_000, trips: 30, us: 1_400_000, usual_ns, longest_ns };
        TransitNetwork { queueing, ..network(true) }
    }

    fn found(network: TransitNetwork) -> Vec<Finding> {
        examine(&EvidenceView::of(&host(vec![network])))
    }

    #[test]
    fn a_wait_beyond_this_host_convicts() {
        let found = &found(queued(322, 524))[0];
        assert_eq!((found.severity, found.confidence), (Severity::Critical, Confidence::High));
        let text = "about 322 ms in a queue between this host's outside and 198.19.0.0/24, and 524 ms at worst; \
                    the shortest round trip there took 2.0 ms";
        assert!(found.summary.contains(text), "{}", found.summary);
        assert!(found.evidence[0].text.contains("3 of 20 flows waited, for 1.4 s"), "{:?}", found.evidence);
    }

    /// Transfers that leave a queue of half a second half empty, as seed 4711 of `scripts/soak-transit` draws them.
    #[test]
    fn a_queue_that_is_half_full_convicts() {
        assert_eq!(found(queued(98, 196))[0].severity, Severity::Warning);
    }

    /// A queue that manages itself, and a radio link.
    #[test]
    fn short_queues_and_few_bytes_do_not() {
        assert_eq!(found(queued(65, 99)), []);
        assert_eq!(found(queued(65, 100)).len(), 1);
        assert_eq!(found(TransitNetwork { bytes: 10_000_000, ..queued(322, 524) }), []);
    }

    #[test]
    fn the_loss_of_a_full_queue_is_not_another_finding() {
        let lost_to = Repeated { lost: 200, of: 10_000, low: 0.017, high: 0.023 };
        let host = host(vec![TransitNetwork { lost_to, ..queued(322, 524) }]);
        let causes: Vec<_> =
            crate::diagnosis::diagnose(&host).findings.into_iter().map(|f| f.cause).collect();
        assert_eq!(causes, [CAUSE.id]);
    }
}
