//! ICMP messages of different types and codes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A message of one type, either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IcmpType {
    /// Its type and code.
    pub sent: (u8, u8),
    /// It is a query from inside; all others are errors from outside.
    pub query: bool,
    /// It is about a datagram of UDP; other errors are about a SYN.
    pub udp: bool,
    /// Type and code with which it arrived; `None` if it did not.
    pub seen: Option<(u8, u8)>,
    /// The quoted packet has the endpoints that the inside host knows; the query has no inside address.
    pub fits: bool,
    /// MTU that it names, as sent and as seen.
    pub mtu: (u16, u16),
    /// The path carried a control packet, where it did not arrive.
    pub sure: bool,
}
