//! The rule of tests that measure: k of n, fixed in advance.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weir_sys::ProcRoot;
use weir_sys::procfs::ticks_per_second;

/// How long a quiet time is waited for, and the share of the cores' time that the hypervisor takes in it at most.
const WITHIN: Duration = Duration::from_secs(60);
const QUIET: f64 = 0.02;
/// How long the cores are kept busy to see what is taken of them: nothing is taken of a core that wants nothing.
const LOOK: Duration = Duration::from_millis(500);
/// How long they rest in between.
const REST: Duration = Duration::from_secs(2);
/// An attempt that failed while more than this share of a core was stolen was disturbed. From 5 % on, the lab's own void rule
/// (`weir_bench`) leaves a trial out as well.
const DISTURBED: f64 = 0.05;

/// Fails the test unless a measurement holds in `needed` of at most `of` attempts. `attempt` gets its number, from 0, prints what
/// it measured and says whether that holds.
///
/// A rule of one in several is refused: a figure that is right once in three times would pass. If one attempt takes long, make it
/// hold in one: `measured(1, 1, ..)`.
///
/// It stops as soon as the result is certain. After an attempt that failed it waits for a time in which the hypervisor leaves the
/// machine alone. It prints one line that `scripts/test` counts: `MEASURED: 2 of 3: passed 2, failed 0`.
///
/// If the rule fails and the hypervisor disturbed a failed attempt, the result says nothing: then it prints `DISTURBED: ...`
/// and returns. `scripts/test` names such tests and fails a run that has more than two.
///
/// The name of a test that other work on the machine would disturb begins with `measured_` or `root_measured_`: `scripts/test` then
/// runs it alone. With `paced_` in that place it runs beside a few others that take little of a core as well.
#[track_caller]
pub fn measured(needed: usize, of: usize, mut attempt: impl FnMut(usize) -> bool) {
    assert!(is_rule(needed, of), "{needed} of {of} is no rule");
    let (mut most_stolen, mut has_failed) = (0_f64, false);
    let (passed, failed) = count(needed, of, |number| {
        if has_failed {
            wait_for_quiet();
        }
        let before = Cores::read();
        let passes = attempt(number);
        has_failed = !passes;
        if has_failed {
            most_stolen = most_stolen.max(Cores::read().most_stolen_since(&before));
        }
        passes
    });
    println!("MEASURED: {needed} of {of}: passed {passed}, failed {failed}");
    if passed >= needed {
        return;
    }
    assert!(
        most_stolen > DISTURBED,
        "held in {passed} of {} attempts, see above; {needed} of {of} must",
        passed + failed
    );
    println!("DISTURBED: {:.0} % of a core was stolen in an attempt that failed", most_stolen * 100.0);
}

/// Whether all that `attempt` asserts holds: an attempt of [`measured`] whose failure is a panic, which is printed.
pub fn holds(attempt: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt)).is_ok()
}

/// Whether the rule asks for all attempts, or for two at least.
fn is_rule(needed: usize, of: usize) -> bool {
    needed <= of && (needed >= 2 || (needed, of) == (1, 1))
}

/// How many attempts passed and failed until the result was certain.
fn count(needed: usize, of: usize, mut attempt: impl FnMut(usize) -> bool) -> (usize, usize) {
    let (mut passed, mut failed) = (0, 0);
    while passed < needed && failed <= of - needed {
        if attempt(passed + failed) {
            passed += 1;
        } else {
            failed += 1;
        }
    }
    (passed, failed)
}

/// Waits until the hypervisor takes hardly any of the cores' time, a minute at most. Prints the steal that it saw.
fn wait_for_quiet() {
    let (began, mut most) = (Instant::now(), 0_f64);
    loop {
        let before = Cores::read();
        let look = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..before.steal.len() {
                scope.spawn(|| while look.elapsed() < LOOK {});
            }
        });
        let stolen = Cores::read().most_stolen_since(&before);
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

/// The steal of each core since boot, in ticks, and when it was read.
struct Cores {
    steal: BTreeMap<usize, u64>,
    at: Instant,
}

impl Cores {
    fn read() -> Self {
        let stat = ProcRoot::default().stat().unwrap();
        Cores {
            steal: stat.into_iter().map(|(core, times)| (core, times.steal)).collect(),
            at: Instant::now(),
        }
    }

    /// The share of its time that the most disturbed core lost.
    fn most_stolen_since(&self, before: &Cores) -> f64 {
        let ticks = (self.at - before.at).as_secs_f64() * ticks_per_second() as f64;
        let lost = |(core, now): (&usize, &u64)| {
            now.saturating_sub(*before.steal.get(core).unwrap_or(now)) as f64 / ticks
        };
        self.steal.iter().map(lost).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "1 of 3 is no rule")]
    fn one_of_several_is_refused() {
        measured(1, 3, |_| true);
    }

    #[test]
    fn rules_ask_for_all_or_for_two() {
        for (needed, of) in [(1, 1), (2, 2), (2, 3), (2, 5), (3, 5)] {
            assert!(is_rule(needed, of), "{needed} of {of}");
        }
        for (needed, of) in [(0, 0), (0, 1), (1, 2), (1, 4), (3, 2)] {
            assert!(!is_rule(needed, of), "{needed} of {of}");
        }
    }

    #[test]
    fn a_rule_stops_when_the_result_is_certain() {
        let rule = |needed, of, passes: &[bool]| count(needed, of, |number| passes[number]);
        assert_eq!(rule(1, 1, &[true]), (1, 0));
        assert_eq!(rule(2, 3, &[true, true]), (2, 0));
        assert_eq!(rule(2, 3, &[false, true, true]), (2, 1));
        assert_eq!(rule(2, 3, &[false, false]), (0, 2));
        assert_eq!(rule(2, 3, &[true, false, false]), (1, 2));
        assert_eq!(rule(3, 5, &[true, false, true, false, false]), (2, 3));
    }
}
