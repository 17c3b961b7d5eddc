//! The results of experiments, without any judgement.

mod crafted;
mod idle;
mod ipv6;
mod opening;
mod published;
mod tcp;
mod types;

use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crafted::{Craft, CraftedError};
pub use idle::{Afterwards, Idle, IdleTry, Met, PortReuse, Refresh};
pub use ipv6::Ipv6Path;
pub use opening::{FirstPackets, FirstSyns, NewMappings};
pub use published::{PublishedPort, PublishedPorts};
pub use tcp::{SegmentTrip, Simultaneous, TcpCarriage, TcpOptions, TcpSequence, Unsolicited};
pub use types::IcmpType;

/// All that was seen of one NAT. A field is `None` if its experiment was not made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Observations {
    /// UDP from one inside port each to two outside addresses, two ports each.
    pub udp_mapping: Option<Vec<Mapping>>,
    /// The same from a port that a second inside host uses too.
    pub udp_collision: Option<Collision>,
    /// UDP from many inside ports to one outside port.
    pub udp_ports: Option<Vec<Translation>>,
    /// UDP from an even inside port and the next one, one pair after another.
    pub udp_pairs: Option<Vec<[Translation; 2]>>,
    /// UDP from strangers to the outside port of a mapping.
    pub udp_filtering: Option<Vec<Filtering>>,
    /// UDP between two inside hosts by way of their outside ports.
    pub udp_hairpin: Option<Hairpin>,
    /// The same as `udp_mapping` by the SYNs of TCP.
    pub tcp_mapping: Option<Vec<Mapping>>,
    /// The same as `udp_collision`.
    pub tcp_collision: Option<Collision>,
    /// The same as `udp_filtering`.
    pub tcp_filtering: Option<Vec<Filtering>>,
    /// The same as `udp_hairpin`.
    pub tcp_hairpin: Option<Hairpin>,
    /// SYNs that cross each other.
    pub tcp_simultaneous: Option<Simultaneous>,
    /// A SYN from outside to a port without a mapping.
    pub tcp_unsolicited: Option<Unsolicited>,
    /// Echo requests from inside.
    pub icmp_query: Option<IcmpQuery>,
    /// An echo request between two inside hosts by way of an outside address.
    #[serde(default)]
    pub icmp_hairpin: Option<QueryHairpin>,
    /// ICMP errors about packets of UDP, TCP and ICMP.
    pub icmp_errors: Option<Vec<IcmpError>>,
    /// ICMP errors that are damaged, cut short, or about no mapping.
    pub crafted_errors: Option<Vec<CraftedError>>,
    /// ICMP messages of different types.
    pub icmp_types: Option<Vec<IcmpType>>,
    /// Fields of the IP header.
    pub ip_fields: Option<[IpFields; 2]>,
    /// Fragments of UDP datagrams.
    pub fragments: Option<Vec<FragmentTrip>>,
    /// Fragments of one UDP datagram that overlap, outwards and inwards.
    pub overlapping: Option<Vec<OverlapTrip>>,
    /// A datagram that is longer than the outside link carries.
    pub too_long: Option<TooLong>,
    /// Options, data on a SYN, half-closed and reset connections of TCP.
    pub tcp_carriage: Option<TcpCarriage>,
    /// Segments of TCP with wrong sequence numbers.
    pub tcp_sequence: Option<TcpSequence>,
    /// UDP from ports that two inside hosts use, all to one destination: pairs of the inside and the outside port.
    pub udp_moved: Option<Vec<Translation>>,
    /// The same by SYNs.
    pub tcp_moved: Option<Vec<Translation>>,
    /// Datagrams of two inside hosts with one identification, which may be fragmented.
    pub identification: Option<Identification>,
    /// Protocols other than UDP, TCP and ICMP.
    pub others: Option<Vec<OtherTrip>>,
    /// The hosts' outside addresses, over IPv6.
    pub ipv6: Option<Ipv6Path>,
    /// Ports that are published by configuration.
    pub published: Option<PublishedPorts>,
    /// Mappings left alone for a time.
    pub idle: Option<Idle>,
    /// As many mappings as the NAT has ports for.
    pub exhaustion: Option<Exhaustion>,
    /// The same by SYNs.
    #[serde(default)]
    pub tcp_exhaustion: Option<Exhaustion>,
    /// How long the first of them took.
    pub new_mappings: Option<NewMappings>,
    /// The first two packets of UDP flows at once.
    pub udp_first_packets: Option<FirstPackets>,
    /// The first SYNs of two hosts with one port at once.
    #[serde(default)]
    pub tcp_first_syns: Option<FirstSyns>,
}

/// How one inside port was seen at an outside one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Translation {
    /// Inside address and port.
    pub inside: SocketAddr,
    /// Outside address and port that it sent to.
    pub to: SocketAddr,
    /// Source that was seen there; `None` if nothing arrived.
    pub seen: Option<SocketAddr>,
    /// The path carried a control packet, where nothing arrived.
    pub sure: bool,
}

