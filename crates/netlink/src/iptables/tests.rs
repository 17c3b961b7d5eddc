use std::process::Command;
use std::time::Duration;

use super::*;
use weir_sys::NetNs;
use weir_sys::privilege::test_needs_root;
use weir_sys::process::{run_with_input, which};

fn shell(ns: &NetNs, script: &str) -> String {
    let mut command = Command::new("sh");
    command.args(["-euc", script]);
    ns.enter_on_spawn(&mut command);
    let output = run_with_input(command, b"", Duration::from_secs(20)).unwrap();
    assert!(output.status.success(), "{script}: {}", output.message());
    output.stdout_text()
}

#[test]
fn root_rules_are_what_iptables_was_told() {
    if test_needs_root() {
        return;
    }
    if which("iptables-legacy").is_none() {
        println!("SKIP: iptables-legacy is not installed");
        return;
    }
    let ns = NetNs::create().unwrap();
    let told = ns.run(|| read(&ProcRoot::new("/")).unwrap()).unwrap();
    assert_eq!(told, [], "a namespace in which nobody used iptables has no tables, and reading makes none");
    shell(
        &ns,
        "iptables-legacy -N mine
         iptables-legacy -A FORWARD -s 192.0.2.0/24 -i eth0 -p tcp -m tcp --dport 80 -j DROP
         iptables-legacy -A FORWARD ! -d 198.18.0.1/32 -o wg+ -j mine
         iptables-legacy -A FORWARD -p udp
         iptables-legacy -A FORWARD -p udp -m limit --limit 5/s -j REJECT
         iptables-legacy -A FORWARD -p tcp -g mine
         iptables-legacy -A FORWARD -s 192.0.2.0/24 ! -f -j LOG --log-level 3
         ip6tables-legacy -N mine
         ip6tables-legacy -A OUTPUT -p tcp -g mine
         ip6tables-legacy -A OUTPUT -p tcp -j mine
         iptables-legacy -A mine -p icmp -j RETURN
         iptables-legacy -A mine -j ACCEPT
         iptables-legacy -P FORWARD DROP
         ip6tables-legacy -A INPUT -s 2001:2::/48 ! -i lo -p udp -j DROP",
    );
    let tables = ns.run(|| read(&ProcRoot::new("/")).unwrap()).unwrap();
    let ip = tables.iter().find(|t| t.family == Family::Ip && t.name == "filter").unwrap();
    let chain = |name: &str| ip.chains.iter().find(|c| c.name == name).unwrap();
    assert_eq!(
        ip.chains.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(),
        ["INPUT", "FORWARD", "OUTPUT", "mine"]
    );
    let forward = chain("FORWARD");
    assert_eq!(forward.policy, Some((Target::Drop, 0)));
    assert_eq!(chain("INPUT").policy, Some((Target::Accept, 0)));
    // The output of iptables itself, without the matches that have parameters.
    let printed = shell(&ns, "iptables-legacy -S FORWARD");
    let asked: Vec<&str> = forward.rules.iter().map(|r| r.asks.as_str()).collect();
    assert_eq!(
        asked,
        [
            "-s 192.0.2.0/24 -i eth0 -p tcp",
            "! -d 198.18.0.1/32 -o wg+",
            "-p udp",
            "-p udp",
            "-p tcp",
            "-s 192.0.2.0/24 ! -f"
        ]
    );
    for (line, asks) in printed.lines().skip(1).zip(asked) {
        assert!(line.starts_with(&format!("-A FORWARD {asks}")), "{line}");
    }
    let targets: Vec<&Target> = forward.rules.iter().map(|r| &r.target).collect();
    let (jump, goto) = (Target::Jump("mine".into()), Target::Goto("mine".into()));
    let (reject, log) = (Target::Named("REJECT".into()), Target::Named("LOG".into()));
    let wanted = [Target::Drop, jump.clone(), Target::Continue, reject, goto.clone(), log];
    assert_eq!(targets, wanted.iter().collect::<Vec<_>>());
    assert_eq!(forward.rules[0].matches[0].0, "tcp");
    // struct xt_log_info begins with the level.
    assert_eq!((forward.rules[5].parameters[0], forward.rules[5].revision), (3, 0));
    assert_eq!(
        text("FORWARD", &forward.rules[0]),
        "-A FORWARD -s 192.0.2.0/24 -i eth0 -p tcp -m tcp --dport 80 -j DROP"
    );
    assert_eq!(forward.rules[3].matches[0].0, "limit");
    let mine: Vec<&Target> = chain("mine").rules.iter().map(|r| &r.target).collect();
    assert_eq!(mine, [&Target::Return, &Target::Accept]);
    let ip6 = tables.iter().find(|t| t.family == Family::Ip6).unwrap();
    let output = ip6.chains.iter().find(|c| c.name == "OUTPUT").unwrap();
    assert_eq!(output.rules.iter().map(|r| &r.target).collect::<Vec<_>>(), [&goto, &jump]);
    let input = ip6.chains.iter().find(|c| c.name == "INPUT").unwrap();
    assert_eq!(input.rules[0].asks, "-s 2001:2::/48 ! -i lo -p udp");
}

#[test]
fn root_rules_count_what_they_meet() {
    if test_needs_root() {
        return;
    }
    if which("iptables-legacy").is_none() {
        println!("SKIP: iptables-legacy is not installed");
        return;
    }
    let ns = NetNs::create().unwrap();
    shell(&ns, "ip link set lo up; iptables-legacy -A OUTPUT -p udp -m udp --dport 9 -j DROP");
    ns.run(|| {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..7 {
            // A packet that a rule drops on the way out is a refusal to its sender.
            assert!(socket.send_to(b"x", "127.0.0.1:9").is_err());
        }
    })
    .unwrap();
    let tables = ns.run(|| read(&ProcRoot::new("/")).unwrap()).unwrap();
    let output = tables[0].chains.iter().find(|c| c.name == "OUTPUT").unwrap();
    assert_eq!((output.rules[0].packets, output.rules[0].target.clone()), (7, Target::Drop));
}

proptest::proptest! {
    #[test]
    fn garbage_never_panics(
        table in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..600),
        info in proptest::collection::vec(proptest::prelude::any::<u8>(), INFO..=INFO),
    ) {
        let info: [u8; INFO] = info.try_into().unwrap();
        for family in [Family::Ip, Family::Ip6] {
            // An entry is at least as long as its fixed part.
            proptest::prop_assert!(chains(&info, &table, family).len() <= 600 / IP.length + 1);
        }
    }
}
