//! Targets that are connected to on a schedule.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use weir_load::sockets::{TcpOptions, connect_tcp};
use weir_sys::Stop;

use crate::board::Source;
use crate::page::{Group, Metric, Page, yes};

/// How long a name may take to resolve, and then the connect: a lost SYN comes again after 1 s, and after 3 s.
const PATIENCE: Duration = Duration::from_secs(4);
/// How soon the end is noticed.
const NOTICE: Duration = Duration::from_millis(50);
/// Upper ends of the histogram's buckets, seconds: from a neighbour to the third SYN.
const ENDS: [f64; 16] = [
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    f64::INFINITY,
];

static CONNECTS: Metric =
    Metric::counter("probe_connects_total", &["target", "outcome"], "Attempts to connect, by outcome.");
static UP: Metric = Metric::gauge("probe_success", &["target"], "1 if the last attempt connected, else 0.");
static TIME: Metric = Metric::histogram(
    "probe_connect_seconds",
    &["target"],
    "Time to connect, of attempts that connected: from the SYN to the answer, without the look-up of the name.",
);

/// For the reference.
pub(crate) static GROUP: Group = Group {
    title: "Probes",
    about: "Targets of `--probe`, each connected to by TCP every `--probe-every` (15 s) and closed at once; nothing is sent. \
            `outcome` is `connected`, `refused`, `timeout` (4 s), `unreachable`, `unresolved` (its name) or `failed`. Names are \
            looked up anew each time; the first address is used. At most 64 targets, each with 25 series.",
    metrics: &[&CONNECTS, &UP, &TIME],
};

/// Most targets.
pub const MOST_TARGETS: usize = 64;

/// A host and a port to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeTarget {
    host: String,
    port: u16,
}

impl fmt::Display for ProbeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for ProbeTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text}: not HOST:PORT or [ADDRESS]:PORT, such as example.org:443");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let is_six = bare.is_some_and(|h| matches!(h.parse::<IpAddr>(), Ok(IpAddr::V6(_))));
        // RFC 1123 section 2.1, and the underscore of real names; 253 bytes is the longest name.
        let is_name = |h: &str| {
            !h.is_empty()
                && h.len() <= 253
                && h.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        };
        match bare {
            Some(bare) if is_six => Ok(ProbeTarget { host: bare.into(), port }),
            None if is_name(host) => Ok(ProbeTarget { host: host.into(), port }),
            _ => Err(wrong()),
        }
    }
}

weir_text::listed! {
    /// How an attempt ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum AttemptEnd {
        Connected = "connected",
        Refused = "refused",
        Timeout = "timeout",
        Unreachable = "unreachable",
        Unresolved = "unresolved",
        Failed = "failed",
    }
}

impl AttemptEnd {
    fn of(error: &io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionRefused => AttemptEnd::Refused,
            ErrorKind::TimedOut => AttemptEnd::Timeout,
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => AttemptEnd::Unreachable,
            _ => AttemptEnd::Failed,
        }
    }
}

/// Results of a target's attempts.
#[derive(Debug, Default)]
struct Attempts {
    outcomes: BTreeMap<AttemptEnd, u64>,
    /// By bucket, not cumulative.
    buckets: [u64; ENDS.len()],
    seconds: f64,
    last: Option<AttemptEnd>,
}

impl Attempts {
    fn add(&mut self, outcome: AttemptEnd, took: Duration) {
        *self.outcomes.entry(outcome).or_default() += 1;
        self.last = Some(outcome);
        if outcome == AttemptEnd::Connected {
            let seconds = took.as_secs_f64();
            let bucket = ENDS.iter().position(|end| seconds <= *end).unwrap_or(ENDS.len() - 1);
            self.buckets[bucket] += 1;
            self.seconds += seconds;
        }
    }

    fn cumulative(&self) -> Vec<(f64, u64)> {
        let mut sum = 0;
        let add = |(end, count): (&f64, &u64)| {
            sum += count;
            (*end, sum)
        };
        ENDS.iter().zip(&self.buckets).map(add).collect()
    }
}

