//! `weir tune` on namespaces of its own, and on the machine's own settings, which it puts back: applied, confirmed, rolled
//! back, and killed with -9 at every step of that.

mod documents;
mod tune_world;

use std::fs;
use std::os::fd::{AsFd, AsRawFd};

use serde_json::{Value, json};
use tune_world::{SETTINGS, Tuned, flood, kill};
use weir_sys::NetNs;
use weir_testkit::{PATIENCE, World, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

#[test]
fn root_a_plan_changes_nothing_and_writes_nothing() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let plan = tuned.json(&[&["plan"][..], &SETTINGS].concat());
    let rows = plan["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    assert_eq!((&rows[0]["name"], &rows[0]["proposed"]), (&"net.core.somaxconn".into(), &"9000".into()));
    assert_eq!(rows[0]["now"], tuned.before[0]);
    // Values with tabs are compared by their numbers.
    let page = tuned.run(&["plan", "--set", "net.ipv4.tcp_rmem=4096 131072 7000000"]).expect(0).stdout;
    assert!(page.contains("-> 4096 131072 7000000") && page.contains("undo  sysctl -w"), "{page}");
    assert_eq!(tuned.values(), tuned.before);
    assert!(!tuned.state().exists(), "no journal, no lock, no folder");
}

#[test]
fn root_without_privilege_plan_works_and_apply_names_root() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    if World::lacks(&["setpriv"]) {
        return;
    }
    let run = |args: &str| {
        let drop = "exec setpriv --reuid 65534 --clear-groups --inh-caps=-all --bounding-set=-all";
        let mut command = tuned.world.shell(&format!("{drop} {WEIR} tune {args}"));
        command.env("WEIR_STATE_DIR", tuned.state());
        tuned.world.run(command)
    };
    let page = run("plan --memory 64M").expect(0).stdout;
    assert!(page.contains("can be read by root only"), "{page}");
    for command in ["apply", "confirm", "rollback", "prove --command true"] {
        let outcome = run(command).expect(4);
        assert!(outcome.stderr.contains("root") && outcome.complaints().len() == 1, "{}", outcome.stderr);
    }
    assert_eq!(tuned.values(), tuned.before);
    // A change by root is root's to see.
    tuned.apply(&["--no-watch"]).expect(0);
    let outcome = run("status").expect(4);
    assert!(outcome.stderr.contains("root"), "{}", outcome.stderr);
    tuned.run(&["rollback"]).expect(0);
}

#[test]
fn root_without_a_confirmation_the_guard_takes_it_back() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let outcome = tuned.apply(&["--confirm-within", "2s"]).expect(0);
    assert!(
        outcome.stderr.contains("rolls back in 2 s; keep it with: weir tune confirm"),
        "{}",
        outcome.stderr
    );
    assert_eq!(tuned.values(), tuned.after());
    tuned.until_before();
    tuned.world.wait_until_idle();
    let status = tuned.status();
    assert_eq!(status["progress"]["phase"], "reverted");
    assert_eq!(status["progress"]["why"], "not confirmed within 2 s");
    let late = tuned.run(&["confirm"]).expect(1);
    assert!(late.stderr.contains("cannot be confirmed, it was rolled back"), "{}", late.stderr);
}

#[test]
fn root_confirm_keeps_it_and_may_be_said_twice_and_rollback_still_works() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    tuned.apply(&[]).expect(0);
    let status = tuned.status();
    assert_eq!((&status["guarded"], &status["progress"]["phase"]), (&true.into(), &"waiting".into()));
    assert!(status["remaining_s"].as_u64().is_some_and(|s| (60..=120).contains(&s)), "{status:#}");
    tuned.run(&["confirm"]).expect(0);
    tuned.world.wait_until_idle();
    let journal = fs::read_to_string(tuned.journal()).unwrap();
    let again = tuned.run(&["confirm"]).expect(0);
    assert!(again.stdout.contains("confirmed before"), "{}", again.stdout);
    assert_eq!(fs::read_to_string(tuned.journal()).unwrap(), journal);
    assert_eq!(tuned.values(), tuned.after());
    tuned.run(&["rollback"]).expect(0);
    assert_eq!(tuned.values(), tuned.before);
    // Once more says so, and does nothing.
    assert!(tuned.run(&["rollback"]).expect(0).stdout.contains("was rolled back: asked for"));
}

