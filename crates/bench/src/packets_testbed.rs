//! Single frames: the hosts of one site as a tester and a gateway, which is what a procedure works with.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use weir_agent::gateway_side::{Flushed, GatewayAnswer, GatewayTask, Table};
use weir_agent::packets::{PacketsAnswer, PacketsTask};
use weir_agent::remote::{self, Pending};
use weir_agent::{Answer, Task};
use weir_gateway::Expectation;
use weir_packets::workload::Procedure;
use weir_packets::{
    Inject, Limit, Link, Offer, Order, Received, Sending, Sent, Testbed, TestbedError, Transfer,
    TransferOutcome, Tuples, Way,
};

use crate::SHORT;
use crate::error::{Error, unexpected};
use crate::packets_end::{End, only};
use crate::packets_gateway::prepare;
use crate::packets_path::Path;
use crate::packets_timing::{NOT_BACK, Timing, is_about_delay};
use crate::sampling::{Sampled, Sampling};
use crate::site::Member;

/// A sender must be done this long after its time.
const SLACK: Duration = Duration::from_secs(10);

/// A table of millions of entries is emptied within this.
const FLUSH: Duration = Duration::from_secs(120);

/// How long a frame may take in a proof.
const ARRIVE: Duration = Duration::from_millis(300);

/// Frames sent before a path is called dead: the first one may be lost to a gateway that asks for an Ethernet address, and a gateway
/// that loses every second one is measured, not left out (one trial in 65,536 would be).
const ATTEMPTS: u32 = 16;

/// How often arrivals are looked at while stragglers are waited for.
const LOOK: Duration = Duration::from_millis(10);

/// The endpoints of one trial.
pub(crate) struct Tester<'a> {
    path: Path<'a>,
    expected: Expectation,
    /// Who sends what goes to the responder: the initiator, or the gateway itself.
    sender: End<'a>,
    responder: End<'a>,
    /// Who counts what comes back, where something does.
    initiator: Option<End<'a>>,
    timing: Timing<'a>,
    prepared: Vec<String>,
    cookie: u32,
    /// The state table may still hold what the proof left.
    forget: bool,
    /// The gateway tracks connections: known after the proof.
    tracks: bool,
    sampling: Sampling<'a>,
}

