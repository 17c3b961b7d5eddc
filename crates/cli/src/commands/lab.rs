//! `weir lab`.

use std::os::unix::process::CommandExt;

use schemars::JsonSchema;
use serde::Serialize;
use weir_lab::Role;
use weir_lab::registry::{self, Cleaned, Entry};
use weir_sys::process::Identity;

use crate::args::{LabArgs, LabCommand};
use crate::documents::{Document, Kind, print_json};
use crate::exit::{CommandResult, FAILED, Failure};
use crate::output::print;
use crate::talk::note;

pub(crate) fn run(args: &LabArgs) -> CommandResult {
    match &args.command {
        LabCommand::List { json } => list(*json),
        LabCommand::Clean { force } => clean(*force),
        LabCommand::Exec { run, host, command } => exec(run, host, command),
    }
}

/// `weir lab list --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Labs {
    /// Labs of running and of killed runs.
    labs: Vec<Lab>,
}

/// The lab of one run.
#[derive(Debug, Serialize, JsonSchema)]
struct Lab {
    /// Identifier of the run.
    run: String,
    /// The process that built the lab and holds it.
    runner: Holder,
    /// Its hosts.
    hosts: Vec<Host>,
    /// Processes that the run started in them.
    processes: Vec<Holder>,
}

/// A host of a lab.
#[derive(Debug, Serialize, JsonSchema)]
struct Host {
    /// Name of its variant.
    site: String,
    /// initiator, gateway or responder.
    role: &'static str,
    /// The runner's descriptor of its network namespace.
    fd: i32,
}

/// A process, apart from a later one with the same number.
#[derive(Debug, Serialize, JsonSchema)]
struct Holder {
    /// Process id.
    pid: u32,
    /// Start time, clock ticks since boot.
    start_ticks: u64,
}

impl Labs {
    fn of(entries: &[Entry]) -> Self {
        let holder = |of: &Identity| Holder { pid: of.pid, start_ticks: of.start_ticks };
        let lab = |entry: &Entry| Lab {
            run: entry.run.clone(),
            runner: holder(&entry.runner),
            hosts: (entry.hosts.iter())
                .map(|host| Host { site: host.site.clone(), role: host.role.name(), fd: host.fd })
                .collect(),
            processes: entry.processes.iter().map(holder).collect(),
        };
        Labs { labs: entries.iter().map(lab).collect() }
    }
}

impl Document for Labs {
    const KIND: Kind = Kind::LabList;
}

fn list(json: bool) -> CommandResult {
    let entries = registry::list()?;
    if json {
        return print_json(&Labs::of(&entries));
    }
    if entries.is_empty() {
        note("no lab on this machine");
    }
    for entry in entries {
        let state = if entry.is_running()? {
            "running"
        } else {
            "left behind by a killed run (clear: weir lab clean)"
        };
        let hosts: Vec<String> =
            entry.hosts.iter().map(|h| format!("{}/{}", h.site, h.role.name())).collect();
        print(&format!("{}  {state}, process {}\n  {}\n", entry.run, entry.runner.pid, hosts.join("\n  ")))?;
    }
    Ok(())
}

fn clean(force: bool) -> CommandResult {
    let done = registry::clean(force)?;
    let lists = weir_agent::undo::clear_leftovers().map_err(Failure::failed)?;
    if done.is_empty() && lists.is_empty() {
        note("nothing to clean up");
    }
    for lab in done {
        match lab {
            Cleaned::InUse(entry) => {
                eprintln!("{}: skipped: in use by process {}", entry.run, entry.runner.pid)
            }
            Cleaned::Cleared(entry, stopped) => {
                note(&format!("{}: cleared; {stopped} processes stopped", entry.run))
            }
        }
    }
    let mut failed = false;
    for (path, outcome) in lists {
        match outcome {
            Ok(()) => note(&format!("{}: changes undone", path.display())),
            Err(why) => {
                failed = true;
                eprintln!("{}: not undone: {why}", path.display());
            }
        }
    }
    if failed { Err(Failure::Silent(FAILED)) } else { Ok(()) }
}

fn exec(run: &str, host: &str, words: &[String]) -> CommandResult {
    let entries = registry::list()?;
    let Some(entry) = entries.iter().find(|e| e.run == run) else {
        let known: Vec<&str> = entries.iter().map(|e| e.run.as_str()).collect();
        let known = if known.is_empty() {
            "this machine has no lab".to_owned()
        } else {
            format!("labs: {}", known.join(", "))
        };
        return Err(Failure::usage(format!("no lab of run `{run}`; {known}")));
    };
    let parsed = host
        .rsplit_once('/')
        .and_then(|(site, role)| Role::ALL.into_iter().find(|r| r.name() == role).map(|role| (site, role)));
    let Some((site, role)) = parsed else {
        return Err(Failure::usage(format!(
            "`{host}` is not VARIANT/ROLE; roles are initiator, gateway, responder"
        )));
    };
    let Some((program, rest)) = words.split_first() else {
        return Err(Failure::usage("no command given"));
    };
    let mut command = entry.command(site, role, program)?;
    let error = command.args(rest).exec();
    Err(Failure::failed(format!("cannot run {program}: {error}")))
}
