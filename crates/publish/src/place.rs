//! Finds interfaces on this host: the link of a container, and the interface that leads outside.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use weir_netlink::{Asking, Link, RouteKind, Rtnetlink};
use weir_sys::{ProcRoot, sysctl};
use weir_text::order;

use crate::{Error, Links, Result};

/// How long a container may take to say that it is there. One on this machine does so at once.
const PATIENCE: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(10);
/// Discard (RFC 863): packets to this port have no receiver.
const DISCARD: u16 = 9;
/// RT_TABLE_MAIN.
const MAIN: u32 = 254;

/// The interfaces of this network namespace.
pub(crate) struct HostLinks {
    netlink: Rtnetlink,
    links: Vec<Link>,
}

impl HostLinks {
    pub(crate) fn look() -> Result<Self> {
        let mut netlink = Rtnetlink::open()?;
        let links = netlink.links()?;
        Ok(HostLinks { netlink, links })
    }

    pub(crate) fn link(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|l| l.index == index)
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|l| l.name == name)
    }

    /// The interface that is named, or the one that the default routes lead to.
    pub(crate) fn outer(&mut self, name: Option<&str>) -> Result<Link> {
        if let Some(name) = name {
            let missing = || Error::Link(format!("there is no interface `{}` here", name.escape_default()));
            return self.named(name).cloned().ok_or_else(missing);
        }
        let mut found: Vec<u32> = Vec::new();
        self.netlink.each_route(
            || {},
            |route| {
                let default = route.prefix == 0 && route.table == MAIN && route.kind == RouteKind::Unicast;
                if default && route.interface != 0 && !found.contains(&route.interface) {
                    found.push(route.interface);
                }
            },
        )?;
        let links: Vec<&Link> = found.iter().filter_map(|index| self.link(*index)).collect();
        match links[..] {
            [only] => Ok(only.clone()),
            [] => Err(Error::Link(
                "there is no default route: say with --interface where clients come in".into(),
            )),
            _ => {
                let names: Vec<String> =
                    links.iter().map(|l| format!("`{}`", l.name.escape_default())).collect();
                let names = names.join(", ");
                Err(Error::Link(format!(
                    "default routes lead to {names}: say with --interface where clients come in"
                )))
            }
        }
    }

    /// The host's end of the link behind which that address is; in words why there is none.
    pub(crate) fn container(&mut self, address: IpAddr) -> std::result::Result<Link, String> {
        let route = self
            .netlink
            .resolve(&Asking::to(address))
            .map_err(|e| format!("there is no way to the container: {e}"))?;
        if route.kind == RouteKind::Local {
            return Err("it is an address of this host, not of a container".into());
        }
        if let Some(hop) = route.next_hop.filter(|hop| *hop != address) {
            return Err(format!("it is behind the router {hop}, not on this host"));
        }
        let Some(way) = self.link(route.interface).cloned() else {
            return Err("the interface that leads to it is gone".into());
        };
        let shown = way.name.escape_default().to_string();
        let link = match way.kind.as_str() {
            "veth" => way,
            "bridge" => self.port(&way, address)?,
            "" => return Err(format!("`{shown}`, which leads to it, is neither a bridge nor a veth pair")),
            kind => {
                return Err(format!(
                    "`{shown}`, which leads to it, is a {kind}, not a bridge or a veth pair"
                ));
            }
        };
        Ok(link)
    }

    /// The bridge's port behind which that address is, which is asked whether it is there.
    fn port(&mut self, bridge: &Link, address: IpAddr) -> std::result::Result<Link, String> {
        let deadline = Instant::now() + PATIENCE;
        let shown = bridge.name.escape_default();
        loop {
            let mut mac = None;
            let known = self.netlink.each_neighbour(|n| {
                if n.interface == bridge.index && n.address == address {
                    mac = n.mac;
                }
            });
            known.map_err(|e| e.to_string())?;
            if let Some(mac) = mac {
                let table = self.netlink.forwarding().map_err(|e| e.to_string())?;
                let entry = table.iter().find(|f| f.bridge == bridge.index && f.mac == mac);
                if let Some(port) = entry.and_then(|f| self.link(f.port)) {
                    return Ok(port.clone());
                }
            }
            if Instant::now() >= deadline {
                return Err(format!(
                    "no host answers for {address} at the bridge `{shown}`: is the container running?"
                ));
            }
            // Any packet there makes the kernel ask who has the address, and the bridge learn where the answer comes from.
            ask(address);
            std::thread::sleep(RETRY);
        }
    }

    /// Why the host would not pass on what comes from the container; `None` if it would.
    pub(crate) fn forwards(&self, links: Links, ipv6: bool) -> Option<String> {
        let name = &self.link(links.bridge)?.name;
        let version = if ipv6 { 6 } else { 4 };
        // A dot in a name of an interface is written as a slash (sysctl(8)).
        let setting = format!("net.ipv{version}.conf.{}.forwarding", name.replace('.', "/"));
        let value = sysctl::get_optional(&ProcRoot::default(), &setting).ok().flatten();
        (value.as_deref() != Some("1")).then(|| {
            format!(
                "this host forwards nothing that comes from the container: {} is not 1",
                setting.escape_default()
            )
        })
    }
}

/// Sends an empty datagram.
fn ask(address: IpAddr) {
    let any: IpAddr = match address {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    // A packet that cannot be sent gets no answer, and the caller reports that at the deadline.
    let _ = UdpSocket::bind((any, 0)).and_then(|s| s.send_to(&[], SocketAddr::new(address, DISCARD)));
}

/// Addresses of an interface that clients elsewhere can send to.
pub(crate) fn global(link: &Link, ipv6: bool) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = link.addresses.iter().map(|(address, _)| *address).collect();
    found.retain(|address| match address {
        IpAddr::V4(a) => !ipv6 && !a.is_link_local() && !a.is_loopback(),
        IpAddr::V6(a) => ipv6 && !a.is_unicast_link_local() && !a.is_loopback(),
    });
    order::by_key(&mut found, |address| *address);
    found.dedup();
    found
}
