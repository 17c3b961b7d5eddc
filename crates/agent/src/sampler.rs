//! Counters of a host's kernel during the measuring window of a trial.
//!
//! One thread reads `/proc` when the window begins, once a second within it, and when it ends. Everything works
//! without privilege; what the host does not have (conntrack, IPv6) is absent from the sample. A reading costs about 0.12 ms of
//! CPU time (measured on two cores with three interfaces), so a sampler takes about 0.01 % of a core.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_netlink::conntrack::Conntrack;
use weir_record::{CpuTime, HostSample, InterfaceDelta, Series};
use weir_sys::procfs::{CpuTicks, InterfaceCounters, Softnet, ticks_per_second};
use weir_sys::{Error, ProcRoot, Result};

/// When to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// From now to the start of the measuring window.
    pub after: Duration,
    /// Length of the measuring window.
    pub duration: Duration,
    /// Distance of the points of the series.
    pub every: Duration,
}

impl Window {
    /// A window that begins after `after`, with a point every second.
    pub fn new(after: Duration, duration: Duration) -> Self {
        Window { after, duration, every: Duration::from_secs(1) }
    }
}

/// A running sampler of the host (and network namespace) of the thread that started it.
#[derive(Debug)]
pub struct Sampler {
    finish: Sender<()>,
    thread: JoinHandle<Result<HostSample>>,
}

impl Sampler {
    /// Starts sampling. `interfaces` are those on the measured path; without any, all but `lo` are taken.
    ///
    /// # Errors
    /// If no thread can start. [`Self::finish`] reports anything that the sampler cannot read.
    pub fn start(window: Window, interfaces: Vec<String>) -> Result<Self> {
        Self::start_with(ProcRoot::new("/"), window, interfaces)
    }

    /// As [`Self::start`], reading below another root.
    fn start_with(root: ProcRoot, window: Window, interfaces: Vec<String>) -> Result<Self> {
        let (finish, asked) = channel();
        let began = Instant::now();
        let thread = std::thread::Builder::new()
            .name("sampler".into())
            .spawn(move || CounterReader::new(root, interfaces).run(window, began, &asked))
            .map_err(|e| Error::new("start the sampler", e))?;
        Ok(Sampler { finish, thread })
    }

