//! How a run ends when it does not end by itself: a signal, a killed runner, a killed or hanging host.
//!
//! Trials last nine minutes here: a command that ends within our patience did not wait for one. Each test has a world of its own;
//! remains are found by the environment of processes and by links into the namespaces.

mod documents;

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use weir_testkit::{Background, NamespaceWatch, PATIENCE, Record, World, scenario, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// First a short workload, which leaves valid trials, then one that takes longer than any wait here.
fn long_scenario(testbed: &str) -> String {
    let plan = "min-rounds = 1\nmax-rounds = 50\nwarmup = \"0s\"\nduration = \"1s\"";
    let slow = "[[workload]]\nname = \"slow\"\nkind = \"tcp-stream\"\nduration = \"9m\"\n";
    scenario::text("endings", testbed, plan, &format!("{}{slow}", scenario::TWO_VARIANTS))
        .replace("30s", "60m")
}

/// A run in the middle of a long trial, after at least one short one. The order is the seed's.
fn in_the_middle(world: &World, testbed: &str) -> Background {
    world.write("s.toml", long_scenario(testbed));
    let mut run = world.start("weir", world.weir(&["bench", "s.toml", "-o", "out", "--seed", SEED]));
    run.wait_for("nft-masquerade: the responder sees");
    until("a valid trial and a long one that runs", PATIENCE, || {
        let text = fs::read_to_string(world.work().join("out/run.json")).ok()?;
        let json: Value = serde_json::from_str(&text).ok()?;
        let trials = json["trials"].as_array()?.len();
        (trials >= 1 && slow_runs(world)).then_some(())
    });
    run
}

/// With this seed a round begins with a short trial, and then comes the long one on `nft-masquerade`.
const SEED: &str = "8";

/// Only the long workload moves bytes for this long: some agent has used a third of a second of CPU time.
fn slow_runs(world: &World) -> bool {
    agents(world).iter().any(|(pid, _)| {
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        // proc(5): utime and stime are fields 14 and 15; the second field ends with the parenthesis. 100 ticks a second.
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap() > 33
    })
}

/// The agents of a world with the names of their network namespaces.
fn agents(world: &World) -> Vec<(u32, String)> {
    let is_agent = |line: &str| line.trim_end().ends_with(" agent");
    let namespace = |pid| fs::read_link(format!("/proc/{pid}/ns/net")).ok()?.to_str().map(str::to_owned);
    let all = world.processes().into_iter().filter(|(_, line)| is_agent(line));
    all.filter_map(|(pid, _)| Some((pid, namespace(pid)?))).collect()
}

fn registry(world: &World) -> Value {
    let list = world.run(world.weir(&["lab", "list", "--json"])).expect(0).stdout;
    documents::read(&list, "lab-list")["labs"].clone()
}

/// Watches all namespaces of the one lab of a world.
fn watches(world: &World) -> Vec<NamespaceWatch> {
    let list = registry(world);
    let entry = &list.as_array().unwrap()[0];
    let pid = entry["runner"]["pid"].as_u64().unwrap() as u32;
    let hosts = entry["hosts"].as_array().unwrap();
    assert_eq!(hosts.len(), 5, "direct has two hosts, nft-masquerade three");
    hosts.iter().map(|h| NamespaceWatch::on(pid, h["fd"].as_i64().unwrap() as i32)).collect()
}

/// The agent of a host of the variant whose long trial runs.
fn agent_of(world: &World, role: &str) -> u32 {
    let list = registry(world);
    let entry = &list.as_array().unwrap()[0];
    let hosts = entry["hosts"].as_array().unwrap();
    let host = hosts.iter().find(|h| h["site"] == "nft-masquerade" && h["role"] == role).unwrap();
    let path = format!("/proc/{}/fd/{}", entry["runner"]["pid"], host["fd"]);
    let namespace = fs::read_link(path).unwrap();
    agents(world).into_iter().find(|(_, ns)| Some(ns.as_str()) == namespace.to_str()).unwrap().0
}

fn kill(pid: u32, signal: &str) {
    assert!(Command::new("kill").args(["-s", signal, &pid.to_string()]).status().unwrap().success());
}

/// The remains of every ending: a whole record, and nothing else.
fn assert_tidy(world: &World, watches: &[NamespaceWatch]) {
    watches.iter().for_each(NamespaceWatch::wait_until_gone);
    world.wait_until_idle();
    assert!(world.labs().is_empty(), "{:?}", world.labs());
    assert_eq!(world.left_behind(&["s.toml", "out"]), [""; 0]);
    assert!(!world.work().join("out/run.json.new").exists());
    assert!(world.undo_lists().is_empty());
}

#[test]
fn root_ctrl_c_and_term_keep_what_was_measured() {
    for signal in ["INT", "TERM"] {
        let Some(world) = World::root(WEIR) else { return };
        let run = in_the_middle(&world, scenario::LAB);
        let watches = watches(&world);
        run.signal(signal);
        let outcome = run.end_within(PATIENCE).expect(1);
        assert!(outcome.stderr.contains("stopped; the record holds what was measured"), "{}", outcome.stderr);
        assert!(outcome.stdout.contains("stopped"), "the report says so: {}", outcome.stdout);
        assert_tidy(&world, &watches);
        let record = Record::read(world.work().join("out"));
        assert_eq!(record.state(), "interrupted");
        assert!(!record.valid_trials().is_empty() && record.json["ended"].is_string());
        assert_eq!(record.faults().last().map(String::as_str), Some("interrupted"));
        assert_schema(&world, &record);
        world.run(world.weir(&["report", "out"])).expect(0);
    }
}

/// As timeout(1) sends it: to the process, and then to its group.
#[test]
fn root_a_signal_that_comes_twice_at_once_is_one() {
    let Some(world) = World::root(WEIR) else { return };
    let run = in_the_middle(&world, scenario::LAB);
    let watches = watches(&world);
    run.signal("TERM");
    run.signal("TERM");
    let outcome = run.end_within(PATIENCE).expect(1);
    assert!(outcome.stderr.contains("stopped; the record holds what was measured"), "{}", outcome.stderr);
    assert_tidy(&world, &watches);
    assert_eq!(Record::read(world.work().join("out")).state(), "interrupted");
}

#[test]
fn root_a_second_ctrl_c_ends_at_once() {
    let Some(world) = World::root(WEIR) else { return };
    let run = in_the_middle(&world, scenario::LAB);
    let watches = watches(&world);
    // An agent that does not answer: in good order the end takes six seconds at least.
    kill(agent_of(&world, "responder"), "STOP");
    run.signal("INT");
    // The time between two Ctrl-C of a user who does not want to wait.
    std::thread::sleep(Duration::from_secs(1));
    run.signal("INT");
    run.end_within(PATIENCE).expect(1);
    watches.iter().for_each(NamespaceWatch::wait_until_gone);
    world.wait_until_idle();
    // In good order it would say `interrupted`. The record is whole; the entry in the list of labs is left.
    assert_eq!(Record::read(world.work().join("out")).state(), "running");
    world.run(world.weir(&["lab", "clean"])).expect(0);
    assert!(world.labs().is_empty());
}

fn assert_schema(world: &World, record: &Record) {
    let schema = world.run(world.weir(&["schema", "run"])).expect(0).stdout;
    let validator = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    let errors: Vec<String> = validator.iter_errors(&record.json).map(|e| e.to_string()).collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

#[test]
fn root_ctrl_c_before_the_first_trial_leaves_nothing() {
    let Some(world) = World::root(WEIR) else { return };
    world.write("s.toml", long_scenario(scenario::LAB));
    let mut run = world.start("weir", world.weir(&["bench", "s.toml", "-o", "out"]));
    run.wait_for("trials a round");
    run.signal("INT");
    let outcome = run.end_within(PATIENCE).expect(1);
    assert_eq!(outcome.complaints().len(), 1, "{}", outcome.stderr);
    assert!(outcome.complaints()[0].contains("stopped"), "{}", outcome.stderr);
    world.wait_until_idle();
    assert!(world.labs().is_empty());
}

#[test]
fn root_kill_9_of_the_runner_leaves_a_record_and_no_processes() {
    let Some(world) = World::root(WEIR) else { return };
    let run = in_the_middle(&world, scenario::LAB);
    let watches = watches(&world);
    run.signal("KILL");
    assert_eq!(run.end_within(PATIENCE).code, -1);
    world.wait_until_idle();
    watches.iter().for_each(NamespaceWatch::wait_until_gone);
    let record = Record::read(world.work().join("out"));
    assert_eq!(record.state(), "running");
    assert!(!record.valid_trials().is_empty());
    assert_schema(&world, &record);
    world.run(world.weir(&["report", "out"])).expect(0);

    // Nothing of it is left but its entry, which goes when it is looked at.
    assert_eq!(world.run(world.weir(&["lab", "list"])).expect(0).stdout, "");
    let said = world.run(world.weir(&["lab", "clean"])).expect(0).stderr;
    assert!(said.contains("nothing to clean up"), "{said}");
    assert_tidy(&world, &watches);
}

/// The outcome of a lost host, whichever way it is lost.
fn assert_lost(world: &World, run: Background, watches: &[NamespaceWatch], words: &str) {
    let outcome = run.end_within(PATIENCE).expect(1);
    let complaints = outcome.complaints();
    assert_eq!(complaints.len(), 1, "{}", outcome.stderr);
    assert!(complaints[0].contains(words), "no `{words}`: {}", complaints[0]);
    assert_tidy(world, watches);
    let record = Record::read(world.work().join("out"));
    assert_eq!(record.state(), "failed");
    assert!(record.json["status"]["message"].as_str().unwrap().contains(words), "{}", record.json["status"]);
    assert!(!record.valid_trials().is_empty());
    assert_eq!(record.faults().last().map(String::as_str), Some("agent-lost"));
}

#[test]
fn root_a_killed_agent_is_named_and_the_record_kept() {
    for role in ["initiator", "gateway", "responder"] {
        let Some(world) = World::root(WEIR) else { return };
        let run = in_the_middle(&world, scenario::LAB);
        let watches = watches(&world);
        kill(agent_of(&world, role), "KILL");
        assert_lost(&world, run, &watches, &format!("lost the agent on {role} of "));
    }
}

#[test]
fn root_a_hanging_agent_is_named_and_the_record_kept() {
    for role in ["initiator", "gateway", "responder"] {
        let Some(world) = World::root(WEIR) else { return };
        let run = in_the_middle(&world, scenario::LAB);
        let watches = watches(&world);
        kill(agent_of(&world, role), "STOP");
        assert_lost(&world, run, &watches, &format!("the agent on {role} of "));
    }
}

/// Global to the machine, writable from every network namespace, and harmless by one. (The table of connections has a
/// global limit, too, which only the machine's own network namespace may change: tests do not run there.)
const GLOBAL: &str = "/proc/sys/kernel/printk_ratelimit_burst";

/// Puts the value back whatever the test finds.
struct PutBack(String);

impl Drop for PutBack {
    fn drop(&mut self) {
        fs::write(GLOBAL, &self.0).unwrap();
    }
}

#[test]
fn root_settings_of_the_machine_come_back_in_every_ending() {
    let Some(world) = World::root(WEIR) else { return };
    let put_back = PutBack(fs::read_to_string(GLOBAL).unwrap().trim().to_owned());
    let now = || fs::read_to_string(GLOBAL).unwrap().trim().to_owned();
    let other = (put_back.0.parse::<u64>().unwrap() + 1).to_string();
    let testbed = format!(
        "{}\n[testbed.host-sysctls]\n\"kernel.printk_ratelimit_burst\" = \"{other}\"\n",
        scenario::LAB
    );

    world.write("s.toml", scenario::text("tiny", &testbed, scenario::ONE_ROUND, scenario::TWO_VARIANTS));
    world.run(world.weir(&["bench", "s.toml", "-o", "out"])).expect(0);
    assert_eq!(now(), put_back.0, "after a run that ended by itself");
    assert!(world.undo_lists().is_empty());

    for signal in ["INT", "KILL"] {
        let Some(world) = World::root(WEIR) else { return };
        let run = in_the_middle(&world, &testbed);
        assert_eq!(now(), other);
        assert_eq!(world.undo_lists().len(), 1, "the old value is on disk meanwhile");
        run.signal(signal);
        run.end_within(PATIENCE);
        until(&format!("the old value after SIG{signal}"), PATIENCE, || (now() == put_back.0).then_some(()));
        world.wait_until_idle();
        assert!(world.undo_lists().is_empty());
    }
}

#[test]
fn root_two_runs_at_once_do_not_disturb_each_other() {
    let Some(world) = World::root(WEIR) else { return };
    let slow = in_the_middle(&world, scenario::LAB);
    let watches = watches(&world);
    world.write("tiny.toml", scenario::tiny());
    world.run(world.weir(&["bench", "tiny.toml", "-o", "other"])).expect(0);
    assert_eq!(Record::read(world.work().join("other")).valid_trials().len(), 2);
    // The end of one takes nothing of the other along: its lab is listed, and `clean` leaves it alone.
    assert_eq!(registry(&world).as_array().unwrap().len(), 1);
    let cleaned = world.run(world.weir(&["lab", "clean"])).expect(0).stderr;
    assert!(cleaned.contains("in use"), "{cleaned}");
    let run = registry(&world)[0]["run"].as_str().unwrap().to_owned();
    let exec =
        world.run(world.weir(&["lab", "exec", &run, "nft-masquerade/gateway", "nft", "list", "ruleset"]));
    assert!(exec.expect(0).stdout.contains("masquerade"));
    slow.signal("INT");
    slow.end_within(PATIENCE).expect(1);
    watches.iter().for_each(NamespaceWatch::wait_until_gone);
    world.wait_until_idle();
    assert_eq!(Record::read(world.work().join("out")).state(), "interrupted");
}
