//! A number that must not get worse while a change waits to be confirmed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::change::Program;

/// The source of a number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// A program that prints it, first on its standard output. It runs in the set's network namespace.
    Command(Program),
    /// One that the binary knows by name (see [`crate::guard`]).
    Named(String),
}

/// Which direction is bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Worse {
    /// More is worse, e.g. drops.
    Above,
    /// Less is worse, e.g. a request rate.
    Below,
}

/// A number that the guard watches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchedNumber {
    /// Its name for people, e.g. `packets dropped by connection tracking, per second`.
    pub name: String,
    /// How it is read.
    pub metric: Metric,
    /// True for a counter that only grows: the guard compares its growth per second.
    pub rate: bool,
    /// How often it is read, ms; at least 100.
    pub every_ms: u64,
    /// Which side of the limit is bad.
    pub worse: Worse,
    /// The last value that is still good, from what was measured before the change.
    pub limit: f64,
    /// Readings beyond the limit in a row that take the change back; at least 1.
    pub strikes: u32,
}

/// Readings so far.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    last: Option<(u64, f64)>,
    beyond: u32,
}

impl WatchedNumber {
    /// True if a value is worse than the limit.
    pub fn is_beyond(&self, value: f64) -> bool {
        match self.worse {
            Worse::Above => value > self.limit,
            Worse::Below => value < self.limit,
        }
    }

    /// Takes a reading at a time (ns, any clock that never goes back); says why if it is time to take the change back.
    pub(crate) fn judge(&self, readings: &mut Readings, now_ns: u64, raw: f64) -> Option<String> {
        let value = match (self.rate, readings.last.replace((now_ns, raw))) {
            (false, _) => raw,
            (true, None) => return None,
            (true, Some((then_ns, before))) => {
                // A counter that starts anew (a module loaded again) says nothing for once.
                let seconds = now_ns.saturating_sub(then_ns) as f64 / 1e9;
                if raw < before || seconds <= 0.0 {
                    return None;
                }
                (raw - before) / seconds
            }
        };
        if !self.is_beyond(value) {
            readings.beyond = 0;
            return None;
        }
        readings.beyond += 1;
        (readings.beyond >= self.strikes.max(1)).then(|| {
            let side = match self.worse {
                Worse::Above => "above",
                Worse::Below => "below",
            };
            format!(
                "{} got worse: {}, {side} {} {} times in a row",
                self.name,
                short(value),
                short(self.limit),
                readings.beyond
            )
        })
    }
}

/// Three digits are enough to see how bad it is.
fn short(value: f64) -> String {
    if value.abs() >= 100.0 || value == value.trunc() { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// The first number that a program printed.
pub(crate) fn first_number(printed: &str) -> Option<f64> {
    printed.split_whitespace().next()?.parse().ok().filter(|v: &f64| v.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(rate: bool, worse: Worse) -> WatchedNumber {
        let metric = Metric::Named("drops".into());
        WatchedNumber { name: "drops".into(), metric, rate, every_ms: 1000, worse, limit: 10.0, strikes: 2 }
    }

    #[test]
    fn only_readings_in_a_row_beyond_the_limit_count() {
        let (watch, mut readings) = (watch(false, Worse::Above), Readings::default());
        let mut tell = |value| watch.judge(&mut readings, 0, value);
        assert_eq!((tell(11.0), tell(10.0), tell(12.0)), (None, None, None));
        assert_eq!(tell(12.5).unwrap(), "drops got worse: 12.50, above 10 2 times in a row");
    }

    #[test]
    fn a_counter_is_judged_by_its_growth_per_second() {
        let (watch, mut readings) = (watch(true, Worse::Above), Readings::default());
        let mut tell = |at_s: u64, value| watch.judge(&mut readings, at_s * 1_000_000_000, value);
        // 5, then a new start, then 20 and 22 a second.
        for (at, value) in [(1, 1000.0), (2, 1005.0), (3, 0.0), (5, 40.0)] {
            assert_eq!(tell(at, value), None, "{at}");
        }
        assert!(tell(6, 62.0).unwrap().contains(": 22, above 10"));
    }

    #[test]
    fn where_less_is_worse_it_is_the_other_side() {
        let (watch, mut readings) = (watch(false, Worse::Below), Readings::default());
        let mut tell = |value| watch.judge(&mut readings, 0, value);
        assert_eq!((tell(9.0), tell(10.0), tell(9.0)), (None, None, None));
        assert!(tell(1.0).unwrap().contains("below 10"));
    }

    #[test]
    fn a_number_is_the_first_word() {
        assert_eq!(first_number("12.5 req/s\n"), Some(12.5));
        for bad in ["", "x 1", "nan", "inf"] {
            assert_eq!(first_number(bad), None, "{bad}");
        }
    }
}
