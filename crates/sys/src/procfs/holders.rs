//! Which processes hold a socket, and how many files they have open.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

use super::ProcRoot;

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// Its name (`/proc/PID/comm`); text from outside.
    pub name: String,
}

impl ProcRoot {
    /// Processes that hold the sockets of these inodes, each by the first that is found. At most `most` descriptors are looked
    /// at, so that a machine with millions of them costs no more; who is not found is left out, as is what another user's process
    /// holds. Processes in the calling thread's network namespace come first.
    pub fn socket_holders(&self, inodes: &BTreeSet<u32>, most: usize) -> BTreeMap<u32, Holder> {
        let mut found = BTreeMap::new();
        let mut left = most;
        let here = fs::read_link(self.path("proc/thread-self/ns/net")).ok();
        let is_here = |pid: &u32| fs::read_link(self.path(&format!("proc/{pid}/ns/net"))).ok() == here;
        let (first, rest): (Vec<u32>, Vec<u32>) = self.pids().into_iter().partition(is_here);
        for pid in first.into_iter().chain(rest) {
            if found.len() == inodes.len() || left == 0 {
                break;
            }
            let descriptors =
                fs::read_dir(self.path(&format!("proc/{pid}/fd"))).into_iter().flatten().flatten();
            for descriptor in descriptors.take(left) {
                left -= 1;
                let Some(inode) = fs::read_link(descriptor.path()).ok().as_deref().and_then(socket_inode)
                else {
                    continue;
                };
                if inodes.contains(&inode) && !found.contains_key(&inode) {
                    let name = self.read_optional(&format!("proc/{pid}/comm")).unwrap_or_default();
                    found.insert(inode, Holder { pid, name });
                }
            }
        }
        found
    }

    /// Files that a process has open, and how many it may (soft RLIMIT_NOFILE). `None` if it has ended or is not ours to ask.
    pub fn open_files(&self, pid: u32) -> Option<(u64, u64)> {
        let folder = self.path(&format!("proc/{pid}/fd"));
        // The folder's size is the number of open files since Linux 6.2, and 0 before.
        let open = match fs::metadata(&folder).ok()?.size() {
            0 => fs::read_dir(&folder).ok()?.count() as u64,
            open => open,
        };
        let limits = self.read(&format!("proc/{pid}/limits")).ok()?;
        let line = limits.lines().find_map(|l| l.strip_prefix("Max open files"))?;
        Some((open, line.split_ascii_whitespace().next()?.parse().ok()?))
    }

    fn pids(&self) -> Vec<u32> {
        self.names("proc").iter().filter_map(|name| name.parse().ok()).collect()
    }
}

/// The number in `socket:[123]`.
fn socket_inode(target: &std::path::Path) -> Option<u32> {
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn own_sockets_are_found_and_foreign_numbers_are_not() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let inode = u32::try_from(rustix::fs::fstat(socket.as_fd()).unwrap().st_ino).unwrap();
        let root = ProcRoot::default();
        // No socket has this number while the other one is open: they are given in turn.
        let asked = BTreeSet::from([inode, u32::MAX]);
        let found = root.socket_holders(&asked, 1_000_000);
        assert_eq!(found.len(), 1);
        assert_eq!(found[&inode].pid, std::process::id());
        let comm = fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(found[&inode].name, comm.trim());
        assert_eq!(root.socket_holders(&asked, 0), BTreeMap::new());
    }

    #[test]
    fn open_files_are_those_of_the_folder_and_of_getrlimit() {
        let root = ProcRoot::default();
        let (before, limit) = root.open_files(std::process::id()).unwrap();
        let asked = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        assert_eq!(Some(limit), asked.current);
        let many: Vec<UdpSocket> = (0..50).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let (after, _) = root.open_files(std::process::id()).unwrap();
        // Tests beside this one open and close a few.
        assert!(after + 20 >= before + many.len() as u64, "{before} then {after}");
        assert_eq!(root.open_files(u32::MAX), None);
    }
}
