//! By weir's own BPF filter, pinned so that it outlives the process.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

use weir_bpf::{
    Attached, ProgramFd, XdpMode, detach_pinned, prepare_file_system, program_name, tcx_programs,
};
use weir_filter::{At, Class, Compiled, Direction, Filter, Follower, Options, Status};
use weir_gate::{Found, Kind, Link, Moment, Pins, id_of};
use weir_netlink::Rtnetlink;
use weir_prefix::Ranges;

use crate::error::at;
use crate::kernel::{Held, OnTrial};
use crate::policy::{Action, LINK_V4, LINK_V6, Policy, Xdp};
use crate::{Error, verify};

/// Attachments are named by the place and the number of the interface: `tc-2`.
const PINS: Pins = Pins { part: "allow", programs: &["allow_ingress", "allow_xdp"] };
/// Names of the programs that are attached.
const PROGRAMS: [&str; 4] = ["allow_ingress", "allow_xdp", "gate_tc", "gate_xdp"];
/// One in so many refused packets is remembered.
const SAMPLE: u32 = 1;

/// The place at which a policy's program runs, and its name.
fn place(policy: &Policy) -> (At, &'static str) {
    match policy.xdp {
        None => (At::Tc(Direction::Ingress), "tc"),
        Some(Xdp::Native) => (At::Xdp(XdpMode::Native), "xdp"),
        Some(Xdp::Generic) => (At::Xdp(XdpMode::Generic), "xdp-generic"),
    }
}

/// The classes as the filter has them: the link's own addresses first.
fn tables(policy: &Policy) -> Result<(Compiled, Vec<weir_filter::Action>), Error> {
    let own = Class { v4: Ranges::new(LINK_V4), v6: Ranges::new(LINK_V6) };
    let lists = policy.classes.iter().map(|c| Class { v4: c.v4.clone(), v6: c.v6.clone() });
    let lists: Vec<Class> = std::iter::once(own).chain(lists).collect();
    let of = |action: Action| match action {
        Action::Allow => weir_filter::Action::Allow,
        Action::Drop => weir_filter::Action::Drop,
        Action::Log => weir_filter::Action::Log,
        Action::Mark(mark) => weir_filter::Action::Mark(mark),
    };
    let mut actions = vec![of(policy.rest), weir_filter::Action::Allow];
    actions.extend(policy.classes.iter().map(|c| of(c.action)));
    Ok((Compiled::of(&lists).map_err(Error::Unfit)?, actions))
}

/// Numbers of the policy's interfaces.
///
/// # Errors
/// There is none of a name, or its packets begin where the programs do not look: they read addresses behind an Ethernet header, and
/// of packets without one they would judge other bytes.
pub(crate) fn interfaces(policy: &Policy) -> Result<Vec<u32>, Error> {
    let mut netlink = Rtnetlink::open()?;
    let number = |name: &String| {
        let interface = netlink.interface(name)?;
        if interface.has_ethernet_header() {
            return Ok(interface.index);
        }
        Err(Error::Unfit(format!(
            "interface {name}: packets come in there without an Ethernet header (as by WireGuard, tun, PPP and most tunnels), and the \
             BPF filter finds addresses only behind one; --backend nft or ipset filters there, and so does what `weir allow build \
             --format nft` (or ipset) writes"
        )))
    };
    policy.interfaces.iter().map(number).collect()
}

pub(crate) fn load(policy: &Policy, id: &str, trial_s: Option<u64>) -> Result<(), Error> {
    prepare_file_system()?;
    let interfaces = interfaces(policy)?;
    let (compiled, actions) = tables(policy)?;
    let options = Options { sample: SAMPLE, established_first: policy.established_first };
    let filter = Filter::load_with(&compiled, &actions, options)?;
    for address in verify::samples(policy, verify::MANY) {
        let expected = policy.verdict(address).action == Action::Drop;
        verify::same("the filter throws away", address, expected, filter.drops(address)?)?;
    }
    filter.forget_counts()?;
    let own = PINS.begin(id)?;
    filter.pin(&own)?;
    let (at, place) = place(policy);
    let wanted: Vec<(String, u32)> =
        interfaces.into_iter().map(|index| (format!("{place}-{index}"), index)).collect();
    if let Some(seconds) = trial_s {
        let until = Moment::after(Duration::from_secs(seconds));
        for (name, index) in &wanted {
            let before = attachment(&PINS.link(name)?, *index)?;
            put_gate(name, until, Some(filter.program_at(at)?), before, |gate| at.attach(gate, *index))?;
        }
        return suspend_but(until, |name| wanted.iter().any(|(own, _)| own == name));
    }
    for (name, index) in &wanted {
        match attachment(&PINS.link(name)?, *index)? {
            Some(attached) => filter.replace(&attached, at)?,
            None => filter.attach_apart(*index, at)?.pin(&PINS.link(name)?)?,
        }
    }
    for link in PINS.find()?.links {
        if wanted.iter().all(|(own, _)| *own != link.name) {
            detach_pinned(&PINS.link(&link.name)?)?;
        }
    }
    Ok(PINS.finish(&own)?)
}

