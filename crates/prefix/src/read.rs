//! Reading lists: what the registries publish, and plain text.
//!
//! The regional registries' format ("RIR statistics exchange format", version 2 and its extended form): a line
//! `version|registry|serial|records|start|end|offset`, summaries `registry|*|type|*|count|summary`, and records
//! `registry|cc|type|start|value|date|status[|..]`. `value` is a number of addresses for IPv4, not always a power of
//! two, and a prefix length for IPv6.
//!
//! Plain text has one prefix, address or range `FIRST-LAST` a line; `#` and `;` begin comments.

mod names;

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use memchr::memchr_iter;

pub use names::Names;

use crate::address::Address;
use crate::list::{Entry, List, Origin};
use crate::ranges::Prefix;

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A registry's delegation file.
    Registry,
    /// A prefix, address or range a line.
    Plain,
}

/// Which records of a registry's file count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Two letters each (ISO 3166-1 alpha-2, and the registries' own EU and AP), upper case; empty: every country.
    pub countries: BTreeSet<String>,
}

impl Selection {
    /// These countries, in any case.
    ///
    /// # Errors
    /// The first text that is not a code of two letters.
    pub fn of<'a>(countries: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let code = |text: &str| {
            let upper = text.to_ascii_uppercase();
            let valid = upper.len() == 2 && upper.bytes().all(|b| b.is_ascii_uppercase());
            if valid {
                Ok(upper)
            } else {
                Err(format!("`{text}` is no country: expected two letters, as in JP"))
            }
        };
        Ok(Selection { countries: countries.into_iter().map(code).collect::<Result<_, _>>()? })
    }

    fn has(&self, country: &str) -> bool {
        self.countries.is_empty() || self.countries.contains(country)
    }
}

/// One line that cannot be read: `FILE:LINE: what is wrong`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ReadError {
    /// The file.
    pub file: String,
    /// Line, from 1; none where the file as a whole is wrong.
    pub line: Option<u32>,
    /// The error in words.
    pub what: String,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.what),
            None => write!(f, "{}: {}", self.file, self.what),
        }
    }
}

/// Longest piece of a wrong line that a message repeats.
const LONGEST_QUOTE: usize = 80;

/// Most entries of one file. Every registry together has half a million; a file of colons must not take all memory.
pub const MOST_ENTRIES: usize = 1 << 24;

/// Most wrong lines of one file that are reported; the rest is only counted.
pub const MOST_ERRORS: usize = 1000;

/// The first line of a registry's file, which describes the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Head {
    /// Name of the registry, as in `apnic`.
    pub registry: String,
    /// Number of this edition.
    pub serial: String,
    /// The last day that it tells of, as YYYYMMDD.
    pub end: String,
}

/// The first line of a registry's file that is no comment; `None` if the file is none of a registry, or has no such line.
pub fn head(bytes: &[u8]) -> Option<Head> {
    let line = lines(bytes).map(|(_, line)| line).find(|line| !is_comment(line))?;
    let text = std::str::from_utf8(line).ok()?;
    let fields: Vec<&str> = text.split('|').take(6).collect();
    let &[version, registry, serial, _records, _start, end] = fields.as_slice() else { return None };
    let word = |text: &str| text.chars().filter(|c| !c.is_control()).take(LONGEST_QUOTE).collect();
    is_version(version).then(|| Head { registry: word(registry), serial: word(serial), end: word(end) })
}

/// Adds a file to a list. The first line that is no comment determines the format.
///
/// # Errors
/// The first line that cannot be read; nothing was added then.
pub fn read(list: &mut List, file: &str, bytes: &[u8], selection: &Selection) -> Result<Format, ReadError> {
    read_at_most(MOST_ENTRIES, list, file, bytes, selection)
}

fn read_at_most(
    most: usize,
    list: &mut List,
    file: &str,
    bytes: &[u8],
    selection: &Selection,
) -> Result<Format, ReadError> {
    let mut wrong = None;
    let mut stop = |error: &dyn Fn() -> ReadError| {
        wrong.get_or_insert_with(error);
        false
    };
    let source = Source { number: list.files.len() as u32, file, bytes };
    let (entries, format) = scan(&source, selection, most, &mut stop);
    match wrong {
        Some(error) => Err(error),
        None => {
            list.add(file, entries);
            Ok(format)
        }
    }
}

/// Lines of a file that were left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// The first wrong lines, at most [`MOST_ERRORS`].
    pub errors: Vec<ReadError>,
    /// How many more there are.
    pub more: u64,
}

