//! `weir conntrack`.

use std::io::{self, IsTerminal};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;
use weir_conntrack::{Error, Question, Table};
use weir_fastpath::{Reason, Visit};
use weir_netlink::conntrack::{Filter, Prefix, Status};
use weir_sys::{NetNs, ProcRoot};
use weir_text::units;

use crate::args::ConntrackArgs;
use crate::documents::{Document, Kind, line, print_json};
use crate::exit::{CommandResult, Failure, MISSING};
use crate::output::{Color, is_read, print, put};
use crate::talk;

use super::screen::Screen;

pub(crate) fn run(args: &ConntrackArgs, color: Color) -> CommandResult {
    let question = question(args)?;
    let place = args.netns.name.as_deref().map_or("this namespace".to_owned(), |n| format!("namespace {n}"));
    let view = View { question, place, json: args.json, color };
    let work = || match args.watch.every {
        None => view.once(),
        Some(every) => view.watch(every),
    };
    match &args.netns.name {
        None => work(),
        Some(name) => namespace(name)?.run(work).map_err(|e| refused(&e))?,
    }
}

/// The question, and the form of its answer.
struct View {
    question: Question,
    place: String,
    json: bool,
    color: Color,
}

/// A table as JSON: which, when, and what.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Reading<'a> {
    /// Version of weir.
    weir: &'static str,
    /// RFC 3339, UTC.
    time: String,
    /// Network namespace, for people.
    namespace: &'a str,
    /// The fast path's part; null if none is in effect.
    fastpath: Option<&'a Carried>,
    #[serde(flatten)]
    table: &'a Table,
}

/// Packets that conntrack did not see, because the fast path carried them.
#[derive(Debug, Serialize, JsonSchema)]
struct Carried {
    /// Directions of connections that are carried now. A connection has two.
    directions: u64,
    /// Packets since it began; they are not in conntrack's counters.
    packets: u64,
    /// Bytes since it began, likewise.
    bytes: u64,
}

impl Carried {
    /// Asks in the calling thread's namespace. A fast path that does not answer is no reason to show no table.
    fn look() -> Option<Self> {
        let now = Visit::look().unwrap_or_else(|e| {
            talk::step(|| format!("the fast path: {e}"));
            None
        })?;
        let carried = now.reasons.iter().find(|count| count.reason == Reason::Carried);
        let (packets, bytes) = carried.map_or((0, 0), |count| (count.packets, count.bytes));
        Some(Carried { directions: now.directions, packets, bytes })
    }

    fn line(&self) -> String {
        format!(
            "fast path: carries {} directions now; {} packets, {} since it began are not in these counters\n",
            units::count(self.directions),
            units::count(self.packets),
            units::bytes(self.bytes)
        )
    }
}

impl Document for Reading<'_> {
    const KIND: Kind = Kind::Conntrack;
}

impl View {
    fn read(&self) -> Result<Table, Failure> {
        weir_conntrack::read(&ProcRoot::default(), &self.question).map_err(|e| match e {
            Error::Absent | Error::Unreadable => Failure::new(MISSING, e),
            e => Failure::failed(e),
        })
    }

    fn document<'a>(&'a self, table: &'a Table, fastpath: Option<&'a Carried>) -> Reading<'a> {
        let time = jiff::Timestamp::now().to_string();
        Reading { weir: env!("CARGO_PKG_VERSION"), time, namespace: &self.place, fastpath, table }
    }

    fn page(&self, table: &Table, fastpath: Option<&Carried>) -> String {
        let page = weir_conntrack::render(table, &self.place, self.color.terminal());
        page + &fastpath.map(Carried::line).unwrap_or_default()
    }

    fn once(&self) -> CommandResult {
        let (table, fastpath) = (self.read()?, Carried::look());
        let fastpath = fastpath.as_ref();
        if self.json {
            print_json(&self.document(&table, fastpath))
        } else {
            print(&self.page(&table, fastpath))
        }
    }

    fn watch(&self, every: Duration) -> CommandResult {
        let stop = super::stop_on_signals()?;
        let redraw = !self.json && io::stdout().is_terminal();
        // Read once before the switch to the second screen, so that errors stay on the first.
        let mut table = self.read()?;
        let mut screen = Screen::take(redraw);
        let mut moved = Vec::new();
        let mut next = Instant::now();
        loop {
            let fastpath = Carried::look();
            let shown = if self.json {
                put(&line(&self.document(&table, fastpath.as_ref()))?)
            } else {
                screen.show(&format!("{}{}", moved_line(&moved), self.page(&table, fastpath.as_ref())))
            };
            if !is_read(shown)? {
                return Ok(());
            }
            next = (next + every).max(Instant::now());
            let drawn = Instant::now();
            super::wait_until(next, &stop);
            if stop.raised() {
                return Ok(());
            }
            let now = self.read()?;
            moved = weir_conntrack::changes(&table, &now, drawn.elapsed().as_secs_f64());
            table = now;
        }
    }
}

