//! A folder for one test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Beginning of the folders' names.
const NAME: &str = "weir-world-";
/// File in each, locked as long as its test runs. A process number would not say who is still there: tests run in process
/// namespaces of their own, where numbers begin anew.
const IN_USE: &str = "in-use";

/// A folder that is removed when its test is over. The folder of a failed test stays for a look; that of a killed test goes when
/// the next test begins.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    pub(crate) fn new() -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        static SWEPT: Once = Once::new();
        let parent = std::env::temp_dir();
        // One process at a time: a folder is there for a moment before its lock is.
        let gate = File::open(&parent).unwrap();
        gate.lock().unwrap();
        SWEPT.call_once(|| sweep(&parent));
        let path = loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("{NAME}{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => break made.map(|()| path).unwrap(),
            }
        };
        let lock = File::create_new(path.join(IN_USE)).unwrap();
        lock.lock().unwrap();
        Folder { path, _lock: lock }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Without this file, the sweep does not take the folder for that of a killed test.
            let _ = fs::remove_file(self.path.join(IN_USE));
            eprintln!("kept for a look: {}", self.path.display());
        } else {
            fs::remove_dir_all(&self.path).unwrap();
        }
    }
}

/// Removes the folders that killed tests left. A folder that cannot be removed belongs to another user.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).unwrap().flatten() {
        let path = entry.path();
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(NAME));
        let Some(lock) = ours.then(|| File::open(path.join(IN_USE)).ok()).flatten() else { continue };
        if lock.try_lock().is_ok() {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_with_its_test_and_what_a_killed_one_left_with_the_next() {
        let parent = Folder::new();
        let path = parent.path();
        let left = path.join(format!("{NAME}1-0"));
        let used = path.join(format!("{NAME}1-1"));
        let failed = path.join(format!("{NAME}1-2"));
        let other = path.join("weir-1-3");
        for folder in [&left, &used, &failed, &other] {
            fs::create_dir_all(folder.join("work")).unwrap();
        }
        fs::write(left.join(IN_USE), "").unwrap();
        fs::write(other.join(IN_USE), "").unwrap();
        let lock = File::create_new(used.join(IN_USE)).unwrap();
        lock.lock().unwrap();
        sweep(path);
        assert!(!left.exists() && used.exists() && failed.exists() && other.exists());
        drop(lock);
        sweep(path);
        assert!(!used.exists());
        let path = path.to_owned();
        drop(parent);
        assert!(!path.exists());
    }
}
