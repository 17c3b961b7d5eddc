//! Demands of a workload on a host. Plans and servers query them, so that they need not know workloads by name.

use std::time::Duration;

use crate::Direction;

/// Memory of a stream's thread and its counters, bytes, without its buffers; measured to be well below.
pub(crate) const PER_STREAM: u64 = 192 << 10;

/// Time of a trial in addition to its traffic if it waits for nothing and starts no program, as measured in the lab.
pub(crate) const LITTLE_OVERHEAD: Duration = Duration::from_millis(50);

/// Properties of a workload with its options.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Properties {
    /// Time of a trial in addition to its traffic, as measured in the lab: it waits for packets on their way, and programs start
    /// and end.
    pub overhead: Duration,
    /// Demands of its responder on a server; `None` if the workload cannot be served over a shared port.
    pub served: Option<Served>,
}

/// Demands of a workload's responder on a server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Served {
    /// Streams or connections at once, in each direction. With a schedule their number is unknown, and one thread answers all: 1.
    pub streams: u32,
    /// Data connections, or flows of datagrams, that come in all; `None` where they come and go all the time.
    pub connections: Option<u32>,
    /// Connections that may follow those; what they carry does not count.
    pub controls: u32,
    /// True if its datagrams come to the server's UDP port, after a handshake.
    pub datagrams: bool,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Bytes that all streams of a direction send in one write each; 0 if a connection carries one operation.
    pub write_bytes: f64,
    /// Time between two writes of a stream at the rate that is asked for; zero where it goes as fast as it can.
    pub between_writes: Duration,
    /// True if the server sees it move: it counts what each stream carries, or a connection comes for each operation.
    pub seen_moving: bool,
    /// Bit rate in the direction that has more of it.
    pub rate: Rate,
}

/// A bit rate that a workload asks for, payload bits per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// Too little to count.
    Little,
    /// As much as it names.
    Named(f64),
    /// As much as there is, and the sender can be held back.
    Elastic,
    /// As much as there is, whatever is lost.
    Inelastic,
}

/// Streams in all of so many in each direction.
pub(crate) fn in_all(streams: u32, direction: Direction) -> u32 {
    streams.saturating_mul(if direction == Direction::Both { 2 } else { 1 })
}

/// Converts seconds to a time. A value that a [`Duration`] cannot hold becomes the longest one, which exceeds any measurement.
pub(crate) fn seconds(s: Option<f64>) -> Duration {
    s.map_or(Duration::ZERO, |s| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX))
}
