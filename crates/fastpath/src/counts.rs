//! The programs' counts: each packet that comes in by its reason, and each attempt to learn a flow by its result.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Times;
use crate::shared::{WEIR_LESSONS, WEIR_REASONS};

weir_text::listed! {
    /// Why a packet was carried, or left to the kernel. All but [`Reason::Carried`] and [`Reason::Failed`] took the kernel's way.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum Reason {
        /// Rewritten and sent on.
        Carried = "carried",
        /// The resident process has not renewed its lease.
        NoLease = "the resident process has not renewed its lease, or it is paused",
        /// Neither IPv4 nor IPv6, or IPv6 on a kernel that cannot rewrite its addresses (before 6.16).
        NotIp = "neither IPv4 nor IPv6, or IPv6 on a kernel that cannot rewrite it",
        /// Not addressed to this host, or marked before it came here.
        NotPlain = "not addressed to this host, or marked before",
        /// With a VLAN tag.
        Tagged = "with a VLAN tag",
        /// Shorter than its headers, or than it claims to be.
        Malformed = "shorter than its headers",
        /// IPv4 options or IPv6 extension headers.
        Options = "IP options or extension headers",
        /// A fragment: only the first one has ports.
        Fragment = "fragment",
        /// Neither TCP nor UDP.
        OtherProtocol = "neither TCP nor UDP",
        /// TTL or hop limit 1: the kernel reports it to the sender.
        LastHop = "TTL or hop limit 1",
        /// TCP with SYN, FIN, RST or URG: conntrack must see it.
        Control = "TCP with SYN, FIN, RST or URG",
        /// Its flow is not in the table.
        Unknown = "its flow is not in the table",
        /// Its flow came by another interface, or with another DSCP, when it was learnt.
        Otherwise = "by another interface or with another DSCP than learnt",
        /// Rules, routes, neighbours or interfaces have changed since its flow was learnt.
        Stale = "rules, routes, neighbours or interfaces changed since it was learnt",
        /// The kernel must see a packet of the flow from time to time.
        Due = "from time to time the kernel must see a packet",
        /// Longer than any packet of the flow that the kernel has forwarded.
        TooLong = "longer than any packet that the kernel has forwarded",
        /// Its entry was changed while it was read.
        Changing = "its entry changed while it was read",
        /// The kernel could not rewrite it: dropped.
        Failed = "dropped: the kernel could not rewrite it",
        /// XDP left it to tc.
        NotByXdp = "left to tc: an interface has no XDP now, or it leaves with a mark or priority",
    }
}

const _: () = assert!(Reason::ALL.len() == WEIR_REASONS as usize);

weir_text::listed! {
    /// The result of an attempt to learn a flow from a packet that left by the kernel's way.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum Lesson {
        /// It is in the table.
        Learnt = "learnt",
        /// Connection tracking has no such connection (another zone, `notrack`).
        NoConnection = "conntrack has no such connection",
        /// It is another packet than the one that came in.
        OtherPacket = "another packet than the one that came in",
        /// TTL or traffic class changed by more than a hop.
        HeaderChanged = "TTL or traffic class changed by more than a hop",
        /// Not confirmed, or being removed; if BPF cannot ask conntrack, also UDP with an answer that is no stream yet.
        Unsettled = "not confirmed by conntrack, or no stream yet",
        /// TCP that is not established, or not seen both ways.
        NotEstablished = "TCP that is not established both ways",
        /// It belongs to a helper, an expectation, SYNPROXY or a hardware flow table, or clashes with another connection.
        Special = "has a helper, SYNPROXY or a flow table",
        /// Conntrack would forget it too soon.
        ShortLived = "conntrack would forget it too soon",
        /// TCP whose window is still checked: the resident process was asked to loosen it.
        Checked = "its TCP window is still checked",
        /// Its bucket is full of live flows.
        NoRoom = "its bucket is full",
        /// An entry was removed because its ports belong to another connection now.
        Reissued = "removed: its ports belong to another connection",
        /// Its address or port is excluded.
        Excluded = "excluded",
        /// It leaves with a VLAN tag.
        LeavesTagged = "leaves with a VLAN tag",
        /// TCP that has ended with FIN or RST less than ten seconds ago.
        HasEnded = "ended by FIN or RST a moment ago",
    }
}

const _: () = assert!(Lesson::ALL.len() == WEIR_LESSONS as usize);

/// Packets and bytes, from the Ethernet header on. A super-packet (GSO) is one packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Counts since the programs were loaded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// By reason; those with none are left out.
    pub reasons: Vec<(Reason, Count)>,
    /// By result; those with none are left out.
    pub lessons: Vec<(Lesson, u64)>,
    /// The verdicts of XDP, with the packets that it carried, which count among `reasons`, too. It left all others to tc.
    pub by_xdp: Vec<(Reason, Count)>,
    /// The times of some packets of both ways.
    pub times: Times,
}

fn packets(counts: &[(Reason, Count)], reason: Reason) -> u64 {
    counts.iter().filter(|r| r.0 == reason).map(|r| r.1.packets).sum()
}

impl Status {
    /// Packets with that reason.
    pub fn packets(&self, reason: Reason) -> u64 {
        packets(&self.reasons, reason)
    }

    /// Packets with that verdict of XDP.
    pub fn packets_by_xdp(&self, reason: Reason) -> u64 {
        packets(&self.by_xdp, reason)
    }

    /// Takes in what XDP carried: no other program has counted it.
    pub(crate) fn add_xdp(&mut self, by_xdp: Vec<(Reason, Count)>) {
        for (_, more) in by_xdp.iter().filter(|(reason, _)| *reason == Reason::Carried) {
            match self.reasons.iter_mut().find(|(reason, _)| *reason == Reason::Carried) {
                Some((_, count)) => {
                    count.packets += more.packets;
                    count.bytes += more.bytes;
                }
                None => self.reasons.push((Reason::Carried, *more)),
            }
        }
        self.by_xdp = by_xdp;
    }

    /// Attempts with that result.
    pub fn lessons(&self, lesson: Lesson) -> u64 {
        self.lessons.iter().filter(|l| l.0 == lesson).map(|l| l.1).sum()
    }
}
