//! A machine of files.

use std::fs;
use std::path::{Path, PathBuf};

use weir_sys::ProcRoot;
use weir_sys::sysctl::path_of;

use crate::folder::Folder;

/// A folder with files as `/proc`, `/sys` and `/etc` have them; it is gone when its test is over.
#[derive(Debug)]
pub struct Files(Folder);

impl Files {
    /// Files by path and text.
    pub fn new(files: &[(&str, &str)]) -> Files {
        let made = Files(Folder::new());
        made.put_all(files);
        made
    }

    /// Writes a file.
    pub fn put(&self, path: &str, text: &str) {
        let path = self.with_parent(path);
        fs::write(path, text).unwrap();
    }

    /// Writes files.
    pub fn put_all(&self, files: &[(&str, &str)]) {
        files.iter().for_each(|(path, text)| self.put(path, text));
    }

    /// A symbolic link at `path`.
    pub fn link(&self, path: &str, target: &str) {
        std::os::unix::fs::symlink(target, self.with_parent(path)).unwrap();
    }

    /// A setting by its name.
    pub fn set(&self, name: &str, value: &str) {
        self.put(&format!("proc/sys/{}", path_of(name)), &format!("{value}\n"));
    }

    fn with_parent(&self, path: &str) -> PathBuf {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The folder as the root of `/proc` and `/sys`.
    pub fn root(&self) -> ProcRoot {
        ProcRoot::new(self.0.path())
    }
}
