use std::process::Command;
use std::time::Duration;

use super::*;
use weir_sys::NetNs;
use weir_sys::privilege::test_needs_root;
use weir_sys::process::{run_with_input, which};

pub(super) fn shell(ns: &NetNs, script: &str) {
    let mut command = Command::new("sh");
    command.args(["-euc", script]);
    ns.enter_on_spawn(&mut command);
    let output = run_with_input(command, b"", Duration::from_secs(20)).unwrap();
    assert!(output.status.success(), "{script}: {}", output.message());
}

fn tables(ns: &NetNs) -> Tables {
    ns.run(|| read(&ProcRoot::new("/")).unwrap().unwrap()).unwrap()
}

#[test]
fn root_chains_rules_and_counters_are_what_nft_was_told() {
    if test_needs_root() {
        return;
    }
    if which("nft").is_none() {
        println!("SKIP: nft is not installed");
        return;
    }
    let ns = NetNs::create().unwrap();
    shell(
        &ns,
        "ip link set lo up
         nft -f - <<'END'
        table inet f {
            counter shared { packets 7 bytes 700; }
            set s { type ipv4_addr; size 10; flags timeout; }
            chain in { type filter hook input priority -5; policy drop;
                iif lo jump sub comment \"to the sub chain\"
                ip saddr 192.0.2.0/24 counter packets 11 bytes 99 drop
                tcp dport { 22, 80 } accept
                meta l4proto udp limit rate over 10/second burst 3 packets reject
                ct state invalid counter name shared log prefix \"x: \" drop
            }
            chain sub { ip daddr @s goto other; }
            chain other { numgen random mod 100 < 5 drop; }
        }
        table netdev n { chain i { type filter hook ingress device lo priority 7; }; }
END",
    );
    let tables = tables(&ns);
    let base = |name: &str| tables.chains.iter().find(|c| c.name == name).unwrap().base.clone();
    let input = base("in").unwrap();
    assert_eq!(
        (input.hook, input.priority, input.drops, input.kind.as_str()),
        (Hook::Input, -5, true, "filter")
    );
    let ingress = base("i").unwrap();
    assert_eq!((ingress.hook, ingress.priority, ingress.drops), (Hook::Ingress, 7, false));
    assert_eq!(ingress.devices, ["lo"]);
    assert_eq!((base("sub"), base("other")), (None, None));
    assert_eq!(tables.counters[&(Family::Inet, "f".into(), "shared".into())], 7);

    let rules: Vec<_> = tables.rules.iter().filter(|r| r.chain == "in").collect();
    assert_eq!(rules.len(), 5);
    assert_eq!(rules[0].comment.as_deref(), Some("to the sub chain"));
    assert_eq!(rules[0].expressions.last(), Some(&Expression::Verdict(NftVerdict::Jump("sub".into()))));
    assert!(rules[1].expressions.contains(&Expression::Counter { packets: 11, bytes: 99 }));
    assert_eq!(rules[1].expressions.last(), Some(&Expression::Verdict(NftVerdict::Drop)));
    // 192.0.2.0/24 is compared as three bytes.
    let network =
        Expression::Compare { register: Register(0), with: Comparison::Equal, value: vec![192, 0, 2] };
    assert!(rules[1].expressions.contains(&network), "{:?}", rules[1]);
    let limit = Expression::Limit { rate: 10, per_seconds: 1, burst: 3, bytes: false, over: true };
    assert!(rules[3].expressions.contains(&limit), "{:?}", rules[3]);
    assert!(rules[3].expressions.iter().any(|e| matches!(e, Expression::Reject { .. })));
    assert!(rules[4].expressions.contains(&Expression::NamedCounter("shared".into())));
    assert!(rules[4].expressions.contains(&Expression::Log { prefix: "x: ".into(), group: None }));
    let goto = tables.rules.iter().find(|r| r.chain == "sub").unwrap();
    assert_eq!(goto.expressions.last(), Some(&Expression::Verdict(NftVerdict::Goto("other".into()))));
    let chance = tables.rules.iter().find(|r| r.chain == "other").unwrap();
    assert!(
        chance.expressions.iter().any(|e| {
            matches!(e, Expression::NumberGenerator { modulus: 100, random: true, offset: 0, .. })
        })
    );

    let set = tables.sets.iter().find(|s| s.name == "s").unwrap();
    assert_eq!(
        (set.anonymous, set.timeout, set.dynamic, set.size, set.key_length),
        (false, true, false, Some(10), 4)
    );
    assert!(matches!(set.count, None | Some(0)));
    assert_eq!(tables.sets.iter().filter(|s| s.anonymous).count(), 1);
    // Handles are what `nft -a` shows.
    let mut command = Command::new("nft");
    command.args(["-a", "list", "chain", "inet", "f", "in"]);
    ns.enter_on_spawn(&mut command);
    let shown = String::from_utf8(command.output().unwrap().stdout).unwrap();
    for rule in rules {
        assert!(shown.contains(&format!("# handle {}\n", rule.handle)), "{shown}");
    }
}

