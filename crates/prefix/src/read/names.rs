//! Names of address ranges: the country, the autonomous system, the site.

use std::collections::HashMap;
use std::net::IpAddr;

use super::{
    Entries, LONGEST_QUOTE, MOST_ENTRIES, Range, ReadError, Registry, Selection, fields, is_comment, lines,
    number, parse, plain,
};
use crate::address::Address;
use crate::list::{Entry, Origin};

/// Longest name, in characters; the rest of a longer one is left out.
const LONGEST_NAME: usize = 40;

/// Names of address ranges. If ranges overlap, the one that begins last names an address, and of those that begin together the
/// shortest one: the narrowest, if they are nested.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    v4: Vec<Named<u32>>,
    v6: Vec<Named<u128>>,
    names: Vec<String>,
}

/// Addresses that have the same name: first, last, and its number. They do not overlap, and are in order.
type Named<A> = (A, A, u32);

/// How a file of names is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A registry's delegation file: countries.
    Registry,
    /// `FIRST LAST NUMBER COUNTRY DESCRIPTION` of autonomous systems, with tabs between them; number 0 is no system.
    Systems,
    /// `PREFIX NAME`, or a range or an address in place of the prefix.
    Plain,
}

impl Form {
    /// By the first line that is no comment.
    fn of(line: &[u8]) -> Self {
        let is_address = |text: &[u8]| str::from_utf8(text).is_ok_and(|text| parse(text).is_ok());
        let columns: Vec<&[u8]> = line.split(|byte| *byte == b'\t').take(3).collect();
        match columns.as_slice() {
            _ if line.contains(&b'|') => Form::Registry,
            [first, last, _] if is_address(first) && is_address(last) => Form::Systems,
            _ => Form::Plain,
        }
    }
}

impl Names {
    /// Reads files: a registry's delegations (named by country), a table of autonomous systems (`FIRST LAST NUMBER COUNTRY
    /// DESCRIPTION` with tabs), or lines `PREFIX NAME`; the first line that is no comment tells which.
    ///
    /// # Errors
    /// The first line that cannot be read.
    pub fn read<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<Self, ReadError> {
        let mut reader = Reader::default();
        for (file, bytes) in files {
            reader.add(file, bytes)?;
        }
        let Reader { entries, names, .. } = reader;
        Ok(Names { v4: flat(&entries.v4), v6: flat(&entries.v6), names })
    }

    /// The number of an address's name, below the number of names.
    pub fn number_of(&self, address: IpAddr) -> Option<u32> {
        match address {
            IpAddr::V4(address) => find(&self.v4, address.into()),
            IpAddr::V6(address) => find(&self.v6, address.into()),
        }
    }

    /// The name with that number.
    pub fn name(&self, number: u32) -> Option<&str> {
        self.names.get(number as usize).map(String::as_str)
    }
}

fn find<A: Address>(named: &[Named<A>], address: A) -> Option<u32> {
    let after = named.partition_point(|(first, ..)| *first <= address);
    let (_, last, number) = *named.get(after.checked_sub(1)?)?;
    (address <= last).then_some(number)
}

