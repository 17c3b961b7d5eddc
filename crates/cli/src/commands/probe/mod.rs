//! `weir probe`.

mod document;
mod lines;
mod summary;
mod target;
mod workload;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use weir_load::sockets::{TcpOptions, connect_tcp};
use weir_load::{Stop, Workload};
use weir_probe::client::{self, Measured, Span, Visit};
use weir_probe::{Key, key};

use super::wait_until;
use crate::args::probe::{Mode, ProbeArgs};
use crate::documents::{print_json, print_line};
use crate::exit::{CommandResult, Failure, MISSING};
use crate::output::{print, printable};
use crate::talk::{self, note};
use document::Document;
#[cfg(test)]
pub(crate) use document::Document as Measurement;
use lines::Lines;
use target::Target;
pub(crate) use target::{OWN_PORT, host_and_port, look_up};

/// How long to measure when it is not said.
const USUAL: Duration = Duration::from_secs(10);

/// How long one of several addresses may take to answer a connect where --timeout does not say it: two SYNs more.
const ANSWER: Duration = Duration::from_secs(4);

/// Environment variable with the key itself.
pub(crate) const KEY_VARIABLE: &str = "WEIR_KEY";

pub(crate) fn run(args: &ProbeArgs) -> CommandResult {
    let target = Target::read(args)?;
    if args.iperf3 {
        return super::iperf3::run(args, &target.addresses);
    }
    let mode = args.mode.unwrap_or(if target.url.is_some() { Mode::Http } else { Mode::Tcp });
    if (mode == Mode::Http) != target.url.is_some() {
        let expected =
            if mode == Mode::Http { "a URL such as http://192.0.2.1/" } else { "a host, not a URL" };
        return Err(Failure::usage(format!("{}: {mode} measures towards {expected}", args.target)));
    }
    let workload = workload::of(args, mode, &target)?;
    workload.engine().validate().map_err(Failure::usage)?;
    let stop = super::stop_on_signals()?;
    let probe = Probe { args, mode, workload, stop };
    probe.run(&target)
}

/// The key of `--key-file`, or of the environment.
pub(crate) fn key_of(file: Option<&std::path::Path>) -> Result<Option<Key>, Failure> {
    let key = match (file, std::env::var_os(KEY_VARIABLE)) {
        (Some(path), _) => Key::read(path),
        (None, Some(text)) => Key::new(text.as_encoded_bytes()),
        (None, None) => return Ok(None),
    };
    key.map(Some).map_err(|e| match e {
        key::Error::Unreadable(..) => Failure::new(MISSING, e),
        e => Failure::usage(e),
    })
}

/// One of the measurements of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The one of `--time`.
    Long,
    /// One of `--repeat`, from 1.
    Repeat(u32),
}

struct Probe<'a> {
    args: &'a ProbeArgs,
    mode: Mode,
    workload: Workload,
    stop: Stop,
}

/// The target of the measurements.
enum Far {
    /// To a server of ours.
    Served(Visit),
    /// Any service that listens there.
    Anyone,
}

