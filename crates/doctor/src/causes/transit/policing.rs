//! Another host drops what exceeds a rate.

use weir_text::units::{self, Unit};

use super::ceiling::{Ceiling, ceiling};
use super::signs;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace, TransitNetwork};
use crate::finding::{Confidence, Finding, Fix, Severity};

pub(super) const CAUSE: Cause = Cause {
    id: "transit-policing",
    title: "a policer beyond this host drops what exceeds a rate",
    about: "A host on the way to a network holds a token bucket: it forwards what keeps to a rate, and drops what exceeds it, without a \
            queue. Providers enforce plans in this way, and clouds the allowance of an instance. TCP speeds up until the bucket is \
            empty, loses many segments in a row, and slows down. From one loss to the next, as much arrives as the bucket gets: the \
            rate of what arrives between losses is the same each time, and round trips stay as they are. The doctor watches how fast \
            data goes to each network, 20 times a second.",
    must: &[
        "at least half a per cent of the TCP segments that passed towards a network, and 20 of them, were lost behind this host",
        "from one loss to the next, what arrived had the same rate within a few per cent, for at least 75 % of the time, in five \
         stretches or more; three are enough if the rate between other moments varied five times as much",
        "what came here meanwhile varied at least 0.7 times as much: a slower line before this host brings the same rate each time, \
         whatever is lost of that",
        "segments are lost in bursts: their number in 50 ms varies 2.5 times as much as that of independent losses; or, if the bucket is \
         empty most of the time, a greater share was lost of what came in addition to the usual than of all, by 2.3 standard errors, and \
         at least 20 %",
        "the share that was lost of what came in addition is not less than that of all, by a standard error",
        "senders wait for the network at least 80 % of the time, and not for their programs or for receivers",
        "round trips at losses take at most 5 ms, or 15 %, more than the shortest one",
        "this machine lost less than half as many segments itself",
    ],
    should: &["ten stretches or more from one loss to the next"],
    must_not: &[
        "round trips to there show a queue",
        "only long segments are lost",
        "segments on their way to there are lost before this host, too",
    ],
    lookalikes: &[
        ("transit-loss-behind", "segments are lost at any rate, or at the rate of a line before this host"),
        ("transit-loss-before", "likewise, on the side of the clients"),
        ("transit-queue", "what exceeds the rate waits first: round trips grow"),
    ],
    yields_to: super::HERE,
    remedy: "Shape on this host to 95 % of that rate, with cake or fq_codel, so that packets wait here for some milliseconds \
             instead of being dropped there; or have the provider raise the rate. Senders with BBR lose about as much, and slow down less. \
             A queue of less than 5 ms looks the same, and needs the same remedy. A policer that what comes here has passed already is \
             not found: its delay is not in sight. Nor are all others: senders that stop and start, or round trips below a \
             millisecond, hide the rate.",
    sources: &[
        "Flach et al.: An Internet-Wide Analysis of Traffic Policing (SIGCOMM 2016)",
        "RFC 2697 and RFC 2698 (token buckets), RFC 2475 section 2.3.3 (policers and shapers)",
    ],
    not_injected: Some(
        "paths of the self-test have no delay, without which TCP fills no window; scripts/soak-transit makes it",
    ),
    ..Cause::of(Group::Transit, examine)
};

/// As much of the rate is left for bytes that the policer counts and this host does not, such as link headers.
const SHAPED: f64 = 0.95;
/// More stretches than these agree by more than chance.
const MANY: usize = 10;

/// The ceiling of a network that loses segments on the way there, if that explains the loss. A line before this host that drops segments
/// has a rate, too.
pub(super) fn of_network(namespace: &Namespace, network: &TransitNetwork) -> Option<Ceiling> {
    let loses_before =
        signs::networks(namespace).any(|n| n.servers != network.servers && signs::loses(&n.lost_from));
    let loses = signs::loses(&network.lost_to) && signs::is_lossy(network) && !loses_before;
    loses.then(|| ceiling(network)).flatten()
}

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let here = signs::lost_here(view).segments;
    let mut findings = Vec::new();
    for namespace in view.namespaces() {
        for network in signs::networks(namespace).filter(|n| !signs::explains(here, n.lost_to.lost)) {
            if let Some(ceiling) = of_network(namespace, network) {
                findings.push(of(view, namespace, network, &ceiling, here));
            }
        }
    }
    findings
}

