//! Whole packets of one check, for ends with the privilege: those of it that reach this host, and those that are sent for it.

mod rules;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use weir_sys::datagram_filter::may_silence_tcp;
use weir_sys::ip_packets::{ChosenBy, IpSender, IpTap, accept_protocol};

use crate::nat::{Endpoints, LONGEST_RAW, OTHER_PROTOCOLS};
use rules::Rules;

/// Packets taken in one go.
const TURN: usize = 64;
/// Most bytes sent: a check needs some hundred packets, and some thousand for timers.
const MOST_SENT: u64 = 4 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Raw {
    tap: IpTap,
    sender: IpSender,
    /// The kernel does not reject these protocols while they are there.
    _accepted: Vec<OwnedFd>,
    rules: Rules,
    received: u64,
    sent: u64,
}

impl Raw {
    /// For a check with that mark.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW over the namespace, or without CAP_NET_ADMIN where that silences ports of TCP.
    pub(super) fn open(endpoints: &Endpoints, mark: [u8; 4]) -> io::Result<Self> {
        let first = *endpoints.addresses.first().ok_or(io::ErrorKind::AddrNotAvailable)?;
        may_silence_tcp()?;
        let accepted = OTHER_PROTOCOLS.map(|number| accept_protocol(first, number));
        Ok(Raw {
            tap: IpTap::open(ChosenBy::Destination, &endpoints.addresses, &endpoints.ports)?,
            sender: IpSender::open(first)?,
            _accepted: accepted.into_iter().collect::<io::Result<_>>()?,
            rules: Rules::new(endpoints.clone(), mark),
            received: 0,
            sent: 0,
        })
    }

    /// Packets of the check that are there already.
    pub(super) fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut arrived = Vec::new();
        let mut buffer = [0; LONGEST_RAW];
        for _ in 0..TURN {
            // An interface that went away has no packets.
            let Ok(Some(n)) = self.tap.read(&mut buffer) else { break };
            arrived.extend(self.rules.arrived(&buffer[..n]));
        }
        self.received += arrived.iter().map(|packet| packet.len() as u64).sum::<u64>();
        arrived
    }

    /// Sends a packet through the NAT.
    ///
    /// # Errors
    /// In words for the client.
    pub(super) fn send(&mut self, packet: &[u8]) -> Result<(), String> {
        let to = self.rules.may_be_sent(packet)?;
        let bytes = packet.len() as u64;
        if self.sent + bytes > MOST_SENT {
            return Err("no more raw packets are sent in this check".into());
        }
        self.sent += bytes;
        // Lost on the way, as it may be anywhere: a full buffer, or a rule of this host.
        let _ = self.sender.send(packet, to);
        Ok(())
    }

    /// Bytes that came and that were sent.
    pub(super) fn total(&self) -> (u64, u64) {
        (self.received, self.sent)
    }
}

impl AsFd for Raw {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }
}
