//! Bulk TCP: how many bits a second get through, and what it costs.
//!
//! Plain 128 KiB writes on one side, and a receiver that takes the bytes off its socket without copying them (MSG_TRUNC,
//! tcp(7)) and naps in between: in trials against other ways to send this moved the most and needed the least CPU. One
//! thread per stream.
//!
//! A stream that the path refuses, resets, closes or stalls is a result: it counts with what it delivered, and as failed. The
//! others run on.

mod controls;
mod ends;
mod handshake;
mod pattern;
mod receive;
mod send;
mod summary;

use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_record::MetricDef;

use crate::incoming::{HandoverQueue, TcpIncoming};
use crate::properties::{LITTLE_OVERHEAD, PER_STREAM, Properties, Rate, Served, in_all, seconds};
use crate::socket::TcpOptions;
use crate::streams::{OPENING, check_congestion, check_count, count_words};
use crate::{Direction, Engine, Error, Part, Responder, TrialSettings};

/// Options of `tcp-stream`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TcpStream {
    /// Which way the data goes.
    pub direction: Direction,
    /// Connections at once, 1..=128; in each direction that many with `direction = "both"`.
    pub streams: u32,
    /// Most payload bits per second over all streams, in each direction; without it as fast as possible. The kernel paces each stream
    /// to its share (SO_MAX_PACING_RATE, socket(7)); a share of 34 Gbit/s and more is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<f64>,
    /// Bytes per write, 1..=16777216.
    pub buffer_bytes: u32,
    /// Largest segment (TCP_MAXSEG) in bytes, 88..=32767; without it what the MTU allows.
    pub mss: Option<u16>,
    /// Congestion control of the senders, e.g. `cubic`; empty for the system's default.
    pub congestion: String,
    /// Socket buffers (SO_SNDBUF, SO_RCVBUF) in bytes, 4096..=1073741824; without it the kernel tunes them itself.
    pub window_bytes: Option<u32>,
    /// Send with MSG_ZEROCOPY. On virtual links the kernel still copies, and it costs more than it saves.
    pub zero_copy: bool,
    /// TCP_NODELAY.
    pub nodelay: bool,
    /// Read the data for real and compare it with what was sent; otherwise it is taken off the socket without a copy.
    pub verify: bool,
}

/// The options under a name that does not collide with the standard library's.
pub(crate) use TcpStream as TcpStreamWork;

impl Default for TcpStream {
    fn default() -> Self {
        TcpStream {
            direction: Direction::Egress,
            streams: 1,
            rate_bps: None,
            buffer_bytes: 128 * 1024,
            mss: None,
            congestion: "cubic".into(),
            window_bytes: None,
            zero_copy: false,
            nodelay: false,
            verify: false,
        }
    }
}

impl TcpStream {
    /// Most connections that may follow its streams to find out why they got nothing through.
    pub fn controls(&self) -> u32 {
        controls::MOST * self.direction.ways().len() as u32
    }

    fn socket_options(&self) -> TcpOptions {
        TcpOptions {
            congestion: self.congestion.clone(),
            mss: self.mss,
            window_bytes: self.window_bytes,
            nodelay: self.nodelay,
            pacing_bps: self.rate_bps.map(|bps| bps / f64::from(self.streams.max(1))),
        }
    }
}

impl Engine for TcpStream {
    fn kind(&self) -> &'static str {
        "tcp-stream"
    }

    fn describe(&self) -> String {
        let congestion =
            if self.congestion.is_empty() { "the system's congestion control" } else { &self.congestion };
        let mut text = format!(
            "TCP {}, {}, {congestion}, writes of {} bytes",
            self.direction,
            count_words(self.streams),
            self.buffer_bytes
        );
        if let Some(bps) = self.rate_bps {
            text += &format!(", {bps} bit/s at most");
        }
        if let Some(mss) = self.mss {
            text += &format!(", MSS {mss}");
        }
        if let Some(window) = self.window_bytes {
            text += &format!(", socket buffers of {window} bytes");
        }
        for (on, name) in
            [(self.zero_copy, "MSG_ZEROCOPY"), (self.nodelay, "no delay"), (self.verify, "verified")]
        {
            if on {
                text += ", ";
                text += name;
            }
        }
        text
    }

    fn validate(&self) -> Result<(), String> {
        check_count(self.streams)?;
        if !(1..=16 << 20).contains(&self.buffer_bytes) {
            return Err(format!("buffer-bytes = {}: valid is 1..=16777216", self.buffer_bytes));
        }
        if let Some(rate) = self.rate_bps.filter(|r| !(*r >= 1.0 && *r <= 1e13)) {
            return Err(format!("rate-bps = {rate}: valid is 1..=1e13"));
        }
        // TCP_MIN_MSS and MAX_TCP_WINDOW of the kernel's include/net/tcp.h.
        if let Some(mss) = self.mss.filter(|m| !(88..=32767).contains(m)) {
            return Err(format!("mss = {mss}: valid is 88..=32767"));
        }
        if let Some(bytes) = self.window_bytes.filter(|b| !(4096..=1 << 30).contains(b)) {
            return Err(format!("window-bytes = {bytes}: valid is 4096..=1073741824"));
        }
        check_congestion(&self.congestion)
    }

    fn metrics(&self) -> Vec<MetricDef> {
        summary::metrics(self)
    }

    fn properties(&self) -> Properties {
        let all = in_all(self.streams, self.direction);
        // The kernel doubles what is asked for, in both directions.
        let buffers = u64::from(self.buffer_bytes) + 4 * u64::from(self.window_bytes.unwrap_or(0));
        let write_bytes = f64::from(self.streams) * f64::from(self.buffer_bytes);
        let served = Served {
            streams: self.streams,
            connections: Some(all),
            controls: self.controls(),
            datagrams: false,
            memory_bytes: u64::from(all) * (PER_STREAM + buffers),
            write_bytes,
            between_writes: seconds(self.rate_bps.map(|bps| write_bytes * 8.0 / bps)),
            seen_moving: true,
            rate: self.rate_bps.map_or(Rate::Elastic, Rate::Named),
        };
        Properties { overhead: LITTLE_OVERHEAD, served: Some(served) }
    }

    fn patience(&self) -> Duration {
        // Before the window: what the path does not answer is waited for.
        OPENING
    }

    fn open(&self, setting: &TrialSettings, bind: SocketAddr) -> Result<Box<dyn Responder>, Error> {
        Ok(Box::new(ends::open(self, setting, bind)?))
    }

    fn serve(&self, setting: &TrialSettings, queue: HandoverQueue) -> Result<Box<dyn Responder>, Error> {
        Ok(Box::new(ends::serve(self, setting, TcpIncoming::Handed(queue))?))
    }

    fn drive(&self, setting: &TrialSettings, target: SocketAddr) -> Result<Part, Error> {
        ends::drive(self, setting, target)
    }

    fn combine(&self, initiators: &[Part], responders: &[Part]) -> Part {
        summary::combine(self, initiators, responders)
    }
}
