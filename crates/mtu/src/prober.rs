//! Sending packets of a length and seeing what becomes of them: what the search asks for.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which way a probe tries the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// From here to the target.
    Egress,
    /// From the target to here.
    Ingress,
}

/// One packet to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Length of the IP packet with all headers, bytes; of one that may be split, of the datagram before it is.
    pub size: u32,
    /// It may be split into fragments.
    pub splits: bool,
    /// Which way.
    pub way: Way,
    /// Hops after which it ends; `None`: the system's default. Only for [`Way::Egress`].
    pub hops: Option<u8>,
}

impl Probe {
    /// One that must not be split.
    pub fn whole(way: Way, size: u32) -> Self {
        Probe { size, splits: false, way, hops: None }
    }
}

/// Why a packet is refused whatever its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// No program listens on the port.
    ClosedPort,
    /// A firewall says that it is prohibited.
    Prohibited,
    /// No way leads there.
    Unreachable,
}

/// The outcome of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeOutcome {
    /// It arrived, whole or put together again.
    Arrived,
    /// A router refused it and named its link's MTU (0: none named).
    TooBig {
        /// The MTU, bytes.
        mtu: u32,
        /// The router; `None` if its message went to the far end, not to this host.
        from: Option<IpAddr>,
    },
    /// It did not fit the sender's own link, whose MTU is that.
    TooBigHere {
        /// The MTU, bytes.
        mtu: u32,
    },
    /// Its hops ended at this router.
    HopsUsedUp {
        /// The router.
        from: IpAddr,
    },
    /// A host refused it for a reason that has nothing to do with its length.
    Refused {
        /// Who; `None` of this host itself.
        from: Option<IpAddr>,
        /// Why.
        refusal: Refusal,
    },
    /// Nothing came back in time.
    Silent,
}

impl ProbeOutcome {
    /// True if anybody at all answered.
    pub fn is_heard(self) -> bool {
        self != ProbeOutcome::Silent
    }
}

/// A sender of probes.
pub trait Prober {
    /// Length of the smallest probe, bytes: the control that distinguishes loss from length.
    fn least(&self) -> u32;

    /// Sends them in this order, and waits for the outcome of each. Probes sent before one that has arrived get a little more
    /// time, at least `grace`. If the last ones are silent too, the wait ends with the prober's own patience.
    ///
    /// # Errors
    /// The own host cannot send.
    fn exchange(&mut self, probes: &[Probe], grace: Duration) -> io::Result<Vec<ProbeOutcome>>;

    /// Returns the MTU that the far end assumes towards this host: its link's, or one learned from ICMP. `None` if it is not
    /// reported.
    ///
    /// # Errors
    /// The own host cannot send.
    fn far_mtu(&mut self) -> io::Result<Option<u32>> {
        Ok(None)
    }

    /// True once the time for the whole is up: what is known then has to do.
    fn is_over(&self) -> bool;
}
