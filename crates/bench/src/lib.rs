//! The runner: from a scenario to a run with its conclusions.
//!
//! [`scenario`] says what to do, [`runner`] does it on the hosts, [`analysis`] concludes, [`require`] judges by the
//! user's thresholds, [`summary`] puts it into a few sentences, [`store`] keeps the record.

pub mod analysis;
mod carried;
mod error;
mod filtering;
mod fit;
mod links;
mod order;
mod packets_end;
mod packets_gateway;
mod packets_path;
mod packets_testbed;
mod packets_timing;
mod pods;
pub mod progress;
mod proof;
mod rehearsal;
pub mod require;
pub mod runner;
mod sampling;
pub mod scenario;
mod settings;
mod site;
pub mod store;
pub mod summary;
mod testbed;
mod trial;

use std::time::Duration;

pub use error::Error;
pub use order::Order;
pub use runner::conduct;

/// Limit of a task that takes milliseconds, on a machine under full load.
const SHORT: Duration = Duration::from_secs(10);
