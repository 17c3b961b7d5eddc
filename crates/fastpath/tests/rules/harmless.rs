//! Rulesets whose outcome is the same for all packets of a flow.

use weir_sys::privilege::test_needs_root;

use super::{IPTABLES, changes, has, of_forward, of_nft, of_script, records};

const NOTHING: [&str; 0] = [];

#[track_caller]
fn nothing_at_all(ruleset: &str) {
    assert_eq!(of_nft(ruleset), [], "{ruleset}");
}

#[test]
fn root_a_gateway_that_masquerades() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    nothing_at_all(
        "table ip nat {
            chain pre { type nat hook prerouting priority dstnat; tcp dport 80 limit rate 5/second dnat to 198.19.0.2; }
            chain post { type nat hook postrouting priority srcnat; oifname \"eth0\" counter masquerade; }
        }",
    );
}

#[test]
fn root_a_stateful_firewall_of_nft() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    // Everything behind the first rule meets only packets of no established connection. UDP without replies stays new.
    nothing_at_all(
        "table inet filter {
            chain forward { type filter hook forward priority filter; policy drop;
                ct state established,related accept
                ct state invalid counter drop
                tcp flags syn limit rate 20/second accept
                icmp type echo-request limit rate 5/second accept
                meta l4proto ipv6-icmp limit rate 5/second accept
                iifname \"lan0\" oifname \"wan0\" accept
                limit rate 3/minute log prefix \"refused: \"
                counter drop
            }
            chain input { type filter hook input priority filter; policy drop; limit rate 5/second accept; }
            chain output { type filter hook output priority filter; limit rate 5/second drop; }
        }",
    );
}

#[test]
fn root_a_map_of_states_as_firewalld_writes_it() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    nothing_at_all(
        "table inet firewalld {
            chain filter_FORWARD { type filter hook forward priority filter + 10; policy accept;
                ct state { established, related } accept
                ct status dnat accept
                iifname \"lo\" accept
                ct state invalid drop
                ip6 daddr { ::/96, ::ffff:0.0.0.0/96 } reject with icmpv6 type addr-unreachable
                jump filter_FORWARD_POLICIES
                reject with icmpx admin-prohibited
            }
            chain filter_FORWARD_POLICIES {
                iifname \"eth0\" goto filter_FWD_public
                iifname \"eth1\" oifname \"eth0\" jump filter_FWD_public
                reject with icmpx admin-prohibited
            }
            chain filter_FWD_public { ip saddr 192.0.2.0/24 tcp dport 80 accept; log prefix \"rejected\" reject; }
            chain mangle_PREROUTING { type filter hook prerouting priority mangle + 10; fib saddr . mark . iif oif missing drop; }
        }",
    );
    // By a map of verdicts, also through a chain.
    nothing_at_all(
        "table inet t {
            chain states { ct state vmap { established : accept, related : accept, invalid : drop }; }
            chain forward { type filter hook forward priority 0; policy drop;
                jump states
                iifname vmap { \"lan0\" : jump lan, \"wan0\" : drop }
            }
            chain lan { meta l4proto tcp limit rate 5/second accept; udp dport 53 accept; }
        }",
    );
}

