//! Rules as nft and iptables make them, in the kernel and read back.

use proptest::prelude::*;

use super::*;
use crate::nftables::tests::shell;
use crate::nftables::{Family, read};
use weir_sys::NetNs;
use weir_sys::privilege::test_needs_root;
use weir_sys::process::which;

fn ip(text: &str) -> Address {
    text.parse::<IpAddr>().unwrap().into()
}

fn to(first: &str, last: &str, ports: Ports) -> Translation {
    Translation { addresses: Some((ip(first), ip(last))), ports }
}

fn one(address: &str, ports: Ports) -> Translation {
    to(address, address, ports)
}

fn nowhere(ports: Ports) -> Translation {
    Translation { addresses: None, ports }
}

/// A namespace with rules that a program made; `None`, and said, where that cannot be.
fn told(program: &str, script: &str) -> Option<NetNs> {
    if test_needs_root() {
        return None;
    }
    if which(program).is_none() {
        println!("SKIP: {program} is not installed");
        return None;
    }
    let ns = NetNs::create().unwrap();
    shell(&ns, script);
    Some(ns)
}

/// The packets that the rules there translate, in their order, by whether they translate the source.
fn found(ns: &NetNs, source: bool) -> Vec<Translation> {
    let tables = ns.run(|| read(&ProcRoot::new("/")).unwrap().unwrap()).unwrap();
    let nats = tables.rules.iter().filter_map(|rule| of(&rule.expressions));
    let found: Vec<Translation> = nats
        .filter_map(|nat| match nat {
            Nat::Source(to) => source.then_some(to),
            Nat::Destination(to) => (!source).then_some(to),
        })
        .collect();
    let sources = ns.run(|| source_nat(&ProcRoot::new("/")).unwrap()).unwrap();
    if source {
        assert_eq!(sources.iter().map(|s| s.to.clone()).collect::<Vec<_>>(), found);
    }
    // The rule that it says is the one that says so.
    for SourceNat { table, chain, handle, to } in sources {
        let nat = Some(Nat::Source(to));
        let is_it = |r: &&Rule| (&r.table, &r.chain, r.handle) == (&table, &chain, handle);
        assert!(tables.rules.iter().filter(is_it).any(|r| of(&r.expressions) == nat), "{nat:?}");
    }
    found
}

/// As [`found`], of rules whose tables have no order.
fn found_by_ports(ns: &NetNs, source: bool) -> Vec<Translation> {
    let mut found = found(ns, source);
    found.sort_by_key(|to| format!("{:?}", to.ports));
    found
}

const BY_NFT: &str = "nft -f - <<'END'
    table ip t {
        chain pre { type nat hook prerouting priority -100;
            tcp dport 80 dnat to 198.19.0.2:8080
            ip daddr 198.18.0.1 dnat to 198.19.0.3
            udp dport 53 dnat to 198.19.0.4-198.19.0.6:5300-5310
            meta l4proto tcp dnat to tcp dport map { 1 : 198.19.0.7, 2 : 198.19.0.8 }
            meta l4proto tcp redirect to :9
            meta l4proto tcp dnat to 198.19.0.9:tcp dport map { 1 : 5, 2 : 6 }
        }
        chain post { type nat hook postrouting priority 100;
            ip saddr 10.0.0.0/24 masquerade
            meta l4proto tcp masquerade to :10000-19999
            meta l4proto udp snat to 198.18.0.9:6000
            ip daddr 198.18.1.1 snat to 198.18.0.10-198.18.0.12
            meta l4proto tcp snat to 198.18.0.13:2000-2009 random
            meta l4proto tcp snat to 198.18.0.14:tcp sport map { 1 : 5, 2 : 6 }
            counter accept
        }
    }
    table ip6 s {
        chain pre { type nat hook prerouting priority -100; tcp dport 80 dnat to [2001:2::9]:81; }
        chain post { type nat hook postrouting priority 100; snat to 2001:2::9; }
    }
END";

