//! Mappings that outlive the process that loaded them: programs, tables and attachments with names in the BPF file system.
//!
//! Each load makes new programs with new tables, in a folder of its own, and replaces the attached programs with them. Each hook
//! has the old program or the new one, never none. If a kill interrupts this, [`state`] shows that the result is incomplete;
//! [`load`] and [`unload`] start from any state.

use std::path::Path;
use std::time::Duration;

use weir_bpf::{
    Attached, Direction as Hook, Map, ProgramFd, attach_tcx, detach_pinned, make_folder, prepare_file_system,
    program_name, tcx_programs,
};
use weir_gate::{Kind, Link, Moment, Pins, Tables, id_of};
use weir_text::order;

use crate::mapping::read_back;
use crate::publish::{OBJECT, counted, named};
use crate::shared::{WeirEnd4, WeirEnd6, WeirOther4, WeirOther6};
use crate::wanted::{Container, Wanted};
use crate::{Direction, Error, Mapping, Publish, Result, Status};

/// A loading has a folder for each container in its own. Attachments are named `in-` and `out-` with the number of the container's link:
/// the first ones by name take what comes in, and they go first, so that nothing is translated without the way back.
const PINS: Pins = Pins { part: "publish", programs: &["publish_in", "publish_out"] };
/// Tables that are read back.
const TABLES: [&str; 3] = ["in4", "in6", "counts"];
const BOTH: [Direction; 2] = [Direction::In, Direction::Out];

/// Attachment of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// At the interface of that number.
    At(u32),
    /// Its interface is gone, and took it along.
    Gone,
    /// It is attached to nothing: a process was killed on the way, or another program detached it.
    Missing,
}

/// A container's mappings in the kernel.
#[derive(Debug, Clone)]
pub struct Pinned {
    /// Name of what they were loaded by ([`Wanted::id`]); empty if the tables are gone.
    pub id: String,
    /// Number that the host's end of the container's link had.
    pub link: u32,
    /// The mappings, as the tables have them.
    pub mappings: Vec<Mapping>,
    /// The program for what clients send.
    pub outer: Attachment,
    /// The program for what the container sends.
    pub container: Attachment,
    /// The counters; `None` for tables of another version of weir, which counts otherwise.
    pub counted: Option<Status>,
}

impl Pinned {
    /// Whether both programs are where they were attached.
    pub fn is_attached(&self) -> bool {
        [self.outer, self.container].iter().all(|at| matches!(at, Attachment::At(_)))
    }
}

fn link_name(direction: Direction, container: u32) -> String {
    match direction {
        Direction::In => format!("in-{container}"),
        Direction::Out => format!("out-{container}"),
    }
}

/// Which tables can be read: only programs that are the same count the same.
fn format() -> String {
    weir_guard::fingerprint(&String::from_utf8_lossy(OBJECT))[..8].to_owned()
}

/// Whether tables are of the programs of this version of weir.
fn is_of_this_version(tables: &Path) -> bool {
    let name = tables.iter().next().unwrap_or_default().to_string_lossy();
    name.contains(&format!("-{}-", format()))
}

/// The kernel ends a trial so much later than the guards: they are first unless they were killed.
const MARGIN: Duration = Duration::from_secs(1);

/// Puts mappings into effect, in the place of those that are: for good, or on trial for a time and a second more. The kernel ends that
/// unless [`keep`] comes before, and goes back to what was there. The programs are loaded and accepted before the first of those that
/// are there is touched. A trial that is under way ends first.
///
/// # Errors
/// If an interface is no longer the intended one, something is missing here, or the kernel refuses. If this happens during the
/// replacement of programs, some of them may be in place already: the caller restores the old ones, or calls [`unload`].
pub fn load(wanted: &Wanted, trial: Option<Duration>) -> Result<()> {
    prepare_file_system()?;
    // Programs on trial go, and the previous ones are restored.
    PINS.end_trial()?;
    if trial.is_none() && is_whole(wanted)? {
        return Ok(PINS.clear_unused()?);
    }
    let mut loaded = Vec::new();
    for container in &wanted.containers {
        let interfaces = wanted.links(container)?;
        loaded.push((container, Publish::load(&container.mappings, interfaces)?));
    }
    let own = PINS.begin(&format!("{}-{}", wanted.id(), format()))?;
    for (container, publish) in &loaded {
        pin(publish, &own.join(container.index.to_string()))?;
    }
    crate::step::passed();
    let until = trial.map(|time| Moment::after(time + MARGIN));
    // An attachment whose interface is gone, or is another one now, is in the way of the new ones: the program at the outer
    // interface still takes packets for a container that is not there.
    let mut resting = Vec::new();
    for Half { direction, container, link } in find()?.halves {
        let meant = wanted.containers.iter().find(|c| c.index == container);
        match meant.map(|c| place(wanted, c, direction)) {
            Some(place) if place == link.interface => {}
            None if until.is_some() && link.interface != 0 => resting.push(link),
            _ => detach_pinned(&PINS.link(&link.name)?)?,
        }
    }
    for (container, publish) in &loaded {
        // Connections that are already open use connection tracking until both programs are in place. In between, an answer
        // unknown to connection tracking leaves untranslated and is sent again. In the reverse order, connection tracking would
        // miss answers and treat their acknowledgements as invalid. Those are not translated either, and the host resets the
        // connection.
        for direction in BOTH {
            let interface = place(wanted, container, direction);
            let name = link_name(direction, container.index);
            put_in_place(&publish.program(direction)?, &name, interface, until)?;
            crate::step::passed();
        }
    }
    if let Some(until) = until {
        for link in &resting {
            put_gate(&link.name, None, link.interface, until)?;
        }
    }
    // Not before: a connection that begins until both are there is tracked, too.
    crate::open::let_go_on(wanted)?;
    if until.is_some() {
        return Ok(());
    }
    Ok(PINS.finish(&own)?)
}

