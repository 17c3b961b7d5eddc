//! By weir's own BPF filter, pinned so that it outlives the process.
//!
//! Each loading makes new programs with new tables in a folder of their own, and puts the programs into the place of those that
//! are attached: one step for each interface, whatever version of weir loaded the old ones.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_bpf::{
    Attached, ProgramFd, XdpMode, attach_tcx, attach_xdp, detach_pinned, is_file_system_mounted, make_folder,
    names_in, new_folder, own_folder, prepare_file_system, program_name, remove_folder, tcx_programs,
};
use weir_filter::{At, Class, Compiled, Direction, Filter, Follower, Options, Status};
use weir_gate::{Kind, Moment, Pinned};
use weir_netlink::Rtnetlink;
use weir_prefix::Ranges;

use crate::error::at;
use crate::kernel::{Held, OnTrial};
use crate::policy::{Action, LINK_V4, LINK_V6, Policy, Xdp};
use crate::{Error, verify};

/// Attachments by place, in that folder.
const LINKS: &str = "links";
/// Gates of a trial, by the same names.
const GATES: &str = "trial";
/// Names of the programs that are attached.
const PROGRAMS: [&str; 4] = ["allow_ingress", "allow_xdp", "gate_tc", "gate_xdp"];
/// One in so many refused packets is remembered.
const SAMPLE: u32 = 1;

/// Returns the folder that holds all of weir's objects.
fn folder() -> Result<PathBuf, Error> {
    Ok(own_folder("allow")?)
}

fn place(policy: &Policy) -> At {
    match policy.xdp {
        None => At::Tc(Direction::Ingress),
        Some(Xdp::Native) => At::Xdp(XdpMode::Native),
        Some(Xdp::Generic) => At::Xdp(XdpMode::Generic),
    }
}

