//! Bringing the cache up to date, and never making it worse.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use weir_prefix::{ReadError, Selection};

use crate::cache::{About, Cache, Checksum, Fresh, Stored, Writer};
use crate::checksum;
use crate::client::{Answer, Client, Download, Known, check_url};
use crate::error::Error;
use crate::registry::Registry;
use crate::survey::Survey;

/// A list, and where it is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    name: String,
    registry: Option<Registry>,
    url: String,
}

impl Source {
    /// A registry's file, where that registry publishes it.
    pub fn published(registry: Registry) -> Self {
        Source { name: registry.file_name(), registry: Some(registry), url: registry.url().to_owned() }
    }

    /// A registry's file from somewhere else; `{registry}` in the address stands for its name.
    ///
    /// # Errors
    /// The address is not used: see [`check_url`].
    pub fn mirror(registry: Registry, url: &str) -> Result<Self, Error> {
        let url = url.replace("{registry}", registry.name());
        check_url(&url)?;
        Ok(Source { name: registry.file_name(), registry: Some(registry), url })
    }

    /// Any list. It is kept under a name made of its address.
    ///
    /// # Errors
    /// The address is not used: see [`check_url`].
    pub fn own(url: &str) -> Result<Self, Error> {
        check_url(url)?;
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
        let path = url.trim_start_matches("https://").split(['?', '#']).next().unwrap_or_default();
        let words: String = path.chars().map(plain).take(100).collect();
        // Two addresses that differ in what a file name cannot hold are two lists.
        let sum = checksum::of(url.as_bytes());
        Ok(Source { name: format!("from-{words}-{}", &sum[..8]), registry: None, url: url.to_owned() })
    }

    /// Its name in the cache.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// How to go about it.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Accept a list even if it is older or has much less in it.
    pub force: bool,
    /// Do not ask for a list whose publisher was asked so recently.
    pub max_age: Option<Duration>,
    /// Countries that a new list must not lose.
    pub countries: Selection,
    /// Leave out single lines that cannot be read, and tell them, instead of refusing the file.
    pub skip_bad_lines: bool,
}

/// Outcome of the update of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum UpdateOutcome {
    /// A new file is in the cache.
    Fetched,
    /// The publisher was asked, and has the same file.
    NotModified,
    /// The publisher was not asked: offline, or it was asked recently.
    NotAsked,
    /// Something was wrong; the old file is in the cache, as it was.
    Kept,
    /// Something was wrong, and there is no old file.
    Missing,
}

/// Kind of problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// It could not be downloaded or stored.
    Failed,
    /// It came, and is not to be had: damaged, another one, or worse than the old one.
    Refused,
    /// It is not in the cache, and no publisher was asked.
    Offline,
    /// It is in the cache but has lines that cannot be read, and no publisher was asked ([`Rules::skip_bad_lines`]).
    Unreadable,
}

/// A list in the cache.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Held {
    /// Its header data and contents.
    #[serde(flatten)]
    pub survey: Survey,
    /// When it was downloaded, seconds since 1970.
    pub fetched_s: u64,
    /// Seconds since its publisher had nothing newer.
    pub age_s: u64,
    /// Result of the check against the publisher's checksum; `None` if unknown.
    pub checksum: Option<Checksum>,
}

/// Report on one list.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Report {
    /// Its name in the cache.
    pub name: String,
    /// The registry that it should be of.
    pub registry: Option<Registry>,
    /// The address that it comes from.
    pub url: String,
    /// The file in the cache.
    pub path: PathBuf,
    /// The outcome.
    pub outcome: UpdateOutcome,
    /// The problem, for programs.
    pub cause: Option<Cause>,
    /// The problem, for people.
    pub reason: Option<String>,
    /// Further remarks.
    pub notes: Vec<String>,
    /// The list that is in the cache now.
    pub held: Option<Held>,
    /// The previous list, if it was replaced.
    pub replaced: Option<Survey>,
}

