//! Address lists as their publishers have them: downloaded, checked, and kept for when there is no network.
//!
//! [`update`](fn@update) asks the five regional registries (or a mirror, or whoever publishes a list) for what is new, and puts into the
//! [`Cache`] only what is whole, what is of the registry that was meant, and what is not worse than the file that is there:
//! whoever filters by such a list is shut out by one that lost half of it. Where anything is wrong, the old file stays as it was.
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
pub use update::{Cause, Held, Outcome, Report, Rules, Source, offline, update};
