//! `weir allow apply` on a host of its own, with packets from listed and unlisted addresses: which come in, which do not, and what
//! becomes of it without a confirmation, when it is killed, and when it is removed.

mod allow_world;
mod documents;

use allow_world::{BACKENDS, Gate, LISTED, UNLISTED, names};
use serde_json::Value;
use weir_testkit::{PATIENCE, World, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Both families: a listed and an unlisted address each.
const ALL: [&str; 4] = [LISTED[0], LISTED[1], UNLISTED[0], UNLISTED[1]];

/// Datagrams from each of them.
const SENT: u64 = 20;

fn only_listed() -> Vec<(u64, u64)> {
    vec![(SENT, SENT), (SENT, SENT), (SENT, 0), (SENT, 0)]
}

fn everybody() -> Vec<(u64, u64)> {
    vec![(SENT, SENT); 4]
}

fn send(gate: &Gate) -> Vec<(u64, u64)> {
    gate.send(&ALL, SENT as u32)
}

fn class<'a>(status: &'a Value, name: &str) -> &'a Value {
    let classes = status["loaded"]["classes"].as_array().unwrap();
    classes.iter().find(|class| class["name"] == name).unwrap()
}

#[test]
fn root_who_is_listed_comes_in_and_nobody_else_and_it_is_counted() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 100);
    assert_eq!(send(&gate), everybody());
    for backend in BACKENDS {
        let outcome = gate.apply("list", backend, &[]).expect(0);
        assert!(outcome.stdout.contains("undo: weir allow rollback"), "{}", outcome.stdout);
        assert_eq!(send(&gate), only_listed(), "{backend}");
        let status = gate.json(&["status"]);
        assert_eq!(status["loaded"]["backend"], backend);
        // Two addresses and two hundred prefixes of each family, none of which touch.
        assert_eq!(class(&status, "list")["ranges"], 202, "{status:#}");
        // Neighbour discovery between the unlisted address and the host is counted apart.
        assert_eq!(class(&status, "list")["packets"], 2 * SENT, "{status:#}");
        assert_eq!(class(&status, "rest")["packets"], 2 * SENT, "{status:#}");
        // An IPv4 datagram with two digits, with its headers, has 30 bytes; tc also sees Ethernet's 14.
        assert!(class(&status, "rest")["bytes"].as_u64().unwrap() >= SENT * (29 + 49), "{status:#}");
        if backend != "ipset" {
            let denied = status["loaded"]["denied"].as_array().unwrap();
            let of = |source| denied.iter().find(|d| d["source"] == source).map(|d| d["packets"].clone());
            assert_eq!(UNLISTED.map(of), [Some(SENT.into()), Some(SENT.into())], "{status:#}");
            assert_eq!(denied.len(), 2);
        }
        if backend != "nft" {
            assert!(status["loaded"]["memory_bytes"].as_u64().unwrap() > 1000, "{status:#}");
        }
        assert_eq!(status["set"]["guarded"], true);
        gate.run(&["rollback"]).expect(0);
        assert_eq!((gate.kernel(), send(&gate)), (String::new(), everybody()), "{backend}");
    }
}

#[test]
fn root_without_a_confirmation_what_was_loaded_before_comes_back() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 10);
    gate.world.write("other", "198.18.0.3\n2001:2::3\n");
    // From nothing, from the same back end, and from another one.
    for backend in BACKENDS {
        gate.apply("list", backend, &["--confirm-within", "2s"]).expect(0);
        until("the kernel without lists", PATIENCE, || gate.kernel().is_empty().then_some(()));
        gate.world.wait_until_idle();
        let late = gate.run(&["confirm"]).expect(1);
        assert!(late.stderr.contains("it was rolled back: not confirmed within 2 s"), "{}", late.stderr);
    }
    for (backend, next) in [("bpf", "bpf"), ("bpf", "nft"), ("nft", "ipset"), ("ipset", "ipset")] {
        gate.apply("list", backend, &[]).expect(0);
        gate.run(&["confirm"]).expect(0);
        let before = gate.kernel();
        gate.apply("other", next, &["--confirm-within", "2s", "--force"]).expect(0);
        assert_ne!(gate.kernel(), before);
        until("the lists of before", PATIENCE, || (gate.kernel() == before).then_some(()));
        gate.world.wait_until_idle();
        assert_eq!(send(&gate), only_listed(), "{backend}, {next}");
        gate.run(&["remove"]).expect(0);
    }
}

