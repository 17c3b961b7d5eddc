//! Network namespaces without a name: one lives as long as a process, a socket or an open descriptor needs it, so a
//! process that is killed leaves none behind.
#![allow(unsafe_code, reason = "unshare(2) and the hook that runs between fork and exec")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::error::{Context, Error, Result};
use crate::socket_option;

/// The namespace of the calling thread; `/proc/self` would be that of the thread that started the process.
const OWN: &str = "/proc/thread-self/ns/net";

/// A handle that keeps a network namespace alive. Clones share one descriptor.
#[derive(Debug, Clone)]
pub struct NetNs {
    fd: Arc<OwnedFd>,
}

impl NetNs {
    /// A new namespace that has no name. Needs CAP_SYS_ADMIN (see [`crate::privilege`]).
    pub fn create() -> Result<Self> {
        in_thread(|| {
            // SAFETY: NEWNET changes nothing but the network namespace of this thread, which ends here; descriptors
            // stay shared (no CLONE_FILES).
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                .context(|| "create a network namespace".into())?;
            NetNs::current()
        })
    }

    /// The namespace of the calling thread.
    pub fn current() -> Result<Self> {
        NetNs::open(OWN)
    }

    /// The namespace behind a path such as `/proc/PID/ns/net` or a bind mount of it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = File::open(path).context(|| format!("open network namespace {}", path.display()))?;
        Ok(NetNs { fd: Arc::new(file.into()) })
    }

    /// The namespace that `ip netns` knows by that name (`/run/netns/NAME`).
    pub fn named(name: &str) -> Result<Self> {
        // The name comes from the user; a path would open any file.
        if name.is_empty() || name.contains('/') || name == "." || name == ".." {
            return Err(Error::other("open network namespace", format!("`{name}` is not a name")));
        }
        NetNs::open(Path::new("/run/netns").join(name))
    }

    /// The namespace in which a process runs.
    pub fn of_pid(pid: u32) -> Result<Self> {
        NetNs::open(format!("/proc/{pid}/ns/net"))
    }

    /// Runs `f` in a short-lived thread that has entered the namespace, and returns what it returns.
    /// Sockets that `f` opens stay in this namespace wherever they are used later. A panic in `f` goes on in the caller.
    ///
    /// # Errors
    /// If the thread cannot be started or may not enter (CAP_SYS_ADMIN).
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        in_thread(|| {
            self.enter().context(|| "enter a network namespace".into())?;
            Ok(f())
        })
    }

    /// As [`NetNs::run`], with a `/sys` of this namespace: the machine's `/sys` shows the interfaces of the namespace in which
    /// it was mounted. Only the short-lived thread sees it.
    pub fn run_with_own_sysfs<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        in_thread(|| {
            self.enter().context(|| "enter a network namespace".into())?;
            // SAFETY: NEWNS and FS change the mounts and the working directory of this thread alone, which ends here.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }
                .context(|| "create a mount namespace".into())?;
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
                .context(|| "make mounts private".into())?;
            mount(
                "sysfs",
                "/sys",
                "sysfs",
                MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
                None,
            )
            .context(|| "mount /sys of a network namespace".into())?;
            Ok(f())
        })
    }

    /// Makes a command run in this namespace. The handle is kept open until the command is dropped.
    pub fn enter_on_spawn(&self, command: &mut Command) {
        let namespace = self.clone();
        // SAFETY: between fork and exec only async-signal-safe calls are allowed; this one is a plain setns(2) on a
        // descriptor that was opened before the fork.
        unsafe { command.pre_exec(move || namespace.enter()) };
    }

    /// Moves the calling thread into the namespace for the rest of its life. Meant for a process with a single thread
    /// (an agent at its start); elsewhere use [`NetNs::run`], so that no thread is left in the wrong place.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// The namespace's identity: the inode that `lsns`, `/proc/PID/ns/net` and kernel messages show.
    pub fn inode(&self) -> Result<u64> {
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        Ok(std::fs::metadata(path).context(|| "read a namespace's inode".into())?.ino())
    }

    /// The kernel's own number for it, which, other than the inode, no later namespace gets before the next boot
    /// (`SO_NETNS_COOKIE`, Linux 5.14). `None` on kernels without it.
    ///
    /// # Errors
    /// If the namespace may not be entered (CAP_SYS_ADMIN); the calling thread's own needs no privilege.
    pub fn cookie(&self) -> Result<Option<u64>> {
        if self.inode()? == NetNs::current()?.inode()? { own_cookie() } else { self.run(own_cookie)? }
    }
}

