//! `weir probe` and `weir serve` as people run them: every mode, through a NAT, with one end killed, with wrong usage.

mod documents;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::Value;
use weir_testkit::{Background, CommandOutput, PATIENCE, World};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A server that says where it listens, and its port.
fn serve(world: &World, args: &[&str]) -> (Background, u16) {
    let mut command = world.weir(&[&["serve", "--port", "0"], args].concat());
    command.env_remove("WEIR_KEY");
    let mut server = world.start("serve", command);
    server.wait_for("Ctrl-C ends it");
    let said = server.said();
    let port = said.split(", TCP and UDP").next().and_then(|s| s.rsplit(':').next()).unwrap();
    (server, port.parse().unwrap())
}

fn loopback(world: &World) -> (Background, u16) {
    serve(world, &["--bind", "127.0.0.1"])
}

fn probe(world: &World, args: &[&str]) -> CommandOutput {
    let mut command = world.weir(&[&["probe"], args].concat());
    command.env_remove("WEIR_KEY");
    world.run(command)
}

fn json(world: &World, args: &[&str]) -> Value {
    documents::read(&probe(world, &[args, &["--json"]].concat()).expect(0).stdout, "probe")
}

/// The modes that need a server of ours: name, further options, the metric that must be above 0.
const SERVED: [(&str, &[&str], &str); 8] = [
    ("tcp", &["-P", "2"], "goodput_bps"),
    ("tcp", &["-R"], "goodput_bps"),
    ("tcp", &["--bidir"], "egress_goodput_bps"),
    ("udp", &["-b", "2M", "-l", "500"], "delivered_pps"),
    ("udp", &["-R", "-b", "2M"], "delivered_pps"),
    ("latency", &[], "rtt_mean_ns"),
    ("latency", &["--udp"], "rtt_mean_ns"),
    ("cps", &["-P", "4"], "transactions_per_second"),
];

fn every_mode(run: impl Fn(&[&str]) -> Value) {
    for (mode, options, metric) in SERVED {
        let document = run(&[&[mode, "--time", "400ms"], options].concat());
        assert_eq!(document["mode"], mode);
        let long = &document["long"];
        let value = long["metrics"][metric].as_f64().unwrap_or(0.0);
        assert!(value > 0.0, "{mode} {options:?}: {long}");
        assert!(long["far"]["cpu_s"].as_f64().is_some(), "{mode}: what the far end saw");
        if mode == "udp" {
            assert_eq!(long["metrics"]["lost"], 0.0, "{options:?}: {long}");
        }
    }
}

#[test]
fn every_mode_over_loopback() {
    let world = World::plain(WEIR);
    let (server, port) = loopback(&world);
    let target = format!("127.0.0.1:{port}");
    every_mode(|args| json(&world, &[&[target.as_str()], args].concat()));
    // One line per measurement, with what was done and how it ended.
    let log = server.printed();
    assert_eq!(log.lines().count(), SERVED.len(), "{log}");
    assert!(log.lines().all(|l| l.ends_with(": done")), "{log}");
    server.signal("INT");
    server.end_within(PATIENCE).expect(0);
}

#[test]
fn lines_and_summary_for_people() {
    let world = World::plain(WEIR);
    let (_server, port) = loopback(&world);
    let target = format!("127.0.0.1:{port}");
    let text = probe(&world, &[&target, "tcp", "--time", "2s"]).expect(0).stdout;
    assert!(text.contains("Bitrate") && text.contains("Retr"), "{text}");
    assert!(text.lines().filter(|l| l.contains("bits/sec") && l.contains('-')).count() >= 2, "{text}");
    assert!(text.contains("received by the far end"), "{text}");
    let text = probe(&world, &[&target, "latency", "--time", "1200ms", "-O", "1"]).expect(0).stdout;
    assert!(text.contains("99.99%") && text.contains("(omitted)"), "{text}");
    let text =
        probe(&world, &[&target, "latency", "--time", "500ms", "--repeat", "3x200ms"]).expect(0).stdout;
    assert!(text.contains("median round trip over 0.5 s: "), "{text}");
    assert!(text.contains("median round trip of each of 3 repeats: "), "{text}");
    let document = json(&world, &[&target, "latency", "--repeat", "100ms x 6"]);
    let over = &document["over_repeats"];
    assert_eq!(over["n"], 6);
    let all: Vec<f64> = document["repeats"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["headline"]["value"].as_f64().unwrap())
        .collect();
    // With six, the interval is from the least to the greatest.
    let (least, most) =
        (all.iter().copied().fold(f64::MAX, f64::min), all.iter().copied().fold(0.0, f64::max));
    assert_eq!(over["median_interval"], serde_json::json!([least, most]));
    assert!(document.get("long").is_none(), "--repeat alone has no long one");
    let quiet = probe(&world, &[&target, "latency", "--time", "1200ms", "--quiet"]).expect(0).stdout;
    assert!(!quiet.contains("99.99%       "), "{quiet}");
}