/// Asks for each list, one after the other, and tells of each as soon as it is known. `clock` gives the seconds since 1970.
///
/// # Errors
/// If the cache cannot be written to, or another process is updating it. A problem with one list is in its report.
pub fn update(
    cache: &Cache,
    client: &Client,
    sources: &[Source],
    rules: &Rules,
    clock: &dyn Fn() -> u64,
    tell: &mut dyn FnMut(&Report),
) -> Result<Vec<Report>, Error> {
    let writer = cache.lock()?;
    let each = |source: &Source| {
        let mut item = Item::new(cache, source, rules, clock());
        let step = item.online(&writer, client, rules, clock());
        let report = item.report(step);
        tell(&report);
        report
    };
    Ok(sources.iter().map(each).collect())
}

/// Reports the cached state of these lists without asking a publisher.
pub fn offline(cache: &Cache, sources: &[Source], rules: &Rules, now_s: u64) -> Vec<Report> {
    let each = |source: &Source| {
        let item = Item::new(cache, source, rules, now_s);
        let step = match &item.old {
            Some(Old { bad_line: Some(error), .. }) => Err((Cause::Unreadable, hinted(error))),
            Some(_) => Ok(UpdateOutcome::NotAsked),
            None => Err((Cause::Offline, "it is not in the cache".to_owned())),
        };
        item.report(step)
    };
    sources.iter().map(each).collect()
}

/// Most bad lines of one file that are reported.
const MOST_TOLD: usize = 5;

/// A problem: its kind and its description.
type Wrong = (Cause, String);

/// For `map_err`.
fn failed(error: Error) -> Wrong {
    (Cause::Failed, error.to_string())
}

fn refused(reason: impl Into<String>) -> Wrong {
    (Cause::Refused, reason.into())
}

/// The old file of a list, if it is one.
struct Old {
    about: Option<About>,
    fetched_s: u64,
    age_s: u64,
    survey: Survey,
    /// Its first line that cannot be read, unless such lines may be skipped. The list is then refused for use, but a new list is
    /// still compared with it.
    bad_line: Option<ReadError>,
}

/// One list on its way.
struct Item<'a> {
    source: &'a Source,
    path: PathBuf,
    old: Option<Old>,
    replaced: Option<Survey>,
    notes: Vec<String>,
}

impl<'a> Item<'a> {
    fn new(cache: &Cache, source: &'a Source, rules: &Rules, now_s: u64) -> Self {
        let mut item =
            Item { source, path: cache.path(&source.name), old: None, replaced: None, notes: Vec::new() };
        match cache.stored(&source.name) {
            Ok(None) => {}
            // It was taken once, perhaps without some lines; told was that when it came.
            Ok(Some(stored)) => {
                match examine(source, &stored.path.display().to_string(), &stored.bytes, rules, true) {
                    Ok((survey, wrong)) => {
                        let bad_line = wrong.into_iter().next().filter(|_| !rules.skip_bad_lines);
                        item.old = Some(Item::old(stored, survey, bad_line, now_s));
                    }
                    Err(reason) => item.notes.push(format!("the file in the cache is of no use: {reason}")),
                }
            }
            Err(e) => item.notes.push(format!("the file in the cache cannot be read: {e}")),
        }
        item
    }

    fn old(stored: Stored, survey: Survey, bad_line: Option<ReadError>, now_s: u64) -> Old {
        let (age_s, fetched_s) = (stored.age_s(now_s), stored.fetched_s);
        Old { age_s, fetched_s, about: stored.about, survey, bad_line }
    }

    /// Returns the record about the old file, if it came from the same address and the file is usable. If the old file is
    /// unusable, it does not help to learn that the publisher still has the same file.
    fn known(&self) -> Option<&About> {
        let old = self.old.as_ref().filter(|old| old.bad_line.is_none())?;
        old.about.as_ref().filter(|about| about.url == self.source.url)
    }

