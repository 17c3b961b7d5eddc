//! A rule of nftables as text, near to what `nft` prints. It knows the loads that most rules have and names the others.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::{Base, Comparison, Expression, NftVerdict, Register, Rule};
use crate::{u16_ne, u32_ne, until_zero};

/// The contents of a register, as text, and the notation of a constant that it is compared with.
#[derive(Debug, Clone)]
struct Loaded {
    name: String,
    kind: Kind,
    /// Mask that was put on it.
    mask: Option<Vec<u8>>,
}

/// How a constant is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Address4,
    Address6,
    Number,
    /// In host byte order.
    HostNumber,
    Protocol,
    EtherType,
    Name,
    CtState,
    TcpFlags,
    Family,
    Bytes,
}

/// Most of the bytes of a rule's text.
const LONGEST: usize = 400;

/// The rule's text, without its comment.
pub fn render(rule: &Rule) -> String {
    let mut registers: BTreeMap<Register, Loaded> = BTreeMap::new();
    let mut words = Vec::new();
    let mut protocol = String::from("th");
    for expression in &rule.expressions {
        one(expression, &mut registers, &mut protocol, &mut words);
    }
    // nft leaves out what a later word implies: `meta l4proto tcp tcp dport 22` is `tcp dport 22`.
    let implied = |i: usize| {
        let next = words.get(i + 1).map(String::as_str).unwrap_or_default();
        words[i].strip_prefix("meta l4proto ").is_some_and(|p| next.starts_with(&format!("{p} ")))
            || words[i] == "meta nfproto ipv4" && next.starts_with("ip ")
            || words[i] == "meta nfproto ipv6" && next.starts_with("ip6 ")
    };
    let kept: Vec<&str> = (0..words.len()).filter(|i| !implied(*i)).map(|i| words[i].as_str()).collect();
    let mut text = kept.join(" ");
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(end);
        text.push_str(" ...");
    }
    text
}

/// The register that an expression loads, and what it then holds.
fn loaded(
    expression: &Expression,
    registers: &BTreeMap<Register, Loaded>,
    protocol: &str,
) -> Option<(Register, Loaded)> {
    let (to, (name, kind)) = match expression {
        Expression::Payload { base, offset, length, to } => (to, payload(*base, *offset, *length, protocol)),
        Expression::Meta { key, to } => (to, meta(*key)),
        Expression::Ct { key, to } => (to, ct(*key)),
        Expression::NumberGenerator { to, modulus, random, .. } => {
            let how = if *random { "random" } else { "inc" };
            (to, (format!("numgen {how} mod {modulus}"), Kind::Number))
        }
        Expression::Other { name, to: Some(to) } => (to, (name.clone(), Kind::Bytes)),
        Expression::Bitwise { from, to, mask, xor } => {
            let mut loaded = registers.get(from)?.clone();
            if xor.iter().any(|b| *b != 0) {
                loaded.name.push_str(" xor");
            }
            return Some((*to, Loaded { mask: Some(mask.clone()), ..loaded }));
        }
        Expression::ByteOrder { from, to, .. } => return Some((*to, registers.get(from)?.clone())),
        _ => return None,
    };
    Some((*to, Loaded { name, kind, mask: None }))
}

fn one(
    expression: &Expression,
    registers: &mut BTreeMap<Register, Loaded>,
    protocol: &mut String,
    words: &mut Vec<String>,
) {
    if let Some((to, loaded)) = loaded(expression, registers, protocol) {
        registers.insert(to, loaded);
        return;
    }
    match expression {
        Expression::Bitwise { .. } | Expression::ByteOrder { .. } | Expression::Immediate { .. } => {}
        Expression::Compare { register, with, value } => {
            let Some(loaded) = registers.get(register) else { return };
            let text = compare(loaded, *with, value);
            if let Some(name) = text.strip_prefix("meta l4proto ") {
                *protocol = name.to_owned();
            }
            if let Some(name) = text.strip_prefix("ip protocol ").or(text.strip_prefix("ip6 nexthdr ")) {
                *protocol = name.to_owned();
            }
            let merged = range(words.last(), &loaded.name, &text);
            if merged.is_some() {
                words.pop();
            }
            words.push(merged.unwrap_or(text));
        }
        Expression::Range { register, outside, first, last } => {
            let Some(loaded) = registers.get(register) else { return };
            let not = if *outside { "!= " } else { "" };
            let (first, last) = (constant(loaded.kind, first), constant(loaded.kind, last));
            words.push(format!("{} {not}{first}-{last}", loaded.name));
        }
        Expression::Lookup { set, key, negated, .. } => {
            let name = concatenated(registers, *key);
            let not = if *negated { "!= " } else { "" };
            let map = matches!(expression, Expression::Lookup { to: Some(_), .. });
            let with = if map { "vmap " } else { "" };
            // Sets without a name belong to the rule; nft shows their elements in its place.
            let set = if set.starts_with("__") { "{ ... }".to_owned() } else { format!("@{set}") };
            words.push(format!("{name} {with}{not}{set}"));
        }
        Expression::SetUpdate { set, key, with } => {
            let mut inner = Vec::new();
            with.iter().for_each(|e| one(e, registers, protocol, &mut inner));
            words.push(format!("update @{set} {{ {} {} }}", concatenated(registers, *key), inner.join(" ")));
        }
        other => words.extend(statement(other)),
    }
}

