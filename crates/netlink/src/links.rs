//! All that a link says of itself, and which namespace the other end of a veth is in (rtnetlink(7),
//! include/uapi/linux/if_link.h).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use super::address::read_address;
use super::message::{Attributes, Message, Received, text, u32_ne};
use super::rtnetlink::Rtnetlink;
use weir_sys::NetNs;
use weir_sys::error::{Context, Result};

/// Bytes of `struct ifinfomsg`.
pub(super) const IFINFO: usize = 16;
/// IFLA_INFO_KIND.
pub(super) const INFO_KIND: u16 = 1;
/// IFLA_XDP_ATTACHED, and the program's number by mode, with the values of the former that they go with (XDP_ATTACHED_DRV,
/// XDP_ATTACHED_SKB, XDP_ATTACHED_HW).
const XDP_PROGRAMS: [(u16, XdpAttachment); 3] =
    [(5, XdpAttachment::Native), (6, XdpAttachment::Generic), (7, XdpAttachment::Offloaded)];
/// IFLA_XDP_ATTACHED and IFLA_XDP_PROG_ID: the only ones of kernels before 4.20.
const XDP_ATTACHED: u16 = 2;
const XDP_PROG_ID: u16 = 4;
/// NETNSA_NSID and NETNSA_FD (include/uapi/linux/net_namespace.h).
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
/// NETNSA_NSID_NOT_ASSIGNED.
const NOT_ASSIGNED: u32 = u32::MAX;

/// Words of `struct rtnl_link_stats64`, in its order.
const COUNTERS: [&str; 25] = [
    "rx_packets",
    "tx_packets",
    "rx_bytes",
    "tx_bytes",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
    "multicast",
    "collisions",
    "rx_length_errors",
    "rx_over_errors",
    "rx_crc_errors",
    "rx_frame_errors",
    "rx_fifo_errors",
    "rx_missed_errors",
    "tx_aborted_errors",
    "tx_carrier_errors",
    "tx_fifo_errors",
    "tx_heartbeat_errors",
    "tx_window_errors",
    "rx_compressed",
    "tx_compressed",
    "rx_nohandler",
    "rx_otherhost_dropped",
];

/// The place in which an XDP program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpAttachment {
    /// In the driver.
    Native,
    /// In the stack.
    Generic,
    /// In the card.
    Offloaded,
}

/// One interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Number, unique in its namespace.
    pub index: u32,
    /// Name; text from outside.
    pub name: String,
    /// Kind of virtual device (`veth`, `bridge`), empty of others.
    pub kind: String,
    /// The type of its packets' first header: ARPHRD_... (linux/if_arp.h).
    pub link_type: u16,
    /// Ethernet or other address.
    pub address: Vec<u8>,
    /// MTU, bytes.
    pub mtu: u32,
    /// IFF_UP.
    pub up: bool,
    /// IFF_LOWER_UP: there is a carrier.
    pub carrier: bool,
    /// Changes of the carrier since it was made (IFLA_CARRIER_CHANGES).
    pub carrier_changes: u64,
    /// Number of the bridge or bond that it is part of.
    pub master: Option<u32>,
    /// Number of the interface that it belongs to (IFLA_LINK): of a veth its other end, of a VLAN what it lies on.
    pub link: Option<u32>,
    /// The kernel's number, in this namespace, of the one in which [`Link::link`] is; `None` if it is here.
    pub link_namespace: Option<u32>,
    /// Frames that may wait to be sent (`txqueuelen`).
    pub tx_queue_length: u32,
    /// Receive queues.
    pub rx_queues: u32,
    /// Transmit queues.
    pub tx_queues: u32,
    /// Counters since it was made, by their names in `struct rtnl_link_stats64`.
    pub counters: BTreeMap<&'static str, u64>,
    /// XDP programs by number.
    pub xdp: Vec<(XdpAttachment, u32)>,
    /// Addresses with prefix length.
    pub addresses: Vec<(IpAddr, u8)>,
}

impl Link {
    /// As [`super::Interface::has_ethernet_header`].
    pub fn has_ethernet_header(&self) -> bool {
        has_ethernet_header(self.link_type)
    }
}

/// The same by the type of an interface.
pub(super) fn has_ethernet_header(link_type: u16) -> bool {
    matches!(link_type, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK)
}

