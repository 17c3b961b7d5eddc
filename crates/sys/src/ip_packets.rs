//! Whole IP packets, from their header on: those that reach this host from or for some addresses (packet(7)), and sending (raw(7)).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sendto, socket_with};

use crate::datagram_filter::admit_only;
use crate::packet_socket;
use crate::socket_option::set_int;

/// Receive buffer, bytes; the kernel counts some 800 for each short packet.
const BUFFER: i32 = 1 << 20;
/// IP_NODEFRAG (include/uapi/linux/in.h): connection tracking of this host leaves fragments as they are sent.
const NODEFRAG: i32 = 22;

/// The address of a packet by which it is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChosenBy {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

/// Sees packets for this host, before its firewall and before fragments are put together; of TCP only those with some ports.
#[derive(Debug)]
pub struct IpTap {
    socket: OwnedFd,
}

impl IpTap {
    /// Opens it in the calling thread's namespace, for packets that have one of these addresses, of one version, and if they are of
    /// TCP, one of these ports at the same end. It does not see earlier ones.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW over the namespace; `InvalidInput` for addresses of two versions, for none, and for more than 16
    /// addresses or ports.
    pub fn open(chosen_by: ChosenBy, addresses: &[IpAddr], tcp_ports: &[u16]) -> io::Result<Self> {
        let first = addresses.first().ok_or(io::ErrorKind::InvalidInput)?;
        if addresses.len().max(tcp_ports.len()) > 16
            || addresses.iter().any(|other| other.is_ipv4() != first.is_ipv4())
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let socket = packet_socket::open_tap(&mut filter(chosen_by, addresses, tcp_ports), BUFFER)?;
        Ok(IpTap { socket })
    }

    /// The next packet; `None` if there is none. The end of a packet that does not fit the buffer is cut off.
    ///
    /// # Errors
    /// Those of recv(2).
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        packet_socket::read_tap(&self.socket, buffer)
    }
}

impl AsFd for IpTap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Takes in only packets for this host with one of the addresses, and of TCP with one of the ports. Offsets count from the IP header.
fn filter(chosen_by: ChosenBy, addresses: &[IpAddr], tcp_ports: &[u16]) -> Vec<libc::sock_filter> {
    // Instructions of linux/filter.h: load, compare and jump over so many, return how many bytes to keep.
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |size: u32, at: u32| op(libc::BPF_LD | size | libc::BPF_ABS, 0, 0, at);
    let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let ancillary = |which: i32| (libc::SKF_AD_OFF + which).cast_unsigned();
    let leave = |bytes: u32| op(libc::BPF_RET | libc::BPF_K, 0, 0, bytes);
    let is_ipv4 = addresses.iter().any(IpAddr::is_ipv4);
    // RFC 791 section 3.1, RFC 8200 section 3.
    let (ethertype, protocol_at, source_at, destination_at) =
        if is_ipv4 { (libc::ETH_P_IP, 9, 12, 16) } else { (libc::ETH_P_IPV6, 6, 8, 24) };
    let address_at = if chosen_by == ChosenBy::Source { source_at } else { destination_at };
    let mut program = vec![
        load(libc::BPF_B, ancillary(libc::SKF_AD_PKTTYPE)),
        op(equals, 1, 0, u32::from(libc::PACKET_HOST)),
        leave(0),
        load(libc::BPF_H, ancillary(libc::SKF_AD_PROTOCOL)),
        op(equals, 1, 0, ethertype as u32),
        leave(0),
        load(libc::BPF_B, protocol_at),
    ];
    let mut of_port = Vec::new();
    let port_at = if chosen_by == ChosenBy::Source { 0 } else { 2 };
    if is_ipv4 {
        // Behind the header, whose length in units of four bytes is in its first byte.
        of_port.push(op(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0));
        of_port.push(op(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 0, 0, port_at));
    } else {
        of_port.push(load(libc::BPF_H, 40 + port_at));
    }
    for (n, port) in tcp_ports.iter().enumerate() {
        // Over the ports that are left, and the verdict.
        of_port.push(op(equals, (tcp_ports.len() - n) as u8, 0, u32::from(*port)));
    }
    of_port.push(leave(0));
    program.push(op(equals, 0, of_port.len() as u8, libc::IPPROTO_TCP as u32));
    program.append(&mut of_port);
    for address in addresses {
        let octets = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let words = octets.as_chunks::<4>().0;
        for (n, word) in words.iter().enumerate() {
            // How many instructions are left of this address after this pair, its verdict included.
            let left = (2 * (words.len() - n - 1) + 1) as u8;
            program.push(load(libc::BPF_W, address_at + 4 * n as u32));
            program.push(op(equals, 0, left, u32::from_be_bytes(*word)));
        }
        program.push(leave(u32::MAX));
    }
    program.push(leave(0));
    program
}

