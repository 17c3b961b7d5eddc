//! Flows that a user leaves to the kernel.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_netlink::conntrack::Tuple;

use crate::Protocol;
use crate::direction::words;
use crate::shared::WeirExclusion;

/// Addresses, and perhaps a port and a protocol, at any end of a flow, before or behind the translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exclusion {
    address: IpAddr,
    /// Leading bits of the address that count.
    length: u8,
    port: Option<u16>,
    protocol: Option<Protocol>,
}

impl Exclusion {
    /// One with these parts; bits after the length do not count.
    pub(crate) fn new(address: IpAddr, length: u8, port: Option<u16>, protocol: Option<Protocol>) -> Self {
        Exclusion { address, length, port, protocol }
    }

    pub(crate) fn is_ipv6(&self) -> bool {
        self.address.is_ipv6()
    }

    pub(crate) fn port(&self) -> Option<u16> {
        self.port
    }

    pub(crate) fn protocol(&self) -> Option<Protocol> {
        self.protocol
    }

    /// First and last of its addresses, as numbers.
    pub(crate) fn span(&self) -> (u128, u128) {
        let address = match self.address {
            IpAddr::V4(a) => u128::from(u32::from(a)),
            IpAddr::V6(a) => u128::from(a),
        };
        let free = u32::from(self.bits() - self.length);
        let low = if free == 0 { 0 } else { u128::MAX >> (128 - free) };
        (address & !low, address | low)
    }

    /// Whether each flow that the other one leaves to the kernel is left to it by this one, too.
    pub(crate) fn contains(&self, other: &Exclusion) -> bool {
        let ((first, last), (a, b)) = (self.span(), other.span());
        self.is_ipv6() == other.is_ipv6()
            && first <= a
            && b <= last
            && (self.port.is_none() || self.port == other.port)
            && (self.protocol.is_none() || self.protocol == other.protocol)
    }

    /// As the programs have it.
    pub(crate) fn shared(&self) -> WeirExclusion {
        let mask = match self.address {
            IpAddr::V4(_) => {
                IpAddr::from((u32::MAX.checked_shl(32 - u32::from(self.length)).unwrap_or(0)).to_be_bytes())
            }
            IpAddr::V6(_) => {
                IpAddr::from((u128::MAX.checked_shl(128 - u32::from(self.length)).unwrap_or(0)).to_be_bytes())
            }
        };
        WeirExclusion {
            address: words(self.address),
            mask: words(mask),
            port: self.port.map_or(0, u32::from),
            version: if self.address.is_ipv6() { 6 } else { 4 },
            protocol: self.protocol.map_or(0, |protocol| protocol.number().into()),
        }
    }

    /// Whether a flow with these ends is left to the kernel: the same question that the programs ask.
    pub(crate) fn covers(&self, protocol: Protocol, tuple: &Tuple) -> bool {
        let WeirExclusion { address, mask, .. } = self.shared();
        let is_end = |end: IpAddr, port: u16| {
            let same = |((word, mask), wanted): ((u32, u32), u32)| word & mask == wanted;
            end.is_ipv6() == self.address.is_ipv6()
                && words(end).into_iter().zip(mask).zip(address).all(same)
                && self.port.is_none_or(|wanted| wanted == port)
        };
        self.protocol.is_none_or(|wanted| wanted == protocol)
            && (is_end(tuple.source.ip(), tuple.source_port)
                || is_end(tuple.destination.ip(), tuple.destination_port))
    }

    fn bits(&self) -> u8 {
        if self.address.is_ipv6() { 128 } else { 32 }
    }
}

/// An address with an optional prefix, and an optional port behind a colon: IPv6 is in brackets then.
fn split_port(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, behind) = rest.split_once(']')?;
        return match behind {
            "" => Some((inside, None)),
            _ => behind.strip_prefix(':').map(|port| (inside, Some(port))),
        };
    }
    match text.split_once(':') {
        Some((address, port)) if !port.contains(':') => Some((address, Some(port))),
        _ => Some((text, None)),
    }
}

impl FromStr for Exclusion {
    type Err = String;

