//! Source NAT rules of nftables, and of iptables where it speaks to the kernel as nft does: which addresses and ports they give.
//!
//! Only what NAT needs is read (include/uapi/linux/netfilter/nf_tables.h): `masquerade` and `snat` statements with the
//! constants that were loaded into their registers just before, and the targets MASQUERADE and SNAT of xtables.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use crate::ProcRoot;
use crate::conntrack::Address;
use crate::error::{Context, Result};
use crate::modules;
use crate::netlink::{Attributes, Socket, text, u32_be};

use super::expression::u64_be;
use super::{Family, GET_RULE, RULE_CHAIN, RULE_EXPRESSIONS, RULE_HANDLE, RULE_TABLE, dump};

pub(super) const EXPR_NAME: u16 = 1;
pub(super) const EXPR_DATA: u16 = 2;
const IMMEDIATE_DREG: u16 = 1;
const IMMEDIATE_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
pub(super) const NAT_TYPE: u16 = 1;
pub(super) const NAT_REG_ADDR_MIN: u16 = 3;
pub(super) const NAT_REG_ADDR_MAX: u16 = 4;
pub(super) const NAT_REG_PROTO_MIN: u16 = 5;
pub(super) const NAT_REG_PROTO_MAX: u16 = 6;
const MASQ_REG_PROTO_MIN: u16 = 2;
const MASQ_REG_PROTO_MAX: u16 = 3;
pub(super) const TARGET_NAME: u16 = 1;
pub(super) const TARGET_REV: u16 = 2;
pub(super) const TARGET_INFO: u16 = 3;
/// NFT_NAT_SNAT.
const SNAT: u32 = 0;
/// NF_NAT_RANGE_MAP_IPS and NF_NAT_RANGE_PROTO_SPECIFIED (include/uapi/linux/netfilter/nf_nat.h).
const MAP_IPS: u32 = 1 << 0;
const PROTO_SPECIFIED: u32 = 1 << 1;

/// Ports that a rule gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ports {
    /// The rule names none: the kernel's own ranges.
    Kernel,
    /// These.
    Range(RangeInclusive<u16>),
    /// They come out of a map.
    Mapped,
}

/// A rule that translates sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceNat {
    /// Table, as its owner called it.
    pub table: String,
    /// Chain, likewise.
    pub chain: String,
    /// The rule's handle in its table.
    pub handle: u64,
    /// First and last outside address. `None` of a masquerade, which takes that of the interface, and of a map.
    pub addresses: Option<(Address, Address)>,
    /// Outside ports.
    pub ports: Ports,
}

/// All of the calling thread's namespace. Empty where nftables is not there: it is not asked for then, because asking
/// would load it.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_ADMIN over the namespace; `Interrupted` if the rules change all the time.
pub fn source_nat(root: &ProcRoot) -> Result<Vec<SourceNat>> {
    if !modules::is_loaded(root, "nf_tables") {
        return Ok(Vec::new());
    }
    let mut socket = Socket::open(libc::NETLINK_NETFILTER).context(|| "read nftables rules".into())?;
    dump(&mut socket, GET_RULE, "rules", rule)
}

/// The source NAT of a rule, if it has one.
fn rule(_: Family, attributes: Attributes<'_>) -> Option<SourceNat> {
    // Constants in registers, by register.
    let mut registers: BTreeMap<u32, &[u8]> = BTreeMap::new();
    for (_, element) in Attributes(attributes.get(RULE_EXPRESSIONS)?) {
        let name = Attributes(element).get(EXPR_NAME).map(text).unwrap_or_default();
        let data = Attributes(Attributes(element).get(EXPR_DATA).unwrap_or_default());
        let found = match name.as_str() {
            "immediate" => {
                registers.extend(constant(data));
                None
            }
            "masq" => Some((None, ports(data, MASQ_REG_PROTO_MIN, MASQ_REG_PROTO_MAX, &registers))),
            "nat" if data.get(NAT_TYPE).and_then(u32_be) == Some(SNAT) => {
                let first = value(data, NAT_REG_ADDR_MIN, &registers).and_then(address);
                let last = value(data, NAT_REG_ADDR_MAX, &registers).and_then(address).or(first);
                Some((first.zip(last), ports(data, NAT_REG_PROTO_MIN, NAT_REG_PROTO_MAX, &registers)))
            }
            "target" => target(data),
            _ => None,
        };
        if let Some((addresses, ports)) = found {
            return Some(SourceNat {
                table: attributes.get(RULE_TABLE).map(text).unwrap_or_default(),
                chain: attributes.get(RULE_CHAIN).map(text).unwrap_or_default(),
                handle: attributes.get(RULE_HANDLE).and_then(u64_be)?,
                addresses,
                ports,
            });
        }
    }
    None
}

