//! One run of experiments: fresh ports, marked packets, and silence that is checked before it counts.

mod trip;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use weir_probe::nat64::Prefix64;
use weir_wire::Tcp;

use crate::ends::{FIRST_PORT, PORT_STEP};
use crate::{Arrival, Conditions, Ends, Observations, Packet, Progress, Published, Side};

pub(crate) use trip::Trip;

/// Port of the control packets, on both sides. No experiment uses it.
pub(crate) const CONTROL_PORT: u16 = 19_990;
/// Outside port of mappings that are left alone.
const IDLE_PORT: u16 = 19_980;
/// How often the control packets are sent before the path counts as dead.
const CONTROLS: u32 = 5;
/// How long each of them may take, in units of the patience.
const CONTROL_PATIENCE: u32 = 50;
/// Distance of initial sequence numbers, as a power of two: windows of different connections do not meet.
const SEQUENCE_SHIFT: u32 = 16;
/// Window of every segment.
const WINDOW: u16 = 60_000;
/// First port once all are used: between two of those before, so that no experiment meets an earlier one's. Even.
const BETWEEN: u16 = FIRST_PORT + PORT_STEP / 2;
/// Further than all ports of one check's experiments from their beginning. A multiple of [`PORT_STEP`].
const LEAP: u16 = 4_000;
/// The experiments that only gateways with published ports have, and only others.
pub(crate) const PUBLISHED: &str = "published-ports";
pub(crate) const EXHAUSTION: &str = "udp-exhaustion";
pub(crate) const TCP_EXHAUSTION: &str = "tcp-exhaustion";
pub(crate) const FIRST_PACKETS: &str = "udp-first-packets";
pub(crate) const FIRST_SYNS: &str = "tcp-first-syns";
/// Those of one version of IP.
pub(crate) const CRAFTED_ERRORS: &str = "icmp-crafted-errors";
pub(crate) const IPV6: &str = "ipv6-path";
pub(crate) const IDENTIFICATION: &str = "ip-identification";
/// Those of raw packets, which need no second inside host.
pub(crate) const ICMP_QUERY: &str = "icmp-query";
pub(crate) const ICMP_ERRORS: &str = "icmp-errors";
pub(crate) const ICMP_TYPES: &str = "icmp-types";
pub(crate) const IP_FIELDS: &str = "ip-fields";
pub(crate) const FRAGMENTS: &str = "udp-fragments";
pub(crate) const OVERLAPPING: &str = "udp-fragments-overlapping";
pub(crate) const OTHER_PROTOCOLS: &str = "other-protocols";
pub(crate) const SIMULTANEOUS: &str = "tcp-simultaneous-open";
pub(crate) const CARRIAGE: &str = "tcp-carriage";
pub(crate) const SEQUENCE: &str = "tcp-sequence";
pub(crate) const IDLE: &str = "idle";
/// Added to the port of a mapping: a port that no experiment of a run has opened.
const UNOPENED: u16 = 7;

/// A transport protocol whose mappings are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Udp,
    Tcp,
}

/// The fields of a segment that experiments choose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    pub(crate) flags: u8,
}

impl Segment {
    /// The header; ports are those of the endpoints.
    pub(crate) fn header(self) -> Tcp {
        Tcp {
            source_port: 0,
            destination_port: 0,
            sequence: self.sequence,
            acknowledgement: self.acknowledgement,
            flags: self.flags,
            window: WINDOW,
            checksum: 0,
            urgent: 0,
        }
    }
}

