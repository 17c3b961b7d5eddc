//! Child processes that end with us: after `kill -9` of weir none of its children goes on working.
//!
//! The kernel's parent-death signal is tied to the *thread* that forked (prctl(2), PR_SET_PDEATHSIG), so every child is
//! started by one thread that lives as long as the process. Each gets a process group of its own: Ctrl-C in the terminal
//! reaches weir alone, which then stops its children in its own order.
#![allow(unsafe_code, reason = "wait4(2) for the child's CPU time, and the hook between fork and exec")]

mod capture;
mod other;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, kill_process_group, pidfd_open, setrlimit,
};
use rustix::time::Timespec;

pub use capture::{OUTPUT_LIMIT, Output, run_captured, run_with_input};
pub use other::{Identity, stop_other};

use crate::error::{Context, Error, Result};

/// Allows this process as many open files as it may have: raises the soft limit to the hard one, which needs no privilege
/// (setrlimit(2)). If that fails, the limit stays.
pub fn raise_descriptor_limit() {
    let now = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, ..now });
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Exit code or signal.
    pub status: ExitStatus,
    /// CPU time (user and system) of the child and of those of its children that it waited for.
    pub cpu: Duration,
}

/// A running child. Dropping it kills its process group and reaps it.
#[derive(Debug)]
pub struct Process {
    /// Its standard input, if the command asked for a pipe.
    pub stdin: Option<ChildStdin>,
    /// Its standard output, if the command asked for a pipe.
    pub stdout: Option<ChildStdout>,
    /// Its standard error, if the command asked for a pipe.
    pub stderr: Option<ChildStderr>,
    pid: Pid,
    pidfd: OwnedFd,
    ended: Option<Ended>,
}

type Job = (Command, mpsc::SyncSender<io::Result<std::process::Child>>);

/// Starts a command as a child that dies with this process and has its own process group.
///
/// # Errors
/// `NotFound` if there is no such program.
pub fn spawn(mut command: Command) -> Result<Process> {
    let what = || format!("start {}", command_line(&command));
    let what = what();
    command.process_group(0);
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; prctl(2) and getppid(2) are plain calls.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before the signal was armed.
            if rustix::process::getppid() != Some(parent) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
    let (answer, reply) = mpsc::sync_channel(1);
    spawner()?.send((command, answer)).map_err(|_| Error::other(&*what, "the spawning thread is gone"))?;
    let mut child = reply
        .recv()
        .map_err(|_| Error::other(&*what, "the spawning thread is gone"))?
        .context(|| what.clone())?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Error::other(&*what, "not a process id"))?;
    // The child is not reaped yet, so the number cannot belong to another process.
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => fd,
        Err(e) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Error::new(what, e));
        }
    };
    Ok(Process {
        stdin: child.stdin.take(),
        stdout: child.stdout.take(),
        stderr: child.stderr.take(),
        pid,
        pidfd,
        ended: None,
    })
}

/// Reverts, from inside this process, the arrangement that [`spawn`] made for it: the process then survives when the process that
/// spawned it is killed. Call it in the main thread, which is the one that has the signal armed.
///
/// # Errors
/// Those of prctl(2).
pub fn outlive_parent() -> Result<()> {
    rustix::process::set_parent_process_death_signal(None).context(|| "outlive the parent".into())
}

/// The one thread that forks.
fn spawner() -> Result<&'static mpsc::Sender<Job>> {
    static SPAWNER: OnceLock<io::Result<mpsc::Sender<Job>>> = OnceLock::new();
    let started = SPAWNER.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        std::thread::Builder::new().name("spawner".into()).spawn(move || {
            for (mut command, answer) in jobs {
                // A caller that went away has no use for the child; its handle is dropped unreaped only if it panicked.
                let _ = answer.send(command.spawn());
            }
        })?;
        Ok(sender)
    });
    started.as_ref().map_err(|e| Error::other("start the spawning thread", e.to_string()))
}

