//! The packets that are sent, and what is kept of those that come out.

mod crafted;
mod exhaustion;
mod filtering;
mod hairpin;
mod icmp;
mod idle;
mod ip;
mod ipv6;
mod mapping;
mod others;
mod published;
mod race;
mod segments;
mod sequence;
mod tcp;
mod types;

use std::io;

pub use idle::{bracket, longest_left};

use crate::session::{
    CARRIAGE, CRAFTED_ERRORS, EXHAUSTION, FIRST_PACKETS, FIRST_SYNS, FRAGMENTS, ICMP_ERRORS, ICMP_QUERY,
    ICMP_TYPES, IDENTIFICATION, IDLE, IP_FIELDS, IPV6, OTHER_PROTOCOLS, OVERLAPPING, PUBLISHED, SEQUENCE,
    SIMULTANEOUS, Session, TCP_EXHAUSTION,
};
use crate::{Earlier, Ends, Observations, Progress};

/// One experiment: fills its field.
type Experiment = fn(&mut Session<'_>, &mut Observations) -> io::Result<()>;

/// One experiment with its name, and the rows that its packets are evidence for; none where it names them packet by packet.
struct Named(&'static str, Experiment, &'static [&'static str]);

/// All experiments, in the order in which they are made: what could exhaust or disturb a NAT comes last.
const EXPERIMENTS: &[Named] = &[
    Named("udp-mapping", mapping::udp, &["udp-mapping", "udp-pooling"]),
    Named(
        "udp-ports",
        mapping::udp_ports,
        &["udp-pooling", "udp-port-preservation", "udp-port-range", "udp-parity"],
    ),
    Named("udp-pairs", mapping::udp_pairs, &["udp-port-contiguity"]),
    Named("udp-collision", mapping::udp_collision, &["udp-mapping", "udp-overloading", "udp-deterministic"]),
    Named("udp-filtering", filtering::udp, &["udp-filtering"]),
    Named("udp-hairpin", hairpin::udp, &["udp-hairpin", "udp-hairpin-source", "npt-hairpin"]),
    Named(IPV6, ipv6::path, &["ipv6-path", "npt-checksum-neutral", "npt-unsolicited"]),
    Named("tcp-mapping", mapping::tcp, &["tcp-mapping", "tcp-pooling"]),
    Named("tcp-collision", mapping::tcp_collision, &["tcp-mapping", "tcp-overloading"]),
    Named("tcp-filtering", filtering::tcp, &["tcp-filtering"]),
    Named("tcp-hairpin", hairpin::tcp, &["tcp-hairpin", "tcp-hairpin-source"]),
    Named(SIMULTANEOUS, tcp::simultaneous, &["tcp-simultaneous-open"]),
    Named("tcp-unsolicited-syn", tcp::unsolicited, &["tcp-unsolicited-syn"]),
    Named(CARRIAGE, segments::carriage, &[]),
    Named(SEQUENCE, sequence::numbers, &["tcp-sequence-check", "tcp-reset-window"]),
    Named(FIRST_PACKETS, race::udp, &["udp-first-packets"]),
    Named(FIRST_SYNS, race::tcp, &["tcp-first-syns"]),
    Named("udp-moved", mapping::udp_moved, &["udp-port-randomness"]),
    Named("tcp-moved", mapping::tcp_moved, &["tcp-port-randomness", "tcp-pooling"]),
    Named(ICMP_QUERY, icmp::query, &["icmp-query", "icmp-query-mapping"]),
    Named("icmp-hairpin", hairpin::icmp, &["icmp-query-hairpin"]),
    Named(ICMP_ERRORS, icmp::errors, &[]),
    Named(CRAFTED_ERRORS, crafted::errors, &[]),
    Named(ICMP_TYPES, types::needed, &[]),
    Named("icmp-other-types", types::others, &[]),
    Named(IP_FIELDS, ip::fields, &["ip-ttl", "ip-dscp-ecn", "ip-dont-fragment"]),
    Named(IDENTIFICATION, ip::identification, &["ip-identification"]),
    Named(FRAGMENTS, ip::fragments, &[]),
    Named(OVERLAPPING, ip::overlapping, &["udp-fragments-overlapping"]),
    Named("udp-too-long", ip::too_long, &["udp-too-long", "udp-too-long-fragmented"]),
    Named(OTHER_PROTOCOLS, others::all, &[]),
    Named(PUBLISHED, published::ports, &published::ROWS),
    Named(IDLE, idle::all, &[]),
    Named(
        EXHAUSTION,
        exhaustion::udp,
        &[
            "udp-exhaustion-told",
            "udp-exhaustion-dropped",
            "udp-exhaustion-keeps",
            "udp-host-limit",
            "udp-new-mappings",
        ],
    ),
    Named(
        TCP_EXHAUSTION,
        exhaustion::tcp,
        &["tcp-exhaustion-told", "tcp-exhaustion-dropped", "tcp-exhaustion-keeps"],
    ),
];

/// The names of all, in the order in which they are made.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    EXPERIMENTS.iter().map(|Named(name, ..)| *name)
}

/// Makes all experiments on one NAT. `step` is called with the name of each before it begins, and ends the run early if it
/// returns false: the fields of the experiments left are `None`.
///
/// # Errors
/// If a packet cannot be sent or received.
pub fn measure(ends: &mut dyn Ends, step: &mut dyn FnMut(&'static str) -> bool) -> io::Result<Observations> {
    let mut step = step;
    measure_from(ends, Earlier::default(), &mut step)
}

/// The same after an earlier part of the run, on a NAT that behaves as it did then: leaves out the experiments that are complete,
/// and of one that was broken off the idle times that are decided.
///
/// # Errors
/// As [`measure`], and those of `progress`.
pub fn measure_from(
    ends: &mut dyn Ends,
    earlier: Earlier,
    progress: &mut dyn Progress,
) -> io::Result<Observations> {
    let mut session = Session::followed(ends, progress);
    let Earlier { complete, seen: mut observations } = earlier;
    let left = EXPERIMENTS.iter().filter(|Named(name, ..)| !complete.contains(*name));
    let (made, not_made): (Vec<&Named>, Vec<&Named>) = left.partition(|Named(name, ..)| session.makes(name));
    for Named(name, experiment, rows) in made {
        if !session.begin(name) {
            return Ok(observations);
        }
        session.about(rows);
        experiment(&mut session, &mut observations)?;
        session.seen(&observations, Some(name))?;
    }
    // Nothing is left to do for those that do not ask about such a gateway.
    for Named(name, ..) in not_made {
        session.seen(&observations, Some(name))?;
    }
    Ok(observations)
}