#[test]
fn a_time_to_connect_and_a_url_need_no_server_of_ours() {
    let world = World::plain(WEIR);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer_http(stream));
        }
    });
    let document =
        json(&world, &["127.0.0.1", "connect", "-p", &port.to_string(), "--time", "500ms", "--rate", "40"]);
    // On a schedule with a random point in each interval: 40 a second for half a second.
    assert_eq!(document["long"]["metrics"]["scheduled"], 20.0);
    assert_eq!(document["long"]["metrics"]["ok"], 20.0);
    let url = format!("http://127.0.0.1:{port}/x?y");
    let document = json(&world, &[&url, "--time", "300ms"]);
    assert!(document["long"]["metrics"]["requests_per_second"].as_f64().unwrap() > 0.0, "{document}");
    assert_eq!(document["long"]["metrics"]["failed_ratio"], 0.0);
    // No server listens: a message, and not a rate of zero that looks like a result.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let outcome =
        probe(&world, &["127.0.0.1", "connect", "-p", &free.to_string(), "--time", "300ms"]).expect(1);
    assert!(outcome.stdout.contains("100.000 % failed") && outcome.stdout.contains("refused"), "{outcome:?}");
    assert!(outcome.stderr.contains("nothing came through"), "{outcome:?}");
    // Repeats of which nothing came through stay in the table and in the statistics.
    let repeats = ["127.0.0.1", "connect", "-p", &free.to_string(), "--rate", "50", "--repeat", "6x500ms"];
    let outcome = probe(&world, &repeats).expect(1);
    assert_eq!(outcome.stdout.matches("100.000 % failed").count(), 6, "{outcome:?}");
    assert!(outcome.stdout.contains("nothing came through in 6 of 6 repeats"), "{outcome:?}");
    assert!(outcome.stdout.contains("median of them: failed [failed, failed]"), "{outcome:?}");
    let outcome = probe(&world, &[&repeats[..], &["--json"]].concat()).expect(1);
    let document = documents::read(&outcome.stdout, "probe");
    let over = &document["over_repeats"];
    assert_eq!((&over["n"], &over["failed"], &over["median"]), (&6.into(), &6.into(), &"infinite".into()));
    assert_eq!(document["repeats"][0]["headline"]["value"], "infinite");
    let outcome = probe(&world, &[&format!("127.0.0.1:{free}"), "--time", "300ms"]).expect(1);
    assert!(outcome.stderr.contains("is `weir serve` running there?"), "{outcome:?}");
}

#[test]
fn root_a_name_with_two_addresses_is_measured_at_the_one_that_answers() {
    if World::lacks(&["unshare"]) {
        return;
    }
    if World::root(WEIR).is_none() {
        return;
    }
    // In the network of this test, where its listener is, with a list of hosts of its own.
    let world = World::plain(WEIR);
    // ::1 comes before 127.0.0.1 (RFC 6724 section 2.1), and no server listens there.
    let hosts = world.write("hosts", "127.0.0.1 twofold.test\n::1 twofold.test\n");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer_http(stream));
        }
    });
    for (target, mode) in
        [(format!("http://twofold.test:{port}/x?y"), "http"), (format!("twofold.test:{port}"), "connect")]
    {
        let mut command = world.command("unshare");
        let mounted = format!("mount --bind {} /etc/hosts && exec \"$@\"", hosts.display());
        command.args(["--mount", "sh", "-c", &mounted, "sh", WEIR, "probe", &target, mode]);
        command.args(["--time", "300ms", "--json"]);
        let outcome = world.run(command).expect(0);
        let document = documents::read(&outcome.stdout, "probe");
        assert_eq!(document["address"], format!("127.0.0.1:{port}"), "{document}");
        let seen = &document["long"]["near"]["values"];
        assert!(
            seen["ok"].as_f64().unwrap() > 0.0 && seen["connect_refused"].as_f64().unwrap_or(0.0) == 0.0,
            "{seen}"
        );
        assert!(outcome.stderr.contains(&format!("127.0.0.1:{port} is measured")), "{outcome:?}");
    }
}

