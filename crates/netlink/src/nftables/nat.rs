//! Rules that translate addresses and ports, of nftables and of iptables where it speaks to the kernel as nft does: what they
//! give.
//!
//! Their conditions are among the expressions of the same rule.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::{Expression, GET_RULE, Register, Registers, Rule, dump, rule};
use crate::conntrack::Address;
use crate::{Socket, u16_be, u32_ne};
use weir_sys::ProcRoot;
use weir_sys::error::{Context, Result};
use weir_sys::modules;

/// NF_NAT_RANGE_MAP_IPS and NF_NAT_RANGE_PROTO_SPECIFIED (include/uapi/linux/netfilter/nf_nat.h).
const MAP_IPS: u32 = 1 << 0;
const PROTO_SPECIFIED: u32 = 1 << 1;
/// An expression that does not state the length of its load loads a register of 16 bytes at most, except for data out of a map.
const REGISTER: usize = 16;

/// Ports that a rule gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ports {
    /// The rule names none: the kernel's own ranges for sources; for destinations the port that was asked for stays.
    Kernel,
    /// These.
    Range(RangeInclusive<u16>),
    /// They come out of a map.
    Mapped,
}

/// The addresses and ports that a rule gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Translation {
    /// First and last address. `None` where it names none (a masquerade takes that of the interface), or takes it out of a map.
    pub addresses: Option<(Address, Address)>,
    /// Ports.
    pub ports: Ports,
}

/// Which end of a connection a rule translates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nat {
    /// The one that opened it.
    Source(Translation),
    /// The one that it was opened to.
    Destination(Translation),
}

/// A rule that translates sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceNat {
    /// Table, as its owner called it.
    pub table: String,
    /// Chain, likewise.
    pub chain: String,
    /// The rule's handle in its table.
    pub handle: u64,
    /// Outside addresses and ports.
    pub to: Translation,
}

/// NF_NAT_RANGE_PROTO_RANDOM, NF_NAT_RANGE_PERSISTENT and NF_NAT_RANGE_PROTO_RANDOM_FULLY.
const RANDOM: u32 = 1 << 2;
const PERSISTENT: u32 = 1 << 3;
const FULLY_RANDOM: u32 = 1 << 4;

/// How a rule chooses ports, and an address out of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Choice {
    /// A port that is drawn by a hash of both endpoints, also where the inside one is free (`random`).
    pub random: bool,
    /// A port that is drawn by chance (`fully-random`).
    pub fully_random: bool,
    /// One outside address for all connections of a host (`persistent`).
    pub persistent: bool,
}

impl Choice {
    fn of_flags(flags: u32) -> Self {
        let has = |bit: u32| flags & bit != 0;
        Choice { random: has(RANDOM), fully_random: has(FULLY_RANDOM), persistent: has(PERSISTENT) }
    }

    /// Reads it from a rule's expressions; `None` of one that translates nothing.
    pub fn of(expressions: &[Expression]) -> Option<Self> {
        expressions.iter().find_map(|expression| match expression {
            Expression::Masquerade { flags, .. } | Expression::Nat { flags, .. } => {
                Some(Choice::of_flags(*flags))
            }
            Expression::Target { name, revision, info } => Choice::of_target(name, *revision, info),
            _ => None,
        })
    }

    /// Reads it from the parameters of the xtables targets DNAT, SNAT and MASQUERADE.
    pub fn of_target(name: &str, revision: u32, info: &[u8]) -> Option<Self> {
        of_target(name, revision, info)?;
        let old = revision == 0 && info.len() < 40;
        Some(Choice::of_flags(u32_ne(info.get(if old { 4 } else { 0 }..)?)?))
    }
}

/// All rules of the calling thread's namespace that translate sources. Empty where nftables is not there: it is not asked for
/// then, because asking would load it.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_ADMIN over the namespace; `Interrupted` if the rules change all the time.
pub fn source_nat(root: &ProcRoot) -> Result<Vec<SourceNat>> {
    if !modules::is_loaded(root, "nf_tables") {
        return Ok(Vec::new());
    }
    let mut socket = Socket::open(libc::NETLINK_NETFILTER).context(|| "read nftables rules".into())?;
    dump(&mut socket, GET_RULE, "rules", |family, attributes| {
        let Rule { table, chain, handle, expressions, .. } = rule(family, attributes)?;
        match of(&expressions)? {
            Nat::Source(to) => Some(SourceNat { table, chain, handle, to }),
            Nat::Destination(_) => None,
        }
    })
}