impl Rtnetlink {
    /// All interfaces of the namespace, by number.
    ///
    /// # Errors
    /// `Interrupted` if interfaces came or went meanwhile.
    pub fn links(&mut self) -> Result<Vec<Link>> {
        let mut links: BTreeMap<u32, Link> = BTreeMap::new();
        let message = Message::new(libc::RTM_GETLINK, libc::NLM_F_DUMP).raw(&[0; IFINFO]);
        self.socket
            .request_with(message, |received| links.extend(read_link(received).map(|l| (l.index, l))))
            .context(|| "list interfaces".into())?;
        let message = Message::new(libc::RTM_GETADDR, libc::NLM_F_DUMP).raw(&[0; 8]);
        self.socket
            .request_with(message, |received| {
                let Some((index, address, prefix)) = read_address(received) else { return };
                if let Some(link) = links.get_mut(&index) {
                    link.addresses.push((address, prefix));
                }
            })
            .context(|| "list addresses".into())?;
        Ok(links.into_values().collect())
    }

    /// The kernel's number for a namespace as this one knows it, which is what [`Link::link_namespace`] holds. `None` if it
    /// has none. Gives it none.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn number_of(&mut self, namespace: &NetNs) -> Result<Option<u32>> {
        // struct rtgenmsg: the family alone.
        let descriptor = namespace.as_fd().as_raw_fd().unsigned_abs();
        let message =
            Message::new(libc::RTM_GETNSID, libc::NLM_F_ACK).raw(&[0]).attr_u32(NETNSA_FD, descriptor);
        let mut number = None;
        self.socket
            .request_with(message, |received| {
                if received.kind == libc::RTM_NEWNSID {
                    number = Attributes::after(received.payload, 4).get(NETNSA_NSID).and_then(u32_ne);
                }
            })
            .context(|| "ask for the number of a network namespace".into())?;
        Ok(number.filter(|n| *n != NOT_ASSIGNED))
    }
}

pub(super) fn read_link(received: Received<'_>) -> Option<Link> {
    if received.kind != libc::RTM_NEWLINK || received.payload.len() < IFINFO {
        return None;
    }
    let flags = u32_ne(&received.payload[8..12])?;
    let mut link = Link {
        index: u32_ne(&received.payload[4..8])?,
        link_type: u16::from_ne_bytes([received.payload[2], received.payload[3]]),
        up: flags & libc::IFF_UP as u32 != 0,
        carrier: flags & libc::IFF_LOWER_UP as u32 != 0,
        ..Link::default()
    };
    for (kind, payload) in Attributes::after(received.payload, IFINFO) {
        let number = || u32_ne(payload);
        match kind {
            libc::IFLA_IFNAME => link.name = text(payload),
            libc::IFLA_ADDRESS => link.address = payload.to_vec(),
            libc::IFLA_MTU => link.mtu = number()?,
            libc::IFLA_MASTER => link.master = number(),
            // 0: its other end is in no namespace any more.
            libc::IFLA_LINK => link.link = number().filter(|n| *n != 0),
            libc::IFLA_LINK_NETNSID => link.link_namespace = number(),
            libc::IFLA_TXQLEN => link.tx_queue_length = number()?,
            libc::IFLA_NUM_RX_QUEUES => link.rx_queues = number()?,
            libc::IFLA_NUM_TX_QUEUES => link.tx_queues = number()?,
            libc::IFLA_CARRIER_CHANGES => link.carrier_changes = u64::from(number()?),
            libc::IFLA_STATS64 => link.counters = counters(payload),
            libc::IFLA_XDP => link.xdp = programs(Attributes(payload)),
            libc::IFLA_LINKINFO => {
                link.kind = Attributes(payload).get(INFO_KIND).map(text).unwrap_or_default();
            }
            _ => {}
        }
    }
    Some(link)
}

/// Older kernels have fewer words.
fn counters(payload: &[u8]) -> BTreeMap<&'static str, u64> {
    let words = payload.chunks_exact(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap_or_default()));
    COUNTERS.into_iter().zip(words).collect()
}

