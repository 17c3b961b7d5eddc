//! Rules that publish something: destination NAT as container engines make it, whatever it is written with.
//!
//! This module collects a rule's conditions along the chains that lead to it. It keeps unknown conditions as words: a rule with
//! conditions other than address and port is no fixed mapping.

mod legacy;
mod nft;

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use weir_netlink::nftables::nat::{Ports, Translation};
use weir_netlink::{iptables, nftables};
use weir_sys::ProcRoot;

use crate::{Protocol, Result};

/// Chains lead to chains at most this deep (NFT_JUMP_STACK_SIZE, include/net/netfilter/nf_tables.h).
const DEEPEST: usize = 16;
/// A ruleset whose chains lead to each other in many ways has more ways than rules: no more rules than these are looked at.
const MOST: usize = 1 << 20;

/// Conditions of a rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Asks {
    /// Destination and length of its prefix; `None`: any address (of this host).
    pub(crate) destination: Option<(IpAddr, u8)>,
    /// Protocol by number.
    pub(crate) protocol: Option<u8>,
    /// Destination ports.
    pub(crate) ports: Option<RangeInclusive<u16>>,
    /// The only interface that it is for; text from outside.
    pub(crate) from: Option<String>,
    /// Interfaces that it is not for.
    pub(crate) not_from: Vec<String>,
    /// Anything else, in a word each.
    pub(crate) more: Vec<String>,
}

impl Asks {
    /// Both together; of two of a kind the inner one, which is the narrower where a rule makes sense.
    fn and(&self, inner: &Asks) -> Asks {
        let mut both = self.clone();
        match (both.destination, inner.destination) {
            (Some((_, outside)), Some((_, inside))) if outside > inside => {}
            (_, Some(destination)) => both.destination = Some(destination),
            _ => {}
        }
        both.protocol = inner.protocol.or(both.protocol);
        both.ports = inner.ports.clone().or(both.ports);
        both.from = inner.from.clone().or(both.from);
        both.not_from.extend(inner.not_from.iter().cloned());
        both.more.extend(inner.more.iter().cloned());
        both
    }

    /// False if no packet can be what both ask for. Networks and names of interfaces are not looked at.
    fn may_meet(&self, other: &Asks) -> bool {
        let apart =
            |a: &RangeInclusive<u16>, b: &RangeInclusive<u16>| a.end() < b.start() || b.end() < a.start();
        let protocols = self.protocol.zip(other.protocol);
        let ports = self.ports.as_ref().zip(other.ports.as_ref());
        protocols.is_none_or(|(a, b)| a == b) && ports.is_none_or(|(a, b)| !apart(a, b))
    }

    /// The network that it asks for, all zeros being any.
    fn destination(&mut self, address: IpAddr, prefix: u8) {
        self.destination = (prefix > 0).then_some((address, prefix));
    }
}

/// Action of a rule, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Does {
    /// Nothing that leads anywhere.
    Else,
    /// On to the chain of that name in its table.
    Jump(String),
    /// Likewise, and from its end not back to this one.
    Goto(String),
    /// Translates.
    Lead(Translation),
    /// Throws away, refuses, or asks a program.
    Stop,
    /// Back to the chain that jumped here.
    Return,
    /// No later rule of this hook's chain is asked: accepts, or gives the packet to this host.
    Ends,
}

/// Purpose of a chain that packets from outside reach first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begins {
    /// They are translated.
    Translates,
    /// They are let through or not, before they are translated.
    Before,
    /// Likewise, when they are.
    After,
}

#[derive(Debug)]
struct Chain {
    /// Says which table it is in.
    table: String,
    name: String,
    /// Packets from outside come to it first, and for what.
    begins: Option<Begins>,
    rules: Vec<(Asks, Does)>,
}

/// A rule that translates what comes from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Published {
    /// For which packets.
    pub(crate) asks: Asks,
    /// Destination after translation.
    pub(crate) to: Translation,
    /// Packets that do not come to it, because a rule before it keeps them.
    pub(crate) unless: Vec<Asks>,
    /// True of IPv6.
    pub(crate) ipv6: bool,
    /// Its table and chain; names in it are text from outside.
    pub(crate) place: String,
}

impl Published {
    /// Its protocol, if it is one that has ports.
    pub(crate) fn protocol(&self) -> Option<Protocol> {
        match self.asks.protocol? {
            6 => Some(Protocol::Tcp),
            17 => Some(Protocol::Udp),
            _ => None,
        }
    }

    /// The only address that it leads to.
    pub(crate) fn container(&self) -> Option<IpAddr> {
        let (first, last) = self.to.addresses?;
        (first == last).then(|| first.ip())
    }

    /// The ports that it leads to, if they are known.
    pub(crate) fn container_ports(&self) -> Option<RangeInclusive<u16>> {
        match &self.to.ports {
            Ports::Kernel => self.asks.ports.clone(),
            Ports::Range(range) => Some(range.clone()),
            Ports::Mapped => None,
        }
    }
}

