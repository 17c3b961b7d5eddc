//! Runs a scenario with the built program and reads what it measured.
#![allow(dead_code, reason = "each test program uses its own share of it")]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_record::results::Estimate;
use weir_record::{FaultCode, Run};
use weir_testkit::World;

/// A run that takes longer than this hangs, s.
const LIMIT_S: &str = "100";

/// Other programs of this machine must not be measured: a session of its own, because the kernel weighs whole sessions
/// against each other where it groups them (sched(7), autogroup), and the process in front inside of it.
const FIRST: &str =
    "{ ! test -e /proc/self/autogroup || echo -15 > /proc/self/autogroup; } && exec nice -n -15 \"$@\"";

/// One measurement at a time: tests of one program run side by side, and would measure each other.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A world for a test that needs root and these programs (with the package that has them).
pub(crate) fn world(programs: &[&str]) -> Option<World> {
    if World::lacks(programs) {
        return None;
    }
    World::root(env!("CARGO_BIN_EXE_weir"))
}

/// The output and the remains of a run.
pub(crate) struct Measured {
    pub(crate) run: Run,
    /// Standard error, by line.
    pub(crate) told: Vec<String>,
    /// From the last round's end to the program's: conclusions, proofs again, and the lab taken down.
    pub(crate) closing: Duration,
}

/// `weir bench` of this scenario.
#[track_caller]
pub(crate) fn bench(world: &World, scenario: &str) -> Measured {
    bench_heard(world, scenario, |_| {})
}

/// As [`bench`], with every line that the program says while it works.
#[track_caller]
pub(crate) fn bench_heard(world: &World, scenario: &str, mut hear: impl FnMut(&str)) -> Measured {
    let file = world.write("scenario.toml", scenario);
    // No run is written over another one.
    let _ = std::fs::remove_dir_all(world.work().join("out"));
    let mut command = world.command("timeout");
    command.args(["-k", "5", LIMIT_S, "setsid", "--wait", "sh", "-c", FIRST, "sh"]).arg(world.binary());
    command.args(["bench", "--json", "--seed", "1", "-o", "out"]).arg(&file);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let record = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        text
    });
    let (mut told, mut last_round) = (Vec::new(), Instant::now());
    for line in BufReader::new(stderr).lines() {
        let line = line.unwrap();
        if line.starts_with("round ") {
            last_round = Instant::now();
        }
        hear(&line);
        told.push(line);
    }
    let status = child.wait().unwrap();
    let closing = last_round.elapsed();
    let record = record.join().unwrap();
    assert!(status.success(), "{status}:\n{}", told.join("\n"));
    world.wait_until_idle();
    Measured { run: serde_json::from_str(&record).unwrap(), told, closing }
}

impl Measured {
    /// The value of a metric on a variant, as the report prints it.
    #[track_caller]
    pub(crate) fn value(&self, workload: &str, metric: &str, variant: &str) -> Estimate {
        let results = self.run.results.as_ref().unwrap();
        let cell = results.cell(workload, metric, variant);
        let cell = cell.unwrap_or_else(|| panic!("no {metric} of {workload} on {variant}"));
        let faults = &results.faults;
        cell.estimate.unwrap_or_else(|| panic!("{metric} of {workload} on {variant}: {cell:?} {faults:?}"))
    }

    /// A value of every trial of a cell. On a busy machine trials are void because datagrams left late: that says nothing
    /// against their numbers. Any other reason does.
    #[track_caller]
    pub(crate) fn by_trial(&self, workload: &str, metric: &str, variant: &str) -> Vec<f64> {
        let trials = self.run.trials.iter().filter(|t| t.workload == workload && t.variant == variant);
        let value = |t: &weir_record::Trial| {
            let other = t.faults.iter().find(|f| f.void && f.code != FaultCode::LateSends);
            assert!(other.is_none(), "{workload} on {variant}: {other:?}");
            t.metrics[metric]
        };
        let values: Vec<f64> = trials.map(value).collect();
        assert!(!values.is_empty(), "no trial of {workload} on {variant}");
        values
    }
}

/// A process that sleeps in a network namespace, so that others find it by this process.
pub(crate) struct Resident(weir_sys::process::Process);

impl Resident {
    /// Puts the namespace under that name into the world's own list, where `ip netns` looks too, in place of what had it.
    #[track_caller]
    pub(crate) fn named(world: &World, name: &str, namespace: &weir_sys::NetNs) -> Resident {
        let mut command = Command::new("sleep");
        command.arg("1000");
        namespace.enter_on_spawn(&mut command);
        let resident = Resident(weir_sys::process::spawn(command).unwrap());
        let path = format!("/proc/{}/ns/net", resident.0.pid());
        assert!(Path::new(&path).exists());
        let entry = format!("/run/netns/{name}");
        world.sh(&format!(
            "mkdir -p /run/netns && {{ ! mountpoint -q {entry} || umount {entry}; }} \
             && touch {entry} && mount --bind {path} {entry}"
        ));
        resident
    }
}

/// A process that keeps the first core busy, which is the initiator's, with the same right to it as a run has. It rests as long
/// as it works, each about as long as a short trial takes: trials side by side must not meet the same machine.
pub(crate) struct Busy(std::process::Child);

impl Busy {
    pub(crate) fn start(world: &World) -> Busy {
        let mut command = world.command("setsid");
        // It ends with this process, whatever ends that.
        let work = "while kill -0 $1; do timeout 0.3 sh -c 'while :; do :; done'; sleep 0.3; done";
        command.args(["sh", "-c", FIRST, "sh", "taskset", "--cpu-list", "0", "sh", "-c", work, "sh"]);
        command.arg(std::process::id().to_string()).stderr(Stdio::null());
        Busy(command.spawn().unwrap())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}
