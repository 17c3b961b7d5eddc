//! The header data of a list, and its contents.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use weir_prefix::read::{self, Head};
use weir_prefix::{List, ReadError, Selection};

/// A list that loses more than this share of what it had is more often a broken file than the truth.
pub const SHRINKAGE: f64 = 0.2;

/// How much a list, or one country's part of it, holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct Size {
    /// Records in use, of both families.
    pub records: u64,
    /// IPv4 addresses, each counted once.
    pub ipv4_addresses: u64,
    /// IPv6 networks of /64: networks are given out, not addresses.
    pub ipv6_networks: u64,
}

impl Size {
    fn of(list: &List) -> Self {
        Size {
            records: (list.v4.len() + list.v6.len()) as u64,
            // Both are below 2^64; a network that is not whole is none.
            ipv4_addresses: list.ranges_v4().addresses() as u64,
            ipv6_networks: (list.ranges_v6().addresses() / 2f64.powi(64)) as u64,
        }
    }

    /// Describes the part that shrank by more than [`SHRINKAGE`] since `old`; `None` if none did.
    pub fn shrunk(&self, old: &Size) -> Option<String> {
        let parts = [
            ("IPv4 addresses", self.ipv4_addresses, old.ipv4_addresses),
            ("IPv6 networks", self.ipv6_networks, old.ipv6_networks),
            ("records", self.records, old.records),
        ];
        let lost = |new: u64, old: u64| if old > 0 { 1.0 - new as f64 / old as f64 } else { 0.0 };
        let (what, new, old) = parts
            .into_iter()
            .filter(|(_, new, old)| lost(*new, *old) > SHRINKAGE)
            .max_by(|a, b| lost(a.1, a.2).total_cmp(&lost(b.1, b.2)))?;
        Some(format!("{:.0} % fewer {what} ({new}, was {old})", lost(new, old) * 100.0))
    }
}

/// A list that was read to its end.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Survey {
    /// The registry that it says it is of; none for lists that are no registry's.
    pub registry: Option<String>,
    /// Its number: later ones are greater (RIR statistics exchange format, section 4.2).
    pub serial: Option<String>,
    /// The last day that it tells of, as YYYYMMDD.
    pub end: Option<String>,
    /// How much it holds.
    #[serde(flatten)]
    pub size: Size,
    /// How much of it each country has that was asked for.
    pub countries: BTreeMap<String, Size>,
}

impl Survey {
    /// Reads a list to its end, and for each of these countries what it has.
    ///
    /// # Errors
    /// The first line that cannot be read, or that it was cut off.
    pub fn of(name: &str, bytes: &[u8], countries: &Selection) -> Result<Self, ReadError> {
        let read = |selection: &Selection| {
            let mut list = List::default();
            read::read(&mut list, name, bytes, selection).map(|_| list)
        };
        Survey::by(bytes, countries, read)
    }

    /// As [`Survey::of`], but leaves out single lines that cannot be read, and returns them.
    ///
    /// # Errors
    /// It was cut off, or more lines are wrong than anybody would look at.
    pub fn leniently(
        name: &str,
        bytes: &[u8],
        countries: &Selection,
    ) -> Result<(Self, Vec<ReadError>), ReadError> {
        let mut list = List::default();
        let (_, out) = read::read_leniently(&mut list, name, bytes, &Selection::default());
        let whole = |error: &&ReadError| error.line.is_none() || out.more > 0;
        if let Some(error) = out.errors.iter().find(whole) {
            return Err(error.clone());
        }
        let read = |selection: &Selection| {
            let mut list = List::default();
            read::read_leniently(&mut list, name, bytes, selection);
            Ok(list)
        };
        Survey::by(bytes, countries, read).map(|survey| (survey, out.errors))
    }

    fn by(
        bytes: &[u8],
        countries: &Selection,
        read: impl Fn(&Selection) -> Result<List, ReadError>,
    ) -> Result<Self, ReadError> {
        let size = Size::of(&read(&Selection::default())?);
        let mut parts = BTreeMap::new();
        for country in &countries.countries {
            let only = Selection { countries: [country.clone()].into() };
            parts.insert(country.clone(), Size::of(&read(&only)?));
        }
        let Head { registry, serial, end } = read::head(bytes).unwrap_or_default();
        Ok(Survey {
            registry: Some(registry).filter(|r| !r.is_empty()),
            serial: Some(serial).filter(|s| !s.is_empty()),
            end: Some(end)
                .filter(|e| e.len() == 8 && e.bytes().all(|b| b.is_ascii_digit()) && e != "00000000"),
            size,
            countries: parts,
        })
    }

