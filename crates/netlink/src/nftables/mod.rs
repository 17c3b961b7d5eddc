//! The whole ruleset of nftables as the kernel holds it, read over netlink: chains, rules with their expressions, sets without
//! their elements. iptables over nftables is the same, with matches and targets of xtables among the expressions.
//!
//! Elements of sets are never listed (a list of a million takes minutes); whether a set holds one key is asked by
//! [`Asker::find`].

mod ct_timeout;
mod element;
mod expression;
pub mod nat;
mod registers;
pub mod text;

use std::collections::HashMap;
use std::io;

use crate::{Attributes, Message, NFGENMSG, Received, Socket, text, u32_be, u64_be};
use weir_sys::ProcRoot;
use weir_sys::error::{Context, Result};

pub use ct_timeout::{CtTimeout, ct_timeouts};
pub use element::{Asker, Element, KeySpans, MapVerdicts};
pub use expression::{Base, Comparison, Expression, NftVerdict, Register};
pub use registers::Registers;

const GET_CHAIN: u16 = 4;
const GET_RULE: u16 = 7;
const GET_SET: u16 = 10;
const GET_OBJECT: u16 = 19;
const CHAIN_TABLE: u16 = 1;
const CHAIN_HANDLE: u16 = 2;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const CHAIN_COUNTERS: u16 = 8;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const HOOK_DEVICE: u16 = 3;
const HOOK_DEVICES: u16 = 4;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
const RULE_USERDATA: u16 = 7;
const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
pub(crate) const SET_FLAGS: u16 = 3;
const SET_KEY_LENGTH: u16 = 5;
const SET_DESCRIPTION: u16 = 9;
pub(crate) const SET_COUNT: u16 = 20;
const DESCRIPTION_SIZE: u16 = 1;
const OBJECT_TABLE: u16 = 1;
const OBJECT_NAME: u16 = 2;
const OBJECT_TYPE: u16 = 3;
const OBJECT_DATA: u16 = 4;
/// NFT_OBJECT_COUNTER.
const COUNTER: u32 = 1;
/// NFTNL_UDATA_RULE_COMMENT of libnftnl: the type byte of a comment in a rule's user data.
const COMMENT: u8 = 0;
/// A ruleset that changes while it is read is read again this often.
const TRIES: usize = 5;

/// Everything in one network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tables {
    /// Chains.
    pub chains: Vec<Chain>,
    /// Rules, in order within each chain.
    pub rules: Vec<Rule>,
    /// Sets and maps.
    pub sets: Vec<Set>,
    /// Packets of counters that have a name, by (family, table, name).
    pub counters: HashMap<(Family, String, String), u64>,
}

/// NFPROTO_* of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// ARP.
    Arp,
    /// Bridged frames.
    Bridge,
    /// Frames of one interface.
    Netdev,
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Family.
    pub family: Family,
    /// Table, as its owner called it.
    pub table: String,
    /// Name, likewise.
    pub name: String,
    /// Handle in its table.
    pub handle: u64,
    /// Its hook, if it is a base chain.
    pub base: Option<BaseChain>,
}

/// How a chain is hooked in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseChain {
    /// Hook.
    pub hook: Hook,
    /// Its place among others of that hook, the lowest first.
    pub priority: i32,
    /// Packets that reach its end are thrown away.
    pub drops: bool,
    /// Packets that its policy decided, if they are counted.
    pub packets: Option<u64>,
    /// `filter`, `nat` or `route`.
    pub kind: String,
    /// Interfaces it is bound to, of `ingress` and `egress`.
    pub devices: Vec<String>,
}

/// A hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// As it comes off an interface.
    Ingress,
    /// Before routing.
    Prerouting,
    /// For this host.
    Input,
    /// Through this host.
    Forward,
    /// Made here.
    Output,
    /// After routing.
    Postrouting,
    /// Before it goes onto an interface.
    Egress,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Family.
    pub family: Family,
    /// Table, as its owner called it.
    pub table: String,
    /// Chain, likewise.
    pub chain: String,
    /// Handle in its table.
    pub handle: u64,
    /// The owner's comment; text from outside.
    pub comment: Option<String>,
    /// Its expressions, in order.
    pub expressions: Vec<Expression>,
}

/// A set or map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Family.
    pub family: Family,
    /// Table, as its owner called it.
    pub table: String,
    /// Name, likewise.
    pub name: String,
    /// It has no name of its own and belongs to one rule.
    pub anonymous: bool,
    /// Its elements end by themselves.
    pub timeout: bool,
    /// Rules may add elements.
    pub dynamic: bool,
    /// Bytes of a key.
    pub key_length: u32,
    /// How many elements it may hold, if that is bounded.
    pub size: Option<u32>,
    /// How many it holds; `None` where the kernel does not tell (before 6.16).
    pub count: Option<u32>,
}

