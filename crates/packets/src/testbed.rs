//! The testbed that a procedure works with.

use std::time::Duration;

use crate::transfer::{Transfer, TransferOutcome};

/// The reason why a procedure cannot continue. The gateway's behaviour, however bad, is a result and not an error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TestbedError(pub Box<dyn std::error::Error + Send + Sync>);

/// Tester and gateway, as a procedure sees them.
pub trait Testbed {
    /// Empties the gateway's table of connections. Returns how long that took, and the entries before and after (`None` without
    /// connection tracking).
    fn flush(&mut self) -> Result<(Duration, Option<(u64, u64)>), TestbedError>;

    /// Entries in the gateway's table now; `None` without connection tracking.
    fn tracked(&mut self) -> Result<Option<u64>, TestbedError>;

    /// Makes one transfer and waits for its stragglers.
    fn transfer(&mut self, transfer: &Transfer) -> Result<TransferOutcome, TestbedError>;
}
