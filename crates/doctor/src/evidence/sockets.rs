//! Sockets.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::Delta;

/// Sockets of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sockets {
    /// Listening sockets; on a host with very many, those that lost something or have most waiting.
    pub listeners: Vec<Listener>,
    /// UDP sockets that lost something, or that are more than half full.
    pub udp: Vec<UdpSocket>,
    /// UDP sockets without a peer on a port to which packets were lost.
    #[serde(default)]
    pub udp_bound: Vec<SocketAddr>,
    /// TCP connections by state number (include/net/tcp_states.h), TIME_WAIT (6) and request sockets (3) among them.
    pub tcp_states: BTreeMap<u8, u64>,
    /// Connections worth a look: those with most retransmissions, longest queues, limits reached. At most a few hundred.
    pub tcp: Vec<TcpFlow>,
    /// All connections together.
    #[serde(default)]
    pub totals: TcpTotals,
    /// All established connections.
    pub established: u64,
    /// Destinations to which most local ports are taken.
    pub ports: Vec<PortsInUse>,
    /// Processes near their limit of open files that hold one of the sockets above.
    pub near_file_limit: Vec<FileLimit>,
    /// The growing counters of every socket at the window's beginning; not stored.
    #[serde(skip)]
    pub(crate) earlier: Earlier,
}

/// Counters of sockets by their cookie.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Earlier {
    /// Drops, of listening sockets of TCP and of those of UDP.
    pub(crate) drops: foldhash::HashMap<u64, u32>,
    /// Counters of connections.
    pub(crate) tcp: foldhash::HashMap<u64, TcpCounts>,
    /// There were more than were kept: what is not here may have been there.
    pub(crate) cut: bool,
}

/// The counters of a connection that only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TcpCounts {
    pub(crate) retransmits: u32,
    pub(crate) segments_out: u32,
    pub(crate) segments_in: u32,
    pub(crate) dsack: u32,
    pub(crate) out_of_order: u32,
    pub(crate) bytes_acked: u64,
    pub(crate) bytes_received: u64,
    pub(crate) busy_us: u64,
    pub(crate) window_limited_us: u64,
    pub(crate) buffer_limited_us: u64,
}

/// All connections of TCP that were there at the window's end, together: growth in the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpTotals {
    /// How many there are, with data to count.
    pub connections: u64,
    /// Connections of these that carried something in the window.
    pub active: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Segments sent.
    pub segments_out: u64,
    /// Segments received.
    pub segments_in: u64,
    /// Segments that came out of order.
    pub out_of_order: u64,
    /// Duplicates that other sides told of (DSACK).
    pub dsack: u64,
    /// Bytes acknowledged and bytes received.
    pub bytes: u64,
    /// Time with something to send, µs.
    pub busy_us: u64,
    /// Part of that time held back by the other side's window, µs.
    pub window_limited_us: u64,
    /// Part of that time held back by the own send buffer, µs.
    pub buffer_limited_us: u64,
}

/// A process near its limit of open files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLimit {
    /// Name; text from outside.
    pub process: String,
    /// Number.
    pub pid: u32,
    /// Files open.
    pub open: u64,
    /// Most that may be (soft RLIMIT_NOFILE).
    pub limit: u64,
}

/// A listening socket of TCP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listener {
    /// The address on which it listens.
    pub local: SocketAddr,
    /// Connections that wait to be accepted.
    pub queued: u32,
    /// How many may (the smaller of the backlog and somaxconn).
    pub limit: u32,
    /// Connections whose first packets came and that are not complete yet (request sockets).
    #[serde(default)]
    pub half_open: u32,
    /// Packets refused by it in the window (`sk_drops`).
    pub drops: Delta,
    /// Process and pid, if known; text from outside.
    pub process: Option<String>,
}

/// A UDP socket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UdpSocket {
    /// Its address.
    pub local: SocketAddr,
    /// Bytes that wait.
    pub queued_bytes: u32,
    /// Bytes that may (SO_RCVBUF, as the kernel doubles it).
    pub limit_bytes: u32,
    /// Packets it had no room for.
    pub drops: Delta,
    /// Process and pid, if known; text from outside.
    pub process: Option<String>,
}

/// One TCP connection (struct tcp_info).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TcpFlow {
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// State by number.
    pub state: u8,
    /// Segments sent again.
    pub retransmits: Delta,
    /// Segments sent.
    pub segments_out: Delta,
    /// Segments received.
    #[serde(default)]
    pub segments_in: Delta,
    /// Received segments that came out of order.
    #[serde(default)]
    pub out_of_order: Delta,
    /// Bytes acknowledged.
    pub bytes_acked: Delta,
    /// Bytes received.
    pub bytes_received: Delta,
    /// Duplicates that the other side told of (DSACK).
    pub dsack: Delta,
    /// Smoothed round-trip time, µs.
    pub rtt_us: u32,
    /// Smallest round-trip time, µs.
    pub min_rtt_us: u32,
    /// Largest segment that it sends, bytes.
    pub mss: u32,
    /// Largest segment that it expects, bytes.
    pub received_mss: u32,
    /// Path MTU, bytes.
    pub pmtu: u32,
    /// Window scaling was agreed.
    pub window_scaling: bool,
    /// Timestamps were agreed.
    #[serde(default)]
    pub timestamps: bool,
    /// It began here: its local port is none that listens.
    #[serde(default)]
    pub outgoing: bool,
    /// The other side's window, bytes; 0 if the kernel does not tell.
    pub send_window: u32,
    /// The window that it told the other side, bytes; 0 if the kernel does not tell.
    #[serde(default)]
    pub receive_window: u32,
    /// Most that may wait to be read (SO_RCVBUF, as the kernel counts it), bytes.
    #[serde(default)]
    pub receive_limit: u32,
    /// Most that may wait to be sent (SO_SNDBUF, likewise), bytes.
    #[serde(default)]
    pub send_limit: u32,
    /// Time with something to send, µs.
    pub busy_us: Delta,
    /// Part of that time held back by the other side's window.
    pub window_limited_us: Delta,
    /// Part of that time held back by its own send buffer.
    pub buffer_limited_us: Delta,
    /// Bytes not yet sent or not yet acknowledged.
    pub send_queue: u32,
    /// Bytes received and not yet read.
    pub receive_queue: u32,
    /// Doublings of the retransmission timer since the last answer.
    pub backoff: u8,
    /// Process and pid, if known; text from outside.
    pub process: Option<String>,
}

/// Local ports taken towards one destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PortsInUse {
    /// From that address.
    pub local: IpAddr,
    /// To there.
    pub remote: SocketAddr,
    /// Ports in use, TIME_WAIT included.
    pub used: u64,
    /// Ports there are (`ip_local_port_range` less `ip_local_reserved_ports`).
    pub available: u64,
    /// Used ports in TIME_WAIT.
    pub time_wait: u64,
}
