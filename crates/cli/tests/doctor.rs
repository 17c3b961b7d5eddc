//! `weir doctor` on hosts that the test made.

mod documents;

use std::fs;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_sys::NetNs;
use weir_testkit::{CommandOutput, PATIENCE, World, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A namespace whose loopback is up, and how to name it to weir.
fn host(script: &str) -> Option<(NetNs, String)> {
    if World::lacks_root() {
        return None;
    }
    let ns = NetNs::create().unwrap();
    let mut command = std::process::Command::new("sh");
    command.args(["-euc", &format!("ip link set lo up\n{script}")]);
    ns.enter_on_spawn(&mut command);
    let output = weir_sys::process::run_captured(command, weir_testkit::PATIENCE).unwrap();
    assert!(output.status.success(), "{}", output.message());
    let path = format!("/proc/{}/fd/{}", std::process::id(), ns.as_fd().as_raw_fd());
    Some((ns, path))
}

/// Datagrams to a port of the loopback, until the value is dropped.
struct Sending {
    stop: weir_sys::Stop,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Sending {
    fn to(ns: &NetNs, port: u16) -> Self {
        let socket = ns.run(|| UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        let stop = weir_sys::Stop::default();
        let raised = stop.clone();
        let thread = std::thread::spawn(move || {
            while !raised.raised() {
                // Refused by the rule: that is the point.
                let _ = socket.send_to(b"x", ("127.0.0.1", port));
                // The pace of the traffic: a thousand a second.
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Sending { stop, thread: Some(thread) }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.stop.raise();
        let _ = self.thread.take().map(|t| t.join());
    }
}

const DROP: &str = "nft 'add table ip t; add chain ip t c { type filter hook input priority 0; }; \
                    add rule ip t c udp dport 7000 counter drop'";

fn weir(world: &World, args: &[&str]) -> CommandOutput {
    world.run(world.weir(&[&["doctor"], args].concat()))
}

fn json(world: &World, args: &[&str]) -> Value {
    documents::read(&weir(world, &[args, &["--json"]].concat()).expect(0).stdout, "doctor")
}

#[test]
fn every_cause_has_its_page() {
    let world = World::plain(WEIR);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/causes");
    let list = weir(&world, &["explain"]).expect(0).stdout;
    assert!(list == fs::read_to_string(format!("{folder}/README.md")).unwrap(), "README.md: run make docs");
    let mut ids: Vec<String> =
        list.lines().filter_map(|l| Some(l.strip_prefix("- [")?.split(']').next()?.to_owned())).collect();
    assert!(ids.len() >= 45, "{}", ids.len());
    for id in &ids {
        let page = weir(&world, &["explain", id]).expect(0).stdout;
        let kept = fs::read_to_string(format!("{folder}/{id}.md")).unwrap_or_default();
        assert!(page == kept, "{id}.md: run make docs");
    }
    ids.push("README".into());
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(ids.contains(&name.replace(".md", "")), "{name} is no cause's");
    }
}

#[test]
fn wrong_usage_is_told_with_what_would_be_right() {
    let world = World::plain(WEIR);
    let outcome = weir(&world, &["explain", "conntrack-ful"]).expect(2);
    assert!(outcome.stderr.contains("did you mean `conntrack-full`?"), "{}", outcome.stderr);
    let outcome = weir(&world, &["--for", "0"]).expect(2);
    assert!(outcome.stderr.contains("100 ms to 1 d"), "{}", outcome.stderr);
    let outcome = weir(&world, &["--hide", "dropz"]).expect(2);
    assert!(outcome.stderr.contains("dropz"), "{}", outcome.stderr);
    world.write("garbage.json", "{\"version\": 1}");
    weir(&world, &["--read", "garbage.json"]).expect(2);
    weir(&world, &["--netns", "no-such-namespace"]).expect(2);
}

#[test]
fn root_a_rule_that_drops_is_named_and_ends_with_the_code_that_was_asked_for() {
    let Some((ns, path)) = host(DROP) else { return };
    let world = World::plain(WEIR);
    let sending = Sending::to(&ns, 7000);
    let found = json(&world, &["--netns", &path, "--for", "1.5"]);
    let first = &found["findings"][0];
    assert_eq!(first["cause"], "nft-rule-drop", "{found:#}");
    let words = first.to_string();
    assert!(words.contains("udp dport 7000"), "{words}");
    assert!(first["explains_packets"].as_u64().unwrap() > 200, "{words}");
    let page = weir(&world, &["--netns", &path, "--for", "1", "--fail-on", "note"]).expect(3).stdout;
    assert!(page.contains("udp dport 7000"), "{page}");
    // The commands lead into the namespace that was named.
    assert!(page.contains(&format!("nsenter --net={path} ")), "{page}");
    drop(sending);
    // Cores and control groups are the whole machine's: another test may just overload them.
    let mut args = vec!["--netns", &path, "--for", "0.5", "--fail-on", "note"];
    args.extend(["--hide", "cores", "--hide", "pressure"]);
    let quiet = weir(&world, &args).expect(0).stdout;
    assert!(quiet.contains("Nothing wrong found"), "{quiet}");
}

#[test]
fn root_without_its_eyes_on_drops_the_doctor_says_so_and_does_the_rest() {
    let Some((ns, path)) = host(DROP) else { return };
    let world = World::plain(WEIR);
    let _sending = Sending::to(&ns, 7000);
    let found = json(&world, &["--netns", &path, "--for", "1.5", "--hide", "drops"]);
    assert_eq!(found["evidence_sources"]["drops"]["sight"], "blind");
    // Some counters are the whole machine's: without the drops, packets of another test show there and belong to no namespace.
    let mut here =
        found["findings"].as_array().unwrap().iter().filter(|finding| finding["place"] != "machine");
    assert_eq!(here.next().unwrap()["cause"], "nft-rule-drop", "{found:#}");
    let page = weir(&world, &["--netns", &path, "--for", "0.5", "--hide", "drops", "--hide", "rules"])
        .expect(0)
        .stdout;
    assert!(page.contains("not in sight: dropped packets") && page.contains("not in sight: rules"), "{page}");
}

#[test]
fn root_names_that_would_paint_the_terminal_do_not() {
    let script = "ip link add name \"$(printf 'e\\033[31m<b>')\" type bridge\n\
                  nft -f - <<'END'\n\
                  table ip t { chain c { type filter hook input priority 0; udp dport 7000 counter drop comment \"\u{1b}]0;x\u{7}</script>\"; }; }\n\
                  END\n";
    let Some((ns, path)) = host(script) else { return };
    let world = World::plain(WEIR);
    let _sending = Sending::to(&ns, 7000);
    let page = weir(&world, &["--netns", &path, "--for", "1"]).expect(0).stdout;
    assert!(page.contains("udp dport 7000"), "{page}");
    assert!(page.chars().all(|c| !c.is_control() || c == '\n'), "{page:?}");
    for columns in ["80", "100"] {
        let mut command = world.weir(&["doctor", "--netns", &path, "--for", "0.5"]);
        command.env("COLUMNS", columns);
        let page = world.run(command).expect(0).stdout;
        let most: usize = columns.parse().unwrap();
        // A command to be copied stands on a line of its own, however long it is; so does the one that takes it back.
        let command = |l: &&str| l.starts_with("       ") || l.starts_with("     undo: ");
        let too_long: Vec<_> = page.lines().filter(|l| !command(l) && l.chars().count() > most).collect();
        assert!(too_long.is_empty(), "{too_long:#?}");
    }
    let evidence = world.work().join("evidence.json");
    json(&world, &["--netns", &path, "--for", "0.5", "--save", evidence.to_str().unwrap()]);
    let text = fs::read_to_string(&evidence).unwrap();
    assert!(text.contains("e\\u001b[31m<b>"), "the name is kept as it is, escaped");
    assert!(!text.contains('\u{1b}'));
    let again = json(&world, &["--read", evidence.to_str().unwrap()]);
    assert!(again["findings"].is_array());
}

#[test]
fn root_a_full_disk_keeps_the_evidence_that_was_there() {
    let Some(world) = World::root(WEIR) else { return };
    // Room for a page, which what is seen of a host does not fit into.
    world.sh("mkdir small && mount -t tmpfs -o size=4k tmpfs small");
    for before in ["", "seen before"] {
        let (old, left) =
            if before.is_empty() { ("", "") } else { ("printf 'seen before' >small/e.json", "e.json\n") };
        world.sh(&format!("{old}\n:"));
        let outcome = weir(&world, &["--own", "--for", "0.1", "--save", "small/e.json"]).expect(1);
        assert_eq!(outcome.complaints().len(), 1, "{}", outcome.stderr);
        assert!(outcome.stderr.contains("small/e.json: No space left"), "{}", outcome.stderr);
        assert_eq!(world.sh("ls -A small"), left);
        assert_eq!(world.sh("cat small/* 2>/dev/null || :"), before);
    }
    world.sh("umount small");
}

#[test]
fn root_nothing_is_changed_by_looking() {
    let Some((ns, path)) = host(DROP) else { return };
    let world = World::plain(WEIR);
    let state = || {
        let script = "nft -s list ruleset; ip -d link; ip route show table all; ip rule; cat /proc/modules | cut -d' ' -f1 | sort; \
                      for f in $(find /proc/sys/net -type f ! -name '*random*' ! -name 'nf_conntrack_count' ! -name '*secret*' ! -name 'flush' 2>/dev/null); do echo $f $(cat $f 2>/dev/null | tr '\\0' ' '); done";
        let mut command = std::process::Command::new("sh");
        command.args(["-c", script]);
        ns.enter_on_spawn(&mut command);
        weir_sys::process::run_captured(command, weir_testkit::PATIENCE).unwrap().stdout_text()
    };
    let _sending = Sending::to(&ns, 7000);
    let before = state();
    assert!(before.contains("udp dport 7000") && before.contains("ip_forward"), "{before}");
    json(&world, &["--netns", &path, "--for", "1"]);
    let after = state();
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    let changed: Vec<_> = lines(&before).symmetric_difference(&lines(&after)).cloned().collect();
    assert!(changed.is_empty(), "{changed:#?}");
}

/// A path that stands still when the window begins: the first packets pass in it.
#[test]
fn root_a_gateway_that_has_forwarded_nothing_yet_is_watched() {
    let sides = "sysctl -qw net.ipv4.ip_forward=1
        for side in 'client0 198.18' 'server0 198.19'; do
            set -- $side; ip netns add first-$1
            ip link add $1 type veth peer name eth0 netns first-$1
            ip link set $1 up; ip addr add $2.0.1/24 dev $1
            ip -n first-$1 link set eth0 up; ip -n first-$1 addr add $2.0.2/24 dev eth0
            ip -n first-$1 route add default via $2.0.1
        done";
    let Some((ns, path)) = host(sides) else { return };
    let world = World::plain(WEIR);
    // The server refuses it, which takes a SYN and a reset.
    let connect = "ip netns exec first-client0 bash -c '</dev/tcp/198.19.0.2/9' 2>&1; true";
    json(&world, &["--netns", &path, "--for", "30", "--save", "seen.json", "--command", connect]);
    let seen: Value = serde_json::from_str(&world.sh("cat seen.json")).unwrap();
    let transit = &seen["namespaces"][0]["transit"];
    assert_eq!((&transit["flows"], &transit["judged"]), (&1.into(), &2.into()), "{transit:#}");
    world.sh("ip netns del first-client0; ip netns del first-server0");
    drop(ns);
}

#[test]
fn root_the_window_ends_with_the_command() {
    let Some((_ns, path)) = host("true") else { return };
    let world = World::plain(WEIR);
    let began = Instant::now();
    let outcome =
        weir(&world, &["--netns", &path, "--for", "30", "--command", "sleep 0.3; echo talk; exit 4"])
            .expect(0);
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(!outcome.stdout.contains("talk") && outcome.stderr.contains("talk"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("the command ended with exit status: 4"), "{}", outcome.stderr);
}

#[test]
fn root_windows_follow_each_other_until_somebody_ends_them() {
    let Some((_ns, path)) = host("true") else { return };
    let world = World::plain(WEIR);
    let args = ["doctor", "--netns", &path, "--for", "0.2", "--watch", "0.3", "--json"];
    let running = world.start("every", world.weir(&args));
    let lines = until("three windows", PATIENCE, || {
        let text = running.printed();
        (text.lines().count() >= 3).then_some(text)
    });
    for line in lines.lines().take(3) {
        documents::read(line, "doctor");
    }
    running.signal("INT");
    running.end_within(weir_testkit::PATIENCE).expect(0);
}

#[test]
fn root_without_root_it_says_what_it_cannot_see() {
    if World::lacks_root() {
        return;
    }
    let world = World::plain(WEIR);
    let outcome = world.run(world.weir_as_nobody(&["doctor", "--for", "0.5"]));
    let page = outcome.expect(0).stdout;
    assert!(page.contains("not in sight: dropped packets"), "{page}");
    assert!(page.contains("looked at: protocol counters"), "{page}");
}