/// Makes the programs on trial permanent, and removes those that they replaced. Does nothing if nothing is on trial.
///
/// # Errors
/// If the kernel refuses.
pub fn keep() -> Result<()> {
    Ok(PINS.keep()?)
}

/// The interface at which a program belongs.
fn place(wanted: &Wanted, container: &Container, direction: Direction) -> u32 {
    match direction {
        Direction::In => wanted.outer_index,
        Direction::Out => container.index,
    }
}

fn pin(publish: &Publish, folder: &Path) -> Result<()> {
    make_folder(folder)?;
    for name in TABLES {
        publish.object().map(name)?.pin(&folder.join(name))?;
    }
    for direction in BOTH {
        publish.program(direction)?.pin(&folder.join(direction.program()))?;
    }
    Ok(())
}

/// Attaches it there, in the place of the one that is there; before it, while it is on trial.
fn put_in_place(program: &ProgramFd, name: &str, interface: u32, until: Option<Moment>) -> Result<()> {
    if let Some(until) = until {
        return put_gate(name, Some(program), interface, until);
    }
    let path = PINS.link(name)?;
    if path.exists() {
        return Ok(Attached::open_pinned(&path)?.replace(program)?);
    }
    Ok(attach_tcx(program, interface, Hook::Ingress).map_err(named)?.pin(&path)?)
}

/// Puts a gate there: to the program on trial until that time, and then to the one that is attached there now.
fn put_gate(name: &str, trial: Option<&ProgramFd>, interface: u32, until: Moment) -> Result<()> {
    let path = PINS.link(name)?;
    let before = if path.exists() { Some(Attached::open_pinned(&path)?) } else { None };
    PINS.put_gate(Kind::Tc, name, until, trial, before, |gate| {
        attach_tcx(gate, interface, Hook::Ingress).map_err(named)
    })
}

/// One of the two attachments of a container.
struct Half {
    direction: Direction,
    /// Number of the container's link.
    container: u32,
    link: Link,
}

impl Half {
    /// From its name; `None` for a name that is none of ours.
    fn of(link: Link) -> Option<Self> {
        let (direction, container) = match link.name.split_once('-')? {
            ("in", number) => (Direction::In, number.parse().ok()?),
            ("out", number) => (Direction::Out, number.parse().ok()?),
            _ => return None,
        };
        Some(Half { direction, container, link })
    }
}

struct Found {
    halves: Vec<Half>,
    tables: Vec<Tables>,
}

fn find() -> Result<Found> {
    let weir_gate::Found { links, tables } = PINS.find()?;
    Ok(Found { halves: links.into_iter().filter_map(Half::of).collect(), tables })
}

impl Found {
    /// Attachments that were loaded last, with the folder of their tables.
    fn upper(&self) -> impl Iterator<Item = (&Half, Option<&Path>)> {
        let halves = self.halves.iter().filter(|half| half.link.gate.is_none_or(|gate| gate.trial.is_some()));
        halves.map(|half| (half, half.link.tables.as_deref()))
    }

    /// Attachments that are in effect, likewise: when the time of a trial is over, those before it.
    fn effective(&self) -> impl Iterator<Item = (&Half, Option<&Path>)> {
        self.halves.iter().filter_map(|half| {
            let Link { tables, before, gate, .. } = &half.link;
            match gate {
                None => Some((half, tables.as_deref())),
                Some(gate) if gate.until.is_ahead() => gate.trial.map(|_| (half, tables.as_deref())),
                Some(gate) => gate.before.map(|_| (half, before.as_deref())),
            }
        })
    }
}

