//! `weir allow status --follow`: refused packets as they come, and what becomes of it when it is stopped, killed, and when other
//! lists are loaded.

mod allow_world;
mod documents;

use allow_world::{Gate, LISTED, UNLISTED};
use serde_json::Value;
use weir_testkit::{Background, PATIENCE, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A follower that follows.
fn follow(gate: &Gate, name: &str, more: &[&str]) -> Background {
    let mut follower = gate.world.start(name, gate.weir(&[&["status", "--follow"], more].concat()));
    follower.wait_for("Ctrl-C ends it");
    assert_eq!(events(gate)["followed"], true);
    follower
}

/// The status of the events.
fn events(gate: &Gate) -> Value {
    gate.json(&["status"])["loaded"]["events"].clone()
}

/// The lines of JSON about packets, as soon as there are so many.
fn packets(follower: &Background, count: usize) -> Vec<Value> {
    until("events", PATIENCE, || {
        let lines = lines(&follower.printed(), "allow-packet");
        (lines.len() >= count).then_some(lines)
    })
}

/// Whole lines of that kind.
fn lines(printed: &str, kind: &str) -> Vec<Value> {
    let whole = printed.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let lines = whole.lines().map(documents::read_any);
    lines.filter(|line| line["schema"] == format!("weir.{kind}/1")).collect()
}

/// A handshake without an answer, an echo request, and a datagram longer than the link's 1,500 bytes.
const OTHERS: &str = "import socket
s = socket.socket(); s.settimeout(0.1); s.bind(('198.18.0.3', 0))
try: s.connect(('198.18.0.1', 22))
except TimeoutError: pass
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6); s.bind(('2001:2::3', 0))
s.sendto(bytes([128, 0, 0, 0, 0, 1, 0, 1]), ('2001:2::1', 0))
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('198.18.0.3', 0))
s.sendto(bytes(4000), ('198.18.0.1', 7000))
";

/// As fast as it can, which is many times the number of events.
const FLOOD: &str = "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('198.18.0.3', 0))
for n in range(20000): s.sendto(b'x', ('198.18.0.1', 7000))
";

/// Runs a program of Python in the outside.
fn outside(gate: &Gate, program: &str) {
    let mut command = gate.world.command("ip");
    command.args(["netns", "exec", "out", "python3", "-c", program]);
    gate.world.run(command).expect(0);
}

#[test]
fn root_each_refused_packet_is_a_line_and_ctrl_c_ends_it() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 10);
    gate.world.write("watched", format!("{}\n", LISTED[0]));
    gate.apply("list", "bpf", &["--class", "watched=watched:log"]).expect(0);
    // No process follows yet.
    gate.send(&UNLISTED, 5);
    assert_eq!(events(&gate)["written"], 0);
    let follower = follow(&gate, "json", &["--json"]);
    gate.send(&[UNLISTED[0], UNLISTED[1], LISTED[0]], 20);
    let seen = packets(&follower, 60);
    assert_eq!(seen.len(), 60, "{seen:#?}");
    for (source, destination, class, action) in [
        (UNLISTED[0], "198.18.0.1", "rest", "drop"),
        (UNLISTED[1], "2001:2::1", "rest", "drop"),
        (LISTED[0], "198.18.0.1", "watched", "log"),
    ] {
        let of: Vec<&Value> = seen.iter().filter(|p| p["source"] == source).collect();
        assert_eq!(of.len(), 20);
        for packet in of {
            let fields = ["destination", "class", "action", "protocol"].map(|f| packet[f].as_str().unwrap());
            assert_eq!(fields, [destination, class, action, "udp"], "{packet}");
            assert_eq!((&packet["port"], &packet["fragment"]), (&7000.into(), &false.into()), "{packet}");
        }
    }
    // Times are those of the clock, in order.
    let times: Vec<u64> = seen.iter().map(|p| p["unix_us"].as_u64().unwrap()).collect();
    let now_us =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as u64;
    assert!(times.iter().all(|t| (now_us - 60_000_000..=now_us).contains(t)), "{times:?}, {now_us}");
    // TCP, ICMP and the fragments of a long datagram.
    outside(&gate, OTHERS);
    let has = |protocol: &str, port: Value, fragment: bool| {
        until(protocol, PATIENCE, || {
            let all = lines(&follower.printed(), "allow-packet");
            let is = |p: &&Value| p["protocol"] == protocol && p["port"] == port && p["fragment"] == fragment;
            all.iter().find(is).map(drop)
        });
    };
    has("tcp", 22.into(), false);
    has("icmpv6", Value::Null, false);
    has("udp", Value::Null, true);
    follower.signal("INT");
    let outcome = follower.end_within(PATIENCE).expect(0);
    assert!(lines(&outcome.stdout, "allow-lost").is_empty(), "{}", outcome.stdout);
    let events = events(&gate);
    assert_eq!((&events["followed"], &events["lost"]), (&false.into(), &0.into()));
}

