//! Memory and distribution.

use std::collections::BTreeMap;

use super::ProcRoot;
use crate::error::{Error, Result};

/// Memory of the machine in bytes (`/proc/meminfo`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// All that the kernel manages (MemTotal).
    pub total: u64,
    /// Memory available without swapping (MemAvailable).
    pub available: u64,
    /// Kernel objects that cannot be reclaimed, conntrack entries among them (SUnreclaim).
    pub slab_unreclaimable: u64,
}

impl Memory {
    /// Total minus available.
    pub fn used(&self) -> u64 {
        self.total.saturating_sub(self.available)
    }
}

/// `/proc/meminfo`; `None` without total and available.
pub fn parse_meminfo(text: &str) -> Option<Memory> {
    let field = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        // "kB" of /proc/meminfo are KiB (proc_meminfo(5)).
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(Memory {
        total: field("MemTotal")?,
        available: field("MemAvailable")?,
        slab_unreclaimable: field("SUnreclaim").unwrap_or(0),
    })
}

/// Lines `KEY=value` with optional quotes (os-release(5)).
pub fn parse_key_values(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().map(str::trim).filter(|l| !l.starts_with('#'));
    lines
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.trim_matches(['"', '\'']).to_owned()))
        .collect()
}

impl ProcRoot {
    /// `/proc/meminfo`.
    pub fn meminfo(&self) -> Result<Memory> {
        let text = self.read("proc/meminfo")?;
        parse_meminfo(&text)
            .ok_or_else(|| Error::other("read /proc/meminfo", "no MemTotal and MemAvailable in it"))
    }

    /// `/etc/os-release` or `/usr/lib/os-release`; empty where there is none.
    pub fn os_release(&self) -> BTreeMap<String, String> {
        let text = ["etc/os-release", "usr/lib/os-release"].iter().find_map(|path| self.read_optional(path));
        parse_key_values(&text.unwrap_or_default())
    }
}
