//! Rules that count or remember packets.

use weir_sys::privilege::test_needs_root;

use super::{changes, has, of_forward, records};

#[test]
fn root_counters_logs_and_sets_see_less() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    for (rules, what) in [
        ("counter", "its counter"),
        ("ct state established,related counter accept", "its counter"),
        ("ip saddr 192.0.2.0/24 log prefix \"x\"", "its log"),
        ("log group 3", "its log"),
        ("limit rate 3/minute log", "its log"),
        ("add @filled { ip saddr }", "the set filled, which it fills"),
        ("update @filled { ip saddr counter }", "its counter and the set filled, which it fills"),
        ("quota 10 mbytes", "its quota"),
        ("ct mark set meta mark", "its connection mark"),
        ("meta nftrace set 1", "its trace"),
        ("ip saddr 192.0.2.1 counter log", "its counter and its log"),
    ] {
        let found = of_forward("accept", rules);
        assert_eq!((records(&found), changes(&found)), (vec![what], vec![]), "{rules}: {found:?}");
    }
}

#[test]
fn root_what_only_dropped_or_other_packets_meet_records_nothing() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    for (policy, rules) in [
        ("accept", "ip saddr 192.0.2.1 drop; counter drop"),
        ("drop", "ip saddr 192.0.2.1 accept; counter log"),
        ("accept", "ct state established,related accept; tcp flags syn ct state new counter accept"),
        ("accept", "meta l4proto icmp counter; tcp flags syn log; ct state invalid counter drop"),
        ("accept", "meta l4proto { tcp, udp } accept; counter"),
        ("accept", "ip saddr 192.0.2.1 ct mark set 7"),
    ] {
        let found = of_forward(policy, rules);
        assert_eq!(found, [], "{policy}: {rules}");
    }
}
