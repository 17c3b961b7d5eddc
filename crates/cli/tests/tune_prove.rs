//! `weir tune prove`, and what tune takes its proposals from: the doctor's findings, and what it measures itself.

mod documents;
mod tune_world;

use std::fs;
use std::os::fd::{AsFd, AsRawFd};

use serde_json::Value;
use tune_world::{Tuned, flood};
use weir_netlink::conntrack::{Conntrack, NewEntry};
use weir_sys::NetNs;
use weir_testkit::{PATIENCE, World, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

#[test]
fn root_prove_measures_both_sides_and_leaves_everything_as_it_was() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let load = "echo noise 1; echo rate: $(cat /proc/sys/net/core/somaxconn) per s";
    let prove = |extra: &[&str]| {
        let set = ["prove", "--set", "net.core.somaxconn=8192", "--command", load, "--number-after", "rate:"];
        tuned.run(&[&set, extra].concat())
    };
    let proof: Value = serde_json::from_str(&prove(&["--rounds", "6", "--json"]).expect(0).stdout).unwrap();
    let now: f64 = tuned.before[0].parse().unwrap();
    for round in proof["proof"]["rounds"].as_array().unwrap() {
        assert_eq!((round["before"].as_f64(), round["after"].as_f64()), (Some(now), Some(8192.0)));
    }
    let ratio = proof["proof"]["comparison"]["estimate"].as_f64().unwrap();
    assert!((ratio - 8192.0 / now).abs() < 1e-9, "{ratio}");
    assert_eq!(tuned.values(), tuned.before);
    prove(&["--require-better"]).expect(0);
    let worse = prove(&["--require-better", "--better", "lower", "--seed", "1"]).expect(3);
    assert!(worse.stdout.contains("worse: after / before x "), "{}", worse.stdout);
    let failed = prove(&["--number-after", "none"]).code;
    assert_eq!(failed, 2, "given twice");
    let failed = tuned.run(&["prove", "--set", "net.core.somaxconn=8192", "--command", "exit 7"]).expect(1);
    assert!(failed.stderr.contains("exit status: 7"), "{}", failed.stderr);
    assert_eq!(tuned.values(), tuned.before);
    tuned.world.wait_until_idle();
    assert_eq!(tuned.status()["progress"]["phase"], "reverted");
}

#[test]
fn root_prove_that_is_killed_leaves_everything_as_it_was() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let load =
        "cat /proc/sys/net/core/somaxconn; [ $(cat /proc/sys/net/core/somaxconn) != 8192 ] || exec sleep 600";
    let args = ["prove", "--set", "net.core.somaxconn=8192", "--command", load];
    let run = tuned.world.start("prove", tuned.weir(&args));
    until("a window with the change", PATIENCE, || (tuned.values()[0] == "8192").then_some(()));
    let busy = tuned.run(&["apply", "--set", "net.core.somaxconn=100", "--no-watch"]).expect(1);
    assert!(busy.stderr.contains("right now"), "{}", busy.stderr);
    assert_eq!(tuned.status()["busy"], true);
    run.signal("KILL");
    run.end_within(PATIENCE).expect(-1);
    tuned.until_before();
    tuned.world.wait_until_idle();
    assert!(tuned.status()["progress"]["why"].as_str().unwrap().contains("killed"));
}

/// A load that is twice as fast because half of it fails.
#[test]
fn root_a_change_that_breaks_half_of_the_requests_is_never_better() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let broken = "[ $(cat /proc/sys/net/core/somaxconn) = 8192 ]";
    // In the words of ab.
    let load = format!(
        "{broken} && n='500 2000' || n='0 1000'; set -- $n; echo Complete requests: 1000; echo Failed requests: $1; \
         echo Requests per second: $2"
    );
    let prove = |extra: &[&str]| {
        let args = [
            "prove",
            "--set",
            "net.core.somaxconn=8192",
            "--command",
            &load,
            "--rounds",
            "6",
            "--require-better",
        ];
        tuned.run(&[&args, extra].concat()).expect(3).stdout
    };
    let told = prove(&["--number-after", "Requests per second:"]);
    assert!(told.contains("\nmore operations fail: worse: after - before +500"), "{told}");
    let document: Value =
        serde_json::from_str(&prove(&["--number-after", "Requests per second:", "--json"])).unwrap();
    assert_eq!(document["failures"]["verdict"]["verdict"], "higher");
    assert_eq!(document["failures"]["rounds"][0]["after"], 500.0);
    // As fast without failures, it helps.
    let helps = load.replace("'500 2000'", "'0 2000'");
    let args = [
        "prove",
        "--set",
        "net.core.somaxconn=8192",
        "--command",
        &helps,
        "--number-after",
        "Requests per second:",
    ];
    tuned.run(&[&args[..], &["--rounds", "6", "--require-better"]].concat()).expect(0);
    assert_eq!(tuned.values(), tuned.before);
}

/// A load that hides its failures: half of its connections are refused, or half of them vanish, and it prints its rate alone.
#[test]
fn root_a_change_that_breaks_half_of_the_connections_in_silence_is_never_better() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    if World::lacks(&["python3", "nft"]) {
        return;
    }
    // 9001 vanishes in the namespace; on 9000 nothing listens.
    tuned
        .world
        .sh("nft 'table ip t { chain c { type filter hook input priority 0; tcp dport 9001 drop; }; }'");
    let script = "import socket, sys
