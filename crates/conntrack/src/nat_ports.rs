//! Which ports the rules of source NAT give, as far as that can be known.

use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::Serialize;
use weir_netlink::conntrack::Address;
use weir_netlink::nftables::nat::{Ports, SourceNat, source_nat};
use weir_sys::ProcRoot;

/// Ports of a rule without a range, for connections from unprivileged ones (net/netfilter/nf_nat_core.c).
const KERNEL_PORTS: u64 = 64_512;

/// The information that decides the port range of a connection.
#[derive(Debug, Clone, Default)]
pub struct NatPorts {
    rules: Vec<SourceNat>,
    /// Said by the user, and then the rules do not count.
    told: Option<RangeInclusive<u16>>,
    /// iptables-legacy has a nat table here, which nftables does not know of.
    legacy: bool,
}

/// A rule that names a range of ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NatRule {
    /// Table.
    pub table: String,
    /// Chain.
    pub chain: String,
    /// Handle in the table, as `nft -a list ruleset` shows it.
    pub handle: u64,
    /// First outside address; `null` for a masquerade.
    pub first_address: Option<String>,
    /// Last outside address.
    pub last_address: Option<String>,
    /// First port.
    pub first_port: u16,
    /// Last port.
    pub last_port: u16,
}

impl NatPorts {
    /// Returns the user's range, or else the rules of the calling thread's namespace, as far as they are readable.
    pub fn find(root: &ProcRoot, told: Option<RangeInclusive<u16>>) -> NatPorts {
        if told.is_some() {
            return NatPorts { told, ..NatPorts::default() };
        }
        let tables = ["ip_tables_names", "ip6_tables_names"];
        let of =
            |name: &&str| root.read_optional(&format!("proc/thread-self/net/{name}")).unwrap_or_default();
        let legacy = tables.iter().map(of).any(|names| names.lines().any(|table| table == "nat"));
        // Without privilege the entries are not readable either, and weir reports that.
        NatPorts { rules: source_nat(root).unwrap_or_default(), told, legacy }
    }

    #[cfg(test)]
    pub(crate) fn of(rules: Vec<SourceNat>, told: Option<RangeInclusive<u16>>) -> NatPorts {
        NatPorts { rules, told, legacy: false }
    }

    /// Rules there are; `None` where not all of them can be seen.
    pub fn count(&self) -> Option<usize> {
        (!self.legacy).then_some(self.rules.len())
    }

    /// True if nothing but the kernel's own ranges can be meant.
    pub fn is_plain(&self) -> bool {
        self.told.is_none() && self.rules.iter().all(|r| r.to.ports == Ports::Kernel)
    }

    /// Ports of the narrowest rule; `None` where not all rules can be seen, or a map chooses.
    pub fn least(&self) -> Option<u64> {
        self.count()?;
        let ports = |rule: &SourceNat| match &rule.to.ports {
            Ports::Range(range) => Some(range.len() as u64),
            Ports::Kernel => Some(KERNEL_PORTS),
            Ports::Mapped => None,
        };
        self.rules.iter().map(ports).collect::<Option<Vec<u64>>>()?.into_iter().min()
    }

    /// The ranges that connections behind this outside address may be from. None: the kernel's own, or it cannot be known.
    pub fn ranges(&self, outside: Address) -> Vec<RangeInclusive<u16>> {
        if let Some(told) = &self.told {
            return vec![told.clone()];
        }
        let mut ranges = Vec::new();
        for rule in self.meant(outside) {
            match &rule.to.ports {
                Ports::Range(range) => ranges.push(range.clone()),
                // Which of the rules translated a connection is not told.
                Ports::Kernel | Ports::Mapped => return Vec::new(),
            }
        }
        ranges
    }

    /// Rules that name the address; where none does, those that take the interface's.
    fn meant(&self, outside: Address) -> Vec<&SourceNat> {
        let named = |r: &&SourceNat| r.to.addresses.is_some_and(|(a, b)| (a..=b).contains(&outside));
        let named: Vec<&SourceNat> = self.rules.iter().filter(named).collect();
        if named.is_empty() {
            self.rules.iter().filter(|r| r.to.addresses.is_none()).collect()
        } else {
            named
        }
    }

