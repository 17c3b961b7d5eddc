//! Findings set against each other and against the whole of what was lost.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_text::order;

use crate::causes::{self, is_noise};
use crate::comparison::Since;
use crate::evidence::{Cost, Evidence, EvidenceSource, Interface, Namespace, Sight};
use crate::finding::{Claim, Confidence, Fact, Finding, Severity, severity_of_loss};

/// Id of the finding about what no cause explains.
pub const UNEXPLAINED: &str = "unexplained";

/// A claim that keeps less than this share of itself after others took theirs is no finding any more.
const KEEPS: f64 = 0.05;

/// Fewer unexplained packets than this are normal on any host in a window, whatever its length.
pub(crate) const STRAY: u64 = 10;

/// The doctor's diagnosis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// Length of the window, s.
    pub window_s: f64,
    /// Its end, seconds since 1970, UTC.
    pub ended_unix_s: i64,
    /// The findings, the most important first.
    pub findings: Vec<Finding>,
    /// Packets lost in the window.
    pub lost: Lost,
    /// In and out, by namespace.
    pub balance: Vec<Balance>,
    /// The evidence sources, and whether they were in sight.
    pub evidence_sources: BTreeMap<EvidenceSource, Sight>,
    /// The cost of the examination.
    pub cost: Cost,
    /// The comparison with an earlier report; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Since>,
}

/// Packets lost in the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lost {
    /// All, without those that every host loses without harm.
    pub packets: u64,
    /// Lost packets that a finding explains.
    pub explained: u64,
    /// Packets lost without harm: unwanted multicast, sockets that close, and the like.
    pub harmless: u64,
}

/// The packet balance of a namespace in the window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Balance {
    /// Namespace.
    pub namespace: u64,
    /// Its name; text from outside.
    pub place: String,
    /// Received by its interfaces, loopback and members of bridges left out.
    pub received: u64,
    /// Sent by them.
    pub sent: u64,
    /// IP packets forwarded (`Ip.ForwDatagrams`, `Ip6.OutForwDatagrams`).
    pub forwarded: u64,
    /// IP packets delivered to this host's own protocols.
    pub delivered: u64,
    /// IP packets made here.
    pub made: u64,
    /// Lost, as above.
    pub lost: u64,
    /// IP packets that came in and were neither delivered nor forwarded nor put together from fragments, and of which no loss is
    /// known: what fell between the counters. A few are on their way when they are read.
    pub unaccounted: u64,
    /// Each interface that had packets.
    pub interfaces: Vec<InterfaceBalance>,
}

/// The packet balance of an interface in the window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InterfaceBalance {
    /// Name; text from outside.
    pub name: String,
    /// Received.
    pub received: u64,
    /// Sent.
    pub sent: u64,
    /// Thrown away by the interface itself, on the way in and on the way out (its own counters).
    pub dropped: (u64, u64),
    /// Packets of it that the kernel lost, without those that every host loses.
    pub lost: u64,
}

/// Weighs the evidence.
pub fn diagnose(evidence: &Evidence) -> Diagnosis {
    let mut findings = give_way(causes::examine(evidence));
    let lost = weigh(evidence, &mut findings);
    findings.extend(unexplained(evidence, lost));
    for finding in &mut findings {
        if let Some(namespace) = evidence.namespace(finding.namespace) {
            crate::command::place(&mut finding.fixes, namespace);
        }
    }
    order::by(&mut findings, |a, b| {
        let weight = |f: &Finding| f.explains_ratio.max(f.impact);
        (b.severity.cmp(&a.severity))
            .then(weight(b).total_cmp(&weight(a)))
            .then(b.confidence.cmp(&a.confidence))
            .then(a.cause.cmp(&b.cause))
    });
    Diagnosis {
        window_s: evidence.window_s,
        ended_unix_s: evidence.ended_unix_s,
        findings,
        lost,
        balance: evidence.namespaces.iter().map(|n| balance(evidence, n)).collect(),
        evidence_sources: evidence.evidence_sources.clone(),
        cost: evidence.cost.clone(),
        since: None,
    }
}

