//! Whether the outside port of a mapping that has ended goes to another inside host (RFC 6888 section 3, REQ-8).

use std::time::Duration;

use super::known::Known;
use super::{Purpose, Wanted};
use crate::session::Session;

/// Distance of the times at which the other host sends.
const STEP: Duration = Duration::from_secs(8);

/// Longest time after the close of a connection: the two minutes of the RFC.
const HELD: Duration = Duration::from_secs(120);

/// Mappings of the first host, from whose ports the second one sends later: each port once, since its packet takes it. Each time has
/// a closed and an open connection too.
pub(super) fn wanted(session: &Session<'_>, known: &Known) -> Vec<Wanted> {
    // A published port is not given away.
    if session.conditions().published.is_some() || !session.has_two_hosts() {
        return Vec::new();
    }
    let limit = session.conditions().limits.idle;
    let until = |last: Duration| (1..).map(|n| STEP * n).take_while(move |time| *time < last).chain([last]);
    let mut wanted = Vec::new();
    if !known.has_reuse(Purpose::Reused) {
        wanted.extend(until(limit).map(|time| Wanted { purpose: Purpose::Reused, time }));
    }
    for purpose in [Purpose::ReusedClosed, Purpose::ReusedOpen] {
        if session.carries_everything() && !known.has_reuse(purpose) {
            wanted.extend(until(limit.min(HELD)).map(|time| Wanted { purpose, time }));
        }
    }
    wanted
}
