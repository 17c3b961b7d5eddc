//! Readers of `/proc` and `/sys`.
//!
//! Parsers take what they know and leave the rest: a line of another kernel, a missing column or garbage is skipped and
//! never a panic. Files that belong to a network namespace are read below `/proc/thread-self`, because `/proc/net` is that
//! of the thread that started the process.

mod cpu;
mod holders;
mod host;
mod net;
mod sockets;
mod tables;

use std::fs;
use std::path::PathBuf;

use crate::error::{Context, Error, Result};

pub use cpu::{CpuTicks, parse_cpu_list, parse_stat, ticks_per_second};
pub use holders::{Holder, Holders};
pub use host::{Memory, parse_key_values, parse_meminfo};
pub use net::{InterfaceCounters, Softnet, parse_net_dev, parse_snmp, parse_snmp6, parse_softnet};
pub use sockets::{PlainSocket, parse_sockets};
pub use tables::{
    Interrupt, QueueStatistics, parse_interrupts, parse_nfqueue, parse_pairs, parse_pressure, parse_sockstat,
    parse_stat_table,
};

/// The directory that holds `proc`, `sys` and `etc`: `/`, or a directory of recorded files.
#[derive(Debug, Clone)]
pub struct ProcRoot {
    root: PathBuf,
}

impl Default for ProcRoot {
    fn default() -> Self {
        ProcRoot::new("/")
    }
}

impl ProcRoot {
    /// Reads below that directory.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        ProcRoot { root: root.into() }
    }

    /// The path of a file given without its leading slash, e.g. `proc/stat`.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative.trim_start_matches('/'))
    }

    /// The file's text; bytes that are not UTF-8 are replaced (a process may have any name).
    pub fn read(&self, relative: &str) -> Result<String> {
        let path = self.path(relative);
        let bytes = fs::read(&path).context(|| format!("read {}", path.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// As [`Self::read`], trimmed, and `None` where there is no such file or the kernel has no value for it.
    pub fn read_optional(&self, relative: &str) -> Option<String> {
        Some(self.read(relative).ok()?.trim().to_owned())
    }

    /// Names in a directory, sorted; none if it does not exist.
    pub fn names(&self, relative: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(relative)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// When a process started, clock ticks since boot (`/proc/PID/stat`, field 22).
    pub fn process_start_ticks(&self, pid: u32) -> Result<u64> {
        let path = format!("proc/{pid}/stat");
        let text = self.read(&path)?;
        stat_field(&text, 22)
            .and_then(|field| field.parse().ok())
            .ok_or_else(|| Error::other(format!("read /{path}"), "no start time in it"))
    }

    /// True if the process has ended and waits to be reaped.
    pub fn process_is_zombie(&self, pid: u32) -> Result<bool> {
        let text = self.read(&format!("proc/{pid}/stat"))?;
        Ok(matches!(stat_field(&text, 3), Some("Z" | "X")))
    }
}

/// A field of `/proc/PID/stat` by its number in proc_pid_stat(5), from 3 on. The name before it is in parentheses and may
/// itself hold spaces and parentheses.
fn stat_field(text: &str, number: usize) -> Option<&str> {
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(number.checked_sub(3)?)
}

#[cfg(test)]
mod tests;