    /// `192.0.2.7`, `192.0.2.0/24`, `192.0.2.0/24:53`, `[2001:db8::/32]:53`, each with `/tcp` or `/udp` behind it.
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "{text}: expected ADDRESS[/LENGTH][:PORT][/tcp|/udp], as 192.0.2.0/24:53/udp or [2001:db8::/32]:53"
            )
        };
        let (rest, protocol) = match (text.strip_suffix("/tcp"), text.strip_suffix("/udp")) {
            (Some(rest), _) => (rest, Some(Protocol::Tcp)),
            (_, Some(rest)) => (rest, Some(Protocol::Udp)),
            _ => (text, None),
        };
        let (network, port) = split_port(rest).ok_or_else(expected)?;
        let (address, length) = network.split_once('/').map_or((network, None), |(a, l)| (a, Some(l)));
        let address: IpAddr = address.parse().map_err(|_| expected())?;
        let port = port.map(str::parse::<u16>).transpose().map_err(|_| expected())?;
        if port == Some(0) {
            return Err(format!("{text}: a port is 1 to 65535"));
        }
        let mut exclusion = Exclusion { address, length: 0, port, protocol };
        let most = exclusion.bits();
        exclusion.length = match length {
            None => most,
            Some(length) => length
                .parse()
                .ok()
                .filter(|length| *length <= most)
                .ok_or_else(|| format!("{text}: a prefix of this address has 0 to {most} bits"))?,
        };
        let shared = exclusion.shared();
        if shared.address.iter().zip(shared.mask).any(|(word, mask)| word & !mask != 0) {
            return Err(format!("{text}: bits are set after the first {}", exclusion.length));
        }
        Ok(exclusion)
    }
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Exclusion { address, length, port, protocol } = self;
        let network =
            if *length == self.bits() { address.to_string() } else { format!("{address}/{length}") };
        match port {
            Some(port) if address.is_ipv6() => write!(f, "[{network}]:{port}")?,
            Some(port) => write!(f, "{network}:{port}")?,
            None => write!(f, "{network}")?,
        }
        protocol.map_or(Ok(()), |protocol| write!(f, "/{protocol}"))
    }
}

impl Serialize for Exclusion {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Exclusion {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Exclusion {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Exclusion".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "ADDRESS[/LENGTH][:PORT][/tcp|/udp]; an IPv6 network with a port is in brackets"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_printed_again() {
        for text in [
            "192.0.2.7",
            "192.0.2.0/24",
            "192.0.2.0/24:53",
            "192.0.2.0/24:53/udp",
            "0.0.0.0/0:53/udp",
            "192.0.2.7/tcp",
            "2001:db8::1",
            "2001:db8::/32",
            "[2001:db8::/32]:53",
            "[2001:db8::1]:443/tcp",
            "::/0",
        ] {
            assert_eq!(text.parse::<Exclusion>().unwrap().to_string(), text);
        }
        assert_eq!("[2001:db8::1]".parse::<Exclusion>().unwrap().to_string(), "2001:db8::1");
    }

    #[test]
    fn what_is_no_exclusion_is_refused() {
        for text in [
            "",
            "/tcp",
            ":53",
            "192.0.2.7:",
            "192.0.2.7:0",
            "192.0.2.7:65536",
            "192.0.2.7/33",
            "192.0.2.7/24",
            "192.0.2.0/24/sctp",
            "[2001:db8::1]53",
            "[2001:db8::1",
            "2001:db8::1/129",
            "2001:db8::1/64",
            "host",
        ] {
            assert!(text.parse::<Exclusion>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_programs_see_network_order_and_a_mask() {
        let shared = "198.18.1.0/24:53/udp".parse::<Exclusion>().unwrap().shared();
        assert_eq!(shared.address, [u32::from_ne_bytes([198, 18, 1, 0]), 0, 0, 0]);
        assert_eq!(shared.mask, [u32::from_ne_bytes([255, 255, 255, 0]), 0, 0, 0]);
        assert_eq!((shared.port, shared.version, shared.protocol), (53, 4, 17));
        let any = "::/0".parse::<Exclusion>().unwrap().shared();
        assert_eq!((any.mask, any.port, any.version, any.protocol), ([0; 4], 0, 6, 0));
    }
}
