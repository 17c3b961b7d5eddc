//! One run of a procedure: what every procedure does around its measuring transfers, and what is kept of them.

use std::time::Duration;

use weir_record::{Fault, FaultCode, Series};

use super::plan::{PresetFigures, fill_rate};
use super::{Findings, ProcedureSettings};
use crate::testbed::{Testbed, TestbedError};
use crate::transfer::{Frame, Limit, Offer, Order, Received, Sending, Sent, Transfer, TransferOutcome, Way};
use crate::workload::Packets;

/// Most frames of one transfer: their numbers have 28 bits.
pub(super) const MOST_FRAMES: u64 = (1 << 28) - 1;

/// A sender that took longer by more than this share did not offer the rate that it should have (RFC 9693's own tester).
const SLIP_RATIO: f64 = 1e-5;

/// The same, ns, in trials shorter than 60 s: what the share is there. A few interrupts of the sender's core take more than a hundred
/// thousandth of a short trial.
const SLIP_NS: f64 = 600_000.0;

/// A sender that was late by more, ns, and caught up, sent a burst: loss after that may be of its own making.
const LATE_NS: u64 = 1_000_000;

/// Greater losses than so many bursts of the greatest lateness are the gateway's own.
const BURSTS: f64 = 10.0;

/// How many times a transfer is made because its sender slipped. A sender that slips every second time, on a busy machine, still
/// gets through a search of some fifty transfers.
const SLIPS: u32 = 12;

/// How often it is made because frames were lost after a late sender. If it is the gateway that loses them, this is waste.
const LATES: u32 = 4;

/// Why a procedure ends early.
#[derive(Debug)]
pub(super) enum Halt {
    /// The hosts could not do their part.
    Testbed(TestbedError),
    /// A fault that is among the findings: there is nothing more to measure.
    Fault,
}

impl From<TestbedError> for Halt {
    fn from(error: TestbedError) -> Halt {
        Halt::Testbed(error)
    }
}

/// The ways that are used at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ways {
    Egress,
    Ingress,
    Both,
}

/// One transfer to be made; in both directions the same.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shot {
    pub ways: Ways,
    pub flows: u32,
    pub order: Order,
    pub offer: Offer,
    /// Frames of each way.
    pub frames: u64,
    /// With [`Offer::Unlimited`]: how long at most.
    pub longest: Duration,
    pub stamp_every: u32,
    /// It opens the flows.
    pub forget: bool,
    /// The same flows in another order for each number.
    pub turn: u64,
    /// Its rate is no part of the result, so a sender that was slower did no harm.
    pub lenient: bool,
}

impl Shot {
    /// Frames of flows that exist, in random order (RFC 9693's second phase), at a rate.
    pub(super) fn of_existing(ways: Ways, flows: u32, rate: f64, duration: Duration) -> Shot {
        let frames = ((rate * duration.as_secs_f64()).round() as u64).max(1);
        Shot {
            ways,
            flows,
            order: Order::Random,
            offer: Offer::Rate(rate),
            frames,
            longest: duration,
            stamp_every: 0,
            forget: false,
            turn: 0,
            lenient: false,
        }
    }

    /// The same without a rate.
    pub(super) fn unlimited(self) -> Shot {
        Shot { offer: Offer::Unlimited, frames: MOST_FRAMES, ..self }
    }

    /// One frame of each flow, each of a flow that the gateway has not seen (RFC 9693's first phase).
    pub(super) fn opening(flows: u32, offer: Offer) -> Shot {
        Shot {
            order: Order::Permutation,
            offer,
            frames: flows.into(),
            forget: true,
            ..Shot::of_existing(Ways::Egress, flows, 1.0, Duration::from_secs(60))
        }
    }

    /// One frame back in each flow.
    pub(super) fn answering(flows: u32, rate: f64) -> Shot {
        let opening = Shot::opening(flows, Offer::Rate(rate));
        Shot { ways: Ways::Ingress, forget: false, lenient: true, ..opening }
    }

