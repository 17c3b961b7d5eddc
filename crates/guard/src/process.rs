//! The process that takes a set back unless it is confirmed: started before the first change is made, it outlives the
//! command that made them, the session and the terminal.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use weir_sys::process::{Identity, run_captured, which};
use weir_sys::{NetNs, ProcRoot};

use crate::change::Program;
use crate::error::Error;
use crate::journal::{ChangeSet, Phase};
use crate::keeper::{Post, boot_ns};
use crate::revert::revert;
use crate::store::{Folder, Store};
use crate::watch::{Metric, Readings, Watch, first_number};

/// How often the guard looks at the journal and the time.
const TICK: Duration = Duration::from_millis(100);
/// How long it may take to come up.
const START: Duration = Duration::from_secs(10);
/// How long the guard waits at a time for a command that is just taking a step.
const LOCK: Duration = Duration::from_secs(60);
/// Shortest time between two readings of what is watched.
const LEAST_EVERY_MS: u64 = 100;
/// Longest time that a program may take for a reading.
const READING: Duration = Duration::from_secs(5);
/// Variables that name folders: of journals, and of whoever's changes are guarded.
const FOLDERS: [&str; 2] = ["WEIR_STATE_DIR", "WEIR_BPF_DIR"];
/// What the guard says when it is ready.
const ARMED: &[u8] = b"armed\n";
/// What it is told when all changes are made.
const APPLIED: &[u8] = b"applied\n";

/// How the guard process is started: this very program again, with arguments that make it call [`guard`].
#[derive(Debug, Clone)]
pub struct Sentinel {
    /// Arguments before the two that are added, the name of the command and of the set.
    pub args: Vec<OsString>,
}

/// A guard process that has come up.
#[derive(Debug)]
pub struct Started {
    /// Not waited for: it outlives us, and whoever is process 1 then reaps it.
    child: Child,
    identity: Identity,
    stdin: ChildStdin,
}

impl Sentinel {
    /// Starts it, and returns when it has opened everything that it needs.
    pub(crate) fn start(&self, by: &str, id: &str) -> Result<Started, Error> {
        let failed = |why: String| Error::Guard(why);
        // Not by its path: the file may have been replaced since this process began.
        let mut command = Command::new("/proc/self/exe");
        std::os::unix::process::CommandExt::arg0(&mut command, own_name());
        command.args(&self.args).args([by, id]);
        // It works in the root folder, and what it runs is told where things are by the same variables.
        for name in FOLDERS {
            if let Some(folder) = std::env::var_os(name).filter(|folder| !folder.is_empty()) {
                command.env(name, std::path::absolute(&folder).unwrap_or(folder.into()));
            }
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(debug_assertions)]
        {
            command.env_remove(crate::step::STOP_AT);
            if let Some(at) = std::env::var_os(crate::step::STOP_GUARD_AT) {
                command.env(crate::step::STOP_AT, at);
            }
        }
        let mut child = command.spawn().map_err(|e| failed(e.to_string()))?;
        let answer = first_line(&mut child);
        let (Some(stdin), Ok(true)) = (child.stdin.take(), &answer) else {
            // It may have ended by itself.
            let _ = child.kill();
            let mut said = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                let _ = stderr.read_to_string(&mut said);
            }
            let _ = child.wait();
            let why = match answer {
                Err(e) => e.to_string(),
                Ok(_) if said.trim().is_empty() => format!("no word from it within {} s", START.as_secs()),
                Ok(_) => said.trim().to_owned(),
            };
            return Err(failed(why));
        };
        let identity = Identity::of(child.id())?.ok_or_else(|| failed("it ended at once".into()))?;
        Ok(Started { child, identity, stdin })
    }
}

impl Post for Started {
    fn identity(&self) -> Option<Identity> {
        Some(self.identity)
    }

    fn applied(&mut self) -> Result<(), Error> {
        let gone = || Error::Guard("it ended while the changes were made".into());
        self.stdin.write_all(APPLIED).map_err(|_| gone())?;
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            _ => Err(gone()),
        }
    }
}

/// What `ps` shows.
fn own_name() -> OsString {
    std::env::args_os().next().unwrap_or_else(|| "weir".into())
}

