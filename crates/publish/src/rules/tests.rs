//! Rules as engines and people write them, in the kernel and read back.

use std::process::Command;

use proptest::prelude::*;
use weir_netlink::nftables::{Base, Comparison, Expression, Register};
use weir_sys::NetNs;
use weir_sys::privilege::test_needs_root;
use weir_sys::process::which;

use super::*;

fn published(script: &str) -> Vec<Published> {
    rules(script).published
}

fn rules(script: &str) -> Rules {
    let ns = NetNs::create().unwrap();
    let mut command = Command::new("sh");
    command.args(["-euc", script]);
    ns.enter_on_spawn(&mut command);
    assert!(command.status().unwrap().success(), "{script}");
    ns.run(|| read(&ProcRoot::default()).unwrap()).unwrap()
}

/// (protocol, destination, port, container, port, how much more it asks for).
fn shown(rule: &Published) -> String {
    let Asks { destination, from, not_from, more, .. } = &rule.asks;
    let destination = destination.map_or("any".into(), |(a, p)| format!("{a}/{p}"));
    let ports = |range: Option<RangeInclusive<u16>>| match range {
        Some(range) if range.start() == range.end() => range.start().to_string(),
        Some(range) => format!("{}-{}", range.start(), range.end()),
        None => "any".into(),
    };
    let protocol = rule.protocol().map_or("?".into(), |p| p.to_string());
    let to = rule.container().map_or("several".into(), |a| a.to_string());
    let mut text = format!(
        "{protocol} {destination} {} -> {to} {}",
        ports(rule.asks.ports.clone()),
        ports(rule.container_ports())
    );
    for (name, words) in [
        ("from", from.iter().cloned().collect::<Vec<_>>()),
        ("not from", not_from.clone()),
        ("more", more.clone()),
    ] {
        if !words.is_empty() {
            text.push_str(&format!(", {name} {}", words.join(" ")));
        }
    }
    text
}

/// The rules that Docker Engine 28 makes for `-p 80:8080 -p 198.18.0.1:53:53/udp -p [::]:80:8080`, by iptables or its older form.
fn docker(iptables: &str, ip6tables: &str) -> String {
    format!(
        "ip link set lo up
         {iptables} -t nat -N DOCKER
         {iptables} -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
         {iptables} -t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
         {iptables} -t nat -A POSTROUTING -s 198.19.0.0/24 ! -o docker0 -j MASQUERADE
         {iptables} -t nat -A DOCKER -i docker0 -j RETURN
         {iptables} -t nat -A DOCKER ! -i docker0 -p tcp -m tcp --dport 80 -j DNAT --to-destination 198.19.0.2:8080
         {iptables} -t nat -A DOCKER -d 198.18.0.1/32 ! -i docker0 -p udp -m udp --dport 53 -j DNAT --to-destination 198.19.0.3:53
         {ip6tables} -t nat -N DOCKER
         {ip6tables} -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
         {ip6tables} -t nat -A DOCKER ! -i docker0 -p tcp -m tcp --dport 80 -j DNAT --to-destination [2001:2:0:1::2]:8080"
    )
}

#[test]
fn root_what_docker_makes_by_iptables_is_read() {
    if test_needs_root() {
        return;
    }
    for (v4, v6) in [("iptables-nft", "ip6tables-nft"), ("iptables-legacy", "ip6tables-legacy")] {
        if which(v4).is_none() {
            println!("SKIP: {v4} is not installed (iptables)");
            continue;
        }
        let found: Vec<String> = published(&docker(v4, v6)).iter().map(shown).collect();
        assert_eq!(
            found,
            [
                "tcp any 80 -> 198.19.0.2 8080, not from docker0",
                "udp 198.18.0.1/32 53 -> 198.19.0.3 53, not from docker0",
                "tcp any 80 -> 2001:2:0:1::2 8080, not from docker0",
            ],
            "{v4}"
        );
    }
}

#[test]
fn root_what_engines_make_by_nft_is_read() {
    if test_needs_root() {
        return;
    }
    if which("nft").is_none() {
        println!("SKIP: nft is not installed (nftables)");
        return;
    }
    // Docker Engine 29, and netavark of Podman 5.
    let found = published(
        "nft -f - <<'END'
        table ip docker-bridges {
            chain nat-prerouting { type nat hook prerouting priority dstnat; fib daddr type local counter jump nat-all; }
            chain nat-output { type nat hook output priority -100; ip daddr != 127.0.0.0/8 fib daddr type local counter jump nat-all; }
            chain nat-all {
                iifname != \"docker0\" tcp dport 80 counter dnat to 198.19.0.2:8080 comment \"DNAT\"
                ip daddr 198.18.0.1 iifname != \"docker0\" udp dport 53 counter dnat to 198.19.0.3:53
            }
        }
        table inet netavark {
            chain lead { tcp dport 81 dnat ip to 198.19.0.4:81; }
            chain hostport { ip daddr 198.18.0.1 tcp dport 81 jump lead; }
            chain pre { type nat hook prerouting priority dstnat; fib daddr type local jump hostport; }
            chain never { tcp dport 82 dnat ip to 198.19.0.5:82; }
        }
END",
    );
    assert_eq!(
        found.iter().map(shown).collect::<Vec<_>>(),
        [
            "tcp any 80 -> 198.19.0.2 8080, not from docker0",
            "udp 198.18.0.1/32 53 -> 198.19.0.3 53, not from docker0",
            "tcp 198.18.0.1/32 81 -> 198.19.0.4 81",
        ]
    );
    assert!(found[0].place.contains("nftables table ip docker-bridges, chain nat-all"), "{}", found[0].place);
}

