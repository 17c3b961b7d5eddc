//! The choice of outside addresses and ports.

use std::net::{IpAddr, SocketAddr};

use weir_nat::ends::PORT_STEP;
use weir_wire::protocol;

use super::behaviour::{Behaviour, Defect, PortRule};
use super::state::Table;

/// Counters of the rules.
#[derive(Debug)]
pub(crate) struct Ports {
    next: u16,
    random: u32,
}

impl Default for Ports {
    fn default() -> Self {
        Ports { next: 40_000, random: 0x9e37_79b9 }
    }
}

impl Ports {
    pub(crate) fn choose(
        &mut self,
        protocol: u8,
        inside: SocketAddr,
        to: SocketAddr,
        behaviour: &Behaviour,
        table: &Table,
    ) -> SocketAddr {
        let address = self.address(protocol, inside, behaviour);
        let taken = |port: u16| {
            let outside = SocketAddr::new(address, port);
            let forgets = protocol == protocol::TCP && behaviour.has(Defect::TcpPortsForgotten);
            if behaviour.has(Defect::PortsOverload) || (forgets && table.has_forgotten(outside)) {
                false
            } else if !behaviour.has(Defect::PortsReusedAtOnce) && table.holds(protocol, outside, inside) {
                true
            } else if behaviour.has(Defect::PortsOverlap) {
                table.conflicts(protocol, outside, inside, to)
            } else {
                table.uses(protocol, outside)
            }
        };
        let mut port = self.first(inside.port(), behaviour);
        while taken(port) {
            port = match behaviour.ports {
                PortRule::Preserve if behaviour.has(Defect::PortsNextFree) => next_of_its_kind(port),
                PortRule::Preserve => self.at_random(inside.port()),
                PortRule::Sequential | PortRule::Random => self.first(inside.port(), behaviour),
            };
        }
        SocketAddr::new(address, port)
    }

    /// The outside address that an inside host gets next.
    pub(crate) fn address(&self, protocol: u8, inside: SocketAddr, behaviour: &Behaviour) -> IpAddr {
        let arbitrary = behaviour.has(Defect::PoolArbitrary)
            || (protocol == protocol::TCP && behaviour.has(Defect::TcpPoolArbitrary));
        // By their port: two hosts with one port never meet at one address.
        let turn = if arbitrary { usize::from(inside.port() / PORT_STEP) } else { 0 };
        let which = last_byte(inside.ip()) + turn;
        let addresses = behaviour.addresses;
        // A host that shares its port shares its address too.
        let shares = [
            Defect::PortsOverlap,
            Defect::PortsOverload,
            Defect::IdKept,
            Defect::PortsNextFree,
            Defect::PortsReusedAtOnce,
            Defect::TcpPortsForgotten,
        ]
        .into_iter()
        .any(|defect| behaviour.has(defect));
        if shares { addresses[0] } else { addresses[which % addresses.len()] }
    }

    fn first(&mut self, inside: u16, behaviour: &Behaviour) -> u16 {
        let port = match behaviour.ports {
            PortRule::Preserve => inside,
            PortRule::Sequential => {
                self.next = self.next.checked_add(1).unwrap_or(40_000);
                self.next
            }
            PortRule::Random => self.at_random(inside),
        };
        let port = if behaviour.has(Defect::LowPortsRaised) && port < 1024 { port + 1024 } else { port };
        if behaviour.has(Defect::ParityLost) { port ^ 1 } else { port }
    }

    /// Xorshift (Marsaglia, 2003): the same at every run.
    fn at_random(&mut self, inside: u16) -> u16 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        let (low, size) = if inside < 1024 { (0, 1024) } else { (1024, 64_512) };
        let port = low + u16::try_from(self.random % size).unwrap_or_default();
        (port & !1) | (inside & 1)
    }
}

/// By it a host has one of the addresses.
pub(super) fn last_byte(host: IpAddr) -> usize {
    let byte = match host {
        IpAddr::V4(host) => host.octets()[3],
        IpAddr::V6(host) => host.octets()[15],
    };
    byte.into()
}

/// The next port of the same parity, on the same side of 1024.
fn next_of_its_kind(port: u16) -> u16 {
    match port {
        1022 | 1023 => port - 1020,
        65_534 | 65_535 => port - 64_510,
        _ => port + 2,
    }
}
