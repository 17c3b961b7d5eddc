//! Rules.

mod attribution;
mod bridge_netfilter;
pub(super) mod commands;
#[cfg(test)]
mod fixture;
mod impact;
mod iptables_legacy_drop;
mod log_storm;
mod nfqueue_full;
mod nft_rule_drop;
mod policy_drop;
#[cfg(test)]
mod recorded;
mod report;
mod rule_limit;
mod rule_random;
mod rule_reject;
mod set_limit;

use super::Cause;

/// Those of this group.
pub(super) static CAUSES: &[&Cause] = &[
    &nft_rule_drop::CAUSE,
    &policy_drop::CAUSE,
    &iptables_legacy_drop::CAUSE,
    &bridge_netfilter::CAUSE,
    &set_limit::CAUSE,
    &rule_limit::CAUSE,
    &rule_reject::CAUSE,
    &rule_random::CAUSE,
    &nfqueue_full::CAUSE,
    &log_storm::CAUSE,
];
