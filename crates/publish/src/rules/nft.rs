//! Rules of nftables, and of iptables over nftables.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_netlink::nftables::nat::{self, Nat};
use weir_netlink::nftables::{Base, Comparison, Expression, Hook, NftVerdict, Register, Rule, Tables};

use super::{Asks, Begins, Chain, Does, legacy};

/// NFT_META_PROTOCOL, IIF, IIFNAME, NFPROTO, L4PROTO (include/uapi/linux/netfilter/nf_tables.h).
const META_PROTOCOL: u32 = 1;
const META_IIFNAME: u32 = 6;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;
/// RTN_LOCAL (include/uapi/linux/rtnetlink.h).
const LOCAL: u32 = 2;

/// Contents of a register.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Holds {
    /// So much of the destination as the mask has ones, of IPv6 or not.
    Destination {
        ipv6: bool,
        mask: Vec<u8>,
    },
    Port,
    /// The source port before it.
    BothPorts,
    Protocol,
    Interface,
    /// The version of IP, which the addresses say, too.
    Version,
    /// Kind of address that the destination is for this host.
    Kind,
    Something(String),
}

pub(super) fn chains(tables: &Tables) -> Vec<Chain> {
    let mut by_chain: HashMap<(_, &str, &str), Vec<&Rule>> = HashMap::new();
    for rule in &tables.rules {
        by_chain.entry((rule.family, rule.table.as_str(), rule.chain.as_str())).or_default().push(rule);
    }
    let mut chains = Vec::new();
    for chain in &tables.chains {
        let begins = chain.base.as_ref().and_then(|base| match (base.hook, base.kind.as_str()) {
            (Hook::Prerouting, "nat") => Some(Begins::Translates),
            (Hook::Prerouting | Hook::Ingress, _) => Some(Begins::Before),
            (Hook::Forward, _) => Some(Begins::After),
            _ => None,
        });
        let rules = by_chain.get(&(chain.family, chain.table.as_str(), chain.name.as_str()));
        let rules =
            rules.into_iter().flatten().map(|rule| (asks(&rule.expressions), does(&rule.expressions)));
        chains.push(Chain {
            table: format!("nftables table {} {}", chain.family.name(), chain.table),
            name: chain.name.clone(),
            begins,
            rules: rules.collect(),
        });
    }
    chains
}

fn does(expressions: &[Expression]) -> Does {
    if let Some(Nat::Destination(to)) = nat::of(expressions) {
        return Does::Lead(to);
    }
    let one = |e: &Expression| match e {
        Expression::Verdict(NftVerdict::Jump(chain)) => Some(Does::Jump(chain.clone())),
        Expression::Verdict(NftVerdict::Goto(chain)) => Some(Does::Goto(chain.clone())),
        Expression::Verdict(NftVerdict::Accept) => Some(Does::Ends),
        Expression::Verdict(NftVerdict::Return) => Some(Does::Return),
        Expression::Verdict(NftVerdict::Drop) | Expression::Reject { .. } | Expression::Queue { .. } => {
            Some(Does::Stop)
        }
        Expression::Target { name, .. } => legacy::target(name),
        // A map of verdicts: what it says of which packet is not looked up, and may be that no later rule is asked.
        Expression::Lookup { to: Some(None), .. } => Some(Does::Ends),
        // To a port of this host.
        Expression::Other { name, .. } if name == "redir" || name == "tproxy" => Some(Does::Ends),
        _ => None,
    };
    expressions.iter().find_map(one).unwrap_or(Does::Else)
}

pub(super) fn asks(expressions: &[Expression]) -> Asks {
    let mut asks = Asks::default();
    let mut registers: HashMap<Register, Holds> = HashMap::new();
    for expression in expressions {
        match expression {
            Expression::Payload { base, offset, length, to } => {
                registers.insert(*to, loaded(*base, *offset, *length));
            }
            Expression::Meta { key, to } => {
                registers.insert(*to, known(*key));
            }
            Expression::Bitwise { from, to, mask, xor } => {
                let masked = match registers.get(from) {
                    Some(Holds::Destination { ipv6, .. }) if xor.iter().all(|b| *b == 0) => {
                        Holds::Destination { ipv6: *ipv6, mask: mask.clone() }
                    }
                    _ => Holds::Something("bits".into()),
                };
                registers.insert(*to, masked);
            }
            Expression::Compare { register, with, value } => {
                let holds = registers.get(register).cloned();
                compared(&mut asks, holds.unwrap_or_else(|| Holds::Something("data".into())), *with, value);
            }
            Expression::Range { register, outside: false, first, last }
                if registers.get(register) == Some(&Holds::Port) =>
            {
                match port(first).zip(port(last)) {
                    Some((first, last)) => asks.ports = Some(first..=last),
                    None => asks.more.push("a range".into()),
                }
            }
            Expression::Match { name, info, .. } => legacy::matched(&mut asks, name, info),
            Expression::Other { name, to: Some(to) } if name == "fib" => {
                registers.insert(*to, Holds::Kind);
            }
            Expression::Other { name, to: Some(to) } => {
                registers.insert(*to, Holds::Something(name.clone()));
            }
            Expression::Other { name, .. } => asks.more.push(name.clone()),
            Expression::Ct { to, .. } => {
                registers.insert(*to, Holds::Something("ct".into()));
            }
            Expression::NumberGenerator { to, .. } => {
                registers.insert(*to, Holds::Something("numgen".into()));
            }
            Expression::Range { .. } => asks.more.push("a range".into()),
            Expression::Lookup { .. } => asks.more.push("a set".into()),
            Expression::SetUpdate { .. } => asks.more.push("a set".into()),
            Expression::Limit { .. } => asks.more.push("limit".into()),
            Expression::ConnectionLimit { .. } => asks.more.push("connlimit".into()),
            Expression::Quota { .. } => asks.more.push("quota".into()),
            // They say nothing about which packets: constants, counters, logs, what is set, and the verdict.
            _ => {}
        }
    }
    asks
}

