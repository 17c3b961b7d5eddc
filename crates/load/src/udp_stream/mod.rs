//! Datagrams at a rate or unlimited: how many get through, and what becomes of the others.
//!
//! Every datagram carries a number and the time of its sending. The numbers distinguish loss, reordering and duplicates.
//! Datagrams that the tester loses itself (in its sender's queue or its receiver's buffer) are a fault and not loss. No datagram
//! leaves before the responder has answered, and the initiator opens every path, so it works behind a NAT. All datagrams of a
//! flow whose greeting gets no answer count as lost. If no datagram arrives because of its length, the trial reports it
//! (`controls.rs`).

mod controls;
mod datagram;
mod ends;
mod lateness;
mod meter;
mod receive;
mod send;
mod sequence;
mod summary;

use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_record::MetricDef;
use weir_sys::clock::now_ns;

pub(crate) use controls::LENGTHS;

use crate::incoming::{HandoverQueue, UdpIncoming};
use crate::properties::{PER_STREAM, Properties, Rate, Served, in_all, seconds};
use crate::streams::{OPENING, check_count, count_words};
use crate::window::Window;
use crate::{Direction, Engine, Error, Part, Responder, TrialSettings};

/// How datagrams are handed to the kernel, and what crosses the link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Batch {
    /// One send(2) per datagram: each is a packet of its own all the way.
    #[default]
    Single,
    /// Up to 64 datagrams per sendmmsg(2); each is a packet of its own all the way.
    Sendmmsg,
    /// Up to 64 datagrams per UDP_SEGMENT super-packet, which the sender's kernel splits before the link: each crosses the
    /// link and the gateway as a packet of its own. Needs `tx-udp-segmentation` off on the sender's interface.
    Segment,
    /// UDP_SEGMENT super-packets that cross a virtual link whole: the gateway handles one packet for up to 64 datagrams.
    /// Never to be compared with the others.
    Gso,
}

/// Options of `udp-stream`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct UdpStream {
    /// Which way the data goes.
    pub direction: Direction,
    /// Flows (pairs of ports) at once, 1..=128; in each direction that many with `direction = "both"`.
    pub streams: u32,
    /// Payload bits per second over all streams of a direction. With neither this nor `rate-pps`: as fast as possible.
    pub rate_bps: Option<f64>,
    /// Datagrams per second over all streams of a direction.
    pub rate_pps: Option<f64>,
    /// Payload of a datagram in bytes, 16..=65507; without it what fills an MTU of 1500: 1472 (IPv4) or 1452 (IPv6).
    /// More than the path's MTU goes in IP fragments.
    pub payload_bytes: Option<u16>,
    /// How datagrams are handed to the kernel.
    pub batch: Batch,
    /// Receive buffers over all streams of a direction, bytes, 4096..=1073741824.
    pub receive_buffer_bytes: u32,
}

impl Default for UdpStream {
    fn default() -> Self {
        UdpStream {
            direction: Direction::Egress,
            streams: 1,
            rate_bps: None,
            rate_pps: None,
            payload_bytes: None,
            batch: Batch::Single,
            // 170 ms of a million small datagrams a second: the kernel doubles it and counts 768 bytes for each. Scheduling
            // on a busy core keeps a receiver waiting for tens of milliseconds.
            receive_buffer_bytes: 64 << 20,
        }
    }
}

/// Largest payload of one UDP_SEGMENT super-packet over IPv4, and the least over both versions.
const LARGEST_DATAGRAM: u16 = 65507;

/// Largest payload per segment that fits an MTU of 1500.
const LARGEST_SEGMENT: u16 = 1472;

/// UDP_MAX_SEGMENTS of kernels before 6.9 (include/linux/udp.h); later ones take 128.
const MOST_SEGMENTS: usize = 64;

impl UdpStream {
    /// Payload towards or from that address, bytes.
    fn payload(&self, address: SocketAddr) -> usize {
        usize::from(self.payload_bytes.unwrap_or(if address.is_ipv4() { 1472 } else { 1452 }))
    }

    /// True of the length of a datagram as it was sent. Without a set length either family's is right: a path may translate.
    fn is_whole(&self, length: usize) -> bool {
        self.payload_bytes.map_or([1472, 1452].contains(&length), |bytes| length == usize::from(bytes))
    }

    /// Datagrams per second of one stream; `None` for as fast as possible.
    fn stream_pps(&self, payload: usize) -> Option<f64> {
        let all = self.rate_pps.or_else(|| self.rate_bps.map(|bps| bps / (8.0 * payload as f64)));
        all.map(|pps| pps / f64::from(self.streams))
    }

    /// Datagrams that were due so far in the window of a flow that begins now, by its rate.
    fn missed(&self, address: SocketAddr, window: &Window) -> u64 {
        let pps = self.stream_pps(self.payload(address)).unwrap_or(0.0);
        (pps * window.elapsed_s(now_ns())) as u64
    }

