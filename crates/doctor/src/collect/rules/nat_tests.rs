//! Rules of each back end, evaluated for a table's packets.

use std::collections::{BTreeMap, BTreeSet};

use weir_netlink::conntrack::{Conntrack, TimeoutPolicy};
use weir_sys::{NetNs, ProcRoot};

use super::tests::{lacks, shell};
use crate::evidence::{Backend, Namespace, NatHost, NatSource, NatTable};

const PATH: &str = "ip link add in0 type veth peer name in1; ip link add out0 type veth peer name out1
    for link in in0 in1 out0 out1; do ip link set $link up; done
    ip addr add 198.18.0.1/24 dev in0; ip addr add 198.18.1.2/24 dev out0
    ip route add default via 198.18.1.1
    ip addr add fd00:1::1/64 dev in0 nodad; ip addr add fd00:2::2/64 dev out0 nodad
    ip -6 route add default via fd00:2::1
    # The kernel may learn a moment later that the links are ready, and has no routes of IPv6 until then.
    leads() { ip -6 route get $1 | grep -q $2; }
    for _ in $(seq 100); do leads fd00:1::2 in0 && leads fd00:3::2 out0 && break; sleep 0.05; done
    leads fd00:1::2 in0 && leads fd00:3::2 out0
    ";

/// A gateway with these rules, whose source NAT is a masquerade of that program.
struct Gateway(NetNs);

impl Gateway {
    fn new(program: &str, rules: &str) -> Self {
        let ns = NetNs::create().unwrap();
        let rules: String = rules.lines().map(|rule| format!("{program} {}\n", rule.trim())).collect();
        shell(&ns, &format!("{PATH}\n{program} -t nat -A POSTROUTING -o out0 -j MASQUERADE\n{rules}"));
        Gateway(ns)
    }

    fn read(&self, ipv6: bool) -> NatHost {
        self.read_path(if ipv6 {
            ["[fd00:1::2]:40000", "[fd00:3::2]:9347", "fd00:2::2"]
        } else {
            ["198.18.0.2:40000", "198.19.0.2:9347", "198.18.1.2"]
        })
    }

    fn read_path(&self, [inside, server, outside]: [&str; 3]) -> NatHost {
        let table = NatTable {
            source: NatSource::Check,
            subject: String::new(),
            time: String::new(),
            failing: Vec::new(),
            inside: inside.parse().ok(),
            server: server.parse().ok(),
            outside: outside.parse().into_iter().collect(),
            changes_address: false,
            ended: BTreeMap::new(),
        };
        let read = || {
            let root = ProcRoot::new("/");
            let interfaces =
                super::super::interfaces::read(&root, &BTreeSet::new(), &mut BTreeMap::new()).unwrap();
            super::nat::read(&root, &Namespace { interfaces, ..Namespace::default() }, &table).unwrap()
        };
        self.0.run(read).unwrap()
    }

    /// Kinds of packets that rules refuse; with a question mark those that they may refuse.
    fn refused(&self, ipv6: bool) -> String {
        refused(&self.read(ipv6))
    }
}

fn refused(host: &NatHost) -> String {
    let kind = |r: &crate::evidence::Refused| format!("{}{}", r.packet, if r.sure { "" } else { "?" });
    host.refused.iter().map(kind).collect::<Vec<_>>().join(" ")
}