/// Opens the endpoints, proves that frames arrive, works with them, and closes them again, whatever happened.
pub(crate) fn with<T>(
    path: Path<'_>,
    cookie: u64,
    work: impl FnOnce(&mut Tester<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let outcome = Tester::open(path, cookie).and_then(|mut tester| work(&mut tester));
    let closed = close(path);
    let value = outcome?;
    closed?;
    Ok(value)
}

/// Closes the endpoints on all hosts and reverts the changes on the gateway. Continues after a failure; returns the first one.
fn close(path: Path<'_>) -> Result<(), Error> {
    let mut first = Ok(());
    for member in path.site.members() {
        let closed = member.agent.call(Task::Packets(PacketsTask::Close), SHORT).map(drop);
        first = first.and(closed);
    }
    if let Some(gateway) = &path.site.gateway {
        first = first.and(gateway.agent.call(Task::Gateway(GatewayTask::Restore), SHORT).map(drop));
    }
    first.map_err(Error::from)
}

/// The responder's end.
fn far(path: Path<'_>, responder: &Member, initiator: IpAddr) -> Link {
    Link {
        interface: only(responder),
        address: path.site.place.responder,
        target: initiator,
        way: Way::Ingress,
        inject: Inject::Wire,
        cpus: responder.cpus.clone(),
        reference: false,
    }
}

impl<'a> Tester<'a> {
    fn open(path: Path<'a>, cookie: u64) -> Result<Self, Error> {
        let Path { site, variant, packets, .. } = path;
        let (Some(initiator), Some(responder)) = (site.initiators.first(), site.responders.first()) else {
            return Err(Error::Internal("a site without ends".into()));
        };
        let prepared = prepare(path)?;
        let expected = variant.expectation(&site.place);
        let near = |interface: String, cpus: &[usize], inject| Link {
            interface,
            address: initiator.address,
            target: expected.target,
            way: Way::Egress,
            inject,
            cpus: cpus.to_vec(),
            // In the lab alone the sender's core forwards, too; and the gateway gets no interface that it does not have otherwise.
            reference: path.is_lab && packets.procedure == Procedure::Rate && inject == Inject::Wire,
        };
        let responder = End::open(path, responder, far(path, responder, initiator.address))?;
        let (sender, back) = match packets.inject {
            Inject::Wire => {
                let end = End::open(path, initiator, near(only(initiator), &initiator.cpus, Inject::Wire))?;
                (end, packets.procedure.answers().then_some(end))
            }
            Inject::Gateway => {
                let Some(gateway) = &site.gateway else {
                    return Err(Error::Unfit(
                        "inject = \"gateway\" hands frames to the gateway itself, and this variant has none"
                            .into(),
                    ));
                };
                let inside = site.place.inside_interface.clone();
                // In the lab the gateway has no cores of its own: what sends there takes the initiator's.
                let cpus = if gateway.cpus.is_empty() { &initiator.cpus } else { &gateway.cpus };
                (End::open(path, gateway, near(inside, cpus, Inject::Gateway))?, None)
            }
        };
        let timing = Timing::of(path, sender, responder)?;
        let sampling = Sampling::new(site, path.profiled(), path.diagnose);
        let cookie = cookie as u32;
        Ok(Tester {
            path,
            expected,
            sender,
            responder,
            initiator: back,
            timing,
            prepared,
            cookie,
            forget: true,
            tracks: true,
            sampling,
        })
    }

    /// Sends a frame in each direction that the procedure needs and makes sure that it arrives as the variant promises. Returns
    /// what was seen, in words.
    ///
    /// # Errors
    /// [`Error::NotProved`] if not, with what was tried.
    pub(crate) fn prove(&mut self) -> Result<String, Error> {
        let frame = self.path.packets.frame(self.path.site.place.family).map_err(Error::Unfit)?;
        let ports = |p: [u16; 2]| p[0]..=p[1];
        let (source_ports, destination_ports) =
            (ports(self.path.packets.source_ports), ports(self.path.packets.destination_ports));
        let tuples = Tuples { flows: 1, source_ports, destination_ports, order: Order::Permutation, seed: 0 };
        let limit = Limit { frames: 1, duration: Duration::from_secs(1) };
        let one = Sending { frame, tuples, offer: Offer::Rate(1000.0), limit, stamp_every: 0 };
        let one = self.let_through(one);
        let there = Transfer { egress: Some(one.clone()), ingress: None, drain: ARRIVE, forget: true };
        let (sent, received) = self.until_one_arrives(&there)?;
        if received.frames == 0 {
            return Err(self.not_proved(format!(
                "none of {sent} frames of {} bytes towards {} got through (foreign {}, mistranslated {}); {}",
                frame.bytes,
                self.expected.target,
                received.foreign,
                received.mistranslated,
                self.ends_in_words()?
            )));
        }
        seen(received.source, self.expected.seen_source).map_err(|reason| self.not_proved(reason))?;
        let source = received.source.map(|source| format!(" from {source}")).unwrap_or_default();
        let mut words = format!("a frame of {} bytes arrives{source}", frame.bytes);
        if self.initiator.is_some() {
            let back = Transfer { egress: None, ingress: Some(one.clone()), drain: ARRIVE, forget: false };
            let (sent, received) = self.until_one_arrives(&back)?;
            if received.frames == 0 {
                return Err(self.not_proved(format!(
                    "a frame of {} bytes gets there, but none of {sent} answers comes back (foreign {}, mistranslated {}); {}",
                    frame.bytes,
                    received.foreign,
                    received.mistranslated,
                    self.ends_in_words()?
                )));
            }
            words.push_str(", and one comes back");
        }
        if matches!(self.timing, Timing::RoundTrip(_)) && self.comes_round(one)? {
            words.push_str(", and comes back to be timed");
        }
        words.push_str(&format!("; {}", self.ends_in_words()?));
        if !self.prepared.is_empty() {
            words.push_str(&format!("; for that, {}", self.prepared.join(", ")));
        }
        Ok(words)
    }

    /// Checks that a stamped frame comes back. If none does, workloads that are not about delay continue without round trips.
    fn comes_round(&mut self, one: Sending) -> Result<bool, Error> {
        let one = Sending { stamp_every: 1, ..one };
        let there = Transfer { egress: Some(one), ingress: None, drain: ARRIVE, forget: false };
        for _ in 0..ATTEMPTS {
            let (_, received) = self.move_frames(&there)?.egress.unzip();
            if received.is_some_and(|received| !received.delay.is_empty()) {
                return Ok(true);
            }
        }
        if is_about_delay(self.path.packets) {
            return Err(self.not_proved(format!("no frame makes a round trip: {NOT_BACK}")));
        }
        self.timing = Timing::Untimed(NOT_BACK.to_owned());
        Ok(false)
    }

    /// Describes how each endpoint works.
    fn ends_in_words(&self) -> Result<String, Error> {
        let mut words = Vec::new();
        for end in [self.sender, self.responder] {
            words.push(format!("{} {}", end.0.role.name(), end.described()?.words));
        }
        Ok(words.join(", "))
    }

    /// The same with destination ports that the variant lets through, where it does not let all through.
    fn let_through(&self, mut sending: Sending) -> Sending {
        sending.tuples.destination_ports =
            passable(&sending.tuples.destination_ports, self.expected.ports.as_ref());
        sending
    }

    fn not_proved(&self, reason: String) -> Error {
        Error::NotProved { variant: self.path.variant.kind().to_owned(), reason }
    }

    /// Repeats a transfer of one frame until one arrives. Returns how often it was made, and the last one's arrivals.
    fn until_one_arrives(&mut self, transfer: &Transfer) -> Result<(u32, Received), Error> {
        for attempt in 1.. {
            let outcome = self.move_frames(transfer)?;
            let received =
                outcome.egress.or(outcome.ingress).map(|(_, received)| received).unwrap_or_default();
            if received.frames > 0 || attempt == ATTEMPTS {
                return Ok((attempt, received));
            }
        }
        Err(Error::Internal("no attempt was made".into()))
    }

    /// Lists each endpoint that fell back from the best mechanism, and why.
    pub(crate) fn fallbacks(&self) -> Result<Vec<String>, Error> {
        let packets = self.path.packets;
        let mut words: Vec<String> = self.timing.note().into_iter().collect();
        words.extend(self.sender.fallback(packets, true)?);
        words.extend(self.responder.fallback(packets, packets.procedure.answers())?);
        Ok(words)
    }

    /// The gateway's table of connections; `None` without a gateway or without tracking.
    fn table(&self) -> Result<Option<Table>, Error> {
        let Some(gateway) = self.path.site.gateway.as_ref().filter(|_| self.tracks) else { return Ok(None) };
        match gateway.agent.call(Task::Gateway(GatewayTask::Table), SHORT)? {
            Answer::Gateway(GatewayAnswer::Table(table)) => Ok(table),
            other => Err(unexpected(&other)),
        }
    }

    /// Flushes the gateway's table. `None` if it has none, or if weir must not flush it: weir refuses a procedure that needs the
    /// flush at the start.
    fn empty_table(&self) -> Result<Option<Flushed>, Error> {
        let may = self.path.flushes && self.tracks;
        let Some(gateway) = self.path.site.gateway.as_ref().filter(|_| may) else { return Ok(None) };
        let pending = gateway.agent.begin(Task::Gateway(GatewayTask::Flush))?;
        match pending.wait(FLUSH, self.path.watch)? {
            Answer::Gateway(GatewayAnswer::Flushed(flushed)) => Ok(Some(flushed)),
            other => Err(unexpected(&other)),
        }
    }

    /// After the proof: reads the entries that it left in the gateway's table, and flushes them. A table that is empty after a
    /// frame has passed counts as none: the kernel has it, but no rule uses it. If weir must not flush it, its one entry belongs
    /// to the first flow, which would create the same entry again.
    pub(crate) fn look_at_table(&mut self) -> Result<Option<Table>, Error> {
        let table = self.table()?.filter(|table| table.entries > 0);
        self.tracks = table.is_some();
        self.empty_table()?;
        Ok(table)
    }

    /// One transfer, with everybody ready before anybody sends.
    fn move_frames(&mut self, transfer: &Transfer) -> Result<TransferOutcome, Error> {
        self.cookie = self.cookie.wrapping_add(1);
        let cookie = self.cookie;
        let (sender, responder, initiator) = (self.sender, self.responder, self.initiator);
        if let Some((timer, egress)) = self.timing.round_trips(transfer) {
            responder.reflect(cookie, egress, transfer.forget)?;
            timer.expect(cookie, Some(egress), false)?;
        } else {
            responder.expect(cookie, transfer.egress.as_ref(), transfer.forget)?;
            if let Some(initiator) = &initiator {
                initiator.expect(cookie, transfer.ingress.as_ref(), false)?;
            }
        }
        let begin = |end: &End<'a>, sending: Option<&Sending>| -> Result<_, remote::Error> {
            let Some(sending) = sending.cloned() else { return Ok(None) };
            let limit = sending.limit.duration + SLACK;
            let task = Task::Packets(PacketsTask::Send { cookie, sending });
            Ok(Some((end.0.agent.begin(task)?, limit)))
        };
        let out = begin(&sender, transfer.egress.as_ref())?;
        let back = begin(&responder, transfer.ingress.as_ref())?;
        let (out, back) = (self.sent(out)?, self.sent(back)?);
        if self.sampling.runs() && !self.path.packets.procedure.searches() {
            self.sampling.end()?;
        }
        self.drain(transfer.drain, out, back)
    }

    fn sent(&self, pending: Option<(Pending<'_>, Duration)>) -> Result<Option<Sent>, Error> {
        let Some((pending, limit)) = pending else { return Ok(None) };
        match pending.wait(limit, self.path.watch)? {
            Answer::Packets(answer) => match *answer {
                PacketsAnswer::Sent(sent) => Ok(Some(sent)),
                other => Err(unexpected(&other)),
            },
            other => Err(unexpected(&other)),
        }
    }

    /// Waits for stragglers, but not for those of which none can be under way any more.
    fn drain(
        &self,
        drain: Duration,
        out: Option<Sent>,
        back: Option<Sent>,
    ) -> Result<TransferOutcome, Error> {
        let deadline = Instant::now() + drain;
        let arrived =
            |sent: &Option<Sent>, end: Option<&End<'_>>| -> Result<Option<(Sent, Received)>, Error> {
                match (sent, end) {
                    (Some(sent), Some(end)) => Ok(Some((sent.clone(), end.received()?))),
                    _ => Ok(None),
                }
            };
        loop {
            let mut outcome = TransferOutcome {
                egress: arrived(&out, Some(&self.responder))?,
                ingress: arrived(&back, self.initiator.as_ref())?,
            };
            let both = [&outcome.egress, &outcome.ingress];
            let all = both.into_iter().flatten().all(|(sent, received)| received.frames >= sent.frames);
            let all = match &mut outcome.egress {
                Some((_, received)) => self.timing.take(received)? && all,
                None => all,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if all || left.is_zero() {
                return Ok(outcome);
            }
            std::thread::sleep(left.min(LOOK));
            (self.path.watch)()?;
        }
    }

    /// Returns the results of the samplers.
    pub(crate) fn sampled(&mut self) -> Result<Sampled, Error> {
        self.sampling.finish(self.path.watch)
    }
}

impl Testbed for Tester<'_> {
    fn flush(&mut self) -> Result<(Duration, Option<(u64, u64)>), TestbedError> {
        let flushed = self.empty_table().map_err(rig)?;
        Ok(flushed.map_or((Duration::ZERO, None), |f| (f.took, f.entries)))
    }

    fn tracked(&mut self) -> Result<Option<u64>, TestbedError> {
        Ok(self.table().map_err(rig)?.map(|table| table.entries))
    }

    fn transfer(&mut self, transfer: &Transfer) -> Result<TransferOutcome, TestbedError> {
        // Taken in any case: a later transfer that answers the flows of this one must not forget them.
        let is_first = std::mem::take(&mut self.forget);
        let forget = transfer.forget || is_first;
        let let_through = |sending: &Option<Sending>| sending.clone().map(|s| self.let_through(s));
        let (mut egress, ingress) = (let_through(&transfer.egress), let_through(&transfer.ingress));
        if let Some(egress) = egress.as_mut().filter(|_| !self.timing.stamps()) {
            egress.stamp_every = 0;
        }
        let transfer = Transfer { egress, ingress, forget, drain: transfer.drain };
        if !self.path.packets.procedure.searches() {
            // The figures of the hosts are those of the one transfer that counts, which is the last one.
            let window = [&transfer.egress, &transfer.ingress].into_iter().flatten();
            let window = window.map(|s| s.limit.duration).max().unwrap_or_default();
            self.sampling.begin(Duration::ZERO, window).map_err(rig)?;
        } else if !self.sampling.runs() {
            self.sampling.begin(Duration::ZERO, Sampling::UNTIL_FINISHED).map_err(rig)?;
        }
        self.move_frames(&transfer).map_err(rig)
    }
}