fn loaded(base: Base, offset: u32, length: u32) -> Holds {
    // A prefix of whole bytes is loaded as so many bytes.
    let destination = |ipv6| Holds::Destination { ipv6, mask: vec![0xff; length as usize] };
    match (base, offset, length) {
        // struct iphdr and struct ipv6hdr, struct tcphdr and struct udphdr.
        (Base::Network, 16, 1..=4) => destination(false),
        (Base::Network, 24, 1..=16) => destination(true),
        (Base::Network, 9, 1) | (Base::Network, 6, 1) => Holds::Protocol,
        (Base::Transport, 2, 2) => Holds::Port,
        (Base::Transport, 0, 4) => Holds::BothPorts,
        (Base::Network, 12, _) | (Base::Network, 8, _) => Holds::Something("a source".into()),
        _ => Holds::Something("payload".into()),
    }
}

fn known(key: u32) -> Holds {
    match key {
        META_IIFNAME => Holds::Interface,
        META_L4PROTO => Holds::Protocol,
        META_NFPROTO | META_PROTOCOL => Holds::Version,
        key => Holds::Something(format!("meta {key}")),
    }
}

fn compared(asks: &mut Asks, holds: Holds, with: Comparison, value: &[u8]) {
    let equal = with == Comparison::Equal;
    match holds {
        Holds::Destination { ipv6, mask } if equal => match destination(value, &mask, ipv6) {
            Some((address, prefix)) => asks.destination(address, prefix),
            None => asks.more.push("a destination".into()),
        },
        Holds::Port if equal => match port(value) {
            Some(port) => asks.ports = Some(port..=port),
            None => asks.more.push("a port".into()),
        },
        Holds::BothPorts if equal => {
            asks.ports = value.get(2..).and_then(port).map(|port| port..=port);
            asks.more.push("a source port".into());
        }
        // A range is written as two of them: each narrows what is known by then.
        Holds::Port if matches!(with, Comparison::GreaterOrEqual | Comparison::LessOrEqual) => {
            let known = asks.ports.clone().unwrap_or(0..=u16::MAX);
            match (port(value), with) {
                (Some(first), Comparison::GreaterOrEqual) => asks.ports = Some(first..=*known.end()),
                (Some(last), _) => asks.ports = Some(*known.start()..=last),
                (None, _) => asks.more.push("a port".into()),
            }
        }
        Holds::Protocol if equal => match value.first() {
            Some(protocol) => asks.protocol = Some(*protocol),
            None => asks.more.push("a protocol".into()),
        },
        Holds::Interface if equal => asks.from = Some(name(value)),
        Holds::Interface if with == Comparison::NotEqual => asks.not_from.push(name(value)),
        Holds::Version if equal => {}
        // A number of the kernel's, in its own order.
        Holds::Kind if equal && value == LOCAL.to_ne_bytes() => {}
        Holds::Kind => asks.more.push("fib".into()),
        Holds::Something(what) => asks.more.push(what),
        other => asks.more.push(
            match other {
                Holds::Destination { .. } => "not a destination",
                Holds::Port => "other ports",
                Holds::Protocol => "other protocols",
                _ => "others",
            }
            .into(),
        ),
    }
}

/// Returns an address from its first bytes, with the length of its prefix; `None` if the mask is no prefix.
fn destination(value: &[u8], mask: &[u8], ipv6: bool) -> Option<(IpAddr, u8)> {
    let prefix: u32 = mask.iter().take_while(|b| **b == 0xff).count() as u32 * 8;
    let rest = mask.get(prefix as usize / 8..).unwrap_or_default();
    let last = rest.first().map_or(0, |b| b.leading_ones());
    let ones: u32 = rest.iter().map(|b| b.count_ones()).sum();
    if ones != last || value.len() != mask.len() {
        return None;
    }
    let address = if ipv6 {
        let mut bytes = [0; 16];
        bytes.get_mut(..value.len())?.copy_from_slice(value);
        IpAddr::from(Ipv6Addr::from(bytes))
    } else {
        let mut bytes = [0; 4];
        bytes.get_mut(..value.len())?.copy_from_slice(value);
        Ipv4Addr::from(bytes).into()
    };
    Some((address, u8::try_from(prefix + last).ok()?))
}

fn port(value: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(value.get(..2)?.try_into().ok()?))
}

/// A name of an interface; one without its final zero stands for all that begin so, and is written with a star.
fn name(value: &[u8]) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match value.iter().position(|b| *b == 0) {
        Some(end) => text(&value[..end]),
        None => format!("{}*", text(value)),
    }
}
