//! Netlink: links, addresses, routes and neighbours ([`Rtnetlink`]), and the transport for conntrack and NFQUEUE.
//!
//! Messages are built and read here by hand: a few lines each, and the kernel's own explanation of a refusal
//! (extended ack) comes through.

mod address;
mod forwarding;
mod link;
mod links;
mod message;
mod neighbours;
mod qdisc;
mod route;
mod routes;
mod shaper;
mod socket;
mod traffic_control;

pub use address::Route;
pub use forwarding::Forwarding;
pub use link::{Interface, Mac, Rtnetlink, VethEnd};
pub use links::{Link, XdpAttachment};
#[cfg(test)]
pub(crate) use message::HEADER;
pub(crate) use message::{Attributes, Message, Received, messages, text, u32_be};
pub use neighbours::{Neighbour, NeighbourEvents};
pub use route::Way;
pub use routes::{Asking, Policy, RouteEntry, RouteKind};
pub use shaper::TokenBucket;
pub(crate) use socket::{BUFFER, End, Socket, answers};
pub use traffic_control::{EGRESS_HOOK, Filter, INGRESS_HOOK, INGRESS_PARENT, QueueingDiscipline, ROOT};

/// A refusal by the kernel with its own words (extended ack), which often say what the error number does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelError {
    /// Error number.
    pub errno: i32,
    /// The kernel's text; empty if it gave none.
    pub text: String,
}

impl std::fmt::Display for KernelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let number = std::io::Error::from_raw_os_error(self.errno);
        if self.text.is_empty() { write!(f, "{number}") } else { write!(f, "{} ({number})", self.text) }
    }
}

impl std::error::Error for KernelError {}

impl From<KernelError> for std::io::Error {
    fn from(e: KernelError) -> Self {
        std::io::Error::new(std::io::Error::from_raw_os_error(e.errno).kind(), e)
    }
}

#[cfg(test)]
mod tests;
