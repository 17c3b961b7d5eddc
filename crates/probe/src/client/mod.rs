//! The client: one conversation with a server, any number of measurements one after the other.

mod local;
pub mod nat;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use weir_load::sockets::{TcpOptions, connect_tcp};
use weir_load::{FlowFigures, Observer, Part, Stop, TrialSettings, Workload};

use crate::frame::{self, Line, MOST_FROM_SERVER};
use crate::key::{self, End, Key, Nonce};
use crate::message::{Ask, OPENING, Tell, VERSION};

pub use local::alone;
pub use nat::NatCheck;

/// How long a server may take for a word.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time between two looks at the server and at the watch.
const LOOK: Duration = Duration::from_millis(50);

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address does not answer.
    #[error("cannot connect to {0}: {1}")]
    Connect(SocketAddr, io::Error),
    /// Something answers, but not `weir serve`.
    #[error("{0} is not a weir server, or one of another version: {1}")]
    Stranger(SocketAddr, frame::Error),
    /// The versions differ.
    #[error(
        "the server at {0} speaks version {1} of the protocol, this weir version {VERSION}: use the same weir at both ends"
    )]
    Version(SocketAddr, u32),
    /// The server wants a key.
    #[error("the server at {0} wants a key: --key-file, or WEIR_KEY")]
    KeyWanted(SocketAddr),
    /// The client has a key, and the server has none: another program may be in its place.
    #[error("the server at {0} did not prove to have the key")]
    KeyUnproved(SocketAddr),
    /// The server does not want to.
    #[error("the server says: {0}")]
    Refused(String),
    /// The server is gone, or does not keep to the protocol.
    #[error("the server is gone: {0}")]
    Gone(frame::Error),
    /// This end failed.
    #[error(transparent)]
    Load(#[from] weir_load::Error),
    /// This end failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// One measurement, as both ends saw it.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The workload as it ran; the server's limits may have changed it.
    pub workload: Workload,
    /// The changes by the server's limits, in words.
    pub notes: Vec<String>,
    /// Metrics, histograms, series and faults of both ends together.
    pub trial: Part,
    /// Measurements of this end.
    pub near: Part,
    /// Measurements of the far end, if it is a weir server.
    pub far: Option<Part>,
    /// Each stream as this end saw it.
    pub near_flows: Vec<FlowFigures>,
    /// Each stream as the far end saw it.
    pub far_flows: Vec<FlowFigures>,
}

/// Figures of a running measurement.
#[derive(Debug, Default)]
pub struct LiveSnapshot {
    /// Since the first connection was about to be opened.
    pub elapsed: Duration,
    /// Each stream at this end so far.
    pub near: Vec<FlowFigures>,
    /// Each stream at the far end, as it said last, at most a second ago.
    pub far: Vec<FlowFigures>,
    /// Times of operations since the last snapshot, ns.
    pub times: Vec<u64>,
}

/// Someone who looks on while a measurement runs.
pub type OnSnapshot<'a> = &'a mut dyn FnMut(LiveSnapshot);

/// How long.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// Traffic before the measuring window.
    pub warmup: Duration,
    /// The measuring window.
    pub duration: Duration,
}

/// A conversation with a server.
#[derive(Debug)]
pub struct Visit {
    socket: TcpStream,
    server: SocketAddr,
    program: String,
}

impl Visit {
    /// Connect, and prove the key to each other if there is one.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn begin(server: SocketAddr, key: Option<&Key>, stop: &Stop) -> Result<Visit, Error> {
        let socket = connect_tcp(server, &TcpOptions::default(), PATIENCE, stop)
            .map_err(|e| Error::Connect(server, e))?;
        // Until the welcome it may be any program that listens there.
        let stranger = |error| match error {
            Error::Gone(e) => Error::Stranger(server, e),
            other => other,
        };
        let line = Line::new(&socket, MOST_FROM_SERVER)?;
        let ours: Nonce = key::random()?;
        line.send(&OPENING, PATIENCE).map_err(|e| Error::Stranger(server, e))?;
        let program = concat!("weir ", env!("CARGO_PKG_VERSION")).to_owned();
        let hello = Ask::Hello { version: VERSION, nonce: key::to_hex(&ours), program };
        say(&line, &hello).map_err(stranger)?;
        let (theirs, keyed) = match hear(&line).map_err(stranger)? {
            Tell::Challenge { version, .. } if version != VERSION => {
                return Err(Error::Version(server, version));
            }
            Tell::Challenge { nonce, keyed, .. } => (nonce, keyed),
            _ => return Err(stranger(out_of_turn())),
        };
        let theirs: Nonce = key::from_hex(&theirs).ok_or_else(|| stranger(out_of_turn()))?;
        match (key, keyed) {
            (None, true) => return Err(Error::KeyWanted(server)),
            // A key is meant to say who the server is, too.
            (Some(_), false) => return Err(Error::KeyUnproved(server)),
            (Some(key), true) => {
                let proof = key.prove(End::Client, &ours, &theirs);
                say(&line, &Ask::Prove { proof }).map_err(stranger)?;
            }
            (None, false) => {}
        }
        let Tell::Welcome { proof, program } = hear(&line).map_err(stranger)? else {
            return Err(stranger(out_of_turn()));
        };
        let proved = |key: &Key| proof.is_some_and(|p| key.verify(&p, End::Server, &ours, &theirs));
        if key.is_some_and(|key| !proved(key)) {
            return Err(Error::KeyUnproved(server));
        }
        Ok(Visit { socket, server, program })
    }

    fn line(&self) -> io::Result<Line<'_>> {
        Line::new(&self.socket, MOST_FROM_SERVER)
    }

    /// Name and version of the server's program; from outside, so not for a terminal as it is.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// The address of this end, as this host has it.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn own_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// One measurement on new connections. A raised `stop` ends it early, and what was seen until then is returned.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn measure(
        &mut self,
        workload: &Workload,
        span: Span,
        stop: &Stop,
        watch: OnSnapshot<'_>,
    ) -> Result<Measured, Error> {
        let line = self.line()?;
        let milliseconds = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        let open = Ask::Open {
            workload: Box::new(workload.clone()),
            warmup_ms: milliseconds(span.warmup),
            duration_ms: milliseconds(span.duration),
        };
        say(&line, &open)?;
        let Tell::Opened { cookie, workload, notes } = hear(&line)? else { return Err(out_of_turn()) };
        let observer = Observer::watched();
        let ended = Stop::default();
        let setting = TrialSettings {
            stop: ended.clone(),
            observer: observer.clone(),
            handshake: true,
            ..TrialSettings::new(span.warmup, span.duration, cookie)
        };
        let mut trial =
            RunningTrial { line: &line, stop, ended: &ended, observer: &observer, watch, far: Vec::new() };
        let near = trial.run(|| workload.engine().drive(&setting, self.server))?;
        let (far, far_flows) = trial.finish()?;
        Ok(Measured {
            trial: workload.engine().combine(std::slice::from_ref(&near), std::slice::from_ref(&far)),
            near,
            far: Some(far),
            near_flows: observer.flows(),
            far_flows,
            workload: *workload,
            notes,
        })
    }
}

