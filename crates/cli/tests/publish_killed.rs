//! `weir publish apply` killed at each step: by itself, its loader, and its guard.

mod documents;
mod publish_world;

use publish_world::Host;
use weir_testkit::{PATIENCE, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const HOUR: [&str; 4] = ["apply", "--all", "--confirm-within", "1h"];

/// The calls by which a step is counted, in the program that applies and in the one that it starts to load.
const APPLIER: &str = "WEIR_GUARD_STOP_AT";
const LOADER: &str = "WEIR_PUBLISH_STOP_AT";

fn host() -> Option<Host> {
    if !cfg!(debug_assertions) {
        println!("SKIP: needs a build with debug assertions, which lets itself be killed at a step");
        return None;
    }
    Host::new(WEIR)
}

/// Applies, and is killed at each step in turn; returns how many there are.
fn deaths(host: &Host, variable: &str, left: &str) -> u32 {
    for step in 1..20 {
        let mut command = host.weir(&HOUR);
        command.env(variable, step.to_string());
        if host.world.run(command).code == 0 {
            return step - 1;
        }
        until("the guard has gone", PATIENCE, || host.guards().is_empty().then_some(()));
        if left.is_empty() {
            assert_eq!(host.kernel(), "", "{variable}, step {step}");
        }
        // The process that restores the state before is killed at the same step; the next command does it.
        let status = host.json(&["status"], 0);
        assert_eq!(status["set"]["progress"]["phase"], "reverted", "{variable}, step {step}");
        assert_eq!(host.kernel(), left, "{variable}, step {step}");
        host.works();
    }
    panic!("more steps than there can be");
}

#[test]
fn root_apply_killed_at_each_step_leaves_nothing() {
    let Some(host) = host() else { return };
    // The beginning, two lines and one change, waiting.
    assert_eq!(deaths(&host, APPLIER, ""), 1 + 3 + 1);
    host.run(&["remove"]).expect(0);
    // The pins, and two programs.
    assert_eq!(deaths(&host, LOADER, ""), 1 + 2);
    host.run(&["remove"]).expect(0);
    assert_eq!(host.pins(), "");
}

#[test]
fn root_a_replacement_killed_at_each_step_leaves_the_one_before() {
    let Some(host) = host() else { return };
    host.run(&["apply", "198.18.0.1:53=198.19.0.2:5353/udp", "--no-guard"]).expect(0);
    let before = host.kernel();
    assert_eq!(deaths(&host, LOADER, &before), 1 + 2);
    host.run(&["remove"]).expect(0);
    assert_eq!(host.pins(), "");
}

#[test]
fn root_all_killed_at_once_is_taken_back_by_the_next_command() {
    let Some(host) = host() else { return };
    let mut command = host.weir(&HOUR);
    // The loader with one program attached, then the applier, which takes note of that, then the guard.
    command.env(LOADER, "2").env(APPLIER, "4").env("WEIR_GUARD_STOP_GUARD_AT", "1");
    assert_ne!(host.world.run(command).code, 0);
    until("the guard has gone", PATIENCE, || host.guards().is_empty().then_some(()));
    let status = host.run(&["status"]).expect(0).stdout;
    assert!(status.contains("was rolled back"), "{status}");
    assert_eq!(host.kernel(), "");
    host.works();
    host.run(&["remove"]).expect(0);
    assert_eq!(host.pins(), "");
}

#[test]
fn root_half_of_it_is_told_and_mended() {
    let Some(host) = host() else { return };
    let applied = host.json(&["apply", "--all", "--no-guard"], 0);
    let whole = host.kernel();
    host.run(&["unload"]).expect(0);
    let lost = host.run(&["status"]).expect(3).stdout;
    assert!(lost.contains("what was confirmed is gone"), "{lost}");
    let file = host.world.folder().join(format!("state/publish/{}.json", applied["id"].as_str().unwrap()));
    let mut command = host.weir(&["load", &file.to_string_lossy()]);
    command.env(LOADER, "2");
    assert_ne!(host.world.run(command).code, 0);
    let half = host.kernel();
    assert!(half.starts_with("in-") && half.lines().count() == 1, "{half}");
    let status = host.run(&["status"]).expect(3).stdout;
    for words in ["veth1: NOT in effect", "no program is attached for what comes from the container"] {
        assert!(status.contains(words), "{words}: {status}");
    }
    host.run(&["apply", "--all", "--no-guard"]).expect(0);
    assert_eq!(host.kernel(), whole);
    host.works();

    // Names that another program removed.
    host.world.sh("rm /sys/fs/bpf/weir/publish/*/*/in4");
    let status = host.run(&["status"]).expect(3).stdout;
    assert!(status.contains("its tables are gone"), "{status}");
    host.world.sh("rm /sys/fs/bpf/weir/publish/links/in-*");
    host.run(&["status"]).expect(3);
    assert!(host.run(&["remove"]).expect(0).stdout.contains("removed"));
    assert_eq!(host.pins(), "");
    host.works();
}
