//! Back-to-back frames where the buffer, or the sender, is not the same for every burst.

use std::time::Duration;

use super::super::progress::MOST_FRAMES;
use super::super::simulated::Simulated;
use super::{Findings, SETTING, just_below, near, quick, run, value};
use crate::testbed::{Testbed, TestbedError};
use crate::transfer::{Offer, Order, Transfer, TransferOutcome};
use crate::workload::{Packets, Procedure, Search};

/// A gateway that changes with each burst: told the burst's number, from 0, and its frames.
struct Changing<'a> {
    gateway: Simulated,
    /// Frames of all bursts so far, without the one that finds the greatest rate.
    bursts: Vec<u64>,
    change: &'a dyn Fn(usize, u64, &mut Simulated),
}

impl Testbed for Changing<'_> {
    fn flush(&mut self) -> Result<(Duration, Option<(u64, u64)>), TestbedError> {
        self.gateway.flush()
    }

    fn tracked(&mut self) -> Result<Option<u64>, TestbedError> {
        self.gateway.tracked()
    }

    fn transfer(&mut self, transfer: &Transfer) -> Result<TransferOutcome, TestbedError> {
        let sending = transfer.egress.as_ref().filter(|s| s.tuples.order == Order::Random);
        let burst = sending.filter(|s| s.offer == Offer::Unlimited).map(|s| s.limit.frames);
        if let Some(frames) = burst.filter(|frames| *frames < MOST_FRAMES) {
            (self.change)(self.bursts.len(), frames, &mut self.gateway);
            self.bursts.push(frames);
        }
        self.gateway.transfer(transfer)
    }
}

/// Returns the findings, and the frames of each burst.
fn measure(
    search: Search,
    gateway: Simulated,
    change: &dyn Fn(usize, u64, &mut Simulated),
) -> (Findings, Vec<u64>) {
    let packets = Packets { search, ..quick(Procedure::BackToBack) };
    let mut testbed = Changing { gateway, bursts: Vec::new(), change };
    (run(&packets, &SETTING, &mut testbed).unwrap(), testbed.bursts)
}

/// A sender of 2 M/s, so that a buffer holds what is left of a burst of twice its size.
fn gateway(buffer: f64) -> Simulated {
    Simulated { buffer, unlimited_pps: 2e6, paced_pps: 2e6, ..Simulated::default() }
}

#[test]
fn a_buffer_that_grew_is_searched_from_the_longest_burst() {
    let (_, steady) = measure(Search::Mlr, gateway(5000.0), &|_, _, _| {});
    // Within a search a longer burst is at most half way back to the one before the last.
    let first = 1 + steady.windows(2).position(|two| two[1] as f64 > 1.5 * two[0] as f64).unwrap();
    let second = steady[first] as f64;
    just_below(second, 20_000.0, 0.0101);

    // The first of three searches finds 10,000 frames, and the others 40,000.
    let grow = |nth: usize, _: u64, gateway: &mut Simulated| {
        gateway.buffer = if nth < first { 5000.0 } else { 20_000.0 };
    };
    let (found, bursts) = measure(Search::Mlr, gateway(5000.0), &grow);
    assert_eq!(bursts[..=first], steady[..=first]);
    assert_eq!(bursts[first + 1], bursts[0]);
    just_below(value(&found, "back_to_back_frames"), 30_000.0, 0.0101);
    assert_eq!(found.faults, []);
}

#[test]
fn a_burst_may_take_as_long_as_the_longest() {
    // The longest burst takes two seconds; three quarters of it pass.
    let (found, bursts) = measure(Search::Quick, gateway(0.0), &|_, _, gateway| gateway.buffer = 1.5e6);
    assert_eq!(bursts[0], 4_000_000);
    just_below(value(&found, "back_to_back_frames"), 3e6, 0.0101);
    assert_eq!(found.faults, []);
}

#[test]
fn short_bursts_have_no_part_in_the_rate() {
    // 1000 * 2^12 frames in two seconds, so that the search meets 1000 frames. Short bursts are slower, long ones too.
    let pace = |_: usize, frames: u64, gateway: &mut Simulated| {
        gateway.unlimited_pps = if frames <= 1000 { 1.5e6 } else { 1.8e6 };
    };
    let (found, bursts) =
        measure(Search::Quick, Simulated { unlimited_pps: 2_048_000.2, ..gateway(200.0) }, &pace);
    assert!(bursts.contains(&1000) && bursts.iter().any(|frames| *frames < 1000), "{bursts:?}");
    near(value(&found, "burst_pps"), 1.8e6, 1e-4);
}
