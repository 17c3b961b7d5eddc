//! Flows, and the segments and datagrams that are drawn of them.

use rand::RngExt;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use crate::packet::{Ends, Header, TCP, UDP, seal};
use crate::side::{CALLED, End};
use crate::world::NatWorld;

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;
pub(crate) const URG: u8 = 32;
pub(crate) const ECE: u8 = 64;
pub(crate) const CWR: u8 = 128;

/// A flow, as both ends see it. The gateway replaces the client's address, and for one of the called ports the server's port.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) protocol: u8,
    /// Client and server as the inside sees them, and as the server does.
    seen: [Ends; 2],
    /// TCP: the next sequence number of client and server.
    next: [u32; 2],
}

/// The bytes behind an IP header.
pub(crate) struct Upper {
    pub(crate) bytes: Vec<u8>,
    /// TCP: the sequence number is outside of the window.
    pub(crate) is_out_of_window: bool,
    /// TCP: the flags are SYN, FIN or RST.
    pub(crate) is_control: bool,
    /// TCP: the flags, if they are FIN or RST with ACK and nothing else, and the segment is whole.
    pub(crate) end: Option<u8>,
    /// Sequence space that it takes if it arrives.
    pub(crate) length: u32,
}

impl Flow {
    pub(crate) fn new(random: &mut ChaCha8Rng, world: &NatWorld, protocol: u8, port: u16) -> Flow {
        let (called, got) = *CALLED.choose(random).unwrap();
        let server = world.server_address;
        Flow {
            protocol,
            seen: [
                [(world.inside_addresses[0], port), (server, called)],
                [(world.gateway_outside, port), (server, got)],
            ],
            // Also close to the end of the sequence space.
            next: [random.random(), 0_u32.wrapping_sub(random.random_range(0..10_000))],
        }
    }

    /// The ends of its packets from there, as they begin (true) or leave the gateway (false).
    pub(crate) fn ends(&self, from: End, is_before: bool) -> Ends {
        let [client, server] = self.seen[usize::from((from == End::Inside) != is_before)];
        if from == End::Inside { [client, server] } else { [server, client] }
    }

    pub(crate) fn header(&self, from: End, number: u32) -> Header {
        let [source, destination] = self.ends(from, true);
        Header::new(source.0, destination.0, self.protocol, number)
    }

    pub(crate) fn arrived(&mut self, from: End, length: u32) {
        let next = &mut self.next[from as usize];
        *next = next.wrapping_add(length);
    }

