//! How many network sockets a process has open.

use crate::procfs::ProcRoot;

/// The longest name that a protocol has in the kernel is 32 bytes (`struct proto`, include/net/sock.h).
const NAME: usize = 32;

/// Protocols whose sockets send nothing over a network, by the beginning of their names.
const LOCAL: [&str; 5] = ["UNIX", "NETLINK", "ALG", "KEY", "VSOCK"];

/// Counts them among the first `most` descriptors of a process. None where its descriptors may not be read.
pub fn network_sockets(root: &ProcRoot, pid: u32, most: usize) -> u64 {
    let dir = format!("proc/{pid}/fd");
    let fds = std::fs::read_dir(root.path(&dir)).into_iter().flatten().flatten().take(most);
    fds.filter(|fd| is_network(&fd.path())).count() as u64
}

/// The kernel gives the name of its protocol as an attribute of a socket (net/socket.c, sockfs_xattr_get).
fn is_network(fd: &std::path::Path) -> bool {
    let mut name = [0_u8; NAME];
    let Ok(length) = rustix::fs::getxattr(fd, c"system.sockprotoname", &mut name[..]) else { return false };
    let name = std::str::from_utf8(&name[..length]).unwrap_or_default().trim_end_matches('\0');
    !name.is_empty() && !LOCAL.iter().any(|local| name.starts_with(local))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn only_network_sockets_are_counted() {
        let pid = std::process::id();
        let root = ProcRoot::default();
        let of = |fd: &dyn std::os::fd::AsRawFd| {
            is_network(&root.path(&format!("proc/{pid}/fd/{}", fd.as_raw_fd())))
        };
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let local = UnixDatagram::unbound().unwrap();
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        assert!(of(&udp) && of(&tcp));
        assert!(!of(&local) && !of(&file));
        // Other tests of this process may have sockets too.
        assert!(network_sockets(&root, pid, 10_000) >= 2);
        assert_eq!(network_sockets(&root, pid, 0), 0);
    }
}
