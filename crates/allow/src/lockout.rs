//! Who would be shut out that must not be.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::ControlFlow;

use weir_netlink::Protocol;
use weir_netlink::sock_diag::{self, Query, state};
use weir_netlink::{RouteKind, Rtnetlink};
use weir_sys::ProcRoot;
use weir_text::order;

use crate::policy::{Action, Policy};

/// Programs by which people administer a host from afar. OpenSSH calls a session's process `sshd`, since 9.8 `sshd-session`.
const DAEMONS: [&str; 4] = ["sshd", "sshd-session", "sshd-auth", "dropbear"];
/// Descriptors that are looked at to find whose a connection is.
const MOST_DESCRIPTORS: usize = 1_000_000;

/// A remote peer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// Its source address.
    pub address: IpAddr,
    /// The port here that they talk to, if it is known.
    pub port: Option<u16>,
    /// How they are known.
    pub why: String,
}

/// Finds the current addresses of administrators: this session's client (`SSH_CONNECTION`, `SSH_CLIENT`, which sudo removes), and
/// every peer with a connection to an SSH server here. Empty on a console.
pub fn administrators(root: &ProcRoot, variable: impl Fn(&str) -> Option<String>) -> Vec<Peer> {
    let mut peers = BTreeSet::new();
    // CLIENT CLIENT-PORT SERVER SERVER-PORT, and CLIENT CLIENT-PORT SERVER-PORT (ssh(1)).
    for (name, port_at) in [("SSH_CONNECTION", 3), ("SSH_CLIENT", 2)] {
        let Some(text) = variable(name) else { continue };
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let Some(address) = words.first().and_then(|w| w.split('%').next()?.parse::<IpAddr>().ok()) else {
            continue;
        };
        let port = words.get(port_at).and_then(|w| w.parse().ok());
        peers.insert(Peer { address: address.to_canonical(), port, why: format!("this session's {name}") });
        break;
    }
    let connections = connections(root);
    let inodes = connections.iter().map(|(_, _, inode)| *inode).filter(|inode| *inode != 0).collect();
    let holders = root.socket_holders(&inodes, MOST_DESCRIPTORS);
    for (address, port, inode) in connections {
        let daemon = holders.get(&inode).filter(|h| DAEMONS.contains(&h.name.trim()));
        if let Some(daemon) = daemon {
            let why = format!("connected to {} (process {})", daemon.name.trim(), daemon.pid);
            peers.insert(Peer { address, port: Some(port), why });
        }
    }
    let mut peers: Vec<Peer> = peers.into_iter().collect();
    peers.dedup_by_key(|peer| (peer.address, peer.port));
    peers
}

/// Established TCP connections: the other side, our port, the inode.
fn connections(root: &ProcRoot) -> Vec<(IpAddr, u16, u32)> {
    let mut found = Vec::new();
    let query =
        Query { protocol: Protocol::Tcp, states: 1 << state::ESTABLISHED, memory: false, info: false };
    let asked = sock_diag::dump(root, query, |entry| {
        found.push((entry.remote().ip().to_canonical(), entry.local().port(), entry.inode()));
        ControlFlow::Continue(())
    });
    if asked.is_err() {
        // Without its module; text says the same, more slowly.
        let sockets = root.plain_sockets("tcp").unwrap_or_default();
        let established = sockets.into_iter().filter(|s| s.state == state::ESTABLISHED);
        found = established.map(|s| (s.remote.ip().to_canonical(), s.local.port(), s.inode)).collect();
    }
    found
}

/// Lists, in words, the peers that a policy would shut out. It omits a peer that comes in by an interface without the filter. If
/// the route back to a peer is unknown, it assumes the worst.
pub fn shut_out(policy: &Policy, peers: &[Peer]) -> Vec<String> {
    let own = interfaces(policy);
    let mut words = Vec::new();
    for peer in peers {
        let verdict = policy.verdict(peer.address);
        if verdict.action == Action::Drop
            && is_judged(policy, peer)
            && comes_in_by(&own, peer.address).unwrap_or(true)
        {
            words.push(format!(
                "{} ({}), by {}",
                peer.address,
                peer.why,
                class_words(verdict.class, verdict.name)
            ));
        }
    }
    words
}

fn class_words(class: Option<usize>, name: &str) -> String {
    match class {
        Some(0) | None => "being in no list".to_owned(),
        Some(_) => format!("class {name}"),
    }
}

/// Packets for forwarded hosts are not ours.
fn is_judged(policy: &Policy, peer: &Peer) -> bool {
    let services = &policy.ports;
    let asked = |port| services.iter().any(|service| service.tcp && service.number == port);
    policy.hook != crate::policy::Hook::Forward && (services.is_empty() || peer.port.is_none_or(asked))
}

