//! Questions about connections that several causes have.

use crate::causes::EvidenceView;
use crate::evidence::{Delta, Namespace, TcpFlow};

/// `198.18.0.1:40000 of curl (pid 7)`.
pub(super) fn named(flow: &TcpFlow) -> String {
    match &flow.process {
        Some(process) => format!("{} of {process}", flow.local),
        None => flow.local.to_string(),
    }
}

/// Bytes of the window as Mbit/s.
pub(super) fn rate_mbps(view: &EvidenceView<'_>, bytes: Delta) -> f64 {
    bytes.change() as f64 * 8.0 / 1e6 / view.evidence.window_s.max(0.1)
}

/// Bytes that it carried in the window, both ways.
pub(super) fn carried(flow: &TcpFlow) -> u64 {
    flow.bytes_acked.change() + flow.bytes_received.change()
}

/// True if a program waits for it: it had data to send for a good part of the window, and sent more than next to nothing.
pub(super) fn worth(view: &EvidenceView<'_>, flow: &TcpFlow) -> bool {
    const BYTES: u64 = 50_000;
    let window_us = view.evidence.window_s * 1e6;
    flow.busy_us.change() as f64 >= 0.3 * window_us && flow.bytes_acked.change() >= BYTES
}

/// True if a window or buffer of that many bytes is what limits: on a path with a delay of its own that no queue adds to; or if it
/// is too small for any.
pub(super) fn limits(flow: &TcpFlow, bytes: u32) -> bool {
    /// The kernel begins with a send buffer of 16 KiB and doubles what it allows soon after (net/ipv4/tcp.c, tcp_init_sock).
    const TINY: u32 = 32 << 10;
    bytes > 0 && (bytes <= TINY || flow.rtt_us >= 2000 && flow.rtt_us < 2 * flow.min_rtt_us)
}

/// So many of the namespace's connections that carried something in the window, 0 to 1.
pub(super) fn share(namespace: &Namespace, flows: usize) -> f64 {
    let active = namespace.sockets.as_ref().map_or(0, |s| s.totals.active).max(flows as u64);
    if active == 0 { 0.0 } else { flows as f64 / active as f64 }
}

/// Share of all bytes of the namespace's connections that these carried, 0 to 1.
pub(super) fn share_of_bytes(namespace: &Namespace, flows: &[&TcpFlow]) -> f64 {
    let bytes: u64 = flows.iter().map(|f| carried(f)).sum();
    let all = namespace.sockets.as_ref().map_or(0, |s| s.totals.bytes).max(bytes);
    if all == 0 { 0.0 } else { bytes as f64 / all as f64 }
}
