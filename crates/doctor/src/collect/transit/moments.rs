//! How fast data goes to each network, when it is lost and when it waits, many times a second for as long as the window is open.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use weir_flows::{FlowProgress, ProgressReader, SideProgress};

use super::sums::{Key, Moments, Seen, keys};
use super::waits::Waits;
use crate::evidence::Moment;

/// Time between two looks: a token bucket of 100 kB fills within this at 16 Mbit/s.
const STEP: Duration = Duration::from_millis(50);
/// A look takes at most one in so many parts of the time, so that the thread takes 1 % of a core at most.
const IDLE_PARTS: u32 = 100;
/// Flows that are looked at in a namespace: 2.4 kB are copied of each.
const MOST_FLOWS: u32 = 256;
/// Moments that are kept: those of the last 30 s.
const MOST_MOMENTS: usize = 600;

/// By the inode of the namespace.
type ByNamespace = BTreeMap<u64, Seen>;

/// A thread that looks. It ends with this.
#[derive(Debug, Default)]
pub(super) struct Looking {
    thread: Option<(Sender<()>, JoinHandle<ByNamespace>)>,
}

impl Looking {
    /// Begins to look at these namespaces, by their inodes. Without a thread nothing is seen.
    pub(super) fn begin(readers: Vec<(u64, ProgressReader)>) -> Self {
        if readers.is_empty() {
            return Looking::default();
        }
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new().name("moments".into()).spawn(move || look(&readers, &stopped));
        Looking { thread: thread.ok().map(|thread| (stop, thread)) }
    }

    /// Everything that was seen, by the inode of the namespace.
    pub(super) fn end(self) -> ByNamespace {
        let Some((stop, thread)) = self.thread else { return BTreeMap::new() };
        drop(stop);
        thread.join().unwrap_or_default()
    }
}

fn look(readers: &[(u64, ProgressReader)], stopped: &Receiver<()>) -> ByNamespace {
    let began = Instant::now();
    let mut series: Vec<Series> = readers.iter().map(|_| Series::default()).collect();
    let mut wait = STEP;
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(wait) {
        let now = Instant::now();
        for ((_, reader), series) in readers.iter().zip(&mut series) {
            // A look that fails leaves a longer moment.
            if let Ok(flows) = reader.read(MOST_FLOWS) {
                series.add((now - began).as_micros() as u64, &flows);
            }
        }
        wait = STEP.max(now.elapsed() * IDLE_PARTS).saturating_sub(now.elapsed());
    }
    readers.iter().zip(series).map(|((id, _), series)| (*id, series.finish())).collect()
}

/// A flow at the last look.
#[derive(Debug, Clone, Copy, Default)]
struct Before {
    sides: [SideProgress; 2],
    /// By the side: the look before which it last sent data.
    active: [usize; 2],
}

/// Differences between looks.
#[derive(Debug, Default)]
struct Series {
    /// The flows at the last look, in their order.
    before: Vec<Before>,
    looks: Vec<u32>,
    at_us: u64,
    moments: BTreeMap<Key, BTreeMap<usize, Moment>>,
    waits: Waits,
}

impl Series {
    fn add(&mut self, at_us: u64, flows: &[FlowProgress]) {
        let look = self.looks.len();
        self.looks.push((at_us - self.at_us) as u32);
        self.waits.add(at_us - self.at_us, flows);
        self.at_us = at_us;
        self.before.resize(flows.len().max(self.before.len()), Before::default());
        for (flow, before) in flows.iter().zip(&mut self.before) {
            for (side, key) in keys(flow.client, flow.server, flow.seen_from_start).into_iter().enumerate() {
                before.add(self.moments.entry(key).or_default(), look, side, &flow.sides);
            }
            before.sides = flow.sides;
        }
    }

    fn finish(self) -> Seen {
        Seen { moments: self.moments(), queueing: self.waits.finish() }
    }

    /// The last moments of each network.
    fn moments(&self) -> Moments {
        let first = self.looks.len().saturating_sub(MOST_MOMENTS);
        let of = |moments: &BTreeMap<usize, Moment>| {
            let begin = moments.keys().next().map_or(first, |look| first.max(*look));
            let all = (begin..self.looks.len()).map(|look| Moment {
                us: self.looks[look],
                ..moments.get(&look).copied().unwrap_or_default()
            });
            all.collect()
        };
        self.moments.iter().map(|(key, moments)| (*key, of(moments))).collect()
    }
}