#[test]
fn root_where_the_lists_of_before_cannot_come_back_nobody_is_shut_out() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 10);
    gate.world.write("nobody", "203.0.113.9\n");
    gate.world.sh("ip link add in2 type veth peer name in3");
    gate.apply("list", "bpf", &["-i", "in2"]).expect(0);
    gate.run(&["confirm"]).expect(0);
    gate.apply("nobody", "bpf", &["--confirm-within", "3s", "--force"]).expect(0);
    // The lists of before were on this one, too.
    gate.world.sh("ip link del in2");
    until("the kernel without lists", PATIENCE, || gate.kernel().is_empty().then_some(()));
    gate.world.wait_until_idle();
    assert_eq!(send(&gate), everybody());
    let rollback = gate.run(&["rollback"]).expect(1);
    assert!(rollback.stdout.contains("could not be rolled back"), "{rollback:?}");
    assert_eq!(send(&gate), everybody());
    // Removing settles it, and the next policy may come.
    gate.run(&["remove"]).expect(0);
    gate.apply("list", "bpf", &[]).expect(0);
    assert_eq!(send(&gate), only_listed());
    gate.run(&["rollback"]).expect(0);
}

#[test]
fn root_an_interface_that_was_made_again_is_filtered_after_the_next_apply() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 10);
    let again = "ip link del in2; ip link add in2 type veth peer name in3";
    gate.world.sh("ip link add in2 type veth peer name in3");
    let apply = || gate.run(&["apply", "list", "-i", "in2", "--confirm-within", "1h"]);
    apply().expect(0);
    gate.run(&["confirm"]).expect(0);
    gate.world.sh(again);
    assert!(gate.kernel().contains(" gone "), "{}", gate.kernel());
    let outcome = apply().expect(0);
    assert!(outcome.stdout.contains("loaded in"), "{outcome:?}");
    let kernel = gate.kernel();
    assert!(
        kernel.contains("bpf tc-") && kernel.lines().count() == 1 && !kernel.contains("gone"),
        "{kernel}"
    );
    gate.run(&["rollback"]).expect(0);
    assert_eq!(gate.kernel(), "");
}

#[test]
fn root_what_was_confirmed_is_loaded_again_after_a_reboot() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 10);
    gate.list("longer", 20);
    for backend in BACKENDS {
        gate.apply("list", backend, &[]).expect(0);
        assert_eq!(gate.json(&["status"])["boot"], Value::Null);
        gate.run(&["confirm"]).expect(0);
        let before = gate.kernel();
        // On trial only: a reboot brings back what was confirmed.
        gate.apply("longer", backend, &[]).expect(0);
        gate.run(&["unload"]).expect(0);
        assert_eq!(gate.kernel(), "");
        gate.run(&["restore"]).expect(0);
        assert_eq!((gate.kernel(), send(&gate)), (before, only_listed()), "{backend}");
        let unit = gate.run(&["restore", "--unit"]).expect(0).stdout;
        let order = if backend == "bpf" {
            "After=sys-subsystem-net-devices-in0.device"
        } else {
            "Before=network-pre"
        };
        assert!(unit.contains(order) && unit.contains("allow restore\n"), "{unit}");
        gate.run(&["remove"]).expect(0);
        assert!(gate.run(&["restore"]).expect(0).stdout.contains("nothing was confirmed"));
        assert_eq!(gate.kernel(), "");
    }
}

