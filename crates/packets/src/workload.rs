//! `packets`: frames at millions per second, and the procedures of RFC 2544, 8219, 9004 and 9693 made of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::frame::{GREATEST, shortest};
use crate::live::LiveSender;
use crate::transfer::{Engine, Family, Frame, Inject, Order, Protocol, Tuples};

/// The measurement procedure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Procedure {
    /// Forwarding rate (RFC 2285) at an offered rate, or as fast as it goes.
    #[default]
    Rate,
    /// Highest rate without loss, initiator to responder (RFC 2544 section 26.1).
    Throughput,
    /// Loss at 100 %, 90 %, ... of the greatest rate (RFC 2544 section 26.3).
    FrameLoss,
    /// Longest burst at the greatest rate without loss (RFC 2544 section 26.4, RFC 9004).
    BackToBack,
    /// Delay of tagged frames at the throughput rate (RFC 2544 section 26.2, RFC 8219 section 7.2).
    Latency,
    /// Spread of the delay of all frames at the throughput rate (RFC 8219 section 7.3.1).
    Pdv,
    /// Maximum connection establishment rate (RFC 9693).
    Establishment,
    /// The same, and each connection must carry a frame back (RFC 9693's validated rate).
    EstablishmentValidated,
    /// Throughput with frames in both directions over connections that exist (RFC 9693).
    ThroughputBidirectional,
    /// How fast the gateway deletes connections (RFC 9693).
    TearDown,
    /// How many connections the gateway holds (RFC 9693).
    Capacity,
}

impl Procedure {
    /// As written in scenarios.
    pub fn name(self) -> &'static str {
        match self {
            Procedure::Rate => "rate",
            Procedure::Throughput => "throughput",
            Procedure::FrameLoss => "frame-loss",
            Procedure::BackToBack => "back-to-back",
            Procedure::Latency => "latency",
            Procedure::Pdv => "pdv",
            Procedure::Establishment => "establishment",
            Procedure::EstablishmentValidated => "establishment-validated",
            Procedure::ThroughputBidirectional => "throughput-bidirectional",
            Procedure::TearDown => "tear-down",
            Procedure::Capacity => "capacity",
        }
    }

    /// True if the responder sends, too.
    pub fn answers(self) -> bool {
        matches!(
            self,
            Procedure::EstablishmentValidated | Procedure::ThroughputBidirectional | Procedure::Capacity
        )
    }

    /// True if it opens flows first, and measures what becomes of frames in them.
    pub fn fills(self) -> bool {
        !matches!(self, Procedure::Establishment | Procedure::EstablishmentValidated | Procedure::Capacity)
    }

    /// True if it needs to know which load is too high, so that frames must be lost there: the gateway's work must not slow the
    /// sender down.
    pub fn searches(self) -> bool {
        !matches!(self, Procedure::Rate | Procedure::TearDown)
    }

    /// True if its result is about the gateway's connections, and `flows` says how many.
    pub fn counts_connections(self) -> bool {
        matches!(
            self,
            Procedure::Establishment
                | Procedure::EstablishmentValidated
                | Procedure::TearDown
                | Procedure::Capacity
        )
    }

    /// Connections unless `flows` says otherwise. 50,000 fit a kernel's table as it comes (65,536 or more).
    fn flows(self) -> u32 {
        match self {
            Procedure::Capacity => 1 << 20,
            _ if self.counts_connections() => 50_000,
            _ => 1000,
        }
    }
}

/// How thoroughly a result is searched for: lengths of trials, how many of them, how narrow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Search {
    /// MLRsearch (RFC 9971) with trials of 0.2 s, two of three deciding, to 1 %: seconds.
    Quick,
    /// MLRsearch with trials of 1 s, 21 s for each load, to 0.5 %: what the FD.io project measures with. About a minute.
    #[default]
    Mlr,
    /// As RFC 2544 and RFC 8219 say: every load is decided by a trial of 60 s, latency by a stream of 120 s. MLRsearch with the
    /// goal that RFC 9971 gives for that, so that far loads are ruled out by shorter trials.
    Rfc2544,
    /// Bisection by trials of 60 s to 1000 frames (or connections) a second, as the tester of RFC 9693's authors does.
    Rfc9693,
}

