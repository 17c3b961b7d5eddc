//! Links: veth pairs, bridges, their state (rtnetlink(7), include/uapi/linux/if_link.h).

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use super::links::{IFINFO, INFO_KIND, Link, has_ethernet_header, read_link};
use super::message::Message;
use super::rtnetlink::{Mac, Rtnetlink};
use weir_sys::NetNs;
use weir_sys::error::{Context, Error, Result};
use weir_sys::procfs::InterfaceCounters;

/// VETH_INFO_PEER (include/uapi/linux/veth.h): the other end's description.
const VETH_PEER: u16 = 1;
/// IFLA_INFO_DATA (include/uapi/linux/if_link.h).
const INFO_DATA: u16 = 2;
/// IFNAMSIZ without the terminating zero.
const NAME_MAX: usize = 15;

/// One interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// Number, unique in its namespace.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Set up by the administrator (IFF_UP).
    pub up: bool,
    /// MTU, bytes.
    pub mtu: u32,
    /// The type of its packets' first header: ARPHRD_... (linux/if_arp.h).
    pub link_type: u16,
    /// Ethernet address, if it has one of six bytes.
    pub mac: Option<Mac>,
    /// Kind of virtual device (`veth`, `bridge`), empty for others.
    pub kind: String,
    /// Index of the bridge that it belongs to.
    pub master: Option<u32>,
    /// Counters since it was made (IFLA_STATS64).
    pub counters: InterfaceCounters,
    /// Addresses with prefix length.
    pub addresses: Vec<(IpAddr, u8)>,
}

impl Interface {
    /// Whether an Ethernet header is before each packet. It is not on WireGuard, tun, PPP and most tunnels: what comes in there
    /// begins with its IP header.
    pub fn has_ethernet_header(&self) -> bool {
        has_ethernet_header(self.link_type)
    }
}

/// One end of a veth pair.
#[derive(Debug, Clone, Copy)]
pub struct VethEnd<'a> {
    /// Name, at most 15 bytes.
    pub name: &'a str,
    /// The namespace in which it is created; `None`: the namespace of the connection.
    pub namespace: Option<&'a NetNs>,
    /// MTU, bytes.
    pub mtu: u32,
    /// Ethernet address; `None` lets the kernel draw one.
    pub mac: Option<Mac>,
}

impl Rtnetlink {
    /// Makes a veth pair, each end directly where it belongs, so that no name is taken anywhere else for a moment.
    pub fn create_veth(&mut self, end: VethEnd<'_>, peer: VethEnd<'_>) -> Result<()> {
        let what = || format!("create veth {} to {}", end.name, peer.name);
        check_name(end.name).and_then(|()| check_name(peer.name)).map_err(|why| Error::other(what(), why))?;
        let message = new_link("veth", end, |m| {
            m.nest(INFO_DATA, |m| m.nest(VETH_PEER, |m| describe_end(m.raw(&[0; IFINFO]), peer)))
        });
        self.socket.request(message).context(what)
    }

    /// Makes a bridge without spanning tree and with multicast snooping off: it forwards, and says nothing by itself.
    pub fn create_bridge(&mut self, name: &str, mtu: u32, mac: Mac) -> Result<()> {
        /// IFLA_BR_STP_STATE and IFLA_BR_MCAST_SNOOPING (include/uapi/linux/if_link.h).
        const STP_STATE: u16 = 5;
        const MCAST_SNOOPING: u16 = 23;
        self.create("bridge", VethEnd { name, namespace: None, mtu, mac: Some(mac) }, |m| {
            m.nest(INFO_DATA, |m| m.attr_u32(STP_STATE, 0).attr(MCAST_SNOOPING, &[0]))
        })
    }

    /// Makes an interface at which every packet ends, without a word and without being a drop to who watches those: of kind `dummy`,
    /// which counts them as sent, or where the kernel has none `ifb`, which takes what was not redirected to it for a mistake and counts
    /// it as dropped on arrival.
    ///
    /// # Errors
    /// If the kernel has neither.
    pub fn create_end(&mut self, name: &str, mtu: u32) -> Result<()> {
        let end = VethEnd { name, namespace: None, mtu, mac: None };
        self.create("dummy", end, |m| m).or_else(|_| self.create("ifb", end, |m| m))
    }

    /// Makes an interface of that kind, described as an end of a veth pair is; `fill` adds what the kind alone has.
    fn create(&mut self, kind: &str, end: VethEnd<'_>, fill: impl FnOnce(Message) -> Message) -> Result<()> {
        let what = || format!("create {kind} {}", end.name);
        check_name(end.name).map_err(|why| Error::other(what(), why))?;
        self.socket.request(new_link(kind, end, fill)).context(what)
    }

    /// Sets the interface up.
    pub fn set_up(&mut self, name: &str) -> Result<()> {
        let index = self.index(name)?;
        let up = libc::IFF_UP as u32;
        let message = Message::new(libc::RTM_SETLINK, libc::NLM_F_ACK).raw(&ifinfo(index, up, up));
        self.socket.request(message).context(|| format!("set {name} up"))
    }

