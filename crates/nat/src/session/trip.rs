//! The way of one packet.

use std::net::SocketAddr;

use crate::Arrival;

/// The fate of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trip {
    /// The packet as it came out of the NAT; `None` if it did not.
    pub(crate) arrived: Option<Arrival>,
    /// Other packets that came out meanwhile: answers of the NAT itself.
    pub(crate) others: Vec<Arrival>,
    /// The path carried a control packet afterwards, if this one did not arrive.
    pub(crate) sure: bool,
}

impl Trip {
    /// The source that the packet had when it arrived.
    pub(crate) fn from(&self) -> Option<SocketAddr> {
        self.arrived.as_ref().and_then(|arrival| arrival.packet.from())
    }

    /// The destination that it had.
    pub(crate) fn to(&self) -> Option<SocketAddr> {
        self.arrived.as_ref().and_then(|arrival| arrival.packet.to())
    }

    /// It arrived, or its loss counts.
    pub(crate) fn is_sure(&self) -> bool {
        self.arrived.is_some() || self.sure
    }
}
