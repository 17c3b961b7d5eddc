//! ICMP errors about flows, and what they mean.

use std::cmp::Reverse;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Serialize;
use weir_text::order;

use crate::shared::{WeirErrors, WeirReported, WeirReporter};
use crate::table::address;

weir_text::listed! {
    /// Meaning of an ICMP error (RFC 792, RFC 1812 section 5.2.7, RFC 4443).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum IcmpMeaning {
        /// The sender knows no way to the network.
        NetworkUnreachable = "network unreachable",
        /// The sender is the last router, and the host does not answer there.
        HostUnreachable = "host unreachable",
        /// The host does not know the protocol.
        ProtocolUnreachable = "protocol unreachable",
        /// No program listens at the port, or a filter says so.
        PortUnreachable = "port unreachable",
        /// The packet is longer than the MTU of the next link, and must not be cut.
        TooBig = "packet too big",
        /// A filter of the sender forbids it.
        Prohibited = "prohibited by a filter",
        /// The hop limit (TTL) has come to its end: a loop, a long way, or traceroute.
        HopLimit = "hop limit exceeded",
        /// Not all fragments came in time.
        Reassembly = "fragments missing",
        /// The sender does not understand the header.
        ParameterProblem = "header not understood",
        /// Unreachable for another reason.
        OtherUnreachable = "unreachable",
    }
}

impl IcmpMeaning {
    fn of(version: u8, kind: u8, code: u8) -> Self {
        use IcmpMeaning::*;
        match (version, kind, code) {
            (4, 3, 0 | 6 | 11) | (6, 1, 0) => NetworkUnreachable,
            (4, 3, 1 | 7 | 12) | (6, 1, 3) => HostUnreachable,
            (4, 3, 2) | (6, 4, 1) => ProtocolUnreachable,
            (4, 3, 3) | (6, 1, 4) => PortUnreachable,
            (4, 3, 4) | (6, 2, _) => TooBig,
            (4, 3, 9 | 10 | 13..=15) | (6, 1, 1 | 5 | 6) => Prohibited,
            (4, 11, 1) | (6, 3, 1) => Reassembly,
            (4, 11, _) | (6, 3, _) => HopLimit,
            (4, 12, _) | (6, 4, _) => ParameterProblem,
            _ => OtherUnreachable,
        }
    }
}

/// ICMP errors about a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct IcmpErrors {
    /// Their number.
    pub count: u32,
    /// The sender of the latest one.
    pub from: IpAddr,
    /// Its meaning.
    pub meaning: IcmpMeaning,
    /// It is about a packet of the client; else of the server.
    pub about_client: bool,
    /// The MTU that it names, bytes; null if it names none.
    pub mtu: Option<u32>,
}

/// ICMP errors of one kind by one sender, about all tracked flows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct IcmpReporter {
    /// The sender.
    pub from: IpAddr,
    /// Meaning.
    pub meaning: IcmpMeaning,
    /// Type of ICMP, or of ICMPv6 if the sender has an IPv6 address.
    pub icmp_type: u8,
    /// Code.
    pub icmp_code: u8,
    /// Number.
    pub packets: u64,
    /// The smallest MTU that they name, bytes; null if they name none.
    pub smallest_mtu: Option<u32>,
}

fn mtu(number: u32) -> Option<u32> {
    (number > 0).then_some(number)
}

impl IcmpErrors {
    /// `None` if there was none.
    pub(crate) fn of(errors: &WeirErrors) -> Option<Self> {
        (errors.count > 0).then(|| IcmpErrors {
            count: errors.count,
            from: address(errors.version, errors.from, 0).ip(),
            meaning: IcmpMeaning::of(errors.version, errors.kind, errors.code),
            about_client: errors.side == 0,
            mtu: mtu(errors.mtu),
        })
    }

    /// The latest one in words, with its sender.
    pub fn words(&self) -> String {
        let mtu = self.mtu.map(|mtu| format!(", MTU {mtu}")).unwrap_or_default();
        let of = if self.about_client { "client" } else { "server" };
        format!("{}{mtu}, from {}, about a packet of the {of}", self.meaning.words(), self.from)
    }
}

impl IcmpReporter {
    /// All, the most first.
    pub(crate) fn all(reported: &[(WeirReporter, WeirReported)]) -> Vec<Self> {
        let mut all: Vec<_> = reported.iter().map(|(key, value)| IcmpReporter::of(key, value)).collect();
        order::by_key(&mut all, |one| (Reverse(one.packets), one.from, one.icmp_type, one.icmp_code));
        all
    }

    fn of(reporter: &WeirReporter, reported: &WeirReported) -> Self {
        IcmpReporter {
            from: address(reporter.version, reporter.from, 0).ip(),
            meaning: IcmpMeaning::of(reporter.version, reporter.kind, reporter.code),
            icmp_type: reporter.kind,
            icmp_code: reporter.code,
            packets: reported.packets,
            smallest_mtu: mtu(reported.mtu),
        }
    }
}
