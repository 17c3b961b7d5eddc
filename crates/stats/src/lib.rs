//! Pure statistics: no input, no output, no clock.
//!
//! The unit of replication is the trial; a comparison is made within rounds (randomised complete blocks).
//!
//! | module | what it answers |
//! |---|---|
//! | [`histogram`] | how are durations distributed |
//! | [`delays`] | how are the delays of one trial distributed, operations without an end included |
//! | [`order`] | median and quantiles of the trials' values, interval of their median |
//! | [`signed_rank`] | is there an effect within rounds, how large, is it within a margin |
//! | [`quantiles`] | quantiles of delays over several trials |
//! | [`resample`] | bootstrap over trials |
//! | [`compare`] | a variant against the baseline, noise floor, Holm's correction |
//! | [`two_sample`] | the same for two runs made at different times |
//! | [`mod@verdict`] | what may be said about it in words |
//! | [`fisher`] | is one share greater than another |
//! | [`rates`] | did events become more frequent |
//! | [`loss`] | interval of a loss ratio |
//! | [`stop`] | are there enough rounds |
//! | [`repeats`] | does a path jump from one trial to the next, more than the noise inside them explains |
//! | [`mlrsearch`] | which load does a system carry, from noisy trials |
//! | [`search`] | the same by plain bisection |
#![forbid(unsafe_code)]

pub mod compare;
pub mod delays;
pub mod fisher;
pub mod histogram;
pub mod loss;
pub mod mlrsearch;
pub mod order;
pub mod quantiles;
pub mod rates;
pub mod repeats;
pub mod resample;
pub mod search;
pub mod signed_rank;
mod special;
pub mod stop;
pub mod two_sample;
pub mod unbounded;
pub mod verdict;

pub use compare::{Comparison, Equivalence};
pub use delays::{Censored, Delays};
pub use histogram::Histogram;
pub use verdict::{Margins, Verdict, verdict};
