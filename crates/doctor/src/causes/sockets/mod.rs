//! Sockets and the programs behind them, and what is not on this host.

use super::Cause;

/// Those of this group.
pub(super) static CAUSES: &[&Cause] = &[];