#[test]
fn root_what_somebody_else_changed_meanwhile_is_left_alone_and_told() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    tuned.apply(&[]).expect(0);
    tuned.world.sh("sysctl -qw net.core.somaxconn=777");
    let status = tuned.status();
    assert_eq!(status["steps"][0]["now"]["others"]["found"], "777");
    let outcome = tuned.run(&["rollback"]).expect(1);
    assert!(outcome.stdout.contains("left alone: another program set it to `777`"), "{}", outcome.stdout);
    assert_eq!(outcome.stdout.matches("restored").count(), 2);
    let mut expected = tuned.before.clone();
    expected[0] = "777".into();
    assert_eq!(tuned.values(), expected);
    assert_eq!(tuned.status()["steps"][0]["progress"]["outcome"], "left-to-others");
}

#[test]
fn root_a_number_that_gets_worse_takes_it_back_early() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let number = tuned.world.write("number", "5\n");
    let watch = format!("cat {}", number.display());
    tuned
        .apply(&["--confirm-within", "1h", "--no-watch", "--watch-command", &watch, "--above", "5"])
        .expect(0);
    assert_eq!(tuned.values(), tuned.after());
    fs::write(&number, "6\n").unwrap();
    tuned.until_before();
    tuned.world.wait_until_idle();
    let why = tuned.status()["progress"]["why"].as_str().unwrap().to_owned();
    assert!(why.contains("got worse: 6, above 5 3 times in a row"), "{why}");
}

/// The very counter: connections that find a full accept queue, by a listener that does not take them.
#[test]
fn root_the_counter_of_the_setting_is_watched() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    if World::lacks(&["python3"]) {
        return;
    }
    let set = ["apply", "--set", "net.core.somaxconn=16", "--confirm-within", "1h"];
    let outcome = tuned.run(&set).expect(0);
    assert!(outcome.stdout.contains("watched: connections that found a full queue"), "{}", outcome.stdout);
    let _flood = flood(&tuned);
    until("the old value", PATIENCE, || (tuned.values() == tuned.before).then_some(()));
    let why = tuned.status()["progress"]["why"].as_str().unwrap().to_owned();
    assert!(why.contains("connections that found a full queue, per second got worse"), "{why}");
}

/// A program that finds no free port gets an error, and the kernel counts none: no reader must believe that a counter guards it.
#[test]
fn root_what_cannot_be_watched_is_said_before_and_after() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let set = ["--set", "net.ipv4.ip_local_port_range=20000 60000", "--set", "net.ipv4.conf.all.rp_filter=2"];
    let words = "nothing to watch: only the time limit rolls it back";
    let page = tuned.run(&[&["plan"], &set[..]].concat()).expect(0).stdout;
    assert!(page.contains(&format!("watch {words}")), "{page}");
    let applied = tuned.run(&[&["apply", "--confirm-within", "1h"], &set[..]].concat()).expect(0).stdout;
    let said = format!("net.ipv4.ip_local_port_range: {words}");
    for words in ["watched: sources that the reverse path filter refused, per second", &said] {
        assert!(applied.contains(words), "{words}: {applied}");
    }
    tuned.run(&["rollback"]).expect(0);
}

#[test]
fn root_the_guard_outlives_hangups_and_reverts_when_it_is_told_to_end() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    tuned.apply(&["--confirm-within", "1h"]).expect(0);
    let guard = tuned.guards()[0];
    for signal in ["HUP", "INT"] {
        kill(guard, signal);
    }
    assert_eq!(tuned.status()["guarded"], true);
    assert_eq!(tuned.values(), tuned.after());
    kill(guard, "TERM");
    tuned.until_before();
    assert!(tuned.status()["progress"]["why"].as_str().unwrap().contains("received SIGTERM"));
}

