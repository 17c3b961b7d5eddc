//! The fast path of a namespace.

use serde::{Deserialize, Serialize};

use super::{Counters, Delta};

/// The state of `weir fastpath` there. Counts begin with its process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FastPath {
    /// Its process, at the window's end.
    pub process: FastPathProcess,
    /// A user lets everything take the kernel's way for now.
    pub paused: bool,
    /// Interfaces with its programs; text from outside.
    pub interfaces: Vec<String>,
    /// Interfaces that it was asked for, and that have no programs; text from outside.
    pub without_programs: Vec<String>,
    /// Directions of connections that it was made for; a connection has two.
    pub room: u64,
    /// Directions in the table that are valid, at the window's end.
    pub directions: u64,
    /// Times that every flow had to be learnt anew.
    pub learnt_anew: Delta,
    /// The same by the kind of change (`routes`, `packet-filter`, ...: `weir_fastpath::Change`).
    pub changes: Counters,
    /// Packets that came in, by reason (`carried`, `unknown`, `stale`, ...: `weir_fastpath::Reason`).
    pub packets: Counters,
    /// Attempts to learn a flow, by result (`learnt`, `no-room`, ...: `weir_fastpath::Lesson`).
    pub attempts: Counters,
    /// Exclusions in effect.
    pub excluded: Vec<String>,
}

/// The process that keeps a fast path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FastPathProcess {
    /// It answers.
    Answers {
        /// Its number.
        pid: u32,
    },
    /// It holds the programs, and does not answer.
    Silent {
        /// Its number.
        pid: u32,
        /// It was stopped (SIGSTOP, a debugger).
        stopped: bool,
    },
    /// A fast path was confirmed here, and no process keeps it.
    #[default]
    Gone,
    /// The same, and the machine was started again since.
    Rebooted,
}

impl FastPath {
    /// Packets with that reason in the window.
    pub fn packets(&self, reason: &str) -> u64 {
        self.packets.get(reason).map_or(0, |delta| delta.change())
    }

    /// All packets that came in, in the window.
    pub fn came_in(&self) -> u64 {
        self.packets.values().map(|delta| delta.change()).sum()
    }

    /// Attempts with that result in the window.
    pub fn attempts(&self, result: &str) -> u64 {
        self.attempts.get(result).map_or(0, |delta| delta.change())
    }
}
