//! The settings of the reference NAT, and its defects.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use weir_nat::rows::judge::Dependence;
use weir_wire::protocol;

use super::prefix::Prefixes;
use super::state::Stage;

/// Its usual outside addresses.
pub(crate) const ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(198, 19, 1, 1)), IpAddr::V4(Ipv4Addr::new(198, 19, 1, 2))];

/// The same over IPv6.
pub(crate) const ADDRESSES_V6: [IpAddr; 2] = [
    IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 2, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 2, 0, 0, 0, 2)),
];

/// The first inside host.
pub(crate) const FIRST_HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 10));

/// MTU of its outside link, bytes.
pub(crate) const OUTSIDE_MTU: u32 = 1_400;
/// MTU of its inside link, bytes.
pub(crate) const INSIDE_MTU: u32 = 1_500;

/// How it chooses outside ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PortRule {
    /// The inside port, or if that is in use one at random, of its parity and range.
    Preserve,
    /// Counts upwards from 40000.
    Sequential,
    /// At random, with the inside port's parity and range.
    Random,
}

/// The answer that strangers get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strangers {
    Silence,
    /// ICMP port unreachable; segments that open no connection get a reset.
    Unreachable,
}

/// A known defect of real NATs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Defect {
    /// Two hosts share a port as long as destinations differ; then the second one is moved.
    PortsOverlap,
    /// Two hosts get the same port, and what comes in goes to the last one.
    PortsOverload,
    /// Mappings of one host get different outside addresses.
    PoolArbitrary,
    /// The same of TCP only.
    TcpPoolArbitrary,
    /// Ports below 1024 are moved above.
    LowPortsRaised,
    /// Every port becomes the next one.
    ParityLost,
    /// A stranger passes if its port is one that was contacted, whatever its address.
    FilterByPort,
    /// Packets to an outside address of its own are dropped.
    NoHairpin,
    /// Hairpinned packets keep the inside source.
    HairpinInsideSource,
    /// Packets from inside do not keep a mapping of UDP alive.
    NoRefreshFromInside,
    /// Segments from inside do not keep a connection alive.
    NoTcpRefreshFromInside,
    /// An ICMP error from inside keeps the mapping alive that it is about.
    ErrorsRefresh,
    /// Each reset from inside keeps its connection alive.
    ResetsRefresh,
    /// One packet without an answer holds a mapping for 30 s.
    ShortUnanswered,
    /// Any UDP mapping is held for 60 s.
    ShortIdle,
    /// A TCP mapping is for one destination only.
    TcpMappingDependent,
    /// A SYN without a mapping is reset at once.
    SynReset,
    /// A SYN from a contacted endpoint is dropped.
    NoSimultaneousOpen,
    /// A SYN holds a mapping for 120 s.
    ShortOpening,
    /// Echo requests are dropped.
    QueriesDropped,
    /// An echo request holds a mapping for 30 s.
    ShortQuery,
    /// A mapping of echo requests is for one destination only.
    QueriesPerDestination,
    /// ICMP errors about echo requests are dropped.
    QueryErrorsDropped,
    /// Such an error keeps the mapping alive that it is about.
    QueryErrorsRefresh,
    /// ICMP errors from outside are dropped.
    ErrorsInDropped,
    /// ICMP errors from inside are dropped.
    ErrorsOutDropped,
    /// ICMP errors from inside are dropped if they are about TCP.
    TcpErrorsOutDropped,
    /// ICMP errors from inside are dropped if they are about echo replies.
    ReplyErrorsDropped,
    /// ICMP errors of a firewall outside are dropped: administratively prohibited.
    ProhibitedDropped,
    /// ICMP errors about a packet that is too big are dropped if they come from outside.
    TooBigDropped,
    /// They arrive with an MTU of 1,280 bytes.
    TooBigMtuChanged,
    /// ICMP errors about a wrong field are dropped.
    ProblemsDropped,
    /// ICMP errors from inside keep their source.
    ErrorOutSourceKept,
    /// The packet that an ICMP error quotes is not translated.
    InnerKept,
    /// The quoted packet's transport checksum is not updated.
    InnerChecksumStale,
    /// The quoted packet's IP checksum is not updated.
    InnerIpChecksumStale,
    /// ICMP errors from outside arrive as host unreachable.
    ErrorCodeChanged,
    /// An ICMP error ends the mapping that it is about.
    ErrorsEndMapping,
    /// All fragments are dropped.
    FragmentsDropped,
    /// Fragments are dropped if the first one has not come before them.
    FragmentsInOrderOnly,
    /// Later fragments leave with the inside address.
    FragmentsLeaked,
    /// A packet with DF that is too long is dropped without an answer.
    TooLongVanishes,
    /// It is answered with an MTU of 576.
    TooLongWrongMtu,
    /// A packet without DF that is too long is dropped.
    NothingFragmented,
    /// The hop limit is not lowered.
    TtlKept,
    /// DSCP and ECN become 0.
    TosCleared,
    /// DF is cleared.
    DfCleared,
    /// Options of TCP are overwritten.
    OptionsStripped,
    /// The maximum segment size of a SYN is lowered to 1,360 bytes.
    MssLowered,
    /// A SYN with data is dropped.
    SynDataDropped,
    /// A FIN from inside ends the mapping.
    HalfCloseEnds,
    /// A FIN from outside ends the mapping, and TCP without a mapping needs a SYN.
    HalfCloseInEnds,
    /// A SYN and ACK with data is dropped.
    SynAckDataDropped,
    /// Options of TCP from outside are overwritten.
    OptionsInStripped,
    /// Resets from outside are dropped.
    ResetDropped,
    /// A reset from outside ends the mapping, and TCP without a mapping needs a SYN.
    ResetEndsMapping,
    /// Identifications stay as they are, with one outside address for both hosts.
    IdKept,
    /// If a port is in use, the next one is chosen, with one outside address for both hosts.
    PortsNextFree,
    /// Protocols other than UDP, TCP and ICMP leave with the inside address.
    OthersLeaked,
    /// Their answers are dropped.
    OtherAnswersDropped,
    /// Overlapping fragments are put together, and the later data win.
    OverlapsJoined,
    /// An established connection is held for an hour.
    ShortEstablished,
    /// A connection with one FIN is held for two minutes.
    ShortHalfClosed,
    /// A connection with a reset is held for ten seconds.
    ShortReset,
    /// A packet that finds no port is dropped without an answer.
    ExhaustionSilent,
    /// It is answered with ICMP port unreachable.
    ExhaustionWrongCode,
    /// It leaves with its inside address.
    ExhaustionLeaks,
    /// It leaves by a port that another mapping has.
    ExhaustionShares,
    /// The oldest mapping is ended to make room for it.
    ExhaustionEvicts,
    /// A SYN that finds no port is dropped without an answer.
    TcpExhaustionSilent,
    /// It is answered with ICMP port unreachable.
    TcpExhaustionWrongCode,
    /// It is answered with a reset.
    TcpExhaustionResets,
    /// It leaves with its inside address.
    TcpExhaustionLeaks,
    /// It leaves by a port that another connection has.
    TcpExhaustionShares,
    /// The oldest connection is ended to make room for it.
    TcpExhaustionEvicts,
    /// ICMP errors to an outside address of its own are dropped.
    HairpinErrorsDropped,
    /// An error about a hairpinned packet quotes the inside destination.
    HairpinErrorHalf,
    /// A port goes to another host as soon as its mapping has ended, with one outside address for both hosts.
    PortsReusedAtOnce,
    /// A port of TCP goes to another host 30 s after the last packet from inside, whatever became of its connection, with one outside
    /// address for both hosts.
    TcpPortsForgotten,
    /// A translator of prefixes changes only the prefix, and checksums with it.
    PrefixNotNeutral,
    /// A reset from outside ends the mapping if its sequence number is not near the expected one.
    WildResetEnds,
    /// One of two first packets of a flow that come at once is dropped.
    FirstPacketsLost,
    /// Each of them gets a mapping of its own.
    FirstPacketsSplit,
    /// One of two SYNs is dropped that come at once from two hosts with the same port.
    FirstSynsLost,
    /// Both get the same outside port.
    FirstSynsShared,
    /// A SYN from outside with data is dropped.
    SynDataInDropped,
    /// The NAT answers pings to its own outside addresses itself.
    QueriesNotHairpinned,
    /// Segments whose sequence number is not near the expected one are dropped.
    SequenceChecked,
    /// Such segments leave with the inside address.
    SequenceLeaks,
    /// ICMP errors with a wrong checksum pass, and get a right one.
    BadErrorsPass,
    /// ICMP errors that quote an IP header with a wrong checksum pass.
    BadQuotesPass,
    /// ICMP errors are dropped if they quote a datagram with a wrong checksum.
    QuotesChecked,
    /// They are dropped if they quote an IP header with options.
    QuoteOptionsUnread,
    /// They are dropped if they quote less than the whole datagram.
    ShortQuotesDropped,
    /// ICMP errors about no mapping go to the first inside host.
    UnmappedErrorsPass,
}