impl Diagnosis {
    /// Severity of the worst finding.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|f| f.severity).max()
    }
}

/// The identity of a loss: a claim without its number.
type Loss<'a> = (Option<usize>, u64, &'a str);

fn loss(claim: &Claim) -> (Loss<'_>, u64) {
    match claim {
        Claim::Drops { group, packets } => ((Some(*group), 0, ""), *packets),
        Claim::Counter { namespace, counter, packets } => ((None, *namespace, counter), *packets),
    }
}

/// Takes from each finding what the more special ones that its cause yields to explain already. One that claims nothing gives
/// way where such a one was found in the same place.
fn give_way(findings: Vec<Finding>) -> Vec<Finding> {
    let yields = |f: &Finding| causes::by_id(&f.cause).map_or(&[] as &[&str], |c| c.yields_to);
    let special = |f: &Finding| -> Vec<&Finding> {
        let to = yields(f);
        findings.iter().filter(|s| to.contains(&s.cause.as_str())).collect()
    };
    let mut kept = Vec::new();
    for finding in &findings {
        let over = special(finding);
        let mut rest = finding.clone();
        if finding.claims.is_empty() {
            let here = |s: &&Finding| s.namespace == finding.namespace && s.severity >= Severity::Warning;
            if !over.iter().any(here) {
                kept.push(rest);
            }
            continue;
        }
        let mut before = 0;
        let mut after = 0;
        for claim in &mut rest.claims {
            let taken: u64 = over
                .iter()
                .flat_map(|s| &s.claims)
                .filter(|c| loss(c).0 == loss(claim).0)
                .map(|c| loss(c).1)
                .sum();
            let (Claim::Drops { packets, .. } | Claim::Counter { packets, .. }) = claim;
            before += *packets;
            *packets = packets.saturating_sub(taken);
            after += *packets;
        }
        rest.claims.retain(|c| loss(c).1 > 0);
        if after > 0 && after as f64 >= KEEPS * before as f64 {
            kept.push(rest);
        }
    }
    kept
}

/// Sets how much of the loss each finding explains, and returns the whole.
fn weigh(evidence: &Evidence, findings: &mut [Finding]) -> Lost {
    let (noise, real): (Vec<_>, Vec<_>) = evidence.drops.iter().partition(|d| is_noise(d));
    let sum = |drops: &[&crate::evidence::DropGroup]| drops.iter().map(|d| d.packets).sum::<u64>();
    let mut counted: BTreeMap<(u64, &str), u64> = BTreeMap::new();
    let mut claimed: BTreeMap<usize, u64> = BTreeMap::new();
    for claim in findings.iter().flat_map(|f| &f.claims) {
        match claim {
            Claim::Drops { group, packets } => *claimed.entry(*group).or_default() += packets,
            Claim::Counter { namespace, counter, packets } => {
                let most = counted.entry((*namespace, counter)).or_default();
                *most = (*most).max(*packets);
            }
        }
    }
    let of_counters: u64 = counted.values().sum();
    let of_drops: u64 = claimed.iter().map(|(g, n)| (*n).min(evidence.drops[*g].packets)).sum();
    let lost =
        Lost { packets: sum(&real) + of_counters, explained: of_drops + of_counters, harmless: sum(&noise) };
    for finding in findings {
        let packets = finding.claims.iter().map(|c| loss(c).1).sum::<u64>();
        finding.explains_packets = packets.min(lost.packets);
        finding.explains_ratio = finding.explains_packets as f64 / lost.packets.max(1) as f64;
    }
    lost
}