#[test]
fn root_what_nft_was_told_about_sources_is_what_is_read() {
    let Some(ns) = told("nft", BY_NFT) else { return };
    assert_eq!(
        found(&ns, true),
        [
            nowhere(Ports::Kernel),
            nowhere(Ports::Range(10_000..=19_999)),
            one("198.18.0.9", Ports::Range(6000..=6000)),
            to("198.18.0.10", "198.18.0.12", Ports::Kernel),
            one("198.18.0.13", Ports::Range(2000..=2009)),
            one("198.18.0.14", Ports::Mapped),
            one("2001:2::9", Ports::Kernel),
        ]
    );
}

#[test]
fn root_what_nft_was_told_about_destinations_is_where_they_lead() {
    let Some(ns) = told("nft", BY_NFT) else { return };
    assert_eq!(
        found(&ns, false),
        [
            one("198.19.0.2", Ports::Range(8080..=8080)),
            one("198.19.0.3", Ports::Kernel),
            to("198.19.0.4", "198.19.0.6", Ports::Range(5300..=5310)),
            nowhere(Ports::Kernel),
            one("198.19.0.9", Ports::Mapped),
            one("2001:2::9", Ports::Range(81..=81)),
        ]
    );
}

const BY_IPTABLES: &str = "
    iptables-nft -t nat -A PREROUTING -p tcp -m tcp --dport 80 -j DNAT --to-destination 198.19.0.2:8080
    iptables-nft -t nat -A PREROUTING -p udp -j DNAT --to-destination 198.19.0.3-198.19.0.5:300-400
    iptables-nft -t nat -A PREROUTING -p tcp -j REDIRECT --to-ports 9
    ip6tables-nft -t nat -A PREROUTING -p tcp -j DNAT --to-destination [2001:2::9]:81
    iptables-nft -t nat -A POSTROUTING -p tcp -j MASQUERADE --to-ports 1000-1999
    iptables-nft -t nat -A POSTROUTING -p udp -j SNAT --to-source 198.18.0.9-198.18.0.11:300-400
    iptables-nft -t nat -A POSTROUTING -j MASQUERADE
    ip6tables-nft -t nat -A POSTROUTING -p tcp -j MASQUERADE --to-ports 7000";

#[test]
fn root_what_iptables_was_told_about_sources_is_what_is_read() {
    let Some(ns) = told("iptables-nft", BY_IPTABLES) else { return };
    assert_eq!(
        found_by_ports(&ns, true),
        [
            nowhere(Ports::Kernel),
            nowhere(Ports::Range(1000..=1999)),
            to("198.18.0.9", "198.18.0.11", Ports::Range(300..=400)),
            nowhere(Ports::Range(7000..=7000)),
        ]
    );
}

#[test]
fn root_what_iptables_was_told_about_destinations_is_where_they_lead() {
    let Some(ns) = told("iptables-nft", BY_IPTABLES) else { return };
    assert_eq!(
        found_by_ports(&ns, false),
        [
            to("198.19.0.3", "198.19.0.5", Ports::Range(300..=400)),
            one("198.19.0.2", Ports::Range(8080..=8080)),
            one("2001:2::9", Ports::Range(81..=81)),
        ]
    );
}

#[test]
fn root_a_constant_that_was_overwritten_is_none() {
    // The mark goes through the register that the map's address comes into: four bytes as an address has.
    let script = "nft 'table ip t { chain pre { type nat hook prerouting priority -100;
        meta mark set 5 dnat to tcp dport map { 1 : 198.19.0.7, 2 : 198.19.0.8 }
        meta mark set 5 dnat to 198.19.0.9
    }; }'";
    let Some(ns) = told("nft", script) else { return };
    assert_eq!(found(&ns, false), [nowhere(Ports::Kernel), one("198.19.0.9", Ports::Kernel)]);
}

proptest! {
    #[test]
    fn garbage_never_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        revision in 0_u32..4,
        name in prop::sample::select(vec!["DNAT", "SNAT", "MASQUERADE", "REDIRECT"]),
    ) {
        // No table, chain and expression fit into less.
        let read = rule(Family::Ip, crate::Attributes(&bytes));
        prop_assert!(read.is_none_or(|rule| of(&rule.expressions).is_none() || bytes.len() > 12));
        // The flags are the first number, or the second one of the older structure.
        let flags_end = if revision == 0 && bytes.len() < 40 { 8 } else { 4 };
        let nat = of_target(name, revision, &bytes);
        prop_assert_eq!(nat.is_some(), name != "REDIRECT" && bytes.len() >= flags_end);
    }
}
