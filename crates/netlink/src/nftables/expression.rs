//! Expressions of a rule: what it loads, compares and does (include/uapi/linux/netfilter/nf_tables.h).

mod read;

pub(super) use read::{Data, data_of, list};

/// A register by its first word of four bytes, 0 to 15: the kernel's four registers of 16 bytes and its sixteen of four are
/// the same memory (net/netfilter/nf_tables_api.c, nft_parse_register).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Register(pub u8);

/// The verdict on a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NftVerdict {
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

/// The position from which a load from the packet counts.
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
        /// The operand.
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
        /// The bits to toggle.
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
    Verdict(NftVerdict),
    /// Matches if the set holds the key; of a map, loads what it says (a verdict if `to` is `None` and it is a map).
    Lookup {
        /// Name of the set.
        set: String,
        /// Key.
        key: Register,
        /// Matches if it is not in the set.
        negated: bool,
        /// The register for the map's data: `None` for a plain set, `Some(None)` if the data is a verdict.
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
        /// Revision of its layout.
        revision: u32,
        /// Its parameters, likewise.
        info: Vec<u8>,
    },
    /// Translates one end of the connection, and ends the rule.
    Nat {
        /// The end that opened it; otherwise the other one.
        source: bool,
        /// The addresses are of IPv6.
        ipv6: bool,
        /// The registers of the first and last address, if any are given.
        addresses: Option<(Register, Register)>,
        /// The registers of the first and last port, if any are given.
        ports: Option<(Register, Register)>,
        /// NF_NAT_RANGE_*: how an address and a port are chosen.
        flags: u32,
    },
    /// Gives the source an address of the interface that the packet leaves by, and ends the rule.
    Masquerade {
        /// The registers of the first and last port, if any are given.
        ports: Option<(Register, Register)>,
        /// NF_NAT_RANGE_*: how a port is chosen.
        flags: u32,
    },
    /// Writes bytes of the packet.
    PayloadSet {
        /// From where.
        base: Base,
        /// How far behind it, bytes.
        offset: u32,
        /// How many, bytes.
        length: u32,
    },
    /// Sets what connection tracking keeps for the connection.
    CtSet {
        /// Which.
        key: u32,
        /// From.
        from: Register,
    },
    /// Writes or removes a TCP option.
    TcpOptionSet {
        /// Its number.
        option: u8,
    },
    /// Gives a new connection the idle times of a `ct timeout` object of that name.
    CtTimeout(String),
    /// Changes something, and the rule goes on.
    Statement(String),
    /// Anything else: may match or not, may end the rule.
    Other {
        /// Its name in the kernel.
        name: String,
        /// The register that it loads, if any.
        to: Option<Register>,
    },
}
