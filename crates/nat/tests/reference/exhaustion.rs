//! The reference NAT without a free port (RFC 5508 section 6, RFC 6888 section 3).

use std::net::SocketAddr;

use weir_nat::{Packet, Side};
use weir_wire::{Icmp, Tcp, protocol};

use super::rewrite::readdressed;
use super::{Defect, Output, Reference};

/// The defect of a protocol; ICMP has none.
fn of(protocol: u8, udp: Defect, tcp: Defect) -> Defect {
    if protocol == protocol::TCP { tcp } else { udp }
}

impl Reference {
    /// Whether a new mapping of an inside endpoint finds a port. Room is made for it by a defect.
    pub(super) fn has_room(&mut self, protocol: u8, inside: SocketAddr) -> bool {
        if ![protocol::UDP, protocol::TCP].contains(&protocol) {
            return true;
        }
        let outside = self.ports.address(protocol, inside, &self.behaviour);
        let full = self.table.count(protocol, |m| m.outside.ip() == outside) >= self.behaviour.pool;
        if full && self.has(of(protocol, Defect::ExhaustionEvicts, Defect::TcpExhaustionEvicts)) {
            if let Some(oldest) = self.table.oldest(protocol, outside) {
                self.table.remove(oldest);
            }
            return true;
        }
        !full && self.table.count(protocol, |m| m.inside.ip() == inside.ip()) < self.behaviour.host_limit
    }

    /// The fate of a packet from inside that found none.
    pub(super) fn without_port(&self, packet: &Packet, from: SocketAddr) -> Output {
        let protocol = packet.header.protocol;
        let has = |udp, tcp| self.has(of(protocol, udp, tcp));
        if has(Defect::ExhaustionSilent, Defect::TcpExhaustionSilent) {
            return Vec::new();
        }
        if has(Defect::ExhaustionLeaks, Defect::TcpExhaustionLeaks) {
            return vec![(Side::Outside, packet.clone())];
        }
        let outside = self.ports.address(protocol, from, &self.behaviour);
        if has(Defect::ExhaustionShares, Defect::TcpExhaustionShares)
            && let Some(oldest) = self.table.oldest(protocol, outside)
        {
            let shared = self.table.get(oldest).outside;
            return vec![(Side::Outside, readdressed(packet.clone(), Some(shared), None))];
        }
        if let Some((header, _)) = packet.tcp_segment().filter(|_| self.has(Defect::TcpExhaustionResets)) {
            let acknowledgement = header.sequence.wrapping_add(1);
            let reset = Tcp { sequence: 0, acknowledgement, flags: Tcp::RST | Tcp::ACK, ..header };
            return packet
                .to()
                .map(|to| (Side::Inside, Packet::tcp(to, from, reset, &[])))
                .into_iter()
                .collect();
        }
        let bytes = packet.bytes();
        // Port unreachable, or administratively prohibited (RFC 1812 section 5.2.7.1, RFC 4443 section 3.1).
        let [wrong, right] = if outside.is_ipv6() { [4, 1] } else { [3, 13] };
        let is_wrong = has(Defect::ExhaustionWrongCode, Defect::TcpExhaustionWrongCode);
        let code = if is_wrong { wrong } else { right };
        let message = Icmp::Unreachable { code, quote: &bytes[..bytes.len().min(48)] };
        vec![(Side::Inside, Packet::icmp(outside, from.ip(), &message))]
    }
}
