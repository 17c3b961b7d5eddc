//! The settings and packets that each row of a table depends on, by the row's id. A test compares the ids with those of `weir nat rows`.

/// A row about an idle time.
pub(super) struct Timer {
    pub(super) row: &'static str,
    /// Its experiment in the table's observations.
    pub(super) experiment: &'static str,
    /// Settings that may have ended the mapping.
    pub(super) settings: &'static [&'static str],
    /// Idle time that the RFC asks for, s.
    pub(super) least_s: u64,
}

impl Timer {
    /// Protocol of its mappings, by the row's name.
    pub(super) fn protocol(&self, ipv6: bool) -> u8 {
        match self.row.split_once('-') {
            Some(("udp", _)) => 17,
            Some(("tcp", _)) => 6,
            _ if ipv6 => 58,
            _ => 1,
        }
    }

    /// The settings for a version of IP: ICMP alone has one for each.
    pub(super) fn names(&self, ipv6: bool) -> impl Iterator<Item = &'static str> {
        self.settings.iter().map(move |name| if ipv6 && *name == ICMP { ICMP6 } else { *name })
    }
}

const UDP: &str = "net.netfilter.nf_conntrack_udp_timeout";
const STREAM: &str = "net.netfilter.nf_conntrack_udp_timeout_stream";
const SYN_SENT: &str = "net.netfilter.nf_conntrack_tcp_timeout_syn_sent";
const ESTABLISHED: &str = "net.netfilter.nf_conntrack_tcp_timeout_established";
const CLOSE_WAIT: &str = "net.netfilter.nf_conntrack_tcp_timeout_close_wait";
const FIN_WAIT: &str = "net.netfilter.nf_conntrack_tcp_timeout_fin_wait";
const CLOSE: &str = "net.netfilter.nf_conntrack_tcp_timeout_close";
const ICMP: &str = "net.netfilter.nf_conntrack_icmp_timeout";
const ICMP6: &str = "net.netfilter.nf_conntrack_icmpv6_timeout";

const fn timer(
    row: &'static str,
    experiment: &'static str,
    settings: &'static [&'static str],
    least_s: u64,
) -> Timer {
    Timer { row, experiment, settings, least_s }
}

/// RFC 4787 REQ-5 recommends five minutes; RFC 5382 REQ-5; RFC 7857 section 2.2; RFC 5508 REQ-2.
pub(super) const TIMERS: &[Timer] = &[
    timer("udp-idle-unanswered", "unanswered", &[UDP], 300),
    // The first time holds for answered flows, too, until they are two seconds old (nf_conntrack_proto_udp.c).
    timer("udp-idle-answered", "answered", &[STREAM, UDP], 300),
    timer("udp-idle-default", "answered", &[STREAM, UDP], 300),
    timer("tcp-idle-opening", "tcp_opening", &[SYN_SENT], 240),
    timer("tcp-idle-established", "tcp_established", &[ESTABLISHED], 7440),
    // A FIN from inside, and its acknowledgement.
    timer("tcp-idle-half-closed", "tcp_half_closed", &[CLOSE_WAIT, FIN_WAIT], 7440),
    timer("tcp-idle-reset-in", "tcp_reset_in", &[CLOSE], 240),
    timer("tcp-idle-reset-out", "tcp_reset_out", &[CLOSE], 240),
    timer("icmp-query-idle", "icmp", &[ICMP], 60),
];

/// Rows that a rule may fail by refusing a packet, and the kinds of packets ([`crate::evidence::Refused::packet`]).
pub(super) const PACKETS: &[(&str, &[&str])] = &[
    ("icmp-error-in", &["error-in", "time-exceeded-in"]),
    ("icmp-error-checksum", &["error-in", "time-exceeded-in"]),
    ("tcp-icmp-error-in", &["error-in"]),
    ("icmp-error-about-query", &["time-exceeded-in"]),
    ("icmp-error-types", &["error-in", "time-exceeded-in", "too-big-in"]),
    ("icmp-too-big-in", &["too-big-in"]),
    ("icmp-error-quote-options", &["error-in"]),
    ("icmp-error-quote-unchecked", &["error-in"]),
    ("icmp-error-short-quote", &["error-in"]),
    ("icmp-error-out", &["error-out"]),
    ("tcp-icmp-error-out", &["error-out"]),
    ("icmp-error-out-about-query", &["error-out"]),
    ("icmp-query", &["query-out", "query-in"]),
    ("udp-too-long", &["too-big-made"]),
    ("tcp-simultaneous-open", &["crossing-syn"]),
    ("tcp-syn-data", &["syn-out"]),
    ("tcp-reset", &["reset-in"]),
    ("protocol-gre", &["gre-out"]),
    ("protocol-esp", &["esp-out"]),
    ("protocol-dccp", &["dccp-out"]),
    ("protocol-sctp", &["sctp-out"]),
    ("protocol-udp-lite", &["udp-lite-out"]),
    ("udp-fragments-in-order", &["fragment-in", "fragment-out"]),
    ("udp-fragments-reversed", &["fragment-in", "fragment-out"]),
];

