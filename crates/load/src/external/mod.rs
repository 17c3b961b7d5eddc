//! Runs another program between the same two hosts in the same rounds, to compare weir with a tool that people trust. Its output
//! is converted to the metrics of weir's own workloads.

mod http;
mod iperf3;
mod report;

use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_netlink::Protocol;
use weir_record::{Better, Fault, FaultCode, MetricDef, Unit};

use crate::http::Server;
use crate::part::sum;
use crate::properties::Properties;
use crate::series::summed;
use crate::streams::{check_congestion, check_count, count_words, failure_metrics, set_failed};
use crate::{Direction, Engine, Error, Part, Responder, TrialSettings};

/// Which program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Program {
    /// iperf3, client and server.
    #[default]
    Iperf3,
    /// ApacheBench, against an HTTP server.
    Ab,
    /// wrk, against an HTTP server.
    Wrk,
}

/// Options of `external`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct External {
    /// Which program.
    pub program: Program,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Which way the data goes.
    pub direction: Direction,
    /// Streams at once, 1..=128.
    pub streams: u32,
    /// Bytes per write (TCP, up to 1048576; without it the program's own, 131072) or per datagram (UDP, 16..=65507; without
    /// it what fills an MTU of 1500).
    pub payload_bytes: Option<u32>,
    /// Payload bits per second over all streams of a direction; 0 for as fast as possible.
    pub rate_bps: f64,
    /// Congestion control (TCP), e.g. `cubic`; empty for the system's default.
    pub congestion: String,
    /// Socket buffers in bytes; without it the system's.
    pub window_bytes: Option<u32>,
    /// `ab` and `wrk`: who answers, as in `http` (default `nginx`), and how large its file is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<Server>,
    /// `ab` and `wrk`: bytes of the file that the server sends, as in `http`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_bytes: Option<u32>,
    /// `ab` and `wrk`: connections at the same time, 1..=20000 (default 10).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// `wrk`: its threads, 1..=64 (default 1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// `ab` and `wrk`: many requests on each connection (default true).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<bool>,
    /// `ab`: so many requests, 1..=100000000, and then no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Further arguments for the program's client.
    pub args: Vec<String>,
}

impl Default for External {
    fn default() -> Self {
        External {
            program: Program::Iperf3,
            protocol: Protocol::Tcp,
            direction: Direction::Egress,
            streams: 1,
            payload_bytes: None,
            rate_bps: 0.0,
            congestion: "cubic".into(),
            window_bytes: None,
            server: None,
            body_bytes: None,
            connections: None,
            threads: None,
            keep_alive: None,
            requests: None,
            args: Vec::new(),
        }
    }
}

