//! Pure: builds and parses Ethernet II, IPv4, IPv6, UDP, TCP, ICMP and ICMPv6, and computes Internet checksums. No input,
//! no output, no allocation.
//!
//! Every header is a plain struct. `read` takes it off the front of some bytes and returns it with what follows; `write`
//! puts it at the front of a buffer. Reading checks what is needed to find the next header and nothing else: a checksum
//! is the caller's question ([`checksum::Sum`], [`transport_checksum`](checksum::transport)), since a card may have left it open.
//!
//! | module | what |
//! |---|---|
//! | [`checksum`] | RFC 1071, RFC 1624, pseudo headers |
//! | [`ethernet`] | Ethernet II |
//! | [`ip`] | what IPv4 and IPv6 have in common: a [`Datagram`] |
//! | [`ipv4`], [`ipv6`] | the headers; IPv6 extension headers are skipped |
//! | [`udp`], [`tcp`] | transport headers |
//! | [`icmp`] | echo and errors of ICMP and ICMPv6 |
#![forbid(unsafe_code)]

mod bytes;
pub mod checksum;
pub mod error;
pub mod ethernet;
pub mod icmp;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod tcp;
pub mod udp;

pub use checksum::Sum;
pub use error::Error;
pub use ethernet::{Ethernet, Mac};
pub use icmp::Icmp;
pub use ip::{Datagram, Fragment};
pub use ipv4::Ipv4;
pub use ipv6::Ipv6;
pub use tcp::Tcp;
pub use udp::Udp;

/// Protocol numbers (IANA, Assigned Internet Protocol Numbers).
pub mod protocol {
    /// ICMP (RFC 792).
    pub const ICMP: u8 = 1;
    /// TCP (RFC 9293).
    pub const TCP: u8 = 6;
    /// UDP (RFC 768).
    pub const UDP: u8 = 17;
    /// ICMPv6 (RFC 4443).
    pub const ICMPV6: u8 = 58;
}
