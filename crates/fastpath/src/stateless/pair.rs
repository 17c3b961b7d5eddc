//! Two prefixes of one length that stand for each other.

use std::net::IpAddr;

use super::shared::WeirTranslation;
use crate::{Error, Result};

/// A prefix inside and its image outside, of the same IP version and length (1 to 32, or 1 to 128).
///
/// IPv6 prefixes of up to 64 bits are translated by RFC 6296: a part of the address takes up what the prefix changes in checksums.
/// Longer ones are replaced bit by bit as those of IPv4 are, and checksums are updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixPair {
    inside: IpAddr,
    outside: IpAddr,
    length: u8,
}

impl PrefixPair {
    /// One of that length in bits.
    ///
    /// # Errors
    /// [`Error::Options`] for addresses of two versions, a length out of range, bits behind the prefix, or prefixes that overlap.
    pub fn new(inside: IpAddr, outside: IpAddr, length: u8) -> Result<Self> {
        let wrong =
            |why: &str| Err(Error::Options(format!("{inside}/{length} and {outside}/{length}: {why}")));
        if inside.is_ipv6() != outside.is_ipv6() {
            return wrong("both prefixes must be of one IP version");
        }
        let most = if inside.is_ipv4() { 32 } else { 128 };
        if !(1..=most).contains(&length) {
            return wrong(&format!("a prefix has 1 to {most} bits"));
        }
        let pair = PrefixPair { inside, outside, length };
        for address in [inside, outside] {
            if words(address) != masked(words(address), pair.mask()) {
                return wrong("an address has bits behind its prefix");
            }
        }
        // Prefixes of one length overlap if they are the same.
        if inside == outside {
            return wrong("the prefixes are the same");
        }
        Ok(pair)
    }

    /// Whether its addresses are IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.inside.is_ipv6()
    }

    /// Whether it is translated by RFC 6296, which leaves all checksums as they are.
    pub fn is_checksum_neutral(&self) -> bool {
        self.is_ipv6() && self.length <= 64
    }

    fn mask(&self) -> [u32; 4] {
        let bits = u128::MAX.checked_shl(128 - u32::from(self.length)).unwrap_or(0);
        split(bits)
    }

    /// Between these interfaces, by index.
    pub(super) fn config(&self, inside_interface: u32, outside_interface: u32) -> WeirTranslation {
        let (inside, outside) = (words(self.inside), words(self.outside));
        let difference = u32::from(sum(inside)) + u32::from(!sum(outside));
        WeirTranslation {
            inside_interface,
            outside_interface,
            mask: self.mask(),
            inside,
            outside,
            ipv6: self.is_ipv6().into(),
            neutral: self.is_checksum_neutral().into(),
            adjustment: folded(difference),
            part: if self.length <= 48 { 3 } else { 4 },
        }
    }
}

impl std::fmt::Display for PrefixPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} = {}/{}", self.inside, self.length, self.outside, self.length)
    }
}

/// In network order; IPv4 in the first word.
fn words(address: IpAddr) -> [u32; 4] {
    match address {
        IpAddr::V4(v4) => [u32::from(v4).to_be(), 0, 0, 0],
        IpAddr::V6(v6) => split(v6.into()),
    }
}

fn split(bits: u128) -> [u32; 4] {
    [96, 64, 32, 0].map(|shift| ((bits >> shift) as u32).to_be())
}

fn masked(words: [u32; 4], mask: [u32; 4]) -> [u32; 4] {
    std::array::from_fn(|at| words[at] & mask[at])
}

/// In one's complement (RFC 1071), of words as they lie in memory.
fn sum(words: [u32; 4]) -> u16 {
    words.iter().fold(0, |sum, word| folded(u32::from(sum) + (word & 0xffff) + (word >> 16)))
}

fn folded(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(inside: &str, outside: &str, length: u8) -> Result<PrefixPair> {
        PrefixPair::new(inside.parse().unwrap(), outside.parse().unwrap(), length)
    }

    /// RFC 6296 appendix B: FD01:0203:0405::/48 and 2001:0DB8:0001::/48 have the adjustment 0xD54F.
    #[test]
    fn the_adjustment_of_the_standard() {
        let config = pair("fd01:203:405::", "2001:db8:1::", 48).unwrap().config(1, 2);
        assert_eq!(u16::from_be(config.adjustment), 0xd54f);
        assert_eq!((config.ipv6, config.neutral, config.part), (1, 1, 3));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (inside, outside, length, why) in [
            ("10.0.0.0", "2001:2::", 8, "one IP version"),
            ("10.0.0.0", "198.18.0.0", 0, "1 to 32"),
            ("10.0.0.0", "198.18.0.0", 33, "1 to 32"),
            ("2001:2::", "2001:2:1::", 129, "1 to 128"),
            ("10.0.0.1", "198.18.0.0", 24, "bits behind"),
            ("10.0.0.0", "198.18.0.1", 24, "bits behind"),
            ("10.0.0.0", "10.0.0.0", 24, "the same"),
        ] {
            let error = pair(inside, outside, length).unwrap_err();
            assert!(error.is_usage() && error.to_string().contains(why), "{error}");
        }
        assert!(!pair("2001:2::1", "2001:2:1::1", 128).unwrap().is_checksum_neutral());
        assert_eq!(pair("10.0.0.0", "198.18.0.0", 16).unwrap().to_string(), "10.0.0.0/16 = 198.18.0.0/16");
    }
}
