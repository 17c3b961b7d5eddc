//! The file of a journal: one JSON value a line, each on disk before the next step is taken.

use std::fs::File;
use std::io::{self, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A journal file, open for more lines.
#[derive(Debug)]
pub struct LineFile {
    file: File,
    /// Bytes of whole lines.
    length: u64,
}

impl LineFile {
    /// Takes a file that is open for appending and holds `length` bytes of whole lines.
    pub fn new(file: File, length: u64) -> Self {
        LineFile { file, length }
    }

    /// Cuts off half a line behind the whole ones, which a killed process left: the next line must begin at a line's beginning.
    ///
    /// # Errors
    /// If the file cannot be cut.
    pub fn cut_half_line(&self) -> io::Result<()> {
        // Room that was set aside (KEEP_SIZE) stays only if the size does not change.
        if self.file.metadata()?.len() > self.length {
            self.file.set_len(self.length)?;
        }
        Ok(())
    }

    /// Writes a line and waits until it is on disk.
    ///
    /// # Errors
    /// If it cannot be written; the file then ends as before.
    pub fn append(&mut self, entry: &impl Serialize) -> io::Result<()> {
        let bytes = line(entry)?;
        if let Err(e) = self.file.write_all(&bytes).and_then(|()| self.file.sync_data()) {
            // Half a line must not be in the way of the next one.
            let _ = self.file.set_len(self.length);
            return Err(e);
        }
        self.length += bytes.len() as u64;
        Ok(())
    }
}

/// An entry with its end of line.
pub(crate) fn line(entry: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    Ok(line)
}

/// The entries of a journal's bytes, and the number of bytes in whole lines. A last line without its end was being written when
/// the process was killed: the step that it names had not begun.
///
/// # Errors
/// The number of the first line that is no entry, and why.
pub fn entries<T: DeserializeOwned>(bytes: &[u8]) -> Result<(Vec<T>, u64), String> {
    let length = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
    let whole = std::str::from_utf8(&bytes[..length]).map_err(|_| "it is not text".to_owned())?;
    let parsed = whole.lines().enumerate().map(|(n, line)| {
        serde_json::from_str(line)
            .map_err(|e| format!("line {}: not an entry of this version of weir: {e}", n + 1))
    });
    Ok((parsed.collect::<Result<_, _>>()?, length as u64))
}
