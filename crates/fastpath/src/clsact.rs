//! The programs at an interface of a kernel without TCX (before Linux 6.6): as filters of the qdisc `clsact`, behind all others.
//!
//! Such filters outlive their process. Then its lease has ended, and they let every packet go the kernel's way, until they are found by
//! their names and removed: by the next start, and by `weir fastpath remove`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_bpf::ProgramFd;
use weir_netlink::{EGRESS_HOOK, Filter, INGRESS_HOOK, Link, Rtnetlink};

use crate::{Error, Result};

/// The last preference: filters before it decide first, as without us.
const PREFERENCE: u16 = u16::MAX;
/// The names of the filters; the programs have the same ones.
const CARRIES: &str = "fastpath_in";
const LEARNS: &str = "fastpath_out";
/// Behind the name of a filter whose qdisc was made for it, and goes with it.
const OWN_QDISC: &str = "+clsact";

/// Both programs at one interface. Dropping it removes them, and the qdisc if it was made for them.
#[derive(Debug)]
pub(crate) struct Filters {
    interface: u32,
    /// In the interface's namespace, wherever this is dropped.
    net: Mutex<Rtnetlink>,
}

impl Filters {
    pub(crate) fn attach(carries: &ProgramFd, learns: &ProgramFd, interface: u32) -> Result<Self> {
        let mut net = Rtnetlink::open()?;
        // Those of a process that was killed.
        remove(&mut net, interface)?;
        let suffix = if net.add_clsact(interface)? { OWN_QDISC } else { "" };
        let filters = Filters { interface, net: Mutex::new(net) };
        for (hook, name, program) in [(EGRESS_HOOK, LEARNS, learns), (INGRESS_HOOK, CARRIES, carries)] {
            let name = format!("{name}{suffix}");
            filters.net().add_program(interface, hook, PREFERENCE, &name, program.fd())?;
        }
        Ok(filters)
    }

    fn net(&self) -> MutexGuard<'_, Rtnetlink> {
        self.net.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether both are there.
    pub(crate) fn are_there(&self) -> Result<bool> {
        let mut net = self.net();
        Ok(there(&mut net, self.interface)?.iter().all(|(_, filter)| filter.is_some()))
    }

    /// Whether both are there, and no filter comes behind the one that carries.
    pub(crate) fn are_last(&self) -> Result<bool> {
        if !self.are_there()? {
            return Ok(false);
        }
        let filters = self.net().filters(self.interface, INGRESS_HOOK)?;
        Ok(filters.last().is_some_and(is_own))
    }
}

impl Drop for Filters {
    fn drop(&mut self) {
        // Without the interface there is nothing to remove. Otherwise the next start does it.
        let _ = remove(&mut self.net(), self.interface);
    }
}

/// True of a filter of ours, also of an ended process.
pub(crate) fn is_own(filter: &Filter) -> bool {
    let name = filter.program.as_ref().map_or("", |(_, name)| name);
    let name = name.strip_suffix(OWN_QDISC).unwrap_or(name);
    filter.preference == u32::from(PREFERENCE) && [CARRIES, LEARNS].contains(&name)
}

/// The filters of ours at both hooks.
fn there(net: &mut Rtnetlink, interface: u32) -> Result<[(u32, Option<Filter>); 2]> {
    let mut at = |hook| -> Result<_> { Ok((hook, net.filters(interface, hook)?.into_iter().find(is_own))) };
    Ok([at(INGRESS_HOOK)?, at(EGRESS_HOOK)?])
}

/// Removes the filters of ours from an interface, and the qdisc that was made for them unless others use it by now. True if there were
/// any.
fn remove(net: &mut Rtnetlink, interface: u32) -> Result<bool> {
    let found = there(net, interface)?;
    let mut own_qdisc = false;
    for (hook, filter) in &found {
        let Some(filter) = filter else { continue };
        own_qdisc |= filter.program.as_ref().is_some_and(|(_, name)| name.ends_with(OWN_QDISC));
        net.remove_program(interface, *hook, PREFERENCE)?;
    }
    if own_qdisc
        && net.filters(interface, INGRESS_HOOK)?.is_empty()
        && net.filters(interface, EGRESS_HOOK)?.is_empty()
    {
        net.remove_clsact(interface)?;
    }
    Ok(found.iter().any(|(_, filter)| filter.is_some()))
}

/// Interfaces of the calling thread's namespace with filters of ours.
fn marked(net: &mut Rtnetlink) -> Result<Vec<Link>> {
    let disciplines = net.queueing_disciplines()?;
    let mut links = net.links()?;
    links.retain(|link| disciplines.iter().any(|q| q.interface == link.index && q.kind == "clsact"));
    let mut found = Vec::new();
    for link in links {
        if there(net, link.index)?.iter().any(|(_, filter)| filter.is_some()) {
            found.push(link);
        }
    }
    Ok(found)
}

/// Names of the interfaces of the calling thread's namespace that a fast path has left filters at, if none is in effect there: its process
/// was killed, on a kernel without TCX. They carry nothing.
///
/// # Errors
/// If the kernel does not tell.
pub fn leftovers() -> Result<Vec<String>> {
    let mut net = Rtnetlink::open()?;
    Ok(marked(&mut net)?.into_iter().map(|link| link.name).collect())
}

/// Removes them. Only where no fast path is in effect: it would lose its programs.
///
/// # Errors
/// If the kernel refuses.
pub fn remove_leftovers() -> Result<()> {
    let mut net = Rtnetlink::open()?;
    for link in marked(&mut net)? {
        remove(&mut net, link.index)
            .map_err(|e| Error::State(format!("filters at {}: {e}", link.name.escape_default())))?;
    }
    Ok(())
}
