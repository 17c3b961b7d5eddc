//! An attribution as a finding: what all causes of this group say alike.

use std::collections::BTreeMap;

use weir_text::order;

use super::attribution::{DropAttribution, Matter, attributions};
use super::impact::{self, Pattern};
use crate::causes::EvidenceView;
use crate::evidence::{Backend, EvidenceSource, Tuple};
use crate::finding::{Claim, Confidence, Fact, Finding};

/// Most findings of one cause in one namespace. The last of them includes the rest.
const MOST: usize = 8;

/// One finding for each attribution of that matter; `tell` adds what is its own.
pub(super) fn findings<'a>(
    view: &EvidenceView<'a>,
    cause: &str,
    matter: Matter,
    tell: impl Fn(&DropAttribution<'a>, &mut Finding),
) -> Vec<Finding> {
    let mut all = Vec::new();
    for namespace in view.namespaces() {
        let mut attributions = attributions(view, namespace);
        attributions.retain(|c| c.matter() == matter);
        let mut rest = attributions.split_off(attributions.len().min(MOST));
        let from = all.len();
        for attribution in &attributions {
            let mut finding = base(view, cause, attribution);
            tell(attribution, &mut finding);
            all.push(finding);
        }
        if let (Some(last), false) = (all[from..].last_mut(), rest.is_empty()) {
            let packets: u64 = rest.iter().map(|c| c.packets).sum();
            let text = format!("{} further rules of this kind dropped {packets} packets", rest.len());
            last.seen(EvidenceSource::Rules, text);
            last.claims.extend(rest.iter_mut().flat_map(|c| std::mem::take(&mut c.claims)));
        }
    }
    all
}

/// Builds the finding with the parts that all attributions share.
fn base(view: &EvidenceView<'_>, cause: &str, attribution: &DropAttribution<'_>) -> Finding {
    let mut finding = view.finding(cause, attribution.namespace, attribution.packets);
    finding.severity = impact::severity(view, attribution);
    finding.confidence = confidence(attribution);
    finding.claims = attribution.claims.clone();
    finding.missing = view.missing(attribution.namespace, &[EvidenceSource::Drops, EvidenceSource::Rules]);
    finding.object = match attribution.rule {
        Some(rule) => format!("{}: {}", attribution.name(), rule.text),
        None => attribution.name(),
    };
    finding.evidence = facts(attribution);
    if attribution.groups.iter().any(|d| d.location.starts_with("nft_do_chain")) {
        finding.not.push(
            "not connection tracking and not the old iptables: the packets ended in nft_do_chain, where rules of nftables are \
             walked"
                .into(),
        );
    }
    finding
}

/// Counter and samples are independent of each other; either alone may mislead.
fn confidence(attribution: &DropAttribution<'_>) -> Confidence {
    let clear = attribution.sure >= 3 && 2 * attribution.sure > attribution.samples.len() as u64;
    match (attribution.counter.is_some(), clear) {
        (true, true) => Confidence::High,
        (true, false) | (false, true) => Confidence::Medium,
        (false, false) => Confidence::Low,
    }
}

fn facts(attribution: &DropAttribution<'_>) -> Vec<Fact> {
    let mut facts = Vec::new();
    let mut by_place: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for drops in &attribution.groups {
        *by_place.entry((&drops.reason, &drops.location)).or_default() += drops.packets;
    }
    for ((reason, location), packets) in by_place {
        facts.push(Fact::seen(
            EvidenceSource::Drops,
            format!("{packets} packets dropped as {reason} in {location}()"),
        ));
    }
    if let Some(counter) = attribution.counter {
        let text =
            format!("counter of the {}: {} packets in the window", attribution.name(), counter.change());
        facts.push(Fact::counter(EvidenceSource::Rules, &attribution.name(), counter, text));
    }
    if attribution.asked > 0 && attribution.sure > 0 {
        let text = format!(
            "of {} sampled packets, {} can have been dropped by nothing else among the rules",
            attribution.asked, attribution.sure
        );
        facts.push(Fact::seen(EvidenceSource::Rules, text));
    }
    if let Some(tuple) = example(attribution) {
        facts.push(Fact::seen(EvidenceSource::Drops, format!("for example {}", packet(tuple))));
    }
    if let Some(comment) = attribution.rule.and_then(|r| r.comment.as_deref()) {
        facts.push(Fact::seen(EvidenceSource::Rules, format!("its owner noted: {comment}")));
    }
    if attribution.hooks.len() == 1 && attribution.rule.is_some() {
        facts.push(Fact::seen(
            EvidenceSource::Rules,
            format!("reached from the hook {}", attribution.hooks[0]),
        ));
    }
    let pattern = Pattern::of(&attribution.samples);
    if pattern.scan {
        let text = "the packets go to one port or host after another, each once or twice, as a scan does";
        facts.push(Fact::seen(EvidenceSource::Drops, text));
    } else if pattern.established > 0.5 {
        facts
            .push(Fact::seen(EvidenceSource::Drops, "most of them belong to TCP connections that were open"));
    }
    facts
}

/// The tuple seen most often.
pub(super) fn example(attribution: &DropAttribution<'_>) -> Option<Tuple> {
    let mut tuples: Vec<Tuple> = attribution.samples.iter().filter_map(|s| s.tuple()).collect();
    // Ports of clients differ from packet to packet; the packets share the service.
    order::by_key(&mut tuples, |t| (t.source, t.destination, t.protocol, t.destination_port));
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
pub(super) fn service(attribution: &DropAttribution<'_>) -> String {
    let Some(tuple) = example(attribution) else { return String::new() };
    let same = |t: &Tuple| (t.destination, t.destination_port) == (tuple.destination, tuple.destination_port);
    let agree = attribution.samples.iter().filter_map(|s| s.tuple()).filter(same).count();
    match (2 * agree > attribution.samples.len(), tuple.destination_port) {
        (false, _) => String::new(),
        (true, 0) => format!(" to {}", tuple.destination),
        (true, port) => format!(" to {} port {port}", tuple.destination),
    }
}

/// A claim to packets that a finding made of drops alone.
pub(super) fn packets_of(claims: &[Claim]) -> u64 {
    claims.iter().map(Claim::packets).sum()
}

/// Names the program that keeps such rules.
pub(super) fn keeper(attribution: &DropAttribution<'_>) -> &'static str {
    match attribution.backend() {
        Some(Backend::IptablesNft) => "iptables (over nftables)",
        Some(Backend::IptablesLegacy) => "the old iptables",
        _ => "nftables",
    }
}
