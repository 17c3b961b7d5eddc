//! The pinned objects of one part of weir: they outlive the process that loaded them, for good or until a trial ends.

use std::fs;
use std::path::{Path, PathBuf};

use weir_bpf::{
    Attached, ProgramFd, Result, detach_pinned, is_file_system_mounted, make_folder, names_in, new_folder,
    own_folder, remove_folder,
};

use crate::{Kind, Moment, Pinned, put};

/// Attachments, in the folder of the part.
const LINKS: &str = "links";
/// Gates of a trial, by the same names.
const GATES: &str = "trial";

/// The pinned objects of one part of weir in the calling thread's network namespace.
///
/// Each loading makes new programs with new tables in a folder of its own, and puts the programs into the places of those that are
/// attached: one step for each attachment, whatever version of weir loaded the old ones. All methods fail if the kernel refuses or does
/// not tell.
#[derive(Debug, Clone, Copy)]
pub struct Pins {
    /// The part's name, which is that of its folder.
    pub part: &'static str,
    /// Names of the programs in the folder of a loading, or in the folders in it.
    pub programs: &'static [&'static str],
}

/// Tables that are pinned.
#[derive(Debug)]
pub struct Tables {
    /// Name of the folder.
    pub name: String,
    /// A program of theirs is attached.
    pub in_use: bool,
}

/// An attachment that is pinned.
#[derive(Debug)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Number of the program that is attached.
    pub program: u32,
    /// Interface that it is attached to; 0: it is gone.
    pub interface: u32,
    /// Folder of the tables that its program uses, below that of the part; of a gate, those of the program on trial.
    pub tables: Option<PathBuf>,
    /// Those of the program before.
    pub before: Option<PathBuf>,
    /// The gate in the program's place.
    pub gate: Option<Pinned>,
}

/// Attachments, and all folders of tables.
#[derive(Debug, Default)]
pub struct Found {
    /// In the order of their names.
    pub links: Vec<Link>,
    /// Likewise.
    pub tables: Vec<Tables>,
}

/// The id under which a folder of tables was loaded.
pub fn id_of(tables: &Path) -> String {
    let name = tables.iter().next().unwrap_or_default().to_string_lossy();
    name.split('-').next().unwrap_or_default().to_owned()
}

impl Pins {
    /// The folder that holds all of them.
    pub fn folder(&self) -> Result<PathBuf> {
        own_folder(self.part)
    }

    /// The place of an attachment of that name.
    pub fn link(&self, name: &str) -> Result<PathBuf> {
        Ok(self.folder()?.join(LINKS).join(name))
    }

    /// Makes room for a loading: a new folder whose name begins with the id. Tables that nothing uses go.
    pub fn begin(&self, id: &str) -> Result<PathBuf> {
        let folder = self.folder()?;
        make_folder(&folder.join(LINKS))?;
        self.clear_unused()?;
        new_folder(&folder, id)
    }

    /// Removes all tables but those of a loading whose programs are in every place.
    pub fn finish(&self, own: &Path) -> Result<()> {
        self.clear_tables(|tables| own.file_name().is_some_and(|name| name == tables.name.as_str()))
    }

    /// Removes the tables that nothing uses.
    pub fn clear_unused(&self) -> Result<()> {
        self.clear_tables(|tables| tables.in_use)
    }

    fn clear_tables(&self, keep: impl Fn(&Tables) -> bool) -> Result<()> {
        for tables in self.find()?.tables.iter().filter(|tables| !keep(tables)) {
            remove_folder(&self.folder()?.join(&tables.name))?;
        }
        Ok(())
    }

