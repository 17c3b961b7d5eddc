//! The types of ICMP that a NAT passes: RFC 5508 section 7.

use super::judge::{does, fails, is, is_ipv6, is_nat64, made, meets, not_sure, translates, vanished};
use super::verdicts::Judged;
use super::{Compliance, Confidence, Group, Level, Row};
use crate::nat64::LONGER;
use crate::observed::IcmpType;
use crate::{Observations, nat64};

/// A type and code, by its number in one version of IP.
pub(crate) struct Kind {
    pub(crate) sent: (u8, u8),
    words: &'static str,
    /// RFC 5508 REQ-10a asks for it.
    pub(crate) needed: bool,
    /// It is a query from inside.
    pub(crate) query: bool,
}

const fn needed(kind: u8, code: u8, words: &'static str) -> Kind {
    Kind { sent: (kind, code), words, needed: true, query: false }
}

const fn other(kind: u8, code: u8, words: &'static str, query: bool) -> Kind {
    Kind { sent: (kind, code), words, needed: false, query }
}

/// A packet that is too big, in both versions.
pub(crate) const TOO_BIG: [(u8, u8); 2] = [(3, 4), (2, 0)];

/// RFC 792, RFC 950, RFC 1191, RFC 1812 section 5.2.7.1.
const KINDS: &[Kind] = &[
    needed(3, 0, "network unreachable"),
    needed(3, 1, "host unreachable"),
    needed(3, 3, "port unreachable"),
    needed(3, 4, "fragmentation needed"),
    needed(3, 13, "administratively prohibited"),
    needed(11, 0, "hop limit exceeded"),
    needed(11, 1, "reassembly time exceeded"),
    other(12, 0, "parameter problem", false),
    other(4, 0, "source quench", false),
    other(5, 1, "redirect", false),
    other(13, 0, "timestamp request from inside", true),
    other(17, 0, "address mask request from inside", true),
];

/// RFC 4443.
const KINDS_V6: &[Kind] = &[
    needed(1, 0, "no route"),
    needed(1, 1, "administratively prohibited"),
    needed(1, 3, "address unreachable"),
    needed(1, 4, "port unreachable"),
    needed(2, 0, "packet too big"),
    needed(3, 0, "hop limit exceeded"),
    needed(3, 1, "reassembly time exceeded"),
    other(4, 0, "parameter problem", false),
];

/// Those that are tried, as the far side numbers them. No query from inside is one of IPv4 behind a NAT64.
pub(crate) fn kinds(is_v6: bool, is_nat64: bool) -> impl Iterator<Item = &'static Kind> {
    let all = if is_v6 && !is_nat64 { KINDS_V6 } else { KINDS };
    all.iter().filter(move |kind| !is_nat64 || !kind.query)
}

/// The rows.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "icmp-error-types",
        group: Group::Icmp,
        rfc: 5508,
        section: "7",
        requirement: "REQ-10a",
        level: Level::Must,
        asks: "destination unreachable and time exceeded arrive with any code",
        sent: "an error of each code from outside, about a SYN from inside",
        breaks: "clients wait for servers that a firewall or a router refuses; traceroute shows no reason",
        judge: |o| needed_types(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "icmp-too-big-in",
        group: Group::Icmp,
        rfc: 5508,
        section: "7",
        requirement: "REQ-10a",
        level: Level::Must,
        asks: "a router's error about a packet that is too big arrives with the router's MTU, for UDP and for TCP",
        sent: "fragmentation needed with an MTU of 1300 from outside, about a datagram and about a SYN",
        breaks: "path MTU discovery: uploads, QUIC and VPNs hang behind a tunnel or PPPoE",
        judge: |o| too_big(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "icmp-other-types",
        group: Group::Icmp,
        rfc: 5508,
        section: "7",
        requirement: "REQ-10b",
        level: Level::May,
        asks: "which other messages pass: parameter problem, source quench, redirects, and queries other than pings",
        sent: "one of each from outside, about a SYN from inside, and a query of each type from inside",
        breaks: "",
        judge: |o| others(o).unwrap_or_else(|e| e),
    },
];

/// Type and code with which a message has to arrive.
fn arrives_as(o: &Observations, sent: (u8, u8)) -> (u8, u8) {
    if is_nat64(o) { nat64::arrives_as(sent).unwrap_or(sent) } else { sent }
}

