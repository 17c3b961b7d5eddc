//! Files that are replaced as a whole: a full disk, a kill or a crash leaves the old content or the new one.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// New content of a file, whole and on disk under another name. Dropped before [`Draft::replace`], it is removed.
#[derive(Debug)]
pub struct Draft {
    written: PathBuf,
    path: PathBuf,
    placed: bool,
}

impl Draft {
    /// Writes it, readable as `mode` says (less the umask).
    ///
    /// # Errors
    /// If the disk refuses; nothing is left then.
    pub fn write(path: &Path, mode: u32, content: impl AsRef<[u8]>) -> Result<Self> {
        let draft = Draft { written: draft_name(path), path: path.to_owned(), placed: false };
        discard(path)?;
        write_new(&draft.written, mode, content)?;
        Ok(draft)
    }

    /// Gives it the file's name, on disk when this returns.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn replace(mut self) -> Result<()> {
        fs::rename(&self.written, &self.path)?;
        self.placed = true;
        sync_folder_of(&self.path)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.placed {
            // The next draft removes it if this fails.
            let _ = fs::remove_file(&self.written);
        }
    }
}

/// Replaces a file in one step.
///
/// # Errors
/// If the disk refuses; the old content stays then.
pub fn replace(path: &Path, mode: u32, content: impl AsRef<[u8]>) -> Result<()> {
    Draft::write(path, mode, content)?.replace()
}

/// Removes the draft of a process that was killed.
///
/// # Errors
/// If the disk refuses.
pub fn discard(path: &Path) -> Result<()> {
    remove(&draft_name(path))
}

/// Removes a file, if it exists.
///
/// # Errors
/// If the disk refuses.
pub fn remove(path: &Path) -> Result<()> {
    found(fs::remove_file(path)).map(drop)
}

/// The answer of the disk; `None` if no file has that name.
///
/// # Errors
/// All others.
pub fn found<T>(asked: Result<T>) -> Result<Option<T>> {
    match asked {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        asked => asked.map(Some),
    }
}

/// Writes a file that does not exist yet, on disk when this returns. Follows no link.
///
/// # Errors
/// If the disk refuses, or the name is taken.
pub fn write_new(path: &Path, mode: u32, content: impl AsRef<[u8]>) -> Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(content.as_ref())?;
    file.sync_all()
}

/// Waits until the names in the folder of this file are on disk: without it a new file's name may be lost although its
/// content is there.
///
/// # Errors
/// If the disk refuses.
pub fn sync_folder_of(path: &Path) -> Result<()> {
    File::open(path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))?.sync_all()
}

/// Beside the file. Folders such as sysctl.d ignore names with this ending.
fn draft_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_content_stays_until_the_new_one_is_whole() {
        let folder = std::env::temp_dir().join(format!("weir-file-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.conf");
        replace(&path, 0o600, "one").unwrap();
        // The remains of a killed process are in no one's way.
        fs::write(folder.join("a.conf.new"), "ha").unwrap();
        let draft = Draft::write(&path, 0o600, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        drop(draft);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        Draft::write(&path, 0o600, "three").unwrap().replace().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "three");
        fs::create_dir(folder.join("b")).unwrap();
        assert!(replace(&folder.join("b"), 0o600, "x").is_err());
        assert!(!folder.join("b.new").exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
