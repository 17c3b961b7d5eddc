//! Who becomes whom.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_text::order;

use crate::shared::{WEIR_MAPPINGS, WEIR_REFUSE, WEIR_TRANSLATE, WeirEnd4, WeirEnd6, WeirOther4, WeirOther6};
use crate::{Error, Protocol, Result};

/// One published port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Mapping {
    /// Protocol of the port.
    pub protocol: Protocol,
    /// Destination that clients use: an address of the host.
    pub published: SocketAddr,
    /// Destination after translation: the container's address, of the same IP version.
    pub container: SocketAddr,
}

impl FromStr for Mapping {
    type Err = String;

    /// `198.18.0.1:80=172.17.0.2:8080/tcp`, with IPv6 addresses in brackets.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        const EXPECTED: &str = "expected PUBLISHED=CONTAINER/tcp or /udp, both an address with a port, as 198.18.0.1:80=172.17.0.2:8080/tcp";
        let parts = || {
            let (ends, protocol) = text.rsplit_once('/')?;
            let (published, container) = ends.split_once('=')?;
            let protocol = protocol.parse().ok()?;
            Some(Mapping { protocol, published: published.parse().ok()?, container: container.parse().ok()? })
        };
        let mapping = parts().ok_or(EXPECTED)?;
        check(&mapping).map_err(|e| e.to_string())?;
        Ok(mapping)
    }
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} -> {}", self.published, self.protocol, self.container)
    }
}

/// Contents of the tables in the kernel.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) in4: Vec<(WeirEnd4, WeirOther4)>,
    pub(crate) out4: Vec<(WeirEnd4, WeirOther4)>,
    pub(crate) in6: Vec<(WeirEnd6, WeirOther6)>,
    pub(crate) out6: Vec<(WeirEnd6, WeirOther6)>,
}

impl Tables {
    /// Builds the tables of these mappings. Their number must be 1 to [`WEIR_MAPPINGS`], and they must not contradict each other.
    pub(crate) fn of(mappings: &[Mapping]) -> Result<Self> {
        let most = WEIR_MAPPINGS as usize;
        if mappings.is_empty() || mappings.len() > most {
            return Err(Error::Mapping(format!("{} mappings: valid is 1 to {most}", mappings.len())));
        }
        mappings.iter().try_for_each(check)?;
        check_all(mappings)?;
        let mut tables = Tables::default();
        for m in mappings {
            tables.add(m);
        }
        Ok(tables)
    }

    fn add(&mut self, mapping: &Mapping) {
        let Mapping { protocol, published, container } = *mapping;
        match (published.ip(), container.ip()) {
            (IpAddr::V4(p), IpAddr::V4(c)) => {
                let end = |address: Ipv4Addr, port: u16| WeirEnd4 {
                    address: u32::from_ne_bytes(address.octets()),
                    port: port.to_be(),
                    protocol: protocol.number(),
                    zero: 0,
                };
                let other = |end: WeirEnd4, what| WeirOther4 {
                    address: end.address,
                    port: end.port,
                    what: what as u16,
                };
                let (p, c) = (end(p, published.port()), end(c, container.port()));
                self.in4.push((p, other(c, WEIR_TRANSLATE)));
                self.in4.push((c, other(c, WEIR_REFUSE)));
                self.out4.push((c, other(p, WEIR_TRANSLATE)));
            }
            (IpAddr::V6(p), IpAddr::V6(c)) => {
                let end = |address: Ipv6Addr, port: u16| WeirEnd6 {
                    address: words(address),
                    port: port.to_be(),
                    protocol: protocol.number(),
                    zero: 0,
                };
                let other = |from: WeirEnd6, to: WeirEnd6, what| WeirOther6 {
                    address: to.address,
                    port: to.port,
                    what: what as u16,
                    difference: difference(from.address, to.address),
                };
                let (p, c) = (end(p, published.port()), end(c, container.port()));
                self.in6.push((p, other(p, c, WEIR_TRANSLATE)));
                self.in6.push((c, other(c, c, WEIR_REFUSE)));
                self.out6.push((c, other(c, p, WEIR_TRANSLATE)));
            }
            // Refused by `check`.
            _ => {}
        }
    }
}

