//! By weir's own BPF filter, pinned so that it outlives the process.
//!
//! Each loading makes new programs with new tables in a folder of their own, and puts the programs into the place of those that
//! are attached: one step for each interface, whatever version of weir loaded the old ones.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use weir_bpf::{
    Attached, BPF_FILE_SYSTEM, ProgramFd, XdpMode, detach_pinned, is_bpf_file_system, make_folder,
    mount_bpf_file_system, names_in, new_folder, remove_folder,
};
use weir_filter::{At, Class, Compiled, Direction, Filter, Follower, Options, Status};
use weir_prefix::Ranges;
use weir_sys::netlink::Rtnetlink;

use crate::error::at;
use crate::policy::{Action, LINK_V4, LINK_V6, Policy, Xdp};
use crate::{Error, verify};

/// Where everything of ours is.
const FOLDER: &str = "/sys/fs/bpf/weir/allow";
/// Attachments by place, in that folder.
const LINKS: &str = "links";
/// One in so many refused packets is remembered.
const SAMPLE: u32 = 1;

fn folder() -> PathBuf {
    PathBuf::from(FOLDER)
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

pub(crate) fn load(policy: &Policy, id: &str) -> Result<(), Error> {
    mount_bpf_file_system()?;
    let interfaces = interfaces(policy)?;
    let (compiled, actions) = tables(policy)?;
    let options = Options { sample: SAMPLE, established_first: policy.established_first };
    let filter = Filter::load_with(&compiled, &actions, options)?;
    for address in verify::samples(policy, verify::MANY) {
        let expected = policy.verdict(address).action == Action::Drop;
        verify::same("the filter throws away", address, expected, filter.drops(address)?)?;
    }
    filter.forget_counts()?;
    let links = folder().join(LINKS);
    make_folder(&links)?;
    clear_tables(|tables| tables.in_use)?;
    let own = new_folder(&folder(), id)?;
    filter.pin(&own)?;
    let mut wanted = Vec::new();
    for index in interfaces {
        let name = format!("{}-{index}", place_name(policy));
        put_in_place(&filter, &links.join(&name), index, place(policy))?;
        wanted.push(name);
    }
    for name in names_in(&links)? {
        if !wanted.contains(&name) {
            detach_pinned(&links.join(&name))?;
        }
    }
    let own_name = own.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    clear_tables(|tables| tables.name == own_name)
}

/// Attaches it there, in the place of the one that is there.
fn put_in_place(filter: &Filter, link: &Path, interface: u32, at: At) -> Result<(), Error> {
    if link.exists() {
        let attached = Attached::open_pinned(link)?;
        // An interface that is gone leaves its attachment behind, and its number may be another's by now.
        if attached.describe()?.interface == interface {
            return Ok(filter.replace(&attached, at)?);
        }
        detach_pinned(link)?;
    }
    Ok(filter.attach_apart(interface, at)?.pin(link)?)
}

/// Tables that are pinned.
struct Tables {
    /// Name of the folder.
    name: String,
    /// A program of theirs is attached.
    in_use: bool,
}

/// Attachments by name, with the folder of the tables that they use; and all folders of tables.
struct Found {
    links: Vec<(String, u32, Option<String>)>,
    tables: Vec<Tables>,
}

fn find() -> Result<Found, Error> {
    let mut found = Found { links: Vec::new(), tables: Vec::new() };
    if !Path::new(BPF_FILE_SYSTEM).is_dir() || !is_bpf_file_system(Path::new(BPF_FILE_SYSTEM))? {
        return Ok(found);
    }
    let mut programs = Vec::new();
    for name in names_in(&folder())?.into_iter().filter(|name| name != LINKS) {
        for program in ["allow_ingress", "allow_xdp"] {
            if let Ok(program) = ProgramFd::open_pinned(&folder().join(&name).join(program)) {
                programs.push((program.id()?, name.clone()));
            }
        }
        found.tables.push(Tables { name, in_use: false });
    }
    for name in names_in(&folder().join(LINKS))? {
        // Somebody may be taking it away.
        let Some(attached) = Attached::find_pinned(&folder().join(LINKS).join(&name))? else { continue };
        let attachment = attached.describe()?;
        let tables = programs.iter().find(|(id, _)| *id == attachment.program).map(|(_, name)| name.clone());
        for known in &mut found.tables {
            known.in_use |= tables.as_ref() == Some(&known.name);
        }
        found.links.push((name, attachment.interface, tables));
    }
    Ok(found)
}

/// Removes the tables but for those that are to stay.
fn clear_tables(keep: impl Fn(&Tables) -> bool) -> Result<(), Error> {
    for tables in find()?.tables.iter().filter(|tables| !keep(tables)) {
        remove_folder(&folder().join(&tables.name))?;
    }
    Ok(())
}

/// The policy that a folder of tables belongs to.
fn policy_of(tables: &str) -> &str {
    tables.split('-').next().unwrap_or(tables)
}

/// What is loaded, in words that do not change by themselves; empty if nothing is.
pub(crate) fn state() -> Result<String, Error> {
    let found = find()?;
    let mut text = String::new();
    for (name, interface, tables) in &found.links {
        let tables = tables.as_deref().map_or("unknown", policy_of);
        let gone = if *interface == 0 { " gone" } else { "" };
        text.push_str(&format!("bpf {name}{gone} {tables}\n"));
    }
    for tables in found.tables.iter().filter(|tables| !tables.in_use) {
        text.push_str(&format!("bpf tables {} unused\n", policy_of(&tables.name)));
    }
    Ok(text)
}

/// The policy that is loaded, if one is.
pub(crate) fn loaded_id() -> Result<Option<String>, Error> {
    let found = find()?;
    Ok(found.links.iter().find_map(|(_, _, tables)| tables.as_deref().map(|t| policy_of(t).to_owned())))
}

/// Interfaces that tables of ours are attached to.
pub(crate) fn attached() -> Result<usize, Error> {
    Ok(find()?.links.iter().filter(|(_, interface, tables)| *interface != 0 && tables.is_some()).count())
}

/// Removes what has no effect: attachments to interfaces that are gone, and tables that nothing uses.
pub(crate) fn tidy() -> Result<(), Error> {
    for (name, interface, _) in find()?.links {
        if interface == 0 {
            detach_pinned(&folder().join(LINKS).join(name))?;
        }
    }
    clear_tables(|tables| tables.in_use)
}

/// Takes everything of ours away, of whatever version, whatever there is of it.
pub(crate) fn unload() -> Result<(), Error> {
    if !Path::new(BPF_FILE_SYSTEM).is_dir() || !is_bpf_file_system(Path::new(BPF_FILE_SYSTEM))? {
        return Ok(());
    }
    let links = folder().join(LINKS);
    let mut outcome = Ok(());
    for name in names_in(&links)? {
        outcome = outcome.and(detach_pinned(&links.join(name)).map_err(Error::from));
    }
    for tables in names_in(&folder())? {
        remove_folder(&folder().join(tables))?;
    }
    for path in [folder(), PathBuf::from("/sys/fs/bpf/weir")] {
        // Not ours alone: something else of weir may be in it.
        let _ = fs::remove_dir(path);
    }
    outcome
}

/// Name of the folder of the tables that are attached, if any are.
pub(crate) fn in_use() -> Result<Option<String>, Error> {
    // What is replaced just then may vanish between looking and opening; then there is something else to see.
    let found = find().or_else(|_| find())?;
    Ok(found.tables.into_iter().find(|tables| tables.in_use).map(|tables| tables.name))
}

/// A reader of the events of the tables of that name.
#[derive(Debug)]
pub(crate) struct Following {
    // Before the lock: the kernel is told that nobody reads any more, and then the next one may come.
    pub(crate) follower: Follower,
    pub(crate) tables: String,
    _lock: File,
}

/// Follows the tables that are attached, if any are.
pub(crate) fn follow() -> Result<Option<Following>, Error> {
    let Some(tables) = in_use()? else { return Ok(None) };
    let path = folder().join(&tables);
    // The folder itself is locked: that ends with the process that holds it, and there is nothing to clear away.
    let lock = File::open(&path).map_err(at(&path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(Error::Busy(
                "somebody else follows what is refused (weir allow status --follow), and each event is told once".into(),
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

/// What the filter that is attached says, and its memory in bytes.
pub(crate) fn status() -> Result<Option<(Status, u64)>, Error> {
    let found = find()?;
    let Some(tables) = found.tables.iter().find(|tables| tables.in_use) else { return Ok(None) };
    let filter = Filter::open_pinned(&folder().join(&tables.name))?;
    Ok(Some((filter.status()?, filter.memory_bytes()?)))
}
