//! The process that keeps the fast path: its start, its end, and itself.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use weir_fastpath::{ExclusionStore, Resident, Setup, Visit, Wanted};

use super::{apply, make};
use crate::args::fastpath::RunArgs;
use crate::commands::on_trial::needs_root;
use crate::commands::stop_on_signals;
use crate::exit::{CommandResult, FAILED, Failure};
use crate::talk::note;

/// The line that the process prints when its programs are attached.
const READY: &str = "ready";
/// Bytes of a wish, at most.
const LONGEST: u64 = 1 << 20;

fn read_wish() -> Result<Wanted, Failure> {
    let mut text = String::new();
    io::stdin().take(LONGEST).read_to_string(&mut text).map_err(Failure::failed)?;
    serde_json::from_str(&text).map_err(|e| Failure::usage(format!("standard input: {e}")))
}

/// `weir fastpath load`: what the guard calls to make and to take back.
pub(super) fn load(or_unload: bool, trial: Option<u64>) -> CommandResult {
    let started = read_wish().and_then(|wanted| {
        unload()?;
        start(&wanted, trial)
    });
    match started {
        Err(_) if or_unload => unload(),
        other => other,
    }
}

/// Starts the process, and returns when it carries.
fn start(wanted: &Wanted, trial: Option<u64>) -> CommandResult {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("weir").args(["fastpath", "hold"]);
    if let Some(trial) = trial {
        command.args(["--trial", &trial.to_string()]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A folder that it holds could not be unmounted.
    let mut child = command.current_dir("/").spawn().map_err(Failure::failed)?;
    if is_ready(&mut child, wanted) {
        return Ok(());
    }
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        // Without its words the message is what is left.
        let _ = stderr.read_to_string(&mut said);
    }
    // It has closed its output, or broken off: it ends by itself.
    let _ = child.wait();
    let said = said.trim().trim_start_matches("weir: ");
    let why = if said.is_empty() { "the process that keeps the fast path did not start" } else { said };
    Err(Failure::new(FAILED, why))
}

fn is_ready(child: &mut Child, wanted: &Wanted) -> bool {
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else { return false };
    let Ok(text) = serde_json::to_string(wanted) else { return false };
    if stdin.write_all(text.as_bytes()).is_err() {
        return false;
    }
    drop(stdin);
    let mut first = String::new();
    BufReader::new(stdout).read_line(&mut first).is_ok() && first.trim_end() == READY
}

/// `weir fastpath hold`: the process itself.
pub(super) fn hold(trial: Option<u64>) -> CommandResult {
    // A new session: no terminal's Ctrl-C, no end of a login reaches it. It is no leader of a process group, so this is not refused.
    let _ = rustix::process::setsid();
    let wanted = read_wish()?;
    let stop = stop_on_signals()?;
    let kept = ExclusionStore::usual()?;
    let resident = Resident::begin(Setup { wanted, trial: trial.map(Duration::from_secs), kept })?;
    leave_starter().map_err(Failure::failed)?;
    Ok(resident.serve(&stop.flag())?)
}

/// Says that it is ready, and lets go of what belongs to its starter.
fn leave_starter() -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let mut out = io::stdout();
    writeln!(out, "{READY}").and_then(|()| out.flush())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(rustix::stdio::dup2_stderr(&null)?)
}

/// `weir fastpath run`: the same in the foreground.
pub(super) fn run(args: &RunArgs) -> CommandResult {
    needs_root("fastpath run")?;
    let plan = make(&args.what)?;
    apply::check(&plan, args.force)?;
    let stop = stop_on_signals()?;
    let kept = ExclusionStore::usual()?;
    let resident = Resident::begin(Setup { wanted: plan.wanted, trial: None, kept })?;
    note("carrying; ends with Ctrl-C or SIGTERM");
    Ok(resident.serve(&stop.flag())?)
}

/// `weir fastpath keep`.
pub(super) fn keep() -> CommandResult {
    match Visit::find()? {
        Some(visit) => Ok(visit.keep()?),
        None => Err(Failure::failed("the fast path is not in effect any more")),
    }
}

/// `weir fastpath unload`; nothing to end is no failure.
pub(super) fn unload() -> CommandResult {
    if let Some(visit) = Visit::find()? {
        visit.end()?;
    }
    // Another one may have begun meanwhile.
    match Visit::find()? {
        Some(_) => Ok(()),
        None => Ok(weir_fastpath::remove_leftovers()?),
    }
}

/// `weir fastpath state`: nothing that changes by itself.
pub(super) fn state() -> Result<String, Failure> {
    Ok(Visit::look()?.map_or_else(String::new, |now| format!("fast path {}\n", now.id)))
}
