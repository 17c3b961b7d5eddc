//! The old tables of iptables and ip6tables, read as the kernel holds them (include/uapi/linux/netfilter_ipv4/ip_tables.h,
//! netfilter_ipv6/ip6_tables.h, netfilter/x_tables.h).
//!
//! Only tables that are there already are read: asking for another one would make it, or load its module.

mod asks;
mod text;

use std::io;

use rustix::net::{AddressFamily, RawProtocol, SocketType};

use self::asks::asks;
pub use self::text::text;
use crate::nftables::nat::{Nat, Translation, of_target};
use crate::{u16_ne, u32_ne, u64_ne, until_zero};
use weir_sys::ProcRoot;
use weir_sys::error::{Context, Error, Result};
use weir_sys::socket_option;

/// IPT_SO_GET_INFO and IP6T_SO_GET_INFO, IPT_SO_GET_ENTRIES and IP6T_SO_GET_ENTRIES have the same numbers.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;
/// XT_TABLE_MAXNAMELEN.
const NAME: usize = 32;
/// Bytes of `struct ipt_getinfo`: name, valid hooks, five hook entries, five underflows, number of entries, size.
const INFO: usize = NAME + 4 + 20 + 20 + 4 + 4;
/// Bytes of `struct ipt_get_entries` before its entries: name, size, padding to eight.
const ENTRIES: usize = NAME + 8;
/// More than any table that a person or a program ever made.
const LARGEST: usize = 256 << 20;
/// Names of hooks by number (enum nf_inet_hooks), as iptables calls the chains.
const HOOKS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// iptables.
    Ip,
    /// ip6tables.
    Ip6,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Which of the two.
    pub family: Family,
    /// Name (`filter`).
    pub name: String,
    /// Its chains, the built-in ones among them.
    pub chains: Vec<Chain>,
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Name.
    pub name: String,
    /// For a built-in chain, the target of packets that reach its end, and their number.
    pub policy: Option<(Target, u64)>,
    /// Its rules.
    pub rules: Vec<Rule>,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Addresses, interfaces and protocol that it asks for, as iptables writes them (`-s 192.0.2.0/24 -i eth0 -p tcp`).
    pub asks: String,
    /// Names of its matches, with their parameters in the layout of their header files.
    pub matches: Vec<(String, Vec<u8>)>,
    /// Its target.
    pub target: Target,
    /// The target's parameters, likewise.
    pub parameters: Vec<u8>,
    /// Revision of their layout.
    pub revision: u32,
    /// The destination of a target DNAT.
    pub destination: Option<Translation>,
    /// Packets that it met.
    pub packets: u64,
}

/// The target of a rule or policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Lets pass.
    Accept,
    /// Throws away.
    Drop,
    /// Back to the chain that jumped here.
    Return,
    /// To a chain of that name.
    Jump(String),
    /// Likewise, and from its end back to where this chain was jumped from (`-g`).
    Goto(String),
    /// To the next rule; it only counts.
    Continue,
    /// A target with a name (`REJECT`, `LOG`, `MASQUERADE`).
    Named(String),
}

/// Layout of an entry of one family.
struct Layout {
    level: i32,
    domain: AddressFamily,
    /// Positions of target offset, next offset and counters in the entry.
    target_offset: usize,
    counters: usize,
    /// Position of its flags, and the flag of a jump that does not come back (IPT_F_GOTO, IP6T_F_GOTO).
    flags: usize,
    goto: u8,
    /// Bytes of the entry before its matches.
    length: usize,
}

const IP: Layout = Layout {
    level: libc::IPPROTO_IP,
    domain: AddressFamily::INET,
    target_offset: 88,
    counters: 96,
    flags: 82,
    goto: 0x02,
    length: 112,
};
const IP6: Layout = Layout {
    level: libc::IPPROTO_IPV6,
    domain: AddressFamily::INET6,
    target_offset: 140,
    counters: 152,
    flags: 131,
    goto: 0x04,
    length: 168,
};

