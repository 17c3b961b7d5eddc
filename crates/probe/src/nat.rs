//! Packets that the two ends of a NAT check send to each other through the NAT.
//!
//! A check is part of a conversation ([`crate::message`]): the server gives it two ports on each of its addresses, and a number that
//! begins every packet. The server sends through the NAT only where a packet with that number came from, and fewer bytes than came
//! from there ([`Account`]).
//!
//! If both ends have the privilege and the key, they also exchange raw packets: ICMP, fragments, and other protocols. Those go only
//! to places from which raw packets with the check's mark came, and their number is bounded.

use std::net::{IpAddr, SocketAddr};

/// First bytes of a packet of either end.
pub const MAGIC: [u8; 8] = *b"weirNAT1";
/// Bytes before the mark: the magic, the check's number, and the mark's length.
pub const HEAD: usize = 17;
/// Longest mark, bytes.
pub const MARK: usize = 32;
/// Longest raw packet of either end, bytes: what every Ethernet carries.
pub const LONGEST_RAW: usize = 1_500;
/// Other protocols of raw packets than UDP, TCP and ICMP: DCCP, GRE, ESP, SCTP and UDP-Lite.
pub const OTHER_PROTOCOLS: [u8; 5] = [33, 47, 50, 132, 136];
/// Bytes that a client sends over each connection of TCP: they pay for connections that the server tries to open.
pub const STREAM: usize = 2_560;
/// Header of UDP, bytes.
const UDP_HEADER: u64 = 8;
/// Header of TCP without options, and with timestamps, bytes; a SYN with its options has as many or fewer.
const TCP_HEADER: u64 = 20;
const TCP_HEADERS: u64 = 40;

/// Payload of each datagram of a client, bytes. One of them pays for ten of the server's, and fits every link (RFC 791: 576 bytes,
/// RFC 8200 section 5: 1280).
pub fn datagram(to: IpAddr) -> usize {
    if to.is_ipv4() { 540 } else { 720 }
}

/// The version of IP, in words.
pub(crate) fn version(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// The first bytes of the data of a check's raw packets. The first two are the lower half of the sequence number of its SYNs, too.
pub fn raw_mark(number: u64) -> [u8; 4] {
    let [mark @ .., _, _, _, _] = number.to_be_bytes();
    mark
}

/// An address and port alone: not the flow label and the interface that IPv6 adds.
pub fn plain(endpoint: SocketAddr) -> SocketAddr {
    SocketAddr::new(endpoint.ip(), endpoint.port())
}

/// The two ports of a check, on one or two addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints {
    /// One or two addresses, of one version.
    pub addresses: Vec<IpAddr>,
    /// The same ports on each of them.
    pub ports: [u16; 2],
}

/// One of a check's endpoints: indices of the address and of the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct At {
    /// Index of the address, 0 or 1.
    pub address: u8,
    /// Index of the port, 0 or 1.
    pub port: u8,
}

impl Endpoints {
    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = At> {
        let addresses = self.addresses.len().min(2) as u8;
        (0..addresses).flat_map(|address| [0, 1].map(|port| At { address, port }))
    }

    /// Address and port; `None` if there is no such endpoint.
    pub fn endpoint(&self, at: At) -> Option<SocketAddr> {
        let (address, port) =
            (self.addresses.get(usize::from(at.address))?, self.ports.get(usize::from(at.port))?);
        Some(SocketAddr::new(*address, *port))
    }

    /// The reverse; the first one, if an address is there twice.
    pub fn at(&self, endpoint: SocketAddr) -> Option<At> {
        self.all().find(|at| self.endpoint(*at) == Some(endpoint))
    }
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Datagrams.
    Udp,
    /// Connections.
    Tcp,
}

/// A packet with this mark, padded with zeros to `length` bytes if it is shorter. Marks above [`MARK`] bytes are cut.
pub fn write(number: u64, mark: &[u8], length: usize) -> Vec<u8> {
    let mark = &mark[..mark.len().min(MARK)];
    let mut bytes = [&MAGIC[..], &number.to_be_bytes(), &[mark.len() as u8], mark].concat();
    bytes.resize(bytes.len().max(length), 0);
    bytes
}

/// The mark of a packet with that number; `None` for anything else.
pub fn read(number: u64, bytes: &[u8]) -> Option<&[u8]> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let length = usize::from(head[16]);
    let ours = head.starts_with(&MAGIC) && head[8..16] == number.to_be_bytes() && length <= MARK;
    if ours { rest.get(..length) } else { None }
}