/// Describes weir's programs and tables in the kernel, in words that do not change by themselves, also when an interface goes;
/// empty without any.
///
/// # Errors
/// If the kernel does not tell.
pub fn state() -> Result<String> {
    let found = find()?;
    let mut text = String::new();
    for (half, tables) in found.upper() {
        let id = tables.map_or("unknown".into(), id_of);
        text.push_str(&format!("{} {id}\n", half.link.name));
    }
    for tables in found.tables.iter().filter(|tables| !tables.in_use) {
        text.push_str(&format!("tables {} unused\n", id_of(Path::new(&tables.name))));
    }
    Ok(text)
}

/// Returns the id under which the attached programs were loaded, if any are attached.
///
/// # Errors
/// If the kernel does not tell.
pub fn loaded_id() -> Result<Option<String>> {
    Ok(find()?.effective().find_map(|(_, tables)| tables.map(id_of)))
}

/// Whether everything is in the kernel that is wanted, by programs of this version of weir, and nothing else.
///
/// # Errors
/// If the kernel does not tell.
pub fn is_whole(wanted: &Wanted) -> Result<bool> {
    let found = find()?;
    let id = wanted.id();
    let is_there = |container: &Container, direction| {
        found.upper().any(|(half, tables)| {
            (half.container, half.direction) == (container.index, direction)
                && half.link.interface == place(wanted, container, direction)
                && tables.is_some_and(|tables| id_of(tables) == id && is_of_this_version(tables))
        })
    };
    let all = wanted.containers.iter().all(|c| BOTH.iter().all(|direction| is_there(c, *direction)));
    Ok(all && found.upper().count() == 2 * wanted.containers.len())
}

/// Returns the loaded mappings without containers whose interfaces are gone or were made anew; `None` if no container is left.
///
/// # Errors
/// If the kernel does not tell.
pub fn alive(wanted: &Wanted) -> Result<Option<Wanted>> {
    let mut left = wanted.clone();
    left.containers.clear();
    for container in &wanted.containers {
        match wanted.links(container) {
            Ok(_) => left.containers.push(container.clone()),
            Err(Error::Link(_)) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(Some(left).filter(|left| !left.containers.is_empty()))
}

/// Each container's mappings that are in the kernel, by the number of its link.
///
/// # Errors
/// If the kernel does not tell.
pub fn loaded() -> Result<Vec<Pinned>> {
    let found = find()?;
    let containers = order::set(found.effective().map(|(half, _)| half.container));
    Ok(containers.into_iter().map(|container| pinned(&found, container)).collect())
}

fn pinned(found: &Found, container: u32) -> Pinned {
    let of = |direction| {
        found.effective().find(|(half, _)| half.container == container && half.direction == direction)
    };
    let at = |direction| match of(direction).map(|(half, _)| half.link.interface) {
        None => Attachment::Missing,
        Some(0) => Attachment::Gone,
        Some(interface) => Attachment::At(interface),
    };
    let tables = BOTH.into_iter().find_map(|direction| of(direction)?.1.map(Path::to_owned));
    let mut pinned = Pinned {
        id: tables.as_deref().map(id_of).unwrap_or_default(),
        link: container,
        mappings: Vec::new(),
        outer: at(Direction::In),
        container: at(Direction::Out),
        counted: None,
    };
    match tables.map(|tables| read(&tables)) {
        Some(Ok((mappings, counted))) => (pinned.mappings, pinned.counted) = (mappings, counted),
        // Another process removed a part of the tables: the rest is unknown.
        Some(Err(_)) => pinned.id = String::new(),
        None => {}
    }
    pinned
}

/// Names of programs of others that are asked behind ours at that interface, and so do not see what is translated; text from
/// outside.
///
/// # Errors
/// If the kernel does not tell.
pub fn behind(outer: u32) -> Result<Vec<String>> {
    let own: Vec<u32> = PINS.find()?.links.iter().map(|link| link.program).collect();
    let programs = tcx_programs(outer, Hook::Ingress)?;
    let first = programs.iter().position(|id| own.contains(id)).unwrap_or(programs.len());
    let others = programs[first..].iter().filter(|id| !own.contains(id));
    Ok(others.map(|id| program_name(*id)).collect::<weir_bpf::Result<_>>()?)
}

/// Reads the mappings and counters from the tables in a folder.
fn read(tables: &Path) -> Result<(Vec<Mapping>, Option<Status>)> {
    let folder = PINS.folder()?;
    let open = |name: &str| Map::open_pinned(&folder.join(tables).join(name));
    let mappings =
        read_back(&open("in4")?.all::<WeirEnd4, WeirOther4>()?, &open("in6")?.all::<WeirEnd6, WeirOther6>()?);
    let counted = if is_of_this_version(tables) { Some(counted(&open("counts")?)?) } else { None };
    Ok((mappings, counted))
}

/// Takes everything of ours away, of whatever version, whatever there is of it: what comes in first, so that nothing is translated
/// without the way back. Does nothing where there is nothing.
///
/// # Errors
/// The first refusal; the rest is removed nevertheless.
pub fn unload() -> Result<()> {
    Ok(PINS.unload()?)
}
