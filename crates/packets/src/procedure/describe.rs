//! A workload in words for people.

use crate::transfer::{Inject, Protocol};
use crate::workload::{EngineChoice, Packets, Procedure};

impl Packets {
    /// Describes the workload and its options in one line for people.
    pub fn describe(&self) -> String {
        let length = self.frame_bytes.map_or("the shortest".to_owned(), |b| format!("{b}-byte"));
        let protocol = match self.protocol {
            Protocol::Udp => "UDP",
            Protocol::TcpSyn => "TCP SYN",
        };
        let flows = self.flow_count();
        let flows = match self.procedure {
            Procedure::Capacity => format!("up to {flows} connections"),
            p if p.counts_connections() => format!("{flows} connections"),
            _ if flows == 1 => "1 flow".to_owned(),
            _ => format!("{flows} flows"),
        };
        let mut words = vec![self.what(), format!("{length} {protocol} frames"), flows];
        match (self.rate, self.max_rate) {
            (Some(rate), _) => words.push(format!("{rate} a second")),
            (None, Some(max)) => words.push(format!("at most {max} a second")),
            (None, None) if self.procedure == Procedure::Rate => words.push("as fast as possible".to_owned()),
            (None, None) => {}
        }
        if self.loss_ratio > 0.0 {
            words.push(format!("losing at most {} %", self.loss_ratio * 100.0));
        }
        if self.inject == Inject::Gateway {
            words.push("handed to the gateway's own interface".to_owned());
        }
        match self.engine {
            EngineChoice::Auto => {}
            EngineChoice::Xdp => words.push("by XDP".to_owned()),
            EngineChoice::AfPacket => words.push("by AF_PACKET".to_owned()),
        }
        words.join(", ")
    }

    fn what(&self) -> String {
        let takes_rate = matches!(self.procedure, Procedure::Latency | Procedure::Pdv);
        let what = match self.procedure {
            Procedure::Rate => return "forwarding rate".to_owned(),
            Procedure::TearDown => return "connection tear-down rate (RFC 9693)".to_owned(),
            Procedure::Throughput => "throughput (RFC 2544)",
            Procedure::FrameLoss => "frame loss rate (RFC 2544)",
            Procedure::BackToBack => "back-to-back frames (RFC 9004)",
            Procedure::Latency => "latency (RFC 8219)",
            Procedure::Pdv => "packet delay variation (RFC 8219)",
            Procedure::Establishment => "connection establishment rate (RFC 9693)",
            Procedure::EstablishmentValidated => "validated connection establishment rate (RFC 9693)",
            Procedure::ThroughputBidirectional => "bidirectional throughput (RFC 9693)",
            Procedure::Capacity => "connection tracking table capacity (RFC 9693)",
        };
        // With a rate there is nothing to search for, and frame loss steps down instead.
        if (takes_rate && self.rate.is_some()) || self.procedure == Procedure::FrameLoss {
            return what.to_owned();
        }
        format!("{what}, {}", self.plan().describe(self.procedure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Search;

    #[test]
    fn each_option_has_its_words() {
        let quick = |procedure| Packets { procedure, search: Search::Quick, ..Packets::default() };
        let search = "MLRsearch with trials of 0.2 s, 0.6 s a load, to 1 %";
        let frames = "the shortest UDP frames";
        let at_most = |max| Packets { flows: Some(1), max_rate: Some(max), ..quick(Procedure::FrameLoss) };
        let handed = Packets {
            frame_bytes: Some(128),
            inject: Inject::Gateway,
            engine: EngineChoice::Xdp,
            ..quick(Procedure::TearDown)
        };
        for (packets, words) in [
            (quick(Procedure::Rate), format!("forwarding rate, {frames}, 1000 flows, as fast as possible")),
            (at_most(9000.0), format!("frame loss rate (RFC 2544), {frames}, 1 flow, at most 9000 a second")),
            (
                Packets { rate: Some(500.0), ..quick(Procedure::Latency) },
                format!("latency (RFC 8219), {frames}, 1000 flows, 500 a second"),
            ),
            (quick(Procedure::Latency), format!("latency (RFC 8219), {search}, {frames}, 1000 flows")),
            (
                Packets { loss_ratio: 0.001, ..quick(Procedure::Throughput) },
                format!("throughput (RFC 2544), {search}, {frames}, 1000 flows, losing at most 0.1 %"),
            ),
            (
                quick(Procedure::Capacity),
                format!(
                    "connection tracking table capacity (RFC 9693), bisection to 0.5 %, {frames}, \
                     up to 1048576 connections"
                ),
            ),
            (
                handed,
                "connection tear-down rate (RFC 9693), 128-byte UDP frames, 50000 connections, \
                 handed to the gateway's own interface, by XDP"
                    .to_owned(),
            ),
        ] {
            assert_eq!(packets.describe(), words);
        }
    }
}
