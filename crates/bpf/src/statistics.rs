//! Run time of programs.

use std::os::fd::OwnedFd;

use crate::object::ProgramFd;
use crate::{Result, info, opened};

/// Run statistics of a program since it was loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunStatistics {
    /// Time in it, ns; counted only while a process holds [`count_run_time`].
    pub time_ns: u64,
    /// Runs, likewise.
    pub runs: u64,
    /// Runs that were left out because the program was running on that core already (Linux 5.12; 0 before).
    pub missed: u64,
}

/// Has the kernel count runs and run time of all programs, for as long as the returned value lives (Linux 5.8).
///
/// # Errors
/// [`Error::Missing`] without the privilege or on an older kernel.
pub fn count_run_time() -> Result<OwnedFd> {
    // SAFETY: a system call without pointers, whose result is a new descriptor.
    unsafe {
        let fd = libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME);
        opened(fd, || "count the run time of BPF programs".into())
    }
}

impl ProgramFd {
    /// Returns its run statistics.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn statistics(&self) -> Result<RunStatistics> {
        let info = self.info()?;
        Ok(RunStatistics { time_ns: info.run_time_ns, runs: info.run_cnt, missed: info.recursion_misses })
    }

    /// Instructions that the verifier looked at: what its budget is spent on (`verified_insns`, Linux 5.16).
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn verified_instructions(&self) -> Result<u32> {
        Ok(self.info()?.verified_insns)
    }

    /// Its number, as `bpftool prog` shows it.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn id(&self) -> Result<u32> {
        Ok(self.info()?.id)
    }

    fn info(&self) -> Result<libbpf_sys::bpf_prog_info> {
        // SAFETY: the description of a program.
        unsafe { info(self.fd(), || format!("describe program {}", self.name())) }
    }
}
