//! iperf3's protocol: a client for stock servers, and a server for stock clients.
//!
//! One control connection carries states of one byte and a few frames of JSON. Data goes over separate connections to the same
//! port, which the test's cookie identifies, or over UDP after a greeting. The client opens everything. iperf3 has no
//! specification: this follows the behaviour of iperf 3.12 and 3.21 on the wire. This crate computes bit rates and losses as
//! iperf3 does, except that it tells copies of a datagram from late ones.
#![forbid(unsafe_code)]

mod bounds;
pub mod client;
#[cfg(test)]
mod client_tests;
mod datagram;
mod ended;
mod error;
mod host;
#[cfg(test)]
mod host_fixture;
#[cfg(test)]
mod host_tests;
mod ledger;
mod options;
mod output;
mod pace;
mod parameters;
mod progress;
mod report;
mod results;
mod session;
mod shared;
mod streams;
mod tcp;
mod text;
mod turns;
mod udp;
mod wire;

pub use datagram::HELLOS;
pub use datagram::is_greeting;
pub use ended::{Asked, Ended};
pub use error::Error;
pub use host::Host;
pub use ledger::{Interval, StreamInterval};
pub use options::{End, Options, UDP_RATE_BPS};
pub use parameters::Way;
pub use report::{Datagrams, Receiver, Report, Sender, StreamReport, Total};
pub use results::{Cpu, ServerOutput};
pub use text::{Lines, Row};
pub use weir_netlink::Protocol;
pub use wire::{COOKIE_BYTES, Cookie};

/// iperf3's own port (PORT of iperf.h).
pub const PORT: u16 = 5201;

/// The version that is sent to the other end: the one whose protocol this is.
const SPOKEN_VERSION: &str = "3.12";

/// Gives bytes to everything here that reads what a peer sent, as a whole frame and as a datagram. True if they were a message.
#[doc(hidden)]
pub fn makes_sense(input: &[u8]) -> bool {
    for wide in [false, true] {
        if let Some(header) = datagram::Header::read(input, wide) {
            // Whatever numbers it has, counting them must not fail.
            datagram::Meter::new().arrive(header, 1);
        }
    }
    let message = input.get(4..).and_then(|frame| wire::parse_json(frame).ok());
    let known = message.is_some_and(|message| {
        parameters::Parameters::parse(&message).is_ok() | results::Results::parse(&message).is_ok()
    });
    known | Cookie::read(input).is_some() | is_greeting(input)
}
