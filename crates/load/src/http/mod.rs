//! `http`: HTTP/1.1 requests over any number of connections, as ab and wrk send them (a closed loop) or on a schedule (an open
//! loop), against a server of weir's own starting or any other.
//!
//! A request is timed from its intended start to the last byte of its response. If it needs a new connection, its time includes
//! the time to connect, which is also reported separately.

mod drive;
mod gather;
mod known;
mod response;
mod server;
mod tally;
mod tls;
mod worker;

use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_record::{Better, Fault, FaultCode, MetricDef, Unit};

use crate::latency::{
    add_distribution, add_failed, add_lateness, distribution_metrics, gathered, per_second, require_some,
};
use crate::part::{merged, sum};
use crate::properties::Properties;
use crate::rr::in_range;
use crate::{Engine, Error, Part, Responder, TrialSettings};
use tally::{COUNTS, failed};

pub use crate::connector::Close;
pub use server::Server;
pub use tally::FAILURES;

/// Requests of a set number at most: a day at a hundred thousand a second.
const MOST_REQUESTS: u64 = 10_000_000_000;

/// HTTP/1.1 requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Http {
    /// The server: `nginx` (default) or `apache`, started at the responder for each trial, or `none`: any server that already
    /// listens there.
    pub server: Server,
    /// With `server = "none"`: the port of the server; without it the one of the testbed's ports that weir's own would have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// With `server = "none"`: what is asked for, with the query if there is one (default `/`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// With `server = "none"`: name of the host for `Host` and TLS, if not the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Further header lines: `["Accept-Encoding: gzip"]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    /// Bytes of the file that weir's own server sends, 0..=1073741824.
    pub body_bytes: u32,
    /// Connections at the same time, 1..=100000.
    pub connections: u32,
    /// Load threads, 1..=64; no more than connections are used.
    pub threads: u32,
    /// Many requests on each connection; otherwise one, with `Connection: close`.
    pub keep_alive: bool,
    /// Without keep-alive, and wherever the server does not keep the connection. `fin`: in order, by the server first, so that
    /// the initiator's ports do not run out; `reset`: by the initiator's RST.
    pub close: Close,
    /// The handshake of TCP is acknowledged at once, as stock clients do. `false`: the request carries the acknowledgement, which
    /// saves two of about ten packets of a connection (RFC 9293 section 3.5 allows data with it; TCP_QUICKACK).
    pub quick_ack: bool,
    /// So many requests after the warm-up, 1..=10000000000, and then no more; the window's length is their limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Requests a second over all connections, on a schedule, 1..=1000000. Without it a connection sends when it was answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<u32>,
    /// Connections that are opened per second at the start, 1..=1000000.
    pub ramp_per_second: u32,
    /// Milliseconds after which a request counts as failed, 10..=120000.
    pub timeout_ms: u32,
    /// Statuses of good responses, each 200..=599, e.g. `[401]` for a page that needs a login (default: 2xx and 3xx). Any
    /// other answer is a failed request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expect_status: Vec<u16>,
    /// With `server = "none"`: bytes of the body of a good response; without it any length is good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expect_body_bytes: Option<u64>,
    /// Over TLS 1.2 or 1.3.
    pub tls: bool,
    /// Do not verify the signer of the server's certificate. The certificate of weir's own server is never verified.
    pub insecure: bool,
    /// File with the authorities that may have signed it (PEM); without it those that the initiator's system trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
}

impl Default for Http {
    fn default() -> Self {
        Http {
            server: Server::Nginx,
            port: None,
            path: None,
            host: None,
            headers: Vec::new(),
            body_bytes: 612,
            connections: 100,
            threads: 1,
            keep_alive: true,
            close: Close::Fin,
            quick_ack: true,
            requests: None,
            rate_per_second: None,
            ramp_per_second: 20_000,
            timeout_ms: 5000,
            expect_status: Vec::new(),
            expect_body_bytes: None,
            tls: false,
            insecure: false,
            ca: None,
        }
    }
}

impl Http {
    /// Returns the requested path. On weir's own server the file has a name that only this trial uses, so that no other server is
    /// mistaken for it.
    pub(crate) fn path(&self, setting: &TrialSettings) -> String {
        match (&self.path, self.server) {
            (Some(path), Server::None) => path.clone(),
            (_, Server::None) => "/".into(),
            (_, Server::Nginx | Server::Apache) => format!("/{}", server::file_name(setting.cookie)),
        }
    }

    fn check_target(&self) -> Result<(), String> {
        let own = self.server != Server::None;
        for (key, set) in [
            ("port", self.port.is_some()),
            ("path", self.path.is_some()),
            ("host", self.host.is_some()),
            ("expect-body-bytes", self.expect_body_bytes.is_some()),
        ] {
            if own && set {
                return Err(format!("{key}: only with server = \"none\": weir's own server has its own"));
            }
        }
        if self.port == Some(0) {
            return Err("port = 0: valid is 1 to 65535".into());
        }
        let visible = |text: &str| text.bytes().all(|c| c.is_ascii_graphic()) && text.len() <= 2000;
        if let Some(path) = self.path.as_ref().filter(|p| !p.starts_with('/') || !visible(p)) {
            return Err(format!(
                "path = {path:?}: expected a path such as \"/index.html\", blanks written as %20"
            ));
        }
        if let Some(host) = self.host.as_ref().filter(|h| h.is_empty() || !visible(h)) {
            return Err(format!("host = {host:?}: expected a name such as \"www.example.com\""));
        }
        for header in &self.headers {
            check_header(header)?;
        }
        Ok(())
    }