/// The register that an `immediate` expression loads, and with what; `None` of a verdict.
pub(super) fn constant(data: Attributes<'_>) -> Option<(u32, &[u8])> {
    let register = data.get(IMMEDIATE_DREG).and_then(u32_be);
    register.zip(data.get(IMMEDIATE_DATA).and_then(|d| Attributes(d).get(DATA_VALUE)))
}

pub(super) fn value<'a>(
    data: Attributes<'_>,
    attribute: u16,
    registers: &BTreeMap<u32, &'a [u8]>,
) -> Option<&'a [u8]> {
    registers.get(&data.get(attribute).and_then(u32_be)?).copied()
}

pub(super) fn ports(data: Attributes<'_>, first: u16, last: u16, registers: &BTreeMap<u32, &[u8]>) -> Ports {
    if data.get(first).is_none() {
        return Ports::Kernel;
    }
    let number = |attribute| value(data, attribute, registers).and_then(port);
    match (number(first), number(last).or(number(first))) {
        (Some(first), Some(last)) => Ports::Range(first.min(last)..=first.max(last)),
        _ => Ports::Mapped,
    }
}

/// What the targets MASQUERADE and SNAT of xtables were told.
fn target(data: Attributes<'_>) -> Option<(Option<(Address, Address)>, Ports)> {
    let name = data.get(TARGET_NAME).map(text)?;
    if !matches!(name.as_str(), "MASQUERADE" | "SNAT") {
        return None;
    }
    let info = data.get(TARGET_INFO)?;
    let revision = data.get(TARGET_REV).and_then(u32_be).unwrap_or(0);
    xtables(revision, info)
}

/// First and last address, and ports, of a NAT target of xtables: `struct nf_nat_ipv4_multi_range_compat` of the first revisions
/// for IPv4, otherwise `struct nf_nat_range` or one that begins like it.
pub(super) fn xtables(revision: u32, info: &[u8]) -> Option<(Option<(Address, Address)>, Ports)> {
    // 20 bytes are padded to 24; the other structure has 40.
    let old = revision == 0 && info.len() < 40;
    let (flags, addresses, ports) = if old { (4, (8, 12, 4), 16) } else { (0, (4, 20, 16), 36) };
    let flags = u32::from_ne_bytes(info.get(flags..flags + 4)?.try_into().ok()?);
    let (first, last, length) = addresses;
    let at = |from: usize| address(trimmed(info.get(from..from + length)?));
    let addresses = if flags & MAP_IPS != 0 { at(first).zip(at(last)) } else { None };
    let ports = match (info.get(ports..).and_then(port), info.get(ports + 2..).and_then(port)) {
        (Some(first), Some(last)) if flags & PROTO_SPECIFIED != 0 => {
            Ports::Range(first.min(last)..=first.max(last))
        }
        _ => Ports::Kernel,
    };
    Some((addresses, ports))
}

/// `union nf_inet_addr` of an IPv4 address has it in its first four bytes, and zeros behind.
fn trimmed(bytes: &[u8]) -> &[u8] {
    if bytes.len() == 16 && bytes[4..].iter().all(|b| *b == 0) { &bytes[..4] } else { bytes }
}

