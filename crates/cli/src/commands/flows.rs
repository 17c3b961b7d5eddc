//! `weir flows`.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;
use weir_flows::{Error, Reading, Watch, render};
use weir_sys::Stop;
use weir_text::layout::Terminal;

use super::conntrack::{namespace, refused};
use super::screen::Screen;
use crate::args::FlowsArgs;
use crate::documents::{Document, Kind, line, print_json};
use crate::exit::{CommandResult, Failure, MISSING};
use crate::output::{Color, is_read, print, put, width};
use crate::talk;

/// Time between two readings.
const EVERY: Duration = Duration::from_secs(1);
/// How long `--once` watches without `--for`.
const ONCE: Duration = Duration::from_secs(10);

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

pub(super) fn failed(error: Error) -> Failure {
    match error {
        Error::Options(_) => Failure::usage(error),
        e if e.is_missing() => Failure::new(MISSING, e),
        e => Failure::failed(e),
    }
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
        render(reading, Terminal { width: width(), color: self.color.stdout })
    }

    fn watch(&self, stop: &Stop) -> CommandResult {
        let args = &self.args;
        let mut watch = Watch::start(args.tracking.options()).map_err(failed)?;
        talk::step(|| format!("watches {}", watch.interfaces().join(", ")));
        let end = args.window.or(args.once.then_some(ONCE)).map(|time| Instant::now() + time);
        if args.once { self.once(&mut watch, end, stop) } else { self.each_second(&mut watch, end, stop) }
    }

    /// Reads every second, too, so that flows that are over make room.
    fn once(&self, watch: &mut Watch, end: Option<Instant>, stop: &Stop) -> CommandResult {
        loop {
            let next = Instant::now() + EVERY;
            super::wait_until(end.map_or(next, |end| end.min(next)), stop);
            let reading = watch.read_top(self.args.top, self.args.top).map_err(failed)?;
            if stop.raised() || end.is_some_and(|end| Instant::now() >= end) {
                return if self.args.json {
                    print_json(&self.document(&reading))
                } else {
                    print(&self.page(&reading))
                };
            }
        }
    }

    fn each_second(&self, watch: &mut Watch, end: Option<Instant>, stop: &Stop) -> CommandResult {
        let mut screen = Screen::take(!self.args.json && io::stdout().is_terminal());
        let mut next = Instant::now();
        loop {
            next = (next + EVERY).max(Instant::now());
            super::wait_until(end.map_or(next, |end| end.min(next)), stop);
            if stop.raised() {
                return Ok(());
            }
            let reading = watch.read_top(self.args.top, self.args.top).map_err(failed)?;
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
