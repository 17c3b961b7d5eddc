//! Addresses and names in a site. They are the same in every site, because no site can reach another.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use weir_netlink::Mac;
pub use weir_record::Topology;

use crate::options::Family;

/// Interfaces and addresses of a site, named as a variant needs them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Addresses {
    /// IP version.
    pub family: Family,
    /// The gateway's interface towards the initiator; empty without a gateway.
    pub inside_interface: String,
    /// The gateway's interface towards the responder (`br0` where the topology is bridged); empty without a gateway.
    pub outside_interface: String,
    /// The initiator's address.
    pub initiator: IpAddr,
    /// The gateway's address towards the initiator; unused without a gateway.
    pub gateway_inside: IpAddr,
    /// The gateway's address towards the responder; unused without a gateway.
    pub gateway_outside: IpAddr,
    /// A further outside address, routed to the gateway, that nothing else uses.
    pub spare_outside: Option<IpAddr>,
    /// The responder's address.
    pub responder: IpAddr,
}

/// The networks of a site: (network, prefix length).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Networks {
    /// Initiator's link.
    pub(crate) inside: (IpAddr, u8),
    /// Responder's link.
    pub(crate) outside: (IpAddr, u8),
    /// Spare addresses of the gateway.
    pub(crate) spare: (IpAddr, u8),
}

/// Name of the only interface of initiator and responder.
pub(crate) const END: &str = "eth0";
/// The gateway's interfaces.
pub(crate) const INSIDE: &str = "inside";
pub(crate) const OUTSIDE: &str = "outside";
pub(crate) const BRIDGE: &str = "br0";
/// The wan's interfaces (see [`crate::impair`]).
pub(crate) const NEAR: &str = "near";
pub(crate) const FAR: &str = "far";

/// Ethernet addresses: locally administered, and fixed because every neighbour entry is.
pub(crate) mod mac {
    use super::Mac;

    pub(crate) const INITIATOR: Mac = [0x02, b'w', b'e', b'i', b'r', 1];
    pub(crate) const INSIDE: Mac = [0x02, b'w', b'e', b'i', b'r', 2];
    pub(crate) const OUTSIDE: Mac = [0x02, b'w', b'e', b'i', b'r', 3];
    pub(crate) const RESPONDER: Mac = [0x02, b'w', b'e', b'i', b'r', 4];
    pub(crate) const BRIDGE_PORT: Mac = [0x02, b'w', b'e', b'i', b'r', 5];
    pub(crate) const NEAR: Mac = [0x02, b'w', b'e', b'i', b'r', 6];
    pub(crate) const FAR: Mac = [0x02, b'w', b'e', b'i', b'r', 7];
}

impl Addresses {
    /// The plan of a topology.
    pub fn of(topology: Topology, family: Family) -> Self {
        let (inside_interface, outside_interface) = match topology {
            Topology::Direct => ("", ""),
            Topology::Routed => (INSIDE, OUTSIDE),
            Topology::Bridged => (INSIDE, BRIDGE),
        };
        let spare = host(family, 2, 1);
        Addresses {
            family,
            inside_interface: inside_interface.to_owned(),
            outside_interface: outside_interface.to_owned(),
            initiator: host(family, 0, 2),
            gateway_inside: host(family, 0, 1),
            gateway_outside: host(family, 1, 1),
            spare_outside: (topology != Topology::Direct).then_some(spare),
            responder: host(family, 1, 2),
        }
    }
}

impl Networks {
    /// The plan of a family.
    pub(crate) fn of(family: Family) -> Self {
        let prefix = if family == Family::Ipv4 { 24 } else { 64 };
        let network = |n| (host(family, n, 0), prefix);
        Networks { inside: network(0), outside: network(1), spare: network(2) }
    }
}

/// The wan's address, the source of its ICMP messages. No host has a route to it.
pub(crate) fn wan(family: Family) -> IpAddr {
    host(family, 255, 1)
}

/// A host of network 0 (inside), 1 (outside) or 2 (spare): 198.18.0.0/24, 198.19.0.0/24, 198.19.1.0/24 of RFC 2544's block,
/// or 2001:2:0:N::/64 of RFC 5180's.
fn host(family: Family, network: u8, host: u8) -> IpAddr {
    match (family, network) {
        (Family::Ipv4, 0) => Ipv4Addr::new(198, 18, 0, host).into(),
        (Family::Ipv4, n) => Ipv4Addr::new(198, 19, n - 1, host).into(),
        (Family::Ipv6, n) => Ipv6Addr::new(0x2001, 2, 0, n.into(), 0, 0, 0, host.into()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_benchmarking_blocks() {
        let v4 = Addresses::of(Topology::Routed, Family::Ipv4);
        let words =
            [v4.initiator, v4.gateway_inside, v4.gateway_outside, v4.responder].map(|a| a.to_string());
        assert_eq!(words, ["198.18.0.2", "198.18.0.1", "198.19.0.1", "198.19.0.2"]);
        assert_eq!(v4.spare_outside.unwrap().to_string(), "198.19.1.1");
        let v6 = Addresses::of(Topology::Bridged, Family::Ipv6);
        let words =
            [v6.initiator, v6.gateway_inside, v6.gateway_outside, v6.responder].map(|a| a.to_string());
        assert_eq!(words, ["2001:2::2", "2001:2::1", "2001:2:0:1::1", "2001:2:0:1::2"]);
        assert_eq!(v6.spare_outside.unwrap().to_string(), "2001:2:0:2::1");
        assert_eq!(Networks::of(Family::Ipv6).outside.0.to_string(), "2001:2:0:1::");
        let wan = [Family::Ipv4, Family::Ipv6].map(|family| wan(family).to_string());
        assert_eq!(wan, ["198.19.254.1", "2001:2:0:ff::1"]);
    }
}
