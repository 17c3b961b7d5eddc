//! The same by iptables, whichever way it speaks to the kernel.

use weir_sys::privilege::test_needs_root;

use super::harmless::lines;
use super::{IPTABLES, changes, has, noun, of_script, records};

#[test]
fn root_each_match_that_varies_is_found() {
    if test_needs_root() {
        return;
    }
    for (iptables, _) in IPTABLES {
        if !has(&[iptables]) {
            continue;
        }
        for (matches, depends) in [
            ("-m limit --limit 5/s", "a rate limit"),
            ("-m hashlimit --hashlimit-above 5/s --hashlimit-mode srcip --hashlimit-name a", "a rate limit"),
            ("-m quota --quota 1000", "a quota"),
            ("-p tcp -m connlimit --connlimit-above 5", "the number of connections"),
            ("-m length --length 100:200", "the packet's length"),
            ("-m ttl --ttl-lt 5", "the TTL"),
            ("-p tcp --tcp-flags PSH PSH", "TCP flags"),
            ("-p tcp -m ecn --ecn-ip-ect 1", "the ECN bits"),
            ("-m tos --tos 0x08/0xff", "the ECN bits"),
            ("-m recent --name x --update --seconds 5", "a list that packets fill"),
            ("-m string --string abc --algo bm", "data of the packet"),
            ("-m u32 --u32 '6&0xFF=1'", "data of the packet"),
            ("-m mark --mark 1", "the packet's mark"),
            (
                "-m connbytes --connbytes 1000: --connbytes-dir both --connbytes-mode bytes",
                "the packets or bytes of a connection",
            ),
            ("-m conntrack --ctexpire 100", "the time a connection has left"),
        ] {
            for target in ["DROP", "REJECT"] {
                let script = lines(iptables, &format!("-A FORWARD {matches} -j {target}"));
                let found = of_script(&script);
                assert_eq!(changes(&found), [depends], "{script} {found:?}");
            }
        }
        // As xtables or in nft's own words.
        let chance =
            of_script(&lines(iptables, "-A FORWARD -m statistic --mode random --probability 0.1 -j DROP"));
        assert!(["chance or a count", "a random number"].contains(&changes(&chance)[0]), "{chance:?}");
        let time =
            of_script(&lines(iptables, "-A FORWARD -m time --timestart 10:00 --timestop 11:00 -j DROP"));
        assert_eq!(changes(&time), ["the time"], "{time:?}");
    }
}

#[test]
fn root_an_ipset_is_found() {
    if test_needs_root() {
        return;
    }
    for (iptables, _) in IPTABLES {
        if has(&[iptables, "ipset"]) {
            let script =
                format!("ipset create s hash:ip; {iptables} -A FORWARD -m set --match-set s src -j DROP");
            assert_eq!(
                changes(&of_script(&script)),
                ["an ipset, whose changes weir is not notified of"],
                "{script}"
            );
        }
    }
}

#[test]
fn root_the_classic_rate_limit_and_programs_are_found() {
    if test_needs_root() {
        return;
    }
    for (iptables, _) in IPTABLES {
        if !has(&[iptables]) {
            continue;
        }
        let program = "a program decides about each packet, and does not see carried ones";
        for (rules, why) in [
            (
                "-A FORWARD -p udp -m hashlimit --hashlimit-upto 5/s --hashlimit-name a -j ACCEPT\n-A FORWARD -p udp -j DROP",
                "a rate limit",
            ),
            ("-P FORWARD DROP\n-A FORWARD -m limit --limit 5/s -j ACCEPT", "a rate limit"),
            (
                "-N FLOOD\n-A FORWARD -j FLOOD\n-A FLOOD -m limit --limit 5/s -j RETURN\n-A FLOOD -j DROP",
                "a rate limit",
            ),
            ("-N BAD\n-A FORWARD -m length --length 0:99 -g BAD\n-A BAD -j REJECT", "the packet's length"),
            ("-A FORWARD -j NFQUEUE --queue-num 1", program),
            ("-t mangle -A FORWARD -p tcp --dport 80 -j NFQUEUE --queue-bypass", program),
            ("-t mangle -A PREROUTING -m length --length 0:99 -j MARK --set-mark 1", "the packet's length"),
            ("-t raw -A PREROUTING -m length --length 0:99 -j DROP", "the packet's length"),
            (
                "-t mangle -A POSTROUTING -m length --length 0:99 -j CLASSIFY --set-class 1:1",
                "the packet's length",
            ),
            (
                "-t mangle -A FORWARD -p tcp -j TCPOPTSTRIP --strip-options timestamp",
                "it removes TCP options from each packet",
            ),
            // A state before conntrack has seen the packet is none.
            (
                "-t raw -A PREROUTING -m conntrack --ctstate ESTABLISHED -j ACCEPT\n-t raw -A PREROUTING -m limit --limit 5/s -j DROP",
                "a rate limit",
            ),
            // A rule for fragments does not end the chain for others.
            ("-A FORWARD -f -j DROP\n-A FORWARD -m limit --limit 5/s -j DROP", "a rate limit"),
            (
                "-A FORWARD -p icmp -j DROP\n-A FORWARD ! -p tcp -j DROP\n-A FORWARD -m limit --limit 5/s -j DROP",
                "a rate limit",
            ),
        ] {
            let script = lines(iptables, rules);
            let found = of_script(&script);
            assert_eq!(changes(&found), [why], "{script} {found:?}");
        }
    }
}

#[test]
fn root_a_rule_of_ip6tables_has_its_place_and_words() {
    if test_needs_root() {
        return;
    }
    for (_, ip6tables) in IPTABLES {
        if !has(&[ip6tables]) {
            continue;
        }
        let found = of_script(&lines(
            ip6tables,
            "-A FORWARD -s 2001:2::/48 -j DROP\n-A FORWARD -p udp -m udp --dport 53 -m limit --limit 5/s -j DROP\n-A FORWARD -m hl --hl-lt 5 -j DROP",
        ));
        assert_eq!(changes(&found), ["a rate limit", "the hop limit"], "{found:?}");
        let wanted = match ip6tables {
            "ip6tables-legacy" => "ip6tables-legacy table filter, chain FORWARD, rule 2",
            _ => "nftables table ip6 filter, chain FORWARD, handle ",
        };
        assert!(found[0].place.starts_with(wanted), "{found:?}");
        assert!(found[0].rule.contains("udp") && found[0].rule.contains("53"), "{found:?}");
        assert_eq!(noun(&found[0].why), "a rate limit");
    }
}

#[test]
fn root_rules_that_only_count_or_log_record() {
    if test_needs_root() {
        return;
    }
    for (iptables, _) in IPTABLES {
        if !has(&[iptables]) {
            continue;
        }
        for (rules, what) in [
            ("-A FORWARD -s 192.0.2.1 -j LOG", "its log"),
            ("-A FORWARD -m limit --limit 3/min -j NFLOG --nflog-group 3", "its log"),
            ("-A FORWARD -s 192.0.2.0/24", "its counter"),
            ("-N ACCT\n-A FORWARD -j ACCT\n-A ACCT -d 192.0.2.0/24", "its counter"),
            ("-t mangle -A FORWARD -j CONNMARK --save-mark", "its connection mark"),
            ("-t mangle -A PREROUTING -j TEE --gateway 192.0.2.1", "its copy"),
        ] {
            let script = lines(iptables, rules);
            let found = of_script(&script);
            assert_eq!((records(&found), changes(&found)), (vec![what], vec![]), "{script}");
        }
    }
}
