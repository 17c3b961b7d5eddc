//! iperf3's server and client.

use std::net::SocketAddr;
use std::time::Duration;

use weir_record::{Fault, FaultCode};

use super::report::{self, Report};
use super::{External, Protocol, path_broke};
use crate::child::{Child, Finished, start, words};
use crate::listener::{await_listening, port_of};
use crate::{Direction, Error, Part, Responder, TrialSettings};

/// Name of the program and of the package.
pub(super) const PROGRAM: &str = "iperf3";

/// How long the server may take to listen, and the client to end after its time.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a connection of the client may take: it says then that it timed out, within our own patience.
const CONNECTING: Duration = Duration::from_secs(5);

/// How long the server may take to end after its client: within the second that a responder has.
const SERVER_END: Duration = Duration::from_millis(500);

fn failed(reason: impl Into<String>) -> Error {
    Error::Program { program: PROGRAM.into(), reason: reason.into() }
}

/// `iperf3 -s -1`: serves one client and ends.
pub(super) struct Server {
    port: u16,
    child: Option<Child>,
}

impl Server {
    /// Start it and wait until it listens.
    pub(super) fn start(setting: &TrialSettings, bind: SocketAddr) -> Result<Self, Error> {
        let port = port_of(bind)?;
        let args = ["-s", "-1", "-p", &port.to_string(), "-B", &bind.ip().to_string()].map(str::to_owned);
        let mut child = start(PROGRAM, &args, &setting.cpus)?;
        if !await_listening(PROGRAM, &mut child, port, PATIENCE)? {
            let (stdout, stderr) = child.output();
            return Err(failed(format!("the server ended at once: {}", words(&stdout, &stderr))));
        }
        Ok(Server { port, child: Some(child) })
    }
}

impl Responder for Server {
    fn port(&self) -> u16 {
        self.port
    }

    fn finish(mut self: Box<Self>) -> Result<Part, Error> {
        let mut child = self.child.take().ok_or_else(|| failed("the server was finished twice"))?;
        let system = |e: weir_sys::Error| failed(e.to_string());
        let ended = match child.process.wait(SERVER_END).map_err(system)? {
            Some(ended) => ended,
            // Its client never came or was stopped; the client's end tells why.
            None => child.process.kill().map_err(system)?,
        };
        Ok(Part { cpu_s: ended.cpu.as_secs_f64(), ..Part::default() })
    }
}

/// Whole seconds, at least `least`: iperf3 knows no others.
pub(super) fn seconds(d: Duration, least: u64) -> u64 {
    (d.as_secs() + u64::from(d.subsec_nanos() > 0)).max(least)
}

fn client_args(work: &External, setting: &TrialSettings, target: SocketAddr) -> Vec<String> {
    let mut args: Vec<String> = Vec::new();
    let mut add = |flag: &str, value: String| args.extend([flag.to_owned(), value]);
    add("-c", target.ip().to_string());
    add("-p", target.port().to_string());
    add("-t", seconds(setting.duration, 1).to_string());
    add("-O", seconds(setting.warmup, 0).to_string());
    add("-P", work.streams.to_string());
    if work.protocol == Protocol::Udp || work.rate_bps > 0.0 {
        // iperf3's rate is per stream; 0 is unlimited.
        add("-b", format!("{:.0}", work.rate_bps / f64::from(work.streams)));
    }
    match (work.payload_bytes, work.protocol) {
        (Some(bytes), _) => add("-l", bytes.to_string()),
        (None, Protocol::Udp) => add("-l", if target.is_ipv4() { "1472" } else { "1452" }.into()),
        (None, Protocol::Tcp) => {}
    }
    if work.protocol == Protocol::Tcp && !work.congestion.is_empty() {
        add("-C", work.congestion.clone());
    }
    if let Some(bytes) = work.window_bytes {
        add("-w", bytes.to_string());
    }
    args.extend(["--connect-timeout".to_owned(), CONNECTING.as_millis().to_string()]);
    args.push("-J".into());
    if work.protocol == Protocol::Udp {
        args.extend(["-u", "--udp-counters-64bit"].map(str::to_owned));
    }
    match work.direction {
        Direction::Egress => {}
        Direction::Ingress => args.push("-R".into()),
        Direction::Both => args.push("--bidir".into()),
    }
    args.extend(work.args.iter().cloned());
    args
}