/// As [`read`], but leaves out what cannot be read, and returns it.
pub fn read_leniently(list: &mut List, file: &str, bytes: &[u8], selection: &Selection) -> (Format, LeftOut) {
    let mut out = LeftOut::default();
    let mut go_on = |error: &dyn Fn() -> ReadError| {
        if out.errors.len() < MOST_ERRORS {
            out.errors.push(error());
        } else {
            out.more += 1;
        }
        true
    };
    let source = Source { number: list.files.len() as u32, file, bytes };
    let (entries, format) = scan(&source, selection, MOST_ENTRIES, &mut go_on);
    list.add(file, entries);
    (format, out)
}

/// The entries of a file.
#[derive(Debug, Default)]
struct Entries {
    v4: Vec<Entry<u32>>,
    v6: Vec<Entry<u128>>,
}

impl List {
    fn add(&mut self, file: &str, entries: Entries) {
        self.files.push(file.to_owned());
        self.v4.extend(entries.v4);
        self.v6.extend(entries.v6);
    }
}

impl Entries {
    fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    fn push(&mut self, range: Range, origin: Origin) {
        match range {
            Range::V4(first, last) => self.v4.push(Entry { first, last, origin }),
            Range::V6(first, last) => self.v6.push(Entry { first, last, origin }),
        }
    }
}

/// First and last address of one line.
enum Range {
    V4(u32, u32),
    V6(u128, u128),
}

/// Lines with their numbers, from 1, without what surrounds them.
fn lines(bytes: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    // Some editors begin a file with a byte order mark.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut start = 0;
    let ends = memchr_iter(b'\n', bytes).chain([bytes.len()]);
    let lines = ends.map(move |end| {
        let line = &bytes[start..end];
        start = end + 1;
        line.trim_ascii()
    });
    // A file of more lines than a number holds is no list; its last lines share one.
    lines.scan(0u32, |number, line| {
        *number = number.saturating_add(1);
        Some((*number, line))
    })
}

fn is_comment(line: &[u8]) -> bool {
    matches!(line.first(), None | Some(b'#' | b';'))
}

/// The first field of a registry's first line: 2, or 2.3.
fn is_version(field: &str) -> bool {
    field.starts_with(|c: char| c.is_ascii_digit())
}

/// Told what is wrong; says whether to go on.
type Judge<'a> = &'a mut dyn FnMut(&dyn Fn() -> ReadError) -> bool;

/// One file on its way into a list.
struct Source<'a> {
    number: u32,
    file: &'a str,
    bytes: &'a [u8],
}

/// Goes through the lines, up to `most` entries. `wrong` says whether to go on after a line that cannot be read.
fn scan(source: &Source<'_>, selection: &Selection, most: usize, wrong: Judge<'_>) -> (Entries, Format) {
    let Source { number, file, bytes } = *source;
    let mut entries = Entries::default();
    let mut format = None;
    let mut registry = Registry::default();
    let error = |line: Option<u32>, what: String| ReadError { file: file.to_owned(), line, what };
    for (line, bytes) in lines(bytes).filter(|(_, line)| !is_comment(line)) {
        let format =
            *format.get_or_insert(if bytes.contains(&b'|') { Format::Registry } else { Format::Plain });
        let read = match (std::str::from_utf8(bytes), format) {
            (Err(_), _) => Err("it is no text".into()),
            (Ok(text), Format::Registry) => registry.line(text, selection),
            (Ok(text), Format::Plain) => plain(text).map(Some),
        };
        match read {
            Ok(Some(range)) if entries.len() < most => {
                entries.push(range, Origin { file: number, line });
            }
            Ok(Some(_)) => {
                wrong(&|| {
                    error(Some(line), format!("it has more than {most} entries: the rest was not read"))
                });
                return (entries, format);
            }
            Ok(None) => {}
            Err(what) => {
                let told = || {
                    let text = String::from_utf8_lossy(bytes);
                    error(
                        Some(line),
                        format!("{what}: `{}`", text.chars().take(LONGEST_QUOTE).collect::<String>()),
                    )
                };
                if !wrong(&told) {
                    return (entries, format);
                }
            }
        }
    }
    if let Some(what) = registry.missing() {
        wrong(&|| error(None, what.clone()));
    }
    (entries, format.unwrap_or(Format::Plain))
}

/// The counts that a registry's file declares, and the counts found in it.
#[derive(Debug, Default)]
struct Registry {
    /// By type: asn, ipv4, ipv6.
    told: [Option<u64>; 3],
    seen: [u64; 3],
    version: bool,
}

const TYPES: [&str; 3] = ["asn", "ipv4", "ipv6"];

