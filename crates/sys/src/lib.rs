//! weir's interface to the system: network namespaces, processes, socket options, `/proc` and `/sys` readers, privilege, clock.
//! Most of the raw system calls are here.
//!
//! Everything is synchronous. Readers of `/proc` and `/sys` take a [`ProcRoot`], so that tests hand them recorded files.

pub mod clock;
pub mod datagram_filter;
pub mod dont_fragment;
pub mod echo;
pub mod error;
pub mod file;
pub mod foreign_source;
pub mod fragment_tap;
pub mod frames;
pub mod icmp_errors;
pub mod ip_packets;
pub mod kallsyms;
pub mod kernel_log;
pub mod modules;
pub mod netns;
pub mod packet_socket;
pub mod perf;
pub mod privilege;
pub mod process;
pub mod procfs;
pub mod rps;
pub mod sched;
pub mod segment_size;
mod send_batch;
pub mod slab;
pub mod socket_count;
pub mod socket_option;
pub mod state;
mod stop;
pub mod sysctl;
pub mod terminal;
pub mod uname;

pub use error::{Error, Result};
pub use netns::NetNs;
pub use procfs::ProcRoot;
pub use send_batch::SendBatch;
pub use stop::Stop;
