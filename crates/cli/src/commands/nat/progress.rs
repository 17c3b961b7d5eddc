//! A run of `weir nat lab` or `weir nat check` in parts: what earlier ones have seen, in a file.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use weir_nat::experiments::longest_left;
use weir_nat::{Earlier, Limits, Observations, Progress};
use weir_sys::file::replace;

use crate::exit::Failure;
use crate::output::printable;

/// First word of a file.
const FORMAT: &str = "weir.nat-progress/1";
/// A whole run of all gateways takes some megabytes.
const LONGEST: u64 = 256 << 20;
/// Timers are kept that often: a part of their longest time, within bounds.
const PART: u32 = 100;
const AT_LEAST: Duration = Duration::from_secs(1);
const AT_MOST: Duration = Duration::from_secs(60);

/// Parts of a run have all of it in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Circumstances {
    pub(super) weir: String,
    pub(super) kernel: String,
    /// Both ends of a check, and whether raw packets go between them; none of the lab.
    #[serde(default)]
    pub(super) path: Option<String>,
    pub(super) idle_s: f64,
    pub(super) connections_idle_s: f64,
    pub(super) mappings: u32,
    pub(super) ipv6: bool,
    pub(super) sysctls: BTreeMap<String, String>,
}

/// The content of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Content {
    format: String,
    circumstances: Circumstances,
    /// When each part began; RFC 3339, UTC.
    started: Vec<String>,
    gateways: BTreeMap<String, Earlier>,
}

/// The file, in use by this process alone.
#[derive(Debug)]
pub(super) struct ProgressFile {
    path: PathBuf,
    _lock: Lock,
    interval: Duration,
    /// The file's content; and whether a failure to write it was reported.
    state: Mutex<(Content, bool)>,
}

impl Circumstances {
    /// Those of the lab with that program, this kernel and these limits.
    ///
    /// # Errors
    /// /proc does not name the kernel.
    pub(super) fn of(limits: Limits) -> Result<Self, Failure> {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").map_err(Failure::failed)?;
        Ok(Circumstances {
            weir: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: kernel.trim().to_owned(),
            path: None,
            idle_s: limits.idle.as_secs_f64(),
            connections_idle_s: limits.connections.as_secs_f64(),
            mappings: limits.mappings,
            ipv6: false,
            sysctls: BTreeMap::new(),
        })
    }

    /// The first thing that differs.
    fn difference(&self, now: &Circumstances) -> Option<String> {
        let words = |c: &Circumstances| {
            let sysctls: Vec<String> =
                c.sysctls.iter().map(|(name, value)| format!("{name}={value}")).collect();
            [
                ("weir", c.weir.clone()),
                ("kernel", c.kernel.clone()),
                ("path", c.path.clone().unwrap_or_else(|| "in the lab".to_owned())),
                ("--idle, s", c.idle_s.to_string()),
                ("--idle of connections, s", c.connections_idle_s.to_string()),
                ("--mappings", c.mappings.to_string()),
                ("--ipv6", c.ipv6.to_string()),
                ("--sysctl", sysctls.join(" ")),
            ]
        };
        let pairs = words(self).into_iter().zip(words(now));
        let mut different = pairs.filter(|(there, here)| there != here);
        different.next().map(|((name, there), (_, here))| format!("{name}: `{there}` there, `{here}` now"))
    }
}

/// The end of a message about a run that was stopped.
pub(super) fn goes_on(path: Option<&Path>) -> String {
    path.map_or_else(String::new, |path| format!("; the same command goes on from {}", path.display()))
}

impl ProgressFile {
    /// Goes on from the file, or begins it.
    ///
    /// # Errors
    /// If it is of something else, damaged, or in use.
    pub(super) fn open(path: &Path, circumstances: Circumstances, limits: Limits) -> Result<Self, Failure> {
        let at = |e: io::Error| Failure::failed(format!("{}: {e}", path.display()));
        let lock = Lock::take(path).map_err(at)?.ok_or_else(|| {
            Failure::failed(format!("{}: another weir keeps its progress there now", path.display()))
        })?;
        let started = Vec::new();
        let gateways = BTreeMap::new();
        let mut content = Content { format: FORMAT.to_owned(), circumstances, started, gateways };
        if let Some(found) = read(path).map_err(at)? {
            let refused = |why: &str| {
                let path = path.display();
                Failure::usage(format!("{path}: {why}; remove the file, or name another one"))
            };
            let found =
                str::from_utf8(&found).ok().and_then(|text| serde_json::from_str::<Content>(text).ok());
            let found = found.filter(|found| found.format == FORMAT);
            let found =
                found.ok_or_else(|| refused("not the progress of a `weir nat` command, or a damaged one"))?;
            if let Some(difference) = found.circumstances.difference(&content.circumstances) {
                return Err(refused(&format!("of another run ({})", printable(&difference))));
            }
            content = found;
        }
        let longest = limits.idle.max(limits.connections);
        let interval = (longest / PART).clamp(AT_LEAST, AT_MOST);
        Ok(ProgressFile { path: path.to_owned(), _lock: lock, interval, state: Mutex::new((content, false)) })
    }