fn out_of_turn() -> Error {
    Error::Gone(frame::Error::Malformed("it answered out of turn".into()))
}

fn say(line: &Line<'_>, ask: &Ask) -> Result<(), Error> {
    line.say(ask, PATIENCE).map_err(Error::Gone)
}

/// The next message of a server; a refusal is an error.
fn hear(line: &Line<'_>) -> Result<Tell, Error> {
    match line.hear(PATIENCE).map_err(Error::Gone)? {
        Tell::Refused { reason } => Err(Error::Refused(reason)),
        tell => Ok(tell),
    }
}

/// Drives in a thread of its own, and looks around meanwhile.
fn drive_beside(
    drive: impl FnOnce() -> Result<Part, weir_load::Error> + Send,
    mut look: impl FnMut(),
) -> io::Result<Result<Part, weir_load::Error>> {
    std::thread::scope(|scope| {
        let (done, result) = channel();
        std::thread::Builder::new().name("drive".into()).spawn_scoped(scope, move || {
            // The receiver lives until the thread is done.
            let _ = done.send(drive());
        })?;
        loop {
            match result.recv_timeout(LOOK) {
                Ok(part) => return Ok(part),
                Err(RecvTimeoutError::Timeout) => look(),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("the measuring thread is gone"));
                }
            }
        }
    })
}

impl LiveSnapshot {
    fn taken(begun: Instant, observer: &Observer, far: Vec<FlowFigures>) -> Self {
        LiveSnapshot { elapsed: begun.elapsed(), near: observer.flows(), far, times: observer.take_times() }
    }
}

/// A measurement under way.
struct RunningTrial<'a, 'w> {
    line: &'a Line<'a>,
    /// The user's.
    stop: &'a Stop,
    /// The driver's.
    ended: &'a Stop,
    observer: &'a Observer,
    watch: OnSnapshot<'w>,
    far: Vec<FlowFigures>,
}

impl RunningTrial<'_, '_> {
    /// Drives, and looks after the server and the watch meanwhile.
    fn run(&mut self, drive: impl FnOnce() -> Result<Part, weir_load::Error> + Send) -> Result<Part, Error> {
        let begun = Instant::now();
        let mut cut = None;
        let part = drive_beside(drive, || {
            self.snapshot(begun);
            if cut.is_none()
                && let Err(e) = self.listen()
            {
                cut = Some(e);
                self.ended.raise();
            }
            if self.stop.raised() {
                self.ended.raise();
            }
        })?;
        self.snapshot(begun);
        // Why the server left says more than that its connections broke.
        cut.map_or(part.map_err(Error::Load), Err)
    }

    fn snapshot(&mut self, begun: Instant) {
        (self.watch)(LiveSnapshot::taken(begun, self.observer, self.far.clone()));
    }

    /// Reads the messages that the server has sent meanwhile.
    fn listen(&mut self) -> Result<(), Error> {
        while self.line.await_word(Duration::ZERO)? {
            let Tell::Live { flows } = hear(self.line)? else { return Err(out_of_turn()) };
            self.far = flows;
        }
        Ok(())
    }

    /// Ask for what the server saw.
    fn finish(&mut self) -> Result<(Part, Vec<FlowFigures>), Error> {
        say(self.line, &Ask::Finish)?;
        loop {
            match hear(self.line)? {
                Tell::Live { .. } => {}
                Tell::Seen { part, flows } => return Ok((*part, flows)),
                _ => return Err(out_of_turn()),
            }
        }
    }
}
