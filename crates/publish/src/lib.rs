//! Published ports of a container without connection tracking.
//!
//! A published port is a fixed mapping: the host's address and port become the container's in packets from clients, and the
//! reverse in packets from the container. This needs no memory of connections: no table fills up, nothing is evicted, and a flood
//! of new connections costs no more than its packets. Two BPF programs do it. One runs at the interface where packets come in
//! from the clients. It rewrites the destination and puts the packet into the container's own link (`bpf_redirect_peer`). The
//! other runs at the host's end of that link. It rewrites the source and hands the packet to the outer interface
//! (`bpf_redirect_neigh`). Packets bypass the host's routing, bridge, packet filter and connection tracking.
//!
//! Special cases stay with the kernel, so rules must also publish the port, as a container engine makes them. These cases are
//! fragments, IP options, packets at their last hop or too big for their next link (the kernel answers the sender), and traffic
//! between the container and its host or other containers. ICMP errors about translated packets are translated, with the packet
//! that they quote (RFC 5508 section 4, RFC 4443). From outside, the container's own address and port are closed, as with Docker
//! Engine 28: the answers would come from the published address.
//!
//! Packets bypass the host's stack, so parts of it do not see them: rules of the FORWARD chain and their counters, accounting,
//! the host's reverse-path filter, and captures on the bridge. The source address of clients stays unchanged. Several containers
//! The kernel's masquerade knows none of the mappings: a connection that another container or the host opens from a published port's
//! number keeps that number, and its answers go to the published container. Several containers behind one port are no fixed mapping,
//! nor are ports that are chosen anew for each connection. The container's link must stay: a restarted container has another one.
//!
//! Needs Linux 6.6 (TCX); for IPv6 a kernel that knows BPF_F_IPV6 (6.16, and stable series with the correction).

mod links;
mod local_ports;
mod mapping;
mod open;
mod pinned;
mod place;
mod plan;
mod proxy;
mod publish;
mod rules;
mod step;
mod store;
mod wanted;

pub use weir_bpf::TestRun;
pub use weir_netlink::Protocol;

pub use links::Links;
pub use mapping::Mapping;
pub use pinned::{Attachment, Pinned, alive, behind, is_whole, keep, load, loaded, loaded_id, state, unload};
pub use plan::{Found, PublishPlan, Request};
pub use publish::{Count, Direction, Publish, Reason, Status};
pub use store::Store;
pub use wanted::{Container, Wanted};

pub(crate) use publish::kernel_knows_ipv6;

/// Structs and constants that the programs in the kernel and this driver share.
#[allow(dead_code, unreachable_pub, reason = "made from the C header; each side uses its own part")]
pub(crate) mod shared {
    include!(concat!(env!("OUT_DIR"), "/shared.rs"));
}

/// Why a port cannot be published.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Mappings that cannot be, or contradict each other.
    #[error("{0}")]
    Mapping(String),
    /// Interfaces that cannot be used.
    #[error("{0}")]
    Link(String),
    /// The request does not fit the ports published here.
    #[error("{0}")]
    Nothing(String),
    /// A file of ours.
    #[error("{path}: {source}")]
    File {
        /// Its path.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A folder or file of ours that is not as it was left.
    #[error("{0}")]
    State(String),
    /// This kernel lacks something.
    #[error("publishing by BPF needs {0}")]
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
            Error::File { source, .. } => source.kind() == std::io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }

    /// True where the request itself is wrong.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Mapping(_) | Error::Link(_))
    }
}

/// For `map_err` with a path.
pub(crate) fn at(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.display().to_string();
    move |source| Error::File { path, source }
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
