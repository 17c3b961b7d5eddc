//! The exclusions that leave the flows of a rule to the kernel.

use weir_fastpath::{Bypassed, Effect, Exclusion};
use weir_sys::privilege::test_needs_root;

use super::harmless::lines;
use super::{IPTABLES, has, of_forward, of_nft, of_script};

/// The exclusions of the only rule that changes an outcome. They cover it, and without any one of them the rest does not.
#[track_caller]
fn offered(found: &[Bypassed]) -> Vec<String> {
    let changes: Vec<_> = found.iter().filter(|f| f.effect == Effect::Changes).collect();
    let [rule] = changes[..] else { panic!("{found:?}") };
    let all = &rule.exclusions;
    assert!(!rule.is_covered(&[]), "{rule:?}");
    if !all.is_empty() {
        assert!(rule.is_covered(all), "{rule:?}");
    }
    for left_out in 0..all.len() {
        let mut fewer = all.clone();
        fewer.remove(left_out);
        assert!(!rule.is_covered(&fewer), "{left_out} of {rule:?}");
    }
    all.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn is_covered(found: &[Bypassed], by: &[&str]) -> bool {
    let by: Vec<Exclusion> = by.iter().map(|text| text.parse().unwrap()).collect();
    found.iter().filter(|f| f.effect == Effect::Changes).all(|rule| rule.is_covered(&by))
}

#[test]
fn root_each_condition_on_an_end_is_named() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    const LIMIT: &str = "limit rate over 10/second drop";
    for (matches, exclusions) in [
        ("udp dport 53", &["0.0.0.0/0:53/udp", "[::/0]:53/udp"][..]),
        ("meta nfproto ipv4 tcp sport 80", &["0.0.0.0/0:80/tcp"]),
        ("ip saddr 192.0.2.7", &["192.0.2.7"]),
        ("ip saddr 192.0.2.0/24 tcp dport 22", &["192.0.2.0/24/tcp"]),
        ("ip daddr 198.51.96.0/20 meta l4proto udp", &["198.51.96.0/20/udp"]),
        ("ip daddr 198.51.100.1 tcp dport 443", &["198.51.100.1:443/tcp"]),
        ("ip6 daddr 2001:db8::/33 udp dport 443", &["[2001:db8::/33]:443/udp"]),
        ("meta l4proto { tcp, udp } th dport 5060 ip daddr 192.0.2.1", &["192.0.2.1:5060"]),
        ("ip daddr 192.0.2.10-192.0.2.12", &["192.0.2.10/31", "192.0.2.12"]),
        (
            "meta nfproto ipv4 udp dport 5000-5002",
            &["0.0.0.0/0:5000/udp", "0.0.0.0/0:5001/udp", "0.0.0.0/0:5002/udp"],
        ),
        // Sets: of the rule, with a name, with intervals, of two fields, and a range that ends at the last port.
        ("ip daddr { 192.0.2.1, 198.51.100.0/24 }", &["192.0.2.1", "198.51.100.0/24"]),
        ("ip saddr @fixed udp dport { 53, 123 }", &["192.0.2.1/udp"]),
        (
            "ip daddr . udp dport { 192.0.2.1 . 53, 192.0.2.2 . 53 }",
            &["192.0.2.1:53/udp", "192.0.2.2:53/udp"],
        ),
        ("ip saddr 192.0.2.1 udp dport { 65534-65535 }", &["192.0.2.1/udp"]),
        // A set that the kernel empties by itself counts as any address, one that rules fill is no matter of this rule alone.
        ("ip saddr @ends udp dport 53", &["0.0.0.0/0:53/udp"]),
        // Negated.
        ("udp dport 53 ip saddr != 192.0.2.0/24", &["0.0.0.0/0:53/udp"]),
        ("ip saddr != { 192.0.2.0/24, 198.51.100.7 } udp dport 53", &["0.0.0.0/0:53/udp"]),
        ("ip saddr != @fixed udp dport 53", &["0.0.0.0/0:53/udp"]),
        ("ip daddr != 0.0.0.0/1", &["128.0.0.0/1"]),
        ("ip daddr != { 0.0.0.0/1, 192.0.0.0/2 } tcp sport 1", &["0.0.0.0/0:1/tcp"]),
        ("ip daddr >= 224.0.0.0", &["224.0.0.0/3"]),
        ("meta nfproto ipv4 udp dport > 65534", &["0.0.0.0/0:65535/udp"]),
        // Interfaces, lengths and many ports cannot be named, and exclude more flows.
        ("iifname \"lan0\" meta l4proto udp", &["0.0.0.0/0/udp", "::/0/udp"]),
        ("meta nfproto ipv6 ip6 hoplimit < 5", &["::/0"]),
        ("ip daddr 192.0.2.1 tcp dport 1000-2000", &["192.0.2.1/tcp"]),
    ] {
        let found = of_forward("accept", &format!("{matches} {LIMIT}"));
        assert_eq!(offered(&found), exclusions, "{matches}");
    }
}

