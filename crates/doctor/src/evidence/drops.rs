//! Packets that the kernel threw away.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Packets lost for one reason at one place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DropGroup {
    /// Namespace of the packet's interface, or of its socket; 0 if it had neither.
    pub namespace: u64,
    /// Name of the drop reason (`NETFILTER_DROP`), from this kernel's own type information. `UNKNOWN` where the kernel has none.
    pub reason: String,
    /// Kernel function that let go of it (`nft_do_chain`).
    pub location: String,
    /// Number of the packet's interface (`skb->dev`); 0 if it had none.
    pub interface: u32,
    /// EtherType, host order.
    pub ethertype: u16,
    /// IP protocol; 0 if it is not IP.
    pub protocol: u8,
    /// How many, in the window.
    pub packets: u64,
    /// Their bytes, each from the network header on.
    pub bytes: u64,
    /// Some of them, spread over the window.
    pub samples: Vec<Sample>,
}

/// One packet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Interface it came in through (`skb->skb_iif`); 0 if it was made here.
    pub came_in: u32,
    /// `skb->mark`.
    pub mark: u32,
    /// Bytes from the network header on.
    pub length: u32,
    /// True if the kernel had bound a socket to it (made here, or for a socket here).
    pub socket: bool,
    /// Its first bytes from the network header on, in hexadecimal; at most 128 bytes.
    #[serde(with = "hex")]
    pub header: Vec<u8>,
}

/// Who sent it to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Tuple {
    /// From.
    pub source: IpAddr,
    /// To.
    pub destination: IpAddr,
    /// IP protocol.
    pub protocol: u8,
    /// Source port; 0 of protocols without, and of fragments.
    pub source_port: u16,
    /// Destination port, likewise.
    pub destination_port: u16,
}

impl DropGroup {
    /// Packets of it, by the share of its samples that are meant.
    pub(crate) fn share(&self, meant: impl Fn(&Sample) -> bool) -> u64 {
        let asked = self.samples.len() as u64;
        let mine = self.samples.iter().filter(|s| meant(s)).count() as u64;
        let packets = u128::from(self.packets) * u128::from(mine);
        if asked == 0 { 0 } else { packets.div_ceil(asked.into()) as u64 }
    }
}

/// An IP packet and what follows its headers, as far as the sample has it.
pub(crate) struct Upper<'a> {
    source: IpAddr,
    destination: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) payload: &'a [u8],
    /// False of a fragment after the first.
    pub(crate) is_first: bool,
}

impl Sample {
    /// `None` if it is not IP or too short. The sample may end before the packet does.
    pub(crate) fn upper(&self) -> Option<Upper<'_>> {
        match self.header.first()? >> 4 {
            4 => {
                let (ip, payload) = weir_wire::Ipv4::read_quoted(&self.header).ok()?;
                let is_first = ip.fragment().is_none_or(|f| f.offset == 0);
                let (source, destination) = (ip.source.into(), ip.destination.into());
                Some(Upper { source, destination, protocol: ip.protocol, payload, is_first })
            }
            6 => {
                let (ip, rest) = weir_wire::Ipv6::read_quoted(&self.header).ok()?;
                let upper = weir_wire::ipv6::upper_layer(ip.next_header, rest).ok()?;
                let is_first = upper.fragment.is_none_or(|f| f.offset == 0);
                let (source, destination) = (ip.source.into(), ip.destination.into());
                let weir_wire::ipv6::UpperLayer { protocol, payload, .. } = upper;
                Some(Upper { source, destination, protocol, payload, is_first })
            }
            _ => None,
        }
    }

    /// The header's addresses and ports; `None` as for an [`Upper`].
    pub fn tuple(&self) -> Option<Tuple> {
        let Upper { source, destination, protocol, payload, is_first } = self.upper()?;
        let (source_port, destination_port) = if is_first { ports(protocol, payload) } else { (0, 0) };
        Some(Tuple { source, destination, protocol, source_port, destination_port })
    }

    /// Control bits of TCP ([`weir_wire::Tcp::SYN`] and others); `None` of anything else, of a fragment after the first, and where
    /// the sample ends before them.
    pub fn tcp_flags(&self) -> Option<u8> {
        self.tcp_segment()?.get(13).copied()
    }

    /// Bytes of data in a TCP segment; `None` as for [`Sample::tcp_flags`].
    pub fn tcp_payload(&self) -> Option<u32> {
        let segment = self.tcp_segment()?;
        let before = segment.as_ptr().addr() - self.header.as_ptr().addr();
        let header = usize::from(segment.get(12)? >> 4) * 4;
        self.length.checked_sub(u32::try_from(before + header).ok()?)
    }

    /// The packet from its TCP header on.
    fn tcp_segment(&self) -> Option<&[u8]> {
        self.tuple().filter(|t| t.protocol == weir_wire::protocol::TCP && t.source_port != 0)?;
        Some(self.upper()?.payload)
    }
}

/// Ports of TCP, UDP, UDP-Lite, DCCP and SCTP, which all begin with them.
fn ports(protocol: u8, payload: &[u8]) -> (u16, u16) {
    match (protocol, payload) {
        (6 | 17 | 33 | 132 | 136, [a, b, c, d, ..]) => {
            (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]))
        }
        _ => (0, 0),
    }
}

/// Bytes as hexadecimal digits.
mod hex {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&bytes.iter().map(|b| format!("{b:02x}")).collect::<String>())
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        let digits = text.as_bytes();
        if !digits.len().is_multiple_of(2) || !digits.is_ascii() {
            return Err(D::Error::custom("an odd number of hexadecimal digits"));
        }
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        digits.chunks(2).map(|pair| byte(pair).ok_or_else(|| D::Error::custom("not hexadecimal"))).collect()
    }
}