/// Two bytes for every request of /x?y, as long as they come.
fn answer_http(stream: TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut stream = stream;
    let mut known = false;
    while let Some(Ok(line)) = lines.next() {
        known |= line == "GET /x?y HTTP/1.1";
        if line.is_empty() {
            let status = if known { "200 OK" } else { "404 Not Found" };
            if stream
                .write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok").as_bytes())
                .is_err()
            {
                return;
            }
        }
    }
}

#[test]
fn the_key_comes_from_a_file_or_the_environment() {
    let world = World::plain(WEIR);
    let key = world.write("key", "0123456789abcdef0123\n");
    let key = key.to_str().unwrap();
    let chmod = |mode: &str| world.sh(&format!("chmod {mode} {key}"));
    chmod("644");
    let outcome = probe(&world, &["127.0.0.1", "--key-file", key]).expect(2);
    assert!(outcome.stderr.contains("chmod 600"), "{outcome:?}");
    probe(&world, &["127.0.0.1", "--key-file", "/none"]).expect(4);
    chmod("600");
    let (server, port) = serve(&world, &["--bind", "127.0.0.1", "--key-file", key]);
    let target = format!("127.0.0.1:{port}");
    let args = [target.as_str(), "latency", "--time", "200ms"];
    probe(&world, &[&args[..], &["--key-file", key]].concat()).expect(0);
    let with = |secret: &str| {
        let mut command = world.weir(&[&["probe"], &args[..]].concat());
        command.env("WEIR_KEY", secret);
        world.run(command)
    };
    with("0123456789abcdef0123").expect(0);
    let outcome = with("0123456789abcdef0124").expect(1);
    assert!(outcome.stderr.contains("key"), "{outcome:?}");
    with("short").expect(2);
    let outcome = probe(&world, &args).expect(1);
    assert!(outcome.stderr.contains("wants a key"), "{outcome:?}");
    assert!(server.printed().contains("the key is not this server's"), "{}", server.printed());
}

#[test]
fn wrong_usage_is_told_before_anything_is_sent() {
    let world = World::plain(WEIR);
    let told = |args: &[&str], words: &str| {
        let mut command = world.weir(args);
        command.env_remove("WEIR_KEY");
        let outcome = world.run(command).expect(2);
        assert!(outcome.stderr.contains(words), "{args:?}: {}", outcome.stderr);
    };
    told(&["serve"], "who may use this server?");
    told(&["serve", "--bind", "0.0.0.0"], "--key-file");
    told(&["probe", "127.0.0.1", "latency", "-b", "1M"], "--bitrate has no effect with latency");
    told(&["probe", "127.0.0.1", "tcp", "-b", "1M/3"], "--iperf3");
    told(&["probe", "127.0.0.1", "latency", "-R"], "--reverse has no effect with latency");
    told(&["probe", "127.0.0.1", "udp", "-l", "8"], "16..=65507");
    told(&["probe", "127.0.0.1", "udp", "-l", "70000"], "16 to 65507");
    told(&["probe", "127.0.0.1", "http"], "URL");
    told(&["probe", "http://127.0.0.1/", "tcp"], "a host");
    told(&["probe", "ftp://127.0.0.1/"], "http://");
    told(&["probe", "127.0.0.1:99999"], "expected HOST");
    told(&["probe", "127.0.0.1", "-n", "5M"], "--iperf3");
    told(&["probe", "127.0.0.1", "--repeat", "often"], "4x10s");
}

#[test]
fn an_end_that_is_killed_is_told_at_the_other() {
    let world = World::plain(WEIR);
    let (server, port) = loopback(&world);
    let target = format!("127.0.0.1:{port}");
    let begun = |name: &str| {
        let client = world.start(name, world.weir(&["probe", &target, "latency", "--time", "60s"]));
        weir_testkit::until("a first line", PATIENCE, || client.printed().contains("us").then_some(()));
        client
    };
    // The client: the server goes on.
    begun("one").signal("KILL");
    weir_testkit::until("the server's line", PATIENCE, || {
        server.printed().contains("closed the connection").then_some(())
    });
    json(&world, &[&target, "latency", "--time", "200ms"]);
    // Ctrl-C at the client: what was measured until then.
    let client = begun("two");
    client.signal("INT");
    let outcome = client.end_within(PATIENCE).expect(1);
    assert!(outcome.stdout.contains("round trips"), "{outcome:?}");
    // The server.
    let client = begun("three");
    server.signal("KILL");
    let outcome = client.end_within(PATIENCE).expect(1);
    assert!(outcome.stderr.contains("the server is gone"), "{outcome:?}");
}