#[test]
fn root_a_guard_whose_journal_is_lost_takes_everything_back_at_once() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    for loss in ["rm -r", "truncate -s 30", "sed -i 1s/version/v/"] {
        tuned.apply(&["--confirm-within", "1h", "--no-watch"]).expect(0);
        tuned.world.sh(&format!("{loss} {}", tuned.journal().display()));
        tuned.until_before();
        tuned.world.wait_until_idle();
        fs::remove_dir_all(tuned.state()).unwrap();
    }
}

#[test]
fn root_two_at_once_are_one_too_many() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let args = [&["apply", "--no-watch"][..], &SETTINGS].concat();
    let both = ["first", "second"].map(|name| tuned.world.start(name, tuned.weir(&args)));
    let outcomes = both.map(|b| b.end_within(PATIENCE));
    let mut codes = outcomes.each_ref().map(|o| o.code);
    codes.sort_unstable();
    assert_eq!(codes, [0, 1], "{outcomes:?}");
    let refused = outcomes.iter().find(|o| o.code == 1).unwrap();
    assert!(
        refused.stderr.contains("waits to be confirmed") || refused.stderr.contains("right now"),
        "{}",
        refused.stderr
    );
    // And one after the other, for any caller.
    let third = tuned.run(&["apply", "--no-watch", "--set", "net.ipv4.tcp_fin_timeout=44"]).expect(1);
    assert!(third.stderr.contains("waits to be confirmed"), "{}", third.stderr);
    assert_eq!(tuned.values(), tuned.after());
    tuned.run(&["rollback"]).expect(0);
    assert_eq!(tuned.values(), tuned.before);
}

#[test]
fn root_a_full_disk_changes_nothing() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let state = tuned.state();
    let at = state.display();
    tuned.world.sh(&format!("mkdir {at} && mount -t tmpfs -o size=64k,mode=700 tmpfs {at}"));
    // Nothing free, or a page: enough for the folder or a first line, and not for all that may have to be written down.
    for kib in [64, 60] {
        tuned.world.sh(&format!("head -c {}k /dev/zero > {at}/filler || true", kib));
        let outcome = tuned.apply(&["--no-watch"]).expect(1);
        assert!(outcome.stderr.contains("No space left"), "{}", outcome.stderr);
        assert_eq!(tuned.values(), tuned.before);
        tuned.world.wait_until_idle();
    }
    tuned.world.sh(&format!("rm {at}/filler"));
    tuned.apply(&["--no-watch"]).expect(0);
    // The reserved space is there when the disk is full meanwhile.
    tuned.world.sh(&format!("head -c 64k /dev/zero > {at}/filler || true"));
    tuned.run(&["rollback"]).expect(0);
    assert_eq!(tuned.values(), tuned.before);
}

#[test]
fn root_a_journal_that_makes_no_sense_is_told_and_changes_nothing() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    tuned.apply(&[]).expect(0);
    tuned.run(&["confirm"]).expect(0);
    let whole = fs::read(tuned.journal()).unwrap();
    for (damage, words) in [
        (&b"\x1b[31mhello\n"[..], "line 1: not an entry"),
        (b"", "it is empty"),
        (b"{\"writing\":{\"step\":0}}\n", "its beginning is missing"),
        (&whole[..40], "it is empty"),
    ] {
        fs::write(tuned.journal(), damage).unwrap();
        for args in
            [&["status"][..], &["confirm"], &["rollback"], &["apply", "--set", "net.core.somaxconn=50"]]
        {
            let outcome = tuned.run(args).expect(1);
            assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
            assert!(outcome.stderr.contains("nothing was changed") && !outcome.stderr.contains('\x1b'));
        }
        assert_eq!(tuned.values(), tuned.after());
    }
    fs::write(tuned.journal(), whole).unwrap();
    tuned.run(&["rollback"]).expect(0);
    assert_eq!(tuned.values(), tuned.before);
}

