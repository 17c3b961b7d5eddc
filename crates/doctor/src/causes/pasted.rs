//! Fixes and their undo, pasted into a shell in a namespace of their own: the fix does something, and after the undo everything is
//! as it was but for handles.

use std::collections::BTreeSet;

use weir_sys::NetNs;
use weir_sys::privilege::test_needs_root;
use weir_sys::process::{run_with_input, which};

use super::evidences;
use crate::diagnosis::diagnose;
use crate::evidence::{Evidence, Rule};
use crate::finding::Fix;

/// A name that Linux allows for an interface, and that a shell and nft would both fall over.
const INTERFACE: &str = "-a;$(x)'`&|#b";
/// One that iptables allows for a chain.
const CHAIN: &str = "a;$(x)'`b";

const RULESET: &str = "nft -s list ruleset";
const TRAFFIC_CONTROL: &str = "tc qdisc show | sed 's/qdisc \\([a-z_]*\\) [0-9a-f]*:/qdisc \\1/'; \
                               tc class show dev NAME | sed 's/leaf [0-9a-f]*://'; tc filter show dev NAME ingress; tc filter show dev NAME egress";
const LINKS: &str = "ip -d -o link show | sed 's/state [A-Z]*//; s/,*LOWER_UP//; s/,*NO-CARRIER//'";
const SETTINGS: &str = "for i in /proc/sys/net/ipv4/conf/*; do echo \"$i\"; grep . \"$i/rp_filter\" \"$i/log_martians\" \
                        \"$i/accept_local\" \"$i/ignore_routes_with_linkdown\"; done";

fn lacks(programs: &[&str]) -> bool {
    if test_needs_root() {
        return true;
    }
    let missing = programs.iter().find(|p| which(p).is_none());
    missing.inspect(|p| println!("SKIP: {p} is not installed")).is_some()
}

fn shell(ns: &NetNs, script: &str) -> Result<String, String> {
    // The files that fixes leave in /root are in one of this script's own.
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-eu", "-s"]);
    ns.enter_on_spawn(&mut command);
    let script = format!("mount -t tmpfs tmpfs /root\n{script}");
    let output = run_with_input(command, script.as_bytes(), std::time::Duration::from_secs(20)).unwrap();
    if output.status.success() { Ok(output.stdout_text()) } else { Err(output.message()) }
}

/// The fixes of a cause in that stored evidence, as if they were typed in the namespace.
fn fixes(file: &str, cause: &str, change: impl Fn(&mut Evidence)) -> Vec<Fix> {
    let (_, mut evidence) = evidences().into_iter().find(|(name, _)| name.ends_with(file)).unwrap();
    evidence.namespaces.iter_mut().for_each(|n| n.own = true);
    change(&mut evidence);
    let found = diagnose(&evidence).findings.into_iter().find(|f| f.cause == cause);
    found.unwrap_or_else(|| panic!("{file}: {cause}")).fixes
}

/// Before a fix, after it, after its undo.
fn round(ns: &NetNs, fix: &Fix, show: &str, fill: &[(&str, &str)]) -> Result<[String; 3], String> {
    round_after("", ns, fix, show, fill)
}

/// The same after the commands of a setup.
fn round_after(
    setup: &str,
    ns: &NetNs,
    fix: &Fix,
    show: &str,
    fill: &[(&str, &str)],
) -> Result<[String; 3], String> {
    let filled = |lines: &[String]| {
        let text = lines.join("\n");
        fill.iter().fold(text, |text, (place, value)| text.replace(place, value))
    };
    let handle = "HANDLE=$(sed -n 's/.*# handle //p' /root/.out | tail -n 1)";
    let undo = filled(&fix.undo).replace("HANDLE_SHOWN_BY_THE_COMMAND_ABOVE", "$HANDLE");
    let script = format!(
        "{setup}\n{show}\necho =====\nexec 3>&1 >/root/.out\n{}\n{handle}\nexec >&3\n{show}\necho =====\n\
         exec >/root/.out\n{undo}\nexec >&3\n{show}",
        filled(&fix.commands)
    );
    let text = shell(ns, &script).map_err(|e| format!("{}: {e}\n{script}", fix.title))?;
    let parts: Vec<String> = text.split("=====\n").map(str::to_owned).collect();
    parts.try_into().map_err(|parts| format!("{parts:?}"))
}

