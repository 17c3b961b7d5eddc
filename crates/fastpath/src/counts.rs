//! The programs' counts: each packet that comes in by its reason, and each attempt to learn a flow by its result.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::shared::{WEIR_LESSONS, WEIR_REASONS};

/// Why a packet was carried, or left to the kernel. All but [`Reason::Carried`] and [`Reason::Failed`] took the kernel's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Rewritten and sent on.
    Carried,
    /// The resident process has not renewed its lease.
    NoLease,
    /// Neither IPv4 nor IPv6, or IPv6 on a kernel that cannot rewrite its addresses (before 6.16).
    NotIp,
    /// Not addressed to this host, or marked before it came here.
    NotPlain,
    /// With a VLAN tag.
    Tagged,
    /// Shorter than its headers, or than it claims to be.
    Malformed,
    /// IPv4 options or IPv6 extension headers.
    Options,
    /// A fragment: only the first one has ports.
    Fragment,
    /// Neither TCP nor UDP.
    OtherProtocol,
    /// TTL or hop limit 1: the kernel reports it to the sender.
    LastHop,
    /// TCP with SYN, FIN, RST or URG: conntrack must see it.
    Control,
    /// Its flow is not in the table.
    Unknown,
    /// Its flow came by another interface, or with another DSCP, when it was learnt.
    Otherwise,
    /// Rules, routes, neighbours or interfaces have changed since its flow was learnt.
    Stale,
    /// The kernel must see a packet of the flow from time to time.
    Due,
    /// Longer than any packet of the flow that the kernel has forwarded.
    TooLong,
    /// Its entry was changed while it was read.
    Changing,
    /// The kernel could not rewrite it: dropped.
    Failed,
}

impl Reason {
    /// All of them, in the order of their numbers in the kernel.
    pub const ALL: [Reason; WEIR_REASONS as usize] = [
        Reason::Carried,
        Reason::NoLease,
        Reason::NotIp,
        Reason::NotPlain,
        Reason::Tagged,
        Reason::Malformed,
        Reason::Options,
        Reason::Fragment,
        Reason::OtherProtocol,
        Reason::LastHop,
        Reason::Control,
        Reason::Unknown,
        Reason::Otherwise,
        Reason::Stale,
        Reason::Due,
        Reason::TooLong,
        Reason::Changing,
        Reason::Failed,
    ];

    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Reason::Carried => "carried",
            Reason::NoLease => "the resident process has not renewed its lease, or it is paused",
            Reason::NotIp => "neither IPv4 nor IPv6, or IPv6 on a kernel that cannot rewrite it",
            Reason::NotPlain => "not addressed to this host, or marked before",
            Reason::Tagged => "with a VLAN tag",
            Reason::Malformed => "shorter than its headers",
            Reason::Options => "IP options or extension headers",
            Reason::Fragment => "fragment",
            Reason::OtherProtocol => "neither TCP nor UDP",
            Reason::LastHop => "TTL or hop limit 1",
            Reason::Control => "TCP with SYN, FIN, RST or URG",
            Reason::Unknown => "its flow is not in the table",
            Reason::Otherwise => "by another interface or with another DSCP than learnt",
            Reason::Stale => "rules, routes, neighbours or interfaces changed since it was learnt",
            Reason::Due => "from time to time the kernel must see a packet",
            Reason::TooLong => "longer than any packet that the kernel has forwarded",
            Reason::Changing => "its entry changed while it was read",
            Reason::Failed => "dropped: the kernel could not rewrite it",
        }
    }
}

/// The result of an attempt to learn a flow from a packet that left by the kernel's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Lesson {
    /// It is in the table.
    Learnt,
    /// Connection tracking has no such connection (another zone, `notrack`).
    NoConnection,
    /// It is another packet than the one that came in.
    OtherPacket,
    /// TTL or traffic class changed by more than a hop.
    HeaderChanged,
    /// Not confirmed, or being removed.
    Unsettled,
    /// TCP that is not established, or not seen both ways.
    NotEstablished,
    /// It belongs to a helper, an expectation, SYNPROXY or a hardware flow table, or clashes with another connection.
    Special,
    /// Conntrack would forget it too soon.
    ShortLived,
    /// TCP whose window is still checked: the resident process was asked to loosen it.
    Checked,
    /// Its bucket is full of live flows.
    NoRoom,
    /// An entry was removed because its ports belong to another connection now.
    Reissued,
    /// Its address or port is excluded.
    Excluded,
    /// It leaves with a VLAN tag.
    LeavesTagged,
}

impl Lesson {
    /// All of them, in the order of their numbers in the kernel.
    pub const ALL: [Lesson; WEIR_LESSONS as usize] = [
        Lesson::Learnt,
        Lesson::NoConnection,
        Lesson::OtherPacket,
        Lesson::HeaderChanged,
        Lesson::Unsettled,
        Lesson::NotEstablished,
        Lesson::Special,
        Lesson::ShortLived,
        Lesson::Checked,
        Lesson::NoRoom,
        Lesson::Reissued,
        Lesson::Excluded,
        Lesson::LeavesTagged,
    ];

    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Lesson::Learnt => "learnt",
            Lesson::NoConnection => "conntrack has no such connection",
            Lesson::OtherPacket => "another packet than the one that came in",
            Lesson::HeaderChanged => "TTL or traffic class changed by more than a hop",
            Lesson::Unsettled => "not confirmed by conntrack",
            Lesson::NotEstablished => "TCP that is not established both ways",
            Lesson::Special => "has a helper, SYNPROXY or a flow table",
            Lesson::ShortLived => "conntrack would forget it too soon",
            Lesson::Checked => "its TCP window is still checked",
            Lesson::NoRoom => "its bucket is full",
            Lesson::Reissued => "removed: its ports belong to another connection",
            Lesson::Excluded => "excluded",
            Lesson::LeavesTagged => "leaves with a VLAN tag",
        }
    }
}

/// Packets and bytes, from the Ethernet header on. A super-packet (GSO) is one packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Counts since the programs were loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// By reason; those with none are left out.
    pub reasons: Vec<(Reason, Count)>,
    /// By result; those with none are left out.
    pub lessons: Vec<(Lesson, u64)>,
}

impl Status {
    /// Packets with that reason.
    pub fn packets(&self, reason: Reason) -> u64 {
        self.reasons.iter().filter(|r| r.0 == reason).map(|r| r.1.packets).sum()
    }

    /// Attempts with that result.
    pub fn lessons(&self, lesson: Lesson) -> u64 {
        self.lessons.iter().filter(|l| l.0 == lesson).map(|l| l.1).sum()
    }
}
