//! Events of everything that decides how packets are forwarded: links, addresses, routes, routing rules, neighbours, packet filter
//! rules and IPsec policies.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::message::Received;
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

/// A kind of event that can change the way of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathChange {
    /// An interface, or its forwarding.
    Link,
    /// An address of an interface.
    Address,
    /// A route.
    Route,
    /// A routing rule.
    RoutingRule,
    /// Another Ethernet address of a neighbour.
    Neighbour,
    /// Rules of nftables.
    PacketFilter,
    /// IPsec states and policies.
    Ipsec,
    /// Events were lost: any of the others.
    Unknown,
}

/// Listens for changes of forwarding in one network namespace, from when it is opened on.
#[derive(Debug)]
pub struct PathEvents {
    /// Each with its protocol.
    sockets: Vec<(i32, Socket)>,
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
            let socket = match Socket::open(protocol) {
                Err(_) if protocol == libc::NETLINK_XFRM => continue,
                other => other.context(what)?,
            };
            sockets.push((protocol, socket.listening(ROOM, groups).context(what)?));
        }
        Ok(PathEvents { sockets, neighbours: HashMap::new() })
    }

    /// Reads all events until now, without waiting: the kinds of those that can change the way of a packet.
    ///
    /// # Errors
    /// If a socket cannot be read.
    pub fn drain(&mut self) -> Result<BTreeSet<PathChange>> {
        let mut changed = BTreeSet::new();
        for (protocol, socket) in &mut self.sockets {
            let change =
                |received: Received<'_>| changed.extend(matters(&mut self.neighbours, *protocol, received));
            if socket.drain(change).context(|| "read changes of routes and rules".into())? {
                changed.insert(PathChange::Unknown);
            }
        }
        Ok(changed)
    }
}

/// RTM_NEWNETCONF and RTM_DELNETCONF (include/uapi/linux/rtnetlink.h).
const NETCONF: std::ops::RangeInclusive<u16> = 80..=81;

/// The kind of an event that matters. Neighbours are confirmed all the time: only another Ethernet address, or none, is a change.
fn matters(
    neighbours: &mut HashMap<(u32, IpAddr), Option<Mac>>,
    protocol: i32,
    received: Received<'_>,
) -> Option<PathChange> {
    match (protocol, received.kind) {
        (libc::NETLINK_NETFILTER, _) => return Some(PathChange::PacketFilter),
        (libc::NETLINK_XFRM, _) => return Some(PathChange::Ipsec),
        (_, libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH) => {}
        (_, libc::RTM_NEWLINK | libc::RTM_DELLINK) => return Some(PathChange::Link),
        (_, kind) if NETCONF.contains(&kind) => return Some(PathChange::Link),
        (_, libc::RTM_NEWADDR | libc::RTM_DELADDR) => return Some(PathChange::Address),
        (_, libc::RTM_NEWROUTE | libc::RTM_DELROUTE) => return Some(PathChange::Route),
        (_, libc::RTM_NEWRULE | libc::RTM_DELRULE) => return Some(PathChange::RoutingRule),
        _ => return Some(PathChange::Unknown),
    }
    let neighbour = read_neighbour(received)?;
    let gone = received.kind == libc::RTM_DELNEIGH || neighbour.state == "failed";
    let mac = if gone { None } else { neighbour.mac };
    let before = neighbours.insert((neighbour.interface, neighbour.address), mac);
    before.flatten().is_some_and(|before| Some(before) != mac).then_some(PathChange::Neighbour)
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
        // IPv6 and a carrier that comes up make events a little later. The address waits for the lock under which those of carriers come.
        run("sysctl -q net.ipv6.conf.default.disable_ipv6=1; ip link add d0 type veth peer name d1");
        run("for link in d0 d1; do ip link set $link up; done; for link in d0 d1; do \
               until ip link show $link | grep -q 'state UP'; do :; done; done");
        run("ip addr add 198.18.0.1/24 dev d0");
        let mut events = ns.run(|| PathEvents::open().unwrap()).unwrap();
        let neighbour = |mac: u8, state: &str| {
            run(&format!("ip neigh replace 198.18.0.9 lladdr 02:00:00:00:00:{mac:02} dev d0 nud {state}"));
        };
        neighbour(1, "stale");
        assert!(events.drain().unwrap().is_empty(), "a neighbour that was not known before was on no way");
        neighbour(1, "reachable");
        assert!(events.drain().unwrap().is_empty(), "it is the same");
        for (script, change) in [
            ("ip neigh replace 198.18.0.9 lladdr 02:00:00:00:00:02 dev d0 nud stale", PathChange::Neighbour),
            ("ip neigh del 198.18.0.9 dev d0", PathChange::Neighbour),
            ("ip route add 198.19.0.0/24 dev d0", PathChange::Route),
            ("ip rule add from 198.18.0.0/24 table 100", PathChange::RoutingRule),
            ("ip addr add 198.18.1.1/24 dev d0", PathChange::Address),
            ("ip link set d0 mtu 1400", PathChange::Link),
            ("sysctl -q net.ipv4.conf.d0.forwarding=1", PathChange::Link),
            (
                "nft 'add table ip t; add chain ip t c { type filter hook forward priority 0; }'",
                PathChange::PacketFilter,
            ),
        ] {
            run(script);
            let changes = events.drain().unwrap();
            assert!(
                changes.contains(&change) && !changes.contains(&PathChange::Unknown),
                "{script}: {changes:?}"
            );
            // Events of one change may come in several parts.
            while !events.drain().unwrap().is_empty() {}
        }
    }
}