/// The table belongs to the machine; from a network namespace of its own it can be seen and not written.
#[test]
fn root_what_cannot_be_written_here_is_shown_and_not_tried() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let set = "net.netfilter.nf_conntrack_max=7654321";
    let max = tuned.world.sh("cat /proc/sys/net/netfilter/nf_conntrack_max 2>/dev/null || true");
    if max.is_empty() {
        println!("SKIP: needs connection tracking (modprobe nf_conntrack)");
        return;
    }
    let page = tuned.run(&["plan", "--memory", "8G", "--set", set]).expect(0).stdout;
    assert!(page.contains("held  apply leaves it out: it belongs to the machine"), "{page}");
    let outcome = tuned.run(&["apply", "--memory", "8G", "--set", set]).expect(4);
    assert!(outcome.stderr.contains("only from its own network namespace"), "{}", outcome.stderr);
    assert_eq!(tuned.world.sh("cat /proc/sys/net/netfilter/nf_conntrack_max"), max);
    let watch = ["apply", "--set", "net.core.somaxconn=9000", "--watch-command", "echo no", "--above", "1"];
    let outcome = tuned.run(&watch).expect(2);
    assert!(outcome.stderr.contains("does not print a number"), "{}", outcome.stderr);
    assert_eq!(tuned.values(), tuned.before);
}

#[test]
fn root_findings_are_planned_and_applied_and_their_texts_do_no_harm() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let setting = |name: &str, proposed: &str| json!({ "name": name, "now": "1", "proposed": proposed, "why": "a\u{1b}[31mb" });
    let finding = |confidence: &str, settings: Value| json!({ "cause": "accept\u{1b}[2Jqueue", "namespace": 0, "place": "p\u{7}", "confidence": confidence, "fixes": [{ "tune": settings }] });
    let document = json!({ "version": 1, "findings": [
        finding("high", json!([setting("net.core.somaxconn", "9000"), setting("kernel.panic\u{1b}[0m", "1")])),
        finding("low", json!([setting("net.ipv4.tcp_fin_timeout", "33")])),
    ]});
    tuned.world.write("found.json", document.to_string());
    let outcome = tuned.run(&["apply", "--from", "found.json", "--no-watch"]).expect(0);
    let said = format!("{}{}", outcome.stdout, outcome.stderr);
    assert!(!said.contains(['\u{1b}', '\u{7}']), "{said:?}");
    for words in ["finding acceptqueue", "low confidence", "not a setting that weir tune changes"] {
        assert!(said.contains(words), "{words}:\n{said}");
    }
    let expected = [&["9000".to_owned()], &tuned.before[1..]].concat();
    assert_eq!(tuned.values(), expected);
    let page = tuned.run(&["status"]).expect(0).stdout;
    assert!(!page.contains('\u{1b}'));
    tuned.run(&["rollback"]).expect(0);
    assert_eq!(tuned.values(), tuned.before);
}

#[test]
fn root_another_namespace_is_changed_and_this_one_is_not() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let other = NetNs::create().unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), other.as_fd().as_raw_fd());
    let there = || other.run(|| fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap()).unwrap();
    let before = there();
    let args = [
        "apply",
        "--netns",
        &path,
        "--set",
        "net.core.somaxconn=9000",
        "--no-watch",
        "--confirm-within",
        "1h",
    ];
    let outcome = tuned.run(&args).expect(0);
    assert!(outcome.stdout.contains(&format!("network namespace {path}")), "{}", outcome.stdout);
    assert_eq!((there().trim(), tuned.values()), ("9000", tuned.before.clone()));
    assert_eq!(tuned.status()["steps"][0]["now"], "ours");
    tuned.run(&["rollback"]).expect(0);
    assert_eq!((there(), tuned.values()), (before, tuned.before.clone()));

    tuned.run(&args).expect(0);
    tuned.run(&["confirm"]).expect(0);
    drop(other);
    let outcome = tuned.run(&["rollback"]).expect(0);
    assert!(outcome.stdout.contains("gone, and the change with it"), "{}", outcome.stdout);
}