/// Runs every fix that has an undo; how many there were.
fn all_return(ns: &NetNs, fixes: &[Fix], show: &str, fill: &[(&str, &str)]) -> usize {
    let changing = fixes.iter().filter(|fix| !fix.undo.is_empty());
    for fix in changing.clone() {
        let [before, during, after] = round(ns, fix, show, fill).unwrap_or_else(|e| panic!("{e}"));
        assert_ne!(before, during, "{}: {:?}", fix.title, fix.commands);
        assert_eq!(before, after, "{}: {:?}", fix.title, fix.undo);
    }
    changing.count()
}

/// A chain whose rules are not in the text of the evidence as nft reads them: an anonymous set that fills lines, a comment and a
/// prefix for which a shell has a meaning, a level of a log. The rule of the evidence is the one with the comment `here`.
fn firewall(ns: &NetNs, rule: &str) -> u64 {
    let many: Vec<String> = (0..120).map(|n| format!("192.0.2.{n}")).collect();
    let script = format!(
        "nft -f - <<'END'\n\
         table inet f-1.x {{\n\
         set allowed {{ type ipv4_addr; flags timeout; }}\n\
         chain other {{ }}\n\
         chain a/forward {{ type filter hook forward priority filter; policy drop;\n\
         udp dport 9 counter packets 7 bytes 9 jump other\n\
         ip saddr {{ {} }} drop comment \"it's; $(x) `y` {{ }} #\"\n\
         {rule} comment \"here\"\n\
         ip daddr @allowed accept\n\
         log prefix \"a; ' # \" level debug flags all\n\
         }}\n}}\nEND\n\
         nft -a list chain inet f-1.x a/forward | sed -n 's/.*\"here\" # handle //p'",
        many.join(", ")
    );
    shell(ns, &script).unwrap().trim().parse().unwrap()
}

fn in_firewall(evidence: &mut Evidence, handle: u64) {
    for rules in evidence.namespaces.iter_mut().filter_map(|n| n.rules.as_mut()) {
        for chain in &mut rules.chains {
            (chain.family, chain.table, chain.name) = ("inet".into(), "f-1.x".into(), "a/forward".into());
        }
        let place = |rule: &mut Rule| {
            (rule.family, rule.table, rule.chain) = ("inet".into(), "f-1.x".into(), "a/forward".into());
            rule.handle = handle;
        };
        rules.rules.iter_mut().for_each(place);
        for set in &mut rules.sets {
            (set.family, set.table) = ("inet".into(), "f-1.x".into());
        }
    }
}

#[test]
fn root_rules_of_nft_come_back_as_they_were() {
    if lacks(&["nft", "unshare"]) {
        return;
    }
    let fill = [
        ("RULE_AS_LISTED_WITH_A_HIGHER_NUMBER", "'udp dport 7001 limit rate 900/second accept'"),
        ("RULE_AS_LISTED_WITH_limit_rate_5/second_BEFORE_log", "'udp dport 53 limit rate 5/second log'"),
        ("RULE_AS_LISTED_WITHOUT_ITS_RANGE_OF_PORTS", "accept"),
        ("cp /root", "sed s/allowed/also/ /root"),
        ("before.nft /root/", "before.nft > /root/"),
        ("${EDITOR:-vi}", "true"),
    ];
    for (file, cause, rule, expected) in [
        ("recorded/nft-rule-drop.json", "nft-rule-drop", "udp dport 7002 drop", 2),
        ("recorded/rule-limit.json", "rule-limit", "udp dport 7001 limit rate 100/second accept", 2),
        ("recorded/rule-reject.json", "rule-reject", "tcp dport 7002 reject", 2),
        ("recorded/scan.json", "policy-drop", "udp dport 1 drop", 2),
        ("recorded/set-limit.json", "set-limit", "ip saddr @allowed accept", 2),
        ("examples/log-storm-1.json", "log-storm", "udp dport 53 log prefix \"dns \" level debug", 2),
        ("_forgotten.json", "conntrack-invalid-dropped", "ct state invalid counter drop", 1),
    ] {
        let ns = NetNs::create().unwrap();
        let handle = firewall(&ns, rule);
        let mut fixes = fixes(file, cause, |evidence| in_firewall(evidence, handle));
        fixes.retain(|fix| !fix.commands.iter().any(|c| c.starts_with("sysctl")));
        // Handles change when a chain is loaded again.
        let changing: Vec<Fix> = fixes.into_iter().filter(|f| !f.undo.is_empty()).collect();
        for fix in &changing {
            let again = NetNs::create().unwrap();
            assert_eq!(firewall(&again, rule), handle, "{file}");
            all_return(&again, std::slice::from_ref(fix), RULESET, &fill);
        }
        assert!(changing.len() >= expected, "{file}: {changing:#?}");
    }
}