fn moved_line(moved: &[String]) -> String {
    if moved.is_empty() { String::new() } else { format!("{}\n", moved.join(", ")) }
}

pub(super) fn namespace(name: &str) -> Result<NetNs, Failure> {
    let opened = if name.contains('/') {
        NetNs::open(name)
    } else if let Ok(pid) = name.parse() {
        NetNs::of_pid(pid)
    } else {
        NetNs::named(name)
    };
    opened.map_err(|e| match e.kind() {
        io::ErrorKind::PermissionDenied => Failure::new(MISSING, format!("{e}; run as root")),
        _ => Failure::usage(format!("--netns {name}: {e}")),
    })
}

/// The path by which [`namespace`] finds it.
pub(super) fn namespace_path(name: &str) -> PathBuf {
    if name.contains('/') {
        PathBuf::from(name)
    } else if name.parse::<u32>().is_ok() {
        PathBuf::from(format!("/proc/{name}/ns/net"))
    } else {
        PathBuf::from("/run/netns").join(name)
    }
}

/// Why the namespace cannot be entered.
pub(super) fn refused(error: &weir_sys::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            Failure::new(MISSING, format!("{error}: CAP_SYS_ADMIN is missing; run as root"))
        }
        io::ErrorKind::InvalidInput => {
            Failure::usage(format!("{error}; check that the path is a network namespace"))
        }
        _ => Failure::failed(error),
    }
}

fn question(args: &ConntrackArgs) -> Result<Question, Failure> {
    let wrong = |flag: &'static str| move |e: String| Failure::usage(format!("--{flag}: {e}"));
    let prefix = |flag: &'static str, text: &Option<String>| -> Result<Option<Prefix>, Failure> {
        text.as_deref().map(|t| t.parse().map_err(wrong(flag))).transpose()
    };
    let mut filter = Filter {
        protocol: args
            .protocol
            .as_deref()
            .map(weir_conntrack::parse_protocol)
            .transpose()
            .map_err(wrong("protocol"))?,
        source: prefix("source", &args.source)?,
        destination: prefix("destination", &args.destination)?,
        port: args.port,
        zone: args.zone,
        mark: args.mark.as_deref().map(mark).transpose().map_err(wrong("mark"))?,
        ..Filter::default()
    };
    for state in &args.states {
        filter.tcp_states |= weir_conntrack::parse_tcp_state(state).map_err(wrong("state"))?;
    }
    for flag in &args.flags {
        let (set, clear) = weir_conntrack::parse_flag(flag).map_err(wrong("flag"))?;
        filter.status = Status(filter.status.0 | set.0);
        filter.status_not = Status(filter.status_not.0 | clear.0);
    }
    Ok(Question {
        filter,
        top: args.top,
        limit: args.limit,
        max: args.max,
        nat_ports: args.nat_ports.as_deref().map(ports).transpose().map_err(wrong("nat-ports"))?,
        ..Question::default()
    })
}

/// `FIRST-LAST`, or one port.
fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |t: &str| t.trim().parse::<u16>().map_err(|_| format!("`{t}` is not a port"));
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return Err(format!("{first} is above {last}"));
    }
    Ok(first..=last)
}

/// `VALUE` or `VALUE/MASK`, in decimal or hexadecimal.
fn mark(text: &str) -> Result<(u32, u32), String> {
    let number = |t: &str| {
        let parsed = t.strip_prefix("0x").map_or_else(|| t.parse(), |hex| u32::from_str_radix(hex, 16));
        parsed.map_err(|_| format!("`{t}` is not a number below 2^32"))
    };
    let (value, mask) = match text.split_once('/') {
        Some((value, mask)) => (number(value)?, number(mask)?),
        None => (number(text)?, u32::MAX),
    };
    if value & !mask != 0 {
        return Err(format!("mark {value:#x} has bits outside the mask {mask:#x}"));
    }
    Ok((value, mask))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_marks_are_read() {
        assert_eq!(ports("1000-2000"), Ok(1000..=2000));
        assert_eq!(ports("7"), Ok(7..=7));
        for bad in ["", "2-1", "1-65536", "a-b", "1-2-3"] {
            assert!(ports(bad).is_err(), "{bad}");
        }
        assert_eq!(mark("0x10/0xf0"), Ok((0x10, 0xf0)));
        assert_eq!(mark("42"), Ok((42, u32::MAX)));
        for bad in ["", "x", "0x1/0x2", "4294967296", "1/"] {
            assert!(mark(bad).is_err(), "{bad}");
        }
    }
}
