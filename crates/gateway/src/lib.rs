//! How each variant of the hop is applied, proved and removed.
//!
//! A variant works on a [`Place`] (interfaces and addresses), whoever built it: lab or real machines. The agent of each
//! host calls [`Hop::apply`] with its role; everything changed is first written to a [`journal::Journal`], from which it is
//! taken back in reverse order. One file per variant; a new one is registered in [`Variant::hop`].

pub mod direct;
pub mod error;
pub mod journal;
pub mod place;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use error::Error;
pub use journal::Journal;
pub use place::{Expectation, Family, Place, Role, Topology};

/// One way to build the hop: one `[[variant]]` of a scenario, told apart by `kind`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Variant {
    /// No hop: initiator and responder on one link.
    Direct(direct::Direct),
}

impl Variant {
    /// The implementation behind the kind.
    pub fn hop(&self) -> &dyn Hop {
        match self {
            Variant::Direct(v) => v,
        }
    }
}

/// What a variant does to the hosts.
pub trait Hop {
    /// The kind as written in scenarios, e.g. `nft-masquerade`.
    fn kind(&self) -> &'static str;

    /// What it is with its options, in one line for people.
    fn describe(&self) -> String;

    /// Options out of range or contradicting each other: one message that names the key and what is valid.
    fn validate(&self) -> Result<(), String>;

    /// The hosts and links it needs.
    fn topology(&self) -> Topology;

    /// Programs that must be installed on that role's host, e.g. `nft`.
    fn programs(&self, role: Role) -> Vec<String>;

    /// Put it into effect on the host of that role. Every change goes through the journal.
    fn apply(&self, role: Role, place: &Place, journal: &mut Journal) -> Result<(), Error>;

    /// What the far end must see when it is in effect.
    fn expectation(&self, place: &Place) -> Expectation;

    /// A counter on the gateway that moves when its rule handles a new connection (the rule's own counter), if it has one.
    /// Returns the current value.
    fn counter(&self, place: &Place) -> Result<Option<u64>, Error>;
}
