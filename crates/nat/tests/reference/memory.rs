//! The two ends of the reference NAT in memory: packets take no time unless a delay is set, and waiting moves the clock.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use weir_nat::{Arrival, Conditions, Ends, Limits, Packet, Published, Side, nat64};
use weir_probe::nat64::Prefix64;

use super::wire64::{self, Translator};
use super::{Behaviour, Output, Reference};

pub(crate) struct Memory {
    /// From the inside outwards.
    nats: Vec<Reference>,
    /// In front of the first NAT: the hosts are of IPv6.
    nat64: Option<Translator>,
    loss: Option<Loss>,
    /// From the NAT to the end that a packet leaves by.
    delay: Duration,
    conditions: Conditions,
    now: Duration,
    arrived: VecDeque<Arrival>,
}

/// Packets lost at random on both links, the same at every run.
struct Loss {
    percent: u32,
    random: u32,
}

impl Loss {
    fn takes(&mut self) -> bool {
        // Xorshift (Marsaglia, 2003).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random % 100 < self.percent
    }
}

impl Memory {
    pub(crate) fn new(behaviour: Behaviour, idle_limit: Duration) -> Self {
        Memory::chain(vec![behaviour], idle_limit)
    }

    /// A NAT64.
    pub(crate) fn nat64(behaviour: Behaviour, translator: Translator, idle_limit: Duration) -> Self {
        let mut memory = Memory::new(behaviour, idle_limit);
        let known = |address| match address {
            IpAddr::V4(address) => wire64::known_as(address).into(),
            IpAddr::V6(_) => address,
        };
        memory.conditions.inside = [10, 11].map(|host| [0x2001, 2, 0, 0, 0, 0, 0, host].into());
        memory.conditions.outside = memory.conditions.outside.map(known);
        Memory { nat64: Some(translator), ..memory }
    }

    /// The limits of a run: mappings enough for the end of every pool that has one.
    pub(crate) fn limits(behaviour: &Behaviour, idle: Duration) -> Limits {
        let mappings = behaviour.pool.checked_mul(4).map_or(0, |all| u32::try_from(all).unwrap());
        Limits { idle, connections: idle, mappings }
    }

    /// The same with another limit of idle connections.
    pub(crate) fn with_connections(mut self, limit: Duration) -> Self {
        self.conditions.limits.connections = limit;
        self
    }

    /// The same path losing packets, with experiments that send each five times.
    pub(crate) fn losing(mut self, percent: u32, seed: u32) -> Self {
        self.conditions.attempts = 5;
        self.loss = Some(Loss { percent, random: seed.wrapping_mul(0x9e37_79b9) | 1 });
        self
    }

    /// The same path with a delay.
    pub(crate) fn delayed(self, delay: Duration) -> Self {
        Memory { delay, ..self }
    }

    fn loses(&mut self) -> bool {
        self.loss.as_mut().is_some_and(Loss::takes)
    }

    fn pass_on(&mut self, side: Side, packet: &Packet) -> io::Result<()> {
        if self.loses() {
            return Ok(());
        }
        let begin = match side {
            Side::Inside => 0,
            Side::Outside => self.nats.len() - 1,
        };
        let packet = match self.prefix().filter(|_| side == Side::Outside) {
            Some(prefix) => nat64::real(prefix, packet).ok_or(io::ErrorKind::InvalidData)?,
            None => packet.clone(),
        };
        let mut under_way = vec![(begin, side, packet)];
        while let Some((place, side, packet)) = under_way.pop() {
            for (side, packet) in self.through(place, side, on_a_wire(&packet)?) {
                match side {
                    Side::Outside if place + 1 < self.nats.len() => {
                        under_way.push((place + 1, Side::Inside, packet))
                    }
                    Side::Inside if place > 0 => under_way.push((place - 1, Side::Outside, packet)),
                    _ if self.loses() => {}
                    _ => {
                        let mut packet = on_a_wire(&packet)?;
                        if let Some(prefix) = self.prefix().filter(|_| side == Side::Outside) {
                            packet = nat64::known(prefix, &packet).ok_or(io::ErrorKind::InvalidData)?;
                        }
                        let at = self.now + self.delay;
                        self.arrived.push_back(Arrival { side, at, packet });
                    }
                }
            }
        }
        Ok(())
    }