    /// Makes the interface a port of a bridge.
    pub fn set_master(&mut self, name: &str, bridge: &str) -> Result<()> {
        let bridge_index = self.index(bridge)?;
        self.change(name, &format!("attach {name} to {bridge}"), |m| {
            m.attr_u32(libc::IFLA_MASTER, bridge_index)
        })
    }

    /// Gives it another name. The interface must be down on kernels before 6.2.
    pub fn rename(&mut self, name: &str, new: &str) -> Result<()> {
        let what = format!("rename {name} to {new}");
        check_name(new).map_err(|why| Error::other(&*what, why))?;
        self.change(name, &what, |m| m.attr_str(libc::IFLA_IFNAME, new))
    }

    /// Sets the MTU, bytes.
    pub fn set_mtu(&mut self, name: &str, mtu: u32) -> Result<()> {
        self.change(name, &format!("set the MTU of {name} to {mtu}"), |m| m.attr_u32(libc::IFLA_MTU, mtu))
    }

    /// Removes it; of a veth pair both ends go.
    pub fn delete(&mut self, name: &str) -> Result<()> {
        let index = self.index(name)?;
        let message = Message::new(libc::RTM_DELLINK, libc::NLM_F_ACK).raw(&ifinfo(index, 0, 0));
        self.socket.request(message).context(|| format!("delete {name}"))
    }

    /// All interfaces of the namespace with addresses and counters, by index.
    pub fn interfaces(&mut self) -> Result<Vec<Interface>> {
        Ok(self.links()?.into_iter().map(Interface::from).collect())
    }

    /// One interface, without its addresses.
    ///
    /// # Errors
    /// The kernel's ENODEV if no interface has that name.
    pub fn interface(&mut self, name: &str) -> Result<Interface> {
        let what = || format!("find interface {name}");
        check_name(name).map_err(|why| Error::other(what(), why))?;
        let message = Message::new(libc::RTM_GETLINK, libc::NLM_F_ACK)
            .raw(&[0; IFINFO])
            .attr_str(libc::IFLA_IFNAME, name);
        let mut found = None;
        self.socket
            .request_with(message, |received| found = found.take().or(read_link(received)))
            .context(what)?;
        found.map(Interface::from).ok_or_else(|| Error::other(what(), "the kernel did not describe it"))
    }

    pub(super) fn index(&mut self, name: &str) -> Result<u32> {
        Ok(self.interface(name)?.index)
    }

    fn change(&mut self, name: &str, what: &str, fill: impl FnOnce(Message) -> Message) -> Result<()> {
        let index = self.index(name)?;
        let message = Message::new(libc::RTM_SETLINK, libc::NLM_F_ACK).raw(&ifinfo(index, 0, 0));
        self.socket.request(fill(message)).context(|| what.to_owned())
    }
}

/// Names that the kernel takes (dev_valid_name), refused here with words instead of a bare EINVAL.
fn check_name(name: &str) -> std::result::Result<(), String> {
    let valid = !name.is_empty()
        && name.len() <= NAME_MAX
        && name != "."
        && name != ".."
        && !name.bytes().any(|b| b == b'/' || b == b':' || b.is_ascii_whitespace() || b == 0);
    if valid {
        Ok(())
    } else {
        Err(format!("`{name}` is not an interface name (1 to {NAME_MAX} bytes, no / : or blank)"))
    }
}

/// A request for an interface of that kind.
fn new_link(kind: &str, end: VethEnd<'_>, fill: impl FnOnce(Message) -> Message) -> Message {
    let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    describe_end(Message::new(libc::RTM_NEWLINK, flags).raw(&[0; IFINFO]), end)
        .nest(libc::IFLA_LINKINFO, |m| fill(m.attr_str(INFO_KIND, kind)))
}

fn describe_end(message: Message, end: VethEnd<'_>) -> Message {
    let mut message = message.attr_str(libc::IFLA_IFNAME, end.name).attr_u32(libc::IFLA_MTU, end.mtu);
    if let Some(mac) = end.mac {
        message = message.attr(libc::IFLA_ADDRESS, &mac);
    }
    match end.namespace {
        Some(namespace) => {
            message.attr_u32(libc::IFLA_NET_NS_FD, namespace.as_fd().as_raw_fd().unsigned_abs())
        }
        None => message,
    }
}

/// `struct ifinfomsg`: family, padding, type, index, flags, mask of the flags to change.
fn ifinfo(index: u32, flags: u32, change: u32) -> [u8; IFINFO] {
    let mut header = [0; IFINFO];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

impl From<Link> for Interface {
    fn from(link: Link) -> Self {
        let count = |name: &str| link.counters.get(name).copied().unwrap_or(0);
        Interface {
            counters: InterfaceCounters {
                rx_packets: count("rx_packets"),
                tx_packets: count("tx_packets"),
                rx_bytes: count("rx_bytes"),
                tx_bytes: count("tx_bytes"),
                rx_errors: count("rx_errors"),
                tx_errors: count("tx_errors"),
                rx_dropped: count("rx_dropped"),
                tx_dropped: count("tx_dropped"),
            },
            index: link.index,
            name: link.name,
            up: link.up,
            mtu: link.mtu,
            link_type: link.link_type,
            mac: link.address.try_into().ok(),
            kind: link.kind,
            master: link.master,
            addresses: link.addresses,
        }
    }
}