impl Engine for External {
    fn kind(&self) -> &'static str {
        "external"
    }

    fn describe(&self) -> String {
        if self.speaks_http() {
            return http::describe(self);
        }
        let protocol = match self.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        };
        let mut text = format!("iperf3 {protocol} {}, {}", self.direction, count_words(self.streams));
        if self.protocol == Protocol::Tcp && !self.congestion.is_empty() {
            text += &format!(", {}", self.congestion);
        }
        if let Some(bytes) = self.payload_bytes {
            text += &format!(", {bytes} bytes each");
        }
        if self.rate_bps > 0.0 {
            text += &format!(", {} bit/s", self.rate_bps);
        }
        if !self.args.is_empty() {
            text += &format!(", {}", self.args.join(" "));
        }
        text
    }

    fn validate(&self) -> Result<(), String> {
        if self.speaks_http() {
            return http::validate(self);
        }
        if let Some(key) = http::first_option(self) {
            return Err(format!("{key}: only with program = \"ab\" or \"wrk\""));
        }
        check_count(self.streams)?;
        let payload = match self.protocol {
            Protocol::Tcp => 1..=1 << 20,
            Protocol::Udp => 16..=65507,
        };
        if let Some(bytes) = self.payload_bytes.filter(|b| !payload.contains(b)) {
            return Err(format!("payload-bytes = {bytes}: valid is {}..={}", payload.start(), payload.end()));
        }
        if !(self.rate_bps == 0.0 || (1.0..=1e13).contains(&self.rate_bps)) {
            return Err(format!(
                "rate-bps = {}: valid is 0 (as fast as possible) or 1..=1e13",
                self.rate_bps
            ));
        }
        check_congestion(&self.congestion)
    }

    fn properties(&self) -> Properties {
        // Programs start and end at both ends.
        Properties { overhead: Duration::from_millis(750), served: None }
    }

    fn metrics(&self) -> Vec<MetricDef> {
        if self.speaks_http() {
            return http::metrics();
        }
        let mut all = vec![MetricDef::value(
            "goodput_bps",
            "goodput",
            Unit::Bps,
            Better::Higher,
            "payload bits per second that the program's receiver counted (RFC 2647 section 3.17)",
        )];
        all.extend(match self.protocol {
            Protocol::Tcp => tcp_metrics(),
            Protocol::Udp => udp_metrics(),
        });
        all.extend(failure_metrics(
            "failed streams",
            "streams of which the program's receiver counted nothing, and all where the path let the program not begin or go on",
        ));
        all
    }

    fn programs(&self) -> Vec<&'static str> {
        vec![self.program.name()]
    }

    fn responder_programs(&self) -> Vec<&'static str> {
        match self.program {
            Program::Iperf3 => vec![iperf3::PROGRAM],
            Program::Ab | Program::Wrk => http::server(self).responder_programs(),
        }
    }

    fn patience(&self) -> Duration {
        // Whole seconds, rounded up.
        Duration::from_secs(2)
    }

    fn open(&self, setting: &TrialSettings, bind: SocketAddr) -> Result<Box<dyn Responder>, Error> {
        match self.program {
            Program::Iperf3 => Ok(Box::new(iperf3::Server::start(setting, bind)?)),
            Program::Ab | Program::Wrk => http::server(self).open(setting, bind),
        }
    }

    fn drive(&self, setting: &TrialSettings, target: SocketAddr) -> Result<Part, Error> {
        match self.program {
            Program::Iperf3 => iperf3::client(self, setting, target),
            Program::Ab | Program::Wrk => http::client(self, setting, target),
        }
    }

    fn combine(&self, initiators: &[Part], responders: &[Part]) -> Part {
        match self.program {
            Program::Iperf3 => combine(self, initiators, responders),
            Program::Ab | Program::Wrk => http::combine(initiators, responders),
        }
    }
}

impl Program {
    /// Its name, which is also the command.
    fn name(self) -> &'static str {
        match self {
            Program::Iperf3 => iperf3::PROGRAM,
            Program::Ab => "ab",
            Program::Wrk => "wrk",
        }
    }
}

/// True if a program's words name an error that only the path between open ends can cause.
fn path_broke(said: &str) -> bool {
    const WORDS: [&str; 8] = [
        "Connection refused",
        "Connection reset by peer",
        "Connection timed out",
        "No route to host",
        "Network is unreachable",
        "Host is unreachable",
        "Broken pipe",
        // apr's own, of ab.
        "The timeout specified has expired",
    ];
    WORDS.iter().any(|words| said.contains(words))
}

impl External {
    fn speaks_http(&self) -> bool {
        matches!(self.program, Program::Ab | Program::Wrk)
    }
}

fn tcp_metrics() -> Vec<MetricDef> {
    let lower = |name: &str, label: &str, unit, help: &str| {
        MetricDef::value(name, label, unit, Better::Lower, help).detail()
    };
    vec![
        lower("retransmits", "retransmits", Unit::Count, "segments that the program's senders sent again")
            .by_difference(),
        lower(
            "tester_cpu_s_per_gbit",
            "tester CPU",
            Unit::CpuSecondsPerGbit,
            "CPU time of both processes (wait4) per 1e9 payload bits that they moved",
        ),
    ]
}

