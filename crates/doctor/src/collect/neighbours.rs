//! Neighbours.

use weir_sys::{Error, ProcRoot, Result};

use crate::evidence::Neighbours;

/// Those of the calling thread's namespace.
pub(super) fn read(_root: &ProcRoot) -> Result<Neighbours> {
    Err(Error::other("read neighbours", "not built yet"))
}

/// Makes a reading the end of a window: who moved.
pub(super) fn since(_now: &mut Neighbours, _earlier: &Neighbours) {}
