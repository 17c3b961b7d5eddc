//! `tcp-crr`: connect, request, response, close, and again: what a gateway's connection tracking has most work with.
//!
//! A transaction is timed from the start of its connect (on a schedule: the intended start) to the last byte of the
//! response; the close that follows belongs to the cycle and therefore to the rate. Every request and every response carries the
//! trial's cookie.

use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_record::{Better, MetricDef, Unit};

use crate::connector::{Arrival, ConnectionResponder, Exchange, FAILURES, Job, drive, failed};
use crate::incoming::{HandoverQueue, TcpIncoming};
use crate::latency::{
    add_distribution, add_failed, add_lateness, cpu_metric, cpu_ns_per, distribution_metrics, gathered,
    per_second, require_some,
};
use crate::part::{merged, sum};
use crate::properties::{LITTLE_OVERHEAD, PER_STREAM, Properties, Rate, Served};
use crate::rr::in_range;
use crate::{Engine, Error, Part, Responder, TrialSettings};

pub use crate::connector::Close;

/// Connections at a time when none are set: enough to keep two cores busy, few enough to leave no queue.
const DEFAULT_CONNECTIONS: u32 = 8;

/// Connect, request, response, close; per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TcpCrr {
    /// Connections at a time, 1..=10000 (default 8), each begun when one is done. Not together with `rate-per-second`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// Transactions per second on a schedule, 1..=1000000, however many that keeps open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<u32>,
    /// Bytes of a request, 16..=1048576: the cookie takes 16.
    pub request_bytes: u32,
    /// Bytes of a response, 16..=1048576.
    pub response_bytes: u32,
    /// `fin`: closed in order, by the responder first, so that the initiator's ports do not run out; `reset`: by the
    /// initiator's RST.
    pub close: Close,
    /// Milliseconds after which a transaction counts as failed, 10..=60000.
    pub timeout_ms: u32,
}

impl Default for TcpCrr {
    fn default() -> Self {
        TcpCrr {
            connections: None,
            rate_per_second: None,
            request_bytes: 64,
            response_bytes: 64,
            close: Close::Fin,
            timeout_ms: 3000,
        }
    }
}

impl TcpCrr {
    fn exchange(&self) -> Exchange {
        Exchange {
            request_bytes: self.request_bytes as usize,
            response_bytes: self.response_bytes as usize,
            close: self.close,
        }
    }

    fn parallel(&self) -> u32 {
        self.connections.unwrap_or(DEFAULT_CONNECTIONS)
    }

    /// Connections at a time; `None` on a schedule, which keeps open as many as it takes.
    pub fn at_a_time(&self) -> Option<u32> {
        self.rate_per_second.is_none().then(|| self.parallel())
    }
}

impl Engine for TcpCrr {
    fn kind(&self) -> &'static str {
        "tcp-crr"
    }

    fn describe(&self) -> String {
        let how_many = match self.rate_per_second {
            Some(rate) => format!("{rate}/s on a schedule"),
            None => format!("{} at a time", self.parallel()),
        };
        let close = match self.close {
            Close::Fin => "FIN",
            Close::Reset => "RST",
        };
        format!(
            "TCP connect, request ({} B), response ({} B), close by {close}, {how_many}",
            self.request_bytes, self.response_bytes
        )
    }

    fn validate(&self) -> Result<(), String> {
        in_range("request-bytes", self.request_bytes, Exchange::LEAST..=1 << 20)?;
        in_range("response-bytes", self.response_bytes, Exchange::LEAST..=1 << 20)?;
        in_range("connections", self.parallel(), 1..=10_000)?;
        in_range("timeout-ms", self.timeout_ms, 10..=60_000)?;
        match (self.rate_per_second, self.connections) {
            (Some(_), Some(_)) => {
                Err("connections and rate-per-second exclude each other: set one of them".into())
            }
            (Some(rate), None) => in_range("rate-per-second", rate, 1..=1_000_000),
            (None, _) => Ok(()),
        }
    }

    fn properties(&self) -> Properties {
        let served = Served {
            // With a schedule the number is unknown, and one thread answers them all.
            streams: self.at_a_time().unwrap_or(1),
            connections: None,
            controls: 0,
            datagrams: false,
            memory_bytes: PER_STREAM + u64::from(self.response_bytes),
            write_bytes: 0.0,
            between_writes: Duration::ZERO,
            seen_moving: true,
            rate: Rate::Little,
        };
        Properties { overhead: LITTLE_OVERHEAD, served: Some(served) }
    }

    fn metrics(&self) -> Vec<MetricDef> {
        let mut all = vec![MetricDef::value(
            "transactions_per_second",
            "transactions",
            Unit::PerSecond,
            Better::Higher,
            "Connections begun in the measuring window over which the whole response came, per second.",
        )];
        let what = "transactions, from the start of the connect to the last byte of the response,";
        let (headline, detail) = distribution_metrics("crr", "CRR", what);
        all.extend(headline);
        all.extend(detail);
        let help = "The part of it until the SYN-ACK.";
        let failed = "Transactions refused, reset, unreachable, cut short, or not done within timeout-ms.";
        all.extend([
            MetricDef::quantile("connect_p50_ns", "connect p50", "connect", 0.5, help).detail(),
            MetricDef::quantile("connect_p99_ns", "connect p99", "connect", 0.99, help).detail(),
            MetricDef::failure("failed_ratio", "failed", ("failed", "attempted"), failed),
            cpu_metric().detail(),
        ]);
        all
    }

    fn open(&self, setting: &TrialSettings, bind: SocketAddr) -> Result<Box<dyn Responder>, Error> {
        Ok(Box::new(ConnectionResponder::open(setting, bind, Some(self.exchange()))?))
    }

    fn serve(&self, setting: &TrialSettings, queue: HandoverQueue) -> Result<Box<dyn Responder>, Error> {
        Ok(Box::new(ConnectionResponder::serve(setting, TcpIncoming::Handed(queue), Some(self.exchange()))?))
    }

    fn drive(&self, setting: &TrialSettings, target: SocketAddr) -> Result<Part, Error> {
        let arrival = match self.rate_per_second {
            Some(per_second) => Arrival::Open { per_second },
            None => Arrival::Closed { parallel: self.parallel() },
        };
        let timeout = Duration::from_millis(self.timeout_ms.into());
        drive(setting, target, Job { arrival, exchange: Some(self.exchange()), timeout })
    }

    fn combine(&self, initiators: &[Part], responders: &[Part]) -> Part {
        let mut trial = gathered(initiators, responders);
        add_distribution(&mut trial, initiators, "crr");
        trial.histograms.insert("connect".into(), merged(initiators, "connect"));
        trial.set("transactions_per_second", per_second(initiators, "ok"));
        let ok = sum(initiators, "ok");
        add_failed(&mut trial, initiators, "failed_ratio", failed(initiators), "attempted");
        if let Some(ns) = cpu_ns_per(ok, initiators, responders) {
            trial.set("tester_cpu_ns_per_transaction", ns);
        }
        for name in
            ["attempted", "ok", "cut", "not_begun", "unclosed", "scheduled", "unsent"].iter().chain(&FAILURES)
        {
            trial.set(name, sum(initiators, name));
        }
        add_lateness(&mut trial, initiators);
        require_some(&mut trial, initiators, "attempted");
        trial
    }
}
