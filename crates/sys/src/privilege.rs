//! Privileges of this process, and how a normal user gets a world of its own in which it is root.
#![allow(unsafe_code, reason = "unshare(2) of user, network and mount namespaces")]

use std::fs;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{CapabilitySet, UnshareFlags, unshare_unsafe};

use crate::error::{Context, Error, Result};
use crate::procfs::ProcRoot;

/// Who the process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Privilege {
    /// Effective user id, as seen in its own user namespace.
    pub euid: u32,
    /// Has CAP_NET_ADMIN over its user namespace.
    pub net_admin: bool,
    /// Has CAP_SYS_ADMIN over its user namespace: may create and enter network namespaces.
    pub sys_admin: bool,
    /// Has CAP_SYS_PTRACE over its user namespace: may see the descriptors and namespaces of processes of others.
    pub sys_ptrace: bool,
    /// Runs in the machine's first user namespace: global settings and BPF are within reach of root only here.
    pub initial_user_namespace: bool,
}

impl Privilege {
    /// Reads the privileges of the calling thread.
    pub fn current(root: &ProcRoot) -> Result<Self> {
        let caps = rustix::thread::capabilities(None).context(|| "read capabilities".into())?.effective;
        // user_namespaces(7): the first one maps all of 0..=4294967294 to itself.
        let map = root.read("proc/self/uid_map")?;
        let fields: Vec<&str> = map.split_whitespace().collect();
        Ok(Privilege {
            euid: geteuid().as_raw(),
            net_admin: caps.contains(CapabilitySet::NET_ADMIN),
            sys_admin: caps.contains(CapabilitySet::SYS_ADMIN),
            sys_ptrace: caps.contains(CapabilitySet::SYS_PTRACE),
            initial_user_namespace: fields == ["0", "0", "4294967295"],
        })
    }

    /// May build a lab as it is.
    pub fn may_create_namespaces(&self) -> bool {
        self.net_admin && self.sys_admin
    }
}

/// Moves the whole process into a new user, network and mount namespace in which it is root, so that a normal user
/// can build a lab. `/run` becomes an empty private tmpfs (iptables keeps its lock there); directories in `keep` that
/// exist stay reachable under their old names. New user namespaces cannot load BPF or change global settings.
///
/// Call it first in `main`: the kernel refuses it to a process with more than one thread.
///
/// # Errors
/// The message names what forbids it (a limit, a sysctl, AppArmor) and how to allow it.
pub fn become_root_in_user_namespace(keep: &[&Path]) -> Result<()> {
    let root = ProcRoot::new("/");
    let threads = fs::read_dir("/proc/self/task").context(|| "read /proc/self/task".into())?.count();
    if threads > 1 {
        return Err(Error::other(
            "create a user namespace",
            format!("the process already has {threads} threads"),
        ));
    }
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let flags = UnshareFlags::NEWUSER | UnshareFlags::NEWNET | UnshareFlags::NEWNS;
    // SAFETY: the process has a single thread, so no other thread's view of files or descriptors changes.
    if let Err(errno) = unsafe { unshare_unsafe(flags) } {
        return Err(Error::other("create a user namespace", forbidden_by(&root, errno.into())));
    }
    // user_namespaces(7): without privilege outside, gid_map can be written only after setgroups was denied.
    write_own("setgroups", "deny")?;
    write_own("uid_map", &format!("0 {uid} 1"))?;
    write_own("gid_map", &format!("0 {gid} 1"))?;
    private_run(keep)
}

fn write_own(file: &str, text: &str) -> Result<()> {
    let path = format!("/proc/self/{file}");
    match fs::write(&path, text) {
        Ok(()) => Ok(()),
        // AppArmor of Ubuntu lets the unshare pass and takes the capabilities away: it shows here.
        Err(e) => Err(Error::other(format!("write {path}"), forbidden_by(&ProcRoot::new("/"), e))),
    }
}

