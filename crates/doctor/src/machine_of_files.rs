//! For tests: a machine of files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use weir_sys::ProcRoot;

use crate::tune::path_of;

/// A folder with files as `/proc`, `/sys` and `/etc` have them; it is gone when the test is over, whether it passed or not.
pub(crate) struct Files(PathBuf);

impl Files {
    pub(crate) fn new(files: &[(&str, &str)]) -> Files {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let made = Files(std::env::temp_dir().join(format!("weir-doctor-{}-{number}", std::process::id())));
        // One that was killed with this number may have left one.
        let _ = fs::remove_dir_all(&made.0);
        fs::create_dir(&made.0).unwrap();
        made.put_all(files);
        made
    }

    pub(crate) fn put(&self, path: &str, text: &str) {
        let path = self.with_parent(path);
        fs::write(path, text).unwrap();
    }

    pub(crate) fn put_all(&self, files: &[(&str, &str)]) {
        files.iter().for_each(|(path, text)| self.put(path, text));
    }

    /// A symbolic link at `path`.
    pub(crate) fn link(&self, path: &str, target: &str) {
        std::os::unix::fs::symlink(target, self.with_parent(path)).unwrap();
    }

    /// A setting by its name.
    pub(crate) fn set(&self, name: &str, value: &str) {
        self.put(&format!("proc/sys/{}", path_of(name)), &format!("{value}\n"));
    }

    fn with_parent(&self, path: &str) -> PathBuf {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn root(&self) -> ProcRoot {
        ProcRoot::new(&self.0)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
