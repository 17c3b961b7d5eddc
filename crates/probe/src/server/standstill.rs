//! Ends a measurement in which nothing moves: what it has set aside is kept from others.

use std::time::{Duration, Instant};

use weir_load::{FlowFigures, Workload};

/// Looks every second or so at what has moved.
#[derive(Debug)]
pub(super) struct Standstill {
    longest: Duration,
    /// This end counts what each stream carries, or a connection comes for each operation.
    counts: bool,
    moved: u64,
    since: Instant,
}

impl Standstill {
    /// `longest` is [`crate::Limits::standstill`]; a sender whose writes are further apart by the rate that was asked for may take
    /// twice as long as between two of them.
    pub(super) fn new(longest: Duration, workload: &Workload, since: Instant) -> Self {
        // The far end of round trips counts nothing while they last. They hold no bit rate, and few connections.
        let counts = !matches!(workload, Workload::TcpRr(_) | Workload::UdpRr(_));
        let longest = longest.max(between_writes(workload).saturating_mul(2));
        Standstill { longest, counts, moved: 0, since }
    }

    /// For how long nothing has moved if that is too long, after this has flowed and so many connections have come.
    pub(super) fn is_over(&mut self, flows: &[FlowFigures], came: u32, now: Instant) -> Option<Duration> {
        let flowed: u64 = flows.iter().map(|f| f.bytes.wrapping_add(f.packets)).fold(0, u64::wrapping_add);
        let moved = flowed.wrapping_add(came.into());
        if moved != self.moved || (came > 0 && !self.counts) {
            (self.moved, self.since) = (moved, now);
        }
        let still = now.saturating_duration_since(self.since);
        (still >= self.longest).then_some(still)
    }
}

/// Time between two writes of a stream at the rate that is asked for; zero where it is as fast as it goes, or a count of at least one
/// a second.
fn between_writes(workload: &Workload) -> Duration {
    let seconds = match workload {
        Workload::TcpStream(w) => {
            w.rate_bps.map(|bps| f64::from(w.streams) * f64::from(w.buffer_bytes) * 8.0 / bps)
        }
        Workload::UdpStream(w) => {
            let bits = f64::from(w.payload_bytes.unwrap_or(u16::MAX)) * 8.0;
            let of_one = w.rate_bps.map(|bps| bits / bps).or(w.rate_pps.map(|pps| 1.0 / pps));
            of_one.map(|seconds| f64::from(w.streams) * seconds)
        }
        _ => None,
    };
    // What is longer than a Duration can hold is longer than any measurement.
    seconds.map_or(Duration::ZERO, |s| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::rate_watch::tests::flow;
    use super::*;
    use serde_json::json;
    use weir_load::Direction;

    const LONGEST: Duration = Duration::from_secs(120);

    /// The second in which a measurement is ended, of an hour's: `seen` is what has flowed and come by then.
    fn ends(workload: serde_json::Value, seen: impl Fn(u64) -> (u64, u32)) -> Option<u64> {
        let workload = serde_json::from_value(workload).unwrap();
        let begun = Instant::now();
        let mut standstill = Standstill::new(LONGEST, &workload, begun);
        (1..=3600).find(|second| {
            let (bytes, came) = seen(*second);
            let flows = [flow(Direction::Egress, bytes)];
            standstill.is_over(&flows, came, begun + Duration::from_secs(*second)).is_some()
        })
    }

    #[test]
    fn a_measurement_ends_where_nothing_comes_or_nothing_comes_any_more() {
        for kind in ["tcp-stream", "udp-stream", "tcp-rr", "udp-rr", "tcp-crr"] {
            assert_eq!(ends(json!({ "kind": kind }), |_| (0, 0)), Some(120), "{kind}");
        }
        // Its connection came, and then nothing did.
        for kind in ["tcp-stream", "udp-stream", "tcp-crr"] {
            assert_eq!(ends(json!({ "kind": kind }), |_| (0, 1)), Some(121), "{kind}");
        }
        assert_eq!(ends(json!({"kind": "tcp-stream"}), |s| (s.min(500), 1)), Some(620));
    }

    #[test]
    fn what_is_slow_goes_on() {
        // A datagram a minute, and round trips, which are not counted here.
        assert_eq!(
            ends(json!({"kind": "udp-stream", "rate-bps": 133.0, "payload-bytes": 1000}), |s| (s / 60, 1)),
            None
        );
        assert_eq!(ends(json!({"kind": "tcp-rr"}), |_| (0, 1)), None);
        assert_eq!(ends(json!({"kind": "tcp-crr", "rate-per-second": 1}), |s| (0, s as u32)), None);
        // One in 200 s by its rate: 400 s may pass.
        let slow = json!({"kind": "udp-stream", "rate-bps": 40.0, "payload-bytes": 1000});
        assert_eq!(ends(slow.clone(), |s| (s / 200, 1)), None);
        assert_eq!(ends(slow, |_| (0, 1)), Some(401));
    }
}
