//! Rules of nftables, and of iptables over nftables.

use std::collections::{HashMap, HashSet};

use weir_netlink::nftables::{Expression, Family, Hook, NftVerdict, Rule, Tables, text};

use super::expressions::judge;
use super::fields;
use super::judged::{Act, COUNTER, Judged};
use super::sets::{AskSet, Sets};
use super::traffic::Conditions;
use super::walk::{BaseChain, Key, Rules};
use super::xtables::{self, Neighbours};

/// Connection tracking looks at packets at this priority (NF_IP_PRI_CONNTRACK).
const CONNTRACK: i32 = -200;
/// The names of iptables' tables and base chains.
const TABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
const CHAINS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// NFT_META_MARK.
const MARK: u32 = 3;

pub(super) struct Nft<'a> {
    tables: &'a Tables,
    chains: HashMap<Key, Vec<usize>>,
    iptables: HashSet<(Family, &'a str)>,
    sets: Sets<'a>,
    neighbours: Neighbours,
}

impl<'a> Nft<'a> {
    pub(super) fn new(tables: &'a Tables, asker: &'a mut dyn AskSet) -> Self {
        let mut chains: HashMap<Key, Vec<usize>> = HashMap::new();
        for (place, rule) in tables.rules.iter().enumerate() {
            chains.entry(key(rule.family, &rule.table, &rule.chain)).or_default().push(place);
        }
        // iptables knows these tables only, and writes the names of base chains in capitals.
        let iptables = tables
            .chains
            .iter()
            .filter(|c| c.base.is_some() && matches!(c.family, Family::Ip | Family::Ip6))
            .filter(|c| TABLES.contains(&c.table.as_str()) && CHAINS.contains(&c.name.as_str()))
            .map(|c| (c.family, c.table.as_str()))
            .collect();
        let sets = Sets::new(&tables.sets, &tables.rules, asker);
        let mut neighbours = Neighbours::default();
        for expression in tables.rules.iter().flat_map(|rule| &rule.expressions) {
            match expression {
                Expression::Match { name, info, .. } => neighbours.add_match(name, info),
                Expression::Target { name, .. } => neighbours.add_target(name),
                _ => {}
            }
        }
        Nft { tables, chains, iptables, sets, neighbours }
    }
}

fn key(family: Family, table: &str, chain: &str) -> Key {
    (format!("nftables table {} {table}", family.name()), chain.to_owned())
}

impl Rules for Nft<'_> {
    /// The hook of egress is met by carried packets, too. Ingress comes behind TCX (net/core/dev.c, __netif_receive_skb_core).
    /// Frames meet a bridge's own chains before its interface takes them in, and after it has sent them.
    fn base_chains(&self) -> Vec<BaseChain> {
        let mut chains = Vec::new();
        for chain in &self.tables.chains {
            let Some(base) = &chain.base else { continue };
            let tracked = match base.hook {
                Hook::Ingress => false,
                Hook::Prerouting => base.priority >= CONNTRACK,
                Hook::Forward | Hook::Postrouting => true,
                Hook::Input | Hook::Output | Hook::Egress => continue,
            };
            // Only the first packets of a connection meet chains of type nat.
            if base.kind == "nat" || matches!(chain.family, Family::Arp | Family::Bridge) {
                continue;
            }
            chains.push(BaseChain {
                key: key(chain.family, &chain.table, &chain.name),
                ipv4: chain.family != Family::Ip6,
                ipv6: chain.family != Family::Ip,
                tracked,
                drops: base.drops,
            });
        }
        chains
    }

    fn chain(&self, key: &Key) -> Vec<usize> {
        self.chains.get(key).cloned().unwrap_or_default()
    }

    fn judge(&mut self, rule: usize, conditions: Conditions) -> Judged {
        let rule = &self.tables.rules[rule];
        let of_iptables = self.iptables.contains(&(rule.family, rule.table.as_str()));
        let mut judged = judge(rule, conditions, &mut self.sets, &self.neighbours);
        if of_iptables {
            count_of_iptables(rule, &mut judged);
        }
        judged
    }

    fn describe(&self, rule: usize) -> (String, String) {
        let rule = &self.tables.rules[rule];
        let (table, chain) = key(rule.family, &rule.table, &rule.chain);
        (format!("{table}, chain {chain}, handle {}", rule.handle), text::render(rule))
    }

    fn sets_marks(&self) -> bool {
        let sets = |e: &Expression| match e {
            Expression::MetaSet { key, .. } => *key == MARK,
            Expression::Target { name, revision, info } => xtables::sets_mark(name, *revision, info),
            _ => false,
        };
        self.tables.rules.iter().any(|rule| rule.expressions.iter().any(sets))
    }

    fn rewrites_ends(&self) -> bool {
        let rewrites = |family: Family, e: &Expression| match e {
            Expression::PayloadSet { base, offset, length } => {
                fields::may_hold_ends(family, *base, *offset, *length)
            }
            Expression::Target { name, .. } => xtables::rewrites_ends(name),
            _ => false,
        };
        self.tables.rules.iter().any(|rule| rule.expressions.iter().any(|e| rewrites(rule.family, e)))
    }
}

/// Every rule of iptables counts. One that does nothing else is there for its count.
fn count_of_iptables(rule: &Rule, judged: &mut Judged) {
    let counter = Act::Records(COUNTER.to_owned());
    judged.acts.retain(|act| *act != counter);
    let acts = |e: &Expression| {
        matches!(e, Expression::Verdict(verdict) if *verdict != NftVerdict::Continue)
            || matches!(e, Expression::Target { .. } | Expression::MetaSet { .. } | Expression::CtSet { .. })
            || matches!(e, Expression::PayloadSet { .. } | Expression::TcpOptionSet { .. })
    };
    if judged.acts.is_empty() && judged.verdicts.is_empty() && !rule.expressions.iter().any(acts) {
        judged.acts.push(counter);
    }
}
