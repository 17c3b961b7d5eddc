//! Commands of weir itself on the agent's host, as children that end with the agent.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_load::Stop;
use weir_sys::process::{self, Process};

use crate::error::TaskError;
use crate::transport::own_binary;

/// How often a wait looks whether it must stop.
const TICK: Duration = Duration::from_millis(100);

/// How long a command that is asked to stop may take.
const GRACE: Duration = Duration::from_secs(3);

/// Most that is kept of each output, bytes.
const MOST: u64 = 8 << 20;

/// A command of this binary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTask {
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Variables that are added to the host's own.
    pub environment: BTreeMap<String, String>,
    /// For a command that serves until the agent ends: what a line of its standard error has once it serves.
    pub serves: Option<String>,
}

/// The output of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ran {
    /// Its exit code; `None` if a signal ended it, or if it serves.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// Runs a command to its end, or until `stop` is raised: it is then asked to end.
///
/// # Errors
/// If it cannot be started.
pub(crate) fn run(task: RunTask, stop: &Stop) -> Result<Ran, TaskError> {
    let mut process = start(task, Stdio::piped())?;
    let (stdout, stderr) = (process.stdout.take().map(collect), process.stderr.take().map(collect));
    let ended = loop {
        if let Some(ended) = process.wait(TICK)? {
            break ended;
        }
        if stop.raised() {
            break process.stop(GRACE)?;
        }
    };
    let text = |reader: Option<JoinHandle<String>>| reader.and_then(|r| r.join().ok()).unwrap_or_default();
    Ok(Ran { code: ended.status.code(), stdout: text(stdout), stderr: text(stderr) })
}

/// Starts a command that serves, and waits until it does.
///
/// # Errors
/// If it cannot be started or ends before, with what it said.
pub(crate) fn serve(task: RunTask, stop: &Stop) -> Result<(Process, Ran), TaskError> {
    let word = task.serves.clone().unwrap_or_default();
    let mut process = start(task, Stdio::null())?;
    let said = process.stderr.take().map(lines);
    let mut stderr = String::new();
    let ended = |stderr: &str| {
        let reason = stderr.trim();
        TaskError::failed(format!("it ended: {}", reason.strip_prefix("weir: ").unwrap_or(reason)))
    };
    let said = said.ok_or_else(|| ended("no pipe"))?;
    loop {
        match said.recv_timeout(TICK) {
            Ok(line) => {
                stderr += &line;
                stderr.push('\n');
                if line.contains(&word) {
                    return Ok((process, Ran { stderr, ..Ran::default() }));
                }
            }
            Err(RecvTimeoutError::Timeout) if stop.raised() => return Err(TaskError::failed("stopped")),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(ended(&stderr)),
        }
    }
}

fn start(task: RunTask, stdout: Stdio) -> Result<Process, TaskError> {
    let mut command = Command::new(own_binary());
    command.args(task.arguments).envs(task.environment);
    command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
    Ok(process::spawn(command)?)
}

/// Reads an output to its end, and keeps the first [`MOST`] bytes.
fn collect(output: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut output = output;
        let mut kept = Vec::new();
        // A command that was killed has nothing more to say.
        let _ = output.by_ref().take(MOST).read_to_end(&mut kept);
        let _ = std::io::copy(&mut output, &mut std::io::sink());
        String::from_utf8_lossy(&kept).into_owned()
    })
}

/// The lines of a standard error. It is read to its end even if the receiver is gone, so that its writer never waits.
fn lines(errors: ChildStderr) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(errors).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command of this binary, which is that of these tests.
    fn task(argument: &str, serves: Option<&str>) -> RunTask {
        RunTask {
            arguments: vec![argument.to_owned()],
            environment: BTreeMap::new(),
            serves: serves.map(str::to_owned),
        }
    }

    #[test]
    fn a_command_has_both_outputs_and_a_code() {
        let ran = run(task("--list", None), &Stop::default()).unwrap();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stdout.contains("run::tests::a_command_has_both_outputs_and_a_code"), "{ran:?}");
        let refused = run(task("--nonesuch", None), &Stop::default()).unwrap();
        assert!(
            refused.code.is_some_and(|code| code > 0) && refused.stderr.contains("nonesuch"),
            "{refused:?}"
        );
    }

    #[test]
    fn a_command_that_ends_before_it_serves_says_why() {
        let error = serve(task("--nonesuch", Some("serving")), &Stop::default()).unwrap_err();
        assert!(error.message.starts_with("it ended: ") && error.message.contains("nonesuch"), "{error}");
    }
}
