//! Records that the kernel writes to its log from now on (`/dev/kmsg`, Documentation/ABI/testing/dev-kmsg).

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use crate::error::{Context, Error, Result};
use crate::procfs::ProcRoot;

/// The kernel refuses to write a record into less than this (PRINTK_MESSAGE_MAX, kernel/printk/internal.h).
const RECORD: usize = 8192;

/// A place in the log.
#[derive(Debug)]
pub struct KernelLog {
    file: File,
}

impl KernelLog {
    /// Begins behind what is in it now.
    ///
    /// # Errors
    /// `PermissionDenied` where the log is restricted to others.
    pub fn from_now(root: &ProcRoot) -> Result<Self> {
        let path = root.path("dev/kmsg");
        let what = || format!("open {}", path.display());
        let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).map_err(|e| {
            if e.kind() == ErrorKind::PermissionDenied {
                let why = "the kernel's log is restricted: this needs root, CAP_SYSLOG, or kernel.dmesg_restrict=0";
                return Error::new(what(), std::io::Error::new(e.kind(), why));
            }
            Error::new(what(), e)
        })?;
        file.seek(SeekFrom::End(0)).context(what)?;
        Ok(KernelLog { file })
    }

    /// Hands over the text of each line that the kernel itself has written since, and says how many were overwritten before they could
    /// be read.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn drain(&mut self, mut each: impl FnMut(&str)) -> Result<u64> {
        let mut buffer = vec![0; RECORD];
        let mut expected = None;
        let mut missed = 0;
        loop {
            match self.file.read(&mut buffer) {
                Ok(0) => return Ok(missed),
                Ok(length) => {
                    let record = String::from_utf8_lossy(&buffer[..length]);
                    let Some((facility, number, text)) = parse(&record) else { continue };
                    missed += expected.map_or(0, |e: u64| number.saturating_sub(e));
                    expected = Some(number + 1);
                    if facility == 0 {
                        each(text);
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(missed),
                // The record was overwritten: the next read goes on with the oldest there is.
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::new("read the kernel's log", e)),
            }
        }
    }
}

/// `6,2850,8652325819,-;text`, and after a newline lines of the device, as facility, number and text.
fn parse(record: &str) -> Option<(u64, u64, &str)> {
    let (head, text) = record.split_once(';')?;
    let mut fields = head.split(',');
    let priority: u64 = fields.next()?.parse().ok()?;
    let number = fields.next()?.parse().ok()?;
    // The lower three bits are the level (syslog(3)); facility 0 is the kernel.
    Some((priority >> 3, number, text.lines().next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privilege::test_needs_root;

    #[test]
    fn records_are_read() {
        assert_eq!(parse("6,2850,8652325819,-;out0: up\n SUBSYSTEM=net\n"), Some((0, 2850, "out0: up")));
        assert_eq!(parse("12,3,5,c;by a program; or so\n"), Some((1, 3, "by a program; or so")));
        for broken in ["", "x", "6;x", ";", "a,1,2;t"] {
            assert_eq!(parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn root_what_programs_write_is_left_out() {
        if test_needs_root() {
            return;
        }
        let mut log = KernelLog::from_now(&ProcRoot::default()).unwrap();
        let word = format!("weir test {}", std::process::id());
        // Facility 1 (user), which the kernel gives to user processes, is not the kernel's own.
        std::fs::write("/dev/kmsg", &word).unwrap();
        let mut lines = Vec::new();
        log.drain(|line| lines.push(line.to_owned())).unwrap();
        assert!(lines.iter().all(|l| !l.contains(&word)), "{lines:?}");
    }

    #[test]
    fn a_missing_log_is_named() {
        let error = KernelLog::from_now(&ProcRoot::new("/no/such")).unwrap_err();
        assert!(error.to_string().contains("/no/such/dev/kmsg"), "{error}");
    }
}
