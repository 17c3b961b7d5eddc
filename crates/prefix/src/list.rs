//! A list with the origin of each entry.

use std::net::IpAddr;

use crate::address::Address;
use crate::ranges::Ranges;

/// File and line of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// Number of the file, in the order of reading.
    pub file: u32,
    /// Line, from 1.
    pub line: u32,
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<A> {
    /// First address.
    pub first: A,
    /// Last address.
    pub last: A,
    /// Its file and line.
    pub origin: Origin,
}

/// Entries of both families, as they were written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct List {
    /// IPv4.
    pub v4: Vec<Entry<u32>>,
    /// IPv6.
    pub v6: Vec<Entry<u128>>,
    /// Names of the files, by [`Origin::file`].
    pub files: Vec<String>,
}

impl List {
    /// The IPv4 addresses in it.
    pub fn ranges_v4(&self) -> Ranges<u32> {
        Ranges::new(self.v4.iter().map(|e| (e.first, e.last)))
    }

    /// The IPv6 addresses in it.
    pub fn ranges_v6(&self) -> Ranges<u128> {
        Ranges::new(self.v6.iter().map(|e| (e.first, e.last)))
    }

    /// True if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// The entries that an address lies in, the narrowest first: the range as text, and where it stands.
    pub fn find(&self, address: IpAddr) -> Vec<(String, Origin)> {
        match address {
            IpAddr::V4(address) => holding(&self.v4, u32::from(address)),
            IpAddr::V6(address) => holding(&self.v6, u128::from(address)),
        }
    }
}

fn holding<A: Address>(entries: &[Entry<A>], address: A) -> Vec<(String, Origin)> {
    let mut found: Vec<&Entry<A>> =
        entries.iter().filter(|e| e.first <= address && address <= e.last).collect();
    found.sort_by(|a, b| {
        let width = |e: &Entry<A>| e.first.distance(e.last);
        width(a).total_cmp(&width(b)).then(a.origin.cmp(&b.origin))
    });
    found.into_iter().map(|e| (written(e), e.origin)).collect()
}

/// As a prefix where it is one, else as a range.
fn written<A: Address>(entry: &Entry<A>) -> String {
    let ranges = Ranges::new([(entry.first, entry.last)]);
    let mut prefixes = ranges.prefixes();
    match (prefixes.next(), prefixes.next()) {
        (Some(one), None) => one.to_string(),
        _ => format!("{}-{}", entry.first.text(), entry.last.text()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_entry_comes_first() {
        let entry = |first, last, line| Entry { first, last, origin: Origin { file: 0, line } };
        let list = List {
            v4: vec![entry(0x0a00_0000, 0x0aff_ffff, 1), entry(0x0a00_0000, 0x0a00_0002, 2)],
            v6: Vec::new(),
            files: vec!["a".into()],
        };
        let found = list.find("10.0.0.2".parse().unwrap());
        let words: Vec<_> = found.iter().map(|(text, origin)| (text.as_str(), origin.line)).collect();
        assert_eq!(words, [("10.0.0.0-10.0.0.2", 2), ("10.0.0.0/8", 1)]);
        assert!(list.find("11.0.0.0".parse().unwrap()).is_empty());
        assert!(list.find("::".parse().unwrap()).is_empty());
    }

    #[test]
    fn entries_of_one_width_stay_in_the_order_of_the_files() {
        let entry = |first: u128, last, file, line| Entry { first, last, origin: Origin { file, line } };
        let list = List {
            v4: Vec::new(),
            v6: vec![entry(4, 7, 1, 1), entry(6, 9, 0, 2), entry(7, 7, 1, 3), entry(8, 9, 0, 4)],
            files: vec!["a".into(), "b".into()],
        };
        let found = |address: &str| -> Vec<_> {
            let found = list.find(address.parse().unwrap());
            found.into_iter().map(|(text, origin)| (text, origin.file, origin.line)).collect()
        };
        assert_eq!(found("::7"), [("::7".into(), 1, 3), ("::6-::9".into(), 0, 2), ("::4/126".into(), 1, 1)]);
        assert_eq!(found("::3"), []);
        assert_eq!(found("0.0.0.7"), []);
    }

    #[test]
    fn a_list_is_empty_without_entries_of_both_families() {
        let origin = Origin { file: 0, line: 1 };
        let v4 = List { v4: vec![Entry { first: 1, last: 1, origin }], ..List::default() };
        let v6 = List { v6: vec![Entry { first: 1, last: 1, origin }], ..List::default() };
        assert_eq!([&v4, &v6, &List::default()].map(List::is_empty), [false, false, true]);
        assert_eq!((v4.ranges_v4().as_slice(), v4.ranges_v6().is_empty()), (&[(1, 1)][..], true));
        assert_eq!((v6.ranges_v6().as_slice(), v6.ranges_v4().is_empty()), (&[(1, 1)][..], true));
    }
}
