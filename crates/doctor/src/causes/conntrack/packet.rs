//! A sampled packet as connection tracking sees it.

use weir_wire::{Datagram, Sum, Tcp, Udp, protocol};

use crate::evidence::Sample;

/// The effect of a packet on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Opens it (SYN).
    Opens,
    /// Answers that (SYN and ACK).
    Answers,
    /// Goes on with it (ACK, with or without data).
    GoesOn,
    /// Ends it (FIN or RST): after these the other side may already have forgotten it.
    Ends,
    /// Not TCP, or its header is not in the sample.
    Unknown,
}

/// The step that a packet is.
pub(super) fn step(sample: &Sample) -> Step {
    let Some((protocol::TCP, segment)) = transport(sample) else { return Step::Unknown };
    let Ok((tcp, _, _)) = Tcp::read(segment) else { return Step::Unknown };
    match tcp.flags {
        f if f & (Tcp::FIN | Tcp::RST) != 0 => Step::Ends,
        f if f & Tcp::SYN == 0 => Step::GoesOn,
        f if f & Tcp::ACK != 0 => Step::Answers,
        _ => Step::Opens,
    }
}

/// Protocol, and what follows the IP header, of packets that are no later fragments.
fn transport(sample: &Sample) -> Option<(u8, &[u8])> {
    sample.upper().filter(|upper| upper.is_first).map(|upper| (upper.protocol, upper.payload))
}

/// True if a whole packet of UDP or TCP has a wrong checksum; `None` if the sample, which holds only the first bytes, does not
/// show it.
pub(super) fn has_bad_checksum(sample: &Sample) -> Option<bool> {
    let datagram = Datagram::read(&sample.header).ok().filter(|d| d.fragment.is_none())?;
    let (length, at) = match datagram.protocol {
        protocol::UDP => (Udp::read(datagram.payload).ok()?.0.length.into(), 6),
        protocol::TCP => (datagram.payload.len(), 16),
        _ => return None,
    };
    let segment = datagram.payload.get(..length)?;
    let (source, destination) = (datagram.source, datagram.destination);
    let sound = match datagram.protocol {
        protocol::UDP => Udp::is_sound(source, destination, segment),
        _ => Tcp::is_sound(source, destination, segment),
    };
    // A card is to finish it: the field holds the sum of the pseudo header alone (CHECKSUM_PARTIAL, include/linux/skbuff.h).
    let open = Sum::pseudo(source, destination, datagram.protocol, u32::try_from(length).ok()?).folded();
    let field = segment.get(at..at + 2)?;
    Some(!sound && field != open.to_be_bytes())
}

/// Whole frames for recipes: what no socket would send.
pub(super) mod frames {
    use std::net::Ipv4Addr;

    use weir_wire::{Tcp, Udp, protocol};

    use crate::recipe::frames::{header, ipv4};

    /// Address and port.
    pub(in super::super) type End = (Ipv4Addr, u16);

    /// A UDP datagram with 64 bytes of payload.
    pub(in super::super) fn udp(macs: ([u8; 6], [u8; 6]), from: End, to: End) -> Vec<u8> {
        let ip = header(from.0, to.0, protocol::UDP, Udp::LENGTH + 64);
        ipv4(macs.0, macs.1, ip, |payload| Udp::seal((from.0.into(), from.1), (to.0.into(), to.1), payload))
    }

    /// A TCP segment with these flags and 64 bytes of payload.
    pub(in super::super) fn tcp(macs: ([u8; 6], [u8; 6]), from: End, to: End, flags: u8) -> Vec<u8> {
        let tcp = Tcp {
            source_port: from.1,
            destination_port: to.1,
            sequence: 1_000,
            acknowledgement: 5_000,
            flags,
            window: 64_240,
            checksum: 0,
            urgent: 0,
        };
        let ip = header(from.0, to.0, protocol::TCP, Tcp::LENGTH + 64);
        ipv4(macs.0, macs.1, ip, |payload| tcp.seal(from.0.into(), to.0.into(), payload))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use weir_wire::Ipv4;

    /// A sample of what a frame carries.
    pub(crate) fn sampled(frame: &[u8]) -> Sample {
        let packet = &frame[weir_wire::Ethernet::LENGTH..];
        Sample {
            length: packet.len() as u32,
            header: packet[..packet.len().min(128)].to_vec(),
            ..Sample::default()
        }
    }

    fn ends() -> (frames::End, frames::End) {
        (([198, 18, 0, 2].into(), 4000), ([198, 19, 0, 2].into(), 80))
    }

    fn segment(flags: u8) -> Sample {
        let (from, to) = ends();
        sampled(&frames::tcp(([2; 6], [4; 6]), from, to, flags))
    }

    #[test]
    fn steps_of_a_connection_are_told_by_their_flags() {
        assert_eq!(step(&segment(Tcp::SYN)), Step::Opens);
        assert_eq!(step(&segment(Tcp::SYN | Tcp::ACK)), Step::Answers);
        assert_eq!(step(&segment(Tcp::ACK | Tcp::PSH)), Step::GoesOn);
        assert_eq!(step(&segment(Tcp::ACK | Tcp::FIN)), Step::Ends);
        assert_eq!(step(&segment(Tcp::RST)), Step::Ends);
        assert_eq!(step(&Sample::default()), Step::Unknown);
        let (from, to) = ends();
        assert_eq!(step(&sampled(&frames::udp(([2; 6], [4; 6]), from, to))), Step::Unknown);
    }

    #[test]
    fn bad_checksums_are_told_from_open_ones_and_cut_packets() {
        let (from, to) = ends();
        let good = frames::udp(([2; 6], [4; 6]), from, to);
        assert_eq!(has_bad_checksum(&sampled(&good)), Some(false));
        assert_eq!(has_bad_checksum(&sampled(&crate::recipe::frames::damaged(good.clone()))), Some(true));
        assert_eq!(has_bad_checksum(&segment(Tcp::ACK)), Some(false));
        // The value that a sender with checksum offload leaves in the field.
        let mut open = good.clone();
        let pseudo = Sum::pseudo(from.0.into(), to.0.into(), protocol::UDP, 72).folded();
        let at = weir_wire::Ethernet::LENGTH + Ipv4::LENGTH + 6;
        open[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
        assert_eq!(has_bad_checksum(&sampled(&open)), Some(false));
        let mut cut = sampled(&crate::recipe::frames::damaged(good));
        cut.header.truncate(60);
        assert_eq!(has_bad_checksum(&cut), None);
    }
}
