//! Programs run to their end.

use std::process::Command;
use std::time::Duration;

use weir_sys::process::{install, run_with_input, which};

use crate::Error;

/// nft loads a million prefixes in seconds, on a busy machine in a minute; what takes longer is stuck.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs it and returns what it printed on standard output; an exit code other than 0 is an error.
pub(crate) fn run(program: &str, args: &[&str], input: &str) -> Result<String, Error> {
    match try_run(program, args, input)? {
        Ok(printed) => Ok(printed),
        Err(output) => Err(Error::Command { command: line(program, args), output }),
    }
}

/// Runs a program. Returns its output, or its error text if its exit code is not 0.
pub(crate) fn try_run(program: &str, args: &[&str], input: &str) -> Result<Result<String, String>, Error> {
    let mut command = Command::new(require(program)?);
    // Messages are read by people and by the tests; translated ones would be read by neither.
    command.args(args).env("LC_ALL", "C");
    let output = run_with_input(command, input.as_bytes(), LIMIT)
        .map_err(|e| Error::Command { command: line(program, args), output: e.to_string() })?;
    Ok(if output.status.success() { Ok(output.stdout_text()) } else { Err(output.message()) })
}

/// Finds the path of a program; if it is missing, the error names what provides it.
pub(crate) fn require(program: &str) -> Result<std::path::PathBuf, Error> {
    which(program).ok_or_else(|| Error::Missing { program: program.to_owned(), provide: install(program) })
}

fn line(program: &str, args: &[&str]) -> String {
    std::iter::once(program).chain(args.iter().copied()).collect::<Vec<_>>().join(" ")
}
