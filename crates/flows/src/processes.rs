//! Processes of this machine at the ends of flows.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::Serialize;
use weir_netlink::sock_diag::SocketEnds;
use weir_sys::procfs::Holder;
use weir_text::order;

use crate::shared;
use crate::table::{Tracked, ends, is};

/// Flows of each protocol that are summed up by process: those with the most bytes.
const MOST: usize = 4096;

/// The processes that hold sockets of this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Processes {
    /// Addresses of this machine, in all network namespaces that could be entered.
    pub addresses: BTreeSet<IpAddr>,
    /// The process that holds a socket.
    pub found: BTreeMap<SocketEnds, Holder>,
    /// Why some may be missing.
    pub missing: Option<String>,
}

/// An end of a flow on this machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct LocalEnd {
    /// Its process; null if none was found.
    pub pid: Option<u32>,
    /// Name of the process; text from outside. Null likewise.
    pub process: Option<String>,
}

impl LocalEnd {
    /// For people, not made harmless yet.
    pub fn words(&self) -> String {
        match (&self.process, self.pid) {
            (Some(name), Some(pid)) => format!("{name} (pid {pid})"),
            _ => "(unknown process)".to_owned(),
        }
    }
}

/// The flows of a process, of all ends on this machine whose process is unknown, or of all that have no end on this machine.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ProcessSum {
    /// The process; null for flows without an end on this machine.
    pub end: Option<LocalEnd>,
    /// Container, or other network namespace of this machine, that has the address of its end; text from outside.
    pub container: Option<String>,
    /// TCP flows in the table.
    pub flows: u64,
    /// UDP flows in the table.
    pub udp_flows: u64,
    /// Bytes that it sent through this host; of flows without an end on this machine those of the clients.
    pub sent_bytes: u64,
    /// Bytes that it received through this host; likewise those of the servers.
    pub received_bytes: u64,
}

impl ProcessSum {
    /// For people, not made harmless yet.
    pub fn words(&self) -> String {
        self.end.as_ref().map_or_else(|| ELSEWHERE.to_owned(), LocalEnd::words)
    }
}

/// Name of the flows without an end on this machine.
pub const ELSEWHERE: &str = "(not on this host)";

/// The sockets at the ends of a flow, as the client's and the server's own packets have them.
fn sockets<F: Tracked>(flow: &F) -> [SocketEnds; 2] {
    let socket =
        |(local, remote): (SocketAddr, SocketAddr)| SocketEnds { protocol: F::PROTOCOL, local, remote };
    let (client, server) = ends(&flow.ends()[0]);
    let answers = is(flow, shared::WEIR_IS_JOINED).then(|| ends(&flow.ends()[1]));
    [socket((client, server)), socket(answers.unwrap_or((server, client)))]
}

/// Processes, with the addresses of the watch's own namespace and the names of containers.
pub(crate) struct Known<'a> {
    pub(crate) processes: &'a Processes,
    pub(crate) own: &'a BTreeSet<IpAddr>,
    pub(crate) containers: &'a BTreeMap<IpAddr, String>,
}

impl Known<'_> {
    fn end(&self, socket: &SocketEnds) -> Option<LocalEnd> {
        let holder = self.processes.found.get(socket);
        let ip = socket.local.ip();
        let is_here = holder.is_some() || self.own.contains(&ip) || self.processes.addresses.contains(&ip);
        let end = || LocalEnd { pid: holder.map(|h| h.pid), process: holder.map(|h| h.name.clone()) };
        is_here.then(end)
    }

    /// The ends of a flow that are on this machine: the client's, and the server's.
    pub(crate) fn ends(&self, flow: &impl Tracked) -> [Option<LocalEnd>; 2] {
        sockets(flow).map(|socket| self.end(&socket))
    }
}

/// An end on this machine, or none, and its container.
type Key = (Option<LocalEnd>, Option<String>);

/// Sums of flows by process, and the sockets at the ends of these flows.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    by_end: BTreeMap<Key, ProcessSum>,
    sockets: BTreeSet<SocketEnds>,
}

impl Sums {
    /// Adds flows, of which those with the most bytes come first.
    pub(crate) fn add<F: Tracked>(&mut self, flows: &[F], known: &Known<'_>) {
        for flow in flows.iter().take(MOST) {
            let sockets = sockets(flow);
            let mut counted = Vec::new();
            for (n, socket) in sockets.iter().enumerate() {
                let container = || known.containers.get(&socket.local.ip()).cloned();
                let Some(key) = known.end(socket).map(|end| (Some(end), container())) else { continue };
                // A process that talks to itself has one flow, not two.
                if !counted.contains(&key) {
                    self.count(flow, n, key.clone());
                    counted.push(key);
                }
            }
            if counted.is_empty() {
                self.count(flow, 0, (None, None));
            }
            self.sockets.extend(sockets);
        }
    }

    fn count<F: Tracked>(&mut self, flow: &F, n: usize, key: Key) {
        let new = |(end, container): &Key| ProcessSum {
            end: end.clone(),
            container: container.clone(),
            flows: 0,
            udp_flows: 0,
            sent_bytes: 0,
            received_bytes: 0,
        };
        let sum = self.by_end.entry(key).or_insert_with_key(new);
        match F::PROTOCOL {
            weir_netlink::Protocol::Tcp => sum.flows += 1,
            weir_netlink::Protocol::Udp => sum.udp_flows += 1,
        }
        let bytes = flow.side_bytes();
        sum.sent_bytes += bytes[n];
        sum.received_bytes += bytes[1 - n];
    }

