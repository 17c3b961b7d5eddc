//! Published ports of a container without connection tracking.
//!
//! A published port is a fixed mapping: whatever comes to the host's address and port becomes the container's, and whatever the
//! container sends from there becomes the host's. That needs no memory of connections, so there is no table that fills up,
//! nothing that is evicted, and nothing that a flood of new connections could cost beyond their packets. Two BPF programs do
//! it: one where packets come in from the clients, which rewrites the destination and puts the packet into the container's own
//! link (`bpf_redirect_peer`), and one at the host's end of that link, which rewrites the source and hands the packet to the outer
//! interface (`bpf_redirect_neigh`). Routing on the host, bridge, packet filter and connection tracking are not passed.
//!
//! What is not plain stays with the kernel, so the port must also be published by rules, as a container engine makes them:
//! fragments, IP options, what has come to its last hop or is too big for its next link (the kernel answers the sender), traffic
//! between the container and its host or other containers. ICMP errors about translated packets are translated, with what they
//! quote (RFC 5508 section 4, RFC 4443). From outside the container's own address and port are closed, as with Docker Engine 28:
//! the answers would come from the published address.
//!
//! What it cannot do, because packets pass the host's stack by: rules of the FORWARD chain and their counters, accounting, the
//! host's reverse-path filter, and a look at the traffic on the bridge do not see it. The source address of clients stays as it
//! is. Several containers behind one port, and ports that are chosen anew for each connection, are no fixed mapping. The
//! container's link must stay: a container that was started again has another one.
//!
//! Needs Linux 6.6 (TCX); for IPv6 a kernel that knows BPF_F_IPV6 (6.16, and stable series with the correction).

mod links;
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

pub use links::Links;
pub use mapping::{Mapping, Protocol};
pub use pinned::{Attachment, Pinned, alive, behind, is_whole, load, loaded, loaded_id, state, unload};
pub use plan::{Found, Plan, Request};
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
    /// What is asked for cannot be done with what is published here.
    #[error("{0}")]
    Nothing(String),
    /// A file of ours.
    #[error("{path}: {source}")]
    File {
        /// Its path.
        path: String,
        /// What the system said.
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
