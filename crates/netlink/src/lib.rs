//! Netlink: links, addresses, routes and neighbours ([`Rtnetlink`]), rules, connections, sockets and cards; and what the kernel
//! tells of the same by ioctl and getsockopt.
//!
//! Messages are built and read here by hand: a few lines each, and the kernel's own explanation of a refusal
//! (extended ack, [`weir_sys::error::KernelError`]) comes through.

pub mod conntrack;
pub mod ethtool;
pub mod features;
pub mod iptables;
pub mod nfqueue;
pub mod nft_set;
pub mod nftables;
pub mod sock_diag;

mod address;
mod clsact;
mod forwarding;
mod link;
mod links;
mod message;
mod neighbours;
mod path_events;
mod protocol;
mod qdisc;
mod route;
mod routes;
mod rtnetlink;
mod shaper;
mod socket;
mod traffic_control;

pub use address::Route;
pub use forwarding::Forwarding;
pub use link::{Interface, VethEnd};
pub use links::{Link, XdpAttachment};
#[cfg(test)]
pub(crate) use message::HEADER;
pub(crate) use message::{
    Attributes, Message, NFGENMSG, Received, address, family, messages, text, u16_be, u16_ne, u32_be, u32_ne,
    u64_be, u64_ne, until_zero,
};
pub use neighbours::{Neighbour, NeighbourEvents};
pub use path_events::{PathChange, PathEvents};
pub use protocol::Protocol;
pub use route::Way;
pub use routes::{Asking, Policy, RouteEntry, RouteKind};
pub use rtnetlink::{Mac, Rtnetlink};
pub use shaper::TokenBucket;
pub(crate) use socket::{BUFFER, End, Socket, answers};
pub use traffic_control::{EGRESS_HOOK, Filter, INGRESS_HOOK, INGRESS_PARENT, QueueingDiscipline, ROOT};

#[cfg(test)]
mod tests;
