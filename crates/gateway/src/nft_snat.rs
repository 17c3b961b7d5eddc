//! Translation to a fixed address, by nft.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use std::net::IpAddr;

use crate::nft::{self, Source, Table};
use crate::options::{self, Allocation, MssClamp, PortRange, Timeouts};
use crate::{Error, Expectation, Hop, Journal, Place, Role, Topology, routed};

/// The chain with the rules that translate.
const CHAIN: &str = "srcnat";

/// One rule of nft rewrites the source of what the initiator sends out to a fixed address.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NftSnat {
    /// The address; by default the gateway's on the outside. Another one must be routed to the gateway.
    pub to: Option<IpAddr>,
    /// Choose source ports at random, offset by a hash of the connection.
    pub random: bool,
    /// Choose source ports at random for each connection anew.
    pub fully_random: bool,
    /// Give one initiator the same outside address for all its connections.
    pub persistent: bool,
    /// Source ports that may be used for TCP and UDP, e.g. `"1024-65535"`; by default the kernel keeps the initiator's if it
    /// can.
    pub ports: Option<PortRange>,
    /// Lower the maximum segment size in SYN packets: `true` for the path MTU, or a number of bytes.
    pub mss_clamp: MssClamp,
    /// Timeouts of connection tracking, e.g. `{ udp = "120s" }`.
    pub conntrack_timeouts: Timeouts,
}

impl NftSnat {
    fn allocation(&self) -> Allocation {
        Allocation {
            random: self.random,
            fully_random: self.fully_random,
            persistent: self.persistent,
            ports: self.ports,
        }
    }
}

impl NftSnat {
    fn address(&self, place: &Place) -> IpAddr {
        self.to.unwrap_or(place.gateway_outside)
    }

    fn table(&self, place: &Place) -> Result<Table, Error> {
        let to = self.address(place);
        if to.is_ipv4() != place.initiator.is_ipv4() {
            return Err(Error::Unsupported(format!(
                "nft-snat: to = \"{to}\" is of another IP version than the initiator's address {}",
                place.initiator
            )));
        }
        let rules = nft::source_rules(&nft::outgoing(place), Source::Address(to), &self.allocation());
        Ok(Table::new(place)
            .base(CHAIN, "nat hook postrouting priority srcnat", rules)
            .mss(self.mss_clamp, place))
    }
}

impl Hop for NftSnat {
    fn kind(&self) -> &'static str {
        "nft-snat"
    }
    fn describe(&self) -> String {
        let to = self.to.map_or_else(|| "the outside address".to_owned(), |to| to.to_string());
        options::describe(
            &format!("nft snat to {to}"),
            &self.allocation(),
            self.mss_clamp,
            &self.conntrack_timeouts,
        )
    }
    fn validate(&self) -> Result<(), String> {
        self.allocation().validate()?;
        self.mss_clamp.validate()?;
        self.conntrack_timeouts.validate()
    }
    fn topology(&self) -> Topology {
        Topology::Routed
    }
    fn programs(&self, role: Role) -> Vec<String> {
        if role == Role::Gateway { vec![nft::PROGRAM.into()] } else { Vec::new() }
    }
    fn apply(&self, role: Role, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        if role != Role::Gateway {
            return Ok(());
        }
        self.table(place)?.apply(journal)?;
        self.conntrack_timeouts.apply(journal)?;
        routed::forward(place, journal)
    }
    fn expectation(&self, place: &Place) -> Expectation {
        Expectation { target: place.responder, seen_source: Some(self.address(place)), hops: Some(1) }
    }
    fn counter(&self, place: &Place) -> Result<Option<u64>, Error> {
        nft::counter(place, CHAIN).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::tests::{place_v4, place_v6};

    fn rules(variant: &str, place: &Place) -> Vec<String> {
        let variant: NftSnat = serde_json::from_str(variant).unwrap();
        let script = variant.table(place).unwrap().script();
        script.lines().filter(|l| l.contains("counter")).map(|l| l.trim().to_owned()).collect()
    }

    #[test]
    fn to_the_outside_address_by_default() {
        let expected = ["oifname \"out0\" ip saddr 198.18.0.2 counter snat to 198.18.1.1"];
        assert_eq!(rules("{}", &place_v4()), expected);
    }

    #[test]
    fn to_a_given_address_and_ports() {
        assert_eq!(
            rules(r#"{"to": "2001:2::99", "ports": "2000-3000", "random": true}"#, &place_v6()),
            [
                "oifname \"out0\" ip6 saddr 2001:2::2 meta l4proto { tcp, udp } counter snat to [2001:2::99]:2000-3000 random",
                "oifname \"out0\" ip6 saddr 2001:2::2 counter snat to 2001:2::99 random",
            ]
        );
    }

    #[test]
    fn an_address_of_the_other_family_is_refused() {
        let variant: NftSnat = serde_json::from_str(r#"{"to": "2001:2::99"}"#).unwrap();
        assert!(variant.table(&place_v4()).is_err());
    }
}
