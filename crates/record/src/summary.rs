//! The run in a few sentences.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A run for readers who decide and do not measure: whole sentences that claim no more than the verdicts do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Failures that no comparison with the baseline shows: those of the baseline itself, variants without any valid trial, a run
    /// that did not reach its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Each variant against the baseline: first what fails, then what is worse, then what is better.
    pub result: String,
    /// Variants and workloads, rounds, and place.
    pub compared: String,
    /// The money, if the scenario prices its variants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub money: Option<String>,
    /// Advice that the verdicts allow.
    pub advice: String,
    /// How sure all this is.
    pub certainty: String,
}

impl Summary {
    /// Its sentences in the order of reading: what fails first.
    pub fn sentences(&self) -> impl Iterator<Item = &str> {
        [
            self.failed.as_ref(),
            Some(&self.result),
            Some(&self.compared),
            self.money.as_ref(),
            Some(&self.advice),
            Some(&self.certainty),
        ]
        .into_iter()
        .flatten()
        .map(String::as_str)
    }
}
