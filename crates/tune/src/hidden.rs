//! Failures that a load does not print: what the kernel counts of them while it runs, per unit of work.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use weir_stats::Verdict;
use weir_stats::order::median;

use super::metric::Counter;
use super::need::View;
use super::prove::{Better, Proof, Round};

/// Connections that failed, were reset, or found no room; segments that open one and had to be sent again.
const FAILED_CONNECTIONS: &[&str] = &[
    "tcp.AttemptFails",
    "tcp.EstabResets",
    "tcpext.ListenDrops",
    "tcpext.TCPReqQFullDrop",
    "tcpext.TCPSynRetrans",
    "tcpext.TCPAbortOnTimeout",
    "tcpext.TCPAbortOnMemory",
];
const OPENED: &[&str] = &["tcp.ActiveOpens", "tcp.PassiveOpens"];

/// Packets dropped or refused; those of connection tracking are added.
const FAILED_PACKETS: &[&str] = &[
    "ip.InDiscards",
    "ip.OutDiscards",
    "ip.OutNoRoutes",
    "ip.FragFails",
    "ip.ReasmFails",
    "ip6.InDiscards",
    "ip6.OutDiscards",
    "ip6.OutNoRoutes",
    "ip6.FragFails",
    "ip6.ReasmFails",
    "icmp.OutDestUnreachs",
    "icmp6.OutDestUnreachs",
    "tcpext.IPReversePathFilter",
    "udp.NoPorts",
    "udp.InErrors",
    "udp.SndbufErrors",
    "udp6.NoPorts",
    "udp6.InErrors",
    "udp6.SndbufErrors",
];
const PACKETS: &[&str] = &["ip.InReceives", "ip.OutRequests", "ip6.InReceives", "ip6.OutRequests"];

const OCTETS: &[&str] = &["ipext.InOctets", "ip6.InOctets"];

/// A share of failures that is greater by no more than this is too small to stop a change: one in a thousand, as between variants
/// of `weir bench`.
const MOST_MORE: f64 = 0.001;

/// Least share of the bytes per connection that must still come: where half of the connections carry nothing, half of it does.
const LEAST_OCTETS: f64 = 0.75;

/// Counts of the kernel until now, or within a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Connections opened, by this side or the other.
    pub opened: u64,
    /// [`FAILED_CONNECTIONS`].
    pub failed_connections: u64,
    /// Packets of the IP layer.
    pub packets: u64,
    /// [`FAILED_PACKETS`].
    pub failed_packets: u64,
    /// Bytes that came.
    pub octets: u64,
}

impl Counted {
    /// Reads the counters of the tuned namespace, and of the load's namespace if that is another one. A counter that the kernel
    /// does not have is 0.
    ///
    /// # Errors
    /// If the counters cannot be read.
    pub fn read(view: &View) -> Result<Counted, String> {
        let here = || -> Result<Counted, String> {
            let counters = view.root.protocol_counters().map_err(|e| e.to_string())?;
            let tracked = Counter::ConntrackDrops.read(&view.root).unwrap_or(0);
            Ok(Counted::of(&counters, tracked))
        };
        let tuned = view.inside(here).map_err(|e| e.to_string())??;
        Ok(if view.namespace.is_some() { tuned.with(here()?, u64::wrapping_add) } else { tuned })
    }

    fn of(counters: &BTreeMap<String, u64>, tracked: u64) -> Counted {
        let sum = |names: &[&str]| names.iter().filter_map(|n| counters.get(*n)).sum::<u64>();
        Counted {
            opened: sum(OPENED),
            failed_connections: sum(FAILED_CONNECTIONS),
            packets: sum(PACKETS),
            failed_packets: sum(FAILED_PACKETS) + tracked,
            octets: sum(OCTETS),
        }
    }

    /// Returns the counts since an earlier reading.
    pub fn since(self, before: Counted) -> Counted {
        self.with(before, u64::saturating_sub)
    }

    fn with(self, other: Counted, f: fn(u64, u64) -> u64) -> Counted {
        Counted {
            opened: f(self.opened, other.opened),
            failed_connections: f(self.failed_connections, other.failed_connections),
            packets: f(self.packets, other.packets),
            failed_packets: f(self.failed_packets, other.failed_packets),
            octets: f(self.octets, other.octets),
        }
    }
}

/// One figure of the kernel's, before and after.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Figure {
    /// Its name.
    pub name: &'static str,
    /// Its rounds, and what they show.
    pub proof: Proof,
    /// True if the change breaks something by this figure.
    pub breaks: bool,
}

