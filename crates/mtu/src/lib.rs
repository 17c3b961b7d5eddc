//! How large a packet may be on a path, and what becomes of fragments on it.
//!
//! What is sent and what it means are apart: [`search`], [`fragments`] and [`hops`] decide what to try next by what a [`Prober`]
//! saw, and are tested against paths that exist only in memory; [`net`] has the probers of sockets. [`survey::survey`] puts
//! them together, and [`Verdict::of`] says in words what came out.
//!
//! **For servers.** A far end of ours makes more visible: each direction by itself, single fragments, and the segment size that
//! TCP announced. It keeps no state. Whoever has a UDP socket hands each datagram that begins with [`MAGIC`] to
//! [`Responder::answer`] and sends what it says, or lets [`Responder::reply`] do both; whoever accepts a TCP connection that
//! begins with [`MAGIC`] hands it to [`responder::connection`]. An answer is never longer than what asked for it, unless
//! it carries the cookie of a session that both ends know from elsewhere.
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
pub use prober::{Outcome, Probe, Prober, Refusal, Way};
pub use responder::Responder;
pub use survey::{Error, Survey, Target, survey};
pub use verdict::Verdict;