fn of(
    view: &EvidenceView<'_>,
    namespace: &Namespace,
    network: &TransitNetwork,
    ceiling: &Ceiling,
    here: u64,
) -> Finding {
    let (lost, rate) =
        (&network.lost_to, units::quantity(Unit::Bps, ceiling.bit_rate, Some(ceiling.between)));
    let share = units::quantity(Unit::Ratio, lost.share(), Some((lost.low, lost.high)));
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    let per_second = lost.lost as f64 / view.evidence.window_s.max(0.1);
    finding.severity =
        if lost.share() >= 0.01 && per_second >= 1.0 { Severity::Critical } else { Severity::Warning };
    finding.object.clone_from(&network.network);
    finding.impact = lost.share();
    finding.summary = format!(
        "A policer between this host's {} and {} drops what exceeds {rate}: {} of {} segments that this host passed on towards it \
         were lost, {share}. Round trips do not grow with the losses.",
        network.interface, network.network, lost.lost, lost.of
    );
    let text = format!(
        "{} times from one loss to the next, {:.1} s in all: what arrived meanwhile had the same rate",
        ceiling.stretches, ceiling.seconds
    );
    finding.seen(EvidenceSource::Transit, text);
    if let Some(share) = ceiling.lost_of_more {
        let (more, all) = (units::percent(share.min(1.0)), units::percent(lost.share()));
        finding.seen(
            EvidenceSource::Transit,
            format!("of what came in addition to the usual, {more} was lost; of all, {all}"),
        );
    }
    let text = format!(
        "senders towards {} waited for the network {:.0} % of the time, in {} flows",
        network.network,
        100.0 * network.network_limited,
        network.flows
    );
    finding.seen(EvidenceSource::Transit, text);
    finding.not.push(format!("not on this machine: it lost at most {here} segments of TCP in the window"));
    finding.not.push(format!(
        "not a queue: round trips at losses took {:.1} ms more than the shortest one of {:.1} ms",
        ceiling.rise_ns / 1e6,
        signs::ms(network.smallest_ns)
    ));
    finding.missing = view
        .missing(namespace, &[EvidenceSource::Drops, EvidenceSource::Interfaces, EvidenceSource::Transit]);
    finding.confidence = match finding.missing.contains(&EvidenceSource::Drops) {
        true => Confidence::Low,
        false if ceiling.stretches >= MANY => Confidence::High,
        false => Confidence::Medium,
    };
    finding.fixes = vec![shape(network, ceiling)];
    finding
}

/// Packets wait here, where a queue manages itself, instead of being dropped there.
fn shape(network: &TransitNetwork, ceiling: &Ceiling) -> Fix {
    let rate = format!("{:.0}kbit", SHAPED * ceiling.bit_rate / 1e3);
    Fix::new(
        "shape here, a little below that rate",
        format!(
            "everything that leaves by {} keeps to the rate, also towards other networks",
            network.interface
        ),
        [sh!("tc qdisc replace dev {} root cake bandwidth {}", network.interface, rate)],
        [sh!("tc qdisc del dev {} root", network.interface)],
    )
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{dropped, host};
    use super::*;
    use crate::evidence::Evidence;

    /// The first recorded network: a policer of 20 Mbit/s.
    fn policed() -> TransitNetwork {
        let all: Vec<serde_json::Value> =
            serde_json::from_str(include_str!("moments/recorded.json")).unwrap();
        serde_json::from_value(all[0]["network"].clone()).unwrap()
    }

    fn causes(evidence: &Evidence) -> Vec<String> {
        crate::diagnosis::diagnose(evidence).findings.into_iter().map(|f| f.cause).collect()
    }

    #[test]
    fn the_network_the_rate_the_share_and_a_shaper_are_named() {
        let evidence = host(vec![policed()]);
        let found = &examine(&EvidenceView::of(&evidence))[0];
        assert_eq!(found.object, policed().network);
        assert!(found.summary.contains("drops what exceeds 20.03 Mbit/s ["), "{}", found.summary);
        assert!(found.summary.contains("segments that this host passed on"), "{}", found.summary);
        let command = &found.fixes[0].commands[0];
        assert!(command.contains("cake bandwidth 190") && command.contains("kbit"), "{command}");
        assert!(found.not.iter().any(|line| line.starts_with("not a queue")), "{:?}", found.not);
    }

    #[test]
    fn it_takes_the_place_of_plain_loss_one_way_alone() {
        assert_eq!(causes(&host(vec![policed()])), [CAUSE.id]);
        let bare = TransitNetwork { moments: Vec::new(), ..policed() };
        assert_eq!(causes(&host(vec![bare])), ["transit-loss-behind"]);
        let back = TransitNetwork { lost_from: policed().lost_to, ..policed() };
        assert_eq!(causes(&host(vec![back])).len(), 2);
    }

    #[test]
    fn a_line_before_this_host_that_drops_may_be_what_has_the_rate() {
        let senders = TransitNetwork {
            servers: false,
            lost_from: policed().lost_to,
            ..super::super::fixture::network(false)
        };
        let found = causes(&host(vec![policed(), senders]));
        assert!(
            found.contains(&"transit-loss-behind".to_owned()) && !found.contains(&CAUSE.id.to_owned()),
            "{found:?}"
        );
    }

    #[test]
    fn a_loss_here_and_little_loss_are_none() {
        let mut own = host(vec![policed()]);
        own.drops.push(dropped(0x10, policed().lost_to.lost));
        assert_eq!(examine(&EvidenceView::of(&own)), []);
        let mut few = policed();
        few.lost_to.of *= 100;
        assert_eq!(examine(&EvidenceView::of(&host(vec![few]))), []);
    }
}
