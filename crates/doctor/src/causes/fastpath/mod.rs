//! The fast path of weir, where it is at fault itself.

mod commands;
mod drops;
mod excluded;
#[cfg(test)]
mod fixture;
mod full;
mod gone;
#[cfg(test)]
mod recorded;
mod stale;

use super::Cause;

/// Those of this group.
pub(super) static CAUSES: &[&Cause] =
    &[&gone::CAUSE, &full::CAUSE, &stale::CAUSE, &excluded::CAUSE, &drops::CAUSE];