#[test]
fn root_all_but_a_network_is_named_by_what_is_left() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    for rule in ["ip saddr != 192.0.2.0/24", "ip saddr != { 192.0.2.0/25, 192.0.2.128/25 }"] {
        let found = of_forward("accept", &format!("{rule} limit rate over 10/second drop"));
        let offered = offered(&found);
        assert_eq!(offered.len(), 24, "{offered:?}");
        assert!(is_covered(&found, &["0.0.0.0/0"]), "{rule}");
        assert!(!is_covered(&found, &["0.0.0.0/1", "128.0.0.0/2"]), "{rule}");
    }
}

#[test]
fn root_no_exclusion_names_everything_or_what_other_rules_share() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    for rules in [
        "limit rate over 10/second drop",
        "iifname \"lan0\" limit rate over 10/second drop",
        // The limit counts packets of all ports before the port is asked.
        "limit rate over 10/second udp dport 53 drop",
        "limit rate over 10/second ip saddr 192.0.2.1 drop",
        "limit rate over 10/second tcp flags syn drop; ip saddr 192.0.2.1 limit rate over 10/second udp dport 53 drop",
        "numgen inc mod 100 < 5 udp dport 53 drop",
        // Other packets fill the set.
        "udp dport 53 ip saddr @filled drop; tcp flags syn add @filled { ip saddr }",
        // A chain reached by more than one port.
        "udp dport 53 jump slow; jump slow; }; chain slow { limit rate over 10/second drop;",
    ] {
        let found = of_forward("accept", rules);
        assert_eq!(offered(&found), [""; 0], "{rules}");
        assert!(!is_covered(&found, &["0.0.0.0/0", "::/0"]), "{rules}");
    }
    let named = of_nft(
        "table ip t {
            limit slow { rate over 10/second }
            chain forward { type filter hook forward priority 0; udp dport 53 limit name \"slow\" drop; }
        }",
    );
    assert_eq!(offered(&named), [""; 0]);
    // Addresses are written without connection tracking: those that rules see are not those of the flow.
    let rewrites = of_nft(
        "table ip t {
            chain raw { type filter hook prerouting priority raw; ip daddr set 192.0.2.9; }
            chain forward { type filter hook forward priority 0; udp dport 53 limit rate over 10/second drop; }
        }",
    );
    assert!(rewrites.iter().all(|rule| rule.exclusions.is_empty()), "{rewrites:?}");
}

#[test]
fn root_the_way_to_a_rule_counts_as_well_as_the_rule() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    for (rules, exclusions) in [
        (
            "udp dport 53 jump dns; }; chain dns { limit rate over 10/second drop;",
            &["0.0.0.0/0:53/udp", "[::/0]:53/udp"][..],
        ),
        (
            "ip saddr 192.0.2.0/24 jump a; ip saddr 198.51.100.0/24 goto a; }; chain a { limit rate over 1/second drop;",
            &["192.0.2.0/24", "198.51.100.0/24"],
        ),
        // The rule that asks for the varying thing is the one to be excluded.
        ("ip daddr 192.0.2.1 meta length > 1000 jump b; }; chain b { drop;", &["192.0.2.1"]),
        // A stateless condition counts no packets, so what is asked behind it counts.
        ("meta length > 1000 ip daddr 192.0.2.1 drop", &["192.0.2.1"]),
        // A set of its own, which no other rule fills.
        ("ip daddr 192.0.2.1 update @filled { ip saddr limit rate over 10/second } drop", &["192.0.2.1"]),
        // Only UDP without replies comes so far.
        ("ct state established accept; limit rate over 10/second drop", &["0.0.0.0/0/udp", "::/0/udp"]),
    ] {
        let found = of_forward("accept", rules);
        assert_eq!(offered(&found), exclusions, "{rules}");
    }
}