#[test]
fn root_what_is_no_fixed_mapping_keeps_what_it_asks_for() {
    if test_needs_root() {
        return;
    }
    if which("nft").is_none() || which("iptables-nft").is_none() {
        println!("SKIP: nft and iptables-nft are not installed (nftables, iptables)");
        return;
    }
    let found = published(
        "nft -f - <<'END'
        table ip t { chain pre { type nat hook prerouting priority dstnat;
            iifname \"eth1\" tcp dport 80 dnat to 198.19.0.2
            ip saddr 192.0.2.0/24 tcp dport 81 dnat to 198.19.0.2
            tcp dport 82 numgen random mod 2 0 dnat to 198.19.0.2
            tcp dport 83-85 dnat to 198.19.0.2
            tcp dport { 86, 87 } dnat to 198.19.0.2
            ip daddr 198.18.0.0/24 tcp dport 88 dnat to 198.19.0.2
            tcp dport 89 dnat to 198.19.0.2-198.19.0.9
            ip daddr 198.18.0.9 dnat to 198.19.0.2
        }; }
        table ip6 s { chain pre { type nat hook prerouting priority dstnat;
            ip6 daddr 2001:2::/32 tcp dport 80 dnat to [2001:2:0:1::2]:81
            ip6 daddr 2001:2::1 udp dport 80 dnat to [2001:2:0:1::2]:81
            ip6 saddr 2001:2::/32 udp dport 81 dnat to [2001:2:0:1::2]:81
        }; }
END
        iptables-nft -t nat -A PREROUTING -p tcp --dport 90 -m statistic --mode random --probability 0.5 -j DNAT --to-destination 198.19.0.2:1
        iptables-nft -t nat -A PREROUTING -p udp --sport 5 --dport 91 -j DNAT --to-destination 198.19.0.2:1",
    );
    let (six, four): (Vec<&Published>, Vec<&Published>) = found.iter().partition(|p| p.ipv6);
    assert_eq!(
        six.into_iter().map(shown).collect::<Vec<_>>(),
        [
            "tcp 2001:2::/32 80 -> 2001:2:0:1::2 81",
            "udp 2001:2::1/128 80 -> 2001:2:0:1::2 81",
            "udp any 81 -> 2001:2:0:1::2 81, more a source",
        ]
    );
    let text: Vec<String> = four.into_iter().map(shown).collect();
    assert_eq!(text[0], "tcp any 80 -> 198.19.0.2 80, from eth1");
    assert_eq!(text[1], "tcp any 81 -> 198.19.0.2 81, more a source");
    assert_eq!(text[2], "tcp any 82 -> 198.19.0.2 82, more numgen");
    assert_eq!(text[3], "tcp any 83-85 -> 198.19.0.2 83-85");
    assert_eq!(text[4], "tcp any any -> 198.19.0.2 any, more a set");
    assert_eq!(text[5], "tcp 198.18.0.0/24 88 -> 198.19.0.2 88");
    assert_eq!(text[6], "tcp any 89 -> several 89");
    assert_eq!(text[7], "? 198.18.0.9/32 any -> 198.19.0.2 any");
    assert_eq!(text[8], "tcp any 90 -> 198.19.0.2 1, more statistic");
    // By a match of xtables or by bytes of the packet, as the version of iptables has it.
    assert!(text[9].starts_with("udp any 91 -> 198.19.0.2 1, more "), "{}", text[9]);
}

#[test]
fn root_rules_that_stop_packets_on_the_way_are_found_but_not_those_of_engines() {
    if test_needs_root() {
        return;
    }
    if which("iptables-nft").is_none() {
        println!("SKIP: iptables-nft is not installed (iptables)");
        return;
    }
    let found = rules(
        "iptables-nft -P FORWARD DROP
         iptables-nft -N DOCKER-USER
         iptables-nft -N DOCKER
         iptables-nft -A FORWARD -j DOCKER-USER
         iptables-nft -A FORWARD -o docker0 -j DOCKER
         iptables-nft -A DOCKER ! -i docker0 -o docker0 -j DROP
         iptables-nft -A DOCKER-USER -i eth0 -p tcp -m tcp --dport 8080 -s 192.0.2.0/24 -j DROP
         iptables-nft -A INPUT -j DROP
         iptables-nft -t raw -A PREROUTING -p udp -j DROP",
    );
    let mut shown: Vec<String> = found
        .stops
        .iter()
        .map(|s| format!("{} {:?} {:?} {:?}", s.place, s.translated, s.asks.protocol, s.asks.ports))
        .collect();
    shown.sort();
    assert_eq!(
        shown,
        [
            "nftables table ip filter, chain DOCKER-USER true Some(6) Some(8080..=8080)",
            "nftables table ip raw, chain PREROUTING false Some(17) None",
        ]
    );
}

