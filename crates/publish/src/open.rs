//! Connections that were open before their port was published here, and so are known to connection tracking.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::ops::ControlFlow;

use weir_netlink::conntrack::{Address, Conntrack, Entry, Filter, Status, dump};

use crate::{Protocol, Result, Wanted};

/// Errors of nfnetlink if no part of it handles the request (nfnetlink_rcv_msg), and of sockets.
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

/// Lets them go on when the rules publish again: connection tracking does not see what is translated here, and would take what
/// comes then for invalid by the sequence numbers that it saw last. One that is opened later is unknown to it, and is taken up by
/// its next packet.
///
/// If the kernel gives no access to connection tracking (CONFIG_NF_CT_NETLINK), this does nothing: a connection that transferred
/// much meanwhile may then break.
///
/// # Errors
/// Any other refusal by the kernel, such as `PermissionDenied` without CAP_NET_ADMIN.
pub(crate) fn let_go_on(wanted: &Wanted) -> Result<()> {
    match be_liberal(wanted) {
        Err(e) if matches!(e.raw_os_error(), Some(EINVAL | EOPNOTSUPP)) => Ok(()),
        outcome => Ok(outcome?),
    }
}

fn be_liberal(wanted: &Wanted) -> weir_sys::Result<()> {
    let tcp = wanted.mappings().filter(|m| m.protocol == Protocol::Tcp);
    let ends: HashSet<(SocketAddr, SocketAddr)> = tcp.map(|m| (m.published, m.container)).collect();
    if ends.is_empty() {
        return Ok(());
    }
    let filter = Filter {
        protocol: Some(Protocol::Tcp.number()),
        status: Status::DESTINATION_NAT,
        ..Filter::default()
    };
    // Changed when the dump is over: each change is a question of its own.
    let mut open: Vec<Entry> = Vec::new();
    dump(&filter, |entry| {
        let end = |address: Address, port| SocketAddr::new(address.ip(), port);
        let published = end(entry.original.destination, entry.original.destination_port);
        let container = end(entry.reply.source, entry.reply.source_port);
        if ends.contains(&(published, container)) {
            open.push(*entry);
        }
        ControlFlow::Continue(())
    })?;
    let mut conntrack = Conntrack::open()?;
    for entry in &open {
        // One that has ended meanwhile needs nothing.
        conntrack.be_liberal(entry)?;
    }
    Ok(())
}