#[test]
fn root_a_second_follower_is_refused_and_a_killed_one_is_forgotten() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 10);
    gate.apply("list", "bpf", &[]).expect(0);
    let first = follow(&gate, "first", &[]);
    let second = gate.run(&["status", "--follow"]).expect(1);
    assert!(second.stderr.contains("another process follows"), "{}", second.stderr);
    assert_eq!(second.complaints().len(), 1);
    assert!(gate.run(&["status"]).expect(0).stdout.contains("another process follows"));
    gate.send(&[UNLISTED[0]], 5);
    until("lines", PATIENCE, || (first.printed().lines().count() == 5).then_some(()));
    let line = first.printed().lines().next().unwrap().to_owned();
    assert!(line.contains("198.18.0.3       rest     drop  udp/7000   to 198.18.0.1"), "{line}");
    first.signal("KILL");
    drop(first);
    // The lease runs for three seconds, and then nothing is written any more.
    until("no follower", PATIENCE, || (events(&gate)["followed"] == false).then_some(()));
    let written = events(&gate)["written"].clone();
    gate.send(&[UNLISTED[0]], 5);
    assert_eq!(events(&gate)["written"], written);
    // Its place is free again, and events that were left for it are not printed.
    let third = follow(&gate, "third", &["--json"]);
    gate.send(&[UNLISTED[1]], 5);
    let seen = packets(&third, 5);
    assert!(seen.iter().all(|p| p["source"] == UNLISTED[1]), "{seen:?}");
    third.signal("TERM");
    third.end_within(PATIENCE).expect(0);
}

#[test]
fn root_following_goes_on_with_other_lists_and_ends_when_they_are_removed() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 10);
    gate.world.write("other", format!("{}\n{}\n", UNLISTED[0], UNLISTED[1]));
    assert!(gate.run(&["status", "--follow"]).expect(1).stderr.contains("nothing is loaded"));
    gate.apply("list", "bpf", &[]).expect(0);
    gate.run(&["confirm"]).expect(0);
    let mut follower = follow(&gate, "replaced", &["--json"]);
    gate.apply("other", "bpf", &["--force"]).expect(0);
    gate.run(&["confirm"]).expect(0);
    follower.wait_for("going on with those");
    gate.send(&[LISTED[0]], 5);
    let seen = packets(&follower, 5);
    assert!(seen.iter().all(|p| p["source"] == LISTED[0]), "{seen:?}");
    gate.run(&["remove"]).expect(0);
    let outcome = follower.end_within(PATIENCE).expect(0);
    assert!(outcome.stderr.contains("the lists were removed"), "{}", outcome.stderr);
    for backend in ["nft", "ipset"] {
        gate.apply("list", backend, &[]).expect(0);
        let none = gate.run(&["status", "--follow"]).expect(4);
        assert!(
            none.stderr.contains(&format!("{backend} has no events of single packets")),
            "{}",
            none.stderr
        );
        assert_eq!(gate.json(&["status"])["loaded"]["events"], Value::Null);
        gate.run(&["rollback"]).expect(0);
    }
    gate.run(&["status", "--follow", "--top", "3"]).expect(2);
}

#[test]
fn root_what_is_too_much_to_tell_is_counted() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 10);
    gate.apply("list", "bpf", &[]).expect(0);
    let follower = follow(&gate, "flood", &["--json"]);
    outside(&gate, FLOOD);
    let sum = until("all events", PATIENCE, || {
        let printed = follower.printed();
        let lost: u64 = lines(&printed, "allow-lost").iter().map(|l| l["events"].as_u64().unwrap()).sum();
        let told = lines(&printed, "allow-packet").len() as u64;
        (told + lost >= 20_000).then_some((told, lost))
    });
    assert!(sum.0 + sum.1 == 20_000 && sum.1 > 0, "{sum:?}");
    follower.signal("INT");
    follower.end_within(PATIENCE).expect(0);
}