impl Defect {
    pub(crate) const ALL: [Defect; 95] = [
        Defect::PortsOverlap,
        Defect::PortsOverload,
        Defect::PoolArbitrary,
        Defect::TcpPoolArbitrary,
        Defect::LowPortsRaised,
        Defect::ParityLost,
        Defect::FilterByPort,
        Defect::NoHairpin,
        Defect::HairpinInsideSource,
        Defect::NoRefreshFromInside,
        Defect::NoTcpRefreshFromInside,
        Defect::ErrorsRefresh,
        Defect::ResetsRefresh,
        Defect::ShortUnanswered,
        Defect::ShortIdle,
        Defect::TcpMappingDependent,
        Defect::SynReset,
        Defect::NoSimultaneousOpen,
        Defect::ShortOpening,
        Defect::QueriesDropped,
        Defect::ShortQuery,
        Defect::QueriesPerDestination,
        Defect::QueryErrorsDropped,
        Defect::QueryErrorsRefresh,
        Defect::ErrorsInDropped,
        Defect::ErrorsOutDropped,
        Defect::TcpErrorsOutDropped,
        Defect::ReplyErrorsDropped,
        Defect::ProhibitedDropped,
        Defect::TooBigDropped,
        Defect::TooBigMtuChanged,
        Defect::ProblemsDropped,
        Defect::ErrorOutSourceKept,
        Defect::InnerKept,
        Defect::InnerChecksumStale,
        Defect::InnerIpChecksumStale,
        Defect::ErrorCodeChanged,
        Defect::ErrorsEndMapping,
        Defect::FragmentsDropped,
        Defect::FragmentsInOrderOnly,
        Defect::FragmentsLeaked,
        Defect::TooLongVanishes,
        Defect::TooLongWrongMtu,
        Defect::NothingFragmented,
        Defect::TtlKept,
        Defect::TosCleared,
        Defect::DfCleared,
        Defect::OptionsStripped,
        Defect::MssLowered,
        Defect::SynDataDropped,
        Defect::HalfCloseEnds,
        Defect::HalfCloseInEnds,
        Defect::SynAckDataDropped,
        Defect::OptionsInStripped,
        Defect::ResetDropped,
        Defect::ResetEndsMapping,
        Defect::IdKept,
        Defect::PortsNextFree,
        Defect::OthersLeaked,
        Defect::OtherAnswersDropped,
        Defect::OverlapsJoined,
        Defect::ShortEstablished,
        Defect::ShortHalfClosed,
        Defect::ShortReset,
        Defect::ExhaustionSilent,
        Defect::ExhaustionWrongCode,
        Defect::ExhaustionLeaks,
        Defect::ExhaustionShares,
        Defect::ExhaustionEvicts,
        Defect::TcpExhaustionSilent,
        Defect::TcpExhaustionWrongCode,
        Defect::TcpExhaustionResets,
        Defect::TcpExhaustionLeaks,
        Defect::TcpExhaustionShares,
        Defect::TcpExhaustionEvicts,
        Defect::HairpinErrorsDropped,
        Defect::HairpinErrorHalf,
        Defect::PortsReusedAtOnce,
        Defect::TcpPortsForgotten,
        Defect::PrefixNotNeutral,
        Defect::WildResetEnds,
        Defect::SequenceChecked,
        Defect::SequenceLeaks,
        Defect::FirstPacketsLost,
        Defect::FirstPacketsSplit,
        Defect::FirstSynsLost,
        Defect::FirstSynsShared,
        Defect::SynDataInDropped,
        Defect::QueriesNotHairpinned,
        Defect::BadErrorsPass,
        Defect::BadQuotesPass,
        Defect::QuotesChecked,
        Defect::QuoteOptionsUnread,
        Defect::ShortQuotesDropped,
        Defect::UnmappedErrorsPass,
    ];
}

