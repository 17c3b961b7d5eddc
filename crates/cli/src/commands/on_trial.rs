//! The trial commands of `weir tune`, `weir allow` and `weir publish`: they mean the same in all three, and are here once.

use std::path::Path;

use weir_guard::{
    Backstop, Change, ChangeGuard, ChangeSet, NewSet, Phase, Program, Role, Sentinel, Status, StepState,
};
use weir_sys::ProcRoot;
use weir_sys::privilege::Privilege;
use weir_tune::metric;

use crate::documents::{Confirm, Document, Rollback, Set, print_json};
use crate::exit::{CommandResult, FAILED, Failure, MISSING, USAGE};
use crate::output::{print, printable};
use crate::talk::{self, note};

/// This very program, whatever its file is called by now.
const SELF: &str = "/proc/self/exe";

impl From<weir_guard::Error> for Failure {
    fn from(error: weir_guard::Error) -> Self {
        if error.is_permission() {
            return Failure::new(MISSING, format!("{error}; run as root"));
        }
        Failure::new(if error.is_usage() { USAGE } else { FAILED }, error)
    }
}

/// Refuses to go on without root; `command` is what was typed behind `weir`.
pub(super) fn needs_root(command: &str) -> CommandResult {
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

/// A change that is loaded into the kernel from a file, by the command's own hidden commands, for so many seconds unless it is
/// kept. It goes back to the file `before`; where that cannot be loaded any more, to nothing.
pub(super) fn loading(
    by: &str,
    name: &str,
    (file, before): (&Path, Option<&Path>),
    trial_s: u64,
    limit_s: u64,
) -> Change {
    let undo = match before {
        Some(before) => own(&[by, "load", "--or-unload", &before.to_string_lossy()]),
        None => own(&[by, "unload"]),
    };
    Change::Commands {
        name: name.into(),
        apply: own(&[by, "load", "--trial", &trial_s.to_string(), &file.to_string_lossy()]),
        undo,
        confirm: Some(own(&[by, "keep"])),
        read: own(&[by, "state"]),
        limit_s,
        outlives_reboot: false,
    }
}

/// The end of an `apply` of what is in effect already; `document` is for --json.
pub(super) fn nothing_to_do(document: Option<&impl Document>) -> CommandResult {
    note("this is in effect already: there is nothing to do");
    document.map_or(Ok(()), print_json)
}

/// How guard processes are started.
pub(super) fn sentinel() -> Sentinel {
    Sentinel { args: vec!["guard".into()] }
}

/// `weir guard`: one of the two processes that roll a change set back unless it is confirmed.
pub(crate) fn guard(by: &str, id: &str, beside: bool, alone: bool) -> CommandResult {
    let role = match (beside, alone) {
        (true, _) => Role::Beside,
        (_, true) => Role::Alone,
        _ => Role::First,
    };
    weir_guard::guard(by, id, role, &sentinel(), &metric).map_err(Failure::from)
}

/// Makes the changes on trial. Warns before anything is changed where nothing would end the trial if both guards were killed.
pub(super) fn apply(by: &str, new: NewSet) -> Result<ChangeSet, Failure> {
    let keeper = ChangeGuard::new(by);
    plan_steps(&new);
    warn(by, keeper.arm(&new, &sentinel())?);
    let set = keeper.apply(new, &sentinel()).map_err(in_words)?;
    for (step, state) in set.begin.steps.iter().zip(&set.states) {
        talk::step(|| {
            let old = step.old.as_deref().unwrap_or("nothing");
            let done =
                if matches!(state, StepState::Applied { .. }) { "applied" } else { "left for confirm" };
            format!("{done}: {}, before: {old}", step.change.target())
        });
    }
    talk::step(|| format!("change set {} is on trial, with two guard processes", set.begin.id));
    Ok(set)
}

/// For changes that are measured: see [`apply`].
pub(super) fn try_out(by: &str, new: NewSet) -> Result<weir_guard::ChangeTrial, Failure> {
    let keeper = ChangeGuard::new(by);
    plan_steps(&new);
    warn(by, keeper.arm(&new, &sentinel())?);
    keeper.try_out(new, &sentinel()).map_err(in_words)
}

/// For --verbose: what will be run and written, and what will be watched.
fn plan_steps(new: &NewSet) {
    for (_, change) in &new.changes {
        talk::step(|| match change {
            Change::Commands { name, apply, undo, .. } => {
                format!("{name}: runs {}; undone by {}", apply.argv.join(" "), undo.argv.join(" "))
            }
            other => format!("writes {}: {}", other.target(), other.wanted().unwrap_or("nothing")),
        });
    }
    for watch in &new.watches {
        talk::step(|| format!("watches {} every {} ms, limit {}", watch.name, watch.every_ms, watch.limit));
    }
}

fn warn(by: &str, backstop: Backstop) {
    talk::step(|| match backstop {
        Backstop::Kernel => "the kernel ends the trial should the guards be killed".to_owned(),
        Backstop::Timer => "a timer of systemd ends the trial should the guards be killed".to_owned(),
        Backstop::NextCommand => "no systemd: only guards end the trial".to_owned(),
    });
    if backstop == Backstop::NextCommand {
        eprintln!(
            "warning: systemd does not run here; if both guard processes are killed, only the next weir {by} command rolls back"
        );
    }
}

/// The last line of every `apply`. `netns` is that of a command whose `confirm` must name it, too.
pub(super) fn announce(by: &str, confirm_within: u64, netns: Option<&str>) {
    let there = netns.map_or(String::new(), |name| format!(" --netns {name}"));
    note(&printable(&format!("rolls back in {confirm_within} s; keep it with: weir {by} confirm{there}")));
}

/// A failure of the part of this program that makes the change, in its own words.
fn in_words(error: weir_guard::Error) -> Failure {
    match error {
        weir_guard::Error::Apply { why, undone, .. } => {
            let why = why.trim_start_matches("weir: ").replace(SELF, "weir");
            Failure::failed(format!("{why}; {undone}"))
        }
        other => Failure::from(other),
    }
}

/// How far the last set has come, in a line for people; empty where that says nothing of how things are now.
pub(super) fn trial_line(status: &Status) -> String {
    match &status.set.phase {
        Phase::Waiting { .. } => status.trial().map_or(String::new(), |line| format!("{line}\n")),
        Phase::Applying => "it is being applied now\n".into(),
        Phase::Confirmed { .. } => String::new(),
        Phase::Reverting { why } | Phase::Reverted { why, .. } => {
            format!("the last apply was rolled back: {}\n", printable(why))
        }
    }
}

/// Keeps what is on trial. `page` shows it to a person, of the set and of what stands behind its title if it had been confirmed before.
pub(super) fn confirm(
    by: &str,
    as_json: bool,
    page: impl FnOnce(&ChangeSet, &str) -> String,
) -> CommandResult {
    needs_root(&format!("{by} confirm"))?;
    let confirmed = ChangeGuard::new(by).confirm()?;
    if as_json {
        print_json(&Confirm::of(&confirmed))?;
    } else {
        let before = if confirmed.already { " (it was confirmed before)" } else { "" };
        print(&page(&confirmed.set, before))?;
    }
    for problem in &confirmed.problems {
        eprintln!("weir: {}", printable(problem));
    }
    if confirmed.problems.is_empty() { Ok(()) } else { Err(Failure::Silent(FAILED)) }
}

/// Rolls back what was applied last, confirmed or not.
pub(super) fn rollback(by: &str, as_json: bool, page: impl FnOnce(&ChangeSet) -> String) -> CommandResult {
    needs_root(&format!("{by} rollback"))?;
    let set = ChangeGuard::new(by).rollback()?;
    if as_json {
        print_json(&Rollback { set: Set::of(&set) })?;
    } else {
        print(&page(&set))?;
    }
    rolled_back(by, &set)
}

/// Whether everything is as before.
pub(super) fn rolled_back(by: &str, set: &ChangeSet) -> CommandResult {
    if !matches!(set.phase, Phase::Reverted { .. }) {
        return Err(Failure::failed(format!(
            "a change could not be rolled back; the next weir {by} command retries, weir {by} remove removes everything"
        )));
    }
    let others = set.states.iter().any(|state| {
        matches!(state, StepState::Reverted { outcome: weir_guard::RevertOutcome::LeftToOthers { .. } })
    });
    if others {
        return Err(Failure::failed(format!(
            "another program changed it since apply; that was left alone: see weir {by} status"
        )));
    }
    Ok(())
}

/// Describes the outcome of each change.
pub(super) fn outcomes(set: &ChangeSet) -> String {
    let of = |state: &StepState| match state {
        StepState::Reverted { outcome } => outcome.words(),
        StepState::Stuck { why, .. } => format!("could not be rolled back: {why}"),
        _ => "was not rolled back".into(),
    };
    let lines = set.begin.steps.iter().zip(&set.states);
    lines.map(|(step, state)| format!("{}: {}\n", step.change.target(), printable(&of(state)))).collect()
}

/// Removes everything of a command: rolls its set back, does `unload`, and makes sure that `state` names nothing any more.
pub(super) fn remove(
    by: &str,
    unload: impl FnOnce() -> CommandResult,
    state: impl FnOnce() -> Result<String, Failure>,
) -> CommandResult {
    before_remove(by);
    unload()?;
    after_remove(by)?;
    let left = state()?;
    if left.is_empty() { Ok(()) } else { Err(Failure::failed(format!("something is still there: {left}"))) }
}

/// Before everything of a command is removed: rolls back its set, so that its guards end and find nothing to do. A journal that cannot
/// be read must not prevent it.
pub(super) fn before_remove(by: &str) {
    let keeper = ChangeGuard::new(by);
    match keeper.status() {
        Ok(Some(status)) if !matches!(status.set.phase, Phase::Reverted { .. }) => {
            if let Err(e) = keeper.rollback() {
                eprintln!("warning: rollback failed: {}", printable(&e.to_string()));
            }
        }
        Ok(_) => {}
        Err(e) => eprintln!("warning: {}", printable(&e.to_string())),
    }
}

/// After it: what could not be rolled back is settled, because nothing is left of it.
fn after_remove(by: &str) -> CommandResult {
    let keeper = ChangeGuard::new(by);
    if keeper.status().is_ok_and(|status| status.is_some_and(|status| status.set.is_in_flight())) {
        keeper.abandon(&format!("weir {by} remove"))?;
    }
    Ok(())
}
