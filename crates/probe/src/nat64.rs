//! Addresses of IPv4 within those of IPv6, as a client behind NAT64 knows them (RFC 6052 section 2.2).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Lengths of prefixes, bits, the usual one first.
const LENGTHS: [u8; 6] = [96, 64, 56, 48, 40, 32];
/// This byte of an address is zero, whatever the prefix.
const RESERVED: usize = 8;

/// The prefix of a NAT64. In JSON a text, as `64:ff9b::/96`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix64 {
    address: Ipv6Addr,
    length: u8,
}

impl Prefix64 {
    /// The prefix by which that address of IPv4 is known as that one of IPv6; `None` if it is not in it.
    pub fn between(known: Ipv6Addr, real: Ipv4Addr) -> Option<Self> {
        LENGTHS.into_iter().find_map(|length| {
            let mut octets = known.octets();
            let whole = Prefix64 { address: known, length };
            if whole.within(known) != Some(real) {
                return None;
            }
            octets[usize::from(length) / 8..].fill(0);
            Some(Prefix64 { address: octets.into(), length })
        })
    }

    /// The bytes of an address that hold one of IPv4.
    fn places(self) -> impl Iterator<Item = usize> {
        (usize::from(self.length) / 8..16).filter(|n| *n != RESERVED).take(4)
    }

    /// The address of IPv6 for one of IPv4.
    pub fn of(self, address: Ipv4Addr) -> Ipv6Addr {
        let mut octets = self.address.octets();
        for (place, octet) in self.places().zip(address.octets()) {
            octets[place] = octet;
        }
        octets.into()
    }

    /// The reverse; `None` for an address outside the prefix.
    pub fn within(self, address: Ipv6Addr) -> Option<Ipv4Addr> {
        let octets = address.octets();
        let begins = usize::from(self.length) / 8;
        if octets[..begins] != self.address.octets()[..begins] {
            return None;
        }
        let mut inner = [0; 4];
        for (octet, place) in inner.iter_mut().zip(self.places()) {
            *octet = octets[place];
        }
        Some(inner.into())
    }

    /// An endpoint as the client knows it.
    pub fn known(self, endpoint: SocketAddr) -> SocketAddr {
        match endpoint.ip() {
            IpAddr::V4(address) => SocketAddr::new(self.of(address).into(), endpoint.port()),
            IpAddr::V6(_) => endpoint,
        }
    }

    /// The endpoint behind the NAT64.
    pub fn real(self, endpoint: SocketAddr) -> SocketAddr {
        match endpoint.ip() {
            IpAddr::V6(address) => {
                self.within(address).map_or(endpoint, |inner| SocketAddr::new(inner.into(), endpoint.port()))
            }
            IpAddr::V4(_) => endpoint,
        }
    }
}

impl std::fmt::Display for Prefix64 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl From<Prefix64> for String {
    fn from(prefix: Prefix64) -> String {
        prefix.to_string()
    }
}

impl TryFrom<String> for Prefix64 {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("{text}: expected a prefix of NAT64 (example: 64:ff9b::/96)");
        let (address, length) = text.split_once('/').ok_or_else(wrong)?;
        let address = address.parse().map_err(|_| wrong())?;
        let length = length.parse().ok().filter(|length| LENGTHS.contains(length)).ok_or_else(wrong)?;
        Ok(Prefix64 { address, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of RFC 6052 section 2.4.
    #[test]
    fn the_examples_of_the_rfc() {
        let real = Ipv4Addr::new(192, 0, 2, 33);
        for (prefix, known) in [
            ("2001:db8::/32", "2001:db8:c000:221::"),
            ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
            ("64:ff9b::/96", "64:ff9b::192.0.2.33"),
        ] {
            let known: Ipv6Addr = known.parse().unwrap();
            let found = Prefix64::between(known, real).unwrap();
            assert_eq!(found.to_string(), prefix);
            assert_eq!(Prefix64::try_from(prefix.to_owned()), Ok(found));
            assert_eq!(found.of(real), known);
            let other = Ipv4Addr::new(198, 51, 100, 7);
            assert_eq!(found.within(found.of(other)), Some(other));
            let endpoint = SocketAddr::new(other.into(), 9348);
            assert_eq!(found.real(found.known(endpoint)), endpoint);
        }
        assert_eq!(Prefix64::between("2001:db8::1".parse().unwrap(), real), None);
        for wrong in ["64:ff9b::", "64:ff9b::/95", "192.0.2.0/32", "x/96"] {
            assert!(Prefix64::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
        let usual = Prefix64::between("64:ff9b::192.0.2.33".parse().unwrap(), real).unwrap();
        assert_eq!(usual.within("64:ff9c::192.0.2.33".parse().unwrap()), None);
    }
}
