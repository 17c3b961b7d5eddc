//! The list itself: read, drawn from or made up.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_filter::Class;
use weir_prefix::{Address, List, Prefix, Ranges, Selection, read};

use super::AllowList;
use crate::error::at;
use crate::{Error, Family, Place};

impl AllowList {
    /// The listed addresses of the run's IP version: the initiator's among them, and the denied one not.
    pub(super) fn list(&self, place: &Place) -> Result<Class, Error> {
        let countries = self.countries.iter().map(String::as_str);
        let selection = Selection::of(countries).map_err(Error::Unsupported)?;
        let mut list = List::default();
        for path in &self.files {
            let name = path.display().to_string();
            let bytes = std::fs::read(path).map_err(at(path))?;
            read::read(&mut list, &name, &bytes, &selection)
                .map_err(|e| Error::Unsupported(e.to_string()))?;
        }
        let denied = self.denied_source.unwrap_or_else(|| unlisted(place));
        let mut class = Class::default();
        match (place.initiator, denied) {
            (IpAddr::V4(own), IpAddr::V4(denied)) => {
                let (own, denied) = (u32::from(own), u32::from(denied));
                class.v4 = self.sized(list.ranges_v4(), 8).minus(&one(denied)).union(&one(own));
            }
            (IpAddr::V6(own), IpAddr::V6(denied)) => {
                let (own, denied) = (u128::from(own), u128::from(denied));
                class.v6 = self.sized(list.ranges_v6(), 80).minus(&one(denied)).union(&one(own));
            }
            _ => {
                return Err(Error::Unsupported(format!(
                    "denied-source = \"{denied}\" is not of the run's IP version"
                )));
            }
        }
        if place.initiator == denied {
            return Err(Error::Unsupported(format!(
                "denied-source = \"{denied}\" is the initiator's address, which is listed in any case"
            )));
        }
        Ok(class)
    }

    /// As many prefixes as asked for.
    fn sized<A: Address + TryFrom<u128>>(&self, listed: Ranges<A>, host_bits: u8) -> Ranges<A> {
        let Some(wanted) = self.prefixes else { return listed };
        let there: Vec<Prefix<A>> = listed.prefixes().collect();
        if there.len() < wanted as usize {
            return made_up(wanted, host_bits);
        }
        let drawn =
            (0..u64::from(wanted)).map(|n| there[(n * there.len() as u64 / u64::from(wanted)) as usize]);
        Ranges::new(drawn.map(|p| (p.first, p.last())))
    }
}

fn one<A: Address>(address: A) -> Ranges<A> {
    Ranges::new([(address, address)])
}

/// Returns an address next to the initiator's that no host in the run has.
pub(super) fn unlisted(place: &Place) -> IpAddr {
    let near = |flip: u8| match place.initiator {
        IpAddr::V4(own) => IpAddr::V4(Ipv4Addr::from(u32::from(own) ^ u32::from(flip))),
        IpAddr::V6(own) => IpAddr::V6(Ipv6Addr::from(u128::from(own) ^ u128::from(flip))),
    };
    let last_byte = |address: IpAddr| match address {
        IpAddr::V4(a) => a.octets()[3],
        IpAddr::V6(a) => a.octets()[15],
    };
    // Neither a network's own address nor its broadcast. A run has five addresses, so the eighth is free at the latest.
    let usable = |address: &IpAddr| {
        !matches!(last_byte(*address), 0 | 255) && place.addresses().all(|taken| taken != *address)
    };
    (0x40..0x48).map(near).find(usable).unwrap_or_else(|| near(0x48))
}

/// Prefixes that lie apart: number `n` begins `n * 15` blocks behind 1.0.0.0 or 2400::, where a block is a /24 or a /48 (the low
/// `host_bits` of an address). In every tenth only the second half of the block is listed, so that tables must look closer.
fn made_up<A: Address + TryFrom<u128>>(count: u32, host_bits: u8) -> Ranges<A> {
    let begin: u128 = if A::BITS == 32 { 1 << 24 } else { 0x2400 << 112 };
    let one = |n: u32| {
        let first = begin + ((u128::from(n) * 15) << host_bits);
        let half = if n % 10 == 9 { 1 << (host_bits - 1) } else { 0 };
        let last = first + (1 << host_bits) - 1;
        Some((A::try_from(first + half).ok()?, A::try_from(last).ok()?))
    };
    Ranges::new((0..count).filter_map(one))
}

/// The prefixes of the run's IP version, as text.
pub(super) fn prefixes(class: &Class, family: Family) -> Vec<String> {
    match family {
        Family::Ipv4 => class.v4.prefixes().map(|p| p.to_string()).collect(),
        Family::Ipv6 => class.v6.prefixes().map(|p| p.to_string()).collect(),
    }
}

