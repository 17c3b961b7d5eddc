//! Sockets as text: `/proc/net/tcp`, `tcp6`, `udp` and `udp6`. They say less than sock_diag, and are there without any module.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::ProcRoot;
use crate::error::Result;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainSocket {
    /// This end. An IPv4 address of an IPv6 socket is given as IPv4.
    pub local: SocketAddr,
    /// The other end; zero if there is none.
    pub remote: SocketAddr,
    /// State by number (include/net/tcp_states.h).
    pub state: u8,
    /// Bytes that wait to be sent or acknowledged.
    pub send_queue: u32,
    /// Bytes that wait to be read; of a listening socket the connections that wait to be accepted.
    pub receive_queue: u32,
    /// Inode; 0 if no program holds it.
    pub inode: u32,
    /// Packets it had no room for; 0 of TCP, which does not tell.
    pub drops: u32,
}

/// The lines of such a file; what cannot be read is left out.
pub fn parse_sockets(text: &str) -> impl Iterator<Item = PlainSocket> + '_ {
    text.lines().skip(1).filter_map(line)
}

fn line(line: &str) -> Option<PlainSocket> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let (send_queue, receive_queue) = words.get(4)?.split_once(':')?;
    Some(PlainSocket {
        local: address(words.get(1)?)?,
        remote: address(words.get(2)?)?,
        state: u8::from_str_radix(words.get(3)?, 16).ok()?,
        send_queue: number(send_queue)?,
        receive_queue: number(receive_queue)?,
        inode: words.get(9)?.parse().ok()?,
        // UDP has 13 columns, of which this is the last; TCP has a timer there, or nothing.
        drops: if words.len() == 13 { words[12].parse().ok()? } else { 0 },
    })
}

/// `0100007F:1F90`: words of the address as the kernel holds them, printed as numbers of this machine.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |n: usize| Some(u32::from_str_radix(ip.get(8 * n..8 * n + 8)?, 16).ok()?.to_ne_bytes());
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let octets = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(octets).ok()?)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

impl ProcRoot {
    /// Sockets of a protocol (`tcp` or `udp`) in the calling thread's namespace, IPv4 first.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn plain_sockets(&self, protocol: &str) -> Result<Vec<PlainSocket>> {
        let text = self.read(&format!("proc/thread-self/net/{protocol}"))?;
        let mut sockets: Vec<PlainSocket> = parse_sockets(&text).collect();
        // A kernel without IPv6 has no such file.
        if let Some(text) = self.read_optional(&format!("proc/thread-self/net/{protocol}6")) {
            sockets.extend(parse_sockets(&text));
        }
        Ok(sockets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_socket_of_this_process_is_what_the_library_says() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let six = std::net::UdpSocket::bind("[::1]:0");
        let root = ProcRoot::default();
        let tcp = root.plain_sockets("tcp").unwrap();
        let of = |local: SocketAddr| tcp.iter().find(|s| s.local == local).unwrap().clone();
        let listening = of(listener.local_addr().unwrap());
        // One connection waits to be accepted.
        assert_eq!((listening.state, listening.receive_queue, listening.remote.port()), (10, 1, 0));
        let connected = of(client.local_addr().unwrap());
        assert_eq!((connected.state, connected.remote), (1, client.peer_addr().unwrap()));
        match six {
            Ok(six) => {
                let udp = root.plain_sockets("udp").unwrap();
                assert!(udp.iter().any(|s| s.local == six.local_addr().unwrap() && s.inode > 0));
            }
            Err(_) => println!("SKIP: no IPv6 on the loopback interface"),
        }
    }

    #[test]
    fn lines_of_6_18_are_read_whole() {
        let udp = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
                    1234: 0100007F:0202 00000000:0000 07 00000000:00033C00 00:00000000 00000000     0        0 40521 2 00000000abcdef01 731\n\
                   garbage\n";
        let read: Vec<PlainSocket> = parse_sockets(udp).collect();
        assert_eq!(read.len(), 1);
        assert_eq!(
            (read[0].state, read[0].receive_queue, read[0].inode, read[0].drops),
            (7, 0x33c00, 40_521, 731)
        );
        if cfg!(target_endian = "little") {
            assert_eq!(read[0].local, "127.0.0.1:514".parse().unwrap());
        }
    }

    proptest::proptest! {
        #[test]
        fn garbage_never_panics(text in "\\PC{0,80}") {
            let lines = format!("head\n{text}\n 0: {text} 0:0 01 0:0 0 0 0 0 7 1 2 3");
            proptest::prop_assert!(parse_sockets(&lines).count() <= 2);
        }
    }
}