/// `tcp dport >= 1 tcp dport <= 9` is how the kernel keeps `tcp dport 1-9`.
fn range(before: Option<&String>, name: &str, text: &str) -> Option<String> {
    let first = before?.strip_prefix(name)?.strip_prefix(" >= ")?;
    let last = text.strip_prefix(name)?.strip_prefix(" <= ")?;
    Some(format!("{name} {first}-{last}"))
}

/// The comment that iptables keeps as a match (struct xt_comment_info: text, zero-terminated).
pub fn iptables_comment(rule: &Rule) -> Option<String> {
    rule.expressions.iter().find_map(|e| match e {
        Expression::Match { name, info, .. } if name == "comment" => {
            Some(String::from_utf8_lossy(until_zero(info)).into_owned())
        }
        _ => None,
    })
}

/// The states that a match `conntrack` or `state` of iptables asks for, in the bits of `ct state`; `None` if it asks for
/// something else as well, or for their opposite.
pub fn conntrack_states(name: &str, info: &[u8]) -> Option<u32> {
    let u16_at = |at: usize| u16_ne(info.get(at..)?);
    match name {
        "state" => u32_ne(info),
        // struct xt_conntrack_mtinfo2 and 3: four addresses with masks, two numbers, five ports, then match_flags,
        // invert_flags, state_mask. XT_CONNTRACK_STATE is the flag 1.
        "conntrack" if u16_at(146)? == 1 && u16_at(148)? == 0 => Some(u32::from(u16_at(150)?)),
        _ => None,
    }
}

/// Names of a key that begins in that register and goes on in the next ones.
fn concatenated(registers: &BTreeMap<Register, Loaded>, key: Register) -> String {
    let parts: Vec<&str> = registers.range(key..).map(|(_, l)| l.name.as_str()).collect();
    if parts.is_empty() { "key".to_owned() } else { parts.join(" . ") }
}

fn statement(expression: &Expression) -> Option<String> {
    Some(match expression {
        Expression::Counter { .. } => "counter".to_owned(),
        Expression::NamedCounter(name) => format!("counter name {name}"),
        Expression::Limit { .. } | Expression::ConnectionLimit { .. } | Expression::Quota { .. } => {
            return limit(expression);
        }
        Expression::Log { prefix, group } => {
            // A quote within the prefix would end it if the text is read as a rule.
            let prefix = prefix.replace(|c: char| c == '"' || c.is_control(), "?");
            let prefix = if prefix.is_empty() { String::new() } else { format!(" prefix \"{prefix}\"") };
            let group = group.map(|g| format!(" group {g}")).unwrap_or_default();
            format!("log{prefix}{group}")
        }
        Expression::Reject { kind: 1, .. } => "reject with tcp reset".to_owned(),
        Expression::Reject { .. } => "reject".to_owned(),
        Expression::Queue { number, total, bypass } => {
            let last =
                if *total > 1 { format!("-{}", number.saturating_add(total - 1)) } else { String::new() };
            let bypass = if *bypass { "bypass " } else { "" };
            format!("queue flags {bypass}to {number}{last}").replace("flags to", "to")
        }
        Expression::Verdict(verdict) => match verdict {
            NftVerdict::Accept => "accept".to_owned(),
            NftVerdict::Drop => "drop".to_owned(),
            NftVerdict::Continue => "continue".to_owned(),
            NftVerdict::Return => "return".to_owned(),
            NftVerdict::Jump(chain) => format!("jump {chain}"),
            NftVerdict::Goto(chain) => format!("goto {chain}"),
            NftVerdict::Other(code) => format!("verdict {code}"),
        },
        Expression::MetaSet { key, .. } => format!("{} set ...", meta(*key).0),
        Expression::PayloadSet { base, offset, length } => {
            format!("{} set ...", payload(*base, *offset, *length, "th").0)
        }
        Expression::CtSet { key, .. } => format!("{} set ...", ct(*key).0),
        Expression::TcpOptionSet { option } => format!("tcp option {option} set ..."),
        Expression::Match { name, .. } if name == "comment" => return None,
        Expression::Match { name, info, .. } => match conntrack_states(name, info) {
            Some(states) => format!("-m {name} --state {}", constant(Kind::CtState, &states.to_ne_bytes())),
            None => format!("-m {name}"),
        },
        Expression::Target { name, .. } => format!("-j {name}"),
        Expression::CtTimeout(name) => format!("ct timeout set {name}"),
        Expression::Statement(name) => name.clone(),
        Expression::Nat { .. } => "nat".to_owned(),
        Expression::Masquerade { .. } => "masq".to_owned(),
        Expression::Other { name, .. } if !name.is_empty() => name.clone(),
        _ => return None,
    })
}

