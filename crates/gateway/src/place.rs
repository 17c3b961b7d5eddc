//! The hosts' interfaces and addresses that a variant works on.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
pub use weir_record::{Family, Role, Topology};

use crate::Error;

/// Interfaces and addresses of one variant's hosts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// IP version.
    pub family: Family,
    /// The gateway's interface towards the initiator.
    pub inside_interface: String,
    /// The gateway's interface towards the responder (the bridge itself where the topology is bridged).
    pub outside_interface: String,
    /// The initiator's address.
    pub initiator: IpAddr,
    /// The gateway's address towards the initiator.
    pub gateway_inside: IpAddr,
    /// The gateway's address towards the responder.
    pub gateway_outside: IpAddr,
    /// A further outside address, routed to the gateway, that nothing else uses: for address-to-address translation.
    pub spare_outside: Option<IpAddr>,
    /// The responder's address.
    pub responder: IpAddr,
    /// Ports on which the responder answers.
    pub ports: RangeInclusive<u16>,
    /// Short unique word for names of tables, chains and comments, `[a-z0-9]{1,12}`.
    pub tag: String,
}

impl Place {
    /// Every address of the run.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let all = [self.initiator, self.gateway_inside, self.gateway_outside, self.responder];
        all.into_iter().chain(self.spare_outside)
    }

    /// Refuses values that would break the text of rules: names, and addresses that do not belong together.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |what: String| Err(Error::Unsupported(what));
        let tag = self.tag.as_bytes();
        if tag.is_empty()
            || tag.len() > 12
            || !tag.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        {
            return wrong(format!("tag `{}`: expected 1 to 12 of a-z and 0-9", self.tag));
        }
        for name in [&self.inside_interface, &self.outside_interface] {
            // 15 is IFNAMSIZ without the final zero; the kernel refuses blanks and slashes, nft has no way to write a quote.
            if name.is_empty()
                || name.len() > 15
                || name.bytes().any(|b| !b.is_ascii_graphic() || b"/\"\\".contains(&b))
            {
                return wrong(format!("interface `{name}`: not a name that rules can be written with"));
            }
        }
        let ipv4 = self.family == Family::Ipv4;
        match self.addresses().find(|a| a.is_ipv4() != ipv4) {
            Some(address) => wrong(format!("address {address} is not of the run's IP version")),
            None => Ok(()),
        }
    }
}

/// The required observations when a variant is in effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expectation {
    /// The address to which the initiator sends.
    pub target: IpAddr,
    /// The source address that the responder must see; `None`: any (nothing is promised).
    pub seen_source: Option<IpAddr>,
    /// Whether the path has a gateway that must lower the hop limit by one: `None` if unknown.
    pub hops: Option<u8>,
    /// The destination ports that reach the responder, if not all of them do: a program that makes up its own packets must keep
    /// to them.
    #[serde(default)]
    pub ports: Option<RangeInclusive<u16>>,
}

impl Expectation {
    /// The responder sees the initiator's own address, behind so many gateways.
    pub(crate) fn untranslated(place: &Place, hops: u8) -> Self {
        let (target, seen_source) = (place.responder, Some(place.initiator));
        Expectation { target, seen_source, hops: Some(hops), ports: None }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn place_v4() -> Place {
        place(Family::Ipv4, ["198.18.0.2", "198.18.0.1", "198.18.1.1", "198.18.1.2", "198.18.2.1"])
    }

    pub(crate) fn place_v6() -> Place {
        place(Family::Ipv6, ["2001:2::2", "2001:2::1", "2001:2:1::1", "2001:2:1::2", "2001:2:2::1"])
    }

    fn place(family: Family, addresses: [&str; 5]) -> Place {
        let [initiator, gateway_inside, gateway_outside, responder, spare] =
            addresses.map(|a| a.parse().unwrap());
        Place {
            family,
            inside_interface: "in0".into(),
            outside_interface: "out0".into(),
            initiator,
            gateway_inside,
            gateway_outside,
            spare_outside: Some(spare),
            responder,
            ports: 5001..=5003,
            tag: "t1".into(),
        }
    }

    #[test]
    fn a_place_that_rules_cannot_be_written_for_is_refused() {
        assert!(place_v4().check().is_ok());
        assert!(place_v6().check().is_ok());
        for tag in ["", "Upper", "with space", "a;b", "thirteenchars"] {
            assert!(Place { tag: tag.into(), ..place_v4() }.check().is_err(), "{tag}");
        }
        for name in ["", "a\" drop", "a b", "sixteencharsname"] {
            assert!(Place { inside_interface: name.into(), ..place_v4() }.check().is_err(), "{name}");
        }
        assert!(Place { family: Family::Ipv6, ..place_v4() }.check().is_err());
    }
}