    fn prefix(&self) -> Option<Prefix64> {
        self.nat64.as_ref().map(|_| wire64::PREFIX_TEXT.to_owned().try_into().unwrap())
    }

    /// The packets that one NAT makes of a packet.
    fn through(&mut self, place: usize, side: Side, packet: Packet) -> Output {
        let (now, nat) = (self.now, &mut self.nats[place]);
        match self.nat64.as_ref().filter(|_| place == 0) {
            Some(nat64) => nat64.handle(side, packet, |side, packet| nat.handle(now, side, packet)),
            None => nat.handle(now, side, packet),
        }
    }

    /// Several NATs, from the inside outwards.
    pub(crate) fn chain(mut behaviours: Vec<Behaviour>, idle_limit: Duration) -> Self {
        if !idle_limit.is_zero() {
            // More mappings are left alone than such a pool holds: its end is looked for without timers.
            behaviours.iter_mut().for_each(|behaviour| behaviour.pool = usize::MAX);
        }
        let limits = Memory::limits(&behaviours[0], idle_limit);
        let published = |behaviour: &Behaviour| {
            let ports = behaviour.published.clone()?;
            Some(Published { address: behaviour.addresses[0], ports })
        };
        let v6 = behaviours[0].addresses[0].is_ipv6();
        // Those of the lab (weir_nat::lab::addresses).
        let hosts = |network: u16, v4: [u8; 3]| {
            [10, 11].map(|host: u8| match v6 {
                true => IpAddr::from([0x2001, 2, 0, network, 0, 0, 0, host.into()]),
                false => IpAddr::from([v4[0], v4[1], v4[2], host]),
            })
        };
        let conditions = Conditions {
            inside: hosts(0, [198, 18, 0]),
            outside: hosts(1, [198, 19, 0]),
            patience: Duration::from_millis(20),
            attempts: 1,
            outside_mtu: Some(super::OUTSIDE_MTU),
            limits,
            published: published(&behaviours[0]),
        };
        Memory {
            nats: behaviours.into_iter().map(Reference::new).collect(),
            nat64: None,
            loss: None,
            delay: Duration::ZERO,
            conditions,
            now: Duration::from_secs(1),
            arrived: VecDeque::new(),
        }
    }
}

/// The packet as it is read from a wire.
fn on_a_wire(packet: &Packet) -> io::Result<Packet> {
    Packet::read(&packet.bytes()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

impl Ends for Memory {
    fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    fn now(&self) -> Duration {
        self.now
    }

    fn nat64(&self) -> Option<Prefix64> {
        self.prefix()
    }

    fn send(&mut self, side: Side, packet: &Packet) -> io::Result<()> {
        self.nats.iter_mut().for_each(Reference::begin_batch);
        self.pass_on(side, packet)
    }

    fn send_at_once(&mut self, side: Side, packets: &[Packet; 2]) -> io::Result<()> {
        self.nats.iter_mut().for_each(Reference::begin_batch);
        packets.iter().try_for_each(|packet| self.pass_on(side, packet))
    }

    fn receive(&mut self, deadline: Duration) -> io::Result<Option<Arrival>> {
        // One delay for all: they arrive in the order in which they were sent.
        if self.arrived.front().is_some_and(|first| first.at <= deadline) {
            let arrival = self.arrived.pop_front();
            self.now = self.now.max(arrival.as_ref().map_or(self.now, |first| first.at));
            return Ok(arrival);
        }
        self.now = self.now.max(deadline);
        Ok(None)
    }
}