    /// Another part begins. A file that cannot be written shows before anything is measured.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn begin(&self) -> Result<(), Failure> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0.started.push(jiff::Timestamp::now().to_string());
        self.write(&state.0)
            .map_err(|e| Failure::failed(format!("cannot write {}: {e}", self.path.display())))
    }

    /// When each part began.
    pub(super) fn started(&self) -> Vec<String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0.started.clone()
    }

    /// Results of earlier parts about a gateway, or the path of a check.
    pub(super) fn earlier(&self, gateway: &str) -> Earlier {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0.gateways.get(gateway).cloned().unwrap_or_default()
    }

    /// The longest idle time that is still to be waited for.
    pub(super) fn longest_left(&self, gateway: &str, limits: Limits) -> Duration {
        longest_left(limits, &self.earlier(gateway))
    }

    /// Keeps what was seen of a gateway. The run goes on without: hours of waiting are worth more than the file.
    fn keep(&self, gateway: &str, seen: &Observations, complete: Option<&str>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (content, reported) = &mut *state;
        let part = content.gateways.entry(gateway.to_owned()).or_default();
        part.seen = seen.clone();
        part.complete.extend(complete.map(str::to_owned));
        match self.write(content) {
            Ok(()) => *reported = false,
            Err(_) if *reported => {}
            Err(e) => {
                *reported = true;
                let path = self.path.display();
                eprintln!(
                    "warning: {path} stays behind: {e}; the run goes on, and cannot be resumed from here"
                );
            }
        }
    }

    fn write(&self, content: &Content) -> io::Result<()> {
        replace(&self.path, 0o600, serde_json::to_vec(content).map_err(io::Error::other)?)
    }
}

/// The file; `None` if there is none.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(LONGEST).read_to_end(&mut bytes).map(|_| Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// The right to use the file. The kernel takes it back with the process, however that ends.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// `None` if another process has it.
    fn take(of: &Path) -> io::Result<Option<Self>> {
        let mut name = of.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        loop {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o600);
            let file = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(e)) => return Err(e),
            }
            // The one that had it may have removed the name meanwhile.
            let named = fs::symlink_metadata(&path).ok().map(|named| (named.dev(), named.ino()));
            let own = file.metadata()?;
            if named == Some((own.dev(), own.ino())) {
                return Ok(Some(Lock { path, _file: file }));
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A name that stays is in no one's way.
        let _ = fs::remove_file(&self.path);
    }
}

/// Follows the run of one gateway or path, and keeps it in the file if there is one.
pub(super) struct Follower<'a> {
    pub(super) gateway: String,
    pub(super) file: Option<&'a ProgressFile>,
    pub(super) begins: &'a mut dyn FnMut(&'static str) -> bool,
    /// When a part was kept last, on the clock of the ends.
    pub(super) kept: Duration,
}

impl Progress for Follower<'_> {
    fn begins(&mut self, experiment: &'static str) -> bool {
        (self.begins)(experiment)
    }

    fn wants_part(&mut self, now: Duration) -> bool {
        let due = self.file.is_some_and(|file| now.saturating_sub(self.kept) >= file.interval);
        if due {
            self.kept = now;
        }
        due
    }

    fn seen(&mut self, seen: &Observations, complete: Option<&'static str>) -> io::Result<()> {
        if let Some(file) = self.file {
            file.keep(&self.gateway, seen, complete);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circumstances() -> Circumstances {
        Circumstances {
            weir: "1".into(),
            kernel: "6".into(),
            path: None,
            idle_s: 35.0,
            connections_idle_s: 35.0,
            mappings: 2_000,
            ipv6: false,
            sysctls: BTreeMap::new(),
        }
    }

    #[test]
    fn the_first_difference_is_named() {
        let mut other = circumstances();
        assert_eq!(circumstances().difference(&other), None);
        other.idle_s = 125.0;
        other.mappings = 0;
        let difference = circumstances().difference(&other);
        assert_eq!(difference.as_deref(), Some("--idle, s: `35` there, `125` now"));
    }

    #[test]
    fn a_file_is_used_by_one_at_a_time_and_leaves_no_lock() {
        let folder = std::env::temp_dir().join(format!("weir-nat-progress-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("run");
        let open = || ProgressFile::open(&path, circumstances(), Limits::default());
        let first = open().ok().unwrap();
        assert!(matches!(open(), Err(Failure::Told { code: 1, .. })));
        first.begin().ok().unwrap();
        first.keep("g", &Observations::default(), Some("udp-mapping"));
        drop(first);
        let names: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["run"]);
        let again = open().ok().unwrap();
        assert_eq!((again.started().len(), again.earlier("g").complete.len()), (1, 1));
        assert!(again.earlier("g").complete.contains("udp-mapping") && !again.earlier("g").is_whole());
        drop(again);
        for damaged in [&b""[..], b"{", b"[]", br#"{"format":"weir.nat-lab/1"}"#] {
            fs::write(&path, damaged).unwrap();
            assert!(matches!(open(), Err(Failure::Told { code: 2, .. })), "{damaged:?}");
            assert_eq!(fs::read(&path).unwrap(), damaged, "a file that is not understood stays as it is");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
