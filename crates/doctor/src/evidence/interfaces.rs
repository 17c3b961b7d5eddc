//! Interfaces and what hangs on them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Counters, Delta};

/// One interface.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    /// Number.
    pub index: u32,
    /// Name; text from outside.
    pub name: String,
    /// Kind of a virtual one (`veth`, `bridge`, ...); empty of a card.
    pub kind: String,
    /// Driver as ethtool names it.
    pub driver: String,
    /// MTU, bytes.
    pub mtu: u32,
    /// Switched on (IFF_UP).
    pub up: bool,
    /// Carrier (IFF_LOWER_UP).
    pub carrier: bool,
    /// Changes of the carrier.
    pub carrier_changes: Delta,
    /// Bridge or bond that it is part of, by number.
    pub master: Option<u32>,
    /// The other end of a veth: its number, and its namespace's inode if that is one of those looked at.
    pub peer: Option<(u32, Option<u64>)>,
    /// The kernel's number, in this namespace, of the one that the other end is in; `None` if it is here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_number: Option<u32>,
    /// MTU of the other end of a veth, if known.
    pub peer_mtu: Option<u32>,
    /// Addresses with prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// `rx_packets`, `rx_dropped`, `rx_missed_errors`, `tx_dropped`, ... (struct rtnl_link_stats64).
    pub counters: Counters,
    /// Counters of the driver, by ethtool -S name: those that moved.
    pub driver_counters: Counters,
    /// Offloads by ethtool name (`rx-gro`, `tx-generic-segmentation`, `tx-tcp-segmentation`, ...).
    pub features: BTreeMap<String, bool>,
    /// Receive queues.
    pub rx_queues: u32,
    /// Descriptors of the receive ring: now, and the most that the card can have. `None` of interfaces without a ring that can
    /// be set.
    #[serde(default)]
    pub rx_ring: Option<(u32, u32)>,
    /// Receive queues in use, and the most that the card can have, where the driver tells.
    #[serde(default)]
    pub channels: Option<(u32, u32)>,
    /// Frames that may wait to be sent (`txqueuelen`): the limit of `pfifo_fast`.
    #[serde(default)]
    pub tx_queue_length: u32,
    /// Cores for Receive Packet Steering, per queue, hexadecimal; empty if none, or if not this
    /// namespace's `/sys` is in sight.
    pub rps: Vec<String>,
    /// XDP program.
    pub xdp: Option<BpfProgram>,
    /// Queueing disciplines.
    pub qdiscs: Vec<Qdisc>,
    /// Filters and programs of tc, TCX among them.
    pub filters: Vec<TcFilter>,
}

/// A BPF program on an interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BpfProgram {
    /// Number, as `bpftool prog` shows it.
    pub id: u32,
    /// Name; empty if it could not be asked.
    pub name: String,
    /// `native`, `generic` or `offloaded` of XDP; `ingress` or `egress` of tc.
    pub mode: String,
}

/// A queueing discipline.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Qdisc {
    /// Kind (`tbf`, `htb`, `pfifo`, ...).
    pub kind: String,
    /// True of a class of one.
    #[serde(default)]
    pub class: bool,
    /// `major:minor`, hexadecimal.
    pub handle: String,
    /// Its parent; `root`, `ingress`, `clsact` or `major:minor`.
    pub parent: String,
    /// Packets sent on.
    pub packets: Delta,
    /// Bytes sent on.
    pub bytes: Delta,
    /// Packets thrown away.
    pub dropped: Delta,
    /// Times that it had to wait.
    pub overlimits: Delta,
    /// Packets that waited at the beginning.
    #[serde(default)]
    pub backlog_packets_before: u64,
    /// Packets that wait, at the end.
    pub backlog_packets: u64,
    /// Their bytes.
    pub backlog_bytes: u64,
    /// Rate that it is set to, bit/s, of those that have one.
    pub rate_bps: Option<u64>,
    /// Limit in packets, of those that have one.
    pub limit_packets: Option<u64>,
    /// Limit in bytes, likewise.
    pub limit_bytes: Option<u64>,
}

/// A filter, action or program of tc.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TcFilter {
    /// `ingress`, `egress`, or of a queueing discipline that sorts by it its handle.
    pub direction: String,
    /// Kind (`bpf`, `u32`, `matchall`, `tcx`, ...).
    pub kind: String,
    /// Its preference.
    pub preference: u32,
    /// Its handle.
    #[serde(default)]
    pub handle: u32,
    /// The program, of `bpf` and `tcx`.
    pub program: Option<BpfProgram>,
    /// Kinds of its actions (`police`, `mirred`, `gact`).
    pub actions: Vec<String>,
    /// Packets that an action threw away.
    pub dropped: Delta,
}

impl Interface {
    /// Growth of a counter in the window; 0 of one that this kernel lacks.
    pub(crate) fn grew(&self, counter: &str) -> u64 {
        self.counters.get(counter).map_or(0, |d| d.change())
    }

    /// True if one of its own networks holds the address.
    pub(crate) fn is_on_link(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|(own, prefix)| is_within(address, *own, *prefix))
    }
}

/// True if a network holds the address.
pub(crate) fn is_within(address: IpAddr, network: IpAddr, prefix: u8) -> bool {
    let bits = |a: IpAddr| match a {
        IpAddr::V4(a) => u128::from(a.to_bits()) << 96,
        IpAddr::V6(a) => a.to_bits(),
    };
    let mask = u128::MAX.checked_shl(128_u32.saturating_sub(prefix.into())).unwrap_or(0);
    address.is_ipv4() == network.is_ipv4() && (bits(address) ^ bits(network)) & mask == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn networks_hold_what_their_prefix_says() {
        assert!(is_within(ip("198.18.0.77"), ip("198.18.0.1"), 24));
        assert!(!is_within(ip("198.18.1.77"), ip("198.18.0.1"), 24));
        assert!(is_within(ip("1.2.3.4"), ip("0.0.0.0"), 0));
        assert!(!is_within(ip("1.2.3.4"), ip("::"), 0));
        assert!(is_within(ip("2001:2::9"), ip("2001:2::1"), 64));
        assert!(!is_within(ip("2001:2::9"), ip("2001:2::1"), 128));
    }

    #[test]
    fn networks_are_compared_by_their_prefix() {
        for (network, prefix, address, expected) in [
            ("198.18.0.1", 24, "198.18.0.200", true),
            ("198.18.0.1", 24, "198.18.1.1", false),
            ("198.18.0.1", 0, "10.0.0.1", true),
            ("198.18.0.1", 32, "198.18.0.1", true),
            ("2001:2::1", 64, "2001:2::ffff", true),
            ("2001:2::1", 64, "2001:2:0:1::1", false),
            ("2001:2::1", 64, "198.18.0.1", false),
        ] {
            assert_eq!(is_within(ip(address), ip(network), prefix), expected, "{network}/{prefix} {address}");
        }
    }
}
