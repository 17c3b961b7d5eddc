//! The connection-tracking table of a network namespace, by ctnetlink
//! (include/uapi/linux/netfilter/nfnetlink_conntrack.h).

mod change;
mod destroyed;
mod dump;
mod entry;
mod filter;
mod get;
mod insert;
mod policies;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use destroyed::Destroyed;
pub use dump::{Dumped, dump};
pub use entry::{Address, Counters, Entry, Status, Tuple};
pub use filter::{Filter, Prefix};
pub use insert::NewEntry;
pub use policies::TimeoutPolicy;

use crate::{Attributes, Message, NFGENMSG, Socket, family, u32_be};
use weir_sys::error::{Context, Result};

const NEW: u16 = 0; // IPCTNL_MSG_CT_NEW
const GET: u16 = 1; // IPCTNL_MSG_CT_GET
const DELETE: u16 = 2; // IPCTNL_MSG_CT_DELETE
const GET_STATS_CPU: u16 = 4; // IPCTNL_MSG_CT_GET_STATS_CPU
/// `enum ctattr_stats_cpu` by number. Left out are the ones that newer kernels always report as 0 (searched, new, delete,
/// delete_list, ignore).
const STATS: [(u16, &str); 10] = [
    (2, "found"),
    (4, "invalid"),
    (8, "insert"),
    (9, "insert_failed"),
    (10, "drop"),
    (11, "early_drop"),
    (12, "error"),
    (13, "search_restart"),
    (14, "clash_resolve"),
    (15, "chain_toolong"),
];

/// A connection to the conntrack table of one namespace. Needs CAP_NET_ADMIN over it.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
}

impl Conntrack {
    /// To the table of the calling thread's namespace.
    pub fn open() -> Result<Self> {
        let socket = Socket::open(libc::NETLINK_NETFILTER).context(|| "open ctnetlink".into())?;
        Ok(Conntrack { socket })
    }

    /// Forgets every entry.
    pub fn flush(&mut self) -> Result<()> {
        // Without a tuple the request means all of them (ctnetlink_del_conntrack).
        self.socket.request(request(DELETE, libc::NLM_F_ACK)).context(|| "flush conntrack".into())
    }

    /// Statistics by name (`insert_failed`, `drop`, `early_drop`, ...), summed over cores, since the namespace was made.
    /// Empty where the kernel has no conntrack.
    pub fn statistics(&mut self) -> Result<BTreeMap<&'static str, u64>> {
        let mut sums = BTreeMap::new();
        self.socket
            .request_with(request(GET_STATS_CPU, libc::NLM_F_DUMP), |received| {
                let attributes = Attributes::after(received.payload, NFGENMSG);
                for (kind, name) in STATS {
                    if let Some(value) = attributes.get(kind).and_then(u32_be) {
                        *sums.entry(name).or_insert(0) += u64::from(value);
                    }
                }
            })
            .context(|| "read conntrack statistics".into())?;
        Ok(sums)
    }
}

fn request(kind: u16, flags: i32) -> Message {
    request_for(libc::AF_UNSPEC as u8, kind, flags)
}

/// A request about entries of one address family.
fn request_for(family: u8, kind: u16, flags: i32) -> Message {
    Message::netfilter(libc::NFNL_SUBSYS_CTNETLINK, kind, flags, family, 0)
}
