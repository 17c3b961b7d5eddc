//! Traffic through XDP: packet generator, receiver, and the RFC procedures on top.
//!
//! A [`Station`] is what a host contributes: it sends frames ([`Sending`]) and counts what arrives ([`Received`]). One runs on
//! the initiator, one on the responder. A [`Procedure`](procedure) needs no host: it asks a [`Rig`] for one
//! [`Transfer`] after another, which the conductor turns into tasks for the agents, and tests into a simulated gateway.

pub mod deck;
pub mod error;
pub mod frame;
pub mod live;
pub mod pace;
pub mod procedure;
pub mod raw;
pub mod rig;
pub mod route;
pub mod state;
pub mod station;
mod tally;
pub mod transfer;
pub mod workload;
pub mod xdp_receiver;

pub use error::Error;
pub use pace::Pace;
pub use procedure::{Delay, Findings, Setting};
pub use rig::{Rig, RigError};
pub use station::Station;
pub use transfer::{
    Engine, Family, Frame, Inject, Limit, Link, Offer, Order, Outcome, Protocol, Received, Sending, Sent,
    Stop, Transfer, Tuples, Way,
};
pub use workload::Packets;

/// What the BPF programs and their drivers share, from `bpf/shared.h`.
pub mod shared {
    include!(concat!(env!("OUT_DIR"), "/shared.rs"));
}
