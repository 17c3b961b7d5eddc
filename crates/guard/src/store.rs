//! The folder of journals, their replay, and the lock that lets one process at a time take steps.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use weir_sys::{file, state};

use crate::error::{Error, at};
use crate::journal::{ChangeSet, Entry, When};
use crate::lines::{self, LineFile};
use crate::step;
use crate::step_state::StepState;

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
        Folder { path: state::folder("guard") }
    }

    /// The one in that folder of state.
    pub(crate) fn of_state(state: &Path) -> Self {
        Folder { path: state.join("guard") }
    }

    /// Another one.
    #[cfg(test)]
    pub(crate) fn at(path: PathBuf) -> Self {
        Folder { path }
    }

    /// Makes it where it is missing, for this user alone, and makes sure that no other may write there.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        state::make_private(&self.path).map_err(at(&self.path))?;
        // The name of a new folder is to be there after a power failure, too.
        sync_folder(&self.path)?;
        self.check()
    }

    /// False if there is none: nothing was ever applied.
    pub(crate) fn exists(&self) -> Result<bool, Error> {
        match file::found(fs::symlink_metadata(&self.path)).map_err(at(&self.path))? {
            None => Ok(false),
            Some(_) => self.check().map(|()| true),
        }
    }

    fn check(&self) -> Result<(), Error> {
        match state::why_not_private(&self.path).map_err(at(&self.path))? {
            Some(reason) => {
                Err(Error::Folder { path: self.path.display().to_string(), reason: reason.to_owned() })
            }
            None => Ok(()),
        }
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

    /// The file that a guard process of a command holds a lock on.
    pub(crate) fn slot(&self, by: &str, number: usize) -> PathBuf {
        self.path.join(format!("{by}.guard-{number}"))
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
    file: LineFile,
    pub(crate) set: ChangeSet,
}

impl Store {
    /// Begins the journal of a set. It takes the place of that command's last one at once or not at all; the last one stays
    /// beside it, with the ending `.before`.
    pub(crate) fn create(path: &Path, begin: Entry) -> Result<Self, Error> {
        let line = lines::line(&begin).map_err(at(path))?;
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
        let file = LineFile::new(file, line.len() as u64);
        Ok(Store { path: path.to_owned(), file, set })
    }

    fn write_new(path: &Path, line: &[u8], steps: u64) -> Result<File, Error> {
        file::remove(path).map_err(at(path))?;
        let mut file =
            OpenOptions::new().append(true).create_new(true).mode(0o600).open(path).map_err(at(path))?;
        file.write_all(line).map_err(at(path))?;
        // The journal repeats each value that is made or restored: reserve as much again as the beginning, and some for each
        // change.
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
        let Some(mut file) = file::found(options.open(path)).map_err(at(path))? else { return Ok(None) };
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
        let file = LineFile::new(file, length);
        if write {
            file.cut_half_line().map_err(at(path))?;
        }
        Ok(Some(Store { path: path.to_owned(), file, set }))
    }

    /// Writes a line and waits until it is on disk.
    pub(crate) fn append(&mut self, entry: Entry) -> Result<(), Error> {
        // A line that does not follow would make the journal useless: it is not written.
        let mut next = self.set.clone();
        next.take(entry.clone())
            .map_err(|reason| Error::Journal { path: self.path.display().to_string(), reason })?;
        self.file.append(&entry).map_err(at(&self.path))?;
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

    /// Recovers a set whose journal lost its name or its content, for a process that still has the file and knew the set before.
    /// Lines that it has not seen may be lost: it treats a planned change as one that may have been made.
    pub(crate) fn rescue(path: &Path, mut file: File, known: ChangeSet) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes)).map_err(at(path))?;
        let file = LineFile::new(file, bytes.len() as u64);
        let mut set = match parse(&bytes) {
            Ok((set, _)) if set.begin.id == known.begin.id => set,
            _ => known,
        };
        for (step, state) in set.begin.steps.iter().zip(&mut set.states) {
            if step.when == When::Apply && *state == StepState::Planned {
                *state = StepState::Writing;
            }
        }
        Ok(Store { path: path.to_owned(), file, set })
    }

    /// Returns a value that changes whenever a process writes a line, or begins another journal.
    pub(crate) fn stamp(path: &Path) -> Option<(u64, u64)> {
        fs::metadata(path).ok().map(|m| (m.ino(), m.len()))
    }
}

/// The set of a journal's bytes, and the number of bytes in whole lines.
pub(crate) fn parse(bytes: &[u8]) -> Result<(ChangeSet, u64), String> {
    let (entries, length) = lines::entries(bytes)?;
    let set = ChangeSet::replay(entries).map_err(|(n, reason)| format!("line {n}: {reason}"))?;
    Ok((set, length))
}

/// Without this the file's name may be lost though its content is on disk.
pub(crate) fn sync_folder(path: &Path) -> Result<(), Error> {
    file::sync_folder_of(path).map_err(at(path))
}
