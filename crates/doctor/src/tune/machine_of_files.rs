//! For tests: a machine of files.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use weir_sys::ProcRoot;

/// A folder with files as `/proc` and `/etc` have them; it is gone when the test is over.
pub(super) struct Files(PathBuf);

impl Files {
    pub(super) fn new(files: &[(&str, &str)]) -> Files {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let made = Files(std::env::temp_dir().join(format!("weir-tune-{}-{number}", std::process::id())));
        // A failed test of a process with this number may have left one.
        let _ = fs::remove_dir_all(&made.0);
        files.iter().for_each(|(path, text)| made.put(path, text));
        made
    }

    pub(super) fn put(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A setting by its name.
    pub(super) fn set(&self, name: &str, value: &str) {
        self.put(&format!("proc/sys/{}", super::path_of(name)), &format!("{value}\n"));
    }

    pub(super) fn root(&self) -> ProcRoot {
        ProcRoot::new(&self.0)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
