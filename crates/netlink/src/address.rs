//! Addresses, routes, neighbours (rtnetlink(7)).

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::message::{Attributes, Message, Received, address, family, octets, u32_ne};
use super::route::route_request;
use super::rtnetlink::{Mac, Rtnetlink};
use weir_sys::error::{Context, Error, Result};

/// IFA_F_NODAD: use the address at once, without asking the link whether someone else has it.
const NO_DAD: u8 = 0x02;
/// RTPROT_STATIC, RT_SCOPE_LINK, RT_SCOPE_UNIVERSE (include/uapi/linux/rtnetlink.h).
const STATIC: u8 = 4;
const SCOPE_LINK: u8 = 253;
const SCOPE_UNIVERSE: u8 = 0;
/// RTNH_F_ONLINK: take the next hop to be on the link although no address says so.
const ONLINK: u32 = 4;
/// RTAX_LOCK and RTAX_MTU.
const RTAX_LOCK: u16 = 1;
const RTAX_MTU: u16 = 2;

/// A route to be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route<'a> {
    /// Network and prefix length; `None` is the default route of the family of `via`.
    pub destination: Option<(IpAddr, u8)>,
    /// Next hop; `None`: the destination is on the link.
    pub via: Option<IpAddr>,
    /// Interface through which it goes.
    pub interface: &'a str,
    /// Take the next hop to be on the link although no address says so.
    pub onlink: bool,
}

impl Rtnetlink {
    /// Gives an interface an address. An IPv6 address is usable at once (no duplicate address detection).
    pub fn add_address(&mut self, interface: &str, address: IpAddr, prefix: u8) -> Result<()> {
        let what = || format!("add {address}/{prefix} to {interface}");
        check_prefix(address, prefix).map_err(|why| Error::other(what(), why))?;
        let index = self.index(interface)?;
        let flags = if address.is_ipv6() { NO_DAD } else { 0 };
        // struct ifaddrmsg: family, prefix length, flags, scope, index.
        let mut header = [0; 8];
        header[..4].copy_from_slice(&[family(address), prefix, flags, SCOPE_UNIVERSE]);
        header[4..].copy_from_slice(&index.to_ne_bytes());
        let message =
            Message::new(libc::RTM_NEWADDR, libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL)
                .raw(&header)
                .attr(libc::IFA_LOCAL, &octets(address))
                .attr(libc::IFA_ADDRESS, &octets(address));
        self.socket.request(message).context(what)
    }

