//! What the commands have in common that change this host on trial: a guard process takes back what is not confirmed.

use std::path::Path;

use serde_json::json;
use weir_guard::{ChangeSet, Keeper, Program};
use weir_sys::ProcRoot;
use weir_sys::privilege::Privilege;

use crate::exit::{FAILED, Failure, MISSING, Outcome};
use crate::output::{print, print_json, printable};

/// This very program, whatever its file is called by now.
const SELF: &str = "/proc/self/exe";

/// Refuses to go on without root; `command` is what was typed behind `weir`.
pub(super) fn needs_root(command: &str) -> Outcome {
    let own = Privilege::current(&ProcRoot::default()).map_err(Failure::failed)?;
    if own.euid == 0 {
        return Ok(());
    }
    Err(Failure::new(MISSING, format!("weir {command} needs root: sudo weir {command} ...")))
}

/// This program with other arguments.
pub(super) fn own(args: &[&str]) -> Program {
    Program::new(std::iter::once(SELF).chain(args.iter().copied()))
}

/// For arguments of programs.
pub(super) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A failure of the part of this program that makes the change, in its own words.
pub(super) fn in_words(error: weir_guard::Error) -> Failure {
    match error {
        weir_guard::Error::Apply { why, undone, .. } => {
            let why = why.trim_start_matches("weir: ").replace(SELF, "weir");
            Failure::failed(format!("{why}; {undone}"))
        }
        other => Failure::from(other),
    }
}

/// How far a change set has come.
pub(super) fn set_json(set: &ChangeSet) -> serde_json::Value {
    json!({
        "id": set.begin.id, "title": set.begin.title, "applied_unix_s": set.begin.unix_s, "timeout_s": set.begin.timeout_s,
        "progress": set.phase, "confirmed_unix_s": set.confirmed_unix_s,
        "steps": set.begin.steps.iter().zip(&set.states)
            .map(|(step, state)| json!({ "target": step.change.target(), "when": step.when, "progress": state }))
            .collect::<Vec<_>>(),
    })
}

/// Keeps what is on trial: `by` whom it was changed, `command` as for [`needs_root`]. `page` says it to a person, of its title and of
/// what stands behind that if it had been confirmed before.
pub(super) fn confirm(
    by: &str,
    command: &str,
    schema: u32,
    as_json: bool,
    page: impl FnOnce(&str, &str) -> String,
) -> Outcome {
    needs_root(command)?;
    let confirmed = Keeper::new(by).confirm()?;
    if as_json {
        let mut value = set_json(&confirmed.set);
        value["already"] = json!(confirmed.already);
        value["problems"] = json!(confirmed.problems);
        print_json(&json!({ "schema": schema, "set": value }))?;
    } else {
        let before = if confirmed.already { " (it was confirmed before)" } else { "" };
        print(&page(&printable(&confirmed.set.begin.title), before))?;
    }
    for problem in &confirmed.problems {
        eprintln!("weir: {}", printable(problem));
    }
    if confirmed.problems.is_empty() { Ok(()) } else { Err(Failure::Silent(FAILED)) }
}
