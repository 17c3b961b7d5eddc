use std::process::Command;
use std::time::Duration;

use weir_sys::privilege::test_needs_root;
use weir_sys::process::{run_with_input, which};
use weir_sys::{NetNs, ProcRoot};

use super::*;
use crate::evidence::RuleVerdict;

pub(super) fn shell(ns: &NetNs, script: &str) -> String {
    let mut command = Command::new("sh");
    // On standard input: a script of many rules is too long for an argument.
    command.args(["-eu", "-s"]);
    ns.enter_on_spawn(&mut command);
    let output = run_with_input(command, script.as_bytes(), Duration::from_secs(20)).unwrap();
    assert!(output.status.success(), "{script:.2000}: {}", output.message());
    output.stdout_text()
}

/// True, with the reason printed, if one of these programs is missing or we are not root.
pub(super) fn lacks(programs: &[&str]) -> bool {
    if test_needs_root() {
        return true;
    }
    let missing = programs.iter().find(|p| which(p).is_none());
    if let Some(missing) = missing {
        println!("SKIP: {missing} is not installed");
    }
    missing.is_some()
}

fn ruleset(ns: &NetNs) -> Ruleset {
    ns.run(|| read(&ProcRoot::new("/")).unwrap()).unwrap()
}

#[test]
fn root_text_is_what_nft_prints() {
    if lacks(&["nft"]) {
        return;
    }
    let ns = NetNs::create().unwrap();
    let rules = [
        "ip saddr 192.0.2.7 counter packets 0 bytes 0 drop",
        "ip daddr 192.0.2.0/24 drop",
        "ip daddr 192.0.0.0/20 drop",
        "ip saddr != 192.0.2.0/23 drop",
        "ip6 saddr 2001:2::/48 drop",
        "ip6 daddr 2001:2::9 drop",
        "tcp dport 22 drop",
        "udp sport != 53 drop",
        "tcp dport 1000-2000 drop",
        "ip protocol icmp drop",
        "meta l4proto udp drop",
        "iifname \"eth0\" drop",
        "oifname \"wg*\" drop",
        "meta mark != 0x00000007 drop",
        "ct state invalid drop",
        "ct state established,new drop",
        "ip saddr @s drop",
        "ip saddr != @s drop",
        "limit rate over 10/second burst 5 packets drop",
        "tcp flags syn drop",
        "ip ttl < 5 drop",
        "log prefix \"no: \" drop",
        "tcp dport 80 reject with tcp reset",
        "meta nfproto ipv6 drop",
        "numgen random mod 100 < 5 drop",
        "jump other",
    ];
    let script = "table inet t { set s { type ipv4_addr; }; chain other { }; chain c { type filter hook forward priority 0;\n";
    shell(&ns, &format!("nft -f - <<'END'\n{script}{}\n}}; }}\nEND", rules.join("\n")));
    let printed = shell(&ns, "nft -a list chain inet t c");
    let told: Vec<String> = ns
        .run(|| {
            let tables = nftables::read(&ProcRoot::new("/")).unwrap().unwrap();
            tables
                .rules
                .iter()
                .map(|r| format!("{} # handle {}", weir_netlink::nftables::text::render(r), r.handle))
                .collect()
        })
        .unwrap();
    assert_eq!(told.len(), rules.len());
    let lines: Vec<&str> = printed.lines().map(str::trim).filter(|l| l.contains("# handle")).collect();
    for (told, line) in told.iter().zip(&lines[1..]) {
        let plain = |text: &str| {
            text.replace("0x00000007", "7")
                .replace("counter packets 0 bytes 0", "counter")
                // Five is the default of nft, which it does not print.
                .replace(" burst 5 packets", "")
        };
        assert_eq!(plain(told), plain(line));
    }
}

