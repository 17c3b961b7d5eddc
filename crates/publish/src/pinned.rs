//! Mappings that outlive the process that loaded them: programs, tables and attachments with names in the BPF file system.
//!
//! Each loading makes new programs with new tables, in a folder of its own, and puts the programs into the place of those that are
//! attached: each hook has the old one or the new one, never none. Where something is killed on the way, what is there can be
//! told from a whole by [`state`], and [`load`] and [`unload`] begin from anything.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use weir_bpf::{
    Attached, BPF_FILE_SYSTEM, Direction as Hook, Map, ProgramFd, attach_tcx, detach_pinned,
    is_bpf_file_system, make_folder, mount_bpf_file_system, names_in, new_folder, program_name,
    remove_folder, tcx_programs,
};

use crate::mapping::read_back;
use crate::publish::{OBJECT, counted, named};
use crate::shared::{WeirEnd4, WeirEnd6, WeirOther4, WeirOther6};
use crate::wanted::{Container, Wanted};
use crate::{Direction, Error, Mapping, Publish, Result, Status};

/// Where everything of ours is, in a BPF file system.
const FOLDER: &str = "weir/publish";
/// Another BPF file system than the machine's usual one, which must be mounted there: for a host in a lab, whose ports are none of the
/// machine's.
const ELSEWHERE: &str = "WEIR_BPF_DIR";
/// Attachments, in that folder: `in-` and `out-` with the number of the container's link.
const LINKS: &str = "links";
/// What is read back.
const TABLES: [&str; 3] = ["in4", "in6", "counts"];
const BOTH: [Direction; 2] = [Direction::In, Direction::Out];

/// Where a program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// At the interface of that number.
    At(u32),
    /// Its interface is gone, and took it along.
    Gone,
    /// It is attached to nothing: something was killed on the way, or somebody took it away.
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
    /// What was counted; `None` of tables of another version of weir, which counts otherwise.
    pub counted: Option<Status>,
}

impl Pinned {
    /// Whether both programs are where they were attached.
    pub fn is_attached(&self) -> bool {
        [self.outer, self.container].iter().all(|at| matches!(at, Attachment::At(_)))
    }
}