fn interfaces(policy: &Policy) -> BTreeSet<u32> {
    let Ok(mut netlink) = Rtnetlink::open() else { return BTreeSet::new() };
    order::set(policy.interfaces.iter().filter_map(|name| Some(netlink.interface(name).ok()?.index)))
}

/// Whether the way to an address leads out by one of these interfaces, by which it is taken to come in as well; `None` where
/// there is no way to it.
fn comes_in_by(own: &BTreeSet<u32>, address: IpAddr) -> Option<bool> {
    if address.is_loopback() {
        return Some(false);
    }
    let way = Rtnetlink::open().and_then(|mut netlink| netlink.way_to(address, None)).ok()?;
    Some(own.contains(&way.interface))
}

/// Lists, in words, the default gateways and name servers that the host needs and whose packets a policy would drop.
pub fn warnings(policy: &Policy, root: &ProcRoot) -> Vec<String> {
    let own = interfaces(policy);
    let refused = |address: IpAddr| {
        policy.verdict(address).action == Action::Drop && comes_in_by(&own, address) == Some(true)
    };
    let mut words = BTreeSet::new();
    if let Ok(mut netlink) = Rtnetlink::open() {
        let mut gateways = BTreeSet::new();
        let each = |route: weir_netlink::RouteEntry| {
            if route.prefix == 0 && route.kind == RouteKind::Unicast && !route.remembered {
                gateways.extend(route.next_hop);
            }
        };
        // A table that cannot be read warns of nothing.
        let _ = netlink.each_route(|| (), each);
        for gateway in gateways.into_iter().filter(|a| refused(*a)) {
            words.insert(format!(
                "the default gateway {gateway}: what it says itself (path MTU, redirects) is thrown away; what it forwards is not meant"
            ));
        }
    }
    let resolvers = root.read_optional("etc/resolv.conf").unwrap_or_default();
    for line in resolvers.lines() {
        let server = line.strip_prefix("nameserver").and_then(|rest| rest.split_ascii_whitespace().next());
        let Some(server) = server.and_then(|text| text.parse::<IpAddr>().ok()) else { continue };
        if !policy.established_first && policy.ports.is_empty() && refused(server) {
            words.insert(format!(
                "the name server {server}: its answers are thrown away (list it, or use --established-first)"
            ));
        }
    }
    words.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Hook, Port};
    use crate::verify::tests::policy;

    fn peer(text: &str) -> Peer {
        Peer { address: text.parse().unwrap(), port: Some(22), why: "test".into() }
    }

    #[test]
    fn the_session_is_read_as_ssh_writes_it() {
        let nowhere = ProcRoot::new("/nonexistent");
        let of = |name: &'static str, text: &'static str| {
            administrators(&nowhere, move |asked| (asked == name).then(|| text.to_owned()))
                .into_iter()
                .filter(|p| p.why.starts_with("this session"))
                .map(|p| (p.address.to_string(), p.port))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            of("SSH_CONNECTION", "192.0.2.7 51000 192.0.2.1 2222"),
            [("192.0.2.7".into(), Some(2222))]
        );
        assert_eq!(of("SSH_CLIENT", "2001:db8::7 51000 22"), [("2001:db8::7".into(), Some(22))]);
        assert_eq!(of("SSH_CONNECTION", "::ffff:192.0.2.7 1 ::1 22"), [("192.0.2.7".into(), Some(22))]);
        assert_eq!(of("SSH_CONNECTION", "fe80::1%eth0 1 fe80::2%eth0 22"), [("fe80::1".into(), Some(22))]);
        assert!(of("SSH_CONNECTION", "nonsense").is_empty());
    }

    #[test]
    fn only_packets_that_are_judged_shut_somebody_out() {
        // In no list, and no interface eth0 here: the way to it leads elsewhere or nowhere, so is_judged decides.
        let outsider = peer("203.0.113.9");
        assert!(is_judged(&policy(), &outsider));
        assert!(!is_judged(&Policy { hook: Hook::Forward, ..policy() }, &outsider));
        let web = Policy { ports: vec![Port { tcp: true, number: 80 }], ..policy() };
        assert!(!is_judged(&web, &outsider));
        let ssh = Policy { ports: vec![Port { tcp: true, number: 22 }], ..policy() };
        assert!(is_judged(&ssh, &outsider));
        assert!(is_judged(&web, &Peer { port: None, ..outsider }), "which port it was is not known");
        assert!(shut_out(&policy(), &[peer("127.0.0.1"), peer("10.0.0.1")]).is_empty());
    }
}
