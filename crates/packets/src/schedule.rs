//! The part that both kinds of sender do alike: when frames are due, which requests are refused before the first one, and how the work
//! of several threads becomes the sum of a transfer.

use std::time::Duration;

use weir_sys::clock::NS_PER_S;
use weir_wire::Ethernet;

use crate::Error;
use crate::frame::CHECK_SEQUENCE;
use crate::transfer::{Engine, Inject, Link, Offer, Sending, Sent};

/// By how much the last frames of a schedule may be late and still leave, ns: about the time of a batch.
const GRACE_NS: u64 = 100_000;

/// The schedule of all threads together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    /// Time in which frames may leave, ns.
    pub(crate) duration_ns: u64,
    pub(crate) frames: u64,
    /// ns between two frames; `None`: as fast as it goes.
    pub(crate) interval_ns: Option<f64>,
}

/// The work of one thread.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ThreadWork {
    pub(crate) frames: u64,
    pub(crate) refused: u64,
    /// Times of the first and the last frame, ns; 0: none left.
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    /// When the last frame was handed over, which the schedule is compared with.
    pub(crate) last_begun_ns: u64,
    pub(crate) late_max_ns: u64,
    pub(crate) cpu: Duration,
}

/// Refuses a rate that no schedule can keep to.
pub(crate) fn check_rate(offer: Offer) -> Result<(), Error> {
    match offer {
        Offer::Rate(rate) if !(rate.is_finite() && (0.01..=1e9).contains(&rate)) => {
            Err(Error::Unfit(format!("a rate of {rate} frames a second")))
        }
        _ => Ok(()),
    }
}

/// Refuses frames that are too long for their link, whose MTU is `mtu`: it would drop them without a word (net/core/filter.c,
/// xdp_ok_fwd_dev).
pub(crate) fn check_mtu(link: &Link, sending: &Sending, mtu: u32) -> Result<(), Error> {
    let bytes = sending.frame.bytes;
    let packet = u32::from(bytes).saturating_sub((CHECK_SEQUENCE + Ethernet::LENGTH) as u32);
    if link.inject == Inject::Gateway || packet <= mtu {
        return Ok(());
    }
    Err(Error::Unfit(format!(
        "frames of {bytes} bytes need an MTU of {packet}; that of {} is {mtu}",
        link.interface
    )))
}

impl Schedule {
    pub(crate) fn of(sending: &Sending) -> Self {
        let limit = sending.limit;
        let duration_ns = u64::try_from(limit.duration.as_nanos()).unwrap_or(u64::MAX / 4);
        match sending.offer {
            Offer::Unlimited => Schedule { duration_ns, frames: limit.frames, interval_ns: None },
            Offer::Rate(rate) => {
                // Frames k with k / rate < duration.
                let planned = (rate * limit.duration.as_secs_f64()).ceil().max(1.0) as u64;
                Schedule {
                    duration_ns: duration_ns + GRACE_NS,
                    frames: planned.min(limit.frames),
                    interval_ns: Some(NS_PER_S as f64 / rate),
                }
            }
        }
    }

    /// Returns how much longer than planned so many frames took.
    fn slip(&self, frames: u64, took_ns: u64) -> f64 {
        match self.interval_ns {
            Some(interval) if frames > 1 => took_ns as f64 / ((frames - 1) as f64 * interval) - 1.0,
            _ => 0.0,
        }
    }

    /// Sums up the work of all threads, whose time began at `start_ns`. If it ended with frames `missing`, it counts as long as all of
    /// them would have needed at the pace of those that left.
    pub(crate) fn sum_up(
        &self,
        sending: &Sending,
        engine: Engine,
        start_ns: u64,
        parts: &[ThreadWork],
        missing: bool,
    ) -> Sent {
        let sent = || parts.iter().filter(|part| part.frames > 0);
        let frames: u64 = parts.iter().map(|part| part.frames).sum();
        let last_ns = sent().map(|part| part.last_ns).max().unwrap_or(0);
        let last_begun_ns = sent().map(|part| part.last_begun_ns).max().unwrap_or(0);
        let missing = missing && self.interval_ns.is_some() && frames > 1;
        let missing = if missing { self.frames as f64 / frames as f64 - 1.0 } else { 0.0 };
        Sent {
            frames,
            stamped: parts.iter().map(|part| sending.stamped(part.frames)).sum(),
            bytes: frames * u64::from(sending.frame.bytes),
            duration_ns: last_ns.saturating_sub(sent().map(|part| part.first_ns).min().unwrap_or(0)),
            elsewhere_ns: 0,
            late_max_ns: parts.iter().map(|part| part.late_max_ns).max().unwrap_or(0),
            slip_ratio: self.slip(frames, last_begun_ns.saturating_sub(start_ns)).max(missing).max(0.0),
            refused: parts.iter().map(|part| part.refused).sum(),
            cpu_s: parts.iter().map(|part| part.cpu.as_secs_f64()).sum(),
            engine,
            pace: None,
        }
    }
}
