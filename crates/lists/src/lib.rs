//! Address lists as their publishers have them: downloaded, checked, and kept for when there is no network.
//!
//! [`update`](fn@update) asks the five regional registries (or a mirror, or another publisher of a list) for new lists. It puts a
//! list into the [`Cache`] only if it is complete, comes from the intended registry, and is not worse than the present file. A
//! list that lost half of its entries would lock out users who filter by it. If anything is wrong, the old file stays as it was.
#![forbid(unsafe_code)]

mod cache;
mod checksum;
mod client;
mod error;
mod registry;
mod survey;
mod update;

pub use cache::{About, Cache, Checksum, Stored};
pub use client::{Client, Limits, check_url};
pub use error::Error;
pub use registry::Registry;
pub use survey::{SHRINKAGE, Size, Survey};
pub use update::{Cause, Held, Report, Rules, Source, UpdateOutcome, offline, update};