#[test]
fn root_rules_are_listed_with_what_they_are_about() {
    if lacks(&["nft", "iptables-nft"]) {
        return;
    }
    let ns = NetNs::create().unwrap();
    shell(
        &ns,
        "nft -f - <<'END'
        table inet f {
            set allowed { type ipv4_addr; size 10; }
            chain through { type filter hook forward priority 0; policy drop;
                ct state invalid counter drop comment \"bad\"
                ip saddr @allowed accept
                tcp dport 1 limit rate 5/second accept
                tcp dport 2 log drop
                tcp dport 3 limit rate 1/second log
                numgen random mod 10 < 1 drop
                counter tcp dport 4 drop
                tcp dport 5 jump sub
                accept
            }
            chain sub { reject; }
        }
END
        iptables-nft -A FORWARD -m conntrack --ctstate INVALID -m comment --comment 'no state' -j DROP
        iptables-nft -A FORWARD -m conntrack --ctstate NEW -j DROP
        iptables-nft -A FORWARD -m limit --limit 1/s -j LOG
        iptables-nft -P FORWARD DROP",
    );
    let rules = ruleset(&ns);
    assert_eq!(rules.total, 13);
    let of = |chain: &str| rules.rules.iter().filter(|r| r.chain == chain).collect::<Vec<_>>();
    let forward = of("through");
    let seen: Vec<_> = forward
        .iter()
        .map(|r| {
            (
                r.position,
                r.verdict,
                r.invalid,
                r.limit,
                r.random,
                r.logs,
                r.set.as_deref(),
                r.packets.is_some(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (1, RuleVerdict::Drop, true, false, false, false, None, true),
            (2, RuleVerdict::Accept, false, false, false, false, Some("allowed"), false),
            (3, RuleVerdict::Accept, false, true, false, false, None, false),
            (4, RuleVerdict::Drop, false, false, false, true, None, false),
            (5, RuleVerdict::Other, false, true, false, false, None, false),
            (6, RuleVerdict::Drop, false, false, true, false, None, false),
            // Its counter counts what comes to it, not what it drops.
            (7, RuleVerdict::Drop, false, false, false, false, None, false),
        ]
    );
    assert_eq!(forward[0].comment.as_deref(), Some("bad"));
    assert_eq!(
        (of("sub")[0].verdict, of("sub")[0].hooks.clone()),
        (RuleVerdict::Reject, vec!["forward".to_owned()])
    );
    let chain = rules.chains.iter().find(|c| c.name == "through").unwrap();
    assert_eq!(
        (chain.backend, chain.policy, chain.policy_packets),
        (Backend::Nft, Some(RuleVerdict::Drop), None)
    );
    let old = of("FORWARD");
    assert_eq!(
        old.iter().map(|r| (r.backend, r.invalid)).collect::<Vec<_>>()[..2],
        [(Backend::IptablesNft, true), (Backend::IptablesNft, false)]
    );
    assert_eq!(old[0].comment.as_deref(), Some("no state"));
    assert!(old[0].packets.is_some() && old[2].limit && !old[2].logs);
    let chain = rules.chains.iter().find(|c| c.name == "FORWARD").unwrap();
    assert_eq!((chain.policy, chain.policy_packets), (Some(RuleVerdict::Drop), Some(Delta::at(0))));
    assert_eq!(rules.sets.len(), 1);
    assert_eq!((rules.sets[0].name.as_str(), rules.sets[0].size), ("allowed", Some(10)));
}

#[test]
fn root_the_old_tables_are_listed_as_iptables_prints_them() {
    if lacks(&["iptables-legacy"]) {
        return;
    }
    let ns = NetNs::create().unwrap();
    shell(
        &ns,
        "iptables-legacy -N sub
         iptables-legacy -A FORWARD -p tcp -m tcp --dport 80 -j DROP
         iptables-legacy -A FORWARD -p udp -m udp ! --sport 53 --dport 1000:2000 -m comment --comment why -j DROP
         iptables-legacy -A FORWARD -j sub
         iptables-legacy -A sub -m conntrack --ctstate INVALID -j DROP
         iptables-legacy -A sub -j ACCEPT
         iptables-legacy -P FORWARD DROP",
    );
    let rules = ruleset(&ns);
    assert_eq!(rules.total, 5);
    let of = |chain: &str| rules.rules.iter().filter(|r| r.chain == chain).collect::<Vec<_>>();
    let printed = shell(&ns, "iptables-legacy -S FORWARD");
    let lines: Vec<&str> = printed.lines().skip(1).collect();
    assert_eq!(of("FORWARD")[0].text, lines[0]);
    assert_eq!(of("FORWARD")[1].text, lines[1].replace(" -m comment --comment why", ""));
    assert_eq!((of("FORWARD")[1].handle, of("FORWARD")[1].comment.as_deref()), (2, Some("why")));
    assert_eq!((of("sub")[0].invalid, of("sub")[0].hooks.clone()), (true, vec!["forward".to_owned()]));
    let chain = rules.chains.iter().find(|c| c.name == "FORWARD").unwrap();
    assert_eq!((chain.backend, chain.policy), (Backend::IptablesLegacy, Some(RuleVerdict::Drop)));
}

#[test]
fn root_a_rule_behind_those_that_are_kept_is_named_all_the_same() {
    if lacks(&["nft"]) {
        return;
    }
    let ns = NetNs::create().unwrap();
    let many: String = (0..listing::RULES)
        .map(|n| format!("ip daddr 10.{}.{}.{} drop\n", n / 40_000, n / 200 % 200, n % 200))
        .collect();
    let script = "table ip t { chain c { type filter hook output priority 0;\n";
    shell(&ns, &format!("nft -f - <<'END'\n{script}{many}udp dport 7002 drop\n}}\n}}\nEND"));
    // RFC 791 and RFC 768 headers: from 127.0.0.1 port 5 to port 7002.
    let mut header = vec![0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1];
    header.extend([0, 5, 0x1b, 0x5a, 0, 8, 0, 0]);
    let sample = crate::evidence::Sample { length: 28, header, ..Default::default() };
    let group = DropGroup { ethertype: 0x0800, packets: 9, samples: vec![sample], ..DropGroup::default() };
    let inside = ns
        .run(|| {
            let root = ProcRoot::new("/");
            let mut inside = Namespace { rules: Some(read(&root).unwrap()), ..Namespace::default() };
            let tables = nftables::read(&root).unwrap().unwrap();
            decide::decide(&tables, &mut inside, &[(0, &group)], Some(0));
            inside
        })
        .unwrap();
    let rules = inside.rules.unwrap();
    let blamed: Vec<_> =
        rules.blame.iter().map(|b| (b.sure, rules.rules[b.rule.unwrap()].text.as_str())).collect();
    assert_eq!(blamed, [(1, "udp dport 7002 drop")]);
    assert_eq!(rules.rules.last().unwrap().position, listing::RULES as u64 + 1);
}

#[test]
fn a_counter_grows_from_what_it_was() {
    let rule = |packets| Rule {
        backend: Backend::Nft,
        family: "inet".into(),
        table: "t".into(),
        chain: "c".into(),
        handle: 4,
        position: 1,
        hooks: Vec::new(),
        text: String::new(),
        comment: None,
        verdict: RuleVerdict::Drop,
        packets: Some(Delta::at(packets)),
        invalid: false,
        limit: false,
        set: None,
        random: false,
        logs: false,
        decided: (0, 0),
    };
    let earlier = Ruleset { rules: vec![rule(5)], ..Ruleset::default() };
    let mut now = Ruleset { rules: vec![rule(12), Rule { handle: 9, ..rule(3) }], ..Ruleset::default() };
    since(&mut now, &earlier);
    assert_eq!(now.rules[0].packets.unwrap().change(), 7);
    assert_eq!(now.rules[1].packets.unwrap().change(), 3, "a new rule counts from zero");
}