    /// Waits until packets to an address of this namespace are taken in. The kernel answers [`Self::add_address`] before that
    /// for IPv6: a work queue adds the local route a little later (net/ipv6/addrconf.c, addrconf_dad_work).
    ///
    /// # Errors
    /// `TimedOut` if it is not so within the time.
    pub fn wait_until_local(&mut self, address: IpAddr, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        while !self.is_local(address)? {
            if Instant::now() >= deadline {
                let why = std::io::Error::from(std::io::ErrorKind::TimedOut);
                return Err(Error::new(format!("wait until {address} is usable"), why));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// True if a packet to the address would be taken in by this namespace.
    fn is_local(&mut self, address: IpAddr) -> Result<bool> {
        let message = route_request(address, None, 0);
        let mut local = false;
        // struct rtmsg has the route's type in its eighth byte.
        let asked = self
            .socket
            .request_with(message, |route| local |= route.payload.get(7) == Some(&libc::RTN_LOCAL));
        match asked.context(|| format!("look up a route to {address}")) {
            Ok(()) => Ok(local),
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENETUNREACH | libc::EHOSTUNREACH)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Adds a route to the main table.
    pub fn add_route(&mut self, route: Route<'_>) -> Result<()> {
        self.route(route, None)
    }

    /// Limits an existing route to packets of at most that many bytes. A router answers larger packets that must not be
    /// fragmented with "too big", and fragments the rest (IPv4).
    pub fn limit_route(&mut self, route: Route<'_>, mtu: u32) -> Result<()> {
        self.route(route, Some(mtu))
    }

    fn route(&mut self, route: Route<'_>, mtu: Option<u32>) -> Result<()> {
        let to =
            route.destination.map_or("default".to_owned(), |(network, prefix)| format!("{network}/{prefix}"));
        let what = || format!("add route {to} through {}", route.interface);
        let Some(any) = route.destination.map(|(network, _)| network).or(route.via) else {
            return Err(Error::other(what(), "a default route needs a next hop"));
        };
        let (network, prefix) = route.destination.unwrap_or((any, 0));
        check_prefix(network, prefix).map_err(|why| Error::other(what(), why))?;
        if route.via.is_some_and(|via| via.is_ipv6() != network.is_ipv6()) {
            return Err(Error::other(what(), "next hop and destination are of different families"));
        }
        let index = self.index(route.interface)?;
        let scope = if route.via.is_none() && network.is_ipv4() { SCOPE_LINK } else { SCOPE_UNIVERSE };
        // struct rtmsg: family, both prefix lengths, tos, table, protocol, scope, type, flags.
        let mut header = [0; 12];
        let fields = [family(network), prefix, 0, 0, libc::RT_TABLE_MAIN, STATIC, scope, libc::RTN_UNICAST];
        header[..8].copy_from_slice(&fields);
        header[8..].copy_from_slice(&(if route.onlink { ONLINK } else { 0 }).to_ne_bytes());
        let mode = if mtu.is_some() { libc::NLM_F_REPLACE } else { libc::NLM_F_EXCL };
        let mut message = Message::new(libc::RTM_NEWROUTE, libc::NLM_F_ACK | libc::NLM_F_CREATE | mode)
            .raw(&header)
            .attr_u32(libc::RTA_OIF, index);
        if prefix > 0 {
            message = message.attr(libc::RTA_DST, &octets(network));
        }
        if let Some(via) = route.via {
            message = message.attr(libc::RTA_GATEWAY, &octets(via));
        }
        if let Some(mtu) = mtu {
            // Locked: IPv6 forwards by a route's MTU only then (ip6_dst_mtu_maybe_forward), IPv4 in any case.
            let lock = 1 << RTAX_MTU;
            message =
                message.nest(libc::RTA_METRICS, |m| m.attr_u32(RTAX_LOCK, lock).attr_u32(RTAX_MTU, mtu));
        }
        self.socket.request(message).context(what)
    }

    /// Fixes the Ethernet address of a neighbour, so that none is ever asked for (NUD_PERMANENT).
    pub fn add_neighbour(&mut self, interface: &str, address: IpAddr, mac: Mac) -> Result<()> {
        let index = self.index(interface)?;
        // struct ndmsg: family, padding, index, state, flags, type.
        let mut header = [0; 12];
        header[0] = family(address);
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        header[8..10].copy_from_slice(&libc::NUD_PERMANENT.to_ne_bytes());
        header[11] = libc::RTN_UNICAST;
        let message =
            Message::new(libc::RTM_NEWNEIGH, libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE)
                .raw(&header)
                .attr(libc::NDA_DST, &octets(address))
                .attr(libc::NDA_LLADDR, &mac);
        self.socket.request(message).context(|| format!("fix neighbour {address} on {interface}"))
    }
}

fn check_prefix(address: IpAddr, prefix: u8) -> std::result::Result<(), String> {
    let most = if address.is_ipv4() { 32 } else { 128 };
    if prefix <= most { Ok(()) } else { Err(format!("prefix length {prefix} is above {most}")) }
}

/// (interface index, address, prefix length). The local address where there are two (point to point).
pub(super) fn read_address(received: Received<'_>) -> Option<(u32, IpAddr, u8)> {
    if received.kind != libc::RTM_NEWADDR || received.payload.len() < 8 {
        return None;
    }
    let attributes = Attributes::after(received.payload, 8);
    let local = attributes.get(libc::IFA_LOCAL).or_else(|| attributes.get(libc::IFA_ADDRESS))?;
    Some((u32_ne(&received.payload[4..8])?, address(local)?, received.payload[1]))
}