    fn online(
        &mut self,
        writer: &Writer<'_>,
        client: &Client,
        rules: &Rules,
        now_s: u64,
    ) -> Result<UpdateOutcome, Wrong> {
        writer.clear(&self.source.name).map_err(failed)?;
        // A time in the future is a clock that was set back: it says nothing of how long ago that was.
        let asked = self.known().map(|a| a.checked_s).filter(|t| *t <= now_s);
        if let (Some(asked), Some(most)) = (asked, rules.max_age)
            && now_s - asked <= most.as_secs()
        {
            return Ok(UpdateOutcome::NotAsked);
        }
        let known = self.known().map_or(Known::default(), |about| Known {
            etag: about.etag.as_deref(),
            last_modified: about.last_modified.as_deref(),
        });
        match client.get(&self.source.url, &known, u64::MAX).map_err(failed)? {
            Answer::Absent => Err((Cause::Failed, format!("{}: there is no such file", self.source.url))),
            Answer::File(download) => self.take(writer, client, rules, download, now_s),
            Answer::NotModified => {
                if let Some(old) = &mut self.old
                    && let Some(about) = &old.about
                {
                    writer.checked(&self.source.name, about, now_s).map_err(failed)?;
                    old.age_s = 0;
                }
                Ok(UpdateOutcome::NotModified)
            }
        }
    }

    /// Judges a file that came, and puts it into the cache.
    fn take(
        &mut self,
        writer: &Writer<'_>,
        client: &Client,
        rules: &Rules,
        download: Download,
        now_s: u64,
    ) -> Result<UpdateOutcome, Wrong> {
        let Download { bytes, etag, last_modified } = download;
        let url = &self.source.url;
        let (survey, wrong) =
            examine(self.source, url, &bytes, rules, rules.skip_bad_lines).map_err(refused)?;
        let told = wrong.iter().take(MOST_TOLD).map(|error| format!("left out: {error}"));
        self.notes.extend(told);
        if wrong.len() > MOST_TOLD {
            self.notes.push(format!("left out: {} more lines", wrong.len() - MOST_TOLD));
        }
        // Who keeps a list of his own publishes no checksum.
        let checksum = if survey.registry.is_some() { Some(self.compare(client, &bytes)?) } else { None };
        if let Some(reason) = self.old.as_ref().and_then(|old| survey.worse_than(&old.survey)) {
            if !rules.force {
                return Err(refused(format!("{url}: {reason} (--force accepts it)")));
            }
            self.notes.push(format!("taken by force: {reason}"));
        }
        // A registry with several servers has one file and several ETags.
        let same = self.known().is_some_and(|about| about.is_of(&bytes));
        let fresh = Fresh { url, etag, last_modified, checksum, now_s };
        let about = writer.replace(&self.source.name, &bytes, fresh).map_err(failed)?;
        self.replaced = self.old.take().map(|old| old.survey).filter(|_| !same);
        self.old = Some(Old { fetched_s: now_s, age_s: 0, survey, about: Some(about), bad_line: None });
        Ok(if same { UpdateOutcome::NotModified } else { UpdateOutcome::Fetched })
    }

    /// Compares with the checksum that is published beside the file.
    fn compare(&mut self, client: &Client, bytes: &[u8]) -> Result<Checksum, Wrong> {
        let url = beside(&self.source.url);
        let published = match client.get(&url, &Known::default(), checksum::LONGEST).map_err(failed)? {
            Answer::File(download) => checksum::parse(&download.bytes),
            // Without conditions nothing is "not modified".
            Answer::Absent | Answer::NotModified => {
                self.notes.push("no checksum is published beside it".to_owned());
                return Ok(Checksum::NotPublished);
            }
        };
        let published = published.ok_or_else(|| refused(format!("{url}: there is no MD5 checksum in it")))?;
        let own = checksum::of(bytes);
        if own == published {
            return Ok(Checksum::Matched);
        }
        Err(refused(format!(
            "{}: its MD5 is {own}, published is {published}: it was damaged on the way, or replaced between the two \
             downloads (then it will be right in a minute)",
            self.source.url
        )))
    }

    fn report(self, step: Result<UpdateOutcome, Wrong>) -> Report {
        let (outcome, cause, reason) = match step {
            Ok(outcome) => (outcome, None, None),
            Err((cause, reason)) => {
                let outcome = if self.old.is_some() { UpdateOutcome::Kept } else { UpdateOutcome::Missing };
                (outcome, Some(cause), Some(reason))
            }
        };
        let held = self.old.map(|old| Held {
            checksum: old.about.and_then(|a| a.checksum),
            survey: old.survey,
            fetched_s: old.fetched_s,
            age_s: old.age_s,
        });
        Report {
            name: self.source.name.clone(),
            registry: self.source.registry,
            url: self.source.url.clone(),
            path: self.path,
            outcome,
            cause,
            reason,
            notes: self.notes,
            held,
            replaced: self.replaced,
        }
    }
}

