//! The journal's file: one JSON value a line, each on disk before the next step is taken.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Change;
use crate::Error;
use crate::snapshot::Snapshot;

/// Version of the file's format.
pub(super) const VERSION: u32 = 1;

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Entry {
    /// Where the changes are made.
    Begin {
        /// [`VERSION`].
        version: u32,
        /// The kernel's boot_id: a reboot undoes most by itself.
        boot: String,
        /// Inode of the network namespace.
        namespace: u64,
    },
    /// The host before the first change.
    Before(Snapshot),
    /// About to be made.
    Change(Change),
    /// The host when all changes were made.
    After(Snapshot),
}

/// An open journal file.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    file: File,
}

impl Store {
    pub(super) fn create(path: &Path) -> Result<Self, Error> {
        let file = OpenOptions::new().append(true).create_new(true).open(path).map_err(|e| at(path, e))?;
        let store = Store { path: path.to_owned(), file };
        store.sync_directory()?;
        Ok(store)
    }

    /// Opens what another process left. A last line without its end was being written when that process was killed; the
    /// change that it names had not begun.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<Entry>), Error> {
        let text = std::fs::read_to_string(path).map_err(|e| at(path, e))?;
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let unusable = |reason: String| Error::Journal { path: path.display().to_string(), reason };
        let entries = whole
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<Vec<Entry>, _>>()
            .map_err(|e| unusable(format!("not a journal of this version of weir: {e}")))?;
        match entries.first() {
            Some(Entry::Begin { version: VERSION, .. }) | None => {}
            Some(Entry::Begin { version, .. }) => {
                return Err(unusable(format!("version {version}; this weir reads version {VERSION}")));
            }
            Some(_) => return Err(unusable("its beginning is missing".into())),
        }
        let file = OpenOptions::new().append(true).open(path).map_err(|e| at(path, e))?;
        // What is appended must begin a line of its own.
        file.set_len(whole.len() as u64).map_err(|e| at(path, e))?;
        Ok((Store { path: path.to_owned(), file }, entries))
    }

    pub(super) fn append(&mut self, entry: &Entry) -> Result<(), Error> {
        let mut line = serde_json::to_vec(entry).map_err(|e| at(&self.path, e.into()))?;
        line.push(b'\n');
        self.file.write_all(&line).and_then(|()| self.file.sync_data()).map_err(|e| at(&self.path, e))
    }

    pub(super) fn remove(self) -> Result<(), Error> {
        std::fs::remove_file(&self.path).map_err(|e| at(&self.path, e))?;
        self.sync_directory()
    }

    /// Without this the file's name may be lost though its content is on disk.
    fn sync_directory(&self) -> Result<(), Error> {
        let directory = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        File::open(directory).and_then(|d| d.sync_all()).map_err(|e| at(directory, e))
    }
}

/// Changes with every boot of the machine (random(4)).
pub(super) fn boot_id() -> Result<String, Error> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    Ok(std::fs::read_to_string(path).map_err(|e| at(path, e))?.trim().to_owned())
}

fn at(path: &Path, source: std::io::Error) -> Error {
    Error::File { path: path.display().to_string(), source }
}
