//! `--netns` of the commands with a trial: all of their work, and their guards, in that namespace.

mod allow_world;
mod documents;

use std::process::Command;

use allow_world::{Gate, LISTED};
use serde_json::Value;
use weir_testkit::{CommandOutput, PATIENCE, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn weir(gate: &Gate, args: &[&str]) -> Command {
    let mut command = gate.world.weir(args);
    command.env("WEIR_STATE_DIR", gate.state()).env_remove("WEIR_BPF_DIR");
    command.env_remove("SSH_CONNECTION").env_remove("SSH_CLIENT");
    command
}

fn run(gate: &Gate, args: &[&str]) -> CommandOutput {
    gate.world.run(weir(gate, args))
}

fn loaded(gate: &Gate, place: &[&str]) -> Value {
    let outcome = run(gate, &[&["allow", "status", "--json"], place].concat()).expect(0);
    documents::read(&outcome.stdout, "allow-status")
}

/// The network namespaces of the guards.
fn namespaces_of_guards(gate: &Gate) -> Vec<String> {
    let of = |pid| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()?.to_str().map(str::to_owned);
    gate.guards().into_iter().filter_map(of).collect()
}

#[test]
fn root_lists_are_on_trial_in_the_namespace_that_was_named() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.world.write("list", LISTED.join("\n"));
    let there = ["--netns", "out"];
    let inside = gate.world.sh("ip netns exec out readlink /proc/self/ns/net").trim().to_owned();
    for backend in ["bpf", "nft"] {
        let apply = |within: &str| {
            let args = [
                "allow",
                "apply",
                "list",
                "--interface",
                "out0",
                "--backend",
                backend,
                "--confirm-within",
                within,
            ];
            run(&gate, &[&args[..], &there].concat()).expect(0)
        };
        let told = apply("1h").stderr;
        assert!(told.contains("keep it with: weir allow confirm --netns out"), "{told}");
        let status = loaded(&gate, &there);
        assert_eq!((&status["loaded"]["backend"], &status["set"]["guards"]), (&backend.into(), &2.into()));
        let guards = namespaces_of_guards(&gate);
        assert!(guards.len() == 2 && guards.iter().all(|ns| *ns == inside), "{guards:?} are not in {inside}");
        // This host's own namespace has nothing of it, and no journal.
        let own = loaded(&gate, &[]);
        assert_eq!((&own["loaded"], &own["set"]), (&Value::Null, &Value::Null), "{backend}");
        run(&gate, &[&["allow", "rollback"][..], &there].concat()).expect(0);
        assert_eq!(loaded(&gate, &there)["loaded"], Value::Null);
        // Without an answer the guards end it by themselves.
        apply("1s");
        until("the end of the trial", PATIENCE, || {
            (loaded(&gate, &there)["loaded"] == Value::Null).then_some(())
        });
        apply("1h");
        let confirmed = run(&gate, &[&["allow", "confirm"][..], &there].concat()).expect(0).stdout;
        assert!(confirmed.contains("after a reboot: nothing, the namespace ends with it"), "{confirmed}");
        assert_eq!(loaded(&gate, &there)["loaded"]["backend"], backend);
        let removed = run(&gate, &[&["allow", "remove", "--json"][..], &there].concat()).expect(0);
        assert_ne!(documents::read(&removed.stdout, "remove")["removed"], Value::Array(Vec::new()));
        assert_eq!(loaded(&gate, &there)["loaded"], Value::Null);
    }
}

#[test]
fn root_a_namespace_that_is_none_is_refused() {
    let Some(gate) = Gate::new(WEIR) else { return };
    for family in [&["allow", "status"][..], &["publish", "status"], &["publish", "plan"]] {
        let refused = run(&gate, &[family, &["--netns", "nowhere"]].concat()).expect(2);
        assert!(refused.stderr.contains("--netns nowhere"), "{}", refused.stderr);
    }
    let mut command = weir(&gate, &["allow", "status", "--netns", "out"]);
    command.env("WEIR_BPF_DIR", "/sys/fs/bpf");
    let refused = gate.world.run(command).expect(2);
    assert!(refused.stderr.contains("WEIR_BPF_DIR"), "{}", refused.stderr);
    let status = run(&gate, &["publish", "status", "--netns", "out", "--json"]).expect(0);
    assert_eq!(documents::read(&status.stdout, "publish-status")["containers"], Value::Array(Vec::new()));
}