/// Rules of iptables, and the packets that they refuse.
const RULES: &[(&str, &str)] = &[
    ("-A FORWARD -p icmp -m icmp --icmp-type 3/4 -j DROP", "too-big-in"),
    ("-A FORWARD -p icmp -m icmp ! --icmp-type 8 -o out0 -j DROP", "error-out"),
    ("-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A FORWARD -i out0 -j DROP", ""),
    (
        "-A FORWARD -p tcp -m conntrack ! --ctstate ESTABLISHED -j DROP\n-A FORWARD -p 47 -m state --state NEW -j DROP",
        "syn-out gre-out",
    ),
    (
        "-A FORWARD -i in+ -o out0 -j ACCEPT\n-P FORWARD DROP",
        "error-in time-exceeded-in too-big-in query-in crossing-syn reset-in",
    ),
    ("-A FORWARD -p tcp -m tcp --tcp-flags SYN,ACK SYN -j REJECT", "crossing-syn syn-out"),
    ("-A FORWARD -s 198.18.0.0/24 -p tcp -m multiport --dports 22,9000:9400 -j DROP", "syn-out"),
    ("-A FORWARD -p tcp -m multiport ! --ports 9347 -j DROP", ""),
    ("-A FORWARD -p tcp -m tcp ! --sport 40000 --dport 1024: -j DROP", "crossing-syn reset-in"),
    (
        "-N sub\n-A FORWARD -d 198.18.0.2/32 -j sub\n-A sub -p icmp -j RETURN\n-A sub -m limit --limit 1/s -j DROP",
        "crossing-syn? reset-in?",
    ),
    (
        "-N sub\n-A FORWARD -p icmp -g sub\n-A FORWARD -j ACCEPT\n-A sub -p icmp -m icmp --icmp-type 8 -j ACCEPT\n-P FORWARD DROP",
        "error-in time-exceeded-in too-big-in error-out query-in",
    ),
    ("-t raw -A PREROUTING -i out0 -p icmp -j DROP", "error-in time-exceeded-in too-big-in query-in"),
    (
        "-t mangle -A POSTROUTING -o in0 -p icmp -j DROP",
        "error-in time-exceeded-in too-big-in too-big-made query-in",
    ),
    ("-A INPUT -p tcp --syn -j DROP\n-A INPUT -j REJECT", "unsolicited-syn"),
    (
        "-A FORWARD ! -s 198.18.0.0/16 -p 47 -j DROP\n-A FORWARD -p 50 -j LOG\n-A FORWARD -p 50 -j DROP",
        "esp-out",
    ),
    ("-A FORWARD -m iprange --src-range 198.18.0.1-198.18.0.9 -p icmp -j DROP", "error-out query-out"),
    ("-A FORWARD -m iprange ! --dst-range 198.18.0.1-198.19.0.9 -j DROP", ""),
    // A match that cannot be read.
    ("-A FORWARD -p icmp -m icmp --icmp-type 0 -m length --length 0:40 -j DROP", "query-in?"),
    // Connection tracking has put them together by then.
    ("-A FORWARD -f -j DROP", ""),
];

#[test]
fn root_rules_of_both_iptables_are_evaluated() {
    if lacks(&["iptables-legacy", "iptables-nft"]) {
        return;
    }
    for program in ["iptables-legacy", "iptables-nft"] {
        for (rules, expected) in RULES {
            assert_eq!(Gateway::new(program, rules).refused(false), *expected, "{program} {rules}");
        }
    }
}

#[test]
fn root_rules_for_ipv6_are_evaluated() {
    if lacks(&["ip6tables-legacy", "ip6tables-nft", "nft"]) {
        return;
    }
    let cases = [
        ("-A FORWARD -p ipv6-icmp -m icmp6 --icmpv6-type packet-too-big -j DROP", "too-big-in"),
        ("-A FORWARD -p ipv6-icmp -m icmp6 --icmpv6-type echo-reply -j DROP", "query-in"),
        ("-A FORWARD -s fd00:1::/64 ! -d fd00:1::/16 -p tcp --dport 9347 -j REJECT", ""),
        ("-A FORWARD -s fd00:1::/64 ! -d fd00:1::/30 -p tcp --dport 9347 -j REJECT", ""),
        ("-A FORWARD -s fd00:1::/64 ! -d fd00:1::/32 -p tcp --dport 9347 -j REJECT", "syn-out"),
        ("-t raw -A PREROUTING -i out0 -p ipv6-icmp -m icmp6 --icmpv6-type 1 -j DROP", "error-in"),
        (
            "-A FORWARD -m iprange --dst-range fd00:1::1-fd00:1::9 -p ipv6-icmp -j DROP",
            "error-in time-exceeded-in too-big-in query-in",
        ),
    ];
    for program in ["ip6tables-legacy", "ip6tables-nft"] {
        for (rules, expected) in cases {
            let gateway = Gateway::new(program, rules);
            assert_eq!(gateway.refused(true), expected, "{program} {rules}");
            assert_eq!(gateway.refused(false), "", "{program} {rules}: no rule for IPv4");
        }
    }
    for (chain, expected) in [
        (
            "inet f { chain c { type filter hook forward priority 0; icmpv6 type time-exceeded drop; }; }",
            "time-exceeded-in",
        ),
        (
            "ip6 f { chain c { type filter hook forward priority 0; ip6 saddr fd00:3::2 tcp flags == rst drop; }; }",
            "",
        ),
        (
            "ip6 f { chain c { type filter hook forward priority 0; ip6 saddr fd00:3::2 tcp flags & rst != 0 drop; }; }",
            "reset-in",
        ),
        (
            "ip6 f { chain c { type filter hook prerouting priority -450; meta l4proto udp drop; }; }",
            "fragment-in fragment-out",
        ),
        ("ip f { chain c { type filter hook forward priority 0; drop; }; }", ""),
    ] {
        let gateway = Gateway::new("ip6tables-legacy", "");
        shell(&gateway.0, &format!("nft 'table {chain}'"));
        assert_eq!(gateway.refused(true), expected, "{chain}");
    }
}

