//! The segment sizes of TCP connections (MSS, RFC 9293 section 3.7.1): what the two sides announced, and what is used.

use std::io;
use std::os::fd::AsFd;

use crate::socket_option::{get, set_int};

/// TCP_SAVE_SYN and TCP_SAVED_SYN (include/uapi/linux/tcp.h), Linux 4.2.
const SAVE_SYN: i32 = 27;
const SAVED_SYN: i32 = 28;
/// TCPI_OPT_TIMESTAMPS.
const TIMESTAMPS: u8 = 1;
/// Bytes that timestamps take of each segment, padded (RFC 7323 appendix A).
const TIMESTAMP_BYTES: u32 = 12;
/// Kind of the option with the MSS (RFC 9293 section 3.2).
const OPTION_MSS: u8 = 2;

/// Segment sizes of a connection as its kernel has them, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentSize {
    /// Largest segment that it sends, TCP options included: the least of what the other side announced and what this side
    /// knows of the path.
    pub sends: u32,
    /// Segment size that this side announced.
    pub announced: u32,
    /// The path MTU that TCP reckons with.
    pub path_mtu: u32,
}

/// Reads the segment sizes of an established connection.
pub fn of(stream: impl AsFd) -> io::Result<SegmentSize> {
    let mut info = [0u8; 104];
    get(stream, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    // Offsets in struct tcp_info, which only ever grew at its end.
    let at = |offset: usize| {
        let [a, b, c, d] = [info[offset], info[offset + 1], info[offset + 2], info[offset + 3]];
        u32::from_ne_bytes([a, b, c, d])
    };
    let options = if info[5] & TIMESTAMPS != 0 { TIMESTAMP_BYTES } else { 0 };
    // tcp_rcv_synsent_state_process and tcp_create_openreq_child take the timestamps off what was announced, too.
    Ok(SegmentSize { sends: at(16) + options, announced: at(84) + options, path_mtu: at(60) })
}

/// Make a listening socket keep the SYN of each connection, for [`announced_to`].
pub fn keep_syn(listener: impl AsFd) -> io::Result<()> {
    set_int(listener, libc::IPPROTO_TCP, SAVE_SYN, 1)
}

/// The MSS that the other side's SYN had when it arrived here, bytes, of a connection that was accepted from a listener with
/// [`keep_syn`]. `None` if the SYN was not kept or named none. It can be asked for once.
pub fn announced_to(stream: impl AsFd) -> io::Result<Option<u16>> {
    // IPv6 with extension headers, and TCP with all options.
    let mut syn = [0u8; 256];
    let n = get(stream, libc::IPPROTO_TCP, SAVED_SYN, &mut syn)?;
    Ok(syn_mss(&syn[..n]))
}

/// The option in a SYN that begins with its IP header.
fn syn_mss(packet: &[u8]) -> Option<u16> {
    let header = match packet.first()? >> 4 {
        4 => usize::from(packet[0] & 0xf) * 4,
        // The kernel keeps the SYN from its IP header on, which it found TCP right behind in all but exotic cases.
        6 if *packet.get(6)? == 6 => 40,
        _ => return None,
    };
    let tcp = packet.get(header..)?;
    let length = usize::from(*tcp.get(12)? >> 4) * 4;
    let mut options = tcp.get(20..length)?;
    loop {
        match *options {
            [0, ..] | [] => return None,
            [1, ref rest @ ..] => options = rest,
            [OPTION_MSS, 4, a, b, ..] => return Some(u16::from_be_bytes([a, b])),
            // A length below that of kind and length would not end.
            [_, length, ..] => options = options.get(usize::from(length.max(2))..)?,
            [_] => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn both_sides_see_what_was_announced() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(any) else {
                println!("SKIP: this host has no {any}");
                continue;
            };
            keep_syn(&listener).unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (far, _) = listener.accept().unwrap();
            // lo's MTU less the headers (RFC 6691).
            let mtu: u32 = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap().trim().parse().unwrap();
            let mss = (mtu - if any.starts_with('[') { 60 } else { 40 }).min(65_495);
            let seen = of(&near).unwrap();
            assert_eq!(u32::from(announced_to(&far).unwrap().unwrap()), seen.announced);
            assert_eq!((seen.announced, seen.path_mtu.min(65_535)), (mss, mtu.min(65_535)), "{any}");
            assert!(seen.sends <= mss && seen.sends >= mss / 2, "{seen:?}");
            assert_eq!(announced_to(&far).unwrap(), None, "it is given once");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..120)) {
            // Whatever comes out, it comes out: no loop without an end, no byte beyond the last.
            let mss = syn_mss(&bytes);
            proptest::prop_assert!(mss.is_none() || bytes.len() >= 44);
        }
    }

    #[test]
    fn options_of_any_kind_are_walked_over() {
        let syn = |options: &[u8]| {
            let mut packet = vec![0x45; 20];
            packet.extend([0; 20]);
            packet[32] = (((20 + options.len()) / 4) << 4) as u8;
            packet.extend(options);
            packet
        };
        assert_eq!(syn_mss(&syn(&[1, 1, 1, 1, 2, 4, 5, 180])), Some(1460));
        assert_eq!(syn_mss(&syn(&[3, 3, 7, 1, 2, 4, 5, 180])), Some(1460));
        assert_eq!(syn_mss(&syn(&[0, 0, 0, 0, 2, 4, 5, 180])), None);
        // A length of 0 or beyond the end.
        assert_eq!(syn_mss(&syn(&[9, 0, 9, 0, 9, 0, 9, 0])), None);
        assert_eq!(syn_mss(&syn(&[9, 200, 1, 1])), None);
        assert_eq!(syn_mss(&[0x45; 20]), None);
        assert_eq!(syn_mss(&[]), None);
    }
}