/// Reads the ruleset of the calling thread's namespace; `None` where nftables is not in the kernel. It is not asked for then,
/// because asking would load it.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_ADMIN over the namespace; `Interrupted` if the rules change all the time.
pub fn read(root: &ProcRoot) -> Result<Option<Tables>> {
    if !weir_sys::modules::is_loaded(root, "nf_tables") {
        return Ok(None);
    }
    let mut socket = Socket::open(libc::NETLINK_NETFILTER).context(|| "read nftables".into())?;
    let mut tables = Tables {
        chains: dump(&mut socket, GET_CHAIN, "chains", chain)?,
        rules: dump(&mut socket, GET_RULE, "rules", rule)?,
        sets: dump(&mut socket, GET_SET, "sets", set)?,
        counters: HashMap::new(),
    };
    let named = |e: &Expression| matches!(e, Expression::NamedCounter(_));
    if tables.rules.iter().any(|r| r.expressions.iter().any(named)) {
        tables.counters = dump(&mut socket, GET_OBJECT, "counters", counter)?.into_iter().collect();
    }
    Ok(Some(tables))
}

/// A request of that kind (NFT_MSG_*) about objects of one family (NFPROTO_*).
fn request(family: u8, kind: u16, flags: i32) -> Message {
    Message::netfilter(libc::NFNL_SUBSYS_NFTABLES, kind, flags, family, 0)
}

/// A request for what a set is, without its elements.
pub(crate) fn describe_set(family: u8, table: &str, set: &str) -> Message {
    request(family, GET_SET, libc::NLM_F_ACK).attr_str(SET_TABLE, table).attr_str(SET_NAME, set)
}

/// Reads all objects of a kind.
fn dump<T>(
    socket: &mut Socket,
    kind: u16,
    name: &str,
    read: impl Fn(Family, Attributes<'_>) -> Option<T>,
) -> Result<Vec<T>> {
    let asked = request(libc::AF_UNSPEC as u8, kind, libc::NLM_F_DUMP);
    let mut each = |all: &mut Vec<T>, received: Received<'_>| {
        let family = received.payload.first().copied().and_then(Family::of);
        let attributes = Attributes::after(received.payload, NFGENMSG);
        all.extend(family.and_then(|family| read(family, attributes)));
    };
    whole(socket, &asked, Vec::new, &mut each).context(|| format!("read nftables {name}"))
}

/// Collects the answers to a dump, from the beginning if the objects changed meanwhile.
fn whole<T>(
    socket: &mut Socket,
    request: &Message,
    begin: impl Fn() -> T,
    add: &mut impl FnMut(&mut T, Received<'_>),
) -> io::Result<T> {
    for _ in 0..TRIES {
        let mut found = begin();
        match socket.request_with(request.clone(), |received| add(&mut found, received)) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map(|()| found),
        }
    }
    Err(io::ErrorKind::Interrupted.into())
}

fn number(attributes: Attributes<'_>, attribute: u16) -> Option<u32> {
    attributes.get(attribute).and_then(u32_be)
}

fn chain(family: Family, attributes: Attributes<'_>) -> Option<Chain> {
    let base = || {
        let hook = Attributes(attributes.get(CHAIN_HOOK)?);
        let counters = attributes.get(CHAIN_COUNTERS).map(Attributes);
        let mut devices: Vec<String> = hook.get(HOOK_DEVICE).map(text).into_iter().collect();
        devices.extend(Attributes(hook.get(HOOK_DEVICES).unwrap_or_default()).map(|(_, name)| text(name)));
        devices.sort();
        devices.dedup();
        Some(BaseChain {
            hook: Hook::of(family, number(hook, HOOK_NUMBER)?)?,
            priority: number(hook, HOOK_PRIORITY)?.cast_signed(),
            drops: number(attributes, CHAIN_POLICY) == Some(0),
            // NFTA_COUNTER_PACKETS.
            packets: counters.and_then(|c| c.get(2)).and_then(u64_be),
            kind: attributes.get(CHAIN_TYPE).map(text).unwrap_or_default(),
            devices,
        })
    };
    Some(Chain {
        family,
        table: attributes.get(CHAIN_TABLE).map(text)?,
        name: attributes.get(CHAIN_NAME).map(text)?,
        handle: attributes.get(CHAIN_HANDLE).and_then(u64_be).unwrap_or(0),
        base: base(),
    })
}

