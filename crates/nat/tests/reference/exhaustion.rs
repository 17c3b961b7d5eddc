//! The reference NAT without a free port (RFC 5508 section 6, RFC 6888 section 3).

use std::net::SocketAddr;

use weir_nat::{Packet, Side};
use weir_wire::{Icmp, protocol};

use super::rewrite::readdressed;
use super::{Defect, Output, Reference};

impl Reference {
    /// Whether a new mapping of an inside endpoint finds a port. Room is made for it by a defect.
    pub(super) fn has_room(&mut self, protocol: u8, inside: SocketAddr) -> bool {
        if protocol != protocol::UDP {
            return true;
        }
        let outside = self.ports.address(protocol, inside, &self.behaviour);
        let full = self.table.count_udp(|m| m.outside.ip() == outside) >= self.behaviour.pool;
        if full && self.has(Defect::ExhaustionEvicts) {
            if let Some(oldest) = self.table.oldest_udp(outside) {
                self.table.remove(oldest);
            }
            return true;
        }
        !full && self.table.count_udp(|m| m.inside.ip() == inside.ip()) < self.behaviour.host_limit
    }

    /// The fate of a packet from inside that found none.
    pub(super) fn without_port(&self, packet: &Packet, from: SocketAddr) -> Output {
        if self.has(Defect::ExhaustionSilent) {
            return Vec::new();
        }
        if self.has(Defect::ExhaustionLeaks) {
            return vec![(Side::Outside, packet.clone())];
        }
        let outside = self.ports.address(packet.header.protocol, from, &self.behaviour);
        if self.has(Defect::ExhaustionShares)
            && let Some(oldest) = self.table.oldest_udp(outside)
        {
            let shared = self.table.get(oldest).outside;
            return vec![(Side::Outside, readdressed(packet.clone(), Some(shared), None))];
        }
        let bytes = packet.bytes();
        // Port unreachable, or administratively prohibited (RFC 1812 section 5.2.7.1, RFC 4443 section 3.1).
        let [wrong, right] = if outside.is_ipv6() { [4, 1] } else { [3, 13] };
        let code = if self.has(Defect::ExhaustionWrongCode) { wrong } else { right };
        let message = Icmp::Unreachable { code, quote: &bytes[..bytes.len().min(48)] };
        vec![(Side::Inside, Packet::icmp(outside, from.ip(), &message))]
    }
}
