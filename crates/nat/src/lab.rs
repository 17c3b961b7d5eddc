//! The two ends of a gateway in weir's lab, by packet sockets: nothing on the hosts answers but the experiments.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_lab::{Role, Site, Topology};
use weir_netlink::{Mac, Rtnetlink};
use weir_probe::nat64::Prefix64;
use weir_sys::frames::FrameSocket;
use weir_sys::{Error, Result, Stop};
use weir_wire::{Ethernet, ethernet};

use crate::{Arrival, Conditions, Ends, Limits, Packet, Published, Side, nat64};

/// Last bytes of the addresses on each side. The hosts' own addresses are others, so that their kernels answer nothing.
const LAST: [u8; 2] = [0x0a, 0x0b];
/// A hop in the lab handles a packet in microseconds; a busy machine is covered by the control packets.
const PATIENCE: Duration = Duration::from_millis(20);
/// MTU of the gateway's outside link, bytes: less than that of the inside one.
const OUTSIDE_MTU: u32 = 1_400;
/// How soon a stop is noticed.
const NOTICE: Duration = Duration::from_millis(100);
/// How long a thread that sends at once with another one waits for it awake: an idle core has begun it by then.
const SPIN: Duration = Duration::from_micros(300);
/// Then it looks again each time so much has passed.
const NAP: Duration = Duration::from_micros(100);
/// Types of ICMPv6 that are about a link: listeners, routers, neighbours, redirects.
const OF_THE_LINK: std::ops::RangeInclusive<u8> = 130..=143;
/// Longest frame of a link with the lab's largest MTU.
const LONGEST: usize = 65_535 + Ethernet::LENGTH;

/// One side's link.
#[derive(Debug)]
struct End {
    socket: FrameSocket,
    own: Mac,
    gateway: Mac,
}

impl End {
    /// The frame of a packet to the gateway.
    fn frame(&self, packet: &Packet) -> io::Result<Vec<u8>> {
        let ethertype = if packet.header.source.is_ipv6() { ethernet::IPV6 } else { ethernet::IPV4 };
        let header = Ethernet { destination: self.gateway, source: self.own, ethertype };
        let mut frame = vec![0; Ethernet::LENGTH];
        header.write(&mut frame).map_err(io::Error::other)?;
        frame.extend(packet.bytes());
        Ok(frame)
    }
}

/// Both sides of a site's gateway.
#[derive(Debug)]
pub struct LabEnds {
    inside: End,
    outside: End,
    conditions: Conditions,
    /// Set for a gateway whose outside link is of IPv4 although the inside one is of IPv6.
    nat64: Option<Prefix64>,
    begun: Instant,
    buffer: Vec<u8>,
    stop: Stop,
}

impl LabEnds {
    /// Takes the place of the hosts of a site, with two addresses on each side that the gateway reaches. In a bridged site the
    /// responder's side is the inside: that of the containers. The gateway's outside link gets a smaller MTU than the inside one.
    /// Once `stop` is raised, receiving fails.
    ///
    /// # Errors
    /// If the site has no gateway, or the kernel refuses.
    pub fn attach(site: &Site, limits: Limits, stop: &Stop) -> Result<Self> {
        Self::between(site, addresses(site), None, limits, stop)
    }

    /// The same in a site of IPv6 whose gateway translates to IPv4: outside are these hosts, which the inside knows by that prefix.
    ///
    /// # Errors
    /// As [`LabEnds::attach`].
    pub fn attach_nat64(
        site: &Site,
        outside: [Ipv4Addr; 2],
        prefix: Prefix64,
        limits: Limits,
        stop: &Stop,
    ) -> Result<Self> {
        let (inside, _) = addresses(site);
        Self::between(site, (inside, outside.map(IpAddr::from)), Some(prefix), limits, stop)
    }

    fn between(
        site: &Site,
        (inside, outside): ([IpAddr; 2], [IpAddr; 2]),
        nat64: Option<Prefix64>,
        limits: Limits,
        stop: &Stop,
    ) -> Result<Self> {
        let gateway = site
            .host(Role::Gateway)
            .ok_or_else(|| Error::other("attach to a lab", "the site has no gateway"))?;
        let [(near, near_interface), (away, away_interface)] = sides(site);
        let mut net = Rtnetlink::open_in(gateway)?;
        net.set_mtu(away_interface, OUTSIDE_MTU)?;
        let mut end = |role: Role, interface: &str, hosts: [IpAddr; 2]| {
            let host = site.host(role).ok_or_else(|| Error::other("attach to a lab", "a host is missing"))?;
            let name = site.interfaces(role).into_iter().next().unwrap_or_default();
            let own = Rtnetlink::open_in(host)?.interface(&name)?;
            let (index, own) = (own.index, own.mac.unwrap_or_default());
            let gateway = net.interface(interface)?.mac.unwrap_or_default();
            for address in hosts {
                net.add_neighbour(interface, address, own)?;
            }
            Ok(End { socket: host.run(|| FrameSocket::open(index))??, own, gateway })
        };
        Ok(LabEnds {
            inside: end(near, near_interface, inside)?,
            outside: end(away, away_interface, outside)?,
            conditions: Conditions {
                inside,
                outside: nat64.map_or(outside, |prefix| outside.map(|host| known(prefix, host))),
                patience: PATIENCE,
                attempts: 1,
                outside_mtu: Some(OUTSIDE_MTU),
                limits,
                published: None,
            },
            nat64,
            begun: Instant::now(),
            buffer: vec![0; LONGEST],
            stop: stop.clone(),
        })
    }

    /// The gateway publishes these ports of the first inside host.
    pub fn set_published(&mut self, published: Published) {
        self.conditions.published = Some(published);
    }