/// Up to, or above, how much a rule matches.
fn limit(expression: &Expression) -> Option<String> {
    Some(match expression {
        Expression::Limit { rate, per_seconds, burst, bytes, over } => {
            let over = if *over { "over " } else { "" };
            let unit = match per_seconds {
                1 => "second",
                60 => "minute",
                3600 => "hour",
                86_400 => "day",
                604_800 => "week",
                _ => "?",
            };
            let (rate_unit, burst_unit) = if *bytes { (" bytes", "bytes") } else { ("", "packets") };
            format!("limit rate {over}{rate}{rate_unit}/{unit} burst {burst} {burst_unit}")
        }
        Expression::ConnectionLimit { count, over } => {
            format!("ct count {}{count}", if *over { "over " } else { "" })
        }
        Expression::Quota { bytes, over } => {
            format!("quota {}{bytes} bytes", if *over { "over " } else { "until " })
        }
        _ => return None,
    })
}

/// Name and kind of bytes of the packet.
fn payload(base: Base, offset: u32, length: u32, protocol: &str) -> (String, Kind) {
    let (name, kind) = match (base, offset, length) {
        (Base::Network, 9, 1) => ("ip protocol", Kind::Protocol),
        // A network whose prefix ends with a byte is compared by that many bytes.
        (Base::Network, 12, 1..=4) => ("ip saddr", Kind::Address4),
        (Base::Network, 16, 1..=4) => ("ip daddr", Kind::Address4),
        (Base::Network, 1, 1) => ("ip tos", Kind::Number),
        (Base::Network, 2, 2) => ("ip length", Kind::Number),
        (Base::Network, 4, 2) => ("ip id", Kind::Number),
        (Base::Network, 6, 2) => ("ip frag-off", Kind::Number),
        (Base::Network, 8, 1) => ("ip ttl", Kind::Number),
        (Base::Network, 6, 1) => ("ip6 nexthdr", Kind::Protocol),
        (Base::Network, 7, 1) => ("ip6 hoplimit", Kind::Number),
        (Base::Network, 8, 2..=16) => ("ip6 saddr", Kind::Address6),
        (Base::Network, 24, 1..=16) => ("ip6 daddr", Kind::Address6),
        (Base::Transport, 0, 1) if protocol.contains("icmp") => {
            return (format!("{} type", icmp(protocol)), Kind::Number);
        }
        (Base::Transport, 1, 1) if protocol.contains("icmp") => {
            return (format!("{} code", icmp(protocol)), Kind::Number);
        }
        (Base::Transport, 0, 2) => return (format!("{protocol} sport"), Kind::Number),
        (Base::Transport, 2, 2) => return (format!("{protocol} dport"), Kind::Number),
        (Base::Transport, 13, 1) if protocol == "tcp" => ("tcp flags", Kind::TcpFlags),
        (Base::Link, 0, 6) => ("ether daddr", Kind::Bytes),
        (Base::Link, 6, 6) => ("ether saddr", Kind::Bytes),
        (Base::Link, 12, 2) => ("ether type", Kind::EtherType),
        _ => {
            let base = match base {
                Base::Link => "ll",
                Base::Network => "nh",
                Base::Transport => "th",
                Base::Inner => "ih",
            };
            return (format!("@{base},{},{}", u64::from(offset) * 8, u64::from(length) * 8), Kind::Bytes);
        }
    };
    (name.to_owned(), kind)
}

