//! Translation without connection tracking, by nft.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::extra_rules::{ExtraRules, Filter};
use crate::nft::{self, Table};
use crate::{Error, Expectation, Family, Journal, Place, Role, Topology, Variant, command, routed};

/// The chain with the rule that translates on the way out.
const CHAIN: &str = "srcnat";

/// Two rules of nft rewrite the initiator's address to a spare outside address and back, and neither keeps state: one
/// address for one address, all ports alike. The packet inside an ICMP error is not rewritten, so path MTU discovery
/// through it does not work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NftStateless {
    /// Extra rules, prefixes and routes on the gateway: `{ rules = 1000, prefixes = 100000, routes = 10000 }`.
    pub extra: ExtraRules,
}

impl NftStateless {
    fn table(place: &Place, spare: IpAddr) -> Table {
        let Place { inside_interface: inside, outside_interface: outside, initiator, responder, .. } = place;
        let ip = nft::family(place);
        // Only what goes on to the responder: the initiator's connections to the gateway itself stay tracked.
        let flow = format!("{ip} saddr {initiator} {ip} daddr {responder}");
        Table::new(place)
            .base(
                "untracked",
                "filter hook prerouting priority raw",
                vec![
                    format!("iifname \"{inside}\" {flow} notrack"),
                    // Before the routing decision, so that the gateway forwards it and never takes it for its own.
                    format!(
                        "iifname \"{outside}\" {ip} daddr {spare} counter notrack {ip} daddr set {initiator}"
                    ),
                ],
            )
            .base(
                CHAIN,
                "filter hook postrouting priority srcnat",
                // After the routing decision: a source of the outside coming in on the inside is what rp_filter drops.
                vec![format!("oifname \"{outside}\" {flow} counter {ip} saddr set {spare}")],
            )
    }
}

/// The outside address that stands for the initiator, for a variant of that kind.
pub(crate) fn spare(kind: &str, place: &Place) -> Result<IpAddr, Error> {
    let missing = "needs a spare outside address that is routed to the gateway (spare_outside)";
    place.spare_outside.ok_or_else(|| Error::Unsupported(format!("{kind} {missing}")))
}

impl Variant for NftStateless {
    fn kind(&self) -> &'static str {
        "nft-stateless"
    }
    fn describe(&self) -> String {
        self.extra.describe_beside("nft, address to address without connection tracking")
    }
    fn validate(&self) -> Result<(), String> {
        self.extra.validate(Filter::Nft)
    }
    fn topology(&self) -> Topology {
        Topology::Routed
    }
    fn programs(&self, role: Role) -> Vec<String> {
        match role {
            Role::Initiator => Vec::new(),
            Role::Gateway => self.extra.programs_beside(vec![nft::PROGRAM.to_owned()], Filter::Nft),
            Role::Responder => vec!["ip".into()],
        }
    }
    fn apply(&self, role: Role, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        let spare = spare(self.kind(), place)?;
        match role {
            Role::Initiator => Ok(()),
            Role::Gateway => {
                NftStateless::table(place, spare).apply(journal)?;
                self.extra.apply(Filter::Nft, place, journal)?;
                routed::forward(place, journal)
            }
            Role::Responder => route_back(place, spare, journal),
        }
    }
    fn verify(&self, role: Role, place: &Place) -> Result<(), Error> {
        if role == Role::Gateway { self.extra.verify(Filter::Nft, place) } else { Ok(()) }
    }
    fn expectation(&self, place: &Place) -> Expectation {
        // Without a spare address `apply` has failed before anybody looks.
        Expectation { target: place.responder, seen_source: place.spare_outside, hops: Some(1), ports: None }
    }
    fn counter(&self, place: &Place) -> Result<Option<u64>, Error> {
        nft::counter(place, CHAIN).map(Some)
    }
}

/// Routes packets for the spare address from the responder to the gateway. The gateway does not have that address, so it would
/// not answer requests for it on the link.
fn route_back(place: &Place, spare: IpAddr, journal: &mut Journal) -> Result<(), Error> {
    let (version, length) = match place.family {
        Family::Ipv4 => ("-4", "32"),
        Family::Ipv6 => ("-6", "128"),
    };
    let gateway = place.gateway_outside.to_string();
    let spare = spare.to_string();
    let words = ["-o", version, "route", "get", &spare];
    // `ip route get` fails where there is no route at all, which is one more reason to add one.
    let known = command::run("ip", &words).unwrap_or_default();
    if known.contains(&format!(" via {gateway} ")) {
        return Ok(());
    }
    journal.route(place.family, &[&format!("{spare}/{length}"), "via", &gateway])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::tests::{place_v4, place_v6};

    #[test]
    fn the_table() {
        let place = place_v4();
        assert_eq!(
            NftStateless::table(&place, place.spare_outside.unwrap()).script(),
            "create table ip weir_t1\n\
             table ip weir_t1 {\n\
             \tchain untracked {\n\
             \t\ttype filter hook prerouting priority raw; policy accept;\n\
             \t\tiifname \"in0\" ip saddr 198.18.0.2 ip daddr 198.18.1.2 notrack\n\
             \t\tiifname \"out0\" ip daddr 198.18.2.1 counter notrack ip daddr set 198.18.0.2\n\
             \t}\n\
             \tchain srcnat {\n\
             \t\ttype filter hook postrouting priority srcnat; policy accept;\n\
             \t\toifname \"out0\" ip saddr 198.18.0.2 ip daddr 198.18.1.2 counter ip saddr set 198.18.2.1\n\
             \t}\n\
             }\n"
        );
        let place = place_v6();
        let script = NftStateless::table(&place, place.spare_outside.unwrap()).script();
        assert!(
            script.contains("iifname \"out0\" ip6 daddr 2001:2:2::1 counter notrack ip6 daddr set 2001:2::2")
        );
    }

    #[test]
    fn without_a_spare_address_it_says_so() {
        let place = Place { spare_outside: None, ..place_v4() };
        let error = NftStateless::default().apply(Role::Gateway, &place, &mut Journal::new()).unwrap_err();
        assert!(error.to_string().contains("spare_outside"));
    }
}