    /// Finds everything that is there; nothing without a BPF file system.
    pub fn find(&self) -> Result<Found> {
        let mut found = Found::default();
        if !is_file_system_mounted()? {
            return Ok(found);
        }
        let folder = self.folder()?;
        let mut programs = Vec::new();
        for name in names_in(&folder)?.into_iter().filter(|name| name != LINKS && name != GATES) {
            programs.extend(self.programs_of(&folder, &name)?);
            found.tables.push(Tables { name, in_use: false });
        }
        let mut gates = Vec::new();
        for name in names_in(&folder.join(GATES))? {
            gates.extend(Pinned::open(&folder.join(GATES).join(name))?);
        }
        let of = |number: Option<u32>| {
            programs.iter().find(|(id, _)| Some(*id) == number).map(|(_, tables)| tables.clone())
        };
        for name in names_in(&folder.join(LINKS))? {
            // Another process may be removing it.
            let Some(attached) = Attached::find_pinned(&folder.join(LINKS).join(&name))? else { continue };
            let weir_bpf::Attachment { program, interface } = attached.describe()?;
            let gate = gates.iter().find(|gate| gate.program == program).copied();
            let (tables, before) = match &gate {
                Some(gate) => (of(gate.trial), of(gate.before)),
                None => (of(Some(program)), None),
            };
            for known in &mut found.tables {
                known.in_use |= [&tables, &before].into_iter().flatten().any(|t| t.starts_with(&known.name));
            }
            found.links.push(Link { name, program, interface, tables, before, gate });
        }
        Ok(found)
    }

    /// Numbers of the programs of a loading, with the folders that they are in.
    fn programs_of(&self, folder: &Path, name: &str) -> Result<Vec<(u32, PathBuf)>> {
        let mut places = vec![PathBuf::from(name)];
        places.extend(names_in(&folder.join(name))?.iter().map(|inner| Path::new(name).join(inner)));
        let mut programs = Vec::new();
        for place in places {
            for program in self.programs {
                // If a process was killed while it filled a folder, some programs may be missing.
                if let Ok(program) = ProgramFd::open_pinned(&folder.join(&place).join(program)) {
                    programs.push((program.id()?, place.clone()));
                }
            }
        }
        Ok(programs)
    }

    /// Puts a gate into the place of the attachment of that name: to the program on trial until that time, and then to the one that is
    /// attached there now. `attach` attaches it where none is.
    pub fn put_gate<E: From<weir_bpf::Error>>(
        &self,
        kind: Kind,
        name: &str,
        until: Moment,
        trial: Option<&ProgramFd>,
        before: Option<Attached>,
        attach: impl FnOnce(&ProgramFd) -> std::result::Result<Attached, E>,
    ) -> std::result::Result<(), E> {
        let gate = self.folder()?.join(GATES).join(name);
        put(kind, until, trial, before, (&gate, &self.link(name)?), attach)
    }

    /// Makes the programs on trial permanent, and removes those that they replaced. Does nothing if nothing is on trial.
    pub fn keep(&self) -> Result<()> {
        self.settle(|gate| gate.trial)
    }

    /// Removes the programs on trial, and restores the previous ones. Does nothing if nothing is on trial.
    pub fn end_trial(&self) -> Result<()> {
        self.settle(|gate| gate.before)
    }

    /// Puts programs into the places of the gates that lead to them. A gate that leads to none goes.
    fn settle(&self, which: impl Fn(&Pinned) -> Option<u32>) -> Result<()> {
        if !is_file_system_mounted()? || !self.folder()?.join(GATES).is_dir() {
            return Ok(());
        }
        // In the order of their names: see [`Pins::unload`].
        for link in self.find()?.links {
            let Some(gate) = link.gate else { continue };
            let path = self.link(&link.name)?;
            match which(&gate) {
                Some(program) if link.interface != 0 => {
                    Attached::open_pinned(&path)?.replace(&ProgramFd::by_number(program)?)?;
                }
                _ => detach_pinned(&path)?,
            }
        }
        let gates = self.folder()?.join(GATES);
        if gates.is_dir() {
            remove_folder(&gates)?;
        }
        self.clear_unused()
    }

    /// Removes everything, of whatever version, even partial state: attachments in the order of their names, so that a part whose programs
    /// need each other can say by the names which goes first. Returns the first refusal; the rest is removed nevertheless.
    pub fn unload(&self) -> Result<()> {
        if !is_file_system_mounted()? {
            return Ok(());
        }
        let mut outcome = Ok(());
        let folder = self.folder()?;
        for name in names_in(&folder.join(LINKS))? {
            outcome = outcome.and(detach_pinned(&self.link(&name)?));
        }
        for name in names_in(&folder)? {
            outcome = outcome.and(remove_folder(&folder.join(name)));
        }
        for path in [folder.as_path(), folder.parent().unwrap_or(Path::new("/"))] {
            // Not ours alone: something else of weir may be in it.
            let _ = fs::remove_dir(path);
        }
        outcome
    }
}
