//! STUN messages, as far as RFC 5780 needs them (RFC 8489 sections 5 and 14, RFC 5780 section 7).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Value that every message carries (RFC 8489 section 5).
const COOKIE: u32 = 0x2112_a442;
/// Length of the header, bytes.
const HEADER: usize = 20;
/// Types of messages.
const BINDING_REQUEST: u16 = 0x0001;
const BINDING_SUCCESS: u16 = 0x0101;
/// Types of attributes.
const MAPPED_ADDRESS: u16 = 0x0001;
const CHANGE_REQUEST: u16 = 0x0003;
const XOR_MAPPED_ADDRESS: u16 = 0x0020;
const OTHER_ADDRESS: u16 = 0x802c;
/// RFC 3489's name of OTHER-ADDRESS, which old servers send.
const CHANGED_ADDRESS: u16 = 0x0005;
/// Address families.
const IPV4: u8 = 1;
const IPV6: u8 = 2;

/// Identity of a request and its answer.
pub(super) type Transaction = [u8; 12];

/// The endpoint from which the server is to answer (CHANGE-REQUEST).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The one that was asked.
    Nothing,
    /// The same address, the other port.
    Port,
    /// The other address and port.
    AddressAndPort,
}

/// An identity that cannot be guessed by a host that does not see the request.
pub(super) fn transaction(serial: u32) -> Transaction {
    use std::hash::{BuildHasher, Hasher};
    // Keys of the standard library's hash maps come from the system's generator.
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    let mut transaction = [0; 12];
    transaction[..8].copy_from_slice(&random.to_be_bytes());
    transaction[8..].copy_from_slice(&serial.to_be_bytes());
    transaction
}

/// A binding request.
pub fn request(transaction: [u8; 12], change: Change) -> Vec<u8> {
    let flags: u32 = match change {
        Change::Nothing => 0,
        Change::Port => 2,
        Change::AddressAndPort => 6,
    };
    let mut attributes = Vec::new();
    if flags != 0 {
        attributes.extend(CHANGE_REQUEST.to_be_bytes());
        attributes.extend(4_u16.to_be_bytes());
        attributes.extend(flags.to_be_bytes());
    }
    let mut bytes = BINDING_REQUEST.to_be_bytes().to_vec();
    // Eight bytes at most.
    bytes.extend((attributes.len() as u16).to_be_bytes());
    bytes.extend(COOKIE.to_be_bytes());
    bytes.extend(transaction);
    bytes.extend(attributes);
    bytes
}

/// A successful answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response {
    /// Source of the request, as the server saw it.
    pub mapped: Option<SocketAddr>,
    /// The server's other address and port.
    pub other: Option<SocketAddr>,
}

impl Response {
    /// Reads the answer to a request; `None` if it is something else, or malformed. Unknown attributes are skipped.
    pub fn read(bytes: &[u8], transaction: [u8; 12]) -> Option<Self> {
        let (header, attributes) = bytes.split_at_checked(HEADER)?;
        let length = usize::from(u16_at(header, 2)?);
        let is_answer = u16_at(header, 0)? == BINDING_SUCCESS
            && header[4..8] == COOKIE.to_be_bytes()
            && header[8..] == transaction;
        if !is_answer || length != attributes.len() {
            return None;
        }
        let mut response = Response { mapped: None, other: None };
        let mut plain = None;
        let mut rest = attributes;
        while !rest.is_empty() {
            let (kind, length) = (u16_at(rest, 0)?, usize::from(u16_at(rest, 2)?));
            let value = rest.get(4..4 + length)?;
            match kind {
                XOR_MAPPED_ADDRESS => {
                    response.mapped = address(value).map(|covered| uncovered(covered, transaction))
                }
                MAPPED_ADDRESS => plain = address(value),
                OTHER_ADDRESS => response.other = address(value),
                CHANGED_ADDRESS => response.other = response.other.or(address(value)),
                _ => {}
            }
            // Attributes begin at multiples of four bytes.
            rest = rest.get(4 + length.next_multiple_of(4)..)?;
        }
        response.mapped = response.mapped.or(plain);
        Some(response)
    }
}

