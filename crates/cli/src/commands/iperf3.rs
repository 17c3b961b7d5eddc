//! `weir probe --iperf3`: a test towards a stock iperf3 server.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;
use weir_iperf3::client::{self, TestObserver};
use weir_iperf3::{End, Error, Interval, Lines, Options, Protocol, Report, Total, Way};
use weir_load::Stop;

use super::wait_until;
use crate::args::probe::{Mode, ProbeArgs};
use crate::documents::{Document, Kind, print_json, print_line};
use crate::exit::{CommandResult, Failure};
use crate::output::{print, printable};
use crate::talk;

/// How long to measure when it is not said.
const USUAL: Duration = Duration::from_secs(10);

/// How long a stock server may take to put a test away before it takes the next one of ours ...
const PUTTING_AWAY: Duration = Duration::from_secs(3);

/// ... and the interval between two requests meanwhile.
const PAUSE: Duration = Duration::from_millis(50);

/// Run the test, or each of the plan, towards the first of these addresses that answers.
pub(crate) fn run(args: &ProbeArgs, addresses: &[SocketAddr]) -> CommandResult {
    check(args)?;
    let stop = super::stop_on_signals()?;
    let mut reports = Vec::new();
    for (nth, end) in ends(args).enumerate() {
        if stop.raised() {
            break;
        }
        let begun = Instant::now();
        let options = options(args, end)?;
        let again = Instant::now() + if nth > 0 { PUTTING_AWAY } else { Duration::ZERO };
        let tried = loop {
            match one(args, &options, addresses, &stop) {
                Err(Error::Denied | Error::Closed(_) | Error::Connect { .. }) if Instant::now() < again => {
                    std::thread::sleep(PAUSE);
                }
                other => break other,
            }
        };
        let report = match tried {
            Ok(report) => report,
            // Ctrl-C is how a watch ends.
            Err(Error::Stopped) if args.plan.watch.every.is_some() => break,
            Err(error) => return Err(failure(error)),
        };
        tell(args, &options, &report)?;
        if let Some(every) = args.plan.watch.every {
            if args.json {
                print_line(&report)?;
            }
            wait_until(begun + every, &stop);
        } else {
            reports.push(report);
        }
    }
    match (args.plan.watch.every.is_some(), args.plan.repeat.is_some(), args.json) {
        (true, ..) => Ok(()),
        (false, true, true) => print_json(&Repeats::of(&reports)),
        (false, true, false) => Repeats::of(&reports).say(),
        (false, false, true) => reports.first().map_or(Ok(()), print_json),
        (false, false, false) => Ok(()),
    }
}

/// The tests of the plan, by what ends them.
fn ends(args: &ProbeArgs) -> Box<dyn Iterator<Item = End>> {
    let long = match (args.iperf.bytes, args.iperf.blockcount) {
        (Some(n), _) => End::Bytes(n),
        (None, Some(n)) => End::Blocks(n),
        (None, None) => End::Time(args.plan.time.unwrap_or(USUAL)),
    };
    if args.plan.watch.every.is_some() {
        return Box::new(std::iter::repeat(long));
    }
    // With --repeat alone there is no long one.
    let said = args.plan.repeat.is_none() || args.plan.time.is_some() || !matches!(long, End::Time(_));
    let repeats = args.plan.repeat.into_iter().flat_map(|r| (0..r.times).map(move |_| End::Time(r.each)));
    Box::new(said.then_some(long).into_iter().chain(repeats))
}

fn check(args: &ProbeArgs) -> CommandResult {
    let http = &args.http;
    let others = [
        (args.traffic.rate.is_some(), "--rate"),
        (args.traffic.timeout.is_some(), "--timeout"),
        (args.key_file.is_some(), "--key-file"),
        (http.no_keep_alive, "--no-keep-alive"),
        (http.requests.is_some(), "--requests"),
        (!http.headers.is_empty(), "--header"),
        (http.insecure, "--insecure"),
        (http.ca.is_some(), "--ca"),
    ];
    if let Some((_, name)) = others.iter().find(|(on, _)| *on) {
        return Err(Failure::usage(format!("{name} means nothing to an iperf3 server (--iperf3)")));
    }
    match args.mode {
        None | Some(Mode::Tcp | Mode::Udp) => Ok(()),
        Some(_) => Err(Failure::usage("an iperf3 server (--iperf3) measures tcp and udp only")),
    }
}

fn options(args: &ProbeArgs, end: End) -> Result<Options, Failure> {
    let (traffic, iperf) = (&args.traffic, &args.iperf);
    let omit = args.plan.omit.unwrap_or(Duration::ZERO);
    if omit.subsec_nanos() > 0 {
        return Err(Failure::usage(
            "--omit: with --iperf3 whole seconds, since the server runs its own timer",
        ));
    }
    let way = match (traffic.reverse, traffic.bidir) {
        (_, true) => Way::Both,
        (true, false) => Way::Ingress,
        (false, false) => Way::Egress,
    };
    let udp = args.mode == Some(Mode::Udp) || traffic.udp;
    if traffic.udp && args.mode == Some(Mode::Tcp) {
        return Err(Failure::usage("--udp contradicts tcp"));
    }
    Ok(Options {
        protocol: if udp { Protocol::Udp } else { Protocol::Tcp },
        way,
        streams: traffic.parallel.unwrap_or(1),
        end,
        // At most a day.
        omit_s: omit.as_secs() as u32,
        length: traffic.length,
        // At most 10^13.
        rate_bps: traffic.bitrate.map(|b| b.bps.round() as u64),
        burst: traffic.bitrate.and_then(|b| b.burst),
        window: traffic.window,
        mss: traffic.set_mss.map(u32::from),
        congestion: traffic.congestion.clone(),
        nodelay: traffic.no_delay,
        tos: iperf.tos.unwrap_or(0),
        zerocopy: iperf.zerocopy,
        counters_64bit: iperf.udp_counters_64bit,
        get_server_output: iperf.get_server_output,
        title: iperf.title.clone(),
        ..Options::default()
    })
}

