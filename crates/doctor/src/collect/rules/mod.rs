//! Rules of nftables and iptables, and which of them decided about the packets that netfilter threw away.

mod listing;
mod text;

use std::collections::HashMap;

use weir_sys::{ProcRoot, Result, nftables};

use crate::evidence::{Backend, Chain, Delta, DropGroup, Interface, Rule, Ruleset};

/// Those of the calling thread's namespace.
pub(super) fn read(root: &ProcRoot) -> Result<Ruleset> {
    let mut ruleset = Ruleset::default();
    if let Some(tables) = nftables::read(root)? {
        listing::nftables(&tables, &mut ruleset);
    }
    Ok(ruleset)
}

/// Makes a reading the end of a window. A rule or chain that was not there before counts from zero.
pub(super) fn since(now: &mut Ruleset, earlier: &Ruleset) {
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

/// Asks the rules about the samples of what netfilter threw away (see [`crate::evidence::Rule::decided`]).
pub(super) fn decide(_rules: &mut Ruleset, _drops: &[&DropGroup], _interfaces: &[Interface]) {}

#[cfg(test)]
mod tests;
