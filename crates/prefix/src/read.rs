//! Reading lists: what the registries publish, and plain text.
//!
//! The regional registries' format ("RIR statistics exchange format", version 2 and its extended form): a line
//! `version|registry|serial|records|start|end|offset`, summaries `registry|*|type|*|count|summary`, and records
//! `registry|cc|type|start|value|date|status[|..]`. `value` is a number of addresses for IPv4, not always a power of
//! two, and a prefix length for IPv6.
//!
//! Plain text has one prefix, address or range `FIRST-LAST` a line; `#` and `;` begin comments.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

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
    /// What is no code of two letters.
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
    /// What is wrong.
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

/// Adds a file to a list. The format is told by the first line that is no comment.
///
/// # Errors
/// The first line that cannot be read; nothing was added then.
pub fn read(list: &mut List, file: &str, bytes: &[u8], selection: &Selection) -> Result<Format, ReadError> {
    let mut wrong = None;
    let mut stop = |error| {
        wrong.get_or_insert(error);
        false
    };
    let (entries, format) = scan(list.files.len() as u32, file, bytes, selection, &mut stop);
    match wrong {
        Some(error) => Err(error),
        None => {
            list.add(file, entries);
            Ok(format)
        }
    }
}

/// As [`read`], but leaves out what cannot be read, and returns it.
pub fn read_leniently(
    list: &mut List,
    file: &str,
    bytes: &[u8],
    selection: &Selection,
) -> (Format, Vec<ReadError>) {
    let mut wrong = Vec::new();
    let mut go_on = |error| {
        wrong.push(error);
        true
    };
    let (entries, format) = scan(list.files.len() as u32, file, bytes, selection, &mut go_on);
    list.add(file, entries);
    (format, wrong)
}

/// What a file holds.
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
    fn push(&mut self, (first, last): (IpAddr, IpAddr), origin: Origin) {
        match (first, last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                self.v4.push(Entry { first: first.into(), last: last.into(), origin });
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => {
                self.v6.push(Entry { first: first.into(), last: last.into(), origin });
            }
            // Ranges are of one family: see `range`.
            _ => {}
        }
    }
}

/// Goes through the lines. `wrong` says whether to go on after a line that cannot be read.
fn scan(
    number: u32,
    file: &str,
    bytes: &[u8],
    selection: &Selection,
    wrong: &mut dyn FnMut(ReadError) -> bool,
) -> (Entries, Format) {
    let mut entries = Entries::default();
    let mut format = None;
    let mut registry = Registry::default();
    // Some editors begin a file with a byte order mark.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    for (line, bytes) in (1u32..).zip(bytes.split(|b| *b == b'\n')) {
        let bytes = bytes.trim_ascii();
        if bytes.is_empty() || bytes[0] == b'#' || bytes[0] == b';' {
            continue;
        }
        let format =
            *format.get_or_insert(if bytes.contains(&b'|') { Format::Registry } else { Format::Plain });
        let read = match (std::str::from_utf8(bytes), format) {
            (Err(_), _) => Err("it is no text".to_owned()),
            (Ok(text), Format::Registry) => registry.line(text, selection),
            (Ok(text), Format::Plain) => plain(text).map(Some),
        };
        match read {
            Ok(Some(range)) => entries.push(range, Origin { file: number, line }),
            Ok(None) => {}
            Err(what) => {
                let text = String::from_utf8_lossy(bytes);
                let what = format!("{what}: `{}`", text.chars().take(LONGEST_QUOTE).collect::<String>());
                if !wrong(ReadError { file: file.to_owned(), line: Some(line), what }) {
                    return (entries, format);
                }
            }
        }
    }
    if let Some(what) = registry.missing() {
        wrong(ReadError { file: file.to_owned(), line: None, what });
    }
    (entries, format.unwrap_or(Format::Plain))
}

