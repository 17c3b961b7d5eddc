//! TCP as the reference NAT carries it, identifications, and protocols without ports.

use std::net::{IpAddr, SocketAddr};

use weir_nat::{Packet, Side};
use weir_wire::{Tcp, checksum, protocol};

use super::{Defect, Output, Reference};

/// A flow of another protocol: its number, the inside address, the outside one and the destination.
pub(super) type OtherFlow = (u8, IpAddr, IpAddr, IpAddr);

/// Place of the first option in a segment, and of the value of the maximum segment size there.
const OPTIONS: usize = 20;

impl Reference {
    /// A segment from inside that a defect drops.
    pub(super) fn refuses_segment(&self, packet: &Packet, from: SocketAddr, to: SocketAddr) -> bool {
        let Some((header, data)) = packet.tcp_segment() else { return false };
        let is_syn = header.flags & Tcp::SYN != 0;
        let without = self.table.find_outbound(protocol::TCP, from, to, false).is_none();
        (is_syn && !data.is_empty() && self.has(Defect::SynDataDropped))
            || (!is_syn
                && without
                && (self.has(Defect::ResetEndsMapping) || self.has(Defect::HalfCloseInEnds)))
    }

    /// A segment that ends its mapping by a defect.
    pub(super) fn ends_mapping(&self, side: Side, packet: &Packet) -> bool {
        let Some((header, _)) = packet.tcp_segment() else { return false };
        match side {
            Side::Inside => header.flags & Tcp::FIN != 0 && self.has(Defect::HalfCloseEnds),
            Side::Outside => {
                (header.flags & Tcp::RST != 0 && self.has(Defect::ResetEndsMapping))
                    || (header.flags & Tcp::FIN != 0 && self.has(Defect::HalfCloseInEnds))
            }
        }
    }

    /// A packet on its way out: its identification (RFC 6864), and its options.
    pub(super) fn carried(&mut self, mut packet: Packet) -> Packet {
        if !packet.header.dont_fragment && !self.has(Defect::IdKept) {
            self.next_identification = self.next_identification.wrapping_add(1);
            packet.header.identification = self.next_identification.into();
        }
        self.with_options(packet, self.has(Defect::MssLowered), self.has(Defect::OptionsStripped))
    }

    /// A segment from outside that a defect drops, or changes.
    pub(super) fn carried_in(&self, packet: Packet) -> Option<Packet> {
        let with_data = packet.tcp_segment().filter(|(_, data)| !data.is_empty());
        let dropped = with_data.is_some_and(|(header, _)| match header.flags & (Tcp::SYN | Tcp::ACK) {
            Tcp::SYN => self.has(Defect::SynDataInDropped),
            flags => flags & Tcp::SYN != 0 && self.has(Defect::SynAckDataDropped),
        });
        if dropped {
            return None;
        }
        Some(self.with_options(packet, false, self.has(Defect::OptionsInStripped)))
    }

    fn with_options(&self, mut packet: Packet, lowers: bool, strips: bool) -> Packet {
        let length = packet.tcp_options().map_or(0, <[u8]>::len);
        let before = packet.payload.clone();
        if length > 0 && lowers && packet.payload[OPTIONS] == 2 {
            packet.payload[OPTIONS + 2..OPTIONS + 4].copy_from_slice(&1360_u16.to_be_bytes());
        }
        if length > 0 && strips {
            packet.payload[OPTIONS..OPTIONS + length].fill(1);
        }
        if length > 0 {
            let old = u16::from_be_bytes([before[16], before[17]]);
            let end = OPTIONS + length;
            let new = checksum::updated_bytes(old, &before[OPTIONS..end], &packet.payload[OPTIONS..end]);
            packet.payload[16..18].copy_from_slice(&new.to_be_bytes());
        }
        packet
    }

    /// A packet of a protocol other than UDP, TCP and ICMP: its address is translated.
    pub(super) fn other(&mut self, side: Side, mut packet: Packet) -> Output {
        let (number, header) = (packet.header.protocol, packet.header);
        match side {
            Side::Inside => {
                let which = super::ports::last_byte(header.source);
                let outside = self.behaviour.addresses[which % self.behaviour.addresses.len()];
                let flow = (number, header.source, outside, header.destination);
                if !self.others.contains(&flow) {
                    self.others.push(flow);
                }
                if !self.has(Defect::OthersLeaked) {
                    packet.header.source = outside;
                }
                vec![(Side::Outside, packet)]
            }
            Side::Outside => {
                let of = |flow: &&OtherFlow| {
                    (flow.0, flow.2, flow.3) == (number, header.destination, header.source)
                };
                let Some((_, inside, ..)) = self.others.iter().find(of) else { return Vec::new() };
                packet.header.destination = *inside;
                if self.has(Defect::OtherAnswersDropped) { Vec::new() } else { vec![(Side::Inside, packet)] }
            }
        }
    }
}
