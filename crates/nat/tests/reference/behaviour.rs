//! The settings of the reference NAT, and its defects.

use std::net::Ipv4Addr;
use std::time::Duration;

use weir_nat::rows::judge::Dependence;

/// Its outside addresses.
pub(crate) const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 19, 1, 1), Ipv4Addr::new(198, 19, 1, 2)];

/// How it chooses outside ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PortRule {
    /// The inside port, or if that is in use the next free one of its parity and range.
    Preserve,
    /// Counts upwards from 40000.
    Sequential,
    /// At random, with the inside port's parity and range.
    Random,
}

/// The answer that strangers get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strangers {
    Silence,
    /// ICMP port unreachable.
    Unreachable,
}

/// A known defect of real NATs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Defect {
    /// Two hosts share a port as long as destinations differ; then the second one is moved.
    PortsOverlap,
    /// Two hosts get the same port, and what comes in goes to the last one.
    PortsOverload,
    /// Each mapping gets the next outside address.
    PoolArbitrary,
    /// Ports below 1024 are moved above.
    LowPortsRaised,
    /// Every port becomes the next one.
    ParityLost,
    /// A stranger passes if its port is one that was contacted, whatever its address.
    FilterByPort,
    /// Packets to an outside address of its own are dropped.
    NoHairpin,
    /// Hairpinned packets keep the inside source.
    HairpinInsideSource,
    /// Packets from inside do not keep a mapping alive.
    NoRefreshFromInside,
    /// One packet without an answer holds a mapping for 30 s.
    ShortUnanswered,
    /// Any mapping is held for 60 s.
    ShortIdle,
}

impl Defect {
    pub(crate) const ALL: [Defect; 11] = [
        Defect::PortsOverlap,
        Defect::PortsOverload,
        Defect::PoolArbitrary,
        Defect::LowPortsRaised,
        Defect::ParityLost,
        Defect::FilterByPort,
        Defect::NoHairpin,
        Defect::HairpinInsideSource,
        Defect::NoRefreshFromInside,
        Defect::ShortUnanswered,
        Defect::ShortIdle,
    ];
}

/// Its settings.
#[derive(Debug, Clone)]
pub(crate) struct Behaviour {
    pub(crate) mapping: Dependence,
    pub(crate) filtering: Dependence,
    pub(crate) ports: PortRule,
    pub(crate) udp_unanswered: Duration,
    pub(crate) udp_answered: Duration,
    pub(crate) refresh_from_outside: bool,
    pub(crate) strangers: Strangers,
    pub(crate) defects: Vec<Defect>,
}

impl Default for Behaviour {
    /// A NAT that meets every requirement.
    fn default() -> Self {
        Behaviour {
            mapping: Dependence::EndpointIndependent,
            filtering: Dependence::EndpointIndependent,
            ports: PortRule::Preserve,
            udp_unanswered: Duration::from_secs(300),
            udp_answered: Duration::from_secs(300),
            refresh_from_outside: true,
            strangers: Strangers::Silence,
            defects: Vec::new(),
        }
    }
}

impl Behaviour {
    pub(crate) fn with(defect: Defect) -> Self {
        Behaviour { defects: vec![defect], ..Behaviour::default() }
    }

    pub(crate) fn has(&self, defect: Defect) -> bool {
        self.defects.contains(&defect)
    }

    /// Idle time of a UDP mapping.
    pub(crate) fn udp_idle(&self, answered: bool) -> Duration {
        if self.has(Defect::ShortIdle) {
            Duration::from_secs(60)
        } else if answered {
            self.udp_answered
        } else if self.has(Defect::ShortUnanswered) {
            Duration::from_secs(30)
        } else {
            self.udp_unanswered
        }
    }
}
