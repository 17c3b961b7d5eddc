//! The labs on this machine: one small file per run, so that another weir can list them, run a command in one of their
//! hosts, and clear away what a killed one left.
//!
//! They are in `$WEIR_RUNTIME_DIR` where that is set; otherwise root's are in `/run/weir`, a user's in `$XDG_RUNTIME_DIR/weir`, or
//! in `/tmp/weir-UID` without that.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_sys::privilege::Privilege;
use weir_sys::process::{Identity, stop_other};
use weir_sys::{NetNs, ProcRoot, file};
use weir_text::order;

use crate::{Error, Role, Site};

/// How long a leftover process is given to end by itself, s.
const GRACE: Duration = Duration::from_secs(2);

/// A host as other processes find it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostEntry {
    /// Name of its site.
    pub site: String,
    /// Role in the site.
    pub role: Role,
    /// The runner's descriptor of its namespace.
    pub fd: i32,
}

/// The record of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The run's identifier.
    pub run: String,
    /// The process that built the lab and holds it.
    pub runner: Identity,
    /// Its hosts.
    pub hosts: Vec<HostEntry>,
    /// Processes that it started in them.
    pub processes: Vec<Identity>,
}

/// A running lab's own entry. Dropping it removes the file.
#[derive(Debug)]
pub struct Registry {
    path: PathBuf,
    entry: Entry,
}

impl Registry {
    /// Enters a lab. The file is removed when the value is dropped.
    pub(crate) fn create(run: &str, sites: &[Site]) -> Result<Self, Error> {
        if run.is_empty()
            || !run.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
            || run.starts_with('.')
        {
            return Err(Error::Option(format!(
                "`{run}` is not an identifier of a run: letters, digits, - _ ."
            )));
        }
        let mut hosts = Vec::new();
        for site in sites {
            for (role, namespace) in site.hosts() {
                hosts.push(HostEntry {
                    site: site.name().to_owned(),
                    role,
                    fd: namespace.as_fd().as_raw_fd(),
                });
            }
        }
        let runner = Identity::own().map_err(Error::Registry)?;
        let entry = Entry { run: run.to_owned(), runner, hosts, processes: Vec::new() };
        let path = prepare_directory()?.join(format!("{run}.json"));
        if path.exists() {
            return Err(Error::Option(format!("there is a lab of run {run} already ({})", path.display())));
        }
        let registry = Registry { path, entry };
        registry.write()?;
        Ok(registry)
    }

    /// Names a process that was started in a host, so that it can be found if this one is killed.
    pub fn add_process(&mut self, pid: u32) -> Result<(), Error> {
        // One that has ended already leaves nothing to find.
        if let Some(identity) = Identity::of(pid).map_err(Error::Registry)? {
            self.entry.processes.push(identity);
            self.write()?;
        }
        Ok(())
    }

