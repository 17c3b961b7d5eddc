//! The old tables of iptables next to nftables, in its terms: one walk asks the rules of both.

use std::net::IpAddr;

use weir_netlink::iptables::{self, Target};
use weir_netlink::nftables::{
    Base, BaseChain, Chain, Comparison, Expression, Family, Hook, NftVerdict, Register, Rule, Tables,
};

use super::legacy;
use super::listing::Lister;
use super::walk::Decider;
use crate::evidence::{self, Backend};

/// The one register that conditions need.
const REGISTER: Register = Register(0);
/// NFT_META_IIFNAME, NFT_META_OIFNAME, NFT_META_L4PROTO.
const IN: u32 = 6;
const OUT: u32 = 7;
const PROTOCOL: u32 = 16;
/// IFNAMSIZ.
const NAME: usize = 16;

/// Both kinds of tables.
pub(super) struct AllTables {
    /// Rules and chains of nftables, and behind them the others.
    pub(super) tables: Tables,
    old: Vec<iptables::Table>,
    /// How many rules and chains are those of nftables.
    nft: (usize, usize),
    /// Table, chain and rule of each other rule; table and chain of each other chain.
    rules: Vec<(usize, usize, usize)>,
    chains: Vec<(usize, usize)>,
}

impl AllTables {
    pub(super) fn new(tables: Tables, old: Vec<iptables::Table>) -> Self {
        let nft = (tables.rules.len(), tables.chains.len());
        let mut all = AllTables { tables, old: Vec::new(), nft, rules: Vec::new(), chains: Vec::new() };
        for (t, table) in old.iter().enumerate() {
            for (c, chain) in table.chains.iter().enumerate() {
                all.chains.push((t, c));
                all.tables.chains.push(of_chain(table, chain));
                for (r, rule) in chain.rules.iter().enumerate() {
                    all.rules.push((t, c, r));
                    all.tables.rules.push(of_rule(table, chain, rule));
                }
            }
        }
        AllTables { old, ..all }
    }

    /// The rule at that place as evidence.
    pub(super) fn rule(&self, lister: &Lister<'_>, place: usize) -> evidence::Rule {
        let Some(at) = place.checked_sub(self.nft.0) else { return lister.rule(place) };
        let (t, c, r) = self.rules[at];
        let (table, chain) = (&self.old[t], &self.old[t].chains[c]);
        legacy::evidence(family(table).name(), &table.name, &chain.name, r as u64 + 1, &chain.rules[r])
    }

    /// Whose chain a decider is in: the back end, family, table and name.
    pub(super) fn chain(&self, lister: &Lister<'_>, decider: Decider) -> (Backend, [String; 3]) {
        let old = match decider {
            Decider::Rule(place) => {
                place.checked_sub(self.nft.0).map(|at| (self.rules[at].0, self.rules[at].1))
            }
            Decider::Policy(place) => place.checked_sub(self.nft.1).map(|at| self.chains[at]),
        };
        if let Some((t, c)) = old {
            let table = &self.old[t];
            let names = [family(table).name().to_owned(), table.name.clone(), table.chains[c].name.clone()];
            return (Backend::IptablesLegacy, names);
        }
        let (family, table, chain) = match decider {
            Decider::Rule(place) => {
                let of = &self.tables.rules[place];
                (of.family, &of.table, &of.chain)
            }
            Decider::Policy(place) => {
                let of = &self.tables.chains[place];
                (of.family, &of.table, &of.name)
            }
        };
        (lister.backend(family, table), [family.name().to_owned(), table.clone(), chain.clone()])
    }
}

fn family(table: &iptables::Table) -> Family {
    match table.family {
        iptables::Family::Ip => Family::Ip,
        iptables::Family::Ip6 => Family::Ip6,
    }
}

/// No table of nftables has this name: names end at a zero.
fn name(table: &iptables::Table) -> String {
    format!("\0{}", table.name)
}

fn of_chain(table: &iptables::Table, chain: &iptables::Chain) -> Chain {
    let hook = match chain.name.as_str() {
        "PREROUTING" => Hook::Prerouting,
        "INPUT" => Hook::Input,
        "FORWARD" => Hook::Forward,
        "OUTPUT" => Hook::Output,
        _ => Hook::Postrouting,
    };
    // NF_IP_PRI_* (include/uapi/linux/netfilter_ipv4.h).
    let priority = match table.name.as_str() {
        "raw" => -300,
        "mangle" => -150,
        "nat" if matches!(hook, Hook::Prerouting | Hook::Output) => -100,
        "nat" => 100,
        "security" => 50,
        _ => 0,
    };
    let kind = if table.name == "nat" { "nat" } else { "filter" };
    let base = chain.policy.as_ref().map(|(target, _)| BaseChain {
        hook,
        priority,
        drops: *target == Target::Drop,
        packets: None,
        kind: kind.to_owned(),
        devices: Vec::new(),
    });
    Chain { family: family(table), table: name(table), name: chain.name.clone(), handle: 0, base }
}