/// The BPF file system that another folder was chosen for.
fn elsewhere() -> Option<PathBuf> {
    std::env::var_os(ELSEWHERE).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

fn file_system() -> PathBuf {
    elsewhere().unwrap_or_else(|| BPF_FILE_SYSTEM.into())
}

fn folder() -> PathBuf {
    file_system().join(FOLDER)
}

/// Makes sure that there is a BPF file system; one at a place of somebody's choice is theirs to mount.
fn prepare() -> Result<()> {
    match elsewhere() {
        None => {
            mount_bpf_file_system()?;
        }
        Some(_) if is_mounted()? => {}
        Some(folder) => {
            let folder = folder.display();
            return Err(Error::State(format!(
                "{ELSEWHERE}: no BPF file system is mounted at {folder} (mount -t bpf bpf {folder})"
            )));
        }
    }
    Ok(())
}

fn links() -> PathBuf {
    folder().join(LINKS)
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

/// Puts mappings into effect, in the place of those that are. The programs are loaded and accepted before the first of those that
/// are there is touched.
///
/// # Errors
/// If an interface is not the one that was meant any more, something is missing here, or the kernel refuses. Where that happens while
/// programs are being put into their places, some of them may be: whoever called puts the old ones back, or calls [`unload`].
pub fn load(wanted: &Wanted) -> Result<()> {
    prepare()?;
    let mut loaded = Vec::new();
    for container in &wanted.containers {
        let interfaces = wanted.links(container)?;
        loaded.push((container, Publish::load(&container.mappings, interfaces)?));
    }
    make_folder(&links())?;
    clear_tables(|tables| tables.in_use)?;
    let own = new_folder(&folder(), &format!("{}-{}", wanted.id(), format()))?;
    for (container, publish) in &loaded {
        pin(publish, &own.join(container.index.to_string()))?;
    }
    crate::step::passed();
    // An attachment whose interface is gone, or is another one now, is in the way of the new ones: the program at the outer
    // interface still takes packets for a container that is not there.
    for found in find()?.links {
        let meant = wanted.containers.iter().find(|c| c.index == found.container);
        let place = meant.map(|c| place(wanted, c, found.direction));
        if place != Some(found.interface) {
            detach_pinned(&links().join(&found.name))?;
        }
    }
    for (container, publish) in &loaded {
        // What is open already goes by connection tracking until both are there. In between, an answer that it does not know goes out
        // untranslated and is sent again. The other way round it would miss answers, and take what acknowledges them for invalid:
        // that is not translated either, and the host resets the connection.
        for direction in BOTH {
            let interface = place(wanted, container, direction);
            put_in_place(publish, direction, container.index, interface)?;
            crate::step::passed();
        }
    }
    // Not before: a connection that begins until both are there is tracked, too.
    crate::open::let_go_on(wanted)?;
    let own_name = own.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    clear_tables(|tables| tables.name == own_name)
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

/// Attaches it there, in the place of the one that is there.
fn put_in_place(publish: &Publish, direction: Direction, container: u32, interface: u32) -> Result<()> {
    let path = links().join(link_name(direction, container));
    let program = publish.program(direction)?;
    if path.exists() {
        return Ok(Attached::open_pinned(&path)?.replace(&program)?);
    }
    let attached = attach_tcx(&program, interface, Hook::Ingress).map_err(named)?;
    Ok(attached.pin(&path)?)
}

/// Tables that are pinned.
struct Tables {
    /// Name of the folder.
    name: String,
    /// A program of theirs is attached.
    in_use: bool,
}

/// An attachment that is pinned.
struct Link {
    name: String,
    direction: Direction,
    /// Number of the container's link.
    container: u32,
    /// Where it is attached; 0: nowhere.
    interface: u32,
    /// Folder of its container's tables, below that of all tables.
    tables: Option<PathBuf>,
}

struct Found {
    links: Vec<Link>,
    tables: Vec<Tables>,
}

/// Whether there can be anything of ours.
fn is_mounted() -> Result<bool> {
    let place = file_system();
    Ok(place.is_dir() && is_bpf_file_system(&place)?)
}

fn find() -> Result<Found> {
    let mut found = Found { links: Vec::new(), tables: Vec::new() };
    if !is_mounted()? {
        return Ok(found);
    }
    let mut programs = Vec::new();
    for name in names_in(&folder())?.into_iter().filter(|name| name != LINKS) {
        for container in names_in(&folder().join(&name))? {
            let tables = Path::new(&name).join(container);
            for direction in BOTH {
                let path = folder().join(&tables).join(direction.program());
                // Of a folder that was being filled when somebody was killed, not all may be there.
                if let Ok(program) = ProgramFd::open_pinned(&path) {
                    programs.push((program.id()?, tables.clone()));
                }
            }
        }
        found.tables.push(Tables { name, in_use: false });
    }
    for name in names_in(&links())? {
        let (direction, container) = match name.split_once('-') {
            Some(("in", number)) => (Direction::In, number.parse()),
            Some(("out", number)) => (Direction::Out, number.parse()),
            _ => continue,
        };
        let Ok(container) = container else { continue };
        // Somebody may be taking it away.
        let Some(attached) = Attached::find_pinned(&links().join(&name))? else { continue };
        let attachment = attached.describe()?;
        let tables = programs.iter().find(|(id, _)| *id == attachment.program).map(|(_, path)| path.clone());
        for known in &mut found.tables {
            known.in_use |= tables.as_ref().is_some_and(|t| t.starts_with(&known.name));
        }
        found.links.push(Link { name, direction, container, interface: attachment.interface, tables });
    }
    Ok(found)
}

/// Removes the tables but for those that are to stay.
fn clear_tables(keep: impl Fn(&Tables) -> bool) -> Result<()> {
    for tables in find()?.tables.iter().filter(|tables| !keep(tables)) {
        remove_folder(&folder().join(&tables.name))?;
    }
    Ok(())
}

/// What a folder of tables was loaded by.
fn id_of(tables: &Path) -> String {
    let name = tables.iter().next().unwrap_or_default().to_string_lossy();
    name.split('-').next().unwrap_or_default().to_owned()
}

/// What there is of ours in the kernel, in words that do not change by themselves, also when an interface goes; empty if there is
/// nothing.
///
/// # Errors
/// If the kernel does not tell.
pub fn state() -> Result<String> {
    let found = find()?;
    let mut text = String::new();
    for link in &found.links {
        let id = link.tables.as_deref().map_or("unknown".into(), id_of);
        text.push_str(&format!("{} {id}\n", link.name));
    }
    for tables in found.tables.iter().filter(|tables| !tables.in_use) {
        text.push_str(&format!("tables {} unused\n", id_of(Path::new(&tables.name))));
    }
    Ok(text)
}

/// What the attached programs were loaded by, if any are attached.
///
/// # Errors
/// If the kernel does not tell.
pub fn loaded_id() -> Result<Option<String>> {
    Ok(find()?.links.iter().find_map(|link| link.tables.as_deref().map(id_of)))
}

/// Whether everything is in the kernel that is wanted, and nothing else.
///
/// # Errors
/// If the kernel does not tell.
pub fn is_whole(wanted: &Wanted) -> Result<bool> {
    let found = find()?;
    let id = wanted.id();
    let is_there = |container: &Container, direction| {
        let mut links = found.links.iter();
        links.any(|link| {
            (link.container, link.direction) == (container.index, direction)
                && link.interface == place(wanted, container, direction)
                && link.tables.as_deref().map(id_of).as_deref() == Some(&id)
        })
    };
    let all = wanted.containers.iter().all(|c| BOTH.iter().all(|direction| is_there(c, *direction)));
    Ok(all && found.links.len() == 2 * wanted.containers.len())
}

/// What is left of something that was loaded when the interfaces are left out that are gone or were made anew; `None` if nothing is.
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
    let containers: BTreeSet<u32> = found.links.iter().map(|link| link.container).collect();
    Ok(containers.into_iter().map(|container| pinned(&found, container)).collect())
}

fn pinned(found: &Found, container: u32) -> Pinned {
    let of = |direction| found.links.iter().find(|l| l.container == container && l.direction == direction);
    let at = |direction| match of(direction).map(|link| link.interface) {
        None => Attachment::Missing,
        Some(0) => Attachment::Gone,
        Some(interface) => Attachment::At(interface),
    };
    let tables = BOTH.into_iter().find_map(|direction| of(direction)?.tables.clone());
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
        // Somebody took a part of them away: what is left cannot be told.
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
    let mut own = Vec::new();
    for link in find()?.links {
        if let Some(attached) = Attached::find_pinned(&links().join(link.name))? {
            own.push(attached.describe()?.program);
        }
    }
    let programs = tcx_programs(outer, Hook::Ingress)?;
    let first = programs.iter().position(|id| own.contains(id)).unwrap_or(programs.len());
    let others = programs[first..].iter().filter(|id| !own.contains(id));
    Ok(others.map(|id| program_name(*id)).collect::<weir_bpf::Result<_>>()?)
}

/// What the tables in a folder say.
fn read(tables: &Path) -> Result<(Vec<Mapping>, Option<Status>)> {
    let open = |name: &str| Map::open_pinned(&folder().join(tables).join(name));
    let mappings =
        read_back(&open("in4")?.all::<WeirEnd4, WeirOther4>()?, &open("in6")?.all::<WeirEnd6, WeirOther6>()?);
    let name = tables.iter().next().unwrap_or_default().to_string_lossy();
    let same = name.contains(&format!("-{}-", format()));
    let counted = if same { Some(counted(&open("counts")?)?) } else { None };
    Ok((mappings, counted))
}

/// Takes everything of ours away, of whatever version, whatever there is of it: what comes in first, so that nothing is translated
/// without the way back. Does nothing where there is nothing.
///
/// # Errors
/// The first refusal; everything that can be taken away was, all the same.
pub fn unload() -> Result<()> {
    if !is_mounted()? {
        return Ok(());
    }
    let mut outcome = Ok(());
    // In the order of their names.
    for name in names_in(&links())? {
        outcome = outcome.and(detach_pinned(&links().join(name)).map_err(Error::from));
    }
    for name in names_in(&folder())? {
        outcome = outcome.and(remove_folder(&folder().join(name)).map_err(Error::from));
    }
    for path in [folder().as_path(), folder().parent().unwrap_or(Path::new("/"))] {
        // Not ours alone: something else of weir may be in it.
        let _ = fs::remove_dir(path);
    }
    outcome
}
