//! The run's folder: `run.json`, replaced as a whole after every trial.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use weir_record::{Run, SCHEMA_VERSION};

use crate::error::Error;

/// Name of the record in a run's folder.
pub const RECORD: &str = "run.json";

/// Where a run is written.
#[derive(Debug)]
pub(crate) struct Store {
    folder: PathBuf,
}

impl Store {
    /// Makes the folder, which must not hold a run yet.
    pub(crate) fn create(folder: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Store { path: folder.display().to_string(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        if folder.join(RECORD).exists() {
            return Err(failed(io::Error::new(io::ErrorKind::AlreadyExists, "there is a run in it already")));
        }
        Ok(Store { folder: folder.to_owned() })
    }

    /// Replaces the record in one step: whatever happens, the file holds the last whole record.
    pub(crate) fn write(&self, run: &Run) -> Result<(), Error> {
        let path = self.folder.join(RECORD);
        let draft = self.folder.join(".run.json.new");
        let written = (|| {
            let mut file = io::BufWriter::new(File::create(&draft)?);
            serde_json::to_writer(&mut file, run)?;
            file.write_all(b"\n")?;
            // Data before name: after a crash of the machine there must not be an empty file under the right name.
            file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_data()?;
            fs::rename(&draft, &path)
        })();
        written.map_err(|source| {
            // A half-written draft is of no use to anyone; if it cannot be removed, the first error matters more.
            let _ = fs::remove_file(&draft);
            Error::Store { path: path.display().to_string(), source }
        })
    }
}

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No such file, or no permission.
    #[error("cannot read {path}: {source}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// Not a record of a run.
    #[error("{path}:{line}: not a run record of weir: {reason}")]
    Format {
        /// Which file.
        path: String,
        /// Where in it.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// A record of another layout.
    #[error("{path}: schema {found}; this version of weir reads schema {SCHEMA_VERSION}")]
    Schema {
        /// Which file.
        path: String,
        /// The record's version.
        found: u64,
    },
}

/// Reads a record from a run's folder or a file.
///
/// # Errors
/// With the file's name and what is wrong with it.
pub fn read(path: &Path) -> Result<Run, ReadError> {
    let file = if path.is_dir() { path.join(RECORD) } else { path.to_owned() };
    let name = file.display().to_string();
    let text = fs::read(&file).map_err(|source| ReadError::File { path: name.clone(), source })?;
    let format = |e: serde_json::Error| ReadError::Format {
        path: name.clone(),
        line: e.line(),
        reason: e.to_string(),
    };
    let value: serde_json::Value = serde_json::from_slice(&text).map_err(format)?;
    match value.get("schema").and_then(serde_json::Value::as_u64) {
        Some(found) if found != u64::from(SCHEMA_VERSION) => Err(ReadError::Schema { path: name, found }),
        _ => serde_json::from_slice(&text).map_err(format),
    }
}