fn of_rule(table: &iptables::Table, chain: &iptables::Chain, old: &iptables::Rule) -> Rule {
    let family = family(table);
    let mut expressions = conditions(&old.asks, family);
    let matches = old.matches.iter();
    expressions.extend(matches.map(|(name, info)| Expression::Match {
        name: name.clone(),
        revision: 0,
        info: info.clone(),
    }));
    expressions.extend(match &old.target {
        Target::Accept => Some(Expression::Verdict(NftVerdict::Accept)),
        Target::Drop => Some(Expression::Verdict(NftVerdict::Drop)),
        Target::Return => Some(Expression::Verdict(NftVerdict::Return)),
        Target::Jump(to) => Some(Expression::Verdict(NftVerdict::Jump(to.clone()))),
        Target::Goto(to) => Some(Expression::Verdict(NftVerdict::Goto(to.clone()))),
        Target::Continue => None,
        Target::Named(name) => Some(Expression::Target {
            name: name.clone(),
            revision: old.revision,
            info: old.parameters.clone(),
        }),
    });
    Rule { family, table: name(table), chain: chain.name.clone(), handle: 0, comment: None, expressions }
}

/// Addresses, interfaces and protocol, which come as text.
fn conditions(asks: &str, family: Family) -> Vec<Expression> {
    let mut all = Vec::new();
    let mut words = asks.split_whitespace();
    let mut with = Comparison::Equal;
    while let Some(word) = words.next() {
        if word == "!" {
            with = Comparison::NotEqual;
            continue;
        }
        let one = if word == "-f" {
            Some(later_fragment(with))
        } else {
            words.next().and_then(|value| condition(word, value, with, family))
        };
        // One that cannot be read may match or not.
        all.extend(one.unwrap_or_else(|| vec![Expression::Other { name: word.to_owned(), to: None }]));
        with = Comparison::Equal;
    }
    all
}

fn condition(option: &str, value: &str, with: Comparison, family: Family) -> Option<Vec<Expression>> {
    let compare = |value: Vec<u8>| Expression::Compare { register: REGISTER, with, value };
    let meta = |key: u32, value: Vec<u8>| vec![Expression::Meta { key, to: REGISTER }, compare(value)];
    Some(match option {
        "-s" | "-d" => {
            let (source, destination) = if family == Family::Ip { (12, 16) } else { (8, 24) };
            let (address, mask) = network(value)?;
            let offset = if option == "-s" { source } else { destination };
            let length = mask.len() as u32;
            let xor = vec![0; mask.len()];
            vec![
                Expression::Payload { base: Base::Network, offset, length, to: REGISTER },
                Expression::Bitwise { from: REGISTER, to: REGISTER, mask, xor },
                compare(address),
            ]
        }
        "-i" | "-o" => {
            let name = match value.strip_suffix('+') {
                // All interfaces whose names begin so.
                Some(begin) => begin.as_bytes().to_vec(),
                None => {
                    let mut name = value.as_bytes().to_vec();
                    name.resize(NAME, 0);
                    name
                }
            };
            meta(if option == "-i" { IN } else { OUT }, name)
        }
        "-p" => meta(PROTOCOL, vec![protocol(value)?]),
        _ => return None,
    })
}

/// `192.0.2.0/24`, or `192.0.2.1/255.255.0.255`: address and mask.
fn network(text: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    let bytes = |text: &str| {
        Some(match text.parse().ok()? {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        })
    };
    let (address, length) = text.split_once('/')?;
    let address = bytes(address)?;
    let mask = match length.parse::<usize>() {
        Ok(length) => {
            let of_byte = |at: usize| !0xff_u8.checked_shr(length.saturating_sub(8 * at) as u32).unwrap_or(0);
            (0..address.len()).map(of_byte).collect()
        }
        Err(_) => bytes(length)?,
    };
    (mask.len() == address.len()).then_some((address, mask))
}

fn protocol(name: &str) -> Option<u8> {
    Some(match name {
        "icmp" => 1,
        "tcp" => 6,
        "udp" => 17,
        "esp" => 50,
        "ipv6-icmp" => 58,
        "sctp" => 132,
        number => number.parse().ok()?,
    })
}

/// `-f`: the offset is not zero.
fn later_fragment(with: Comparison) -> Vec<Expression> {
    let with = if with == Comparison::Equal { Comparison::NotEqual } else { Comparison::Equal };
    vec![
        Expression::Payload { base: Base::Network, offset: 6, length: 2, to: REGISTER },
        Expression::Bitwise { from: REGISTER, to: REGISTER, mask: vec![0x1f, 0xff], xor: vec![0; 2] },
        Expression::Compare { register: REGISTER, with, value: vec![0; 2] },
    ]
}