    /// The file has a name that only this trial's server knows: one that never heard of it is another.
    fn other_server(&self, initiators: &[Part]) -> Option<Fault> {
        let unknown = sum(initiators, "ok") == 0.0 && sum(initiators, "status_4xx") > 0.0;
        (self.server != Server::None && unknown).then(|| {
            let detail = "another server than this trial's answers: it does not know the file";
            Fault::void(FaultCode::ConnectionFailed, "initiator", detail)
        })
    }

    fn check_tls(&self) -> Result<(), String> {
        if !self.tls && (self.insecure || self.ca.is_some()) {
            let key = if self.insecure { "insecure" } else { "ca" };
            return Err(format!("{key}: only with tls = true"));
        }
        if self.insecure && self.ca.is_some() {
            return Err("insecure and ca exclude each other: set one of them".into());
        }
        if self.tls && self.server == Server::Apache {
            return Err("tls: weir starts apache without it; use server = \"nginx\"".into());
        }
        Ok(())
    }
}

/// A header line that cannot break the request (RFC 9110 section 5) nor change what weir itself says in it.
fn check_header(line: &str) -> Result<(), String> {
    let bad = || format!("headers: {line:?}: expected a line such as \"Accept-Encoding: gzip\"");
    let (name, value) = line.split_once(':').ok_or_else(bad)?;
    let token = |c: u8| c.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&c);
    if name.is_empty() || !name.bytes().all(token) || value.bytes().any(|c| c.is_ascii_control()) {
        return Err(bad());
    }
    let own = ["host", "connection", "content-length", "transfer-encoding", "expect", "upgrade"];
    match own.iter().find(|own| name.eq_ignore_ascii_case(own)) {
        Some(_) => Err(format!("headers: {line:?}: weir sets `{name}` itself")),
        None => Ok(()),
    }
}

impl Engine for Http {
    fn kind(&self) -> &'static str {
        "http"
    }

    fn describe(&self) -> String {
        let scheme = if self.tls { "HTTPS" } else { "HTTP/1.1" };
        let kept = if self.keep_alive { "keep-alive" } else { "a connection for each request" };
        let s = if self.connections == 1 { "" } else { "s" };
        let mut text = format!("{scheme} requests, {kept}, {} connection{s}", self.connections);
        if self.threads > 1 {
            text += &format!(" on {} threads", self.threads);
        }
        if !self.quick_ack {
            text += ", handshakes acknowledged by the request";
        }
        if let Some(rate) = self.rate_per_second {
            text += &format!(", {rate}/s on a schedule");
        }
        if let Some(n) = self.requests {
            text += &format!(", {n} requests");
        }
        match self.server {
            Server::None => {
                text += &format!(", {} of the server that listens", self.path.as_deref().unwrap_or("/"))
            }
            server => text += &format!(", a file of {} B from {}", self.body_bytes, server.name()),
        }
        text
    }

    fn validate(&self) -> Result<(), String> {
        in_range("connections", self.connections, 1..=100_000)?;
        in_range("threads", self.threads, 1..=64)?;
        in_range("body-bytes", self.body_bytes, 0..=1 << 30)?;
        in_range("ramp-per-second", self.ramp_per_second, 1..=1_000_000)?;
        in_range("timeout-ms", self.timeout_ms, 10..=120_000)?;
        if let Some(n) = self.requests.filter(|n| !(1..=MOST_REQUESTS).contains(n)) {
            return Err(format!("requests = {n} is out of range: valid is 1 to {MOST_REQUESTS}"));
        }
        if let Some(rate) = self.rate_per_second {
            in_range("rate-per-second", rate, 1..=1_000_000)?;
            if self.requests.is_some() {
                return Err(
                    "requests and rate-per-second exclude each other: a schedule is as long as the window"
                        .into(),
                );
            }
        }
        if let Some(status) = self.expect_status.iter().find(|status| !(200..600).contains(*status)) {
            return Err(format!("expect-status: {status} is out of range: valid is 200 to 599"));
        }
        self.check_target()?;
        self.check_tls()
    }

    fn properties(&self) -> Properties {
        // A web server starts and ends.
        Properties { overhead: Duration::from_millis(250), served: None }
    }

    fn metrics(&self) -> Vec<MetricDef> {
        metrics(self)
    }

    fn responder_programs(&self) -> Vec<&'static str> {
        self.server.programs(self.tls)
    }

    fn patience(&self) -> Duration {
        // A closed loop waits for its last requests only as long as a hop takes that forwards them.
        let limit = Duration::from_millis(self.timeout_ms.into());
        if self.rate_per_second.is_some() { limit } else { limit.min(worker::DRAIN) }
    }

    fn open(&self, setting: &TrialSettings, bind: SocketAddr) -> Result<Box<dyn Responder>, Error> {
        server::start(self, setting, bind)
    }

    fn drive(&self, setting: &TrialSettings, target: SocketAddr) -> Result<Part, Error> {
        drive::drive(self, setting, target)
    }

    fn combine(&self, initiators: &[Part], responders: &[Part]) -> Part {
        let mut trial = gathered(initiators, responders);
        for stem in ["latency", "response", "connect"] {
            add_distribution(&mut trial, initiators, stem);
        }
        if self.tls {
            trial.histograms.insert("tls".into(), merged(initiators, "tls"));
        }
        trial.set("requests_per_second", per_second(initiators, "ok"));
        trial.set("goodput_bps", per_second(initiators, "body_bytes") * 8.0);
        let ok = sum(initiators, "ok");
        let unanswered = failed(initiators) + sum(initiators, "unfinished");
        add_failed(&mut trial, initiators, "failed_ratio", unanswered, "attempted");
        let attempted = sum(initiators, "attempted");
        if attempted > 0.0 {
            trial.set("resent_ratio", sum(initiators, "resent") / attempted);
        }
        if ok > 0.0 {
            let cpu_s: f64 = initiators.iter().map(|p| p.cpu_s).sum();
            trial.set("client_cpu_ns_per_request", cpu_s * 1e9 / ok);
        }
        add_server_cpu(&mut trial, responders, sum(initiators, "all_ok"));
        for name in COUNTS.iter().chain(&FAILURES).chain(&["scheduled", "unsent"]) {
            trial.set(name, sum(initiators, name));
        }
        add_lateness(&mut trial, initiators);
        require_some(&mut trial, initiators, "attempted");
        trial.faults.extend(self.other_server(initiators));
        trial
    }
}