fn udp_metrics() -> Vec<MetricDef> {
    use Better::{Higher, Lower, Neither};
    let value = MetricDef::value;
    vec![
        value(
            "delivered_pps",
            "delivered",
            Unit::Pps,
            Higher,
            "datagrams per second that the program's receiver counted, copies included up to as many as were sent",
        ),
        MetricDef {
            headline: true,
            ..MetricDef::failure(
                "loss_ratio",
                "loss",
                ("lost", "sent"),
                "share of the datagrams sent that the program's receiver did not count, its own full buffer included; a copy stands in for a lost one, since it does not tell them apart",
            )
        },
        value("sent", "sent", Unit::Count, Neither, "datagrams that the program's sender counted")
            .by_difference()
            .detail(),
        value("lost", "lost", Unit::Count, Lower, "of these, not counted by its receiver")
            .by_difference()
            .detail(),
        value(
            "jitter_ns",
            "RFC 3550 jitter (received)",
            Unit::Ns,
            Lower,
            "the program's estimate (RFC 3550 section 6.4.1), of the datagrams received",
        )
        .by_difference()
        .detail(),
        value(
            "tester_cpu_ns_per_datagram",
            "tester CPU",
            Unit::CpuNs,
            Lower,
            "CPU time of both processes (wait4) per datagram received",
        )
        .detail(),
    ]
}

/// The responders know nothing but the CPU time of their server, for its whole life: the share of the traffic that fell
/// into the window is the clients' knowledge.
fn combine(work: &External, initiators: &[Part], responders: &[Part]) -> Part {
    let parts: Vec<Part> = initiators.iter().chain(responders).cloned().collect();
    let mut trial = Part { faults: parts.iter().flat_map(|p| p.faults.clone()).collect(), ..Part::default() };
    let measured: Vec<Part> =
        initiators.iter().filter(|p| p.values.contains_key("goodput_bps")).cloned().collect();
    if measured.is_empty() {
        if trial.faults.is_empty() {
            trial.faults.push(Fault::void(FaultCode::External, "runner", "the program returned no result"));
        }
        return trial;
    }
    let sums: &[&str] = match work.protocol {
        Protocol::Tcp => &["goodput_bps", "retransmits"],
        Protocol::Udp => &["goodput_bps", "delivered_pps", "sent", "lost"],
    };
    for name in sums {
        trial.set(name, sum(&measured, name));
    }
    set_failed(&mut trial, sum(&measured, "streams"), sum(&measured, "failed_streams"));
    let bits = sum(&measured, "bits");
    let share = sum(&measured, "window_share") / measured.len() as f64;
    trial.cpu_s = measured.iter().map(|p| p.cpu_s).sum::<f64>()
        + responders.iter().map(|p| p.cpu_s).sum::<f64>() * share;
    let cpu_s = trial.cpu_s;
    match work.protocol {
        Protocol::Tcp if bits > 0.0 => trial.set("tester_cpu_s_per_gbit", cpu_s / (bits / 1e9)),
        Protocol::Udp => {
            if trial.value("sent") > 0.0 {
                trial.set("loss_ratio", trial.value("lost") / trial.value("sent"));
            }
            let jitters: Vec<f64> =
                measured.iter().filter_map(|p| p.values.get("jitter_ns")).copied().collect();
            if !jitters.is_empty() {
                trial.set("jitter_ns", jitters.iter().sum::<f64>() / jitters.len() as f64);
            }
            let received = sum(&measured, "received");
            if received > 0.0 {
                trial.set("tester_cpu_ns_per_datagram", cpu_s * 1e9 / received);
            }
        }
        Protocol::Tcp => {}
    }
    trial.series.extend(["goodput_bps", "sent_bps"].iter().filter_map(|name| summed(&measured, name)));
    trial
}
