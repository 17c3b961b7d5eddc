//! The program as a child process: in the caller's namespace, on its cores, with what it prints.
#![allow(unsafe_code, reason = "the hook between fork and exec that pins the child to its cores")]

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use weir_sys::NetNs;
use weir_sys::process::{Ended, Process, install, spawn, which};

use crate::{Error, Stop};

/// Time between two looks at a stop flag.
const LOOK: Duration = Duration::from_millis(50);

/// A running program.
#[derive(Debug)]
pub(crate) struct Child {
    pub process: Process,
    stdout: JoinHandle<String>,
    stderr: JoinHandle<String>,
}

/// Start a program. Its output is read while it runs, so that it never waits for us.
pub(crate) fn start(program: &str, args: &[String], cpus: &[usize]) -> Result<Child, Error> {
    let mut command = Command::new(path_of(program)?);
    command.args(args).stdin(Stdio::null());
    spawn_child(program, command, cpus)
}

/// A process with the number and the process group that the program will have; it ends if it is never released.
#[derive(Debug)]
pub(crate) struct Held {
    program: String,
    child: Child,
}

/// Like [`start`], but the program runs only once it is released. Before that, a guard can learn the process group that it must end.
pub(crate) fn start_held(program: &str, args: &[String], cpus: &[usize]) -> Result<Held, Error> {
    let mut command = Command::new("/bin/sh");
    // The end of its input is no word: then this process is gone.
    command.args(["-c", r#"read -r word && exec "$@" </dev/null"#, "weir-held"]);
    command.arg(path_of(program)?).args(args).stdin(Stdio::piped());
    Ok(Held { program: program.to_owned(), child: spawn_child(program, command, cpus)? })
}

impl Held {
    /// Returns the number of the process group.
    pub(crate) fn group(&self) -> u32 {
        self.child.process.pid()
    }

    /// Lets the program run.
    pub(crate) fn release(mut self) -> Result<Child, Error> {
        let failed = |reason: String| Error::Program { program: self.program.clone(), reason };
        let mut input = self.child.process.stdin.take().ok_or_else(|| failed("it has no input".into()))?;
        input.write_all(b"run\n").map_err(|e| failed(e.to_string()))?;
        Ok(self.child)
    }
}

fn path_of(program: &str) -> Result<PathBuf, Error> {
    which(program).ok_or_else(|| Error::Program {
        program: program.to_owned(),
        reason: format!("not installed; run `{}`", install(program)),
    })
}

fn spawn_child(program: &str, mut command: Command, cpus: &[usize]) -> Result<Child, Error> {
    let failed = |reason: String| Error::Program { program: program.to_owned(), reason };
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    stay_in_namespace(&mut command).map_err(|e| failed(e.to_string()))?;
    pin_on_spawn(&mut command, cpus);
    let mut process = spawn(command).map_err(|e| failed(e.to_string()))?;
    let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
    Ok(Child { process, stdout: reader(stdout)?, stderr: reader(stderr)? })
}

/// Makes the child start in the calling thread's network namespace. Children are forked by one thread of this process, which may
/// be in another namespace (several hosts in one process, as in tests).
fn stay_in_namespace(command: &mut Command) -> Result<(), weir_sys::Error> {
    let own = NetNs::current()?;
    if own.inode()? != NetNs::open("/proc/self/ns/net")?.inode()? {
        own.enter_on_spawn(command);
    }
    Ok(())
}

fn pin_on_spawn(command: &mut Command, cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
    if set.count() == 0 {
        return;
    }
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; sched_setaffinity(2) is a plain call on a
    // set that was made before the fork.
    unsafe { command.pre_exec(move || Ok(sched_setaffinity(None, &set)?)) };
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> Result<JoinHandle<String>, Error> {
    let read = move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // The text read before an error is all there is; a truncated report does not parse, and the parser reports it.
            let _: io::Result<usize> = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    std::thread::Builder::new().name("read-child".into()).spawn(read).map_err(Error::io("start a thread"))
}

/// How a program that was waited for came to its end.
#[derive(Debug)]
pub(crate) enum Finished {
    /// By itself: how, what it printed, what it complained of.
    Ended(Ended, String, String),
    /// The stop was raised, and it was killed.
    Stopped,
}

impl Child {
    /// Wait until it ends by itself, at most `limit`, unless `stop` is raised.
    pub(crate) fn finish(mut self, program: &str, stop: &Stop, limit: Duration) -> Result<Finished, Error> {
        let failed = |reason: String| Error::Program { program: program.to_owned(), reason };
        let system = |e: weir_sys::Error| failed(e.to_string());
        let deadline = Instant::now() + limit;
        loop {
            if let Some(ended) = self.process.wait(LOOK).map_err(system)? {
                let (stdout, stderr) = self.output();
                return Ok(Finished::Ended(ended, stdout, stderr));
            }
            if stop.raised() {
                self.process.kill().map_err(system)?;
                return Ok(Finished::Stopped);
            }
            if Instant::now() > deadline {
                self.process.kill().map_err(system)?;
                return Err(failed(format!("the client was not done after {limit:?}")));
            }
        }
    }

    /// Returns its output, after it has ended.
    pub(crate) fn output(self) -> (String, String) {
        // A panic there is a bug and not the program's failure; nothing in it can panic.
        (self.stdout.join().unwrap_or_default(), self.stderr.join().unwrap_or_default())
    }
}

/// Returns a program's output as one line for a message.
pub(crate) fn words(stdout: &str, stderr: &str) -> String {
    let text = if stderr.trim().is_empty() { stdout } else { stderr };
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
