//! Counters that tell whether a change did harm: those that convict the causes which tune's settings are meant to heal.

use std::time::Duration;

use serde::Serialize;
use weir_guard::{Metric, Watch, Worse};
use weir_sys::ProcRoot;
use weir_sys::conntrack::Conntrack;

use super::need::View;
use super::plan::Plan;

/// How often the guard reads.
const EVERY: Duration = Duration::from_secs(1);
/// Readings in a row that take a change back.
const STRIKES: u32 = 3;
/// A change may cost so much more than before without being blamed: events a second, and as a factor. Traffic varies.
const SLACK_PER_S: f64 = 10.0;
/// See [`SLACK_PER_S`].
const FACTOR: f64 = 2.0;

/// A counter that only grows, of a network namespace or of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Counter {
    /// Packets and entries that connection tracking refused or evicted (`drop`, `early_drop`).
    ConntrackDrops,
    /// Packets dropped because a core's backlog was full.
    SoftnetDrops,
    /// Connections that found a full accept queue or backlog.
    ListenOverflows,
    /// Datagrams that found a full buffer.
    UdpBufferErrors,
    /// Neighbours that found a full table.
    NeighbourOverflows,
    /// Fragments of packets that were never whole.
    ReassemblyFailures,
    /// TCP segments sent again.
    Retransmits,
}

impl Counter {
    /// All of them.
    pub const ALL: [Counter; 7] = [
        Counter::ConntrackDrops,
        Counter::SoftnetDrops,
        Counter::ListenOverflows,
        Counter::UdpBufferErrors,
        Counter::NeighbourOverflows,
        Counter::ReassemblyFailures,
        Counter::Retransmits,
    ];

    /// As on the command line and in journals.
    pub fn name(self) -> &'static str {
        match self {
            Counter::ConntrackDrops => "conntrack-drops",
            Counter::SoftnetDrops => "softnet-drops",
            Counter::ListenOverflows => "listen-overflows",
            Counter::UdpBufferErrors => "udp-buffer-errors",
            Counter::NeighbourOverflows => "neighbour-overflows",
            Counter::ReassemblyFailures => "reassembly-failures",
            Counter::Retransmits => "tcp-retransmits",
        }
    }

    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Counter::ConntrackDrops => {
                "packets refused and entries evicted by connection tracking, per second"
            }
            Counter::SoftnetDrops => "packets dropped by a full backlog of a core, per second",
            Counter::ListenOverflows => "connections that found a full queue, per second",
            Counter::UdpBufferErrors => "datagrams that found a full buffer, per second",
            Counter::NeighbourOverflows => "neighbours that found a full table, per second",
            Counter::ReassemblyFailures => "fragments that were never whole, per second",
            Counter::Retransmits => "TCP segments sent again, per second",
        }
    }

    /// Its value now, in the calling thread's network namespace; in words if it cannot be read.
    ///
    /// # Errors
    /// Where the kernel or a privilege lacks.
    pub fn read(self, root: &ProcRoot) -> Result<u64, String> {
        match self {
            Counter::ConntrackDrops => {
                let statistics =
                    Conntrack::open().and_then(|mut c| c.statistics()).map_err(|e| e.to_string())?;
                let sum = ["drop", "early_drop"].iter().filter_map(|n| statistics.get(n)).sum();
                if statistics.is_empty() { Err("no connection tracking here".into()) } else { Ok(sum) }
            }
            Counter::SoftnetDrops => {
                let lines = root.softnet().map_err(|e| e.to_string())?;
                Ok(lines.iter().map(|c| c.dropped).sum())
            }
            Counter::ListenOverflows => of_protocols(
                root,
                &["tcpext.ListenOverflows", "tcpext.ListenDrops", "tcpext.TCPReqQFullDrop"],
            ),
            Counter::UdpBufferErrors => of_protocols(
                root,
                &["udp.RcvbufErrors", "udp.SndbufErrors", "udp6.RcvbufErrors", "udp6.SndbufErrors"],
            ),
            Counter::NeighbourOverflows => {
                let tables = ["arp_cache", "ndisc_cache"]
                    .iter()
                    .filter_map(|t| table_fulls(&root.read(&format!("proc/thread-self/net/stat/{t}")).ok()?));
                let all: Vec<u64> = tables.collect();
                if all.is_empty() {
                    Err("the kernel does not count them".into())
                } else {
                    Ok(all.iter().sum())
                }
            }
            Counter::ReassemblyFailures => of_protocols(root, &["ip.ReasmFails", "ip6.ReasmFails"]),
            Counter::Retransmits => of_protocols(root, &["tcp.RetransSegs"]),
        }
    }
}

impl std::str::FromStr for Counter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Counter::ALL.into_iter().find(|c| c.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Counter::ALL.iter().map(|c| c.name()).collect();
            format!("`{text}` is none of {}", names.join(", "))
        })
    }
}

