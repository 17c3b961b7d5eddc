//! What a procedure works with.

use std::time::Duration;

use crate::transfer::{Outcome, Transfer};

/// Why a procedure cannot go on. What the gateway does, however bad, is a result and no error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RigError(pub Box<dyn std::error::Error + Send + Sync>);

/// Tester and gateway, as a procedure sees them.
pub trait Rig {
    /// Empties the gateway's table of connections. Returns how long that took, and the entries before and after (`None` without
    /// connection tracking).
    fn flush(&mut self) -> Result<(Duration, Option<(u64, u64)>), RigError>;

    /// Entries in the gateway's table now; `None` without connection tracking.
    fn tracked(&mut self) -> Result<Option<u64>, RigError>;

    /// Makes one transfer and waits for its stragglers.
    fn transfer(&mut self, transfer: &Transfer) -> Result<Outcome, RigError>;
}