#[test]
fn root_a_set_says_what_it_holds() {
    if test_needs_root() {
        return;
    }
    if which("nft").is_none() {
        println!("SKIP: nft is not installed");
        return;
    }
    let ns = NetNs::create().unwrap();
    shell(
        &ns,
        "nft -f - <<'END'
        table ip t {
            set hash { type ipv4_addr; elements = { 192.0.2.1, 192.0.2.2 }; }
            set tree { type ipv4_addr; flags interval; elements = { 192.0.2.0/25, 198.51.100.7, 203.0.113.0-203.0.113.9 }; }
            set pair { type ipv4_addr . inet_service; flags interval; elements = { 192.0.2.0/24 . 1000-2000 }; }
            map where { type inet_service : verdict; elements = { 22 : accept, 23 : drop, 24 : jump c }; }
            map rest { type inet_service : verdict; flags interval; elements = { 22-25 : jump c, 80 : jump c, * : return }; }
            map marks { type ipv4_addr : mark; flags interval; elements = { 192.0.2.0/24 : 7 }; }
            chain c { }
        }
END",
    );
    let find = |set: &'static str, key: &'static [u8]| {
        ns.run(move || Asker::open().unwrap().find(Family::Ip, "t", set, key).unwrap()).unwrap()
    };
    let present = Some(Element::Present);
    assert_eq!((find("hash", &[192, 0, 2, 1]), find("hash", &[192, 0, 2, 3])), (present.clone(), None));
    for (key, inside) in [
        ([192, 0, 2, 0], true),
        ([192, 0, 2, 77], true),
        ([192, 0, 2, 127], true),
        ([192, 0, 2, 128], false),
        ([192, 0, 1, 255], false),
        ([198, 51, 100, 7], true),
        ([198, 51, 100, 8], false),
        ([203, 0, 113, 5], true),
        ([203, 0, 113, 10], false),
        ([0, 0, 0, 0], false),
        ([255, 255, 255, 255], false),
    ] {
        let found = ns.run(|| Asker::open().unwrap().find(Family::Ip, "t", "tree", &key).unwrap()).unwrap();
        assert_eq!(found.is_some(), inside, "{key:?}");
    }
    // Each part of a concatenation takes whole words of four bytes.
    assert_eq!(find("pair", &[192, 0, 2, 9, 0x05, 0xdc, 0, 0]), present);
    assert_eq!(find("pair", &[192, 0, 2, 9, 0x03, 0xe7, 0, 0]), None);
    assert_eq!(find("where", &[0, 22]), Some(Element::Verdict(NftVerdict::Accept)));
    assert_eq!(find("where", &[0, 23]), Some(Element::Verdict(NftVerdict::Drop)));
    assert_eq!(find("where", &[0, 24]), Some(Element::Verdict(NftVerdict::Jump("c".into()))));
    assert_eq!(find("where", &[0, 25]), None);
    let verdicts = |map: &'static str| {
        ns.run(move || Asker::open().unwrap().verdicts(Family::Ip, "t", map).unwrap()).unwrap()
    };
    let mut where_to = verdicts("where");
    where_to.keys.sort_by_key(|v| format!("{v:?}"));
    let jump = NftVerdict::Jump("c".into());
    assert_eq!(
        (where_to.keys, where_to.others),
        (vec![NftVerdict::Accept, NftVerdict::Drop, jump.clone()], None)
    );
    assert_eq!(verdicts("rest"), MapVerdicts { keys: vec![jump], others: Some(NftVerdict::Return) });
    assert_eq!(verdicts("marks"), MapVerdicts::default(), "its data are no verdicts");
    assert_eq!(find("marks", &[192, 0, 2, 200]), Some(Element::Value(7_u32.to_ne_bytes().to_vec())));
    assert!(ns.run(|| Asker::open().unwrap().find(Family::Ip, "t", "hash", &[1]).is_err()).unwrap());
}