    /// Datagrams that leave together.
    fn batch_size(&self, payload: usize) -> usize {
        let most = match self.batch {
            Batch::Single => return 1,
            Batch::Sendmmsg => MOST_SEGMENTS,
            Batch::Segment | Batch::Gso => (usize::from(LARGEST_DATAGRAM) / payload).min(MOST_SEGMENTS),
        };
        // At a set rate no more than what is due in a millisecond: a larger burst would be the tester's own congestion.
        self.stream_pps(payload).map_or(most, |pps| ((pps / 1000.0) as usize).clamp(1, most))
    }

    fn rate_words(&self) -> String {
        match (self.rate_bps, self.rate_pps) {
            (Some(bps), _) => format!("{bps} payload bit/s"),
            (_, Some(pps)) => format!("{pps} datagrams/s"),
            _ => "as fast as possible".into(),
        }
    }
}

impl Engine for UdpStream {
    fn kind(&self) -> &'static str {
        "udp-stream"
    }

    fn describe(&self) -> String {
        let payload =
            self.payload_bytes.map_or("MTU-filling payload".into(), |bytes| format!("{bytes}-byte payload"));
        let batch = match self.batch {
            Batch::Single => "each sent by itself",
            Batch::Sendmmsg => "sent in batches (sendmmsg)",
            Batch::Segment => "sent in batches that are split before the link (UDP_SEGMENT)",
            Batch::Gso => "in GSO super-packets, of which the gateway handles one for up to 64 datagrams",
        };
        let fragments = if self.payload_bytes > Some(LARGEST_SEGMENT) {
            ", in IP fragments where the MTU is smaller"
        } else {
            ""
        };
        format!(
            "UDP {}, {}, {payload}, {}, {batch}{fragments}",
            self.direction,
            count_words(self.streams),
            self.rate_words()
        )
    }

    fn validate(&self) -> Result<(), String> {
        check_count(self.streams)?;
        if let Some(bytes) =
            self.payload_bytes.filter(|b| !(datagram::HEADER_BYTES as u16..=LARGEST_DATAGRAM).contains(b))
        {
            return Err(format!("payload-bytes = {bytes}: valid is 16..=65507"));
        }
        if self.rate_bps.is_some() && self.rate_pps.is_some() {
            return Err(
                "rate-bps and rate-pps: valid is one of them, or neither for as fast as possible".into()
            );
        }
        for (key, rate) in [("rate-bps", self.rate_bps), ("rate-pps", self.rate_pps)] {
            if let Some(rate) = rate.filter(|r| !(*r >= 1.0 && *r <= 1e13)) {
                return Err(format!("{key} = {rate}: valid is 1..=1e13"));
            }
        }
        if matches!(self.batch, Batch::Segment | Batch::Gso) && self.payload_bytes > Some(LARGEST_SEGMENT) {
            return Err(format!(
                "payload-bytes with batch = \"segment\" or \"gso\": valid is 16..={LARGEST_SEGMENT}"
            ));
        }
        if !(4096..=1 << 30).contains(&self.receive_buffer_bytes) {
            return Err(format!(
                "receive-buffer-bytes = {}: valid is 4096..=1073741824",
                self.receive_buffer_bytes
            ));
        }
        Ok(())
    }

    fn metrics(&self) -> Vec<MetricDef> {
        summary::metrics(self)
    }

    fn properties(&self) -> Properties {
        let all = in_all(self.streams, self.direction);
        let payload = |unset: u16| f64::from(self.payload_bytes.unwrap_or(unset));
        let write_bytes = f64::from(self.streams) * payload(u16::MAX);
        let between =
            self.rate_bps.map(|bps| payload(u16::MAX) * 8.0 / bps).or(self.rate_pps.map(|pps| 1.0 / pps));
        // The least that fills an MTU is 1,472 bytes.
        let rate = self.rate_bps.or_else(|| self.rate_pps.map(|pps| pps * payload(1472) * 8.0));
        let served = Served {
            streams: self.streams,
            connections: Some(all),
            controls: 0,
            datagrams: true,
            memory_bytes: u64::from(all) * PER_STREAM + 2 * u64::from(self.receive_buffer_bytes),
            write_bytes,
            between_writes: seconds(between.map(|s| f64::from(self.streams) * s)),
            seen_moving: true,
            rate: rate.map_or(Rate::Inelastic, Rate::Named),
        };
        // Datagrams on their way are waited for.
        Properties { overhead: Duration::from_millis(350), served: Some(served) }
    }

    fn patience(&self) -> Duration {
        // Before the window: what the path does not answer is waited for.
        OPENING
    }

    fn open(&self, setting: &TrialSettings, bind: SocketAddr) -> Result<Box<dyn Responder>, Error> {
        Ok(Box::new(ends::open(self, setting, bind)?))
    }

    fn serve(&self, setting: &TrialSettings, queue: HandoverQueue) -> Result<Box<dyn Responder>, Error> {
        Ok(Box::new(ends::serve(self, setting, UdpIncoming::new(queue))?))
    }

    fn drive(&self, setting: &TrialSettings, target: SocketAddr) -> Result<Part, Error> {
        ends::drive(self, setting, target)
    }

    fn combine(&self, initiators: &[Part], responders: &[Part]) -> Part {
        summary::combine(self, initiators, responders)
    }
}
