//! Processes that are not our children: told apart from a later process with the same number by their start time.

use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::wait_readable;
use crate::error::{Error, Result};
use crate::procfs::ProcRoot;
use std::os::fd::AsFd;

/// A process, for ever: its number and when it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// Process id.
    pub pid: u32,
    /// Start time, clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
}

impl Identity {
    /// Returns the identity of a running process; `None` if no process has that number.
    pub fn of(pid: u32) -> Result<Option<Self>> {
        match ProcRoot::new("/").process_start_ticks(pid) {
            Ok(start_ticks) => Ok(Some(Identity { pid, start_ticks })),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH) => {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// Returns the identity of this process.
    pub fn own() -> Result<Self> {
        let pid = std::process::id();
        Identity::of(pid)?
            .ok_or_else(|| Error::other("read own start time", "/proc does not show this process"))
    }

    /// True if this very process, not a successor with its number, still runs (a zombie counts as ended).
    pub fn is_running(&self) -> Result<bool> {
        if Identity::of(self.pid)? != Some(*self) {
            return Ok(false);
        }
        Ok(!ProcRoot::new("/").process_is_zombie(self.pid).unwrap_or(true))
    }
}

/// Ends a process that is not our child: SIGTERM, and SIGKILL after the grace time. False if it had ended before.
/// A process that has got the number since is never touched: the handle is opened first, then the start time compared.
pub fn stop_other(process: Identity, grace: Duration) -> Result<bool> {
    let what = || format!("stop process {}", process.pid);
    let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else {
        return Err(Error::other(what(), "not a process id"));
    };
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(rustix::io::Errno::SRCH) => return Ok(false),
        Err(e) => return Err(Error::new(what(), e)),
    };
    if !process.is_running()? {
        return Ok(false);
    }
    for signal in [Signal::TERM, Signal::KILL] {
        match pidfd_send_signal(&handle, signal) {
            Ok(()) => {}
            Err(rustix::io::Errno::SRCH) => return Ok(true),
            Err(e) => return Err(Error::new(what(), e)),
        }
        if wait_readable(handle.as_fd(), grace)? {
            return Ok(true);
        }
    }
    Err(Error::new(what(), std::io::Error::from(std::io::ErrorKind::TimedOut)))
}
