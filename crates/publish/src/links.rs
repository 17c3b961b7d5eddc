//! The interfaces between which packets are passed on.

use weir_netlink::{Link, Rtnetlink};

use crate::{Error, Result};

/// Numbers of interfaces in one network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Links {
    /// Towards the clients.
    pub outer: u32,
    /// The host's end of the container's link.
    pub container: u32,
    /// By which the host's routing sees the container's packets come in: the bridge that the link is part of, or the link
    /// itself.
    pub bridge: u32,
}

impl Links {
    /// Finds them by name in the calling thread's namespace.
    ///
    /// # Errors
    /// [`Error::Link`] if there is no such interface, if the outer one carries packets without an Ethernet header (a tunnel), or
    /// if the container's is no veth pair with its other end in another namespace, which is what the kernel can put a packet into
    /// from here.
    pub fn find(outer: &str, container: &str) -> Result<Self> {
        let links = Rtnetlink::open()?.links()?;
        let find = |name: &str| {
            links
                .iter()
                .find(|l| l.name == name)
                .ok_or_else(|| Error::Link(format!("there is no interface `{}` here", name.escape_default())))
        };
        let (outer, container) = (find(outer)?, find(container)?);
        let wrong = |link: &Link, what: &str| {
            Err(Error::Link(format!("interface `{}` {what}", link.name.escape_default())))
        };
        if !outer.has_ethernet_header() {
            return wrong(
                outer,
                "is none with an Ethernet header (as of WireGuard, tun, PPP and most tunnels): packets come without what is looked for",
            );
        }
        if container.kind != "veth" {
            return wrong(container, "is no veth pair: name the host's end of the container's link");
        }
        if container.link_namespace.is_none() {
            let why = "has its other end in this network namespace, too: there is no container behind it";
            return wrong(container, why);
        }
        let bridge = container.master.unwrap_or(container.index);
        if outer.index == container.index || outer.index == bridge {
            return wrong(container, "and the outer interface must be two");
        }
        Ok(Links { outer: outer.index, container: container.index, bridge })
    }
}
