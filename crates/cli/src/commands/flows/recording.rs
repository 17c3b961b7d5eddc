//! `--save`: a file that grows by a line each second and ends with a whole line, also on a full disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use weir_text::units;

use crate::exit::{CommandResult, Failure};

/// A recording under way. Once a line could not be written it stays as it is, and the watch goes on.
pub(super) struct Recording {
    path: PathBuf,
    file: File,
    lines: u64,
    bytes: u64,
    failed: Option<String>,
}

impl Recording {
    /// Begins a new file. An older recording is never written over, as it cannot be made again; a pipe or a device may be there.
    ///
    /// # Errors
    /// Wrong usage if the file exists; a failure if it cannot be made.
    pub(super) fn begin(path: &Path) -> Result<Self, Failure> {
        let is_stream = path.metadata().is_ok_and(|there| !there.is_file() && !there.is_dir());
        let file = OpenOptions::new().append(true).create_new(!is_stream).open(path).map_err(|e| {
            let text = format!("cannot record to {}: {e}", path.display());
            match e.kind() {
                io::ErrorKind::AlreadyExists => {
                    Failure::usage(format!("{} exists already; choose another name", path.display()))
                }
                _ => Failure::failed(text),
            }
        })?;
        Ok(Recording { path: path.to_owned(), file, lines: 0, bytes: 0, failed: None })
    }

    /// Adds a line, whole or not at all.
    pub(super) fn add(&mut self, line: &str) {
        if self.failed.is_some() {
            return;
        }
        match self.file.write_all(line.as_bytes()) {
            Ok(()) => {
                self.lines += 1;
                self.bytes += line.len() as u64;
            }
            Err(e) => {
                // The part of the line that found room goes; a pipe has no length.
                let _ = self.file.set_len(self.bytes);
                self.failed = Some(format!(
                    "cannot write {}: {e}; the recording ends after {} readings",
                    self.path.display(),
                    self.lines
                ));
            }
        }
    }

    /// A line about it, and whether it has failed.
    pub(super) fn state(&self) -> (String, bool) {
        match &self.failed {
            Some(text) => (text.clone(), true),
            None => (format!("recording to {}: {}", self.path.display(), units::bytes(self.bytes)), false),
        }
    }

    /// Ends it.
    ///
    /// # Errors
    /// If it does not have everything.
    pub(super) fn end(self) -> CommandResult {
        self.failed.map_or(Ok(()), |text| Err(Failure::failed(text)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder() -> PathBuf {
        let path = std::env::temp_dir().join(format!("weir-recording-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_recording_is_new_and_grows_by_lines() {
        let path = folder().join("new.jsonl");
        let mut recording = Recording::begin(&path).ok().unwrap();
        recording.add("{}\n");
        recording.add("{}\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}\n{}\n");
        assert!(recording.state().0.contains("new.jsonl") && recording.end().is_ok());
        assert!(matches!(Recording::begin(&path), Err(Failure::Told { code: 2, .. })), "never written over");
        fs::remove_file(path).unwrap();
    }

    /// /dev/full refuses every byte with ENOSPC.
    #[test]
    fn a_full_disk_is_a_failure_at_the_end_and_stops_no_watch() {
        let mut recording = Recording::begin(Path::new("/dev/full")).ok().unwrap();
        recording.add("{}\n");
        recording.add("{}\n");
        let (text, has_failed) = recording.state();
        assert!(has_failed && text.contains("after 0 readings"), "{text}");
        assert!(recording.end().is_err());
    }
}