impl Probe<'_> {
    fn run(&self, target: &Target) -> CommandResult {
        let (address, mut far) = self.reach(target)?;
        let mut document = Document::new(self.args, self.mode, &self.workload, address, far.program());
        self.say(&format!(
            "{} ({address}){}: {}",
            self.args.target,
            far.program().map(|p| format!(", {p}")).unwrap_or_default(),
            self.workload.engine().describe()
        ))?;
        for (turn, span) in self.turns() {
            if self.stop.raised() {
                break;
            }
            let begun = Instant::now();
            let measured = self.measure(&mut far, address, turn, span)?;
            let counted = begun.elapsed().saturating_sub(span.warmup).min(span.duration);
            self.tell(&measured, turn, span, counted)?;
            document.add(&measured, turn, span);
            if let Some(every) = self.args.plan.watch.every {
                if self.args.json {
                    print_line(&document)?;
                }
                document.forget();
                wait_until(begun + every, &self.stop);
            }
        }
        self.close(&document)
    }

    /// The measurements of the plan, one after the other; with --watch without end.
    fn turns(&self) -> Box<dyn Iterator<Item = (Turn, Span)>> {
        let plan = &self.args.plan;
        let warmup = plan.omit.unwrap_or(Duration::ZERO);
        let long = (Turn::Long, Span { warmup, duration: plan.time.unwrap_or(USUAL) });
        if plan.watch.every.is_some() {
            return Box::new(std::iter::repeat(long));
        }
        // With --repeat alone there is no long one.
        let long = (plan.repeat.is_none() || plan.time.is_some()).then_some(long);
        let repeats = plan.repeat.into_iter().flat_map(move |repeat| {
            (1..=repeat.times).map(move |n| (Turn::Repeat(n), Span { warmup, duration: repeat.each }))
        });
        Box::new(long.into_iter().chain(repeats))
    }

    /// The first of the target's addresses that answers.
    fn reach(&self, target: &Target) -> Result<(SocketAddr, Far), Failure> {
        if matches!(self.mode, Mode::Connect | Mode::Http) {
            let patience = self.args.traffic.timeout.unwrap_or(ANSWER);
            let (address, passed_over) = answering(&target.addresses, patience, &self.stop)
                .ok_or_else(|| Failure::failed("no address"))?;
            for (other, error) in passed_over {
                note(&format!("weir: note: cannot connect to {other}: {error}; {address} is measured"));
            }
            return Ok((address, Far::Anyone));
        }
        let key = key_of(self.args.key_file.as_deref())?;
        let mut failure = None;
        for &address in &target.addresses {
            match Visit::begin(address, key.as_ref(), &self.stop) {
                Ok(visit) => return Ok((address, Far::Served(visit))),
                Err(e @ client::Error::Connect(..)) => {
                    failure.get_or_insert(e);
                }
                Err(e) => return Err(Failure::failed(e)),
            }
        }
        let hint = "; is `weir serve` running there? (connect, http and --iperf3 need none)";
        let said = failure.map_or_else(|| "no address".to_owned(), |e| format!("{e}{hint}"));
        Err(Failure::failed(said))
    }

    fn measure(
        &self,
        far: &mut Far,
        address: SocketAddr,
        turn: Turn,
        span: Span,
    ) -> Result<Measured, Failure> {
        if let Turn::Repeat(n) = turn {
            let of = self.args.plan.repeat.map_or(0, |r| r.times);
            self.say(&format!("repeat {n} of {of}, {:.1} s", span.duration.as_secs_f64()))?;
        }
        let shown = !talk::is_quiet() && !self.args.json;
        let mut lines = Lines::new(self.mode, &self.workload, span, shown);
        let mut watch = |snapshot| lines.snapshot(snapshot);
        let measured = match far {
            Far::Served(visit) => visit.measure(&self.workload, span, &self.stop, &mut watch),
            Far::Anyone => client::alone(&self.workload, address, span, &self.stop, &mut watch),
        };
        lines.finish();
        measured.map_err(Failure::failed)
    }

    /// Reports the result of one measurement. `counted` is the time that it counted: less than its window if it was interrupted.
    fn tell(&self, measured: &Measured, turn: Turn, span: Span, counted: Duration) -> CommandResult {
        for note in &measured.notes {
            talk::note(&format!("weir: note: {}", printable(note)));
        }
        for fault in &measured.trial.faults {
            let words = format!("{}: {}", fault.host, printable(&fault.detail));
            match fault.void {
                true => eprintln!("weir: not to be relied on: {words}"),
                false => talk::note(&format!("weir: note: {words}")),
            }
        }
        if self.args.json {
            return Ok(());
        }
        let counted = if self.stop.raised() { counted } else { span.duration };
        for line in summary::of(self.mode, measured, turn, summary::Length { window: span.duration, counted })
        {
            self.say(&line)?;
        }
        for finding in &measured.trial.path {
            self.say(&finding.summary)?;
            for advice in &finding.advice {
                self.say(&format!("  {advice}"))?;
            }
        }
        Ok(())
    }

    fn close(&self, document: &Document) -> CommandResult {
        if self.args.json && self.args.plan.watch.every.is_none() {
            print_json(document)?;
        }
        if !self.args.json {
            for line in document.repeats_in_words() {
                self.say(&line)?;
            }
        }
        if self.args.plan.watch.every.is_some() {
            return Ok(());
        }
        if self.stop.raised() {
            return Err(Failure::failed("interrupted"));
        }
        if document.measured_nothing() {
            let words = "nothing came through: every operation failed or was lost";
            return Err(Failure::failed(format!("{words}; the counts above and the notes say how")));
        }
        Ok(())
    }

    fn say(&self, line: &str) -> CommandResult {
        if self.args.json { Ok(()) } else { print(&format!("{}\n", printable(line))) }
    }
}

/// Finds the first of several addresses that answers a connect. It also returns the addresses before it, with their errors. If
/// none answers, or only one is given, it returns the first: weir measures the outcome of connections to it.
fn answering(
    addresses: &[SocketAddr],
    patience: Duration,
    stop: &Stop,
) -> Option<(SocketAddr, Vec<(SocketAddr, std::io::Error)>)> {
    let first = *addresses.first()?;
    let mut passed_over = Vec::new();
    for &address in addresses.iter().filter(|_| addresses.len() > 1) {
        match connect_tcp(address, &TcpOptions::default(), patience, stop) {
            Ok(_closed) => return Some((address, passed_over)),
            Err(e) => passed_over.push((address, e)),
        }
    }
    Some((first, Vec::new()))
}

impl Far {
    /// Name and version of the server.
    fn program(&self) -> Option<&str> {
        match self {
            Far::Served(visit) => Some(visit.program()),
            Far::Anyone => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn of_several_addresses_the_first_that_answers_is_measured() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap();
        let closed = |ip: &str| SocketAddr::new(ip.parse().unwrap(), open.port());
        let (none, other) = (closed("127.0.0.2"), closed("127.0.0.3"));
        for (addresses, chosen, before) in [
            (&[none, open][..], open, 1),
            (&[none, other, open], open, 2),
            (&[open, none], open, 0),
            // No server answers: as if there were only the first.
            (&[none, other], none, 0),
            (&[none], none, 0),
        ] {
            let (address, passed_over) =
                answering(addresses, Duration::from_secs(20), &Stop::default()).unwrap();
            assert_eq!((address, passed_over.len()), (chosen, before), "{addresses:?}");
        }
        assert!(answering(&[], ANSWER, &Stop::default()).is_none());
    }
}
