//! The guard processes: started before the first change is made, they outlive the command that made them, the session and the
//! terminal, and roll a set back unless it is confirmed.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use weir_sys::process::{run_captured, which};
use weir_sys::{NetNs, ProcRoot};

use crate::change::Program;
use crate::error::Error;
use crate::journal::{ChangeSet, Phase};
use crate::partner::Partner;
use crate::revert::revert;
use crate::sentinel::{APPLIED, ARMED, Role, Sentinel, timespec};
use crate::slot::Slot;
use crate::store::{Folder, Store};
use crate::time::boot_ns;
use crate::watch::{Metric, Readings, WatchedNumber, first_number};

/// How often a guard looks at the journal and the time.
const TICK: Duration = Duration::from_millis(100);
/// How long a guard waits at a time for a command that is just taking a step.
const LOCK: Duration = Duration::from_secs(60);
/// Shortest time between two readings of what is watched.
const LEAST_EVERY_MS: u64 = 100;
/// Longest time that a program may take for a reading.
const READING: Duration = Duration::from_secs(5);
/// The out-of-memory killer spares what has this (proc_pid_oom_score_adj(5)).
const LEAST_OOM_SCORE: i32 = -1000;
/// Why a set is rolled back that no later command could roll back.
const LOST: &str = "its journal was removed or damaged";
/// Why, where the command died on the way.
const KILLED: &str = "the command that applied it was killed";

/// A guard process's whole life: waits until the set `id` of the command `by` is confirmed or rolled back, and rolls it back
/// when the time is up, when what is watched gets worse, when the command that makes the changes dies on the way, or when
/// it gets SIGTERM. A closed terminal does not end it. It restarts its partner, which does the same, when that one dies.
///
/// `metric` reads a number by its name ([`Metric::Named`]); it is called in the set's network namespace. A number that cannot be read
/// rolls nothing back.
///
/// # Errors
/// If the journal cannot be read or written.
pub fn guard(
    by: &str,
    id: &str,
    role: Role,
    sentinel: &Sentinel,
    metric: &(dyn Fn(&str) -> Result<f64, String> + Sync),
) -> Result<(), Error> {
    // A new session: no terminal's Ctrl-C, no end of a login reaches it. Refused only to the leader of a process group, which
    // has neither.
    let _ = rustix::process::setsid();
    spare_from_oom();
    let asked = signals()?;
    let folder = Folder::usual();
    let path = folder.journal(by);
    let set = match (read(&path, id)?, role) {
        (Some(set), _) => set,
        // A timer may find that another set came since.
        (None, Role::Alone) => return Ok(()),
        (None, _) => return Err(Error::NoSet(by.to_owned())),
    };
    if !set.is_in_flight() {
        return Ok(());
    }
    // Held open from here on: a namespace without a name stays as long as we do.
    let namespace = set.begin.namespace.as_ref().map(|n| n.find(true)).transpose()?.flatten();
    if set.begin.namespace.is_some() && namespace.is_none() {
        return Err(Error::Guard("it does not find the network namespace".into()));
    }
    // A mounted folder could not be unmounted.
    let _ = std::env::set_current_dir("/");
    let slot = if role == Role::Alone { None } else { Some(Slot::take(&folder, by)?) };
    let number = slot.as_ref().map_or(0, |slot| slot.number);
    let partner = Partner::new(role, sentinel, by, id)?;
    if role != Role::Alone {
        armed(role)?;
    }
    let held = Store::hold(&path)?;
    let mut watchman = Watchman { path, id, role, number, asked, namespace, metric, partner };
    let (known, why) = match watchman.wait(set)? {
        End::Settled => return Ok(()),
        End::Due(set, why) => (set, why),
        End::Lost(set) => (set, LOST.to_owned()),
    };
    watchman.roll_back(&folder, held, *known, &why)
}