/// Without translation the inside host is seen by its own address, and a SYN to that is forwarded.
#[test]
fn root_rules_of_a_router_without_nat_are_evaluated() {
    if lacks(&["ip6tables-legacy"]) {
        return;
    }
    let gateway = Gateway::new(
        "ip6tables-legacy",
        "-t nat -F\n-A FORWARD -i out0 -o in0 -p tcp --syn -m state --state NEW -j DROP\n-A FORWARD -p ipv6-icmp -m icmp6 --icmpv6-type 1 -j DROP",
    );
    let host = gateway.read_path(["[fd00:1::2]:40000", "[fd00:3::2]:9347", "fd00:1::2"]);
    assert_eq!(refused(&host), "error-in error-out unsolicited-syn");
    // Behind another NAT it is not known that this host is on the path.
    assert_eq!(refused(&gateway.read(true)), "");
}

/// Rules before a rule, and its conditions, decide whose connections it translates.
#[test]
fn root_rules_for_source_nat_are_known_by_their_protocols() {
    if lacks(&["iptables-legacy", "iptables-nft", "ip6tables-legacy", "nft"]) {
        return;
    }
    let rules = "-t nat -F
        -t nat -A POSTROUTING -s 10.9.0.0/16 -j MASQUERADE --random
        -t nat -A POSTROUTING -p tcp -j SNAT --to-source 198.18.1.10-198.18.1.13 --random
        -t nat -A POSTROUTING -o out0 -p udp -j MASQUERADE --to-ports 1024-2047 --random-fully
        -t nat -A POSTROUTING -o out0 -j SNAT --to-source 198.18.1.10-198.18.1.13 --persistent
        -t nat -A POSTROUTING -j MASQUERADE";
    let expected = [
        ("-j MASQUERADE --random", ""),
        ("-j SNAT --to-source 198.18.1.10-198.18.1.13 --random", "tcp"),
        ("-j MASQUERADE --to-ports 1024-2047 --random-fully", "udp"),
        ("-j SNAT --to-source 198.18.1.10-198.18.1.13 --persistent", "icmp"),
        ("-j MASQUERADE", ""),
    ];
    for (program, backend) in
        [("iptables-legacy", Backend::IptablesLegacy), ("iptables-nft", Backend::IptablesNft)]
    {
        let host = Gateway::new(program, rules).read(false);
        assert_eq!(host.rules.len(), expected.len(), "{program}");
        for (rule, (text, protocols)) in host.rules.iter().zip(expected) {
            assert!(rule.rule.text.ends_with(text), "{program}: {} and {text}", rule.rule.text);
            assert_eq!(rule.protocols.join(" "), protocols, "{program}: {text}");
            assert_eq!(rule.rule.backend, backend);
        }
        let first = &host.rules[1];
        assert!(first.random && first.changes_address() && !host.rules[3].changes_address());
        assert_eq!(host.rules[2].ports, Some((1024, 2047)));
        assert_eq!((first.rule.chain.as_str(), first.rule.table.as_str()), ("POSTROUTING", "nat"));
    }
    let six = "-t nat -F\n-t nat -A POSTROUTING -p udp -j SNAT --to-source [fd00:2::2]:5000-6000 --random\n-t nat -A POSTROUTING -j MASQUERADE";
    let host = Gateway::new("ip6tables-legacy", six).read(true);
    assert!(host.rules[0].rule.text.ends_with("--to-source [fd00:2::2]:5000-6000 --random"), "{host:#?}");
    assert_eq!(host.rules.iter().map(|r| r.protocols.join(" ")).collect::<Vec<_>>(), ["udp", "tcp icmp"]);
    // A rule of nftables, in a chain that is reached by a jump.
    let gateway = Gateway::new("iptables-legacy", "-t nat -F");
    shell(
        &gateway.0,
        "nft 'table ip n { chain sub { masquerade random; }; chain post { type nat hook postrouting priority srcnat;
              ip saddr 198.18.0.0/24 meta l4proto { tcp, udp } jump sub; ip saddr != 198.18.0.0/24 masquerade; };
              chain later { type nat hook postrouting priority srcnat + 1; masquerade; }; }'",
    );
    let protocols: Vec<_> = gateway.read(false).rules.iter().map(|r| r.protocols.join(" ")).collect();
    // The chain behind it translates what is not translated yet.
    assert_eq!(protocols, ["udp tcp", "", "icmp"]);
}

