//! The program as a child process: in the caller's namespace, on its cores, with what it prints.
#![allow(unsafe_code, reason = "the hook between fork and exec that pins the child to its cores")]

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_setaffinity};
use weir_sys::NetNs;
use weir_sys::process::{Process, spawn, which};

use crate::Error;

/// A running program.
#[derive(Debug)]
pub(super) struct Child {
    pub process: Process,
    stdout: JoinHandle<String>,
    stderr: JoinHandle<String>,
}

/// Start a program. Its output is read while it runs, so that it never waits for us.
pub(super) fn start(program: &str, args: &[String], cpus: &[usize]) -> Result<Child, Error> {
    let failed = |reason: String| Error::Program { program: program.to_owned(), reason };
    let path =
        which(program).ok_or_else(|| failed(format!("not installed; run `apt-get install {program}`")))?;
    let mut command = Command::new(path);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    stay_in_namespace(&mut command).map_err(|e| failed(e.to_string()))?;
    pin_on_spawn(&mut command, cpus);
    let mut process = spawn(command).map_err(|e| failed(e.to_string()))?;
    let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
    Ok(Child { process, stdout: reader(stdout)?, stderr: reader(stderr)? })
}

/// Children are forked by one thread of this process; if the calling thread is in another network namespace than the
/// process (several hosts in one process, as in tests), the child has to be told.
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
            // What was read before an error is all there is; a truncated report does not parse, and that is said.
            let _: io::Result<usize> = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    std::thread::Builder::new().name("read-child".into()).spawn(read).map_err(Error::io("start a thread"))
}

impl Child {
    /// What it printed, after it has ended.
    pub(super) fn output(self) -> (String, String) {
        // A panic there is a bug and not the program's failure; nothing in it can panic.
        (self.stdout.join().unwrap_or_default(), self.stderr.join().unwrap_or_default())
    }
}
