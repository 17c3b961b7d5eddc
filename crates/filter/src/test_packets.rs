//! Packets for the tests, and what a program says of them.

use std::net::SocketAddr;

use weir_bpf::test_run;

use crate::probe::{SHOT, frame};
use crate::{Action, Class, Compiled, Filter, Options};

pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const SYN: u8 = 0x02;

pub(crate) fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// The frame's protocol, or next header.
fn set_protocol(frame: &mut [u8], protocol: u8) {
    let is_v4 = frame[12..14] == [0x08, 0x00];
    frame[if is_v4 { 14 + 9 } else { 14 + 6 }] = protocol;
}

/// A packet of that protocol with this behind its header.
pub(crate) fn packet_with(protocol: u8, from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut bytes = frame(from.ip(), to.ip());
    if from.is_ipv4() {
        bytes[14 + 3] = (20 + payload.len()) as u8;
    } else {
        bytes[14 + 5] = payload.len() as u8;
    }
    set_protocol(&mut bytes, protocol);
    bytes.extend(payload);
    bytes
}

/// A packet with ports; of TCP with these flags.
pub(crate) fn packet(protocol: u8, from: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
    let mut payload = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    payload.extend([0; 8]);
    payload.extend([0x50, flags, 0, 0, 0, 0, 0, 0]);
    packet_with(protocol, from, to, &payload)
}

/// An ICMP error from that router about a packet: fragmentation needed, too big.
pub(crate) fn error_about(router: SocketAddr, to: SocketAddr, about: &[u8]) -> Vec<u8> {
    let (protocol, kind) = if router.is_ipv4() { (ICMP, 3) } else { (ICMPV6, 2) };
    let payload = [&[kind, 4, 0, 0, 0, 0, 0, 0], &about[14..]].concat();
    packet_with(protocol, router, to, &payload)
}

/// Whether the program for what comes in throws it away.
pub(crate) fn is_shot(filter: &Filter, packet: &[u8]) -> bool {
    test_run(filter.program("allow_ingress"), packet, 0, 1).unwrap().verdict == SHOT
}

/// A filter with one empty list: everybody is in none, and refused.
pub(crate) fn refuses_all(options: Options) -> Filter {
    let tables = Compiled::of(&[Class::default()]).unwrap();
    Filter::load_with(&tables, &[Action::Drop, Action::Allow], options).unwrap()
}
