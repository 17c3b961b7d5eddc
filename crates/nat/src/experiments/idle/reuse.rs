//! Whether the outside port of a mapping that has ended goes to another inside host (RFC 6888 section 3, REQ-8).

use std::io;
use std::time::Duration;

use super::known::Known;
use super::opened::{Mappings, open};
use super::{Planned, Purpose};
use crate::Side;
use crate::session::Session;

/// Distance of the times at which the other host sends.
const STEP: Duration = Duration::from_secs(8);

/// Opens mappings of the first host, from whose ports the second one sends later: each port once, since its packet takes it.
pub(super) fn prepare(
    session: &mut Session<'_>,
    known: &Known,
    mappings: &mut Mappings,
    plan: &mut Vec<Planned>,
) -> io::Result<()> {
    // A published port is not given away.
    if session.conditions().published.is_some() || !session.has_two_hosts() || known.has_reuse() {
        return Ok(());
    }
    session.about(Purpose::Reused.rows());
    let limit = session.conditions().limits.idle;
    for time in (1..).map(|n| STEP * n).take_while(|time| *time < limit).chain([limit]) {
        let Some(mapping) = mappings.open(Purpose::Reused, || open(session, false))? else { continue };
        let first = &mut mappings[mapping];
        first.inside.set_ip(session.inside(1));
        let due = first.last + time;
        plan.push(Planned { due, side: Side::Inside, mapping, purpose: Purpose::Reused, refreshes: false });
    }
    Ok(())
}
