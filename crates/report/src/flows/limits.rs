//! Who limited senders: shares of their time, and the rows of their table.

use weir_record::flows::{FlowsRecording, FlowsSide, RecordedLimits};
use weir_text::order;
use weir_text::units::{self, Unit};

/// Heads of the table of limits behind the word.
pub(super) const HEADS: [&str; 2] = ["clients", "servers"];

/// Whether servers sent more than clients, and the side that did.
fn busier<'a>(client: &'a FlowsSide, server: &'a FlowsSide) -> (bool, &'a FlowsSide) {
    let is_server = server.bytes > client.bytes;
    (is_server, if is_server { server } else { client })
}

/// Who limits the side that sent more (`>` the client, `<` the server), and for what share of the time; a dash without one.
pub(super) fn words(client: &FlowsSide, server: &FlowsSide) -> String {
    let (is_server, side) = busier(client, server);
    let direction = if is_server { '<' } else { '>' };
    let words = |(by, share): (&str, f64)| format!("{direction} {by} {:.0} %", 100.0 * share);
    side.limits.most().map_or("–".to_owned(), words)
}

/// The side that sent more in the whole recording.
pub(super) fn subject(recording: &FlowsRecording) -> &'static str {
    HEADS[usize::from(busier(&recording.last.all.client_side, &recording.last.all.server_side).0)]
}

/// Shares of the time of that side between two lines, in the order of [`RecordedLimits::WORDS`]; `None` if none was judged.
pub(super) fn shares(
    before: [&RecordedLimits; 2],
    after: [&RecordedLimits; 2],
    who: &str,
) -> Option<[f64; 5]> {
    let side = usize::from(who == HEADS[1]);
    let (was, is) = (before[side].times(), after[side].times());
    // The time since the last packet is charged by the state of the flow, and charged anew with the next one.
    let times: [f64; 5] = std::array::from_fn(|n| (is[n] - was[n]).max(0.0));
    let all: f64 = times.iter().sum();
    (all > 0.0).then(|| times.map(|time| time / all))
}

/// All limits of the side that sent more, the longest first; none if no time was judged.
pub(super) fn sentence(recording: &FlowsRecording) -> Option<String> {
    /// A smaller share is not worth a word.
    const LEAST: f64 = 0.005;
    let all = &recording.last.all;
    let times = busier(&all.client_side, &all.server_side).1.limits.times();
    let total: f64 = times.iter().sum();
    let mut shares: Vec<(&str, f64)> = RecordedLimits::WORDS.into_iter().zip(times).collect();
    shares.retain(|(_, time)| *time > 0.0 && *time >= LEAST * total);
    order::by(&mut shares, |a, b| b.1.total_cmp(&a.1));
    let words: Vec<String> =
        shares.iter().map(|(word, time)| format!("{word} {:.0} %", 100.0 * time / total)).collect();
    let who = subject(recording);
    (!words.is_empty()).then(|| format!("Time of {who} as senders, by limit: {}.", words.join(", ")))
}

/// A row for each limit that any time went to: seconds and shares of clients and servers.
pub(super) fn rows(recording: &FlowsRecording) -> Vec<(String, Vec<String>)> {
    let all = &recording.last.all;
    let sides = [all.client_side.limits.times(), all.server_side.limits.times()];
    let cell = |times: &[f64; 5], n: usize| {
        let total: f64 = times.iter().sum();
        let share = || units::quantity(Unit::Ratio, times[n] / total, None);
        if total > 0.0 { format!("{:.1} s, {}", times[n], share()) } else { "–".to_owned() }
    };
    let used = RecordedLimits::WORDS.into_iter().enumerate();
    let used = used.filter(|(n, _)| sides.iter().any(|times| times[*n] > 0.0));
    used.map(|(n, word)| (word.to_owned(), sides.iter().map(|times| cell(times, n)).collect())).collect()
}
