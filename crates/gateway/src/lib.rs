//! How each variant of the hop is applied, proved and removed.
//!
//! A variant works on a [`Place`] (interfaces and addresses), in a lab or on real machines. The agent of each host calls
//! [`apply`] with its role. It writes every change to a [`Journal`] first, which undoes them in reverse order. One file per
//! variant (the two of iptables share one); a new one is registered in [`VariantKind`] and its `deref`.

pub mod allow_list;
pub mod bpf_publish;
pub mod bpf_stateless;
mod command;
pub mod custom;
pub mod direct;
mod docker_engine;
pub mod docker_publish;
pub mod error;
pub mod extra_rules;
mod fastpath;
mod held;
mod iptables;
pub mod iptables_masquerade;
pub mod journal;
mod nft;
pub mod nft_masquerade;
pub mod nft_snat;
pub mod nft_stateless;
pub mod options;
pub mod path;
pub mod place;
pub mod routed;
mod snapshot;
mod source_nat;
pub mod tuned;

use std::net::IpAddr;
use std::ops::Deref;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_record::VariantFact;

pub use error::Error;
pub use fastpath::Carried;
pub use journal::Journal;
pub use place::{Expectation, Family, Place, Role, Topology};

/// One way to build the hop: one `[[variant]]` of a scenario, told apart by `kind`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum VariantKind {
    /// No hop: initiator and responder on one link.
    Direct(direct::Direct),
    /// A hop without translation.
    Routed(routed::Routed),
    /// Translation to the address of the outside interface, by nft.
    NftMasquerade(nft_masquerade::NftMasquerade),
    /// Translation to a fixed address, by nft.
    NftSnat(nft_snat::NftSnat),
    /// Translation without connection tracking, by nft.
    NftStateless(nft_stateless::NftStateless),
    /// The same by BPF, with ICMP errors translated.
    BpfStateless(bpf_stateless::BpfStateless),
    /// Translation to the address of the outside interface, by iptables on nf_tables.
    IptablesMasquerade(iptables_masquerade::IptablesMasquerade),
    /// Translation to the address of the outside interface, by iptables on x_tables.
    IptablesLegacyMasquerade(iptables_masquerade::IptablesLegacyMasquerade),
    /// Only listed addresses are forwarded.
    AllowList(allow_list::AllowList),
    /// A port of a container, published on its host.
    DockerPublish(docker_publish::DockerPublish),
    /// The same by a fixed mapping in BPF, without connection tracking.
    BpfPublish(bpf_publish::BpfPublish),
    /// The user's own commands.
    Custom(custom::Custom),
    /// Two hosts and whatever lies between them.
    Path(path::Path),
}

/// A kind with its options is used as the variant that it names.
impl Deref for VariantKind {
    type Target = dyn Variant;

    fn deref(&self) -> &(dyn Variant + 'static) {
        match self {
            VariantKind::Direct(v) => v,
            VariantKind::Routed(v) => v,
            VariantKind::NftMasquerade(v) => v,
            VariantKind::NftSnat(v) => v,
            VariantKind::NftStateless(v) => v,
            VariantKind::BpfStateless(v) => v,
            VariantKind::IptablesMasquerade(v) => v,
            VariantKind::IptablesLegacyMasquerade(v) => v,
            VariantKind::AllowList(v) => v,
            VariantKind::DockerPublish(v) => v,
            VariantKind::BpfPublish(v) => v,
            VariantKind::Custom(v) => v,
            VariantKind::Path(v) => v,
        }
    }
}

impl VariantKind {
    /// Every kind, as written in scenarios.
    pub fn known_kinds() -> &'static [&'static str] {
        &[
            "direct",
            "routed",
            "nft-masquerade",
            "nft-snat",
            "nft-stateless",
            "bpf-stateless",
            "iptables-masquerade",
            "iptables-legacy-masquerade",
            "allow-list",
            "docker-publish",
            "bpf-publish",
            "custom",
            "path",
        ]
    }
}

/// Puts a variant into effect on the host of that role, the network namespace of the calling thread. If that fails, it rolls back
/// the changes made until then. [`Journal::undo`] removes the variant, in the same namespace.
pub fn apply(variant: &dyn Variant, role: Role, place: &Place, journal: &mut Journal) -> Result<(), Error> {
    variant.validate().map_err(|message| Error::Unsupported(format!("{}: {message}", variant.kind())))?;
    place.check()?;
    variant.programs(role).iter().try_for_each(|program| command::require(program).map(drop))?;
    let Err(cause) = variant.apply(role, place, journal).and_then(|()| journal.settle()) else {
        return Ok(());
    };
    let left = journal.undo();
    if left.is_empty() {
        return Err(cause);
    }
    let left = left.iter().map(Error::to_string).collect::<Vec<_>>().join("; ");
    Err(Error::Stuck { cause: Box::new(cause), left })
}