    /// A sound segment with these flags, of this much payload.
    pub(crate) fn segment(&self, from: End, flags: u8, options: &[u8], seq: u32, payload: &[u8]) -> Vec<u8> {
        let [source, destination] = self.ends(from, true);
        let ack = if flags & ACK == 0 { 0 } else { self.next[1 - from as usize] };
        let mut tcp = Vec::new();
        tcp.extend(source.1.to_be_bytes());
        tcp.extend(destination.1.to_be_bytes());
        tcp.extend(seq.to_be_bytes());
        tcp.extend(ack.to_be_bytes());
        tcp.extend([(((20 + options.len()) / 4) << 4) as u8, flags]);
        tcp.extend(60_000_u16.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(options);
        tcp.extend(payload);
        seal(&self.header(from, 0), tcp, 16)
    }

    /// The segment that comes next.
    pub(crate) fn next_segment(&self, from: End, flags: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
        self.segment(from, flags, options, self.next[from as usize], payload)
    }

    pub(crate) fn datagram(&self, from: End, payload: &[u8]) -> Vec<u8> {
        let [source, destination] = self.ends(from, true);
        let mut udp = Vec::new();
        for word in [source.1, destination.1, 8 + payload.len() as u16, 0] {
            udp.extend(word.to_be_bytes());
        }
        udp.extend(payload);
        seal(&self.header(from, 0), udp, 6)
    }

    /// The packets that begin it, from which end and without faults: for TCP the handshake, then payload both ways.
    pub(crate) fn beginning(&mut self, number: u32) -> Vec<(End, Vec<u8>)> {
        let turns: &[(End, u8)] = if self.protocol == TCP {
            &[(End::Inside, SYN), (End::Server, SYN | ACK), (End::Inside, ACK)]
        } else {
            &[(End::Inside, 0), (End::Server, 0)]
        };
        let mut packets = Vec::new();
        for (n, (from, flags)) in turns.iter().enumerate() {
            let upper = if self.protocol == TCP {
                self.segment(*from, *flags, &[], self.next[*from as usize], &[])
            } else {
                self.datagram(*from, &[n as u8; 1400])
            };
            self.arrived(*from, u32::from(flags & SYN != 0));
            packets.push((*from, self.header(*from, number + n as u32).packet(&upper)));
        }
        packets
    }

    /// A packet of this much payload that the fast path may carry.
    pub(crate) fn usual(&mut self, from: End, number: u32, length: usize) -> Vec<u8> {
        let payload = vec![number as u8; length];
        let upper = if self.protocol == TCP {
            let segment = self.segment(from, ACK | PSH, &[], self.next[from as usize], &payload);
            self.arrived(from, length as u32);
            segment
        } else {
            self.datagram(from, &payload)
        };
        self.header(from, number).packet(&upper)
    }

    /// A sound segment behind the end of the connection, of a sender that has not heard of it: with these flags, of this much payload.
    pub(crate) fn behind_its_end(&mut self, from: End, number: u32, flags: u8, length: usize) -> Vec<u8> {
        let payload = vec![number as u8; length];
        let upper = self.segment(from, flags, &[], self.next[from as usize], &payload);
        // Conntrack does not count the payload of a reset: its acknowledgement is outside of the window.
        self.arrived(from, if flags & RST == 0 { length as u32 } else { 0 });
        self.header(from, number).packet(&upper)
    }

    pub(crate) fn draw(&self, random: &mut ChaCha8Rng, from: End) -> Upper {
        let length = *[0, 1, 7, 100, 500, 1300].choose(random).unwrap();
        let payload: Vec<u8> = (0..length).map(|_| random.random()).collect();
        if self.protocol == UDP {
            self.draw_udp(random, from, &payload)
        } else {
            self.draw_tcp(random, from, &payload)
        }
    }

    fn draw_udp(&self, random: &mut ChaCha8Rng, from: End, payload: &[u8]) -> Upper {
        let mut bytes = self.datagram(from, payload);
        let length = bytes.len() as u16;
        match random.random_range(0..40) {
            0..4 => bytes[6..8].fill(0),
            4 => bytes[4..6].copy_from_slice(&(8 + (length - 8) / 2).to_be_bytes()),
            5 => bytes[4..6].copy_from_slice(&(length + 1).to_be_bytes()),
            6 => bytes[4..6].fill(0),
            7 => bytes[6] ^= random.random_range(1..=255_u8),
            8 => bytes.truncate(random.random_range(0..8)),
            // The same with a checksum that is right or absent.
            9 => {
                bytes[4..6].copy_from_slice(&(8 + (length - 8) / 2).to_be_bytes());
                bytes[6..8].fill(0);
            }
            _ => {}
        }
        Upper { bytes, is_out_of_window: false, is_control: false, end: None, length: 0 }
    }

    fn draw_tcp(&self, random: &mut ChaCha8Rng, from: End, payload: &[u8]) -> Upper {
        let next = self.next[from as usize];
        let (seq, is_out_of_window, is_new) = match random.random_range(0..30) {
            0 => (next.wrapping_add(random.random_range(1 << 18..u32::MAX / 2)), true, false),
            1 => (next.wrapping_sub(random.random_range(1 << 18..u32::MAX / 2)), true, false),
            2 => (next.wrapping_sub(payload.len() as u32), false, false),
            _ => (next, false, true),
        };
        let flags = match random.random_range(0..30) {
            0 => random.random(),
            1 => FIN | ACK,
            2 => RST | ACK,
            3 => *[RST, SYN, SYN | ACK, 0, PSH, FIN].choose(random).unwrap(),
            4 => ACK | PSH | ECE,
            5 => ACK | CWR,
            _ => *[ACK, ACK | PSH].choose(random).unwrap(),
        };
        // Conntrack compares an old reset with the last acknowledgement that it saw, which may be one of a segment outside of the window.
        let seq = if flags & RST != 0 && !is_out_of_window { next } else { seq };
        // Conntrack takes the highest edge for acknowledged: beyond what was sent, the segment is out of the window.
        let ack = self.next[1 - from as usize];
        let (left, right) = (ack.wrapping_sub(8).to_be_bytes(), ack.to_be_bytes());
        let sack = [&[1, 1, 5, 10], &left[..], &right[..]].concat();
        let options: &[u8] = match random.random_range(0..10) {
            // Timestamps (RFC 7323), SACK (RFC 2018), padding, an option that is longer than the header.
            0 => &[1, 1, 8, 10, 0, 0, 1, 0, 0, 0, 0, 9],
            1 => &sack,
            2 => &[1, 1, 1, 0],
            3 => &[254, 40, 1, 2],
            _ => &[],
        };
        let mut bytes = self.segment(from, flags, options, seq, payload);
        let mut length = payload.len() as u32 + u32::from(flags & FIN != 0);
        let is_control = flags & (FIN | SYN | RST) != 0;
        if !is_new || is_control || flags & ACK == 0 {
            length = 0;
        }
        let mut end = [FIN | ACK, RST | ACK].contains(&flags).then_some(flags);
        match random.random_range(0..40) {
            // A header of another length, with a checksum that is right.
            0 => {
                bytes[12] = random.random();
                bytes = seal(&self.header(from, 0), bytes, 16);
                (length, end) = (0, None);
            }
            1 => {
                bytes[17] ^= random.random_range(1..=255_u8);
                length = 0;
            }
            2 => {
                bytes.truncate(random.random_range(0..20));
                length = 0;
            }
            _ => {}
        }
        Upper { bytes, is_out_of_window, is_control, end, length }
    }
}
