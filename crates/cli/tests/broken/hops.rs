//! Runs a workload on a good hop and on impaired ones, and holds weir to what it says about them.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use weir_testkit::World;

use super::draw::Drawn;
use super::impairment::{self, Harm, Impairment, PORT};
use super::judge;

/// Eight rounds tell six variants apart; two more, because on a busy machine a trial of the good hop may be void.
const ROUNDS: u32 = 10;

/// For a variant that ten rounds did not tell from the good hop: what breaks one packet in ten needs more of them where late
/// senders made some trials void.
const MORE_ROUNDS: u32 = 30;

/// A run that takes longer than this hangs, s.
const LIMIT_S: &str = "400";

/// Senders that keep a schedule go first, in a session of their own: the kernel weighs whole sessions against each other where it
/// groups them (sched(7), autogroup). Trials with late senders are void.
const FIRST: &str =
    "{ ! test -e /proc/self/autogroup || echo -15 > /proc/self/autogroup; } && exec nice -n -15 \"$@\"";

/// The scenario of a drawn run.
fn scenario(drawn: &Drawn, rounds: u32) -> String {
    let server = drawn.work.has_server().then(bad_server);
    let mut entries = impairment::good(server.as_deref());
    entries.extend(drawn.impairments.iter().map(|i| i.variant(server.as_deref())));
    // Rules that count a connection's packets need nf_conntrack_acct.
    format!(
        "name = \"broken\"\ntitle = \"A test\"\n[testbed]\nkind = \"lab\"\n\
         sysctls = {{ gateway = {{ \"net.netfilter.nf_conntrack_acct\" = \"1\" }} }}\n\
         [plan]\nbaseline = \"good\"\nmin-rounds = {rounds}\nmax-rounds = {rounds}\nbudget = \"5m\"\nwarmup = \"50ms\"\n\
         duration = \"150ms\"\nmax-steal = 1.0\n{entries}{}",
        drawn.work.entry(PORT)
    )
}

/// The web server of this package's examples, which cargo builds with its tests.
fn bad_server() -> String {
    let path = PathBuf::from(env!("CARGO_BIN_EXE_weir")).with_file_name("examples").join("bad_server");
    assert!(path.exists(), "no {}: run cargo build -p weir --example bad_server", path.display());
    path.display().to_string()
}

/// Runs a scenario into the folder `out`. The words of a run that failed are an error.
pub(crate) fn bench(world: &World, out: &str, args: &[&str]) -> Result<Value, String> {
    let _ = std::fs::remove_dir_all(world.work().join(out));
    let mut command = world.command("timeout");
    command.args(["-k", "5", LIMIT_S, "setsid", "--wait", "sh", "-c", FIRST, "sh"]).arg(world.binary());
    command.args(["bench", "--quiet", "--json", "--seed", "1", "-o", out]).args(args);
    let output = finished(command);
    world.wait_until_idle();
    let told = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{}: {told}", output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("{e}: {told}"))
}

fn finished(mut command: Command) -> std::process::Output {
    command.stdin(std::process::Stdio::null()).output().unwrap()
}

