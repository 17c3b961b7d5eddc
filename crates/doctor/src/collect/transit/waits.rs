//! When packets wait in a queue between this host and a network.

use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_flows::{FlowProgress, SideProgress};

use super::sums::{Key, keys};
use crate::evidence::Queueing;

/// A round trip is late that takes so much longer than the shortest one of its flow, ns, and half as long again as that one.
const LATE_NS: u64 = 50_000_000;
/// A busy machine, or a radio link that stalls, delays what is under way at one moment. Packets wait if so many looks
/// with round trips, one after the other, find late ones, and the time from the first to the last is at least this, us.
const LOOKS: u32 = 3;
const LONG_US: u64 = 250_000;
/// After so long without a round trip it is unknown whether packets still wait, us.
const SILENCE_US: u64 = 500_000;
/// Segments of a flow in the time of two of its round trips. With fewer, the receiver may have delayed the acknowledgement, by up to half a
/// second (RFC 9293 section 3.8.6.3).
const SEGMENTS: u64 = 6;

/// A network, or one host in it.
type Place = (Key, Option<IpAddr>);

/// Round trips that ended since the last look.
#[derive(Debug, Clone, Copy, Default)]
struct Trips {
    count: u64,
    /// The time that they took beyond the shortest one of the flow, ns.
    over_ns: u64,
    /// The time that they may take beyond it without being late, ns.
    allowed_ns: u64,
}

impl Trips {
    fn are_late(&self) -> bool {
        self.over_ns >= self.allowed_ns
    }
}

/// How far the round trips of a flow have come on one side.
#[derive(Debug, Clone, Copy, Default)]
struct Before {
    trips: u64,
    trips_ns: u64,
    /// Bytes that had been sent when the last two trips were seen.
    bytes: [u64; 2],
}

impl Before {
    /// The round trips since the last look; `None` without any that says something.
    fn since(&mut self, own: &SideProgress, sent: &SideProgress) -> Option<Trips> {
        let before = *self;
        let count = own.trips.checked_sub(before.trips).filter(|count| *count > 0)?;
        *self = Before { trips: own.trips, trips_ns: own.trips_ns, bytes: [before.bytes[1], sent.bytes] };
        let enough = SEGMENTS * count * u64::from(sent.segment_bytes);
        (sent.bytes.saturating_sub(before.bytes[0]) >= enough).then(|| Trips {
            count,
            over_ns: own.trips_ns.saturating_sub(before.trips_ns).saturating_sub(count * own.smallest_ns),
            allowed_ns: count * LATE_NS.max(own.smallest_ns / 2),
        })
    }
}

/// Round trips to a place that one look saw.
#[derive(Debug, Default)]
struct Look {
    all: Trips,
    /// Flows with late trips, by their number.
    late: Vec<usize>,
}

impl Look {
    fn add(&mut self, flow: usize, trips: Trips) {
        self.all.count += trips.count;
        self.all.over_ns += trips.over_ns;
        self.all.allowed_ns += trips.allowed_ns;
        if trips.are_late() {
            self.late.push(flow);
        }
    }
}

/// Time in which packets wait.
#[derive(Debug, Clone, Default)]
struct Stretch {
    us: u64,
    looks: u32,
    trips: u64,
    over_ns: u64,
    longest_ns: u64,
    /// Flows with late trips, by their number, each once.
    flows: Vec<usize>,
}

impl Stretch {
    fn add_flows(&mut self, flows: &[usize]) {
        let new = flows.iter().filter(|flow| !self.flows.contains(flow));
        self.flows = self.flows.iter().chain(new).copied().collect();
    }
}

/// The queue on the way to a place.
#[derive(Debug, Default)]
struct Queue {
    /// For a host: the shortest round trip to it yet, ns.
    shortest_ns: Option<u64>,
    /// Round trips since the last look.
    new: Look,
    open: Stretch,
    silent_us: u64,
    /// The sum of the stretches that were long enough.
    shown: Stretch,
}

impl Queue {
    /// Adds the round trips since the last look, so many us before.
    fn add(&mut self, us: u64) {
        let look = std::mem::take(&mut self.new);
        if look.all.count == 0 {
            self.silent_us += us;
            if self.silent_us > SILENCE_US {
                self.close();
            }
            return;
        }
        if !look.all.are_late() {
            return self.close();
        }
        let open = &mut self.open;
        open.us += us + if open.looks > 0 { self.silent_us } else { 0 };
        open.looks += 1;
        open.trips += look.all.count;
        open.over_ns += look.all.over_ns;
        open.longest_ns = open.longest_ns.max(look.all.over_ns / look.all.count);
        open.add_flows(&look.late);
        self.silent_us = 0;
    }