/// Returns the translation of a rule with these expressions, if it has one. Constants are those that it loads itself.
pub fn of(expressions: &[Expression]) -> Option<Nat> {
    let mut registers = Registers::default();
    for expression in expressions {
        match expression {
            Expression::Immediate { to, value } => registers.store(*to, value),
            Expression::Masquerade { ports, .. } => {
                return Some(Nat::Source(Translation {
                    addresses: None,
                    ports: ports_in(&registers, *ports),
                }));
            }
            Expression::Nat { source, ipv6, addresses, ports, .. } => {
                let address = |from: Register| address(&registers.load(from, if *ipv6 { 16 } else { 4 })?);
                let addresses = addresses.and_then(|(first, last)| address(first).zip(address(last)));
                let to = Translation { addresses, ports: ports_in(&registers, *ports) };
                return Some(if *source { Nat::Source(to) } else { Nat::Destination(to) });
            }
            Expression::Target { name, revision, info } => {
                let nat = of_target(name, *revision, info);
                if nat.is_some() {
                    return nat;
                }
            }
            loads => forget_loaded(&mut registers, loads),
        }
    }
    None
}

/// A register that something else was loaded into is no constant any more.
fn forget_loaded(registers: &mut Registers, expression: &Expression) {
    match expression {
        Expression::Payload { to, length, .. } => registers.forget(*to, *length as usize),
        Expression::Bitwise { to, mask, .. } => registers.forget(*to, mask.len()),
        Expression::ByteOrder { to, length, .. } => registers.forget(*to, *length as usize),
        Expression::Meta { to, .. }
        | Expression::Ct { to, .. }
        | Expression::NumberGenerator { to, .. }
        | Expression::Other { to: Some(to), .. } => registers.forget(*to, REGISTER),
        Expression::Lookup { to: Some(Some(to)), .. } => registers.forget_from(*to),
        _ => {}
    }
}

fn ports_in(registers: &Registers, ports: Option<(Register, Register)>) -> Ports {
    let Some((first, last)) = ports else { return Ports::Kernel };
    let number = |from| registers.load(from, 2).as_deref().and_then(u16_be);
    match (number(first), number(last)) {
        (Some(first), Some(last)) => Ports::Range(first.min(last)..=first.max(last)),
        _ => Ports::Mapped,
    }
}

/// Reads the parameters of the xtables targets DNAT, SNAT and MASQUERADE. `None` for other targets, and for parameters shorter
/// than their revision has.
pub fn of_target(name: &str, revision: u32, info: &[u8]) -> Option<Nat> {
    match name {
        "DNAT" => xtables(revision, info).map(Nat::Destination),
        "MASQUERADE" | "SNAT" => xtables(revision, info).map(Nat::Source),
        _ => None,
    }
}

/// `struct nf_nat_ipv4_multi_range_compat` of the first revisions for IPv4, otherwise `struct nf_nat_range` or one that begins
/// like it.
fn xtables(revision: u32, info: &[u8]) -> Option<Translation> {
    // 20 bytes are padded to 24; the other structure has 40.
    let old = revision == 0 && info.len() < 40;
    let (flags, addresses, ports) = if old { (4, (8, 12, 4), 16) } else { (0, (4, 20, 16), 36) };
    let flags = u32_ne(info.get(flags..)?)?;
    let (first, last, length) = addresses;
    let at = |from: usize| address(trimmed(info.get(from..from + length)?));
    let addresses = if flags & MAP_IPS != 0 { at(first).zip(at(last)) } else { None };
    let ports = match (info.get(ports..).and_then(u16_be), info.get(ports + 2..).and_then(u16_be)) {
        (Some(first), Some(last)) if flags & PROTO_SPECIFIED != 0 => {
            Ports::Range(first.min(last)..=first.max(last))
        }
        _ => Ports::Kernel,
    };
    Some(Translation { addresses, ports })
}

/// `union nf_inet_addr` of an IPv4 address has it in its first four bytes, and zeros behind.
fn trimmed(bytes: &[u8]) -> &[u8] {
    if bytes.len() == 16 && bytes[4..].iter().all(|b| *b == 0) { &bytes[..4] } else { bytes }
}

fn address(bytes: &[u8]) -> Option<Address> {
    crate::address(bytes).map(|ip: IpAddr| ip.into())
}

#[cfg(test)]
mod tests;