/// A finding about drops that no cause takes, if they are worth one: namespace by namespace would hide what is spread.
fn unexplained(evidence: &Evidence, lost: Lost) -> Option<Finding> {
    let rest = lost.packets.saturating_sub(lost.explained);
    let passed: u64 = evidence.namespaces.iter().map(|n| causes::EvidenceView::of(evidence).passed(n)).sum();
    let severity = severity_of_loss(rest, passed, evidence.window_s);
    if severity == Severity::Note || rest < STRAY {
        return None;
    }
    let view = causes::EvidenceView::of(evidence);
    // An unexplained loss is never more than a warning.
    let mut finding = view.machine_finding(UNEXPLAINED, Severity::Warning);
    finding.confidence = Confidence::High;
    finding.explains_packets = rest;
    finding.explains_ratio = rest as f64 / lost.packets.max(1) as f64;
    finding.summary = format!("{rest} packets were lost for reasons that no known cause explains.");
    let mut groups: Vec<_> = evidence.drops.iter().filter(|d| !is_noise(d)).collect();
    order::by_key(&mut groups, |d| std::cmp::Reverse(d.packets));
    for d in groups.iter().take(5) {
        let place = evidence.namespace(d.namespace).map_or("no namespace", |n| n.name.as_str());
        let text = format!("{} packets: {} in {}() ({place})", d.packets, d.reason, d.location);
        finding.evidence.push(Fact::seen(EvidenceSource::Drops, text));
    }
    Some(finding)
}

fn balance(evidence: &Evidence, namespace: &Namespace) -> Balance {
    let masters = order::set(namespace.interfaces.iter().filter_map(|i| i.master));
    let edges = namespace.interfaces.iter().filter(|i| i.name != "lo" && !masters.contains(&i.index));
    let (mut received, mut sent) = (0, 0);
    for interface in edges {
        let grew = |name: &str| interface.counters.get(name).map_or(0, |d| d.change());
        received += grew("rx_packets");
        sent += grew("tx_packets");
    }
    let drops = || evidence.drops.iter().filter(|d| d.namespace == namespace.id);
    let lost: u64 = drops().filter(|d| !is_noise(d)).map(|d| d.packets).sum();
    let gone: u64 = drops().map(|d| d.packets).sum();
    let ip = |name: &str| namespace.grew(&format!("ip.{name}")) + namespace.grew(&format!("ip6.{name}"));
    // Fragments come in one by one, and the reassembled packet counts as one more.
    let went = ip("InDelivers") + ip("ForwDatagrams") + ip("OutForwDatagrams") + ip("ReasmReqds");
    let unaccounted = (ip("InReceives") + ip("ReasmOKs")).saturating_sub(went + gone);
    Balance {
        namespace: namespace.id,
        place: namespace.name.clone(),
        received,
        sent,
        forwarded: namespace.grew("ip.ForwDatagrams") + namespace.grew("ip6.OutForwDatagrams"),
        delivered: namespace.grew("ip.InDelivers") + namespace.grew("ip6.InDelivers"),
        made: namespace.grew("ip.OutRequests") + namespace.grew("ip6.OutRequests"),
        lost,
        unaccounted,
        interfaces: namespace
            .interfaces
            .iter()
            .filter_map(|i| of_interface(evidence, namespace, i))
            .collect(),
    }
}

fn of_interface(
    evidence: &Evidence,
    namespace: &Namespace,
    interface: &Interface,
) -> Option<InterfaceBalance> {
    let grew = |name: &str| interface.counters.get(name).map_or(0, |d| d.change());
    let drops =
        evidence.drops.iter().filter(|d| d.namespace == namespace.id && d.interface == interface.index);
    let balance = InterfaceBalance {
        name: interface.name.clone(),
        received: grew("rx_packets"),
        sent: grew("tx_packets"),
        dropped: (grew("rx_dropped") + grew("rx_missed_errors"), grew("tx_dropped")),
        lost: drops.filter(|d| !is_noise(d)).map(|d| d.packets).sum(),
    };
    (balance.received + balance.sent + balance.lost > 0).then_some(balance)
}
