//! Pure statistics: no input, no output, no clock.
//!
//! The unit of replication is the trial; a comparison is made within rounds (randomised complete blocks).
#![forbid(unsafe_code)]

pub mod compare;
pub mod histogram;
pub mod loss;
pub mod order;
pub mod resample;
pub mod signed_rank;
pub mod stop;
pub mod two_sample;

pub use compare::{Comparison, Margins, Verdict};
pub use histogram::Histogram;