#[test]
fn root_what_rules_write_and_objects_that_match_are_read() {
    if test_needs_root() {
        return;
    }
    if which("nft").is_none() {
        println!("SKIP: nft is not installed");
        return;
    }
    let ns = NetNs::create().unwrap();
    shell(
        &ns,
        "nft -f - <<'END'
        table ip t {
            limit slow { rate over 10/second }
            quota much { over 10 mbytes }
            chain c { type filter hook forward priority 0;
                ip ttl set 7
                ct mark set meta mark
                tcp option maxseg size set 1400
                limit name \"slow\" drop
                quota name \"much\" drop
            }
        }
END",
    );
    let tables = tables(&ns);
    let has =
        |rule: usize, wanted: &dyn Fn(&Expression) -> bool| tables.rules[rule].expressions.iter().any(wanted);
    assert!(has(0, &|e| matches!(e, Expression::PayloadSet { base: Base::Network, offset: 8, .. })));
    assert!(has(1, &|e| matches!(e, Expression::CtSet { key: 3, .. })));
    assert!(has(2, &|e| *e == Expression::TcpOptionSet { option: 2 }));
    for (rule, name) in [(3, "limit"), (4, "quota")] {
        assert!(has(rule, &|e| *e == Expression::Other { name: name.to_owned(), to: None }), "{name}");
    }
}

#[test]
fn root_rules_of_iptables_are_there_with_matches_and_targets() {
    if test_needs_root() {
        return;
    }
    if which("iptables-nft").is_none() {
        println!("SKIP: iptables-nft is not installed");
        return;
    }
    let ns = NetNs::create().unwrap();
    shell(
        &ns,
        "iptables-nft -P FORWARD DROP
         iptables-nft -A FORWARD -p tcp --dport 80 -m comment --comment hello -j REJECT
         iptables-nft -A FORWARD -m statistic --mode random --probability 0.5 -j DROP",
    );
    let tables = tables(&ns);
    let forward = tables.chains.iter().find(|c| c.name == "FORWARD").unwrap().base.clone().unwrap();
    assert_eq!((forward.hook, forward.drops, forward.packets), (Hook::Forward, true, Some(0)));
    let rules: Vec<_> = tables.rules.iter().filter(|r| r.chain == "FORWARD").collect();
    let named = |wanted: &str, e: &Expression| match e {
        Expression::Match { name, .. } | Expression::Target { name, .. } => name == wanted,
        _ => false,
    };
    assert!(rules[0].expressions.iter().any(|e| named("REJECT", e)));
    assert!(rules[1].expressions.iter().any(|e| named("statistic", e)));
    assert!(rules.iter().all(|r| r.expressions.iter().any(|e| matches!(e, Expression::Counter { .. }))));
}