/// The messages of which that holds, with their words.
fn tried(o: &Observations, needed: bool) -> Result<Vec<(&IcmpType, &'static str)>, super::Judgement> {
    let all = made(&o.icmp_types)?;
    let of = kinds(is_ipv6(o), is_nat64(o)).filter(|kind| kind.needed == needed);
    let mut found = Vec::new();
    for kind in of {
        let seen = all.iter().find(|seen| seen.sent == kind.sent && !seen.udp);
        found.push((seen.ok_or_else(|| not_sure("a mapping could not be opened"))?, kind.words));
    }
    if found.iter().any(|(seen, _)| !seen.sure) {
        return Err(not_sure("the path lost control packets"));
    }
    Ok(found)
}

fn needed_types(o: &Observations) -> Judged {
    let all = tried(o, true)?;
    let is_right = |seen: &IcmpType| seen.seen == Some(arrives_as(o, seen.sent)) && seen.fits;
    let wrong: Vec<_> = all.iter().filter(|(seen, _)| !is_right(seen)).collect();
    let lost = wrong.iter().any(|(seen, _)| seen.seen.is_none());
    let names: Vec<&str> = wrong.iter().map(|(_, words)| *words).collect();
    let judgement = match wrong.len() {
        0 if is_nat64(o) => {
            return Ok(meets(format!("all {} arrive as RFC 7915 section 4.2 has them", all.len())));
        }
        0 => return Ok(meets(format!("all {} arrive", all.len()))),
        n if n == all.len() && lost => fails("none arrives"),
        n if n == all.len() => fails("none arrives unchanged and about the packet as it was sent"),
        _ if lost => is(Compliance::Partly, Confidence::High, format!("missing: {}", names.join(", "))),
        _ => is(Compliance::Partly, Confidence::High, format!("changed: {}", names.join(", "))),
    };
    Ok(if lost { vanished(judgement) } else { judgement })
}

fn too_big(o: &Observations) -> Judged {
    let all = made(&o.icmp_types)?;
    let wanted = TOO_BIG[usize::from(is_ipv6(o) && !is_nat64(o))];
    let longer = if is_nat64(o) { LONGER } else { 0 };
    let of: Vec<&IcmpType> = all.iter().filter(|seen| seen.sent == wanted).collect();
    if of.len() < 2 {
        return Ok(not_sure("a mapping could not be opened"));
    }
    if of.iter().any(|seen| !seen.sure) {
        return Ok(not_sure("the path lost control packets"));
    }
    let flaw = |seen: &&IcmpType| {
        let about = if seen.udp { "about UDP" } else { "about TCP" };
        let (expected, found) = (u32::from(seen.mtu.0) + longer, u32::from(seen.mtu.1));
        match seen.seen {
            None => Some(vanished(fails(format!("{about}: did not arrive")))),
            Some(kind) if kind != arrives_as(o, seen.sent) => {
                Some(fails(format!("{about}: arrived as ICMP {}/{}", kind.0, kind.1)))
            }
            _ if !seen.fits => {
                Some(fails(format!("{about}: quotes endpoints that the receiver does not know")))
            }
            _ if expected != found => {
                Some(fails(format!("{about}: arrived with an MTU of {found} instead of {expected}")))
            }
            _ => None,
        }
    };
    let flaws: Vec<_> = of.iter().filter_map(flaw).collect();
    Ok(match flaws.into_iter().next() {
        None if is_nat64(o) => meets(
            "about UDP and about TCP, with the MTU of the router and 20 bytes more for the longer header",
        ),
        None => meets("about UDP and about TCP, with the MTU of the router"),
        Some(flaw) => flaw,
    })
}

fn others(o: &Observations) -> Judged {
    translates(o)?;
    let (mut passed, mut dropped, mut leaked) = (Vec::new(), Vec::new(), Vec::new());
    for (seen, words) in tried(o, false)? {
        match seen {
            IcmpType { seen: None, .. } => dropped.push(words),
            IcmpType { query: true, fits: false, .. } => leaked.push(words),
            _ => passed.push(words),
        }
    }
    let parts = [("pass", passed), ("leave with the inside address", leaked), ("dropped", dropped)];
    let parts = parts.iter().filter(|(_, names)| !names.is_empty());
    let words: Vec<String> = parts.map(|(fate, names)| format!("{fate}: {}", names.join(", "))).collect();
    Ok(vanished(does(words.join("; "))))
}
