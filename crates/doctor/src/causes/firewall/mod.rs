//! Rules.

use super::Cause;

/// Those of this group.
pub(super) static CAUSES: &[&Cause] = &[];