/// The lowest score that this process may have; a process without privileges keeps its own.
fn spare_from_oom() {
    let write = |score: i32| std::fs::write("/proc/self/oom_score_adj", score.to_string());
    let mut score = LEAST_OOM_SCORE;
    while write(score).is_err() && score < 0 {
        score += 50;
    }
}

/// SIGTERM is a request to roll back; hang-up and Ctrl-C are ignored.
fn signals() -> Result<Arc<AtomicBool>, Error> {
    let asked = Arc::new(AtomicBool::new(false));
    let ignored = Arc::new(AtomicBool::new(false));
    let register = |signal, flag: &Arc<AtomicBool>| {
        signal_hook::flag::register(signal, flag.clone()).map_err(|e| Error::Guard(e.to_string()))
    };
    register(signal_hook::consts::SIGTERM, &asked)?;
    register(signal_hook::consts::SIGHUP, &ignored)?;
    register(signal_hook::consts::SIGINT, &ignored)?;
    Ok(asked)
}

/// Why there is nothing to wait for any more.
enum End {
    /// It was confirmed or rolled back by another process.
    Settled,
    /// It is to be rolled back; why.
    Due(Box<ChangeSet>, String),
    /// It is to be rolled back, and only the guards know what that means.
    Lost(Box<ChangeSet>),
}

/// Announces that it is ready, and lets go of everything that belongs to its starter, but for standard input. A partner that was
/// killed meanwhile does not hear it, and is no reason to leave the trial without a guard.
fn armed(role: Role) -> Result<(), Error> {
    let failed = |e: std::io::Error| Error::Guard(e.to_string());
    let null = OpenOptions::new().write(true).open("/dev/null").map_err(failed)?;
    let mut out = std::io::stdout();
    out.write_all(ARMED).and_then(|()| out.flush()).or_else(|e| match role {
        Role::Beside => Ok(()),
        _ => Err(failed(e)),
    })?;
    rustix::stdio::dup2_stdout(&null).map_err(|e| failed(e.into()))?;
    rustix::stdio::dup2_stderr(&null).map_err(|e| failed(e.into()))
}

/// The set of that name; `None` if another one took its place.
fn read(path: &std::path::Path, id: &str) -> Result<Option<ChangeSet>, Error> {
    Ok(Store::open(path, false)?.map(|store| store.set).filter(|set| set.begin.id == id))
}

/// The state of the command that applies, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Applier {
    /// It holds the other end of the pipe on standard input.
    AtPipe,
    /// It closed the pipe, after it had made all changes.
    Done,
    /// It closed the pipe before that.
    Gone,
    /// There is no pipe: the journal names the process.
    InJournal,
}

struct Watchman<'a> {
    path: PathBuf,
    id: &'a str,
    role: Role,
    number: usize,
    asked: Arc<AtomicBool>,
    namespace: Option<NetNs>,
    metric: &'a (dyn Fn(&str) -> Result<f64, String> + Sync),
    partner: Partner<'a>,
}