/// Sends packets as they are. The kernel writes only the length and the checksum of IPv4's header, and its identification if that is 0.
#[derive(Debug)]
pub struct IpSender {
    socket: OwnedFd,
}

impl IpSender {
    /// Opens it in the calling thread's namespace, for packets of that address's version.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW over the namespace.
    pub fn open(version_of: IpAddr) -> io::Result<Self> {
        let socket = raw_socket(version_of, libc::IPPROTO_RAW)?;
        if version_of.is_ipv4() {
            set_int(&socket, libc::IPPROTO_IP, NODEFRAG, 1)?;
        }
        Ok(IpSender { socket })
    }

    /// Sends a packet by the route to `to`, which is its destination.
    ///
    /// # Errors
    /// EMSGSIZE if it is longer than the link carries, and those of sendto(2).
    pub fn send(&self, packet: &[u8], to: IpAddr) -> io::Result<()> {
        sendto(&self.socket, packet, SendFlags::empty(), &SocketAddr::new(to, 0))?;
        Ok(())
    }
}

/// A socket that takes packets of a protocol in, so that the kernel does not reject them as of an unknown one (RFC 792, RFC 4443).
/// It drops them.
///
/// # Errors
/// EPERM without CAP_NET_RAW over the namespace.
pub fn accept_protocol(version_of: IpAddr, protocol: u8) -> io::Result<OwnedFd> {
    let socket = raw_socket(version_of, protocol.into())?;
    admit_only(&socket, &[])?;
    Ok(socket)
}