/// The address of the checksum of a file: before what follows the path.
fn beside(url: &str) -> String {
    let at = url.find(['?', '#']).unwrap_or(url.len());
    format!("{}.md5{}", &url[..at], &url[at..])
}

/// A line that cannot be read, and what helps.
fn hinted(error: &ReadError) -> String {
    let hint = if error.line.is_some() { " (see --skip-bad-lines)" } else { "" };
    format!("{error}{hint}")
}

/// Reads a list to its end, and makes sure that it is the one that was meant. With it come the lines that were left out, where that
/// is done.
fn examine(
    source: &Source,
    name: &str,
    bytes: &[u8],
    rules: &Rules,
    leniently: bool,
) -> Result<(Survey, Vec<ReadError>), String> {
    let read = if leniently {
        Survey::leniently(name, bytes, &rules.countries)
    } else {
        Survey::of(name, bytes, &rules.countries).map(|survey| (survey, Vec::new()))
    };
    let (survey, wrong) = read.map_err(|e| if leniently { e.to_string() } else { hinted(&e) })?;
    if let Some(expected) = source.registry
        && survey.registry.as_deref() != Some(expected.name())
    {
        let what = survey.registry.as_deref().unwrap_or("no registry");
        return Err(format!("{name}: it is the file of {what}, not of {expected}"));
    }
    if survey.size.records == 0 {
        return Err(format!("{name}: there is no address in it"));
    }
    Ok((survey, wrong))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_and_own_lists_have_names_that_are_file_names() {
        let mirror = Source::mirror(
            Registry::RipeNcc,
            "https://m.example/{registry}/delegated-{registry}-extended-latest",
        );
        let mirror = mirror.unwrap();
        assert_eq!(mirror.url, "https://m.example/ripencc/delegated-ripencc-extended-latest");
        assert_eq!(mirror.name(), Source::published(Registry::RipeNcc).name());
        let own = Source::own("https://m.example/../lists/office list?a=1");
        assert!(own.is_err(), "a space is no part of an address");
        let own = Source::own("https://m.example/../lists/%2foffice?a=1").unwrap();
        assert!(own.name().starts_with("from-m.example-..-lists--2foffice-"), "{}", own.name());
        assert!(!own.name().contains('/'));
        assert_ne!(own.name(), Source::own("https://m.example/../lists/%2foffice?a=2").unwrap().name());
        assert!(Source::mirror(Registry::Arin, "http://m.example/{registry}").is_err());
    }

    #[test]
    fn the_checksum_is_beside_the_file() {
        assert_eq!(beside("https://h/a/list"), "https://h/a/list.md5");
        assert_eq!(beside("https://h/a/list?key=1"), "https://h/a/list.md5?key=1");
    }

    #[test]
    fn another_registry_s_file_and_an_empty_one_are_told() {
        let source = Source::published(Registry::Apnic);
        let no = Rules::default();
        let arin =
            "2|arin|20251120|1|19830613|20251119|+1000\narin|US|ipv4|192.0.2.0|256|20110412|allocated\n";
        assert_eq!(
            examine(&source, "f", arin.as_bytes(), &no, false).unwrap_err(),
            "f: it is the file of arin, not of apnic"
        );
        let plain = "192.0.2.0/24\n";
        assert!(examine(&source, "f", plain.as_bytes(), &no, false).unwrap_err().contains("no registry"));
        let empty = "2|apnic|20251120|0|19830613|20251119|+1000\n";
        assert!(examine(&source, "f", empty.as_bytes(), &no, false).unwrap_err().contains("no address"));
        assert!(
            examine(&Source::own("https://h/x").unwrap(), "f", b"", &no, false)
                .unwrap_err()
                .contains("no address")
        );
    }
}
