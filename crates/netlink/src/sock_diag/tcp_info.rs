//! `struct tcp_info` (include/uapi/linux/tcp.h): it has only ever grown at its end, so a place is a field for good.

use crate::{u32_ne, u64_ne};

/// TCP's data about a connection. A field that this kernel lacks is 0.
#[derive(Debug, Clone, Copy)]
pub struct TcpInfo<'a>(pub(super) &'a [u8]);

/// TCPI_OPT_WSCALE and TCPI_OPT_TIMESTAMPS.
const TIMESTAMPS: u8 = 1;
const WINDOW_SCALE: u8 = 4;

impl TcpInfo<'_> {
    fn u8(&self, offset: usize) -> u8 {
        self.0.get(offset).copied().unwrap_or(0)
    }

    fn u32(&self, offset: usize) -> u32 {
        self.0.get(offset..).and_then(u32_ne).unwrap_or(0)
    }

    fn u64(&self, offset: usize) -> u64 {
        self.0.get(offset..).and_then(u64_ne).unwrap_or(0)
    }

    /// Doublings of the retransmission timer since the last answer.
    pub fn backoff(&self) -> u8 {
        self.u8(4)
    }

    /// Both sides agreed on timestamps.
    pub fn timestamps(&self) -> bool {
        self.u8(5) & TIMESTAMPS != 0
    }

    /// Both sides agreed to scale windows.
    pub fn window_scaling(&self) -> bool {
        self.u8(5) & WINDOW_SCALE != 0
    }

    /// Largest segment that it sends now, bytes.
    pub fn send_mss(&self) -> u32 {
        self.u32(16)
    }

    /// Estimate of the largest segment that it receives, bytes.
    pub fn receive_mss(&self) -> u32 {
        self.u32(20)
    }

    /// Path MTU as TCP has it, bytes.
    pub fn path_mtu(&self) -> u32 {
        self.u32(60)
    }

    /// Smoothed round-trip time, µs.
    pub fn rtt_us(&self) -> u32 {
        self.u32(68)
    }

    /// Segments sent again since it began.
    pub fn total_retransmits(&self) -> u32 {
        self.u32(100)
    }

    /// Bytes that the other side acknowledged (RFC 4898 tcpEStatsAppHCThruOctetsAcked).
    pub fn bytes_acked(&self) -> u64 {
        self.u64(120)
    }

    /// Bytes received in order (RFC 4898 tcpEStatsAppHCThruOctetsReceived).
    pub fn bytes_received(&self) -> u64 {
        self.u64(128)
    }

    /// Segments sent, those with nothing in them too.
    pub fn segments_out(&self) -> u32 {
        self.u32(136)
    }

    /// Segments received, likewise.
    pub fn segments_in(&self) -> u32 {
        self.u32(140)
    }

    /// Smallest round-trip time of late, µs; the kernel says 2^32 - 1 while there is none.
    pub fn min_rtt_us(&self) -> u32 {
        self.u32(148)
    }

    /// Time with something to send, µs.
    pub fn busy_us(&self) -> u64 {
        self.u64(168)
    }

    /// Part of the busy time in which the other side's window held it back, µs.
    pub fn window_limited_us(&self) -> u64 {
        self.u64(176)
    }

    /// Part of the busy time in which its own send buffer held it back, µs.
    pub fn buffer_limited_us(&self) -> u64 {
        self.u64(184)
    }

    /// Duplicates that the other side told of (RFC 2883).
    pub fn dsack_duplicates(&self) -> u32 {
        self.u32(216)
    }

    /// Segments that came out of order.
    pub fn out_of_order(&self) -> u32 {
        self.u32(224)
    }

    /// The other side's window after scaling, bytes; 0 before Linux 5.4.
    pub fn send_window(&self) -> u32 {
        self.u32(228)
    }

    /// The window that it told the other side, bytes; 0 before Linux 6.2.
    pub fn receive_window(&self) -> u32 {
        self.u32(232)
    }
}
