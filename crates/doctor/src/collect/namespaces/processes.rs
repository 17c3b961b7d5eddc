//! Processes, and the namespaces that they run in or hold.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use weir_sys::ProcRoot;

/// Inode of the first namespace of a kernel that gives it a fixed one (`NET_NS_INIT_INO`, include/uapi/linux/nsfs.h).
const FIRST: u64 = 0xEFFF_FFF9;

/// Descriptors that are looked at, of one process and of all: a server with a million connections holds its namespace by
/// running in it.
const MOST_OF_ONE: usize = 4096;
const MOST: usize = 100_000;

/// Numbers of all processes, ascending.
pub(super) fn all(root: &ProcRoot) -> Vec<u32> {
    let mut pids = numbers(&root.path("proc"), usize::MAX);
    pids.sort_unstable();
    pids
}

/// Entries of a directory that are numbers.
fn numbers(dir: &Path, most: usize) -> Vec<u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).take(most).collect()
}

/// `net:[4026531840]`, as links to network namespaces read.
pub(super) fn inode(text: &str) -> Option<u64> {
    text.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

fn link(root: &ProcRoot, relative: &str) -> Option<u64> {
    inode(fs::read_link(root.path(relative)).ok()?.to_str()?)
}

/// Returns the namespace that a process runs in; `None` if the process has ended or belongs to another user.
pub(super) fn namespace_of(root: &ProcRoot, pid: u32) -> Option<u64> {
    link(root, &format!("proc/{pid}/ns/net"))
}

/// The namespace of the machine: that of process 1, or else of the kernel's own threads.
pub(super) fn host(root: &ProcRoot) -> Option<u64> {
    let kernel = || {
        let name = root.read_optional("proc/2/comm")?;
        (name == "kthreadd").then(|| namespace_of(root, 2))?
    };
    let fixed = || fs::read_link(root.path("proc/self/ns/net")).ok().map(|_| FIRST);
    namespace_of(root, 1).or_else(kernel).or_else(fixed)
}

/// Namespaces that processes hold open, with pid and descriptor.
pub(super) fn held(root: &ProcRoot, pids: &[u32]) -> Vec<(u64, u32, u32)> {
    let mut held = Vec::new();
    let mut left = MOST;
    let mut seen = BTreeSet::new();
    for pid in pids {
        let fds = numbers(&root.path(&format!("proc/{pid}/fd")), MOST_OF_ONE.min(left));
        left -= fds.len();
        for fd in fds {
            if let Some(id) = link(root, &format!("proc/{pid}/fd/{fd}"))
                && seen.insert(id)
            {
                held.push((id, *pid, fd));
            }
        }
    }
    held
}

/// Returns the process's own name.
pub(super) fn name(root: &ProcRoot, pid: u32) -> Option<String> {
    let name = root.read_optional(&format!("proc/{pid}/comm")).filter(|name| !name.is_empty())?;
    // A process that starts itself again by /proc/self/exe has that link's name.
    let program = || {
        Some(
            fs::read_link(root.path(&format!("proc/{pid}/exe")))
                .ok()?
                .file_name()?
                .to_string_lossy()
                .into_owned(),
        )
    };
    if name == "exe" { program().or(Some(name)) } else { Some(name) }
}