    /// The recorded entry.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Replaces the file in one step: a reader never sees half of it.
    fn write(&self) -> Result<(), Error> {
        let failed = |e| Error::Registry(weir_sys::Error::new(format!("write {}", self.path.display()), e));
        let text = serde_json::to_string(&self.entry).map_err(|e| failed(e.into()))?;
        file::replace(&self.path, 0o600, text).map_err(failed)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // A clone of this process's memory (fork) must not remove the file, nor can more be done if it is gone.
        if self.entry.runner.pid == std::process::id() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Entry {
    /// True while the runner runs.
    pub fn is_running(&self) -> Result<bool, Error> {
        self.runner.is_running().map_err(Error::Registry)
    }

    /// True while one of its processes runs, with which its namespaces stay.
    fn has_processes(&self) -> Result<bool, Error> {
        for process in &self.processes {
            if process.is_running().map_err(Error::Registry)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A command that runs in a host of this lab.
    pub fn command(&self, site: &str, role: Role, program: &str) -> Result<Command, Error> {
        let Some(host) = self.hosts.iter().find(|h| h.site == site && h.role == role) else {
            let known: Vec<String> =
                self.hosts.iter().map(|h| format!("{}/{}", h.site, h.role.name())).collect();
            return Err(Error::Unknown(format!(
                "run {} has no host {site}/{}; it has {}",
                self.run,
                role.name(),
                known.join(", ")
            )));
        };
        if !self.is_running()? {
            return Err(Error::Unknown(format!("the lab of run {} is gone: its runner ended", self.run)));
        }
        let path = format!("/proc/{}/fd/{}", self.runner.pid, host.fd);
        let namespace = NetNs::open(path).map_err(Error::Registry)?;
        let mut command = Command::new(program);
        weir_sys::netns::enter_like(&mut command, self.runner.pid, &namespace).map_err(Error::Registry)?;
        Ok(command)
    }
}

/// Labs of this user on this machine, by run: those that run, and those of which processes are left. The entry of a killed runner
/// whose processes have all ended is removed here, for nothing of its lab exists any more.
///
/// # Errors
/// If the entries or the processes cannot be read.
pub fn list() -> Result<Vec<Entry>, Error> {
    let mut labs = Vec::new();
    for (path, entry) in files()? {
        if entry.is_running()? || entry.has_processes()? {
            labs.push(entry);
        } else {
            remove(&path)?;
        }
    }
    Ok(labs)
}

fn remove(path: &Path) -> Result<(), Error> {
    // A runner that was stopped in good order removed it itself.
    file::remove(path)
        .map_err(|e| Error::Registry(weir_sys::Error::new(format!("remove {}", path.display()), e)))
}

/// The result of [`clean`] for one lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cleaned {
    /// Its runner still runs: left alone.
    InUse(Entry),
    /// Its runner was gone; that many of its processes still ran and were stopped.
    Cleared(Entry, usize),
}

/// Clears away what labs of killed runners left: their processes, with which their namespaces go, and their entries. With
/// `force` running runners are stopped first. Only processes that an entry names and whose start time still
/// matches are touched.
pub fn clean(force: bool) -> Result<Vec<Cleaned>, Error> {
    let mut done = Vec::new();
    for (path, entry) in files()? {
        if entry.is_running()? {
            if !force {
                done.push(Cleaned::InUse(entry));
                continue;
            }
            stop_other(entry.runner, GRACE).map_err(Error::Registry)?;
        }
        let mut stopped = 0;
        for process in &entry.processes {
            stopped += usize::from(stop_other(*process, GRACE).map_err(Error::Registry)?);
        }
        remove(&path)?;
        done.push(Cleaned::Cleared(entry, stopped));
    }
    Ok(done)
}

/// Reads the files and their entries. A file that cannot be understood is an error that names the file, because a person must
/// look at it.
fn files() -> Result<Vec<(PathBuf, Entry)>, Error> {
    let directory = directory()?;
    let failed =
        |path: &Path, e| Error::Registry(weir_sys::Error::new(format!("read {}", path.display()), e));
    let entries = file::found(fs::read_dir(&directory)).map_err(|e| failed(&directory, e))?;
    let mut files = Vec::new();
    for entry in entries.into_iter().flatten() {
        let path = entry.map_err(|e| failed(&directory, e))?.path();
        if path.extension().is_none_or(|e| e != "json") {
            continue;
        }
        // Without one, its lab ended a moment ago.
        let text = file::found(fs::read_to_string(&path)).map_err(|e| failed(&path, e))?;
        let Some(text) = text else { continue };
        let entry = serde_json::from_str(&text).map_err(|e| failed(&path, e.into()))?;
        files.push((path, entry));
    }
    order::by(&mut files, |a, b| a.0.cmp(&b.0));
    Ok(files)
}

/// The directory in use, once a user namespace of our own hides who the user is.
static OUTSIDE: OnceLock<PathBuf> = OnceLock::new();

/// Makes a normal user root in a namespace of their own, in which a lab can be built (see
/// [`weir_sys::privilege::become_root_in_user_namespace`]); the list of labs stays the user's own. Call it first in `main`.
pub fn enter_user_namespace() -> Result<(), Error> {
    let directory = prepare_directory()?;
    weir_sys::privilege::become_root_in_user_namespace(&[&directory]).map_err(Error::Privilege)?;
    // Only now: a refusal leaves the process as it was.
    OUTSIDE.get_or_init(|| directory);
    Ok(())
}

/// The folder of this user's entries.
fn directory() -> Result<PathBuf, Error> {
    if let Some(directory) = OUTSIDE.get() {
        return Ok(directory.clone());
    }
    if let Some(directory) = std::env::var_os("WEIR_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        return Ok(directory.into());
    }
    let privilege = Privilege::current(&ProcRoot::new("/")).map_err(Error::Registry)?;
    if privilege.euid == 0 && privilege.initial_user_namespace {
        return Ok("/run/weir".into());
    }
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_dir()) {
        Some(dir) => Ok(dir.join("weir")),
        None => Ok(format!("/tmp/weir-{}", privilege.euid).into()),
    }
}

/// This user's directory for what must be found again after a crash: the list of labs, and the agents' undo lists. It is
/// made if need be. In `/tmp` anybody may have made it first: then it is not used.
pub fn prepare_directory() -> Result<PathBuf, Error> {
    let directory = directory()?;
    let failed = |e| Error::Registry(weir_sys::Error::new(format!("create {}", directory.display()), e));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(failed)?;
    let found = fs::symlink_metadata(&directory).map_err(failed)?;
    let own = Privilege::current(&ProcRoot::new("/")).map_err(Error::Registry)?.euid;
    if !found.is_dir() || found.uid() != own || found.mode() & 0o022 != 0 {
        let why = std::io::Error::other("it belongs to another user, or others may write there");
        return Err(failed(why));
    }
    Ok(directory)
}
