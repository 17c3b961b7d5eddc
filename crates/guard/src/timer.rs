//! A timer of systemd, which rolls back what the kernel does not end by itself, should both guards be killed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use weir_sys::process::{run_captured, which};

use crate::change::Change;
use crate::error::Error;
use crate::journal::When;
use crate::new_set::NewSet;
use crate::sentinel::{FOLDERS, Role, Sentinel};

/// There while systemd is process 1 (sd_booted(3)).
const BOOTED: &str = "/run/systemd/system";
/// The folder of systemd's units that were made at run time.
const TRANSIENT: &str = "/run/systemd/transient";
/// Longest time for systemd to answer.
const LIMIT: Duration = Duration::from_secs(10);

/// The backstop that ends a trial if both guard processes are killed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backstop {
    /// The kernel itself.
    Kernel,
    /// A timer of systemd.
    Timer,
    /// Nothing but the next command of weir: systemd does not run here.
    NextCommand,
}

/// The timer of a set.
#[derive(Debug)]
pub(crate) struct Timer {
    unit: String,
}

impl Timer {
    pub(crate) fn of(by: &str, id: &str) -> Self {
        Timer { unit: format!("weir-trial-{by}-{id}") }
    }

    fn file(&self) -> PathBuf {
        Path::new(TRANSIENT).join(format!("{}.timer", self.unit))
    }

    /// Whether it is there.
    pub(crate) fn is_armed(&self) -> bool {
        self.file().exists()
    }

    /// Starts a guard of its own after that time, unless it is cancelled.
    pub(crate) fn arm(&self, by: &str, id: &str, sentinel: &Sentinel, after_s: u64) -> Result<(), Error> {
        let failed = |why: String| Error::Guard(format!("the timer of systemd: {why}"));
        self.cancel();
        let own = std::env::current_exe().map_err(|e| failed(e.to_string()))?;
        let mut command = Command::new(which("systemd-run").ok_or_else(|| failed("no systemd-run".into()))?);
        command.args(["--quiet", "--collect", "--timer-property=AccuracySec=100ms"]);
        command.args(["--property=OOMScoreAdjust=-1000", "--property=Type=exec"]);
        command.arg(format!("--unit={}", self.unit)).arg(format!("--on-active={after_s}s"));
        for name in FOLDERS {
            if let Some(folder) = std::env::var_os(name).filter(|folder| !folder.is_empty()) {
                let folder = std::path::absolute(&folder).unwrap_or(folder.into());
                command.arg(format!("--setenv={name}={}", folder.display()));
            }
        }
        command.arg("--").arg(own).args(&sentinel.args).args([by, id]).args(Role::Alone.argument());
        let output = run_captured(command, LIMIT)?;
        if output.status.success() { Ok(()) } else { Err(failed(output.message())) }
    }

    /// Stops it, and the guard that it may have started. A failure to stop it does no harm: that guard finds nothing to do.
    pub(crate) fn cancel(&self) {
        if self.is_armed()
            && let Some(systemctl) = which("systemctl")
        {
            let mut command = Command::new(systemctl);
            command.args(["stop", &format!("{}.timer", self.unit), &format!("{}.service", self.unit)]);
            let _ = run_captured(command, LIMIT);
        }
    }
}

impl NewSet {
    /// Returns the backstop that would end this trial if both guard processes were killed at once.
    pub fn backstop(&self) -> Backstop {
        let mut on_trial =
            self.changes.iter().filter(|(when, _)| *when == When::Apply).map(|(_, change)| change);
        if on_trial.all(Change::ends_by_itself) {
            Backstop::Kernel
        } else if Path::new(BOOTED).is_dir() {
            Backstop::Timer
        } else {
            Backstop::NextCommand
        }
    }
}
