//! `weir bench`.

use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};

use weir_bench::scenario::{Change, Scenario, Testbed};
use weir_bench::{Order, conduct, require::Requirement};
use weir_record::{Run, Status};
use weir_report::Terminal;
use weir_report::words::plural;
use weir_sys::ProcRoot;
use weir_sys::privilege::Privilege;
use weir_text::time::duration;

use crate::args::BenchArgs;
use crate::commands::report::{conditions, judge};
use crate::commands::{find_scenario, nat};
use crate::documents::print_value;
use crate::exit::{CommandResult, FAILED, Failure};
use crate::live::Live;
use crate::output::{Color, print, range, save, width};
use crate::talk::{self, note};

pub(crate) fn run(args: &BenchArgs, color: Color) -> CommandResult {
    if args.scenario == nat::behaviour::NAME {
        return nat::behaviour::run(args, color);
    }
    let scenario = scenario(args)?;
    if args.dry_run {
        let (least, most) = scenario.expected_seconds();
        return print(&format!(
            "{}: {} a round, about {}\n\n{}",
            scenario.name,
            plural(scenario.trials_per_round(), "trial"),
            range(duration(least), duration(most)),
            scenario.to_toml()
        ));
    }
    // Before any thread is started: the kernel demands it.
    prepare_privilege(&scenario)?;
    let seed = args.seed.unwrap_or_else(random);
    let id = run_name(&scenario.name);
    let folder = args.output.clone().unwrap_or_else(|| PathBuf::from("runs").join(&id));
    // The first signal asks the run to end and keep what was measured; one that ends weir at once ends the agents with it.
    let stop = super::stop_on_signals()?;
    let interrupted = || stop.raised();
    let order = Order { scenario: &scenario, seed, id, folder: folder.clone(), interrupted: &interrupted };
    let mut live = Live::new(talk::is_quiet());
    let outcome = conduct(&order, &mut live);
    drop(live);
    let run = outcome?;
    let page = save(&folder.join("report.html"), &weir_report::html(&run));
    tell(args, color, &scenario, &run, &folder)?;
    match &run.status {
        Status::Failed { message } => {
            Err(Failure::new(FAILED, format!("the run could not go on: {message}")))
        }
        // A shell, too, reports a failure for a program that SIGINT ended.
        Status::Interrupted => Err(Failure::new(FAILED, "stopped; the record holds what was measured")),
        _ => {
            page?;
            let mut texts = scenario.require.clone();
            texts.extend(args.require.iter().cloned());
            judge(&conditions(&texts, &run)?, &run)
        }
    }
}

/// The scenario with everything that the command line changes.
fn scenario(args: &BenchArgs) -> Result<Scenario, Failure> {
    let (text, origin) = find_scenario(&args.scenario)?;
    let mut scenario = Scenario::load(&text, &origin).map_err(Failure::usage)?;
    if let Some(preset) = &args.preset {
        scenario.apply_preset(preset).map_err(Failure::usage)?;
    }
    if !args.variants.is_empty() || !args.workloads.is_empty() {
        scenario.select(&args.variants, &args.workloads).map_err(Failure::usage)?;
    }
    scenario.set_all(&changes(args)).map_err(Failure::usage)?;
    for text in &args.require {
        Requirement::check(text, &scenario).map_err(Failure::usage)?;
    }
    Ok(scenario)
}

/// Returns the changes of --rounds, --budget and --set, in this order.
fn changes(args: &BenchArgs) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut change = |option: String, assignment: String| changes.push(Change { option, assignment });
    if let Some(rounds) = &args.rounds {
        let (least, most) = rounds.split_once("..").unwrap_or((rounds, rounds));
        change(format!("--rounds {rounds}"), format!("plan.min-rounds={least}"));
        change(format!("--rounds {rounds}"), format!("plan.max-rounds={most}"));
    }
    if let Some(budget) = &args.budget {
        change(format!("--budget {budget}"), format!("plan.budget=\"{budget}\""));
    }
    for assignment in &args.set {
        change(format!("--set {assignment}"), assignment.clone());
    }
    changes
}

/// A lab needs the right to make network namespaces: a normal user gets it in a user namespace, where the kernel allows.
fn prepare_privilege(scenario: &Scenario) -> CommandResult {
    let Testbed::Lab(lab) = &scenario.testbed else { return Ok(()) };
    let privilege = Privilege::current(&ProcRoot::new("/")).map_err(Failure::failed)?;
    if privilege.may_create_namespaces() {
        return Ok(());
    }
    if !lab.host_sysctls.is_empty() {
        let message =
            "host-sysctls changes settings of the whole machine, which needs root: run this with sudo";
        return Err(Failure::new(crate::exit::MISSING, message));
    }
    weir_lab::registry::enter_user_namespace()?;
    note(
        "not root: the lab is built in a user namespace; BPF and settings of the machine are out of reach there",
    );
    Ok(())
}

fn tell(args: &BenchArgs, color: Color, scenario: &Scenario, run: &Run, folder: &Path) -> CommandResult {
    if args.json {
        print_value(run)?;
    } else {
        print(&weir_report::terminal(run, Terminal { width: width(), color: color.stdout }))?;
        if let Some(block) = &scenario.cost {
            let answer =
                weir_bench::summary::price(block, &scenario.testbed, run, None).map_err(Failure::usage)?;
            print(&format!("\n{}", weir_cost::render::terminal(&answer, super::cost::columns())))?;
        }
    }
    tell_files(folder, &[("record", "run.json"), ("report", "report.html")]);
    Ok(())
}

/// Names the files of a run that are there, also with --quiet: by default a part of the name is random.
pub(crate) fn tell_files(folder: &Path, files: &[(&str, &str)]) {
    for (what, file) in files {
        let path = folder.join(file);
        // On a full disk one of them may be missing.
        if path.exists() {
            eprintln!("{what}: {}", path.display());
        }
    }
}

/// 64 random bits. Keys of the standard library's hash maps come from the system's generator.
/// A name for a run that no other one has.
pub(crate) fn run_name(scenario: &str) -> String {
    format!("{scenario}-{}-{:04x}", timestamp(), random() & 0xffff)
}

fn random() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// UTC to the second, as part of a file name.
fn timestamp() -> String {
    jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S").to_string()
}
