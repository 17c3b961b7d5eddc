//! Loading BPF programs, for the crates whose C lies beside them.
//!
//! [`Loader`] opens an object, [`Object`] is the loaded one: its programs are attached ([`Attached`]) or run on given
//! packets ([`test_run`], [`LiveFrames`]), its maps are read and written, the big ones through shared memory ([`Mapped`]).
//! libbpf does the loading; what its Rust binding lacks or gets wrong is here.
#![allow(unsafe_code, reason = "libbpf's C interface and shared memory")]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::thread::CapabilitySet;

mod attach;
mod attached;
mod btf;
mod folder;
mod live;
mod map;
mod object;
mod pin;
mod place;
mod ring;
mod statistics;

pub use attach::{
    Attached, XdpAbilities, XdpMode, are_attached, attach_tcx, attach_tcx_first, attach_tracepoint,
    attach_tracing, attach_xdp, xdp_abilities,
};
pub use attached::{Direction, has_tcx, program_name, require_tcx, tcx_programs};
pub use btf::Btf;
pub use folder::{detach_pinned, make_folder, names_in, new_folder, remove_folder};
pub use live::{LiveFrames, TestRun, test_run, test_run_super};
pub use map::{Map, Mapped, Plain, cpu_numbers, possible_cpus};
pub use object::{Loader, Object, ProgramFd};
pub use pin::{Attachment, BPF_FILE_SYSTEM, if_there, is_bpf_file_system, mount_bpf_file_system};
pub use place::{is_file_system_mounted, own_folder, prepare_file_system};
pub use ring::Ring;
pub use statistics::{RunStatistics, count_run_time};

/// Why BPF refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel lacks it, or the process may not.
    #[error("{what}: {source}: {hint}")]
    Missing {
        /// The operation that failed.
        what: String,
        /// The error number.
        source: std::io::Error,
        /// The missing privilege or feature, for the message.
        hint: &'static str,
    },
    /// Anything else, with libbpf's or the verifier's last words.
    #[error("{what}: {source}{words}")]
    Refused {
        /// The operation that failed.
        what: String,
        /// The error number.
        source: std::io::Error,
        /// Message of libbpf or the verifier; empty or beginning with a separator.
        words: String,
    },
    /// No BPF file system to pin in.
    #[error("no BPF file system is mounted at {0}")]
    Unmounted(String),
    /// The object lacks a program or map of that name.
    #[error("this BPF object has no {0}")]
    Absent(String),
}

const NO_TCX: &str = "Linux 6.6 is needed: this kernel has no TCX (CONFIG_NET_XGRESS)";

impl Error {
    /// True if privilege or a kernel feature is missing.
    pub fn is_missing(&self) -> bool {
        matches!(self, Error::Missing { .. } | Error::Unmounted(_))
    }

    /// The error of an attachment to TCX: a kernel without it does not know the number of that type of attachment.
    pub(crate) fn of_tcx(self) -> Self {
        match self {
            Error::Refused { what, source, .. } if source.kind() == std::io::ErrorKind::InvalidInput => {
                Error::Missing { what, source, hint: NO_TCX }
            }
            other => other,
        }
    }

    /// The error number, if there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Error::Missing { source, .. } | Error::Refused { source, .. } => source.raw_os_error(),
            Error::Absent(_) | Error::Unmounted(_) => None,
        }
    }

    /// Creates an error from a system call's error number.
    pub(crate) fn new(what: impl Into<String>, source: std::io::Error, words: &str) -> Self {
        let what = what.into();
        let hint = match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                "BPF needs root, or CAP_BPF with CAP_NET_ADMIN and CAP_PERFMON, in the first user namespace"
            }
            Some(libc::ENOSYS) => "this kernel has no BPF system call",
            Some(libc::EOPNOTSUPP | ENOTSUPP) => "this kernel or driver does not have it",
            _ => {
                let words = if words.is_empty() { String::new() } else { format!(": {}", words.trim()) };
                return Error::Refused { what, source, words };
            }
        };
        // A program that the verifier rejects also ends in EACCES. It is stricter without CAP_PERFMON, so only with that capability
        // is the program at fault.
        if is_verdict(words) && may_look_at_the_kernel() {
            return Error::Refused { what, source, words: format!(": {}", words.trim()) };
        }
        Error::Missing { what, source, hint }
    }

    /// Creates an error from the calling thread's last error.
    pub(crate) fn last(what: impl Into<String>) -> Self {
        Error::new(what, std::io::Error::last_os_error(), "")
    }
}

/// The answer of a call of libbpf, which is an error number if it is below zero.
pub(crate) fn answer(result: i32, what: impl FnOnce() -> String) -> Result<i32> {
    if result >= 0 {
        return Ok(result);
    }
    Err(Error::new(what(), std::io::Error::from_raw_os_error(result.saturating_neg()), ""))
}

/// The same of a call that opens a descriptor.
///
/// # Safety
/// The descriptor must be a new one, without another owner.
pub(crate) unsafe fn opened(result: i32, what: impl FnOnce() -> String) -> Result<OwnedFd> {
    let fd = answer(result, what)?;
    // SAFETY: by the caller's word.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The kernel's description of what a descriptor stands for.
///
/// # Safety
/// `T` must be the `struct bpf_*_info` of that kind of object.
pub(crate) unsafe fn info<T: Default>(of: BorrowedFd<'_>, what: impl FnOnce() -> String) -> Result<T> {
    let mut info = T::default();
    let mut length = size_of::<T>() as u32;
    // SAFETY: the buffer is a valid description of the length given, by the caller's word.
    let result = unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(
            of.as_raw_fd(),
            std::ptr::from_mut(&mut info).cast(),
            &raw mut length,
        )
    };
    answer(result, what).map(|_| info)
}

/// True if the verifier looked at a program and says what it found (kernel/bpf/verifier.c, `print_verification_stats`).
fn is_verdict(words: &str) -> bool {
    words.contains("processed") && words.contains("insns")
}

/// True if the verifier grants this thread what CAP_PERFMON gives (include/linux/bpf.h, `bpf_allow_ptr_leaks`).
fn may_look_at_the_kernel() -> bool {
    let held = rustix::thread::capabilities(None).map(|c| c.effective).unwrap_or(CapabilitySet::empty());
    held.intersects(CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN)
}

/// The kernel's own "not supported", which it should not but does show (include/linux/errno.h).
const ENOTSUPP: i32 = 524;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_tcx_is_told_from_other_refusals() {
        let refused =
            |number| Error::new("attach p to interface 2", std::io::Error::from_raw_os_error(number), "");
        let without = refused(libc::EINVAL).of_tcx();
        assert!(without.is_missing() && without.to_string().ends_with(NO_TCX), "{without}");
        let taken = refused(libc::EBUSY).of_tcx();
        assert!(!taken.is_missing(), "{taken}");
        // Privilege is another need, and an attachment elsewhere another call.
        assert!(!refused(libc::EPERM).of_tcx().to_string().contains(NO_TCX));
        assert!(!refused(libc::EINVAL).is_missing());
    }
}