    fn close(&mut self) {
        let open = std::mem::take(&mut self.open);
        self.silent_us = 0;
        if open.looks >= LOOKS && open.us >= LONG_US {
            let shown = &mut self.shown;
            shown.us += open.us;
            shown.looks += open.looks;
            shown.trips += open.trips;
            shown.over_ns += open.over_ns;
            shown.longest_ns = shown.longest_ns.max(open.longest_ns);
            shown.add_flows(&open.flows);
        }
    }

    fn finish(mut self, flow_bytes: &[u64]) -> Queueing {
        self.close();
        let shown = self.shown;
        Queueing {
            flows: shown.flows.len() as u64,
            bytes: shown.flows.iter().filter_map(|flow| flow_bytes.get(*flow)).sum(),
            trips: shown.trips,
            us: shown.us,
            usual_ns: shown.over_ns / shown.trips.max(1),
            longest_ns: shown.longest_ns,
        }
    }
}

/// The queues on the ways to all networks, and to the hosts in them: one may stand before a single host of a network.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// By the number of the flow.
    before: Vec<[Before; 2]>,
    bytes: Vec<u64>,
    queues: BTreeMap<Place, Queue>,
}

impl Waits {
    /// Adds a look, so many us after the last one.
    pub(super) fn add(&mut self, us: u64, flows: &[FlowProgress]) {
        let number = flows.len().max(self.before.len());
        self.before.resize(number, <[Before; 2]>::default());
        self.bytes.resize(number, 0);
        for (number, flow) in flows.iter().enumerate() {
            self.bytes[number] = flow.sides[0].bytes + flow.sides[1].bytes;
            let ends = [flow.client, flow.server];
            for (side, key) in keys(flow.client, flow.server, flow.seen_from_start).into_iter().enumerate() {
                let (own, host) = (&flow.sides[side], ends[side].ip());
                let Some(trips) = self.before[number][side].since(own, &flow.sides[1 - side]) else {
                    continue;
                };
                let to_host = self.queues.entry((key, Some(host))).or_default();
                let shortest = own.smallest_ns.min(to_host.shortest_ns.unwrap_or(u64::MAX));
                to_host.shortest_ns = Some(shortest);
                // A flow that began in the queue takes that for its path. It cannot tell that no packets wait.
                if trips.are_late() || own.smallest_ns < shortest + LATE_NS {
                    to_host.new.add(number, trips);
                    self.queues.entry((key, None)).or_default().new.add(number, trips);
                }
            }
        }
        self.queues.values_mut().for_each(|queue| queue.add(us));
    }

