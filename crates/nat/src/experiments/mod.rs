//! The packets that are sent, and what is kept of those that come out.

mod filtering;
mod hairpin;
mod icmp;
mod idle;
mod ip;
mod mapping;
mod tcp;

use std::io;

pub use idle::bracket;

use crate::session::Session;
use crate::{Ends, Observations};

/// One experiment: fills its field.
type Experiment = fn(&mut Session<'_>, &mut Observations) -> io::Result<()>;

/// All experiments with their names, in the order in which they are made: what could exhaust or disturb a NAT comes last.
const EXPERIMENTS: &[(&str, Experiment)] = &[
    ("udp-mapping", mapping::udp),
    ("udp-ports", mapping::udp_ports),
    ("udp-collision", mapping::udp_collision),
    ("udp-filtering", filtering::udp),
    ("udp-hairpin", hairpin::udp),
    ("tcp-mapping", mapping::tcp),
    ("tcp-collision", mapping::tcp_collision),
    ("tcp-filtering", filtering::tcp),
    ("tcp-hairpin", hairpin::tcp),
    ("tcp-simultaneous-open", tcp::simultaneous),
    ("tcp-unsolicited-syn", tcp::unsolicited),
    ("icmp-query", icmp::query),
    ("icmp-errors", icmp::errors),
    ("ip-fields", ip::fields),
    ("udp-fragments", ip::fragments),
    ("udp-too-long", ip::too_long),
    ("idle", idle::all),
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
        if !session.makes(name) {
            continue;
        }
        if !step(name) {
            break;
        }
        session.begin(name);
        experiment(&mut session, &mut observations)?;
    }
    Ok(observations)
}
