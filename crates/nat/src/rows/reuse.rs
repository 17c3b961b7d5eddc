//! The reuse of outside ports: RFC 6888 section 3.

use super::judge::{
    Dependence, fails, is, made, meets, not_sure, not_testable, tcp_filtering, translates, udp_filtering,
};
use super::verdicts::Judged;
use super::{Compliance, Confidence, Group, Level, Row};
use crate::Observations;
use crate::experiments::bracket;
use crate::observed::PortReuse;

/// RFC 6888 REQ-8, s.
const HELD_S: f64 = 120.0;
/// Shortest time without reuse that is taken for it: times are eight seconds apart.
const NEARLY_S: f64 = 110.0;

/// The rows.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "udp-port-reuse",
        group: Group::Mapping,
        rfc: 6888,
        section: "3",
        requirement: "REQ-8",
        level: Level::Should,
        asks: "the port of a mapping that has ended goes to no other host for two minutes, unless its filter was by destination",
        sent: "UDP of one host, and later UDP of the other one from the same port to the same destination",
        breaks: "late packets of one host's peers reach another host",
        judge: |o| reuse(o).unwrap_or_else(|e| e),
    },
    Row {
        // The letter of the exceptions of REQ-8 is from memory: A is about sessions of TCP that are tracked, C about filters.
        id: "tcp-port-reuse",
        group: Group::Mapping,
        rfc: 6888,
        section: "3",
        requirement: "REQ-8",
        level: Level::Should,
        asks: "the port of a closed connection goes to no other host for two minutes, unless the NAT tracks connections",
        sent: "connections of one host, half of them closed, and later SYNs of the other host from the same ports",
        breaks: "late segments of a closed connection reset another host's, and an open one loses its port",
        judge: |o| tcp_reuse(o).unwrap_or_else(|e| e),
    },
];

fn reuse(o: &Observations) -> Judged {
    translates(o)?;
    let idle = made(&o.idle)?;
    let Some((alive, dead)) = bracket(&idle.unanswered).filter(|(alive, _)| *alive > 0.0) else {
        return Ok(not_testable("no mapping ended within the longest time tried"));
    };
    // The end was between the two times: it is past for all, and less than two minutes past.
    let after = |r: &&PortReuse| r.after_s > dead && r.after_s < alive + HELD_S;
    let tries: Vec<&PortReuse> = idle.port_reuse.iter().filter(after).collect();
    let Some(longest) = tries.iter().map(|r| r.after_s - dead).reduce(f64::max) else {
        return Ok(not_testable("no mapping ended long enough before the longest time tried"));
    };
    if let Some(again) = tries.iter().find(|r| r.second == Some(r.first)) {
        let seen =
            format!("given to the other host at most {:.0} s after its mapping ended", again.after_s - alive);
        return Ok(match udp_filtering(o) {
            Some(Dependence::EndpointIndependent) => fails(seen),
            Some(_) => is(
                Compliance::Meets,
                Confidence::High,
                format!("{seen}, which REQ-8 allows where the filter depends on the destination"),
            ),
            None => not_sure(format!("{seen}; the kind of filter is unknown")),
        });
    }
    kept(o, &tries, longest, "its mapping ended")
}

/// None got the first host's port.
fn kept(o: &Observations, tries: &[&PortReuse], longest: f64, since: &str) -> Judged {
    let arrived: Vec<_> = tries.iter().filter_map(|r| Some((r, r.second?))).collect();
    if arrived.len() < tries.len() {
        return Ok(not_sure("packets of the second host did not arrive"));
    }
    if arrived.iter().any(|(r, second)| second.ip() != r.first.ip()) {
        return Ok(not_testable("the hosts have outside addresses of their own"));
    }
    if !keeps_ports(o, tries) {
        return Ok(not_testable("ports are not kept, so that a reuse were chance"));
    }
    let seen = format!("kept from the other host for {longest:.0} s after {since}, the longest time tried");
    Ok(if longest >= NEARLY_S { is(Compliance::Meets, Confidence::Medium, seen) } else { not_testable(seen) })
}

/// Closed connections; open ones of the same age show whether the NAT tells them apart.
fn tcp_reuse(o: &Observations) -> Judged {
    translates(o)?;
    let idle = made(&o.idle)?;
    let (closed, open) = (&idle.tcp_port_reuse, &idle.tcp_open_port_reuse);
    let reused = |tries: &[PortReuse]| tries.iter().find(|r| r.second == Some(r.first)).map(|r| r.after_s);
    if let Some(after) = reused(open) {
        let seen =
            format!("that of an open connection given to the other host {after:.0} s after its last segment");
        return Ok(fails(seen));
    }
    let tries: Vec<&PortReuse> = closed.iter().filter(|r| r.after_s < HELD_S).collect();
    let Some(longest) = tries.iter().map(|r| r.after_s).reduce(f64::max) else {
        return Ok(not_testable("no connection was closed within the longest time tried"));
    };
    let Some(after) = reused(closed).filter(|after| *after < HELD_S) else {
        return kept(o, &tries, longest, "the close");
    };
    let seen = format!("given to the other host {after:.0} s after the close");
    let told_apart = open.iter().any(|r| r.second.is_some() && r.after_s >= after);
    Ok(match tcp_filtering(o) {
        Some(Dependence::Address | Dependence::AddressAndPort) => {
            meets(format!("{seen}, which REQ-8 allows where the filter depends on the destination"))
        }
        _ if told_apart => meets(format!(
            "{seen}, and that of an open one is kept: REQ-8 allows it where connections are tracked"
        )),
        _ => not_sure(format!("{seen}; of an open connection nothing is known")),
    })
}

/// Ports of the second host that no one had are kept: it would have got those of the first one.
fn keeps_ports(o: &Observations, tries: &[&PortReuse]) -> bool {
    let host = tries.iter().map(|r| r.inside.ip()).next();
    let mut fresh = o.udp_ports.iter().flatten().filter(|t| Some(t.inside.ip()) == host).peekable();
    let kept = |r: &&PortReuse| r.first.port() == r.inside.port();
    fresh.peek().is_some()
        && fresh.all(|t| t.seen.is_some_and(|seen| seen.port() == t.inside.port()))
        && tries.iter().all(kept)
}