/// Returns the attachment of that name on this interface; detaches one of that name on another interface.
fn attachment(link: &Path, interface: u32) -> Result<Option<Attached>, Error> {
    if !link.exists() {
        return Ok(None);
    }
    let attached = Attached::open_pinned(link)?;
    // An interface that is gone leaves its attachment behind, and its number may be another's by now.
    if attached.describe()?.interface == interface {
        return Ok(Some(attached));
    }
    detach_pinned(link)?;
    Ok(None)
}

/// Puts a gate there: to the program on trial until that time, and then to the one that is attached there now.
fn put_gate(
    name: &str,
    until: Moment,
    trial: Option<&ProgramFd>,
    before: Option<Attached>,
    attach: impl FnOnce(&ProgramFd) -> weir_bpf::Result<Attached>,
) -> Result<(), Error> {
    let kind = if name.starts_with("tc") { Kind::Tc } else { Kind::Xdp };
    PINS.put_gate(kind, name, until, trial, before, |gate| Ok(attach(gate)?))
}

/// Everything that is attached is out of effect until that time, but for what has these names.
fn suspend_but(until: Moment, stays: impl Fn(&str) -> bool) -> Result<(), Error> {
    let gone = || weir_bpf::Error::Absent("interface".into());
    for link in PINS.find()?.links.into_iter().filter(|link| link.interface != 0 && !stays(&link.name)) {
        let attached = Attached::find_pinned(&PINS.link(&link.name)?)?;
        put_gate(&link.name, until, None, attached, |_| Err(gone()))?;
    }
    Ok(())
}

/// Suspends the loaded policy for a time, while another back end has a policy on trial.
pub(crate) fn suspend(seconds: u64) -> Result<(), Error> {
    suspend_but(Moment::after(Duration::from_secs(seconds)), |_| false)
}

/// Makes the policy on trial permanent, and removes the suspended one.
pub(crate) fn keep() -> Result<(), Error> {
    Ok(PINS.keep()?)
}

/// Removes the policy on trial, and puts the previous one back into effect.
pub(crate) fn end_trial() -> Result<(), Error> {
    Ok(PINS.end_trial()?)
}

/// Whether a policy is on trial here, and not one of another back end.
fn has_trial(found: &Found) -> bool {
    found.links.iter().any(|link| link.gate.is_some_and(|gate| gate.trial.is_some()))
}

/// Attachments of the policy that was loaded last: with the folder of its tables.
fn upper(found: &Found) -> impl Iterator<Item = (&Link, Option<&Path>)> {
    let has_trial = has_trial(found);
    found.links.iter().filter_map(move |link| match (&link.gate, has_trial) {
        (Some(gate), true) if gate.trial.is_none() => None,
        (Some(_), false) => Some((link, link.before.as_deref())),
        _ => Some((link, link.tables.as_deref())),
    })
}

/// Name of the folder of the tables of a policy.
fn tables_of(found: &Found, id: &str) -> Option<String> {
    let mut used = found.tables.iter().filter(|tables| tables.in_use).map(|tables| &tables.name);
    used.find(|name| id_of(Path::new(name)) == id).cloned()
}

/// Describes the loaded policy in words that do not change by themselves; empty if none is loaded. Reports the one on trial if
/// two policies are loaded.
pub(crate) fn state() -> Result<String, Error> {
    let found = PINS.find()?;
    let mut text = String::new();
    for (link, tables) in upper(&found) {
        let tables = tables.map_or("unknown".into(), id_of);
        let gone = if link.interface == 0 { " gone" } else { "" };
        text.push_str(&format!("bpf {}{gone} {tables}\n", link.name));
    }
    for tables in found.tables.iter().filter(|tables| !tables.in_use) {
        text.push_str(&format!("bpf tables {} unused\n", id_of(Path::new(&tables.name))));
    }
    Ok(text)
}