/// [`NetNs::cookie`] of the calling thread's namespace.
fn own_cookie() -> Result<Option<u64>> {
    let what = || "ask a network namespace for its number".to_owned();
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::DGRAM, None)
        .context(what)?;
    let mut cookie = [0; size_of::<u64>()];
    match socket_option::get(&socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, &mut cookie) {
        Ok(_) => Ok(Some(u64::from_ne_bytes(cookie))),
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(None),
        Err(e) => Err(Error::new(what(), e)),
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Makes a command run in `namespace` with the user and mount namespace of a process, where those differ from ours: the
/// namespaces of a normal user's lab can be entered only from the user namespace that owns them.
pub fn enter_like(command: &mut Command, pid: u32, namespace: &NetNs) -> Result<()> {
    let open = |kind: &str| {
        let path = format!("/proc/{pid}/ns/{kind}");
        File::open(&path).context(|| format!("open {path}"))
    };
    let own = std::fs::metadata("/proc/self/ns/user").context(|| "read own user namespace".into())?.ino();
    let user = open("user")?;
    if user.metadata().context(|| "read a user namespace".into())?.ino() != own {
        let mount = open("mnt")?;
        // SAFETY: between fork and exec only async-signal-safe calls are allowed; these are plain setns(2) on descriptors
        // that were opened before the fork. The child has one thread, as setns into a user namespace demands.
        unsafe {
            command.pre_exec(move || {
                move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))?;
                move_into_link_name_space(mount.as_fd(), Some(LinkNameSpaceType::Mount))?;
                Ok(())
            });
        }
    }
    namespace.enter_on_spawn(command);
    Ok(())
}

/// Runs `f` in a thread of its own and waits for it; a namespace belongs to a thread.
fn in_thread<T: Send>(f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("netns".into())
            .spawn_scoped(scope, f)
            .context(|| "start a thread".into())?;
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::privilege::test_needs_root;

    #[test]
    fn names_are_not_paths() {
        for name in ["", "../1", "a/b", ".."] {
            assert!(NetNs::named(name).is_err(), "{name}");
        }
    }

    #[test]
    fn current_is_the_namespace_of_this_thread() {
        let shown = std::fs::read_link(OWN).unwrap();
        let inode = NetNs::current().unwrap().inode().unwrap();
        assert_eq!(shown.to_str().unwrap(), format!("net:[{inode}]"));
    }

    #[test]
    fn root_closure_runs_inside_and_the_caller_stays_outside() {
        if test_needs_root() {
            return;
        }
        let outside = NetNs::current().unwrap().inode().unwrap();
        let ns = NetNs::create().unwrap();
        let inside = ns.run(|| NetNs::current().unwrap().inode().unwrap()).unwrap();
        assert_eq!(inside, ns.inode().unwrap());
        assert_ne!(inside, outside);
        assert_eq!(NetNs::current().unwrap().inode().unwrap(), outside);
        // lo is down in a new namespace, so nothing can be bound to its address.
        assert!(ns.run(|| TcpListener::bind("127.0.0.1:0").is_ok()).unwrap());
        assert!(
            ns.run(|| std::net::TcpStream::connect("127.0.0.1:9").unwrap_err().kind()).unwrap()
                != io::ErrorKind::ConnectionRefused
        );
    }

    #[test]
    fn root_every_namespace_has_a_number_of_its_own() {
        if test_needs_root() {
            return;
        }
        let own = NetNs::current().unwrap();
        if own.cookie().unwrap().is_none() {
            println!("SKIP: this kernel has no SO_NETNS_COOKIE (Linux 5.14)");
            return;
        }
        let first = NetNs::create().unwrap();
        let (inode, cookie) = (first.inode().unwrap(), first.cookie().unwrap());
        assert_ne!(cookie, own.cookie().unwrap());
        assert_eq!(cookie, first.run(|| NetNs::current().unwrap().cookie().unwrap()).unwrap());
        assert_eq!(inode, first.inode().unwrap());
        drop(first);
        // The next one may get the inode again, and never the number.
        assert_ne!(NetNs::create().unwrap().cookie().unwrap(), cookie);
    }

    #[test]
    fn root_panic_in_a_closure_reaches_the_caller() {
        if test_needs_root() {
            return;
        }
        let ns = NetNs::create().unwrap();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ns.run(|| panic!("inside"))));
        assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"inside"));
    }

    #[test]
    fn root_commands_start_inside() {
        if test_needs_root() {
            return;
        }
        let ns = NetNs::create().unwrap();
        let mut command = Command::new("readlink");
        command.arg("/proc/self/ns/net");
        ns.enter_on_spawn(&mut command);
        let shown = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert_eq!(shown.trim(), format!("net:[{}]", ns.inode().unwrap()));
    }
}
