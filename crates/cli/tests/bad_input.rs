//! Bad input and what is missing: one clear message, the right exit code, nothing left behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use weir_testkit::{CommandOutput, Record, World, scenario};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// The command failed as it should: the exit code, one message with all these words, nothing on standard output, and nothing
/// in the folder but what the test put there.
#[track_caller]
fn assert_refused(world: &World, own: &[&str], outcome: CommandOutput, code: i32, words: &[&str]) {
    let outcome = outcome.expect(code);
    let complaints = outcome.complaints();
    assert_eq!(complaints.len(), 1, "{}", outcome.stderr);
    let text = &outcome.stderr[outcome.stderr.find(complaints[0]).unwrap()..];
    for word in words {
        assert!(text.contains(word), "no `{word}` in: {text}");
    }
    assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "");
    assert_eq!(world.left_behind(own), [""; 0]);
    assert!(world.labs().is_empty() && world.undo_lists().is_empty());
    world.wait_until_idle();
}

/// A change of the small scenario, and the message that it must lead to.
type Mistake = (&'static str, &'static str, &'static [&'static str]);

const MISTAKES: [Mistake; 15] = [
    (
        "max-rounds = 1",
        "max-round = 1",
        &["s.toml:11:", "unknown key `max-round` in [plan]", "\"max-rounds\""],
    ),
    ("[plan]", "[paln]", &["s.toml:5:", "`paln`", "\"plan\""]),
    ("baseline = \"direct\"", "baseline = \"drect\"", &["s.toml:6:", "\"drect\"", "\"direct\""]),
    (
        "kind = \"nft-masquerade\"",
        "kind = \"nft-masqurade\"",
        &["s.toml:17:", "\"nft-masqurade\"", "\"nft-masquerade\""],
    ),
    ("kind = \"tcp-rr\"", "kind = \"tcprr\"", &["s.toml:20:", "\"tcprr\"", "\"tcp-rr\""]),
    ("kind = \"nft-masquerade\"", "kind = \"direct\"", &["s.toml:17:", "\"direct\"", "twice"]),
    (
        "[[workload]]",
        "[[workload]]\nname = \"rr\"\nkind = \"udp-rr\"\n[[workload]]",
        &["s.toml:22:", "\"rr\"", "twice"],
    ),
    ("warmup = \"50ms\"", "warmup = \"50 parsecs\"", &["s.toml:12:", "warmup", "50 parsecs"]),
    ("duration = \"100ms\"", "duration = \"1ms\"", &["s.toml:13:", "duration", "100 ms"]),
    ("min-rounds = 1", "min-rounds = 0", &["s.toml:10:", "min-rounds", "1 to 1000"]),
    ("kind = \"lab\"", "kind = \"labor\"", &["s.toml:4:", "\"labor\"", "\"lab\""]),
    ("kind = \"lab\"", "kind = \"lab\"\nmtu = 10", &["s.toml:5:", "mtu", "10"]),
    ("name = \"tiny\"", "name = \"tiny\"\nname = \"tiny\"", &["s.toml:2:", "duplicate key"]),
    ("name = \"tiny\"", "name = \"two words\"", &["s.toml:1:", "two words"]),
    ("name = \"tiny\"", "name = \"tiny", &["s.toml:1:", "not TOML"]),
];

#[test]
fn mistakes_in_a_scenario_are_named_with_line_and_remedy() {
    let world = World::plain(WEIR);
    for (right, wrong, words) in MISTAKES {
        let text = scenario::tiny();
        assert!(text.contains(right), "{right}");
        world.write("s.toml", text.replacen(right, wrong, 1));
        for command in
            [&["bench", "s.toml"][..], &["bench", "s.toml", "--dry-run"], &["scenario", "check", "s.toml"]]
        {
            let outcome = world.run(world.weir(command));
            assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
            assert_refused(&world, &["s.toml"], outcome, 2, words);
        }
    }
}

