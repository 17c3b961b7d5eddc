//! The folders in which this machine keeps weir's pinned objects.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::pin::{BPF_FILE_SYSTEM, is_bpf_file_system, mount_bpf_file_system};
use crate::{Error, Result};

/// Another BPF file system than the machine's usual one, which must be mounted there: for a host in a lab, whose state is none of the
/// machine's.
const ELSEWHERE: &str = "WEIR_BPF_DIR";
/// The root of process 1. `ip netns exec` mounts a `/sys` of its own, and what is pinned there goes with the last process in it.
const FIRST: &str = "/proc/1/root";

fn elsewhere() -> Option<PathBuf> {
    std::env::var_os(ELSEWHERE).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// The BPF file system that outlives the calling process and its mount namespace.
fn file_system() -> PathBuf {
    if let Some(folder) = elsewhere() {
        return folder;
    }
    let own = Path::new(BPF_FILE_SYSTEM);
    let first = PathBuf::from(format!("{FIRST}{BPF_FILE_SYSTEM}"));
    let device = |folder: &Path| std::fs::metadata(folder).map(|meta| meta.dev()).ok();
    let is_other = device(&first).is_some() && device(&first) != device(own);
    if is_other && is_bpf_file_system(&first).unwrap_or(false) { first } else { own.to_owned() }
}

/// The folder of one part of weir, e.g. `allow`, in the calling thread's network namespace.
///
/// # Errors
/// If `/proc` does not show the namespace, or that of process 1: it shows that one to root with CAP_SYS_PTRACE only, and without an
/// answer the state of the machine itself could end up in two folders.
pub fn own_folder(part: &str) -> Result<PathBuf> {
    let namespace = |path: &str| {
        std::fs::metadata(path)
            .map(|meta| meta.ino())
            .map_err(|e| Error::new(format!("look at {path} (needs root and CAP_SYS_PTRACE)"), e, ""))
    };
    let folder = file_system().join("weir");
    let own = namespace("/proc/thread-self/ns/net")?;
    // Another file system was chosen for one namespace.
    if elsewhere().is_some() || namespace("/proc/1/ns/net")? == own {
        return Ok(folder.join(part));
    }
    Ok(folder.join(format!("{part}-{own}")))
}

/// Whether that file system is mounted: else nothing of ours can be in it.
///
/// # Errors
/// If it cannot be looked at.
pub fn is_file_system_mounted() -> Result<bool> {
    let folder = file_system();
    Ok(folder.is_dir() && is_bpf_file_system(&folder)?)
}

/// Makes sure that it is mounted. One at a place of the user's choice is not mounted by weir.
///
/// # Errors
/// [`Error::Missing`] without the privilege; [`Error::Absent`] where only process 1 could mount one that lasts.
pub fn prepare_file_system() -> Result<()> {
    if is_file_system_mounted()? {
        return Ok(());
    }
    if let Some(folder) = elsewhere() {
        let folder = folder.display();
        return Err(Error::Unmounted(format!("{ELSEWHERE}={folder}: run: mount -t bpf bpf {folder}")));
    }
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    if namespace("1").is_some_and(|first| Some(first) != namespace("self")) {
        return Err(Error::Unmounted(format!(
            "{BPF_FILE_SYSTEM}, outside of this mount namespace, where it would end with its last process: run there: mount -t \
             bpf bpf {BPF_FILE_SYSTEM}"
        )));
    }
    mount_bpf_file_system().map(drop)
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    #[test]
    fn root_without_the_privilege_to_look_at_process_1_there_is_no_second_folder() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: needs root");
            return;
        }
        own_folder("allow").unwrap();
        // Capabilities are a thread's own, and this one ends here.
        let without = std::thread::spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::SYS_PTRACE);
            set_capabilities(None, sets).unwrap();
            own_folder("allow")
        });
        let words = without.join().unwrap().unwrap_err().to_string();
        assert!(words.contains("/proc/1/ns/net") && words.contains("CAP_SYS_PTRACE"), "{words}");
    }
}