/// One inside port and its destinations: one address first port, the same address second port, and the other address the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Mapping {
    /// The four translations.
    pub seen: [Translation; 4],
}

/// Two inside hosts that use the same port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Collision {
    /// The first host, to the first outside address and port.
    pub first: Translation,
    /// The second host: second address twice, then first address twice. Only the last but one meets the first host's mapping
    /// at the same outside port.
    pub second: Mapping,
    /// Host that got the answer to the first host's packet; `None`: no one.
    pub first_answer: Option<SocketAddr>,
    /// Host that got the answer to the second host's.
    pub second_answer: Option<SocketAddr>,
    /// Host that got the answer to the second host's first packet, which went to the second address.
    pub other_answer: Option<SocketAddr>,
    /// The path carried a control packet, where an answer did not arrive.
    pub sure: bool,
}

/// A mapping, and packets to its outside port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Filtering {
    /// The mapping.
    pub mapping: Translation,
    /// From another port of the address that it had sent to.
    pub same_address: Inbound,
    /// From another address.
    pub other_address: Inbound,
    /// From the address and port that it had sent to: the control.
    pub answer: Inbound,
}

/// A packet from outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Inbound {
    /// Inside address and port that it reached; `None` if it did not.
    pub reached: Option<SocketAddr>,
    /// The path carried a control packet, where it did not arrive.
    pub sure: bool,
    /// The answer that the sender got instead.
    pub answered: Option<Answered>,
}

/// An answer of the NAT to a packet from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "answer")]
pub enum Answered {
    /// An ICMP error.
    Icmp {
        /// Its type.
        kind: u8,
        /// Its code.
        code: u8,
    },
    /// A TCP reset.
    Reset,
}

/// Two inside hosts that send to each other's outside ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hairpin {
    /// The hosts' mappings, as seen outside.
    pub mappings: [Translation; 2],
    /// Source with which the second host's packet reached the first host; `None` if it did not arrive.
    pub source: Option<SocketAddr>,
    /// The path carried a control packet, where it did not arrive.
    pub sure: bool,
    /// The answer that the sender got instead.
    pub answered: Option<Answered>,
}

/// An echo request from inside and its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IcmpQuery {
    /// The request arrived outside.
    pub request: bool,
    /// The reply arrived inside, with the request's identifier.
    pub reply: bool,
    /// Address and identifier with which one identifier was seen at each outside address; `None` if the request did not arrive.
    #[serde(default)]
    pub seen: [Option<SocketAddr>; 2],
    /// The path carried a control packet, where one did not arrive.
    pub sure: bool,
}

/// An echo request of the second inside host to the first one's outside address, and the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueryHairpin {
    /// Address and identifier of an echo request of each host to an outside address.
    pub hosts: [SocketAddr; 2],
    /// The same as seen there; `None` if one did not arrive.
    pub seen: [Option<SocketAddr>; 2],
    /// Source address with which the request reached the first host; `None` if it did not.
    pub source: Option<IpAddr>,
    /// The first host's reply reached the second one.
    pub replied: bool,
    /// The NAT itself replied instead.
    pub by_nat: bool,
    /// The path carried a control packet, where something did not arrive.
    pub sure: bool,
}

/// The packet that an ICMP error is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum About {
    /// A UDP datagram from inside; the error comes from its destination.
    UdpOut,
    /// The same; the error comes from a router on the way.
    UdpOutRouter,
    /// A UDP datagram from outside; the error comes from the inside host.
    UdpIn,
    /// A SYN from inside; the error comes from its destination.
    TcpOut,
    /// A hairpinned UDP datagram; the error comes from the inside host that it reached.
    Hairpin,
    /// An echo request from inside; the error comes from a router on the way.
    Query,
    /// Data of TCP from outside; the error comes from the inside host.
    TcpIn,
    /// An echo reply from outside; the error comes from the inside host.
    QueryIn,
}

/// An ICMP error through the NAT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IcmpError {
    /// The packet that it is about.
    pub about: About,
    /// It arrived.
    pub arrived: bool,
    /// The outer addresses are those of the other side: the receiver's own, and no inside one outside.
    pub outer: bool,
    /// Type and code are those that were sent.
    pub kind: bool,
    /// The quoted packet has the endpoints that the receiver knows.
    pub inner: bool,
    /// The quoted IP header has the right checksum.
    pub inner_ip_checksum: bool,
    /// The quoted transport header has the right checksum.
    pub inner_checksum: bool,
    /// The mapping carried an answer afterwards.
    pub mapping_lives: bool,
    /// The path carried a control packet, where something did not arrive.
    pub sure: bool,
}