/// A placeholder that is pasted as it is changes nothing.
#[test]
fn root_a_placeholder_is_refused_by_nft() {
    if lacks(&["nft", "unshare"]) {
        return;
    }
    let ns = NetNs::create().unwrap();
    let handle = firewall(&ns, "udp dport 7001 limit rate 100/second accept");
    let before = shell(&ns, RULESET).unwrap();
    let fixes = fixes("recorded/rule-limit.json", "rule-limit", |evidence| in_firewall(evidence, handle));
    let raise = fixes.iter().find(|f| f.title.starts_with("raise")).unwrap();
    assert!(shell(&ns, &raise.commands.join("\n")).unwrap_err().contains("syntax error"));
    // Neither does an undo without its fix.
    assert!(shell(&ns, &raise.undo.join("\n")).is_err());
    assert_eq!(shell(&ns, RULESET).unwrap(), before);
}

#[test]
fn root_rules_of_iptables_come_back_as_they_were() {
    if lacks(&["iptables-nft", "iptables-legacy", "unshare"]) {
        return;
    }
    for (file, cause, program) in [
        ("recorded/nft-rule-drop-iptables.json", "nft-rule-drop", "iptables"),
        ("recorded/policy-drop.json", "policy-drop", "iptables"),
        ("recorded/iptables-legacy-drop.json", "iptables-legacy-drop", "iptables-legacy"),
        ("recorded/bridge-netfilter.json", "bridge-netfilter", "iptables"),
    ] {
        let ns = NetNs::create().unwrap();
        let policy = cause == "policy-drop";
        let chain = if policy { "FORWARD" } else { CHAIN };
        let name = super::super::command::word(chain).unwrap();
        let make = if policy { format!("{program} -P FORWARD DROP") } else { format!("{program} -N {name}") };
        let script = format!(
            "{make}\n{program} -A {name} -p udp --dport 7002 -m comment --comment '; $(x) `y` #' -j DROP\n\
             {program} -A {name} -p tcp --dport 7003 -j ACCEPT"
        );
        shell(&ns, &script).unwrap();
        let mut fixes = fixes(file, cause, |evidence| {
            for rules in evidence.namespaces.iter_mut().filter_map(|n| n.rules.as_mut()) {
                let backend = match program {
                    "iptables" => crate::evidence::Backend::IptablesNft,
                    _ => crate::evidence::Backend::IptablesLegacy,
                };
                for c in &mut rules.chains {
                    (c.backend, c.table, c.name) = (backend, "filter".into(), chain.into());
                }
                rules.rules.iter_mut().for_each(|r| r.chain = chain.into());
            }
        });
        fixes.retain(|fix| !fix.commands.iter().any(|c| c.starts_with("sysctl")));
        let show = format!("{program}-save | sed '/^#/d; s/\\[[0-9:]*\\]//'");
        assert!(all_return(&ns, &fixes, &show, &[]) > 0, "{file}: {fixes:#?}");
    }
}

/// iptables-save writes a line feed in a comment as it is, and iptables-restore takes it for the end of the rule: then nothing is
/// deleted.
#[test]
fn root_a_rule_that_could_not_come_back_stays() {
    if lacks(&["iptables-nft", "unshare"]) {
        return;
    }
    let ns = NetNs::create().unwrap();
    shell(&ns, "iptables -A FORWARD -p udp --dport 7002 -m comment --comment \"$(printf 'a\\nb')\" -j DROP")
        .unwrap();
    let before = shell(&ns, "iptables -S").unwrap();
    assert!(shell(&ns, "iptables-save | iptables-restore --test").is_err());
    let fixes = fixes("recorded/nft-rule-drop-iptables.json", "nft-rule-drop", |_| {});
    let delete = fixes.iter().find(|f| f.title.contains("delete")).unwrap();
    assert!(shell(&ns, &delete.commands.join("\n")).is_err());
    assert_eq!(shell(&ns, "iptables -S").unwrap(), before);
}

