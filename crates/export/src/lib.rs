//! Metrics for Prometheus.
//!
//! A [`Page`] is text of the format 0.0.4. [`flows`] writes what a reading of flows says into it, within the bounds of [`Names`]. A
//! [`Board`] reads all other [`Source`]s, each at its own pace, and writes their latest figures. [`GROUPS`] is the list of all metrics;
//! [`reference`] makes a page of the docs of it.
//!
//! [`Server`] answers `GET /metrics` with the latest page. It reads nothing of a client but the request, and its token where one
//! is demanded ([`Access`]).
#![forbid(unsafe_code)]

mod access;
mod board;
mod flows;
mod page;
mod reference;
mod request;
mod server;
mod sources;

pub use access::{Access, Error as AccessError, Tls, Token};
pub use board::{Board, Source};
pub use flows::{Names, flows};
pub use page::{Group, Kind, Metric, Page};
pub use reference::{GROUPS, begin, reference};
pub use request::{Asked, MOST_BYTES, bearer, read};
pub use server::Server;
pub use sources::allow::AddressLists;
pub use sources::conntrack::ConntrackTable;
pub use sources::doctor::Doctor;
pub use sources::fastpath::FastPath;
pub use sources::lists::CachedLists;
pub use sources::probes::{MOST_TARGETS, ProbeTarget, Probes};
pub use sources::publish::PublishedPorts;
pub use sources::snat::SnatPorts;