#[test]
fn options_that_do_not_fit_the_scenario_are_refused() {
    let world = World::plain(WEIR);
    world.write("s.toml", scenario::tiny());
    let cases: [(&[&str], &[&str]); 16] = [
        (&["--preset", "quikc"], &["--preset quikc", "no presets"]),
        (&["--set", "plan.max-round=8"], &["--set plan.max-round=8", "max-rounds"]),
        (&["--set", "plan.max-rounds=many"], &["--set plan.max-rounds=many", "whole number"]),
        (&["--set", "nonsense"], &["--set nonsense", "KEY=VALUE"]),
        (&["--set", "variant.nft.random=true"], &["\"nft\"", "nft-masquerade"]),
        (&["--variant", "drect"], &["--variant drect", "\"direct\""]),
        (&["--workload", "r"], &["--workload r", "\"rr\""]),
        (&["--rounds", "0"], &["--rounds 0: ", "min-rounds", "1 to 1000"]),
        (&["--rounds", "9..2"], &["--rounds 9..2: ", "max-rounds"]),
        (&["--budget", "soon"], &["--budget soon: ", "budget"]),
        (
            &["--set", "plan.max-rounds=4", "--set", "plan.min-rounds=5", "--set", "title=T"],
            &["weir: --set plan.max-rounds=4 --set plan.min-rounds=5: ", "max-rounds = 4"],
        ),
        (&["--require", "nft-masquerade.rr"], &["nft-masquerade.rr", ">="]),
        (&["--require", "nft.rr >= 1 ms"], &["\"nft\"", "\"nft-masquerade\""]),
        (&["--require", "direct.rr.rtt_p5_ns <= 1 ms"], &["rtt_p5_ns", "rtt_p50_ns"]),
        (&["--require", "direct.rr <= 1 parsec"], &["parsec"]),
        (&["--require", "direct.rr <= fast"], &["fast"]),
    ];
    for (options, words) in cases {
        let outcome = world.run(world.weir(&[&["bench", "s.toml"], options].concat()));
        assert_refused(&world, &["s.toml"], outcome, 2, words);
    }
    let outcome = world.run(world.weir(&["bench", "nat-instance", "--preset", "quikc"]));
    assert_refused(&world, &["s.toml"], outcome, 2, &["\"quick\""]);
}

#[test]
fn bounds_that_belong_together_may_be_set_in_either_order() {
    let world = World::plain(WEIR);
    let plan = |options: &[&str]| {
        let args = [&["bench", "nat-instance", "--dry-run"], options].concat();
        let text = world.run(world.weir(&args)).expect(0).stdout;
        let of = |key: &str| {
            let line =
                text.lines().find(|l| l.starts_with(key)).unwrap_or_else(|| panic!("no {key}: {text}"));
            // The comment of the line stays.
            let value = line.split_once(" = ").unwrap().1;
            value.split('#').next().unwrap().trim().to_owned()
        };
        (of("min-rounds"), of("max-rounds"))
    };
    let (least, most) = ("plan.min-rounds=2", "plan.max-rounds=3");
    let expected = ("2".to_owned(), "3".to_owned());
    assert_eq!(plan(&["--set", least, "--set", most]), expected);
    assert_eq!(plan(&["--set", most, "--set", least]), expected);
    assert_eq!(plan(&["--preset", "quick", "--set", most, "--set", least]), expected);
    assert_eq!(plan(&["--rounds", "2..3"]), expected);
    // More rounds than a preset has that was not asked for.
    assert_eq!(plan(&["--rounds", "9..12"]), ("9".to_owned(), "12".to_owned()));
}

#[test]
fn scenarios_that_cannot_be_found_or_read_are_named() {
    let world = World::plain(WEIR);
    world.write("binary.toml", [0xff, 0xfe, 0, 1, 2, 0x80]);
    world.write("zeros.toml", [0u8; 100]);
    world.write("empty.toml", "");
    fs::create_dir(world.work().join("folder.toml")).unwrap();
    let own = ["binary.toml", "zeros.toml", "empty.toml", "folder.toml"];
    let cases: [(&str, &[&str]); 7] = [
        ("nat-instnace", &["no built-in scenario", "\"nat-instance\""]),
        ("missing.toml", &["missing.toml", "No such file"]),
        ("no/such/file", &["no/such/file", "No such file"]),
        ("folder.toml", &["folder.toml", "directory"]),
        ("binary.toml", &["binary.toml", "UTF-8"]),
        ("zeros.toml", &["zeros.toml:1:", "not TOML"]),
        ("empty.toml", &["empty.toml", "name"]),
    ];
    for (file, words) in cases {
        for command in [&["bench", file][..], &["scenario", "check", file]] {
            assert_refused(&world, &own, world.run(world.weir(command)), 2, words);
        }
    }
}