/// Run the client to its end.
pub(super) fn client(work: &External, setting: &TrialSettings, target: SocketAddr) -> Result<Part, Error> {
    let child = start(PROGRAM, &client_args(work, setting, target), &setting.cpus)?;
    let time = Duration::from_secs(seconds(setting.duration, 1) + seconds(setting.warmup, 0));
    let (ended, stdout, stderr) = match child.finish(PROGRAM, &setting.stop, time + PATIENCE)? {
        Finished::Ended(ended, stdout, stderr) => (ended, stdout, stderr),
        Finished::Stopped => {
            let fault = Fault::void(FaultCode::Interrupted, "initiator", "iperf3 was stopped before its end");
            return Ok(Part { faults: vec![fault], ..Part::default() });
        }
    };
    match report::parse(&stdout) {
        Ok(report) => Ok(part(work, setting, &report, ended.cpu.as_secs_f64())),
        Err(reason) if path_broke(&reason) => Ok(nothing(work, setting, target, &reason)),
        // With -J it reports its errors in JSON, on standard output.
        Err(reason) if ended.status.success() => Err(failed(reason)),
        Err(reason) => Err(failed(if stderr.trim().is_empty() { reason } else { words("", &stderr) })),
    }
}

/// Returns the result of a client that the path did not let begin or go on: a rate of 0. All data that was due is lost.
fn nothing(work: &External, setting: &TrialSettings, target: SocketAddr, said: &str) -> Part {
    let mut part = Part::default();
    let streams = f64::from(work.streams) * work.direction.ways().len() as f64;
    part.set("streams", streams);
    part.set("failed_streams", streams);
    for name in ["goodput_bps", "bits", "window_share"] {
        part.set(name, 0.0);
    }
    if work.protocol == Protocol::Udp {
        let usual = if target.is_ipv4() { 1472 } else { 1452 };
        let bits = f64::from(work.payload_bytes.unwrap_or(usual)) * 8.0;
        let seconds = seconds(setting.duration, 1) as f64;
        let due = (work.rate_bps * seconds * work.direction.ways().len() as f64 / bits).floor().max(streams);
        part.set("sent", due);
        part.set("lost", due);
    }
    let detail = format!("the path did not let iperf3 begin or go on; it counts as a rate of 0: {said}");
    part.faults.push(Fault::noted(FaultCode::External, "initiator", detail));
    part
}

fn part(work: &External, setting: &TrialSettings, report: &Report, cpu_s: f64) -> Part {
    let mut part = Part::default();
    let ways: Vec<_> = report.ways.iter().collect();
    let total = |of: fn(&report::Way) -> f64| ways.iter().map(|w| of(w)).sum::<f64>();
    let bits = total(|w| w.received_bytes * 8.0);
    part.set("bits", bits);
    part.set("goodput_bps", total(|w| w.received_bytes * 8.0 / w.received_s));
    part.set("streams", f64::from(work.streams) * work.direction.ways().len() as f64);
    part.set("failed_streams", f64::from(report.silent_streams));
    part.set("window_share", report.window_share);
    part.cpu_s = cpu_s * report.window_share;
    match work.protocol {
        Protocol::Tcp => part.set("retransmits", total(|w| w.retransmits)),
        Protocol::Udp => {
            // By bytes: with seconds omitted, the lost_packets of iperf3 3.12 include those of the omitted seconds.
            let received = total(|w| w.received_datagrams());
            part.set("received", received);
            part.set("delivered_pps", total(|w| w.received_datagrams() / w.received_s));
            part.set("sent", total(|w| w.packets));
            part.set("lost", (total(|w| w.packets) - received).max(0.0));
            let alive = ways.iter().filter(|w| w.received_bytes > 0.0).count();
            if alive > 0 {
                part.set("jitter_ns", total(|w| w.jitter_ms) * 1e6 / alive as f64);
            }
        }
    }
    part.series = report.series(work.direction);
    if Duration::from_secs(seconds(setting.duration, 1)) != setting.duration {
        let detail = format!(
            "iperf3 measures whole seconds: {} instead of {:?}",
            seconds(setting.duration, 1),
            setting.duration
        );
        part.faults.push(Fault::noted(FaultCode::External, "initiator", detail));
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_in_whole_seconds() {
        assert_eq!(seconds(Duration::from_millis(1), 1), 1);
        assert_eq!(seconds(Duration::from_millis(2001), 1), 3);
        assert_eq!(seconds(Duration::from_secs(2), 1), 2);
        assert_eq!(seconds(Duration::ZERO, 0), 0);
    }
}
