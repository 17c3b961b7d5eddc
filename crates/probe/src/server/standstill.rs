//! Ends a measurement in which nothing moves: what it has set aside is kept from others.

use std::time::{Duration, Instant};

use weir_load::FlowFigures;
use weir_load::properties::Served;

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
    pub(super) fn new(longest: Duration, served: &Served, since: Instant) -> Self {
        let longest = longest.max(served.between_writes.saturating_mul(2));
        Standstill { longest, counts: served.seen_moving, moved: 0, since }
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

#[cfg(test)]
mod tests {
    use super::super::rate_watch::tests::flow;
    use super::*;
    use serde_json::json;
    use weir_load::Direction;

    const LONGEST: Duration = Duration::from_secs(120);

    /// The second in which a measurement is ended, of an hour's: `seen` is what has flowed and come by then.
    fn ends(workload: serde_json::Value, seen: impl Fn(u64) -> (u64, u32)) -> Option<u64> {
        let workload: weir_load::Workload = serde_json::from_value(workload).unwrap();
        let served = workload.engine().properties().served.unwrap();
        let begun = Instant::now();
        let mut standstill = Standstill::new(LONGEST, &served, begun);
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