/// Fixes that only add tables of their own, of every cause that has one.
#[test]
fn root_tables_of_their_own_come_and_go() {
    if lacks(&["nft", "unshare"]) {
        return;
    }
    let mut seen = std::collections::BTreeSet::new();
    for (file, mut evidence) in evidences() {
        named_by_hostile(&mut evidence);
        for finding in diagnose(&evidence).findings {
            let own = |fix: &&Fix| fix.commands.iter().any(|c| c.contains("add table"));
            for fix in finding.fixes.iter().filter(own) {
                if !seen.insert((finding.cause.clone(), fix.title.clone())) {
                    continue;
                }
                let ns = NetNs::create().unwrap();
                let name = super::super::command::word(INTERFACE).unwrap();
                shell(
                    &ns,
                    &format!(
                        "ip link add name {name} type veth peer name other\nip link set dev {name} up\n\
                                     nft 'add table inet f; add chain inet f c'"
                    ),
                )
                .unwrap();
                let fill = [
                    ("SECOND_ADDRESS", "198.19.0.9"),
                    ("OUTSIDE_ADDRESS", "192.0.2.8"),
                    ("FILTER_TABLE FORWARD_CHAIN", "f c"),
                    ("CLIENT_NETWORK/PREFIX", "192.0.2.0/24"),
                ];
                let show = format!("{RULESET} | sed '/ct state related accept/d'; ip -o address show");
                let [before, during, after] = round(&ns, fix, &show, &fill)
                    .unwrap_or_else(|e| panic!("{file}: {}: {e}", finding.cause));
                assert!(during.contains("table ") && during.contains("weir_"), "{file}: {during}");
                assert_ne!(before, during, "{file}");
                assert_eq!(before, after, "{file}: {}", finding.cause);
            }
        }
    }
    assert!(seen.len() >= 6, "{seen:?}");
}

/// Links, queues and settings of an interface whose name a shell would run.
#[test]
fn root_interfaces_come_back_as_they_were() {
    if lacks(&["ip", "tc", "unshare"]) {
        return;
    }
    let name = super::super::command::word(INTERFACE).unwrap();
    let root_pfifo = format!(
        "tc qdisc add dev {name} root handle 1: htb default 10\n\
         tc class add dev {name} parent 1: classid 1:10 htb rate 3mbit ceil 3mbit\n\
         tc qdisc add dev {name} parent 1:10 handle 10: pfifo limit 5"
    );
    let filter = format!(
        "tc qdisc add dev {name} clsact\n\
         tc filter add dev {name} ingress pref 49152 protocol all bpf da bytecode '1,6 0 0 2'"
    );
    let tbf = format!("tc qdisc add dev {name} root handle 1: tbf rate 8mbit burst 20000 limit 20000000");
    let quiet = |n: &str| format!("echo {n} > /proc/sys/net/ipv4/conf/{name}/rp_filter");
    for (file, cause, setup, show) in [
        ("recorded/qdisc-full.json", "qdisc-full", root_pfifo, TRAFFIC_CONTROL),
        ("recorded/bufferbloat.json", "bufferbloat", tbf, TRAFFIC_CONTROL),
        ("recorded/tc-drop.json", "tc-drop", filter, TRAFFIC_CONTROL),
        ("recorded/link-down.json", "link-down", String::new(), LINKS),
        ("recorded/mtu-mismatch.json", "mtu-mismatch", String::new(), LINKS),
        ("recorded/tap-queue-full.json", "tap-queue-full", String::new(), LINKS),
        ("examples/reverse-path-filter-3.json", "reverse-path-filter", quiet("1"), SETTINGS),
        ("examples/martian-source-1.json", "martian-source", String::new(), SETTINGS),
        ("examples/martian-source-2.json", "martian-source", String::new(), SETTINGS),
    ] {
        let ns = NetNs::create().unwrap();
        shell(&ns, &format!("ip link add name {name} type veth peer name other\n{setup}")).unwrap();
        let all = fixes(file, cause, |evidence| {
            named_by_hostile(evidence);
            let interfaces = evidence.namespaces.iter_mut().flat_map(|n| &mut n.interfaces);
            interfaces.flat_map(|i| &mut i.filters).for_each(|filter| filter.program = None);
        });
        let fill = [
            // Not every kernel has it.
            ("fq_codel", "pfifo limit 7"),
            ("RATE", "9mbit"),
            ("CEIL_BEFORE", "3mbit"),
            ("CEIL", "9mbit"),
            ("dmesg --follow", "true"),
            ("via NEXT_HOP ", ""),
        ];
        let mut ran = 0;
        for fix in all.iter().filter(|f| !f.undo.is_empty()) {
            // The undo first: it brings about what the evidence says is there now.
            let undo =
                fill.iter().fold(fix.undo.join("\n"), |text, (place, value)| text.replace(place, value));
            _ = shell(&ns, &format!("ip link set dev {name} up\n{undo}"));
            if fix.commands.iter().any(|c| c.contains("route")) {
                continue;
            }
            ran += all_return(&ns, std::slice::from_ref(fix), &show.replace("NAME", &name), &fill);
        }
        assert!(ran > 0, "{file}: {all:#?}");
    }
}

/// The setting that a command line sets, if that is all it does.
fn set_by(line: &str) -> Option<String> {
    let (name, _) = line.strip_prefix("sysctl -w ")?.rsplit_once('=')?;
    // The word of a shell as it is written: see `command::word`.
    Some(name.replace("'\\''", "\u{0}").replace('\'', "").replace('\u{0}', "'"))
}

