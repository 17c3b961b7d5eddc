//! Lengths of time on the command line.

use std::time::Duration;

/// The longest of most options.
pub(crate) const DAY: Duration = Duration::from_secs(86_400);

const FORM: &str = "not a time such as 10, 90s, 2m or 500ms";

/// `10`, `90s`, `2m`, `1h`, `7d`, `500ms`, `1.5s`: above 0, at most a day.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    between(Duration::from_millis(1), DAY)(text)
}

/// The same within bounds, which a message names.
pub(super) fn between(
    least: Duration,
    most: Duration,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync {
    move |text| {
        let seconds = seconds(text).ok_or(FORM)?;
        // A number too large for a length of time is outside of the bounds as well.
        (Duration::try_from_secs_f64(seconds).ok())
            .filter(|time| (least..=most).contains(time))
            .ok_or_else(|| format!("{} to {}", words(least), words(most)))
    }
}

/// Whole seconds, at least one and at most a day: what a guard process counts down.
pub(super) fn seconds_to_a_day(text: &str) -> Result<u64, String> {
    let time = between(Duration::from_secs(1), DAY)(text)?;
    if time.subsec_nanos() == 0 { Ok(time.as_secs()) } else { Err("not whole seconds".to_owned()) }
}

/// Seconds; `None` for what is no time. Rust's own parser of numbers would also take a sign, an exponent, `inf` and `nan`.
fn seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    let number_ends = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_ends);
    let factor = match unit.trim() {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    number.parse::<f64>().ok().map(|n| n * factor)
}

/// As people say it: 1 ms, 0.1 s, 5 min, 24 hours, 365 days.
fn words(time: Duration) -> String {
    let s = time.as_secs_f64();
    match s {
        _ if s < 0.1 => format!("{} ms", s * 1e3),
        _ if s < 60.0 => format!("{s} s"),
        _ if s < 3600.0 => format!("{} min", s / 60.0),
        _ if s <= 86_400.0 => format!("{} hours", s / 3600.0),
        _ => format!("{} days", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, ms) in [
            ("10", 10_000),
            ("90s", 90_000),
            ("2m", 120_000),
            ("500ms", 500),
            ("1.5s", 1500),
            ("1d", 86_400_000),
        ] {
            assert_eq!(time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "0", "s", "-1", "25h", "1w", "1e3", "10 apples", "..", "nan", &"9".repeat(400)] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bounds_are_named() {
        let short = between(Duration::from_millis(100), Duration::from_secs(300));
        assert_eq!(short("0.1"), Ok(Duration::from_millis(100)));
        assert_eq!(short("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(short("50ms"), Err("0.1 s to 5 min".to_owned()));
        assert_eq!(short("301"), Err("0.1 s to 5 min".to_owned()));
        assert_eq!(time("0"), Err("1 ms to 24 hours".to_owned()));
        let long = between(Duration::from_secs(1), DAY * 365);
        assert_eq!(long("365d"), Ok(Duration::from_secs(31_536_000)));
        assert_eq!(long("366d"), Err("1 s to 365 days".to_owned()));
    }

    #[test]
    fn what_a_guard_counts_down_is_whole_seconds() {
        for (text, s) in [("120", 120), ("90s", 90), ("1.5m", 90), ("24h", 86_400)] {
            assert_eq!(seconds_to_a_day(text), Ok(s), "{text}");
        }
        for bad in ["0", "25h", "1.5s", "500ms", "99999999999999999999s"] {
            assert!(seconds_to_a_day(bad).is_err(), "{bad}");
        }
    }
}
