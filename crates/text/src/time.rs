//! Lengths of time: `90s`, `2m`, `500ms` mean the same in every option and every key of a scenario.

use std::time::Duration;

use crate::units::amount;

/// Units and their seconds; a number without a unit is seconds.
const UNITS: [(&str, f64); 11] = [
    ("", 1.0),
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("min", 60.0),
    ("h", 3600.0),
    ("d", 86_400.0),
    ("w", 604_800.0),
];

/// How one is written, for messages.
pub const FORM: &str = "a time such as 10, 90s, 2m or 500ms";

/// Seconds; `None` for what is no time.
pub fn seconds(text: &str) -> Option<f64> {
    amount(text, &UNITS)
}

/// A time within bounds.
///
/// # Errors
/// In words, if it is no time or outside.
pub fn within(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    let seconds = seconds(text).ok_or_else(|| format!("not {FORM}"))?;
    // A number too large for a length of time is outside of the bounds as well.
    (Duration::try_from_secs_f64(seconds).ok())
        .filter(|time| (least..=most).contains(time))
        .ok_or_else(|| format!("{} to {}", duration(least.as_secs_f64()), duration(most.as_secs_f64())))
}

/// Whole seconds, at least one: what a kernel's setting or a countdown takes.
///
/// # Errors
/// In words, if it is no such time, or longer than `most` seconds.
pub fn whole_seconds(text: &str, most: u32) -> Result<u32, String> {
    let time = within(text, Duration::from_secs(1), Duration::from_secs(most.into()))?;
    u32::try_from(time.as_secs())
        .ok()
        .filter(|_| time.subsec_nanos() == 0)
        .ok_or_else(|| "not whole seconds".into())
}

/// In words, with the two largest units: `300 ms`, `48 s`, `4 min 12 s`, `1 h 3 min`, `5 d`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "unknown time".to_owned();
    }
    if seconds > 0.0 && seconds < 0.9995 {
        let us = (seconds * 1e6).round();
        // Three digits are enough for people.
        return format!("{} ms", if us < 1e5 { us / 1e3 } else { (us / 1e3).round() });
    }
    let mut rest = seconds.round() as u64;
    let mut words = Vec::new();
    for (unit, size) in [("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)] {
        let n = rest / size;
        rest %= size;
        match words.len() {
            0 if n > 0 || size == 1 => words.push(format!("{n} {unit}")),
            1 => {
                if n > 0 {
                    words.push(format!("{n} {unit}"));
                }
                break;
            }
            _ => {}
        }
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, ms) in [
            ("10", 10_000),
            ("90s", 90_000),
            ("2m", 120_000),
            ("2min", 120_000),
            ("500ms", 500),
            ("1.5s", 1500),
            ("1 h", 3_600_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(within(text, Duration::ZERO, DAY), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "s", "-1", "25h", "1y", "1e3", "10 apples", "..", "nan", "infs", "1.2.3s", "９s"] {
            assert!(within(bad, Duration::ZERO, DAY).is_err(), "{bad}");
        }
        assert!(within(&"9".repeat(400), Duration::ZERO, DAY).is_err());
    }

    #[test]
    fn bounds_are_named() {
        let short = |text| within(text, Duration::from_millis(100), Duration::from_secs(300));
        assert_eq!(short("0.1"), Ok(Duration::from_millis(100)));
        assert_eq!(short("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(short("50ms"), Err("100 ms to 5 min".to_owned()));
        assert_eq!(within("366d", Duration::from_secs(1), DAY * 365), Err("1 s to 365 d".to_owned()));
    }

    #[test]
    fn a_countdown_is_of_whole_seconds() {
        for (text, s) in [("120", 120), ("1.5m", 90), ("24h", 86_400)] {
            assert_eq!(whole_seconds(text, 86_400), Ok(s), "{text}");
        }
        for bad in ["0", "25h", "1.5s", "500ms", "99999999999999999999s"] {
            assert!(whole_seconds(bad, 86_400).is_err(), "{bad}");
        }
    }

    #[test]
    fn words_for_time() {
        for (seconds, text) in [
            (0.0, "0 s"),
            (0.0005, "0.5 ms"),
            (0.3, "300 ms"),
            (48.2, "48 s"),
            (120.0, "2 min"),
            (252.0, "4 min 12 s"),
            (3780.0, "1 h 3 min"),
            (21_600.0, "6 h"),
            (432_000.0, "5 d"),
            (90_000.0, "1 d 1 h"),
            (f64::NAN, "unknown time"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