/// A file below /proc/sys, for a setting with dots between its parts.
fn file_of(setting: &str) -> String {
    let swapped = |c| match c {
        '.' => '/',
        '/' => '.',
        c => c,
    };
    super::super::command::word(&setting.chars().map(swapped).collect::<String>()).unwrap()
}

/// Settings of the whole machine, and those of modules that are not loaded, are files of the shell's own.
fn own_files(settings: &BTreeSet<&str>) -> String {
    let mut script = String::from(
        "own() { f=${1%/*}; d=$f; until [ -d \"$d\" ]; do d=${d%/*}; done\n\
         [ $(stat -f -c %T \"$d\") = tmpfs ] || mount -t tmpfs tmpfs \"$d\"; mkdir -p \"$f\"; touch \"$1\"; }\n",
    );
    for setting in settings {
        let file = file_of(setting);
        // Those of a namespace are below net, and as this namespace has them, root may write them.
        let own =
            if setting.starts_with("net.") { format!("[ -w /proc/sys/{file} ] || ") } else { String::new() };
        script += &format!("{own}own /proc/sys/{file}\n");
    }
    script
}

/// Fixes that set nothing but settings, of every cause that has one.
#[test]
fn root_settings_come_back_as_they_were() {
    if lacks(&["sysctl", "ip", "unshare"]) {
        return;
    }
    let ns = NetNs::create().unwrap();
    let name = super::super::command::word(INTERFACE).unwrap();
    // The host of that evidence has less memory for fragments than this threshold usually allows.
    let setup = "echo 1 > /proc/sys/net/ipv4/ipfrag_low_thresh";
    shell(&ns, &format!("ip link add name {name} type veth peer name other\n{setup}")).unwrap();
    let mut seen = BTreeSet::new();
    for (file, mut evidence) in evidences() {
        named_by_hostile(&mut evidence);
        for finding in diagnose(&evidence).findings {
            for fix in &finding.fixes {
                let lines: Vec<&String> = fix.commands.iter().chain(&fix.undo).collect();
                let names: Vec<String> = lines.iter().filter_map(|line| set_by(line)).collect();
                let settings: BTreeSet<&str> = names.iter().map(String::as_str).collect();
                if fix.undo.is_empty() || lines.iter().any(|line| set_by(line).is_none()) {
                    continue;
                }
                if !seen.insert((finding.cause.clone(), fix.commands.clone())) {
                    continue;
                }
                // The undo first: it brings about what the evidence says is there now.
                let setup = format!("{}{} >/dev/null", own_files(&settings), fix.undo.join(" >/dev/null\n"));
                let files: Vec<String> =
                    settings.iter().map(|s| format!("/proc/sys/{}", file_of(s))).collect();
                let show = format!("for f in {}; do echo $(cat \"$f\"); done", files.join(" "));
                let [before, during, after] = round_after(&setup, &ns, fix, &show, &[])
                    .unwrap_or_else(|e| panic!("{file}: {}: {e}", finding.cause));
                assert_eq!(during, values(&fix.commands, &settings), "{file}: {:?}", fix.commands);
                assert_ne!(before, during, "{file}: {:?}", fix.commands);
                assert_eq!(before, values(&fix.undo, &settings), "{file}: {:?}", fix.undo);
                assert_eq!(before, after, "{file}: {:?}", fix.undo);
            }
        }
    }
    assert!(seen.len() >= 30, "{seen:?}");
}

/// The values that commands set, one a line in the order of the settings.
fn values(commands: &[String], settings: &BTreeSet<&str>) -> String {
    let value = |setting: &&str| {
        let line = commands.iter().find(|line| set_by(line).as_deref() == Some(setting));
        line.and_then(|line| Some(line.rsplit_once('=')?.1.trim_matches('\'').to_owned() + "\n"))
    };
    settings.iter().map(|setting| value(setting).unwrap_or_default()).collect()
}

/// Every interface, in the settings too, has the name that a shell would run.
fn named_by_hostile(evidence: &mut Evidence) {
    for namespace in &mut evidence.namespaces {
        namespace.own = true;
        for interface in namespace.interfaces.iter_mut().filter(|i| i.name != "lo") {
            let settings = std::mem::take(&mut namespace.settings);
            let renamed = |(k, v): (String, String)| {
                (k.replace(&format!(".{}.", interface.name), &format!(".{INTERFACE}.")), v)
            };
            namespace.settings = settings.into_iter().map(renamed).collect();
            interface.name = INTERFACE.into();
        }
    }
}
