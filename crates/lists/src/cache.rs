//! Lists on this machine: each a file as it was published, and beside it what is known of it.
//!
//! A reader sees the old file or the new one, never a part. Both files are written under other names and synced to disk before
//! the first replaces its predecessor. The record about a file carries the file's checksum. So after a crash between the two
//! renames, it does not pass as the record of the other file.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_sys::file;

use crate::checksum;
use crate::error::{Error, at};

/// Folder of the lists for all users of a machine; root writes there.
const SYSTEM: &str = "/var/cache/weir/lists";
/// Largest file that is read from the cache, bytes. More than is ever downloaded.
const LARGEST: u64 = 512 << 20;
/// Version of [`About`] on disk.
const VERSION: u32 = 1;

/// Result of the check against the publisher's own checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Checksum {
    /// It was fetched, and is that of the file.
    Matched,
    /// There is none beside the file.
    NotPublished,
}

/// The record about a file, in addition to the file's own content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    version: u32,
    /// The address that it came from.
    pub url: String,
    /// How to ask whether it changed (RFC 9110, section 8.8.3).
    pub etag: Option<String>,
    /// The same by time (section 8.8.2).
    pub last_modified: Option<String>,
    /// When it was downloaded, seconds since 1970.
    pub fetched_s: u64,
    /// When its publisher was last asked, and had nothing newer; seconds since 1970.
    pub checked_s: u64,
    /// Whether the publisher's checksum was that of the file.
    pub checksum: Option<Checksum>,
    /// MD5 of the file, to tell whether this is about the file beside it.
    md5: String,
}

impl About {
    /// Whether it is about a file with this content.
    pub(crate) fn is_of(&self, bytes: &[u8]) -> bool {
        self.md5 == checksum::of(bytes)
    }
}

/// A file of the cache.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The file.
    pub path: PathBuf,
    /// Its content.
    pub bytes: Vec<u8>,
    /// The record about it; `None` if another program put the file there or changed it.
    pub about: Option<About>,
    /// When it was downloaded, or else last written, seconds since 1970.
    pub fetched_s: u64,
}

impl Stored {
    /// Seconds since the publisher had nothing newer, or since the file was written where that is not known.
    pub fn age_s(&self, now_s: u64) -> u64 {
        now_s.saturating_sub(self.about.as_ref().map_or(self.fetched_s, |a| a.checked_s))
    }
}

/// The data to record about a file that was just downloaded.
#[derive(Debug)]
pub(crate) struct Fresh<'a> {
    pub(crate) url: &'a str,
    pub(crate) etag: Option<String>,
    pub(crate) last_modified: Option<String>,
    pub(crate) checksum: Option<Checksum>,
    pub(crate) now_s: u64,
}