/// A rule that stops packets on the way to a container, and that engines do not make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stop {
    /// For which packets.
    pub(crate) asks: Asks,
    /// It sees them as they are after translation.
    pub(crate) translated: bool,
    /// Its table and chain; names in it are text from outside.
    pub(crate) place: String,
}

/// The relevant rules of a network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Each once.
    pub(crate) published: Vec<Published>,
    /// Likewise.
    pub(crate) stops: Vec<Stop>,
}

/// All of the calling thread's network namespace.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_ADMIN over the namespace.
pub(crate) fn read(root: &ProcRoot) -> Result<Rules> {
    let tables = nftables::read(root)?.unwrap_or_default();
    let mut chains = nft::chains(&tables);
    chains.extend(legacy::chains(&iptables::read(root)?));
    let by_name = chains.iter().map(|c| ((c.table.as_str(), c.name.as_str()), c)).collect();
    let mut walk = Walk {
        chains: &by_name,
        begins: Begins::Translates,
        kept: Vec::new(),
        steps: 0,
        found: Rules::default(),
    };
    for chain in &chains {
        if let Some(begins) = chain.begins {
            walk.begins = begins;
            walk.kept.clear();
            walk.chain(chain, &Asks::default(), 0);
        }
    }
    Ok(walk.found)
}

struct Walk<'a> {
    chains: &'a HashMap<(&'a str, &'a str), &'a Chain>,
    /// Purpose of the chain at which this walk began.
    begins: Begins,
    /// Packets that earlier rules keep from coming on, and whether that holds only up to the end of their chain.
    kept: Vec<(Asks, bool)>,
    steps: usize,
    found: Rules,
}

impl Walk<'_> {
    fn chain(&mut self, chain: &Chain, outside: &Asks, depth: usize) {
        let before = self.kept.len();
        for (asks, does) in &chain.rules {
            self.steps += 1;
            if self.steps > MOST {
                return;
            }
            match does {
                Does::Else => {}
                Does::Jump(name) | Does::Goto(name) => {
                    if let Some(next) = self.chains.get(&(chain.table.as_str(), name.as_str()))
                        && depth < DEEPEST
                    {
                        self.chain(next, &outside.and(asks), depth + 1);
                    }
                    if matches!(does, Does::Goto(_)) {
                        self.keep(outside.and(asks), true);
                    }
                }
                Does::Lead(to) if self.begins == Begins::Translates => {
                    self.lead(chain, outside.and(asks), to)
                }
                Does::Return | Does::Ends | Does::Stop if self.begins == Begins::Translates => {
                    self.keep(outside.and(asks), *does == Does::Return)
                }
                Does::Stop if !is_engines(chain) => {
                    let translated = self.begins == Begins::After;
                    let stop = Stop { asks: outside.and(asks), translated, place: place(chain) };
                    if !self.found.stops.contains(&stop) {
                        self.found.stops.push(stop);
                    }
                }
                Does::Lead(_) | Does::Stop | Does::Return | Does::Ends => {}
            }
        }
        let mut at = 0;
        self.kept.retain(|(_, returns)| {
            at += 1;
            at <= before || !returns
        });
    }

    /// Records packets that do not come on to later rules; if `returns`, to those of this chain only.
    fn keep(&mut self, asks: Asks, returns: bool) {
        let kept = (asks, returns);
        if !self.kept.contains(&kept) {
            self.kept.push(kept);
        }
    }

    fn lead(&mut self, chain: &Chain, asks: Asks, to: &Translation) {
        let asked = asks.destination.map(|(address, _)| address.is_ipv6());
        let leads = to.addresses.map(|(first, _)| first.ip().is_ipv6());
        let ipv6 = leads.or(asked).unwrap_or(false);
        let unless =
            self.kept.iter().map(|(kept, _)| kept).filter(|kept| kept.may_meet(&asks)).cloned().collect();
        let published = Published { asks, to: to.clone(), unless, ipv6, place: place(chain) };
        if !self.found.published.contains(&published) {
            self.found.published.push(published);
        }
    }
}

fn place(chain: &Chain) -> String {
    format!("{}, chain {}", chain.table, chain.name)
}

/// Whether an engine made the chain for itself: what it stops there is not what it publishes. `DOCKER-USER` is for others.
fn is_engines(chain: &Chain) -> bool {
    let table = chain.table.rsplit(' ').next().unwrap_or_default();
    ["docker-bridges", "netavark"].contains(&table)
        || (chain.name.starts_with("DOCKER") && chain.name != "DOCKER-USER")
        || ["NETAVARK", "CNI-"].iter().any(|begins| chain.name.starts_with(begins))
}

#[cfg(test)]
mod tests;
