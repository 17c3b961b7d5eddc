//! Checks a client's request against the server's limits.

use std::time::Duration;

use weir_load::Workload;
use weir_load::properties::{Rate, Served};

use crate::Limits;

/// Receive buffers of one client's UDP streams: a share of all memory, and at least what a burst of a thousand datagrams needs.
const UDP_SHARE: u64 = 16;
const UDP_LEAST: u64 = 1 << 20;

/// A workload that the server will do.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fit {
    /// As it will be done.
    pub(super) workload: Workload,
    /// The changes, in words.
    pub(super) notes: Vec<String>,
    /// Server resources that it takes.
    pub(super) served: Served,
    /// Bit rate to set aside; [`Rate::Little`] for datagrams where there is no limit.
    pub(super) rate: Rate,
}

/// Hold a workload against the limits.
///
/// # Errors
/// Why it cannot be done here, in words for the client.
pub(super) fn fit(
    limits: &Limits,
    workload: Workload,
    warmup: Duration,
    duration: Duration,
) -> Result<Fit, String> {
    if duration.is_zero() || warmup.saturating_add(duration) > limits.duration {
        return Err(format!(
            "a measurement of {:.1} s: the server allows up to {:.0} s, warm-up included",
            warmup.saturating_add(duration).as_secs_f64(),
            limits.duration.as_secs_f64()
        ));
    }
    workload.engine().validate()?;
    if let Workload::TcpStream(w) = &workload {
        congestion(&w.congestion)?;
    }
    let mut notes = Vec::new();
    let workload = smaller_buffer(limits, workload, &mut notes);
    let engine = workload.engine();
    let Some(served) = engine.properties().served else {
        return Err(format!("{} is not served here", engine.kind()));
    };
    if served.streams > limits.streams {
        return Err(format!("{} streams: the server allows {}", served.streams, limits.streams));
    }
    let rate = within(limits, served.rate)?;
    Ok(Fit { workload, notes, served, rate })
}

/// The workload with no larger a receive buffer than the server gives, if it asks for one.
fn smaller_buffer(limits: &Limits, mut workload: Workload, notes: &mut Vec<String>) -> Workload {
    let most = u32::try_from((limits.memory_bytes / UDP_SHARE).max(UDP_LEAST)).unwrap_or(u32::MAX);
    if let Workload::UdpStream(w) = &mut workload
        && w.receive_buffer_bytes > most
    {
        notes.push(format!(
            "the server gives receive buffers of {most} bytes instead of {}: --max-memory",
            w.receive_buffer_bytes
        ));
        w.receive_buffer_bytes = most;
    }
    workload
}

/// The rate to set aside, if it is within the limit of one measurement. TCP can be held back, and datagrams cannot.
fn within(limits: &Limits, asked: Rate) -> Result<Rate, String> {
    match (asked, limits.most_bps()) {
        (Rate::Named(bps), Some(most)) if bps > most => {
            Err(format!("{bps} bit/s: the server allows {most} bit/s"))
        }
        (Rate::Inelastic, Some(most)) => {
            Err(format!("as fast as possible: the server allows {most} bit/s; set a rate"))
        }
        (Rate::Inelastic, None) => Ok(Rate::Little),
        (asked, _) => Ok(asked),
    }
}

