//! Rules of nftables and iptables, and which of them decided about the packets that netfilter threw away.

mod decide;
mod exact;
mod legacy;
mod listing;
mod made;
mod matching;
mod nat;
mod old;
mod packet;
mod refused;
mod walk;
mod xtables;

use std::collections::HashMap;

use weir_netlink::{iptables, nftables};
use weir_sys::{ProcRoot, Result};

use crate::evidence::{Backend, Chain, Delta, DropGroup, Evidence, EvidenceSource, Namespace, Rule, Ruleset};

pub(super) use nat::read as read_nat;

/// Those of the calling thread's namespace.
pub(super) fn read(root: &ProcRoot) -> Result<Ruleset> {
    let mut ruleset = Ruleset::default();
    if let Some(tables) = nftables::read(root)? {
        listing::nftables(&tables, &mut ruleset);
    }
    legacy::add(&iptables::read(root)?, &mut ruleset);
    Ok(ruleset)
}

/// Makes a reading the end of a window. A rule or chain that was not there before counts from zero.
fn since(now: &mut Ruleset, earlier: &Ruleset) {
    let rules: HashMap<_, Delta> = earlier.rules.iter().filter_map(|r| Some((key(r), r.packets?))).collect();
    for rule in &mut now.rules {
        let before = rules.get(&key(rule)).copied().unwrap_or_default();
        if let Some(packets) = &mut rule.packets {
            packets.since(before);
        }
    }
    let chain_key = |c: &Chain| (c.backend, c.family.clone(), c.table.clone(), c.name.clone());
    let chains: HashMap<_, Delta> =
        earlier.chains.iter().filter_map(|c| Some((chain_key(c), c.policy_packets?))).collect();
    for chain in &mut now.chains {
        let before = chains.get(&chain_key(chain)).copied().unwrap_or_default();
        if let Some(packets) = &mut chain.policy_packets {
            packets.since(before);
        }
    }
}

fn key(rule: &Rule) -> (Backend, String, String, String, u64) {
    (rule.backend, rule.family.clone(), rule.table.clone(), rule.chain.clone(), rule.handle)
}

/// Completes a reading at the end of the window, in the namespace: growth since its beginning, and what the rules say about
/// the samples of what netfilter threw away (see [`crate::evidence::Blame`]).
pub(super) fn finish(root: &ProcRoot, inside: &mut Namespace, earlier: &Namespace, evidence: &Evidence) {
    if let (Some(now), Some(earlier)) = (&mut inside.rules, &earlier.rules) {
        since(now, earlier);
    }
    let kernel = &evidence.machine.kernel;
    let groups: Vec<(usize, &DropGroup)> = evidence
        .drops
        .iter()
        .enumerate()
        .filter(|(_, d)| d.namespace == inside.id && decide::is_of_rules(d, kernel))
        .collect();
    if !groups.is_empty() && inside.rules.is_some() {
        let before = earlier.counters.get("conntrack.invalid").copied().unwrap_or_default();
        let invalid =
            inside.counters.get("conntrack.invalid").map(|now| now.after.saturating_sub(before.after));
        match nftables::read(root) {
            Ok(Some(tables)) => decide::decide(&tables, inside, &groups, invalid),
            Ok(None) => {}
            Err(e) => {
                inside.blind.insert(EvidenceSource::Rules, e.to_string());
            }
        }
    }
    if let Some(rules) = &mut inside.rules {
        exact::complete(rules);
    }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod nat_tests;
#[cfg(test)]
mod ruleset_fuzz;
#[cfg(test)]
mod tests;
