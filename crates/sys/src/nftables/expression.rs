//! Expressions of a rule: what it loads, compares and does (include/uapi/linux/netfilter/nf_tables.h).

use crate::netlink::{Attributes, text, u32_be};

const EXPR_NAME: u16 = 1;
const EXPR_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;
/// Expressions within an expression (`add @s { ip saddr limit ... }`) are not nested further by the kernel.
const DEPTH: u32 = 2;

/// A register by its first word of four bytes, 0 to 15: the kernel's four registers of 16 bytes and its sixteen of four are
/// the same memory (net/netfilter/nf_tables_api.c, nft_parse_register).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Register(pub u8);

/// What becomes of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on, past the rest of this hook's chain.
    Accept,
    /// It is thrown away.
    Drop,
    /// The next rule.
    Continue,
    /// Back to the chain that jumped here.
    Return,
    /// To another chain, and back at its end.
    Jump(String),
    /// To another chain.
    Goto(String),
    /// Anything else, by number.
    Other(i32),
}

/// Where a load from the packet counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// Link layer header.
    Link,
    /// Network header.
    Network,
    /// Transport header.
    Transport,
    /// Behind the transport header.
    Inner,
}

/// A comparison of bytes, first byte most significant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
    /// Less.
    Less,
    /// Less or equal.
    LessOrEqual,
    /// Greater.
    Greater,
    /// Greater or equal.
    GreaterOrEqual,
}

/// One expression. An expression that does not match ends its rule, unless it says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// Loads bytes of the packet.
    Payload {
        /// From where.
        base: Base,
        /// How far behind it, bytes.
        offset: u32,
        /// How many, bytes.
        length: u32,
        /// To.
        to: Register,
    },
    /// Loads what the kernel knows of the packet (`enum nft_meta_keys`).
    Meta {
        /// Which.
        key: u32,
        /// To.
        to: Register,
    },
    /// Sets what the kernel knows of the packet.
    MetaSet {
        /// Which.
        key: u32,
        /// From.
        from: Register,
    },
    /// Loads what connection tracking knows (`enum nft_ct_keys`).
    Ct {
        /// Which.
        key: u32,
        /// To.
        to: Register,
    },
    /// Matches if the comparison holds.
    Compare {
        /// Left side.
        register: Register,
        /// How.
        with: Comparison,
        /// Right side.
        value: Vec<u8>,
    },
    /// Matches inside, or outside, a range.
    Range {
        /// What.
        register: Register,
        /// Matches outside.
        outside: bool,
        /// First value.
        first: Vec<u8>,
        /// Last value.
        last: Vec<u8>,
    },
    /// `to = (from & mask) ^ xor`.
    Bitwise {
        /// Operand.
        from: Register,
        /// Result.
        to: Register,
        /// Mask.
        mask: Vec<u8>,
        /// What is toggled.
        xor: Vec<u8>,
    },
    /// Changes between host and network order.
    ByteOrder {
        /// Operand.
        from: Register,
        /// Result.
        to: Register,
        /// Bytes in all.
        length: u32,
        /// Bytes of one number.
        size: u32,
    },
    /// Loads a constant.
    Immediate {
        /// To.
        to: Register,
        /// The constant.
        value: Vec<u8>,
    },
    /// Ends the rule.
    Verdict(Verdict),
    /// Matches if the set holds the key; of a map, loads what it says (a verdict if `to` is `None` and it is a map).
    Lookup {
        /// Name of the set.
        set: String,
        /// Key.
        key: Register,
        /// Matches if it is not in the set.
        negated: bool,
        /// Where the map's data goes: `None` of a plain set, `Some(None)` if it is a verdict.
        to: Option<Option<Register>>,
    },
    /// Adds the key to a set, or refreshes it; matches if that was possible and what is kept with it matches.
    SetUpdate {
        /// Name of the set.
        set: String,
        /// Key.
        key: Register,
        /// Inverted by the expressions kept with the element.
        with: Vec<Expression>,
    },
    /// Matches up to, or above, a rate.
    Limit {
        /// How many in a unit of time.
        rate: u64,
        /// The unit, seconds.
        per_seconds: u64,
        /// How many at once.
        burst: u32,
        /// Bytes are counted, not packets.
        bytes: bool,
        /// Matches above the rate.
        over: bool,
    },
    /// Matches up to, or above, a number of connections.
    ConnectionLimit {
        /// The number.
        count: u32,
        /// Matches above it.
        over: bool,
    },
    /// Matches up to, or above, a number of bytes.
    Quota {
        /// Bytes.
        bytes: u64,
        /// Matches above it.
        over: bool,
    },
    /// Loads a number that changes with every packet.
    NumberGenerator {
        /// To.
        to: Register,
        /// Numbers are below this.
        modulus: u32,
        /// Drawn by chance; otherwise counted up.
        random: bool,
        /// Added to it.
        offset: u32,
    },
    /// Counts.
    Counter {
        /// Packets.
        packets: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Counts in a counter of that name, which other rules may share.
    NamedCounter(String),
    /// Writes to a log.
    Log {
        /// Begins with.
        prefix: String,
        /// To a program that listens to this group; `None`: to the kernel's log.
        group: Option<u16>,
    },
    /// Throws away and tells the sender.
    Reject {
        /// 0: ICMP unreachable; 1: TCP reset; 2: ICMP of either family.
        kind: u32,
        /// ICMP code.
        code: u8,
    },
    /// Hands over to a program.
    Queue {
        /// First queue.
        number: u16,
        /// How many queues.
        total: u16,
        /// Lets the packet go on if no program listens.
        bypass: bool,
    },
    /// A match of iptables; it may be negated by itself.
    Match {
        /// Name (`conntrack`, `limit`, `set`, `statistic`, ...).
        name: String,
        /// Revision of its layout.
        revision: u32,
        /// Its parameters, in the layout of its header file.
        info: Vec<u8>,
    },
    /// A target of iptables.
    Target {
        /// Name (`REJECT`, `LOG`, ...).
        name: String,
        /// Its parameters, likewise.
        info: Vec<u8>,
    },
    /// Changes something, and the rule goes on.
    Statement(String),
    /// Anything else: may match or not, may end the rule.
    Other {
        /// Its name in the kernel.
        name: String,
        /// What it loads, if it does.
        to: Option<Register>,
    },
}

