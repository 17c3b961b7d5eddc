//! Counters that tell whether a change did harm: those that convict the causes which tune's settings are meant to heal.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use weir_netlink::conntrack::Conntrack;
use weir_sys::ProcRoot;
use weir_sys::procfs::Softnet;

weir_text::listed! {
    /// A counter that only grows, of a network namespace or of the machine.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Counter {
        /// Packets and entries that connection tracking refused or evicted (`drop`, `early_drop`).
        ConntrackDrops = "packets refused and entries evicted by connection tracking, per second",
        /// Packets that connection tracking made nothing of (`invalid`).
        ConntrackInvalid = "packets that connection tracking calls invalid, per second",
        /// Packets dropped because a core's backlog was full.
        SoftnetDrops = "packets dropped by a full backlog of a core, per second",
        /// Times that a core had to leave packets for later.
        SoftnetSqueezes = "times that a core left packets for later, per second",
        /// Connections that found a full accept queue or backlog.
        ListenOverflows = "connections that found a full queue, per second",
        /// Datagrams that found a full buffer, or no memory for one.
        UdpBufferErrors = "datagrams that found a full buffer, per second",
        /// Times that buffers of TCP were short of memory: pressure begun, queues pruned, segments and connections given up.
        TcpMemory = "times that buffers of TCP were short of memory, per second",
        /// Neighbours that found a full table.
        NeighbourOverflows = "neighbours that found a full table, per second",
        /// Packets thrown away while they waited for a neighbour's address.
        NeighbourWaits = "packets dropped while they waited for a neighbour, per second",
        /// Fragments of packets that were never whole.
        ReassemblyFailures = "fragments that were never whole, per second",
        /// Packets too long for their next link that could not be fragmented.
        FragmentationFailures = "packets too long for their next link, per second",
        /// Sources that the reverse path filter refused.
        ReversePath = "sources that the reverse path filter refused, per second",
        /// Packets with a source that may never come from outside.
        Martians = "packets with impossible sources, per second",
        /// Packets for others while forwarding is off, and packets without a route.
        Unroutable = "packets that are not forwarded or have no route, per second",
        /// ICMP messages that the rate limit held back.
        IcmpLimited = "ICMP messages held back by the rate limit, per second",
        /// Sockets for which there was no room in TIME_WAIT.
        TimeWaitOverflows = "sockets without room in TIME_WAIT, per second",
        /// Segments refused for their time stamps.
        OldTimestamps = "segments refused for their time stamps, per second",
        /// Times that a program had to wait until memory was made free for it.
        MemoryStalls = "waits until memory was made free, per second",
        /// TCP segments sent again.
        Retransmits = "TCP segments sent again, per second",
    }
}

impl Counter {
    /// As on the command line, in JSON and in journals.
    pub fn name(self) -> &'static str {
        match self {
            Counter::ConntrackDrops => "conntrack-drops",
            Counter::ConntrackInvalid => "conntrack-invalid",
            Counter::SoftnetDrops => "softnet-drops",
            Counter::SoftnetSqueezes => "softnet-squeezes",
            Counter::ListenOverflows => "listen-overflows",
            Counter::UdpBufferErrors => "udp-buffer-errors",
            Counter::TcpMemory => "tcp-memory",
            Counter::NeighbourOverflows => "neighbour-overflows",
            Counter::NeighbourWaits => "neighbour-waits",
            Counter::ReassemblyFailures => "reassembly-failures",
            Counter::FragmentationFailures => "fragmentation-failures",
            Counter::ReversePath => "reverse-path",
            Counter::Martians => "martians",
            Counter::Unroutable => "unroutable",
            Counter::IcmpLimited => "icmp-limited",
            Counter::TimeWaitOverflows => "time-wait-overflows",
            Counter::OldTimestamps => "old-timestamps",
            Counter::MemoryStalls => "memory-stalls",
            Counter::Retransmits => "tcp-retransmits",
        }
    }

    /// Its value now, in the calling thread's network namespace; in words if it cannot be read.
    ///
    /// # Errors
    /// If the kernel does not support it, or a privilege is missing.
    pub fn read(self, root: &ProcRoot) -> Result<u64, String> {
        match self {
            Counter::ConntrackDrops => of_conntrack(&["drop", "early_drop"]),
            Counter::ConntrackInvalid => of_conntrack(&["invalid"]),
            Counter::SoftnetDrops => of_cores(root, |core| core.dropped),
            Counter::SoftnetSqueezes => of_cores(root, |core| core.time_squeeze),
            Counter::NeighbourOverflows => of_tables(root, &NEIGHBOURS, &["table_fulls"]),
            Counter::NeighbourWaits => of_tables(root, &NEIGHBOURS, &["unresolved_discards"]),
            Counter::Martians => of_tables(root, &["rt_cache"], &["in_martian_src", "in_martian_dst"]),
            Counter::MemoryStalls => {
                let text = root.read("proc/vmstat").map_err(|e| e.to_string())?;
                memory_stalls(&text).ok_or_else(|| "the kernel does not count them".into())
            }
            other => of_protocols(root, other.protocol_counters()),
        }
    }

    /// Those of `/proc/net/snmp`, `netstat` and `snmp6` that it sums up; none of the others.
    fn protocol_counters(self) -> &'static [&'static str] {
        match self {
            Counter::ListenOverflows => {
                &["tcpext.ListenOverflows", "tcpext.ListenDrops", "tcpext.TCPReqQFullDrop"]
            }
            Counter::UdpBufferErrors => &[
                "udp.RcvbufErrors",
                "udp.SndbufErrors",
                "udp.MemErrors",
                "udp6.RcvbufErrors",
                "udp6.SndbufErrors",
                "udp6.MemErrors",
            ],
            Counter::TcpMemory => &[
                "tcpext.TCPMemoryPressures",
                "tcpext.TCPAbortOnMemory",
                "tcpext.PruneCalled",
                "tcpext.RcvPruned",
                "tcpext.OfoPruned",
                "tcpext.TCPRcvQDrop",
            ],
            Counter::ReassemblyFailures => &["ip.ReasmFails", "ip6.ReasmFails"],
            Counter::FragmentationFailures => &["ip.FragFails", "ip6.FragFails"],
            Counter::ReversePath => &["tcpext.IPReversePathFilter"],
            Counter::Unroutable => &[
                "ip.InAddrErrors",
                "ip6.InAddrErrors",
                "ipext.InNoRoutes",
                "ip6.InNoRoutes",
                "ip.OutNoRoutes",
                "ip6.OutNoRoutes",
            ],
            Counter::IcmpLimited => {
                &["icmp.OutRateLimitGlobal", "icmp.OutRateLimitHost", "icmp6.OutRateLimitHost"]
            }
            Counter::TimeWaitOverflows => &["tcpext.TCPTimeWaitOverflow"],
            Counter::OldTimestamps => &["tcpext.PAWSActive", "tcpext.PAWSEstab", "tcpext.PAWSTimewait"],
            Counter::Retransmits => &["tcp.RetransSegs"],
            _ => &[],
        }
    }
}