    fn end(&self, side: Side) -> &End {
        match side {
            Side::Inside => &self.inside,
            Side::Outside => &self.outside,
        }
    }

    /// The frame of a packet from that side, in the version of its link.
    fn frame(&self, side: Side, packet: &Packet) -> io::Result<Vec<u8>> {
        match self.nat64.filter(|_| side == Side::Outside) {
            Some(prefix) => {
                self.outside.frame(&nat64::real(prefix, packet).ok_or(io::ErrorKind::Unsupported)?)
            }
            None => self.end(side).frame(packet),
        }
    }

    /// A packet that is there already.
    fn ready(&mut self) -> io::Result<Option<Arrival>> {
        for side in [Side::Inside, Side::Outside] {
            let socket = match side {
                Side::Inside => &self.inside.socket,
                Side::Outside => &self.outside.socket,
            };
            while let Some(n) = socket.receive(&mut self.buffer)? {
                let packet = packet_in(&self.buffer[..n]);
                let packet = match self.nat64.filter(|_| side == Side::Outside) {
                    // No experiment waits for a message that ICMPv6 lacks.
                    Some(prefix) => packet.and_then(|packet| nat64::known(prefix, &packet)),
                    None => packet,
                };
                if let Some(packet) = packet {
                    return Ok(Some(Arrival { side, at: self.begun.elapsed(), packet }));
                }
            }
        }
        Ok(None)
    }
}

/// An address of IPv4 as the inside knows it.
fn known(prefix: Prefix64, address: IpAddr) -> IpAddr {
    prefix.known(SocketAddr::new(address, 0)).ip()
}

/// The host on each side of the NAT, and the gateway's interface there: first inside, then outside.
fn sides(site: &Site) -> [(Role, &str); 2] {
    let plan = site.addresses();
    let ends = [(Role::Initiator, &*plan.inside_interface), (Role::Responder, &*plan.outside_interface)];
    match site.spec().topology {
        // Containers open connections from behind the bridge.
        Topology::Bridged => [ends[1], ends[0]],
        Topology::Direct | Topology::Routed => ends,
    }
}

/// The experiments' addresses in a site: two inside, two outside.
pub fn addresses(site: &Site) -> ([IpAddr; 2], [IpAddr; 2]) {
    let beside = |host: IpAddr| match host {
        IpAddr::V4(host) => {
            let [a, b, c, _] = host.octets();
            LAST.map(|last| Ipv4Addr::new(a, b, c, last).into())
        }
        IpAddr::V6(host) => LAST.map(|last| {
            let mut octets = host.octets();
            octets[15] = last;
            octets.into()
        }),
    };
    let plan = site.addresses();
    let address = |role| if role == Role::Initiator { plan.initiator } else { plan.responder };
    let [(near, _), (away, _)] = sides(site);
    (beside(address(near)), beside(address(away)))
}

/// The IP packet in a frame; others are no part of an experiment: ARP, and what keeps a link (RFC 4861, RFC 3810).
fn packet_in(frame: &[u8]) -> Option<Packet> {
    let (header, rest) = Ethernet::read(frame).ok()?;
    if ![ethernet::IPV4, ethernet::IPV6].contains(&header.ethertype) {
        return None;
    }
    Packet::read(rest).filter(|packet| !is_of_link(packet))
}

/// Whether a packet keeps a link of IPv6.
pub(crate) fn is_of_link(packet: &Packet) -> bool {
    let kind = packet.icmp_kind().filter(|_| packet.header.source.is_ipv6());
    kind.is_some_and(|(kind, _)| OF_THE_LINK.contains(&kind))
}

impl Ends for LabEnds {
    fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn nat64(&self) -> Option<Prefix64> {
        self.nat64
    }

    fn send(&mut self, side: Side, packet: &Packet) -> io::Result<()> {
        let frame = self.frame(side, packet)?;
        self.end(side).socket.send(&frame)
    }

    /// Each thread handles its packet as far as the gateway's other link (veth works in the sender's softirq), so that two CPUs
    /// are in the gateway at once.
    fn send_at_once(&mut self, side: Side, packets: &[Packet; 2]) -> io::Result<()> {
        let end = self.end(side);
        let [first, second] = [self.frame(side, &packets[0])?, self.frame(side, &packets[1])?];
        let (ready, waiting) = (AtomicUsize::new(0), [first, second]);
        let send = |frame: &Vec<u8>| {
            // A barrier would wake one thread after the other. On a busy machine the other one waits for a core, perhaps for this one.
            ready.fetch_add(1, Ordering::AcqRel);
            let begun = Instant::now();
            while ready.load(Ordering::Acquire) < waiting.len() {
                if begun.elapsed() < SPIN { std::hint::spin_loop() } else { std::thread::sleep(NAP) }
            }
            end.socket.send(frame)
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| send(&waiting[1]));
            let own = send(&waiting[0]);
            other.join().unwrap_or_else(|_| Err(io::Error::other("a thread that sends has died"))).and(own)
        })
    }

    fn receive(&mut self, deadline: Duration) -> io::Result<Option<Arrival>> {
        loop {
            if let Some(arrival) = self.ready()? {
                return Ok(Some(arrival));
            }
            if self.stop.raised() {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "stopped"));
            }
            let left = deadline.saturating_sub(self.begun.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            let timeout = Timespec::try_from(left.min(NOTICE)).map_err(io::Error::other)?;
            let mut both = [
                PollFd::new(&self.inside.socket, PollFlags::IN),
                PollFd::new(&self.outside.socket, PollFlags::IN),
            ];
            match poll(&mut both, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}