/// Options of `packets`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Packets {
    /// The measurement procedure.
    pub procedure: Procedure,
    /// How thoroughly.
    pub search: Search,
    /// Length of a frame with its check sequence, 64..=9018 bytes; without it the shortest there is: 64, or 84 with IPv6. RFC 2544
    /// asks for 64, 128, 256, 512, 1024, 1280 and 1518.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame_bytes: Option<u16>,
    /// Protocol that the frames carry.
    pub protocol: Protocol,
    /// The point at which the initiator's frames enter the path; `gateway` only if the responder sends none.
    pub inject: Inject,
    /// Connections (different tuples), 1..=16777216; without it 1000, or 50000 where they are what is counted. `capacity`: the most
    /// that is tried (default 1048576).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<u32>,
    /// First and last source port, 1..=65535. RFC 4814: 1024 to 65535.
    pub source_ports: [u16; 2],
    /// First and last destination port, 1..=65535. RFC 4814: 1 to 49151.
    pub destination_ports: [u16; 2],
    /// Frames a second, 1..=100000000. `rate`: offered, without it as many as possible. `latency` and `pdv`: instead of the throughput.
    /// The frames that open the flows keep to it, too, unless `max-rate` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Greatest rate tried, frames a second, 1..=100000000, which nothing that is sent goes beyond; without it what the sender is found
    /// to reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rate: Option<f64>,
    /// Share of the frames that a load may lose and still be carried, 0..=0.5. Anything but 0 is no throughput as of RFC 1242.
    pub loss_ratio: f64,
    /// The mechanism that moves the frames: `xdp` or `af-packet`; without it XDP if available.
    #[serde(skip_serializing_if = "is_auto")]
    pub engine: EngineChoice,
    /// Sample where the gateway's time goes.
    pub profile: bool,
}

/// Which mechanism moves the frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EngineChoice {
    /// XDP where it can be had, AF_PACKET elsewhere, and the record says so.
    #[default]
    Auto,
    /// XDP or nothing: frames that do not fit into live ones are refused.
    Xdp,
    /// AF_PACKET sockets.
    AfPacket,
}

impl EngineChoice {
    /// The engine to open an endpoint with; `None` leaves it to the endpoint.
    pub fn engine(self) -> Option<Engine> {
        match self {
            EngineChoice::Auto => None,
            EngineChoice::Xdp => Some(Engine::Xdp),
            EngineChoice::AfPacket => Some(Engine::AfPacket),
        }
    }
}

fn is_auto(engine: &EngineChoice) -> bool {
    *engine == EngineChoice::Auto
}

/// Most flows: the learnt tuples of so many take 400 MB on both hosts together.
const MOST_FLOWS: u32 = 1 << 24;

/// Fewest connections for a rate of establishment: a million a second make so many in a millisecond.
const LEAST_ESTABLISHED: u32 = 1000;

/// Greatest rate, frames a second: 40 Gbit/s of the shortest frames are 59.5 million.
const GREATEST_RATE: f64 = 1e8;

impl Default for Packets {
    fn default() -> Self {
        Packets {
            procedure: Procedure::default(),
            search: Search::default(),
            frame_bytes: None,
            protocol: Protocol::default(),
            inject: Inject::default(),
            flows: None,
            source_ports: [1024, 65535],
            destination_ports: [1, 49151],
            rate: None,
            max_rate: None,
            loss_ratio: 0.0,
            engine: EngineChoice::default(),
            profile: false,
        }
    }
}

