//! One side of flows, and the way between it and this host.

use schemars::JsonSchema;
use serde::Serialize;

use crate::fraction::{Counts, Doubts, Fraction};
use crate::limits::{Limits, Waits};
use crate::shared::{self, WeirFlow, WeirSide};

/// Round trips between this host and one side, or times from queries to their answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct RoundTrips {
    /// The smallest one, ns.
    pub smallest_ns: Option<u64>,
    /// Smoothed as in RFC 6298, ns; of several flows the one of the latest. Delayed acknowledgements are part of it.
    pub smoothed_ns: Option<u64>,
    /// The median, ns: the upper end of its bucket.
    pub median_ns: Option<u64>,
    /// The 95th percentile, likewise.
    pub p95_ns: Option<u64>,
    /// Measured round trips.
    pub count: u64,
    /// Their sum, ns.
    pub total_ns: u64,
    /// How many were in each bucket. Bucket 0 ends at 16 µs, each further pair at 1.5 and 2 times that; the last one is open.
    pub buckets: Vec<u64>,
}

/// The end of a bucket of [`RoundTrips::buckets`], ns. The last bucket has none: it takes all that is longer.
pub fn end_of_bucket(bucket: usize) -> u64 {
    let power = (bucket / 2) as u32;
    let whole = 16_000_u64 << power;
    if bucket.is_multiple_of(2) { whole } else { whole + whole / 2 }
}

/// Counters that add up over flows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Trips {
    smallest: Option<u64>,
    smoothed: Option<(u64, u64)>,
    count: u64,
    total: u64,
    buckets: [u64; shared::WEIR_BUCKETS as usize],
}

impl Trips {
    pub(crate) fn of(trips: &shared::WeirTrips, last: u64) -> Self {
        Trips {
            smallest: (trips.smallest > 0).then_some(trips.smallest),
            smoothed: (trips.count > 0).then_some((last, trips.smoothed)),
            count: trips.count,
            total: trips.total,
            buckets: trips.buckets.map(u64::from),
        }
    }

    pub(crate) fn add(&mut self, other: &Trips) {
        self.smallest = self.smallest.into_iter().chain(other.smallest).min();
        self.smoothed = self.smoothed.max(other.smoothed);
        self.count += other.count;
        self.total += other.total;
        for (mine, its) in self.buckets.iter_mut().zip(other.buckets) {
            *mine += its;
        }
    }

    fn quantile(&self, share: f64) -> Option<u64> {
        let wanted = (share * self.count as f64).ceil() as u64;
        let mut seen = 0;
        let at = self.buckets.iter().position(|n| {
            seen += n;
            seen >= wanted.max(1)
        });
        at.map(end_of_bucket)
    }

    pub(crate) fn report(&self) -> RoundTrips {
        RoundTrips {
            smallest_ns: self.smallest,
            smoothed_ns: self.smoothed.map(|(_, ns)| ns),
            median_ns: self.quantile(0.5),
            p95_ns: self.quantile(0.95),
            count: self.count,
            total_ns: self.total,
            buckets: self.buckets.to_vec(),
        }
    }
}

/// Losses of what a side sent, before it came here.
pub(crate) fn lost_before(side: &WeirSide) -> Counts {
    let traceless = side.doubtful + side.unjudged;
    let doubts = Doubts { traceless, pauses: side.pauses, needless: 0 };
    Counts { segments: side.lost_before, of: side.fresh, doubts }
}

/// The same behind this host.
pub(crate) fn lost_behind(side: &WeirSide) -> Counts {
    let doubts = Doubts { needless: side.needless + side.unclear, ..Doubts::default() };
    Counts { segments: side.lost_behind, of: side.segments, doubts }
}

/// Sums over one side of a flow, or of several.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SideSum {
    /// All that adds up by itself; the rest is filled in by [`SideSum::report`].
    pub(crate) side: Side,
    shut: u64,
    waits: Waits,
    trips: Trips,
    /// For each flow.
    lost_from: Vec<Counts>,
    lost_to: Vec<Counts>,
}

impl SideSum {
    /// One side of a flow, by its number. `now` is CLOCK_MONOTONIC, ns.
    pub(crate) fn of(flow: &WeirFlow, number: usize, now: u64) -> Self {
        let (side, other) = (&flow.sides[number], &flow.sides[1 - number]);
        let some = |counts: Counts| if counts.of > 0 { vec![counts] } else { Vec::new() };
        SideSum {
            side: Side {
                bytes: side.bytes,
                packets: side.packets,
                segments: side.segments,
                reordered: side.reordered,
                needless: side.needless,
                bypassed: side.bypassed,
                unjudged: side.unjudged,
                syns: side.syns,
                resets: side.resets,
                zero_windows: side.zero_windows,
                congestion_marks: side.marked,
                ..Side::default()
            },
            shut: side.shut,
            waits: Waits::of(flow, number, now),
            trips: Trips::of(&side.trips, side.last),
            lost_from: some(lost_before(side)),
            lost_to: some(lost_behind(other)),
        }
    }

