//! Exclusions that last: kept on disk, and in effect with each fast path of this network namespace.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use weir_sys::{NetNs, file, state};
use weir_text::json::indented;

use crate::shared::WEIR_EXCLUSIONS;
use crate::{Error, Exclusion, Result};

/// Version of the file's layout.
const VERSION: u32 = 1;
/// Largest file that is read, bytes: 64 exclusions are far less.
const LARGEST: u64 = 1 << 16;

/// The file of one network namespace in the folder of state.
///
/// The file of the machine's own namespace (the one of process 1) is read again after a reboot. Any other namespace ends with a reboot, and
/// its number may then be another's, so its file names the boot and counts only within it.
#[derive(Debug, Clone)]
pub struct ExclusionStore {
    path: PathBuf,
    /// `None`: it lasts over reboots.
    boot: Option<String>,
}

/// The file.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    version: u32,
    boot: Option<String>,
    excluded: Vec<Exclusion>,
}

/// A change of what is kept. Others wait, until it is dropped.
#[derive(Debug)]
pub struct ExclusionChange<'a> {
    store: &'a ExclusionStore,
    _lock: File,
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Error + use<'_> {
    move |e| Error::State(format!("{}: {e}", path.display()))
}

impl ExclusionStore {
    /// The file of the calling thread's network namespace: in the folder `fastpath` of `$WEIR_STATE_DIR`, else of `/var/lib/weir`.
    ///
    /// # Errors
    /// If `/proc` does not tell which namespace this is.
    pub fn usual() -> Result<Self> {
        let (own, host) = (NetNs::current()?, NetNs::of_pid(1)?);
        let inode = own.inode()?;
        let folder = state::folder("fastpath");
        if inode == host.inode()? {
            return Ok(ExclusionStore { path: folder.join("exclusions.json"), boot: None });
        }
        // No later namespace gets this number before a reboot.
        let number = own.cookie()?.unwrap_or(inode);
        let path = folder.join(format!("exclusions-{number}.json"));
        Ok(ExclusionStore { path, boot: Some(state::boot_id()?) })
    }

    /// One in another folder, which lasts over reboots.
    pub fn in_folder(folder: &Path) -> Self {
        ExclusionStore { path: folder.join("exclusions.json"), boot: None }
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Returns what is kept.
    ///
    /// # Errors
    /// [`Error::State`] if the file cannot be read, is damaged, or others may write to it: nothing may be carried then that perhaps was
    /// excluded.
    pub fn read(&self) -> Result<Vec<Exclusion>> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let Some(file) = file::found(options.open(&self.path)).map_err(at(&self.path))? else {
            return Ok(Vec::new());
        };
        self.check()?;
        let unusable = |why: &str| {
            let path = self.path.display();
            Error::State(format!(
                "the exclusions in {path} cannot be used: {why}; remove the file to go on without"
            ))
        };
        let length = file.metadata().map_err(at(&self.path))?.size();
        if length > LARGEST {
            return Err(unusable(&format!("it has {length} bytes, and {LARGEST} at most")));
        }
        let text = std::io::read_to_string(file).map_err(at(&self.path))?;
        let kept: Kept = serde_json::from_str(&text).map_err(|e| unusable(&e.to_string()))?;
        match () {
            () if kept.version != VERSION => Err(unusable("another version of weir wrote it")),
            // A namespace of an earlier boot.
            () if kept.boot != self.boot => Ok(Vec::new()),
            () => Ok(kept.excluded),
        }
    }

    /// Begins a change; waits for another one.
    ///
    /// # Errors
    /// If the disk refuses, or others may write to the folder.
    pub fn change(&self) -> Result<ExclusionChange<'_>> {
        state::make_private(self.folder()).map_err(at(self.folder()))?;
        self.check()?;
        let path = self.folder().join("lock");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let lock = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(&path).map_err(at(&path))?;
        lock.lock().map_err(at(&path))?;
        Ok(ExclusionChange { store: self, _lock: lock })
    }

    fn check(&self) -> Result<()> {
        match state::why_not_private(self.folder()).map_err(at(self.folder()))? {
            Some(why) => {
                Err(Error::State(format!("{} is not fit for exclusions: {why}", self.folder().display())))
            }
            None => Ok(()),
        }
    }
}

impl ExclusionChange<'_> {
    /// Writes these in the place of those before, on disk when this returns.
    ///
    /// # Errors
    /// [`Error::Options`] if there are more than 64; [`Error::State`] if the disk refuses.
    pub fn keep(&self, excluded: &[Exclusion]) -> Result<()> {
        check_number(excluded.len())?;
        let path = &self.store.path;
        if excluded.is_empty() {
            return file::remove(path).map_err(at(path));
        }
        let kept = Kept { version: VERSION, boot: self.store.boot.clone(), excluded: excluded.to_vec() };
        let text = serde_json::to_string(&kept).map_err(|e| Error::State(e.to_string()))?;
        let mut text = indented(&text);
        text.push('\n');
        file::replace(path, 0o600, text).map_err(at(path))
    }
}