#[test]
fn root_apply_killed_at_each_step_leaves_nothing() {
    if !cfg!(debug_assertions) {
        println!("SKIP: needs a build with debug assertions, which lets itself be killed at a step");
        return;
    }
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 10);
    for backend in BACKENDS {
        let mut deaths = 0;
        for step in 1..20 {
            let args = ["apply", "list", "-i", "in0", "--backend", backend, "--confirm-within", "1h"];
            let mut command = gate.weir(&args);
            command.env("WEIR_GUARD_STOP_AT", step.to_string());
            if gate.world.run(command).code == 0 {
                break;
            }
            deaths += 1;
            gate.world.wait_until_idle();
            assert_eq!(gate.kernel(), "", "{backend}, step {step}");
            assert_eq!(
                gate.json(&["status"])["set"]["progress"]["phase"],
                "reverted",
                "{backend}, step {step}"
            );
        }
        // The beginning, two lines and one change, waiting.
        assert_eq!(deaths, 1 + 3 + 1, "{backend}");
        gate.run(&["remove"]).expect(0);
        gate.world.wait_until_idle();
        assert_eq!(gate.kernel(), "");
    }
}

#[test]
fn root_whoever_would_shut_himself_out_is_refused_unless_he_insists() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 10);
    let from = |name: &str, value: &str, more: &[&str]| {
        let args = ["apply", "list", "-i", "in0", "--backend", "nft", "--confirm-within", "1h"];
        let mut command = gate.weir(&[&args[..], more].concat());
        command.env(name, value);
        gate.world.run(command)
    };
    let refused = from("SSH_CONNECTION", "198.18.0.3 50000 198.18.0.1 22", &[]).expect(3);
    assert!(
        refused.stderr.contains("would shut out 198.18.0.3") && refused.complaints().len() == 1,
        "{refused:?}"
    );
    from("SSH_CLIENT", "2001:2::3 50000 22", &[]).expect(3);
    assert_eq!(gate.kernel(), "");
    assert!(names(&gate.state().join("allow")).is_empty(), "nothing was written either");
    // A source that is listed, comes in elsewhere, or by a service that is not judged, is not shut out.
    for (value, more) in [
        ("198.18.0.2 50000 198.18.0.1 22", &[][..]),
        ("127.0.0.1 50000 127.0.0.1 22", &[]),
        ("198.18.0.3 50000 198.18.0.1 22", &["--port", "tcp/80,tcp/443"]),
        ("198.18.0.3 50000 198.18.0.1 22", &["--hook", "forward"]),
        ("198.18.0.3 50000 198.18.0.1 22", &["--class", "me=own:allow"]),
        ("198.18.0.3 50000 198.18.0.1 22", &["--force"]),
    ] {
        gate.world.write("own", "198.18.0.3\n");
        from("SSH_CONNECTION", value, more).expect(0);
        gate.run(&["rollback"]).expect(0);
    }
}

#[test]
fn root_a_connection_to_an_ssh_server_is_found_without_any_variable() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 10);
    // Not a real one: what counts is whose connection it is.
    let server = "import socket, sys
open('/proc/self/comm', 'w').write('sshd-session')
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(('198.18.0.1', 2222)); s.listen()
print('ready', file=sys.stderr, flush=True)
c = s.accept()[0]
print('connected', file=sys.stderr, flush=True)
c.recv(1)
";
    gate.world.write("server.py", server);
    let mut command = gate.world.command("python3");
    command.arg("server.py");
    let mut server = gate.world.start("server", command);
    server.wait_for("ready");
    let client = "import socket
s = socket.create_connection(('198.18.0.1', 2222), source_address=('198.18.0.3', 0)); s.recv(1)";
    let mut command = gate.world.command("ip");
    command.args(["netns", "exec", "out", "python3", "-c", client]);
    let client = gate.world.start("client", command);
    server.wait_for("connected");
    let refused = gate.apply("list", "nft", &[]).expect(3);
    assert!(
        refused.stderr.contains("shut out 198.18.0.3 (connected to sshd-session (process "),
        "{refused:?}"
    );
    drop((client, server));
}

