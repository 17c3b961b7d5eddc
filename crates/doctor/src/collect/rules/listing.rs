//! The ruleset of nftables as evidence: which rules can lose packets, and what they count.

use std::collections::{BTreeSet, HashMap, HashSet};

use weir_netlink::nftables::{self, Expression, Family, NftVerdict as Nft, Tables, text};

use crate::evidence::{Backend, Chain, Delta, Rule, RuleVerdict, Ruleset, SetState};

/// Rules that neither lose packets nor log, and have a counter, are kept up to this many.
const COUNTED: usize = 200;
/// Rules kept in all. One behind them that is found to have thrown packets away is added then.
pub(super) const RULES: usize = 20_000;
/// Sets kept.
const SETS: usize = 1000;
/// A chain may be reached through at most this many others (NFT_JUMP_STACK_SIZE).
const JUMPS: usize = 16;

/// The full name of a chain.
type ChainName<'a> = (Family, &'a str, &'a str);

/// Makes evidence of rules, with what must be known of the whole ruleset for it.
pub(super) struct Lister<'a> {
    tables: &'a Tables,
    iptables: HashSet<(Family, &'a str)>,
    hooks: HashMap<ChainName<'a>, BTreeSet<&'static str>>,
    shared: HashSet<(Family, &'a str, &'a str)>,
}

impl<'a> Lister<'a> {
    pub(super) fn new(tables: &'a Tables) -> Self {
        Lister {
            tables,
            iptables: tables_of_iptables(tables),
            hooks: hooks(tables),
            shared: shared_counters(tables),
        }
    }

    pub(super) fn backend(&self, family: Family, table: &str) -> Backend {
        if self.iptables.contains(&(family, table)) { Backend::IptablesNft } else { Backend::Nft }
    }

    /// The rule at that place, whatever it does.
    pub(super) fn rule(&self, place: usize) -> Rule {
        let rule = &self.tables.rules[place];
        let same =
            |r: &&nftables::Rule| r.chain == rule.chain && r.table == rule.table && r.family == rule.family;
        let position = self.tables.rules[..=place].iter().filter(same).count() as u64;
        self.evidence(rule, position, Traits::of(rule), packets(rule, self.tables, &self.shared))
    }

    fn evidence(&self, rule: &nftables::Rule, position: u64, traits: Traits, packets: Option<u64>) -> Rule {
        let hooks = self.hooks.get(&(rule.family, rule.table.as_str(), rule.chain.as_str()));
        Rule {
            backend: self.backend(rule.family, &rule.table),
            family: rule.family.name().into(),
            table: rule.table.clone(),
            chain: rule.chain.clone(),
            handle: rule.handle,
            position,
            hooks: hooks.into_iter().flatten().map(|h| (*h).to_owned()).collect(),
            text: text::render(rule),
            comment: rule.comment.clone().or_else(|| text::iptables_comment(rule)),
            verdict: traits.verdict,
            packets: packets.map(Delta::at),
            invalid: traits.invalid,
            limit: traits.limit,
            set: traits.set,
            random: traits.random,
            logs: traits.logs,
            decided: (0, 0),
        }
    }
}

