//! Cached address lists and their age.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use weir_lists::Cache;
use weir_sys::Stop;
use weir_sys::file::found;
use weir_text::order;

use crate::board::Source;
use crate::page::{Group, Metric, Page};

/// Lists with series of their own: five registries, and some of the user's.
const LISTS: usize = 50;

static CHECKED: Metric = Metric::gauge(
    "list_checked_timestamp_seconds",
    &["list"],
    "When the publisher was last asked and had nothing newer, seconds since 1970.",
);
static FETCHED: Metric = Metric::gauge(
    "list_fetched_timestamp_seconds",
    &["list"],
    "When the list was downloaded, seconds since 1970.",
);
static SIZE: Metric = Metric::gauge("list_bytes", &["list"], "Size of the file.");

/// For the reference.
pub(crate) static GROUP: Group = Group {
    title: "Cached address lists",
    about: "Looked at every 60 s; read again only after a change. The age of a list is `time() - \
            weir_list_checked_timestamp_seconds`. `list` is the name of a file in the cache of `weir allow update`; at most 50 have \
            series.",
    metrics: &[&CHECKED, &FETCHED, &SIZE],
};

/// Inode, size and time of both files of a list: one of them tells that a file has changed.
type Stamp = [(u64, u64, i64, i64); 2];

#[derive(Debug, Clone, Copy)]
struct Times {
    checked_s: u64,
    fetched_s: u64,
    bytes: u64,
}

/// The lists of a cache.
#[derive(Debug)]
pub struct CachedLists {
    cache: Cache,
    known: BTreeMap<String, (Stamp, Times)>,
}

impl CachedLists {
    /// Those of this cache.
    pub fn new(cache: Cache) -> Self {
        CachedLists { cache, known: BTreeMap::new() }
    }

    /// Names of files with a record beside them, in order.
    fn names(&self) -> Result<Vec<String>, String> {
        let failed = |e: std::io::Error| format!("{}: {e}", self.cache.folder().display());
        let entries = found(fs::read_dir(self.cache.folder())).map_err(failed)?;
        let mut names = Vec::new();
        for entry in entries.into_iter().flatten() {
            let name = entry.map_err(failed)?.file_name();
            if let Some(list) = name.to_str().and_then(|n| n.strip_suffix(".json")) {
                names.push(list.to_owned());
            }
        }
        order::by(&mut names, Ord::cmp);
        names.retain(|name| self.cache.path(name).is_file());
        names.truncate(LISTS);
        Ok(names)
    }

    fn times(&self, name: &str) -> Result<Option<(Stamp, Times)>, String> {
        let (Some(list), Some(record)) =
            (stamp(&self.cache.path(name)), stamp(&self.cache.path(&format!("{name}.json"))))
        else {
            return Ok(None);
        };
        let now = [list, record];
        if let Some(known) = self.known.get(name).filter(|known| known.0 == now) {
            return Ok(Some(*known));
        }
        let Some(stored) = self.cache.stored(name).map_err(|e| e.to_string())? else { return Ok(None) };
        let checked_s = stored.about.as_ref().map_or(stored.fetched_s, |about| about.checked_s);
        let times = Times { checked_s, fetched_s: stored.fetched_s, bytes: stored.bytes.len() as u64 };
        Ok(Some((now, times)))
    }
}

fn stamp(path: &Path) -> Option<(u64, u64, i64, i64)> {
    fs::metadata(path).ok().map(|m| (m.ino(), m.size(), m.mtime(), m.mtime_nsec()))
}

impl Source for CachedLists {
    fn name(&self) -> &'static str {
        "lists"
    }

    fn every(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn read(&mut self, page: &mut Page, _stop: &Stop) -> Result<(), String> {
        let mut now = BTreeMap::new();
        for name in self.names()? {
            if let Some(times) = self.times(&name)? {
                now.insert(name, times);
            }
        }
        self.known = now;
        for (metric, value) in [
            (&CHECKED, (|t: &Times| t.checked_s) as fn(&Times) -> u64),
            (&FETCHED, |t: &Times| t.fetched_s),
            (&SIZE, |t: &Times| t.bytes),
        ] {
            page.series(metric, self.known.iter().map(|(name, (_, times))| ([name], value(times) as f64)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lists: &mut CachedLists) -> String {
        let mut page = Page::default();
        lists.read(&mut page, &Stop::default()).unwrap();
        page.into_text()
    }

    #[test]
    fn only_files_with_a_record_are_lists_and_they_may_come_later() {
        let folder = std::env::temp_dir().join(format!("weir-export-lists-{}", std::process::id()));
        let mut lists = CachedLists::new(Cache::at(&folder));
        assert!(!read(&mut lists).contains('{'));
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in [("a.txt", "192.0.2.0/24\n"), ("a.txt.json", "{}"), ("b", "x"), ("c.json", "{}")]
        {
            fs::write(folder.join(name), text).unwrap();
        }
        let text = read(&mut lists);
        assert!(text.contains("weir_list_bytes{list=\"a.txt\"} 13\n"), "{text}");
        assert_eq!(text.matches("{list=").count(), 3, "{text}");
        // A record that is none: the time at which the file was written counts.
        let written = fs::metadata(folder.join("a.txt")).unwrap().mtime();
        assert!(
            text.contains(&format!("weir_list_checked_timestamp_seconds{{list=\"a.txt\"}} {written}\n")),
            "{text}"
        );
        fs::remove_dir_all(&folder).unwrap();
        assert!(!read(&mut lists).contains('{'));
    }
}
