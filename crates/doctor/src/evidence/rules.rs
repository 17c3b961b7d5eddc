//! Rules of nftables and iptables.

use serde::{Deserialize, Serialize};

use super::Delta;

/// Who holds a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// nftables.
    Nft,
    /// iptables over nftables.
    IptablesNft,
    /// The old tables of iptables.
    IptablesLegacy,
}

/// What a rule does with what it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Throws it away.
    Drop,
    /// Throws it away and says so.
    Reject,
    /// Anything else.
    Other,
}

/// All rules of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ruleset {
    /// Chains.
    pub chains: Vec<Chain>,
    /// Rules that can lose a packet, and those that have a counter.
    pub rules: Vec<Rule>,
    /// All rules there are, also those not listed here.
    pub total: u64,
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chain {
    /// Whose.
    pub backend: Backend,
    /// `ip`, `ip6`, `inet`, `arp`, `bridge` or `netdev`.
    pub family: String,
    /// Table; text from outside.
    pub table: String,
    /// Name; text from outside.
    pub name: String,
    /// Hook (`forward`, `input`, ...), of a base chain.
    pub hook: Option<String>,
    /// Its priority.
    pub priority: Option<i32>,
    /// What becomes of a packet at its end, of a base chain.
    pub policy: Option<Verdict>,
    /// Packets that the policy decided, where that is counted (always in iptables, never in nftables).
    pub policy_packets: Option<Delta>,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    /// Whose.
    pub backend: Backend,
    /// Family, as of its chain.
    pub family: String,
    /// Table; text from outside.
    pub table: String,
    /// Chain; text from outside.
    pub chain: String,
    /// Handle of nftables, or the number in its chain from 1 of the old iptables.
    pub handle: u64,
    /// The rule as its own tool prints it, or as near to that as could be told; text from outside.
    pub text: String,
    /// What it does.
    pub verdict: Verdict,
    /// Packets it matched, if it counts.
    pub packets: Option<Delta>,
    /// It asks for `ct state invalid`.
    pub invalid: bool,
    /// It has a `limit`, `ct count`, `hashlimit` or `connlimit`.
    pub limit: bool,
    /// It asks a set or ipset; its name, which is text from outside.
    pub set: Option<String>,
    /// It draws by chance or takes turns (`numgen`, `statistic`).
    pub random: bool,
    /// It writes to a log without a limit.
    pub logs: bool,
    /// Packets thrown away by netfilter in the window, as sampled, that this rule, or the policy of its chain, would have
    /// thrown away: (samples that it decided, samples asked about).
    pub decided: (u64, u64),
}
