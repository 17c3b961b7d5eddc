//! What a client asks for, held against the server's limits.

use std::time::Duration;

use weir_load::udp_stream::UdpStream;
use weir_load::{Direction, Workload};

use crate::Limits;

/// Memory of a stream's thread and its counters, besides its buffers; measured to be well below.
const PER_STREAM: u64 = 192 << 10;

/// Receive buffers of one client's UDP streams: a share of all memory, and at least what a burst of a thousand datagrams needs.
const UDP_SHARE: u64 = 16;
const UDP_LEAST: u64 = 1 << 20;

/// A workload that the server will do.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fit {
    /// As it will be done.
    pub(super) workload: Workload,
    /// What was changed, in words.
    pub(super) notes: Vec<String>,
    /// Streams or connections of the client that it takes, in each direction.
    pub(super) streams: u32,
    /// Memory to set aside, bytes.
    pub(super) bytes: u64,
    /// Bit rate to set aside, where there is a limit.
    pub(super) rate: Rate,
    /// Data connections, or flows, that may come; `None` where they come and go all the time.
    pub(super) connections: Option<u32>,
}

/// A bit rate in the direction that has more of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Rate {
    /// None that is worth counting, or no limit.
    Little,
    /// As much as it names, payload bits per second.
    Named(f64),
    /// As much as there is: it names none.
    Left,
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
    let count = streams(&workload);
    if count > limits.streams {
        return Err(format!("{count} streams: the server allows {}", limits.streams));
    }
    let ways = |d: Direction| if d == Direction::Both { 2 } else { 1 };
    let mut notes = Vec::new();
    let mut rate = Rate::Little;
    let (bytes, connections) = match &workload {
        Workload::TcpStream(w) => {
            rate = named(limits, w.rate_bps)?.unwrap_or(Rate::Left);
            congestion(&w.congestion)?;
            let all = u64::from(w.streams) * ways(w.direction);
            // The kernel doubles what is asked for, in both directions.
            let buffers = u64::from(w.buffer_bytes) + 4 * u64::from(w.window_bytes.unwrap_or(0));
            (all * (PER_STREAM + buffers), Some(all))
        }
        Workload::UdpStream(w) => {
            let all = u64::from(w.streams) * ways(w.direction);
            rate = of_datagrams(limits, w)?;
            let most = (limits.memory_bytes / UDP_SHARE).max(UDP_LEAST);
            let buffer = u64::from(w.receive_buffer_bytes).min(most);
            (all * PER_STREAM + 2 * buffer, Some(all))
        }
        Workload::TcpRr(w) => {
            let all = u64::from(w.connections);
            (all * (PER_STREAM + u64::from(w.request_bytes) + u64::from(w.response_bytes)), Some(all))
        }
        Workload::UdpRr(w) => {
            let all = u64::from(w.connections);
            (all * (PER_STREAM + u64::from(w.request_bytes) + u64::from(w.response_bytes)), Some(all))
        }
        Workload::TcpCrr(w) => (PER_STREAM + u64::from(w.response_bytes), None),
        other => return Err(format!("{} is not served here", other.engine().kind())),
    };
    let workload = match workload {
        Workload::UdpStream(w) => Workload::UdpStream(smaller_buffer(limits, w, &mut notes)),
        other => other,
    };
    let connections = connections.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    Ok(Fit { workload, notes, streams: count, bytes, rate, connections })
}

/// Streams or connections at once, in each direction; on a schedule nobody knows how many, and one thread here answers them all.
fn streams(workload: &Workload) -> u32 {
    match workload {
        Workload::TcpStream(w) => w.streams,
        Workload::UdpStream(w) => w.streams,
        Workload::TcpRr(w) => w.connections,
        Workload::UdpRr(w) => w.connections,
        Workload::TcpCrr(w) => w.at_a_time().unwrap_or(1),
        _ => 1,
    }
}

fn smaller_buffer(limits: &Limits, mut w: UdpStream, notes: &mut Vec<String>) -> UdpStream {
    let most = u32::try_from((limits.memory_bytes / UDP_SHARE).max(UDP_LEAST)).unwrap_or(u32::MAX);
    if w.receive_buffer_bytes > most {
        notes.push(format!(
            "the server gives receive buffers of {most} bytes instead of {}: --max-memory",
            w.receive_buffer_bytes
        ));
        w.receive_buffer_bytes = most;
    }
    w
}

/// A rate that is within the limit of one measurement, if it is named.
fn named(limits: &Limits, asked: Option<f64>) -> Result<Option<Rate>, String> {
    match (asked, limits.most_bps()) {
        (Some(bps), Some(most)) if bps > most => Err(format!("{bps} bit/s: the server allows {most} bit/s")),
        (asked, _) => Ok(asked.map(Rate::Named)),
    }
}

/// What the server may have to send, or to take, of datagrams; TCP can be held back, and they cannot.
fn of_datagrams(limits: &Limits, w: &UdpStream) -> Result<Rate, String> {
    let Some(most) = limits.most_bps() else { return Ok(Rate::Little) };
    // The least a datagram of unset size can be is what fills an MTU over IPv6.
    let payload = f64::from(w.payload_bytes.unwrap_or(1472));
    let asked = w.rate_bps.or_else(|| w.rate_pps.map(|pps| pps * payload * 8.0));
    named(limits, asked)?
        .ok_or_else(|| format!("as fast as possible: the server allows {most} bit/s; set a rate"))
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
            // What would start programs on the server.
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
            (json!({"kind": "tcp-stream"}), Rate::Left),
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
            assert!(fit.bytes <= limits.memory_per_client(), "{value}: {}", fit.bytes);
        }
        // One client alone on a server with little of it.
        let small = Limits { memory_bytes: 4 << 20, ..Limits::default() };
        for value in [json!({"kind": "tcp-stream", "congestion": ""}), json!({"kind": "udp-stream"})] {
            assert!(check(&small, value).unwrap().bytes <= small.memory_per_client());
        }
    }

    #[test]
    fn a_large_buffer_becomes_a_share_and_that_is_said() {
        let limits = Limits { memory_bytes: 64 << 20, ..Limits::default() };
        let fit = check(&limits, json!({"kind": "udp-stream"})).unwrap();
        let Workload::UdpStream(w) = &fit.workload else { unreachable!() };
        assert_eq!(w.receive_buffer_bytes, 4 << 20);
        assert!(fit.notes[0].contains("4194304"));
        assert!(fit.bytes <= limits.memory_bytes);
    }
}
