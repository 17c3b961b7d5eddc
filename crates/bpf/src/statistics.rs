//! Run time of programs.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::object::ProgramFd;
use crate::{Error, Result};

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
    // SAFETY: a system call without pointers.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        let source = std::io::Error::from_raw_os_error(-fd);
        return Err(Error::new("count the run time of BPF programs", source, ""));
    }
    // SAFETY: a new descriptor, without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
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
        let mut info = libbpf_sys::bpf_prog_info::default();
        let mut length = size_of::<libbpf_sys::bpf_prog_info>() as u32;
        // SAFETY: the buffer is a valid bpf_prog_info of the length given.
        let result = unsafe {
            libbpf_sys::bpf_obj_get_info_by_fd(
                self.fd().as_raw_fd(),
                std::ptr::from_mut(&mut info).cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(Error::last(format!("describe program {}", self.name())));
        }
        Ok(info)
    }
}
