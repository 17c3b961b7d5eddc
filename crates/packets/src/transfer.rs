//! One transfer: what is sent from which side, and what became of it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use weir_record::Family;
use weir_stats::{Delays, Histogram};
pub use weir_sys::Stop;

use crate::pace::Pace;

/// Protocol that the frames carry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// Datagrams, as RFC 2544 and RFC 9693 ask for.
    #[default]
    Udp,
    /// First segments of TCP connections. They get no answer.
    TcpSyn,
}

/// The point at which frames enter the path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Inject {
    /// Sent out of the initiator's link, as any frame: the honest wire.
    #[default]
    Wire,
    /// Handed to the gateway's stack as if they had come in at its inside interface. Nothing else costs anything, so the rate is
    /// the gateway's own: it paces itself.
    Gateway,
}

/// One frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// IP version.
    pub family: Family,
    /// Protocol that it carries.
    pub protocol: Protocol,
    /// Length on an Ethernet link with its check sequence, bytes (RFC 2544 section 9): 64 (IPv6 over UDP: 84) to 9018.
    pub bytes: u16,
}

/// Order in which tuples are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// A random permutation: each once, then each once again in the same order.
    Permutation,
    /// Drawn at random, with replacement.
    Random,
}

/// The flows of a transfer. Flow `i` has source port `first source + i % sources`, destination port
/// `first destination + (i / sources) % destinations`, and source address `first + i / (sources * destinations)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuples {
    /// How many flows, at least 1.
    pub flows: u32,
    /// Source ports (RFC 4814 section 4.2.1: 1024 to 65535).
    pub source_ports: RangeInclusive<u16>,
    /// Destination ports (RFC 4814: 1 to 49151).
    pub destination_ports: RangeInclusive<u16>,
    /// In which order.
    pub order: Order,
    /// Seed of the order (ChaCha8).
    pub seed: u64,
}

impl Tuples {
    /// Source and destination port of a flow, and how far its source address is from the first.
    #[inline]
    pub fn flow(&self, flow: u32) -> (u16, u16, u32) {
        let sources = count(&self.source_ports);
        let destinations = count(&self.destination_ports);
        // Both are below the range's end, so neither sum overflows.
        let source = self.source_ports.start() + (flow % sources) as u16;
        let destination = self.destination_ports.start() + (flow / sources % destinations) as u16;
        let host = u64::from(flow) / (u64::from(sources) * u64::from(destinations));
        (source, destination, host as u32)
    }
}

/// How many ports; a range without any counts as one, its start.
fn count(ports: &RangeInclusive<u16>) -> u32 {
    u32::from(ports.end().saturating_sub(*ports.start())) + 1
}

/// The address that is `distance` after another.
#[inline]
pub fn address_after(first: IpAddr, distance: u32) -> IpAddr {
    match first {
        IpAddr::V4(a) => Ipv4Addr::from_bits(a.to_bits().wrapping_add(distance)).into(),
        IpAddr::V6(a) => Ipv6Addr::from_bits(a.to_bits().wrapping_add(distance.into())).into(),
    }
}

/// How fast.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Offer {
    /// As fast as it goes.
    Unlimited,
    /// Frames a second, evenly spaced, open loop: the schedule does not wait for the sender.
    Rate(f64),
}

/// Bounds of a transfer; whichever comes first ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Frames.
    pub frames: u64,
    /// Time.
    pub duration: Duration,
}

/// The way frames take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Initiator to responder.
    Egress,
    /// Responder to initiator.
    Ingress,
}

/// The frames that one side sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sending {
    /// Frames.
    pub frame: Frame,
    /// Flows. Ingress frames answer them: they go to wherever the responder has seen the flow come from (RFC 9693's state
    /// table), and flows that it has not seen are left out.
    pub tuples: Tuples,
    /// How fast.
    pub offer: Offer,
    /// How long.
    pub limit: Limit,
    /// Every how many frames one carries the time of its sending, for latency; 0: none does.
    pub stamp_every: u32,
}

impl Sending {
    /// How many of the frames of one sending thread are stamped: its first and every `stamp_every`th after.
    pub(crate) fn stamped(&self, frames: u64) -> u64 {
        if self.stamp_every == 0 { 0 } else { frames.div_ceil(self.stamp_every.into()) }
    }
}

/// One transfer through the gateway, in one direction or both.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// Frames that the initiator sends.
    pub egress: Option<Sending>,
    /// Frames that the responder sends.
    pub ingress: Option<Sending>,
    /// How long stragglers are waited for after the last frame.
    pub drain: Duration,
    /// Forget the flows learnt so far before it starts.
    pub forget: bool,
}

/// Which mechanism moved the frames: part of the record, since it decides what a figure means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// XDP: live frames out, an XDP program in.
    Xdp,
    /// AF_PACKET sockets.
    AfPacket,
}