#[test]
fn what_a_client_calls_itself_does_not_reach_the_terminal() {
    let world = World::plain(WEIR);
    let (server, port) = loopback(&world);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let hello =
        format!(r#"{{"ask":"hello","version":1,"nonce":"{}","program":"\u001b[31m\nred"}}"#, "00".repeat(32));
    stream
        .write_all(&[&b"weirCTL1"[..], &(hello.len() as u32).to_be_bytes(), hello.as_bytes()].concat())
        .unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    stream.write_all(&[0xff; 8]).unwrap();
    weir_testkit::until("the server's line", PATIENCE, || server.printed().contains("red").then_some(()));
    let log = server.printed();
    assert!(!log.contains('\u{1b}') && log.lines().count() == 1, "{log:?}");
}

#[test]
fn limits_of_the_server_are_told_to_the_client() {
    let world = World::plain(WEIR);
    let (_server, port) = serve(
        &world,
        &["--bind", "127.0.0.1", "--max-time", "1s", "--max-rate", "50M", "--max-streams", "2"],
    );
    let target = format!("127.0.0.1:{port}");
    let refused = |args: &[&str], words: &str| {
        let outcome = probe(&world, &[&[target.as_str()], args].concat()).expect(1);
        assert!(outcome.stderr.contains(words), "{args:?}: {}", outcome.stderr);
    };
    refused(&["latency", "--time", "5s"], "allows up to 1 s");
    refused(&["tcp", "--time", "500ms", "-P", "3"], "allows 2");
    refused(&["udp", "--time", "500ms", "-b", "60M"], "allows 50000000");
    refused(&["tcp", "--time", "500ms", "-b", "60M"], "allows 50000000");
    // Neither end sends faster, and a client that names less gets that.
    for (args, most) in
        [(&["-R"][..], 50e6), (&[], 50e6), (&["-b", "20M"], 20e6), (&["-R", "-b", "20M"], 20e6)]
    {
        let document = json(&world, &[&[target.as_str(), "tcp", "--time", "900ms"], args].concat());
        let bps = document["long"]["metrics"]["goodput_bps"].as_f64().unwrap();
        // A first burst goes before the pacing: 10 segments of loopback, 64 KiB each.
        assert!(bps > 0.0 && bps < most + 10.0 * 65_536.0 * 8.0 / 0.9, "{args:?}: {bps}");
    }
}

#[test]
fn root_every_mode_from_behind_a_nat() {
    if World::lacks(&["ip", "nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    world.sh(
        "set -e
        for n in in out; do ip netns add $n; ip -n $n link set lo up; done
        ip link add i0 type veth peer name e0 netns in
        ip link add o0 type veth peer name e0 netns out
        ip addr add 198.18.0.1/24 dev i0; ip addr add 198.18.1.1/24 dev o0
        ip link set i0 up; ip link set o0 up
        ip -n in addr add 198.18.0.2/24 dev e0; ip -n in link set e0 up
        ip -n out addr add 198.18.1.2/24 dev e0; ip -n out link set e0 up
        ip -n in route add default via 198.18.0.1
        echo 1 > /proc/sys/net/ipv4/ip_forward
        nft 'add table ip n; add chain ip n p { type nat hook postrouting priority 100; }; add rule ip n p oifname o0 masquerade'",
    );
    let within = |name: &str, args: &[&str]| {
        let mut command = world.command("ip");
        command.args(["netns", "exec", name, WEIR]).args(args).env_remove("WEIR_KEY");
        command
    };
    let mut server = world.start("serve", within("out", &["serve", "--open"]));
    server.wait_for("Ctrl-C ends it");
    every_mode(|args| {
        let outcome = world.run(within("in", &[&["probe", "198.18.1.2", "--json"], args].concat())).expect(0);
        documents::read(&outcome.stdout, "probe")
    });
    // By the address of its link alone, without the gateway.
    let link =
        world.sh("ip -n out -6 -o addr show dev e0 scope link | awk '{ sub(\"/.*\", \"\", $4); print $4 }'");
    let near = format!("[{}%o0]", link.trim());
    for mode in ["latency", "udp"] {
        let mut command = world.weir(&["probe", &near, mode, "--time", "300ms", "--json"]);
        command.env_remove("WEIR_KEY");
        world.run(command).expect(0);
    }
    // The server saw the gateway only.
    let log = server.printed();
    assert!(
        log.lines().count() >= SERVED.len()
            && log.lines().filter(|l| !l.contains("fe80:")).all(|l| l.contains("198.18.1.1")),
        "{log}"
    );
    server.signal("INT");
    server.end_within(PATIENCE).expect(0);
}