/// Refuses more than the programs have room for.
pub(crate) fn check_number(number: usize) -> Result<()> {
    let most = WEIR_EXCLUSIONS as usize;
    if number > most {
        return Err(Error::Options(format!("{number} exclusions: {most} are possible")));
    }
    Ok(())
}

/// All of both, each once, those of the wish first.
pub(crate) fn joined(wanted: &[Exclusion], kept: &[Exclusion]) -> Vec<Exclusion> {
    let mut all: Vec<Exclusion> = Vec::new();
    for exclusion in wanted.iter().chain(kept) {
        if !all.contains(exclusion) {
            all.push(*exclusion);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use weir_testkit::Files;

    use super::*;

    fn exclusions(texts: &[&str]) -> Vec<Exclusion> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// A folder of this user alone, which does not exist yet.
    fn folder(files: &Files) -> PathBuf {
        files.path().join("state/fastpath")
    }

    #[test]
    fn what_is_kept_is_read_again_and_an_empty_list_leaves_no_file() {
        let files = Files::new(&[]);
        let store = ExclusionStore::in_folder(&folder(&files));
        assert_eq!(store.read().unwrap(), []);
        let two = exclusions(&["192.0.2.0/24:53/udp", "[2001:db8::/32]:443"]);
        store.change().unwrap().keep(&two).unwrap();
        assert_eq!(store.read().unwrap(), two);
        let many = vec![two[0]; 65];
        let refused = store.change().unwrap().keep(&many).unwrap_err();
        assert!(matches!(&refused, Error::Options(_)) && refused.to_string().contains("64"), "{refused}");
        assert_eq!(store.read().unwrap(), two);
        store.change().unwrap().keep(&[]).unwrap();
        assert!(!folder(&files).join("exclusions.json").exists(), "nothing is left of none");
        assert_eq!(store.read().unwrap(), []);
    }

    #[test]
    fn those_of_an_earlier_boot_count_for_the_machines_own_namespace_only() {
        let files = Files::new(&[]);
        let path = folder(&files).join("exclusions.json");
        let before = ExclusionStore { path: path.clone(), boot: Some("first".into()) };
        before.change().unwrap().keep(&exclusions(&["192.0.2.7"])).unwrap();
        assert_eq!(before.read().unwrap().len(), 1);
        assert_eq!(ExclusionStore { path, boot: Some("second".into()) }.read().unwrap(), []);
        let store = ExclusionStore::in_folder(&folder(&files));
        store.change().unwrap().keep(&exclusions(&["192.0.2.8"])).unwrap();
        assert_eq!(ExclusionStore::in_folder(&folder(&files)).read().unwrap(), exclusions(&["192.0.2.8"]));
    }

    #[test]
    fn a_damaged_file_and_a_folder_of_others_are_errors() {
        let files = Files::new(&[]);
        let store = ExclusionStore::in_folder(&folder(&files));
        store.change().unwrap().keep(&exclusions(&["192.0.2.7"])).unwrap();
        let path = folder(&files).join("exclusions.json");
        let whole = fs::read_to_string(&path).unwrap();
        for text in [
            "",
            "{}",
            &whole.replace("192.0.2.7", "host"),
            &whole.replace("\"version\": 1", "\"version\": 2"),
        ] {
            fs::write(&path, text).unwrap();
            let why = store.read().unwrap_err().to_string();
            assert!(why.contains("remove the file"), "{text}: {why}");
        }
        fs::write(&path, whole).unwrap();
        fs::set_permissions(folder(&files), fs::Permissions::from_mode(0o770)).unwrap();
        for refused in [store.read().map(|_| ()), store.change().map(|_| ())] {
            assert!(refused.unwrap_err().to_string().contains("not fit"), "others may write there");
        }
    }

    #[test]
    fn changes_wait_for_each_other() {
        let files = Files::new(&[]);
        let store = ExclusionStore::in_folder(&folder(&files));
        let add = |n: u8| {
            let change = store.change().unwrap();
            let added = exclusions(&[&format!("192.0.2.{n}")]);
            change.keep(&joined(&store.read().unwrap(), &added)).unwrap();
        };
        std::thread::scope(|scope| (1..=20).for_each(|n| drop(scope.spawn(move || add(n)))));
        assert_eq!(store.read().unwrap().len(), 20);
    }

    #[test]
    fn the_same_exclusion_counts_once() {
        let [a, b] = [["192.0.2.1", "192.0.2.2"], ["192.0.2.2", "192.0.2.3"]].map(|two| exclusions(&two));
        assert_eq!(joined(&a, &b), exclusions(&["192.0.2.1", "192.0.2.2", "192.0.2.3"]));
    }
}