pub(super) fn address(bytes: &[u8]) -> Option<Address> {
    let ip: IpAddr = match bytes.len() {
        4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into(),
        16 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into(),
        _ => return None,
    };
    Some(ip.into())
}

fn port(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(..2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::netns::NetNs;
    use crate::nftables::tests::shell;
    use crate::privilege::test_needs_root;
    use crate::process::which;

    fn ip(text: &str) -> Address {
        text.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn root_what_nft_was_told_is_what_is_read() {
        if test_needs_root() {
            return;
        }
        if which("nft").is_none() {
            println!("SKIP: nft is not installed");
            return;
        }
        let ns = NetNs::create().unwrap();
        shell(
            &ns,
            "nft -f - <<'END'
            table ip t { chain post { type nat hook postrouting priority 100;
                ip saddr 10.0.0.0/24 masquerade
                meta l4proto tcp masquerade to :10000-19999
                meta l4proto udp snat to 198.18.0.9:6000
                ip daddr 198.18.1.1 snat to 198.18.0.10-198.18.0.12
                meta l4proto tcp snat to 198.18.0.13:2000-2009 random
                meta l4proto tcp snat to 198.18.0.14:tcp sport map { 1 : 5, 2 : 6 }
                counter accept
            }
            chain pre { type nat hook prerouting priority -100; tcp dport 80 dnat to 10.0.0.1:8080; }; }
            table ip6 s { chain post { type nat hook postrouting priority 100; snat to 2001:2::9; }; }
END",
        );
        let rules = ns.run(|| source_nat(&ProcRoot::new("/")).unwrap()).unwrap();
        let found: Vec<_> = rules.iter().map(|r| (r.table.as_str(), r.addresses, r.ports.clone())).collect();
        let one = |text: &str| Some((ip(text), ip(text)));
        assert_eq!(
            found,
            [
                ("t", None, Ports::Kernel),
                ("t", None, Ports::Range(10_000..=19_999)),
                ("t", one("198.18.0.9"), Ports::Range(6000..=6000)),
                ("t", Some((ip("198.18.0.10"), ip("198.18.0.12"))), Ports::Kernel),
                ("t", one("198.18.0.13"), Ports::Range(2000..=2009)),
                ("t", one("198.18.0.14"), Ports::Mapped),
                ("s", one("2001:2::9"), Ports::Kernel),
            ]
        );
        assert!(rules.iter().all(|r| r.chain == "post" && r.handle > 0));
    }

    #[test]
    fn root_what_iptables_was_told_is_what_is_read() {
        if test_needs_root() {
            return;
        }
        if which("iptables-nft").is_none() {
            println!("SKIP: iptables-nft is not installed");
            return;
        }
        let ns = NetNs::create().unwrap();
        shell(
            &ns,
            "iptables-nft -t nat -A POSTROUTING -p tcp -j MASQUERADE --to-ports 1000-1999
             iptables-nft -t nat -A POSTROUTING -p udp -j SNAT --to-source 198.18.0.9-198.18.0.11:300-400
             iptables-nft -t nat -A POSTROUTING -j MASQUERADE
             ip6tables-nft -t nat -A POSTROUTING -p tcp -j MASQUERADE --to-ports 7000",
        );
        let mut rules = ns.run(|| source_nat(&ProcRoot::new("/")).unwrap()).unwrap();
        rules.sort_by_key(|r| format!("{:?}", r.ports));
        let found: Vec<_> = rules.into_iter().map(|r| (r.addresses, r.ports)).collect();
        let pool = Some((ip("198.18.0.9"), ip("198.18.0.11")));
        assert_eq!(
            found,
            [
                (None, Ports::Kernel),
                (None, Ports::Range(1000..=1999)),
                (pool, Ports::Range(300..=400)),
                (None, Ports::Range(7000..=7000)),
            ]
        );
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            // No table, chain and expression fit into less.
            prop_assert!(rule(Family::Ip, Attributes(&bytes)).is_none() || bytes.len() > 12);
            let _ = target(Attributes(&bytes));
        }
    }
}
