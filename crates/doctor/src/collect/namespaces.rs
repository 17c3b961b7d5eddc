//! Which network namespaces there are, and what people call them.
//!
//! The kernel has no list of namespaces: one exists as long as a process runs in it, a name is bound to it, or a process holds a
//! descriptor. The search covers these in this order.

mod containers;
mod local;
mod mounts;
mod processes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use weir_sys::{Error, NetNs, ProcRoot, Result};
use weir_text::order;

use super::Scope;
use containers::Containers;
use mounts::Mounts;

pub use local::{LocalSockets, Looked};

/// A namespace to look at.
#[derive(Debug, Clone)]
pub struct Found {
    /// Inode.
    pub id: u64,
    /// Name; text from outside.
    pub name: String,
    /// The calling thread's.
    pub own: bool,
    /// The way in; `None` where one is in already, or where `shut` says why there is none.
    pub handle: Option<NetNs>,
    /// The path by which it was opened.
    pub path: Option<PathBuf>,
    /// Why it cannot be entered.
    pub shut: Option<String>,
}

impl Found {
    /// Runs `f` in it.
    ///
    /// # Errors
    /// If it cannot be entered.
    pub(super) fn inside<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        match (&self.handle, &self.shut) {
            (Some(handle), _) => handle.run(f),
            (None, Some(why)) => Err(Error::other("enter a network namespace", why.as_str())),
            // The thread's own: entering it needs privilege, being there does not.
            (None, None) => Ok(f()),
        }
    }
}

/// The known facts of a namespace.
#[derive(Debug, Default)]
struct Traces {
    /// Processes that run in it, ascending.
    pids: Vec<u32>,
    /// Names bound to it.
    names: Vec<PathBuf>,
    /// A process that holds a descriptor of it: pid and number.
    held: Option<(u32, u32)>,
}

/// Those of the scope, the own one first and the others by their names.
pub(super) fn find(root: &ProcRoot, scope: &Scope) -> Result<Vec<Found>> {
    let own = NetNs::current()?.inode()?;
    let host = processes::host(root);
    let of_own = || {
        let name = if host == Some(own) { "host" } else { "this namespace" };
        Found { id: own, name: name.into(), own: true, handle: None, path: None, shut: None }
    };
    match scope {
        Scope::These(given) => {
            let found = |(name, handle): &(String, NetNs)| {
                let id = handle.inode()?;
                let (name, own, handle) = (name.clone(), id == own, Some(handle.clone()));
                Ok(Found { id, name, own, handle, path: None, shut: None })
            };
            given.iter().map(found).collect()
        }
        Scope::Own => Ok(vec![of_own()]),
        Scope::Machine => {
            let traces = look(root);
            let mut containers = Containers::new(root);
            let mut others: Vec<Found> = Vec::new();
            let mut first = of_own();
            for (id, traces) in &traces {
                let name =
                    if host == Some(*id) { "host".to_owned() } else { name(root, traces, &mut containers) };
                if *id == own {
                    first.name = name;
                } else {
                    others.push(open(root, *id, name, traces));
                }
            }
            order::by(&mut others, |a, b| {
                (a.name != "host", &a.name, a.id).cmp(&(b.name != "host", &b.name, b.id))
            });
            others.insert(0, first);
            Ok(others)
        }
    }
}

/// Names of namespaces that were not there when the window began, or cannot be seen from here (those of another container).
pub(super) fn late(root: &ProcRoot, ids: &BTreeSet<u64>) -> Vec<(u64, String)> {
    if ids.is_empty() {
        return Vec::new();
    }
    let traces = look(root);
    let mut containers = Containers::new(root);
    let mut called = |id: &u64| match traces.get(id) {
        Some(traces) => name(root, traces, &mut containers),
        None => format!("a namespace that is gone or not to be seen from here (net:[{id}])"),
    };
    ids.iter().map(|id| (*id, called(id))).collect()
}

/// Everything that says that a namespace is there, by inode.
fn look(root: &ProcRoot) -> BTreeMap<u64, Traces> {
    let mut all: BTreeMap<u64, Traces> = BTreeMap::new();
    let pids = processes::all(root);
    for pid in &pids {
        if let Some(id) = processes::namespace_of(root, *pid) {
            all.entry(id).or_default().pids.push(*pid);
        }
    }
    for (id, path) in Mounts::read(root).0 {
        all.entry(id).or_default().names.push(path);
    }
    for (id, pid, fd) in processes::held(root, &pids) {
        all.entry(id).or_default().held.get_or_insert((pid, fd));
    }
    all
}

/// The name that people use for it.
fn name(root: &ProcRoot, traces: &Traces, containers: &mut Containers<'_>) -> String {
    let given = |path: &PathBuf| mounts::name_of(path);
    let names: Vec<mounts::Name> = traces.names.iter().filter_map(given).collect();
    let chosen = names.iter().find(|n| n.by_people);
    if let Some(name) = chosen {
        return format!("netns {}", name.text);
    }
    // A process that entered it from outside has another control group; the first process is most often its own.
    if let Some(container) = traces.pids.iter().take(4).find_map(|pid| containers.of(*pid)) {
        return container;
    }
    if let Some(name) = names.first() {
        return format!("netns {}", name.text);
    }
    let process = |pid: u32| processes::name(root, pid).unwrap_or_else(|| "process".into());
    match (traces.pids.first(), traces.held) {
        (Some(pid), _) => format!("{} (pid {pid})", process(*pid)),
        (None, Some((pid, fd))) => format!("held by {} (pid {pid}, descriptor {fd})", process(pid)),
        // Bound to a path that is no name.
        (None, None) => traces.names.first().map_or_else(String::new, |p| p.display().to_string()),
    }
}

/// Opens it by whatever leads there.
fn open(root: &ProcRoot, id: u64, name: String, traces: &Traces) -> Found {
    let pids = traces.pids.iter().map(|pid| root.path(&format!("proc/{pid}/ns/net")));
    let held = traces.held.map(|(pid, fd)| root.path(&format!("proc/{pid}/fd/{fd}")));
    let names = traces.names.iter().cloned();
    let mut why = None;
    for path in pids.take(4).chain(names).chain(held) {
        match NetNs::open(&path).and_then(|handle| Ok((handle.inode()?, handle))) {
            Ok((inode, handle)) if inode == id => {
                return Found { id, name, own: false, handle: Some(handle), path: Some(path), shut: None };
            }
            // The process has ended, and its number is another's.
            Ok(_) => {}
            Err(e) => why = Some(e.to_string()),
        }
    }
    let shut = why.unwrap_or_else(|| "it is gone".into());
    Found { id, name, own: false, handle: None, path: None, shut: Some(shut) }
}
