//! The hosts behind a gateway of IPv6, and packets from outside that none of them waits for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_probe::nat64::Prefix64;

use super::{Inbound, Translation};

/// A path over IPv6.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ipv6Path {
    /// The prefix by which hosts know addresses of IPv4 on the far side, if the gateway is a NAT64 (example: `64:ff9b::/96`). All
    /// outside addresses have it.
    #[schemars(with = "Option<String>")]
    pub nat64: Option<Prefix64>,
    /// A datagram of each inside host to one outside endpoint; of two ports of the same host, if there is only one.
    pub hosts: [Translation; 2],
    /// A datagram from outside to the first host's outside address, and a port from which it has sent nothing; `None` if its
    /// datagram did not arrive, or the ends send only to ports that were used.
    pub unsolicited_udp: Option<Inbound>,
    /// The same with a SYN.
    pub unsolicited_tcp: Option<Inbound>,
}
