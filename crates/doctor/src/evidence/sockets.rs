//! Sockets.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::Delta;

/// Sockets of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sockets {
    /// Those that listen.
    pub listeners: Vec<Listener>,
    /// UDP sockets that lost something, or that have something waiting.
    pub udp: Vec<UdpSocket>,
    /// TCP connections by state number (include/net/tcp_states.h), TIME_WAIT (6) and request sockets (12) among them.
    pub tcp_states: std::collections::BTreeMap<u8, u64>,
    /// Connections worth a look: those with most retransmissions, longest queues, limits reached. At most a few hundred.
    pub tcp: Vec<TcpFlow>,
    /// All established connections.
    pub established: u64,
    /// Destinations to which most local ports are taken.
    pub ports: Vec<PortsInUse>,
    /// Processes near their limit of open files, with a socket: name and pid, open, limit.
    pub near_file_limit: Vec<(String, u64, u64)>,
}

/// A listening socket of TCP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listener {
    /// Where it listens.
    pub local: SocketAddr,
    /// Connections that wait to be accepted.
    pub queued: u32,
    /// How many may (the smaller of the backlog and somaxconn).
    pub limit: u32,
    /// Connections refused by it in the window (`sk_drops`).
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
    /// The other side's window, bytes; 0 if the kernel does not tell.
    pub send_window: u32,
    /// Time with something to send, µs.
    pub busy_us: Delta,
    /// Of that, held back by the other side's window.
    pub window_limited_us: Delta,
    /// Of that, held back by its own send buffer.
    pub buffer_limited_us: Delta,
    /// Bytes not yet sent or not yet acknowledged.
    pub send_queue: u32,
    /// Bytes received and not yet read.
    pub receive_queue: u32,
    /// Retransmission timeouts without an answer since then.
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
    /// Of the used ones, those in TIME_WAIT.
    pub time_wait: u64,
}