impl Process {
    /// Process id, also the id of its process group.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// How it ended, without waiting.
    pub fn try_wait(&mut self) -> Result<Option<Ended>> {
        if self.ended.is_none() {
            self.reap(libc::WNOHANG)?;
        }
        Ok(self.ended)
    }

    /// Waits for its end, at most that long. `None` if it still runs.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<Ended>> {
        if self.ended.is_none() && wait_readable(self.pidfd.as_fd(), timeout)? {
            self.reap(0)?;
        }
        Ok(self.ended)
    }

    /// Asks its process group to end (SIGTERM), and kills it after the grace time. Returns how it ended.
    pub fn stop(&mut self, grace: Duration) -> Result<Ended> {
        self.signal(Signal::TERM)?;
        if let Some(ended) = self.wait(grace)? {
            return Ok(ended);
        }
        self.kill()
    }

    /// Kills its process group at once and reaps it.
    pub fn kill(&mut self) -> Result<Ended> {
        self.signal(Signal::KILL)?;
        if self.ended.is_none() {
            self.reap(0)?;
        }
        self.ended.ok_or_else(|| Error::other(format!("wait for process {}", self.pid()), "it did not end"))
    }

    /// Sends a signal to its process group; nothing to do if it has ended and been reaped.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        if self.ended.is_some() {
            return Ok(());
        }
        kill_process_group(self.pid, signal).context(|| format!("signal process {}", self.pid()))
    }

    fn reap(&mut self, options: i32) -> Result<()> {
        let pid = self.pid.as_raw_nonzero().get();
        loop {
            let mut status = 0;
            // SAFETY: rusage is plain numbers, for which all zeros are valid.
            let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
            // SAFETY: both pointers are to live locals of the types that wait4(2) writes.
            match unsafe { libc::wait4(pid, &mut status, options, &mut usage) } {
                0 => return Ok(()),
                -1 => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(Error::new(format!("wait for process {pid}"), error));
                    }
                }
                _ => {
                    let cpu = timeval(usage.ru_utime) + timeval(usage.ru_stime);
                    self.ended = Some(Ended { status: ExitStatus::from_raw(status), cpu });
                    return Ok(());
                }
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended.is_none() {
            // Nothing is left to be done if the system refuses; the parent-death signal remains.
            let _ = self.kill();
        }
    }
}

impl AsFd for Process {
    /// The pidfd: readable once the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// The path of a program, looked up in PATH and then where system programs are (a normal user's PATH often lacks
/// `/usr/sbin`). A name with a slash is taken as it is.
pub fn which(program: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let runs =
        |path: &Path| path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| runs(path));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(program)).find(|path| runs(path))
}

/// Debian's package of a program.
pub fn package(program: &str) -> &str {
    match program {
        "ab" => "apache2-utils",
        "apache2" => "apache2-bin",
        "busybox" => "busybox-static",
        "docker" | "dockerd" => "docker.io",
        "ip" | "ss" | "tc" => "iproute2",
        "ldd" => "libc-bin",
        "man" => "man-db",
        "nft" => "nftables",
        "nsenter" | "setpriv" | "taskset" | "unshare" => "util-linux",
        "script" => "bsdutils",
        "ssh" => "openssh-client",
        "sshd" => "openssh-server",
        "stun" => "stun-client",
        "systemd-run" => "systemd",
        "turnserver" | "turnutils_natdiscovery" => "coturn",
        tables if tables.starts_with("iptables") || tables.starts_with("ip6tables") => "iptables",
        other => other,
    }
}

/// How a program is installed.
pub fn install(program: &str) -> String {
    format!("apt-get install {}", package(program))
}

/// A command in one line, for messages.
fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn timeval(t: libc::timeval) -> Duration {
    Duration::from_secs(t.tv_sec.unsigned_abs()) + Duration::from_micros(t.tv_usec.unsigned_abs())
}

fn timespec(d: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX), tv_nsec: d.subsec_nanos().into() }
}

/// Polls a descriptor; false after the timeout.
fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> Result<bool> {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timespec(left))) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::new("wait for a process", e)),
        }
    }
}

#[cfg(test)]
mod tests;
