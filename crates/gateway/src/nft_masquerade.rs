//! Translation to the address of the outside interface, by nft.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::nft::{self, Source, Table};
use crate::options::{self, Allocation, MssClamp, PortRange, Timeouts};
use crate::{Error, Expectation, Hop, Journal, Place, Role, Topology, routed};

/// The chain with the rules that translate.
const CHAIN: &str = "srcnat";

/// One rule of nft masquerades what the initiator sends out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NftMasquerade {
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

impl NftMasquerade {
    fn allocation(&self) -> Allocation {
        Allocation {
            random: self.random,
            fully_random: self.fully_random,
            persistent: self.persistent,
            ports: self.ports,
        }
    }
}

impl NftMasquerade {
    fn table(&self, place: &Place) -> Table {
        let rules = nft::source_rules(&nft::outgoing(place), Source::Masquerade, &self.allocation());
        Table::new(place)
            .base(CHAIN, "nat hook postrouting priority srcnat", rules)
            .mss(self.mss_clamp, place)
    }
}

impl Hop for NftMasquerade {
    fn kind(&self) -> &'static str {
        "nft-masquerade"
    }
    fn describe(&self) -> String {
        options::describe("nft masquerade", &self.allocation(), self.mss_clamp, &self.conntrack_timeouts)
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
        self.table(place).apply(journal)?;
        self.conntrack_timeouts.apply(journal)?;
        routed::forward(place, journal)
    }
    fn expectation(&self, place: &Place) -> Expectation {
        Expectation { target: place.responder, seen_source: Some(place.gateway_outside), hops: Some(1) }
    }
    fn counter(&self, place: &Place) -> Result<Option<u64>, Error> {
        nft::counter(place, CHAIN).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::tests::{place_v4, place_v6};

    #[test]
    fn the_plain_table() {
        assert_eq!(
            NftMasquerade::default().table(&place_v4()).script(),
            "create table ip weir_t1\n\
             table ip weir_t1 {\n\
             \tchain srcnat {\n\
             \t\ttype nat hook postrouting priority srcnat; policy accept;\n\
             \t\toifname \"out0\" ip saddr 198.18.0.2 counter masquerade\n\
             \t}\n\
             }\n"
        );
    }

    #[test]
    fn the_table_with_every_option() {
        let variant: NftMasquerade = serde_json::from_str(
            r#"{"fully-random": true, "persistent": true, "ports": "1024-65535", "mss-clamp": true}"#,
        )
        .unwrap();
        assert_eq!(
            variant.table(&place_v6()).script(),
            "create table ip6 weir_t1\n\
             table ip6 weir_t1 {\n\
             \tchain srcnat {\n\
             \t\ttype nat hook postrouting priority srcnat; policy accept;\n\
             \t\toifname \"out0\" ip6 saddr 2001:2::2 meta l4proto { tcp, udp } counter masquerade to :1024-65535 fully-random,persistent\n\
             \t\toifname \"out0\" ip6 saddr 2001:2::2 counter masquerade fully-random,persistent\n\
             \t}\n\
             \tchain mss {\n\
             \t\ttype filter hook forward priority mangle; policy accept;\n\
             \t\tiifname \"in0\" oifname \"out0\" tcp flags syn / syn,rst tcp option maxseg size set rt mtu\n\
             \t\tiifname \"out0\" oifname \"in0\" tcp flags syn / syn,rst tcp option maxseg size set rt mtu\n\
             \t}\n\
             }\n"
        );
    }

    #[test]
    fn it_says_what_it_is() {
        let variant: NftMasquerade = serde_json::from_str(
            r#"{"random": true, "mss-clamp": 1300, "conntrack-timeouts": {"udp": "120s"}}"#,
        )
        .unwrap();
        assert_eq!(variant.describe(), "nft masquerade, random, MSS clamp 1300, timeouts udp 120s");
    }
}