/// Adds what nftables holds.
pub(super) fn nftables(tables: &Tables, ruleset: &mut Ruleset) {
    let lister = Lister::new(tables);
    for chain in &tables.chains {
        let base = chain.base.as_ref();
        ruleset.chains.push(Chain {
            backend: lister.backend(chain.family, &chain.table),
            family: chain.family.name().into(),
            table: chain.table.clone(),
            name: chain.name.clone(),
            hook: base.map(|b| b.hook.name().into()),
            priority: base.map(|b| b.priority),
            policy: base.map(|b| if b.drops { RuleVerdict::Drop } else { RuleVerdict::Accept }),
            policy_packets: base.and_then(|b| b.packets).map(Delta::at),
        });
    }
    let mut positions: HashMap<ChainName<'_>, u64> = HashMap::new();
    let mut counted = 0;
    for rule in &tables.rules {
        let position = positions.entry((rule.family, rule.table.as_str(), rule.chain.as_str())).or_default();
        *position += 1;
        let traits = Traits::of(rule);
        let packets = packets(rule, tables, &lister.shared);
        if !traits.matters() {
            counted += usize::from(packets.is_some());
            if packets.is_none() || counted > COUNTED {
                continue;
            }
        }
        if ruleset.rules.len() < RULES {
            ruleset.rules.push(lister.evidence(rule, *position, traits, packets));
        }
    }
    ruleset.total += tables.rules.len() as u64;
    let named = tables.sets.iter().filter(|s| !s.anonymous).take(SETS);
    ruleset.sets.extend(named.map(|set| SetState {
        family: set.family.name().into(),
        table: set.table.clone(),
        name: set.name.clone(),
        size: set.size.map(u64::from),
        count: set.count.map(u64::from),
        timeout: set.timeout,
        dynamic: set.dynamic,
    }));
}

/// Tables that iptables made: it knows these names only, and writes the names of base chains in capitals.
fn tables_of_iptables(tables: &Tables) -> HashSet<(Family, &str)> {
    const TABLES: &[&str] = &["filter", "nat", "mangle", "raw", "security"];
    const CHAINS: &[&str] = &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
    let base = tables.chains.iter().filter(|c| c.base.is_some());
    base.filter(|c| TABLES.contains(&c.table.as_str()) && CHAINS.contains(&c.name.as_str()))
        .filter(|c| matches!(c.family, Family::Ip | Family::Ip6 | Family::Bridge | Family::Arp))
        .map(|c| (c.family, c.table.as_str()))
        .collect()
}

/// From which hooks each chain can be reached. Jumps out of maps are not known.
fn hooks(tables: &Tables) -> HashMap<ChainName<'_>, BTreeSet<&'static str>> {
    let mut jumps: HashMap<ChainName<'_>, HashSet<ChainName<'_>>> = HashMap::new();
    for rule in &tables.rules {
        for expression in &rule.expressions {
            if let Expression::Verdict(Nft::Jump(to) | Nft::Goto(to)) = expression {
                let from = (rule.family, rule.table.as_str(), rule.chain.as_str());
                jumps.entry(from).or_default().insert((rule.family, &rule.table, to));
            }
        }
    }
    let mut hooks: HashMap<ChainName<'_>, BTreeSet<&'static str>> = HashMap::new();
    let mut edge: Vec<(ChainName<'_>, &'static str)> = Vec::new();
    for chain in &tables.chains {
        if let Some(base) = &chain.base {
            edge.push(((chain.family, &chain.table, &chain.name), base.hook.name()));
        }
    }
    for _ in 0..=JUMPS {
        let mut next = Vec::new();
        for (chain, hook) in edge {
            if hooks.entry(chain).or_default().insert(hook) {
                next.extend(jumps.get(&chain).into_iter().flatten().map(|to| (*to, hook)));
            }
        }
        edge = next;
    }
    hooks
}

/// Named counters that more than one rule counts in.
fn shared_counters(tables: &Tables) -> HashSet<(Family, &str, &str)> {
    let mut seen = HashSet::new();
    let mut shared = HashSet::new();
    for rule in &tables.rules {
        for expression in &rule.expressions {
            if let Expression::NamedCounter(name) = expression {
                let counter = (rule.family, rule.table.as_str(), name.as_str());
                if !seen.insert(counter) {
                    shared.insert(counter);
                }
            }
        }
    }
    shared
}

