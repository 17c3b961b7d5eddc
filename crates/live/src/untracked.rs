//! Words about flows that are not tracked.

use weir_flows::Estimate;
use weir_text::units;

/// The 95 % interval of its bytes.
pub(crate) fn interval(size: &Estimate) -> String {
    format!("{} to {}", units::bytes(size.low as u64), units::bytes(size.high as u64))
}

/// Everything about a flow in one line.
pub(crate) fn words(name: &str, size: &Estimate) -> String {
    format!("{name}, not tracked, {} with 95 % certainty", interval(size))
}