impl Watchman<'_> {
    /// Waits for the end.
    fn wait(&mut self, mut set: ChangeSet) -> Result<End, Error> {
        let due = |set, why| Ok(End::Due(Box::new(set), why));
        let mut stamp = None;
        let mut readings: Vec<(Instant, Readings)> = Vec::new();
        let mut applier = if self.role == Role::Alone { Applier::InJournal } else { Applier::AtPipe };
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
                return due(set, "its guard process received SIGTERM".into());
            }
            let alone = applier == Applier::InJournal && set.phase == Phase::Applying;
            if applier == Applier::Gone || alone && !set.begin.applier.is_running()? {
                return due(set, KILLED.into());
            }
            if let Phase::Reverting { why } = &set.phase
                && !matches!(applier, Applier::AtPipe)
            {
                // The process that rolled it back may have been killed on the way.
                let why = why.clone();
                return due(set, why);
            }
            let mut pause = TICK;
            if let Phase::Waiting { deadline_ns } = set.phase {
                let left = Duration::from_nanos(deadline_ns.saturating_sub(boot_ns()));
                if left.is_zero() {
                    let why = format!("not confirmed within {} s", set.begin.timeout_s);
                    return due(set, why);
                }
                pause = pause.min(left);
                if let Some(why) = self.judge(&set, &mut readings, left) {
                    return due(set, why);
                }
            }
            self.partner_or_none();
            applier = self.rest(applier, pause)?;
        }
    }

    fn partner_or_none(&mut self) {
        if self.role != Role::Alone {
            self.partner.restart();
        }
    }

    /// Reads what is due to be read; why the set is to be rolled back, if it is. One of the two guards is enough for it.
    fn judge(
        &self,
        set: &ChangeSet,
        readings: &mut Vec<(Instant, Readings)>,
        left: Duration,
    ) -> Option<String> {
        if self.number != 1 {
            return None;
        }
        readings.resize_with(set.begin.watches.len(), || (Instant::now(), Readings::default()));
        for (watch, (next, readings)) in set.begin.watches.iter().zip(readings) {
            if Instant::now() < *next {
                continue;
            }
            *next = Instant::now() + Duration::from_millis(watch.every_ms.max(LEAST_EVERY_MS));
            let value = self.reading(watch, left.min(READING));
            if let Some(why) = value.and_then(|v| watch.judge(readings, boot_ns(), v)) {
                return Some(why);
            }
        }
        None
    }

    /// Waits that long, or until the partner or the command that applies ends.
    fn rest(&mut self, applier: Applier, pause: Duration) -> Result<Applier, Error> {
        let stdin = std::io::stdin();
        // Without an event to wait for, poll(2) tells of hang-ups alone.
        let hung_up = |fd: Option<BorrowedFd<'_>>, other: Option<BorrowedFd<'_>>| {
            let fds = [fd, other].into_iter().flatten();
            let mut fds: Vec<PollFd<'_>> =
                fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::empty())).collect();
            match poll(&mut fds, Some(&timespec(pause))) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {
                    let mut ended = fds.iter().map(|fd| !fd.revents().is_empty());
                    let mut of = |fd: Option<BorrowedFd<'_>>| fd.is_some() && ended.next() == Some(true);
                    Ok((of(fd), of(other)))
                }
                Err(e) => Err(Error::Guard(e.to_string())),
            }
        };
        let pipe = (applier == Applier::AtPipe).then_some(stdin.as_fd());
        let (partner_died, pipe_closed) = hung_up(self.partner.link(), pipe)?;
        if partner_died {
            self.partner.died();
        }
        if !pipe_closed {
            return Ok(applier);
        }
        let waiting = rustix::io::ioctl_fionread(stdin.as_fd()).unwrap_or(0);
        Ok(if waiting >= APPLIED.len() as u64 { Applier::Done } else { Applier::Gone })
    }

    fn roll_back(mut self, folder: &Folder, held: File, known: ChangeSet, why: &str) -> Result<(), Error> {
        let root = ProcRoot::default();
        // Without the folder no lock exists, and no other process knows the state before.
        let lock = loop {
            match folder.lock(LOCK) {
                Ok(None) => {}
                Ok(Some(lock)) => break Some(lock),
                Err(_) => break None,
            }
        };
        if lock.is_none() && self.number == 2 {
            // Then the first one goes first.
            let deadline = Instant::now() + LOCK;
            while self.partner.link().is_some() && Instant::now() < deadline {
                self.rest(Applier::Done, TICK)?;
            }
        }
        match Store::open(&self.path, true) {
            // While we waited for the lock, it may have been confirmed, rolled back, or followed by another set.
            Ok(Some(store)) if store.set.begin.id != self.id || !store.set.is_in_flight() => Ok(()),
            Ok(Some(mut store)) => revert(&mut store, &root, why),
            Ok(None) | Err(_) => revert(&mut Store::rescue(&self.path, held, known)?, &root, LOST),
        }
    }

    fn reading(&self, watch: &WatchedNumber, limit: Duration) -> Option<f64> {
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
