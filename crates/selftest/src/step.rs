//! The steps of a recipe: changes of the hosts of a case.

use std::time::Duration;

use weir_doctor::recipe::{Step, Traffic};
use weir_netlink::conntrack::Conntrack;
use weir_sys::Stop;

use crate::Error;
use crate::fastpath::Kept;
use crate::lab::Hosts;
use crate::traffic::Running;
use crate::wait::wait;

/// How long traffic before the window runs.
const BEFORE: Duration = Duration::from_millis(500);

/// Does one step.
pub(crate) fn perform(hosts: &mut Hosts, step: &Step, stop: &Stop) -> Result<(), Error> {
    match step {
        Step::Run(place, script) => hosts.script(hosts.host(*place)?, script),
        Step::RunOn(name, script) => hosts.script(hosts.further(name)?, script),
        Step::Host { name, to, there, here } => hosts.add(name, *to, there, here),
        Step::Entries(place, entries) => {
            let made = hosts.host(*place)?.run(|| Conntrack::open()?.insert(entries()))?;
            made.map(drop).map_err(Error::System)
        }
        Step::Before(traffic) => before(hosts, traffic, stop),
        Step::FastPath(place, setup) => {
            let kept = Kept::begin(hosts.host(*place)?, setup)?;
            hosts.keep(kept);
            Ok(())
        }
    }
}

fn before(hosts: &Hosts, traffic: &[Traffic], stop: &Stop) -> Result<(), Error> {
    let running = Running::start(hosts, traffic)?;
    wait(BEFORE, stop)?;
    running.end();
    Ok(())
}
