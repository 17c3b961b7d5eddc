//! `weir flows`.

mod local;
mod recording;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;
use weir_flows::{Error, Options, Reading, Watch, render};
use weir_live::{View as LiveView, Wake};
use weir_prefix::Names;
use weir_sys::Stop;

use self::local::Local;
use self::recording::Recording;
use super::allow::list_file;
use super::conntrack::{namespace, refused};
use super::screen::Screen;
use crate::args::{FlowsArgs, TrackingArgs};
use crate::documents::{Document, Kind, line, print_json};
use crate::exit::{CommandResult, Failure};
use crate::output::{Color, is_read, print, put, unwritten};
use crate::talk;

/// Time between two readings.
const EVERY: Duration = Duration::from_secs(1);
/// How long `--once` watches without `--for`.
const ONCE: Duration = Duration::from_secs(10);
/// Networks and flows of the view on a terminal. More would take their time: each has intervals.
const LIVE_NETWORKS: usize = 500;
const LIVE_FLOWS: usize = 2000;

pub(crate) fn run(args: FlowsArgs, color: Color) -> CommandResult {
    // The handler of signals serves the whole process, also from a thread in another namespace.
    let stop = super::stop_on_signals()?;
    match args.netns.name.clone() {
        None => View::new(args, color, "this namespace".to_owned()).watch(&stop),
        Some(name) => {
            let view = View::new(args, color, format!("namespace {name}"));
            namespace(&name)?.run(move || view.watch(&stop)).map_err(|e| refused(&e))?
        }
    }
}

/// A reading as JSON.
#[derive(Serialize, JsonSchema)]
pub(crate) struct FlowsReading<'a> {
    /// Version of weir.
    weir: &'static str,
    /// RFC 3339, UTC.
    time: String,
    /// Network namespace, for people.
    namespace: &'a str,
    #[serde(flatten)]
    reading: &'a Reading,
}

impl Document for FlowsReading<'_> {
    const KIND: Kind = Kind::Flows;
}

/// The watch that was asked for, and the form of its output.
struct View {
    args: FlowsArgs,
    color: Color,
    place: String,
}

/// The watch, and the containers and processes that it meets.
struct Watched {
    watch: Watch,
    local: Local,
}

impl Watched {
    fn read(&mut self, networks: usize, flows: usize) -> Result<Reading, Failure> {
        self.local.tell(&mut self.watch);
        let reading = self.watch.read_top(networks, flows).map_err(failed)?;
        self.local.ask(&self.watch);
        Ok(reading)
    }
}

pub(super) fn failed(error: Error) -> Failure {
    Failure::of_part(&error, matches!(error, Error::Options(_)), error.is_missing())
}

/// The options, with the names from their files.
pub(super) fn options(tracking: &TrackingArgs) -> Result<Options, Failure> {
    let mut options = tracking.options();
    if !tracking.names.is_empty() {
        let files = tracking.names.iter().map(|path| list_file(path)).collect::<Result<Vec<_>, _>>()?;
        let files = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
        options.grouping.names = Some(Arc::new(Names::read(files).map_err(Failure::usage)?));
    }
    Ok(options)
}

impl View {
    fn new(args: FlowsArgs, color: Color, place: String) -> Self {
        View { args, color, place }
    }

    fn document<'a>(&'a self, reading: &'a Reading) -> FlowsReading<'a> {
        let time = jiff::Timestamp::now().to_string();
        FlowsReading { weir: env!("CARGO_PKG_VERSION"), time, namespace: &self.place, reading }
    }

    fn page(&self, reading: &Reading) -> String {
        render(reading, self.color.terminal())
    }

    fn watch(&self, stop: &Stop) -> CommandResult {
        let args = &self.args;
        let mut watch = Watch::start(options(&args.tracking)?).map_err(failed)?;
        talk::step(|| format!("watches {}", watch.interfaces().join(", ")));
        let mut watch = Watched { local: Local::begin(&mut watch), watch };
        let mut recording = args.save.as_deref().map(Recording::begin).transpose()?;
        let end = args.window.or(args.once.then_some(ONCE)).map(|time| Instant::now() + time);
        if args.once {
            self.once(&mut watch, end, &mut recording, stop)?;
        } else if self.is_live() {
            self.live(&mut watch, end, &mut recording, stop)?;
        } else {
            self.each_second(&mut watch, end, &mut recording, stop)?;
        }
        recording.map_or(Ok(()), Recording::end)
    }

    /// Whether a terminal shows pages and sends keys.
    fn is_live(&self) -> bool {
        let is_plain = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        !self.args.json && !is_plain && io::stdout().is_terminal() && io::stdin().is_terminal()
    }

    /// Adds the networks and flows with the most bytes to the recording.
    fn record(&self, reading: &Reading, recording: &mut Option<Recording>) -> Result<(), Failure> {
        let Some(recording) = recording else { return Ok(()) };
        let mut kept = reading.clone();
        kept.networks.truncate(self.args.top);
        kept.flows.truncate(self.args.top);
        kept.udp_flows.truncate(self.args.top);
        kept.icmp_errors.truncate(self.args.top);
        kept.processes.truncate(self.args.top);
        recording.add(&line(&self.document(&kept))?);
        Ok(())
    }

