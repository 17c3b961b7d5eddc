//! Policies on disk: to be restored, and to be loaded again after a reboot.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_prefix::{List, Selection, export, read};
use weir_sys::{file, state};

use crate::Error;
use crate::error::at;
use crate::policy::{Action, Backend, Class, Hook, Policy, Port, Xdp};

/// The file with everything but the lists.
const HEADER: &str = "policy.json";
/// Names the policy that is loaded after a reboot.
const BOOT: &str = "boot";
/// Says when and how fast the last one was loaded.
const LOADED: &str = "loaded.json";

/// A folder with policies, each in a folder of its own.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

/// The last loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// Seconds since 1970.
    pub unix_s: u64,
    /// How long it took, with reading and checking, ms.
    pub took_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    backend: Backend,
    interfaces: Vec<String>,
    hook: Hook,
    xdp: Option<Xdp>,
    ports: Vec<Port>,
    established_first: bool,
    rest: Action,
    classes: Vec<ClassHeader>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ClassHeader {
    name: String,
    action: Action,
    origin: Vec<String>,
}

impl Store {
    /// The usual one: the folder `allow` in `$WEIR_STATE_DIR`, else in `/var/lib/weir`.
    pub fn usual() -> Self {
        Store { folder: state::folder("allow") }
    }

    /// Its path.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file that names the policy that is loaded after a reboot.
    pub fn boot_file(&self) -> PathBuf {
        self.folder.join(BOOT)
    }

    /// Makes it where it is missing, for this user alone.
    ///
    /// # Errors
    /// If it cannot be made, or others may write to it.
    pub fn prepare(&self) -> Result<(), Error> {
        state::make_private(&self.folder).map_err(at(&self.folder))?;
        match state::why_not_private(&self.folder).map_err(at(&self.folder))? {
            Some(reason) => {
                Err(Error::Unfit(format!("{} is not fit for policies: {reason}", self.folder.display())))
            }
            None => Ok(()),
        }
    }

    /// Writes a policy down and says where. One with the same content is written only once.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn keep(&self, policy: &Policy) -> Result<PathBuf, Error> {
        self.prepare()?;
        let id = policy.id();
        let path = self.folder.join(&id);
        if path.is_dir() {
            return Ok(path);
        }
        let beside = self.folder.join(format!("{id}.new"));
        if beside.exists() {
            fs::remove_dir_all(&beside).map_err(at(&beside))?;
        }
        state::make_private(&beside).map_err(at(&beside))?;
        let write = |name: &str, text: String| {
            let path = beside.join(name);
            file::write_new(&path, 0o600, text).map_err(at(&path))
        };
        write(HEADER, policy.header().to_string())?;
        for (n, class) in (1..).zip(&policy.classes) {
            write(&format!("{n}.list"), export::ranges(&class.v4, &class.v6))?;
        }
        fs::rename(&beside, &path).map_err(at(&path))?;
        file::sync_folder_of(&path).map_err(at(&self.folder))?;
        Ok(path)
    }

    /// A policy by its name; `None` if it is not kept.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn find(&self, id: &str) -> Result<Option<Policy>, Error> {
        let path = self.folder.join(id);
        if path.is_dir() { Store::read(&path).map(Some) } else { Ok(None) }
    }

    /// The policy in that folder.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    pub fn read(path: &Path) -> Result<Policy, Error> {
        let damaged = |why: String| Error::Unfit(format!("{}: {why}", path.display()));
        let file = path.join(HEADER);
        let text = fs::read_to_string(&file).map_err(at(&file))?;
        let header: Header = serde_json::from_str(&text).map_err(|e| damaged(e.to_string()))?;
        let mut classes = Vec::new();
        for (n, class) in (1..).zip(header.classes) {
            let file = path.join(format!("{n}.list"));
            let bytes = fs::read(&file).map_err(at(&file))?;
            let mut list = List::default();
            read::read(&mut list, &file.display().to_string(), &bytes, &Selection::default())
                .map_err(|e| damaged(e.to_string()))?;
            let ClassHeader { name, action, origin } = class;
            classes.push(Class { name, action, origin, v4: list.ranges_v4(), v6: list.ranges_v6() });
        }
        let policy = Policy {
            backend: header.backend,
            interfaces: header.interfaces,
            hook: header.hook,
            xdp: header.xdp,
            ports: header.ports,
            established_first: header.established_first,
            classes,
            rest: header.rest,
        };
        policy.check().map_err(&damaged)?;
        let named = path.file_name().is_some_and(|name| name.to_string_lossy() == policy.id());
        if named { Ok(policy) } else { Err(damaged("it is not what it was when it was written".into())) }
    }

    /// The policy that is loaded after a reboot, if one is.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn boot(&self) -> Result<Option<String>, Error> {
        let text = file::found(fs::read_to_string(self.boot_file())).map_err(at(&self.boot_file()))?;
        Ok(text.map(|text| text.trim().to_owned()))
    }

    /// Removes all policies but these.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn forget_but(&self, keep: &[&str]) -> Result<(), Error> {
        let entries = file::found(fs::read_dir(&self.folder)).map_err(at(&self.folder))?;
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.path().is_dir() && !keep.contains(&name.as_str()) {
                fs::remove_dir_all(entry.path()).map_err(at(&entry.path()))?;
            }
        }
        Ok(())
    }

    /// Removes everything.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn clear(&self) -> Result<(), Error> {
        file::found(fs::remove_dir_all(&self.folder)).map(drop).map_err(at(&self.folder))
    }

    /// Notes a loading.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn note(&self, loaded: Loaded) -> Result<(), Error> {
        self.prepare()?;
        let text = serde_json::to_string(&loaded).unwrap_or_default();
        let path = self.folder.join(LOADED);
        file::replace(&path, 0o600, text).map_err(at(&path))
    }

    /// The last loading, if it is known.
    pub fn loaded(&self) -> Option<Loaded> {
        serde_json::from_str(&fs::read_to_string(self.folder.join(LOADED)).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_comes_back_as_it_was_and_a_damaged_one_is_refused() {
        let folder = std::env::temp_dir().join(format!("weir-allow-store-{}", std::process::id()));
        let store = Store { folder: folder.clone() };
        let policy = crate::verify::tests::policy();
        let path = store.keep(&policy).unwrap();
        assert_eq!(store.keep(&policy).unwrap(), path);
        assert_eq!(Store::read(&path).unwrap(), policy);
        assert_eq!(store.find(&policy.id()).unwrap(), Some(policy.clone()));
        assert_eq!((store.find("other").unwrap(), store.boot().unwrap()), (None, None));
        // A list that lost a line is another list.
        let list = fs::read_to_string(path.join("1.list")).unwrap();
        fs::write(path.join("1.list"), list.lines().skip(1).map(|l| format!("{l}\n")).collect::<String>())
            .unwrap();
        assert!(Store::read(&path).unwrap_err().to_string().contains("not what it was"));
        store.forget_but(&[]).unwrap();
        assert_eq!(store.find(&policy.id()).unwrap(), None);
        let loaded = Loaded { unix_s: 5, took_ms: 7 };
        store.note(loaded).unwrap();
        assert_eq!(store.loaded(), Some(loaded));
        store.clear().unwrap();
        store.clear().unwrap();
        assert!(!folder.exists());
    }
}
