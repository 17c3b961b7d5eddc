//! The reference NAT as a hop of weir's lab: a thread in the gateway's namespace, with packet sockets on both of its links.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_lab::{Role, Site};
use weir_nat::{Packet, Side};
use weir_netlink::{Mac, Rtnetlink};
use weir_sys::Stop;
use weir_sys::frames::FrameSocket;
use weir_sys::sched::go_first;
use weir_wire::{Ethernet, ethernet};

use super::wire64::Translator;
use super::{Behaviour, Defect, Reference};

/// How long packets may come apart that come at once.
const AT_ONCE: Duration = Duration::from_millis(2);
/// A NAT that was kept from its work for as long may find a packet and its repetition, which comes 20 ms later in a lab.
const HELD_UP: Duration = Duration::from_millis(15);
/// How soon the end of a test is noticed. Less than the time above, since a wait counts as part of it.
const NOTICE: Timespec = Timespec { tv_sec: 0, tv_nsec: 8_000_000 };

/// A running NAT. Dropping it ends its thread.
pub(crate) struct Wire {
    stop: Stop,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Link {
    socket: FrameSocket,
    own: Mac,
    far: Mac,
}

impl Link {
    /// Packets for the NAT that are there already.
    fn packets(&self) -> impl Iterator<Item = Packet> {
        let mut buffer = vec![0; 1 << 16];
        std::iter::from_fn(move || {
            self.socket.receive(&mut buffer).unwrap().map(|n| self.packet(&buffer[..n]))
        })
        .flatten()
    }

    fn packet(&self, frame: &[u8]) -> Option<Packet> {
        let (header, rest) = Ethernet::read(frame).ok()?;
        let is_own = header.destination == self.own;
        Packet::read(rest).filter(|packet| is_own && !is_of_the_link(packet))
    }
}

impl Wire {
    /// Between the two links of a site, whose gateway's kernel forwards nothing.
    pub(crate) fn start(site: &Site, behaviour: Behaviour) -> Wire {
        Wire::translating(site, behaviour, Translator::default())
    }

    /// The same with that translator, if it is a NAT64.
    pub(crate) fn translating(site: &Site, behaviour: Behaviour, translator: Translator) -> Wire {
        // Addresses of the inside tell whether it is one.
        let is_nat64 = site.addresses().initiator.is_ipv6() && behaviour.addresses[0].is_ipv4();
        let nat64 = is_nat64.then_some(translator);
        let gateway = site.host(Role::Gateway).unwrap().clone();
        let plan = site.addresses();
        let link = |interface: &str, role: Role| {
            let name = site.interfaces(role).remove(0);
            let far =
                Rtnetlink::open_in(site.host(role).unwrap()).unwrap().interface(&name).unwrap().mac.unwrap();
            let own = Rtnetlink::open_in(&gateway).unwrap().interface(interface).unwrap();
            let socket = gateway.run(|| FrameSocket::open(own.index).unwrap()).unwrap();
            Link { socket, own: own.mac.unwrap(), far }
        };
        let links = [
            (Side::Inside, link(&plan.inside_interface, Role::Initiator)),
            (Side::Outside, link(&plan.outside_interface, Role::Responder)),
        ];
        let stop = Stop::default();
        let over = stop.clone();
        let thread = std::thread::spawn(move || forward(&links, Reference::new(behaviour), nat64, &over));
        Wire { stop, thread: Some(thread) }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.raise();
        let outcome = self.thread.take().unwrap().join();
        assert!(outcome.is_ok() || std::thread::panicking());
    }
}

fn forward(links: &[(Side, Link); 2], mut nat: Reference, nat64: Option<Translator>, over: &Stop) {
    go_first().unwrap();
    let races =
        [Defect::FirstPacketsLost, Defect::FirstPacketsSplit, Defect::FirstSynsLost, Defect::FirstSynsShared];
    let waits = races.into_iter().any(|defect| nat.has(defect));
    let begun = Instant::now();
    while !over.raised() {
        let mut both =
            [PollFd::new(&links[0].1.socket, PollFlags::IN), PollFd::new(&links[1].1.socket, PollFlags::IN)];
        let waited_from = Instant::now();
        poll(&mut both, Some(&NOTICE)).unwrap();
        if waits {
            std::thread::sleep(AT_ONCE);
        }
        nat.begin_batch();
        // All of them before the first is passed on: its receiver's next packet did not come at once with it.
        let came: Vec<_> = links.iter().flat_map(|(side, link)| link.packets().map(|p| (*side, p))).collect();
        let held_up = waited_from.elapsed() > HELD_UP;
        for (side, packet) in came {
            // The clock begins above zero, so that no mapping is older than it.
            let now = begun.elapsed() + Duration::from_secs(1);
            if held_up {
                nat.begin_batch();
            }
            let out = match &nat64 {
                Some(nat64) => nat64.handle(side, packet, |side, packet| nat.handle(now, side, packet)),
                None => nat.handle(now, side, packet),
            };
            for (side, packet) in out {
                let (_, out) = links.iter().find(|(s, _)| *s == side).unwrap();
                send(out, &packet);
            }
        }
    }
}

/// Router and neighbour discovery (RFC 4861 section 4), which the gateway's kernel answers.
fn is_of_the_link(packet: &Packet) -> bool {
    packet.header.source.is_ipv6() && packet.icmp_kind().is_some_and(|(kind, _)| (133..=137).contains(&kind))
}

fn send(link: &Link, packet: &Packet) {
    let ethertype = if packet.header.source.is_ipv6() { ethernet::IPV6 } else { ethernet::IPV4 };
    let header = Ethernet { destination: link.far, source: link.own, ethertype };
    let mut frame = vec![0; Ethernet::LENGTH];
    header.write(&mut frame).unwrap();
    frame.extend(packet.bytes());
    link.socket.send(&frame).unwrap();
}
