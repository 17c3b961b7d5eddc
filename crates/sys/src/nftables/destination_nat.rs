//! Destination NAT rules of nftables, and of iptables where it speaks to the kernel as nft does: where they lead.
//!
//! What such a rule asks for is among the expressions of [`super::read`], by the same handle.

use std::collections::BTreeMap;

use crate::ProcRoot;
use crate::conntrack::Address;
use crate::error::{Context, Result};
use crate::modules;
use crate::netlink::{Attributes, Socket, text, u32_be};

use super::expression::u64_be;
use super::source_nat::{
    EXPR_DATA, EXPR_NAME, NAT_REG_ADDR_MAX, NAT_REG_ADDR_MIN, NAT_REG_PROTO_MAX, NAT_REG_PROTO_MIN, NAT_TYPE,
    Ports, TARGET_INFO, TARGET_NAME, TARGET_REV, address, constant, ports, value, xtables,
};
use super::{Family, GET_RULE, RULE_EXPRESSIONS, RULE_HANDLE, RULE_TABLE, dump};

/// NFT_NAT_DNAT.
const DNAT: u32 = 1;

/// Where a rule leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// First and last address. `None` where it names none, or takes it out of a map.
    pub addresses: Option<(Address, Address)>,
    /// Ports; [`Ports::Kernel`]: the one that was asked for stays.
    pub ports: Ports,
}

/// A rule that translates destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationNat {
    /// Family of its table.
    pub family: Family,
    /// Table, as its owner called it.
    pub table: String,
    /// The rule's handle in its table.
    pub handle: u64,
    /// Where it leads.
    pub to: Destination,
}

/// All of the calling thread's namespace. Empty where nftables is not there: it is not asked for then, because asking
/// would load it.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_ADMIN over the namespace; `Interrupted` if the rules change all the time.
pub fn destination_nat(root: &ProcRoot) -> Result<Vec<DestinationNat>> {
    if !modules::is_loaded(root, "nf_tables") {
        return Ok(Vec::new());
    }
    let mut socket = Socket::open(libc::NETLINK_NETFILTER).context(|| "read nftables rules".into())?;
    dump(&mut socket, GET_RULE, "rules", rule)
}

/// The destination NAT of a rule, if it has one.
fn rule(family: Family, attributes: Attributes<'_>) -> Option<DestinationNat> {
    let mut registers: BTreeMap<u32, &[u8]> = BTreeMap::new();
    for (_, element) in Attributes(attributes.get(RULE_EXPRESSIONS)?) {
        let name = Attributes(element).get(EXPR_NAME).map(text).unwrap_or_default();
        let data = Attributes(Attributes(element).get(EXPR_DATA).unwrap_or_default());
        let to = match name.as_str() {
            "immediate" => {
                registers.extend(constant(data));
                None
            }
            "nat" if data.get(NAT_TYPE).and_then(u32_be) == Some(DNAT) => {
                let first = value(data, NAT_REG_ADDR_MIN, &registers).and_then(address);
                let last = value(data, NAT_REG_ADDR_MAX, &registers).and_then(address).or(first);
                let ports = ports(data, NAT_REG_PROTO_MIN, NAT_REG_PROTO_MAX, &registers);
                Some(Destination { addresses: first.zip(last), ports })
            }
            "target" if data.get(TARGET_NAME).map(text).as_deref() == Some("DNAT") => {
                let revision = data.get(TARGET_REV).and_then(u32_be).unwrap_or(0);
                of_target(revision, data.get(TARGET_INFO)?)
            }
            _ => None,
        };
        if let Some(to) = to {
            let table = attributes.get(RULE_TABLE).map(text).unwrap_or_default();
            return Some(DestinationNat {
                family,
                table,
                handle: attributes.get(RULE_HANDLE).and_then(u64_be)?,
                to,
            });
        }
    }
    None
}

/// What the target DNAT of xtables was told. `None` of something shorter than its revision has.
pub(crate) fn of_target(revision: u32, info: &[u8]) -> Option<Destination> {
    xtables(revision, info).map(|(addresses, ports)| Destination { addresses, ports })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::netns::NetNs;
    use crate::nftables::tests::shell;
    use crate::privilege::test_needs_root;
    use crate::process::which;

    fn ip(text: &str) -> Address {
        text.parse::<IpAddr>().unwrap().into()
    }

    fn one(text: &str) -> Option<(Address, Address)> {
        Some((ip(text), ip(text)))
    }

    fn found(ns: &NetNs) -> Vec<(Option<(Address, Address)>, Ports)> {
        let rules = ns.run(|| destination_nat(&ProcRoot::new("/")).unwrap()).unwrap();
        assert!(rules.iter().all(|r| r.handle > 0));
        rules.into_iter().map(|r| (r.to.addresses, r.to.ports)).collect()
    }

    #[test]
    fn root_what_nft_was_told_is_where_it_leads() {
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
            table ip t { chain pre { type nat hook prerouting priority -100;
                tcp dport 80 dnat to 198.19.0.2:8080
                ip daddr 198.18.0.1 dnat to 198.19.0.3
                udp dport 53 dnat to 198.19.0.4-198.19.0.6:5300-5310
                meta l4proto tcp dnat to tcp dport map { 1 : 198.19.0.7, 2 : 198.19.0.8 }
                meta l4proto tcp redirect to :9
                meta l4proto tcp dnat to 198.19.0.9:tcp dport map { 1 : 5, 2 : 6 }
            }
            chain post { type nat hook postrouting priority 100; masquerade; }; }
            table ip6 s { chain pre { type nat hook prerouting priority -100; tcp dport 80 dnat to [2001:2::9]:81; }; }
END",
        );
        assert_eq!(
            found(&ns),
            [
                (one("198.19.0.2"), Ports::Range(8080..=8080)),
                (one("198.19.0.3"), Ports::Kernel),
                (Some((ip("198.19.0.4"), ip("198.19.0.6"))), Ports::Range(5300..=5310)),
                (None, Ports::Kernel),
                (one("198.19.0.9"), Ports::Mapped),
                (one("2001:2::9"), Ports::Range(81..=81)),
            ]
        );
    }

    #[test]
    fn root_what_iptables_was_told_is_where_it_leads() {
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
            "iptables-nft -t nat -A PREROUTING -p tcp -m tcp --dport 80 -j DNAT --to-destination 198.19.0.2:8080
             iptables-nft -t nat -A PREROUTING -p udp -j DNAT --to-destination 198.19.0.3-198.19.0.5:300-400
             iptables-nft -t nat -A PREROUTING -p tcp -j REDIRECT --to-ports 9
             iptables-nft -t nat -A POSTROUTING -j MASQUERADE
             ip6tables-nft -t nat -A PREROUTING -p tcp -j DNAT --to-destination [2001:2::9]:81",
        );
        let mut found = found(&ns);
        found.sort_by_key(|(_, ports)| format!("{ports:?}"));
        assert_eq!(
            found,
            [
                (Some((ip("198.19.0.3"), ip("198.19.0.5"))), Ports::Range(300..=400)),
                (one("198.19.0.2"), Ports::Range(8080..=8080)),
                (one("2001:2::9"), Ports::Range(81..=81)),
            ]
        );
    }
}
