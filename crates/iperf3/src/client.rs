//! The client: one test towards a stock iperf3 server, or a compatible one.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_load::sockets::{TcpOptions, connect_tcp, tcp_info};
use weir_sys::Stop;
use weir_sys::sched::{CpuUse, thread_cpu_use};

use super::datagram::{HELLO, WELCOMES};
use super::error::Error;
use super::ledger::{Interval, Ledger, cpu_percent};
use super::options::Options;
use super::parameters::{Parameters, UDP_LENGTH, UDP_LENGTHS, Way};
use super::progress::RunProgress;
use super::report::{Report, Total, pair, stream_report, total};
use super::results::{Cpu, Results, ServerOutput};
use super::streams::{Socket, Stream, Threads, plain};
use super::text::Lines;
use super::udp;
use super::wire::{Control, Cookie, State, Woken};
use weir_netlink::Protocol;

/// How long the server may take for its next word. A stock server waits that long for a client's too.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time between intervals.
const SECOND: Duration = Duration::from_secs(1);

/// Greetings of a UDP stream are repeated after this time, and each time after twice as long.
const GREET_AGAIN: Duration = Duration::from_secs(1);

/// Shortest and longest wait for data in flight after the last byte was sent. Then the client ends the test, and the server
/// counts nothing more.
const SETTLE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How long the far end's kernel may take to acknowledge the last of a given number of bytes.
const ACKNOWLEDGED: Duration = Duration::from_secs(30);

/// Bytes of a server's results, its own output among them, at most.
const RESULTS_LIMIT: usize = 16 << 20;

/// Intervals that a report has, times streams: a day's of eleven streams.
const KEPT: usize = 1_000_000;

/// An observer of the test's progress.
pub trait TestObserver {
    /// The streams are open: number, own address, far end's address, of each.
    fn begun(&mut self, lines: &Lines, streams: &[(i64, SocketAddr, SocketAddr)]);
    /// An interval is over.
    fn interval(&mut self, lines: &Lines, interval: &Interval);
}

/// Run one test. The server runs one at a time; who is refused may try again.
///
/// # Errors
/// Options out of range, no connection, what the server refuses, and `Stopped` once `stop` is raised.
pub fn run(
    options: &Options,
    target: SocketAddr,
    stop: &Stop,
    watch: &mut dyn TestObserver,
) -> Result<Report, Error> {
    let mut parameters = options.parameters()?;
    let connect = |source| Error::Connect { address: target, source };
    let stream =
        connect_tcp(target, &TcpOptions::default(), options.connect_timeout, stop).map_err(connect)?;
    let mut control = Control::new(stream, stop.clone())?;
    let cookie = Cookie::random().map_err(Error::io("read random numbers"))?;
    control.write(cookie.bytes(), PATIENCE, "greet the server")?;
    expect(&mut control, State::ParamExchange, "waiting to be let in")?;
    let path = Path::of(&control);
    if parameters.length == 0 {
        parameters.length =
            path.mss.map_or(UDP_LENGTH, |m| m.clamp(*UDP_LENGTHS.start(), *UDP_LENGTHS.end()));
    }
    control.write_json(&parameters.to_json(), PATIENCE, "send the parameters")?;
    expect(&mut control, State::CreateStreams, "waiting for the parameters to be taken").map_err(|e| match e {
        // A stock server that wants a user closes the connection.
        Error::Closed(_) => Error::Closed(
            "it did not take the parameters: it does not like one of the options, or wants a user and a password, which weir does \
             not send",
        ),
        other => other,
    })?;
    let test = Test { parameters: Arc::new(parameters), options, target, path, stop };
    let result =
        test.streams(&mut control, &cookie).and_then(|streams| test.run(&mut control, streams, watch));
    if matches!(result, Err(Error::Stopped)) {
        // The server's next client need not wait until it notices.
        let _ = control.write_state(State::ClientTerminate, SETTLE.1);
    }
    result
}

/// Wait for the server to go on to this state.
fn expect(control: &mut Control, wanted: State, what: &'static str) -> Result<(), Error> {
    match control.read_state(PATIENCE, what)? {
        state if state == wanted => Ok(()),
        other => Err(refusal(control, other, what)),
    }
}

/// Returns the error for a state that ends the test.
fn refusal(control: &mut Control, state: State, what: &'static str) -> Error {
    match state {
        State::AccessDenied => Error::Denied,
        State::ServerTerminate => Error::ServerTerminated,
        State::ServerError => {
            let numbers = control
                .read_number(PATIENCE, what)
                .and_then(|code| Ok((code, control.read_number(PATIENCE, what)?)));
            match numbers {
                Ok((code, errno)) => Error::Server { code, errno },
                Err(error) => error,
            }
        }
        other => Error::Protocol(format!("{what}: state {other:?}")),
    }
}

