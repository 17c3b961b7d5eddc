//! A flow table beside the kernel's connection tracking.
//!
//! Rules, routes and connection tracking decide about a flow once, and then the same thing for each of its packets. The programs here
//! learn that decision from a packet that leaves by the kernel's way, and carry those that follow: one look-up in an exact table, new
//! headers, out of the interface. Connection tracking stays the truth:
//!
//! - Only a connection that conntrack has confirmed is carried: TCP when it is established both ways, no helpers, no SYNPROXY.
//! - From time to time a packet of each flow takes the kernel's way, and renews the timeout by the kernel's own rules. When a flow falls
//!   silent, the resident process renews it up to the last packet that was carried.
//! - SYN, FIN, RST, fragments, ICMP, IP options and whatever else is unusual always take the kernel's way.
//! - A slow packet that leaves removes the entry of its answers if that entry belongs to another connection. So a port that conntrack
//!   issues anew never delivers to the host that had it before, even if every event is lost.
//! - Changes of routes, rules, neighbours and interfaces make every entry stale: its next packet takes the kernel's way.
//! - The programs carry packets only as long as the resident process ([`Keeper`]) renews its lease, 2 s at most. Dead means slow.
//!
//! If the kernel lacks conntrack's functions for BPF (Linux 5.18), the resident process asks conntrack by ctnetlink ([`Learns`]).
//! IPv6 needs a kernel that knows BPF_F_IPV6 (6.16, and stable series with the correction). Before Linux 6.6 there is no TCX, and the
//! programs are attached by clsact: they outlive their process then, without a lease, until [`remove_leftovers`].

mod attachments;
mod changes;
mod clsact;
mod confirmed;
mod counts;
mod direction;
mod exclusion;
mod fastpath;
mod flows;
mod hooks;
mod idle;
mod keeper;
mod needs;
mod options;
mod plan;
mod resident;
mod room;
mod rules;
mod settle;
mod stateless;
mod store;
mod tick;
mod times;
mod top;
mod visit;
mod xdp;

pub use attachments::AttachedBy;
pub use changes::{Change, ChangeCount};
pub use clsact::{leftovers, remove_leftovers};
pub use confirmed::Confirmed;
pub use counts::{Count, Lesson, Reason, Status};
pub use direction::WayOut;
pub use exclusion::Exclusion;
pub use fastpath::Fastpath;
pub use flows::Flow;
pub use hooks::{Other, others};
pub use keeper::Keeper;
pub use options::{Learns, Options};
pub use plan::{FastpathPlan, LeftOut, Objection, Request, Skipped, Wanted};
pub use resident::{Resident, Setup};
pub use rules::{Bypassed, Effect, bypassed};
pub use stateless::{PrefixPair, Side, Stateless, StatelessStatus, Step};
pub use store::{ExclusionChange, ExclusionStore};
pub use times::{Median, Times};
pub use top::{Top, TopFlow};
pub use visit::{Explained, LessonCount, Now, Presence, ReasonCount, Visit};
pub use weir_netlink::Protocol;
pub use xdp::{Xdp, XdpInterface};

/// Structs and constants that the programs in the kernel and this driver share.
#[allow(dead_code, unreachable_pub, reason = "made from the C header; each side uses its own part")]
pub(crate) mod shared {
    include!(concat!(env!("OUT_DIR"), "/shared.rs"));
}

/// Why the fast path cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Options out of their range.
    #[error("{0}")]
    Options(String),
    /// An interface that cannot be used.
    #[error("{0}")]
    Interface(String),
    /// Nothing to carry here.
    #[error("{0}")]
    Nothing(String),
    /// A file of ours, or the process that keeps the fast path.
    #[error("{0}")]
    State(String),
    /// The process that kept the fast path has ended.
    #[error("the fast path is not in effect any more: its process has ended")]
    Gone,
    /// This kernel lacks something.
    #[error("the fast path needs {0}")]
    Kernel(&'static str),
    /// BPF refused otherwise.
    #[error(transparent)]
    Bpf(#[from] weir_bpf::Error),
    /// The system refused.
    #[error(transparent)]
    System(#[from] weir_sys::Error),
}

impl Error {
    /// True where something is missing on this machine: a privilege, a part of the kernel.
    pub fn is_missing(&self) -> bool {
        match self {
            Error::Kernel(_) => true,
            Error::Bpf(e) => e.is_missing(),
            Error::System(e) => e.kind() == std::io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }

    /// True where the request itself is wrong.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Options(_) | Error::Interface(_))
    }
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