#[test]
fn root_iptables_in_both_forms() {
    if test_needs_root() {
        return;
    }
    for (iptables, ip6tables) in IPTABLES {
        if !has(&[iptables, ip6tables]) {
            continue;
        }
        let limit = "-m limit --limit 5/s -j DROP";
        for (matches, exclusions) in [
            ("-p udp --dport 53", &["0.0.0.0/0:53/udp"][..]),
            ("-s 192.0.2.0/24", &["192.0.2.0/24"]),
            ("-d 198.51.100.7 -p tcp --dport 443", &["198.51.100.7:443/tcp"]),
            ("-p tcp --sport 1:3", &["0.0.0.0/0:1/tcp", "0.0.0.0/0:2/tcp", "0.0.0.0/0:3/tcp"]),
            (
                "-p udp -m multiport --dports 53,123:124",
                &["0.0.0.0/0:53/udp", "0.0.0.0/0:123/udp", "0.0.0.0/0:124/udp"],
            ),
            ("-m iprange --src-range 192.0.2.2-192.0.2.3", &["192.0.2.2/31"]),
            ("! -s 192.0.2.0/24 -p udp --dport 53", &["0.0.0.0/0:53/udp"]),
            ("! -d 128.0.0.0/1", &["0.0.0.0/1"]),
            ("-d 192.0.2.1 -p tcp ! --dport 80", &["192.0.2.1/tcp"]),
            // A mask with a hole is no prefix.
            ("-s 10.0.0.7/255.0.0.255 -p udp", &["0.0.0.0/0/udp"]),
            ("-p udp -m multiport --ports 53", &["0.0.0.0/0/udp"]),
        ] {
            let found = of_script(&lines(iptables, &format!("-A FORWARD {matches} {limit}")));
            assert_eq!(offered(&found), exclusions, "{iptables} {matches}");
        }
        let rules = format!("-A FORWARD -d 2001:2::/64 -p tcp --dport 80 {limit}");
        assert_eq!(offered(&of_script(&lines(ip6tables, &rules))), ["[2001:2::/64]:80/tcp"], "{ip6tables}");
        let hashed = |name: &str, port: u16, target: &str| {
            format!(
                "-A FORWARD -p udp --dport {port} -m hashlimit --hashlimit-above 5/s --hashlimit-name {name} -j {target}"
            )
        };
        let own = of_script(&lines(iptables, &hashed("a", 53, "DROP")));
        assert_eq!(offered(&own), ["0.0.0.0/0:53/udp"], "{iptables}");
        let shared = [hashed("a", 53, "DROP"), hashed("a", 54, "LOG")].join("\n");
        assert_eq!(offered(&of_script(&lines(iptables, &shared))), [""; 0], "{iptables}");
        let recent = "-A FORWARD -p udp --dport 53 -m recent --name x --update --seconds 5 -j DROP";
        assert_eq!(offered(&of_script(&lines(iptables, recent))), [""; 0], "{iptables}");
        let queue = "-A FORWARD -d 192.0.2.1 -p tcp --dport 80 -j NFQUEUE --queue-num 1";
        assert_eq!(offered(&of_script(&lines(iptables, queue))), ["192.0.2.1:80/tcp"], "{iptables}");
        let first = "-A FORWARD -m limit --limit 5/s -p udp -m multiport --dports 53 -j DROP";
        assert_eq!(offered(&of_script(&lines(iptables, first))), ["0.0.0.0/0/udp"], "{iptables}");
    }
}