/// The figures of a run whose windows counted `counted`, in the order of the windows.
pub fn figures(rounds: &[Round], counted: &[Counted], seed: u64) -> Vec<Figure> {
    let by = |of: fn(&Counted) -> f64, better| {
        let round = |(round, both): (&Round, &[Counted])| {
            let (first, second) = (of(&both[0]), of(&both[1]));
            let (before, after) = if round.before_first { (first, second) } else { (second, first) };
            Round { before, after, before_first: round.before_first }
        };
        Proof::of(rounds.iter().zip(counted.chunks_exact(2)).map(round).collect(), seed, better)
    };
    let share = |name, of| {
        let proof = by(of, Better::Lower);
        let more = medians(&proof).is_some_and(|(before, after)| after - before > MOST_MORE);
        Figure { name, breaks: more && proof.verdict == Some(Verdict::Higher), proof }
    };
    let octets = by(|c| per(c.octets, c.opened), Better::Higher);
    let less = medians(&octets).is_some_and(|(before, after)| after < LEAST_OCTETS * before);
    // Without connections in a window there is nothing to divide by.
    let opened = counted.iter().all(|c| c.opened > 0);
    vec![
        share("failures per connection", |c| per(c.failed_connections, c.opened)),
        share("failures per packet", |c| per(c.failed_packets, c.packets)),
        Figure {
            name: "bytes per connection",
            breaks: opened && less && octets.verdict == Some(Verdict::Lower),
            proof: octets,
        },
    ]
}

fn per(events: u64, units: u64) -> f64 {
    events as f64 / units.max(1) as f64
}

fn medians(proof: &Proof) -> Option<(f64, f64)> {
    let of = |f: fn(&Round) -> f64| median(&proof.rounds.iter().map(f).collect::<Vec<_>>());
    Some((of(|r| r.before)?, of(|r| r.after)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight rounds whose windows with the change counted `after`, and the others `before`.
    fn broken(before: Counted, after: Counted) -> Vec<&'static str> {
        let rounds = |n| Round { before: 1.0, after: 1.0, before_first: n % 2 == 0 };
        let rounds: Vec<Round> = (0..8).map(rounds).collect();
        let windows = |r: &Round| if r.before_first { [before, after] } else { [after, before] };
        let counted: Vec<Counted> = rounds.iter().flat_map(windows).collect();
        figures(&rounds, &counted, 1).into_iter().filter(|f| f.breaks).map(|f| f.name).collect()
    }

    const GOOD: Counted =
        Counted { opened: 1000, failed_connections: 10, packets: 9000, failed_packets: 0, octets: 500_000 };

    #[test]
    fn a_change_that_breaks_something_is_found_by_what_it_breaks() {
        assert_eq!(broken(GOOD, GOOD), [""; 0]);
        assert_eq!(broken(GOOD, Counted { failed_connections: 510, ..GOOD }), ["failures per connection"]);
        assert_eq!(broken(GOOD, Counted { failed_packets: 20, ..GOOD }), ["failures per packet"]);
        assert_eq!(broken(GOOD, Counted { octets: 250_000, ..GOOD }), ["bytes per connection"]);
        assert_eq!(broken(Counted { failed_connections: 510, ..GOOD }, GOOD), [""; 0]);
    }

    #[test]
    fn more_work_with_as_many_failures_each_is_no_harm() {
        let twice = Counted {
            opened: 2000,
            failed_connections: 20,
            packets: 18_000,
            failed_packets: 0,
            octets: 1_000_000,
        };
        assert_eq!(broken(GOOD, twice), [""; 0]);
        // One in a thousand more, and a tenth fewer bytes.
        assert_eq!(broken(GOOD, Counted { failed_connections: 11, octets: 450_000, ..GOOD }), [""; 0]);
        // A load without connections.
        let datagrams = Counted { opened: 0, failed_connections: 0, ..GOOD };
        assert_eq!(broken(datagrams, Counted { octets: 1000, ..datagrams }), [""; 0]);
    }

    #[test]
    fn counters_are_summed_by_their_names() {
        let counters =
            [("tcp.ActiveOpens", 5), ("tcp.AttemptFails", 2), ("udp.NoPorts", 1), ("ip.InReceives", 9)];
        let counters = counters.map(|(name, n)| (name.to_owned(), n)).into_iter().collect();
        let counted = Counted { opened: 5, failed_connections: 2, packets: 9, failed_packets: 4, octets: 0 };
        assert_eq!(Counted::of(&counters, 3), counted);
        assert_eq!(counted.since(Counted { opened: 4, ..Counted::default() }).opened, 1);
    }
}
