//! `weir lab`.

use std::os::unix::process::CommandExt;

use weir_lab::Role;
use weir_lab::registry::{self, Cleaned};

use crate::args::{LabArgs, LabCommand};
use crate::exit::{FAILED, Failure, Outcome};
use crate::output::{print, print_json};

pub(crate) fn run(args: &LabArgs) -> Outcome {
    match &args.command {
        LabCommand::List { json } => list(*json),
        LabCommand::Clean { force } => clean(*force),
        LabCommand::Exec { run, host, command } => exec(run, host, command),
    }
}

fn list(json: bool) -> Outcome {
    let entries = registry::list()?;
    if json {
        return print_json(&entries);
    }
    if entries.is_empty() {
        eprintln!("no lab is there");
    }
    for entry in entries {
        let state = if entry.is_running()? { "running" } else { "left behind" };
        let hosts: Vec<String> =
            entry.hosts.iter().map(|h| format!("{}/{}", h.site, h.role.name())).collect();
        print(&format!(
            "{}  {state}, process {}\n  {}\n",
            entry.run,
            entry.conductor.pid,
            hosts.join("\n  ")
        ))?;
    }
    Ok(())
}

fn clean(force: bool) -> Outcome {
    let done = registry::clean(force)?;
    let lists = weir_agent::undo::clear_leftovers().map_err(Failure::failed)?;
    if done.is_empty() && lists.is_empty() {
        eprintln!("nothing to clean up");
    }
    for lab in done {
        match lab {
            Cleaned::InUse(entry) => {
                eprintln!("{}: in use by process {}; left alone", entry.run, entry.conductor.pid)
            }
            Cleaned::Cleared(entry, stopped) => {
                eprintln!("{}: cleared; {stopped} processes stopped", entry.run)
            }
        }
    }
    let mut failed = false;
    for (path, outcome) in lists {
        match outcome {
            Ok(()) => eprintln!("{}: its changes were undone", path.display()),
            Err(why) => {
                failed = true;
                eprintln!("{}: not undone: {why}", path.display());
            }
        }
    }
    if failed { Err(Failure::Silent(FAILED)) } else { Ok(()) }
}

fn exec(run: &str, host: &str, words: &[String]) -> Outcome {
    let entries = registry::list()?;
    let Some(entry) = entries.iter().find(|e| e.run == run) else {
        let known: Vec<&str> = entries.iter().map(|e| e.run.as_str()).collect();
        let known = if known.is_empty() {
            "there is none at all".to_owned()
        } else {
            format!("there are: {}", known.join(", "))
        };
        return Err(Failure::usage(format!("there is no lab of run `{run}`; {known}")));
    };
    let parsed = host
        .rsplit_once('/')
        .and_then(|(site, role)| Role::ALL.into_iter().find(|r| r.name() == role).map(|role| (site, role)));
    let Some((site, role)) = parsed else {
        return Err(Failure::usage(format!(
            "`{host}` is not VARIANT/ROLE with a role initiator, gateway or responder"
        )));
    };
    let Some((program, rest)) = words.split_first() else {
        return Err(Failure::usage("a command is needed"));
    };
    let mut command = entry.command(site, role, program)?;
    let error = command.args(rest).exec();
    Err(Failure::failed(format!("cannot run {program}: {error}")))
}
