//! Lengths of time on the command line.

use std::time::Duration;

use weir_text::time::{whole_seconds, within};

/// The longest of most options.
pub(crate) const DAY: Duration = Duration::from_secs(86_400);

/// `10`, `90s`, `2m`, `1h`, `7d`, `500ms`, `1.5s`: above 0, at most a day.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    between(Duration::from_millis(1), DAY)(text)
}

/// The same within bounds, which a message names.
pub(super) fn between(
    least: Duration,
    most: Duration,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync {
    move |text| within(text, least, most)
}

/// Whole seconds, at least one and at most a day: what a guard process counts down.
pub(super) fn seconds_to_a_day(text: &str) -> Result<u64, String> {
    whole_seconds(text, 86_400).map(u64::from)
}
