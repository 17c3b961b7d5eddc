//! The hosts behind a gateway of IPv6, and packets from outside that none of them waits for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Inbound, Translation};

/// A path over IPv6.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ipv6Path {
    /// A datagram of each inside host to one outside endpoint.
    pub hosts: [Translation; 2],
    /// A datagram from outside to the first host's outside address, and a port from which it has sent nothing; `None` if its
    /// datagram did not arrive.
    pub unsolicited_udp: Option<Inbound>,
    /// The same with a SYN.
    pub unsolicited_tcp: Option<Inbound>,
}
