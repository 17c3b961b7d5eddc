//! Which processes hold a socket, and how many files they have open.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
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

/// Processes that hold sockets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holders {
    /// By the socket's inode.
    pub by_inode: BTreeMap<u32, Holder>,
    /// Processes whose descriptors this one may not see (CAP_SYS_PTRACE).
    pub denied: u32,
    /// The bound was reached: further descriptors were not looked at.
    pub is_cut: bool,
}

impl ProcRoot {
    /// Processes that hold the sockets of these inodes. The ones in the calling thread's network namespace come first,
    /// then the lowest number: who opened it, rather than a child that has not yet left its parent's program. At most `most`
    /// descriptors are looked at, so that a machine with millions of them costs no more; who is not found is left out, as is what
    /// another user's process holds.
    pub fn socket_holders(&self, inodes: &BTreeSet<u32>, most: usize) -> BTreeMap<u32, Holder> {
        let here = self.namespace_of("thread-self");
        self.socket_holders_in(inodes, |namespace| Some(namespace) == here, most).by_inode
    }

    /// As [`ProcRoot::socket_holders`], with the processes in network namespaces that come `first`, by inode; and why some may be
    /// missing.
    pub fn socket_holders_in(
        &self,
        inodes: &BTreeSet<u32>,
        first: impl Fn(u64) -> bool,
        most: usize,
    ) -> Holders {
        let mut holders = Holders::default();
        let mut left = most;
        let is_first = |pid: &u32| self.namespace_of(&pid.to_string()).is_some_and(&first);
        let (first, rest): (Vec<u32>, Vec<u32>) = self.pids().into_iter().partition(is_first);
        for pid in first.into_iter().chain(rest) {
            if holders.by_inode.len() == inodes.len() {
                break;
            }
            match self.look_at(pid, inodes, &mut left, &mut holders) {
                // The folder is closed to other users, its links also to those with fewer privileges.
                Err(e) if e.kind() == ErrorKind::PermissionDenied => holders.denied += 1,
                // It has ended.
                Err(_) => {}
                Ok(()) if holders.is_cut => break,
                Ok(()) => {}
            }
        }
        holders
    }

    /// Goes through the descriptors of a process, as long as some are `left`.
    fn look_at(
        &self,
        pid: u32,
        inodes: &BTreeSet<u32>,
        left: &mut usize,
        holders: &mut Holders,
    ) -> io::Result<()> {
        for descriptor in fs::read_dir(self.path(&format!("proc/{pid}/fd")))?.flatten() {
            if *left == 0 {
                holders.is_cut = true;
                return Ok(());
            }
            *left -= 1;
            let target = match fs::read_link(descriptor.path()) {
                Err(e) if e.kind() == ErrorKind::PermissionDenied => return Err(e),
                target => target.ok(),
            };
            let Some(inode) = target.as_deref().and_then(socket_inode) else { continue };
            if inodes.contains(&inode) && !holders.by_inode.contains_key(&inode) {
                let name = self.read_optional(&format!("proc/{pid}/comm")).unwrap_or_default();
                holders.by_inode.insert(inode, Holder { pid, name });
            }
        }
        Ok(())
    }

    /// Inode of the network namespace of a process.
    fn namespace_of(&self, process: &str) -> Option<u64> {
        let link = fs::read_link(self.path(&format!("proc/{process}/ns/net"))).ok()?;
        link.to_str()?.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
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

    /// In the order of their numbers: as names, 102 would come before 12.
    fn pids(&self) -> BTreeSet<u32> {
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

    /// Three processes of a recorded `/proc` hold the same socket, and one bound allows one look.
    #[test]
    fn processes_of_the_first_namespaces_come_first_and_a_bound_is_told() {
        let folder = std::env::temp_dir().join(format!("weir-holders-{}", std::process::id()));
        for (pid, namespace) in [(9, 100), (12, 200), (102, 200)] {
            let process = folder.join(format!("proc/{pid}"));
            fs::create_dir_all(process.join("fd")).unwrap();
            fs::create_dir_all(process.join("ns")).unwrap();
            std::os::unix::fs::symlink(format!("net:[{namespace}]"), process.join("ns/net")).unwrap();
            std::os::unix::fs::symlink("socket:[55]", process.join("fd/3")).unwrap();
            fs::write(process.join("comm"), format!("name-{pid}\n")).unwrap();
        }
        let root = ProcRoot::new(&folder);
        let look = |first: u64, most| root.socket_holders_in(&BTreeSet::from([55, 56]), |n| n == first, most);
        let pid = |first, most| look(first, most).by_inode.get(&55).map(|holder| holder.pid);
        let found = [pid(100, 1), pid(200, 1), pid(200, 2), pid(200, 0)];
        let cut = [look(200, 3).is_cut, look(200, 1).is_cut];
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, [Some(9), Some(12), Some(12), None]);
        assert_eq!(cut, [false, true]);
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
