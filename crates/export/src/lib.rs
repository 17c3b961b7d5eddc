//! Metrics for Prometheus.
//!
//! [`page`] writes readings of flows and of the connection-tracking table in the text format 0.0.4; [`Names`] bounds the networks that
//! become labels. [`Server`] answers `GET /metrics` with the latest page, and reads nothing of a client but its request.
#![forbid(unsafe_code)]

mod metrics;
mod request;
mod server;

pub use metrics::{Conntrack, Names, page};
pub use request::{Asked, MOST_BYTES, read};
pub use server::Server;