/// A target, and a look-up of its name that has not ended yet.
#[derive(Debug)]
struct Probed {
    target: ProbeTarget,
    tally: Attempts,
    looking: Option<Receiver<io::Result<SocketAddr>>>,
}

/// Connects to targets.
#[derive(Debug)]
pub struct Probes {
    targets: Vec<Probed>,
    every: Duration,
}

impl Probes {
    /// Each of these, once per `every`. The same target twice is one.
    pub fn new(targets: &[ProbeTarget], every: Duration) -> Self {
        let mut probed: Vec<Probed> = Vec::new();
        for target in targets {
            if probed.iter().all(|p| &p.target != target) {
                probed.push(Probed { target: target.clone(), tally: Attempts::default(), looking: None });
            }
        }
        Probes { targets: probed, every }
    }

    fn write(&self, page: &mut Page) {
        let named: Vec<(String, &Attempts)> =
            self.targets.iter().map(|p| (p.target.to_string(), &p.tally)).collect();
        let mut connects = page.family(&CONNECTS);
        for (target, tally) in &named {
            for outcome in AttemptEnd::ALL {
                connects.value(
                    &[target, outcome.words()],
                    tally.outcomes.get(&outcome).copied().unwrap_or(0) as f64,
                );
            }
        }
        let is_up = |tally: &Attempts| yes(tally.last == Some(AttemptEnd::Connected));
        page.series(&UP, named.iter().map(|(target, tally)| ([target], is_up(tally))));
        let mut time = page.family(&TIME);
        for (target, tally) in &named {
            time.histogram(&[target], &tally.cumulative(), tally.seconds);
        }
    }
}

impl Probed {
    /// One attempt; none if it was stopped.
    fn attempt(&mut self, stop: &Stop) -> Option<(AttemptEnd, Duration)> {
        let address = match self.resolve(stop)? {
            Ok(address) => address,
            Err(_) => return Some((AttemptEnd::Unresolved, Duration::ZERO)),
        };
        let began = Instant::now();
        match connect_tcp(address, &TcpOptions::default(), PATIENCE, stop) {
            Ok(_closed) => Some((AttemptEnd::Connected, began.elapsed())),
            Err(e) if e.kind() == ErrorKind::Interrupted => None,
            Err(e) => Some((AttemptEnd::of(&e), Duration::ZERO)),
        }
    }

    /// The first address; none if it was stopped. The system's look-up cannot be broken off, so a thread waits for it; a target has
    /// at most one.
    fn resolve(&mut self, stop: &Stop) -> Option<io::Result<SocketAddr>> {
        if let Ok(ip) = self.target.host.parse::<IpAddr>() {
            return Some(Ok(SocketAddr::new(ip, self.target.port)));
        }
        if self.looking.is_none() {
            let (send, receive) = mpsc::channel();
            let (host, port) = (self.target.host.clone(), self.target.port);
            let look = move || {
                let found = (host.as_str(), port).to_socket_addrs();
                let first = found.and_then(|mut all| all.next().ok_or_else(|| ErrorKind::NotFound.into()));
                // The attempt may have been given up.
                let _ = send.send(first);
            };
            match thread::Builder::new().name("look-up".into()).spawn(look) {
                Ok(_detached) => self.looking = Some(receive),
                Err(e) => return Some(Err(e)),
            }
        }
        let until = Instant::now() + PATIENCE;
        while !stop.raised() {
            let answer = self.looking.as_ref()?.recv_timeout(NOTICE);
            match answer {
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                // It goes on; the next attempt asks for its answer.
                Err(RecvTimeoutError::Timeout) => return Some(Err(ErrorKind::TimedOut.into())),
                Err(RecvTimeoutError::Disconnected) => {
                    self.looking = None;
                    return Some(Err(ErrorKind::Other.into()));
                }
                Ok(found) => {
                    self.looking = None;
                    return Some(found);
                }
            }
        }
        None
    }
}

