//! Raw packets of this host: those that sockets cannot send, and all that the server's kernel and `weir serve` send back.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use weir_probe::nat::Endpoints;
use weir_sys::datagram_filter::may_silence_tcp;
use weir_sys::ip_packets::{ChosenBy, IpSender, IpTap};

use super::sockets::is_of_path;
use crate::Packet;
use crate::lab::is_of_link;
use crate::session::{
    CARRIAGE, FRAGMENTS, ICMP_ERRORS, ICMP_QUERY, ICMP_TYPES, IDLE, IP_FIELDS, OTHER_PROTOCOLS, OVERLAPPING,
    SEQUENCE, SIMULTANEOUS,
};

/// Experiments of raw packets. Those of idle times can do without, and do less then.
pub(super) const EXPERIMENTS: [&str; 11] = [
    SIMULTANEOUS,
    CARRIAGE,
    SEQUENCE,
    ICMP_QUERY,
    ICMP_ERRORS,
    ICMP_TYPES,
    IP_FIELDS,
    FRAGMENTS,
    OVERLAPPING,
    OTHER_PROTOCOLS,
    IDLE,
];
/// Packets taken in one go: the server's addresses may send other traffic here without an end.
const TURN: usize = 1_024;
/// Longest packet that the tap keeps: a link may have put fragments together.
const LONGEST: usize = 65_535;

/// See the module.
#[derive(Debug)]
pub(super) struct Raw {
    tap: IpTap,
    sender: IpSender,
    buffer: Vec<u8>,
}

impl Raw {
    /// Towards a server with these addresses, and ports of TCP.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW over the namespace, or without CAP_NET_ADMIN where that silences ports of TCP.
    pub(super) fn open(servers: &Endpoints) -> io::Result<Self> {
        let first = *servers.addresses.first().ok_or(io::ErrorKind::AddrNotAvailable)?;
        may_silence_tcp()?;
        let tap = IpTap::open(ChosenBy::Source, &servers.addresses, &servers.ports)?;
        Ok(Raw { tap, sender: IpSender::open(first)?, buffer: vec![0; LONGEST] })
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn send(&self, packet: &Packet) -> io::Result<()> {
        match self.sender.send(&packet.bytes(), packet.header.destination) {
            // A rule of this host: it is lost, as it may be anywhere.
            Err(e) if is_of_path(&e) => Ok(()),
            other => other,
        }
    }

    /// Packets of the server's addresses that are there already.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn receive(&mut self) -> io::Result<Vec<Packet>> {
        let mut packets = Vec::new();
        for _ in 0..TURN {
            let Some(n) = self.tap.read(&mut self.buffer)? else { break };
            packets.extend(Packet::read(&self.buffer[..n]).filter(|packet| !is_of_link(packet)));
        }
        Ok(packets)
    }
}

impl AsFd for Raw {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }
}