    /// Returns the counts of the window. If called before the window's end, it ends the window now; before its start, the sample
    /// is empty.
    pub fn finish(self) -> Result<HostSample> {
        // A thread that is done already does not listen.
        let _ = self.finish.send(());
        match self.thread.join() {
            Ok(sample) => sample,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Counters that are read at each point of the series.
#[derive(Debug, Clone)]
struct Point {
    at: Instant,
    cpu: BTreeMap<usize, CpuTicks>,
    interfaces: BTreeMap<String, InterfaceCounters>,
    memory_used: u64,
    conntrack_count: Option<u64>,
}

/// Counters that are read at both ends of the window only.
#[derive(Debug, Clone)]
struct Totals {
    protocols: BTreeMap<String, u64>,
    softnet: Vec<Softnet>,
    conntrack: BTreeMap<&'static str, u64>,
}

/// The reader.
struct CounterReader {
    root: ProcRoot,
    interfaces: Vec<String>,
    conntrack: Option<Conntrack>,
}

impl CounterReader {
    fn new(root: ProcRoot, interfaces: Vec<String>) -> Self {
        // Asking ctnetlink on a host without conntrack would make the kernel load it. Without CAP_NET_ADMIN the
        // statistics are out of reach and absent.
        let conntrack = root.conntrack_count().and_then(|_| Conntrack::open().ok());
        CounterReader { root, interfaces, conntrack }
    }

    fn run(mut self, window: Window, began: Instant, finish: &Receiver<()>) -> Result<HostSample> {
        let start = began + window.after;
        // A window that begins at once is never missed, however soon the end is asked for.
        if !window.after.is_zero() && wait_until(start, finish) {
            return Ok(HostSample::default());
        }
        let totals = self.totals()?;
        let mut points = vec![self.point()?];
        let start = points[0].at;
        let end = start + window.duration;
        let every = window.every.max(Duration::from_millis(10));
        let mut next = start + every;
        loop {
            // A last interval of less than half a step would be mostly noise: it joins the one before.
            let due = if next + every / 2 > end { end } else { next };
            let last = wait_until(due, finish) || due == end;
            points.push(self.point()?);
            if last {
                break;
            }
            next += every;
        }
        let counters = self.totals()?.since(&totals);
        Ok(summary(&points, counters))
    }

    fn point(&self) -> Result<Point> {
        let mut interfaces = self.root.net_dev()?;
        interfaces.retain(|name, _| {
            if self.interfaces.is_empty() { name != "lo" } else { self.interfaces.contains(name) }
        });
        Ok(Point {
            at: Instant::now(),
            cpu: self.root.stat()?,
            interfaces,
            memory_used: self.root.meminfo()?.used(),
            conntrack_count: self.root.conntrack_count(),
        })
    }

    fn totals(&mut self) -> Result<Totals> {
        Ok(Totals {
            protocols: self.root.protocol_counters()?,
            softnet: self.root.softnet()?,
            conntrack: self.conntrack.as_mut().and_then(|c| c.statistics().ok()).unwrap_or_default(),
        })
    }
}

/// Waits until `due`. True if the end was requested, or if the requester is gone.
fn wait_until(due: Instant, finish: &Receiver<()>) -> bool {
    !matches!(
        finish.recv_timeout(due.saturating_duration_since(Instant::now())),
        Err(RecvTimeoutError::Timeout)
    )
}

/// Values that are states, not counts: their difference means nothing.
const STATES: [&str; 4] = ["tcp.CurrEstab", "ip.Forwarding", "ip.DefaultTTL", "tcp.MaxConn"];

impl Totals {
    /// The counters that moved, by dotted name.
    fn since(&self, earlier: &Totals) -> BTreeMap<String, u64> {
        let mut moved = BTreeMap::new();
        let mut add = |name: String, now: u64, before: u64| {
            if now > before {
                moved.insert(name, now - before);
            }
        };
        for (name, now) in self.protocols.iter().filter(|(name, _)| !STATES.contains(&name.as_str())) {
            add(name.clone(), *now, earlier.protocols.get(name).copied().unwrap_or(0));
        }
        for (name, now) in &self.conntrack {
            add(format!("conntrack.{name}"), *now, earlier.conntrack.get(name).copied().unwrap_or(0));
        }
        type Field = (&'static str, fn(&Softnet) -> u64);
        let fields: [Field; 5] = [
            ("processed", |s| s.processed),
            ("dropped", |s| s.dropped),
            ("time_squeeze", |s| s.time_squeeze),
            ("received_rps", |s| s.received_rps),
            ("flow_limit", |s| s.flow_limit),
        ];
        for (name, field) in fields {
            // The kernel counts with 32 bits per core, so each core's difference wraps by itself.
            let before = |i: usize| earlier.softnet.get(i).map_or(0, field);
            let delta =
                self.softnet.iter().enumerate().map(|(i, s)| field(s).wrapping_sub(before(i)) & 0xffff_ffff);
            add(format!("softnet.{name}"), delta.sum(), 0);
        }
        moved
    }
}

/// The sample out of the points of a window; the first and the last are its ends.
fn summary(points: &[Point], counters: BTreeMap<String, u64>) -> HostSample {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return HostSample::default() };
    let interfaces = last.interfaces.iter().map(|(name, now)| {
        (name.clone(), interface_delta(now, &first.interfaces.get(name).copied().unwrap_or_default()))
    });
    HostSample {
        window_s: (last.at - first.at).as_secs_f64(),
        cpu: cpu_times(first, last),
        memory_used_bytes: last.memory_used,
        interfaces: interfaces.collect(),
        conntrack_count: last.conntrack_count,
        counters,
        series: series(points),
    }
}

/// Time per core between two points; a core that came online in between counts from zero.
fn cpu_times(from: &Point, to: &Point) -> Vec<CpuTime> {
    let seconds = |ticks: u64| ticks as f64 / ticks_per_second() as f64;
    let core = |(number, now): (&usize, &CpuTicks)| {
        let d = now.since(&from.cpu.get(number).copied().unwrap_or_default());
        CpuTime {
            user_s: seconds(d.user + d.nice),
            system_s: seconds(d.system),
            irq_s: seconds(d.irq),
            softirq_s: seconds(d.softirq),
            steal_s: seconds(d.steal),
            idle_s: seconds(d.idle + d.iowait),
        }
    };
    to.cpu.iter().map(core).collect()
}

/// An interface that was made anew in between (its counters went back) counts from zero.
fn interface_delta(now: &InterfaceCounters, before: &InterfaceCounters) -> InterfaceDelta {
    let before = if now.rx_packets < before.rx_packets || now.tx_packets < before.tx_packets {
        InterfaceCounters::default()
    } else {
        *before
    };
    InterfaceDelta {
        rx_bytes: now.rx_bytes.saturating_sub(before.rx_bytes),
        rx_packets: now.rx_packets.saturating_sub(before.rx_packets),
        rx_errors: now.rx_errors.saturating_sub(before.rx_errors),
        rx_dropped: now.rx_dropped.saturating_sub(before.rx_dropped),
        tx_bytes: now.tx_bytes.saturating_sub(before.tx_bytes),
        tx_packets: now.tx_packets.saturating_sub(before.tx_packets),
        tx_errors: now.tx_errors.saturating_sub(before.tx_errors),
        tx_dropped: now.tx_dropped.saturating_sub(before.tx_dropped),
    }
}

/// One series per quantity; a point stands for the interval that ends with it.
fn series(points: &[Point]) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    let mut push = |name: &str, t: f64, value: f64| match all.iter_mut().find(|s| s.name == name) {
        Some(series) => series.points.push((t, value)),
        None => all.push(Series { name: name.to_owned(), points: vec![(t, value)] }),
    };
    for pair in points.windows(2) {
        let (from, to) = (&pair[0], &pair[1]);
        let dt = (to.at - from.at).as_secs_f64();
        if dt <= 0.0 {
            continue;
        }
        let t = (to.at - points[0].at).as_secs_f64();
        let cores = cpu_times(from, to);
        let sum = |field: fn(&CpuTime) -> f64| cores.iter().map(field).sum::<f64>() / dt;
        push("cpu_busy_cores", t, sum(CpuTime::busy_s));
        push("softirq_cores", t, sum(|c| c.softirq_s));
        push("steal_cores", t, sum(|c| c.steal_s));
        let deltas = to
            .interfaces
            .iter()
            .map(|(name, now)| interface_delta(now, &from.interfaces.get(name).copied().unwrap_or_default()));
        let (rx, tx) = deltas.fold((0, 0), |(rx, tx), d| (rx + d.rx_bytes, tx + d.tx_bytes));
        push("rx_bps", t, rx as f64 * 8.0 / dt);
        push("tx_bps", t, tx as f64 * 8.0 / dt);
        push("memory_used_bytes", t, to.memory_used as f64);
        if let Some(count) = to.conntrack_count {
            push("conntrack_count", t, count as f64);
        }
    }
    all
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
