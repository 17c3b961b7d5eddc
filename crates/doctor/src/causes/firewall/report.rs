//! A charge as a finding: what all causes of this group say alike.

use std::collections::BTreeMap;

use super::charge::{Charge, Matter, charges};
use super::harm::{self, Pattern};
use crate::causes::Scene;
use crate::evidence::{Backend, Plane, Tuple};
use crate::finding::{Claim, Confidence, Fact, Finding};

/// Findings of one cause in one namespace. What is beyond is in the last of them.
const MOST: usize = 8;

/// One finding for each charge of that matter; `tell` adds what is its own.
pub(super) fn findings<'a>(
    scene: &Scene<'a>,
    cause: &str,
    matter: Matter,
    tell: impl Fn(&Charge<'a>, &mut Finding),
) -> Vec<Finding> {
    let mut all = Vec::new();
    for namespace in scene.namespaces() {
        let mut charges = charges(scene, namespace);
        charges.retain(|c| c.matter() == matter);
        let mut rest = charges.split_off(charges.len().min(MOST));
        let from = all.len();
        for charge in &charges {
            let mut finding = base(scene, cause, charge);
            tell(charge, &mut finding);
            all.push(finding);
        }
        if let (Some(last), false) = (all[from..].last_mut(), rest.is_empty()) {
            let packets: u64 = rest.iter().map(|c| c.packets).sum();
            let text = format!("{} further rules of this kind threw away {packets} packets", rest.len());
            last.evidence.push(Fact::seen(Plane::Rules, text));
            last.claims.extend(rest.iter_mut().flat_map(|c| std::mem::take(&mut c.claims)));
        }
    }
    all
}

/// What there is to say of any charge.
fn base(scene: &Scene<'_>, cause: &str, charge: &Charge<'_>) -> Finding {
    let mut finding = scene.finding(cause, charge.namespace, charge.packets);
    finding.severity = harm::severity(scene, charge);
    finding.confidence = confidence(charge);
    finding.claims = charge.claims.clone();
    finding.missing = scene.missing(charge.namespace, &[Plane::Drops, Plane::Rules]);
    finding.object = match charge.rule {
        Some(rule) => format!("{}: {}", charge.name(), rule.text),
        None => charge.name(),
    };
    finding.evidence = facts(charge);
    if charge.groups.iter().any(|d| d.location.starts_with("nft_do_chain")) {
        finding.not.push(
            "not connection tracking and not the old iptables: the packets ended in nft_do_chain, where rules of nftables are \
             walked"
                .into(),
        );
    }
    finding
}

/// Counter and samples are independent of each other; either alone may mislead.
fn confidence(charge: &Charge<'_>) -> Confidence {
    let clear = charge.sure >= 3 && 2 * charge.sure > charge.samples.len() as u64;
    match (charge.counter.is_some(), clear) {
        (true, true) => Confidence::High,
        (true, false) | (false, true) => Confidence::Medium,
        (false, false) => Confidence::Low,
    }
}

fn facts(charge: &Charge<'_>) -> Vec<Fact> {
    let mut facts = Vec::new();
    let mut by_place: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for drops in &charge.groups {
        *by_place.entry((&drops.reason, &drops.location)).or_default() += drops.packets;
    }
    for ((reason, location), packets) in by_place {
        facts
            .push(Fact::seen(Plane::Drops, format!("{packets} packets dropped as {reason} in {location}()")));
    }
    if let Some(counter) = charge.counter {
        let text = format!("counter of the {}: {} packets in the window", charge.name(), counter.change());
        facts.push(Fact::counter(Plane::Rules, &charge.name(), counter, text));
    }
    if charge.asked > 0 && charge.sure > 0 {
        let text = format!(
            "of {} sampled packets, {} can have been thrown away by nothing else among the rules",
            charge.asked, charge.sure
        );
        facts.push(Fact::seen(Plane::Rules, text));
    }
    if let Some(tuple) = example(charge) {
        facts.push(Fact::seen(Plane::Drops, format!("for example {}", packet(tuple))));
    }
    if let Some(comment) = charge.rule.and_then(|r| r.comment.as_deref()) {
        facts.push(Fact::seen(Plane::Rules, format!("its owner noted: {comment}")));
    }
    if charge.hooks.len() == 1 && charge.rule.is_some() {
        facts.push(Fact::seen(Plane::Rules, format!("reached from the hook {}", charge.hooks[0])));
    }
    let pattern = Pattern::of(&charge.samples);
    if pattern.scan {
        let text = "the packets go to one port or host after another, each once or twice, as a scan does";
        facts.push(Fact::seen(Plane::Drops, text));
    } else if pattern.established > 0.5 {
        facts.push(Fact::seen(Plane::Drops, "most of them belong to TCP connections that were open"));
    }
    facts
}

/// The tuple seen most often.
pub(super) fn example(charge: &Charge<'_>) -> Option<Tuple> {
    let mut tuples: Vec<Tuple> = charge.samples.iter().filter_map(|s| s.tuple()).collect();
    // Ports of clients differ from packet to packet; what is common is the service.
    tuples.sort_unstable_by_key(|t| (t.source, t.destination, t.protocol, t.destination_port));
    let same = |a: &Tuple, b: &Tuple| {
        (a.source, a.destination, a.protocol, a.destination_port)
            == (b.source, b.destination, b.protocol, b.destination_port)
    };
    tuples.chunk_by(same).max_by_key(|run| run.len()).map(|run| run[0])
}

fn packet(tuple: Tuple) -> String {
    let protocol = match tuple.protocol {
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        1 | 58 => "ICMP".to_owned(),
        n => format!("protocol {n}"),
    };
    if tuple.destination_port == 0 {
        format!("{protocol} from {} to {}", tuple.source, tuple.destination)
    } else {
        format!("{protocol} from {} to {} port {}", tuple.source, tuple.destination, tuple.destination_port)
    }
}

/// ` to 198.19.0.2 port 80`, if the samples agree on a service.
pub(super) fn service(charge: &Charge<'_>) -> String {
    let Some(tuple) = example(charge) else { return String::new() };
    let same = |t: &Tuple| (t.destination, t.destination_port) == (tuple.destination, tuple.destination_port);
    let agree = charge.samples.iter().filter_map(|s| s.tuple()).filter(same).count();
    match (2 * agree > charge.samples.len(), tuple.destination_port) {
        (false, _) => String::new(),
        (true, 0) => format!(" to {}", tuple.destination),
        (true, port) => format!(" to {} port {port}", tuple.destination),
    }
}

/// A claim to packets that a finding made of drops alone.
pub(super) fn packets_of(claims: &[Claim]) -> u64 {
    claims
        .iter()
        .map(|c| match c {
            Claim::Drops { packets, .. } | Claim::Counter { packets, .. } => *packets,
        })
        .sum()
}

/// The words for whoever keeps such rules.
pub(super) fn keeper(charge: &Charge<'_>) -> &'static str {
    match charge.backend() {
        Some(Backend::IptablesNft) => "iptables (over nftables)",
        Some(Backend::IptablesLegacy) => "the old iptables",
        _ => "nftables",
    }
}