/// An address attribute.
fn address(value: &[u8]) -> Option<SocketAddr> {
    let [_, family, a, b, address @ ..] = value else { return None };
    let address: IpAddr = match *family {
        IPV4 => Ipv4Addr::from(<[u8; 4]>::try_from(address).ok()?).into(),
        IPV6 => Ipv6Addr::from(<[u8; 16]>::try_from(address).ok()?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(address, u16::from_be_bytes([*a, *b])))
}

/// XOR-MAPPED-ADDRESS without its cover, which keeps NATs from rewriting it (RFC 8489 section 14.2).
fn uncovered(covered: SocketAddr, transaction: Transaction) -> SocketAddr {
    let address = match covered.ip() {
        IpAddr::V4(address) => Ipv4Addr::from(u32::from(address) ^ COOKIE).into(),
        IpAddr::V6(address) => {
            let cover = COOKIE.to_be_bytes().into_iter().chain(transaction);
            let mut octets = address.octets();
            octets.iter_mut().zip(cover).for_each(|(octet, cover)| *octet ^= cover);
            Ipv6Addr::from(octets).into()
        }
    };
    SocketAddr::new(address, covered.port() ^ (COOKIE >> 16) as u16)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 5769 section 2.2: the sample IPv4 response.
    const SAMPLE: [u8; 80] = [
        0x01, 0x01, 0x00, 0x3c, 0x21, 0x12, 0xa4, 0x42, 0xb7, 0xe7, 0xa7, 0x01, 0xbc, 0x34, 0xd6, 0x86, 0xfa,
        0x87, 0xdf, 0xae, 0x80, 0x22, 0x00, 0x0b, 0x74, 0x65, 0x73, 0x74, 0x20, 0x76, 0x65, 0x63, 0x74, 0x6f,
        0x72, 0x20, 0x00, 0x20, 0x00, 0x08, 0x00, 0x01, 0xa1, 0x47, 0xe1, 0x12, 0xa6, 0x43, 0x00, 0x08, 0x00,
        0x14, 0x2b, 0x91, 0xf5, 0x99, 0xfd, 0x9e, 0x90, 0xc3, 0x8c, 0x74, 0x89, 0xf9, 0x2a, 0xf9, 0xba, 0x53,
        0xf0, 0x6b, 0xe7, 0xd7, 0x80, 0x28, 0x00, 0x04, 0xc0, 0x7d, 0x4c, 0x96,
    ];
    const TRANSACTION: [u8; 12] = [0xb7, 0xe7, 0xa7, 0x01, 0xbc, 0x34, 0xd6, 0x86, 0xfa, 0x87, 0xdf, 0xae];

    #[test]
    fn the_sample_of_rfc_5769() {
        let response = Response::read(&SAMPLE, TRANSACTION).unwrap();
        assert_eq!(response.mapped, Some("192.0.2.1:32853".parse().unwrap()));
        assert_eq!(response.other, None);
    }

    /// RFC 5769 section 2.3: the sample IPv6 response.
    #[test]
    fn the_address_of_ipv6_in_the_sample_of_rfc_5769() {
        let value = [
            0x00, 0x02, 0xa1, 0x47, 0x01, 0x13, 0xa9, 0xfa, 0xa5, 0xd3, 0xf1, 0x79, 0xbc, 0x25, 0xf4, 0xb5,
            0xbe, 0xd2, 0xb9, 0xd9,
        ];
        let expected = "[2001:db8:1234:5678:11:2233:4455:6677]:32853".parse().unwrap();
        assert_eq!(uncovered(address(&value).unwrap(), TRANSACTION), expected);
        assert_eq!(address(&value[..19]), None);
        assert_eq!(address(&[&[0, 3], &value[2..]].concat()), None, "no family of addresses");
    }

    #[test]
    fn an_answer_to_another_request_or_half_of_one_is_none() {
        assert_eq!(Response::read(&SAMPLE, [0; 12]), None);
        for length in 0..SAMPLE.len() {
            assert_eq!(Response::read(&SAMPLE[..length], TRANSACTION), None, "{length}");
        }
        let mut wrong = SAMPLE;
        // An attribute that is longer than the message.
        wrong[23] = 0xff;
        assert_eq!(Response::read(&wrong, TRANSACTION), None);
    }

    #[test]
    fn a_request_has_its_change_and_its_length() {
        assert_eq!(request(TRANSACTION, Change::Nothing).len(), 20);
        let bytes = request(TRANSACTION, Change::AddressAndPort);
        assert_eq!(
            (bytes.len(), &bytes[2..4], &bytes[20..]),
            (28, &[0, 8][..], &[0, 3, 0, 4, 0, 0, 0, 6][..])
        );
    }
}
