//! Why this host loses or delays packets.
//!
//! [`collect`] reads what the kernel says, twice, at the two ends of a window, and makes [`evidence`] of it: plain values that
//! can be stored. [`causes`] holds one file for each cause that is known; each looks at the evidence and returns
//! [`finding`]s. [`diagnosis`] sets them against each other and against the whole of what was lost. [`recipe`] is how each
//! cause is made on purpose, for the self-test. [`since`] compares a diagnosis with an earlier one. [`table`] is the
//! connection-tracking table alone.
//!
//! Nothing here changes anything: no rule, no setting, no kernel module. [`tune`] plans changes, which `weir-guard` makes.

pub mod causes;
pub mod collect;
mod command;
pub mod comparison;
pub mod diagnosis;
pub mod evidence;
pub mod finding;
pub mod recipe;
mod render;
pub mod since;

pub use causes::nat_limits;
pub use render::{explain, explain_unexplained, list, render};
