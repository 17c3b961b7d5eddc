//! The conductor: from a scenario to a run with its conclusions.
//!
//! [`scenario`] says what to do, [`conductor`] does it on the hosts, [`analysis`] concludes, [`require`] judges by the
//! user's thresholds, [`store`] keeps the record.

pub mod analysis;
pub mod conductor;
mod error;
mod filtering;
mod links;
mod packets_end;
mod packets_gateway;
mod packets_rig;
mod packets_timing;
pub mod progress;
mod proof;
mod rehearsal;
pub mod require;
mod sampling;
pub mod scenario;
mod settings;
pub mod store;
mod testbed;
mod trial;

use std::time::Duration;

pub use conductor::{Order, conduct};
pub use error::Error;

/// Limit of a task that takes milliseconds, on a machine under full load.
const SHORT: Duration = Duration::from_secs(10);
