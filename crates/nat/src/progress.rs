//! A run in parts: what an earlier part has seen, and how a run lets others keep it.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Observations;

/// Observations of an earlier part of a run. Mappings end with the process that opened them, so a time that was not decided is
/// waited for anew.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Earlier {
    /// Names of the experiments that are complete.
    pub complete: BTreeSet<String>,
    /// All that was seen: also the idle times that an experiment had decided when it was broken off.
    pub seen: Observations,
}

impl Earlier {
    /// Whether nothing is left to do.
    pub fn is_whole(&self) -> bool {
        crate::experiments::names().all(|name| self.complete.contains(name))
    }
}

/// Follows a run.
pub trait Progress {
    /// An experiment begins. False ends the run early.
    fn begins(&mut self, experiment: &'static str) -> bool;

    /// Whether the parts of an experiment that takes long are to be kept now; `now` is the clock of the ends.
    fn wants_part(&mut self, now: Duration) -> bool {
        let _ = now;
        false
    }

    /// Gets all that was seen so far, after each experiment, whose name is then given, and within one if it wants that.
    ///
    /// # Errors
    /// Those that are to end the run.
    fn seen(&mut self, seen: &Observations, complete: Option<&'static str>) -> io::Result<()> {
        let _ = (seen, complete);
        Ok(())
    }
}

/// Follows the names of experiments only.
impl<F: FnMut(&'static str) -> bool> Progress for F {
    fn begins(&mut self, experiment: &'static str) -> bool {
        self(experiment)
    }
}
