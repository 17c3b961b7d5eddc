//! A profile of a host's kernel: its call stacks, sampled during the measuring window of a trial.
//!
//! Stacks are counted while they are read, so memory is bounded by the number of different stacks (a few hundred), not by
//! time. Taking a sample costs the sampled core about 10 microseconds on a virtual machine (forwarding of 64-byte frames
//! was 10 % slower at 9,973 Hz), so that at 997 Hz a profile takes about 1 % of the forwarding rate: variants that are
//! compared must all be profiled, or none.

mod parts;
mod stacks;

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use weir_record::Profile;
use weir_sys::kallsyms::Symbols;
use weir_sys::perf::CpuClock;
use weir_sys::{ProcRoot, Result};

use crate::error::TaskError;
use stacks::Stacks;

/// Ticks a second and core: a prime, so that nothing that happens at a round rate is always hit or always missed.
pub const HZ: u32 = 997;

/// The pause between two reads of the rings, which hold half a second.
const PAUSE: Duration = Duration::from_millis(50);

/// Samples all cores from `after` on for `duration`, or until it has `ended`. `shared`: the tester also runs on this machine, so
/// the profile must separate its work from the gateway's.
///
/// # Errors
/// [`std::io::ErrorKind::PermissionDenied`] or [`std::io::ErrorKind::Unsupported`] where this process may not or this kernel
/// cannot, with what would help.
pub(crate) fn profile(
    after: Duration,
    duration: Duration,
    hz: u32,
    shared: bool,
    ended: &dyn Fn() -> bool,
) -> Result<Profile> {
    let begun = Instant::now();
    let root = ProcRoot::new("/");
    let mut clock = CpuClock::open(hz)?;
    // Before the window, since it takes a good part of a tenth of a second.
    let mut stacks = Stacks::new(Symbols::read(&root)?);
    until(begun + after, ended, |left| {
        std::thread::sleep(left.min(PAUSE));
        Ok(())
    })?;
    clock.start()?;
    let started = Instant::now();
    // A preparation that took longer than `after` must not make the window longer than everybody else's.
    let end = begun + after + duration;
    until(end, ended, |left| {
        clock.wait(left.min(PAUSE))?;
        clock.drain(|sample| stacks.add(sample.ip, sample.chain));
        Ok(())
    })?;
    clock.stop()?;
    let window = started.elapsed();
    clock.drain(|sample| stacks.add(sample.ip, sample.chain));
    let lost = clock.lost() + stacks.refused();
    Ok(Profile { hz, window_s: window.as_secs_f64(), lost, ..stacks.finish(&root, shared) })
}

/// Repeats a step, which takes at most the time that is left, until then or until it has `ended`.
fn until(end: Instant, ended: &dyn Fn() -> bool, mut step: impl FnMut(Duration) -> Result<()>) -> Result<()> {
    while !ended() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        step(left)?;
    }
    Ok(())
}

/// A failure for which a privilege or a part of the kernel is missing must not end a run: there is no profile then.
pub(crate) fn refused(error: weir_sys::Error) -> TaskError {
    let missing = [ErrorKind::PermissionDenied, ErrorKind::Unsupported].contains(&error.kind());
    TaskError { missing, message: error.to_string() }
}

#[cfg(test)]
mod tests;