fn raw_socket(version_of: IpAddr, protocol: i32) -> io::Result<OwnedFd> {
    let family = if version_of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let protocol = u32::try_from(protocol).ok().and_then(rustix::net::RawProtocol::new);
    let protocol = protocol.map(rustix::net::Protocol::from_raw);
    Ok(socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, protocol)?)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::netns::NetNs;
    use crate::privilege;

    /// Runs `f` in a namespace of its own: a tap sees what other tests send over the loopback interface, too.
    fn alone(f: impl FnOnce() + Send) {
        let namespace = NetNs::create().unwrap();
        let mut up = std::process::Command::new("ip");
        up.args(["link", "set", "lo", "up"]);
        namespace.enter_on_spawn(&mut up);
        assert!(up.status().unwrap().success());
        namespace.run(f).unwrap();
    }

    /// The UDP payloads among what waits in the tap.
    fn payloads(tap: &IpTap, header: usize) -> Vec<Vec<u8>> {
        let mut buffer = [0; 2048];
        std::iter::from_fn(|| tap.read(&mut buffer).unwrap().map(|n| buffer[header + 8..n].to_vec()))
            .collect()
    }

    #[test]
    fn root_a_tap_sees_packets_of_its_addresses_only() {
        if privilege::test_needs_root() {
            return;
        }
        alone(|| {
            let addresses = ["127.0.0.7", "127.0.0.8"].map(|text| text.parse().unwrap());
            let tap = IpTap::open(ChosenBy::Destination, &addresses, &[]).unwrap();
            let from = IpTap::open(ChosenBy::Source, &addresses[1..], &[7, 10]).unwrap();
            let sent = |source: &str, to: &str, data: &[u8]| {
                let there = UdpSocket::bind((to, 0)).unwrap();
                let socket = UdpSocket::bind((source, 0)).unwrap();
                socket.send_to(data, there.local_addr().unwrap()).unwrap();
                let _ = std::net::TcpStream::connect((to, 9));
            };
            sent("127.0.0.1", "127.0.0.7", b"first");
            sent("127.0.0.1", "127.0.0.9", b"of another address");
            sent("127.0.0.8", "127.0.0.1", b"from one of them");
            sent("127.0.0.1", "127.0.0.8", b"second");
            assert_eq!(payloads(&tap, 20), [b"first".to_vec(), b"second".to_vec()]);
            assert_eq!(payloads(&from, 20), [b"from one of them"]);
            let six = ["::1".parse().unwrap()];
            let tap = IpTap::open(ChosenBy::Source, &six, &[7]).unwrap();
            sent("::1", "::1", b"six");
            assert_eq!(payloads(&tap, 40), [b"six"]);
        });
    }

    /// Connections to three ports of an address, of which one listens and lets nothing in: the tap sees two, and no answer comes.
    #[test]
    fn root_segments_of_some_ports_are_seen_and_a_silent_port_answers_none() {
        if privilege::test_needs_root() {
            return;
        }
        alone(|| {
            for (address, header) in [("127.0.0.9", 20), ("::1", 40)] {
                let address: IpAddr = address.parse().unwrap();
                let listener = std::net::TcpListener::bind((address, 0)).unwrap();
                let port = listener.local_addr().unwrap().port();
                admit_only(&listener, &[]).unwrap();
                let tap = IpTap::open(ChosenBy::Destination, &[address], &[port, 9]).unwrap();
                let connect = |port: u16| {
                    let to = SocketAddr::new(address, port);
                    std::net::TcpStream::connect_timeout(&to, std::time::Duration::from_millis(50))
                        .unwrap_err()
                        .kind()
                };
                assert_eq!(connect(8), io::ErrorKind::ConnectionRefused);
                assert_eq!(connect(9), io::ErrorKind::ConnectionRefused);
                assert_eq!(connect(port), io::ErrorKind::TimedOut);
                let mut buffer = [0; 2048];
                let to = |buffer: &[u8]| u16::from_be_bytes([buffer[header + 2], buffer[header + 3]]);
                let seen: Vec<u16> =
                    std::iter::from_fn(|| tap.read(&mut buffer).unwrap().map(|_| to(&buffer))).collect();
                assert_eq!(seen, [9, port], "{address}");
                crate::datagram_filter::admit_all(&listener).unwrap();
                assert!(std::net::TcpStream::connect((address, port)).is_ok());
            }
        });
    }

    #[test]
    fn root_a_packet_arrives_as_it_was_sent() {
        if privilege::test_needs_root() {
            return;
        }
        alone(|| {
            let to: IpAddr = "127.0.0.6".parse().unwrap();
            let tap = IpTap::open(ChosenBy::Destination, &[to], &[]).unwrap();
            // A fragment from the middle, of UDP: with its DSCP, identification and hop limit; the checksum is the kernel's.
            let mut packet =
                vec![0x45, 0xb8, 0, 28, 0x12, 0x34, 0x20, 3, 33, 17, 0, 0, 127, 0, 0, 5, 127, 0, 0, 6];
            packet.extend(*b"fragment");
            IpSender::open(to).unwrap().send(&packet, to).unwrap();
            let mut buffer = [0; 64];
            let n = tap.read(&mut buffer).unwrap().unwrap();
            buffer[10..12].fill(0);
            assert_eq!(buffer[..n], packet);
        });
    }

    #[test]
    fn addresses_of_two_versions_are_refused() {
        let both = ["127.0.0.1", "::1"].map(|text| text.parse().unwrap());
        for addresses in [&both[..], &[]] {
            let kind = IpTap::open(ChosenBy::Source, addresses, &[]).unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::InvalidInput);
        }
    }
}
