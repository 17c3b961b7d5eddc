//! Rulesets that decide about each packet, by nft.

use weir_sys::privilege::test_needs_root;

use super::{changes, has, of_forward, of_nft, records};

#[test]
fn root_each_condition_that_varies_is_found() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    for (rule, depends) in [
        ("limit rate over 10/second drop", "a rate limit"),
        ("limit rate over 1 mbytes/second reject", "a rate limit"),
        ("quota over 10 mbytes drop", "a quota"),
        ("ct count over 5 drop", "the number of connections"),
        ("ct bytes > 1000000 drop", "the packets or bytes of a connection"),
        ("ct original packets > 10 reject", "the packets or bytes of a connection"),
        ("ct avgpkt > 100 drop", "the packets or bytes of a connection"),
        ("ct expiration > 60s drop", "the time a connection has left"),
        ("meta length > 1000 drop", "the packet's length"),
        ("ip length > 1000 drop", "the packet's length"),
        ("udp length > 1000 drop", "the packet's length"),
        ("ip ttl < 5 drop", "the TTL"),
        ("ip6 hoplimit < 5 drop", "the hop limit"),
        ("ip id 7 drop", "the packet's identification"),
        ("ip frag-off & 0x4000 != 0 drop", "the don't-fragment flag"),
        ("tcp flags psh drop", "TCP flags"),
        ("tcp flags & (syn|ack|psh) == (ack|psh) drop", "TCP flags"),
        ("ip ecn ce drop", "the ECN bits"),
        ("ip6 ecn ce drop", "the ECN bits or the flow label"),
        ("numgen random mod 100 < 5 drop", "chance or a count"),
        ("numgen inc mod 100 vmap { 5 : drop }", "chance or a count"),
        ("meta random < 1000000 drop", "a random number"),
        ("meta hour \"10:00\"-\"11:00\" drop", "the time"),
        ("meta day \"Saturday\" reject", "the time"),
        ("@th,160,32 0x01020304 drop", "TCP options or data or data of the packet"),
        ("limit rate 1/second meta length 100-200 drop", "a rate limit or the packet's length"),
        ("tcp window < 100 drop", "TCP's header"),
        ("tcp option timestamp exists drop", "TCP options or extension headers"),
        ("meta mark 7 drop", "the packet's mark"),
        ("meta skuid 7 drop", "the owner of a socket"),
        ("meta cpu 1 drop", "the CPU"),
        ("ip saddr @filled drop", "the set filled, whose contents change by themselves"),
        ("ip saddr != @ends drop", "the set ends, whose contents change by themselves"),
        ("limit rate 10/second meta mark set 7", "a rate limit"),
        ("ct bytes > 1000000 meta priority set \"1:2\"", "the packets or bytes of a connection"),
        ("meta length > 1000 ip dscp set cs1", "the packet's length"),
        ("limit rate 10/second ct mark set 7", "a rate limit"),
    ] {
        let found = of_forward("accept", rule);
        // The set that is not filled from packets has a timeout only.
        assert_eq!(changes(&found), [depends], "{rule}: {found:?}");
    }
}

#[test]
fn root_one_rule_is_listed_with_its_place_and_words() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    let found = of_forward(
        "accept",
        "ip saddr 192.0.2.1 drop; tcp dport 80 limit rate over 10/second counter drop; counter",
    );
    assert_eq!(found.len(), 2, "{found:?}");
    let first = &found[0];
    assert!(first.place.starts_with("nftables table inet t, chain forward, handle "), "{first:?}");
    assert_eq!(first.rule, "tcp dport 80 limit rate over 10/second burst 5 packets counter drop");
    assert_eq!(first.why, "the outcome depends on a rate limit, and carried packets bypass it");
    // The counter of a rule that changes an outcome is not another finding.
    assert_eq!((changes(&found), records(&found)), (vec!["a rate limit"], vec!["its counter"]));
}

#[test]
fn root_an_accept_that_varies_matters_if_a_drop_follows() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    for (policy, rules) in [
        ("accept", "limit rate 10/second accept; drop"),
        ("drop", "limit rate 10/second accept"),
        ("drop", "ip saddr 192.0.2.1 accept; limit rate 10/second accept; counter"),
        ("accept", "limit rate 10/second accept; ip daddr 192.0.2.1 drop"),
        ("accept", "limit rate 10/second return; drop; }; chain other {"),
        ("accept", "jump flood; }; chain flood { limit rate 10/second return; drop;"),
        (
            "accept",
            "limit rate over 10/second jump refuse; }; chain refuse { ip saddr 192.0.2.1 return; reject;",
        ),
        (
            "accept",
            "limit rate over 10/second goto refuse; }; chain refuse { ip saddr 192.0.2.1 return; reject;",
        ),
        ("drop", "jump allowed; }; chain allowed { ip saddr 192.0.2.1 accept; limit rate 10/second accept;"),
        (
            "drop",
            "iifname vmap { \"lan0\" : jump lan, \"wan0\" : drop }; }; chain lan { limit rate 5/second accept;",
        ),
        // The other states come to the rest of the chain.
        ("accept", "ct state vmap { new : accept, invalid : drop }; limit rate over 10/second drop"),
        ("accept", "ct state related accept; limit rate over 10/second drop"),
        // Only one protocol has left.
        ("accept", "meta l4proto tcp accept; limit rate over 10/second drop"),
        ("accept", "ip saddr 192.0.2.1 ct state established accept; limit rate over 10/second drop"),
    ] {
        // A chain that the text opens closes with the one that it is put into.
        let found = of_forward(policy, rules);
        assert_eq!(changes(&found), ["a rate limit"], "{policy}: {rules}: {found:?}");
    }
}

