//! Journals on disk: one JSON value a line, each on disk before the next step is taken; and the lock that lets one process at
//! a time take steps.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, OFlags, fallocate};

use crate::error::{Error, at};
use crate::journal::{ChangeSet, Entry, StepState, When};
use crate::step;

/// Where journals are unless WEIR_STATE_DIR says otherwise.
const STATE: &str = "/var/lib/weir";
/// Largest journal that is read: rule sets on the standard input of programs are in it.
const LARGEST: u64 = 256 << 20;
/// Room that is set aside for each change before the first one is made, bytes: a disk that fills up meanwhile must not keep
/// us from writing down what happened. A line with a value is far shorter, but for what a program or a file's text adds.
const ROOM_PER_STEP: u64 = 4096;
/// How often a lock is tried again.
const RETRY: Duration = Duration::from_millis(20);

/// The folder of journals.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// The usual one: `guard` in `$WEIR_STATE_DIR`, else in `/var/lib/weir`.
    pub(crate) fn usual() -> Self {
        let state = std::env::var_os("WEIR_STATE_DIR").filter(|dir| !dir.is_empty());
        let path = PathBuf::from(state.unwrap_or_else(|| STATE.into())).join("guard");
        // The guard process works from another folder than the command that started it.
        Folder { path: std::path::absolute(&path).unwrap_or(path) }
    }

    /// Another one.
    #[cfg(test)]
    pub(crate) fn at(path: PathBuf) -> Self {
        Folder { path }
    }

    /// Makes it where it is missing, for this user alone, and makes sure that no other may write there.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path).map_err(at(&self.path))?;
        if let Some(parent) = self.path.parent() {
            // The name of a new folder is to be there after a power failure, too.
            sync(parent)?;
        }
        self.check()
    }

    /// False if there is none: nothing was ever applied.
    pub(crate) fn exists(&self) -> Result<bool, Error> {
        match fs::symlink_metadata(&self.path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(at(&self.path)(e)),
            Ok(_) => self.check().map(|()| true),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let meta = fs::symlink_metadata(&self.path).map_err(at(&self.path))?;
        let refuse = |reason: &str| {
            Err(Error::Folder { path: self.path.display().to_string(), reason: reason.to_owned() })
        };
        if !meta.is_dir() {
            return refuse("it is not a folder");
        }
        if meta.uid() != rustix::process::geteuid().as_raw() {
            if rustix::process::geteuid().is_root() {
                return refuse("it belongs to another user");
            }
            return Err(at(&self.path)(std::io::ErrorKind::PermissionDenied.into()));
        }
        if meta.mode() & 0o022 != 0 {
            return refuse("other users may write to it (chmod go-w)");
        }
        Ok(())
    }

    /// The right to take steps; `None` if another process has it for longer than `patience`.
    pub(crate) fn lock(&self, patience: Duration) -> Result<Option<File>, Error> {
        let path = self.path.join("lock");
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let file = options.open(&path).map_err(at(&path))?;
        let deadline = Instant::now() + patience;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return Ok(None),
                Err(TryLockError::WouldBlock) => std::thread::sleep(RETRY),
                Err(TryLockError::Error(e)) => return Err(at(&path)(e)),
            }
        }
    }

    /// The journal of a command's last set.
    pub(crate) fn journal(&self, by: &str) -> PathBuf {
        self.path.join(format!("{by}.journal"))
    }

    /// All journals, but for superseded ones.
    pub(crate) fn journals(&self) -> Result<Vec<PathBuf>, Error> {
        let entries = fs::read_dir(&self.path).map_err(at(&self.path))?;
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(at(&self.path))?.path();
            if path.extension().is_some_and(|e| e == "journal") {
                paths.push(path);
            }
        }
        paths.sort();
        Ok(paths)
    }
}

/// An open journal with what it tells.
#[derive(Debug)]
pub(crate) struct Store {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines.
    length: u64,
    pub(crate) set: ChangeSet,
}

impl Store {
    /// Begins the journal of a set. It takes the place of that command's last one at once or not at all; the last one stays
    /// beside it, with the ending `.before`.
    pub(crate) fn create(path: &Path, begin: Entry) -> Result<Self, Error> {
        let line = line(path, &begin)?;
        let set = ChangeSet::replay([begin])
            .map_err(|(_, reason)| Error::Journal { path: path.display().to_string(), reason })?;
        let new = path.with_extension("new");
        let made = Store::write_new(&new, &line, set.begin.steps.len() as u64);
        let file = made.inspect_err(|_| {
            // The rest of a failed attempt is of no use to anybody.
            let _ = fs::remove_file(&new);
        })?;
        if path.exists() {
            let before = path.with_extension("before");
            let beside = path.with_extension("before-new");
            let _ = fs::remove_file(&beside);
            fs::hard_link(path, &beside).and_then(|()| fs::rename(&beside, &before)).map_err(at(path))?;
        }
        fs::rename(&new, path).map_err(at(path))?;
        sync_folder(path)?;
        step::passed();
        Ok(Store { path: path.to_owned(), file, length: line.len() as u64, set })
    }