impl Source for Probes {
    fn name(&self) -> &'static str {
        "probe"
    }

    fn every(&self) -> Duration {
        self.every
    }

    fn read(&mut self, page: &mut Page, stop: &Stop) -> Result<(), String> {
        // Side by side: a dead target delays no other.
        let attempts = thread::scope(|scope| {
            let started: Vec<_> = self
                .targets
                .iter_mut()
                .map(|p| {
                    thread::Builder::new().name("probe".into()).spawn_scoped(scope, move || p.attempt(stop))
                })
                .collect();
            let join = |attempt: io::Result<thread::ScopedJoinHandle<'_, Option<(AttemptEnd, Duration)>>>| {
                attempt.map(|handle| handle.join().ok().flatten())
            };
            started.into_iter().map(join).collect::<io::Result<Vec<_>>>()
        });
        for (probed, attempt) in self.targets.iter_mut().zip(attempts.map_err(|e| e.to_string())?) {
            if let Some((outcome, took)) = attempt {
                probed.tally.add(outcome, took);
            }
        }
        self.write(page);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn targets_are_hosts_with_ports() {
        for (text, shown) in [
            ("example.org:443", "example.org:443"),
            ("192.0.2.1:80", "192.0.2.1:80"),
            ("[2001:db8::1]:80", "[2001:db8::1]:80"),
        ] {
            assert_eq!(text.parse::<ProbeTarget>().unwrap().to_string(), shown);
        }
        for wrong in [
            "",
            "example.org",
            "example.org:0",
            "example.org:70000",
            ":80",
            "2001:db8::1:80",
            "a b:80",
            "[a]:80",
        ] {
            wrong.parse::<ProbeTarget>().unwrap_err();
        }
    }

    #[test]
    fn attempts_are_counted_by_outcome() {
        let open = TcpListener::bind("127.0.0.1:0").unwrap();
        // No other test binds this address: the port stays free.
        let closed = TcpListener::bind("127.0.0.77:0").unwrap().local_addr().unwrap();
        // Longer than a label may be, so that the look-up ends without a question to any server.
        let unknown = format!("{}.invalid:80", "a".repeat(64));
        let [open_name, closed] = [open.local_addr().unwrap(), closed].map(|a| a.to_string());
        let targets = [&open_name, &closed, &unknown].map(|t| t.parse().unwrap());
        let mut probes = Probes::new(&targets, Duration::from_secs(1));
        let mut text = String::new();
        for _ in 0..2 {
            let mut page = Page::default();
            probes.read(&mut page, &Stop::default()).unwrap();
            text = page.into_text();
        }
        for line in [
            format!("weir_probe_connects_total{{target=\"{open_name}\",outcome=\"connected\"}} 2"),
            format!("weir_probe_connects_total{{target=\"{closed}\",outcome=\"refused\"}} 2"),
            format!("weir_probe_connects_total{{target=\"{unknown}\",outcome=\"unresolved\"}} 2"),
            format!("weir_probe_success{{target=\"{open_name}\"}} 1"),
            format!("weir_probe_success{{target=\"{closed}\"}} 0"),
            format!("weir_probe_connect_seconds_count{{target=\"{open_name}\"}} 2"),
            format!("weir_probe_connect_seconds_count{{target=\"{closed}\"}} 0"),
        ] {
            assert!(text.lines().any(|l| l == line), "no `{line}` in:\n{text}");
        }
    }

    #[test]
    fn buckets_are_cumulative() {
        let mut tally = Attempts::default();
        for micros in [90, 100, 101, 9_000_000] {
            tally.add(AttemptEnd::Connected, Duration::from_micros(micros));
        }
        let buckets = tally.cumulative();
        assert_eq!(buckets[..3], [(0.0001, 2), (0.00025, 3), (0.0005, 3)]);
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, 4)));
    }
}