/// The sender's figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// Frames that left.
    pub frames: u64,
    /// Frames among these that carry their send time.
    pub stamped: u64,
    /// Bytes, check sequences included.
    pub bytes: u64,
    /// First to last frame, ns, less `elsewhere_ns`.
    pub duration_ns: u64,
    /// Time meanwhile in which the sender sent to the reference router, ns: the path had nothing to do for it.
    #[serde(default)]
    pub elsewhere_ns: u64,
    /// Greatest distance behind the schedule, ns; 0 without one.
    pub late_max_ns: u64,
    /// How much longer than planned the whole took, as a share: above 1e-5 the sender was the limit (RFC 9693's tester checks this).
    pub slip_ratio: f64,
    /// Frames that the own kernel refused.
    pub refused: u64,
    /// CPU time of the sending threads, s, less its share of `elsewhere_ns`.
    pub cpu_s: f64,
    /// By which mechanism.
    pub engine: Engine,
    /// Time per frame, relative to the speed of the sender's core. `None` unless the link asks for it. Also `None` with a
    /// schedule, with several threads, in a short transfer, if the kernel permits no reference router, or if frames to that
    /// router were lost.
    #[serde(default)]
    pub pace: Option<Pace>,
}

impl Sent {
    /// So much of its time was not the transfer's, ns: neither is what the core did meanwhile.
    pub(crate) fn spend_elsewhere(&mut self, ns: u64) {
        let whole = self.duration_ns.max(1);
        self.elsewhere_ns = ns.min(self.duration_ns);
        self.duration_ns -= self.elsewhere_ns;
        self.cpu_s *= self.duration_ns as f64 / whole as f64;
    }
}

/// A receiver's figures of one transfer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Received {
    /// Frames of this transfer, each counted once.
    pub frames: u64,
    /// Frames that came again.
    pub duplicated: u64,
    /// Frames that came after a later one (RFC 4737's Type-P-Reordered).
    pub reordered: u64,
    /// Frames that came so late that the receiver can no longer tell whether they had come before; in no other count.
    pub late: u64,
    /// Frames marked as of this transfer that belong to no flow of it, have another length, or whose addresses or ports are not those
    /// that their flow must have here.
    pub mistranslated: u64,
    /// Frames of others.
    pub foreign: u64,
    /// Frames that the receiver itself had no room for: with any, missing ones say nothing about the path.
    #[serde(default)]
    pub own_drops: u64,
    /// Different flows seen since the last `forget`.
    pub flows: u64,
    /// Source address of what came (after translation); the one of most flows where there are several.
    pub source: Option<IpAddr>,
    /// First to last frame, ns.
    pub duration_ns: u64,
    /// Delay of stamped frames, ns: one-way, which means something where both ends share a clock, as in the lab; of frames that
    /// were sent back to their sender, the round trip.
    pub delay: Histogram,
}

impl Received {
    /// Delays of all frames that were stamped, as their sender counted them: those that did not arrive as they must have none
    /// (RFC 7679 section 3.4, RFC 2681 section 2.4: undefined, and infinite in percentiles).
    pub(crate) fn delays(&self, sent: &Sent) -> Delays {
        let mut all = Delays::from(self.delay.clone());
        all.fail(sent.stamped.saturating_sub(self.delay.len()));
        all
    }
}

/// The result of a transfer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransferOutcome {
    /// The initiator's sending and the responder's receiving.
    pub egress: Option<(Sent, Received)>,
    /// The responder's sending and the initiator's receiving.
    pub ingress: Option<(Sent, Received)>,
}

/// How a host reaches the path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// This host's interface.
    pub interface: String,
    /// Its address, the first of those that it sends from.
    pub address: IpAddr,
    /// Destination address of the initiator's frames; unused by a responder.
    pub target: IpAddr,
    /// Which way frames leave from here.
    pub way: Way,
    /// The point at which they enter the path.
    pub inject: Inject,
    /// Cores of the sending threads; the first only, unless frames need not keep their order.
    pub cpus: Vec<usize>,
    /// Measure the speed of the sending core by a router that is made for it, beside this host ([`crate::pace`]): for a core that
    /// forwards, too.
    pub reference: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_count_source_ports_first_then_destination_ports_then_addresses() {
        let tuples = Tuples {
            flows: 1_000_000,
            source_ports: 1024..=1026,
            destination_ports: 80..=81,
            order: Order::Permutation,
            seed: 1,
        };
        let all: Vec<_> = (0..8).map(|flow| tuples.flow(flow)).collect();
        let first_host =
            [(1024, 80, 0), (1025, 80, 0), (1026, 80, 0), (1024, 81, 0), (1025, 81, 0), (1026, 81, 0)];
        assert_eq!(all[..6], first_host);
        assert_eq!(all[6..], [(1024, 80, 1), (1025, 80, 1)]);
        let every = Tuples { source_ports: 0..=65535, destination_ports: 0..=65535, ..tuples };
        assert_eq!(every.flow(u32::MAX), (65535, 65535, 0));
        let last = address_after("198.18.0.255".parse().unwrap(), 1);
        assert_eq!(last, "198.18.1.0".parse::<IpAddr>().unwrap());
        let last = address_after("2001:2::ffff:ffff".parse().unwrap(), 1);
        assert_eq!(last, "2001:2::1:0:0".parse::<IpAddr>().unwrap());
    }
}
