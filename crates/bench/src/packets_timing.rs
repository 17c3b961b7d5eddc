//! How single frames are timed: in the lab by the one clock that both ends have; between machines, whose clocks differ, there and
//! back by the initiator's, for which the responder sends stamped frames back (RFC 2681).

use weir_agent::packets::Described;
use weir_packets::workload::{Packets, Procedure};
use weir_packets::{Engine, Inject, Received, Sending, Transfer};

use crate::error::Error;
use crate::packets_end::End;
use crate::packets_path::Path;

/// Why a path that carries frames may not carry back what the responder's driver returns.
pub(crate) const NOT_BACK: &str = "it gets there, but none that the responder's XDP program sends back arrives; what lies next to the \
     responder must take such frames in, which a veth does only with GRO on or an XDP program of its own \
     (`ethtool -K INTERFACE gro on`)";

/// How the frames of one trial are timed.
#[derive(Clone)]
pub(crate) enum Timing<'a> {
    /// One way, by the clock that both ends have; or no frame carries the time.
    OneWay,
    /// There and back, by this end.
    RoundTrip(End<'a>),
    /// Not at all, and why.
    Untimed(String),
}

impl<'a> Timing<'a> {
    /// How a workload's frames can be timed on this path.
    ///
    /// # Errors
    /// [`Error::Unfit`] if they cannot, and the workload is about nothing else.
    pub(crate) fn of(path: Path<'_>, sender: End<'a>, responder: End<'a>) -> Result<Self, Error> {
        if path.is_lab || !path.packets.stamps() {
            return Ok(Timing::OneWay);
        }
        match obstacle(path.packets, &responder.described()?) {
            None => Ok(Timing::RoundTrip(sender)),
            Some(words) if is_about_delay(path.packets) => Err(Error::Unfit(format!(
                "procedure = \"{}\" between hosts with clocks of their own measures round trips, and {words}",
                path.packets.procedure.name()
            ))),
            Some(words) => Ok(Timing::Untimed(words)),
        }
    }

    /// True if frames may carry the time. A time that no endpoint can read gives no information about missing frames.
    pub(crate) fn stamps(&self) -> bool {
        !matches!(self, Timing::Untimed(_))
    }

    /// Who times this transfer's round trips, and what comes back to it.
    pub(crate) fn round_trips<'b>(&self, transfer: &'b Transfer) -> Option<(End<'a>, &'b Sending)> {
        let Timing::RoundTrip(end) = self else { return None };
        let stamped = transfer.egress.as_ref().filter(|egress| egress.stamp_every > 0)?;
        transfer.ingress.is_none().then_some((*end, stamped))
    }

    /// Puts the round trips in the place of what two clocks made of the way there. True if none is under way any more.
    pub(crate) fn take(&self, received: &mut Received) -> Result<bool, Error> {
        // No stamped frame has arrived, so none was sent back; or none was stamped.
        let Timing::RoundTrip(end) = self else { return Ok(true) };
        if received.delay.is_empty() {
            return Ok(true);
        }
        let delay = end.received()?.delay;
        let sent_back = std::mem::replace(&mut received.delay, delay).len();
        Ok(received.delay.len() >= sent_back)
    }

    /// Returns a note for readers of the record.
    pub(crate) fn note(&self) -> Option<String> {
        match self {
            Timing::Untimed(words) => Some(format!("round trips of single frames are not measured: {words}")),
            _ => None,
        }
    }
}

/// True if a workload has no result without delay.
pub(crate) fn is_about_delay(packets: &Packets) -> bool {
    matches!(packets.procedure, Procedure::Latency | Procedure::Pdv)
}

/// Returns the obstacle to round trips, if any.
fn obstacle(packets: &Packets, responder: &Described) -> Option<String> {
    if packets.inject == Inject::Gateway {
        let words =
            "inject = \"gateway\" sends from the gateway, to which no frame comes back: valid is \"wire\"";
        return Some(words.to_owned());
    }
    if responder.engine == Engine::Xdp {
        return None;
    }
    let mut words = format!(
        "the responder must send frames back by XDP, for which there is no way with packet sockets: it {}",
        responder.words
    );
    if packets.engine.engine() == Some(Engine::AfPacket) {
        words.push_str(", as engine = \"af-packet\" says");
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use weir_packets::workload::EngineChoice;

    use super::*;

    #[test]
    fn only_xdp_out_of_the_initiator_makes_round_trips_and_what_is_missing_is_named() {
        let sockets = Described { engine: Engine::AfPacket, words: "sends by packet sockets".into() };
        let xdp = Described { engine: Engine::Xdp, words: "sends live frames".into() };
        let packets = Packets { procedure: Procedure::Latency, ..Packets::default() };
        assert_eq!(obstacle(&packets, &xdp), None);
        let words = obstacle(&packets, &sockets).unwrap();
        assert!(words.contains("by XDP") && words.ends_with("it sends by packet sockets"), "{words}");
        let chosen = Packets { engine: EngineChoice::AfPacket, ..packets.clone() };
        assert!(obstacle(&chosen, &sockets).unwrap().contains("engine = \"af-packet\""));
        let injected = Packets { inject: Inject::Gateway, ..packets };
        assert!(obstacle(&injected, &xdp).unwrap().contains("valid is \"wire\""));
    }

    #[test]
    fn without_round_trips_two_clocks_make_no_delay() {
        let mut received = Received::default();
        received.delay.record(5);
        assert!(Timing::OneWay.take(&mut received).unwrap());
        assert_eq!(received.delay.len(), 1);
        assert!(Timing::OneWay.stamps());
        assert!(!Timing::Untimed("no XDP".into()).stamps());
    }
}
