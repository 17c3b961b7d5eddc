//! Translation to a fixed address, by nft.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use std::net::IpAddr;

use crate::extra_rules::ExtraRules;
use crate::nft::{Source, Table};
use crate::options::{FastpathOption, MssClamp, PortRange, Timeouts};
use crate::source_nat::{Options, SourceNat, options_of};
use crate::{Error, Journal, Place};

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
    /// Carry established connections by weir's BPF flow table beside these rules: `true`, `"xdp"` for in drivers, too, or a
    /// table `{ hook = "xdp", packets = 1 }`.
    pub fastpath: FastpathOption,
    /// Extra rules, prefixes and routes on the gateway: `{ rules = 1000, prefixes = 100000, routes = 10000 }`.
    pub extra: ExtraRules,
}

impl NftSnat {
    fn table(&self, place: &Place) -> Result<Table, Error> {
        let to = self.translated(place);
        if to.is_ipv4() != place.initiator.is_ipv4() {
            return Err(Error::Unsupported(format!(
                "nft-snat: to = \"{to}\" is of another IP version than the initiator's address {}",
                place.initiator
            )));
        }
        let options = self.options();
        Ok(Table::source_nat(place, Source::Address(to), &options.allocation, options.mss_clamp))
    }
}

impl SourceNat for NftSnat {
    const KIND: &'static str = "nft-snat";

    fn what(&self) -> String {
        let to = self.to.map_or_else(|| "the outside address".to_owned(), |to| to.to_string());
        format!("nft snat to {to}")
    }
    fn options(&self) -> Options<'_> {
        options_of!(self)
    }
    fn translated(&self, place: &Place) -> IpAddr {
        self.to.unwrap_or(place.gateway_outside)
    }
    fn set_rules(&self, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        self.table(place)?.apply(journal)
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
