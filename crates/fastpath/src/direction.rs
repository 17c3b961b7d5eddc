//! One direction of a flow: as the programs have it, and for people.

use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_netlink::conntrack::Tuple;

use crate::Protocol;
use crate::shared::{WeirDirection, WeirEntry};

/// How packets of one direction of a flow leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WayOut {
    /// Source with which they leave.
    pub source: SocketAddr,
    /// Destination with which they leave.
    pub destination: SocketAddr,
    /// Number of the interface that they come in by.
    pub came_by: u32,
    /// Number of the interface that they leave by.
    pub goes_by: u32,
    /// Longest packet that is carried, from its IP header on, bytes.
    pub longest: u16,
}

/// A tuple as the programs have it.
pub(crate) fn direction(tuple: &Tuple) -> WeirDirection {
    let (source, destination) = (tuple.source.ip(), tuple.destination.ip());
    let ports = (u32::from(tuple.source_port) << 16 | u32::from(tuple.destination_port)).to_be();
    WeirDirection {
        source: words(source),
        destination: words(destination),
        ports,
        version: if source.is_ipv6() { 6 } else { 4 },
        protocol: tuple.protocol.into(),
    }
}

/// The tuple of what the programs have.
pub(crate) fn tuple(direction: &WeirDirection) -> Tuple {
    let address = |words: &[u32; 4]| match direction.version {
        4 => IpAddr::from(words[0].to_ne_bytes()),
        _ => {
            let mut bytes = [0; 16];
            bytes.chunks_exact_mut(4).zip(words).for_each(|(b, w)| b.copy_from_slice(&w.to_ne_bytes()));
            IpAddr::from(bytes)
        }
    };
    let ports = u32::from_be(direction.ports);
    Tuple {
        source: address(&direction.source).into(),
        destination: address(&direction.destination).into(),
        protocol: direction.protocol as u8,
        source_port: (ports >> 16) as u16,
        destination_port: ports as u16,
    }
}

/// An address in network order; IPv4 in the first word.
pub(crate) fn words(address: IpAddr) -> [u32; 4] {
    let mut words = [0; 4];
    let word = |b: &[u8]| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
    match address {
        IpAddr::V4(a) => words[0] = word(&a.octets()),
        IpAddr::V6(a) => words.iter_mut().zip(a.octets().chunks_exact(4)).for_each(|(w, b)| *w = word(b)),
    }
    words
}

/// The protocol of one direction: the programs know two.
pub(crate) fn protocol(direction: &WeirDirection) -> Protocol {
    if direction.protocol == 6 { Protocol::Tcp } else { Protocol::Udp }
}

/// Both ends of a tuple.
pub(crate) fn ends(tuple: &Tuple) -> (SocketAddr, SocketAddr) {
    let end = |address: IpAddr, port| SocketAddr::new(address, port);
    (end(tuple.source.ip(), tuple.source_port), end(tuple.destination.ip(), tuple.destination_port))
}

impl WayOut {
    pub(crate) fn of(entry: &WeirEntry, version: u16, protocol: u16) -> Self {
        let WeirEntry { way, source, destination, ports } = *entry;
        let (source, destination) =
            ends(&tuple(&WeirDirection { source, destination, ports, version, protocol }));
        WayOut {
            source,
            destination,
            came_by: way.came_by.into(),
            goes_by: way.goes_by.into(),
            longest: way.longest,
        }
    }
}
