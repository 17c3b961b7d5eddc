//! ICMP: RFC 5508, and what RFC 4787 and RFC 5382 ask about errors.

use std::net::SocketAddr;

use super::judge::{
    Dependence, does, fails, made, meets, not_sure, not_testable, translates, udp_filtering, vanished,
};
use super::verdicts::{Judged, Wanted, idle, refresh};
use super::{Compliance, Group, Judgement, Level, Row};
use crate::Observations;
use crate::observed::{About, IcmpError};

/// RFC 5508 REQ-2.
const QUERY_S: f64 = 60.0;

/// The rows.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "icmp-query",
        group: Group::Icmp,
        rfc: 5508,
        section: "3.1",
        requirement: "REQ-1",
        level: Level::Must,
        asks: "inside hosts can ping, and get the reply with their identifier",
        sent: "an echo request from inside, and its reply",
        breaks: "ping, and monitoring that relies on it",
        judge: |o| query(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "icmp-query-mapping",
        group: Group::Icmp,
        rfc: 5508,
        section: "3.1",
        requirement: "REQ-1a",
        level: Level::Should,
        asks: "one identifier of a host is the same outside for every destination",
        sent: "echo requests with one identifier to two addresses",
        breaks: "programs that take address and identifier for one host see several",
        judge: |o| query_mapping(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "icmp-error-in",
        group: Group::Icmp,
        rfc: 5508,
        section: "4.2.1",
        requirement: "REQ-4",
        level: Level::Must,
        asks: "errors from outside arrive, about the packet as the inside host sent it",
        sent: "port unreachable from the destination, hop limit exceeded from another address",
        breaks: "traceroute, path MTU discovery, and quick failure of DNS and QUIC",
        judge: |o| judge(o, &[About::UdpOut, About::UdpOutRouter], translated).unwrap_or_else(|e| e),
    },
    Row {
        id: "icmp-error-checksum",
        group: Group::Icmp,
        rfc: 5508,
        section: "4.2.1",
        requirement: "REQ-4",
        level: Level::Must,
        asks: "the quoted packet's checksums fit its reverted addresses",
        sent: "the same",
        breaks: "hosts and firewalls that check the quote drop the error: path MTU black holes",
        judge: |o| judge(o, &[About::UdpOut, About::UdpOutRouter], sound).unwrap_or_else(|e| e),
    },
    Row {
        id: "icmp-error-out",
        group: Group::Icmp,
        rfc: 5508,
        section: "4.2.2",
        requirement: "REQ-5",
        level: Level::Must,
        asks: "errors from inside arrive outside, from the NAT's address and about its port",
        sent: "port unreachable from the inside host, about an answer that it got",
        breaks: "servers go on sending to a closed port, and inside addresses leak",
        judge: |o| judge(o, &[About::UdpIn], whole).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-icmp-error-out",
        group: Group::Icmp,
        rfc: 5508,
        section: "4.2.2",
        requirement: "REQ-5",
        level: Level::Must,
        asks: "errors from inside about TCP leave with the NAT's address and about its port",
        sent: "port unreachable from the inside host, about data that it got on an open connection",
        breaks: "servers go on sending to a host that is gone; path MTU discovery towards inside hosts",
        judge: |o| judge(o, &[About::TcpIn], whole).unwrap_or_else(|e| e),
    },
    Row {
        id: "icmp-error-out-about-query",
        group: Group::Icmp,
        rfc: 5508,
        section: "4.2.2",
        requirement: "REQ-5",
        level: Level::Must,
        asks: "errors from inside about echo replies leave with the NAT's address and about its identifier",
        sent: "port unreachable from the inside host, about an echo reply that it got",
        breaks: "inside addresses leak, and monitoring outside does not see who has gone",
        judge: |o| judge(o, &[About::QueryIn], whole).unwrap_or_else(|e| e),
    },
    Row {
        id: "icmp-query-hairpin",
        group: Group::Hairpin,
        rfc: 5508,
        section: "5",
        requirement: "REQ-7",
        level: Level::Must,
        asks: "inside hosts can ping each other's outside addresses, where each has one of its own (Basic NAT)",
        sent: "an echo request of one inside host to the other one's outside address, and the reply",
        breaks: "monitoring and checks from inside call hosts down that are reached from outside",
        judge: |o| query_hairpin(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "icmp-error-hairpin",
        group: Group::Hairpin,
        rfc: 5508,
        section: "5",
        requirement: "REQ-7",
        level: Level::Must,
        asks: "errors about hairpinned packets reach the sender, about the packet as it sent it",
        sent: "port unreachable from one inside host about a datagram of the other one to its outside port",
        breaks: "traceroute, path MTU discovery and quick failure between hosts behind this NAT",
        judge: |o| hairpinned(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-icmp-keeps-mapping",
        group: Group::Icmp,
        rfc: 4787,
        section: "9",
        requirement: "REQ-12",
        level: Level::MustNot,
        asks: "an ICMP error does not end a UDP mapping",
        sent: "an answer after each of these errors",
        breaks: "a forged or stale ICMP error cuts calls and VPNs",
        judge: |o| judge(o, &[About::UdpOut, About::UdpOutRouter, About::UdpIn], lives).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-icmp-error-in",
        group: Group::Icmp,
        rfc: 5382,
        section: "7.3",
        requirement: "REQ-9",
        level: Level::Should,
        asks: "ICMP type 3 about a TCP segment from inside is translated",
        sent: "host unreachable about a SYN",
        breaks: "connections to dead hosts hang instead of failing; path MTU discovery of TCP",
        judge: |o| judge(o, &[About::TcpOut], whole).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-icmp-keeps-mapping",
        group: Group::Icmp,
        rfc: 5382,
        section: "7.3",
        requirement: "REQ-10",
        level: Level::MustNot,
        asks: "an ICMP error does not end a TCP mapping",
        sent: "a SYN and ACK after that error, and data after an error from inside",
        breaks: "a forged or stale ICMP error cuts TCP connections",
        judge: |o| judge(o, &[About::TcpOut, About::TcpIn], lives).unwrap_or_else(|e| e),
    },
    Row {
        id: "icmp-error-about-query",
        group: Group::Icmp,
        rfc: 5508,
        section: "4.2.1",
        requirement: "REQ-4",
        level: Level::Must,
        asks: "errors about a ping arrive, about the request as the inside host sent it",
        sent: "hop limit exceeded from another address, about an echo request",
        breaks: "traceroute by ICMP, as tracert and mtr do it, shows no hops",
        judge: |o| judge(o, &[About::Query], whole).unwrap_or_else(|e| e),
    },
    Row {
        id: "icmp-error-keeps-query",
        group: Group::Icmp,
        rfc: 5508,
        section: "4.3",
        requirement: "REQ-6",
        level: Level::MustNot,
        asks: "an ICMP error does not end a ping's mapping",
        sent: "an echo reply after each of these errors",
        breaks: "a forged or stale ICMP error makes pings and monitoring fail",
        judge: |o| keeps_query(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "icmp-query-idle",
        group: Group::Timers,
        rfc: 5508,
        section: "3.2",
        requirement: "REQ-2",
        level: Level::MustNot,
        asks: "an echo request's mapping lives for a minute or more",
        sent: "echo requests, and a reply to each after a time of its own",
        breaks: "replies over satellite or overloaded paths are lost",
        judge: |o| idle(o, |idle| &idle.icmp, QUERY_S).unwrap_or_else(|e| e),
    },
    Row {
        id: "icmp-refresh-error",
        group: Group::Timers,
        rfc: 5508,
        section: "4.3",
        requirement: "REQ-6",
        level: Level::MustNot,
        asks: "an ICMP error about a ping keeps no mapping alive",
        sent: "hop limit exceeded about an echo request before the idle time ends, and an echo reply after it",
        breaks: "forged errors hold identifiers that hosts have left, and the NAT's identifiers run out",
        judge: |o| {
            refresh(o, |idle| idle.icmp_refreshed_error, |idle| &idle.icmp, Wanted::None)
                .unwrap_or_else(|e| e)
        },
    },
];

/// Two real ends have no error about the reply.
fn keeps_query(o: &Observations) -> Judged {
    let both = o.icmp_errors.iter().flatten().any(|error| error.about == About::QueryIn);
    judge(o, &[About::Query, About::QueryIn][..1 + usize::from(both)], lives)
}

fn query(o: &Observations) -> Judged {
    let query = made(&o.icmp_query)?;
    let lost = match (query.request, query.reply) {
        (true, true) => return Ok(meets("request and reply arrived")),
        (true, false) => "the reply",
        (false, _) => "the request",
    };
    Ok(if query.sure {
        vanished(fails(format!("{lost} did not arrive")))
    } else {
        not_sure(format!("neither {lost} nor a control packet arrived"))
    })
}

/// One identifier to two destinations.
fn query_mapping(o: &Observations) -> Judged {
    translates(o)?;
    let [Some(first), Some(second)] = made(&o.icmp_query)?.seen else {
        return Ok(not_sure("an echo request did not arrive"));
    };
    let words = |seen: SocketAddr| format!("{} of {}", seen.port(), seen.ip());
    Ok(match first == second {
        true => meets("the same for both destinations"),
        false => fails(format!("{} for one destination, {} for the other", words(first), words(second))),
    })
}

/// RFC 5508 section 5 asks it of Basic NAT only: each host has an outside address, and identifiers stay.
fn query_hairpin(o: &Observations) -> Judged {
    translates(o)?;
    let seen = made(&o.icmp_hairpin)?;
    let [Some(first), Some(second)] = seen.seen else {
        return Ok(not_sure("an echo request did not arrive"));
    };
    if !seen.sure {
        return Ok(not_sure("neither a ping nor a control packet arrived"));
    }
    let keeps = |n: usize, outside: SocketAddr| seen.hosts[n].port() == outside.port();
    let is_basic = first.ip() != second.ip() && keeps(0, first) && keeps(1, second);
    let flaw = match seen.source {
        None if seen.by_nat => Some("the NAT itself replies".to_owned()),
        None => Some("a ping to the other host's outside address did not arrive".to_owned()),
        Some(source) if source != second.ip() => {
            Some(format!("the ping arrives from {source}, no outside address of the sender"))
        }
        Some(_) if !seen.replied => Some("the ping arrives, and its reply does not come back".to_owned()),
        Some(_) => None,
    };
    let fate = flaw.clone().unwrap_or_else(|| "the ping arrives, and its reply comes back".to_owned());
    if !is_basic {
        let why = "hosts share an address or identifiers are changed, and this is asked of Basic NAT only";
        return Ok(does(format!("{fate}; {why}")));
    }
    let independent = query_mapping(o).is_ok_and(|judgement| judgement.verdict == Compliance::Meets);
    let is_open = udp_filtering(o) == Some(Dependence::EndpointIndependent);
    Ok(match flaw {
        None => meets(fate),
        Some(_) if seen.source.is_none() && !seen.by_nat && !independent && !is_open => not_testable(
            "both mapping and filter depend on the destination: the filter may have dropped the ping",
        ),
        Some(flaw) => fails(flaw),
    })
}

/// The errors of these kinds: `flaw` finds what is wrong with one that arrived, or did not.
fn judge(
    o: &Observations,
    wanted: &[About],
    flaw: fn(&IcmpError) -> Result<Option<&'static str>, Judgement>,
) -> Judged {
    let errors = made(&o.icmp_errors)?;
    let of: Vec<&IcmpError> = errors.iter().filter(|error| wanted.contains(&error.about)).collect();
    if of.len() < wanted.len() {
        return Ok(not_sure("a mapping could not be opened"));
    }
    if of.iter().any(|error| !error.sure) {
        return Ok(not_sure("the path lost control packets"));
    }
    for error in &of {
        if let Some(flaw) = flaw(error)? {
            return Ok(fails(format!("{}: {flaw}", words(error.about))));
        }
    }
    let all: Vec<&str> = of.iter().map(|error| words(error.about)).collect();
    Ok(meets(all.join("; ")))
}

/// An error about a hairpinned packet, if hairpinned packets arrive at all.
fn hairpinned(o: &Observations) -> Judged {
    made(&o.icmp_errors)?;
    translates(o)?;
    let hairpin = made(&o.udp_hairpin)?;
    match hairpin.source {
        None if hairpin.sure => Ok(not_testable("no hairpinned packet arrived")),
        None => Ok(not_sure("neither a hairpinned packet nor a control packet arrived")),
        Some(source) if source.ip() == hairpin.mappings[1].inside.ip() => {
            Ok(not_testable("hairpinned packets keep the inside source, so errors about them need no NAT"))
        }
        Some(_) => judge(o, &[About::Hairpin], whole),
    }
}

/// The error in words.
fn words(about: About) -> &'static str {
    match about {
        About::UdpOut => "port unreachable from the destination",
        About::UdpOutRouter => "hop limit exceeded from a router",
        About::UdpIn => "port unreachable from inside",
        About::TcpOut => "host unreachable about a SYN",
        About::Hairpin => "port unreachable about a hairpinned datagram",
        About::Query => "hop limit exceeded about a ping",
        About::TcpIn => "port unreachable from inside about TCP",
        About::QueryIn => "port unreachable from inside about an echo reply",
    }
}

fn translated(error: &IcmpError) -> Result<Option<&'static str>, Judgement> {
    if !error.arrived {
        return Err(vanished(fails(format!("{}: did not arrive", words(error.about)))));
    }
    Ok(match error {
        IcmpError { outer: false, .. } => Some("has other outer addresses than the packet that it is about"),
        IcmpError { kind: false, .. } => Some("arrived with another type or code"),
        IcmpError { inner: false, .. } => Some("quotes endpoints that the receiver does not know"),
        _ => None,
    })
}

fn sound(error: &IcmpError) -> Result<Option<&'static str>, Judgement> {
    if !error.arrived || !error.inner {
        return Err(super::judge::not_testable("no error with the right quote arrived"));
    }
    Ok(match error {
        IcmpError { inner_ip_checksum: false, .. } => Some("the quoted IP header's checksum is stale"),
        IcmpError { inner_checksum: false, .. } => Some("the quoted transport header's checksum is stale"),
        _ => None,
    })
}

fn whole(error: &IcmpError) -> Result<Option<&'static str>, Judgement> {
    let flaw = translated(error)?;
    if flaw.is_some() { Ok(flaw) } else { sound(error) }
}

fn lives(error: &IcmpError) -> Result<Option<&'static str>, Judgement> {
    Ok((!error.mapping_lives).then_some("the next answer did not arrive"))
}
