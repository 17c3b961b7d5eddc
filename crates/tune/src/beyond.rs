//! The things that a plan leaves as they are: requirements that no setting reaches, and rules of others that weir does not edit.

use schemars::JsonSchema;
use serde::Serialize;

use super::profile::Profile;

/// Rows of `weir nat` that a profile does not reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Beyond {
    /// Names of the rows (`udp-hairpin`).
    pub rows: Vec<String>,
    /// The kernel's way.
    pub why: String,
    /// Another way to meet them.
    pub instead: String,
}

/// A change of a rule that its owner must make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Advice {
    /// The rule, as nft prints it; text from outside.
    pub rule: String,
    /// Why it should change, with the rows of `weir nat`.
    pub why: String,
    /// The price of the change.
    pub price: String,
    /// The exact command; `None` where another program writes the rule.
    pub command: Option<String>,
}

/// Those of the profiles: of `rfc` alone.
pub(crate) fn of(profiles: &[Profile]) -> Vec<Beyond> {
    if !profiles.contains(&Profile::Rfc) {
        return Vec::new();
    }
    let limit = |(rows, why, instead): (&[&str], &str, &str)| Beyond {
        rows: rows.iter().map(|row| (*row).to_owned()).collect(),
        why: why.to_owned(),
        instead: instead.to_owned(),
    };
    weir_doctor::nat_limits().map(limit).collect()
}
