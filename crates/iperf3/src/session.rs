//! One session of the server.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use weir_load::sockets::TcpOptions;
use weir_sys::sched::{CpuUse, thread_cpu_use};
use weir_text::order;

use super::bounds::Taken;
use super::ended::{Asked, Ended};
use super::error::Error;
use super::ledger::{Ledger, cpu_percent};
use super::output;
use super::parameters::{NOT_UNDERSTOOD, Parameters, Refusal};
use super::progress::RunProgress;
use super::results::Results;
use super::shared::{Connections, Entry, Shared};
use super::streams::{Socket, Stream, Threads};
use super::turns::{Claim, UdpTurn};
use super::udp;
use super::wire::{Control, State, Woken};
use weir_netlink::Protocol;

/// Bytes of a client's parameters (MAX_PARAMS_JSON_STRING of newer versions).
const PARAMETERS_LIMIT: usize = 8192;

/// Bytes of a client's results: 256 streams are about 40 KiB.
const RESULTS_LIMIT: usize = 256 << 10;

/// Intervals in the output that a client asks for, times streams: five hours' of one, two minutes' of 128; 2 MB of text.
const KEPT: usize = 20_000;

/// Time that a client has to end its test after the due end; then the server dismisses it, as iperf3 does.
const GRACE: Duration = Duration::from_secs(40);

/// Keepalive that detects a client that has vanished: time without an answer before the first probe, time between probes, number
/// of probes.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(5), 3);

/// IESETCONGESTION.
const NO_CONGESTION: i32 = 134;

/// How long a test may take to open its UDP streams while another of the same address waits for its turn, and a client to take
/// long results.
const TURN: Duration = Duration::from_secs(30);

/// How long is waited for a stream before the control connection is looked at again.
const MOMENT: Duration = Duration::from_millis(20);

/// Time between intervals.
const SECOND: Duration = Duration::from_secs(1);

/// After the end of a test with a number of bytes, nothing is in flight any more if nothing came for this long ...
const QUIET: Duration = Duration::from_millis(25);

/// ... but if bytes are still missing, only after this long,
const MISSING: Duration = Duration::from_secs(1);

/// and in any case after this one.
const DRAIN: Duration = Duration::from_secs(5);

/// A session while it lasts.
pub(super) struct Session<'a> {
    shared: &'a Shared,
    entry: &'a Arc<Entry>,
    connections: Connections,
    control: Control,
    client: SocketAddr,
    patience: Duration,
    /// UDP streams that belong to no other session as long as it lasts.
    claims: Vec<Claim<'a>>,
}

impl<'a> Session<'a> {
    /// From the cookie, which was read, to the end.
    pub(super) fn run(
        shared: &'a Shared,
        entry: &'a Arc<Entry>,
        connections: Connections,
        stream: TcpStream,
        client: SocketAddr,
    ) -> Ended {
        let begun = Instant::now();
        let mut ended = Ended {
            client,
            test: None,
            received_bytes: 0,
            sent_bytes: 0,
            lost: None,
            seconds: 0.0,
            error: None,
        };
        let result = Control::new(stream, shared.stop.clone()).and_then(|control| {
            keep_alive(control.stream()).map_err(Error::io("prepare the control connection"))?;
            let patience = shared.limits.patience;
            let mut session =
                Session { shared, entry, connections, control, client, patience, claims: Vec::new() };
            let result = session.serve(&mut ended);
            if let Err(error) = &result {
                session.give_up(error);
            }
            result
        });
        Ended { seconds: begun.elapsed().as_secs_f64(), error: result.err(), ..ended }
    }

    /// Tell the client why, if it can still hear it.
    fn give_up(&mut self, error: &Error) {
        let soon = Duration::from_millis(200);
        match error {
            Error::Refused { code, .. } => {
                let mut bytes = vec![State::ServerError.byte()];
                bytes.extend_from_slice(&code.to_be_bytes());
                // errno: none.
                bytes.extend_from_slice(&[0; 4]);
                let _ = self.control.write(&bytes, soon, "tell the client why");
            }
            Error::Closed(_) | Error::ClientTerminated => {}
            _ => {
                let _ = self.control.write_state(State::ServerTerminate, soon);
            }
        }
    }