#[test]
fn wrong_usage_is_2_and_says_what_is_right() {
    let world = World::plain(WEIR);
    world.write("bad.json", "{\"a\":1}");
    for (args, words) in [
        (&["plan", "--profile", "nat"][..], "nat-gateway, rfc, throughput"),
        (&["plan", "--set", "net.core.somaxconn"], "NAME=VALUE"),
        (&["plan", "--set", "kernel.panic=1"], "docs/guides/tune.md"),
        (&["plan", "--set", "net.core.somaxconn=1"], "16 to 65536"),
        (&["plan", "--set", "net.core.somaxconn=x\u{1b}[31m"], "not a whole number"),
        (&["plan", "--memory", "90%"], "at most 50 %"),
        (&["plan", "--from", "bad.json"], "weir doctor --json"),
        (&["plan", "--from", "none.json"], "cannot read none.json"),
        (&["plan", "--netns", "no such"], "--netns no such"),
        (&["plan", "--peak", "0"], "--peak"),
        (&["plan", "--for", "0"], "1 s to 1 d"),
        (&["apply", "--confirm-within", "0"], "1 s to 1 d"),
        (&["apply", "--above", "1"], "--watch-command"),
        (&["apply", "--watch-command", "true"], "--above"),
        (&["prove"], "--command"),
        (&["prove", "--command", "true", "--counter", "drops"], "conntrack-drops"),
    ] {
        let outcome = world.run(world.weir(&[&["tune"], args].concat()));
        let outcome = outcome.expect(2);
        assert!(outcome.stderr.contains(words), "{args:?}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains('\u{1b}') && outcome.stdout.is_empty());
    }
}

#[test]
fn where_nothing_was_applied_that_is_said() {
    let world = World::plain(WEIR);
    let mut command = world.weir(&["tune", "status"]);
    command.env("WEIR_STATE_DIR", world.folder().join("none"));
    assert_eq!(world.run(command).expect(0).stdout, "nothing was applied here\n");
    let mut command = world.weir(&["tune", "status", "--json"]);
    command.env("WEIR_STATE_DIR", world.folder().join("none"));
    assert_eq!(documents::read(&world.run(command).expect(0).stdout, "tune-status")["set"], Value::Null);
}

/// Help for people who look for it; the guard is no command for users.
#[test]
fn the_guard_is_hidden() {
    let world = World::plain(WEIR);
    let help = world.run(world.weir(&["--help"])).expect(0).stdout;
    assert!(help.contains("tune") && !help.contains("guard"), "{help}");
    let mut command = world.weir(&["guard", "tune", "0123456789ab"]);
    command.env("WEIR_STATE_DIR", world.folder().join("none"));
    let outcome = world.run(command);
    assert_eq!(outcome.code, 1, "{}", outcome.stderr);
}

/// Settings of the whole machine are written in its own network namespace only, and restored.
#[test]
fn root_alone_conntrack_max_of_the_machine_is_put_back() {
    let name = "net.netfilter.nf_conntrack_max";
    let Some(machine) = tune_world::Machine::new(WEIR, name) else { return };
    let more = (machine.before.parse::<u64>().unwrap() + 1000).to_string();
    let set = format!("{name}={more}");
    let apply = |timeout: &str| {
        machine.tuned.run(&["apply", "--no-watch", "--set", &set, "--confirm-within", timeout]).expect(0)
    };
    let outcome = apply("2s");
    assert!(outcome.stdout.contains("confirm writes /etc/sysctl.d/90-weir.conf"), "{}", outcome.stdout);
    until("the old limit", PATIENCE, || (machine.value() == machine.before).then_some(()));
    apply("1h");
    assert_eq!(machine.value(), more);
    machine.tuned.run(&["confirm"]).expect(0);
    assert!(machine.file().unwrap().contains(&format!("{name} = {more}\n")));
    machine.tuned.run(&["rollback"]).expect(0);
    assert_eq!((machine.value(), machine.file()), (machine.before.clone(), None));
}
