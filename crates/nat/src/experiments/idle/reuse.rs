//! Whether the outside port of a mapping that has ended goes to another inside host (RFC 6888 section 3, REQ-8).

use std::time::Duration;

use super::known::Known;
use super::{Purpose, Wanted};
use crate::session::Session;

/// Distance of the times at which the other host sends.
const STEP: Duration = Duration::from_secs(8);

/// Mappings of the first host, from whose ports the second one sends later: each port once, since its packet takes it.
pub(super) fn wanted(session: &Session<'_>, known: &Known) -> Vec<Wanted> {
    // A published port is not given away.
    if session.conditions().published.is_some() || !session.has_two_hosts() || known.has_reuse() {
        return Vec::new();
    }
    let limit = session.conditions().limits.idle;
    let times = (1..).map(|n| STEP * n).take_while(|time| *time < limit).chain([limit]);
    times.map(|time| Wanted { purpose: Purpose::Reused, time }).collect()
}
