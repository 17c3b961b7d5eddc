//! The kernel's ticks (jiffies) in a second. Nothing tells a program, so they are counted.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// The rates that kernels are built with (kernel/Kconfig.hz).
const KNOWN: [u32; 4] = [100, 250, 300, 1000];
/// Long enough to tell them apart: three ticks at least differ between neighbours, one of which the ends may cut off.
const WINDOW: Duration = Duration::from_millis(60);
/// Windows before giving up, a second and a half.
const WINDOWS: u32 = 25;

/// Counts ticks, which `now` reads, until two windows in a row agree. After a hypervisor took a core away, the count has stood
/// still, and jumps: such a window shows too few or too many, and the next one does not.
///
/// # Errors
/// Those of `now`, and [`Error::Options`] if no two windows agree.
pub(crate) fn per_second(now: impl Fn() -> Result<u64>) -> Result<u32> {
    agreed(|| {
        let (begun, first) = (Instant::now(), now()?);
        sleep(WINDOW);
        Ok((now()? - first) as f64 / begun.elapsed().as_secs_f64())
    })
}

fn agreed(mut measured: impl FnMut() -> Result<f64>) -> Result<u32> {
    let mut last = nearest(measured()?);
    for _ in 1..WINDOWS {
        let this = nearest(measured()?);
        if this == last {
            return Ok(this);
        }
        last = this;
    }
    Err(Error::Options("the kernel's ticks cannot be counted: this host is taken away too often".into()))
}

/// The rate that is nearest by its ratio.
fn nearest(measured: f64) -> u32 {
    let distance = |hz: &u32| (measured.max(1.0) / f64::from(*hz)).ln().abs();
    KNOWN.into_iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(KNOWN[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_window_that_a_stall_spoilt_does_not_count() {
        let of = |windows: &[f64]| {
            let mut windows = windows.iter().copied();
            agreed(|| Ok(windows.next().unwrap()))
        };
        assert_eq!(of(&[249.0, 251.0]).unwrap(), 250);
        // The clock stood still and caught up, in one window and in two that follow each other.
        assert_eq!(of(&[667.0, 250.0, 250.0]).unwrap(), 250);
        assert_eq!(of(&[83.0, 667.0, 250.0, 250.0]).unwrap(), 250);
        assert_eq!(of(&[1000.0, 83.0, 1001.0, 999.0]).unwrap(), 1000);
        // The counts of a window of each rate, and one tick more or less.
        for (hz, ticks) in [(100, 6), (250, 15), (300, 18), (1000, 60)] {
            for count in [ticks - 1, ticks, ticks + 1] {
                assert_eq!(nearest(f64::from(count) / WINDOW.as_secs_f64()), hz, "{count} ticks");
            }
        }
        let never: Vec<f64> = (0..WINDOWS).map(|n| if n % 2 == 0 { 100.0 } else { 1000.0 }).collect();
        assert!(matches!(of(&never), Err(Error::Options(_))));
    }
}