/// Whether the guard has said that it is ready.
fn first_line(child: &mut Child) -> std::io::Result<bool> {
    let Some(stdout) = &mut child.stdout else { return Ok(false) };
    let deadline = Instant::now() + START;
    let mut said = Vec::new();
    while said.len() < ARMED.len() {
        if !readable(stdout.as_fd(), deadline.saturating_duration_since(Instant::now()))? {
            return Ok(false);
        }
        let mut bytes = [0; 16];
        let n = stdout.read(&mut bytes)?;
        if n == 0 {
            return Ok(false);
        }
        said.extend_from_slice(&bytes[..n]);
    }
    Ok(said == ARMED)
}

/// Waits until something can be read; false after that time.
fn readable(fd: std::os::fd::BorrowedFd<'_>, limit: Duration) -> std::io::Result<bool> {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)) {
        Ok(n) => Ok(n > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// The guard process's whole life: waits until the set `id` of the command `by` is confirmed or taken back, and takes it back
/// when the time is up, when what is watched gets worse, when the command that makes the changes dies on the way, or when
/// it is asked to end (SIGTERM). A closed terminal does not end it.
///
/// `metric` reads a number by its name ([`Metric::Named`]); it is called in the set's network namespace. A number that cannot be read
/// takes nothing back.
///
/// # Errors
/// If the journal cannot be read or written.
pub fn guard(by: &str, id: &str, metric: &(dyn Fn(&str) -> Result<f64, String> + Sync)) -> Result<(), Error> {
    // A new session: no terminal's Ctrl-C, no end of a login reaches it. Refused only to the leader of a process group, which
    // has neither.
    let _ = rustix::process::setsid();
    let asked = Arc::new(AtomicBool::new(false));
    let ignored = Arc::new(AtomicBool::new(false));
    let register = |signal, flag: &Arc<AtomicBool>| {
        signal_hook::flag::register(signal, flag.clone()).map_err(|e| Error::Guard(e.to_string()))
    };
    register(signal_hook::consts::SIGTERM, &asked)?;
    register(signal_hook::consts::SIGHUP, &ignored)?;
    register(signal_hook::consts::SIGINT, &ignored)?;
    let folder = Folder::usual();
    let path = folder.journal(by);
    let set = read(&path, id)?.ok_or_else(|| Error::NoSet(by.to_owned()))?;
    // Held open from here on: a namespace without a name stays as long as we do.
    let namespace = set.begin.namespace.as_ref().map(|n| n.find(true)).transpose()?.flatten();
    if set.begin.namespace.is_some() && namespace.is_none() {
        return Err(Error::Guard("it does not find the network namespace".into()));
    }
    // A mounted folder could not be taken away.
    let _ = std::env::set_current_dir("/");
    armed()?;
    let held = Store::hold(&path)?;
    let post = Watchman { path, id, asked, namespace, metric };
    let root = ProcRoot::default();
    let (known, why) = match post.wait(set)? {
        End::Settled => return Ok(()),
        End::Due(set, why) => (set, why),
        End::Lost(set) => (set, LOST.to_owned()),
    };
    // Without the folder there is no lock, and nobody else who could know what there was before.
    let _lock = loop {
        match folder.lock(LOCK) {
            Ok(None) => {}
            Ok(Some(lock)) => break Some(lock),
            Err(_) => break None,
        }
    };
    match Store::open(&post.path, true) {
        // While we waited for the lock, it may have been confirmed, rolled back, or followed by another set.
        Ok(Some(store)) if store.set.begin.id != id || !store.set.is_in_flight() => Ok(()),
        Ok(Some(mut store)) => revert(&mut store, &root, &why),
        Ok(None) | Err(_) => revert(&mut Store::rescue(&post.path, held, *known)?, &root, LOST),
    }
}

/// Why a set is taken back that no later command could take back.
const LOST: &str = "its journal was removed or damaged";

/// Why there is nothing to wait for any more.
enum End {
    /// It was confirmed or taken back by somebody else.
    Settled,
    /// It is to be taken back; why.
    Due(Box<ChangeSet>, String),
    /// It is to be taken back, and only this process knows what that means.
    Lost(Box<ChangeSet>),
}

/// Says that it is ready, and lets go of everything that belongs to whoever started it, but for standard input.
fn armed() -> Result<(), Error> {
    let said = |e: std::io::Error| Error::Guard(e.to_string());
    let null = OpenOptions::new().write(true).open("/dev/null").map_err(said)?;
    let mut out = std::io::stdout();
    out.write_all(ARMED).and_then(|()| out.flush()).map_err(said)?;
    rustix::stdio::dup2_stdout(&null).map_err(|e| said(e.into()))?;
    rustix::stdio::dup2_stderr(&null).map_err(|e| said(e.into()))
}

/// The set of that name; `None` if another one took its place.
fn read(path: &std::path::Path, id: &str) -> Result<Option<ChangeSet>, Error> {
    Ok(Store::open(path, false)?.map(|store| store.set).filter(|set| set.begin.id == id))
}

struct Watchman<'a> {
    path: PathBuf,
    id: &'a str,
    asked: Arc<AtomicBool>,
    namespace: Option<NetNs>,
    metric: &'a (dyn Fn(&str) -> Result<f64, String> + Sync),
}

impl Watchman<'_> {
    /// Waits for the end.
    fn wait(&self, mut set: ChangeSet) -> Result<End, Error> {
        let due = |set, why| Ok(End::Due(Box::new(set), why));
        let mut stamp = None;
        let mut readings: Vec<(Instant, Readings)> = Vec::new();
        let mut applier = Some(std::io::stdin());
        loop {
            let now = Store::stamp(&self.path);
            if now != stamp {
                stamp = now;
                match Store::open(&self.path, false) {
                    Ok(Some(store)) if store.set.begin.id == self.id => set = store.set,
                    // Another set may come only after this one was settled.
                    Ok(Some(_)) => return Ok(End::Settled),
                    Ok(None) | Err(_) => return Ok(End::Lost(Box::new(set))),
                }
            }
            if !set.is_in_flight() {
                return Ok(End::Settled);
            }
            if self.asked.load(Ordering::Relaxed) {
                return due(set, "its guard process was told to end".into());
            }
            let mut pause = TICK;
            if let Phase::Waiting { deadline_ns } = set.phase {
                let left = Duration::from_nanos(deadline_ns.saturating_sub(boot_ns()));
                if left.is_zero() {
                    let why = format!("not confirmed within {} s", set.begin.timeout_s);
                    return due(set, why);
                }
                pause = pause.min(left);
                readings.resize_with(set.begin.watches.len(), || (Instant::now(), Readings::default()));
                for (watch, (next, readings)) in set.begin.watches.iter().zip(&mut readings) {
                    if Instant::now() < *next {
                        continue;
                    }
                    *next = Instant::now() + Duration::from_millis(watch.every_ms.max(LEAST_EVERY_MS));
                    let value = self.reading(watch, left.min(READING));
                    if let Some(why) = value.and_then(|v| watch.judge(readings, boot_ns(), v)) {
                        return due(set, why);
                    }
                }
            }
            match &applier {
                None => std::thread::sleep(pause),
                Some(stdin) if readable(stdin.as_fd(), pause).map_err(|e| Error::Guard(e.to_string()))? => {
                    if !was_applied() {
                        return due(set, "the command that applied it was killed".into());
                    }
                    applier = None;
                }
                Some(_) => {}
            }
        }
    }

    fn reading(&self, watch: &Watch, limit: Duration) -> Option<f64> {
        match &watch.metric {
            Metric::Named(name) => {
                let read = || (self.metric)(name).ok();
                match &self.namespace {
                    None => read(),
                    Some(namespace) => namespace.run(read).ok()?,
                }
            }
            Metric::Command(program) => self.printed(program, limit),
        }
    }

    fn printed(&self, program: &Program, limit: Duration) -> Option<f64> {
        let (name, rest) = program.argv.split_first()?;
        let mut command = Command::new(which(name)?);
        command.args(rest);
        if let Some(namespace) = &self.namespace {
            namespace.enter_on_spawn(&mut command);
        }
        let output = run_captured(command, limit).ok()?;
        output.status.success().then(|| first_number(&output.stdout_text()))?
    }
}

/// What the one who applies said last: that all is made, or nothing because it is gone.
fn was_applied() -> bool {
    let mut said = [0; APPLIED.len()];
    let read = std::io::stdin().lock().read_exact(&mut said);
    if let Ok(null) = File::open("/dev/null") {
        // The pipe is of no use any more; if it stays open, nobody minds.
        let _ = rustix::stdio::dup2_stdin(&null);
    }
    read.is_ok() && said == APPLIED
}