    /// Returns the bound in time. A sender may overrun its schedule, so that its slip can be distinguished from frames not sent.
    fn longest(&self) -> Duration {
        match self.offer {
            Offer::Unlimited => self.longest,
            Offer::Rate(rate) => {
                Duration::from_secs_f64(self.frames as f64 / rate * 1.5) + Duration::from_secs(1)
            }
        }
    }
}

/// The result of a transfer, over both ways.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Seen {
    /// Frames meant to be sent; without a rate those that were.
    pub intended: u64,
    /// Frames that arrived as they must.
    pub arrived: u64,
    /// The tester did not do its part: the sender did not offer the rate, or the receiver dropped frames itself.
    pub slipped: bool,
    /// Frames that arrived and that the receiver's own buffer had no room for.
    pub own_drops: u64,
    /// Greatest distance behind the schedule, ns.
    pub late_ns: u64,
    pub outcome: TransferOutcome,
}

impl Seen {
    /// Frames that did not arrive as they must.
    pub(super) fn lost(&self) -> u64 {
        self.intended.saturating_sub(self.arrived)
    }

    pub(super) fn loss_ratio(&self) -> f64 {
        self.lost() as f64 / self.intended.max(1) as f64
    }

    /// All arrived, as RFC 2544 and RFC 9693 want it.
    pub(super) fn whole(&self) -> bool {
        self.intended == self.arrived
    }

    /// Frames were lost, and the sender may be why: it was late, and caught up in a burst.
    fn of_the_senders_making(&self, rate: f64) -> bool {
        let burst = self.late_ns as f64 / 1e9 * rate;
        let lost = self.lost() as f64;
        self.late_ns > LATE_NS && lost > 0.0 && lost <= BURSTS * burst
    }

    pub(super) fn ends(&self) -> impl Iterator<Item = &(Sent, Received)> {
        self.outcome.egress.iter().chain(&self.outcome.ingress)
    }

    /// How long frames still arrived after the last one was sent, ns, beyond the path's delay: queues of the hop held them.
    pub(super) fn drained_ns(&self) -> u64 {
        let drained =
            |(sent, received): &(Sent, Received)| received.duration_ns.saturating_sub(sent.duration_ns);
        self.ends().map(drained).max().unwrap_or(0)
    }

    /// Frames a second that the slower sender offered.
    pub(super) fn offered_pps(&self) -> f64 {
        self.ends().map(|(sent, _)| per_second(sent.frames, sent.duration_ns)).fold(f64::INFINITY, f64::min)
    }
}

/// Rate of frames of which the first and the last are that far apart: one interval fewer than frames.
pub(super) fn per_second(frames: u64, duration_ns: u64) -> f64 {
    if duration_ns == 0 { 0.0 } else { frames.saturating_sub(1) as f64 * 1e9 / duration_ns as f64 }
}

/// Counts over all transfers.
#[derive(Debug, Clone, Default, PartialEq)]
struct TransferCounts {
    transfers: u64,
    void: u64,
    sent: u64,
    mistranslated: u64,
    reordered: u64,
    duplicated: u64,
    refused: u64,
    cpu_s: f64,
    traffic_s: f64,
    late_ns: u64,
    offered: Vec<(f64, f64)>,
    lost: Vec<(f64, f64)>,
}

/// One run.
pub(super) struct RunProgress<'a> {
    pub packets: &'a Packets,
    pub setting: &'a ProcedureSettings,
    pub plan: PresetFigures,
    pub findings: Findings,
    frame: Frame,
    testbed: &'a mut dyn Testbed,
    pub(super) fill_rate: f64,
    /// Most flows that a fill could not open at any rate.
    pub(super) unopened: u64,
    tally: TransferCounts,
}