fn rule(family: Family, attributes: Attributes<'_>) -> Option<Rule> {
    Some(Rule {
        family,
        table: attributes.get(RULE_TABLE).map(text)?,
        chain: attributes.get(RULE_CHAIN).map(text)?,
        handle: attributes.get(RULE_HANDLE).and_then(u64_be)?,
        comment: attributes.get(RULE_USERDATA).and_then(comment),
        expressions: attributes.get(RULE_EXPRESSIONS).map(expression::list).unwrap_or_default(),
    })
}

/// The comment among a rule's user data, which is a row of (type, length, bytes), a byte each for the first two.
fn comment(mut data: &[u8]) -> Option<String> {
    while let [kind, length, rest @ ..] = data {
        let length = usize::from(*length);
        if *kind == COMMENT {
            return Some(text(rest.get(..length)?));
        }
        data = rest.get(length..)?;
    }
    None
}

fn set(family: Family, attributes: Attributes<'_>) -> Option<Set> {
    // NFT_SET_ANONYMOUS, NFT_SET_TIMEOUT, NFT_SET_EVAL.
    const ANONYMOUS: u32 = 1;
    const TIMEOUT: u32 = 1 << 4;
    const EVAL: u32 = 1 << 5;
    let flags = number(attributes, SET_FLAGS).unwrap_or(0);
    let description = attributes.get(SET_DESCRIPTION).map(Attributes);
    Some(Set {
        family,
        table: attributes.get(SET_TABLE).map(text)?,
        name: attributes.get(SET_NAME).map(text)?,
        anonymous: flags & ANONYMOUS != 0,
        timeout: flags & TIMEOUT != 0,
        dynamic: flags & EVAL != 0,
        key_length: number(attributes, SET_KEY_LENGTH).unwrap_or(0),
        size: description.and_then(|d| number(d, DESCRIPTION_SIZE)),
        count: number(attributes, SET_COUNT),
    })
}

fn counter(family: Family, attributes: Attributes<'_>) -> Option<((Family, String, String), u64)> {
    if number(attributes, OBJECT_TYPE)? != COUNTER {
        return None;
    }
    let packets = Attributes(attributes.get(OBJECT_DATA)?).get(2).and_then(u64_be)?;
    let name = (family, attributes.get(OBJECT_TABLE).map(text)?, attributes.get(OBJECT_NAME).map(text)?);
    Some((name, packets))
}

impl Family {
    fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Family::Inet,
            2 => Family::Ip,
            3 => Family::Arp,
            5 => Family::Netdev,
            7 => Family::Bridge,
            10 => Family::Ip6,
            _ => return None,
        })
    }

    /// NFPROTO_*.
    pub(super) fn number(self) -> u8 {
        match self {
            Family::Inet => 1,
            Family::Ip => 2,
            Family::Arp => 3,
            Family::Netdev => 5,
            Family::Bridge => 7,
            Family::Ip6 => 10,
        }
    }

    /// As nft writes it.
    pub fn name(self) -> &'static str {
        match self {
            Family::Inet => "inet",
            Family::Ip => "ip",
            Family::Arp => "arp",
            Family::Netdev => "netdev",
            Family::Bridge => "bridge",
            Family::Ip6 => "ip6",
        }
    }
}

impl Hook {
    fn of(family: Family, number: u32) -> Option<Self> {
        Some(match (family, number) {
            // NF_NETDEV_INGRESS, NF_NETDEV_EGRESS.
            (Family::Netdev, 0) => Hook::Ingress,
            (Family::Netdev, 1) => Hook::Egress,
            // NF_ARP_IN, NF_ARP_OUT, NF_ARP_FORWARD.
            (Family::Arp, 0) => Hook::Input,
            (Family::Arp, 1) => Hook::Output,
            (Family::Arp, 2) => Hook::Forward,
            (_, 0) => Hook::Prerouting,
            (_, 1) => Hook::Input,
            (_, 2) => Hook::Forward,
            (_, 3) => Hook::Output,
            (_, 4) => Hook::Postrouting,
            // NF_INET_INGRESS.
            (Family::Inet, 5) => Hook::Ingress,
            _ => return None,
        })
    }

    /// As nft writes it.
    pub fn name(self) -> &'static str {
        match self {
            Hook::Ingress => "ingress",
            Hook::Prerouting => "prerouting",
            Hook::Input => "input",
            Hook::Forward => "forward",
            Hook::Output => "output",
            Hook::Postrouting => "postrouting",
            Hook::Egress => "egress",
        }
    }
}

#[cfg(test)]
mod tests;
