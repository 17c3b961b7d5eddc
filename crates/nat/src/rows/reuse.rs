//! The reuse of outside ports: RFC 6888 section 3.

use super::judge::{Dependence, fails, is, made, not_sure, not_testable, translates, udp_filtering};
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
pub(super) const ROWS: &[Row] = &[Row {
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
}];

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
    let arrived: Vec<_> = tries.iter().filter_map(|r| Some((r, r.second?))).collect();
    if arrived.len() < tries.len() {
        return Ok(not_sure("packets of the second host did not arrive"));
    }
    if arrived.iter().any(|(r, second)| second.ip() != r.first.ip()) {
        return Ok(not_testable("the hosts have outside addresses of their own"));
    }
    if !keeps_ports(o, &tries) {
        return Ok(not_testable("ports are not kept, so that a reuse were chance"));
    }
    Ok(if longest >= NEARLY_S {
        let seen = format!(
            "kept from the other host for {longest:.0} s after its mapping ended, the longest time tried"
        );
        is(Compliance::Meets, Confidence::Medium, seen)
    } else {
        not_testable(format!(
            "kept from the other host for {longest:.0} s after its mapping ended, the longest time tried"
        ))
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