    fn serve(&mut self, ended: &mut Ended) -> Result<(), Error> {
        self.control.write_state(State::ParamExchange, self.patience)?;
        let asked = self.control.read_json(PARAMETERS_LIMIT, self.patience, "waiting for the parameters");
        let asked = match asked {
            Err(Error::Protocol(words)) => Err(Refusal::new(NOT_UNDERSTOOD, words)),
            other => Ok(other?),
        };
        let taken = asked
            .and_then(|asked| Taken::new(&self.shared.limits, self.client.ip(), &asked))
            .map_err(refused)?;
        let parameters = taken.parameters.clone();
        ended.test = Some(Asked {
            protocol: parameters.protocol,
            way: parameters.way,
            streams: parameters.streams,
            title: parameters.title.clone(),
        });
        let streams = self.streams(&parameters)?;
        self.control.write(
            &[State::TestStart.byte(), State::TestRunning.byte()],
            self.patience,
            "start the test",
        )?;
        self.test(taken, streams, ended)
    }

    /// Wait for all streams: those that the client sends on come first.
    fn streams(&mut self, p: &Parameters) -> Result<Vec<Stream>, Error> {
        let (shared, entry) = (self.shared, self.entry);
        let udp = p.protocol == Protocol::Udp;
        // Two other sessions may come before, each for as long as it may take while another one waits.
        let longest = 2 * TURN + self.patience;
        let mut turn =
            if udp { Some(shared.turns.wait(self.client.ip(), longest, &shared.stop)?) } else { None };
        let begun = Instant::now();
        entry.opening_tcp.store(!udp, Relaxed);
        self.control.write_state(State::CreateStreams, self.patience)?;
        let mut sockets: Vec<(u64, Socket)> = Vec::new();
        let mut until = Instant::now() + self.patience;
        while sockets.len() < p.all_streams() {
            let socket = match &mut turn {
                Some(turn) => self.greeted(p, turn, sockets.len())?,
                None => self.connected(p)?,
            };
            if let Some(socket) = socket {
                sockets.push(socket);
                until = Instant::now() + self.patience;
            } else if Instant::now() >= until {
                return Err(Error::Silent("waiting for the streams"));
            }
            if begun.elapsed() >= TURN && turn.as_ref().is_some_and(UdpTurn::is_awaited) {
                return Err(Error::Silent("waiting for the streams while another test of this client waits"));
            }
            if self.control.wait(None, Instant::now())? == Woken::Word {
                return Err(self.heard("while the streams were opened")?);
            }
        }
        entry.opening_tcp.store(false, Relaxed);
        if let Some(turn) = turn {
            turn.done();
        }
        order::by_key(&mut sockets, |(place, _)| *place);
        let stream = |(nth, (_, socket))| {
            let sends = !p.egress() || nth >= p.streams as usize;
            Stream::new(nth, sends, socket, p)
        };
        sockets.into_iter().enumerate().map(stream).collect()
    }

    /// Returns the error for a message that the client sends too early.
    fn heard(&mut self, what: &'static str) -> Result<Error, Error> {
        Ok(match self.control.read_state(self.patience, what)? {
            State::ClientTerminate => Error::ClientTerminated,
            other => Error::Protocol(format!("{what}: state {other:?}")),
        })
    }

    /// The next TCP stream and its place among them, if there is one within a moment.
    fn connected(&self, p: &Parameters) -> Result<Option<(u64, Socket)>, Error> {
        let (order, stream) = match self.connections.recv_timeout(MOMENT) {
            Ok(stream) => stream,
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            // The sender's end is in `entry`, which is ours too.
            Err(RecvTimeoutError::Disconnected) => return Err(Error::Stopped),
        };
        // The largest segment was agreed on in the handshake, out of what the client had set.
        let window_bytes = Some(p.window).filter(|w| *w > 0);
        let options = TcpOptions { window_bytes, nodelay: p.nodelay, ..TcpOptions::default() };
        options.apply(&stream).map_err(Error::io("set a stream's options"))?;
        if let Some(name) = &p.congestion {
            match sockopt::set_tcp_congestion(&stream, name) {
                Ok(()) => {}
                // iperf3 goes on with its own, and says in the results which.
                Err(rustix::io::Errno::NOENT) => {}
                Err(e) => return Err(Error::Refused { code: NO_CONGESTION, words: format!("{name}: {e}") }),
            }
        }
        Ok(Some((order, Socket::Tcp(stream))))
    }