impl Registry {
    /// One line; the range of a record that counts.
    fn line(&mut self, text: &str, selection: &Selection) -> Result<Option<Range>, String> {
        let [registry, country, kind, start, value, _date, status] = fields(text);
        if !self.version && is_version(registry) {
            self.version = true;
            return Ok(None);
        }
        let kind_number =
            TYPES.iter().position(|t| *t == kind).ok_or("expected asn, ipv4 or ipv6 in the third field")?;
        if start == "*" {
            let count = number(value).ok_or("the count of this summary is no number")?;
            self.told[kind_number] = Some(count);
            return Ok(None);
        }
        self.seen[kind_number] += 1;
        let range = match kind {
            "ipv4" => block_v4(start, value)?,
            "ipv6" => block_v6(start, value)?,
            _ => return Ok(None),
        };
        // An available or reserved block has no holder.
        let in_use = matches!(status, "allocated" | "assigned");
        if !in_use && !matches!(status, "available" | "reserved") {
            return Err("expected allocated, assigned, available or reserved in the seventh field".into());
        }
        Ok((in_use && selection.has(country)).then_some(range))
    }

    /// A file that was cut off has fewer records than its head says.
    fn missing(&self) -> Option<String> {
        let (kind, told, seen) =
            TYPES.iter().zip(self.told).zip(self.seen).find_map(|((kind, told), seen)| {
                told.filter(|told| *told > seen).map(|told| (kind, told, seen))
            })?;
        Some(format!("it says that it has {told} {kind} records, and has {seen}: it was cut off"))
    }
}

/// The fields that are read, empty where there are fewer. There are half a million lines: a loop over their bytes takes half
/// the time of a general split, whose every step looks for the next end anew.
fn fields(text: &str) -> [&str; 7] {
    let mut fields = [""; 7];
    let (mut start, mut which) = (0, 0);
    for (at, byte) in text.bytes().enumerate() {
        if byte == b'|' {
            fields[which] = &text[start..at];
            (start, which) = (at + 1, which + 1);
            if which == fields.len() {
                return fields;
            }
        }
    }
    fields[which] = &text[start..];
    fields
}

/// A number without a sign.
fn number(text: &str) -> Option<u64> {
    // The standard reader takes a plus sign.
    text.parse().ok().filter(|_| text.starts_with(|c: char| c.is_ascii_digit()))
}

fn block_v4(start: &str, count: &str) -> Result<Range, String> {
    let first: Ipv4Addr = start.parse().map_err(|_| "expected an IPv4 address")?;
    let first = u32::from(first);
    let count = number(count).ok_or("the number of addresses is no number")?;
    let last = u64::from(first)
        .checked_add(count)
        .and_then(|end| end.checked_sub(1))
        .filter(|_| count > 0)
        .and_then(|last| u32::try_from(last).ok())
        .ok_or("that many addresses do not follow this one")?;
    Ok(Range::V4(first, last))
}

fn block_v6(start: &str, length: &str) -> Result<Range, String> {
    let first: Ipv6Addr = start.parse().map_err(|_| "expected an IPv6 address")?;
    prefix(u128::from(first), length).map(|p| Range::V6(p.first, p.last()))
}

fn prefix<A: Address>(address: A, length: &str) -> Result<Prefix<A>, String> {
    let valid = || format!("expected a prefix length of 0 to {}", A::BITS);
    let length = number(length).filter(|l| *l <= u64::from(A::BITS)).ok_or_else(valid)? as u8;
    Prefix::new(address, length).ok_or_else(|| {
        let first = address.block_start(A::BITS - length);
        format!("bits are set beyond the length; nearest valid value: {}", Prefix { first, length })
    })
}

/// A prefix, an address or a range.
fn plain(text: &str) -> Result<Range, String> {
    let text = text.split(['#', ';']).next().unwrap_or_default().trim_end();
    if let Some((address, length)) = text.split_once('/') {
        return match parse(address.trim())? {
            IpAddr::V4(a) => prefix(u32::from(a), length).map(|p| Range::V4(p.first, p.last())),
            IpAddr::V6(a) => prefix(u128::from(a), length).map(|p| Range::V6(p.first, p.last())),
        };
    }
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (parse(first.trim())?, parse(last.trim())?),
        None => {
            let address = parse(text)?;
            (address, address)
        }
    };
    if first.is_ipv4() == last.is_ipv4() && first > last {
        return Err(format!("the range ends before it begins; nearest valid value: {last}-{first}"));
    }
    match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => Ok(Range::V4(first.into(), last.into())),
        (IpAddr::V6(first), IpAddr::V6(last)) => Ok(Range::V6(first.into(), last.into())),
        _ => Err("the two ends are of different IP versions".into()),
    }
}

fn parse(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| "expected a prefix, an address, or a range FIRST-LAST".to_owned())
}

#[cfg(test)]
mod tests;
