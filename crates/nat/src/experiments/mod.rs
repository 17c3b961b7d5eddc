//! The packets that are sent, and what is kept of those that come out.

mod filtering;
mod hairpin;
mod idle;
mod mapping;

use std::io;

pub use idle::bracket;

use crate::session::Session;
use crate::{Ends, Observations};

/// One experiment: fills its field.
type Experiment = fn(&mut Session<'_>, &mut Observations) -> io::Result<()>;

/// All experiments with their names, in the order in which they are made: what could exhaust or disturb a NAT comes last.
const EXPERIMENTS: &[(&str, Experiment)] = &[
    ("mapping", mapping::udp),
    ("ports", mapping::udp_ports),
    ("collision", mapping::udp_collision),
    ("filtering", filtering::udp),
    ("hairpin", hairpin::udp),
    ("idle", idle::udp),
];

/// Makes all experiments on one NAT. `step` is called with the name of each before it begins, and ends the run early if it
/// returns false: the fields of the experiments left are `None`.
///
/// # Errors
/// If a packet cannot be sent or received.
pub fn measure(ends: &mut dyn Ends, step: &mut dyn FnMut(&'static str) -> bool) -> io::Result<Observations> {
    let mut session = Session::new(ends);
    let mut observations = Observations::default();
    for (name, experiment) in EXPERIMENTS {
        if !step(name) {
            break;
        }
        experiment(&mut session, &mut observations)?;
    }
    Ok(observations)
}
