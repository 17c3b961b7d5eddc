//! Starting guard processes: this very program again. They come in pairs, and each restarts the other one.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::error::Error;
use crate::slot;
use crate::store::Folder;

/// How long a guard may take to come up.
const START: Duration = Duration::from_secs(10);
/// Variables that name folders: of journals, and of the program whose changes are guarded.
pub(crate) const FOLDERS: [&str; 2] = ["WEIR_STATE_DIR", "WEIR_BPF_DIR"];
/// The message of a guard that is ready.
pub(crate) const ARMED: &[u8] = b"armed\n";
/// The applier's message when all changes are made. No process reads it: it stays in the pipe, where both guards see it, and so
/// do those that are started later.
pub(crate) const APPLIED: &[u8] = b"applied\n";

/// The guard processes as the command that applies sees them.
pub(crate) trait Post {
    /// Whether one of them runs.
    fn is_there(&mut self) -> Result<bool, Error>;
    /// Tells them that all changes were made.
    fn applied(&mut self) -> Result<(), Error>;
}

/// How a guard process is started: this very program again, with arguments that make it call [`crate::guard`].
#[derive(Debug, Clone)]
pub struct Sentinel {
    /// Arguments before those that are added: the name of the command, that of the set, and the role unless it is the first.
    pub args: Vec<OsString>,
}

/// The task of a guard process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Started by the command that applies; it starts the second one.
    First,
    /// Started by its partner, which is at the other end of its standard output.
    Beside,
    /// Started by a timer, in case that both are gone; it has no partner.
    Alone,
}

impl Role {
    /// The argument that says so.
    pub fn argument(self) -> Option<&'static str> {
        match self {
            Role::First => None,
            Role::Beside => Some("--beside"),
            Role::Alone => Some("--alone"),
        }
    }
}

/// A pair of guard processes that has come up.
#[derive(Debug)]
pub struct Started {
    /// Not waited for: it outlives us, and process 1 then reaps it.
    child: Child,
    /// Open as long as the changes are being made: its end tells the guards that we are gone.
    stdin: ChildStdin,
    by: String,
}

impl Sentinel {
    /// Starts both guards, and returns when they have opened everything that they need.
    pub(crate) fn start(&self, by: &str, id: &str) -> Result<Started, Error> {
        let failed = |why: String| Error::Guard(why);
        let mut command = self.command(by, id, Role::First);
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(debug_assertions)]
        {
            command.env_remove(crate::step::STOP_AT);
            if let Some(at) = std::env::var_os(crate::step::STOP_GUARD_AT) {
                command.env(crate::step::STOP_AT, at);
            }
        }
        let (mut child, link) = spawn(command).map_err(|e| failed(e.to_string()))?;
        let answer = is_armed(&link, START);
        let (Some(stdin), Ok(true)) = (child.stdin.take(), &answer) else {
            // It may have ended by itself.
            let _ = child.kill();
            let mut words = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                let _ = stderr.read_to_string(&mut words);
            }
            let _ = child.wait();
            let why = match answer {
                Err(e) => e.to_string(),
                Ok(_) if words.trim().is_empty() => format!("no answer within {} s", START.as_secs()),
                Ok(_) => words.trim().to_owned(),
            };
            return Err(failed(why));
        };
        Ok(Started { child, stdin, by: by.to_owned() })
    }

    /// Starts the partner of this guard process. It gets this one's standard input: the pipe of the command that applies.
    pub(crate) fn start_beside(&self, by: &str, id: &str) -> std::io::Result<(Child, UnixStream)> {
        let mut command = self.command(by, id, Role::Beside);
        command.stdin(Stdio::inherit()).stderr(Stdio::null());
        #[cfg(debug_assertions)]
        command.env_remove(crate::step::STOP_AT);
        spawn(command)
    }

    fn command(&self, by: &str, id: &str, role: Role) -> Command {
        // Not by its path: the file may have been replaced since this process began.
        let mut command = Command::new("/proc/self/exe");
        command.arg0(std::env::args_os().next().unwrap_or_else(|| "weir".into()));
        command.args(&self.args).args([by, id]).args(role.argument());
        // It works in the root folder, and finds the same folders by absolute paths.
        for name in FOLDERS {
            if let Some(folder) = std::env::var_os(name).filter(|folder| !folder.is_empty()) {
                command.env(name, std::path::absolute(&folder).unwrap_or(folder.into()));
            }
        }
        command
    }
}

/// Starts it with one end of a pair of sockets as its standard output, and returns the other end: it hangs up when the process ends.
fn spawn(mut command: Command) -> std::io::Result<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = command.stdout(OwnedFd::from(theirs)).spawn()?;
    Ok((child, ours))
}

/// Whether a guard at the other end becomes ready in time.
pub(crate) fn is_armed(mut link: &UnixStream, limit: Duration) -> std::io::Result<bool> {
    let deadline = Instant::now() + limit;
    let mut words = Vec::new();
    while words.len() < ARMED.len() {
        let left = timespec(deadline.saturating_duration_since(Instant::now()));
        match poll(&mut [PollFd::from_borrowed_fd(link.as_fd(), PollFlags::IN)], Some(&left)) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
        }
        let mut bytes = [0; 16];
        let n = link.read(&mut bytes)?;
        if n == 0 {
            return Ok(false);
        }
        words.extend_from_slice(&bytes[..n]);
    }
    Ok(words == ARMED)
}

pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}

impl Post for Started {
    fn is_there(&mut self) -> Result<bool, Error> {
        // If the first guard was killed it is reaped here; its place has been taken by another one.
        let _ = self.child.try_wait();
        Ok(!slot::holders(&Folder::usual(), &self.by)?.is_empty())
    }

    fn applied(&mut self) -> Result<(), Error> {
        let gone = || Error::Guard("both guard processes ended while the changes were made".into());
        self.stdin.write_all(APPLIED).map_err(|_| gone())?;
        if self.is_there()? { Ok(()) } else { Err(gone()) }
    }
}