#[test]
fn a_file_with_the_name_of_a_built_in_scenario_is_not_taken_for_it_silently() {
    let world = World::plain(WEIR);
    world.write("nat-instance", scenario::tiny());
    let outcome = world.run(world.weir(&["bench", "nat-instance", "--dry-run"])).expect(0);
    assert!(outcome.stdout.starts_with("nat-instance: "), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("./nat-instance"), "{}", outcome.stderr);
    let outcome = world.run(world.weir(&["bench", "./nat-instance", "--dry-run"])).expect(0);
    assert!(outcome.stdout.starts_with("tiny: "), "{}", outcome.stdout);
    assert_eq!(outcome.stderr, "");
}

#[test]
fn records_that_are_none_are_refused() {
    let world = World::plain(WEIR);
    // The least that is a record: taken from nowhere, so that it can be cut and bent.
    let whole = r#"{"schema": 1, "weir": "0.1.0", "id": "x", "scenario": "s", "title": "t"}"#;
    fs::create_dir(world.work().join("empty")).unwrap();
    for (name, text) in [
        ("garbage.json", &b"\xff\x00garbage"[..]),
        ("truncated.json", &whole.as_bytes()[..whole.len() / 2]),
        ("incomplete.json", whole.as_bytes()),
        ("array.json", b"[1, 2]"),
        ("nothing.json", b""),
        ("future.json", whole.replace("\"schema\": 1", "\"schema\": 4711").as_bytes()),
    ] {
        world.write(name, text);
    }
    let own = [
        "empty",
        "garbage.json",
        "truncated.json",
        "incomplete.json",
        "array.json",
        "nothing.json",
        "future.json",
    ];
    let cases: [(&str, &[&str]); 8] = [
        ("garbage.json", &["garbage.json:1:", "not a run record"]),
        ("truncated.json", &["truncated.json:1:", "not a run record"]),
        ("incomplete.json", &["incomplete.json:1:", "missing field"]),
        ("array.json", &["array.json", "not a run record"]),
        ("nothing.json", &["nothing.json", "not a run record"]),
        ("future.json", &["future.json", "schema 4711", "reads schema"]),
        ("missing", &["missing", "No such file"]),
        ("empty", &["empty/run.json", "No such file"]),
    ];
    for (file, words) in cases {
        for command in [&["report", file][..], &["compare", file, file], &["cost", "--run", file]] {
            assert_refused(&world, &own, world.run(world.weir(command)), 2, words);
        }
    }
}