/// All tables of the calling thread's namespace that are there.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_ADMIN and CAP_NET_RAW over the namespace.
pub fn read(root: &ProcRoot) -> Result<Vec<Table>> {
    let mut tables = Vec::new();
    for (family, file) in [(Family::Ip, "ip_tables_names"), (Family::Ip6, "ip6_tables_names")] {
        // Not there: no table was ever asked for in this kernel.
        let names = root.read_optional(&format!("proc/thread-self/net/{file}")).unwrap_or_default();
        for name in names.lines() {
            tables.push(table(family, name.trim())?);
        }
    }
    Ok(tables)
}

impl Family {
    fn layout(self) -> &'static Layout {
        match self {
            Family::Ip => &IP,
            Family::Ip6 => &IP6,
        }
    }
}

fn table(family: Family, name: &str) -> Result<Table> {
    let what = || format!("read the iptables table {name}");
    let layout = family.layout();
    let socket = rustix::net::socket(layout.domain, SocketType::RAW, Some(RAW))
        .map_err(io::Error::from)
        .context(what)?;
    // A table that changes between the two questions has another size, which the kernel says with EAGAIN.
    for _ in 0..5 {
        let mut info = [0; INFO];
        put_name(&mut info, name);
        socket_option::get(&socket, layout.level, GET_INFO, &mut info).context(what)?;
        let size = number(&info, INFO - 4).unwrap_or(0) as usize;
        if size > LARGEST {
            return Err(Error::other(what(), format!("it says it has {size} bytes")));
        }
        let mut entries = vec![0; ENTRIES + size];
        put_name(&mut entries, name);
        entries[NAME..NAME + 4].copy_from_slice(&(size as u32).to_ne_bytes());
        match socket_option::get(&socket, layout.level, GET_ENTRIES, &mut entries) {
            Ok(_) => {
                let chains = chains(&info, &entries[ENTRIES..], family);
                return Ok(Table { family, name: name.to_owned(), chains });
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(Error::new(what(), e)),
        }
    }
    Err(Error::other(what(), "it changes all the time"))
}

/// IPPROTO_RAW: a socket that takes nothing in.
const RAW: rustix::net::Protocol =
    rustix::net::Protocol::from_raw(match RawProtocol::new(libc::IPPROTO_RAW as u32) {
        Some(protocol) => protocol,
        None => panic!("255 is not zero"),
    });

fn put_name(buffer: &mut [u8], name: &str) {
    let length = name.len().min(NAME - 1);
    buffer[..length].copy_from_slice(&name.as_bytes()[..length]);
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    u32_ne(bytes.get(at..)?)
}

fn short(bytes: &[u8], at: usize) -> Option<usize> {
    u16_ne(bytes.get(at..)?).map(usize::from)
}

/// An entry as it lies in the table.
struct Entry<'a> {
    offset: usize,
    bytes: &'a [u8],
    matches: Vec<(String, Vec<u8>)>,
    target: &'a str,
    revision: u8,
    /// The target's parameters; of the standard target, the verdict.
    parameters: &'a [u8],
    packets: u64,
}

/// Entries in order; a broken rest is left out.
fn entries<'a>(bytes: &'a [u8], layout: &Layout) -> Vec<Entry<'a>> {
    let mut all = Vec::new();
    let mut offset = 0;
    while let Some((entry, next)) = bytes.get(offset..).and_then(|rest| entry(rest, layout)) {
        all.push(Entry { offset, ..entry });
        offset += next;
    }
    all
}

fn entry<'a>(bytes: &'a [u8], layout: &Layout) -> Option<(Entry<'a>, usize)> {
    let target_offset = short(bytes, layout.target_offset)?;
    let next = short(bytes, layout.target_offset + 2)?;
    let bytes = bytes.get(..next).filter(|_| layout.length <= target_offset && target_offset < next)?;
    let mut matches = Vec::new();
    let mut at = layout.length;
    // struct xt_entry_match and xt_entry_target: size, name of 29 bytes, revision, then the parameters.
    while at < target_offset {
        let size = short(bytes, at).filter(|size| *size >= NAME && at + size <= target_offset)?;
        matches.push((name(bytes, at + 2, 29)?.to_owned(), bytes[at + NAME..at + size].to_vec()));
        at += size;
    }
    let size = short(bytes, target_offset).filter(|size| *size >= NAME)?;
    let parameters = bytes.get(target_offset + NAME..target_offset + size)?;
    let packets = u64_ne(bytes.get(layout.counters..)?)?;
    let target = name(bytes, target_offset + 2, 29)?;
    let revision = bytes[target_offset + NAME - 1];
    Some((Entry { offset: 0, bytes, matches, target, revision, parameters, packets }, next))
}

