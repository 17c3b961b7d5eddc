//! Translation to the address of the outside interface, by nft.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::extra_rules::ExtraRules;
use crate::nft::{Source, Table};
use crate::options::{FastpathOption, MssClamp, PortRange, Timeouts};
use crate::source_nat::{Options, SourceNat, options_of};
use crate::{Error, Journal, Place};

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
    /// Carry established connections by weir's BPF flow table beside these rules: `true`, `"xdp"` for in drivers, too, or a
    /// table `{ hook = "xdp", packets = 1 }`.
    pub fastpath: FastpathOption,
    /// Extra rules, prefixes and routes on the gateway: `{ rules = 1000, prefixes = 100000, routes = 10000 }`.
    pub extra: ExtraRules,
}

impl NftMasquerade {
    fn table(&self, place: &Place) -> Table {
        let options = self.options();
        Table::source_nat(place, Source::Masquerade, &options.allocation, options.mss_clamp)
    }
}

impl SourceNat for NftMasquerade {
    const KIND: &'static str = "nft-masquerade";

    fn what(&self) -> String {
        "nft masquerade".into()
    }
    fn options(&self) -> Options<'_> {
        options_of!(self)
    }
    fn set_rules(&self, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        self.table(place).apply(journal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Variant;
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
    fn a_fast_path_is_a_switch_a_hook_or_a_table() {
        let described = |fastpath: &str| {
            let json = format!(r#"{{"fastpath": {fastpath}}}"#);
            serde_json::from_str::<NftMasquerade>(&json).map(|v| (v.describe(), v.validate().is_ok()))
        };
        for (fastpath, end) in [
            ("false", ""),
            ("true", ", fast path"),
            (r#""tc""#, ", fast path"),
            (r#""xdp""#, ", fast path by XDP"),
            (r#"{"packets": 1}"#, ", fast path after packet 1"),
            (r#"{"hook": "xdp", "packets": 3}"#, ", fast path by XDP after packet 3"),
        ] {
            assert_eq!(described(fastpath).unwrap(), (format!("nft masquerade{end}"), true), "{fastpath}");
        }
        assert!(!described(r#"{"packets": 0}"#).unwrap().1);
        assert!(described(r#""generic""#).is_err() && described(r#"{"packet": 1}"#).is_err());
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