    /// Why this would be worse to have than `old`, if it would.
    pub fn worse_than(&self, old: &Survey) -> Option<String> {
        if let (Some(new), Some(old)) = (&self.serial, &old.serial)
            && is_older(new, old)
        {
            return Some(format!("it is older: serial {new}, the one here has {old}"));
        }
        if let Some(what) = self.size.shrunk(&old.size) {
            return Some(format!("it has {what}"));
        }
        self.countries.iter().find_map(|(country, new)| {
            let what = new.shrunk(old.countries.get(country)?)?;
            Some(format!("{country} has {what}"))
        })
    }
}

/// Serials are numbers, but each registry counts in its own way: days as YYYYMMDD, seconds, milliseconds. If the number of digits
/// changed, the way of counting changed too, and the comparison proves nothing.
fn is_older(new: &str, old: &str) -> bool {
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    number(new) && number(old) && new.len() == old.len() && new < old
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(records: u64, ipv4_addresses: u64, ipv6_networks: u64) -> Size {
        Size { records, ipv4_addresses, ipv6_networks }
    }

    fn survey(serial: &str, size: Size) -> Survey {
        Survey {
            registry: Some("apnic".into()),
            serial: Some(serial.into()),
            end: None,
            size,
            countries: BTreeMap::new(),
        }
    }

    #[test]
    fn a_fifth_may_go_and_no_more() {
        let old = size(100, 1000, 50);
        assert_eq!(size(80, 800, 40).shrunk(&old), None);
        assert_eq!(size(100, 799, 50).shrunk(&old).unwrap(), "20 % fewer IPv4 addresses (799, was 1000)");
        assert!(size(100, 1000, 39).shrunk(&old).unwrap().contains("IPv6"));
        assert!(size(79, 1000, 50).shrunk(&old).unwrap().contains("records"));
        assert!(
            size(50, 700, 50).shrunk(&old).unwrap().starts_with("50 % fewer records"),
            "the worst is told"
        );
        assert_eq!(size(0, 0, 0).shrunk(&size(0, 0, 0)), None);
        assert_eq!(size(5, 5, 5).shrunk(&size(0, 0, 0)), None);
    }

    #[test]
    fn an_older_serial_is_worse_if_both_count_alike() {
        let at = |serial| survey(serial, size(1, 1, 1));
        assert!(at("20251119").worse_than(&at("20251120")).unwrap().contains("older"));
        assert_eq!(at("20251120").worse_than(&at("20251120")), None);
        assert_eq!(at("20251121").worse_than(&at("20251120")), None);
        // From days to seconds: a greater number, and from seconds to days a smaller one, and neither is later.
        assert_eq!(at("20251121").worse_than(&at("1763600000")), None);
        assert_eq!(at("a").worse_than(&at("b")), None);
    }

    #[test]
    fn a_country_may_not_vanish_unseen() {
        let with =
            |jp: Size| Survey { countries: [("JP".to_owned(), jp)].into(), ..survey("1", size(9, 9, 9)) };
        let worse = with(size(0, 0, 0)).worse_than(&with(size(3, 3, 3))).unwrap();
        assert_eq!(worse, "JP has 100 % fewer records (0, was 3)");
        assert_eq!(with(size(3, 3, 3)).worse_than(&with(size(3, 3, 3))), None);
    }

    #[test]
    fn single_lines_may_be_left_out_and_an_end_may_not() {
        let no = Selection::default();
        let one = "192.0.2.0/24\nnonsense\n198.51.100.0/24\n";
        let (survey, wrong) = Survey::leniently("f", one.as_bytes(), &no).unwrap();
        assert_eq!((survey.size.records, wrong.len(), wrong[0].line), (2, 1, Some(2)));
        assert!(Survey::of("f", one.as_bytes(), &no).is_err());
        let many = "nonsense\n".repeat(read::MOST_ERRORS + 1);
        assert!(Survey::leniently("f", many.as_bytes(), &no).is_err());
        let cut =
            "2|apnic|1|2|1|20251120|0\napnic|*|ipv4|*|2|summary\napnic|JP|ipv4|192.0.2.0|256|1|allocated\n";
        assert!(Survey::leniently("f", cut.as_bytes(), &no).unwrap_err().what.contains("cut off"));
    }

    #[test]
    fn addresses_are_counted_once() {
        let list = "192.0.2.0/24\n192.0.2.0/25\n2001:db8::/63\n";
        let survey = Survey::of("list", list.as_bytes(), &Selection::default()).unwrap();
        assert_eq!(survey.size, size(3, 256, 2));
        assert_eq!((survey.registry, survey.serial), (None, None));
    }
}
