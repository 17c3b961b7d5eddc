//! Who limits a sender.

use schemars::JsonSchema;
use serde::Serialize;

use crate::shared::{self, WeirFlow};
use crate::table::is;

/// A shorter time says nothing about a flow, seconds.
const LEAST_SECONDS: f64 = 1.0;
/// Segments under way without any answer for this time wait for the network, ns: the first time-out of RFC 6298.
const SILENCE_NS: u64 = 1_000_000_000;

weir_text::listed! {
    /// For what a sender waits before it sends more.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum Limiter {
        /// Its program supplies no more.
        Application = "application",
        /// The receive window of the other side is full.
        Receiver = "receiver",
        /// The congestion window, after a loss or over a queue.
        Network = "network",
        /// Its send buffer, or another limit of its own.
        Sender = "sender",
    }
}

/// Time that a side waited as a sender, by what it waited for. Several flows give sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct Limits {
    /// The one of the four that half of the time and more goes to; null if none does, or in less than a second.
    pub by: Option<Limiter>,
    /// Its program supplied no more, seconds.
    pub application_seconds: f64,
    /// The receive window of the other side was full, seconds.
    pub receiver_seconds: f64,
    /// After a loss, or over a queue, seconds.
    pub network_seconds: f64,
    /// No more was under way though nothing else stopped it, seconds: its send buffer, or another limit of its own.
    pub sender_seconds: f64,
    /// Neither is known, seconds: the congestion window grew, or the flow began before the watch.
    pub unclear_seconds: f64,
}

impl Limits {
    /// The times of several flows, and the limit of all of it.
    pub fn sum<'a>(parts: impl IntoIterator<Item = &'a Limits>) -> Self {
        let add = |sum: Limits, part: &Limits| Limits {
            by: None,
            application_seconds: sum.application_seconds + part.application_seconds,
            receiver_seconds: sum.receiver_seconds + part.receiver_seconds,
            network_seconds: sum.network_seconds + part.network_seconds,
            sender_seconds: sum.sender_seconds + part.sender_seconds,
            unclear_seconds: sum.unclear_seconds + part.unclear_seconds,
        };
        parts.into_iter().fold(Limits::default(), add).judged()
    }

    /// The same times with [`Limits::by`] of them.
    fn judged(self) -> Self {
        let all = self.seconds();
        let is_most = |limiter: &Limiter| all >= LEAST_SECONDS && 2.0 * self.of(*limiter) >= all;
        Limits { by: Limiter::ALL.into_iter().find(is_most), ..self }
    }

    /// All time, seconds.
    pub fn seconds(&self) -> f64 {
        self.of(Limiter::Application)
            + self.of(Limiter::Receiver)
            + self.of(Limiter::Network)
            + self.of(Limiter::Sender)
            + self.unclear_seconds
    }

    /// Time of that limit, seconds.
    pub fn of(&self, limiter: Limiter) -> f64 {
        match limiter {
            Limiter::Application => self.application_seconds,
            Limiter::Receiver => self.receiver_seconds,
            Limiter::Network => self.network_seconds,
            Limiter::Sender => self.sender_seconds,
        }
    }

    /// The share of the time that goes to [`Limits::by`], 0.5 to 1.
    pub fn share(&self) -> Option<f64> {
        self.by.map(|by| self.of(by) / self.seconds())
    }

    /// The limit and its share for people; a dash without one.
    pub fn words(&self) -> String {
        match (self.by, self.share()) {
            (Some(by), Some(share)) => format!("{} {:.0} %", by.words(), 100.0 * share),
            _ => "-".to_owned(),
        }
    }
}

/// Time by limit, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Waits([u64; shared::WEIR_LIMITS as usize]);

impl Waits {
    /// One side of a flow, with the time since it was charged last. `now` is CLOCK_MONOTONIC, ns.
    pub(crate) fn of(flow: &WeirFlow, side: usize, now: u64) -> Self {
        let mut waits = flow.sides[side].wait.by;
        if let Some(by) = pending(flow, side, now) {
            waits[by as usize] += now.saturating_sub(flow.sides[side].wait.since);
        }
        Waits(waits)
    }

    pub(crate) fn add(&mut self, other: &Waits) {
        for (mine, its) in self.0.iter_mut().zip(other.0) {
            *mine += its;
        }
    }

    pub(crate) fn report(&self) -> Limits {
        let seconds = |limit: u64| self.0[limit as usize] as f64 / 1e9;
        let times = Limits {
            by: None,
            application_seconds: seconds(shared::WEIR_BY_APPLICATION),
            receiver_seconds: seconds(shared::WEIR_BY_RECEIVER),
            network_seconds: seconds(shared::WEIR_BY_NETWORK),
            sender_seconds: seconds(shared::WEIR_BY_SENDER),
            unclear_seconds: seconds(shared::WEIR_BY_UNCLEAR),
        };
        times.judged()
    }
}