/// Mappings in the order of their addresses, read back from the entries of the tables for what comes in.
pub(crate) fn read_back(in4: &[(WeirEnd4, WeirOther4)], in6: &[(WeirEnd6, WeirOther6)]) -> Vec<Mapping> {
    let mapping = |protocol: u8, published: (IpAddr, u16), container: (IpAddr, u16)| {
        let protocol = if protocol == Protocol::Udp.number() { Protocol::Udp } else { Protocol::Tcp };
        let end = |(address, port): (IpAddr, u16)| SocketAddr::new(address, u16::from_be(port));
        Mapping { protocol, published: end(published), container: end(container) }
    };
    let v4 = |address: u32| IpAddr::from(Ipv4Addr::from(address.to_ne_bytes()));
    let v6 = |words: [u32; 4]| {
        let mut octets = [0; 16];
        for (part, word) in octets.chunks_exact_mut(4).zip(words) {
            part.copy_from_slice(&word.to_ne_bytes());
        }
        IpAddr::from(Ipv6Addr::from(octets))
    };
    let translated = u64::from(WEIR_TRANSLATE as u16);
    let of4 = in4.iter().filter(|(_, o)| u64::from(o.what) == translated);
    let of4 = of4.map(|(e, o)| mapping(e.protocol, (v4(e.address), e.port), (v4(o.address), o.port)));
    let of6 = in6.iter().filter(|(_, o)| u64::from(o.what) == translated);
    let of6 = of6.map(|(e, o)| mapping(e.protocol, (v6(e.address), e.port), (v6(o.address), o.port)));
    let mut all: Vec<Mapping> = of4.chain(of6).collect();
    order::by_key(&mut all, |m| (m.published, m.protocol));
    all
}

/// The words of an address as they lie in a packet.
pub(crate) fn words(address: Ipv6Addr) -> [u32; 4] {
    let octets = address.octets();
    std::array::from_fn(|at| {
        u32::from_ne_bytes([octets[4 * at], octets[4 * at + 1], octets[4 * at + 2], octets[4 * at + 3]])
    })
}

/// Returns the value to add to a checksum when one address becomes the other: their difference in one's complement of 32 bits
/// (RFC 1624).
fn difference(from: [u32; 4], to: [u32; 4]) -> u32 {
    let sum: u64 = from.iter().map(|w| u64::from(!w)).chain(to.iter().map(|w| u64::from(*w))).sum();
    let folded = (sum & 0xffff_ffff) + (sum >> 32);
    ((folded & 0xffff_ffff) + (folded >> 32)) as u32
}

/// Whether it can be at all.
pub(crate) fn check(mapping: &Mapping) -> Result<()> {
    let Mapping { published, container, .. } = mapping;
    let wrong = |why: &str| Err(Error::Mapping(format!("{mapping}: {why}")));
    if published.is_ipv4() != container.is_ipv4() {
        return wrong("both addresses must be of one IP version");
    }
    if published.port() == 0 || container.port() == 0 {
        return wrong("a port is 1 to 65535");
    }
    for address in [published.ip(), container.ip()] {
        let link_local = match address {
            IpAddr::V4(a) => a.is_link_local() || a.is_broadcast(),
            IpAddr::V6(a) => a.is_unicast_link_local() || a.to_ipv4_mapped().is_some(),
        };
        if address.is_unspecified() || address.is_loopback() || address.is_multicast() || link_local {
            return wrong("expected an address of a host that others can send to through a router");
        }
    }
    if published.ip() == container.ip() {
        return wrong("the container must have an address of its own");
    }
    Ok(())
}

