//! Rules that carried packets bypass, and that would decide about them, or record them.
//!
//! Everything that is the same for all packets of a flow was decided with its first packets, which took the kernel's way: addresses,
//! ports, interfaces, the state of the connection. So a rule matters only if it depends on something that varies from packet to
//! packet or with time, or if it does something for each packet. [`traffic`] knows what varies, [`expressions`], [`xtables`] and
//! [`legacy`] judge single rules by it, and [`walk`] finds those whose result reaches a packet that leaves. [`ends`] and [`fields`] find
//! the flows that such a rule meets, which an exclusion may leave to the kernel.

mod ends;
mod expressions;
mod fields;
mod judged;
mod legacy;
mod nft;
mod sets;
mod traffic;
mod walk;
mod xtables;

use schemars::JsonSchema;
use serde::Serialize;
use weir_netlink::{iptables, nftables};
use weir_sys::ProcRoot;
use weir_text::order;

use self::ends::MatchedFlows;
use self::walk::Rules;
use crate::{Exclusion, Result};

/// A rule that carried packets bypass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Bypassed {
    /// Its table, chain and number; names in it are text from outside.
    pub place: String,
    /// The rule, as far as it can be read; text from outside.
    pub rule: String,
    /// The result of bypassing it.
    pub effect: Effect,
    /// The reason.
    pub why: String,
    /// Exclusions that leave all flows to the kernel that the rule meets, at most 64. None if there are no such exclusions, if they would
    /// leave nothing to carry, or if the rule records only.
    pub exclusions: Vec<Exclusion>,
    /// True if the exclusions of the wish leave those flows to the kernel.
    pub excluded: bool,
    #[serde(skip)]
    flows: MatchedFlows,
}

impl Bypassed {
    fn new(place: String, rule: String, (effect, why): (Effect, String), flows: MatchedFlows) -> Self {
        let is_offered = effect == Effect::Changes;
        let exclusions = if is_offered { flows.exclusions() } else { Vec::new() };
        Bypassed { place, rule, effect, why, exclusions, excluded: false, flows }
    }

    /// True if these exclusions leave all flows to the kernel that the rule meets.
    pub fn is_covered(&self, by: &[Exclusion]) -> bool {
        self.flows.are_covered(by)
    }
}

/// The result of bypassing a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The outcome for carried packets may differ.
    Changes,
    /// A counter, log or set sees fewer packets.
    Records,
}

/// Rules of the calling thread's network namespace that carried packets bypass; those that change an outcome first.
///
/// Rules of bridges are not read: a bridge's interface is behind them. Programs of BPF at netfilter's hooks are not, either.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_ADMIN and CAP_NET_RAW over the namespace; `Interrupted` if the rules change all the time.
pub fn bypassed(root: &ProcRoot) -> Result<Vec<Bypassed>> {
    let tables = nftables::read(root)?;
    let old = iptables::read(root)?;
    let mut legacy = legacy::Legacy::new(&old);
    let Some(tables) = tables else { return Ok(both(&mut [&mut legacy])) };
    let mut asker = nftables::Asker::open()?;
    let mut nft = nft::Nft::new(&tables, &mut asker);
    Ok(both(&mut [&mut nft, &mut legacy]))
}

/// Marks are known to be the same for all packets of a flow only if rules set them, and set them for all packets of a flow.
fn both(origins: &mut [&mut dyn Rules]) -> Vec<Bypassed> {
    let mut mark_varies = !origins.iter().any(|rules| rules.sets_marks());
    let rewrites = origins.iter().any(|rules| rules.rewrites_ends());
    loop {
        let mut all = Vec::new();
        let mut varies = mark_varies;
        for rules in &mut *origins {
            let (found, marks) = walk::find(&mut **rules, mark_varies, rewrites);
            all.extend(found);
            varies |= marks;
        }
        if varies == mark_varies {
            order::by_key(&mut all, |found| found.effect);
            return all;
        }
        mark_varies = varies;
    }
}

#[cfg(test)]
mod tests;