/// The server's CPU time is that of its whole life, so it is shared among all requests, those of the warm-up included.
pub(crate) fn add_server_cpu(trial: &mut Part, responders: &[Part], requests: f64) {
    let cpu_s: f64 = responders.iter().map(|p| p.cpu_s).sum();
    if requests > 0.0 && cpu_s > 0.0 {
        trial.set("server_cpu_ns_per_request", cpu_s * 1e9 / requests);
    }
}

/// The metrics that weir's engine shares with other programs.
pub(crate) fn shared_metrics() -> Vec<MetricDef> {
    use Better::{Higher, Lower};
    vec![
        MetricDef::value(
            "requests_per_second",
            "requests",
            Unit::PerSecond,
            Higher,
            "Whole responses of status 2xx or 3xx, per second of the measuring window.",
        ),
        MetricDef::value(
            "client_cpu_ns_per_request",
            "client CPU / request",
            Unit::CpuNs,
            Lower,
            "User and system time of the load threads per good response. In the lab the sender also does the forwarding, so it \
             includes much of the path's work.",
        )
        .detail(),
        MetricDef::value(
            "server_cpu_ns_per_request",
            "server CPU / request",
            Unit::CpuNs,
            Lower,
            "User and system time of the server that weir started, over its whole life, per good response.",
        )
        .detail(),
        MetricDef::failure(
            "failed_ratio",
            "failed",
            ("failed", "attempted"),
            "Requests without a whole response in time, and those of another status than 2xx and 3xx (or those expected).",
        ),
    ]
}

fn metrics(work: &Http) -> Vec<MetricDef> {
    let mut all = shared_metrics();
    let what = "requests, from when they were meant to begin to the last byte of the response,";
    let (headline, mut detail) = distribution_metrics("latency", "latency", what);
    let first = all.split_off(1);
    all.extend(headline);
    all.append(&mut detail);
    all.extend(first);
    all.push(MetricDef::failure(
        "resent_ratio",
        "connection lost, sent again",
        ("resent", "attempted"),
        "Requests whose kept connection ended before the answer began; each was sent again on a new one.",
    ));
    let response = "From the request's sending to the last byte of its response, without the connect.";
    let connect = "From connect(2) to the SYN-ACK, of connections opened in the measuring window.";
    all.extend([
        MetricDef::quantile("response_p50_ns", "response p50", "response", 0.5, response).detail(),
        MetricDef::quantile("response_p99_ns", "response p99", "response", 0.99, response).detail(),
        MetricDef::quantile("connect_p50_ns", "connect p50", "connect", 0.5, connect).detail(),
        MetricDef::quantile("connect_p99_ns", "connect p99", "connect", 0.99, connect).detail(),
    ]);
    if work.tls {
        let help = "From the SYN-ACK to the end of the TLS handshake.";
        all.push(MetricDef::quantile("tls_p50_ns", "TLS handshake p50", "tls", 0.5, help).detail());
        all.push(MetricDef::quantile("tls_p99_ns", "TLS handshake p99", "tls", 0.99, help).detail());
    }
    let help = "Bits of bodies per second (RFC 2647 section 3.17).";
    all.push(MetricDef::value("goodput_bps", "goodput", Unit::Bps, Better::Higher, help).detail());
    all
}
