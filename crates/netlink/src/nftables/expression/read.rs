//! Expressions as the kernel tells them over netlink.

use super::{Base, Comparison, Expression, NftVerdict, Register};
use crate::{Attributes, text, u16_be, u32_be, u64_be};

const EXPR_NAME: u16 = 1;
const EXPR_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;
/// Expressions within an expression (`add @s { ip saddr limit ... }`) are not nested further by the kernel.
const DEPTH: u32 = 2;

/// Expressions of a list (NFTA_RULE_EXPRESSIONS).
pub(in crate::nftables) fn list(payload: &[u8]) -> Vec<Expression> {
    nested(payload, DEPTH)
}

fn nested(payload: &[u8], depth: u32) -> Vec<Expression> {
    Attributes(payload).map(|(_, element)| one(element, depth)).collect()
}

/// Reads one expression. If a required attribute is missing, the expression is kept as unknown, since it may still decide.
fn one(element: &[u8], depth: u32) -> Expression {
    let name = Attributes(element).get(EXPR_NAME).map(text).unwrap_or_default();
    let data = Attributes(Attributes(element).get(EXPR_DATA).unwrap_or_default());
    known(&name, data, depth).unwrap_or(Expression::Other { name, to: None })
}

fn known(name: &str, data: Attributes<'_>, depth: u32) -> Option<Expression> {
    let number = |attribute: u16| data.get(attribute).and_then(u32_be);
    let register = |attribute: u16| number(attribute).and_then(word);
    Some(match name {
        "payload" | "meta" | "ct" => of_packet(name, data)?,
        "cmp" | "range" | "bitwise" | "byteorder" => arithmetic(name, data)?,
        "immediate" => match data_of(data.get(2)?)? {
            Data::Value(value) => Expression::Immediate { to: register(1)?, value },
            Data::Verdict(verdict) => Expression::Verdict(verdict),
        },
        "lookup" | "dynset" => of_set(name, data, depth)?,
        "limit" | "connlimit" | "quota" | "numgen" => of_rate(name, data)?,
        "nat" | "masq" => translation(name, data)?,
        "reject" | "queue" => refusal(name, data)?,
        "match" | "target" => of_iptables(name, data)?,
        // NFTA_COUNTER_BYTES, PACKETS.
        "counter" => Expression::Counter {
            packets: data.get(2).and_then(u64_be)?,
            bytes: data.get(1).and_then(u64_be)?,
        },
        // NFTA_OBJREF_IMM_TYPE 1 is NFT_OBJECT_COUNTER.
        "objref" if number(1) == Some(1) => Expression::NamedCounter(data.get(2).map(text)?),
        // NFTA_LOG_GROUP, PREFIX.
        "log" => Expression::Log {
            prefix: data.get(2).map(text).unwrap_or_default(),
            group: data.get(1).and_then(u16_be),
        },
        // NFT_OBJECT_QUOTA, LIMIT and CONNLIMIT match or not; an object out of a map may be one of them.
        "objref" => match number(1) {
            Some(2) => Expression::Other { name: "quota".to_owned(), to: None },
            Some(4) => Expression::Other { name: "limit".to_owned(), to: None },
            Some(5) => Expression::Other { name: "connlimit".to_owned(), to: None },
            // NFT_OBJECT_CT_TIMEOUT; NFTA_OBJREF_IMM_NAME.
            Some(7) => Expression::CtTimeout(data.get(2).map(text)?),
            Some(_) => Expression::Statement(name.to_owned()),
            None => Expression::Other { name: name.to_owned(), to: None },
        },
        // NFTA_EXTHDR_TYPE, NFTA_EXTHDR_OP; NFT_EXTHDR_OP_TCPOPT is 1. Without a register to load, it writes.
        "exthdr" if number(1).is_none() && number(6) == Some(1) => {
            Expression::TcpOptionSet { option: data.get(2).and_then(|b| b.first().copied())? }
        }
        // They change something and never end a rule.
        "notrack" | "last" | "secmark" | "dup" => Expression::Statement(name.to_owned()),
        // DREG of fib, rt, exthdr, osf and xfrm is 1, of socket, hash and tunnel 2.
        "fib" | "rt" | "exthdr" | "osf" | "xfrm" => {
            Expression::Other { name: name.to_owned(), to: register(1) }
        }
        "socket" | "hash" | "tunnel" => Expression::Other { name: name.to_owned(), to: register(2) },
        _ => Expression::Other { name: name.to_owned(), to: None },
    })
}