fn programs(xdp: Attributes<'_>) -> Vec<(XdpAttachment, u32)> {
    let known = XDP_PROGRAMS.iter().filter_map(|(kind, mode)| Some((*mode, u32_ne(xdp.get(*kind)?)?)));
    let known: Vec<_> = known.filter(|(_, id)| *id != 0).collect();
    if !known.is_empty() {
        return known;
    }
    let single = || {
        let mode = match xdp.get(XDP_ATTACHED)?.first()? {
            1 => XdpAttachment::Native,
            2 => XdpAttachment::Generic,
            3 => XdpAttachment::Offloaded,
            _ => return None,
        };
        Some((mode, u32_ne(xdp.get(XDP_PROG_ID)?)?))
    };
    single().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::VethEnd;
    use weir_sys::privilege::test_needs_root;

    fn end<'a>(name: &'a str, namespace: Option<&'a NetNs>) -> VethEnd<'a> {
        VethEnd {
            name,
            namespace,
            mtu: 1400,
            mac: Some([2, 0, 0, 0, 0, if namespace.is_some() { 2 } else { 1 }]),
        }
    }

    #[test]
    fn root_both_ends_of_a_veth_know_each_other() {
        if test_needs_root() {
            return;
        }
        let (a, b, stranger) = (NetNs::create().unwrap(), NetNs::create().unwrap(), NetNs::create().unwrap());
        let (mut here, mut there) = (Rtnetlink::open_in(&a).unwrap(), Rtnetlink::open_in(&b).unwrap());
        here.create_veth(end("here", None), end("there", Some(&b))).unwrap();
        here.create_veth(end("x", None), VethEnd { mac: None, ..end("y", None) }).unwrap();
        here.set_up("here").unwrap();
        let by_name = |links: &[Link], name: &str| links.iter().find(|l| l.name == name).unwrap().clone();

        let links = here.links().unwrap();
        let (one, x, y) = (by_name(&links, "here"), by_name(&links, "x"), by_name(&links, "y"));
        assert_eq!((one.mtu, one.kind.as_str(), one.up, one.carrier), (1400, "veth", true, false));
        assert_eq!(one.address, [2, 0, 0, 0, 0, 1]);
        assert_eq!((x.link, x.link_namespace), (Some(y.index), None));
        let other = by_name(&there.links().unwrap(), "there");
        assert_eq!((one.link, other.link), (Some(other.index), Some(one.index)));
        assert_eq!(one.link_namespace, here.number_of(&b).unwrap());
        assert!(one.link_namespace.is_some());
        assert_eq!(other.link_namespace, there.number_of(&a).unwrap());
        assert_eq!(here.number_of(&stranger).unwrap(), None);

        let changes = one.carrier_changes;
        there.set_up("there").unwrap();
        let one = by_name(&here.links().unwrap(), "here");
        assert!(one.carrier && one.carrier_changes > changes, "{one:?}");
    }

    #[test]
    fn root_counters_are_what_the_kernel_writes_in_text() {
        if test_needs_root() {
            return;
        }
        let ns = NetNs::create().unwrap();
        let mut net = Rtnetlink::open_in(&ns).unwrap();
        net.set_up("lo").unwrap();
        net.add_address("lo", "198.18.0.1".parse().unwrap(), 32).unwrap();
        ns.run(|| {
            let socket = std::net::UdpSocket::bind("198.18.0.1:0").unwrap();
            let to = socket.local_addr().unwrap();
            (0..7).for_each(|_| assert_eq!(socket.send_to(&[0; 100], to).unwrap(), 100));
        })
        .unwrap();
        let lo = net.links().unwrap().into_iter().find(|l| l.name == "lo").unwrap();
        // 20 bytes of IPv4 and 8 of UDP before each 100; loopback leaves the Ethernet header out.
        assert_eq!((lo.counters["rx_packets"], lo.counters["tx_bytes"]), (7, 7 * 128));
        assert!(lo.addresses.contains(&("198.18.0.1".parse().unwrap(), 32)));
        let mut command = Command::new("cat");
        command.arg("/proc/self/net/dev");
        ns.enter_on_spawn(&mut command);
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let line = text.lines().find_map(|l| l.trim().strip_prefix("lo:")).unwrap();
        let words: Vec<u64> = line.split_ascii_whitespace().map(|w| w.parse().unwrap()).collect();
        assert_eq!(
            words[..3],
            [lo.counters["rx_bytes"], lo.counters["rx_packets"], lo.counters["rx_errors"]]
        );
        assert_eq!(words[8..10], [lo.counters["tx_bytes"], lo.counters["tx_packets"]]);
    }
}