    fn write_new(path: &Path, line: &[u8], steps: u64) -> Result<File, Error> {
        match fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(at(path)(e)),
            _ => {}
        }
        let mut file =
            OpenOptions::new().append(true).create_new(true).mode(0o600).open(path).map_err(at(path))?;
        file.write_all(line).map_err(at(path))?;
        // What is made or put back is told once more on the way: as much again as the beginning, and some for each change.
        let room = line.len() as u64 * 2 + ROOM_PER_STEP * (steps + 2);
        match fallocate(&file, FallocateFlags::KEEP_SIZE, line.len() as u64, room) {
            // A file system that cannot set room aside does without.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
            Err(e) => return Err(at(path)(e.into())),
        }
        file.sync_all().map_err(at(path))?;
        Ok(file)
    }

    /// Opens one that another process wrote; `None` if there is none. `write` also makes it ready for more lines.
    pub(crate) fn open(path: &Path, write: bool) -> Result<Option<Self>, Error> {
        let mut options = OpenOptions::new();
        options.read(true).append(write).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let mut file = match options.open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(at(path)(e)),
        };
        let meta = file.metadata().map_err(at(path))?;
        let unusable = |reason: String| Error::Journal { path: path.display().to_string(), reason };
        if meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o022 != 0 {
            return Err(unusable("others may write to it".into()));
        }
        if meta.len() > LARGEST {
            return Err(unusable(format!("it has {} bytes, and {LARGEST} at most", meta.len())));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(at(path))?;
        let (set, length) = parse(&bytes).map_err(unusable)?;
        if write {
            // What is appended must begin a line of its own; and KEEP_SIZE room stays, because the size is not changed otherwise.
            if length < bytes.len() as u64 {
                file.set_len(length).map_err(at(path))?;
            }
        }
        Ok(Some(Store { path: path.to_owned(), file, length, set }))
    }

    /// Writes a line and waits until it is on disk.
    pub(crate) fn append(&mut self, entry: Entry) -> Result<(), Error> {
        let bytes = line(&self.path, &entry)?;
        // A line that does not follow would make the journal useless: it is not written.
        let mut next = self.set.clone();
        next.take(entry)
            .map_err(|reason| Error::Journal { path: self.path.display().to_string(), reason })?;
        let written = self.file.write_all(&bytes).and_then(|()| self.file.sync_data());
        if let Err(e) = written {
            // Half a line is not to be in the way of the next one.
            let _ = self.file.set_len(self.length);
            return Err(at(&self.path)(e));
        }
        self.length += bytes.len() as u64;
        self.set = next;
        step::passed();
        Ok(())
    }

    /// Opens the file alone, to have it when its name is gone.
    pub(crate) fn hold(path: &Path) -> Result<File, Error> {
        let mut options = OpenOptions::new();
        options.read(true).append(true).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        options.open(path).map_err(at(path))
    }

    /// A set whose journal lost its name or its content, for whoever still has the file and knew the set before. Lines that it
    /// has not seen may be lost: a change that was about to be made is looked at as if it was.
    pub(crate) fn rescue(path: &Path, mut file: File, known: ChangeSet) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes)).map_err(at(path))?;
        let length = bytes.len() as u64;
        let mut set = match parse(&bytes) {
            Ok((set, _)) if set.begin.id == known.begin.id => set,
            _ => known,
        };
        for (step, state) in set.begin.steps.iter().zip(&mut set.states) {
            if step.when == When::Apply && *state == StepState::Planned {
                *state = StepState::Writing;
            }
        }
        Ok(Store { path: path.to_owned(), file, length, set })
    }

    /// Changes whenever somebody writes a line, or begins another journal.
    pub(crate) fn stamp(path: &Path) -> Option<(u64, u64)> {
        fs::metadata(path).ok().map(|m| (m.ino(), m.len()))
    }
}

/// What the bytes of a journal tell, and how many of them are whole lines. A last line without its end was being written when
/// that process was killed: the step that it names had not begun.
pub(crate) fn parse(bytes: &[u8]) -> Result<(ChangeSet, u64), String> {
    let length = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
    let whole = std::str::from_utf8(&bytes[..length]).map_err(|_| "it is not text".to_owned())?;
    let mut entries = Vec::new();
    for (n, line) in whole.lines().enumerate() {
        let entry = serde_json::from_str::<Entry>(line);
        entries
            .push(entry.map_err(|e| format!("line {}: not an entry of this version of weir: {e}", n + 1))?);
    }
    let set = ChangeSet::replay(entries).map_err(|(n, reason)| format!("line {n}: {reason}"))?;
    Ok((set, length as u64))
}

fn line(path: &Path, entry: &Entry) -> Result<Vec<u8>, Error> {
    let mut line = serde_json::to_vec(entry).map_err(|e| at(path)(e.into()))?;
    line.push(b'\n');
    Ok(line)
}

/// Without this the file's name may be lost though its content is on disk.
pub(crate) fn sync_folder(path: &Path) -> Result<(), Error> {
    sync(path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}

fn sync(folder: &Path) -> Result<(), Error> {
    File::open(folder).and_then(|d| d.sync_all()).map_err(at(folder))
}

/// Changes with every boot of the machine (random(4)).
pub(crate) fn boot_id() -> Result<String, Error> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    Ok(fs::read_to_string(path).map_err(at(path))?.trim().to_owned())
}
