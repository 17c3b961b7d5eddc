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

/// The action of a rule on matching packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleVerdict {
    /// Throws it away.
    Drop,
    /// Throws it away and says so.
    Reject,
    /// Hands it over to a program (NFQUEUE).
    Queue,
    /// Lets it pass.
    Accept,
    /// Anything else.
    Other,
}

/// All rules of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ruleset {
    /// Chains.
    pub chains: Vec<Chain>,
    /// Rules that can lose a packet, log, or let pass by a limit or a set, and some of those that have a counter.
    pub rules: Vec<Rule>,
    /// All rules there are, also those not listed here.
    pub total: u64,
    /// Sets with a name.
    #[serde(default)]
    pub sets: Vec<SetState>,
    /// Who decided about the packets that netfilter threw away, as far as the rules say so.
    #[serde(default)]
    pub blame: Vec<Blame>,
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
    /// The verdict on packets that reach its end, if it is a base chain.
    pub policy: Option<RuleVerdict>,
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
    /// Its number in its chain, from 1.
    #[serde(default)]
    pub position: u64,
    /// Hooks from which it can be reached (`forward`, `input`, ...).
    #[serde(default)]
    pub hooks: Vec<String>,
    /// The rule as its own tool prints it, or as close to that as possible; text from outside.
    pub text: String,
    /// The owner's comment; text from outside.
    #[serde(default)]
    pub comment: Option<String>,
    /// Its action.
    pub verdict: RuleVerdict,
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
    /// It writes to the kernel's log without a limit.
    pub logs: bool,
    /// Packets thrown away by netfilter in the window, as sampled, that this rule would have thrown away: (samples that it, or
    /// perhaps it, decided, samples asked about).
    pub decided: (u64, u64),
}

/// A set that has a name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetState {
    /// Family.
    pub family: String,
    /// Table; text from outside. Empty of an ipset.
    pub table: String,
    /// Name; text from outside.
    pub name: String,
    /// How many elements it may hold, if that is bounded.
    pub size: Option<u64>,
    /// How many it holds, if the kernel tells.
    pub count: Option<u64>,
    /// Its elements end by themselves.
    pub timeout: bool,
    /// Rules may add elements.
    pub dynamic: bool,
}

impl SetState {
    /// It holds as many elements as it may.
    pub fn is_full(&self) -> bool {
        self.count.zip(self.size).is_some_and(|(count, size)| size > 0 && count >= size)
    }
}

/// The rule or policy that decided about packets of one group of drops, found by evaluating the rules for its samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Blame {
    /// The group's place in [`super::Evidence::drops`].
    pub group: usize,
    /// The rule's place in [`Ruleset::rules`]; `None`: the policy of the chain.
    pub rule: Option<usize>,
    /// The chain's place in [`Ruleset::chains`].
    pub chain: usize,
    /// Hook in which it happened.
    pub hook: String,
    /// Samples for which nothing else can have decided.
    pub sure: u64,
    /// Samples for which it can have decided, each divided by the number of those that can.
    pub share: f64,
    /// Samples of the group that were asked about.
    pub asked: u64,
    /// Those for which it can have decided, by their place in [`super::DropGroup::samples`].
    pub samples: Vec<usize>,
    /// Rules, by their place in [`Ruleset::rules`], that would have let the packets pass but for one thing, and which thing.
    pub missed: Vec<(usize, Missed)>,
}

/// The condition that an accepting rule lacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Missed {
    /// The packet's key was not in its set.
    Set,
    /// Its limit was perhaps used up.
    Limit,
    /// It draws by chance.
    Chance,
}
