//! `tcp-connect`: how long a connection takes to stand, and whether it does, at a set rate of new ones.
//!
//! Timed from the intended start (open loop) to when connect(2) or epoll says that the SYN-ACK is here; the kernel's own
//! time from SYN to SYN-ACK is kept beside it, without the sender's lateness and wake-up. Each connection is reset at once: no
//! port stays taken at either end, and connection tracking forgets it within 10 s.

use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_record::{Better, Fault, FaultCode, MetricDef, Unit};

use crate::connector::{Arrival, ConnectionResponder, FAILURES, Job, drive, failed, unproven};
use crate::latency::dial::Dialer;
use crate::latency::{
    add_distribution, add_failed, add_lateness, distribution_metrics, gathered, per_second, preamble,
    require_some,
};
use crate::part::sum;
use crate::properties::{LITTLE_OVERHEAD, Properties};
use crate::rr::in_range;
use crate::socket::abort_on_close;
use crate::{Engine, Error, Part, Responder, TrialSettings};

/// Time to connect, open loop at a rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TcpConnect {
    /// New connections per second, 1..=1000000, one at a random point of every interval.
    pub rate_per_second: u32,
    /// Milliseconds after which a connection counts as failed, 10..=60000. Linux sends a SYN again after 1 s and after 3 s.
    pub timeout_ms: u32,
    /// Measure towards any listening port, without a responder of ours that proves who it is.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub any_responder: bool,
}

impl Default for TcpConnect {
    fn default() -> Self {
        TcpConnect { rate_per_second: 1000, timeout_ms: 3000, any_responder: false }
    }
}

/// Time limits of the connections of a proof, one after the other, ms: the first SYN may be lost, or refused by a hop that passes
/// only some. If a hop refuses half of them, it refuses all once in 64 trials.
const PROOF_MS: [u64; 6] = [250, 500, 1000, 1000, 1000, 1000];

impl TcpConnect {
    /// Opens a connection before the traffic, over which the far end has to show the trial's cookie. If the path lets no
    /// connection stand, the result is valid and this is noted. A far end that accepts a connection and does not prove itself
    /// voids the trial.
    fn proof(&self, setting: &TrialSettings, target: SocketAddr) -> Option<Fault> {
        let mut refused = None;
        let mut unproved = None;
        for limit_ms in PROOF_MS {
            let limit = Duration::from_millis(limit_ms.min(self.timeout_ms.into()));
            let dialer = Dialer::new(limit, &setting.stop);
            let connection = dialer.tcp(target).and_then(|fd| abort_on_close(&fd).map(|()| fd));
            match connection.map(|fd| preamble::prove(&fd, setting.cookie, &dialer)) {
                Ok(Ok(())) => return None,
                Ok(Err(error)) => unproved = Some(error),
                Err(error) => refused = Some(error),
            }
            // A stop says nothing about the far end.
            if setting.stop.raised() {
                return None;
            }
        }
        let noted = |error| {
            Fault::noted(
                FaultCode::ConnectionFailed,
                "initiator",
                format!("no connection of the proof stood: {error}"),
            )
        };
        unproved.map(|error| unproven(&error)).or_else(|| refused.map(noted))
    }
}

impl Engine for TcpConnect {
    fn kind(&self) -> &'static str {
        "tcp-connect"
    }

    fn describe(&self) -> String {
        let Self { rate_per_second, timeout_ms, .. } = self;
        format!(
            "{rate_per_second} new TCP connections/s on a schedule, reset once they stand, given up after {timeout_ms} ms"
        )
    }

    fn validate(&self) -> Result<(), String> {
        in_range("rate-per-second", self.rate_per_second, 1..=1_000_000)?;
        in_range("timeout-ms", self.timeout_ms, 10..=60_000)
    }

    fn properties(&self) -> Properties {
        Properties { overhead: LITTLE_OVERHEAD, served: None }
    }

    fn metrics(&self) -> Vec<MetricDef> {
        let what = "connections, from the intended start to the SYN-ACK,";
        let (mut all, detail) = distribution_metrics("connect", "connect", what);
        all.extend(detail);
        let handshake = "The kernel's own time from SYN to SYN-ACK, in whole microseconds (tcp_info, tcpi_rtt): without the \
                         initiator's wake-ups and lateness, and without connections whose SYN was sent again.";
        let ratio = |name: &str, label: &str, help: &str| {
            MetricDef::value(name, label, Unit::Ratio, Better::Lower, help).by_difference().detail()
        };
        all.extend([
            MetricDef::quantile("handshake_p50_ns", "handshake p50 (answered)", "handshake", 0.5, handshake)
                .detail(),
            MetricDef::quantile("handshake_p99_ns", "handshake p99 (answered)", "handshake", 0.99, handshake)
                .detail(),
            MetricDef::failure(
                "connect_failed_ratio",
                "failed",
                ("failed", "attempted"),
                "Connections refused, reset, unreachable or not standing within timeout-ms.",
            ),
            ratio(
                "syn_retransmit_ratio",
                "SYN retransmits",
                "SYNs sent again per connection that came to stand.",
            ),
            MetricDef::value(
                "achieved_per_second",
                "connections",
                Unit::PerSecond,
                Better::Higher,
                "Connections begun in the measuring window that came to stand, per second.",
            )
            .detail(),
        ]);
        all
    }

    fn open(&self, setting: &TrialSettings, bind: SocketAddr) -> Result<Box<dyn Responder>, Error> {
        Ok(Box::new(ConnectionResponder::open(setting, bind, None)?))
    }

    fn drive(&self, setting: &TrialSettings, target: SocketAddr) -> Result<Part, Error> {
        let unproved = if self.any_responder { None } else { self.proof(setting, target) };
        let job = Job {
            arrival: Arrival::Open { per_second: self.rate_per_second },
            exchange: None,
            timeout: Duration::from_millis(self.timeout_ms.into()),
        };
        let mut part = drive(setting, target, job)?;
        part.faults.extend(unproved);
        Ok(part)
    }

    fn combine(&self, initiators: &[Part], responders: &[Part]) -> Part {
        let mut trial = gathered(initiators, responders);
        add_distribution(&mut trial, initiators, "connect");
        trial.histograms.insert("handshake".into(), crate::part::merged(initiators, "handshake"));
        trial.set("achieved_per_second", per_second(initiators, "ok"));
        let ok = sum(initiators, "ok");
        add_failed(&mut trial, initiators, "connect_failed_ratio", failed(initiators), "attempted");
        if ok > 0.0 {
            trial.set("syn_retransmit_ratio", sum(initiators, "syn_retransmits") / ok);
        }
        for name in ["attempted", "ok", "cut", "not_begun", "scheduled", "unsent", "syn_retransmits"]
            .iter()
            .chain(&FAILURES)
        {
            trial.set(name, sum(initiators, name));
        }
        add_lateness(&mut trial, initiators);
        require_some(&mut trial, initiators, "attempted");
        trial
    }
}
