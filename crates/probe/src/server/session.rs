//! One client, from its opening bytes to its end.

use std::collections::HashSet;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_load::incoming::handover;
use weir_load::limits::{Admission, Refused, Reserved};
use weir_load::properties::Rate;
use weir_load::{FlowFigures, Observer, Part, TrialSettings, Workload};

use super::bounds::{Fit, fit};
use super::cut::{Cut, refused};
use super::rate_watch::RateWatch;
use super::shared::{OpenLine, OpenTrial, Shared, TrialSlot};
use super::standstill::Standstill;
use super::{Config, Note, nat};
use crate::frame::{Error, Line, MOST_FROM_CLIENT};
use crate::key::{self, End, Nonce};
use crate::message::{Ask, OPENING, Tell, VERSION};

/// How long after its window a client may take for the last of it: handshakes before, drains after.
const SLACK: Duration = Duration::from_secs(15);

/// Time between two looks at a measurement, and between two reports to the client.
const TICK: Duration = Duration::from_secs(1);

/// Longest name of a client's program that is kept.
const PROGRAM: usize = 100;

/// Serve a client until it goes, or has to.
pub(super) fn serve(shared: &Arc<Shared>, connection: TcpStream, peer: SocketAddr, place: Admission) {
    let socket = Arc::new(connection);
    let Some(open) = shared.open_line(socket.clone(), place) else { return };
    let begun = Instant::now();
    let mut session = Session { shared, socket: &socket, open: &open, peer, program: None };
    let ended = match Line::new(&socket, MOST_FROM_CLIENT) {
        Ok(line) => session.run(&line),
        Err(e) => Err(e.into()),
    };
    let Err(mut end) = ended else { return };
    if open.lost_its_place() {
        end = Cut {
            words: "made room for another client: it had not shown the key".into(),
            tell: false,
            logged: false,
        };
    }
    if end.tell
        && let Ok(line) = Line::new(&socket, MOST_FROM_CLIENT)
    {
        // It may have gone meanwhile.
        let _ = line.say(&Tell::Refused { reason: end.words.clone() }, shared.limits.patience);
        empty(&socket);
    }
    if !end.logged {
        shared.note(&session.note(begun, None, &[], &end.words));
    }
}

/// Discards received bytes that the server will not read. Otherwise closing would reset the connection (RFC 2525 section 2.17),
/// and the client might never read the reason. Stops after one message's worth if the client keeps sending.
fn empty(mut socket: &TcpStream) {
    let mut rest = [0; 4096];
    let mut left = MOST_FROM_CLIENT;
    while let Ok(n @ 1..) = socket.read(&mut rest)
        && let Some(fewer) = left.checked_sub(n)
    {
        left = fewer;
    }
}

/// Server resources that a measurement reserves until this is dropped.
struct Taken {
    _memory: Reserved,
    rate: Option<Reserved>,
}

struct Session<'a> {
    shared: &'a Arc<Shared>,
    socket: &'a TcpStream,
    open: &'a OpenLine,
    peer: SocketAddr,
    program: Option<String>,
}

