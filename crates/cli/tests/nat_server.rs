//! `weir nat check SERVER` and `weir nat ports` against `weir serve`, behind the kernel's NAT.

mod documents;
mod nat_path;
mod nat_timers;

use std::collections::BTreeMap;
use std::time::Duration;

use nat_path::{PATH, in_client, json, kept, serve, verdict};
use nat_timers::Tries;
use serde_json::Value;
use weir_testkit::{PATIENCE, World, holds, measured, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

#[test]
fn root_the_kernels_nat_from_behind_it() {
    if World::lacks(&["ip", "nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    world.sh(PATH);
    let _server = serve(&world);
    let server = ["198.19.0.2", "--key-file", "key"];
    let ports = [&["ports"], &server[..], &["--limit", "100"]].concat();
    until("the server answers", PATIENCE, || (in_client(&world, &ports).code == 0).then_some(()));

    let refused = in_client(&world, &["check", "198.19.0.2", "--idle", "0"]).expect(1);
    assert!(refused.stderr.contains("wants a key"), "{}", refused.stderr);
    let check = [&["check"], &server[..], &["--idle", "0", "--pcap", "packets"]].concat();
    let seen = json(&world, "nat-check-server", &check);
    assert_eq!(seen["kind"]["classic"], "port restricted cone", "{seen:#}");
    for (row, expected) in [
        ("udp-mapping", "meets"),
        ("udp-filtering", "fails"),
        ("tcp-mapping", "meets"),
        ("tcp-filtering", "fails"),
        ("udp-port-range", "meets"),
        ("udp-overloading", "not-testable"),
        ("icmp-error-in", "meets"),
        ("icmp-error-checksum", "meets"),
        ("udp-fragments-reversed", "meets"),
        ("tcp-simultaneous-open", "meets"),
        ("tcp-syn-data", "meets"),
        ("protocol-udp-lite", "fails"),
        ("tcp-hairpin", "not-testable"),
        ("udp-idle-answered", "not-testable"),
    ] {
        assert_eq!(verdict(&seen, row), expected, "{row}: {seen:#}");
    }
    assert!(seen["no_raw_packets"].is_null(), "{seen:#}");
    // Rows of raw packets name theirs, and those of sockets none.
    let rows = seen["rows"].as_array().unwrap();
    let packets = |id: &str| &rows.iter().find(|row| row["id"] == id).unwrap()["packets"];
    assert_eq!(packets("tcp-reset")[0]["file"], "tcp-carriage.pcapng", "{seen:#}");
    assert_eq!(packets("udp-mapping").as_array().unwrap().len(), 0);
    world.sh("test -s packets/icmp-errors.pcapng && test ! -e packets/udp-mapping.pcapng");
    let path = &seen["path"];
    assert_eq!(path["local"], "198.18.0.2");
    assert_eq!(path["endpoints"].as_array().unwrap().len(), 4);
    assert!(path["sent_bytes"].as_u64() < path["received_bytes"].as_u64(), "{path}");
    let page = in_client(&world, &[&check[..], &["--fail-on-must", "--markdown"]].concat());
    assert!(page.stdout.contains("as 198.19.0.2:9347 saw it"), "{}", page.stdout);
    assert!(page.stdout.contains("| `udp-filtering` |"), "{}", page.stdout);

    // Without all of the privilege the rows that need raw packets say so, and the others are the same.
    let reason = "this host needs root (CAP_NET_RAW and CAP_NET_ADMIN)";
    for lacks in ["-net_raw", "-net_admin"] {
        let mut command = world.command("ip");
        command.args(["netns", "exec", "client", "setpriv", "--bounding-set", lacks, "--inh-caps", lacks]);
        command.args([WEIR, "nat"]).args(&check).arg("--json");
        let unprivileged = documents::read(&world.run(command).expect(0).stdout, "nat-check-server");
        if lacks == "-net_admin" && unprivileged["no_raw_packets"].is_null() {
            // A kernel that lets anyone silence ports of TCP.
            continue;
        }
        assert_eq!(unprivileged["no_raw_packets"], reason, "{lacks}: {unprivileged:#}");
        for (row, expected) in
            [("udp-filtering", "fails"), ("icmp-error-in", "not-testable"), ("tcp-syn-data", "not-testable")]
        {
            assert_eq!(verdict(&unprivileged, row), expected, "{lacks}: {row}: {unprivileged:#}");
        }
    }

    // The page of a check, and two checks side by side.
    world.sh("mkdir kept");
    let json_text = serde_json::to_string(&seen).unwrap();
    world.write("kept/a.json", &json_text);
    for command in [["nat", "compare"], ["compare", "--markdown"]] {
        let args = [&command[..], &["kept/a.json", "kept/a.json"]].concat();
        let same = world.run(world.weir(&args)).expect(0).stdout;
        assert!(same.contains("NAT behaviour compared"), "{same}");
    }

    let seen = json(&world, "nat-ports", &ports);
    assert_eq!(
        (&seen["choice"], &seen["end"], &seen["distinct"]),
        (&"preserved".into(), &"not-reached".into(), &100.into()),
        "{seen:#}"
    );
    let page = in_client(&world, &ports).expect(0).stdout;
    assert!(page.contains("the NAT keeps the inside port"), "{page}");
    // Timers that take longer than the server lets a check take.
    let mut server = world.command("ip");
    server.args(["netns", "exec", "server", WEIR, "serve", "--key-file", "key", "--port", "9400"]);
    server.args(["--nat-address", "198.19.0.2", "--max-time", "5m"]);
    let short = world.start("serve", server);
    let long = ["check", "198.19.0.2:9400", "--key-file", "key", "--preset", "standard"];
    let refused = until("the server refuses", PATIENCE, || {
        let refused = in_client(&world, &long);
        refused.stderr.contains("a check after").then_some(refused)
    });
    let expected = "the server ends a check after 5 min; start it with: weir serve --max-time 16m";
    assert!(refused.code == 1 && refused.stderr.contains(expected), "{}", refused.stderr);
    drop(short);
    // Closed by a firewall: the message comes before anything is measured.
    world.sh(
        "echo 'table ip f { chain f { type filter hook forward priority 0; udp dport 9348-9355 drop; }; }' |
           ip netns exec gateway nft -f -",
    );
    let closed = in_client(&world, &check).expect(1);
    assert!(closed.stderr.contains("no datagram reached 198.19.0.2:93"), "{}", closed.stderr);
}

/// A home router between the client and the gateway, whose masquerade it repeats: the gateway is a carrier's now.
const HOME: &str = "set -e
ip netns add home
ip -n home link set lo up
ip -n client link del eth0
ip -n client link add eth0 type veth peer name in0 netns home
ip -n home link add out0 type veth peer name in0 netns gateway
ip -n client addr add 198.18.1.2/24 dev eth0
ip -n home addr add 198.18.1.1/24 dev in0
ip -n home addr add 198.18.0.2/24 dev out0
ip -n gateway addr add 198.18.0.1/24 dev in0
for l in client/eth0 home/in0 home/out0 gateway/in0; do ip -n ${l%/*} link set ${l#*/} up; done
ip -n client route add default via 198.18.1.1
ip -n home route add default via 198.18.0.1
ip netns exec home sysctl -qw net.ipv4.ip_forward=1
echo 'table ip nat { chain post { type nat hook postrouting priority srcnat; oifname out0 masquerade; }; }' |
  ip netns exec home nft -f -
";

#[test]
fn root_a_home_router_behind_a_carrier_s_nat_changes_no_verdict() {
    if World::lacks(&["ip", "nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    world.sh(PATH);
    let _server = serve(&world);
    let check = ["check", "198.19.0.2", "--key-file", "key", "--idle", "0"];
    let verdicts = || -> BTreeMap<String, String> {
        let ports = ["ports", "198.19.0.2", "--key-file", "key", "--limit", "16"];
        until("the server answers", PATIENCE, || (in_client(&world, &ports).code == 0).then_some(()));
        let seen = json(&world, "nat-check-server", &check);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        seen["rows"].as_array().unwrap().iter().map(|row| (text(&row["id"]), text(&row["verdict"]))).collect()
    };
    let one = verdicts();
    world.sh(HOME);
    let two = verdicts();
    assert!(one.values().filter(|verdict| *verdict == "meets").count() > 20, "{one:?}");
    assert_eq!(one, two);
}

/// Timeouts of the kernel, s, and where their idle times are.
const TIMERS: [(&str, &str, u32); 4] = [
    ("unanswered", "udp_timeout", 3),
    ("tcp_opening", "tcp_timeout_syn_sent", 5),
    ("tcp_established", "tcp_timeout_established", 12),
    ("tcp_half_closed", "tcp_timeout_close_wait", 4),
];

/// The timers that profile `rfc` raises are measured through the NAT that it changed. `make soak` runs it: the longest of them takes
/// five minutes.
#[test]
fn root_soak_the_timers_of_profile_rfc_meet_the_rfcs() {
    if World::lacks(&["ip", "nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    world.sh(PATH);
    let _server = serve(&world);
    let tune = |args: &[&str]| {
        let mut command = world.command("ip");
        command.args(["netns", "exec", "gateway", WEIR, "tune"]).args(args);
        command.env("WEIR_STATE_DIR", world.folder().join("state"));
        world.run(command).expect(0)
    };
    let timers = || world.sh("ip netns exec gateway sysctl -a 2>/dev/null | grep conntrack.*timeout");
    let check = |time: &[&str]| {
        let mut command = world.command("ip");
        command.args(["netns", "exec", "client", WEIR, "nat", "check", "198.19.0.2", "--key-file", "key"]);
        command.args(time).arg("--json");
        let output = world.start("check", command).end_within(Duration::from_secs(600));
        documents::read(&output.expect(0).stdout, "nat-check-server")
    };
    let assert_all = |seen: &Value, rows: &[&str], expected: &str| {
        for row in rows {
            assert_eq!(verdict(seen, row), expected, "{row}: {seen:#}");
        }
    };
    let kernel_s = timers();
    let short = ["udp-idle-unanswered", "tcp-idle-reset-in", "tcp-idle-reset-out"];
    assert_all(&check(&["--idle", "40s"]), &short, "fails");
    tune(&["apply", "--profile", "rfc"]);
    tune(&["confirm"]);
    let seen = check(&["--preset", "standard"]);
    assert_all(&seen, &short, "meets");
    assert_all(&seen, &["udp-idle-answered", "udp-idle-default", "tcp-idle-opening"], "meets");
    tune(&["remove"]);
    assert_eq!(timers(), kernel_s);
}

/// Established connections through a NAT between two hosts, in two parts: the first one is killed.
#[test]
fn root_paced_a_killed_check_goes_on() {
    if World::lacks(&["ip", "nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    world.sh(PATH);
    for (_, name, s) in TIMERS {
        world.sh(&format!("ip netns exec gateway sysctl -qw net.netfilter.nf_conntrack_{name}={s}"));
    }
    let _server = serve(&world);
    let ports = ["ports", "198.19.0.2", "--key-file", "key", "--limit", "16"];
    until("the server answers", PATIENCE, || (in_client(&world, &ports).code == 0).then_some(()));
    let attempt = |number: usize| {
        let file = format!("run-{number}");
        let check = ["check", "198.19.0.2", "--key-file", "key", "--idle", "15s", "--progress", &file];
        let seen = || kept(&world, &file);
        let mut command = world.command("ip");
        command.args(["netns", "exec", "client", WEIR, "nat"]).args(check);
        let killed = world.start("nat", command);
        // The short timers have ended, the long one has not.
        let known = until("eight seconds of progress", PATIENCE, || {
            let seen = seen();
            let tries = seen["idle"]["tcp_established"].is_array();
            let (alive, _) = tries.then(|| Tries::read(&seen["idle"], "tcp_established").bounds())?;
            (alive > 8.0).then_some(seen)
        });
        killed.signal("KILL");
        assert_eq!(killed.end_within(PATIENCE).code, -1);
        // The server has one check for each address, and hears of the end a moment later.
        until("the server has heard of it", PATIENCE, || (in_client(&world, &ports).code == 0).then_some(()));

        let output = in_client(&world, &[&check[..], &["--verbose", "--json"]].concat()).expect(0);
        let steps = |name: &str| output.stderr.lines().any(|line| line.ends_with(name));
        assert!(steps(" idle") && !steps(" udp-mapping"), "{}", output.stderr);
        let document = documents::read(&output.stdout, "nat-check-server");
        assert_eq!(document["started"].as_array().unwrap().len(), 2);
        assert_eq!(document["connections_idle_s"], 15.0);
        let idle = &document["observations"]["idle"];
        for (kind, _, truth) in TIMERS {
            Tries::read(idle, kind).assert_timer(kind, f64::from(truth));
        }
        assert_eq!(verdict(&document, "tcp-idle-established"), "fails");
        assert_eq!(idle["unanswered"], known["idle"]["unanswered"], "what was decided is not tried again");
        // The same file on another path.
        let other = ["check", "198.19.0.3", "--key-file", "key", "--idle", "15s", "--progress", &file];
        let refused = in_client(&world, &other).expect(2);
        assert!(refused.stderr.contains("of another run (path: "), "{}", refused.stderr);
    };
    measured(1, 1, |number| holds(|| attempt(number)));
}

/// The two ends of [`PATH`], as hosts that weir reaches by itself.
const HOSTS: [&str; 8] = [
    "--from",
    "netns:client",
    "--to",
    "netns:server",
    "--nat-address",
    "198.19.0.2",
    "--nat-address",
    "198.19.0.3",
];

#[test]
fn root_both_ends_may_be_other_hosts() {
    if World::lacks(&["ip", "nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    world.sh(PATH);
    let nat = |args: &[&str]| world.weir(&[&["nat"], args].concat());
    let alone = || {
        until("no process in the hosts", PATIENCE, || {
            // The last thread of a process may still hold its port when its leader is gone.
            let left = world.sh(
                "ip netns pids client; ip netns pids server; ip netns exec server ss -HlntO sport = :9347",
            );
            left.trim().is_empty().then_some(())
        });
    };
    let check = [&["check"], &HOSTS[..], &["--idle", "0"]].concat();
    let outcome = world.run(nat(&[&check[..], &["--json", "--fail-on-must"]].concat())).expect(3);
    let seen: Value = documents::read(&outcome.stdout, "nat-check-server");
    assert_eq!(seen["path"]["local"], "198.18.0.2", "{seen:#}");
    assert!(seen["no_raw_packets"].is_null(), "{seen:#}");
    for (row, expected) in [("udp-mapping", "meets"), ("udp-filtering", "fails"), ("icmp-error-in", "meets")]
    {
        assert_eq!(verdict(&seen, row), expected, "{row}: {seen:#}");
    }
    alone();
    let ports = [&["ports"], &HOSTS[..], &["--limit", "100"]].concat();
    let page = world.run(nat(&ports)).expect(0).stdout;
    assert!(page.contains("the NAT keeps the inside port"), "{page}");
    // The server alone is elsewhere.
    let page = in_client(&world, &[&["check"], &HOSTS[2..], &["--idle", "0"]].concat()).expect(0).stdout;
    assert!(page.starts_with("port restricted cone (EIM, APDF)\n"), "{page}");
    alone();

    // However this end goes, the others go too.
    for signal in ["INT", "KILL"] {
        let mut running = world.start(signal, nat(&[&["check"], &HOSTS[..], &["--idle", "30s"]].concat()));
        running.wait_for("weir nat runs on netns:client");
        running.signal(signal);
        let ended = running.end_within(PATIENCE);
        if signal == "INT" {
            let ended = ended.expect(1);
            assert!(ended.stderr.contains("stopped before the check was complete"), "{}", ended.stderr);
        }
        alone();
    }

    let mut taken = world.command("ip");
    taken.args(["netns", "exec", "server", WEIR, "serve", "--open"]);
    let mut taken = world.start("taken", taken);
    taken.wait_for("serving");
    let refused = world.run(nat(&check)).expect(1);
    assert!(refused.stderr.contains("netns:server: it ended: cannot listen on"), "{}", refused.stderr);
    let absent = [&["check", "--from", "netns:nowhere", "198.19.0.2"][..]].concat();
    let refused = world.run(nat(&absent)).expect(1);
    assert!(refused.stderr.contains("netns:nowhere"), "{}", refused.stderr);
}

#[test]
fn wrong_use_is_one_message() {
    let world = World::plain(WEIR);
    let run = |args: &[&str]| {
        let mut command = world.command(WEIR);
        command.args(args);
        world.run(command)
    };
    for args in [
        &["nat", "check"][..],
        &["nat", "check", "192.0.2.1", "--stun", "192.0.2.1"],
        &["nat", "check", "192.0.2.1:0"],
        &["nat", "ports", "192.0.2.1", "--limit", "100000"],
        &["nat", "ports"],
        &["nat", "check", "--to", "netns:server"],
        &["nat", "check", "192.0.2.1", "--to", "netns:server", "--nat-address", "192.0.2.1"],
        &["nat", "check", "--to", "netns:server", "--nat-address", "192.0.2.1", "-6"],
        &["nat", "check", "192.0.2.1", "--from", "somewhere"],
        &["nat", "check", "192.0.2.1", "--sudo"],
        &["nat", "check", "192.0.2.1", "--preset", "quick", "--idle", "5s"],
        &["nat", "check", "192.0.2.1", "--preset", "forever"],
        &["nat", "check", "--stun", "192.0.2.1", "--preset", "long"],
        &["nat", "check", "--stun", "192.0.2.1", "--from", "netns:client"],
        &["serve", "--bind", "127.0.0.1", "--nat-ports", "9348-9355"],
        &["serve", "--bind", "127.0.0.1", "--nat-address", "127.0.0.1", "--nat-ports", "9347-9348"],
        &["serve", "--bind", "127.0.0.1", "--port", "0", "--nat-address", "127.0.0.1"],
    ] {
        run(args).expect(2);
    }
    let foreign = run(&["serve", "--bind", "127.0.0.1", "--nat-address", "192.0.2.1"]).expect(4);
    assert!(foreign.stderr.contains("--nat-address 192.0.2.1"), "{}", foreign.stderr);
}