/// Only what the kernel has already: for a server with privileges, to ask for another name would load a module.
fn congestion(name: &str) -> Result<(), String> {
    const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    if name.is_empty() {
        return Ok(());
    }
    let available = std::fs::read_to_string(AVAILABLE).map_err(|e| format!("{AVAILABLE}: {e}"))?;
    if available.split_whitespace().any(|known| known == name) {
        return Ok(());
    }
    Err(format!("congestion control {name}: the server has {}", available.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn workload(value: serde_json::Value) -> Workload {
        serde_json::from_value(value).unwrap()
    }

    fn check(limits: &Limits, value: serde_json::Value) -> Result<Fit, String> {
        fit(limits, workload(value), Duration::from_secs(1), Duration::from_secs(10))
    }

    #[test]
    fn what_is_within_the_limits_is_done_as_asked() {
        let limits = Limits::default();
        for value in [
            json!({"kind": "tcp-stream", "streams": 128, "direction": "both", "congestion": ""}),
            json!({"kind": "udp-stream", "receive-buffer-bytes": 1_048_576}),
            json!({"kind": "tcp-rr"}),
            json!({"kind": "udp-rr"}),
            json!({"kind": "tcp-crr"}),
        ] {
            let fit = check(&limits, value.clone()).unwrap();
            assert_eq!(fit.workload, workload(value));
            assert!(fit.notes.is_empty());
        }
    }

    #[test]
    fn what_is_beyond_is_refused_in_words() {
        let limits = Limits { streams: 4, rate_bps: Some(1e6), ..Limits::default() };
        for (value, word) in [
            (json!({"kind": "tcp-stream", "streams": 5}), "5 streams"),
            (json!({"kind": "tcp-rr", "connections": 5}), "5 streams"),
            (json!({"kind": "tcp-crr", "connections": 5}), "5 streams"),
            // So many it has at a time by itself.
            (json!({"kind": "tcp-crr"}), "8 streams"),
            (json!({"kind": "tcp-stream", "congestion": "../x"}), "congestion control"),
            (json!({"kind": "tcp-stream", "streams": 0}), "streams = 0"),
            (json!({"kind": "udp-stream"}), "set a rate"),
            (json!({"kind": "udp-stream", "rate-bps": 1e7}), "allows 1000000"),
            (json!({"kind": "tcp-stream", "rate-bps": 1e7}), "allows 1000000"),
            (json!({"kind": "udp-stream", "rate-pps": 1e6, "payload-bytes": 16}), "allows 1000000"),
            // Requests that would start programs on the server.
            (json!({"kind": "http"}), "not served"),
            (json!({"kind": "external", "program": "iperf3"}), "not served"),
            (json!({"kind": "tcp-connect"}), "not served"),
        ] {
            let Ok(_) = serde_json::from_value::<Workload>(value.clone()) else { continue };
            let said = check(&limits, value.clone()).unwrap_err();
            assert!(said.contains(word), "{value}: {said}");
        }
        let long = fit(
            &limits,
            workload(json!({"kind": "tcp-rr"})),
            Duration::from_secs(1),
            Duration::from_secs(3600),
        );
        assert!(long.unwrap_err().contains("allows up to 3600 s"));
    }

    #[test]
    fn who_names_a_rate_gets_it_and_tcp_without_one_what_is_left() {
        let limits = Limits { rate_bps: Some(1e6), ..Limits::default() };
        for (value, rate) in [
            (
                json!({"kind": "tcp-stream", "streams": 4, "rate-bps": 2e5, "direction": "both"}),
                Rate::Named(2e5),
            ),
            (json!({"kind": "tcp-stream"}), Rate::Elastic),
            (json!({"kind": "udp-stream", "rate-bps": 3e5}), Rate::Named(3e5)),
            (json!({"kind": "udp-stream", "rate-pps": 10.0, "payload-bytes": 100}), Rate::Named(8e3)),
            (json!({"kind": "tcp-rr"}), Rate::Little),
        ] {
            assert_eq!(check(&limits, value.clone()).unwrap().rate, rate, "{value}");
        }
    }

    #[test]
    fn what_is_usual_fits_what_one_client_may_have() {
        let limits = Limits::default();
        for value in [
            json!({"kind": "tcp-stream", "streams": 128, "congestion": ""}),
            json!({"kind": "tcp-stream", "streams": 128, "congestion": "", "direction": "both"}),
            json!({"kind": "udp-stream"}),
            json!({"kind": "udp-stream", "streams": 128, "direction": "both"}),
            json!({"kind": "tcp-rr", "connections": 128}),
            json!({"kind": "tcp-crr"}),
        ] {
            let fit = check(&limits, value.clone()).unwrap();
            assert!(
                fit.served.memory_bytes <= limits.memory_per_client(),
                "{value}: {}",
                fit.served.memory_bytes
            );
        }
        // One client alone on a server with little of it.
        let small = Limits { memory_bytes: 4 << 20, ..Limits::default() };
        for value in [json!({"kind": "tcp-stream", "congestion": ""}), json!({"kind": "udp-stream"})] {
            assert!(check(&small, value).unwrap().served.memory_bytes <= small.memory_per_client());
        }
    }

    #[test]
    fn a_large_buffer_becomes_a_share_and_that_is_said() {
        let limits = Limits { memory_bytes: 64 << 20, ..Limits::default() };
        let fit = check(&limits, json!({"kind": "udp-stream"})).unwrap();
        let Workload::UdpStream(w) = &fit.workload else { unreachable!() };
        assert_eq!(w.receive_buffer_bytes, 4 << 20);
        assert!(fit.notes[0].contains("4194304"));
        assert!(fit.served.memory_bytes <= limits.memory_bytes);
    }
}
