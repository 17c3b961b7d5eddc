//! A recording of `weir flows`: what passed, and on which part of the path it was lost or delayed.

mod html;
mod limits;
mod processes;
mod terminal;
mod udp;

pub use html::flows_html;
pub use terminal::flows_terminal;

use weir_record::flows::{FlowsRecording, FlowsSide, FlowsSum, RecordedLoss, end_of_bucket};
use weir_text::escape::line;
use weir_text::units::{self, Unit};

/// Parts of the path, in the order of [`parts`].
const PARTS: [&str; 4] = ["from client", "to server", "from server", "to client"];

/// At most this many points per line; longer recordings are summed up in wider steps.
const POINTS: usize = 180;

fn parts<'a>(client: &'a FlowsSide, server: &'a FlowsSide) -> [&'a RecordedLoss; 4] {
    [&client.lost_from, &server.lost_to, &server.lost_from, &client.lost_to]
}

/// The share with its interval; if nothing was sent there, a dash.
fn share(part: &RecordedLoss) -> String {
    match (part.share, part.low, part.high) {
        (Some(share), Some(low), Some(high)) => units::quantity(Unit::Ratio, share, Some((low, high))),
        _ => "–".to_owned(),
    }
}

fn round_trip(side: &FlowsSide) -> String {
    side.round_trips.smallest_ns.map_or("–".to_owned(), |ns| units::quantity(Unit::Ns, ns as f64, None))
}

/// Values of one step of the recording.
#[derive(Debug, Clone, PartialEq)]
struct Step {
    /// Its end, seconds since the beginning of the watch.
    at: f64,
    /// Bits per second from clients, and from servers.
    bps: [f64; 2],
    /// Share of segments lost by part of the path; `None` if none was sent.
    lost: [Option<f64>; 4],
    /// The median round trip to clients, and to servers, ns: the end of its bucket.
    median: [Option<f64>; 2],
    /// Shares of the time of the side that sent more, by limit.
    limits: Option<[f64; 5]>,
}

/// Differences between lines of the recording.
fn steps(recording: &FlowsRecording) -> Vec<Step> {
    let ticks = &recording.ticks;
    let width = ticks.len().div_ceil(POINTS).max(1);
    let chosen: Vec<_> = ticks.iter().step_by(width).collect();
    let who = limits::subject(recording);
    let pair = |two: &[&weir_record::flows::FlowsTick]| {
        let (before, after) = (&two[0].all, &two[1].all);
        let seconds = two[1].seconds - two[0].seconds;
        let sides = [(&before.client_side, &after.client_side), (&before.server_side, &after.server_side)];
        let bps = sides.map(|(b, a)| a.bytes.saturating_sub(b.bytes) as f64 * 8.0 / seconds.max(1e-3));
        let (was, is) =
            (parts(&before.client_side, &before.server_side), parts(&after.client_side, &after.server_side));
        let lost = |n: usize| {
            let of = is[n].of.saturating_sub(was[n].of);
            let lost = is[n].segments.saturating_sub(was[n].segments);
            (of > 0).then(|| (lost as f64 / of as f64).min(1.0))
        };
        let median = sides.map(|(b, a)| median(&b.round_trips.buckets, &a.round_trips.buckets));
        let limits = limits::shares(sides.map(|(b, _)| &b.limits), sides.map(|(_, a)| &a.limits), who);
        Step { at: two[1].seconds, bps, lost: [lost(0), lost(1), lost(2), lost(3)], median, limits }
    };
    chosen.windows(2).map(pair).collect()
}

/// The median of the round trips that came between.
fn median(before: &[u64], after: &[u64]) -> Option<f64> {
    let new = |n: usize| after[n].saturating_sub(before.get(n).copied().unwrap_or(0));
    let total: u64 = (0..after.len()).map(new).sum();
    let mut seen = 0;
    let at = (0..after.len()).find(|n| {
        seen += new(*n);
        total > 0 && 2 * seen >= total
    })?;
    Some(end_of_bucket(at))
}

/// How many of these times were at most so long: (ns, share). The last bucket has no end and no point.
fn distribution(buckets: &[u64]) -> Vec<(f64, f64)> {
    let total: u64 = buckets.iter().sum();
    let first = buckets.iter().position(|n| *n > 0).unwrap_or(0);
    let mut seen = 0;
    let mut points = Vec::new();
    for (n, count) in buckets.iter().enumerate().take(buckets.len().saturating_sub(1)).skip(first) {
        seen += count;
        points.push((end_of_bucket(n), seen as f64 / total.max(1) as f64));
        if seen == total {
            break;
        }
    }
    if total == 0 { Vec::new() } else { points }
}

/// The whole in sentences, the first one first.
fn sentences(recording: &FlowsRecording) -> Vec<String> {
    let last = &recording.last;
    let all = &last.all;
    let names: Vec<String> = last.interfaces.iter().map(|name| line(name)).collect();
    let mut sentences = vec![format!(
        "{} of TCP passed through {} in {:.0} s, in {} flows.",
        units::bytes(all.client_side.bytes + all.server_side.bytes),
        names.join(", "),
        last.seconds,
        units::count(last.flows_now + last.flows_over)
    )];
    for (part, name) in parts(&all.client_side, &all.server_side).into_iter().zip(PARTS) {
        if part.segments > 0 {
            let (lost, of) = (units::count(part.segments), units::count(part.of));
            sentences.push(format!("Lost {name}: {}, {lost} of {of} segments.", share(part)));
        }
    }
    if sentences.len() == 1 && all.client_side.lost_from.of > 0 {
        sentences.push("No segment was lost on either side of this host.".to_owned());
    }
    sentences.extend(limits::sentence(recording));
    let sum = |field: fn(&FlowsSide) -> u64| field(&all.client_side) + field(&all.server_side);
    for (number, words) in [
        (all.unanswered_syns, "SYNs without an answer"),
        (sum(|s| s.reordered), "Segments reordered, not lost"),
        (sum(|s| s.needless), "Segments sent again needlessly"),
        (sum(|s| s.resets), "Resets"),
        (sum(|s| s.zero_windows), "Receive windows closed"),
    ] {
        if number > 0 {
            sentences.push(format!("{words}: {}.", units::count(number)));
        }
    }
    sentences.extend(udp::sentences(recording));
    if last.sample_share < 1.0 {
        sentences.push(format!("Tracked {} of all flows.", units::percent(last.sample_share)));
    }
    if recording.is_cut {
        sentences.push("The file ends within a line, which is left out.".to_owned());
    }
    sentences
}

/// One row of figures of a network or a flow: its limit, bytes, round trips, losses.
fn figures(client: &FlowsSide, server: &FlowsSide) -> Vec<String> {
    let bytes = units::bytes(client.bytes + server.bytes);
    let mut row = vec![limits::words(client, server), bytes, round_trip(client), round_trip(server)];
    row.extend(parts(client, server).map(share));
    row
}

fn name(sum: &FlowsSum) -> String {
    sum.network.as_deref().map_or("(others)".to_owned(), line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_of_what_came_between() {
        assert_eq!(median(&[5, 0, 0], &[5, 1, 2]), Some(end_of_bucket(2)));
        assert_eq!(median(&[5, 0, 0], &[5, 1, 1]), Some(end_of_bucket(1)));
        assert_eq!(median(&[5, 0, 0], &[5, 0, 0]), None);
        assert_eq!(median(&[], &[0, 3]), Some(end_of_bucket(1)));
    }
}
