//! The path of a sender's frames on its own link.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use weir_netlink::Rtnetlink;
use weir_wire::Mac;

use crate::Error;
use crate::flow_order::Tuple;
use crate::transfer::{Inject, Link};

/// How long a host on the link may take to tell its Ethernet address. Linux asks three times, a second apart
/// (net.ipv4.neigh.default.mcast_solicit and retrans_time_ms).
const RESOLVE: Duration = Duration::from_secs(4);
/// How often the answer is looked for.
const POLL: Duration = Duration::from_millis(2);
/// The discard port (RFC 863): a datagram to it asks nothing of its receiver.
const DISCARD: u16 = 9;
/// Source of frames that are handed to a gateway without a wire, if the initiator's own address is not known: a locally
/// administered address that no host has.
const NOBODY: Mac = [0x02, 0, 0, 0, 0, 0x01];

/// The link-layer side of a sender's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// Index of the interface by which frames leave, or at which they enter ([`Inject::Gateway`]).
    pub interface: u32,
    /// Ethernet address that they have as their source.
    pub source: Mac,
    /// Ethernet address that they are sent to.
    pub destination: Mac,
}

/// Finds the way from this thread's namespace to `target`, which is the link's own for an initiator, and what was learnt
/// of the initiator for a responder.
///
/// # Errors
/// If there is no such interface, no route, or the next hop does not say its Ethernet address within four seconds.
pub fn find(link: &Link, target: IpAddr) -> Result<Path, Error> {
    let mut net = Rtnetlink::open()?;
    let interface = net.interface(&link.interface)?;
    let own = interface.mac.ok_or_else(|| {
        Error::Unfit(format!("{} has no Ethernet address: frames cannot be sent by it", link.interface))
    })?;
    if !interface.up {
        return Err(Error::Unfit(format!("{} is down: set it up (ip link set {0} up)", link.interface)));
    }
    if link.inject == Inject::Gateway {
        let source = net.neighbour(interface.index, link.address)?.unwrap_or(NOBODY);
        return Ok(Path { interface: interface.index, source, destination: own });
    }
    let way = net.way_to(target, Some(interface.index))?;
    let destination = match net.neighbour(interface.index, way.next_hop)? {
        Some(mac) => mac,
        None => resolve(&mut net, interface.index, link.address, target, way.next_hop)?,
    };
    Ok(Path { interface: interface.index, source: own, destination })
}

/// As [`find`], to where the first of these flows goes.
///
/// # Errors
/// As [`find`]; without any flow.
pub(crate) fn of_flows(link: &Link, flows: &[(u32, Tuple)]) -> Result<Path, Error> {
    let Some((_, first)) = flows.first() else {
        return Err(Error::Unfit("no flow has come through: there is none to answer".into()));
    };
    find(link, first.destination)
}

/// Makes the kernel ask for an address by sending a datagram, and waits for the answer.
fn resolve(
    net: &mut Rtnetlink,
    interface: u32,
    own: IpAddr,
    target: IpAddr,
    next_hop: IpAddr,
) -> Result<Mac, Error> {
    let failed = |e: std::io::Error| Error::Sys(weir_sys::Error::new(format!("ask for {next_hop}"), e));
    let socket = UdpSocket::bind(SocketAddr::new(own, 0)).map_err(failed)?;
    socket.connect(SocketAddr::new(target, DISCARD)).map_err(failed)?;
    // The next send reports the error of an earlier datagram (closed port), which means that it did arrive.
    match socket.send(&[]) {
        Err(e) if e.kind() != std::io::ErrorKind::ConnectionRefused => return Err(failed(e)),
        _ => {}
    }
    let deadline = Instant::now() + RESOLVE;
    loop {
        if let Some(mac) = net.neighbour(interface, next_hop)? {
            return Ok(mac);
        }
        if Instant::now() >= deadline {
            return Err(Error::Unfit(format!(
                "{next_hop}, the next hop to {target}, does not tell its Ethernet address"
            )));
        }
        std::thread::sleep(POLL);
    }
}