/// What a registry's file has said of itself, and what it held.
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
    fn line(&mut self, text: &str, selection: &Selection) -> Result<Option<(IpAddr, IpAddr)>, String> {
        let mut fields = text.split('|');
        let mut next = || fields.next().unwrap_or("");
        let (registry, country, kind, start, value) = (next(), next(), next(), next(), next());
        let (_date, status) = (next(), next());
        if !self.version && registry.starts_with(|c: char| c.is_ascii_digit()) {
            self.version = true;
            return Ok(None);
        }
        let kind_number =
            TYPES.iter().position(|t| *t == kind).ok_or("expected asn, ipv4 or ipv6 in the third field")?;
        if start == "*" {
            let count = value.parse().map_err(|_| "the count of this summary is no number")?;
            self.told[kind_number] = Some(count);
            return Ok(None);
        }
        self.seen[kind_number] += 1;
        if kind == "asn" {
            return Ok(None);
        }
        let range = if kind == "ipv4" { block_v4(start, value)? } else { block_v6(start, value)? };
        // What is available or reserved belongs to nobody.
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

fn block_v4(start: &str, count: &str) -> Result<(IpAddr, IpAddr), String> {
    let first = address::<u32>(start, "IPv4")?;
    let count: u64 = count.parse().map_err(|_| "the number of addresses is no number")?;
    let last = u64::from(first)
        .checked_add(count)
        .and_then(|end| end.checked_sub(1))
        .filter(|_| count > 0)
        .and_then(|last| u32::try_from(last).ok())
        .ok_or("that many addresses do not follow this one")?;
    Ok((first.text().into(), last.text().into()))
}

fn block_v6(start: &str, length: &str) -> Result<(IpAddr, IpAddr), String> {
    let first = address::<u128>(start, "IPv6")?;
    prefix(first, length).map(|p| (p.first.text().into(), p.last().text().into()))
}

fn address<A: Address>(text: &str, family: &str) -> Result<A, String> {
    IpAddr::from_str(text).ok().and_then(A::of).ok_or_else(|| format!("expected an {family} address"))
}

fn prefix<A: Address>(address: A, length: &str) -> Result<Prefix<A>, String> {
    let valid = || format!("expected a prefix length of 0 to {}", A::BITS);
    let digits = length.bytes().all(|b| b.is_ascii_digit());
    let length: u8 = length.parse().ok().filter(|l| digits && *l <= A::BITS).ok_or_else(valid)?;
    Prefix::new(address, length).ok_or_else(|| {
        let first = address.block_start(A::BITS - length);
        format!("bits are set beyond the length; nearest valid value: {}", Prefix { first, length })
    })
}

/// A prefix, an address or a range.
fn plain(text: &str) -> Result<(IpAddr, IpAddr), String> {
    let text = text.split(['#', ';']).next().unwrap_or_default().trim_end();
    if let Some((address, length)) = text.split_once('/') {
        return match parse(address.trim())? {
            IpAddr::V4(a) => {
                prefix(u32::from(a), length).map(|p| (p.first.text().into(), p.last().text().into()))
            }
            IpAddr::V6(a) => {
                prefix(u128::from(a), length).map(|p| (p.first.text().into(), p.last().text().into()))
            }
        };
    }
    if let Some((first, last)) = text.split_once('-') {
        let (first, last) = (parse(first.trim())?, parse(last.trim())?);
        if first.is_ipv4() != last.is_ipv4() {
            return Err("the two ends are of different IP versions".into());
        }
        if first > last {
            return Err(format!("the range ends before it begins; nearest valid value: {last}-{first}"));
        }
        return Ok((first, last));
    }
    parse(text).map(|address| (address, address))
}

fn parse(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| "expected a prefix, an address, or a range FIRST-LAST".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn jp() -> Selection {
        Selection::of(["jp"]).unwrap()
    }

    const REGISTRY: &str = "\
# a comment
2|apnic|20250904|5|19830613|20250903|+1000
apnic|*|asn|*|1|summary
apnic|*|ipv4|*|3|summary
apnic|*|ipv6|*|1|summary
apnic|JP|asn|173|1|20020801|allocated|A91A7381
apnic|JP|ipv4|1.0.16.0|4096|20110412|allocated|A92D9378
apnic|JP|ipv4|192.0.2.0|768|20110412|assigned|A92D9378
apnic||ipv4|1.0.1.0|256||available|
apnic|JP|ipv6|2001:200::|32|19990813|allocated|A91A7381
";

    fn entries(text: &str, selection: &Selection) -> Result<Vec<String>, ReadError> {
        let mut list = List::default();
        read(&mut list, "f", text.as_bytes(), selection)?;
        let v4 = list.v4.iter().map(|e| format!("{}-{} {}", e.first.text(), e.last.text(), e.origin.line));
        let v6 = list.v6.iter().map(|e| format!("{}-{} {}", e.first.text(), e.last.text(), e.origin.line));
        Ok(v4.chain(v6).collect())
    }

    #[test]
    fn a_registry_s_records_of_one_country() {
        assert_eq!(
            entries(REGISTRY, &jp()).unwrap(),
            [
                "1.0.16.0-1.0.31.255 7",
                // 768 addresses are no power of two: 192.0.2.0 to 192.0.4.255.
                "192.0.2.0-192.0.4.255 8",
                "2001:200::-2001:200:ffff:ffff:ffff:ffff:ffff:ffff 10"
            ]
        );
        assert_eq!(entries(REGISTRY, &Selection::of(["DE"]).unwrap()).unwrap(), [""; 0]);
        assert_eq!(
            entries(REGISTRY, &Selection::default()).unwrap().len(),
            3,
            "nobody has what is available"
        );
    }

    #[test]
    fn a_file_that_was_cut_off_is_refused() {
        let cut: String = REGISTRY.lines().take(8).map(|l| format!("{l}\n")).collect();
        let error = entries(&cut, &jp()).unwrap_err();
        assert_eq!(error.to_string(), "f: it says that it has 3 ipv4 records, and has 2: it was cut off");
    }

    #[test]
    fn plain_lists() {
        let text = "\u{feff}; head\n10.0.0.0/8 # ours\r\n192.0.2.7\n2001:db8::/32;x\n 198.51.100.3 - 198.51.100.9 \n\n0.0.0.0/0\n::1\n";
        assert_eq!(
            entries(text, &jp()).unwrap(),
            [
                "10.0.0.0-10.255.255.255 2",
                "192.0.2.7-192.0.2.7 3",
                "198.51.100.3-198.51.100.9 5",
                "0.0.0.0-255.255.255.255 7",
                "2001:db8::-2001:db8:ffff:ffff:ffff:ffff:ffff:ffff 4",
                "::1-::1 8"
            ]
        );
    }

    /// (line, word of the message)
    const WRONG: &[(&str, &str)] = &[
        ("10.0.0.1/24", "nearest valid value: 10.0.0.0/24"),
        ("10.0.0.0/33", "0 to 32"),
        ("10.0.0.0/+8", "0 to 32"),
        ("::/129", "0 to 128"),
        ("10.0.0.0/", "0 to 32"),
        ("10.0.0", "expected a prefix"),
        ("10.0.0.9-10.0.0.1", "nearest valid value: 10.0.0.1-10.0.0.9"),
        ("10.0.0.9-::1", "different IP versions"),
        ("JP", "expected a prefix"),
        ("apnic|JP|ipv4|1.0.16.0|0|20110412|allocated", "do not follow"),
        ("apnic|JP|ipv4|255.255.255.0|257|20110412|allocated", "do not follow"),
        ("apnic|JP|ipv4|1.0.16.0|18446744073709551615|20110412|allocated", "do not follow"),
        ("apnic|JP|ipv4|1.0.16|256|20110412|allocated", "IPv4 address"),
        ("apnic|JP|ipv4|::|256|20110412|allocated", "IPv4 address"),
        ("apnic|JP|ipv6|2001:200::1|32|20110412|allocated", "nearest valid value: 2001:200::/32"),
        ("apnic|JP|ipv7|1.0.16.0|256|20110412|allocated", "third field"),
        ("apnic|JP|ipv4|1.0.16.0|256|20110412|stolen", "seventh field"),
        ("apnic|*|ipv4|*|many|summary", "no number"),
        ("a|b", "third field"),
    ];

    #[test]
    fn every_wrong_line_is_named() {
        for (line, word) in WRONG {
            let ahead = if line.contains('|') { "2|x|1|1|1|1|1" } else { "192.0.2.1" };
            let error = entries(&format!("{ahead}\n{line}\n"), &Selection::default()).unwrap_err();
            assert_eq!(error.line, Some(2), "{line}");
            assert!(
                error.what.contains(word) && error.what.ends_with(&format!("`{line}`")),
                "{line}: {error}"
            );
        }
    }

    #[test]
    fn leniently_the_rest_is_read_and_the_errors_are_told() {
        let mut list = List::default();
        let text = b"192.0.2.1\nnonsense\n\xff\xfe\n192.0.2.2\n";
        let (format, wrong) = read_leniently(&mut list, "f", text, &Selection::default());
        assert_eq!((format, list.v4.len()), (Format::Plain, 2));
        assert_eq!(wrong.iter().map(|e| e.line).collect::<Vec<_>>(), [Some(2), Some(3)]);
    }

    #[test]
    fn what_is_no_country_is_refused() {
        for text in ["J", "JPN", "J1", ""] {
            assert!(Selection::of([text]).unwrap_err().contains("two letters"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut list = List::default();
            let _ = read(&mut list, "f", &bytes, &Selection::default());
            read_leniently(&mut list, "g", &bytes, &Selection::default());
        }

        #[test]
        fn no_line_of_a_registry_makes_it_panic(fields in prop::collection::vec("[a-zA-Z0-9.:*]{0,12}", 0..9)) {
            let mut list = List::default();
            read_leniently(&mut list, "g", format!("2|a|b\n{}", fields.join("|")).as_bytes(), &Selection::default());
        }

        #[test]
        fn every_prefix_that_is_written_is_read_back(address: u32, length in 0u8..=32) {
            let prefix = Prefix { first: address.block_start(32 - length), length };
            let mut list = List::default();
            read(&mut list, "f", prefix.to_string().as_bytes(), &Selection::default()).unwrap();
            prop_assert_eq!((list.v4[0].first, list.v4[0].last), (prefix.first, prefix.last()));
        }
    }
}