fn icmp(protocol: &str) -> &str {
    if protocol == "ipv6-icmp" { "icmpv6" } else { protocol }
}

/// `enum nft_meta_keys`.
fn meta(key: u32) -> (String, Kind) {
    let (name, kind) = match key {
        0 => ("meta length", Kind::HostNumber),
        1 => ("meta protocol", Kind::EtherType),
        3 => ("meta mark", Kind::HostNumber),
        4 => ("iif", Kind::HostNumber),
        5 => ("oif", Kind::HostNumber),
        6 => ("iifname", Kind::Name),
        7 => ("oifname", Kind::Name),
        10 => ("meta skuid", Kind::HostNumber),
        11 => ("meta skgid", Kind::HostNumber),
        15 => ("meta nfproto", Kind::Family),
        16 => ("meta l4proto", Kind::Protocol),
        17 => ("meta ibrname", Kind::Name),
        18 => ("meta obrname", Kind::Name),
        19 => ("meta pkttype", Kind::Number),
        20 => ("meta cpu", Kind::HostNumber),
        23 => ("meta cgroup", Kind::HostNumber),
        24 => ("meta random", Kind::HostNumber),
        _ => return (format!("meta {key}"), Kind::Bytes),
    };
    (name.to_owned(), kind)
}

/// `enum nft_ct_keys`.
fn ct(key: u32) -> (String, Kind) {
    let (name, kind) = match key {
        0 => ("ct state", Kind::CtState),
        1 => ("ct direction", Kind::Number),
        2 => ("ct status", Kind::HostNumber),
        3 => ("ct mark", Kind::HostNumber),
        5 => ("ct expiration", Kind::HostNumber),
        6 => ("ct helper", Kind::Name),
        15 => ("ct bytes", Kind::HostNumber),
        14 => ("ct packets", Kind::HostNumber),
        17 => ("ct zone", Kind::HostNumber),
        _ => return (format!("ct {key}"), Kind::Bytes),
    };
    (name.to_owned(), kind)
}

fn compare(loaded: &Loaded, with: Comparison, value: &[u8]) -> String {
    let Loaded { name, kind, mask } = loaded;
    if let Some(mask) = mask {
        // `(register & mask) != 0` asks for any of the flags; anything else for the whole.
        if value.iter().all(|b| *b == 0) && with == Comparison::NotEqual {
            return format!("{name} {}", constant(*kind, mask));
        }
        let not = if with == Comparison::NotEqual { "!= " } else { "" };
        if let (Kind::Address4 | Kind::Address6, Some(prefix)) = (kind, prefix_length(mask)) {
            return format!("{name} {not}{}/{prefix}", constant(*kind, value));
        }
        return format!("{name} & {} {not}{}", constant(*kind, mask), constant(*kind, value));
    }
    let sign = match with {
        Comparison::Equal => "",
        Comparison::NotEqual => "!= ",
        Comparison::Less => "< ",
        Comparison::LessOrEqual => "<= ",
        Comparison::Greater => "> ",
        Comparison::GreaterOrEqual => ">= ",
    };
    let whole = match kind {
        Kind::Address4 => 4,
        Kind::Address6 => 16,
        _ => value.len(),
    };
    let mut padded = value.to_vec();
    padded.resize(whole.max(value.len()), 0);
    let prefix = if value.len() < whole { format!("/{}", value.len() * 8) } else { String::new() };
    let mut text = constant(*kind, &padded);
    // The name of an interface without its terminating zero matches all that begin with it.
    if *kind == Kind::Name && !value.contains(&0) && value.len() < 16 {
        text.insert(text.len() - 1, '*');
    }
    format!("{name} {sign}{text}{prefix}")
}

fn prefix_length(mask: &[u8]) -> Option<u32> {
    let ones: u32 = mask.iter().map(|b| b.leading_ones()).sum();
    let set: u32 = mask.iter().map(|b| b.count_ones()).sum();
    let first = mask.iter().position(|b| *b != 0xff).unwrap_or(mask.len());
    let rest_empty = mask.iter().skip(first + 1).all(|b| *b == 0);
    (ones == set && rest_empty).then_some(set)
}

