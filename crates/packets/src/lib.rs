//! Traffic through XDP: packet generator, receiver, and the RFC procedures on top.
//!
//! An [`Endpoint`] is what a host contributes: it sends frames ([`Sending`]) and counts what arrives ([`Received`]). One runs on
//! the initiator, one on the responder. A [`Procedure`](procedure) needs no host: it asks a [`Testbed`] for one
//! [`Transfer`] after another, which the runner turns into tasks for the agents, and tests into a simulated gateway.

pub mod endpoint;
pub mod error;
pub mod flow_order;
pub mod frame;
pub mod live;
pub mod pace;
pub mod procedure;
pub mod raw;
pub mod route;
mod schedule;
pub mod state;
mod tally;
pub mod testbed;
pub mod transfer;
pub mod workload;
pub mod xdp_receiver;

pub use endpoint::Endpoint;
pub use error::Error;
pub use pace::Pace;
pub use procedure::{Delay, Findings, ProcedureSettings};
pub use testbed::{Testbed, TestbedError};
pub use transfer::{
    Engine, Family, Frame, Inject, Limit, Link, Offer, Order, Protocol, Received, Sending, Sent, Stop,
    Transfer, TransferOutcome, Tuples, Way,
};
pub use workload::Packets;

/// Definitions that the BPF programs and their drivers share, from `bpf/shared.h`.
pub mod shared {
    include!(concat!(env!("OUT_DIR"), "/shared.rs"));
}
