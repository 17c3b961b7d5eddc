//! Connection tracking and address translation.

mod full;

use super::Cause;

/// Those of this group.
pub(super) static CAUSES: &[&Cause] = &[&full::CAUSE];