    pub(crate) fn add(&mut self, other: &SideSum) {
        let (side, its) = (&mut self.side, &other.side);
        side.bytes += its.bytes;
        side.packets += its.packets;
        side.segments += its.segments;
        side.reordered += its.reordered;
        side.needless += its.needless;
        side.bypassed += its.bypassed;
        side.unjudged += its.unjudged;
        side.syns += its.syns;
        side.resets += its.resets;
        side.zero_windows += its.zero_windows;
        side.congestion_marks += its.congestion_marks;
        self.shut += other.shut;
        self.waits.add(&other.waits);
        self.trips.add(&other.trips);
        self.lost_from.extend(&other.lost_from);
        self.lost_to.extend(&other.lost_to);
    }

    /// Keeps the memory of flows that have ended within bounds: counts of a hundred flows become those of one.
    pub(crate) fn compact(&mut self) {
        const MOST: usize = 100;
        for counts in [&mut self.lost_from, &mut self.lost_to] {
            if counts.len() > MOST {
                *counts = vec![Counts::sum(counts)];
            }
        }
    }

    pub(crate) fn report(&self) -> Side {
        Side {
            round_trips: self.trips.report(),
            lost_from: Fraction::over(&self.lost_from),
            lost_to: Fraction::over(&self.lost_to),
            zero_window_seconds: self.shut as f64 / 1e9,
            limits: self.waits.report(),
            ..self.side.clone()
        }
    }
}

/// One side, and the way between it and this host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Side {
    /// Bytes of IP packets that it sent, as they came in.
    pub bytes: u64,
    /// Packets that it sent.
    pub packets: u64,
    /// Segments with data or an end (FIN) among them.
    pub segments: u64,
    /// Round trips between this host and it.
    pub round_trips: RoundTrips,
    /// Lost between it and this host, on the way from it: first copies that it skipped and sent later.
    pub lost_from: Fraction,
    /// Lost between this host and it, on the way to it: segments of the other side that came here and were sent again.
    pub lost_to: Fraction,
    /// Segments that came from it later than their followers, and were not lost.
    pub reordered: u64,
    /// Segments that it sent again although they had arrived.
    pub needless: u64,
    /// Segments that it sent by a way that does not lead through here.
    pub bypassed: u64,
    /// Segments that were skipped and could not be judged: too many at once.
    pub unjudged: u64,
    /// SYNs, with and without ACK.
    pub syns: u64,
    /// Resets that it sent.
    pub resets: u64,
    /// How often it closed its receive window: its program reads too slowly.
    pub zero_windows: u64,
    /// Time in all until it opened the window again, seconds.
    pub zero_window_seconds: f64,
    /// Packets from it that a router has marked with "congestion experienced" (RFC 3168).
    pub congestion_marks: u64,
    /// Who limits it as a sender.
    pub limits: Limits,
}

/// Who limits the side that sent more: the direction of a flow, or of several, that people mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BusierLimit {
    /// The server sent more than the client.
    pub is_server: bool,
    /// Who limits it.
    pub limits: Limits,
}

impl BusierLimit {
    /// The limit of a client or its server.
    pub fn of(client: &Side, server: &Side) -> Self {
        BusierLimit::of_sums([client, server].map(|side| (side.bytes, side.limits)))
    }

    /// The same from the bytes that clients and servers sent, and from what limited them.
    pub fn of_sums([client, server]: [(u64, Limits); 2]) -> Self {
        let is_server = server.0 > client.0;
        BusierLimit { is_server, limits: if is_server { server.1 } else { client.1 } }
    }

    /// `>` if the client sent more, `<` if the server did.
    pub fn direction(&self) -> char {
        if self.is_server { '<' } else { '>' }
    }

    /// Direction, limit and its share for people; a dash without a limit.
    pub fn words(&self) -> String {
        match self.limits.by {
            Some(_) => format!("{} {}", self.direction(), self.limits.words()),
            None => "-".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busier_side_counts() {
        let slow = Limits { sender_seconds: 2.0, application_seconds: 1.0, ..Limits::default() };
        let words = |client, server| {
            BusierLimit::of_sums([(client, Limits::default()), (server, Limits::sum([&slow]))]).words()
        };
        assert_eq!((words(1, 2).as_str(), words(2, 2).as_str()), ("< sender 67 %", "-"));
    }

    #[test]
    fn buckets_end_where_the_program_ends_them() {
        assert_eq!([0, 1, 2, 3].map(end_of_bucket), [16_000, 24_000, 32_000, 48_000]);
        // 2^4 us times 2^15.
        assert_eq!(end_of_bucket(30), 524_288_000);
    }

    #[test]
    fn quantiles_are_ends_of_buckets() {
        let mut trips = Trips { count: 10, ..Trips::default() };
        trips.buckets[1] = 6;
        trips.buckets[4] = 4;
        assert_eq!(trips.quantile(0.5), Some(24_000));
        assert_eq!(trips.quantile(0.95), Some(64_000));
        assert_eq!(Trips::default().quantile(0.5), None);
    }
}