    /// The next UDP stream, answered, if there is one within a moment. A client greets on the next one only after the answer.
    fn greeted(
        &mut self,
        p: &Parameters,
        turn: &mut UdpTurn<'_>,
        nth: usize,
    ) -> Result<Option<(u64, Socket)>, Error> {
        let Some((from, answer)) = turn.next(MOMENT)? else { return Ok(None) };
        let own = self.control.stream().local_addr().map_err(Error::io("look up the own address"))?.ip();
        // A copy of a greeting, made by the path or by a client that asked twice, is of a stream that has its session: this one,
        // or one before.
        let Some(claim) = self.shared.turns.claim(own, from) else { return Ok(None) };
        let open = || -> std::io::Result<UdpSocket> {
            let socket = self.shared.port.connected_udp_from(own, from)?;
            udp::prepare(p, &socket)?;
            socket.send(&answer)?;
            Ok(socket)
        };
        let socket = open().map_err(Error::io("open a UDP stream"))?;
        self.claims.push(claim);
        Ok(Some((nth as u64, Socket::Udp(socket))))
    }

    /// From the start to the end of the session.
    fn test(&mut self, taken: Taken, streams: Vec<Stream>, ended: &mut Ended) -> Result<(), Error> {
        let p = &*taken.parameters.clone();
        // A number of bytes is exact where nothing gets lost; otherwise the client says when it has enough.
        let goal = p.goal_bytes().filter(|_| p.protocol == Protocol::Tcp && p.omit_s == 0);
        let progress = Arc::new(RunProgress::new(goal, p.omit_s > 0)?);
        let begun = Instant::now();
        let own = thread_cpu_use();
        let ends = output::Ends { client: self.client, streams: output::addresses(&streams) };
        let congestion = streams.first().and_then(Stream::congestion);
        let keep = if p.get_server_output { KEPT } else { 0 };
        let mut ledger = Ledger::begin(streams.clone(), p.omit_s > 0, keep, begun);
        let threads = Threads::start(&streams, &taken.parameters, &progress)?;
        // From here on only the threads and the book have the sockets: they close with them.
        drop(streams);
        let result = self.measure(&taken, &progress, &mut ledger, begun);
        if result.is_ok() && goal.is_some() && p.egress() {
            drain(&progress, &ledger, &self.control)?;
        }
        let over = Instant::now();
        let mut used = threads.join();
        ledger.close(over);
        // Its sockets and threads are gone. Before the client hears of the end, so that its next test has room.
        drop(taken);
        ended.enter(&ledger, p);
        result?;
        let now = thread_cpu_use();
        used += CpuUse { user: now.user - own.user, system: now.system - own.system };
        let cpu = cpu_percent(used, over - begun);
        self.control.write_state(State::ExchangeResults, self.patience)?;
        let far = self.control.read_json(RESULTS_LIMIT, self.patience, "waiting for the client's results")?;
        Results::parse(&far).map_err(Error::Protocol)?;
        let output =
            p.get_server_output.then(|| output::output(p, &ends, &ledger, cpu, self.shared.json_output));
        let has_retransmits = p.protocol == Protocol::Tcp && p.ingress();
        let results = Results { cpu, has_retransmits, congestion, output, streams: ledger.results() };
        self.control.write_json(&results.to_json(), TURN, "send the results")?;
        self.control.write_state(State::DisplayResults, self.patience)?;
        // The client has all it wants: whether it says so does not matter.
        let _ = self.control.read_state(self.patience, "waiting for the end");
        Ok(())
    }