#[test]
fn root_a_list_that_shrank_much_is_refused_and_an_empty_one_always() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 100);
    gate.list("less", 70);
    gate.world.write("empty", "# nothing\n");
    gate.apply("list", "nft", &[]).expect(0);
    gate.run(&["confirm"]).expect(0);
    let before = gate.kernel();
    let refused = gate.apply("less", "bpf", &[]).expect(3);
    assert!(refused.stderr.contains("class list: 30 % fewer IPv4 addresses"), "{}", refused.stderr);
    gate.apply("empty", "nft", &["--force"]).expect(2);
    assert_eq!(gate.kernel(), before);
    let same = gate.apply("list", "nft", &[]).expect(0);
    assert!(same.stderr.contains("in effect already"), "{}", same.stderr);
    gate.apply("less", "nft", &["--force"]).expect(0);
    assert_ne!(gate.kernel(), before);
    // One that waits must be decided before the next.
    let waits = gate.apply("list", "nft", &[]).expect(1);
    assert!(waits.stderr.contains("waits to be confirmed"), "{}", waits.stderr);
}

#[test]
fn root_remove_takes_everything_away_in_any_state() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 10);
    assert!(gate.run(&["remove"]).expect(0).stdout.contains("nothing was loaded"));
    for backend in BACKENDS {
        // On trial: the guard goes, too.
        gate.apply("list", backend, &[]).expect(0);
        assert!(gate.guards().len() == 2);
        gate.run(&["remove"]).expect(0);
        gate.world.wait_until_idle();
        assert_eq!((gate.kernel(), send(&gate)), (String::new(), everybody()), "{backend}");
    }
    // Half of it, as a killed process or an administrator leaves it.
    for (backend, damage) in [
        ("nft", "nft delete chain inet weir_allow input"),
        ("ipset", "iptables -F weir0-allow"),
        ("ipset", "iptables -D INPUT -i in0 -j weir0-allow; ipset create weir1-1-4 hash:net"),
        ("ipset", "ipset create weir0-9-4- hash:net"),
        ("bpf", "rm /sys/fs/bpf/weir/allow/links/*"),
        ("bpf", "for d in /sys/fs/bpf/weir/allow/*-0; do rm $d/control $d/allow_ingress; done"),
        ("bpf", "mkdir /sys/fs/bpf/weir/allow/other"),
        ("bpf", "ip link del in0"),
    ] {
        gate.apply("list", backend, &[]).expect(0);
        gate.run(&["confirm"]).expect(0);
        gate.world.sh(damage);
        assert_ne!(gate.kernel(), "", "{damage}");
        gate.run(&["remove"]).expect(0);
        assert_eq!(gate.kernel(), "", "{damage}");
        assert!(gate.run(&["remove"]).expect(0).stdout.contains("nothing was loaded"));
    }
    // A journal that cannot be read does not keep it.
    gate.world.sh("ip link add in0 type veth peer name in1");
    gate.apply("list", "bpf", &[]).expect(0);
    gate.run(&["confirm"]).expect(0);
    std::fs::write(gate.state().join("guard/allow.journal"), "nonsense\n").unwrap();
    let removed = gate.run(&["remove"]).expect(0);
    assert!(removed.stderr.contains("warning: the journal"), "{}", removed.stderr);
    assert_eq!(gate.kernel(), "");
    let left = gate.world.sh("nft list ruleset | grep -c weir || true; ipset list -n; ls /sys/fs/bpf");
    assert!(left.starts_with('0') && !left.contains("weir"), "{left}");
}

#[test]
fn root_answers_come_in_where_established_connections_go_first() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 10);
    // Asks an unlisted address, and waits for its answer.
    let ask = "import socket, sys
