//! How large a packet may be on a path, and what becomes of fragments on it.
//!
//! Sending and interpretation are separate. [`search`], [`fragments`] and [`hops`] decide what to try next by the results of a
//! [`Prober`], and are tested against paths that exist only in memory; [`net`] has the probers of sockets. [`survey::survey`]
//! puts them together, and [`PathVerdict::of`] describes the result in words.
//!
//! **For servers.** weir's own far end shows more: each direction by itself, single fragments, and the segment size that TCP
//! announced. It keeps no state. A server with a UDP socket hands each datagram that begins with [`MAGIC`] to
//! [`Responder::answer`] and sends the result, or calls [`Responder::reply`] for both. A server hands an accepted TCP connection
//! that begins with [`MAGIC`] to [`responder::connection`]. An answer is never longer than its question, unless it carries the
//! cookie of a session that both ends know from elsewhere.
#![forbid(unsafe_code)]

pub mod fragments;
pub mod hops;
mod message;
pub mod net;
pub mod prober;
pub mod responder;
pub mod search;
pub mod survey;
pub mod verdict;
pub mod witness;

pub use message::MAGIC;
pub use prober::{Probe, ProbeOutcome, Prober, Refusal, Way};
pub use responder::Responder;
pub use survey::{Error, Survey, Target, survey};
pub use verdict::PathVerdict;
