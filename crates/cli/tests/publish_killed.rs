//! `weir publish apply` killed at each step: by itself, its loader, and its guard.

mod publish_world;

use publish_world::Host;
use weir_testkit::{PATIENCE, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const HOUR: [&str; 4] = ["apply", "--all", "--confirm-within", "1h"];

/// What a step is counted by, in the program that applies and in the one that it starts to load.
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
    let mut deaths = 0;
    for step in 1..20 {
        let mut command = host.weir(&HOUR);
        command.env(variable, step.to_string());
        if host.world.run(command).code == 0 {
            return deaths;
        }
        deaths += 1;
        until("the guard has gone", PATIENCE, || host.guard().is_none().then_some(()));
        assert_eq!(host.kernel(), left, "{variable}, step {step}");
        let status = host.json(&["status"], 0);
        assert_eq!(status["set"]["progress"]["phase"], "reverted", "{variable}, step {step}");
        host.works();
    }
    panic!("more steps than there can be");
}

#[test]
fn root_apply_killed_at_each_step_leaves_nothing() {
    let Some(host) = host() else { return };
    // The beginning, the guard's name, two lines and one change, waiting.
    assert_eq!(deaths(&host, APPLIER, ""), 2 + 3 + 1);
    host.run(&["remove"]).expect(0);
    // What is pinned, and two programs.
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
    // The guard dies when it begins to take back what the loader left.
    command.env(LOADER, "2").env("WEIR_GUARD_STOP_GUARD_AT", "1").env(APPLIER, "4");
    assert_ne!(host.world.run(command).code, 0);
    until("the guard has gone", PATIENCE, || host.guard().is_none().then_some(()));
    let status = host.run(&["status"]).expect(0).stdout;
    assert!(status.contains("was taken back"), "{status}");
    assert_eq!(host.kernel(), "");
    host.works();
    host.run(&["remove"]).expect(0);
    assert_eq!(host.pins(), "");
}