/// The kernel shows four bytes of a policy's name.
#[test]
fn root_policies_of_idle_times_are_found_by_what_rules_show_of_them() {
    if lacks(&["iptables-legacy", "iptables-nft", "ip6tables-legacy"]) {
        return;
    }
    let policy = |name: &str, ipv6: bool, protocol: u8, seconds: &[(u16, u32)]| TimeoutPolicy {
        name: name.into(),
        ipv6,
        protocol,
        seconds: seconds.to_vec(),
    };
    for program in ["iptables-legacy", "iptables-nft", "ip6tables-legacy"] {
        let ipv6 = program.starts_with("ip6");
        let gateway = Gateway::new(program, "");
        let make = || {
            let mut conntrack = Conntrack::open().unwrap();
            for policy in [
                policy("hasty", ipv6, 17, &[(1, 2), (2, 300)]),
                policy("hastener", ipv6, 6, &[(3, 100), (8, 3)]),
                policy("slow", ipv6, 17, &[(1, 200), (2, 300)]),
                policy("slower", ipv6, 17, &[(1, 400), (2, 300)]),
                policy("slow6", !ipv6, 17, &[(1, 4), (2, 4)]),
            ] {
                conntrack.add_timeout_policy(&policy).unwrap();
            }
        };
        gateway.0.run(make).unwrap();
        // At once: the old iptables reads the cut names back with each new rule, and the kernel refuses them.
        shell(
            &gateway.0,
            &format!(
                "{program}-restore <<'END'\n*raw\n-A PREROUTING -p udp -j CT --timeout hasty
-A PREROUTING -p tcp -j CT --timeout hastener\n-A PREROUTING -p udp -j CT --timeout slower\nCOMMIT\nEND"
            ),
        );
        let host = gateway.read(ipv6);
        let told: Vec<_> = host.timeouts.iter().map(|t| (t.object.as_str(), t.protocol)).collect();
        assert_eq!(told.len(), 3, "{program}: {told:?}");
        assert_eq!(told[..2], [("hasty", 17), ("hastener", 6)], "{program}");
        assert!(["slow or slower", "slower or slow"].contains(&told[2].0), "{program}: {told:?}");
        let seconds = |at: usize, name: &str| host.timeouts[at].seconds.get(name).copied();
        assert_eq!(seconds(0, "udp_timeout"), Some(2), "{program}");
        assert_eq!(
            (seconds(1, "tcp_timeout_close"), seconds(1, "tcp_timeout_established")),
            (Some(3), Some(100))
        );
        // They agree in one of the two times.
        assert_eq!((seconds(2, "udp_timeout"), seconds(2, "udp_timeout_stream")), (None, Some(300)));
        assert!(host.timeouts[2].rule.text.contains("CT"), "{:?}", host.timeouts[2].rule);
    }
}