/// Path properties that the control connection knows.
#[derive(Debug, Clone, Copy)]
struct Path {
    mss: Option<u32>,
    mtu: Option<u32>,
    rtt: Duration,
}

impl Path {
    fn of(control: &Control) -> Path {
        let info = tcp_info(control.stream()).ok();
        let known = |value: u32| Some(value).filter(|v| *v > 0);
        Path {
            mss: info.and_then(|i| known(i.snd_mss)),
            mtu: info.and_then(|i| known(i.pmtu)),
            rtt: Duration::from_micros(info.map_or(0, |i| i.rtt_us.into())),
        }
    }
}

struct Test<'a> {
    parameters: Arc<Parameters>,
    options: &'a Options,
    target: SocketAddr,
    path: Path,
    stop: &'a Stop,
}

/// The remaining data of a test that has run.
struct Ran {
    streams: Vec<Stream>,
    ledger: Ledger,
    congestion: Option<String>,
    begun: Instant,
    used: CpuUse,
    /// How long what was on its way was waited for, while the server went on counting its seconds.
    waited: Duration,
}

impl Test<'_> {
    /// Open the streams: those that this end sends on first.
    fn streams(&self, control: &mut Control, cookie: &Cookie) -> Result<Vec<Stream>, Error> {
        let p = &self.parameters;
        let ways = [p.egress().then_some(true), p.ingress().then_some(false)];
        let mut streams = Vec::new();
        for sends in ways.into_iter().flatten() {
            for _ in 0..p.streams {
                let socket = match p.protocol {
                    Protocol::Tcp => Socket::Tcp(self.connect(cookie)?),
                    Protocol::Udp => Socket::Udp(self.greet(control)?),
                };
                streams.push(Stream::new(streams.len(), sends, socket, p)?);
            }
        }
        Ok(streams)
    }

    fn connect(&self, cookie: &Cookie) -> Result<std::net::TcpStream, Error> {
        let p = &self.parameters;
        let options = TcpOptions {
            congestion: p.congestion.clone().unwrap_or_default(),
            mss: u16::try_from(p.mss).ok().filter(|m| *m > 0),
            window_bytes: Some(p.window).filter(|w| *w > 0),
            nodelay: p.nodelay,
            ..TcpOptions::default()
        };
        let error = |source| Error::Connect { address: self.target, source };
        let mut stream =
            connect_tcp(self.target, &options, self.options.connect_timeout, self.stop).map_err(error)?;
        std::io::Write::write_all(&mut stream, cookie.bytes()).map_err(Error::io("greet on a stream"))?;
        Ok(stream)
    }

    /// A UDP stream's socket, greeted and answered.
    fn greet(&self, control: &mut Control) -> Result<UdpSocket, Error> {
        let error = |source| Error::Connect { address: self.target, source };
        let any: IpAddr = if self.target.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).map_err(error)?;
        socket.connect(self.target).map_err(error)?;
        udp::prepare(&self.parameters, &socket).map_err(Error::io("prepare a stream"))?;
        let until = Instant::now() + PATIENCE;
        let (mut next, mut pause) = (Instant::now(), GREET_AGAIN);
        while Instant::now() < until {
            // A second greeting, were the first only late, is a datagram that an iperf3 server takes for data: hence the pause.
            if Instant::now() >= next {
                socket.send(&HELLO).map_err(error)?;
                next = Instant::now() + pause;
                pause *= 2;
            }
            let mut answer = [0; 4];
            match socket.recv(&mut answer) {
                Ok(4) if WELCOMES.contains(&answer) => return Ok(socket),
                // With a server that sends, data may overtake its answer.
                Ok(_) => {}
                Err(e) if super::tcp::timed_out(&e) => {}
                Err(source) => return Err(error(source)),
            }
            if control.wait(None, Instant::now())? == Woken::Word {
                let what = "waiting for an answer to a UDP stream's greeting";
                let state = control.read_state(PATIENCE, what)?;
                return Err(refusal(control, state, what));
            }
        }
        Err(error(std::io::Error::new(
            std::io::ErrorKind::TimedOut,
            "the TCP port answers, but UDP to the same port gets no answer",
        )))
    }

    /// From the start to the results.
    fn run(
        &self,
        control: &mut Control,
        streams: Vec<Stream>,
        watch: &mut dyn TestObserver,
    ) -> Result<Report, Error> {
        expect(control, State::TestStart, "waiting for the streams to be taken")?;
        expect(control, State::TestRunning, "waiting for the start")?;
        let lines = self.lines();
        let addresses: Vec<_> = streams.iter().map(|s| (s.id, s.local, s.peer)).collect();
        watch.begun(&lines, &addresses);
        let p = &self.parameters;
        let progress = Arc::new(RunProgress::new(p.goal_bytes(), p.omit_s > 0)?);
        let begun = Instant::now();
        let own = thread_cpu_use();
        let mut ledger = Ledger::begin(streams.clone(), p.omit_s > 0, KEPT, begun);
        let mut threads = Threads::start(&streams, p, &progress)?;
        let mut tell = |interval: Option<Interval>| {
            if let Some(interval) = interval {
                watch.interval(&lines, &interval);
            }
        };
        self.measure(control, &progress, &mut ledger, begun, &mut tell)?;
        threads.end_sending();
        let sent = Instant::now();
        ledger.sent(sent);
        let congestion = streams.first().and_then(Stream::congestion);
        self.settle(control, &streams)?;
        tell(ledger.close(Instant::now()));
        let waited = sent.elapsed();
        control.write_state(State::TestEnd, PATIENCE)?;
        // Receivers go on: a server that is in the middle of a write hears nothing before that is done.
        expect(control, State::ExchangeResults, "waiting for the end")?;
        let mut used = threads.join();
        let now = thread_cpu_use();
        used += CpuUse { user: now.user - own.user, system: now.system - own.system };
        self.conclude(control, Ran { streams, ledger, congestion, begun, used, waited })
    }

    /// Until the time is over or the goal is reached.
    fn measure(
        &self,
        control: &mut Control,
        progress: &RunProgress,
        ledger: &mut Ledger,
        begun: Instant,
        tell: &mut dyn FnMut(Option<Interval>),
    ) -> Result<(), Error> {
        let omit = Duration::from_secs(self.parameters.omit_s.into());
        let mut omitting = !omit.is_zero();
        let end = self.options.time().map(|time| begun + omit + time);
        let mut tick = begun + SECOND;
        loop {
            let mut next = tick;
            if omitting {
                next = next.min(begun + omit);
            }
            if let Some(end) = end {
                next = next.min(end);
            }
            match control.wait(Some(progress.bell()), next)? {
                Woken::Bell => {
                    if let Some(error) = progress.failure() {
                        return Err(self.why(control, error));
                    }
                    return Ok(());
                }
                Woken::Word => {
                    let what = "while the test ran";
                    let state = control.read_state(PATIENCE, what)?;
                    return Err(refusal(control, state, what));
                }
                Woken::Time => {}
            }
            let now = Instant::now();
            if omitting && now >= begun + omit {
                omitting = false;
                tell(Some(ledger.omit(now)));
                progress.omitted();
                tick = now + SECOND;
            } else if end.is_some_and(|end| now >= end) {
                return Ok(());
            } else if now >= tick {
                tell(Some(ledger.tick(now)));
                tick += SECOND;
            }
        }
    }

    /// A stream that broke off usually has its reason on the control connection.
    fn why(&self, control: &mut Control, error: Error) -> Error {
        let what = "after a stream broke off";
        match control.wait(None, Instant::now() + SETTLE.1) {
            Ok(Woken::Word) => match control.read_state(SETTLE.1, what) {
                Ok(state) => refusal(control, state, what),
                Err(_) => error,
            },
            _ => error,
        }
    }

    /// Waits for data in flight, if it would otherwise look like a loss, or if the test has a number of bytes.
    fn settle(&self, control: &mut Control, streams: &[Stream]) -> Result<(), Error> {
        let p = &self.parameters;
        let counts = p.goal_bytes().is_some() || p.protocol == Protocol::Udp;
        if !p.egress() || !counts {
            return Ok(());
        }
        let until = Instant::now() + ACKNOWLEDGED;
        let pending =
            |s: &Stream| s.sends && s.info().is_some_and(|i| i.unacked + i.notsent_bytes > 0 && i.state == 1);
        while streams.iter().any(pending) && Instant::now() < until {
            if control.wait(None, Instant::now() + Duration::from_millis(2))? == Woken::Word {
                return Ok(());
            }
        }
        control.wait(None, Instant::now() + (self.path.rtt * 2).clamp(SETTLE.0, SETTLE.1)).map(drop)
    }

    fn conclude(&self, control: &mut Control, ran: Ran) -> Result<Report, Error> {
        let cpu = cpu_percent(ran.used, ran.begun.elapsed());
        let congestion = ran.congestion.clone();
        let has_retransmits = self.parameters.protocol == Protocol::Tcp && self.parameters.egress();
        let results =
            Results { cpu, has_retransmits, congestion, output: None, streams: ran.ledger.results() };
        control.write_json(&results.to_json(), PATIENCE, "send the results")?;
        let far = control.read_json(RESULTS_LIMIT, PATIENCE, "waiting for the server's results")?;
        let far = Results::parse(&far).map_err(Error::Protocol)?;
        expect(control, State::DisplayResults, "waiting for the end")?;
        control.write_state(State::Done, PATIENCE)?;
        // A stock server takes the next test only after it has put this one away: its closing is waited for, not needed.
        let _ = control.wait(None, Instant::now() + SETTLE.1);
        self.report(ran, far, cpu)
    }

    fn report(&self, ran: Ran, far: Results, cpu: Cpu) -> Result<Report, Error> {
        let p = &self.parameters;
        let totals = ran.ledger.totals();
        let seconds = ran.ledger.seconds();
        let paired = pair(&totals, &far).map_err(Error::Protocol)?;
        let of = |((own, far), stream)| stream_report(p.protocol, stream, own, far, ran.waited);
        let streams: Vec<_> = totals.iter().zip(paired).zip(&ran.streams).map(of).collect();
        let mut report = Report {
            target: plain(self.target),
            protocol: p.protocol,
            way: p.way,
            length: p.length,
            target_bps: Some(p.rate_bps).filter(|r| *r > 0),
            seconds,
            omitted_s: p.omit_s,
            egress: total(&streams, Way::Egress),
            ingress: total(&streams, Way::Ingress),
            streams,
            intervals: ran.ledger.intervals().to_vec(),
            cpu,
            server_cpu: far.cpu,
            congestion: ran.congestion,
            server_congestion: far.congestion,
            // Servers have been seen to send it because the test before asked for it.
            server_output: far.output.filter(|_| p.get_server_output),
            notes: Vec::new(),
        };
        self.notes(&mut report);
        Ok(report)
    }

    fn notes(&self, report: &mut Report) {
        let ipv4 = report.target.is_ipv4();
        for (way, total) in [("egress", &report.egress), ("ingress", &report.ingress)] {
            let Some(total) = total else { continue };
            let Some(datagrams) = &total.receiver.datagrams else { continue };
            let sent = total.sender.packets.unwrap_or(0);
            if datagrams.packets == 0 && sent > 0 {
                report.notes.push(format!("none of {sent} datagrams arrived ({way})"));
            }
            if let Some((asked, sent)) = short_of_rate(&self.parameters, total) {
                report.notes.push(format!(
                    "{:.2} of {:.2} Mbits/sec that were asked for were sent ({way}): the sending end could not do more",
                    sent / 1e6,
                    asked / 1e6
                ));
            }
            // IP and UDP headers; RFC 791, RFC 8200, RFC 768.
            let headers = if ipv4 { 28 } else { 48 };
            if let Some(mtu) = self.path.mtu.filter(|mtu| report.length + headers > *mtu) {
                report.notes.push(format!(
                    "each datagram of {} bytes ({way}) went as fragments over a path MTU of {mtu}; paths that drop fragments lose \
                     all of them: compare with --length {}",
                    report.length,
                    mtu.saturating_sub(headers)
                ));
            }
            if let Some(dropped) = datagrams.dropped_by_receiver.filter(|n| *n > 0) {
                report.notes.push(format!(
                    "{dropped} of the lost datagrams were dropped here, by the receiving socket's own full buffer"
                ));
            }
        }
        let asked = self.parameters.get_server_output;
        if asked && report.server_output.is_none() {
            report.notes.push("the server sent no output of its own".into());
        }
    }

    fn lines(&self) -> Lines {
        let p = &self.parameters;
        Lines { protocol: p.protocol, both: p.way == Way::Both, client: true, title: p.title.clone() }
    }
}

/// Bit rates of datagrams asked for and sent, where the sender fell short of them by more than 2 % in a second or more.
fn short_of_rate(p: &Parameters, total: &Total) -> Option<(f64, f64)> {
    let asked = p.rate_bps as f64 * f64::from(p.streams);
    let judged = p.goal_bytes().is_none() && total.sender.seconds >= 1.0;
    (judged && total.sender.bps < 0.98 * asked - 8.0 * f64::from(p.length))
        .then_some((asked, total.sender.bps))
}

impl ServerOutput {
    /// For a terminal: line by line, without what it would obey.
    pub fn printable(&self) -> String {
        let text = match self {
            ServerOutput::Text(text) => text.clone(),
            ServerOutput::Json(value) => format!("{value:#}"),
        };
        weir_text::escape::block(&text)
    }
}
