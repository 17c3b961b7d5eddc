//! Sockets without sock_diag: most distributions have it as modules, which are not loaded before the first `ss`. `/proc/net`
//! shows the states, the queues, and the drops of UDP; of connections it shows only that they exist.

use std::collections::{BTreeMap, BTreeSet};

use weir_netlink::sock_diag::state;
use weir_sys::procfs::PlainSocket;
use weir_sys::{ProcRoot, Result, sysctl};
use weir_text::order;

use super::{DESCRIBED, Inodes, drops_since};
use crate::evidence::{Delta, Earlier, Listener, Sockets, UdpSocket};

/// Drops of UDP sockets by inode, which no other socket has while the window lasts.
pub(super) fn begin_udp(root: &ProcRoot, earlier: &mut Earlier) -> Result<()> {
    earlier.drops.extend(root.plain_sockets("udp")?.iter().map(|s| (s.inode.into(), s.drops)));
    Ok(())
}

/// Listening sockets and states.
pub(super) fn end_tcp(root: &ProcRoot, sockets: &mut Sockets, inodes: &mut Inodes) -> Result<()> {
    // The kernel does not report the backlog that the program asked for; the program never gets more than this value.
    let somaxconn =
        sysctl::get_optional(root, "net.core.somaxconn")?.and_then(|v| v.parse().ok()).unwrap_or(4096);
    let all = root.plain_sockets("tcp")?;
    let mut listening: Vec<&PlainSocket> = all.iter().filter(|s| s.state == state::LISTEN).collect();
    let mut half_open: BTreeMap<u16, u32> = BTreeMap::new();
    for socket in all.iter().filter(|s| s.state != state::LISTEN) {
        *sockets.tcp_states.entry(socket.state).or_default() += 1;
        *half_open.entry(socket.local.port()).or_default() += u32::from(socket.state == state::SYN_RECV);
    }
    sockets.established = sockets.tcp_states.get(&state::ESTABLISHED).copied().unwrap_or(0);
    order::by_key(&mut listening, |s| std::cmp::Reverse(s.receive_queue));
    for socket in listening.into_iter().take(DESCRIBED) {
        inodes.listeners.push(if socket.receive_queue > 0 { socket.inode } else { 0 });
        sockets.listeners.push(Listener {
            local: socket.local,
            queued: socket.receive_queue,
            limit: somaxconn,
            half_open: half_open.get(&socket.local.port()).copied().unwrap_or(0),
            drops: Delta::default(),
            process: None,
        });
    }
    Ok(())
}

/// UDP sockets that lost something.
pub(super) fn end_udp(
    root: &ProcRoot,
    earlier: &Earlier,
    ports: &BTreeSet<u16>,
    sockets: &mut Sockets,
    inodes: &mut Inodes,
) -> Result<()> {
    for socket in root.plain_sockets("udp")? {
        if ports.contains(&socket.local.port())
            && socket.remote.port() == 0
            && sockets.udp_bound.len() < DESCRIBED
        {
            sockets.udp_bound.push(socket.local);
        }
        let drops = drops_since(earlier, socket.inode.into(), socket.drops);
        if drops.change() == 0 || sockets.udp.len() >= DESCRIBED {
            continue;
        }
        inodes.udp.push(socket.inode);
        sockets.udp.push(UdpSocket {
            local: socket.local,
            queued_bytes: socket.receive_queue,
            // Not told; what it holds now fitted.
            limit_bytes: socket.receive_queue,
            drops,
            process: None,
        });
    }
    Ok(())
}
