//! The two sides of a NAT, as an experiment uses them.

use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use weir_probe::nat64::Prefix64;

use crate::Packet;

/// A side of the NAT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The private side: where sessions begin.
    Inside,
    /// The public side.
    Outside,
}

/// A packet that came out of the NAT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// On which side.
    pub side: Side,
    /// When, on the clock of [`Ends::now`].
    pub at: Duration,
    /// The packet.
    pub packet: Packet,
}

/// Addresses and patience of an experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conditions {
    /// Two hosts inside.
    pub inside: [IpAddr; 2],
    /// Two addresses outside.
    pub outside: [IpAddr; 2],
    /// How long a packet may take from one side to the other. Silence is believed only after a control packet, sent later, has
    /// arrived.
    pub patience: Duration,
    /// How often a packet is sent before silence counts: 1 on a path that loses nothing.
    pub attempts: u32,
    /// MTU of the link outside, bytes, where it is less than that inside; `None`: nothing is known.
    pub outside_mtu: Option<u32>,
    /// How far the experiments go.
    pub limits: Limits,
    /// Ports of the first inside host that are published by configuration. Its experiments use only those.
    pub published: Option<Published>,
}

/// Ports that a gateway publishes without keeping state: each is open before its host has sent anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The outside address.
    pub address: IpAddr,
    /// Ports of UDP and TCP, the same on both sides. The first one is even.
    pub ports: RangeInclusive<u16>,
}

/// How far experiments go that take time, or ports of the NAT.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Longest idle time to look for; 0 skips the timers.
    pub idle: Duration,
    /// The same for established and half-closed connections of TCP.
    pub connections: Duration,
    /// Most mappings to open at once, in search of the end of the NAT's ports; 0 skips that.
    pub mappings: u32,
}

/// First inside port of an experiment, unless the ends choose another one. It is even, and above the ports of services.
pub const FIRST_PORT: u16 = 20_000;
/// Distance of ports of different experiments, so that a NAT that counts upwards does not meet the next one. Even.
pub const PORT_STEP: u16 = 8;

/// Both sides of one NAT, and a clock. Packets are whole: the ends answer nothing by themselves.
///
/// Ends that have sockets instead carry datagrams and the openings of connections only, and say so.
pub trait Ends {
    /// Addresses and patience.
    fn conditions(&self) -> &Conditions;

    /// Time since some fixed moment.
    fn now(&self) -> Duration;

    /// Whether they can make that experiment.
    fn makes(&self, experiment: &str) -> bool {
        let _ = experiment;
        true
    }

    /// Whether they carry any packet in this experiment, ICMP and half-open connections among them.
    fn carries_everything(&self) -> bool {
        true
    }

    /// The prefix by which the inside knows addresses of IPv4, if the NAT is between IPv6 and IPv4.
    fn nat64(&self) -> Option<Prefix64> {
        None
    }

    /// First port of the experiments: even.
    fn first_port(&self) -> u16 {
        FIRST_PORT
    }

    /// Whether an inside host may use that port.
    fn has_port(&self, port: u16) -> bool {
        let _ = port;
        true
    }

    /// The outside port that stands for that one, where there are few: two ports that are [`PORT_STEP`] apart differ.
    fn outside_port(&self, port: u16) -> u16 {
        port
    }

    /// The first bytes of the data of every packet.
    fn mark(&self) -> [u8; 4] {
        *b"wnat"
    }

    /// An experiment begins: for ends that keep what they carry.
    fn begin(&mut self, experiment: &'static str) {
        let _ = experiment;
    }

    /// The packets that follow are evidence for these rows.
    fn about(&mut self, rows: &'static [&'static str]) {
        let _ = rows;
    }

    /// Sends a packet into the NAT from that side.
    ///
    /// # Errors
    /// If the system refuses.
    fn send(&mut self, side: Side, packet: &Packet) -> io::Result<()>;

    /// Sends two packets at once, where the ends can: from two threads.
    ///
    /// # Errors
    /// If the system refuses.
    fn send_at_once(&mut self, side: Side, packets: &[Packet; 2]) -> io::Result<()> {
        packets.iter().try_for_each(|packet| self.send(side, packet))
    }

    /// Returns the next packet that came out of the NAT on either side; `None` when the clock has reached `deadline`.
    ///
    /// # Errors
    /// If the system refuses.
    fn receive(&mut self, deadline: Duration) -> io::Result<Option<Arrival>>;
}