fn place_name(policy: &Policy) -> &'static str {
    match policy.xdp {
        None => "tc",
        Some(Xdp::Native) => "xdp",
        Some(Xdp::Generic) => "xdp-generic",
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
    let links = folder()?.join(LINKS);
    make_folder(&links)?;
    clear_tables(|tables| tables.in_use)?;
    let own = new_folder(&folder()?, id)?;
    filter.pin(&own)?;
    let at = place(policy);
    let wanted: Vec<(String, u32)> =
        interfaces.into_iter().map(|index| (format!("{}-{index}", place_name(policy)), index)).collect();
    if let Some(seconds) = trial_s {
        let until = Moment::after(Duration::from_secs(seconds));
        for (name, index) in &wanted {
            let before = attachment(&links.join(name), *index)?;
            put_gate(name, until, Some(filter.program_at(at)?), before, |gate| attach(gate, *index, at))?;
        }
        return suspend_but(until, |name| wanted.iter().any(|(own, _)| own == name));
    }
    for (name, index) in &wanted {
        match attachment(&links.join(name), *index)? {
            Some(attached) => filter.replace(&attached, at)?,
            None => filter.attach_apart(*index, at)?.pin(&links.join(name))?,
        }
    }
    for name in names_in(&links)? {
        if wanted.iter().all(|(own, _)| *own != name) {
            detach_pinned(&links.join(&name))?;
        }
    }
    let own_name = own.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    clear_tables(|tables| tables.name == own_name)
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

fn attach(program: &ProgramFd, interface: u32, at: At) -> weir_bpf::Result<Attached> {
    match at {
        At::Xdp(mode) => attach_xdp(program, interface, mode),
        At::Tc(_) => attach_tcx(program, interface, weir_bpf::Direction::Ingress),
    }
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
    let folder = folder()?;
    weir_gate::put(
        kind,
        until,
        trial,
        before,
        (&folder.join(GATES).join(name), &folder.join(LINKS).join(name)),
        |gate| Ok(attach(gate)?),
    )
}

/// Everything that is attached is out of effect until that time, but for what has these names.
fn suspend_but(until: Moment, stays: impl Fn(&str) -> bool) -> Result<(), Error> {
    let gone = || weir_bpf::Error::Absent("interface".into());
    for link in find()?.links.into_iter().filter(|link| link.interface != 0 && !stays(&link.name)) {
        let attached = Attached::find_pinned(&folder()?.join(LINKS).join(&link.name))?;
        put_gate(&link.name, until, None, attached, |_| Err(gone()))?;
    }
    Ok(())
}

/// Suspends the loaded policy for a time, while another back end has a policy on trial.
pub(crate) fn suspend(seconds: u64) -> Result<(), Error> {
    suspend_but(Moment::after(Duration::from_secs(seconds)), |_| false)
}

/// Puts programs into the places of the gates that lead to them: those on trial, or those before. A gate that leads to none goes.
fn settle(which: impl Fn(&Pinned) -> Option<u32>) -> Result<(), Error> {
    for link in find()?.links {
        let Some(gate) = link.gate else { continue };
        let path = folder()?.join(LINKS).join(&link.name);
        match which(&gate) {
            Some(program) if link.interface != 0 => {
                Attached::open_pinned(&path)?.replace(&ProgramFd::by_number(program)?)?;
            }
            _ => detach_pinned(&path)?,
        }
    }
    let gates = folder()?.join(GATES);
    if gates.is_dir() {
        remove_folder(&gates)?;
    }
    clear_tables(|tables| tables.in_use)
}

/// Makes the policy on trial permanent, and removes the suspended one.
pub(crate) fn keep() -> Result<(), Error> {
    if is_on_trial()? { settle(|gate| gate.trial) } else { Ok(()) }
}

/// Removes the policy on trial, and puts the previous one back into effect.
pub(crate) fn end_trial() -> Result<(), Error> {
    if is_on_trial()? { settle(|gate| gate.before) } else { Ok(()) }
}

fn is_on_trial() -> Result<bool, Error> {
    Ok(is_file_system_mounted()? && folder()?.join(GATES).is_dir())
}

/// Tables that are pinned.
struct Tables {
    /// Name of the folder.
    name: String,
    /// A program of theirs is attached.
    in_use: bool,
}

/// An attachment.
struct Link {
    name: String,
    /// 0: it is gone.
    interface: u32,
    /// Folder of the tables that its program uses; of a gate, those of the program on trial.
    tables: Option<String>,
    /// Those of the program before.
    before: Option<String>,
    gate: Option<Pinned>,
}

/// Attachments, and all folders of tables.
struct Found {
    links: Vec<Link>,
    tables: Vec<Tables>,
}

fn find() -> Result<Found, Error> {
    let mut found = Found { links: Vec::new(), tables: Vec::new() };
    if !is_file_system_mounted()? {
        return Ok(found);
    }
    let folder = folder()?;
    let mut programs = Vec::new();
    for name in names_in(&folder)?.into_iter().filter(|name| name != LINKS && name != GATES) {
        for program in ["allow_ingress", "allow_xdp"] {
            if let Ok(program) = ProgramFd::open_pinned(&folder.join(&name).join(program)) {
                programs.push((program.id()?, name.clone()));
            }
        }
        found.tables.push(Tables { name, in_use: false });
    }
    let mut gates = Vec::new();
    for name in names_in(&folder.join(GATES))? {
        gates.extend(Pinned::open(&folder.join(GATES).join(name))?);
    }
    let of = |number: Option<u32>| {
        programs.iter().find(|(id, _)| Some(*id) == number).map(|(_, name)| name.clone())
    };
    for name in names_in(&folder.join(LINKS))? {
        // Another process may be removing it.
        let Some(attached) = Attached::find_pinned(&folder.join(LINKS).join(&name))? else { continue };
        let attachment = attached.describe()?;
        let gate = gates.iter().find(|gate| gate.program == attachment.program).copied();
        let (tables, before) = match &gate {
            Some(gate) => (of(gate.trial), of(gate.before)),
            None => (of(Some(attachment.program)), None),
        };
        for known in &mut found.tables {
            known.in_use |= [&tables, &before].into_iter().any(|t| t.as_ref() == Some(&known.name));
        }
        found.links.push(Link { name, interface: attachment.interface, tables, before, gate });
    }
    Ok(found)
}

impl Found {
    /// Whether a policy is on trial here, and not one of another back end.
    fn has_trial(&self) -> bool {
        self.links.iter().any(|link| link.gate.is_some_and(|gate| gate.trial.is_some()))
    }

    /// Attachments of the policy that was loaded last: with the folder of its tables.
    fn upper(&self) -> impl Iterator<Item = (&Link, Option<&str>)> {
        let has_trial = self.has_trial();
        self.links.iter().filter_map(move |link| match (&link.gate, has_trial) {
            (Some(gate), true) if gate.trial.is_none() => None,
            (Some(_), false) => Some((link, link.before.as_deref())),
            _ => Some((link, link.tables.as_deref())),
        })
    }

    /// Folder of the tables of a policy.
    fn tables_of(&self, id: &str) -> Option<&str> {
        let mut used = self.tables.iter().filter(|tables| tables.in_use).map(|tables| tables.name.as_str());
        used.find(|name| policy_of(name) == id)
    }
}

/// Removes the tables but for those that are to stay.
fn clear_tables(keep: impl Fn(&Tables) -> bool) -> Result<(), Error> {
    for tables in find()?.tables.iter().filter(|tables| !keep(tables)) {
        remove_folder(&folder()?.join(&tables.name))?;
    }
    Ok(())
}

/// The policy that a folder of tables belongs to.
fn policy_of(tables: &str) -> &str {
    tables.split('-').next().unwrap_or(tables)
}

/// Describes the loaded policy in words that do not change by themselves; empty if none is loaded. Reports the one on trial if
/// two policies are loaded.
pub(crate) fn state() -> Result<String, Error> {
    let found = find()?;
    let mut text = String::new();
    for (link, tables) in found.upper() {
        let tables = tables.map_or("unknown", policy_of);
        let gone = if link.interface == 0 { " gone" } else { "" };
        text.push_str(&format!("bpf {}{gone} {tables}\n", link.name));
    }
    for tables in found.tables.iter().filter(|tables| !tables.in_use) {
        text.push_str(&format!("bpf tables {} unused\n", policy_of(&tables.name)));
    }
    Ok(text)
}

/// Returns the loaded policies, if any.
pub(crate) fn held() -> Result<Held, Error> {
    let found = find()?;
    let name = |tables: Option<&String>| tables.map(|tables| policy_of(tables).to_owned());
    let lasting = found.links.iter().find_map(|link| match link.gate {
        None => name(link.tables.as_ref()),
        Some(_) => name(link.before.as_ref()),
    });
    let gate = found.links.iter().filter_map(|link| link.gate).max_by_key(|gate| gate.until);
    let policy = found.links.iter().find_map(|link| link.gate.and_then(|_| name(link.tables.as_ref())));
    let trial = gate.map(|gate| OnTrial { policy, runs: gate.until.is_ahead() });
    Ok(Held { lasting, trial })
}

/// Interfaces that tables of ours are attached to.
pub(crate) fn attached() -> Result<usize, Error> {
    let found = find()?;
    Ok(found.upper().filter(|(link, tables)| link.interface != 0 && tables.is_some()).count())
}

/// Programs of weir that are attached to interfaces here and have no name where this process looks: interface and number. They were
/// pinned in another mount namespace, or with another WEIR_BPF_DIR.
///
/// # Errors
/// If the kernel does not tell.
pub fn strangers() -> Result<Vec<(String, u32)>, Error> {
    let mut own = Vec::new();
    if is_file_system_mounted()? {
        for name in names_in(&folder()?.join(LINKS))? {
            if let Some(attached) = Attached::find_pinned(&folder()?.join(LINKS).join(name))? {
                own.push(attached.describe()?.program);
            }
        }
    }
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
    for link in find()?.links {
        if link.interface == 0 {
            detach_pinned(&folder()?.join(LINKS).join(link.name))?;
        }
    }
    clear_tables(|tables| tables.in_use)
}

/// Removes everything of ours, of whatever version, even partial state.
pub(crate) fn unload() -> Result<(), Error> {
    if !is_file_system_mounted()? {
        return Ok(());
    }
    let folder = folder()?;
    let links = folder.join(LINKS);
    let mut outcome = Ok(());
    for name in names_in(&links)? {
        outcome = outcome.and(detach_pinned(&links.join(name)).map_err(Error::from));
    }
    for tables in names_in(&folder)? {
        remove_folder(&folder.join(tables))?;
    }
    for path in [folder.as_path(), folder.parent().unwrap_or(Path::new("/"))] {
        // Not ours alone: something else of weir may be in it.
        let _ = fs::remove_dir(path);
    }
    outcome
}

/// Name of the folder of the tables that are in effect, if any are.
pub(crate) fn in_use() -> Result<Option<String>, Error> {
    // A concurrent replacement may remove tables between the look-up and the open; a second look then finds the new ones.
    let look = || -> Result<Option<String>, Error> {
        let held = held()?;
        let runs = held.trial.filter(|trial| trial.runs);
        let id = runs.map_or(held.lasting, |trial| trial.policy);
        Ok(id.and_then(|id| find().ok()?.tables_of(&id).map(str::to_owned)))
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
    let path = folder()?.join(&tables);
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
    let found = find()?;
    let Some(tables) = found.tables_of(id) else { return Ok(None) };
    let filter = Filter::open_pinned(&folder()?.join(tables))?;
    Ok(Some((filter.status()?, filter.memory_bytes()?)))
}