/// Reads an expression that loads something that belongs to the packet, or changes it.
fn of_packet(name: &str, data: Attributes<'_>) -> Option<Expression> {
    let number = |attribute: u16| data.get(attribute).and_then(u32_be);
    let register = |attribute: u16| number(attribute).and_then(word);
    Some(match (name, register(1)) {
        // NFTA_PAYLOAD_DREG, BASE, OFFSET, LEN; one with SREG (5) writes.
        ("payload", Some(to)) => {
            Expression::Payload { base: base(number(2)?)?, offset: number(3)?, length: number(4)?, to }
        }
        ("payload", None) => {
            Expression::PayloadSet { base: base(number(2)?)?, offset: number(3)?, length: number(4)? }
        }
        // NFTA_META_DREG, KEY, SREG.
        ("meta", Some(to)) => Expression::Meta { key: number(2)?, to },
        ("meta", None) => Expression::MetaSet { key: number(2)?, from: register(3)? },
        // NFTA_CT_DREG, KEY.
        ("ct", Some(to)) => Expression::Ct { key: number(2)?, to },
        // NFTA_CT_SREG.
        ("ct", None) => Expression::CtSet { key: number(2)?, from: register(4)? },
        _ => Expression::Statement(name.to_owned()),
    })
}

/// NFT_PAYLOAD_LL_HEADER and its like.
fn base(number: u32) -> Option<Base> {
    Some(match number {
        0 => Base::Link,
        1 => Base::Network,
        2 => Base::Transport,
        3 => Base::Inner,
        _ => return None,
    })
}

/// Reads an expression that translates addresses and ports.
fn translation(name: &str, data: Attributes<'_>) -> Option<Expression> {
    let number = |attribute: u16| data.get(attribute).and_then(u32_be);
    let register = |attribute: u16| number(attribute).and_then(word);
    // The last one is left out where it is the first.
    let both = |first: u16, last: u16| Some((register(first)?, register(last).or(register(first))?));
    Some(if name == "masq" {
        // NFTA_MASQ_FLAGS, REG_PROTO_MIN, MAX.
        Expression::Masquerade { ports: both(2, 3), flags: number(1).unwrap_or(0) }
    } else {
        // NFTA_NAT_TYPE (NFT_NAT_SNAT and DNAT are 0 and 1), FAMILY, REG_ADDR_MIN, MAX, REG_PROTO_MIN, MAX,
        // FLAGS.
        let source = match number(1)? {
            0 => true,
            1 => false,
            _ => return None,
        };
        let ipv6 = number(2)? == libc::NFPROTO_IPV6 as u32;
        let flags = number(7).unwrap_or(0);
        Expression::Nat { source, ipv6, addresses: both(3, 4), ports: both(5, 6), flags }
    })
}

/// Reads an expression that keeps a packet from going on.
fn refusal(name: &str, data: Attributes<'_>) -> Option<Expression> {
    Some(if name == "reject" {
        // NFTA_REJECT_TYPE, ICMP_CODE.
        Expression::Reject {
            kind: data.get(1).and_then(u32_be)?,
            code: data.get(2).and_then(|b| b.first().copied()).unwrap_or(0),
        }
    } else {
        // NFTA_QUEUE_NUM, TOTAL, FLAGS; NFT_QUEUE_FLAG_BYPASS is 1.
        Expression::Queue {
            number: data.get(1).and_then(u16_be).unwrap_or(0),
            total: data.get(2).and_then(u16_be).unwrap_or(1),
            bypass: data.get(3).and_then(u16_be).unwrap_or(0) & 1 != 0,
        }
    })
}

/// NFTA_MATCH_NAME, REV, INFO, and the same of a target.
fn of_iptables(kind: &str, data: Attributes<'_>) -> Option<Expression> {
    let name = data.get(1).map(text)?;
    let revision = data.get(2).and_then(u32_be).unwrap_or(0);
    let info = data.get(3).unwrap_or_default().to_vec();
    Some(match kind {
        "match" => Expression::Match { name, revision, info },
        _ => Expression::Target { name, revision, info },
    })
}

fn arithmetic(name: &str, data: Attributes<'_>) -> Option<Expression> {
    let number = |attribute: u16| data.get(attribute).and_then(u32_be);
    let register = |attribute: u16| number(attribute).and_then(word);
    let value = |attribute: u16| match data_of(data.get(attribute)?)? {
        Data::Value(value) => Some(value),
        Data::Verdict(_) => None,
    };
    Some(match name {
        // NFTA_CMP_SREG, OP, DATA.
        "cmp" => {
            let with = match number(2)? {
                0 => Comparison::Equal,
                1 => Comparison::NotEqual,
                2 => Comparison::Less,
                3 => Comparison::LessOrEqual,
                4 => Comparison::Greater,
                5 => Comparison::GreaterOrEqual,
                _ => return None,
            };
            Expression::Compare { register: register(1)?, with, value: value(3)? }
        }
        // NFTA_RANGE_SREG, OP, FROM_DATA, TO_DATA.
        "range" => Expression::Range {
            register: register(1)?,
            outside: number(2)? == 1,
            first: value(3)?,
            last: value(4)?,
        },
        // NFTA_BITWISE_SREG, DREG, LEN, MASK, XOR, OP; shifts are rare and stay unknown, but what they load is known.
        "bitwise" if number(6).unwrap_or(0) == 0 => {
            Expression::Bitwise { from: register(1)?, to: register(2)?, mask: value(4)?, xor: value(5)? }
        }
        "bitwise" => Expression::Other { name: name.to_owned(), to: Some(register(2)?) },
        // NFTA_BYTEORDER_SREG, DREG, OP, LEN, SIZE.
        _ => Expression::ByteOrder {
            from: register(1)?,
            to: register(2)?,
            length: number(4)?,
            size: number(5)?,
        },
    })
}