for a in ('198.18.0.3', '2001:2::3'):
    s = socket.create_connection((a, 7001), timeout=1); assert s.recv(2) == b'hi'; s.close()
";
    let answer = "import socket, sys
s = socket.socket(socket.AF_INET6); s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
s.bind(('::', 7001)); s.listen(); print('ready', file=sys.stderr, flush=True)
while True:
    c = s.accept()[0]; c.send(b'hi'); c.close()
";
    gate.world.write("answer.py", answer);
    let mut command = gate.world.command("ip");
    command.args(["netns", "exec", "out", "python3", "answer.py"]);
    let mut server = gate.world.start("answer", command);
    server.wait_for("ready");
    let asked = || {
        let mut command = gate.world.command("python3");
        command.args(["-c", ask]);
        gate.world.run(command).code == 0
    };
    assert!(asked());
    for backend in BACKENDS {
        gate.apply("list", backend, &[]).expect(0);
        assert!(!asked(), "{backend}: the answer comes from an unlisted address");
        gate.run(&["rollback"]).expect(0);
        if backend == "bpf" {
            let missing = gate.apply("list", backend, &["--established-first"]).expect(4);
            assert!(missing.stderr.contains("nothing here has connections tracked"), "{}", missing.stderr);
            gate.world
                .sh("nft 'add table inet t; add chain inet t c { type filter hook input priority 0; }; \
                 add rule inet t c ct state established accept'");
        }
        gate.apply("list", backend, &["--established-first"]).expect(0);
        assert!(asked(), "{backend}");
        assert_eq!(send(&gate), only_listed(), "{backend}");
        let established = gate.json(&["status"])["loaded"]["established_packets"].as_u64().unwrap();
        // Two connections: the second packet of the opening, data and the end come from there.
        assert!(established >= 2 * 2, "{backend}: {established}");
        gate.run(&["rollback"]).expect(0);
        gate.world.sh("nft delete table inet t 2>/dev/null || true; conntrack -F 2>/dev/null || true");
    }
}

#[test]
fn root_each_class_has_its_action_and_the_first_one_wins() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.world.write("bad", format!("{}\n", LISTED[0]));
    gate.world.write("watched", format!("{}\n", UNLISTED[0]));
    gate.world.write("marked", format!("{}\n{}\n", UNLISTED[1], LISTED[0]));
    gate.list("list", 10);
    // Marks that arrive are counted by a rule behind ours.
    gate.world.sh("nft 'add table inet m; add chain inet m c { type filter hook input priority 10; }; \
         add rule inet m c meta mark 7 udp dport 7000 counter'");
    for backend in BACKENDS {
        let classes =
            ["--class", "bad=bad:drop", "--class", "watched=watched:log", "--class", "marked=marked:mark=7"];
        gate.apply("list", backend, &classes).expect(0);
        gate.world.sh("nft reset counters >/dev/null; nft reset rules >/dev/null 2>&1 || true");
        let before = marked(&gate);
        assert_eq!(send(&gate), [(SENT, 0), (SENT, SENT), (SENT, SENT), (SENT, SENT)], "{backend}");
        let status = gate.json(&["status"]);
        let packets =
            ["bad", "watched", "marked", "list", "rest"].map(|name| class(&status, name)["packets"].clone());
        assert_eq!(packets, [SENT, SENT, SENT, SENT, 0].map(Value::from), "{backend}: {status:#}");
        assert_eq!(marked(&gate) - before, SENT, "{backend}");
        gate.run(&["rollback"]).expect(0);
    }
}

/// Packets that the rule behind ours saw with the mark.
fn marked(gate: &Gate) -> u64 {
    let text = gate.world.sh("nft list chain inet m c");
    let words: Vec<&str> = text.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "packets").unwrap();
    words[at + 1].parse().unwrap()
}

