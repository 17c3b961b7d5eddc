//! Translation without connection tracking, by BPF.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_fastpath::{PrefixPair, Stateless};

use crate::held::{Held, must_be_attached};
use crate::journal::Change;
use crate::nft_stateless::{NftStateless, spare};
use crate::{Error, Expectation, Journal, Place, Role, Topology, Variant, routed};

/// As `nft-stateless`, with weir's BPF programs before its rules: they translate one address to one address, and ICMP errors with the
/// packet that they quote. They leave to the rules what is not plain (IP options, packets at their last hop or too long).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct BpfStateless {}

/// Translations in effect, by the tag of their place: they live as long as this process holds them.
pub(crate) static HELD: Held<Stateless> = Held::new();

fn refused(error: weir_fastpath::Error) -> Error {
    match error {
        weir_fastpath::Error::System(e) => Error::System(e),
        other => Error::Unsupported(format!("bpf-stateless: {other}")),
    }
}

fn rules() -> NftStateless {
    NftStateless::default()
}

impl Variant for BpfStateless {
    fn kind(&self) -> &'static str {
        "bpf-stateless"
    }

    fn describe(&self) -> String {
        format!("address to address by weir's BPF programs; below them: {}", rules().describe())
    }

    fn topology(&self) -> Topology {
        rules().topology()
    }

    fn programs(&self, role: Role) -> Vec<String> {
        rules().programs(role)
    }

    fn apply(&self, role: Role, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        let spare = spare(self.kind(), place)?;
        rules().apply(role, place, journal)?;
        if role != Role::Gateway {
            return Ok(());
        }
        let interfaces = [&place.inside_interface, &place.outside_interface];
        routed::forward_by_bpf(place, &interfaces, journal)?;
        let length = if spare.is_ipv4() { 32 } else { 128 };
        let pair = PrefixPair::new(place.initiator, spare, length).map_err(refused)?;
        let mut stateless = Stateless::load(pair, interfaces[0], interfaces[1]).map_err(refused)?;
        // Only this function knows of the programs before they are in the journal; dropping them removes them.
        journal.record(Change::Stateless { tag: place.tag.clone() })?;
        stateless.attach().map_err(refused)?;
        HELD.add(place, stateless);
        Ok(())
    }

    fn verify(&self, role: Role, place: &Place) -> Result<(), Error> {
        if role != Role::Gateway {
            return Ok(());
        }
        rules().verify(role, place)?;
        let attached = HELD.with(&place.tag, Stateless::is_attached).transpose().map_err(refused)?;
        must_be_attached(self.kind(), attached)
    }

    fn expectation(&self, place: &Place) -> Expectation {
        rules().expectation(place)
    }

    /// Packets that the programs translated: the rules below count none of them.
    fn counter(&self, place: &Place) -> Result<Option<u64>, Error> {
        let status = HELD.with(&place.tag, Stateless::status).transpose().map_err(refused)?;
        Ok(status.map(|status| status.translated()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::tests::place_v4;

    #[test]
    fn without_a_spare_address_it_says_so() {
        let place = Place { spare_outside: None, ..place_v4() };
        let error = BpfStateless::default().apply(Role::Gateway, &place, &mut Journal::new()).unwrap_err();
        assert!(error.to_string().starts_with("bpf-stateless needs a spare"), "{error}");
    }
}