/// The output of `weir report` about a run, on a terminal that breaks no line.
pub(crate) fn report(world: &World, run: &str, more: &[&str]) -> (String, String) {
    let mut command = world.weir(&["report", run]);
    command.args(more).env("COLUMNS", "10000");
    let output = finished(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// How a line begins that says where a broken hop is praised, and one that says that nothing blames it.
const BETTER: &str = "named better: ";
const NOWHERE: &str = "named worse nowhere: ";

/// Everything that weir said wrong about a variant of the run in `out`; empty if all of it is right.
pub(crate) fn wrong(
    world: &World,
    out: &str,
    run: &Value,
    variant: &str,
    (harm, tenths): (Harm, u32),
) -> Vec<String> {
    let baseline = run["variants"].as_array().unwrap().iter().find(|v| v["baseline"] == true).unwrap();
    let baseline = baseline["name"].as_str().unwrap();
    let fails_half = harm == Harm::Fails && tenths >= 5;
    let bounds = judge::bounds(run, variant, baseline, fails_half);
    let required: Vec<&str> = bounds.iter().flat_map(|b| ["--require", b]).collect();
    let (text, told) = report(world, out, &required);
    let (verdicts, printed) = (judge::verdicts(run, variant, harm), judge::report(&text, variant));
    let mut wrong: Vec<String> = Vec::new();
    wrong.extend(verdicts.better.iter().chain(&printed.better).map(|w| format!("{BETTER}{w}")));
    wrong.extend(judge::met(&told).iter().map(|w| format!("{BETTER}{w}")));
    if verdicts.worse.is_empty() && printed.worse.is_empty() {
        wrong.push(format!("{NOWHERE}{}", what_is_known(run, variant)));
    }
    let first = judge::first_sentence(&text, variant);
    if fails_half && !first.as_ref().is_some_and(|(_, blamed)| *blamed) {
        wrong.push(format!("the first sentence does not blame it: {first:?}"));
    }
    wrong
}

/// For a variant that weir is silent about: how many trials are void, and why.
fn what_is_known(run: &Value, variant: &str) -> String {
    let trials = run["trials"].as_array().unwrap().iter().filter(|t| t["variant"] == variant);
    let faults: Vec<&Value> = trials.clone().flat_map(|t| t["faults"].as_array().unwrap()).collect();
    let void = |t: &&Value| t["faults"].as_array().unwrap().iter().any(|f| f["void"] == true);
    let first = faults.first().map(|f| f["detail"].to_string()).unwrap_or_default();
    format!("{} of {} trials void {first}", trials.clone().filter(void).count(), trials.count())
}

/// Runs what was drawn and returns what weir said wrong, a line each. A variant that is named neither better nor worse is measured
/// once more, alone and in more rounds; a line says so.
pub(crate) fn try_out(world: &World, drawn: &Drawn) -> Vec<String> {
    let (undecided, mut wrong): (Vec<_>, Vec<_>) =
        said_wrong(world, drawn, ROUNDS).into_iter().partition(|(_, lines)| {
            lines.iter().any(|l| l.starts_with(NOWHERE)) && !lines.iter().any(|l| l.starts_with(BETTER))
        });
    for (impairment, lines) in undecided {
        println!("MORE ROUNDS: {} {}: {}", drawn.work.name, impairment.name(), lines.join("; "));
        let one = Drawn { work: drawn.work, impairments: vec![impairment] };
        wrong.extend(said_wrong(world, &one, MORE_ROUNDS));
    }
    let line = |(i, lines): (Impairment, Vec<String>)| {
        lines.into_iter().map(move |l| format!("{} {}: {l}", drawn.work.name, i.name()))
    };
    wrong.into_iter().flat_map(line).collect()
}

/// The wrong words of weir about each variant of one run.
fn said_wrong(world: &World, drawn: &Drawn, rounds: u32) -> Vec<(Impairment, Vec<String>)> {
    world.write("broken.toml", scenario(drawn, rounds));
    let run = bench(world, "out", &["./broken.toml"]);
    let of = |i: &Impairment| match &run {
        Err(told) => vec![format!("not measured: {told}")],
        Ok(run) => wrong(world, "out", run, &i.name(), (i.harm(&drawn.work).unwrap(), i.tenths)),
    };
    drawn.impairments.iter().map(|i| (*i, of(i))).collect()
}

/// A copy of a run in the folder `alone`, with one workload, as if it had been a run of its own: what weir says of it is about
/// that workload.
pub(crate) fn alone(world: &World, run: &Value, workload: &str) -> Value {
    let mut run = run.clone();
    let mut keep = |list: &str, key: &str| {
        run[list].as_array_mut().unwrap().retain(|entry| entry[key] == workload);
    };
    keep("workloads", "name");
    keep("trials", "workload");
    let _ = std::fs::create_dir(world.work().join("alone"));
    world.write("alone/run.json", run.to_string());
    // With conclusions about what is left.
    serde_json::from_str(&report(world, "alone", &["--json"]).0).unwrap()
}