#[test]
fn root_what_a_rule_before_keeps_is_known() {
    if test_needs_root() {
        return;
    }
    if which("nft").is_none() || which("iptables-nft").is_none() || which("iptables-legacy").is_none() {
        println!("SKIP: nft, iptables-nft and iptables-legacy are not installed (nftables, iptables)");
        return;
    }
    let by_nft = "nft 'table ip t {
        chain other { udp dport 81 return; tcp dport 1000-2000 return; tcp dport 81 accept; }
        chain lead { ip saddr 192.0.2.0/24 return; tcp dport 80 dnat to 198.19.0.2:8080; }
        chain pre { type nat hook prerouting priority dstnat;
            tcp dport 80 jump other
            tcp dport 81 jump other
            jump lead
            tcp dport 81 dnat to 198.19.0.2:81
            tcp dport 82 redirect to :9
            tcp dport 82 dnat to 198.19.0.2:82
            tcp dport 83 goto other
            tcp dport vmap { 84 : accept }
            tcp dport 83 dnat to 198.19.0.2:83
            udp dport 83 dnat to 198.19.0.2:83
            accept
        }
        chain second { type nat hook prerouting priority 0; udp dport 82 dnat to 198.19.0.2:82; }
    }'";
    let by_iptables = |program: &str| {
        format!(
            "{program} -t nat -N LEAD
             {program} -t nat -A LEAD -s 192.0.2.0/24 -j RETURN
             {program} -t nat -A LEAD -p tcp --dport 80 -j DNAT --to-destination 198.19.0.2:8080
             {program} -t nat -A PREROUTING -j LEAD
             {program} -t nat -A PREROUTING -p tcp --dport 81 -s 192.0.2.1 -j ACCEPT
             {program} -t nat -A PREROUTING -p tcp --dport 81 -j DNAT --to-destination 198.19.0.2:81
             {program} -t nat -A PREROUTING -p tcp --dport 82 -j REDIRECT --to-ports 9
             {program} -t nat -A PREROUTING -p tcp --dport 82 -j DNAT --to-destination 198.19.0.2:82
             {program} -t nat -A PREROUTING -p udp --dport 82 -j DNAT --to-destination 198.19.0.2:82
             {program} -t nat -N OTHER
             {program} -t nat -A PREROUTING -p tcp --dport 83 -g OTHER
             {program} -t nat -A PREROUTING -p tcp --dport 83 -s 192.0.2.1 -j ACCEPT
             {program} -t nat -A PREROUTING -p tcp --dport 83 -j DNAT --to-destination 198.19.0.2:83
             {program} -t nat -A PREROUTING -p udp --dport 83 -j DNAT --to-destination 198.19.0.2:83"
        )
    };
    // Each with how many rules before it keep something: a return up to the end of its chain, and no verdict in another hook's chain.
    // A jump that does not come back keeps what it takes, and a map of verdicts what it is asked.
    let expected = ["tcp 80 1", "tcp 81 1", "tcp 82 1", "tcp 83 2", "udp 82 0", "udp 83 0"];
    for script in [by_nft.to_owned(), by_iptables("iptables-nft"), by_iptables("iptables-legacy")] {
        let mut kept: Vec<String> = published(&script)
            .iter()
            .map(|p| {
                let port = p.asks.ports.as_ref().unwrap().start();
                format!("{} {port} {}", p.protocol().unwrap(), p.unless.len())
            })
            .collect();
        kept.sort();
        assert_eq!(kept, expected, "{script}");
    }
}

proptest! {
    #[test]
    fn garbage_never_panics_and_is_never_taken_for_nothing(
        name in prop::sample::select(vec!["tcp", "udp", "addrtype", "multiport", "statistic"]),
        info in prop::collection::vec(any::<u8>(), 0..64),
        offset in 0_u32..40,
        length in 0_u32..300,
    ) {
        let mut asked = Asks::default();
        legacy::matched(&mut asked, name, &info);
        // A part that was not understood is kept as a word; the rest says something, but for a match of every local address or port.
        prop_assert!(asked.more == [name] || asked.more.is_empty());
        let to = Register(0);
        let payload = Expression::Payload { base: Base::Network, offset, length, to };
        let compare = Expression::Compare { register: to, with: Comparison::Equal, value: info };
        let asked = nft::asks(&[payload, compare]);
        prop_assert!(asked != Asks::default(), "a comparison narrows");
    }
}
