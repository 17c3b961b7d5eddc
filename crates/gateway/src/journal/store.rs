//! The journal's file on disk.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_guard::lines::{self, LineFile};

use super::Change;
use crate::Error;
use crate::error::at;
use crate::snapshot::Snapshot;

/// Version of the file's format.
pub(super) const VERSION: u32 = 1;

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Entry {
    /// The boot and the network namespace of the changes.
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
    file: LineFile,
}

impl Store {
    pub(super) fn create(path: &Path) -> Result<Self, Error> {
        let file = OpenOptions::new().append(true).create_new(true).open(path).map_err(at(path))?;
        let store = Store { path: path.to_owned(), file: LineFile::new(file, 0) };
        store.sync_directory()?;
        Ok(store)
    }

    /// Opens the journal of another process.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<Entry>), Error> {
        let bytes = std::fs::read(path).map_err(at(path))?;
        let unusable = |reason: String| Error::Journal { path: path.display().to_string(), reason };
        let (entries, length) = lines::entries(&bytes).map_err(unusable)?;
        match entries.first() {
            Some(Entry::Begin { version: VERSION, .. }) | None => {}
            Some(Entry::Begin { version, .. }) => {
                return Err(unusable(format!("version {version}; this weir reads version {VERSION}")));
            }
            Some(_) => return Err(unusable("its beginning is missing".into())),
        }
        let file = OpenOptions::new().append(true).open(path).map_err(at(path))?;
        let file = LineFile::new(file, length);
        file.cut_half_line().map_err(at(path))?;
        Ok((Store { path: path.to_owned(), file }, entries))
    }

    pub(super) fn append(&mut self, entry: &Entry) -> Result<(), Error> {
        self.file.append(entry).map_err(at(&self.path))
    }

    pub(super) fn remove(self) -> Result<(), Error> {
        std::fs::remove_file(&self.path).map_err(at(&self.path))?;
        self.sync_directory()
    }

    /// Without this the file's name may be lost though its content is on disk.
    fn sync_directory(&self) -> Result<(), Error> {
        weir_sys::file::sync_folder_of(&self.path).map_err(at(&self.path))
    }
}