/// The effect of a variant on the hosts.
pub trait Variant {
    /// The kind as written in scenarios, e.g. `nft-masquerade`.
    fn kind(&self) -> &'static str;

    /// Describes the variant and its options in one line for people.
    fn describe(&self) -> String;

    /// Options out of range or contradicting each other: one message that names the key and what is valid.
    fn validate(&self) -> Result<(), String> {
        Ok(())
    }

    /// The hosts and links it needs.
    fn topology(&self) -> Topology;

    /// Programs that must be installed on that role's host, e.g. `nft`.
    fn programs(&self, role: Role) -> Vec<String> {
        let _ = role;
        Vec::new()
    }

    /// Put it into effect on the host of that role. Every change goes through the journal. Callers use [`apply`], which
    /// checks first and takes a half-made change back.
    fn apply(&self, role: Role, place: &Place, journal: &mut Journal) -> Result<(), Error>;

    /// Proves as much as that host can prove alone, without traffic.
    fn verify(&self, role: Role, place: &Place) -> Result<(), Error> {
        let _ = (role, place);
        Ok(())
    }

    /// How long [`apply`] may take on the host of that role, its rollback included, and how long [`Journal::undo`] may take.
    /// Starting a real container engine takes a while.
    fn patience(&self, role: Role) -> Duration {
        let _ = role;
        Duration::from_secs(90)
    }

    /// Returns the observations that the far end must make when the variant is in effect.
    fn expectation(&self, place: &Place) -> Expectation;

    /// The host whose rules count: the gateway, unless there is none.
    fn counts_at(&self) -> Role {
        Role::Gateway
    }

    /// A counter on that host ([`Variant::counts_at`]) that moves when its rule handles a new connection (the rule's own counter),
    /// if it has one. Returns the current value.
    fn counter(&self, place: &Place) -> Result<Option<u64>, Error> {
        let _ = place;
        Ok(None)
    }

    /// True if weir's flow table carries established connections beside the variant's rules, on every flow of both interfaces.
    fn has_fastpath(&self) -> bool {
        false
    }

    /// Returns the counts of the fast path so far, on the host that counts; `None` for variants without one.
    fn carried(&self, place: &Place) -> Result<Option<Carried>, Error> {
        let _ = place;
        Ok(None)
    }

    /// Returns a source address on the initiator's side from which nothing may arrive when the variant is in effect; `None` if it
    /// refuses no source.
    fn denied_source(&self, place: &Place) -> Option<IpAddr> {
        let _ = place;
        None
    }

    /// Returns the packets that it has refused so far, on the host that counts; `None` if it refuses no source.
    fn refused(&self, place: &Place) -> Result<Option<u64>, Error> {
        let _ = place;
        Ok(None)
    }

    /// Measures the costs of the variant on the host that counts: memory, time to load. It changes nothing on the host.
    fn facts(&self, place: &Place) -> Result<Vec<VariantFact>, Error> {
        let _ = place;
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_kind_can_be_written_in_a_scenario() {
        for kind in VariantKind::known_kinds() {
            let variant: VariantKind = serde_json::from_str(&format!("{{\"kind\": \"{kind}\"}}")).unwrap();
            assert_eq!(variant.kind(), *kind);
            assert!(!variant.describe().is_empty());
        }
        let error = serde_json::from_str::<VariantKind>("{\"kind\": \"\"}").unwrap_err().to_string();
        // serde lists the kinds that it knows: the list for messages is complete.
        assert_eq!(error.matches('`').count() / 2 - 1, VariantKind::known_kinds().len(), "{error}");
    }

    #[test]
    fn the_schema_names_every_kind() {
        let schema = serde_json::to_string(&schemars::schema_for!(VariantKind)).unwrap();
        for kind in VariantKind::known_kinds() {
            assert!(schema.contains(&format!("\"const\":\"{kind}\"")), "{kind}");
        }
    }

    #[test]
    fn the_schema_allows_every_kind_beside_its_options() {
        let schema = schemars::schema_for!(VariantKind);
        for variant in schema.as_value()["oneOf"].as_array().unwrap() {
            // Options in a schema of their own that allows no others would forbid `kind`.
            assert!(variant["properties"]["kind"]["const"].is_string(), "{variant}");
            assert_eq!(
                (&variant["additionalProperties"], variant.get("$ref")),
                (&false.into(), None),
                "{variant}"
            );
        }
    }

    #[test]
    fn unknown_options_are_refused() {
        for kind in VariantKind::known_kinds() {
            let text = format!("{{\"kind\": \"{kind}\", \"no-such-option\": 1}}");
            let error = serde_json::from_str::<VariantKind>(&text).unwrap_err().to_string();
            assert!(error.contains("no-such-option"), "{kind}: {error}");
        }
    }
}
