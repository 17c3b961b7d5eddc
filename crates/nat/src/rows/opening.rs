//! New mappings: RFC 4787 section 8, RFC 6888 section 3.

use weir_stats::order::{median, median_interval};

use super::judge::{does, fails, is, made, not_sure, not_testable, translates};
use super::verdicts::Judged;
use super::{Compliance, Confidence, Group, Level, Row};
use crate::Observations;

/// The rows.
pub(super) const ROWS: &[Row] = &[
    // No RFC names this race: REQ-11 forbids another mapping "under any particular conditions".
    Row {
        id: "udp-first-packets",
        group: Group::Mapping,
        rfc: 4787,
        section: "8",
        requirement: "REQ-11",
        level: Level::Must,
        asks: "two packets of a new flow at once both leave, by one mapping",
        sent: "two datagrams of one new flow from two threads at once, 32 times",
        breaks: "name look-ups that ask for A and AAAA at once wait five seconds for the lost one",
        judge: |o| first_packets(o).unwrap_or_else(|e| e),
    },
    // No RFC names this race either: REQ-2 wants SYNs that the NAT permits through, and REQ-7 no port for two hosts.
    Row {
        id: "tcp-first-syns",
        group: Group::Mapping,
        rfc: 5382,
        section: "4.2",
        requirement: "REQ-2",
        level: Level::Must,
        asks: "SYNs of two hosts at once from the same port both leave, by a port each",
        sent: "a SYN of each of two hosts from one port to one endpoint, from two threads at once, 32 times",
        breaks: "connections from busy hosts, containers and pods take one or three seconds more: the SYN is sent again",
        judge: |o| first_syns(o).unwrap_or_else(|e| e),
    },
    // The letter of REQ-4, which recommends such a limit, is from memory.
    Row {
        id: "udp-new-mappings",
        group: Group::Mapping,
        rfc: 6888,
        section: "3",
        requirement: "",
        level: Level::Described,
        asks: "how many new mappings the gateway makes a second (REQ-4 lets operators limit those of one host)",
        sent: "UDP from 64 ports of one host, then once more from these, and so on",
        breaks: "",
        judge: |o| new_mappings(o).unwrap_or_else(|e| e),
    },
];

fn first_packets(o: &Observations) -> Judged {
    translates(o)?;
    let seen = made(&o.udp_first_packets)?;
    let (flows, lost, split) = (seen.flows, seen.lost, seen.split);
    Ok(match (split, lost) {
        (0, 0) => {
            let seen = format!("both packets of all of {flows} flows left by one mapping");
            is(Compliance::Meets, Confidence::Medium, seen)
        }
        (0, _) if !seen.sure || lost == 2 * flows => {
            not_sure(format!("{lost} of {} packets did not arrive, on a path that loses packets", 2 * flows))
        }
        (0, _) => {
            fails(format!("{lost} of {} packets did not arrive, two of {flows} flows at once", 2 * flows))
        }
        _ => fails(format!("{split} of {flows} flows left by two mappings")),
    })
}

fn first_syns(o: &Observations) -> Judged {
    translates(o)?;
    let seen = made(&o.tcp_first_syns)?;
    let (pairs, lost, shared) = (seen.pairs, seen.lost, seen.shared);
    Ok(match (shared, lost) {
        (0, 0) => is(
            Compliance::Meets,
            Confidence::Medium,
            format!("both SYNs of all of {pairs} pairs left by a port each"),
        ),
        (0, _) if !seen.sure || lost == 2 * pairs => {
            not_sure(format!("{lost} of {} SYNs did not arrive, on a path that loses packets", 2 * pairs))
        }
        // TCP sends a lost SYN again: the connection is late, and not refused.
        (0, _) => is(
            Compliance::Partly,
            Confidence::High,
            format!("{lost} of {} SYNs did not arrive, two of {pairs} pairs at once", 2 * pairs),
        ),
        _ => fails(format!("{shared} of {pairs} pairs left by one outside port")),
    })
}

fn new_mappings(o: &Observations) -> Judged {
    translates(o)?;
    let seen = made(&o.new_mappings)?;
    let n = seen.new_s.len();
    let rates = |times: &[f64]| times.iter().map(|s| f64::from(seen.batch) / s).collect::<Vec<f64>>();
    let (new, known) = (rates(&seen.new_s), rates(&seen.known_s));
    let (Some(rate), Some(bound)) = (median(&new), median(&known)) else {
        return Ok(not_testable(format!("no batch of {} packets got a port each", seen.batch)));
    };
    if !rate.is_finite() {
        return Ok(does(format!("{n} batches of {} in less time than the clock shows", seen.batch)));
    }
    let interval = match median_interval(&new) {
        Some((low, high)) => format!("95 % interval {low:.0} to {high:.0}"),
        None => "too few for an interval".to_owned(),
    };
    Ok(does(format!(
        "{rate:.0} a second (median of n = {n} batches of {}, {interval}); mappings that exist: {bound:.0} packets a second",
        seen.batch
    )))
}