    fn live(
        &self,
        watch: &mut Watched,
        end: Option<Instant>,
        recording: &mut Option<Recording>,
        stop: &Stop,
    ) -> CommandResult {
        let mut view = LiveView::new(&self.place);
        let mut screen = weir_live::Screen::take(self.color.stdout).map_err(|e| {
            Failure::failed(format!("cannot take the terminal: {e}; `weir flows | cat` prints tables"))
        })?;
        let mut next = Instant::now();
        loop {
            next = (next + EVERY).max(Instant::now());
            let until = end.map_or(next, |end| end.min(next));
            let wake = screen.show(&mut view, until, || stop.raised()).map_err(|e| unwritten(&e))?;
            if wake == Wake::Leave {
                return Ok(());
            }
            let top = self.args.top;
            let reading = watch.read(LIVE_NETWORKS.max(top), LIVE_FLOWS.max(top))?;
            self.record(&reading, recording)?;
            if let Some(recording) = recording {
                let (text, is_warning) = recording.state();
                view.remark(&text, is_warning);
            }
            view.read(reading);
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok(());
            }
        }
    }

    /// Reads every second, too, so that flows that are over make room.
    fn once(
        &self,
        watch: &mut Watched,
        end: Option<Instant>,
        recording: &mut Option<Recording>,
        stop: &Stop,
    ) -> CommandResult {
        loop {
            let next = Instant::now() + EVERY;
            super::wait_until(end.map_or(next, |end| end.min(next)), stop);
            let reading = watch.read(self.args.top, self.args.top)?;
            self.record(&reading, recording)?;
            if stop.raised() || end.is_some_and(|end| Instant::now() >= end) {
                return if self.args.json {
                    print_json(&self.document(&reading))
                } else {
                    print(&self.page(&reading))
                };
            }
        }
    }

    fn each_second(
        &self,
        watch: &mut Watched,
        end: Option<Instant>,
        recording: &mut Option<Recording>,
        stop: &Stop,
    ) -> CommandResult {
        let mut screen = Screen::take(!self.args.json && io::stdout().is_terminal());
        let mut next = Instant::now();
        loop {
            next = (next + EVERY).max(Instant::now());
            super::wait_until(end.map_or(next, |end| end.min(next)), stop);
            if stop.raised() {
                return Ok(());
            }
            let reading = watch.read(self.args.top, self.args.top)?;
            self.record(&reading, recording)?;
            let shown = if self.args.json {
                put(&line(&self.document(&reading))?)
            } else {
                screen.show(&self.page(&reading))
            };
            if !is_read(shown)? || end.is_some_and(|end| Instant::now() >= end) {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_flows::{Limiter, Limits, UdpFlow};
    use weir_record::flows::{FlowsRecording, end_of_bucket};

    use super::*;

    /// Three seconds of that limit, and one without.
    fn by(limiter: Limiter) -> Limits {
        let mut limits = Limits { unclear_seconds: 1.0, ..Limits::default() };
        *match limiter {
            Limiter::Application => &mut limits.application_seconds,
            Limiter::Receiver => &mut limits.receiver_seconds,
            Limiter::Network => &mut limits.network_seconds,
            Limiter::Sender => &mut limits.sender_seconds,
        } = 3.0;
        Limits::sum([&limits])
    }

    /// The crate that renders a recording knows neither the crate that measures nor this one.
    #[test]
    fn a_line_is_read_as_it_is_written() {
        let reading = Reading {
            seconds: 2.0,
            interfaces: vec!["in0".to_owned()],
            flows: vec![weir_flows::Flow::empty()],
            udp_flows: vec![UdpFlow { dns: Some(Reading::empty().all.udp.dns), ..UdpFlow::empty() }],
            ..Reading::empty()
        };
        let document =
            FlowsReading { weir: "0", time: "now".to_owned(), namespace: "here", reading: &reading };
        let text = line(&document).ok().unwrap();
        assert!(FlowsRecording::begins_like_one(text.as_bytes()));
        let read = FlowsRecording::read(text.as_bytes()).unwrap();
        assert_eq!((read.last.seconds, read.last.interfaces.as_slice()), (2.0, &["in0".to_owned()][..]));
        assert_eq!((read.last.flows.len(), read.last.flows[0].state.as_str()), (1, "one-way"));
        assert_eq!(read.last.udp_flows[0].dns.as_ref(), Some(&read.last.all.udp.dns));
        assert_eq!(read.last.udp_flows[0].state, "one-way");
        for limiter in Limiter::ALL {
            let mut all = Reading::empty().all;
            all.server_side.limits = by(limiter);
            let reading = Reading { all, ..Reading::empty() };
            let document =
                FlowsReading { weir: "0", time: "now".to_owned(), namespace: "here", reading: &reading };
            let read = FlowsRecording::read(line(&document).ok().unwrap().as_bytes()).unwrap();
            let limits = &read.last.all.server_side.limits;
            assert_eq!((limits.most(), limits.unclear_seconds), (Some((limiter.words(), 0.75)), 1.0));
        }
        let buckets = read.last.all.client_side.round_trips.buckets.len();
        assert_eq!(buckets, reading.all.client_side.round_trips.buckets.len());
        for n in 0..buckets {
            assert_eq!(end_of_bucket(n), weir_flows::end_of_bucket(n) as f64);
        }
    }
}