impl Packets {
    /// The kind as written in scenarios.
    pub fn kind(&self) -> &'static str {
        "packets"
    }

    /// How many different tuples are used; with `capacity` at most.
    pub fn flow_count(&self) -> u32 {
        self.flows.unwrap_or_else(|| self.procedure.flows())
    }

    /// Returns the upper bound of all sending rates, frames a second of each direction; `None` if only the sender limits them.
    pub fn bound(&self) -> Option<f64> {
        self.max_rate.or(self.rate)
    }

    /// True if frames are so long that they go by packet sockets although the endpoint has XDP.
    pub fn outgrows_live_frames(&self) -> bool {
        self.engine == EngineChoice::Auto && self.frame_bytes.is_some_and(|bytes| !LiveSender::carries(bytes))
    }

    /// Returns the frame, or the reason why no frame of that length exists for that IP version.
    pub fn frame(&self, family: Family) -> Result<Frame, String> {
        let least = shortest(family);
        let bytes = self.frame_bytes.unwrap_or(least);
        if bytes < least {
            return Err(format!("frame-bytes = {bytes}: valid is {least} to {GREATEST} with IPv6"));
        }
        Ok(Frame { family, protocol: self.protocol, bytes })
    }

    /// The first `flows` of the tuples, in that order.
    pub(crate) fn tuples(&self, flows: u32, order: Order, seed: u64) -> Tuples {
        let range = |ports: [u16; 2]| ports[0]..=ports[1];
        Tuples {
            flows,
            source_ports: range(self.source_ports),
            destination_ports: range(self.destination_ports),
            order,
            seed,
        }
    }

    /// Options out of range or contradicting each other: one message that names the key and what is valid.
    pub fn validate(&self) -> Result<(), String> {
        if let Some(bytes) = self.frame_bytes.filter(|b| !(64..=GREATEST).contains(b)) {
            return Err(format!("frame-bytes = {bytes}: valid is 64 to {GREATEST}"));
        }
        if let Some(flows) = self.flows.filter(|f| !(1..=MOST_FLOWS).contains(f)) {
            return Err(format!("flows = {flows}: valid is 1 to {MOST_FLOWS}"));
        }
        let establishes =
            matches!(self.procedure, Procedure::Establishment | Procedure::EstablishmentValidated);
        if establishes && self.flow_count() < LEAST_ESTABLISHED {
            return Err(format!(
                "flows = {} with procedure = \"{}\": valid is {LEAST_ESTABLISHED} to {MOST_FLOWS}",
                self.flow_count(),
                self.procedure.name()
            ));
        }
        for (key, ports) in
            [("source-ports", self.source_ports), ("destination-ports", self.destination_ports)]
        {
            if ports[0] == 0 || ports[0] > ports[1] {
                return Err(format!(
                    "{key} = [{}, {}]: valid is [first, last] with 1 <= first <= last <= 65535",
                    ports[0], ports[1]
                ));
            }
        }
        for (key, rate) in [("rate", self.rate), ("max-rate", self.max_rate)] {
            if let Some(rate) = rate.filter(|r| !(1.0..=GREATEST_RATE).contains(r)) {
                return Err(format!("{key} = {rate}: valid is 1 to {GREATEST_RATE}"));
            }
        }
        if !(0.0..=0.5).contains(&self.loss_ratio) {
            return Err(format!("loss-ratio = {}: valid is 0 to 0.5", self.loss_ratio));
        }
        self.fits_live_frames()?;
        self.together()
    }

    /// Frames that only packet sockets carry, where only live ones will do.
    fn fits_live_frames(&self) -> Result<(), String> {
        let Some(bytes) = self.frame_bytes.filter(|bytes| !LiveSender::carries(*bytes)) else {
            return Ok(());
        };
        let longest = LiveSender::LONGEST;
        if self.engine == EngineChoice::Xdp {
            return Err(format!(
                "frame-bytes = {bytes} with engine = \"xdp\": valid is 64 to {longest}, since live frames lie in one page of memory; \
                 longer ones go by packet sockets, with engine = \"auto\" or \"af-packet\""
            ));
        }
        if self.inject == Inject::Gateway {
            return Err(format!(
                "frame-bytes = {bytes} with inject = \"gateway\": valid is 64 to {longest}, since only live frames enter there, and they \
                 lie in one page of memory; longer ones go with inject = \"wire\""
            ));
        }
        Ok(())
    }

    /// Options that do not go together.
    fn together(&self) -> Result<(), String> {
        let name = self.procedure.name();
        let takes_rate = matches!(self.procedure, Procedure::Rate | Procedure::Latency | Procedure::Pdv);
        if self.rate.is_some() && !takes_rate {
            return Err(format!(
                "rate with procedure = \"{name}\": valid with \"rate\", \"latency\" and \"pdv\"; a search is bounded by max-rate"
            ));
        }
        if let (Some(rate), Some(max)) = (self.rate, self.max_rate)
            && rate > max
        {
            return Err(format!("rate = {rate}: valid is up to max-rate = {max}"));
        }
        if self.inject == Inject::Gateway && self.procedure.answers() {
            return Err(format!(
                "inject = \"gateway\" with procedure = \"{name}\": valid is \"wire\", since the responder sends, too"
            ));
        }
        let bears_loss = matches!(
            self.procedure,
            Procedure::Throughput | Procedure::Latency | Procedure::Pdv | Procedure::ThroughputBidirectional
        );
        if self.loss_ratio > 0.0 && !bears_loss {
            return Err(format!("loss-ratio with procedure = \"{name}\": valid is 0"));
        }
        if self.loss_ratio > 0.0 && self.search == Search::Rfc9693 {
            return Err("loss-ratio with search = \"rfc9693\": valid is 0".to_owned());
        }
        let ports = |p: [u16; 2]| u64::from(p[1] - p[0]) + 1;
        let pairs = ports(self.source_ports) * ports(self.destination_ports);
        if u64::from(self.flow_count()) > pairs {
            return Err(format!(
                "flows = {}: valid is 1 to {pairs}, as many as there are pairs of source-ports and destination-ports",
                self.flow_count()
            ));
        }
        Ok(())
    }

    /// True if its frames carry their send time, so that their delay can be measured.
    pub fn stamps(&self) -> bool {
        match self.procedure {
            Procedure::Latency | Procedure::Pdv => true,
            Procedure::Rate => self.bound().is_some(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