/// Its settings.
#[derive(Debug, Clone)]
pub(crate) struct Behaviour {
    /// Its outside addresses.
    pub(crate) addresses: [IpAddr; 2],
    pub(crate) mapping: Dependence,
    pub(crate) filtering: Dependence,
    pub(crate) ports: PortRule,
    pub(crate) udp_unanswered: Duration,
    pub(crate) udp_answered: Duration,
    pub(crate) tcp_opening: Duration,
    pub(crate) tcp_established: Duration,
    pub(crate) tcp_reset: Duration,
    /// After the FINs of both ends.
    pub(crate) tcp_closed: Duration,
    /// How long the port of a mapping of TCP is kept from other hosts after its end.
    pub(crate) tcp_held: Duration,
    pub(crate) icmp_query: Duration,
    /// Mappings of UDP, and as many of TCP, that each outside address has ports for.
    pub(crate) pool: usize,
    /// Mappings of UDP, and as many of TCP, that each inside host may have.
    pub(crate) host_limit: usize,
    pub(crate) refresh_from_outside: bool,
    pub(crate) strangers: Strangers,
    /// Ports of the first host that its first address publishes without a timer. The NAT's own choice of ports does not know them.
    pub(crate) published: Option<RangeInclusive<u16>>,
    /// Translates these prefixes of IPv6, and nothing else of the above.
    pub(crate) prefixes: Option<Prefixes>,
    pub(crate) defects: Vec<Defect>,
}