/// The limit of the time since a side was charged last. The program charges at the next packet, for which a flow that stands still has to
/// wait.
fn pending(flow: &WeirFlow, side: usize, now: u64) -> Option<u64> {
    let (own, wait) = (&flow.sides[side], &flow.sides[side].wait);
    let ended = [shared::WEIR_IS_ENDED0, shared::WEIR_IS_ENDED1][side];
    if wait.since == 0 || is(flow, ended | shared::WEIR_IS_RESET) {
        return None;
    }
    let has_edge = u64::from(wait.flags) & shared::WEIR_WAIT_EDGE != 0;
    let room = i64::from(wait.edge.wrapping_sub(own.next).cast_signed());
    if has_edge && room < i64::from(own.longest) {
        return Some(shared::WEIR_BY_RECEIVER);
    }
    if own.next == own.acked {
        return Some(shared::WEIR_BY_APPLICATION);
    }
    let silence = now.saturating_sub(wait.acked_at.max(wait.since));
    (silence > SILENCE_NS).then_some(shared::WEIR_BY_NETWORK)
}

#[cfg(test)]
mod tests {
    use weir_bpf::Plain;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_limit_needs_half_of_the_time_and_a_second() {
        let by = |times: [u64; 5]| Waits(times).report().by;
        assert_eq!(by([SECOND, 0, 0, 0, 0]), Some(Limiter::Application));
        assert_eq!(by([SECOND - 1, 0, 0, 0, 0]), None);
        assert_eq!(by([0, 3, 0, 0, 3].map(|n| n * SECOND)), Some(Limiter::Receiver));
        assert_eq!(by([1, 0, 2, 1, 1].map(|n| n * SECOND)), None);
        assert_eq!(by([0, 0, 0, 0, 9].map(|n| n * SECOND)), None, "no limit at all");
        let three = Waits([0, 0, SECOND, 3 * SECOND, 0]).report();
        assert_eq!((three.words(), three.seconds()), ("sender 75 %".to_owned(), 4.0));
        assert_eq!(Limits::default().words(), "-");
    }

    #[test]
    fn a_sum_has_a_limit_of_its_own() {
        let [short, long] =
            [[0, SECOND / 2, 0, 0, 0], [SECOND, 0, 0, 2 * SECOND, 0]].map(|t| Waits(t).report());
        assert_eq!((short.by, long.by), (None, Some(Limiter::Sender)));
        let both = Limits::sum([&short, &long]);
        assert_eq!((both.seconds(), both.by, both.receiver_seconds), (3.5, Some(Limiter::Sender), 0.5));
        let twice = Limits::sum([&short, &short]);
        assert_eq!((twice.by, twice.share()), (Some(Limiter::Receiver), Some(1.0)), "a second in all");
        assert_eq!(
            Limits::sum([&long, &Waits([0, 3 * SECOND, 0, 0, 0]).report()]).by,
            Some(Limiter::Receiver)
        );
        assert_eq!(Limits::sum([]), Limits::default());
    }

    #[test]
    fn a_flow_that_stands_still_is_charged_for_its_state() {
        let mut flow = WeirFlow::zeroed();
        let now = 10 * SECOND;
        let times = |flow: &WeirFlow| Waits::of(flow, 0, now).0.map(|ns| ns / SECOND);
        assert_eq!(times(&flow), [0; 5], "it never sent");
        let side = &mut flow.sides[0];
        (side.wait.since, side.wait.acked_at, side.longest) = (4 * SECOND, 3 * SECOND, 1000);
        (side.next, side.acked, side.wait.edge) = (5000, 5000, 60_000);
        side.wait.flags = shared::WEIR_WAIT_EDGE as u32;
        assert_eq!(times(&flow), [6, 0, 0, 0, 0]);
        flow.sides[0].next = 9000;
        assert_eq!(times(&flow), [0, 0, 6, 0, 0], "no answer for more than a second");
        flow.sides[0].wait.since = now - SECOND / 2;
        assert_eq!(Waits::of(&flow, 0, now).0, [0; 5], "the answer may be under way");
        flow.sides[0].wait.since = 4 * SECOND;
        flow.sides[0].wait.edge = 9999;
        assert_eq!(times(&flow), [0, 6, 0, 0, 0], "less than a segment of the window is free");
        flow.state = shared::WEIR_IS_ENDED1 as u32;
        assert_eq!(times(&flow), [0, 6, 0, 0, 0], "the other side has ended");
        flow.state = shared::WEIR_IS_ENDED0 as u32;
        assert_eq!(times(&flow), [0; 5]);
    }
}