/// Returns the loaded policies, if any.
pub(crate) fn held() -> Result<Held, Error> {
    let found = PINS.find()?;
    let lasting = |link: &Link| if link.gate.is_none() { link.tables.clone() } else { link.before.clone() };
    let lasting = found.links.iter().find_map(lasting).as_deref().map(id_of);
    let gate = found.links.iter().filter_map(|link| link.gate).max_by_key(|gate| gate.until);
    let policy = found.links.iter().find_map(|link| link.gate.and(link.tables.as_deref())).map(id_of);
    let trial = gate.map(|gate| OnTrial { policy, runs: gate.until.is_ahead() });
    Ok(Held { lasting, trial })
}

/// Interfaces that tables of ours are attached to.
pub(crate) fn attached() -> Result<usize, Error> {
    let found = PINS.find()?;
    Ok(upper(&found).filter(|(link, tables)| link.interface != 0 && tables.is_some()).count())
}

/// Programs of weir that are attached to interfaces here and have no name where this process looks: interface and number. They were
/// pinned in another mount namespace, or with another WEIR_BPF_DIR.
///
/// # Errors
/// If the kernel does not tell.
pub fn strangers() -> Result<Vec<(String, u32)>, Error> {
    let own: Vec<u32> = PINS.find()?.links.iter().map(|link| link.program).collect();
    let mut strangers = Vec::new();
    for link in Rtnetlink::open()?.links()? {
        let programs = tcx_programs(link.index, weir_bpf::Direction::Ingress)?;
        for program in
            programs.into_iter().chain(link.xdp.iter().map(|(_, id)| *id)).filter(|id| !own.contains(id))
        {
            if PROGRAMS.contains(&program_name(program)?.as_str()) {
                strangers.push((link.name.clone(), program));
            }
        }
    }
    Ok(strangers)
}

/// Removes what has no effect: attachments to interfaces that are gone, tables that nothing uses, and a trial that no journal knows.
pub(crate) fn tidy() -> Result<(), Error> {
    end_trial()?;
    for link in PINS.find()?.links {
        if link.interface == 0 {
            detach_pinned(&PINS.link(&link.name)?)?;
        }
    }
    Ok(PINS.clear_unused()?)
}

/// Removes everything of ours, of whatever version, even partial state.
pub(crate) fn unload() -> Result<(), Error> {
    Ok(PINS.unload()?)
}

/// Name of the folder of the tables that are in effect, if any are.
pub(crate) fn in_use() -> Result<Option<String>, Error> {
    // A concurrent replacement may remove tables between the look-up and the open; a second look then finds the new ones.
    let look = || -> Result<Option<String>, Error> {
        let held = held()?;
        let runs = held.trial.filter(|trial| trial.runs);
        let id = runs.map_or(held.lasting, |trial| trial.policy);
        Ok(id.and_then(|id| tables_of(&PINS.find().ok()?, &id)))
    };
    look().or_else(|_| look())
}

/// A reader of the events of the tables of that name.
#[derive(Debug)]
pub(crate) struct Following {
    // Dropped before the lock: first the kernel learns that the reader is gone, then the next reader may start.
    pub(crate) follower: Follower,
    pub(crate) tables: String,
    _lock: File,
}

/// Follows the tables that are attached, if any are.
pub(crate) fn follow() -> Result<Option<Following>, Error> {
    let Some(tables) = in_use()? else { return Ok(None) };
    let path = PINS.folder()?.join(&tables);
    // The folder itself is locked: that ends with the process that holds it, and there is nothing to clear away.
    let lock = File::open(&path).map_err(at(&path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(Error::Busy(
                "another process follows the refused packets (weir allow status --follow), and each event goes to one process".into(),
            ));
        }
        Err(TryLockError::Error(e)) => return Err(at(&path)(e)),
    }
    let follower = Filter::open_pinned(&path)?.follow()?;
    Ok(Some(Following { follower, tables, _lock: lock }))
}

/// The policy's number of one of the filter's classes, of which the second is the link's own.
pub(crate) fn class_number(class: u32) -> usize {
    (class as usize).saturating_sub(1)
}

/// Returns the counters of a policy's filter, and its memory in bytes.
pub(crate) fn status(id: &str) -> Result<Option<(Status, u64)>, Error> {
    let Some(tables) = tables_of(&PINS.find()?, id) else { return Ok(None) };
    let filter = Filter::open_pinned(&PINS.folder()?.join(tables))?;
    Ok(Some((filter.status()?, filter.memory_bytes()?)))
}
