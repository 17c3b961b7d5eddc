//! Waiting for a time in which the hypervisor leaves the machine alone.

use std::time::{Duration, Instant};

use weir_sys::ProcRoot;
use weir_sys::procfs::ticks_per_second;

/// How long such a time is waited for, and how little the hypervisor takes away then.
const WITHIN: Duration = Duration::from_secs(60);
const QUIET: f64 = 0.02;
/// How long the cores are kept busy to see what is taken of them: nothing is taken of a core that wants nothing.
const LOOK: Duration = Duration::from_millis(500);
/// How long they rest in between.
const REST: Duration = Duration::from_secs(2);

/// Whether something holds in one of so many attempts (0..): what a disturbed machine may spoil is tried again in a quiet time.
pub fn holds_in_quiet(attempts: usize, mut holds: impl FnMut(usize) -> bool) -> bool {
    (0..attempts).any(|attempt| {
        if attempt > 0 {
            wait_for_quiet();
        }
        holds(attempt)
    })
}

/// Waits until the hypervisor takes hardly any of the cores' time, but not for ever: before something is tried again that a disturbed
/// machine may have spoilt. Prints what was seen.
pub fn wait_for_quiet() {
    let (began, mut most) = (Instant::now(), 0_f64);
    loop {
        let stolen = stolen();
        most = most.max(stolen);
        if stolen <= QUIET || began.elapsed() >= WITHIN {
            let waited = began.elapsed().as_secs();
            println!(
                "waited {waited} s; the hypervisor took {:.0} % at most, {:.0} % at last",
                most * 100.0,
                stolen * 100.0
            );
            return;
        }
        std::thread::sleep(REST);
    }
}

/// Share of the cores' time that the hypervisor takes away while all of them are wanted.
fn stolen() -> f64 {
    let ticks = || {
        let cores = ProcRoot::default().stat().unwrap();
        (cores.values().map(|core| core.steal).sum::<u64>() as f64, cores.len())
    };
    let ((before, cores), began) = (ticks(), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| while began.elapsed() < LOOK {});
        }
    });
    (ticks().0 - before) / (began.elapsed().as_secs_f64() * ticks_per_second() as f64 * cores as f64)
}
