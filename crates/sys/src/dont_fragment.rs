//! Whether the kernel may split what a UDP or ICMP socket sends, and what it believes of the path (ip(7), IP_MTU_DISCOVER).

use std::io;
use std::os::fd::AsFd;

use crate::socket_option::{get_int, set_int};

/// Treatment of a datagram that does not fit a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Splitting {
    /// It is sent whole and marked as not to be split, whatever the kernel has learned of the path (IP_PMTUDISC_PROBE). Longer
    /// than the own link's MTU: EMSGSIZE.
    Never,
    /// It may be split, here and (IPv4) on the way (IP_PMTUDISC_DONT).
    Allowed,
    /// The kernel's default: sent whole as long as it fits what is known of the path, and else split (IP_PMTUDISC_WANT).
    Usual,
}

/// IPV6_MTU_DISCOVER has the same values as IP_MTU_DISCOVER (include/uapi/linux/in6.h).
const VALUES: [(Splitting, i32); 3] = [
    (Splitting::Never, libc::IP_PMTUDISC_PROBE),
    (Splitting::Allowed, libc::IP_PMTUDISC_DONT),
    (Splitting::Usual, libc::IP_PMTUDISC_WANT),
];

/// Set it for everything that the socket sends from now on.
pub fn set(socket: impl AsFd, ipv6: bool, splitting: Splitting) -> io::Result<()> {
    let value = VALUES.iter().find(|(s, _)| *s == splitting).map_or(libc::IP_PMTUDISC_WANT, |(_, v)| *v);
    if ipv6 {
        set_int(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, value)?;
    }
    // An IPv6 socket follows the IPv4 options when it sends to an IPv4 address.
    match set_int(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, value) {
        Err(e) if !ipv6 => Err(e),
        _ => Ok(()),
    }
}

/// Split what is longer than this into fragments of at most that length, 1280 or more bytes (IPV6_MTU); 0: as the path's MTU
/// is known. Only IPv6 has it.
pub fn set_fragment_length(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    set_int(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU, bytes.cast_signed())
}

/// Hop limit of what the socket sends, 1 to 255.
pub fn set_hops(socket: impl AsFd, ipv6: bool, hops: u8) -> io::Result<()> {
    let (level, name) = hop_limit(ipv6);
    set_int(&socket, level, name, hops.into())
}

/// The hop limit is the system's again.
pub fn reset_hops(socket: impl AsFd, ipv6: bool) -> io::Result<()> {
    let (level, name) = hop_limit(ipv6);
    set_int(&socket, level, name, -1)
}

/// Level and name of the option.
fn hop_limit(ipv6: bool) -> (i32, i32) {
    if ipv6 { (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) } else { (libc::IPPROTO_IP, libc::IP_TTL) }
}

/// The path MTU that the kernel has for a connected socket: that of the route, or what an ICMP message has taught it (IP_MTU).
pub fn known_path_mtu(socket: impl AsFd, ipv6: bool) -> io::Result<u32> {
    let (level, name) =
        if ipv6 { (libc::IPPROTO_IPV6, libc::IPV6_MTU) } else { (libc::IPPROTO_IP, libc::IP_MTU) };
    get_int(socket, level, name).map(i32::unsigned_abs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn a_datagram_above_the_link_s_mtu_is_refused_or_split_as_was_set() {
        // lo has an MTU of 65536, which no UDP datagram of IPv4 exceeds: what the kernel knows is asked instead. It knows no path
        // with more than a length of 16 bits can say (IP_MAX_MTU).
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(far.local_addr().unwrap()).unwrap();
        for splitting in [Splitting::Never, Splitting::Allowed, Splitting::Usual] {
            set(&socket, false, splitting).unwrap();
            assert_eq!(socket.send(&[0; 1400]).unwrap(), 1400);
        }
        let mtu = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap().trim().parse::<u32>().unwrap();
        assert_eq!(known_path_mtu(&socket, false).unwrap(), mtu.min(65_535));
        set_hops(&socket, false, 3).unwrap();
        assert_eq!(socket.ttl().unwrap(), 3);
        reset_hops(&socket, false).unwrap();
        let default = std::fs::read_to_string("/proc/sys/net/ipv4/ip_default_ttl").unwrap();
        assert_eq!(socket.ttl().unwrap().to_string(), default.trim());
    }
}