/// Files on their way into names: the origin's file is the number of the name.
#[derive(Debug, Default)]
struct Reader {
    entries: Entries,
    names: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Reader {
    fn add(&mut self, file: &str, bytes: &[u8]) -> Result<(), ReadError> {
        let error = |line: Option<u32>, what: String| ReadError { file: file.to_owned(), line, what };
        let mut form = None;
        let mut registry = Registry::default();
        for (line, bytes) in lines(bytes).filter(|(_, line)| !is_comment(line)) {
            let form = *form.get_or_insert_with(|| Form::of(bytes));
            let quoted = || String::from_utf8_lossy(bytes).chars().take(LONGEST_QUOTE).collect::<String>();
            let read = match (str::from_utf8(bytes), form) {
                (Err(_), _) => Err("it is no text".into()),
                (Ok(text), Form::Registry) => of_registry(&mut registry, text),
                (Ok(text), Form::Systems) => of_system(text),
                (Ok(text), Form::Plain) => of_plain(text),
            };
            let named = read.map_err(|what| error(Some(line), format!("{what}: `{}`", quoted())))?;
            let Some((range, name)) = named else { continue };
            if self.entries.len() >= MOST_ENTRIES {
                return Err(error(Some(line), format!("there are more than {MOST_ENTRIES} ranges")));
            }
            let number = self.number(name);
            self.entries.push(range, Origin { file: number, line });
        }
        registry.missing().map_or(Ok(()), |what| Err(error(None, what)))
    }

    fn number(&mut self, name: String) -> u32 {
        let next = self.names.len() as u32;
        *self.numbers.entry(name).or_insert_with_key(|name| {
            self.names.push(name.clone());
            next
        })
    }
}

/// A range and its name; `None` for a line without one.
type Read = Result<Option<(Range, String)>, String>;

fn of_registry(registry: &mut Registry, text: &str) -> Read {
    let range = registry.line(text, &Selection::default())?;
    let [_, country, ..] = fields(text);
    Ok(range.filter(|_| !country.is_empty()).map(|range| (range, shortened(country))))
}

fn of_system(text: &str) -> Read {
    const EXPECTED: &str = "expected FIRST, LAST, NUMBER, COUNTRY and DESCRIPTION, with tabs between them";
    let mut columns = text.split('\t');
    let (Some(first), Some(last), Some(system)) = (columns.next(), columns.next(), columns.next()) else {
        return Err(EXPECTED.into());
    };
    let range = plain(&format!("{first}-{last}"))?;
    let system = number(system).ok_or(EXPECTED)?;
    let description = columns.nth(1).unwrap_or_default().trim();
    let name = shortened(format!("AS{system} {description}").trim_end());
    Ok((system != 0).then_some((range, name)))
}

fn of_plain(text: &str) -> Read {
    let text = text.split(['#', ';']).next().unwrap_or_default().trim_end();
    let (range, name) = text.split_once(char::is_whitespace).ok_or("expected a prefix and its name")?;
    Ok(Some((plain(range)?, shortened(name.trim_start()))))
}

/// One line of text, of at most [`LONGEST_NAME`] characters.
fn shortened(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(LONGEST_NAME).collect()
}

/// Entries without overlaps.
fn flat<A: Address>(entries: &[Entry<A>]) -> Vec<Named<A>> {
    let mut entries: Vec<&Entry<A>> = entries.iter().collect();
    // A stable order: the later one of two equal ranges counts.
    entries.sort_by(|a, b| a.first.cmp(&b.first).then(b.last.cmp(&a.last)));
    let mut named = Vec::with_capacity(entries.len());
    // Ranges that have begun, the one that names an address last.
    let mut open: Vec<(A, u32)> = Vec::new();
    let mut from = A::FIRST;
    for entry in entries {
        if let Some(before) = entry.first.previous().filter(|before| from <= *before) {
            name_until(&mut open, from, before, &mut named);
        }
        open.push((entry.last, entry.origin.file));
        from = entry.first;
    }
    name_until(&mut open, from, A::LAST, &mut named);
    named
}

/// Names the addresses between these two by the ranges that are open there.
fn name_until<A: Address>(open: &mut Vec<(A, u32)>, mut from: A, to: A, named: &mut Vec<Named<A>>) {
    while let Some((last, number)) = open.last().copied() {
        if last < from {
            open.pop();
            continue;
        }
        let end = last.min(to);
        named.push((from, end, number));
        match end.next().filter(|next| *next <= to) {
            Some(next) => from = next,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Names {
        Names::read([("names", text.as_bytes())]).unwrap()
    }

    fn of<'a>(names: &'a Names, address: &str) -> Option<&'a str> {
        names.name(names.number_of(address.parse().unwrap())?)
    }

    #[test]
    fn the_narrowest_range_names_an_address() {
        let names = names(
            "# sites\n10.0.0.0/8 all of it\n10.1.0.0/16 Paris ; since May\n10.1.2.3\tone host\n10.1.2.3 another\n2001:db8::/32 six\n",
        );
        let found =
            ["9.255.255.255", "10.0.0.0", "10.0.255.255", "10.1.0.0", "10.1.2.3", "10.1.2.4", "10.2.0.0"]
                .map(|address| of(&names, address));
        let expected = [
            None,
            Some("all of it"),
            Some("all of it"),
            Some("Paris"),
            Some("another"),
            Some("Paris"),
            Some("all of it"),
        ];
        assert_eq!(found, expected);
        assert_eq!(
            [of(&names, "11.0.0.0"), of(&names, "2001:db8::1"), of(&names, "::")],
            [None, Some("six"), None]
        );
    }

    #[test]
    fn ranges_that_overlap_in_part_are_named_by_the_later_begin() {
        let names = names("10.0.0.0-10.0.0.9 a\n10.0.0.5-10.0.0.14 b\n255.255.255.255 end\n");
        let found =
            ["10.0.0.4", "10.0.0.5", "10.0.0.14", "10.0.0.15", "255.255.255.255"].map(|a| of(&names, a));
        assert_eq!(found, [Some("a"), Some("b"), Some("b"), None, Some("end")]);
    }

    #[test]
    fn registries_name_countries() {
        let names = names(
            "2|ripencc|1|2|19830705|20261127|+0100\nripencc|*|ipv4|*|1|summary\nripencc|*|ipv6|*|1|summary\n\
             ripencc|FR|ipv4|192.0.2.0|128|20100101|allocated|x\nripencc|AD|ipv6|2001:db8::|32|20100101|assigned|x\n\
             ripencc||ipv4|198.51.100.0|256||reserved|\n",
        );
        let found = ["192.0.2.127", "192.0.2.128", "2001:db8::1", "198.51.100.1"].map(|a| of(&names, a));
        assert_eq!(found, [Some("FR"), None, Some("AD"), None]);
    }

    #[test]
    fn tables_name_autonomous_systems() {
        let names = names(
            "192.0.2.0\t192.0.2.255\t64500\tUS\tEXAMPLE\u{1b}[31m, Inc.\n198.51.100.0\t198.51.100.9\t0\tNone\tNot routed\n\
             2001:db8::\t2001:db8::ffff\t64501\tJP\t\n",
        );
        let found = ["192.0.2.1", "198.51.100.1", "2001:db8::1"].map(|a| of(&names, a));
        assert_eq!(found, [Some("AS64500 EXAMPLE[31m, Inc."), None, Some("AS64501")]);
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named() {
        for (text, error) in [
            ("10.0.0.0/8\n", "names:1: expected a prefix and its name: `10.0.0.0/8`"),
            (
                "10.0.0.0/8 a\n10.0.0.0/33 b\n",
                "names:2: expected a prefix length of 0 to 32: `10.0.0.0/33 b`",
            ),
            (
                "192.0.2.0\t192.0.2.255\t64500\tUS\tx\n192.0.2.9\t192.0.2.1\t1\tUS\tx\n",
                "names:2: the range ends before it begins; nearest valid value: 192.0.2.1-192.0.2.9: `192.0.2.9\t192.0.2.1\t1\tUS\tx`",
            ),
            (
                "2|x|1|2|3|4|0\nx|*|ipv4|*|2|summary\n",
                "names: it says that it has 2 ipv4 records, and has 0: it was cut off",
            ),
        ] {
            assert_eq!(Names::read([("names", text.as_bytes())]).unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn names_are_shared_between_files_and_cut() {
        let long = format!("10.0.0.0/8 {}\n", "x".repeat(100));
        let names = Names::read([("a", long.as_bytes()), ("b", b"11.0.0.0/8 y\n12.0.0.0/8 y\n")]).unwrap();
        assert_eq!(of(&names, "10.0.0.1").unwrap().len(), LONGEST_NAME);
        let number = |address: &str| names.number_of(address.parse().unwrap());
        assert_eq!(number("11.0.0.1"), number("12.0.0.1"));
    }
}