/// Packets that came to the end of the rule. A counter before the last match counts more than that and is no help, as is one
/// that other rules share.
fn packets(rule: &nftables::Rule, tables: &Tables, shared: &HashSet<(Family, &str, &str)>) -> Option<u64> {
    for expression in rule.expressions.iter().rev() {
        match expression {
            Expression::Counter { packets, .. } => return Some(*packets),
            Expression::NamedCounter(name) => {
                if shared.contains(&(rule.family, rule.table.as_str(), name.as_str())) {
                    return None;
                }
                return tables.counters.get(&(rule.family, rule.table.clone(), name.clone())).copied();
            }
            // They let every packet pass to the next expression.
            Expression::Verdict(_)
            | Expression::Immediate { .. }
            | Expression::Target { .. }
            | Expression::Log { .. }
            | Expression::Reject { .. }
            | Expression::Queue { .. }
            | Expression::MetaSet { .. }
            | Expression::PayloadSet { .. }
            | Expression::CtSet { .. }
            | Expression::CtTimeout(_)
            | Expression::Statement(_) => {}
            _ => return None,
        }
    }
    None
}

/// The properties of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Traits {
    pub(super) verdict: RuleVerdict,
    pub(super) invalid: bool,
    pub(super) limit: bool,
    pub(super) set: Option<String>,
    pub(super) random: bool,
    pub(super) logs: bool,
    /// A map says the verdict.
    pub(super) verdict_map: bool,
}

impl Traits {
    pub(super) fn of(rule: &nftables::Rule) -> Self {
        let mut traits = Traits {
            verdict: RuleVerdict::Other,
            invalid: false,
            limit: false,
            set: None,
            random: false,
            logs: false,
            verdict_map: false,
        };
        let mut state = None;
        for expression in &rule.expressions {
            traits.add(expression, &mut state);
        }
        traits
    }

    /// `state` is the register that holds the state of connection tracking.
    fn add(&mut self, expression: &Expression, state: &mut Option<nftables::Register>) {
        match expression {
            Expression::Verdict(Nft::Drop) => self.verdict = RuleVerdict::Drop,
            Expression::Verdict(Nft::Accept) => self.verdict = RuleVerdict::Accept,
            Expression::Reject { .. } => self.verdict = RuleVerdict::Reject,
            Expression::Queue { .. } => self.verdict = RuleVerdict::Queue,
            Expression::Limit { .. } | Expression::ConnectionLimit { .. } | Expression::Quota { .. } => {
                self.limit = true;
            }
            Expression::NumberGenerator { .. } => self.random = true,
            Expression::Log { group: None, .. } => self.logs = !self.limit,
            Expression::Lookup { set, to, .. } => {
                self.verdict_map |= *to == Some(None);
                if !set.starts_with("__") {
                    self.set = Some(set.clone());
                }
            }
            Expression::SetUpdate { set, with, .. } => {
                with.iter().for_each(|e| self.add(e, state));
                self.set = Some(set.clone());
            }
            Expression::Ct { key: 0, to } => *state = Some(*to),
            // `ct state invalid` is a mask with the lowest bit alone, in host order, or a comparison with it.
            Expression::Bitwise { from, mask, .. } if *state == Some(*from) => {
                self.invalid = *mask == 1_u32.to_ne_bytes();
            }
            Expression::Compare { register, value, .. } if *state == Some(*register) => {
                self.invalid |= *value == 1_u32.to_ne_bytes();
            }
            Expression::Match { name, info, .. } => self.add_match(name, info),
            Expression::Target { name, .. } => match name.as_str() {
                "REJECT" => self.verdict = RuleVerdict::Reject,
                "NFQUEUE" => self.verdict = RuleVerdict::Queue,
                "LOG" => self.logs = !self.limit,
                _ => {}
            },
            _ => {}
        }
    }

    fn add_match(&mut self, name: &str, info: &[u8]) {
        match name {
            "limit" | "hashlimit" | "connlimit" | "quota" => self.limit = true,
            "statistic" => self.random = true,
            "set" => self.set = Some("ipset".to_owned()),
            "conntrack" | "state" => self.invalid = text::conntrack_states(name, info) == Some(1),
            _ => {}
        }
    }

    /// True if it can lose packets, log, or let pass what a limit or set allows.
    fn matters(&self) -> bool {
        !matches!(self.verdict, RuleVerdict::Accept | RuleVerdict::Other)
            || self.limit
            || self.random
            || self.logs
            || self.verdict_map
            || self.verdict == RuleVerdict::Accept && self.set.is_some()
    }
}
