//! Names of protocols, states and flags, as they are typed and printed.

use weir_netlink::conntrack::Status;

/// IP protocol numbers (IANA, Assigned Internet Protocol Numbers).
pub const ICMP: u8 = 1;
/// TCP.
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;
/// ICMPv6.
pub const ICMPV6: u8 = 58;
/// SCTP.
pub const SCTP: u8 = 132;
/// UDP-Lite.
pub const UDPLITE: u8 = 136;

/// IANA's numbers of the protocols that conntrack tells apart (net/netfilter/nf_conntrack_proto.c), and a few that pass
/// through as "generic".
const PROTOCOLS: [(u8, &str); 13] = [
    (ICMP, "icmp"),
    (2, "igmp"),
    (4, "ipip"),
    (TCP, "tcp"),
    (UDP, "udp"),
    (33, "dccp"),
    (41, "ipv6"),
    (47, "gre"),
    (50, "esp"),
    (51, "ah"),
    (ICMPV6, "icmpv6"),
    (SCTP, "sctp"),
    (UDPLITE, "udplite"),
];

/// `enum tcp_conntrack` (include/uapi/linux/netfilter/nf_conntrack_tcp.h) by number.
const TCP_STATES: [&str; 10] = [
    "none",
    "syn-sent",
    "syn-recv",
    "established",
    "fin-wait",
    "close-wait",
    "last-ack",
    "time-wait",
    "close",
    "syn-sent2",
];

/// `enum sctp_conntrack` (include/uapi/linux/netfilter/nf_conntrack_sctp.h) by number.
const SCTP_STATES: [&str; 10] = [
    "none",
    "closed",
    "cookie-wait",
    "cookie-echoed",
    "established",
    "shutdown-sent",
    "shutdown-recd",
    "shutdown-ack-sent",
    "heartbeat-sent",
    "heartbeat-acked",
];

/// Flags that entries can be picked by: name, bits that must be set, bits that must not.
const FLAGS: [(&str, Status, Status); 7] = [
    ("assured", Status::ASSURED, Status(0)),
    ("replied", Status::SEEN_REPLY, Status(0)),
    ("unreplied", Status(0), Status::SEEN_REPLY),
    ("snat", Status::SOURCE_NAT, Status(0)),
    ("dnat", Status::DESTINATION_NAT, Status(0)),
    ("expected", Status::EXPECTED, Status(0)),
    ("offload", Status::OFFLOAD, Status(0)),
];

/// The classes of entries without a state of their own.
pub const REPLY_STATES: [&str; 3] = ["unreplied", "replied", "assured"];

/// A protocol's name, or its number.
pub fn protocol(number: u8) -> String {
    let known = PROTOCOLS.iter().find(|(n, _)| *n == number);
    known.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
}

/// The number of a protocol given by name or number.
///
/// # Errors
/// With the known names.
pub fn parse_protocol(text: &str) -> Result<u8, String> {
    if let Some((number, _)) = PROTOCOLS.iter().find(|(_, name)| name.eq_ignore_ascii_case(text)) {
        return Ok(*number);
    }
    text.parse().map_err(|_| {
        let names: Vec<&str> = PROTOCOLS.iter().map(|(_, name)| *name).collect();
        format!("`{text}` is no protocol: a number from 0 to 255, or {}", names.join(", "))
    })
}

/// The bit of a TCP state in a filter's set.
///
/// # Errors
/// With the known names.
pub fn parse_tcp_state(text: &str) -> Result<u16, String> {
    let wanted = text.replace('_', "-").to_ascii_lowercase();
    let state = TCP_STATES.iter().position(|name| *name == wanted);
    state.map(|n| 1 << n).ok_or_else(|| format!("`{text}` is no TCP state: {}", TCP_STATES.join(", ")))
}

/// The status bits that a flag needs, and those that it forbids.
///
/// # Errors
/// With the known names.
pub fn parse_flag(text: &str) -> Result<(Status, Status), String> {
    let flag = FLAGS.iter().find(|(name, ..)| name.eq_ignore_ascii_case(text));
    flag.map(|(_, set, clear)| (*set, *clear)).ok_or_else(|| {
        let names: Vec<&str> = FLAGS.iter().map(|(name, ..)| *name).collect();
        format!("`{text}` is no flag: {}", names.join(", "))
    })
}

/// The name of a protocol's state, if the protocol has states.
pub fn state(protocol: u8, number: u8) -> Option<String> {
    let names: &[&str] = match protocol {
        TCP => &TCP_STATES,
        SCTP => &SCTP_STATES,
        _ => return None,
    };
    Some(names.get(usize::from(number)).map_or_else(|| format!("state-{number}"), |n| (*n).to_owned()))
}

/// A protocol and its "port": `tcp/443`, `icmp type 8`, `gre`.
pub fn service(protocol_number: u8, port: u16) -> String {
    let name = protocol(protocol_number);
    match protocol_number {
        ICMP | ICMPV6 => format!("{name} type {}", port >> 8),
        TCP | UDP | SCTP | UDPLITE | 33 => format!("{name}/{port}"),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_printed() {
        for (number, name) in PROTOCOLS {
            assert_eq!(parse_protocol(name), Ok(number));
            assert_eq!(protocol(number), name);
        }
        assert_eq!((parse_protocol("200"), protocol(200)), (Ok(200), "200".to_owned()));
        for bad in ["", "256", "tcpp", "-1"] {
            assert!(parse_protocol(bad).unwrap_err().contains("udplite"), "{bad}");
        }
        // linux/netfilter/nf_conntrack_tcp.h: ESTABLISHED is 3, TIME_WAIT 7.
        assert_eq!(parse_tcp_state("ESTABLISHED"), Ok(1 << 3));
        assert_eq!(parse_tcp_state("TIME_WAIT"), Ok(1 << 7));
        assert!(parse_tcp_state("open").unwrap_err().contains("time-wait"));
        assert_eq!(parse_flag("snat"), Ok((Status(1 << 4), Status(0))));
        assert!(parse_flag("natted").unwrap_err().contains("dnat"));
    }

    #[test]
    fn services_are_written_by_protocol() {
        assert_eq!(service(6, 443), "tcp/443");
        assert_eq!(service(1, 8 << 8), "icmp type 8");
        assert_eq!(service(47, 0), "gre");
        assert_eq!(state(6, 7).as_deref(), Some("time-wait"));
        assert_eq!(state(6, 99).as_deref(), Some("state-99"));
        assert_eq!(state(17, 0), None);
    }
}