#[test]
fn root_ports_and_hooks_narrow_what_is_judged() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 10);
    for backend in ["nft", "ipset"] {
        for (more, expected) in [
            (&["--port", "udp/7000"][..], only_listed()),
            (&["--port", "tcp/7000,udp/7001"], everybody()),
            (&["--hook", "input"], only_listed()),
            (&["--hook", "forward"], everybody()),
        ] {
            gate.apply("list", backend, more).expect(0);
            assert_eq!(send(&gate), expected, "{backend} {more:?}");
            gate.run(&["rollback"]).expect(0);
        }
    }
    for more in [&["--port", "udp/7000"][..], &["--hook", "input"], &["--xdp", "--established-first"]] {
        gate.apply("list", "bpf", more).expect(2);
    }
    let marks = gate.apply("list", "bpf", &["--xdp=generic", "--action", "mark=7"]).expect(2);
    assert!(marks.stderr.contains("at XDP no packet has a mark yet"), "{}", marks.stderr);
    gate.apply("list", "bpf", &["--xdp=generic"]).expect(0);
    assert_eq!(send(&gate), only_listed());
    let kernel = gate.kernel();
    assert!(kernel.contains("bpf xdp-generic-"), "{kernel}");
    gate.run(&["confirm"]).expect(0);
    // From XDP to tc and back: the other place is left.
    gate.apply("list", "bpf", &[]).expect(0);
    let kernel = gate.kernel();
    assert!(kernel.contains("bpf tc-") && !kernel.contains("xdp"), "{kernel}");
    gate.run(&["rollback"]).expect(0);
    assert!(gate.kernel().contains("bpf xdp-generic-"));
}

#[test]
fn wrong_use_is_told_in_one_message() {
    let world = World::plain(WEIR);
    world.write("list", "192.0.2.0/24\n");
    for (args, words) in [
        (&["list"][..], "--interface"),
        (&["list", "-i", "x", "--action", "accept"], "expected allow, drop, log or mark=NUMBER"),
        (&["list", "-i", "x", "--class", "a=b"], "NAME=FILE:ACTION"),
        (&["list", "-i", "x", "--port", "22"], "expected tcp/NUMBER or udp/NUMBER"),
        (&["list", "-i", "x", "--confirm-within", "0"], "1 s to 1 d"),
    ] {
        let outcome = world.run(world.weir(&[&["allow", "apply"], args].concat())).expect(2);
        assert!(outcome.stderr.contains(words), "{args:?}: {}", outcome.stderr);
    }
}

#[test]
fn root_what_cannot_be_loaded_changes_nothing() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 10);
    for (args, code, words) in [
        (&["apply", "list", "-i", "lo"][..], 2, "what a host says to itself"),
        (&["apply", "list", "-i", "nothere"], 1, "nothere"),
        (&["apply", "list", "-i", "in0", "--default", "allow"], 2, "filter nothing"),
        (&["apply", "-i", "in0"], 2, "name a FILE"),
        (&["confirm"], 1, "nothing was applied here"),
        (&["rollback"], 1, "nothing was applied here"),
    ] {
        let outcome = gate.run(args).expect(code);
        assert!(outcome.stderr.contains(words), "{args:?}: {}", outcome.stderr);
        assert_eq!(outcome.complaints().len(), 1, "{args:?}: {}", outcome.stderr);
        assert_eq!(gate.kernel(), "");
    }
    // Without privilege it is root that is missing.
    let drop = "exec setpriv --reuid 65534 --clear-groups --inh-caps=-all --bounding-set=-all";
    for command in ["apply list -i in0", "confirm", "rollback", "status", "remove", "restore"] {
        let mut shell = gate.world.shell(&format!("{drop} {WEIR} allow {command}"));
        shell.env("WEIR_STATE_DIR", gate.state());
        let outcome = gate.world.run(shell).expect(4);
        assert!(outcome.stderr.contains("needs root"), "{command}: {}", outcome.stderr);
    }
}
