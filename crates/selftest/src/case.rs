//! One thing to try.

use weir_doctor::recipe::{LabHost, Recipe};

/// The subject of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// One cause, which must be the first finding.
    Cause,
    /// Two causes at once, which must both be among the first three.
    Pair,
    /// Nothing wrong, where nothing of severity warning may be found.
    Healthy,
}

/// One thing to try.
#[derive(Debug, Clone)]
pub struct Case {
    /// `cause/recipe`, `cause/recipe + cause/recipe`, or the name of a load.
    pub name: String,
    /// Its subject.
    pub kind: Kind,
    /// Causes that must be found, each with the host where.
    pub expected: Vec<(&'static str, LabHost)>,
    /// Done and sent together.
    pub recipes: Vec<Recipe>,
}

impl Case {
    /// The settings of the whole machine that it changes, with their values: `net.netfilter.nf_conntrack_max`. Every namespace has
    /// them, so no other case may run meanwhile.
    pub fn machine_settings(&self) -> impl Iterator<Item = &(&'static str, String)> {
        self.recipes.iter().flat_map(|recipe| &recipe.machine)
    }
}