impl Session<'_> {
    /// Until the client goes, which is no error between two measurements.
    fn run(&mut self, line: &Line<'_>) -> Result<(), Cut> {
        self.welcome(line)?;
        loop {
            if !line.await_word(self.shared.limits.idle)? {
                return Err(refused(format!("idle for {} s", self.shared.limits.idle.as_secs())));
            }
            match line.hear(self.shared.limits.patience) {
                Ok(Ask::Open { workload, warmup_ms, duration_ms }) => {
                    let (warmup, duration) =
                        (Duration::from_millis(warmup_ms), Duration::from_millis(duration_ms));
                    self.measure(line, *workload, warmup, duration)?;
                }
                Ok(Ask::NatOpen {}) => self.check_nat(line)?,
                Ok(_) => return Err(refused("expected what to measure")),
                Err(Error::Closed) => return Ok(()),
                // A client that was killed resets its connection.
                Err(Error::Io(e)) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Hello, and the key.
    fn welcome(&mut self, line: &Line<'_>) -> Result<(), Cut> {
        let Config { key, .. } = &self.shared.config;
        let patience = self.shared.limits.patience;
        if line.take::<8>(patience)? != OPENING {
            return Err(refused("expected the opening"));
        }
        let Ask::Hello { version, nonce: theirs, program } = line.hear(patience)? else {
            return Err(refused("expected hello"));
        };
        self.program = Some(program.chars().take(PROGRAM).collect());
        if version != VERSION {
            return Err(refused(format!(
                "this server speaks version {VERSION}, the client version {version}"
            )));
        }
        let Some(theirs) = key::from_hex::<32>(&theirs) else {
            return Err(refused("expected a nonce of 32 bytes"));
        };
        let ours: Nonce = key::random()?;
        let nonce = key::to_hex(&ours);
        line.say(&Tell::Challenge { version: VERSION, nonce, keyed: key.is_some() }, patience)?;
        let mut proof = None;
        if let Some(key) = key {
            match line.hear(patience)? {
                Ask::Prove { proof } if key.verify(&proof, End::Client, &theirs, &ours) => {}
                Ask::Prove { .. } => return Err(refused("the key is not this server's")),
                _ => return Err(refused("this server wants a key: --key-file, or WEIR_KEY")),
            }
            proof = Some(key.prove(End::Server, &theirs, &ours));
        }
        if !self.open.welcome() {
            return Err(Error::Closed.into());
        }
        let program = concat!("weir ", env!("CARGO_PKG_VERSION")).to_owned();
        Ok(line.say(&Tell::Welcome { proof, program }, patience)?)
    }

    /// Runs one measurement. A faulty request alone does not end the session.
    fn measure(
        &self,
        line: &Line<'_>,
        workload: Workload,
        warmup: Duration,
        duration: Duration,
    ) -> Result<(), Cut> {
        let patience = self.shared.limits.patience;
        let begun = Instant::now();
        let limits = &self.shared.limits;
        let fit = fit(limits, workload, warmup, duration).and_then(|fit| {
            let memory = limits
                .reserve(self.peer.ip(), fit.served.streams, fit.served.memory_bytes)
                .map_err(|e| e.to_string())?;
            let rate = self.reserve_rate(fit.rate).map_err(|e| e.to_string())?;
            Ok((fit, Taken { _memory: memory, rate }))
        });
        let (mut fit, taken) = match fit {
            Ok(fits) => fits,
            Err(reason) => {
                self.shared.note(&self.note(begun, None, &[], &reason));
                return Ok(line.say(&Tell::Refused { reason }, patience)?);
            }
        };
        if let (Rate::Elastic, Some(rate)) = (fit.rate, &taken.rate) {
            hold_to(&mut fit, rate.rate_bps());
        }
        let words = fit.workload.engine().describe();
        let observer = Observer::watched();
        let result = self.run_trial(line, fit, taken, (warmup, duration), &observer);
        let end = match &result {
            Ok(()) => "done",
            Err(end) => &end.words,
        };
        self.shared.note(&self.note(begun, Some(words), &observer.flows(), end));
        result.map_err(|end| Cut { logged: true, ..end })
    }

    /// Serves one NAT check.
    fn check_nat(&self, line: &Line<'_>) -> Result<(), Cut> {
        let begun = Instant::now();
        let own = self.socket.local_addr()?.ip();
        let ended = match self.shared.nat.get() {
            Some(pool) => {
                let keyed = self.shared.config.key.is_some();
                let check =
                    nat::Check { limits: &self.shared.limits, pool, client: self.peer.ip(), own, keyed };
                check.run(line, self.socket)
            }
            None => Ok(nat::Ended::Refused("NAT checks are not served here: --nat-address".into())),
        };
        let (bytes, end, result) = match ended {
            Ok(nat::Ended::Done(bytes)) => (bytes, "done".to_owned(), Ok(())),
            Ok(nat::Ended::Refused(reason)) => {
                let told = line.say(&Tell::Refused { reason: reason.clone() }, self.shared.limits.patience);
                ((0, 0), reason, told.map_err(Cut::from))
            }
            Err(cut) => ((0, 0), cut.words.clone(), Err(cut)),
        };
        let (received_bytes, sent_bytes) = bytes;
        let note = self.note(begun, Some("NAT check".to_owned()), &[], &end);
        self.shared.note(&Note { received_bytes, sent_bytes, ..note });
        result.map_err(|end| Cut { logged: true, ..end })
    }

    /// Reserves the measurement's part of the client's rate and of the total rate.
    fn reserve_rate(&self, rate: Rate) -> Result<Option<Reserved>, Refused> {
        let limits = &self.shared.limits;
        match rate {
            Rate::Little => Ok(None),
            Rate::Named(bps) => limits.reserve_rate(self.peer.ip(), bps).map(Some),
            Rate::Elastic | Rate::Inelastic => limits.reserve_rate_left(self.peer.ip()),
        }
    }

    fn run_trial(
        &self,
        line: &Line<'_>,
        fit: Fit,
        taken: Taken,
        (warmup, duration): (Duration, Duration),
        observer: &Observer,
    ) -> Result<(), Cut> {
        let patience = self.shared.limits.patience;
        let own = self.socket.local_addr()?.ip();
        let cookie = u64::from_be_bytes(key::random()?);
        let setting =
            TrialSettings { observer: observer.clone(), ..TrialSettings::new(warmup, duration, cookie) };
        let (handover, queue) = handover(self.shared.port.address().port())?;
        let responder = fit.workload.engine().serve(&setting, queue).map_err(|e| refused(e.to_string()))?;
        let most_bps =
            self.shared.limits.most_bps().map(|most| taken.rate.as_ref().map_or(most, Reserved::rate_bps));
        let pacing = most_bps.map(|bps| {
            let each = bps / 8.0 / f64::from(fit.served.connections.unwrap_or(1).max(1));
            // The option is signed here, and at 17 Gbit/s a limit is none.
            each.min(f64::from(i32::MAX)) as u32
        });
        let left = fit.served.connections.map(|n| n + fit.served.controls);
        let handshake = fit.served.datagrams;
        let trial = TrialSlot { handover, own, left, came: 0, peers: HashSet::new(), pacing, handshake };
        let begun = Instant::now();
        let rate = RateWatch::new(most_bps, fit.served.write_bytes, is_paced(&fit.workload), begun);
        let standstill = Standstill::new(self.shared.limits.standstill, &fit.served, begun);
        let open = self.shared.open_trial(cookie, trial);
        let opened = Tell::Opened { cookie, workload: Box::new(fit.workload), notes: fit.notes };
        line.say(&opened, patience)?;
        let mut watch = TrialWatch { open: &open, observer, rate, standstill };
        self.await_finish(line, warmup + duration + SLACK, &mut watch)?;
        let mut part = responder.finish().map_err(|e| refused(e.to_string()))?;
        // Before the client hears of the end, so that its next measurement has room.
        drop((open, taken));
        finite(&mut part);
        Ok(line.say(&Tell::Seen { part: Box::new(part), flows: observer.flows() }, patience)?)
    }

    /// Until the client says that it is done, with a word to it every second.
    fn await_finish(
        &self,
        line: &Line<'_>,
        longest: Duration,
        watch: &mut TrialWatch<'_>,
    ) -> Result<(), Cut> {
        let patience = self.shared.limits.patience;
        let begun = Instant::now();
        loop {
            if line.await_word(TICK)? {
                return match line.hear(patience)? {
                    Ask::Finish => Ok(()),
                    _ => Err(refused("expected finish")),
                };
            }
            if begun.elapsed() > longest {
                return Err(refused(format!("not done after {:.0} s", longest.as_secs_f64())));
            }
            let flows = watch.look()?;
            line.say(&Tell::Live { flows }, patience)?;
        }
    }

    fn note(&self, begun: Instant, workload: Option<String>, flows: &[FlowFigures], end: &str) -> Note {
        let bytes = |sends| flows.iter().filter(|f| f.sends == sends).map(|f| f.bytes).sum();
        Note {
            peer: SocketAddr::new(self.peer.ip().to_canonical(), self.peer.port()),
            program: self.program.clone(),
            workload,
            seconds: begun.elapsed().as_secs_f64(),
            received_bytes: bytes(false),
            sent_bytes: bytes(true),
            end: end.to_owned(),
        }
    }
}

/// State that is checked while a measurement runs.
struct TrialWatch<'a> {
    open: &'a OpenTrial<'a>,
    observer: &'a Observer,
    rate: RateWatch,
    standstill: Standstill,
}

impl TrialWatch<'_> {
    /// Reads and checks the flows so far.
    fn look(&mut self) -> Result<Vec<FlowFigures>, Cut> {
        let (flows, now) = (self.observer.flows(), Instant::now());
        self.rate
            .check(&flows, now)
            .map_err(|e| refused(format!("{:.0} bit/s: the server allows {} bit/s", e.bps, e.most_bps)))?;
        match self.standstill.is_over(&flows, self.open.came(), now) {
            Some(still) => Err(refused(format!("nothing has moved for {:.0} s", still.as_secs_f64()))),
            None => Ok(flows),
        }
    }
}

/// Make both ends keep to what was left.
fn hold_to(fit: &mut Fit, bps: f64) {
    if let Workload::TcpStream(work) = &mut fit.workload {
        work.rate_bps = Some(bps);
        fit.notes.push(format!("the server allows {bps} bit/s in each direction at the moment"));
    }
}

fn is_paced(workload: &Workload) -> bool {
    matches!(workload, Workload::TcpStream(_))
}

/// JSON has no infinities: a value that came of dividing by nothing is left out, as one that was not measured.
fn finite(part: &mut Part) {
    part.values.retain(|_, v| v.is_finite());
}
