//! A command that runs while the test does something to it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use weir_sys::process::{Process, spawn};

use crate::{CommandOutput, PATIENCE, until};

/// A running command. Dropping it kills it.
#[derive(Debug)]
pub struct Background {
    process: Process,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Background {
    pub(crate) fn start(folder: &Path, name: &str, mut command: Command) -> Self {
        let (stdout, stderr) = (folder.join(format!("{name}.out")), folder.join(format!("{name}.err")));
        command.stdin(Stdio::null());
        command.stdout(File::create(&stdout).unwrap()).stderr(File::create(&stderr).unwrap());
        Background { process: spawn(command).unwrap(), stdout, stderr }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns its standard error so far.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stderr).unwrap()).into_owned()
    }

    /// Returns its standard output so far.
    pub fn printed(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stdout).unwrap()).into_owned()
    }

    /// Waits until it has said this.
    #[track_caller]
    pub fn wait_for(&mut self, words: &str) {
        until(&format!("`{words}`"), PATIENCE, || {
            let said = self.said();
            if said.contains(words) {
                return Some(());
            }
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "ended with {ended:?} before it said `{words}`:\n{said}");
            None
        });
    }

    /// Sends a signal, by name or number as kill(1) knows it, to the process alone.
    pub fn signal(&self, signal: &str) {
        kill(self.pid(), signal);
    }

    /// Waits for its end, at most that long.
    #[track_caller]
    pub fn end_within(mut self, limit: Duration) -> CommandOutput {
        let ended = self.process.wait(limit).unwrap();
        let Some(ended) = ended else { panic!("still running after {limit:?}; it said:\n{}", self.said()) };
        CommandOutput {
            code: ended.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&fs::read(&self.stdout).unwrap()).into_owned(),
            stderr: self.said(),
        }
    }
}

/// kill(1).
pub(crate) fn kill(pid: u32, signal: &str) {
    let status = Command::new("kill").args(["-s", signal, &pid.to_string()]).status().unwrap();
    assert!(status.success(), "kill -s {signal} {pid}");
}