fn rig(error: Error) -> TestbedError {
    TestbedError(Box::new(error))
}

/// The error that a procedure passed on.
pub(crate) fn cause(error: TestbedError) -> Error {
    match error.0.downcast::<Error>() {
        Ok(error) => *error,
        Err(other) => Error::Internal(other.to_string()),
    }
}

/// The destination ports of a workload on a variant that lets only some through: those of its own that are among them, or else all of
/// these.
pub(crate) fn passable(own: &RangeInclusive<u16>, open: Option<&RangeInclusive<u16>>) -> RangeInclusive<u16> {
    let Some(open) = open else { return own.clone() };
    let both = *own.start().max(open.start())..=*own.end().min(open.end());
    if both.is_empty() { open.clone() } else { both }
}

fn seen(source: Option<IpAddr>, expected: Option<IpAddr>) -> Result<(), String> {
    match (source, expected) {
        (Some(source), Some(expected)) if source != expected => Err(format!(
            "frames arrive from {source}, but with this variant in effect they would come from {expected}"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_was_not_translated_is_named() {
        let (inside, outside) = ("198.18.0.2".parse().ok(), "198.19.0.1".parse().ok());
        let reason = seen(inside, outside).unwrap_err();
        assert!(reason.contains("198.18.0.2") && reason.contains("198.19.0.1"), "{reason}");
        assert!(seen(outside, outside).is_ok());
        assert!(seen(inside, None).is_ok(), "nothing was promised");
    }

    #[test]
    fn only_ports_that_are_let_through_are_used() {
        assert_eq!(passable(&(1..=49151), None), 1..=49151);
        assert_eq!(passable(&(1..=49151), Some(&(21100..=21109))), 21100..=21109);
        assert_eq!(passable(&(21105..=30000), Some(&(21100..=21109))), 21105..=21109);
        assert_eq!(passable(&(80..=80), Some(&(21100..=21109))), 21100..=21109, "none in common");
    }

    #[test]
    fn an_error_comes_through_a_procedure_as_it_was() {
        let error = cause(rig(Error::Agent(remote::Error::Interrupted)));
        assert!(error.is_interrupted());
        let foreign = TestbedError("of a procedure".into());
        assert!(matches!(cause(foreign), Error::Internal(words) if words == "of a procedure"));
    }
}