/// Fields of the IP header of one packet, as sent and as seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IpFields {
    /// It was sent from inside.
    pub out: bool,
    /// Hop limit, sent and seen.
    pub ttl: Option<(u8, u8)>,
    /// DSCP, sent and seen.
    pub dscp: Option<(u8, u8)>,
    /// ECN, sent and seen.
    pub ecn: Option<(u8, u8)>,
    /// DF, sent and seen.
    pub dont_fragment: Option<(bool, bool)>,
    /// The path carried a control packet, where it did not arrive.
    pub sure: bool,
}

/// One datagram in fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FragmentTrip {
    /// It was sent from inside.
    pub out: bool,
    /// The last fragment was sent first.
    pub reversed: bool,
    /// The whole datagram arrived, with its checksum.
    pub whole: bool,
    /// A fragment arrived with the sender's inside address.
    pub leaked: bool,
    /// The path carried a control packet, where it did not arrive.
    pub sure: bool,
}

/// The fate of fragments that overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Overlap {
    /// Nothing arrived.
    Dropped,
    /// Fragments arrived, which the receiver must put together.
    Passed,
    /// One datagram arrived, with the data of the earlier fragment where they overlap.
    EarlierKept,
    /// One datagram arrived, with the data of the later fragment there.
    LaterKept,
}

/// One datagram in fragments, two of which overlap with different data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OverlapTrip {
    /// It was sent from inside.
    pub out: bool,
    /// Its fate.
    pub fate: Overlap,
    /// The path carried a control packet, where nothing arrived.
    pub sure: bool,
}

/// Mappings of both inside hosts to one destination, opened until none is left or the limit is reached.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Exhaustion {
    /// Inside ports of each host that were tried.
    pub tried: [u32; 2],
    /// Those that got an outside port which no other had.
    pub opened: [u32; 2],
    /// Each host in turn: the last ports that were tried got none.
    pub ended: [bool; 2],
    /// Packets that did not leave.
    pub refused: u32,
    /// Those about which the sender got an ICMP error.
    pub told: u32,
    /// Type and code of the first such error.
    pub error: Option<(u8, u8)>,
    /// SYNs that did not leave, and that were answered by a reset.
    #[serde(default)]
    pub resets: u32,
    /// Packets that left by an outside port which another inside port had.
    pub reused: u32,
    /// Packets that left with their inside address.
    pub leaked: u32,
    /// Both hosts left by the same outside address.
    pub one_address: bool,
    /// Mappings of the beginning that were asked for at the end.
    pub witnesses: u32,
    /// Those that still carried a packet from outside.
    pub witnesses_alive: u32,
    /// Time from the first mapping to that question, s.
    pub took_s: f64,
    /// The path carried control packets.
    pub sure: bool,
}

/// A datagram from inside that is longer than the outside link carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TooLong {
    /// MTU of the outside link, bytes.
    pub link_mtu: u32,
    /// MTU in the ICMP error that the sender got for a packet with DF; `None` without an error.
    pub told: Option<u32>,
    /// A datagram without DF arrived.
    pub fragmented: bool,
    /// The path carried a control packet, where something did not arrive.
    pub sure: bool,
}

/// Two datagrams of two inside hosts to one destination, with the same identification and without DF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Identification {
    /// The identification as it was sent.
    pub sent: u16,
    /// Source address and identification of each as it arrived; `None` if one did not.
    pub seen: [Option<(IpAddr, u16)>; 2],
    /// The path carried a control packet, where one did not arrive.
    pub sure: bool,
}

/// A protocol other than UDP, TCP and ICMP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Other {
    /// Generic routing encapsulation (RFC 2784).
    Gre,
    /// IPsec without UDP (RFC 4303).
    Esp,
    /// RFC 4340.
    Dccp,
    /// RFC 9260.
    Sctp,
    /// RFC 3828.
    UdpLite,
}

impl Other {
    /// All.
    pub const ALL: [Other; 5] = [Other::Gre, Other::Esp, Other::Dccp, Other::Sctp, Other::UdpLite];

    /// Its number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Other::Gre => 47,
            Other::Esp => 50,
            Other::Dccp => 33,
            Other::Sctp => 132,
            Other::UdpLite => 136,
        }
    }

    /// Its header begins with a source and a destination port.
    pub fn has_ports(self) -> bool {
        matches!(self, Other::Dccp | Other::Sctp | Other::UdpLite)
    }
}

/// One packet of such a protocol from inside, and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OtherTrip {
    /// The protocol.
    pub other: Other,
    /// Inside address.
    pub inside: IpAddr,
    /// Source address as it arrived outside; `None` if it did not.
    pub seen: Option<IpAddr>,
    /// The answer to that source reached the inside host.
    pub answer: bool,
    /// The path carried a control packet, where something did not arrive.
    pub sure: bool,
}
