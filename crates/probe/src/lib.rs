//! Measurements over a path towards a host that serves them. The same server answers stock iperf3 clients, by `weir_iperf3`.
//!
//! The server listens on one port (TCP and UDP). The client opens every connection, so everything works behind a NAT and needs no
//! privilege. The engines of `load` send and measure the traffic. This crate controls who may request a measurement, for how
//! long, and over which port.
#![forbid(unsafe_code)]

pub mod client;
pub mod frame;
#[doc(hidden)]
pub mod fuzzing;
pub mod key;
mod message;
pub mod nat;
pub mod nat64;
mod readdress;
pub mod server;

pub use key::Key;
pub use server::{Config, NatPorts, Note, Server, shared_tcp};
pub use weir_load::limits::Limits;
pub use weir_load::port::Port;