impl<'a> RunProgress<'a> {
    pub(super) fn new(
        packets: &'a Packets,
        setting: &'a ProcedureSettings,
        testbed: &'a mut dyn Testbed,
    ) -> Result<RunProgress<'a>, TestbedError> {
        let frame = packets.frame(setting.family).map_err(|e| TestbedError(e.into()))?;
        let fill_rate = fill_rate(packets);
        let plan = packets.plan();
        let (findings, tally) = (Findings::default(), TransferCounts::default());
        Ok(RunProgress { packets, setting, plan, findings, frame, testbed, fill_rate, unopened: 0, tally })
    }

    /// Returns the findings with the counts of all transfers and the search's steps.
    pub(super) fn finish(mut self) -> Findings {
        let tally = self.tally;
        let counts = [
            ("transfers", tally.transfers),
            ("void_transfers", tally.void),
            ("mistranslated", tally.mistranslated),
            ("reordered", tally.reordered),
            ("duplicated", tally.duplicated),
            ("refused", tally.refused),
            ("late_max_ns", tally.late_ns),
        ];
        for (name, count) in counts {
            self.findings.set(name, count as f64);
        }
        if tally.sent > 0 {
            self.findings.set("tester_cpu_ns_per_packet", tally.cpu_s * 1e9 / tally.sent as f64);
        }
        for (name, points) in [("offered_pps", tally.offered), ("loss_ratio", tally.lost)] {
            if !points.is_empty() {
                self.findings.series.push(Series { name: name.to_owned(), points });
            }
        }
        self.findings
    }

    pub(super) fn set(&mut self, name: &str, value: f64) {
        self.findings.set(name, value);
    }

    /// The share of a transfer's frames that was lost, with its counts.
    pub(super) fn set_loss(&mut self, seen: &Seen) {
        self.set_share("loss_ratio", ("lost", seen.lost()), ("sent", seen.intended));
    }

    /// A share, and the counts that it is made of.
    pub(super) fn set_share(&mut self, name: &str, (part, count): (&str, u64), (whole, of): (&str, u64)) {
        self.set(name, count as f64 / of.max(1) as f64);
        self.set(part, count as f64);
        self.set(whole, of as f64);
    }

    /// A fault that takes the result out.
    pub(super) fn void(&mut self, code: FaultCode, detail: impl Into<String>) {
        self.findings.faults.push(Fault::void(code, "runner", detail));
    }

    /// The same, when nothing is left to measure.
    pub(super) fn halt(&mut self, code: FaultCode, detail: impl Into<String>) -> Halt {
        self.void(code, detail);
        Halt::Fault
    }

    /// Records a fault that leaves the result in; each only once.
    pub(super) fn note(&mut self, code: FaultCode, detail: impl Into<String>) {
        let fault = Fault::noted(code, "runner", detail);
        if !self.findings.faults.contains(&fault) {
            self.findings.faults.push(fault);
        }
    }

    /// Empties the gateway's table. Returns how long that took and how many entries there were; `None` without a table.
    pub(super) fn empty(&mut self) -> Result<(Duration, Option<u64>), TestbedError> {
        let (took, counts) = self.testbed.flush()?;
        let Some((before, after)) = counts else { return Ok((took, None)) };
        let allowed = u64::from(self.packets.flow_count()) / 100;
        if after > allowed {
            self.void(
                FaultCode::ConnectionFailed,
                format!("the gateway's table was emptied but still holds {after} of {before} entries"),
            );
        } else if after > 0 {
            self.note(
                FaultCode::ConnectionFailed,
                "the gateway's table was emptied but connections of others came back at once",
            );
        }
        Ok((took, Some(before)))
    }

    /// Entries of the gateway's table, also kept for the record.
    pub(super) fn tracked(&mut self) -> Result<Option<u64>, TestbedError> {
        let tracked = self.testbed.tracked()?;
        if let Some(entries) = tracked {
            self.set("tracked_connections", entries as f64);
        }
        Ok(tracked)
    }

    /// Makes one transfer that is a step of the measurement.
    pub(super) fn shoot(&mut self, shot: &Shot) -> Result<Seen, TestbedError> {
        let at = self.tally.traffic_s;
        let seen = self.transfer(shot)?;
        if let (Offer::Rate(rate), false) = (shot.offer, seen.slipped) {
            self.tally.offered.push((at, rate));
            self.tally.lost.push((at, seen.loss_ratio()));
        }
        Ok(seen)
    }

    pub(super) fn transfer(&mut self, shot: &Shot) -> Result<Seen, TestbedError> {
        let egress = (shot.ways != Ways::Ingress).then(|| self.sending(shot, Way::Egress));
        let ingress = (shot.ways != Ways::Egress).then(|| self.sending(shot, Way::Ingress));
        let transfer = Transfer { egress, ingress, drain: self.plan.drain, forget: shot.forget };
        let outcome = self.testbed.transfer(&transfer)?;
        let mut seen = Seen { intended: 0, arrived: 0, slipped: false, own_drops: 0, late_ns: 0, outcome };
        for (sent, received) in seen.outcome.egress.iter().chain(&seen.outcome.ingress) {
            let meant = if shot.offer == Offer::Unlimited { sent.frames } else { shot.frames };
            seen.intended += meant;
            // Whether a mistranslated frame is among those received or not: it did not arrive as it must.
            seen.arrived += received.frames.min(meant.saturating_sub(received.mistranslated));
            seen.late_ns = seen.late_ns.max(sent.late_max_ns);
            seen.slipped |= self.slipped(shot, sent);
            seen.own_drops += received.own_drops;
        }
        if seen.own_drops > 0 {
            seen.slipped = true;
            let words = "the receiver's own buffer was too small for what arrived";
            self.note(FaultCode::ReceiverDrops, words);
        }
        self.count(&seen);
        Ok(seen)
    }

    fn sending(&self, shot: &Shot, way: Way) -> Sending {
        // Both ways draw from the same flows, but not in step.
        let seed = match way {
            Way::Egress => self.setting.seed,
            Way::Ingress => self.setting.seed.wrapping_add(1),
        };
        let seed = seed.wrapping_add(shot.turn << 32);
        Sending {
            frame: self.frame,
            tuples: self.packets.tuples(shot.flows, shot.order, seed),
            offer: shot.offer,
            limit: Limit { frames: shot.frames, duration: shot.longest() },
            stamp_every: shot.stamp_every,
        }
    }

    fn slipped(&self, shot: &Shot, sent: &Sent) -> bool {
        let Offer::Rate(rate) = shot.offer else { return false };
        let planned_ns = shot.frames as f64 / rate * 1e9;
        // Far less than what the search tells apart.
        let short = (SLIP_NS / planned_ns).min(self.plan.width() / 4.0);
        sent.frames < shot.frames || (!shot.lenient && sent.slip_ratio > SLIP_RATIO.max(short))
    }

    fn count(&mut self, seen: &Seen) {
        let tally = &mut self.tally;
        tally.transfers += 1;
        tally.late_ns = tally.late_ns.max(seen.late_ns);
        let mut longest = 0;
        for (sent, received) in seen.ends() {
            tally.sent += sent.frames;
            tally.cpu_s += sent.cpu_s;
            tally.refused += sent.refused;
            tally.mistranslated += received.mistranslated;
            tally.reordered += received.reordered;
            tally.duplicated += received.duplicated;
            longest = longest.max(sent.duration_ns);
        }
        tally.traffic_s += longest as f64 / 1e9;
    }

    /// Makes a transfer until its sender did what it should: what the tester does wrong is not blamed on the gateway.
    pub(super) fn steadily(
        &mut self,
        rate: f64,
        mut once: impl FnMut(&mut Self) -> Result<Seen, Halt>,
    ) -> Result<Seen, Halt> {
        let (mut slips, mut lates) = (0, 0);
        let seen = loop {
            let seen = once(self)?;
            if seen.slipped {
                slips += 1;
                self.tally.void += 1;
                if slips == SLIPS {
                    let detail = format!("the sender did not keep up {rate:.0} a second, {SLIPS} times");
                    return Err(self.halt(FaultCode::LateSends, detail));
                }
                continue;
            }
            if !seen.of_the_senders_making(rate) {
                return Ok(seen);
            }
            lates += 1;
            if lates == LATES {
                break seen;
            }
            self.tally.void += 1;
        };
        // Lost each time, so it may well be the gateway; but not for certain.
        let late = seen.late_ns as f64 / 1e6;
        self.note(
            FaultCode::LateSends,
            format!("frames were lost at {rate:.0} a second, each time with the sender late ({late:.1} ms)"),
        );
        Ok(seen)
    }
}