    /// Until the client says that it is over.
    fn measure(
        &mut self,
        taken: &Taken,
        progress: &RunProgress,
        ledger: &mut Ledger,
        begun: Instant,
    ) -> Result<(), Error> {
        let p = &taken.parameters;
        let omit = Duration::from_secs(p.omit_s.into());
        let mut omitting = !omit.is_zero();
        let length =
            if p.time_s > 0 { Duration::from_secs(p.time_s.into()) } else { self.shared.limits.duration };
        let mut end = begun + omit + length + GRACE;
        let mut failed = None;
        let mut tick = begun + SECOND;
        let mut moved = (0, begun);
        loop {
            let mut next = tick.min(end);
            if omitting {
                next = next.min(begun + omit);
            }
            match self.control.wait(Some(progress.bell()), next)? {
                Woken::Word => {
                    let what = "while the test ran";
                    return match self.control.read_state(self.patience, what)? {
                        State::TestEnd => Ok(()),
                        State::ClientTerminate => Err(Error::ClientTerminated),
                        other => Err(Error::Protocol(format!("{what}: state {other:?}"))),
                    };
                }
                Woken::Bell => {
                    progress.hear();
                    // The client may say in a moment that the test is over: then all is well.
                    if let Some(error) = progress.failure() {
                        failed.get_or_insert(error);
                        end = end.min(Instant::now() + SECOND);
                    }
                }
                Woken::Time => {}
            }
            let now = Instant::now();
            if now >= end {
                return Err(failed.unwrap_or(Error::Silent("waiting for the test's end")));
            }
            if omitting && now >= begun + omit {
                omitting = false;
                ledger.omit(now);
                progress.omitted();
                tick = now + SECOND;
            } else if now >= tick {
                ledger.tick(now);
                tick += SECOND;
                self.watch(ledger, now, &mut moved)?;
                taken.hold(ledger.moved_bytes(false), now - begun)?;
            }
        }
    }

    /// Fails if the client moves no data for too long.
    fn watch(&self, ledger: &Ledger, now: Instant, moved: &mut (u64, Instant)) -> Result<(), Error> {
        let all = ledger.moved_bytes(false) + ledger.moved_bytes(true);
        if all != moved.0 {
            *moved = (all, now);
        } else if now - moved.1 >= self.shared.limits.standstill {
            return Err(Error::Silent("waiting for data"));
        }
        Ok(())
    }
}

impl Ended {
    fn enter(&mut self, ledger: &Ledger, p: &Parameters) {
        self.received_bytes = ledger.counted_bytes(false);
        self.sent_bytes = ledger.counted_bytes(true);
        if p.protocol == Protocol::Udp && p.egress() {
            let own = ledger.totals().into_iter().filter(|t| !t.sends);
            let counts = own.map(|t| {
                let packets = t.counts.packets.saturating_sub(t.omitted.packets);
                (t.counts.lost.saturating_sub(t.omitted.lost), packets)
            });
            self.lost = counts.reduce(|a, b| (a.0 + b.0, a.1 + b.1));
        }
    }
}

/// Wait for the rest of so many bytes: the word that it is over may have overtaken them.
fn drain(progress: &RunProgress, ledger: &Ledger, control: &Control) -> Result<(), Error> {
    let begun = Instant::now();
    let mut last = (ledger.moved_bytes(false), begun);
    loop {
        // The bell is rung for what is looked at here anyway, and a client that hangs up is noticed by the next step.
        std::thread::sleep(Duration::from_millis(2));
        let now = Instant::now();
        let bytes = ledger.moved_bytes(false);
        if bytes != last.0 {
            last = (bytes, now);
        }
        let quiet = if progress.reached() { QUIET } else { MISSING };
        if now - last.1 >= quiet || now - begun >= DRAIN {
            return Ok(());
        }
        if control.stopped() {
            return Err(Error::Stopped);
        }
    }
}

fn refused(refusal: Refusal) -> Error {
    Error::Refused { code: refusal.code, words: refusal.words }
}

fn keep_alive(stream: &TcpStream) -> std::io::Result<()> {
    let (idle, interval, count) = KEEPALIVE;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, idle)?;
    sockopt::set_tcp_keepintvl(stream, interval)?;
    sockopt::set_tcp_keepcnt(stream, count)?;
    Ok(())
}
