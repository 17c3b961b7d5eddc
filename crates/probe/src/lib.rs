//! Measurements over a path towards a host that serves them: our own protocol, and iperf3's.
//!
//! The server listens on one port (TCP and UDP); the client opens every connection, so all of it works behind a NAT and needs no
//! privilege. What is sent and measured are the engines of `load`; this crate adds who may ask for them, for how long, and over
//! which port.
#![forbid(unsafe_code)]

pub mod client;
pub mod frame;
#[doc(hidden)]
pub mod fuzzing;
pub mod iperf3;
pub mod key;
pub mod limits;
mod message;
pub mod port;
pub mod server;

pub use key::Key;
pub use limits::Limits;
pub use port::Port;
pub use server::{Config, Note, Server};