#[test]
fn root_what_decides_about_each_packet_is_listed_without_a_condition() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    for (rule, why) in [
        ("reset tcp option timestamp", "it writes TCP options of each packet"),
        ("tcp window set 100", "it writes bytes of each packet"),
        ("meta mark set numgen inc mod 2", "it sets a property of each packet by chance or a count"),
    ] {
        let found = of_forward("accept", rule);
        assert_eq!(changes(&found), [why], "{rule}: {found:?}");
    }
}

#[test]
fn root_meters_and_sets_that_packets_fill_are_found() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    let found = of_forward("accept", "update @filled { ip saddr limit rate over 10/second } drop");
    assert_eq!(changes(&found), ["a rate limit"]);
    let found = of_forward("accept", "ip saddr @filled drop; tcp flags syn add @filled { ip saddr }");
    assert_eq!(changes(&found), ["the set filled, whose contents change by themselves"]);
    assert!(records(&found).is_empty(), "{found:?}");
}

#[test]
fn root_udp_without_replies_stays_new() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    let only = "the outcome depends on a rate limit, and carried packets bypass it (UDP without replies, which stays new)";
    for (rules, why) in [
        ("ct state established,related accept; ct state new limit rate 5/second accept", Some(only)),
        ("ct state established,related accept; meta l4proto udp limit rate 5/second accept", Some(only)),
        ("ct state established,related accept; meta l4proto tcp limit rate 5/second accept", None),
        ("ct state established,related accept; ct state new tcp flags syn limit rate 5/second accept", None),
    ] {
        let found = of_forward("drop", rules);
        assert_eq!(changes(&found), Vec::from_iter(why), "{rules}");
    }
}

#[test]
fn root_named_limits_and_quotas_are_conditions() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    let found = of_nft(
        "table ip t {
            limit slow { rate over 10/second }
            quota much { over 10 mbytes }
            chain forward { type filter hook forward priority 0; limit name \"slow\" drop; quota name \"much\" drop; }
        }",
    );
    assert_eq!(changes(&found), ["a rate limit", "a quota"]);
}

#[test]
fn root_all_bypassed_hooks_are_read_and_conntrack_is_not_known_before_it() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    let rule = "ct state established accept; limit rate over 10/second drop;";
    let found = of_nft(&format!(
        "table inet t {{
            chain raw {{ type filter hook prerouting priority raw; {rule}
}}
            chain mangle {{ type filter hook prerouting priority mangle; {rule}
}}
            chain post {{ type filter hook postrouting priority 0; tcp dport 80 {rule}
}}
        }}
        table netdev n {{ chain ingress {{ type filter hook ingress device lo priority 0; limit rate over 10/second drop;
}}; }}"
    ));
    let mut places: Vec<&str> = found.iter().map(|f| f.place.split(", handle").next().unwrap()).collect();
    places.sort_unstable();
    assert_eq!(
        places,
        [
            "nftables table inet t, chain mangle",
            "nftables table inet t, chain post",
            "nftables table inet t, chain raw",
            "nftables table netdev n, chain ingress"
        ]
    );
    let only = "(UDP without replies, which stays new)";
    for found in &found {
        assert_eq!(found.why.ends_with(only), found.place.contains("mangle"), "{found:?}");
    }
}

#[test]
fn root_a_mark_that_differs_within_a_flow_reaches_the_rules_that_compare_it() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    let found = of_nft(
        "table ip t {
            chain pre { type filter hook prerouting priority mangle; meta length > 1000 meta mark set 7; }
            chain forward { type filter hook forward priority 0; meta mark 7 drop; }
        }",
    );
    assert_eq!(changes(&found), ["the packet's length", "the packet's mark"]);
    let found = of_nft(
        "table ip t {
            chain pre { type filter hook prerouting priority mangle; ip saddr 192.0.2.1 meta mark set 7; }
            chain forward { type filter hook forward priority 0; meta mark 7 drop; }
        }",
    );
    assert!(changes(&found).is_empty(), "{found:?}");
}