/// The list without every hundredth of its prefixes, but at least one, and never without the initiator's.
pub(super) fn one_percent_less(class: &Class, place: &Place) -> Class {
    fn thinned<A: Address>(ranges: &Ranges<A>, own: Option<A>) -> Ranges<A> {
        let kept = ranges.prefixes().enumerate();
        let kept =
            kept.filter(|(n, p)| n % 100 != 0 || own.is_some_and(|own| p.first <= own && own <= p.last()));
        Ranges::new(kept.map(|(_, p)| (p.first, p.last())))
    }
    match place.initiator {
        IpAddr::V4(own) => Class { v4: thinned(&class.v4, Some(own.into())), v6: Ranges::default() },
        IpAddr::V6(own) => Class { v4: Ranges::default(), v6: thinned(&class.v6, Some(own.into())) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allow_list::MOST_PREFIXES;
    use crate::place::tests::{place_v4, place_v6};

    #[test]
    fn made_up_prefixes_lie_apart_and_are_as_many_as_asked_for() {
        for count in [0, 1, 10, 1000] {
            let v4: Ranges<u32> = made_up(count, 8);
            let v6: Ranges<u128> = made_up(count, 80);
            assert_eq!((v4.as_slice().len(), v6.as_slice().len()), (count as usize, count as usize));
        }
        let many: Ranges<u32> = made_up(MOST_PREFIXES, 8);
        assert_eq!(many.as_slice().len(), MOST_PREFIXES as usize);
        // Nine of ten are a whole /24, the tenth is half of one.
        let v4: Ranges<u32> = made_up(20, 8);
        let lengths: Vec<u8> = v4.prefixes().map(|p| p.length).collect();
        assert_eq!(lengths.iter().filter(|l| **l == 24).count(), 18);
        assert_eq!(lengths.iter().filter(|l| **l == 25).count(), 2);
    }

    #[test]
    fn a_list_is_drawn_from_evenly_or_made_up() {
        let sized = |prefixes, listed: &Ranges<u32>| {
            AllowList { prefixes, ..AllowList::default() }.sized(listed.clone(), 8)
        };
        // Sixteen single addresses, no two next to each other.
        let listed = Ranges::new((0..16_u32).map(|n| (n * 4, n * 4)));
        assert_eq!(sized(None, &listed), listed);
        assert_eq!(sized(Some(16), &listed), listed);
        assert_eq!(sized(Some(4), &listed), Ranges::new([0, 16, 32, 48].map(|a| (a, a))));
        assert_eq!(sized(Some(0), &listed), Ranges::default());
        assert_eq!(sized(Some(17), &listed), made_up(17, 8));
    }

    #[test]
    fn the_initiator_is_listed_and_the_denied_source_is_not() {
        for place in [place_v4(), place_v6()] {
            let denied = unlisted(&place);
            let contains = |class: &Class, address: IpAddr| match address {
                IpAddr::V4(a) => class.v4.contains(a.into()),
                IpAddr::V6(a) => class.v6.contains(a.into()),
            };
            // Every address there is.
            let file = std::env::temp_dir().join(format!("weir-all-{}-{denied}", std::process::id()));
            std::fs::write(&file, "0.0.0.0/0\n::/0\n").unwrap();
            let all = AllowList { files: vec![file.clone()], ..AllowList::default() };
            let class = all.list(&place).unwrap();
            std::fs::remove_file(&file).unwrap();
            assert!(contains(&class, place.initiator) && contains(&class, place.responder));
            assert!(!contains(&class, denied), "{denied}");
            let less = one_percent_less(&class, &place);
            assert!(contains(&less, place.initiator) && !contains(&less, denied));
            assert_ne!((less.v4, less.v6), (class.v4, class.v6));

            assert!(place.addresses().all(|taken| taken != denied));
            let own = AllowList { denied_source: Some(place.initiator), ..AllowList::default() };
            assert!(own.list(&place).unwrap_err().to_string().contains("listed in any case"));
        }
        let other = AllowList { denied_source: Some("2001:2::9".parse().unwrap()), ..AllowList::default() };
        assert!(other.list(&place_v4()).unwrap_err().to_string().contains("IP version"));
    }

    #[test]
    fn a_list_of_some_prefixes_loses_one_in_a_hundred() {
        let place = place_v4();
        let class = Class { v4: made_up(1000, 8), v6: Ranges::default() };
        let less = one_percent_less(&class, &place);
        assert_eq!(less.v4.as_slice().len(), 990);
        assert!(less.v4.minus(&class.v4).is_empty(), "nothing is added");
    }
}
