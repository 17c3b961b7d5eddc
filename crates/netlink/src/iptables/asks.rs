//! The conditions of a rule itself, without matches: `struct ipt_ip` and `struct ip6t_ip6`.

use super::{Family, name, short};

/// IFNAMSIZ.
const INTERFACE: usize = 16;
/// Bits of `invflags`: IPT_INV_VIA_IN, IPT_INV_VIA_OUT, IPT_INV_SRCIP, IPT_INV_DSTIP, IPT_INV_FRAG, IPT_INV_PROTO.
const NOT_IN: u8 = 0x01;
const NOT_OUT: u8 = 0x02;
const NOT_SOURCE: u8 = 0x08;
const NOT_DESTINATION: u8 = 0x10;
const NOT_FRAGMENT: u8 = 0x20;
const NOT_PROTOCOL: u8 = 0x40;
/// IPT_F_FRAG, a flag of `struct ipt_ip` alone: the second and later fragments.
const FRAGMENTS: u8 = 0x01;

/// As iptables writes it.
pub(super) fn asks(entry: &[u8], family: Family) -> String {
    // Bytes of an address, and where the flags that negate are.
    let (address, negated_at) = match family {
        Family::Ip => (4, 83),
        Family::Ip6 => (16, 132),
    };
    let interfaces = 4 * address;
    let negated = entry.get(negated_at).copied().unwrap_or(0);
    let mut words = Vec::new();
    let mut add = |not: u8, option: &str, value: Option<String>| {
        if let Some(value) = value {
            let not = if negated & not != 0 { "! " } else { "" };
            words.push(format!("{not}{option} {value}"));
        }
    };
    let network =
        |at: usize| network(entry.get(at..at + address)?, entry.get(at + 2 * address..at + 3 * address)?);
    let through = |at: usize| interface(entry, interfaces + at);
    let protocol = short(entry, interfaces + 4 * INTERFACE).filter(|p| *p != 0);
    add(NOT_SOURCE, "-s", network(0));
    add(NOT_DESTINATION, "-d", network(address));
    add(NOT_IN, "-i", through(0));
    add(NOT_OUT, "-o", through(INTERFACE));
    add(NOT_PROTOCOL, "-p", protocol.map(protocol_name));
    if family == Family::Ip && entry.get(82).is_some_and(|flags| flags & FRAGMENTS != 0) {
        words.push(if negated & NOT_FRAGMENT != 0 { "! -f".to_owned() } else { "-f".to_owned() });
    }
    words.join(" ")
}

/// `192.0.2.0/24`, or with a mask that is no prefix `192.0.2.1/255.255.0.255`; `None` of everything.
fn network(address: &[u8], mask: &[u8]) -> Option<String> {
    let prefix: u32 = mask.iter().map(|b| b.count_ones()).sum();
    let bits = mask.iter().flat_map(|b| (0..8).rev().map(move |bit| b >> bit & 1));
    let (ip, mask) = (crate::address(address)?, crate::address(mask)?);
    let length = if bits.is_sorted_by(|a, b| a >= b) { prefix.to_string() } else { mask.to_string() };
    (prefix > 0).then(|| format!("{ip}/{length}"))
}

/// The name, which ends with `+` if it stands for all that begin so.
fn interface(entry: &[u8], at: usize) -> Option<String> {
    name(entry, at, INTERFACE).filter(|shown| !shown.is_empty()).map(str::to_owned)
}

fn protocol_name(number: usize) -> String {
    match number {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        50 => "esp".to_owned(),
        58 => "ipv6-icmp".to_owned(),
        132 => "sctp".to_owned(),
        n => n.to_string(),
    }
}