impl Before {
    /// Adds what went to the network of the side of that number since the last look, and the round trips that came back from it.
    fn add(
        &mut self,
        moments: &mut BTreeMap<usize, Moment>,
        look: usize,
        side: usize,
        sides: &[SideProgress; 2],
    ) {
        let (sent, own) = (&sides[1 - side], &sides[side]);
        let (sent_before, own_before) = (&self.sides[1 - side], &self.sides[side]);
        let bytes = sent.bytes.saturating_sub(sent_before.bytes);
        let moment = moments.entry(look).or_default();
        moment.bytes += bytes;
        moment.trips += own.trips.saturating_sub(own_before.trips) as u32;
        moment.trips_ns += own.trips_ns.saturating_sub(own_before.trips_ns);
        let lost = sent.lost_behind as i64 - sent_before.lost_behind as i64;
        if lost != 0 {
            // The first copies were sent before: when the flow last sent anything.
            let then = moments.entry(self.active[1 - side]).or_default();
            then.lost += lost * i64::from(sent.segment_bytes);
        }
        if bytes >= u64::from(sent.segment_bytes) {
            self.active[1 - side] = look;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(sent: u64, lost: u64, trips: u64) -> FlowProgress {
        let data =
            SideProgress { bytes: sent, lost_behind: lost, segment_bytes: 1500, ..SideProgress::default() };
        let answers =
            SideProgress { bytes: sent / 50, trips, trips_ns: trips * 1000, ..SideProgress::default() };
        FlowProgress {
            client: "198.18.0.2:40000".parse().unwrap(),
            server: "198.19.0.2:443".parse().unwrap(),
            seen_from_start: true,
            sides: [data, answers],
        }
    }

    fn towards_servers(series: &Series) -> Vec<Moment> {
        let all = series.moments();
        assert_eq!(all.len(), 2, "a network on each side");
        all.into_iter().find(|(key, _)| key.0).unwrap().1
    }

    #[test]
    fn moments_are_differences_and_a_loss_belongs_to_the_moment_before() {
        let mut series = Series::default();
        series.add(50_000, &[flow(30_000, 0, 2)]);
        series.add(100_000, &[flow(90_000, 0, 5), flow(15_000, 0, 0)]);
        series.add(160_000, &[flow(91_500, 4, 5), flow(15_000, 0, 0)]);
        let moments = towards_servers(&series);
        let seen: Vec<_> = moments.iter().map(|m| (m.us, m.bytes, m.lost, m.trips, m.trips_ns)).collect();
        assert_eq!(
            seen,
            [(50_000, 30_000, 0, 2, 2000), (50_000, 75_000, 6000, 3, 3000), (60_000, 1500, 0, 0, 0)]
        );
    }

    /// A time-out: the flow stands still until the second copy comes.
    #[test]
    fn a_loss_that_is_noticed_late_belongs_to_the_last_data() {
        let mut series = Series::default();
        for (at, (sent, lost)) in
            [(30_000, 0), (30_000, 0), (30_000, 0), (31_500, 1), (31_500, 0)].into_iter().enumerate()
        {
            series.add(50_000 * (at as u64 + 1), &[flow(sent, lost, 0)]);
        }
        let lost: Vec<i64> = towards_servers(&series).iter().map(|m| m.lost).collect();
        assert_eq!(lost, [1500, 0, 0, -1500, 0], "the last one turned out to be needless");
    }

    #[test]
    fn the_last_moments_are_kept() {
        let mut series = Series::default();
        let looks = MOST_MOMENTS as u64 + 20;
        (1..=looks).for_each(|at| series.add(50_000 * at, &[flow(2000 * at, 0, 0)]));
        assert_eq!(towards_servers(&series).len(), MOST_MOMENTS);
    }

    #[test]
    fn without_a_namespace_there_is_no_thread() {
        assert_eq!(Looking::begin(Vec::new()).end(), BTreeMap::new());
    }
}
