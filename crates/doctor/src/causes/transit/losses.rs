//! Loss between this host and the networks on one side of it.

use std::collections::BTreeMap;

use weir_text::units::{self, Unit};

use super::policing;
use super::signs::{self, SUFFERS};
use crate::causes::EvidenceView;
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace, Repeated, TransitNetwork};
use crate::finding::{Confidence, Fact, Finding, Fix, Severity};

/// One finding for each interface behind which networks suffer.
pub(super) fn findings(view: &EvidenceView<'_>, cause: &str, servers: bool) -> Vec<Finding> {
    let here = signs::lost_here(view).segments;
    let mut findings = Vec::new();
    for namespace in view.namespaces() {
        let mut by_interface: BTreeMap<&str, Vec<&TransitNetwork>> = BTreeMap::new();
        let lossy =
            signs::networks(namespace).filter(|n| n.servers == servers && is_unexplained(namespace, n));
        for network in lossy {
            by_interface.entry(&network.interface).or_default().push(network);
        }
        for (interface, networks) in by_interface {
            let lost: u64 = networks.iter().map(|n| n.lost_to.lost + n.lost_from.lost).sum();
            if !signs::explains(here, lost) {
                findings.push(finding(view, cause, namespace, interface, &networks, here));
            }
        }
    }
    findings
}

/// Whether the network loses segments, and not only to a policer.
fn is_unexplained(namespace: &Namespace, network: &TransitNetwork) -> bool {
    signs::is_lossy(network)
        && (signs::loses(&network.lost_from) || policing::of_network(namespace, network).is_none())
}

/// Both directions of the networks together. The interval is that of the network with the most losses.
fn sum(networks: &[&TransitNetwork], direction: fn(&TransitNetwork) -> Repeated) -> Repeated {
    let parts = networks.iter().map(|n| direction(n));
    let all = parts.clone().fold(Repeated::default(), |sum, part| Repeated {
        lost: sum.lost + part.lost,
        of: sum.of + part.of,
        ..sum
    });
    match networks {
        [one] => direction(one),
        _ => Repeated { low: all.share(), high: all.share(), ..all },
    }
}

fn share(part: &Repeated) -> String {
    let interval = (part.low < part.high).then_some((part.low, part.high));
    units::quantity(Unit::Ratio, part.share(), interval)
}

fn finding(
    view: &EvidenceView<'_>,
    cause: &str,
    namespace: &Namespace,
    interface: &str,
    networks: &[&TransitNetwork],
    here: u64,
) -> Finding {
    let (to, from) = (sum(networks, |n| n.lost_to), sum(networks, |n| n.lost_from));
    let side = networks[0].servers;
    let all = signs::networks(namespace).filter(|n| n.servers == side && n.interface == interface).count();
    let place = match networks {
        [one] => one.network.clone(),
        _ => format!("{} of {all} networks behind {interface}", networks.len()),
    };
    let mut finding = view.finding(cause, namespace, 0);
    let worst = if to.share() >= from.share() { to } else { from };
    let per_second = (to.lost + from.lost) as f64 / view.evidence.window_s.max(0.1);
    finding.severity =
        if worst.share() >= 0.01 && per_second >= 1.0 { Severity::Critical } else { Severity::Warning };
    finding.impact = worst.share();
    finding.summary = summary(&place, interface, &to, &from);
    finding.object = place;
    for network in networks.iter().take(5) {
        finding.evidence.extend(facts(network));
    }
    finding.not.push(format!("not on this machine: it lost at most {here} segments of TCP in the window"));
    if let [one] = networks
        && one.median_ns > 0
    {
        let (least, median) = (signs::ms(one.smallest_ns), signs::ms(one.median_ns));
        finding.not.push(format!(
            "not a queue: round trips to there take {median:.1} ms in the middle, {least:.1} ms at best"
        ));
    }
    finding.missing = view
        .missing(namespace, &[EvidenceSource::Drops, EvidenceSource::Interfaces, EvidenceSource::Transit]);
    finding.confidence = match finding.missing.contains(&EvidenceSource::Drops) {
        true => Confidence::Low,
        false if worst.low >= SUFFERS => Confidence::High,
        false => Confidence::Medium,
    };
    if let Some(address) = networks[0].example {
        let look = [sh!("mtr -n -T -P 443 -c 100 -r {}", address)];
        finding.fixes.push(Fix::look("measure the path from here", look));
    }
    finding
}

fn summary(place: &str, interface: &str, to: &Repeated, from: &Repeated) -> String {
    let towards =
        || format!("{} of {} segments that this host passed on towards it were lost", to.lost, to.of);
    let back = || format!("{} of {} segments from it were lost before they came here", from.lost, from.of);
    let ways = match (signs::loses(to), signs::loses(from)) {
        (true, true) => {
            format!("both ways: {} ({}), and {} ({})", towards(), share(to), back(), share(from))
        }
        (false, true) => format!("on the way here: {} ({})", back(), share(from)),
        _ => format!("on the way there: {} ({})", towards(), share(to)),
    };
    format!("TCP loses packets between this host's {interface} and {place}, {ways}.")
}

fn facts(network: &TransitNetwork) -> impl Iterator<Item = Fact> {
    let text = |part: &Repeated, words: &str| {
        format!(
            "{} {words} {}: {} of {} segments lost in {} flows",
            share(part),
            network.network,
            part.lost,
            part.of,
            network.flows
        )
    };
    let lines = [(network.lost_to, "to"), (network.lost_from, "from")];
    lines
        .into_iter()
        .filter(|(part, _)| part.lost > 0)
        .map(move |(part, words)| Fact::seen(EvidenceSource::Transit, text(&part, words)))
}
