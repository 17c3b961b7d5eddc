//! Asking the kernel which way a packet would go (rtnetlink(7)).

use std::net::IpAddr;

use super::message::{Attributes, Message, address, family, octets, u16_ne, u32_ne};
use super::rtnetlink::{Mac, Rtnetlink};
use weir_sys::error::{Context, Error, Result};

/// Bytes of `struct rtmsg` and `struct ndmsg`.
const ROUTE_HEADER: usize = 12;
const NEIGHBOUR_HEADER: usize = 12;
/// The states of a neighbour whose Ethernet address may be used (NUD_VALID, include/net/neighbour.h).
const VALID: u16 = libc::NUD_REACHABLE
    | libc::NUD_STALE
    | libc::NUD_DELAY
    | libc::NUD_PROBE
    | libc::NUD_PERMANENT
    | libc::NUD_NOARP;

/// The way that a packet would go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Index of the interface that it would leave by.
    pub interface: u32,
    /// Host on that link which it would be handed to: the next hop, or the destination itself.
    pub next_hop: IpAddr,
    /// Address that it would have as its source.
    pub source: Option<IpAddr>,
}

impl Rtnetlink {
    /// The way to a destination, as `ip route get` shows it; through that interface if one is given.
    ///
    /// # Errors
    /// The kernel's ENETUNREACH or EHOSTUNREACH if there is none.
    pub fn way_to(&mut self, destination: IpAddr, through: Option<u32>) -> Result<Way> {
        let what = || format!("look up a route to {destination}");
        let mut message = route_request(destination, None, 0);
        if let Some(index) = through {
            message = message.attr_u32(libc::RTA_OIF, index);
        }
        let mut way = None;
        let read = |payload: &[u8]| {
            let attributes = Attributes::after(payload, ROUTE_HEADER);
            Some(Way {
                interface: u32_ne(attributes.get(libc::RTA_OIF)?)?,
                next_hop: next_hop(attributes).unwrap_or(destination),
                source: attributes.get(libc::RTA_PREFSRC).and_then(address),
            })
        };
        self.socket
            .request_with(message, |received| {
                if received.kind == libc::RTM_NEWROUTE {
                    way = way.or_else(|| read(received.payload));
                }
            })
            .context(what)?;
        way.ok_or_else(|| Error::other(what(), "the kernel named no interface"))
    }

    /// Returns the Ethernet address of a host on an interface's link, if the kernel knows it at the moment. Sends no request on
    /// the link.
    pub fn neighbour(&mut self, interface: u32, host: IpAddr) -> Result<Option<Mac>> {
        // struct ndmsg: family, padding, index, state, flags, type.
        let mut header = [0; NEIGHBOUR_HEADER];
        header[0] = family(host);
        header[4..8].copy_from_slice(&interface.to_ne_bytes());
        let message =
            Message::new(libc::RTM_GETNEIGH, libc::NLM_F_ACK).raw(&header).attr(libc::NDA_DST, &octets(host));
        let mut mac = None;
        let asked = self.socket.request_with(message, |received| {
            let state = received.payload.get(8..).and_then(u16_ne).unwrap_or(0);
            if received.kind == libc::RTM_NEWNEIGH && state & VALID != 0 {
                let attributes = Attributes::after(received.payload, NEIGHBOUR_HEADER);
                mac = attributes.get(libc::NDA_LLADDR).and_then(|bytes| bytes.try_into().ok());
            }
        });
        match asked.context(|| format!("look up the Ethernet address of {host}")) {
            Ok(()) => Ok(mac),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// The question which route leads there, from that source if one is given.
pub(super) fn route_request(destination: IpAddr, source: Option<IpAddr>, flags: u32) -> Message {
    let bits = |a: IpAddr| if a.is_ipv4() { 32 } else { 128 };
    // struct rtmsg: family, both prefix lengths, tos, table, protocol, scope, type, flags.
    let mut header = [0; ROUTE_HEADER];
    header[..3].copy_from_slice(&[family(destination), bits(destination), source.map_or(0, bits)]);
    header[8..].copy_from_slice(&flags.to_ne_bytes());
    let message = Message::new(libc::RTM_GETROUTE, libc::NLM_F_ACK)
        .raw(&header)
        .attr(libc::RTA_DST, &octets(destination));
    match source {
        Some(source) => message.attr(libc::RTA_SRC, &octets(source)),
        None => message,
    }
}

/// The gateway of a route, also where it is of the other family (RTA_VIA: a family, then the address).
pub(super) fn next_hop(attributes: Attributes<'_>) -> Option<IpAddr> {
    let via = || attributes.get(libc::RTA_VIA).and_then(|bytes| address(bytes.get(2..)?));
    attributes.get(libc::RTA_GATEWAY).and_then(address).or_else(via)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VethEnd;
    use weir_sys::NetNs;
    use weir_sys::privilege::test_needs_root;

    #[test]
    fn root_the_way_and_the_neighbour_are_those_that_were_set() {
        if test_needs_root() {
            return;
        }
        let (here, there) = (NetNs::create().unwrap(), NetNs::create().unwrap());
        let mut net = Rtnetlink::open_in(&here).unwrap();
        let end = |name, namespace| VethEnd { name, namespace, mtu: 1500, mac: None };
        net.create_veth(end("a", None), end("b", Some(&there))).unwrap();
        Rtnetlink::open_in(&there).unwrap().set_up("b").unwrap();
        net.set_up("a").unwrap();
        let index = net.interface("a").unwrap().index;
        for (own, hop, far) in
            [("198.18.0.1", "198.18.0.2", "198.19.7.7"), ("2001:2::1", "2001:2::2", "2001:2:0:1::7")]
        {
            let [own, hop, far]: [IpAddr; 3] = [own, hop, far].map(|a| a.parse().unwrap());
            let (prefix, length) = if own.is_ipv4() { (24, 32) } else { (64, 128) };
            net.add_address("a", own, prefix).unwrap();
            let route = super::super::Route {
                destination: Some((far, length)),
                via: Some(hop),
                interface: "a",
                onlink: false,
            };
            assert!(net.way_to(far, None).is_err(), "there is no route yet");
            net.add_route(route).unwrap();
            let way = net.way_to(far, None).unwrap();
            assert_eq!((way.interface, way.next_hop, way.source), (index, hop, Some(own)));
            assert_eq!(net.way_to(hop, Some(index)).unwrap().next_hop, hop);
            assert_eq!(net.neighbour(index, hop).unwrap(), None);
            let mac = [2, 0, 0, 0, 0, 9];
            net.add_neighbour("a", hop, mac).unwrap();
            assert_eq!(net.neighbour(index, hop).unwrap(), Some(mac));
        }
    }
}