/// Rows that fail where ports are drawn, or come out of a range of the rule's own.
pub(super) const PORTS: &[&str] = &[
    "udp-mapping",
    "tcp-mapping",
    "udp-parity",
    "udp-port-range",
    "icmp-query-mapping",
    "udp-first-packets",
];

/// Rows that fail where one host gets several outside addresses.
pub(super) const ADDRESSES: &[&str] =
    &["udp-pooling", "tcp-pooling", "udp-mapping", "tcp-mapping", "icmp-query-mapping"];

/// Rows of a SYN that no mapping expects.
pub(super) const UNSOLICITED: &str = "tcp-unsolicited-syn";

/// Rows of datagrams in fragments.
pub(super) const FRAGMENTS: &[&str] =
    &["udp-fragments-in-order", "udp-fragments-reversed", "udp-too-long-fragmented"];

/// Memory and time for fragments, with the kernel's own values (IPFRAG_HIGH_THRESH, IP_FRAG_TIME; IPV6_FRAG_HIGH_THRESH,
/// IPV6_FRAG_TIMEOUT). Connection tracking of IPv6 has its own.
pub(super) fn fragment_settings(ipv6: bool) -> [(&'static str, u64); 2] {
    if ipv6 {
        [
            ("net.netfilter.nf_conntrack_frag6_high_thresh", 4 << 20),
            ("net.netfilter.nf_conntrack_frag6_timeout", 60),
        ]
    } else {
        [("net.ipv4.ipfrag_high_thresh", 4 << 20), ("net.ipv4.ipfrag_time", 30)]
    }
}

/// A row that the kernel's NAT does not meet under any setting.
pub(super) struct Limit {
    pub(super) rows: &'static [&'static str],
    /// The kernel's way.
    pub(super) why: &'static str,
    /// Another way to meet it.
    pub(super) reach: &'static str,
}

/// By docs/results/2026-11-29-nat-gateways.md, for every gateway of the kernel.
pub(super) const LIMITS: &[Limit] = &[
    Limit {
        rows: &["udp-mapping", "tcp-mapping", "udp-overloading", "tcp-overloading", "udp-deterministic"],
        why: "two hosts with one source port share an outside port towards different destinations",
        reach: "a port of its own for a service: weir publish (full cone); otherwise a NAT in user space",
    },
    Limit {
        rows: &["udp-filtering", "tcp-filtering"],
        why: "connection tracking admits the contacted endpoint only",
        reach: "weir publish, or a DNAT rule for the port",
    },
    Limit {
        rows: &["udp-hairpin", "tcp-hairpin", "icmp-query-hairpin", "npt-hairpin"],
        why: "a packet from inside to an outside port is for the gateway itself, which answers it",
        reach: "for published ports a DNAT rule without an interface, and masquerade for inside sources; for others split DNS",
    },
    Limit {
        rows: &["ip-identification"],
        why: "NAT keeps the identification of each host's datagrams",
        reach: "path MTU discovery on the hosts, which sets DF",
    },
    Limit {
        rows: &["icmp-error-bad-quote"],
        why: "the checksum of a quoted IP header is not checked",
        reach: "nothing; hosts check the quoted ports",
    },
    Limit {
        rows: &["tcp-refresh-reset"],
        why: "each reset starts the time after a reset anew",
        reach: "a short nf_conntrack_tcp_timeout_close, which breaks RFC 7857 section 2.2",
    },
    Limit {
        rows: &["udp-exhaustion-told", "tcp-exhaustion-told"],
        why: "a packet without a free port is dropped without an error",
        reach: "more outside addresses: weir doctor names a pool that is nearly used up",
    },
    Limit {
        rows: &["udp-first-packets", "tcp-first-syns"],
        why: "a port is chosen when the packet comes, and taken when it leaves: two at once may clash",
        reach: "fully-random makes a clash rare, and the mapping depend on the destination",
    },
    Limit {
        rows: &["protocol-udp-lite", "protocol-dccp"],
        why: "this kernel's NAT may not translate the ports of UDP-Lite and DCCP",
        reach: "UDP instead",
    },
];