/// An empty /run that only this process sees, with the `keep` directories bound back into it.
fn private_run(keep: &[&Path]) -> Result<()> {
    // Nothing mounted from here on may propagate to the machine.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context(|| "make mounts private".into())?;
    let kept: Vec<(PathBuf, fs::File)> = keep
        .iter()
        .filter(|path| path.starts_with("/run"))
        .filter_map(|path| Some((path.to_path_buf(), fs::File::open(path).ok()?)))
        .collect();
    mount("tmpfs", "/run", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=755"))
        .context(|| "mount a private /run".into())?;
    for (path, old) in kept {
        let what = || format!("keep {} reachable", path.display());
        fs::create_dir_all(&path).context(what)?;
        let source = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&old));
        mount_bind_recursive(&source, &path).context(what)?;
    }
    Ok(())
}

/// Why a user namespace was refused, in words with the remedy.
fn forbidden_by(root: &ProcRoot, error: std::io::Error) -> String {
    let number = |path: &str| root.read(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    if number("proc/sys/user/max_user_namespaces") == Some(0) {
        return format!(
            "{error}: user namespaces are limited to none (sysctl user.max_user_namespaces=0); run as root"
        );
    }
    if number("proc/sys/kernel/unprivileged_userns_clone") == Some(0) {
        return format!(
            "{error}: normal users may not create user namespaces (sysctl kernel.unprivileged_userns_clone=0); run as root"
        );
    }
    if number("proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1) {
        return format!(
            "{error}: AppArmor restricts user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=1); \
             run as root, or give weir a profile that allows `userns`"
        );
    }
    match error.raw_os_error() {
        Some(libc::EINVAL) => format!(
            "{error}: this kernel has no user namespaces (CONFIG_USER_NS), or the process has several threads"
        ),
        Some(libc::ENOSPC) => format!(
            "{error}: the limit of namespaces is reached (sysctl user.max_user_namespaces and user.max_net_namespaces)"
        ),
        Some(libc::EPERM) => format!(
            "{error}: a security policy of this host forbids it (a container's seccomp filter, SELinux, or a chroot); run as root"
        ),
        _ => error.to_string(),
    }
}

/// For tests that need root: prints why they are skipped and returns true if this process may not create namespaces.
#[doc(hidden)]
pub fn test_needs_root() -> bool {
    let able = Privilege::current(&ProcRoot::new("/")).is_ok_and(|p| p.may_create_namespaces());
    if !able {
        println!("SKIP: needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN) to create network namespaces");
    }
    !able
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(files: &[(&str, &str)], errno: i32) -> String {
        let dir = std::env::temp_dir().join(format!(
            "weir-privilege-{}-{errno}-{}",
            std::process::id(),
            files.len()
        ));
        for (path, text) in files {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let words = forbidden_by(&ProcRoot::new(&dir), std::io::Error::from_raw_os_error(errno));
        let _ = fs::remove_dir_all(dir);
        words
    }

    #[test]
    fn the_refusal_names_its_cause() {
        let words = refusal(&[("proc/sys/user/max_user_namespaces", "0\n")], libc::ENOSPC);
        assert!(words.contains("user.max_user_namespaces=0"), "{words}");
        let words = refusal(&[("proc/sys/kernel/unprivileged_userns_clone", "0\n")], libc::EPERM);
        assert!(words.contains("kernel.unprivileged_userns_clone=0"), "{words}");
        let both = [
            ("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n"),
            ("proc/sys/user/max_user_namespaces", "63000\n"),
        ];
        let words = refusal(&both, libc::EACCES);
        assert!(words.contains("AppArmor"), "{words}");
        assert!(refusal(&[], libc::EPERM).contains("security policy"));
    }

    #[test]
    fn privilege_agrees_with_the_status_file() {
        let p = Privilege::current(&ProcRoot::new("/")).unwrap();
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let hex = status.lines().find_map(|l| l.strip_prefix("CapEff:")).unwrap().trim();
        let mask = u64::from_str_radix(hex, 16).unwrap();
        // linux/capability.h: CAP_NET_ADMIN is 12, CAP_SYS_PTRACE is 19, CAP_SYS_ADMIN is 21.
        assert_eq!(p.net_admin, mask & (1 << 12) != 0);
        assert_eq!(p.sys_admin, mask & (1 << 21) != 0);
        assert_eq!(p.sys_ptrace, mask & (1 << 19) != 0);
    }
}
