//! The run's folder: `run.json`, replaced as a whole after every trial.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use weir_record::{FailureCounts, Run, SCHEMA_VERSION, Source};
use weir_sys::file;

use crate::error::Error;

/// Name of the record in a run's folder.
pub const RECORD: &str = "run.json";
/// A file that is made and removed to see whether it can be.
const TRIED: &str = ".run.json.tried";

/// The folder of a run. Dropped without a record, it removes the folders that it made.
#[derive(Debug)]
pub(crate) struct Store {
    folder: PathBuf,
    /// The innermost first.
    made: Vec<PathBuf>,
}

impl Store {
    /// Makes the folder, which must not hold a run yet, and tries whether a file can be written there.
    pub(crate) fn create(folder: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Store { path: folder.display().to_string(), source };
        let missing = folder.ancestors().take_while(|f| !f.as_os_str().is_empty() && !f.exists());
        let store = Store { folder: folder.to_owned(), made: missing.map(Path::to_owned).collect() };
        fs::create_dir_all(folder).map_err(failed)?;
        if folder.join(RECORD).exists() {
            return Err(Error::Unfit(format!("there is a run in {} already", folder.display())));
        }
        let tried = folder.join(TRIED);
        fs::File::create(&tried).and_then(|_| fs::remove_file(&tried)).map_err(failed)?;
        Ok(store)
    }

    /// Replaces the record in one step: whatever happens, the file holds the last whole record.
    pub(crate) fn write(&self, run: &Run) -> Result<(), Error> {
        let path = self.folder.join(RECORD);
        let text = serde_json::to_string(run).map_err(io::Error::from);
        text.and_then(|text| file::replace(&path, 0o666, text + "\n"))
            .map_err(|source| Error::Store { path: path.display().to_string(), source })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        for folder in &self.made {
            // Fails where there is a record in it, or anything else.
            let _ = fs::remove_dir(folder);
        }
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
        /// The line.
        line: usize,
        /// The problem.
        reason: String,
    },
    /// A record of another layout.
    #[error("{path}: schema {found}; this version of weir reads schema 1 to {SCHEMA_VERSION}")]
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
    let bytes = fs::read(&file).map_err(|source| ReadError::File { path: name.clone(), source })?;
    let text = std::str::from_utf8(&bytes).map_err(|e| ReadError::Format {
        path: name.clone(),
        line: 1 + bytes.iter().take(e.valid_up_to()).filter(|byte| **byte == b'\n').count(),
        reason: "it is not UTF-8".into(),
    })?;
    let format = |e: serde_json::Error| ReadError::Format {
        path: name.clone(),
        line: e.line(),
        reason: e.to_string(),
    };
    let value: serde_json::Value = serde_json::from_str(text).map_err(format)?;
    match value.get("schema").and_then(serde_json::Value::as_u64) {
        Some(1) => serde_json::from_str(text).map(from_first).map_err(format),
        Some(found) if found != u64::from(SCHEMA_VERSION) => Err(ReadError::Schema { path: name, found }),
        _ => serde_json::from_str(text).map_err(format),
    }
}

/// A record of the first layout: its percentiles left out what failed, and say so from here on. It named no shares of failures.
fn from_first(mut run: Run) -> Run {
    for def in run.workloads.iter_mut().flat_map(|w| &mut w.metrics) {
        if matches!(def.source, Source::Quantile { .. }) {
            def.label += " (of those answered)";
        }
        let counts = match def.name.as_str() {
            "failed_ratio" | "connect_failed_ratio" | "unanswered_ratio" => ("failed", "attempted"),
            "loss_ratio" => ("lost", "sent"),
            _ => continue,
        };
        let (failed, of) = (counts.0.to_owned(), counts.1.to_owned());
        def.failure.get_or_insert(FailureCounts { failed, of });
    }
    run.notes.push(
        "This record is of an older version of weir: its percentiles are of answered operations only. Failed, lost \
         and unfinished operations are missing in them."
            .to_owned(),
    );
    run
}
