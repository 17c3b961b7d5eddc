//! Interfaces and what hangs on them.

use weir_sys::{Error, ProcRoot, Result};

use crate::evidence::Interface;

/// Those of the calling thread's namespace.
pub(super) fn read(_root: &ProcRoot) -> Result<Vec<Interface>> {
    Err(Error::other("read interfaces", "not built yet"))
}

/// Makes a reading the end of a window.
pub(super) fn since(_now: &mut [Interface], _earlier: &[Interface]) {}
