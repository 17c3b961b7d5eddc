//! Counters of a network namespace.

use std::collections::BTreeMap;

use super::ProcRoot;
use crate::error::Result;

/// Counters of one interface since it was made (`/proc/net/dev`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets (skbs) received.
    pub rx_packets: u64,
    /// Receive errors.
    pub rx_errors: u64,
    /// Dropped on receive.
    pub rx_dropped: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets (skbs) sent.
    pub tx_packets: u64,
    /// Transmit errors.
    pub tx_errors: u64,
    /// Dropped on transmit.
    pub tx_dropped: u64,
}

/// `/proc/net/dev` by interface.
pub fn parse_net_dev(text: &str) -> BTreeMap<String, InterfaceCounters> {
    let mut interfaces = BTreeMap::new();
    for line in text.lines() {
        // The header has no colon. A name may hold one (an alias), the columns do not.
        let Some((name, columns)) = line.rsplit_once(':') else { continue };
        let c: Vec<u64> = columns.split_ascii_whitespace().map_while(|w| w.parse().ok()).collect();
        // net/core/net-procfs.c: 8 columns for receive, 8 for transmit.
        if c.len() < 16 {
            continue;
        }
        let counters = InterfaceCounters {
            rx_bytes: c[0],
            rx_packets: c[1],
            rx_errors: c[2],
            rx_dropped: c[3],
            tx_bytes: c[8],
            tx_packets: c[9],
            tx_errors: c[10],
            tx_dropped: c[11],
        };
        interfaces.insert(name.trim().to_owned(), counters);
    }
    interfaces
}

/// One core's line of `/proc/net/softnet_stat` (net/core/net-procfs.c, softnet_seq_show). These belong to the machine, not
/// to a namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Softnet {
    /// Packets taken in.
    pub processed: u64,
    /// Dropped because the core's backlog was full (net.core.netdev_max_backlog).
    pub dropped: u64,
    /// Times the softirq had to stop with work left (net.core.netdev_budget).
    pub time_squeeze: u64,
    /// Times the core was woken by RPS.
    pub received_rps: u64,
    /// Dropped by the flow limit.
    pub flow_limit: u64,
    /// The core, where the kernel prints it (5.10 and later): offline cores have no line.
    pub cpu: Option<usize>,
}

/// `/proc/net/softnet_stat`, one entry per line.
pub fn parse_softnet(text: &str) -> Vec<Softnet> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let c: Vec<u64> =
            line.split_ascii_whitespace().map_while(|w| u64::from_str_radix(w, 16).ok()).collect();
        if c.len() < 3 {
            continue;
        }
        let column = |i: usize| c.get(i).copied();
        lines.push(Softnet {
            processed: c[0],
            dropped: c[1],
            time_squeeze: c[2],
            received_rps: column(9).unwrap_or(0),
            flow_limit: column(10).unwrap_or(0),
            cpu: column(12).and_then(|cpu| usize::try_from(cpu).ok()),
        });
    }
    lines
}

/// Pairs of lines `Proto: names` and `Proto: values`, as `/proc/net/snmp` and `/proc/net/netstat` have them, by
/// `proto.Name` with the protocol in lower case. Negative values (`Tcp: MaxConn -1`) are left out: they are settings.
pub fn parse_snmp(text: &str) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    let mut names: Option<(&str, &str)> = None;
    for line in text.lines() {
        let Some((protocol, columns)) = line.split_once(':') else {
            names = None;
            continue;
        };
        match names.take() {
            Some((p, n)) if p == protocol => {
                for (name, value) in n.split_ascii_whitespace().zip(columns.split_ascii_whitespace()) {
                    if let Ok(value) = value.parse() {
                        counters.insert(format!("{}.{name}", protocol.to_ascii_lowercase()), value);
                    }
                }
            }
            _ => names = Some((protocol, columns)),
        }
    }
    counters
}

/// Lines `Ip6Name value` of `/proc/net/snmp6`, by `ip6.Name`, `icmp6.Name`, `udp6.Name`, `udplite6.Name`.
pub fn parse_snmp6(text: &str) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(name), Some(Ok(value))) = (words.next(), words.next().map(str::parse)) else { continue };
        let Some((protocol, name)) = name.split_once('6') else { continue };
        if !protocol.is_empty() && !name.is_empty() {
            counters.insert(format!("{}6.{name}", protocol.to_ascii_lowercase()), value);
        }
    }
    counters
}

impl ProcRoot {
    /// Interfaces of the calling thread's namespace.
    pub fn net_dev(&self) -> Result<BTreeMap<String, InterfaceCounters>> {
        Ok(parse_net_dev(&self.read("proc/thread-self/net/dev")?))
    }

    /// Receive work of each core.
    pub fn softnet(&self) -> Result<Vec<Softnet>> {
        Ok(parse_softnet(&self.read("proc/thread-self/net/softnet_stat")?))
    }

    /// Protocol counters of the calling thread's namespace out of `snmp`, `netstat` and `snmp6`, by `proto.Name` (`tcp.RetransSegs`,
    /// `tcpext.ListenDrops`, `udp.RcvbufErrors`, `ip6.InDiscards`). A file that this kernel lacks adds nothing.
    pub fn protocol_counters(&self) -> Result<BTreeMap<String, u64>> {
        let mut counters = parse_snmp(&self.read("proc/thread-self/net/snmp")?);
        for (file, parse) in [("netstat", parse_snmp as fn(&str) -> _), ("snmp6", parse_snmp6)] {
            if let Some(text) = self.read_optional(&format!("proc/thread-self/net/{file}")) {
                counters.extend(parse(&text));
            }
        }
        Ok(counters)
    }

    /// Conntrack entries of the calling thread's namespace; `None` if it has no conntrack.
    pub fn conntrack_count(&self) -> Option<u64> {
        self.read_optional("proc/sys/net/netfilter/nf_conntrack_count")?.parse().ok()
    }
}