    /// The queue to each network: of those to it and to its hosts, the one that most bytes went through.
    pub(super) fn finish(self) -> Vec<(Key, Queueing)> {
        let mut most: Vec<(Key, Queueing)> = Vec::new();
        // In the order of the networks, each before its hosts.
        for ((key, _), queue) in self.queues {
            let queueing = queue.finish(&self.bytes);
            match most.last_mut() {
                Some((last, best)) if *last == key => {
                    if queueing.bytes > best.bytes {
                        *best = queueing;
                    }
                }
                _ => most.push((key, queueing)),
            }
        }
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const STEP_US: u64 = 50_000;

    /// Flows to one host each, every 50 ms a look.
    #[derive(Default)]
    struct Path {
        waits: Waits,
        flows: Vec<FlowProgress>,
    }

    impl Path {
        fn new(flows: u8) -> Self {
            let flow = |n| FlowProgress {
                client: "198.18.0.2:40000".parse().unwrap(),
                server: format!("198.19.0.{n}:443").parse().unwrap(),
                seen_from_start: true,
                sides: [
                    SideProgress { segment_bytes: 1500, ..SideProgress::default() },
                    SideProgress::default(),
                ],
            };
            Path { flows: (2..2 + flows).map(flow).collect(), ..Path::default() }
        }

        /// A look that finds a round trip of so many ms of a flow, after so many segments; 0 ms: none.
        fn look(&mut self, trips: &[u64], segments: u64) {
            for (flow, ms) in self.flows.iter_mut().zip(trips).filter(|(_, ms)| **ms > 0) {
                flow.sides[0].bytes += 1500 * segments;
                let own = &mut flow.sides[1];
                own.trips += 1;
                own.trips_ns += ms * MS;
                let shortest = if own.smallest_ns == 0 { u64::MAX } else { own.smallest_ns };
                own.smallest_ns = shortest.min(ms * MS);
            }
            self.waits.add(STEP_US, &self.flows);
        }

        fn queueing(self) -> Queueing {
            let all: Vec<_> = self.waits.finish().into_iter().filter(|(key, _)| key.0).collect();
            assert!(all.len() <= 1, "one network of servers");
            all.first().map_or(Queueing::default(), |(_, queueing)| *queueing)
        }
    }

    /// One flow, a look for each round trip.
    fn one(trips: &[u64], segments: u64) -> Queueing {
        let mut path = Path::new(1);
        trips.iter().for_each(|ms| path.look(&[*ms], segments));
        path.queueing()
    }

    #[test]
    fn late_trips_one_after_another_are_a_queue() {
        let found = one(&[20, 20, 120, 0, 180, 0, 220, 20, 20], 10);
        assert_eq!((found.flows, found.trips, found.us), (1, 3, 5 * STEP_US));
        assert_eq!((found.usual_ns, found.longest_ns), (460 * MS / 3, 200 * MS));
        assert_eq!(found.bytes, 7 * 15_000);
    }

    #[test]
    fn single_late_trips_and_short_stretches_are_none() {
        assert_eq!(one(&[20, 300, 300, 20, 300, 300, 20], 10), Queueing::default());
        assert_eq!(one(&[20, 20, 120, 180, 220, 20], 10), Queueing::default(), "150 ms in all");
        let late = one(&[20, 0, 0, 120, 180, 220, 20], 10);
        assert_eq!(late, Queueing::default(), "silence before the first late trip does not count");
        assert_eq!(one(&[20, 300, 0, 0, 0, 0, 300, 20], 10), Queueing::default(), "two looks in 300 ms");
        assert_eq!(one(&[20, 69, 69, 69, 69, 69, 69], 10), Queueing::default(), "49 ms beyond the shortest");
        assert_eq!(one(&[400; 20], 10), Queueing::default(), "a long path, or a queue that is always full");
        assert_eq!(
            one(&[200, 290, 290, 290, 290, 290, 290], 10),
            Queueing::default(),
            "less than half as long again"
        );
    }

    #[test]
    fn a_pause_ends_a_stretch() {
        let with = |pause: usize| {
            let pause = vec![0; pause];
            one(&[vec![20, 120], pause.clone(), vec![180], pause, vec![220]].concat(), 10)
        };
        assert_eq!(with(10).us, 23 * STEP_US);
        assert_eq!(with(11), Queueing::default());
    }

    /// A receiver delays the acknowledgements of single segments.
    #[test]
    fn flows_of_few_segments_tell_nothing() {
        assert_eq!(one(&[20, 220, 220, 220, 220, 220, 220], 2), Queueing::default());
        assert_eq!(one(&[20, 220, 220, 220, 220, 220, 220], 3).trips, 6);
    }

    #[test]
    fn a_queue_before_one_host_is_one_although_others_in_its_network_have_none() {
        let mut path = Path::new(5);
        path.look(&[20; 5], 10);
        for _ in 0..6 {
            path.look(&[100, 20, 20, 20, 20], 10);
        }
        let found = path.queueing();
        assert_eq!((found.flows, found.bytes, found.longest_ns), (1, 7 * 15_000, 80 * MS));
    }

    #[test]
    fn a_flow_that_began_in_the_queue_does_not_deny_it() {
        let with = |server: &str| {
            let mut path = Path::new(2);
            path.flows[1].server = server.parse().unwrap();
            path.look(&[20, 0], 10);
            for _ in 0..6 {
                path.look(&[110, 100], 10);
            }
            path.queueing()
        };
        // Another host may be farther away.
        let near = with("198.19.0.2:444");
        let far = with("198.19.0.3:444");
        assert_eq!((near.trips, near.usual_ns), (6, 90 * MS));
        assert_eq!(far, near, "of one host alone");
        let mut path = Path::new(2);
        path.flows[1].server = "198.19.0.2:444".parse().unwrap();
        path.look(&[20, 60], 10);
        (0..6).for_each(|_| path.look(&[110, 60], 10));
        assert_eq!(path.queueing(), Queueing::default(), "half of the trips are as short as they can be");
    }

    /// Each flow is too short for three late trips of its own.
    #[test]
    fn a_queue_before_a_network_shows_in_flows_to_many_hosts() {
        let mut path = Path::new(4);
        path.look(&[20; 4], 10);
        for (flow, late) in [(0, 120), (1, 140), (2, 160), (3, 180), (0, 200)] {
            let mut trips = [0; 4];
            trips[flow] = late;
            path.look(&trips, 10);
        }
        let found = path.queueing();
        assert_eq!((found.flows, found.trips, found.longest_ns), (4, 5, 180 * MS));
        assert_eq!(found.us, LONG_US);
    }
}
