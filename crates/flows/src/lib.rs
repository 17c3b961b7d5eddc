//! TCP connections and UDP flows that pass this host, measured without sending anything: of TCP delay to either side, on which side
//! segments are lost, and who limits a sender; of UDP rates, silence, and the times and failures of DNS.
//!
//! [`Watch`] loads a BPF program and attaches it to the ingress of interfaces (TCX). It keeps a table of flows with a hard bound.
//! [`Watch::read`] returns a [`Reading`]: every flow, sums by network, and what was not tracked. A side of a flow is the client, which
//! began it, or the server.
//!
//! The program changes no packet and drops none. It ends with the process, whatever ends that.

mod budget;
mod containers;
mod counts;
mod fraction;
mod icmp;
mod interfaces;
mod limits;
mod networks;
mod processes;
mod progress;
mod reading;
mod render;
mod sample;
mod side;
mod table;
mod udp;
mod untracked;
mod watch;

#[cfg(test)]
mod judge_tests;

pub use containers::Container;
pub use counts::{FlowCounts, SideCounts};
pub use fraction::{Counts, Doubts, Fraction};
pub use icmp::{IcmpErrors, IcmpMeaning, IcmpReporter};
pub use interfaces::forwarding;
pub use limits::{Limiter, Limits};
pub use networks::{Grouping, Network, masked};
pub use processes::{ELSEWHERE, LocalEnd, ProcessSum, Processes};
pub use progress::{FlowProgress, ProgressReader, SideProgress};
pub use reading::{Flow, FlowState, NotTracked, Reading};
pub use render::render;
pub use side::{BusierLimit, RoundTrips, Side, end_of_bucket};
pub use udp::{Dns, Udp, UdpFlow, UdpKind, UdpSide, UdpState};
pub use untracked::{Estimate, Untracked, UntrackedFlow, UntrackedNetwork};
pub use watch::{MOST_FLOWS, Options, Watch};
pub use weir_netlink::sock_diag::SocketEnds;

/// Structs and constants that the program in the kernel and this driver share.
#[allow(dead_code, unreachable_pub, reason = "made from the C headers; each side uses its own part")]
pub(crate) mod shared {
    include!(concat!(env!("OUT_DIR"), "/settings.rs"));
    include!(concat!(env!("OUT_DIR"), "/shared.rs"));
}

/// Why flows cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option out of its range, or an interface that is not there.
    #[error("{0}")]
    Options(String),
    /// The kernel refused.
    #[error("{0}")]
    Bpf(#[from] weir_bpf::Error),
    /// Reading the interfaces failed.
    #[error("{0}")]
    System(#[from] weir_sys::Error),
}

impl Error {
    /// True if a privilege or a feature of the kernel is missing here.
    pub fn is_missing(&self) -> bool {
        match self {
            Error::Bpf(e) => e.is_missing(),
            Error::System(e) => e.kind() == std::io::ErrorKind::PermissionDenied,
            Error::Options(_) => false,
        }
    }
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