    /// Rules with a range of their own.
    pub fn with_range(&self) -> Vec<NatRule> {
        let of = |rule: &SourceNat| {
            let Ports::Range(range) = &rule.to.ports else { return None };
            Some(NatRule {
                table: rule.table.clone(),
                chain: rule.chain.clone(),
                handle: rule.handle,
                first_address: rule.to.addresses.map(|(a, _)| a.ip().to_string()),
                last_address: rule.to.addresses.map(|(_, b)| b.ip().to_string()),
                first_port: *range.start(),
                last_port: *range.end(),
            })
        };
        self.rules.iter().filter_map(of).collect()
    }

    /// Why the ranges may be others than those counted against, where there is translated traffic.
    pub fn doubt(&self) -> Option<&'static str> {
        let mixed = !self.is_plain() && self.rules.iter().any(|r| !matches!(r.to.ports, Ports::Range(_)));
        match () {
            () if self.told.is_some() => None,
            () if self.legacy => Some("the rules of iptables-legacy cannot be read here"),
            () if self.rules.is_empty() => Some("no rule of nftables here translates sources"),
            () if mixed => Some("some rules name a range of ports and others none, or a map"),
            () => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use weir_netlink::nftables::nat::Translation;

    use super::*;

    fn rule(addresses: Option<(&str, &str)>, ports: Ports) -> SourceNat {
        let ip = |text: &str| Address::from(text.parse::<IpAddr>().unwrap());
        let addresses = addresses.map(|(a, b)| (ip(a), ip(b)));
        SourceNat { table: "t".into(), chain: "c".into(), handle: 7, to: Translation { addresses, ports } }
    }

    fn ranges(rules: Vec<SourceNat>, outside: &str) -> Vec<RangeInclusive<u16>> {
        NatPorts::of(rules, None).ranges(outside.parse::<IpAddr>().unwrap().into())
    }

    #[test]
    fn a_rule_that_names_the_address_is_meant() {
        let own = || rule(Some(("198.18.0.9", "198.18.0.11")), Ports::Range(10..=20));
        let plain = || rule(None, Ports::Kernel);
        assert_eq!(ranges(vec![plain(), own()], "198.18.0.10"), [10..=20]);
        assert_eq!(ranges(vec![plain(), own()], "198.18.0.12"), []);
        assert_eq!(ranges(vec![rule(None, Ports::Range(5..=6)), own()], "198.18.0.12"), [5..=6]);
    }

    #[test]
    fn the_narrowest_rule_has_the_least_ports() {
        let least = |rules| NatPorts::of(rules, None).least();
        let (kernel, ten) = (|| rule(None, Ports::Kernel), || rule(None, Ports::Range(6000..=6009)));
        assert_eq!((least(vec![kernel()]), least(vec![kernel(), ten()])), (Some(64_512), Some(10)));
        assert_eq!((least(vec![]), least(vec![ten(), rule(None, Ports::Mapped)])), (None, None));
    }

    #[test]
    fn what_cannot_be_known_is_not_guessed() {
        let mixed = vec![rule(None, Ports::Kernel), rule(None, Ports::Range(5..=6))];
        assert_eq!(ranges(mixed.clone(), "198.18.0.1"), []);
        assert!(NatPorts::of(mixed.clone(), None).doubt().is_some());
        assert_eq!(ranges(vec![rule(None, Ports::Mapped)], "198.18.0.1"), []);
        assert!(NatPorts::of(vec![rule(None, Ports::Mapped)], None).doubt().is_some());
        assert!(NatPorts::of(Vec::new(), None).doubt().is_some());
        assert_eq!(NatPorts::of(vec![rule(None, Ports::Kernel)], None).doubt(), None);
        let told = NatPorts::of(mixed, Some(1..=2));
        let anywhere = "198.18.0.1".parse::<IpAddr>().unwrap().into();
        assert_eq!((told.doubt(), told.ranges(anywhere)), (None, vec![1..=2]));
        assert_eq!(told.with_range()[0].first_port, 5);
    }
}
