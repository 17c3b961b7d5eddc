//! Fragments and fields of the IP header: RFC 4787 sections 10 and 11, RFC 1812.

use super::judge::{does, fails, is, is_ipv6, is_nat64, made, meets, not_sure, translates, vanished};
use super::verdicts::Judged;
use super::{Compliance, Confidence, Group, Level, Row};
use crate::Observations;
use crate::nat64::LONGER;
use crate::observed::{IpFields, Overlap};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "udp-too-long",
        group: Group::Ip,
        rfc: 4787,
        section: "10",
        requirement: "REQ-13",
        level: Level::Must,
        asks: "a packet with DF that is too long is answered with the MTU",
        sent: "a datagram with DF, longer than the outside link carries",
        breaks: "path MTU discovery: downloads, QUIC and VPNs hang",
        judge: |o| too_long(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-too-long-fragmented",
        group: Group::Ip,
        rfc: 4787,
        section: "10",
        requirement: "REQ-13a",
        level: Level::Must,
        asks: "a packet without DF that is too long is fragmented",
        sent: "the same without DF",
        breaks: "large DNS answers, RADIUS and IKE over a link with a smaller MTU",
        judge: |o| too_long_fragmented(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-fragments-in-order",
        group: Group::Ip,
        rfc: 4787,
        section: "11",
        requirement: "REQ-14",
        level: Level::Must,
        asks: "fragments that come in order get through",
        sent: "a datagram of three fragments, each way",
        breaks: "large DNS answers, RADIUS, IKE and NFS over UDP",
        judge: |o| fragments(o, false).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-fragments-reversed",
        group: Group::Ip,
        rfc: 4787,
        section: "11",
        requirement: "REQ-14",
        level: Level::Must,
        asks: "fragments that come out of order get through",
        sent: "the same, the last fragment first",
        breaks: "the same, on paths that reorder: bonded links, some mobile networks",
        judge: |o| fragments(o, true).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-fragments-overlapping",
        group: Group::Ip,
        rfc: 1858,
        section: "4",
        requirement: "",
        level: Level::Described,
        asks: "whether fragments that overlap are dropped, put together or passed",
        sent: "a datagram of three fragments each way; the second one overlaps the first with other data",
        breaks: "",
        judge: |o| overlapping(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "ip-ttl",
        group: Group::Ip,
        rfc: 1812,
        section: "5.3.1",
        requirement: "TTL",
        level: Level::Must,
        asks: "the hop limit is lowered",
        sent: "a datagram each way",
        breaks: "loops do not end, and traceroute does not show the hop",
        judge: |o| ttl(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "ip-dscp-ecn",
        group: Group::Ip,
        rfc: 2474,
        section: "3",
        requirement: "",
        level: Level::Described,
        asks: "whether DSCP and ECN are kept",
        sent: "a datagram each way with EF and ECT(0)",
        breaks: "",
        judge: |o| dscp_ecn(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "ip-dont-fragment",
        group: Group::Ip,
        rfc: 791,
        section: "3.1",
        requirement: "",
        level: Level::Described,
        asks: "whether DF is kept",
        sent: "a datagram each way with DF",
        breaks: "",
        judge: |o| dont_fragment(o).unwrap_or_else(|e| e),
    },
];

fn too_long(o: &Observations) -> Judged {
    let seen = made(&o.too_long)?;
    // A packet grows by as much where its header becomes one of IPv6.
    let mtu = seen.link_mtu + if is_nat64(o) { LONGER } else { 0 };
    let error = if is_ipv6(o) { "ICMPv6 2/0" } else { "ICMP 3/4" };
    Ok(match seen.told {
        Some(told) if told == mtu => meets(format!("{error} with the MTU of {mtu}")),
        Some(told) => fails(format!("{error} with an MTU of {told} instead of {mtu}")),
        None if seen.sure => fails("the packet vanished without an ICMP error"),
        None => not_sure("neither an ICMP error nor a control packet arrived"),
    })
}

fn too_long_fragmented(o: &Observations) -> Judged {
    let seen = made(&o.too_long)?;
    Ok(if seen.fragmented {
        meets("the datagram arrived")
    } else if seen.sure {
        fails("the datagram did not arrive")
    } else {
        not_sure("neither the datagram nor a control packet arrived")
    })
}

fn fragments(o: &Observations, reversed: bool) -> Judged {
    let all = made(&o.fragments)?;
    let of: Vec<_> = all.iter().filter(|trip| trip.reversed == reversed).collect();
    if of.len() < 2 {
        return Ok(not_sure("a mapping could not be opened"));
    }
    if translates(o).is_ok() && of.iter().any(|trip| trip.leaked) {
        return Ok(fails("fragments leave with the inside address"));
    }
    if of.iter().any(|trip| !trip.sure) {
        return Ok(not_sure("the path lost control packets"));
    }
    let lost: Vec<&str> =
        of.iter().filter(|t| !t.whole).map(|t| if t.out { "outwards" } else { "inwards" }).collect();
    Ok(match lost.len() {
        0 => meets("the datagram arrived both ways"),
        n if n == of.len() => vanished(fails("the datagram arrived neither way")),
        _ => vanished(is(
            Compliance::Partly,
            Confidence::High,
            format!("the datagram did not arrive {}", lost.join(", ")),
        )),
    })
}

fn overlapping(o: &Observations) -> Judged {
    let all = made(&o.overlapping)?;
    if all.iter().any(|trip| !trip.sure) {
        return Ok(not_sure("neither fragments nor control packets arrived"));
    }
    let words = |fate| match fate {
        Overlap::Dropped => "dropped",
        Overlap::Passed => "passed as fragments, for the receiver to put together",
        Overlap::EarlierKept => "put together with the data of the earlier fragment",
        Overlap::LaterKept => "put together with the data of the later fragment",
    };
    let judgement = match &all[..] {
        [out, back] if out.fate == back.fate => does(format!("{} both ways", words(out.fate))),
        [out, back] => does(format!("{} outwards, {} inwards", words(out.fate), words(back.fate))),
        _ => return Ok(not_sure("a mapping could not be opened")),
    };
    let dropped = all.iter().any(|trip| trip.fate == Overlap::Dropped);
    Ok(if dropped { vanished(judgement) } else { judgement })
}

/// The packets of both directions.
fn fields(o: &Observations) -> Result<&[IpFields; 2], super::Judgement> {
    let fields = made(&o.ip_fields)?;
    match fields.iter().find(|field| field.ttl.is_none()) {
        Some(field) if field.sure => Err(not_sure("a datagram did not arrive")),
        Some(_) => Err(not_sure("neither a datagram nor a control packet arrived")),
        None => Ok(fields),
    }
}

/// Outwards and inwards.
fn way(field: &IpFields) -> &'static str {
    if field.out { "outwards" } else { "inwards" }
}

fn ttl(o: &Observations) -> Judged {
    let fields = fields(o)?;
    let kept = |field: &&IpFields| field.ttl.is_some_and(|(sent, seen)| seen >= sent);
    Ok(match fields.iter().find(kept) {
        Some(field) => fails(format!("not lowered {}", way(field))),
        None => {
            let by: Vec<String> = fields
                .iter()
                .filter_map(|f| f.ttl.map(|(sent, seen)| format!("by {} {}", sent - seen, way(f))))
                .collect();
            meets(format!("lowered {}", by.join(", ")))
        }
    })
}

/// One field of both directions in words.
fn kept<T: PartialEq>(name: &str, fields: &[IpFields; 2], field: fn(&IpFields) -> Option<(T, T)>) -> String {
    let changed: Vec<&str> =
        fields.iter().filter(|f| field(f).is_some_and(|(sent, seen)| sent != seen)).map(way).collect();
    if changed.is_empty() { format!("{name} kept") } else { format!("{name} changed {}", changed.join(", ")) }
}

fn dscp_ecn(o: &Observations) -> Judged {
    let fields = fields(o)?;
    Ok(does(format!("{}, {}", kept("DSCP", fields, |f| f.dscp), kept("ECN", fields, |f| f.ecn))))
}

fn dont_fragment(o: &Observations) -> Judged {
    if is_nat64(o) {
        let out = fields(o)?.iter().find(|field| field.out).and_then(|field| field.dont_fragment);
        let leaves = if out.is_some_and(|(_, seen)| seen) { "with" } else { "without" };
        return Ok(does(format!(
            "a short packet of IPv6 leaves {leaves} DF; RFC 7915 section 5.1 asks for none up to 1,260 bytes"
        )));
    }
    Ok(does(kept("DF", fields(o)?, |f| f.dont_fragment)))
}