/// A folder of lists.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The usual one: `/var/cache/weir/lists` for root; for others `weir/lists` in `$XDG_CACHE_HOME` or `~/.cache` (XDG base
    /// directory specification).
    ///
    /// # Errors
    /// This user has no home.
    pub fn usual() -> Result<Self, Error> {
        if rustix::process::geteuid().is_root() {
            return Ok(Cache::at(SYSTEM));
        }
        // The specification says that a relative path is invalid and to be ignored.
        let of = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let base = of("XDG_CACHE_HOME").or_else(|| of("HOME").map(|home| home.join(".cache")));
        base.map(|base| Cache::at(base.join("weir/lists"))).ok_or_else(|| Error::Cache {
            path: "~/.cache/weir/lists".into(),
            reason: "neither XDG_CACHE_HOME nor HOME is set; name a folder with --cache".into(),
        })
    }

    /// Another folder.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Cache { folder: folder.into() }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of a list of this name, whether or not it exists.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn about_path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }

    /// A list of this name; `None` if there is none.
    ///
    /// # Errors
    /// It is there, and cannot be read.
    pub fn stored(&self, name: &str) -> Result<Option<Stored>, Error> {
        let path = self.path(name);
        let Some(file) = file::found(File::open(&path)).map_err(at(&path))? else { return Ok(None) };
        let meta = file.metadata().map_err(at(&path))?;
        if !meta.is_file() || meta.len() > LARGEST {
            let reason = format!("it is no file of at most {LARGEST} bytes");
            return Err(Error::Cache { path: path.display().to_string(), reason });
        }
        let mut bytes = Vec::with_capacity(meta.len() as usize);
        file.take(LARGEST).read_to_end(&mut bytes).map_err(at(&path))?;
        let about = self.about(name, &bytes);
        let written = meta.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        let fetched_s = about.as_ref().map_or(written.map_or(0, |t| t.as_secs()), |a| a.fetched_s);
        Ok(Some(Stored { path, bytes, about, fetched_s }))
    }

    /// Returns the record about a file with this content. `None` if the record beside the file is about another one or cannot be
    /// read; the file is then requested anew.
    fn about(&self, name: &str, bytes: &[u8]) -> Option<About> {
        let mut text = String::new();
        File::open(self.about_path(name)).ok()?.take(1 << 20).read_to_string(&mut text).ok()?;
        let about: About = serde_json::from_str(&text).ok()?;
        (about.version == VERSION && about.is_of(bytes)).then_some(about)
    }

    /// The right to write, for one process at a time. The kernel takes it back with the process, however that ends.
    pub(crate) fn lock(&self) -> Result<Writer<'_>, Error> {
        DirBuilder::new().recursive(true).mode(0o755).create(&self.folder).map_err(at(&self.folder))?;
        let path = self.folder.join(".lock");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o644);
        options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
        let file = options.open(&path).map_err(at(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(Writer { cache: self, _lock: file }),
            Err(TryLockError::WouldBlock) => Err(Error::Busy { path: self.folder.display().to_string() }),
            Err(TryLockError::Error(e)) => Err(at(&path)(e)),
        }
    }
}

/// A cache that may be written to.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    cache: &'a Cache,
    _lock: File,
}

impl Writer<'_> {
    /// Replaces a list.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8], fresh: Fresh<'_>) -> Result<About, Error> {
        let about = About {
            version: VERSION,
            url: fresh.url.to_owned(),
            etag: fresh.etag,
            last_modified: fresh.last_modified,
            fetched_s: fresh.now_s,
            checked_s: fresh.now_s,
            checksum: fresh.checksum,
            md5: checksum::of(bytes),
        };
        // Both are whole on the disk before the first one is seen: a disk that is full keeps the old pair.
        let file = draft(&self.cache.path(name), bytes)?;
        let known = draft(&self.cache.about_path(name), &json(&about)?)?;
        file.replace().map_err(at(&self.cache.path(name)))?;
        known.replace().map_err(at(&self.cache.about_path(name)))?;
        Ok(about)
    }

    /// Notes that the publisher had nothing newer.
    pub(crate) fn checked(&self, name: &str, about: &About, now_s: u64) -> Result<(), Error> {
        let about = About { checked_s: now_s, ..about.clone() };
        let path = self.cache.about_path(name);
        draft(&path, &json(&about)?)?.replace().map_err(at(&path))
    }

    /// Clears away what an earlier process left, killed in the middle.
    pub(crate) fn clear(&self, name: &str) -> Result<(), Error> {
        for path in [self.cache.path(name), self.cache.about_path(name)] {
            file::discard(&path).map_err(at(&path))?;
        }
        Ok(())
    }
}

/// New content of a file.
fn draft(path: &Path, bytes: &[u8]) -> Result<file::Draft, Error> {
    file::Draft::write(path, 0o644, bytes).map_err(at(path))
}

fn json(about: &About) -> Result<Vec<u8>, Error> {
    let mut text = serde_json::to_vec_pretty(about)
        .map_err(|e| Error::Cache { path: about.url.clone(), reason: e.to_string() })?;
    text.push(b'\n');
    Ok(text)
}
