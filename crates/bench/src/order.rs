//! The request for a run.

use std::path::PathBuf;

use crate::scenario::Scenario;

/// The user's request: the scenario, and the settings of this run.
pub struct Order<'a> {
    /// The scenario to run.
    pub scenario: &'a Scenario,
    /// Seed of every random draw.
    pub seed: u64,
    /// Identifier of the run.
    pub id: String,
    /// Folder to write to.
    pub folder: PathBuf,
    /// True once the user asked to stop.
    pub interrupted: &'a dyn Fn() -> bool,
}
