//! Applied mappings on disk: to restore them when a later change is rolled back, and to know the names of things that are gone.

use std::fs;
use std::path::{Path, PathBuf};

use weir_sys::{file, state};
use weir_text::json::indented;

use crate::wanted::Wanted;
use crate::{Error, Result, at};

/// How the files' names end.
const ENDING: &str = "json";

/// A folder with a file for each [`Wanted`].
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// The usual one: the folder `publish` in `$WEIR_STATE_DIR`, else in `/var/lib/weir`.
    pub fn usual() -> Self {
        Store { folder: state::folder("publish") }
    }

    /// Returns the path of the file of that name, whether or not it exists.
    pub fn path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.{ENDING}"))
    }

    /// Writes it down, on disk when this returns, and says where.
    ///
    /// # Errors
    /// If the disk refuses, or others may write to the folder.
    pub fn keep(&self, wanted: &Wanted) -> Result<PathBuf> {
        state::make_private(&self.folder).map_err(at(&self.folder))?;
        self.check()?;
        let path = self.path(&wanted.id());
        let text = serde_json::to_string(wanted).map_err(|e| Error::State(e.to_string()))?;
        let mut text = indented(&text);
        text.push('\n');
        file::replace(&path, 0o600, text).map_err(at(&path))?;
        Ok(path)
    }

    /// Checks that no other user can change the folder: its contents go into the kernel.
    fn check(&self) -> Result<()> {
        match state::why_not_private(&self.folder).map_err(at(&self.folder))? {
            Some(reason) => Err(Error::State(format!(
                "{} is not fit for what is published: {reason}",
                self.folder.display()
            ))),
            None => Ok(()),
        }
    }

    /// The one of that name; `None` if it is not kept.
    ///
    /// # Errors
    /// If it cannot be read, or others may write to the folder.
    pub fn find(&self, id: &str) -> Result<Option<Wanted>> {
        let path = self.path(id);
        if !path.is_file() {
            return Ok(None);
        }
        self.check()?;
        Store::read(&path).map(Some)
    }

    /// The one in that file.
    ///
    /// # Errors
    /// If it cannot be read, or is not what it was when it was written.
    pub fn read(path: &Path) -> Result<Wanted> {
        let text = fs::read_to_string(path).map_err(at(path))?;
        let damaged = |why: String| Error::State(format!("{}: {why}", path.display()));
        let wanted: Wanted = serde_json::from_str(&text).map_err(|e| damaged(e.to_string()))?;
        let named = path.file_stem().is_some_and(|name| name.to_string_lossy() == wanted.id());
        if named { Ok(wanted) } else { Err(damaged("it is not what it was when it was written".into())) }
    }

    /// Removes all but these.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn forget_but(&self, keep: &[&str]) -> Result<()> {
        let entries = file::found(fs::read_dir(&self.folder)).map_err(at(&self.folder))?;
        for path in entries.into_iter().flatten().flatten().map(|entry| entry.path()) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_file() && !keep.contains(&name.as_str()) {
                fs::remove_file(&path).map_err(at(&path))?;
            }
        }
        Ok(())
    }

    /// Removes everything.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn clear(&self) -> Result<()> {
        file::found(fs::remove_dir_all(&self.folder)).map(drop).map_err(at(&self.folder))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use weir_sys::privilege::test_needs_root;

    use super::*;

    fn wanted() -> Wanted {
        Wanted { outer: "out0".into(), outer_index: 2, containers: Vec::new() }
    }

    #[test]
    fn root_what_others_could_have_written_is_not_read() {
        if test_needs_root() {
            return;
        }
        let folder = std::env::temp_dir().join(format!("weir-publish-store-{}", std::process::id()));
        let store = Store { folder: folder.clone() };
        let path = store.keep(&wanted()).unwrap();
        let id = wanted().id();
        assert_eq!((Store::read(&path).unwrap(), store.find(&id).unwrap()), (wanted(), Some(wanted())));
        let refused =
            || [store.keep(&wanted()).unwrap_err(), store.find(&id).unwrap_err()].map(|e| e.to_string());
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).unwrap();
        let writable = refused();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        chown(&folder, Some(65534), None).unwrap();
        let theirs = refused();
        chown(&folder, Some(0), None).unwrap();
        // A changed file has another name.
        let text = fs::read_to_string(&path).unwrap().replace("out0", "out1");
        fs::write(&path, text).unwrap();
        let changed = store.find(&id).unwrap_err().to_string();
        store.clear().unwrap();
        for error in writable.iter().chain(&theirs) {
            assert!(error.contains("is not fit"), "{error}");
        }
        assert!(changed.contains("not what it was"), "{changed}");
        assert!(store.find(&id).unwrap().is_none());
    }
}
