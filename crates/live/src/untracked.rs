//! Words about flows that are not tracked.

use weir_flows::{Estimate, UntrackedFlow};
use weir_text::units;

use crate::history::{Ends, History};
use crate::rows::{Of, Row};

/// Readings whose mean is the rate: one of a second would be that of a few packets.
pub(crate) const READINGS: usize = 10;

/// Protocol and both ends of one direction.
pub(crate) type Direction = (u8, Ends);

pub(crate) fn direction(flow: &UntrackedFlow) -> Direction {
    (flow.protocol, (flow.source, flow.destination))
}

pub(crate) fn row(flow: &UntrackedFlow, history: &History) -> Row {
    let words = flow.words();
    Row {
        flows: 1,
        bytes: flow.size.bytes as u64,
        bps: history.untracked(&direction(flow)),
        untracked: Some(flow.size),
        searched: words.to_lowercase(),
        addresses: vec![flow.source.ip(), flow.destination.ip()],
        ..Row::new(Of::Untracked(direction(flow)), words)
    }
}

/// The 95 % interval of its bytes.
pub(crate) fn interval(size: &Estimate) -> String {
    format!("{} to {}", units::bytes(size.low as u64), units::bytes(size.high as u64))
}

/// Everything about a flow in one line.
pub(crate) fn words(name: &str, size: &Estimate) -> String {
    format!("{name}, not tracked, {} with 95 % certainty", interval(size))
}
