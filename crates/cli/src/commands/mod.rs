//! One file per command.

pub(crate) mod allow;
pub(crate) mod bench;
pub(crate) mod compare;
pub(crate) mod conntrack;
pub(crate) mod cost;
pub(crate) mod doctor;
pub(crate) mod export;
pub(crate) mod fastpath;
pub(crate) mod flows;
pub(crate) mod iperf3;
pub(crate) mod lab;
pub(crate) mod mtu;
pub(crate) mod nat;
mod netns;
pub(crate) mod probe;
pub(crate) mod publish;
pub(crate) mod report;
pub(crate) mod scenario;
pub(crate) mod schema;
mod screen;
pub(crate) mod selftest;
pub(crate) mod serve;
pub(crate) mod tune;

use std::io::Read;
use std::os::unix::net::UnixStream;
pub(crate) mod on_trial;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io};

use weir_bench::scenario::{built_in, find};
use weir_record::Run;
use weir_sys::Stop;
use weir_sys::process::which;

use crate::args;
use crate::exit::{CommandResult, FAILED, Failure, MISSING};
use crate::output::{print, save};
use crate::talk::note;

/// Signals that come this close together are one: timeout(1) and a terminal that is closed send theirs to a process and then to
/// its group.
const ONE: Duration = Duration::from_millis(500);

/// Raised by Ctrl-C and its like (TERM, a closed terminal). Another one after a moment ends the process at once.
fn stop_on_signals() -> Result<Stop, Failure> {
    let stop = Stop::default();
    let impatient = Arc::new(AtomicBool::new(false));
    let (mut first, any) = UnixStream::pair().map_err(Failure::failed)?;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, i32::from(FAILED), Arc::clone(&impatient))
            .and_then(|_| signal_hook::flag::register(signal, stop.flag()))
            .and_then(|_| signal_hook::low_level::pipe::register(signal, any.try_clone()?))
            .map_err(Failure::failed)?;
    }
    let wait = move || {
        // Nothing comes but a byte for each signal.
        let _ = first.read(&mut [0]);
        std::thread::sleep(ONE);
        impatient.store(true, Ordering::Relaxed);
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map_err(Failure::failed)?;
    Ok(stop)
}

/// How soon Ctrl-C is noticed.
const NOTICE: Duration = Duration::from_millis(50);

/// Waits for the next turn of `--watch`, or for Ctrl-C.
fn wait_until(next: Instant, stop: &Stop) {
    while Instant::now() < next && !stop.raised() {
        std::thread::sleep(NOTICE.min(next.saturating_duration_since(Instant::now())));
    }
}

/// Builds the command for a line from the user. It runs the line in the shell, which it finds even if PATH does not lead to it.
fn shell(line: &str) -> Result<Command, Failure> {
    let shell = which("sh")
        .ok_or_else(|| Failure::new(MISSING, "sh is not installed here (any POSIX shell, such as dash)"))?;
    let mut command = Command::new(shell);
    command.args(["-c", line]);
    Ok(command)
}

/// `weir completions`.
pub(crate) fn completions(shell: clap_complete::Shell) -> CommandResult {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut args::command(), "weir", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// `weir man`: the main page and a part for each command, or a file for each in a folder.
pub(crate) fn man(folder: Option<&Path>) -> CommandResult {
    let mut pages = Vec::new();
    let mut command = args::command();
    // Gives the commands their full names.
    command.build();
    man_pages(&command, &mut pages)?;
    let Some(folder) = folder else {
        return print(&pages.into_iter().map(|(_, text)| text).collect::<String>());
    };
    let failed = |e| Failure::failed(format!("cannot write {}: {e}", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    for (name, text) in pages {
        save(&folder.join(format!("{name}.1")), &text)?;
    }
    Ok(())
}

/// Name and text of the page of a command, and of all below it that people see.
fn man_pages(command: &clap::Command, pages: &mut Vec<(String, String)>) -> CommandResult {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text).map_err(Failure::failed)?;
    pages.push((name, String::from_utf8_lossy(&text).into_owned()));
    (command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help"))
        .try_for_each(|sub| man_pages(sub, pages))
}

/// `weir agent`.
pub(crate) fn agent() -> CommandResult {
    weir_agent::serve(io::stdin().lock(), io::stdout()).map_err(Failure::failed)
}

/// A scenario's text and origin. Prints a note if a built-in one hides a file of its name.
pub(crate) fn find_scenario(name_or_path: &str) -> Result<(String, String), Failure> {
    let found = find(name_or_path).map_err(Failure::usage)?;
    if built_in().iter().any(|(name, _)| *name == name_or_path) && Path::new(name_or_path).is_file() {
        note(&format!(
            "note: using the built-in scenario {name_or_path}; to use the file of that name, write ./{name_or_path}"
        ));
    }
    Ok(found)
}

/// A stored run with its results recomputed from its trials, and its summary written again.
pub(crate) fn load(path: &Path) -> Result<Run, Failure> {
    let mut run = weir_bench::store::read(path).map_err(Failure::usage)?;
    weir_bench::summary::conclude(&mut run);
    Ok(run)
}
