//! A NAT64 for the lab: translation of headers (RFC 7915) in front of the reference NAT of IPv4 (RFC 6146 section 3.5), for UDP and
//! TCP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use weir_lab::{Role, Site};
use weir_nat::{Packet, Side};
use weir_netlink::{Route, Rtnetlink};

use super::{Output, Reference};

/// The well-known prefix (RFC 6052 section 2.1).
const PREFIX: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];
/// The lab's inside hosts, with the last byte of theirs.
const INSIDE: [u8; 3] = [198, 18, 0];
const INSIDE_V6: [u16; 7] = [0x2001, 2, 0, 0, 0, 0, 0];
/// Addresses of the responder, and the next hop to those of the NAT.
pub(crate) const OUTSIDE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(198, 19, 0, 2)), IpAddr::V4(Ipv4Addr::new(198, 19, 0, 22))];
const NEXT_HOP: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 19, 0, 1));
const OF_NAT: (IpAddr, u8) = (IpAddr::V4(Ipv4Addr::new(198, 19, 1, 0)), 24);

/// How inside hosts know an address of IPv4.
pub(crate) fn known_as(address: Ipv4Addr) -> Ipv6Addr {
    let [a, b, c, d] = address.octets();
    let [p, q, r, s, t, u] = PREFIX;
    Ipv6Addr::from([p, q, r, s, t, u, u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])])
}

/// Makes the far end of a lab of IPv6 one of IPv4.
pub(crate) fn prepare(site: &Site) {
    let mut gateway = Rtnetlink::open_in(site.host(Role::Gateway).unwrap()).unwrap();
    let outside = &*site.addresses().outside_interface;
    let mac = gateway.interface(outside).unwrap().mac.unwrap();
    let on_link = |destination, interface| Route {
        destination: Some(destination),
        via: None,
        interface,
        onlink: false,
    };
    // Its kernel forwards nothing. Without a route it would answer that there is none.
    gateway.add_route(on_link((known_as(Ipv4Addr::UNSPECIFIED).into(), 96), outside)).unwrap();
    let interface = site.interfaces(Role::Responder).remove(0);
    let mut responder = Rtnetlink::open_in(site.host(Role::Responder).unwrap()).unwrap();
    for address in OUTSIDE {
        responder.add_address(&interface, address, 24).unwrap();
    }
    responder.add_neighbour(&interface, NEXT_HOP, mac).unwrap();
    responder.add_route(Route { via: Some(NEXT_HOP), ..on_link(OF_NAT, &interface) }).unwrap();
}

/// A packet that comes to the gateway, and those that leave it.
pub(crate) fn handle(side: Side, packet: Packet, mut nat: impl FnMut(Side, Packet) -> Output) -> Output {
    let Some(packet) = (if side == Side::Inside { moved(&packet, to_v4) } else { Some(packet) }) else {
        return Vec::new();
    };
    let out = nat(side, packet).into_iter();
    out.filter_map(|(side, packet)| {
        let packet = if side == Side::Inside { moved(&packet, to_v6)? } else { packet };
        Some((side, packet))
    })
    .collect()
}

/// Hosts' addresses begin with the lab's prefix, all others with that of the NAT64.
fn to_v4(address: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(address) = address else { return None };
    let (groups, octets) = (address.segments(), address.octets());
    if groups[..7] == INSIDE_V6 {
        return Some(Ipv4Addr::new(INSIDE[0], INSIDE[1], INSIDE[2], octets[15]).into());
    }
    (groups[..6] == PREFIX).then(|| Ipv4Addr::new(octets[12], octets[13], octets[14], octets[15]).into())
}

fn to_v6(address: IpAddr) -> Option<IpAddr> {
    let IpAddr::V4(address) = address else { return None };
    let octets = address.octets();
    if octets[..3] != INSIDE {
        return Some(known_as(address).into());
    }
    let [a, b, c, d, e, f, g] = INSIDE_V6;
    Some(Ipv6Addr::from([a, b, c, d, e, f, g, octets[3].into()]).into())
}

/// The same datagram or segment between the addresses of the other version.
fn moved(packet: &Packet, address: impl Fn(IpAddr) -> Option<IpAddr>) -> Option<Packet> {
    let end = |end: SocketAddr| Some(SocketAddr::new(address(end.ip())?, end.port()));
    let (from, to) = (end(packet.from()?)?, end(packet.to()?)?);
    if let Some(data) = packet.udp_data() {
        return Some(Packet::udp(from, to, data));
    }
    let (header, data) = packet.tcp_segment()?;
    Some(Packet::tcp_with_options(from, to, header, packet.tcp_options()?, data))
}
