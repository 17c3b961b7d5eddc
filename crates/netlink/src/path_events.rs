//! Events of everything that decides how packets are forwarded: links, addresses, routes, routing rules, neighbours, packet filter
//! rules and IPsec policies.

use std::collections::HashMap;
use std::net::IpAddr;

use super::message::{Received, messages};
use super::neighbours::read_neighbour;
use super::rtnetlink::Mac;
use super::socket::Socket;
use weir_sys::error::{Context, Result};

/// Room for events, bytes.
const ROOM: usize = 1 << 20;
/// RTNLGRP_LINK, _NEIGH, _IPV4_IFADDR, _IPV4_ROUTE, _IPV4_RULE, _IPV6_IFADDR, _IPV6_ROUTE, _IPV6_RULE, _IPV4_NETCONF and
/// _IPV6_NETCONF, which tells of `forwarding` (include/uapi/linux/rtnetlink.h).
const ROUTE_GROUPS: [u32; 10] = [1, 3, 5, 7, 8, 9, 11, 19, 24, 25];
/// NFNLGRP_NFTABLES (include/uapi/linux/netfilter/nfnetlink.h).
const RULE_GROUPS: [u32; 1] = [7];
/// XFRMNLGRP_SA and _POLICY (include/uapi/linux/xfrm.h).
const IPSEC_GROUPS: [u32; 2] = [3, 4];

/// Listens for changes of forwarding in one network namespace, from when it is opened on.
#[derive(Debug)]
pub struct PathEvents {
    sockets: Vec<Socket>,
    /// The Ethernet address that each neighbour had last.
    neighbours: HashMap<(u32, IpAddr), Option<Mac>>,
}

impl PathEvents {
    /// Listens in the calling thread's namespace. A kernel without IPsec has no events of it.
    ///
    /// # Errors
    /// If no socket can be opened.
    pub fn open() -> Result<Self> {
        let what = || "listen for changes of routes and rules".into();
        let mut sockets = Vec::new();
        for (protocol, groups) in [
            (libc::NETLINK_ROUTE, &ROUTE_GROUPS[..]),
            (libc::NETLINK_NETFILTER, &RULE_GROUPS[..]),
            (libc::NETLINK_XFRM, &IPSEC_GROUPS[..]),
        ] {
            let mut socket = match Socket::open(protocol) {
                Err(_) if protocol == libc::NETLINK_XFRM => continue,
                other => other.context(what)?,
            };
            socket.set_receive_buffer(ROOM).context(what)?;
            for group in groups {
                socket.join(*group).context(what)?;
            }
            sockets.push(socket);
        }
        Ok(PathEvents { sockets, neighbours: HashMap::new() })
    }

    /// Reads all events until now, without waiting. True if one of them can change the way of a packet, or if events were lost.
    ///
    /// # Errors
    /// If a socket cannot be read.
    pub fn drain(&mut self) -> Result<bool> {
        let mut changed = false;
        for socket in &mut self.sockets {
            loop {
                match socket.receive_now() {
                    Ok(Some(datagram)) => {
                        for received in messages(datagram) {
                            changed |= matters(&mut self.neighbours, received);
                        }
                    }
                    Ok(None) => break,
                    Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => changed = true,
                    Err(e) => return Err(e).context(|| "read changes of routes and rules".into()),
                }
            }
        }
        Ok(changed)
    }
}

/// Neighbours are confirmed all the time: only another Ethernet address, or none, is a change.
fn matters(neighbours: &mut HashMap<(u32, IpAddr), Option<Mac>>, received: Received<'_>) -> bool {
    if !matches!(received.kind, libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH) {
        return true;
    }
    let Some(neighbour) = read_neighbour(received) else { return false };
    let gone = received.kind == libc::RTM_DELNEIGH || neighbour.state == "failed";
    let mac = if gone { None } else { neighbour.mac };
    let before = neighbours.insert((neighbour.interface, neighbour.address), mac);
    before.flatten().is_some_and(|before| Some(before) != mac)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use weir_sys::NetNs;
    use weir_sys::privilege::test_needs_root;

    #[test]
    fn root_what_changes_a_way_is_heard_and_a_confirmed_neighbour_is_not() {
        if test_needs_root() {
            return;
        }
        let ns = NetNs::create().unwrap();
        let run = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-ec", script]);
            ns.enter_on_spawn(&mut command);
            assert!(command.status().unwrap().success(), "{script}");
        };
        run("ip link add d0 type veth peer name d1; ip link set d1 up; ip link set d0 up");
        run("ip addr add 198.18.0.1/24 dev d0");
        let mut events = ns.run(|| PathEvents::open().unwrap()).unwrap();
        let neighbour = |mac: u8, state: &str| {
            run(&format!("ip neigh replace 198.18.0.9 lladdr 02:00:00:00:00:{mac:02} dev d0 nud {state}"));
        };
        neighbour(1, "stale");
        assert!(!events.drain().unwrap(), "a neighbour that was not known before was on no way");
        neighbour(1, "reachable");
        assert!(!events.drain().unwrap(), "it is the same");
        for script in [
            "ip neigh replace 198.18.0.9 lladdr 02:00:00:00:00:02 dev d0 nud stale",
            "ip neigh del 198.18.0.9 dev d0",
            "ip route add 198.19.0.0/24 dev d0",
            "ip rule add from 198.18.0.0/24 table 100",
            "ip addr add 198.18.1.1/24 dev d0",
            "ip link set d0 mtu 1400",
            "sysctl -q net.ipv4.conf.d0.forwarding=1",
            "nft 'add table ip t; add chain ip t c { type filter hook forward priority 0; }'",
        ] {
            run(script);
            assert!(events.drain().unwrap(), "{script}");
            // Events of one change may come in several parts.
            while events.drain().unwrap() {}
        }
    }
}
