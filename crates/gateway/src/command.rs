//! Programs run to their end in the network namespace of the calling thread.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use weir_sys::process::{Output, install, run_with_input, which};
use weir_sys::{NetNs, ProcRoot};

use crate::Error;

/// None of the programs that weir itself calls (nft, iptables, ip) works this long; one that does is stuck. Listing what a user's
/// commands load may take longer: see [`run_within`].
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(20);

/// The same where they load or list very much: nft loads a million prefixes in 6 s and lists them in 60 s, on an idle machine.
const LONG_LIMIT: Duration = Duration::from_secs(300);

/// Runs it and returns what it printed on standard output; an exit code other than 0 is an error.
pub(crate) fn run<S: AsRef<str>>(program: &str, args: &[S]) -> Result<String, Error> {
    run_with(program, args, "")
}

/// As [`run`], with a time limit of its own.
pub(crate) fn run_within(program: &str, args: &[&str], limit: Duration) -> Result<String, Error> {
    finished(program, args, output(program, args, "", limit)?)
}

/// As [`run`], with text on standard input.
pub(crate) fn run_with<S: AsRef<str>>(program: &str, args: &[S], input: &str) -> Result<String, Error> {
    finished(program, args, output(program, args, input, TIME_LIMIT)?)
}

/// As [`run_with`], for what may be very long.
pub(crate) fn run_long<S: AsRef<str>>(program: &str, args: &[S], input: &str) -> Result<String, Error> {
    finished(program, args, output(program, args, input, LONG_LIMIT)?)
}

fn finished<S: AsRef<str>>(program: &str, args: &[S], output: Output) -> Result<String, Error> {
    if output.status.success() {
        return Ok(output.stdout_text());
    }
    Err(Error::Command { command: line(program, args), output: output.message() })
}

/// True if it ended with exit code 0.
pub(crate) fn succeeds<S: AsRef<str>>(program: &str, args: &[S]) -> Result<bool, Error> {
    Ok(output(program, args, "", TIME_LIMIT)?.status.success())
}

/// Runs a user's command by the shell, with these variables added to the environment.
pub(crate) fn shell(
    command: &str,
    environment: &BTreeMap<String, String>,
    limit: Duration,
) -> Result<String, Error> {
    let mut child = Command::new("sh");
    child.arg("-c").arg(command).envs(environment);
    let failed = |output: String| Error::Command { command: command.to_owned(), output };
    let output = here(child, "", limit).map_err(|e| failed(e.to_string()))?;
    if output.status.success() { Ok(output.stdout_text()) } else { Err(failed(output.message())) }
}

/// Returns the path of the program; if it is missing, fails with the command that provides it.
pub(crate) fn require(program: &str) -> Result<PathBuf, Error> {
    which(program).ok_or_else(|| Error::Missing { program: program.to_owned(), provide: install(program) })
}

fn output<S: AsRef<str>>(program: &str, args: &[S], input: &str, limit: Duration) -> Result<Output, Error> {
    let mut child = Command::new(require(program)?);
    child.args(args.iter().map(AsRef::as_ref));
    here(child, input, limit)
        .map_err(|e| Error::Command { command: line(program, args), output: e.to_string() })
}

/// Runs a child in the caller's namespace. A separate thread forks children and lives in the namespace where the process began,
/// so the child must enter the caller's.
fn here(mut child: Command, input: &str, limit: Duration) -> weir_sys::Result<Output> {
    NetNs::current()?.enter_on_spawn(&mut child);
    // Messages are read by people and by the tests; translated ones would be read by neither.
    child.env("LC_ALL", "C");
    run_with_input(child, input.as_bytes(), limit)
}

/// The root of the kernel's files for settings; they show the namespace of the thread that opens them.
pub(crate) fn kernel() -> ProcRoot {
    ProcRoot::new("/")
}

fn line<S: AsRef<str>>(program: &str, args: &[S]) -> String {
    std::iter::once(program).chain(args.iter().map(AsRef::as_ref)).collect::<Vec<_>>().join(" ")
}