#[test]
fn root_what_engines_make_by_nft() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    // kube-proxy in its mode nftables.
    nothing_at_all(
        "table ip kube-proxy {
            set cluster-ips { type ipv4_addr; elements = { 198.19.1.1 }; }
            map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict;
                elements = { 198.19.1.2 . tcp . 80 : goto reject-chain }; }
            map service-ips { type ipv4_addr . inet_proto . inet_service : verdict;
                elements = { 198.19.1.1 . tcp . 443 : goto service }; }
            chain filter-prerouting { type filter hook prerouting priority dstnat - 10; ct state new jump firewall-check; }
            chain filter-forward { type filter hook forward priority -110;
                ct state new jump service-endpoints-check
                ct state new jump cluster-ips-check
            }
            chain firewall-check { ip daddr 198.19.1.9 drop; }
            chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
            chain cluster-ips-check { ip daddr @cluster-ips reject; }
            chain reject-chain { reject; }
            chain mark-for-masquerade { meta mark set meta mark | 0x4000; }
            chain service {
                ip saddr != 198.19.0.0/16 jump mark-for-masquerade
                numgen random mod 2 vmap { 0 : goto endpoint, 1 : goto endpoint }
            }
            chain endpoint { meta l4proto tcp dnat to 198.19.0.2:443; }
            chain nat-prerouting { type nat hook prerouting priority dstnat;
                ip daddr . meta l4proto . th dport vmap @service-ips
            }
            chain nat-postrouting { type nat hook postrouting priority srcnat;
                meta mark & 0x4000 == 0 return
                meta mark set meta mark ^ 0x4000
                masquerade fully-random
            }
        }",
    );
    // Docker Engine 29. Its rules count, and the rest is constant.
    let found = of_nft(
        "table ip docker-bridges {
            map filter-forward-in-jumps { type ifname : verdict; elements = { \"docker0\" : jump filter-forward-in__docker0 }; }
            map filter-forward-out-jumps { type ifname : verdict; elements = { \"docker0\" : jump filter-forward-out__docker0 }; }
            chain filter-FORWARD { type filter hook forward priority filter; policy accept;
                oifname vmap @filter-forward-in-jumps
                iifname vmap @filter-forward-out-jumps
            }
            chain filter-forward-in__docker0 {
                ct state established,related counter accept
                iifname \"docker0\" counter accept comment \"ICC\"
                ip daddr 198.19.0.2 tcp dport 8080 counter accept
                counter drop comment \"UNPUBLISHED PORT DROP\"
            }
            chain filter-forward-out__docker0 {
                ct state established,related counter accept
                counter accept comment \"OUTGOING\"
            }
            chain raw-PREROUTING { type filter hook prerouting priority raw; ip daddr 198.19.0.2 iifname != \"docker0\" counter drop; }
        }",
    );
    assert_eq!((changes(&found), records(&found)), (vec![], vec!["its counter"; 4]), "{found:?}");
    // A router of OpenWrt.
    nothing_at_all(
        "table inet fw4 {
            chain forward { type filter hook forward priority filter; policy drop;
                ct state vmap { established : accept, related : accept } comment \"handle forwarded flows\"
                iifname \"br-lan\" jump forward_lan
                iifname \"wan\" jump forward_wan
                jump handle_reject
            }
            chain forward_lan { jump accept_to_wan; jump accept_to_lan; }
            chain forward_wan { icmpv6 type echo-request limit rate 1000/second accept; meta l4proto esp jump accept_to_lan; jump reject_to_wan; }
            chain accept_to_wan { meta nfproto ipv4 oifname \"wan\" ct state invalid drop; oifname \"wan\" accept; }
            chain accept_to_lan { oifname \"br-lan\" accept; }
            chain reject_to_wan { oifname \"wan\" jump handle_reject; }
            chain handle_reject { meta l4proto tcp reject with tcp reset; reject; }
            chain mangle_forward { type filter hook forward priority mangle; policy accept;
                iifname \"wan\" tcp flags & (fin|syn|rst) == syn tcp option maxseg size set rt mtu
            }
        }",
    );
}

#[test]
fn root_rules_by_addresses_ports_and_sets_that_stay() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    for rules in [
        "ip saddr 192.0.2.0/24 drop; tcp dport { 25, 445 } reject with tcp reset; accept;",
        "ip saddr @fixed drop; ip daddr != @fixed iifname \"eth0\" drop;",
        "ct mark 7 drop; ct status dnat accept; ct direction reply accept;",
        "meta l4proto icmp limit rate 5/second drop; icmpv6 type echo-request limit rate over 1/second drop;",
        // Fragments, SYN, FIN, RST and URG are not carried, and ACK is set in all that are.
        "ip frag-off & 0x1fff != 0 limit rate 5/second drop; tcp flags & (fin|syn|rst|ack) == syn limit rate over 5/second drop;",
        "tcp flags & (fin|syn) == (fin|syn) drop; tcp flags & (fin|syn|rst|psh|ack|urg) == 0x0 drop;",
        "tcp flags & (fin|psh|urg) == (fin|psh|urg) drop; tcp flags urg limit rate 1/second drop;",
        // A packet with another DSCP than the one that was learnt is not carried.
        "ip dscp cs1 drop; ip6 dscp ef meta priority set \"1:10\";",
        "meta pkttype { broadcast, multicast } limit rate 5/second drop;",
        "tcp flags syn tcp option maxseg size set rt mtu; tcp option maxseg size set 1400;",
        "ct state new tcp dport 22 limit rate 3/minute accept; ct state untracked,invalid drop;",
        // A rate limit without a drop behind it.
        "limit rate 5/second accept; ip saddr 192.0.2.1 accept;",
        "limit rate 5/second jump other; }; chain other { ip daddr 192.0.2.1 return;",
        "limit rate 5/second jump other; ip saddr 192.0.2.1 drop; }; chain other { ip daddr 192.0.2.1 return;",
        "meta mark set ct mark; meta mark 7 drop; ip saddr 192.0.2.1 meta mark set 5;",
    ] {
        let found = of_forward("accept", rules);
        assert_eq!(changes(&found), NOTHING, "{rules}");
        assert_eq!(records(&found), NOTHING, "{rules}");
    }
}

#[test]
fn root_a_limit_among_drops_alone() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    // None of these packets is ever carried.
    let found =
        of_forward("drop", "tcp dport 22 accept; limit rate 5/second return; limit rate 1/second drop");
    assert_eq!(found, []);
    // These are.
    let found = of_forward("drop", "limit rate 5/second return; ip saddr 192.0.2.1 accept");
    assert_eq!(changes(&found), ["a rate limit"]);
}

#[test]
fn root_rules_in_hooks_that_carried_packets_do_meet() {
    if test_needs_root() || !has(&["nft"]) {
        return;
    }
    nothing_at_all(
        "table netdev out { chain egress { type filter hook egress device lo priority 0; limit rate over 5/second counter drop; }; }
         table bridge b { chain forward { type filter hook forward priority 0; meta length > 100 counter drop; }; }
         table arp a { chain input { type filter hook input priority 0; limit rate over 5/second counter drop; }; }",
    );
}

/// The rules that Docker Engine 28 makes, with a rule of the owner's by address and port.
fn docker(iptables: &str) -> String {
    let rules = "-N DOCKER
        -N DOCKER-USER
        -N DOCKER-FORWARD
        -N DOCKER-BRIDGE
        -N DOCKER-CT
        -N DOCKER-ISOLATION-STAGE-1
        -N DOCKER-ISOLATION-STAGE-2
        -P FORWARD DROP
        -A FORWARD -j DOCKER-USER
        -A FORWARD -j DOCKER-FORWARD
        -A DOCKER-USER -i eth0 -s 192.0.2.0/24 -p tcp -m tcp --dport 8080 -j DROP
        -A DOCKER-USER -i eth0 -p tcp -m multiport --dports 80,443 -j RETURN
        -A DOCKER-USER -m conntrack --ctorigdstport 81 --ctdir ORIGINAL -j DROP
        -A DOCKER-FORWARD -j DOCKER-CT
        -A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1
        -A DOCKER-FORWARD -j DOCKER-BRIDGE
        -A DOCKER-FORWARD -i docker0 -j ACCEPT
        -A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
        -A DOCKER-BRIDGE -o docker0 -j DOCKER
        -A DOCKER -d 198.19.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 8080 -j ACCEPT
        -A DOCKER ! -i docker0 -o docker0 -j DROP
        -A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
        -A DOCKER-ISOLATION-STAGE-2 -o docker1 -j DROP
        -t nat -N DOCKER
        -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
        -t nat -A POSTROUTING -s 198.19.0.0/24 ! -o docker0 -j MASQUERADE
        -t nat -A DOCKER ! -i docker0 -p tcp -m tcp --dport 80 -j DNAT --to-destination 198.19.0.2:8080
        -t raw -A PREROUTING -d 198.19.0.2/32 ! -i docker0 -j DROP";
    lines(iptables, rules)
}

/// The rules that ufw makes, shortened.
fn ufw(iptables: &str) -> String {
    let rules = "-N ufw-before-forward
        -N ufw-after-forward
        -N ufw-after-logging-forward
        -N ufw-user-forward
        -N ufw-user-limit
        -N ufw-track-forward
        -P FORWARD DROP
        -A FORWARD -j ufw-before-forward
        -A FORWARD -j ufw-after-forward
        -A FORWARD -j ufw-after-logging-forward
        -A FORWARD -j ufw-track-forward
        -A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
        -A ufw-before-forward -p icmp --icmp-type 8 -m limit --limit 5/s -j ACCEPT
        -A ufw-before-forward -j ufw-user-forward
        -A ufw-after-logging-forward -m limit --limit 3/min --limit-burst 10 -j LOG
        -A ufw-user-forward -p tcp -m tcp --dport 22 -m conntrack --ctstate NEW -m recent --set
        -A ufw-user-forward -p tcp -m tcp --dport 22 -m conntrack --ctstate NEW -m recent --update --seconds 30 --hitcount 6 -j ufw-user-limit
        -A ufw-user-forward -i eth1 -o eth0 -j ACCEPT
        -A ufw-user-limit -m limit --limit 3/min -j LOG
        -A ufw-user-limit -j REJECT";
    lines(iptables, rules)
}

/// The rules that kube-proxy makes in its mode iptables, with a policy to drop.
fn kube(iptables: &str) -> String {
    let rules = "-N KUBE-FORWARD
        -N KUBE-SERVICES
        -N KUBE-PROXY-FIREWALL
        -P FORWARD DROP
        -A FORWARD -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
        -A FORWARD -j KUBE-FORWARD
        -A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
        -A FORWARD -s 198.19.0.0/16 -j ACCEPT
        -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
        -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
        -A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
        -A KUBE-SERVICES -d 198.19.1.1/32 -p tcp -m tcp --dport 80 -j REJECT
        -t nat -N KUBE-MARK-MASQ
        -t nat -N KUBE-SVC
        -t nat -N KUBE-POSTROUTING
        -t nat -A PREROUTING -d 198.19.1.1/32 -p tcp -m tcp --dport 443 -j KUBE-SVC
        -t nat -A POSTROUTING -j KUBE-POSTROUTING
        -t nat -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
        -t nat -A KUBE-SVC -m statistic --mode random --probability 0.5 -j KUBE-MARK-MASQ
        -t nat -A KUBE-SVC -p tcp -j DNAT --to-destination 198.19.0.2:443
        -t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
        -t nat -A KUBE-POSTROUTING -j MASQUERADE";
    lines(iptables, rules)
}

/// A router with two providers: marks by connection, and segments clamped.
fn providers(iptables: &str) -> String {
    let rules = "-t mangle -A PREROUTING -j CONNMARK --restore-mark
        -t mangle -A PREROUTING -m mark ! --mark 0 -j ACCEPT
        -t mangle -A PREROUTING -i eth1 -j MARK --set-mark 1
        -t mangle -A PREROUTING -i eth2 -j MARK --set-mark 2
        -t mangle -A FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
        -t mangle -A POSTROUTING -m mark --mark 1 -j CLASSIFY --set-class 1:1
        -t mangle -A POSTROUTING -p tcp -j TCPOPTSTRIP --strip-options mss
        -A FORWARD -m mark --mark 2 -o eth1 -j DROP
        -A FORWARD -m comment --comment why -m iprange --src-range 192.0.2.1-192.0.2.9 -j DROP
        -A FORWARD -m mac --mac-source 02:00:00:00:00:01 -j DROP
        -A FORWARD -p tcp --tcp-flags ALL NONE -j DROP
        -A FORWARD -p tcp --tcp-flags ALL FIN,PSH,URG -j DROP
        -A FORWARD -p tcp -m tcp --tcp-flags SYN,ACK SYN,ACK -m conntrack --ctstate NEW -j REJECT
        -A FORWARD -p tcp ! --syn -m conntrack --ctstate NEW -j DROP
        -A FORWARD -p tcp --syn -m limit --limit 5/s -j RETURN
        -A FORWARD -p tcp --syn -j DROP
        -A FORWARD -f -j DROP
        -A FORWARD -f -m limit --limit 1/s -j DROP
        -A FORWARD -m dscp --dscp 8 -j DROP
        -A FORWARD -m pkttype --pkt-type broadcast -m limit --limit 1/s -j DROP";
    lines(iptables, rules)
}

pub(super) fn lines(iptables: &str, rules: &str) -> String {
    rules.lines().map(|line| format!("{iptables} {}\n", line.trim())).collect()
}

#[test]
fn root_what_engines_and_people_make_by_iptables() {
    if test_needs_root() {
        return;
    }
    for (iptables, _) in IPTABLES {
        if !has(&[iptables]) {
            continue;
        }
        for script in [docker(iptables), ufw(iptables), kube(iptables)] {
            assert_eq!(of_script(&script), [], "{script}");
        }
        // Marks out of the connection are the same for all of its packets.
        assert_eq!(changes(&of_script(&providers(iptables))), NOTHING, "{iptables}");
    }
}