fn constant(kind: Kind, value: &[u8]) -> String {
    let big = value.iter().take(8).fold(0_u64, |n, b| n << 8 | u64::from(*b));
    match kind {
        Kind::Address4 => match <[u8; 4]>::try_from(value) {
            Ok(bytes) => Ipv4Addr::from(bytes).to_string(),
            Err(_) => hexadecimal(value),
        },
        Kind::Address6 => match <[u8; 16]>::try_from(value) {
            Ok(bytes) => Ipv6Addr::from(bytes).to_string(),
            Err(_) => hexadecimal(value),
        },
        Kind::Number => big.to_string(),
        Kind::HostNumber => host_number(value).to_string(),
        Kind::Protocol => protocol_name(big),
        Kind::Family => match big {
            2 => "ipv4".to_owned(),
            10 => "ipv6".to_owned(),
            n => n.to_string(),
        },
        Kind::EtherType => match big {
            0x0800 => "ip".to_owned(),
            0x86dd => "ip6".to_owned(),
            0x0806 => "arp".to_owned(),
            0x8100 => "vlan".to_owned(),
            n => format!("{n:#06x}"),
        },
        Kind::Name => format!("\"{}\"", String::from_utf8_lossy(until_zero(value))),
        // NF_CT_STATE_BIT of the kernel (include/uapi/linux/netfilter/nf_conntrack_common.h).
        Kind::CtState => flags(
            host_number(value),
            &[(1, "invalid"), (2, "established"), (4, "related"), (8, "new"), (64, "untracked")],
        ),
        Kind::TcpFlags => flags(
            big,
            &[
                (2, "syn"),
                (16, "ack"),
                (1, "fin"),
                (4, "rst"),
                (8, "psh"),
                (32, "urg"),
                (64, "ecn"),
                (128, "cwr"),
            ],
        ),
        Kind::Bytes => hexadecimal(value),
    }
}

fn host_number(value: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let length = value.len().min(8);
    bytes[..length].copy_from_slice(&value[..length]);
    if cfg!(target_endian = "big") {
        u64::from_be_bytes(bytes) >> (8 * (8 - length.max(1)))
    } else {
        u64::from_le_bytes(bytes)
    }
}

fn flags(value: u64, names: &[(u64, &str)]) -> String {
    let set: Vec<&str> = names.iter().filter(|(bit, _)| value & bit != 0).map(|(_, name)| *name).collect();
    if set.is_empty() { value.to_string() } else { set.join(",") }
}

fn hexadecimal(value: &[u8]) -> String {
    format!("0x{}", value.iter().map(|b| format!("{b:02x}")).collect::<String>())
}

/// Names of /etc/protocols that nft prints.
fn protocol_name(number: u64) -> String {
    let name = match number {
        1 => "icmp",
        2 => "igmp",
        4 => "ipencap",
        6 => "tcp",
        17 => "udp",
        33 => "dccp",
        41 => "ipv6",
        47 => "gre",
        50 => "esp",
        51 => "ah",
        58 => "ipv6-icmp",
        132 => "sctp",
        136 => "udplite",
        n => return n.to_string(),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_that_are_prefixes_are_told_from_others() {
        assert_eq!(prefix_length(&[255, 255, 240, 0]), Some(20));
        assert_eq!(prefix_length(&[255, 255, 255, 255]), Some(32));
        assert_eq!(prefix_length(&[255, 0, 255, 0]), None);
        assert_eq!(prefix_length(&[0, 255, 0, 0]), None);
        assert_eq!(prefix_length(&[0; 4]), Some(0));
    }

    #[test]
    fn constants_of_each_kind() {
        assert_eq!(constant(Kind::CtState, &9_u32.to_ne_bytes()), "invalid,new");
        assert_eq!(constant(Kind::TcpFlags, &[0x12]), "syn,ack");
        assert_eq!(constant(Kind::Name, b"eth0\0\0"), "\"eth0\"");
        assert_eq!(constant(Kind::Address6, &[0; 16]), "::");
        assert_eq!(constant(Kind::Address4, &[1, 2]), "0x0102");
        assert_eq!(constant(Kind::HostNumber, &7_u32.to_ne_bytes()), "7");
    }
}
