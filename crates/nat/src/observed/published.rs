//! Ports that a gateway publishes by configuration.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Published ports that had sent nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PublishedPorts {
    /// A datagram to one, and the answer.
    pub udp: PublishedPort,
    /// A SYN to another one, and the answer.
    pub tcp: PublishedPort,
}

/// A packet from outside to a published port, and the answer of its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PublishedPort {
    /// The host's address and port.
    pub inside: SocketAddr,
    /// The published address and port.
    pub outside: SocketAddr,
    /// Source of the packet.
    pub from: SocketAddr,
    /// Source and destination with which it reached the host; `None` if it did not.
    pub reached: Option<(SocketAddr, SocketAddr)>,
    /// Source of the answer as it arrived; `None` if it did not.
    pub answered: Option<SocketAddr>,
    /// The path carried a control packet, where something did not arrive.
    pub sure: bool,
}

impl PublishedPort {
    /// The packet reached the host, and the answer came from the published port.
    pub fn is_open(&self) -> bool {
        self.reached.is_some_and(|(_, to)| to == self.inside) && self.answered == Some(self.outside)
    }
}