/// Expressions of a list (NFTA_RULE_EXPRESSIONS).
pub(super) fn list(payload: &[u8]) -> Vec<Expression> {
    nested(payload, DEPTH)
}

fn nested(payload: &[u8], depth: u32) -> Vec<Expression> {
    Attributes(payload).map(|(_, element)| one(element, depth)).collect()
}

/// What one expression says. One that lacks what it must have is kept as unknown: it may still decide.
fn one(element: &[u8], depth: u32) -> Expression {
    let name = Attributes(element).get(EXPR_NAME).map(text).unwrap_or_default();
    let data = Attributes(Attributes(element).get(EXPR_DATA).unwrap_or_default());
    known(&name, data, depth).unwrap_or(Expression::Other { name, to: None })
}

fn known(name: &str, data: Attributes<'_>, depth: u32) -> Option<Expression> {
    let number = |attribute: u16| data.get(attribute).and_then(u32_be);
    let register = |attribute: u16| number(attribute).and_then(word);
    Some(match name {
        // NFTA_PAYLOAD_DREG, BASE, OFFSET, LEN; one with SREG (5) writes.
        "payload" => match register(1) {
            Some(to) => {
                let base = match number(2)? {
                    0 => Base::Link,
                    1 => Base::Network,
                    2 => Base::Transport,
                    3 => Base::Inner,
                    _ => return None,
                };
                Expression::Payload { base, offset: number(3)?, length: number(4)?, to }
            }
            None => Expression::Statement(name.to_owned()),
        },
        // NFTA_META_DREG, KEY, SREG.
        "meta" => match register(1) {
            Some(to) => Expression::Meta { key: number(2)?, to },
            None => Expression::MetaSet { key: number(2)?, from: register(3)? },
        },
        // NFTA_CT_DREG, KEY.
        "ct" => match register(1) {
            Some(to) => Expression::Ct { key: number(2)?, to },
            None => Expression::Statement(name.to_owned()),
        },
        "cmp" | "range" | "bitwise" | "byteorder" => arithmetic(name, data)?,
        "immediate" => match data_of(data.get(2)?)? {
            Data::Value(value) => Expression::Immediate { to: register(1)?, value },
            Data::Verdict(verdict) => Expression::Verdict(verdict),
        },
        "lookup" | "dynset" => of_set(name, data, depth)?,
        "limit" | "connlimit" | "quota" | "numgen" => of_rate(name, data)?,
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
        "reject" => Expression::Reject {
            kind: number(1)?,
            code: data.get(2).and_then(|b| b.first().copied()).unwrap_or(0),
        },
        // NFTA_QUEUE_NUM, TOTAL, FLAGS; NFT_QUEUE_FLAG_BYPASS is 1.
        "queue" => Expression::Queue {
            number: data.get(1).and_then(u16_be).unwrap_or(0),
            total: data.get(2).and_then(u16_be).unwrap_or(1),
            bypass: data.get(3).and_then(u16_be).unwrap_or(0) & 1 != 0,
        },
        "match" => Expression::Match {
            name: data.get(1).map(text)?,
            revision: number(2).unwrap_or(0),
            info: data.get(3).unwrap_or_default().to_vec(),
        },
        "target" => Expression::Target {
            name: data.get(1).map(text)?,
            info: data.get(3).unwrap_or_default().to_vec(),
        },
        // They change something and never end a rule.
        "notrack" | "last" | "secmark" | "dup" | "objref" => Expression::Statement(name.to_owned()),
        _ => {
            // DREG of fib, rt, exthdr, osf and xfrm is 1, of socket, hash and tunnel 2.
            let attribute = if matches!(name, "socket" | "hash" | "tunnel") { 2 } else { 1 };
            let loads =
                matches!(name, "fib" | "rt" | "exthdr" | "osf" | "xfrm" | "socket" | "hash" | "tunnel");
            let to = if loads { register(attribute) } else { None };
            Expression::Other { name: name.to_owned(), to }
        }
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

pub(super) enum Data {
    Value(Vec<u8>),
    Verdict(Verdict),
}

/// NFTA_DATA_VALUE or NFTA_DATA_VERDICT.
pub(super) fn data_of(payload: &[u8]) -> Option<Data> {
    let data = Attributes(payload);
    if let Some(value) = data.get(DATA_VALUE) {
        return Some(Data::Value(value.to_vec()));
    }
    let verdict = Attributes(data.get(DATA_VERDICT)?);
    let code = verdict.get(VERDICT_CODE).and_then(u32_be)?.cast_signed();
    let chain = || verdict.get(VERDICT_CHAIN).map(text);
    Some(Data::Verdict(match code {
        0 => Verdict::Drop,
        1 => Verdict::Accept,
        -1 => Verdict::Continue,
        -3 => Verdict::Jump(chain()?),
        -4 => Verdict::Goto(chain()?),
        -5 => Verdict::Return,
        other => Verdict::Other(other),
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

pub(super) fn u64_be(payload: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(payload.get(..8)?.try_into().ok()?))
}

fn u16_be(payload: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(payload.get(..2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests;