#[test]
fn reports_to_compare_with_that_are_none_are_refused_before_the_window() {
    let world = World::plain(WEIR);
    for (name, text) in [
        ("garbage.json", &b"\xff\x00garbage"[..]),
        ("empty.json", b""),
        ("page.txt", b"this machine, watched for 10.0 s\n"),
        ("evidence.json", br#"{"version": 1, "window_s": 1.0}"#),
        ("mtu.json", br#"{"schema": "weir.mtu/1"}"#),
        ("future.json", br#"{"schema": "weir.doctor/2"}"#),
        ("short.json", br#"{"schema": "weir.doctor/1", "window_s": 10.0}"#),
        ("cut.json", br#"{"schema": "weir.doctor/1", "window_s": 10"#),
    ] {
        world.write(name, text);
    }
    let own = [
        "garbage.json",
        "empty.json",
        "page.txt",
        "evidence.json",
        "mtu.json",
        "future.json",
        "short.json",
        "cut.json",
    ];
    let remedy = "; pass the output of `weir doctor --json`";
    let cases: [(&str, &[&str]); 9] = [
        ("garbage.json", &["cannot read garbage.json", "UTF-8"]),
        ("empty.json", &["cannot compare with empty.json: it is empty", remedy]),
        ("page.txt", &["cannot compare with page.txt: not JSON", remedy]),
        ("evidence.json", &["no key \"schema\" with the value \"weir.doctor/1\"", remedy]),
        ("mtu.json", &["its schema is \"weir.mtu/1\", not \"weir.doctor/1\"", remedy]),
        ("future.json", &["its schema is \"weir.doctor/2\"", remedy]),
        ("short.json", &["short.json: missing field", remedy]),
        ("cut.json", &["cut.json: not JSON: EOF", remedy]),
        ("missing.json", &["cannot read missing.json", "No such file"]),
    ];
    for (file, words) in cases {
        // A window of a day would not end.
        let outcome = world.run(world.weir(&["doctor", "--for", "1d", "--before", file]));
        assert_refused(&world, &own, outcome, 2, words);
    }
}

/// A real host of that address, as both ends of `path`.
fn on_hosts(host: &str) -> String {
    let testbed = format!(
        "kind = \"hosts\"\n[testbed.initiator]\nhost = \"{host}\"\naddress = \"127.0.0.1\"\n[testbed.responder]\n\
         host = \"{host}\"\naddress = \"127.0.0.1\""
    );
    let entries = "[[variant]]\nkind = \"path\"\n[[workload]]\nname = \"rr\"\nkind = \"tcp-rr\"\n";
    scenario::text("hosts", &testbed, scenario::ONE_ROUND, entries)
}

#[test]
fn a_host_that_refuses_and_a_way_that_is_not_installed_are_named() {
    if World::lacks(&["ssh"]) {
        return;
    }
    let world = World::plain(WEIR);
    // No server listens on port 1 (tcpmux).
    world.write("s.toml", on_hosts("ssh://root@127.0.0.1:1"));
    let outcome = world.run(world.weir(&["bench", "s.toml"]));
    assert_refused(&world, &["s.toml"], outcome, 1, &["ssh://root@127.0.0.1:1", "Connection refused"]);

    let mut command = world.weir(&["bench", "s.toml"]);
    command.env("WEIR_SSH", "/no/such/ssh");
    assert_refused(&world, &["s.toml"], world.run(command), 4, &["/no/such/ssh", "not installed"]);

    for (host, program) in [("docker://web", "docker"), ("kubectl://default/pod", "kubectl")] {
        world.write("s.toml", on_hosts(host));
        let mut command = world.weir(&["bench", "s.toml"]);
        command.env("PATH", "/no/such/folder");
        assert_refused(&world, &["s.toml"], world.run(command), 4, &[host, program, "not installed"]);
    }
    for host in ["ssh://", "ssh://-oProxyCommand=x", "docker://a b", "kubectl://pod", "telnet://x"] {
        world.write("s.toml", on_hosts(host));
        assert_refused(
            &world,
            &["s.toml"],
            world.run(world.weir(&["bench", "s.toml"])),
            2,
            &["s.toml:6:", host],
        );
    }
    world.write("s.toml", on_hosts("netns:no-such-namespace"));
    let outcome = world.run(world.weir(&["bench", "s.toml"]));
    assert_refused(&world, &["s.toml"], outcome, 1, &["no-such-namespace"]);
}

#[test]
fn root_a_missing_program_is_named_with_its_package() {
    if World::lacks(&["iperf3"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    // Hidden in this world only. Two programs at once: the variant's and the workload's.
    world.sh("for p in iperf3 nft; do mount --bind /dev/null $(command -v $p); done");
    let text = scenario::tiny();
    world.write("s.toml", text.replace("kind = \"tcp-rr\"", "kind = \"external\""));
    let outcome = world.run(world.weir(&["bench", "s.toml"]));
    assert_refused(&world, &["s.toml"], outcome, 4, &["iperf3", "apt-get install iperf3"]);
    world.write("s.toml", text);
    let outcome = world.run(world.weir(&["bench", "s.toml"]));
    assert_refused(
        &world,
        &["s.toml"],
        outcome,
        4,
        &["gateway of nft-masquerade", "apt-get install nftables"],
    );
}

#[test]
fn root_a_normal_user_measures_too_and_is_told_what_is_out_of_reach() {
    let Some(world) = World::root(WEIR) else { return };
    // A window that no pause of the machine swallows whole: a trial that began nothing is void.
    world.write("s.toml", scenario::tiny().replace("duration = \"100ms\"", "duration = \"1s\""));
    let with_settings = "kind = \"lab\"\nhost-sysctls = { \"net.netfilter.nf_conntrack_max\" = \"300000\" }";
    world.write("global.toml", scenario::tiny().replace("kind = \"lab\"", with_settings));
    let as_nobody = |args: &[&str]| world.run(world.weir_as_nobody(args));
    let outcome = as_nobody(&["bench", "s.toml", "--output", "out"]).expect(0);
    assert!(outcome.stderr.contains("not root"), "{}", outcome.stderr);
    let record = Record::read(world.work().join("out"));
    let trials = &record.json["trials"];
    assert_eq!((record.state(), record.valid_trials().len()), ("rounds-done", 2), "{trials:#}");

    let own = ["s.toml", "global.toml", "out"];
    let outcome = as_nobody(&["bench", "global.toml"]);
    assert_refused(&world, &own, outcome, 4, &["host-sysctls", "root"]);

    let unreadable = world.write("secret.toml", scenario::tiny());
    fs::set_permissions(&unreadable, fs::Permissions::from_mode(0o000)).unwrap();
    let own = ["s.toml", "global.toml", "out", "secret.toml"];
    let outcome = as_nobody(&["bench", "secret.toml"]);
    assert_refused(&world, &own, outcome, 2, &["secret.toml", "Permission denied"]);

    // A folder of root's.
    fs::create_dir(world.folder().join("locked")).unwrap();
    let target = world.folder().join("locked/out");
    let outcome = as_nobody(&["bench", "s.toml", "--output", target.to_str().unwrap()]);
    assert_refused(&world, &own, outcome, 1, &[target.to_str().unwrap(), "Permission denied"]);
}

#[test]
fn root_without_user_namespaces_a_normal_user_is_told_why_and_what_to_do() {
    let Some(world) = World::root(WEIR) else { return };
    world.write("s.toml", scenario::tiny());
    // A user namespace of our own, in which the limit is none: root of it without any capability is a normal user.
    let script = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces && \
         exec setpriv --bounding-set=-all --inh-caps=-all {} bench s.toml",
        world.binary().display()
    );
    let mut command = world.command("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", &script]);
    let words = ["user.max_user_namespaces=0", "run as root"];
    assert_refused(&world, &["s.toml"], world.run(command), 4, &words);
}

#[test]
fn root_a_full_disk_ends_the_run_and_keeps_the_last_whole_record() {
    let Some(world) = World::root(WEIR) else { return };
    let rounds = scenario::ONE_ROUND.replace("max-rounds = 1", "max-rounds = 40\ntarget = 0.0001");
    world.write("s.toml", scenario::text("full", scenario::LAB, &rounds, scenario::TWO_VARIANTS));
    for (size, fits) in [("16k", false), ("400k", true)] {
        world.sh(&format!("mkdir -p out && mount -t tmpfs -o size={size} tmpfs out"));
        let outcome = world.run(world.weir(&["bench", "s.toml", "--output", "out"])).expect(1);
        let complaints = outcome.complaints();
        assert_eq!(complaints.len(), 1, "{}", outcome.stderr);
        assert!(
            complaints[0].contains("out/run.json") && complaints[0].contains("No space left"),
            "{}",
            outcome.stderr
        );
        assert!(outcome.stdout.contains("nft-masquerade"), "what was measured is told");
        let files = world.sh("ls -A out");
        let files: Vec<&str> = files.lines().collect();
        assert!(files.iter().all(|f| ["run.json", "report.html"].contains(f)), "{files:?}");
        assert_eq!(files.contains(&"run.json"), fits, "{files:?}");
        if fits {
            let json: serde_json::Value = serde_json::from_str(&world.sh("cat out/run.json")).unwrap();
            assert!(!json["trials"].as_array().unwrap().is_empty());
        }
        if files.contains(&"report.html") {
            assert!(world.sh("tail -c 20 out/report.html").contains("</html>"), "half a page");
        }
        assert!(world.labs().is_empty());
        world.wait_until_idle();
        world.sh("umount out && rmdir out");
    }
}

#[test]
fn root_a_folder_that_holds_a_run_or_cannot_be_made_is_refused() {
    let Some(world) = World::root(WEIR) else { return };
    world.write("s.toml", scenario::tiny());
    fs::create_dir(world.work().join("old")).unwrap();
    world.write("old/run.json", "precious");
    let outcome = world.run(world.weir(&["bench", "s.toml", "--output", "old"]));
    assert_refused(&world, &["s.toml", "old"], outcome, 2, &["there is a run in old already"]);
    assert_eq!(fs::read_to_string(world.work().join("old/run.json")).unwrap(), "precious");
    let outcome = world.run(world.weir(&["bench", "s.toml", "--output", "/proc/none"]));
    assert!(!outcome.stderr.contains("lab"), "known before the lab is up: {}", outcome.stderr);
    assert_refused(&world, &["s.toml", "old"], outcome, 1, &["/proc/none"]);
}
