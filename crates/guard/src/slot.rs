//! Which guard processes a command has: each holds a lock on a file of its own, and the kernel releases it when the process ends,
//! however it ends. A process id alone could belong to another process by now.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, fcntl_lock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk};
use weir_sys::file;
use weir_sys::process::{Identity, stop_other};

use crate::error::{Error, at};
use crate::store::Folder;

/// The two places of a command.
const NUMBERS: [usize; 2] = [1, 2];
/// A dead guard's partner may learn of the death a moment before the kernel releases the lock.
const TAKE: Duration = Duration::from_secs(2);
/// How long guards may take to notice that they are not needed any more.
const GRACE: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(10);

/// The place of this guard process.
#[derive(Debug)]
pub(crate) struct Slot {
    /// 1 or 2.
    pub(crate) number: usize,
    /// A POSIX lock ends when any descriptor of its file is closed: this process opens the file only once.
    _file: File,
}

impl Slot {
    /// Takes a free place.
    pub(crate) fn take(folder: &Folder, by: &str) -> Result<Self, Error> {
        let deadline = Instant::now() + TAKE;
        loop {
            for number in NUMBERS {
                let file = open(folder, by, number)?;
                match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) => return Ok(Slot { number, _file: file }),
                    Err(Errno::AGAIN | Errno::ACCESS) => {}
                    Err(e) => return Err(at(&folder.slot(by, number))(e.into())),
                }
            }
            if Instant::now() >= deadline {
                return Err(Error::Guard("two guard processes run already".into()));
            }
            std::thread::sleep(RETRY);
        }
    }
}

fn open(folder: &Folder, by: &str, number: usize) -> Result<File, Error> {
    let path = folder.slot(by, number);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(&path).map_err(at(&path))
}

/// Process ids of the guards that run; 0 for one in a PID namespace that is not visible from here.
pub(crate) fn holders(folder: &Folder, by: &str) -> Result<Vec<u32>, Error> {
    let mut pids = Vec::new();
    for number in NUMBERS {
        let path = folder.slot(by, number);
        let opened = OpenOptions::new().read(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(&path);
        let Some(file) = file::found(opened).map_err(at(&path))? else { continue };
        let held = fcntl_getlk(&file, &Flock::from(FlockType::WriteLock));
        if let Some(lock) = held.map_err(|e| at(&path)(e.into()))? {
            pids.push(lock.pid.map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs()));
        }
    }
    Ok(pids)
}

/// Waits for the guard processes of a set that is settled; stops one that does not notice.
pub(crate) fn dismiss(folder: &Folder, by: &str) -> Result<(), Error> {
    let deadline = Instant::now() + GRACE;
    while Instant::now() < deadline {
        if holders(folder, by)?.is_empty() {
            return Ok(());
        }
        std::thread::sleep(RETRY);
    }
    for pid in holders(folder, by)? {
        // Asked again once the process is identified: only then it is the one that holds the lock.
        if let Some(guard) = Identity::of(pid)?.filter(|_| pid != 0)
            && holders(folder, by)?.contains(&pid)
        {
            stop_other(guard, GRACE)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_its_holder_ends() {
        let path = std::env::temp_dir().join(format!("weir-slot-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let folder = Folder::at(path.clone());
        assert_eq!(holders(&folder, "test").unwrap(), Vec::<u32>::new());
        let slot = Slot::take(&folder, "test").unwrap();
        assert_eq!(slot.number, 1);
        // A process does not see its own locks; another one does.
        let seen = || {
            let locks = std::fs::read_to_string("/proc/locks").unwrap();
            let own = format!(" {} ", std::process::id());
            locks.lines().filter(|l| l.contains("POSIX") && l.contains(&own)).count()
        };
        assert_eq!(seen(), 1);
        drop(slot);
        assert_eq!(seen(), 0);
        std::fs::remove_dir_all(path).unwrap();
    }
}
