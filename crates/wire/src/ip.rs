//! Common parts of IPv4 and IPv6.

use std::net::IpAddr;

use crate::ethernet::{IPV4, IPV6};
use crate::ipv6::upper_layer;
use crate::{Error, Ethernet, Ipv4, Ipv6};

/// Which part of a datagram a fragment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// Same in all fragments of a datagram (IPv4: 16 bits).
    pub identification: u32,
    /// Offset of its payload in the datagram's, bytes.
    pub offset: usize,
    /// It is not the last.
    pub more: bool,
}

/// One IP packet: the fields that do not depend on the version, and its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// From where.
    pub source: IpAddr,
    /// To where.
    pub destination: IpAddr,
    /// Protocol of the payload; with IPv6 what the last extension header names.
    pub protocol: u8,
    /// Time to live, or hop limit.
    pub hops: u8,
    /// Set if the packet is a fragment. Only that with offset 0 has the transport header.
    pub fragment: Option<Fragment>,
    /// Payload after the IP headers, without the link's padding.
    pub payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Reads an IPv4 or IPv6 packet, told apart by its first four bits.
    ///
    /// # Errors
    /// If the packet is not whole, or a header is malformed.
    #[inline]
    pub fn read(bytes: &'a [u8]) -> Result<Self, Error> {
        match bytes.first().map(|first| first >> 4) {
            Some(4) => Ipv4::read(bytes).map(|(header, payload)| Datagram {
                source: header.source.into(),
                destination: header.destination.into(),
                protocol: header.protocol,
                hops: header.ttl,
                fragment: header.fragment(),
                payload,
            }),
            Some(6) => {
                let (header, rest) = Ipv6::read(bytes)?;
                let upper = upper_layer(header.next_header, rest)?;
                Ok(Datagram {
                    source: header.source.into(),
                    destination: header.destination.into(),
                    protocol: upper.protocol,
                    hops: header.hop_limit,
                    fragment: upper.fragment,
                    payload: upper.payload,
                })
            }
            Some(version) => {
                Err(Error::Malformed { header: "IP header", field: "version", value: version.into() })
            }
            None => Err(Error::Truncated { header: "IP header", needed: Ipv4::LENGTH, there: 0 }),
        }
    }

    /// Reads the packet in an Ethernet frame; `None` if the frame carries something else than IP.
    ///
    /// # Errors
    /// As [`Datagram::read`], and if the EtherType is not that of the version.
    pub fn in_frame(frame: &'a [u8]) -> Result<Option<Self>, Error> {
        let (ethernet, rest) = Ethernet::read(frame)?;
        if !matches!(ethernet.ethertype, IPV4 | IPV6) {
            return Ok(None);
        }
        let datagram = Datagram::read(rest)?;
        if datagram.source.is_ipv4() == (ethernet.ethertype == IPV4) {
            return Ok(Some(datagram));
        }
        let version = usize::from(rest[0] >> 4);
        Err(Error::Malformed { header: "IP header", field: "version", value: version })
    }
}