impl Default for Behaviour {
    /// A NAT that meets every requirement.
    fn default() -> Self {
        Behaviour {
            addresses: ADDRESSES,
            mapping: Dependence::EndpointIndependent,
            filtering: Dependence::EndpointIndependent,
            ports: PortRule::Preserve,
            udp_unanswered: Duration::from_secs(300),
            udp_answered: Duration::from_secs(300),
            tcp_opening: Duration::from_secs(300),
            tcp_established: Duration::from_secs(9_000),
            tcp_reset: Duration::from_secs(300),
            tcp_closed: Duration::from_secs(300),
            tcp_held: Duration::from_secs(120),
            icmp_query: Duration::from_secs(300),
            pool: 300,
            host_limit: usize::MAX,
            refresh_from_outside: true,
            strangers: Strangers::Silence,
            published: None,
            prefixes: None,
            defects: Vec::new(),
        }
    }
}

impl Behaviour {
    pub(crate) fn with(defect: Defect) -> Self {
        Behaviour { defects: vec![defect], ..Behaviour::default() }
    }

    /// One that meets every requirement, with addresses and ports of IPv6.
    pub(crate) fn v6() -> Self {
        Behaviour { addresses: ADDRESSES_V6, ..Behaviour::default() }
    }

    /// A translator of the prefixes of the lab's inside and spare networks.
    pub(crate) fn nptv6() -> Self {
        let [inside, outside] = [0, 2].map(|network| Ipv6Addr::new(0x2001, 2, 0, network, 0, 0, 0, 0));
        Behaviour { prefixes: Some(Prefixes { inside, outside }), ..Behaviour::v6() }
    }

    pub(crate) fn has(&self, defect: Defect) -> bool {
        self.defects.contains(&defect)
    }

    /// Idle time of a mapping.
    pub(crate) fn idle(&self, protocol: u8, answered: bool, stage: Stage) -> Duration {
        let short = |defect, seconds| self.has(defect).then(|| Duration::from_secs(seconds));
        match protocol {
            protocol::TCP if stage == Stage::Established => {
                short(Defect::ShortEstablished, 3_600).unwrap_or(self.tcp_established)
            }
            // RFC 5382 section 5: the connection is established until the second FIN.
            protocol::TCP if stage == Stage::HalfClosed => short(Defect::ShortHalfClosed, 120)
                .or(short(Defect::ShortEstablished, 3_600))
                .unwrap_or(self.tcp_established),
            protocol::TCP if stage == Stage::Reset => short(Defect::ShortReset, 10).unwrap_or(self.tcp_reset),
            protocol::TCP if stage == Stage::Closed => self.tcp_closed,
            protocol::TCP => short(Defect::ShortOpening, 120).unwrap_or(self.tcp_opening),
            protocol::ICMP => short(Defect::ShortQuery, 30).unwrap_or(self.icmp_query),
            _ if answered => short(Defect::ShortIdle, 60).unwrap_or(self.udp_answered),
            _ => short(Defect::ShortIdle, 60)
                .or(short(Defect::ShortUnanswered, 30))
                .unwrap_or(self.udp_unanswered),
        }
    }
}