fn one(args: &ProbeArgs, options: &Options, addresses: &[SocketAddr], stop: &Stop) -> Result<Report, Error> {
    let mut failed = None;
    for &address in addresses {
        let mut live = Live { args, target: address };
        match client::run(options, address, stop, &mut live) {
            // Another address of the same name may answer.
            Err(error @ Error::Connect { .. }) => drop(failed.get_or_insert(error)),
            other => return other,
        }
    }
    Err(failed.unwrap_or_else(|| Error::Option(format!("{} has no address", args.target))))
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Option(words) => Failure::usage(words),
        Error::Stopped => Failure::failed("interrupted"),
        other => Failure::failed(other),
    }
}

/// A line per second on standard output.
struct Live<'a> {
    args: &'a ProbeArgs,
    target: SocketAddr,
}

impl Live<'_> {
    fn shown(&self) -> bool {
        !self.args.json && !talk::is_quiet()
    }

    fn say(&self, text: &str) {
        if self.shown() {
            // Standard output may be closed: the summary notices, the test goes on.
            let _ = print(&printable(text));
        }
    }
}

impl TestObserver for Live<'_> {
    fn begun(&mut self, lines: &Lines, streams: &[(i64, SocketAddr, SocketAddr)]) {
        self.say(&format!("Connected to {}, port {}\n", self.target.ip().to_canonical(), self.target.port()));
        for (id, local, peer) in streams {
            self.say(&format!(
                "[{id:>3}] local {} port {} connected to {} port {}\n",
                local.ip(),
                local.port(),
                peer.ip(),
                peer.port()
            ));
        }
        let sends = !self.args.traffic.reverse;
        self.say(&lines.interval_header(sends));
    }

    fn interval(&mut self, lines: &Lines, interval: &Interval) {
        self.say(&lines.interval(interval));
    }
}

/// The summary.
fn tell(args: &ProbeArgs, options: &Options, report: &Report) -> CommandResult {
    if !args.json {
        let lines = report.lines(options.title.as_deref().map(printable));
        print(&printable(&lines.summary(&report.rows())))?;
        print(&format!(
            "CPU: {:.1}% here, {:.1}% at the server\n",
            report.cpu.total_percent, report.server_cpu.total_percent
        ))?;
        if let Some(output) = &report.server_output {
            print(&format!("\nServer output:\n{}\n", output.printable().trim_end()))?;
        }
    }
    for note in &report.notes {
        talk::note(&format!("weir: note: {}", printable(note)));
    }
    Ok(())
}

/// The summary of several tests.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Repeats<'a> {
    /// Each test.
    reports: &'a [Report],
    /// Client to server.
    #[serde(skip_serializing_if = "Option::is_none")]
    egress: Option<Range>,
    /// Server to client.
    #[serde(skip_serializing_if = "Option::is_none")]
    ingress: Option<Range>,
}

impl Document for Repeats<'_> {
    const KIND: Kind = Kind::ProbeIperf3Repeats;
}

/// Received bits per second over the repeats.
#[derive(Serialize, JsonSchema)]
struct Range {
    /// Mean.
    mean_bps: f64,
    /// Least.
    min_bps: f64,
    /// Greatest.
    max_bps: f64,
}

impl Range {
    fn of<'a>(totals: impl Iterator<Item = Option<&'a Total>>) -> Option<Range> {
        let bps: Vec<f64> = totals.flatten().map(|t| t.receiver.bps).collect();
        let mean_bps = bps.iter().sum::<f64>() / bps.len() as f64;
        let min_bps = bps.iter().copied().reduce(f64::min)?;
        Some(Range { mean_bps, min_bps, max_bps: bps.iter().copied().fold(min_bps, f64::max) })
    }
}

impl Repeats<'_> {
    fn of(reports: &[Report]) -> Repeats<'_> {
        Repeats {
            reports,
            egress: Range::of(reports.iter().map(|r| r.egress.as_ref())),
            ingress: Range::of(reports.iter().map(|r| r.ingress.as_ref())),
        }
    }

    fn say(&self) -> CommandResult {
        for (name, range) in [("egress", &self.egress), ("ingress", &self.ingress)] {
            if let Some(range) = range {
                print(&format!(
                    "{name}, {} tests: received {:.2} Mbits/sec on average, {:.2} to {:.2}\n",
                    self.reports.len(),
                    range.mean_bps / 1e6,
                    range.min_bps / 1e6,
                    range.max_bps / 1e6
                ))?;
            }
        }
        Ok(())
    }
}