/// Bytes that came from one address and port, and that were sent there, headers included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    /// Header of the address's version of IP, bytes.
    ip_header: u64,
    received: u64,
    sent: u64,
}

impl Account {
    /// Nothing has come from that address yet, and nothing was sent there.
    pub fn of(address: IpAddr) -> Self {
        Account { ip_header: if address.is_ipv4() { 20 } else { 40 }, received: 0, sent: 0 }
    }

    /// A datagram with that payload came.
    pub fn received_datagram(&mut self, payload: usize) {
        self.received += self.ip_header + UDP_HEADER + payload as u64;
    }

    /// May a datagram with that payload be sent? If so, it counts as sent.
    pub fn may_send_datagram(&mut self, payload: usize) -> bool {
        self.may_send(self.ip_header + UDP_HEADER + payload as u64)
    }

    /// A connection came: a SYN and an ACK in, a SYN and ACK out.
    pub fn accepted(&mut self) {
        self.received += 2 * (self.ip_header + TCP_HEADER);
        self.sent += self.ip_header + TCP_HEADERS;
    }

    /// Data came over a connection, and is acknowledged.
    pub fn received_stream(&mut self, payload: usize) {
        self.received += self.ip_header + TCP_HEADER + payload as u64;
        self.sent += self.ip_header + TCP_HEADERS;
    }

    /// May that much be sent over a connection?
    pub fn may_send_stream(&mut self, payload: usize) -> bool {
        self.may_send(self.ip_header + TCP_HEADERS + payload as u64)
    }

    /// May a connection be opened? If it is, three more segments follow the SYN.
    pub fn may_dial(&mut self) -> bool {
        self.may_send(4 * (self.ip_header + TCP_HEADERS))
    }

    /// Less is sent than came, always.
    fn may_send(&mut self, bytes: u64) -> bool {
        let may = self.sent + bytes < self.received;
        if may {
            self.sent += bytes;
        }
        may
    }

    /// Bytes that came.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Bytes that were sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_read_as_it_was_written_and_no_other_is() {
        for (mark, length) in [(&b"wnat0001"[..], 0), (b"", 540), (&[7; MARK], 20)] {
            let bytes = write(9, mark, length);
            assert_eq!((bytes.len(), read(9, &bytes)), (length.max(HEAD + mark.len()), Some(mark)));
            assert_eq!(read(8, &bytes), None, "another check's");
            for n in 0..HEAD + mark.len() {
                assert_eq!(read(9, &bytes[..n]), None, "{n}");
            }
        }
        let mut long = write(9, &[7; MARK], 540);
        long[16] = MARK as u8 + 1;
        assert_eq!(read(9, &long), None);
    }

    #[test]
    fn endpoints_are_found_by_address_and_by_index() {
        for pair in [["192.0.2.1", "192.0.2.2"], ["2001:2::1", "2001:2::2"]] {
            let [a, b] = pair.map(|text| text.parse().unwrap());
            let two = Endpoints { addresses: vec![a, b], ports: [1000, 1001] };
            assert_eq!(two.all().count(), 4);
            for at in two.all() {
                assert_eq!(two.at(two.endpoint(at).unwrap()), Some(at));
            }
            assert_eq!(two.endpoint(At { address: 2, port: 0 }), None);
            assert_eq!(two.endpoint(At { address: 0, port: 2 }), None);
            assert_eq!(two.at(SocketAddr::new(a, 1002)), None);
        }
    }

    #[test]
    fn less_is_sent_than_came() {
        for address in ["192.0.2.1", "2001:2::1"].map(|text| text.parse().unwrap()) {
            let mut account = Account::of(address);
            assert!(!account.may_send_datagram(0) && !account.may_dial(), "nothing came");
            account.received_datagram(datagram(address));
            let sent = (0..100).filter(|_| account.may_send_datagram(HEAD + 8)).count();
            assert_eq!(sent, 10);
            assert!(account.sent() < account.received());
            // One connection pays for all that is tried on it: two strangers three times each, and three answers.
            let mut account = Account::of(address);
            account.accepted();
            assert!(!account.may_dial(), "a SYN alone pays for none");
            account.received_stream(STREAM);
            assert!((0..6).all(|_| account.may_dial()) && (0..3).all(|_| account.may_send_stream(HEAD + 8)));
            while account.may_send_datagram(0) {}
            assert!(account.sent() < account.received());
        }
    }
}