fn name(bytes: &[u8], at: usize, length: usize) -> Option<&str> {
    std::str::from_utf8(until_zero(bytes.get(at..at + length)?)).ok()
}

/// Reads the chains. A built-in one begins at its hook's entry and ends with its policy (underflow). Any other begins with a
/// target ERROR that bears its name, and ends with an implicit return.
fn chains(info: &[u8; INFO], table: &[u8], family: Family) -> Vec<Chain> {
    let layout = family.layout();
    let entries = entries(table, layout);
    let valid = number(info, NAME).unwrap_or(0);
    let at = |from: usize, hook: usize| number(info, from + 4 * hook).unwrap_or(0) as usize;
    let hooks = |offset: usize, from: usize| (0..5).find(|h| valid & 1 << h != 0 && at(from, *h) == offset);
    let (begins, policies) = (NAME + 4, NAME + 24);
    // The offset of each chain's first rule, for jumps.
    let mut names: Vec<(usize, String)> = Vec::new();
    for pair in entries.windows(2) {
        if let ("ERROR", Some(chain)) = (pair[0].target, name(pair[0].parameters, 0, 30)) {
            names.push((pair[1].offset, chain.to_owned()));
        }
    }
    let mut chains: Vec<Chain> = Vec::new();
    for (place, entry) in entries.iter().enumerate() {
        if let Some(hook) = hooks(entry.offset, begins) {
            chains.push(Chain { name: HOOKS[hook].to_owned(), policy: None, rules: Vec::new() });
        } else if let ("ERROR", Some(chain)) = (entry.target, name(entry.parameters, 0, 30)) {
            chains.push(Chain { name: chain.to_owned(), policy: None, rules: Vec::new() });
            continue;
        }
        let Some(chain) = chains.last_mut() else { continue };
        let goto = entry.bytes.get(layout.flags).is_some_and(|flags| flags & layout.goto != 0);
        let target = match target(entry, &names, entries.get(place + 1).map(|next| next.offset)) {
            Target::Jump(chain) if goto => Target::Goto(chain),
            target => target,
        };
        if hooks(entry.offset, policies).is_some() {
            chain.policy = Some((target, entry.packets));
            continue;
        }
        // The return at the end of a chain is not a rule of its owner.
        let last = entries.get(place + 1).is_none_or(|next| next.target == "ERROR");
        if last && target == Target::Return && entry.matches.is_empty() && chain.policy.is_none() {
            continue;
        }
        chain.rules.push(Rule {
            asks: asks(entry.bytes, family),
            matches: entry.matches.clone(),
            target,
            parameters: entry.parameters.to_vec(),
            revision: entry.revision.into(),
            destination: destination(entry),
            packets: entry.packets,
        });
    }
    // The table ends with an ERROR that is no chain.
    chains.retain(|c| c.policy.is_some() || c.name != "ERROR");
    chains
}

/// Returns the destination of a target DNAT. Its revision is the last byte of its name's field (struct xt_entry_target).
fn destination(entry: &Entry<'_>) -> Option<Translation> {
    match of_target(entry.target, entry.revision.into(), entry.parameters)? {
        Nat::Destination(to) => Some(to),
        Nat::Source(_) => None,
    }
}

/// The standard target has no name, and a verdict: below zero -(NF_* + 1), or XT_RETURN; else the offset of an entry.
fn target(entry: &Entry<'_>, chains: &[(usize, String)], next: Option<usize>) -> Target {
    if !entry.target.is_empty() {
        return Target::Named(entry.target.to_owned());
    }
    match number(entry.parameters, 0).unwrap_or(0).cast_signed() {
        -1 => Target::Drop,
        -2 => Target::Accept,
        // XT_RETURN is -NF_REPEAT - 1.
        -5 => Target::Return,
        offset => {
            let offset = usize::try_from(offset).unwrap_or(usize::MAX);
            let chain = chains.iter().find(|(begins, _)| *begins == offset).map(|(_, name)| name.clone());
            match chain {
                _ if next == Some(offset) => Target::Continue,
                Some(chain) => Target::Jump(chain),
                None => Target::Named("jump".to_owned()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