/// Experiments over two ends.
pub(crate) struct Session<'a> {
    ends: &'a mut dyn Ends,
    progress: Option<&'a mut dyn Progress>,
    serial: u32,
    next_port: u16,
    /// Published ports of the first inside host that experiments have used.
    used_published: u16,
    /// Sequence numbers of SYNs by their endpoints.
    sequences: HashMap<(SocketAddr, SocketAddr), u32>,
    /// The last control packets did not arrive.
    died: bool,
    /// Packets that came while others were waited for, if they are kept.
    strays: Option<Vec<Arrival>>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(ends: &'a mut dyn Ends) -> Self {
        let next_port = ends.first_port();
        Session {
            ends,
            progress: None,
            serial: 0,
            next_port,
            used_published: 0,
            sequences: HashMap::new(),
            died: false,
            strays: None,
        }
    }

    /// The same with someone who follows the run.
    pub(crate) fn followed(ends: &'a mut dyn Ends, progress: &'a mut dyn Progress) -> Self {
        Session { progress: Some(progress), ..Session::new(ends) }
    }

    /// Names the experiment of the packets that follow. False: the run is to end before it.
    pub(crate) fn begin(&mut self, experiment: &'static str) -> bool {
        let begins = self.progress.as_mut().is_none_or(|progress| progress.begins(experiment));
        if begins {
            self.ends.begin(experiment);
        }
        begins
    }

    /// Whether a part of an experiment is wanted now.
    pub(crate) fn wants_part(&mut self) -> bool {
        let now = self.now();
        self.progress.as_mut().is_some_and(|progress| progress.wants_part(now))
    }

    /// Tells what was seen so far.
    pub(crate) fn seen(&mut self, seen: &Observations, complete: Option<&'static str>) -> io::Result<()> {
        self.progress.as_mut().map_or(Ok(()), |progress| progress.seen(seen, complete))
    }

    /// Whether the ends can make that experiment, and it asks about such a gateway.
    pub(crate) fn makes(&self, experiment: &str) -> bool {
        let published = self.conditions().published.is_some();
        let fits = match experiment {
            PUBLISHED => published,
            // No packet asks a published port's gateway for a port.
            EXHAUSTION | TCP_EXHAUSTION | FIRST_PACKETS | FIRST_SYNS => !published,
            IPV6 => self.is_ipv6(),
            // Headers of IPv6 have no checksum, and only its fragments have an identification. Outside of a NAT64 packets are of IPv4.
            CRAFTED_ERRORS | IDENTIFICATION => !self.is_ipv6() || self.nat64().is_some(),
            _ => true,
        };
        fits && self.ends.makes(experiment)
    }

    /// Whether the hosts are of IPv6.
    pub(crate) fn is_ipv6(&self) -> bool {
        self.inside(0).is_ipv6()
    }

    /// The prefix of a NAT64 on the way.
    pub(crate) fn nat64(&self) -> Option<Prefix64> {
        self.ends.nat64()
    }

    /// Names the rows that the packets which follow are evidence for.
    pub(crate) fn about(&mut self, rows: &'static [&'static str]) {
        self.ends.about(rows);
    }

    pub(crate) fn conditions(&self) -> &Conditions {
        self.ends.conditions()
    }

    pub(crate) fn now(&self) -> Duration {
        self.ends.now()
    }

    /// An even port that no experiment has used.
    pub(crate) fn fresh_port(&mut self) -> u16 {
        loop {
            let port = self.next_port;
            // Some thousands of experiments fit; a run has some hundreds.
            self.next_port = self.next_port.checked_add(PORT_STEP).unwrap_or(BETWEEN);
            if self.ends.has_port(port) {
                return port;
            }
            // Two are left out: ports that follow each other stand for two different ones outside.
            self.next_port = self.next_port.checked_add(PORT_STEP).unwrap_or(BETWEEN);
        }
    }

    /// Goes on with ports that are far from those before.
    pub(crate) fn leap(&mut self) {
        self.next_port = self.next_port.checked_add(LEAP).unwrap_or(BETWEEN);
    }

    /// Whether the first inside host may use that port.
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.ends.has_port(port)
            && self.conditions().published.as_ref().is_none_or(|p| p.ports.contains(&port))
    }

    /// An even port of the first inside host that no experiment has used: a published one, where it has such. The odd one behind
    /// it is unused too.
    pub(crate) fn fresh_inside_port(&mut self) -> u16 {
        let Some(Published { ports, .. }) = &self.ends.conditions().published else {
            return self.fresh_port();
        };
        let port = ports.start().saturating_add(2 * self.used_published);
        debug_assert!(port < *ports.end(), "more ports are used than are published");
        // A gateway without state knows nothing of a port's earlier packets.
        let port = if port < *ports.end() { port } else { *ports.start() };
        self.used_published += 1;
        port
    }

    /// A port of the NAT's that no experiment has opened, near that of a mapping.
    pub(crate) fn unopened(&self, mapped: SocketAddr) -> SocketAddr {
        let beside = mapped.port().wrapping_add(UNOPENED);
        let port = match &self.conditions().published {
            Some(published) if published.ports.contains(&beside) => {
                published.ports.end().wrapping_add(UNOPENED)
            }
            _ => beside,
        };
        SocketAddr::new(mapped.ip(), port)
    }

    /// Whether there are two inside hosts.
    pub(crate) fn has_two_hosts(&self) -> bool {
        self.inside(0) != self.inside(1)
    }

    /// Whether the ends carry any packet: see [`Ends::carries_everything`].
    pub(crate) fn carries_everything(&self) -> bool {
        self.ends.carries_everything()
    }

    /// A fresh port of the first inside host.
    pub(crate) fn fresh_inside(&mut self) -> SocketAddr {
        SocketAddr::new(self.conditions().inside[0], self.fresh_inside_port())
    }

    /// One of the two outside addresses, with this port.
    pub(crate) fn outside(&self, which: usize, port: u16) -> SocketAddr {
        SocketAddr::new(self.conditions().outside[which], self.ends.outside_port(port))
    }

    /// The outside port of mappings that are left alone.
    pub(crate) fn idle_port(&self) -> u16 {
        IDLE_PORT
    }

    /// Data that no other packet has.
    pub(crate) fn data(&mut self) -> Vec<u8> {
        self.serial += 1;
        let mut data = self.ends.mark().to_vec();
        data.extend(self.serial.to_be_bytes());
        data
    }

    /// Sends a first packet of a protocol: a datagram, or a SYN.
    pub(crate) fn probe(
        &mut self,
        protocol: Protocol,
        side: Side,
        from: SocketAddr,
        to: SocketAddr,
    ) -> io::Result<Trip> {
        let data = self.data();
        match protocol {
            Protocol::Udp => {
                let packet = Packet::udp(from, to, &data);
                self.send(side, &packet, &|arrival| arrival.packet.udp_data() == Some(&data))
            }
            Protocol::Tcp => {
                let sequence = self.sequence();
                self.sequences.insert((from, to), sequence);
                self.segment(side, from, to, Segment { sequence, acknowledgement: 0, flags: Tcp::SYN })
            }
        }
    }

    /// From an inside port to an outside one: the trip tells the source there.
    pub(crate) fn outbound(
        &mut self,
        protocol: Protocol,
        from: SocketAddr,
        to: SocketAddr,
    ) -> io::Result<Trip> {
        let mut trip = self.probe(protocol, Side::Inside, from, to)?;
        // Back to an inside host: that is another experiment.
        trip.arrived = trip.arrived.filter(|arrival| arrival.side == Side::Outside);
        Ok(trip)
    }

    /// From an outside port to the NAT's.
    pub(crate) fn inbound(
        &mut self,
        protocol: Protocol,
        from: SocketAddr,
        to: SocketAddr,
    ) -> io::Result<Trip> {
        let mut trip = self.probe(protocol, Side::Outside, from, to)?;
        trip.arrived = trip.arrived.filter(|arrival| arrival.side == Side::Inside);
        Ok(trip)
    }

    /// The answer to the first packet that an inside port sent to this outside one, to where it came from.
    pub(crate) fn answer(
        &mut self,
        protocol: Protocol,
        (inside, far): (SocketAddr, SocketAddr),
        seen: SocketAddr,
    ) -> io::Result<Trip> {
        let mut trip = match protocol {
            Protocol::Udp => self.probe(protocol, Side::Outside, far, seen)?,
            Protocol::Tcp => {
                let sequence = self.sequence();
                let answered = self.sequences.get(&(inside, far)).copied().unwrap_or_default();
                let acknowledgement = answered.wrapping_add(1);
                let flags = Tcp::SYN | Tcp::ACK;
                self.segment(Side::Outside, far, seen, Segment { sequence, acknowledgement, flags })?
            }
        };
        trip.arrived = trip.arrived.filter(|arrival| arrival.side == Side::Inside);
        Ok(trip)
    }

    /// Sends a segment without data, which is known by its numbers.
    pub(crate) fn segment(
        &mut self,
        side: Side,
        from: SocketAddr,
        to: SocketAddr,
        segment: Segment,
    ) -> io::Result<Trip> {
        let packet = Packet::tcp(from, to, segment.header(), &[]);
        self.send(side, &packet, &|arrival| {
            arrival.packet.tcp_segment().is_some_and(|(header, _)| {
                (header.sequence, header.flags) == (segment.sequence, segment.flags)
            })
        })
    }

    /// An initial sequence number that no other connection has. Its lower half is the beginning of the mark.
    pub(crate) fn sequence(&mut self) -> u32 {
        self.serial += 1;
        let [first, second, ..] = self.ends.mark();
        self.serial << SEQUENCE_SHIFT | u32::from(u16::from_be_bytes([first, second]))
    }

    /// The sequence number of the SYN from one endpoint to another.
    pub(crate) fn sequence_of(&self, from: SocketAddr, to: SocketAddr) -> u32 {
        self.sequences.get(&(from, to)).copied().unwrap_or_default()
    }

    /// Sends a packet, until it arrives or has been sent as often as the conditions allow. Silence is then checked by
    /// [`Session::path_is_alive`].
    pub(crate) fn send(
        &mut self,
        side: Side,
        packet: &Packet,
        is_it: &dyn Fn(&Arrival) -> bool,
    ) -> io::Result<Trip> {
        let attempts = vec![vec![packet.clone()]; self.attempts()];
        self.send_all(side, &attempts, is_it)
    }

    /// How often a packet is sent before silence counts.
    pub(crate) fn attempts(&self) -> usize {
        self.conditions().attempts.max(1) as usize
    }

    /// The same for several packets at once, which are others in each attempt.
    pub(crate) fn send_all(
        &mut self,
        side: Side,
        attempts: &[Vec<Packet>],
        is_it: &dyn Fn(&Arrival) -> bool,
    ) -> io::Result<Trip> {
        let patience = self.conditions().patience;
        let mut others = Vec::new();
        for packets in attempts {
            for packet in packets {
                self.ends.send(side, packet)?;
            }
            if let Some(arrival) = self.wait(self.now() + patience, is_it, &mut others)? {
                return Ok(Trip { arrived: Some(arrival), others, sure: true });
            }
        }
        let (sure, late) = self.path_is_alive()?;
        let mut arrived = None;
        for arrival in late {
            if arrived.is_none() && is_it(&arrival) {
                arrived = Some(arrival);
            } else {
                others.push(arrival);
            }
        }
        Ok(Trip { arrived, others, sure })
    }

    /// Waits for a packet; others that come meanwhile are added.
    pub(crate) fn wait(
        &mut self,
        deadline: Duration,
        is_it: &dyn Fn(&Arrival) -> bool,
        others: &mut Vec<Arrival>,
    ) -> io::Result<Option<Arrival>> {
        while let Some(arrival) = self.ends.receive(deadline)? {
            if is_it(&arrival) {
                return Ok(Some(arrival));
            }
            if let Some(strays) = &mut self.strays {
                strays.push(arrival.clone());
            }
            others.push(arrival);
        }
        Ok(None)
    }

    /// From now on, keeps packets that arrive while others are waited for, or does not.
    pub(crate) fn keep_strays(&mut self, keep: bool) {
        self.strays = keep.then(Vec::new);
    }

    /// Returns them, and keeps further ones.
    pub(crate) fn strays(&mut self) -> Vec<Arrival> {
        self.strays.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Lets time pass, and returns what arrived meanwhile.
    pub(crate) fn pass(&mut self, until: Duration) -> io::Result<Vec<Arrival>> {
        let mut arrived = Vec::new();
        self.wait(until, &|_| false, &mut arrived)?;
        Ok(arrived)
    }

    /// Sends a control packet out and its answer back. Packets cross a hop in the order in which they came, so one that was sent
    /// earlier has arrived by then, or does not arrive. Returns whether both arrived, and what else did.
    pub(crate) fn path_is_alive(&mut self) -> io::Result<(bool, Vec<Arrival>)> {
        let near = SocketAddr::new(self.conditions().inside[0], CONTROL_PORT);
        let far = self.outside(0, CONTROL_PORT);
        let mut others = Vec::new();
        // A path that has died once is not waited for at length again.
        let controls = if self.died { 1 } else { CONTROLS };
        for _ in 0..controls {
            let Some(out) = self.control(Side::Inside, near, far, &mut others)? else { continue };
            let Some(mapped) = out.packet.from() else { continue };
            if self.control(Side::Outside, far, mapped, &mut others)?.is_some() {
                self.died = false;
                return Ok((true, others));
            }
        }
        self.died = true;
        Ok((false, others))
    }

    fn control(
        &mut self,
        side: Side,
        from: SocketAddr,
        to: SocketAddr,
        others: &mut Vec<Arrival>,
    ) -> io::Result<Option<Arrival>> {
        let data = self.data();
        self.ends.send(side, &Packet::udp(from, to, &data))?;
        let deadline = self.now() + self.conditions().patience * CONTROL_PATIENCE;
        self.wait(deadline, &|arrival| arrival.packet.udp_data() == Some(&data), others)
    }

    /// Sends two packets at once.
    pub(crate) fn send_at_once(&mut self, side: Side, packets: &[Packet; 2]) -> io::Result<()> {
        self.ends.send_at_once(side, packets)
    }

    /// Sends a packet and does not look where it goes.
    pub(crate) fn send_only(&mut self, side: Side, packet: &Packet) -> io::Result<()> {
        self.ends.send(side, packet)
    }

    /// The inside hosts' addresses.
    pub(crate) fn inside(&self, which: usize) -> IpAddr {
        self.conditions().inside[which]
    }
}