impl Serialize for Counter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl JsonSchema for Counter {
    fn schema_name() -> Cow<'static, str> {
        "Counter".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "description": "Name of a counter", "enum": Counter::ALL.map(Counter::name) })
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

fn of_conntrack(names: &[&str]) -> Result<u64, String> {
    let statistics = Conntrack::open().and_then(|mut c| c.statistics()).map_err(|e| e.to_string())?;
    let sum = names.iter().filter_map(|n| statistics.get(n)).sum();
    if statistics.is_empty() { Err("no connection tracking here".into()) } else { Ok(sum) }
}

fn of_cores(root: &ProcRoot, of: fn(&Softnet) -> u64) -> Result<u64, String> {
    Ok(root.softnet().map_err(|e| e.to_string())?.iter().map(of).sum())
}

/// Tables of neighbours, IPv4 and IPv6.
const NEIGHBOURS: [&str; 2] = ["arp_cache", "ndisc_cache"];

/// Columns of files below `/proc/net/stat`, summed up.
fn of_tables(root: &ProcRoot, tables: &[&str], columns: &[&str]) -> Result<u64, String> {
    let text = |table: &&str| root.read(&format!("proc/thread-self/net/stat/{table}")).ok();
    let texts: Vec<String> = tables.iter().filter_map(text).collect();
    let found = texts.iter().flat_map(|text| columns.iter().filter_map(|column| column_sum(text, column)));
    let found: Vec<u64> = found.collect();
    if found.is_empty() { Err("the kernel does not count them here".into()) } else { Ok(found.iter().sum()) }
}

/// A line of column names, then one line of hexadecimal numbers for each core (net/core/neighbour.c, neigh_stat_seq_show).
fn column_sum(text: &str, column: &str) -> Option<u64> {
    let mut lines = text.lines();
    let column = lines.next()?.split_ascii_whitespace().position(|name| name == column)?;
    let values = lines.filter_map(|l| u64::from_str_radix(l.split_ascii_whitespace().nth(column)?, 16).ok());
    Some(values.sum())
}

/// Sums the stalls in `/proc/vmstat`, which has a line for each zone of memory.
fn memory_stalls(text: &str) -> Option<u64> {
    let stalls =
        text.lines().filter_map(|line| line.strip_prefix("allocstall")?.split_once(' ')?.1.parse().ok());
    let stalls: Vec<u64> = stalls.collect();
    (!stalls.is_empty()).then(|| stalls.iter().sum())
}

/// A counter by its name, for the guard process ([`weir_guard::guard`]).
///
/// # Errors
/// In words.
pub fn metric(name: &str) -> Result<f64, String> {
    name.parse::<Counter>()?.read(&ProcRoot::default()).map(|n| n as f64)
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
    fn full_tables_are_summed_over_cores() {
        let text = "entries  allocs   destroys unresolved_discards table_fulls\n00000002 00000010 00000000 00000001 0000000a\n00000002 00000010 00000000 00000001 00000010\n";
        assert_eq!(column_sum(text, "table_fulls"), Some(26));
        assert_eq!(column_sum(text, "unresolved_discards"), Some(2));
        assert_eq!(column_sum("entries allocs\n1 2\n", "table_fulls"), None);
        let text = "nr_free_pages 9\nallocstall_dma 1\nallocstall_normal 41\noom_kill 7\n";
        assert_eq!((memory_stalls(text), memory_stalls("oom_kill 7\n")), (Some(42), None));
    }

    /// This kernel has them, or says so. Those of neighbours are in the machine's own network namespace, and those of the rate
    /// limit of ICMP came with Linux 6.1.
    #[test]
    fn counters_of_this_kernel_are_read() {
        let of_conntrack = [Counter::ConntrackDrops, Counter::ConntrackInvalid];
        let may_lack = [Counter::NeighbourOverflows, Counter::NeighbourWaits, Counter::IcmpLimited];
        for counter in Counter::ALL.into_iter().filter(|c| !of_conntrack.contains(c)) {
            match counter.read(&ProcRoot::default()) {
                Ok(value) => assert!(counter.read(&ProcRoot::default()).unwrap() >= value),
                Err(e) => assert!(!e.is_empty() && may_lack.contains(&counter), "{counter:?}: {e}"),
            }
        }
    }
}
