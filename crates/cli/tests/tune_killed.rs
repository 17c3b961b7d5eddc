//! `weir tune` killed with -9 after every step that leaves a trace on disk or in the kernel: the host ends with the values of
//! before or with the confirmed ones, and the journal says which.

mod documents;
mod publish_world;
mod tune_world;

use publish_world::Host;
use tune_world::{Machine, SETTINGS, Tuned, kill, phase_on_disk};
use weir_testkit::{CommandOutput, PATIENCE, World, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// More steps than any command has.
const MOST: u32 = 100;

/// Builds without debug assertions know no such variable: nothing would ever be killed.
fn cannot_be_killed() -> bool {
    if !cfg!(debug_assertions) {
        println!("SKIP: needs a build with debug assertions, which lets itself be killed at a step");
    }
    !cfg!(debug_assertions)
}

fn killed_at(tuned: &Tuned, variable: &str, step: u32, args: &[&str]) -> CommandOutput {
    let mut command = tuned.weir(args);
    command.env(variable, step.to_string());
    tuned.world.run(command)
}

/// nsenter becomes the command, so its end by a signal is seen as such.
fn was_killed(outcome: &CommandOutput) -> bool {
    outcome.code == -1
}

#[test]
fn root_apply_killed_at_each_step_is_taken_back_by_its_guard() {
    if cannot_be_killed() {
        return;
    }
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let args = [&["apply", "--no-watch", "--confirm-within", "1h"][..], &SETTINGS].concat();
    let mut deaths = 0;
    for step in 1..MOST {
        let outcome = killed_at(&tuned, "WEIR_GUARD_STOP_AT", step, &args);
        if outcome.code == 0 {
            break;
        }
        assert!(was_killed(&outcome), "step {step}: {outcome:?}");
        deaths += 1;
        // No command runs: the guard sees that the command is gone. Before there was a guard, nothing was changed.
        tuned.until_before();
        tuned.world.wait_until_idle();
        let status = tuned.status();
        assert_eq!(status["progress"]["phase"], "reverted", "step {step}: {status:#}");
        assert_eq!(tuned.values(), tuned.before, "step {step}");
    }
    // The beginning; two lines and one write for each of three settings; waiting.
    assert_eq!(deaths, 1 + 3 * 3 + 1);
    assert_eq!((tuned.values(), tuned.status()["guarded"].clone()), (tuned.after(), true.into()));
    tuned.run(&["rollback"]).expect(0);
    assert_eq!(tuned.values(), tuned.before);
}

#[test]
fn root_apply_and_one_guard_killed_at_each_step_are_put_right_by_the_other_guard() {
    if cannot_be_killed() {
        return;
    }
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let args = [&["apply", "--no-watch", "--confirm-within", "1h"][..], &SETTINGS].concat();
    for step in 2..MOST {
        let mut command = tuned.weir(&args);
        // The guard's first step is to write down that it rolls the set back.
        command.env("WEIR_GUARD_STOP_AT", step.to_string()).env("WEIR_GUARD_STOP_GUARD_AT", "1");
        let outcome = tuned.world.run(command);
        if outcome.code == 0 {
            break;
        }
        assert!(was_killed(&outcome), "step {step}: {outcome:?}");
        tuned.world.wait_until_idle();
        assert_eq!(phase_on_disk(&tuned.journal()).as_deref(), Some("ended"), "step {step}");
        assert_eq!(tuned.values(), tuned.before, "step {step}");
    }
    tuned.run(&["rollback"]).expect(0);
    assert_eq!(tuned.values(), tuned.before);
}

#[test]
fn root_a_guard_killed_at_each_step_of_rolling_back_leaves_the_rest_to_the_other_one() {
    if cannot_be_killed() {
        return;
    }
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let args = [&["apply", "--no-watch", "--confirm-within", "1"][..], &SETTINGS].concat();
    // Reverting; a line, a write and a line for each of three settings.
    for step in 1..=1 + 3 * 3 {
        killed_at(&tuned, "WEIR_GUARD_STOP_GUARD_AT", step, &args).expect(0);
        tuned.world.wait_until_idle();
        assert_eq!(phase_on_disk(&tuned.journal()).as_deref(), Some("ended"), "step {step}");
        assert_eq!(tuned.values(), tuned.before, "step {step}");
    }
}

#[test]
fn root_rollback_killed_at_each_step_is_finished_by_the_next_one() {
    if cannot_be_killed() {
        return;
    }
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let mut deaths = 0;
    for step in 1..MOST {
        tuned.apply(&["--no-watch"]).expect(0);
        if step % 2 == 0 {
            tuned.run(&["confirm"]).expect(0);
        }
        let outcome = killed_at(&tuned, "WEIR_GUARD_STOP_AT", step, &["rollback"]);
        if outcome.code == 0 {
            break;
        }
        assert!(was_killed(&outcome), "step {step}: {outcome:?}");
        deaths += 1;
        tuned.run(&["rollback"]).expect(0);
        assert_eq!(tuned.values(), tuned.before, "step {step}");
        tuned.world.wait_until_idle();
    }
    assert_eq!(deaths, 1 + 3 * 3 + 1);
    assert_eq!(tuned.values(), tuned.before);
}

/// With the files that make it last: in the machine's own network namespace, on a setting that nothing depends on.
#[test]
fn root_alone_confirm_killed_at_each_step_ends_with_the_old_or_the_confirmed_value() {
    if cannot_be_killed() {
        return;
    }
    let name = "net.netfilter.nf_conntrack_expect_max";
    let Some(machine) = Machine::new(WEIR, name) else { return };
    let more = (machine.before.parse::<u64>().unwrap() + 64).to_string();
    let set = format!("{name}={more}");
    let mut deaths = 0;
    for step in 1..MOST {
        machine.tuned.run(&["apply", "--no-watch", "--set", &set, "--confirm-within", "1h"]).expect(0);
        let outcome = killed_at(&machine.tuned, "WEIR_GUARD_STOP_AT", step, &["confirm"]);
        // The first thing on disk is the decision: from there on it is confirmed.
        assert_eq!(machine.value(), more, "step {step}");
        let status = machine.tuned.status();
        assert_eq!(status["progress"]["phase"], "confirmed", "step {step}: {status:#}");
        let done = outcome.code == 0;
        if !done {
            assert!(was_killed(&outcome), "step {step}: {outcome:?}");
            deaths += 1;
            machine.tuned.run(&["confirm"]).expect(0);
        }
        // Whole, and once.
        assert_eq!(machine.file().unwrap().matches(&format!("{name} = {more}\n")).count(), 1, "step {step}");
        let left = machine.tuned.world.sh("ls /etc/sysctl.d");
        machine.tuned.run(&["rollback"]).expect(0);
        assert_eq!((machine.value(), machine.file()), (machine.before.clone(), None), "step {step}");
        assert_eq!(left.trim(), "90-weir.conf", "step {step}");
        machine.tuned.world.wait_until_idle();
        if done {
            break;
        }
    }
    // Confirmed; the line before, the new file, its name, and the line after: for one file, or two where it is a module.
    assert!(deaths == 1 + 4 || deaths == 1 + 8, "{deaths}");
}

/// Beside a setting, ports led by BPF: killed in the command that applies both, and in the one that it starts to load programs.
#[test]
fn root_apply_of_published_ports_killed_at_each_step_leaves_nothing() {
    if cannot_be_killed() {
        return;
    }
    let Some(host) = Host::new(WEIR) else { return };
    let name = "net.core.somaxconn";
    let value = || host.world.sh(&format!("sysctl -n {name}"));
    let before = value();
    let words =
        ["tune", "apply", "--profile", "published-ports", "--set", "net.core.somaxconn=9000", "--no-watch"];
    // The beginning; two lines and one write for the setting, the same for the ports; waiting. The loader:
    // the pins, and two programs.
    for (variable, deaths) in [("WEIR_GUARD_STOP_AT", 1 + 3 + 3 + 1), ("WEIR_PUBLISH_STOP_AT", 1 + 2)] {
        for step in 1..MOST {
            let mut command = host.any(&[&words[..], &["--confirm-within", "1h"]].concat());
            command.env(variable, step.to_string());
            if host.world.run(command).code == 0 {
                assert_eq!(step - 1, deaths, "{variable}");
                break;
            }
            until("the guard has gone", PATIENCE, || host.guards().is_empty().then_some(()));
            assert_eq!((host.kernel(), value()), (String::new(), before.clone()), "{variable}, step {step}");
            let status = host.tune_json(&["status"]);
            assert_eq!(status["set"]["progress"]["phase"], "reverted", "{variable}, step {step}: {status:#}");
            host.works();
        }
        assert_eq!(value().trim(), "9000");
        host.tune(&["confirm"]).expect(0);
        host.tune(&["rollback"]).expect(0);
        assert_eq!((host.pins(), value()), (String::new(), before.clone()), "{variable}");
    }
}

/// The variable is a test's: a build for users has never heard of it.
#[test]
fn what_lets_itself_be_killed_is_not_in_the_documentation() {
    let world = World::plain(WEIR);
    let man = world.run(world.weir(&["man"])).expect(0).stdout;
    assert!(man.contains("tune") && !man.contains("STOP_AT"));
}

/// A guard of the trial before may still be there when its settings are back: it must not keep the new guards from their places.
#[test]
fn root_a_guard_that_hangs_after_its_rollback_does_not_keep_the_next_trial_from_beginning() {
    let Some(host) = Tuned::new(WEIR) else { return };
    host.apply(&["--no-watch", "--confirm-within", "3s"]).expect(0);
    let guards = host.guards();
    assert_eq!(guards.len(), 2);
    kill(guards[1], "STOP");
    host.until_before();
    host.apply(&["--no-watch", "--confirm-within", "1h"]).expect(0);
    assert_eq!(host.values(), host.after());
    assert!(!host.guards().contains(&guards[1]), "the guard that hung was ended");
    host.run(&["rollback"]).expect(0);
    assert_eq!(host.values(), host.before);
}