/// Whether each has one answer in both directions.
fn check_all(mappings: &[Mapping]) -> Result<()> {
    let (mut published, mut container) = (HashMap::new(), HashMap::new());
    for m in mappings {
        if let Some(before) = published.insert((m.protocol, m.published), m) {
            return Err(Error::Mapping(format!("{before} and {m}: one port is published once")));
        }
        if let Some(before) = container.insert((m.protocol, m.container), m) {
            let why = "answers of one port of the container cannot come from two published ones";
            return Err(Error::Mapping(format!("{before} and {m}: {why}")));
        }
    }
    match mappings.iter().find(|m| container.contains_key(&(m.protocol, m.published))) {
        Some(m) => Err(Error::Mapping(format!("{m}: the published one is a container's"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use weir_wire::Sum;

    use super::*;

    fn mapping(published: &str, container: &str) -> Mapping {
        Mapping {
            protocol: Protocol::Tcp,
            published: published.parse().unwrap(),
            container: container.parse().unwrap(),
        }
    }

    fn refusal(mappings: &[Mapping]) -> String {
        Tables::of(mappings).unwrap_err().to_string()
    }

    #[test]
    fn what_has_two_answers_is_refused() {
        let one = mapping("198.18.0.1:80", "198.19.0.2:8080");
        let tables = Tables::of(&[one, Mapping { protocol: Protocol::Udp, ..one }]).unwrap();
        assert_eq!((tables.in4.len(), tables.out4.len(), tables.in6.len()), (4, 2, 0));
        assert!(refusal(&[one, mapping("198.18.0.1:80", "198.19.0.3:80")]).contains("published once"));
        assert!(
            refusal(&[one, mapping("198.18.0.1:81", "198.19.0.2:8080")]).contains("cannot come from two")
        );
        assert!(refusal(&[one, mapping("198.19.0.2:8080", "198.19.0.3:80")]).contains("is a container's"));
    }

    #[test]
    fn what_is_in_the_tables_reads_back_as_it_was() {
        let texts = [
            "198.18.0.1:53=198.19.0.2:5353/udp",
            "198.18.0.1:80=198.19.0.2:8080/tcp",
            "[2001:2::1]:80=[2001:2:0:1::2]:8080/tcp",
        ];
        let mappings: Vec<Mapping> = texts.iter().map(|t| t.parse().unwrap()).collect();
        let tables = Tables::of(&mappings).unwrap();
        assert_eq!(read_back(&tables.in4, &tables.in6), mappings);
    }

    #[test]
    fn a_mapping_that_is_none_is_told_how_one_is_written() {
        for bad in [
            "",
            "198.18.0.1:80",
            "198.18.0.1:80=198.19.0.2:80",
            "198.18.0.1=198.19.0.2:80/tcp",
            "a=b/tcp",
            "198.18.0.1:80=198.19.0.2:80/sctp",
        ] {
            assert!(
                bad.parse::<Mapping>().unwrap_err().contains("198.18.0.1:80=172.17.0.2:8080/tcp"),
                "{bad}"
            );
        }
        let error = "127.0.0.1:80=198.19.0.2:80/tcp".parse::<Mapping>().unwrap_err();
        assert!(error.contains("through a router"), "{error}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (published, container, word) in [
            ("198.18.0.1:80", "[2001:2::2]:80", "one IP version"),
            ("198.18.0.1:0", "198.19.0.2:80", "1 to 65535"),
            ("0.0.0.0:80", "198.19.0.2:80", "address of a host"),
            ("[fe80::1]:80", "[2001:2::2]:80", "address of a host"),
            ("198.18.0.1:80", "224.0.0.1:80", "address of a host"),
            ("198.18.0.1:80", "198.18.0.1:81", "of its own"),
        ] {
            assert!(refusal(&[mapping(published, container)]).contains(word), "{published} {container}");
        }
        assert!(refusal(&[]).contains("1 to 4096"));
        let many: Vec<Mapping> =
            (1..=4097).map(|n| mapping(&format!("198.18.0.1:{n}"), &format!("198.19.0.2:{n}"))).collect();
        assert!(refusal(&many).contains("1 to 4096"));
        assert!(Tables::of(&many[1..]).is_ok());
    }

    #[test]
    fn the_difference_of_two_addresses_is_that_of_their_sums() {
        // By RFC 1071: sum(to) = sum(from) + difference, in one's complement of 16 bits.
        for (from, to) in [
            ("2001:2::1", "2001:2:0:1::2"),
            ("2001:2:ffff:ffff:ffff:ffff:ffff:ffff", "2001:2::"),
            ("2001:2::", "2001:2:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2001:2::5", "2001:2::5"),
        ] {
            let (from, to): (Ipv6Addr, Ipv6Addr) = (from.parse().unwrap(), to.parse().unwrap());
            let made = difference(words(from), words(to)).to_ne_bytes();
            let moved = Sum::new().address(from.into()).bytes(&made).folded();
            assert_eq!(moved % 0xffff, Sum::new().address(to.into()).folded() % 0xffff, "{from} {to}");
        }
    }
}