fn of_set(name: &str, data: Attributes<'_>, depth: u32) -> Option<Expression> {
    let number = |attribute: u16| data.get(attribute).and_then(u32_be);
    Some(if name == "lookup" {
        // NFTA_LOOKUP_SET, SREG, DREG, SET_ID, FLAGS; NFT_LOOKUP_F_INV is 1.
        Expression::Lookup {
            set: data.get(1).map(text)?,
            key: number(2).and_then(word)?,
            negated: number(5).unwrap_or(0) & 1 != 0,
            to: number(3).map(word),
        }
    } else {
        // NFTA_DYNSET_SET_NAME, SREG_KEY (4), EXPR (7), EXPRESSIONS (10).
        let mut with = Vec::new();
        if depth > 1 {
            with.extend(data.get(7).map(|element| one(element, depth - 1)));
            with.extend(data.get(10).map(|all| nested(all, depth - 1)).unwrap_or_default());
        }
        Expression::SetUpdate { set: data.get(1).map(text)?, key: number(4).and_then(word)?, with }
    })
}

fn of_rate(name: &str, data: Attributes<'_>) -> Option<Expression> {
    let number = |attribute: u16| data.get(attribute).and_then(u32_be);
    Some(match name {
        // NFTA_LIMIT_RATE, UNIT, BURST, TYPE, FLAGS; NFT_LIMIT_PKT_BYTES is 1, NFT_LIMIT_F_INV is 1.
        "limit" => Expression::Limit {
            rate: data.get(1).and_then(u64_be)?,
            per_seconds: data.get(2).and_then(u64_be)?,
            burst: number(3).unwrap_or(0),
            bytes: number(4) == Some(1),
            over: number(5).unwrap_or(0) & 1 != 0,
        },
        // NFTA_CONNLIMIT_COUNT, FLAGS.
        "connlimit" => {
            Expression::ConnectionLimit { count: number(1)?, over: number(2).unwrap_or(0) & 1 != 0 }
        }
        // NFTA_QUOTA_BYTES, FLAGS.
        "quota" => {
            Expression::Quota { bytes: data.get(1).and_then(u64_be)?, over: number(2).unwrap_or(0) & 1 != 0 }
        }
        // NFTA_NG_DREG, MODULUS, TYPE, OFFSET; NFT_NG_RANDOM is 1.
        _ => Expression::NumberGenerator {
            to: number(1).and_then(word)?,
            modulus: number(2)?,
            random: number(3) == Some(1),
            offset: number(4).unwrap_or(0),
        },
    })
}

pub(in crate::nftables) enum Data {
    Value(Vec<u8>),
    Verdict(NftVerdict),
}

/// NFTA_DATA_VALUE or NFTA_DATA_VERDICT.
pub(in crate::nftables) fn data_of(payload: &[u8]) -> Option<Data> {
    let data = Attributes(payload);
    if let Some(value) = data.get(DATA_VALUE) {
        return Some(Data::Value(value.to_vec()));
    }
    let verdict = Attributes(data.get(DATA_VERDICT)?);
    let code = verdict.get(VERDICT_CODE).and_then(u32_be)?.cast_signed();
    let chain = || verdict.get(VERDICT_CHAIN).map(text);
    Some(Data::Verdict(match code {
        0 => NftVerdict::Drop,
        1 => NftVerdict::Accept,
        -1 => NftVerdict::Continue,
        -3 => NftVerdict::Jump(chain()?),
        -4 => NftVerdict::Goto(chain()?),
        -5 => NftVerdict::Return,
        other => NftVerdict::Other(other),
    }))
}

/// NFT_REG_1 to NFT_REG_4 are 1 to 4, NFT_REG32_00 to NFT_REG32_15 are 8 to 23.
fn word(register: u32) -> Option<Register> {
    let word = match register {
        1..=4 => (register - 1) * 4,
        8..=23 => register - 8,
        _ => return None,
    };
    Some(Register(u8::try_from(word).ok()?))
}

#[cfg(test)]
mod tests;