    /// The most bytes first.
    pub(crate) fn report(self) -> (Vec<ProcessSum>, BTreeSet<SocketEnds>) {
        let mut sums: Vec<ProcessSum> = self.by_end.into_values().collect();
        order::by_key(&mut sums, |sum| Reverse(sum.sent_bytes + sum.received_bytes));
        (sums, self.sockets)
    }
}

#[cfg(test)]
mod tests {
    use weir_bpf::Plain;
    use weir_netlink::Protocol;

    use super::*;
    use crate::shared::{WeirEnds, WeirFlow, WeirUdpFlow};

    /// From 10.0.0.`from` to 10.0.0.`to`, with these ports.
    fn direction((from, from_port): (u8, u16), (to, to_port): (u8, u16)) -> WeirEnds {
        let word = |last| u32::from_ne_bytes([10, 0, 0, last]);
        WeirEnds {
            version: 4,
            source: [word(from), 0, 0, 0],
            destination: [word(to), 0, 0, 0],
            source_port: from_port.to_be(),
            destination_port: to_port.to_be(),
            ..WeirEnds::zeroed()
        }
    }

    fn socket(protocol: Protocol, local: &str, remote: &str) -> SocketEnds {
        SocketEnds { protocol, local: local.parse().unwrap(), remote: remote.parse().unwrap() }
    }

    #[test]
    fn ends_behind_nat_are_those_that_their_own_packets_have() {
        // 10.0.0.2 asks 10.0.0.9:80, which is 10.0.0.3:8080 inside, and is seen there as 10.0.0.1:5000.
        let mut flow = WeirFlow::zeroed();
        flow.ends = [direction((2, 4000), (9, 80)), direction((3, 8080), (1, 5000))];
        let client = socket(Protocol::Tcp, "10.0.0.2:4000", "10.0.0.9:80");
        let unanswered = socket(Protocol::Tcp, "10.0.0.9:80", "10.0.0.2:4000");
        assert_eq!(sockets(&flow), [client, unanswered]);
        flow.state = shared::WEIR_IS_JOINED as u32;
        assert_eq!(sockets(&flow), [client, socket(Protocol::Tcp, "10.0.0.3:8080", "10.0.0.1:5000")]);
    }

    #[test]
    fn flows_are_summed_up_by_process_container_and_place() {
        let holder = |pid, name: &str| Holder { pid, name: name.to_owned() };
        let processes = Processes {
            addresses: ["10.0.0.2", "10.0.0.3"].map(|ip| ip.parse().unwrap()).into(),
            found: [
                (socket(Protocol::Tcp, "10.0.0.2:1", "10.0.0.9:80"), holder(7, "curl")),
                (socket(Protocol::Udp, "10.0.0.2:2", "10.0.0.9:443"), holder(7, "curl")),
                (socket(Protocol::Tcp, "10.0.0.3:22", "10.0.0.8:5"), holder(8, "sshd")),
            ]
            .into(),
            missing: None,
        };
        let own: BTreeSet<IpAddr> = ["10.0.0.1".parse().unwrap()].into();
        let containers: BTreeMap<IpAddr, String> =
            [("10.0.0.2".parse().unwrap(), "docker web".to_owned())].into();
        let known = Known { processes: &processes, own: &own, containers: &containers };
        let tcp = |from, to, bytes: [u64; 2]| {
            let mut flow = WeirFlow::zeroed();
            flow.ends[0] = direction(from, to);
            (flow.sides[0].bytes, flow.sides[1].bytes) = (bytes[0], bytes[1]);
            flow
        };
        let mut udp = WeirUdpFlow::zeroed();
        udp.ends[0] = direction((2, 2), (9, 443));
        (udp.sides[0].bytes, udp.sides[1].bytes) = (1, 2);
        let mut sums = Sums::default();
        let flows = [
            tcp((2, 1), (9, 80), [100, 1000]),
            tcp((8, 5), (3, 22), [20, 300]),
            // To this host itself, and from a container, without a process; and between other hosts.
            tcp((8, 6), (1, 22), [3, 0]),
            tcp((3, 7), (9, 80), [0, 4]),
            tcp((8, 7), (9, 80), [50, 60]),
            // Between two ends without a process and a container: one flow.
            tcp((3, 8), (1, 22), [1, 1]),
        ];
        sums.add(&flows, &known);
        sums.add(&[udp], &known);
        let (sums, sockets) = sums.report();
        assert_eq!(sockets.len(), 14);
        let rows: Vec<_> = sums
            .iter()
            .map(|s| {
                (s.words(), s.container.as_deref(), s.flows, s.udp_flows, s.sent_bytes, s.received_bytes)
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("curl (pid 7)".to_owned(), Some("docker web"), 1, 1, 101, 1002),
                ("sshd (pid 8)".to_owned(), None, 1, 0, 300, 20),
                (ELSEWHERE.to_owned(), None, 1, 0, 50, 60),
                ("(unknown process)".to_owned(), None, 3, 0, 1, 8),
            ]
        );
        let [client, server] = known.ends(&flows[1]);
        assert_eq!((client, server.and_then(|end| end.pid)), (None, Some(8)));
    }
}