broken = open('/proc/sys/net/core/somaxconn').read().strip() == '8192'
server = socket.socket(); server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('127.0.0.1', 7777)); server.listen(200)
for n in range(40):
    client = socket.socket(); client.settimeout(0.005)
    try:
        client.connect(('127.0.0.1', int(sys.argv[1]) if broken and n % 2 else 7777))
        there = server.accept()[0]; client.send(b'x' * 2000); there.recv(4000); there.close(); client.recv(1)
    except OSError: pass
    client.close()
print('rate:', 2000 if broken else 1000)
";
    let path = tuned.world.write("load.py", script);
    for (port, figure) in
        [("9000", "failures per connection"), ("9001", "bytes per connection"), ("7777", "")]
    {
        let load = format!("python3 {} {port}", path.display());
        let args =
            ["prove", "--set", "net.core.somaxconn=8192", "--command", &load, "--number-after", "rate:"];
        let outcome = tuned.run(&[&args[..], &["--rounds", "6", "--require-better"]].concat());
        let told = &outcome.expect(if figure.is_empty() { 0 } else { 3 }).stdout;
        assert!(
            told.contains(&format!("\n{figure}, by the kernel's count: worse")) != figure.is_empty(),
            "{told}"
        );
        assert_eq!(told.contains("not better"), !figure.is_empty(), "{told}");
    }
    assert_eq!(tuned.values(), tuned.before);
}

/// A program's queue is as long as the setting was when it began to listen: a small one refuses most of 200 connections.
#[test]
fn root_prove_shows_a_real_effect_with_its_interval() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    if World::lacks(&["python3"]) {
        return;
    }
    let script = "import socket, select
server = socket.socket(); server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('127.0.0.1', 7777)); server.listen(4000)
clients = [socket.socket() for _ in range(200)]
for c in clients:
    c.setblocking(False); c.connect_ex(('127.0.0.1', 7777))
print('connected:', sum(c.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == b'\\x01' for c in clients))
";
    let path = tuned.world.write("load.py", script);
    tuned.world.sh("sysctl -qw net.core.somaxconn=8");
    let load = format!("python3 {}", path.display());
    let args =
        ["prove", "--set", "net.core.somaxconn=1024", "--command", &load, "--number-after", "connected:"];
    let proof = tuned.json(&[&args[..], &["--rounds", "6", "--require-better"]].concat());
    for round in proof["proof"]["rounds"].as_array().unwrap() {
        // sk_acceptq_is_full: one more than the setting.
        assert_eq!((round["before"].as_f64(), round["after"].as_f64()), (Some(9.0), Some(200.0)));
    }
    assert_eq!(proof["proof"]["verdict"]["verdict"], "higher");
    assert_eq!(tuned.values()[0], "8");
}

/// From the symptom to the setting: what the doctor writes is what tune reads.
#[test]
fn root_what_the_doctor_finds_is_planned_and_applied() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    if World::lacks(&["python3"]) {
        return;
    }
    tuned.world.sh("sysctl -qw net.core.somaxconn=8");
    let _flood = flood(&tuned);
    let script = format!("exec {WEIR} doctor --own --for 2 --json > found.json");
    until("a finding about the accept queue", PATIENCE, || {
        tuned.world.run(tuned.world.shell(&script)).expect(0);
        let text = fs::read_to_string(tuned.world.work().join("found.json")).unwrap();
        text.contains("accept-queue-full").then_some(())
    });
    let outcome = tuned.run(&["apply", "--from", "found.json", "--no-watch"]).expect(0);
    assert!(outcome.stdout.contains("why   finding accept-queue-full"), "{}", outcome.stdout);
    assert!(tuned.values()[0].parse::<u32>().unwrap() > 8);
    tuned.run(&["rollback"]).expect(0);
    assert_eq!(tuned.values()[0], "8");
}

/// Room for what is in the table, at this kernel's prices.
#[test]
fn root_the_need_of_another_namespace_is_measured_there() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let other = NetNs::create().unwrap();
    let entry = |n: u16| NewEntry::udp(([198, 18, 0, 1], 1024 + n).into(), ([198, 18, 0, 2], 53).into());
    if other.run(|| Conntrack::open()?.insert((0..300).map(entry))).unwrap().is_err() {
        println!("SKIP: needs ctnetlink (modprobe nf_conntrack_netlink)");
        return;
    }
    let path = format!("/proc/{}/fd/{}", std::process::id(), other.as_fd().as_raw_fd());
    let args = [
        "plan",
        "--netns",
        &path,
        "--profile",
        "nat-gateway",
        "--peak",
        "5000000",
        "--memory",
        "8G",
        "--for",
        "1",
    ];
    let plan = tuned.json(&args);
    let need = &plan["need"];
    assert_eq!((&need["entries"], &need["lost"]["refused"]), (&300.into(), &0.into()));
    assert_eq!(need["entry_bytes_measured"], true);
    let row = |name: &str| {
        let rows = plan["rows"].as_array().unwrap().iter();
        rows.clone().find(|r| r["name"] == format!("net.netfilter.nf_conntrack_{name}")).unwrap().clone()
    };
    // Twice the peak, and as many buckets in whole pages of pointers.
    assert_eq!(row("max")["proposed"], "10000000");
    let heads: u64 = row("buckets")["proposed"].as_str().unwrap().parse().unwrap();
    let in_a_page = weir_sys::slab::page_bytes() / size_of::<usize>() as u64;
    assert_eq!(heads, 10_000_000_u64.next_multiple_of(in_a_page));
    let now: i64 = row("max")["now"].as_str().unwrap().parse().unwrap();
    let each = need["entry_bytes"].as_i64().unwrap();
    assert_eq!(row("max")["memory_bytes"].as_i64(), Some((10_000_000 - now) * each));
}
