//! A filter by address lists that costs the same with a million prefixes as with one.
//!
//! Each list is a class with an action of its own. An IPv4 address is looked up in a table with a class for each /24
//! (2 bits of it with one or two lists, 8 with more), and where a /24 is not all of one class in a block of its own, which lies as
//! far behind that of its neighbours as it does itself. An IPv6 address is looked up by a bucket for each /23 of
//! 2000::/3 and a search among the boundaries in it. The programs reach into the tables directly: their place in memory is part of
//! the code. So other lists are other tables with other programs, which take the place of those that are attached: every packet
//! meets the old lists or the new ones.

mod action;
mod compile;
#[cfg(test)]
mod established_tests;
mod events;
#[cfg(test)]
mod events_tests;
mod kernel;
mod pinned;
#[cfg(test)]
mod pinned_tests;
mod probe;
mod tables;
#[cfg(test)]
mod test_packets;
#[cfg(test)]
mod tests;

pub use weir_bpf::{Error as BpfError, XdpMode};

pub use action::{Action, Direction};
pub use compile::{Class, Compiled, Width};
pub use events::{Event, Events, Follower};
pub use kernel::{At, Count, Denied, Filter, Reason, Status};
pub use tables::{OpenError, Options};

/// Structs and constants that the programs in the kernel and this driver share.
#[allow(dead_code, unreachable_pub, reason = "made from the C header; each side uses its own part")]
pub(crate) mod shared {
    include!(concat!(env!("OUT_DIR"), "/shared.rs"));
}