fn of_protocols(root: &ProcRoot, names: &[&str]) -> Result<u64, String> {
    let counters = root.protocol_counters().map_err(|e| e.to_string())?;
    let found: Vec<u64> = names.iter().filter_map(|n| counters.get(*n).copied()).collect();
    if found.is_empty() {
        Err(format!("the kernel does not count {}", names.join(", ")))
    } else {
        Ok(found.iter().sum())
    }
}

/// A line of column names, then one line of hexadecimal numbers for each core (net/core/neighbour.c, neigh_stat_seq_show).
fn table_fulls(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    let column = lines.next()?.split_ascii_whitespace().position(|name| name == "table_fulls")?;
    let values = lines.filter_map(|l| u64::from_str_radix(l.split_ascii_whitespace().nth(column)?, 16).ok());
    Some(values.sum())
}

/// A counter by its name, for the guard process ([`weir_guard::guard`]).
///
/// # Errors
/// In words.
pub fn metric(name: &str) -> Result<f64, String> {
    name.parse::<Counter>()?.read(&ProcRoot::default()).map(|n| n as f64)
}

/// The counter that shows whether a setting did harm.
fn of_setting(name: &str) -> Option<Counter> {
    let part = |words: &[&str]| words.iter().any(|w| name.contains(w));
    if part(&["nf_conntrack"]) {
        Some(Counter::ConntrackDrops)
    } else if part(&["netdev_", "dev_weight", "rps_"]) {
        Some(Counter::SoftnetDrops)
    } else if part(&["somaxconn", "syn_backlog", "syncookies"]) {
        Some(Counter::ListenOverflows)
    } else if part(&["rmem", "wmem", "udp_mem", "tcp_mem"]) {
        Some(Counter::UdpBufferErrors)
    } else if part(&[".neigh."]) {
        Some(Counter::NeighbourOverflows)
    } else if part(&["frag_"]) {
        Some(Counter::ReassemblyFailures)
    } else if part(&["tcp_"]) {
        Some(Counter::Retransmits)
    } else {
        None
    }
}

/// What is to be watched while a plan is on trial: the counters of its settings, with limits from how fast they grow now, measured
/// over `baseline`. A counter that cannot be read is left out.
pub fn watches(plan: &Plan, view: &View, baseline: Duration) -> Vec<Watch> {
    let mut counters: Vec<Counter> = Vec::new();
    let settings = plan.rows.iter().filter(|r| r.held.is_none()).filter_map(|r| of_setting(&r.name));
    // Another way for packets is to relieve the table; if it goes wrong, what the host itself exchanges with containers suffers.
    let actions = plan.actions.iter().filter(|a| a.held.is_none());
    let others = actions.flat_map(|_| [Counter::ConntrackDrops, Counter::Retransmits]);
    for counter in settings.chain(others) {
        if !counters.contains(&counter) {
            counters.push(counter);
        }
    }
    let read = || {
        counters.iter().map(|c| view.inside(|| c.read(&view.root).ok()).ok().flatten()).collect::<Vec<_>>()
    };
    if counters.is_empty() {
        return Vec::new();
    }
    let (begun, before) = (std::time::Instant::now(), read());
    std::thread::sleep(baseline);
    let (after, seconds) = (read(), begun.elapsed().as_secs_f64());
    let rates = before.iter().zip(&after).map(|(b, a)| Some((*a)?.saturating_sub((*b)?) as f64 / seconds));
    counters.iter().zip(rates).filter_map(|(counter, rate)| Some(watch(*counter, rate?))).collect()
}

fn watch(counter: Counter, rate: f64) -> Watch {
    Watch {
        name: counter.words().to_owned(),
        metric: Metric::Named(counter.name().to_owned()),
        rate: true,
        every_ms: EVERY.as_millis() as u64,
        worse: Worse::Above,
        limit: (rate * FACTOR).max(rate + SLACK_PER_S),
        strikes: STRIKES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for counter in Counter::ALL {
            assert_eq!(counter.name().parse(), Ok(counter));
        }
        assert!("drops".parse::<Counter>().unwrap_err().contains("conntrack-drops"));
    }

    #[test]
    fn limits_leave_room_for_what_varies() {
        assert_eq!(watch(Counter::ConntrackDrops, 0.0).limit, 10.0);
        assert_eq!(watch(Counter::ConntrackDrops, 1000.0).limit, 2000.0);
    }

    #[test]
    fn full_tables_are_summed_over_cores() {
        let text = "entries  allocs   destroys unresolved_discards table_fulls\n00000002 00000010 00000000 00000001 0000000a\n00000002 00000010 00000000 00000001 00000010\n";
        assert_eq!(table_fulls(text), Some(26));
        assert_eq!(table_fulls("entries allocs\n1 2\n"), None);
    }

    /// This kernel has them, or says so.
    #[test]
    fn counters_of_this_kernel_are_read() {
        for counter in Counter::ALL.into_iter().filter(|c| *c != Counter::ConntrackDrops) {
            match counter.read(&ProcRoot::default()) {
                Ok(value) => assert!(counter.read(&ProcRoot::default()).unwrap() >= value),
                Err(e) => assert!(!e.is_empty() && counter == Counter::NeighbourOverflows, "{e}"),
            }
        }
    }
}
