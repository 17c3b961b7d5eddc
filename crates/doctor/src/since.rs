//! Did the fix help? An earlier report against a diagnosis of now.
//!
//! "Better" is praise that a change which breaks connections must never get. So the verdict is better only if a finding is gone or
//! does less harm, none is new or does more, the share of lost packets is not greater, every evidence source of then is in sight,
//! and the traffic did not fall. Decisions that are not obvious:
//!
//! - The harm of a finding has three measures: claimed packets per second, impact and severity. More of one is more harm, whatever
//!   the others do. Less needs less of the first or the second. A lower severity alone is less only where it is the one measure.
//! - More and less packets are by more than chance ([`weir_stats::rates`]) and by a tenth; less also by a tenth more than the
//!   traffic fell. Drops come in bursts, which that test does not know: one window is one draw.
//! - A finding that claims more packets, but no more than the traffic grew by, excludes "better" and is not worse: its own share
//!   may have grown within a greater traffic of others.
//! - A new note does not count if it claims no more packets than chance brings and has no impact. By its severity it does no harm,
//!   and every host gets and loses such notes. In the same way a gone note without harm is no improvement.
//! - A loss that is gone or less does not outweigh that the whole loses a greater share of its packets: worse, not mixed.
//! - A gone loss that was so small that chance explains it is no improvement.
//! - The traffic of a namespace must not fall if a finding there counts or is more than a note. Other namespaces must not fall
//!   silent; their traffic comes and goes.
//! - After a fall of traffic, what is gone proves nothing, and what is new or more still counts: worse.
//! - With a source that became blind, or a shorter window, new findings prove nothing either: another cause may stand in for the
//!   one that is out of sight.

mod matching;
#[cfg(test)]
mod property;
#[cfg(test)]
mod tests;
mod traffic;

use std::collections::BTreeSet;

use weir_stats::rates;
use weir_text::order;
use weir_text::units::{count, number};

use crate::comparison::{BeforeAfter, FindingChange, Harm, HowChanged, Since, SinceVerdict};
use crate::diagnosis::Diagnosis;
use crate::evidence::Sight;
use crate::finding::Severity;
use matching::Pair;
use traffic::{Moved, Traffic};

/// Level of the one-sided tests of a finding's packets.
const ALPHA: f64 = 0.01;

/// A smaller relative change is none.
const TENTH: f64 = 0.1;

/// A smaller change of an impact is none: it is a share of few things.
const IMPACT: f64 = 0.01;

/// A window of less than this share of the earlier one is shorter; clocks and ends of windows take the rest.
const AS_LONG: f64 = 0.9;

/// Compares `now` with a report that was read from `file`.
pub fn compare(file: &str, before: &Diagnosis, now: &Diagnosis) -> Since {
    let renamed = matching::renamed(before, now);
    let traffic = Traffic::of(before, now, &renamed);
    let windows = (before.window_s, now.window_s);
    let mut changes: Vec<FindingChange> = matching::pairs(before, now, &renamed)
        .into_iter()
        .map(|pair| change(pair, windows, &traffic))
        .collect();
    order::by(&mut changes, |a, b| {
        let weight = |c: &FindingChange| c.after.or(c.before).map(|h| (h.severity, h.packets));
        a.change.cmp(&b.change).then(weight(b).cmp(&weight(a))).then(a.cause.cmp(&b.cause))
    });
    let (verdict, why) = judge(&changes, &traffic, &unlike(before, now));
    Since {
        file: file.to_owned(),
        earlier_s: now.ended_unix_s.saturating_sub(before.ended_unix_s),
        verdict,
        why,
        lost_ratio: traffic.lost_ratio(),
        handled_per_s: traffic.handled_per_s(),
        changes,
    }
}

/// The last report in a text of `weir doctor --json`, which may be lines of `--watch`. `mark` is the value of its key `schema`.
///
/// # Errors
/// In words, if it is none.
pub fn read(text: &str, mark: &str) -> Result<Diagnosis, String> {
    let mut documents = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    let (mut from, mut to) = (0, 0);
    while let Some(document) = documents.next() {
        document.map_err(|e| format!("not JSON: {e}"))?;
        (from, to) = (to, documents.byte_offset());
    }
    let last = &text[from..to];
    if last.is_empty() {
        return Err("it is empty".to_owned());
    }
    let value: serde_json::Value = serde_json::from_str(last).map_err(|e| format!("not JSON: {e}"))?;
    match value.get("schema").map(|schema| (schema, schema == mark)) {
        Some((_, true)) => {}
        Some((other, false)) => return Err(format!("its schema is {other}, not \"{mark}\"")),
        None => return Err(format!("it has no key \"schema\" with the value \"{mark}\"")),
    }
    let report: Diagnosis = serde_json::from_str(last).map_err(|e| e.to_string())?;
    // Rates by a shorter one might not be finite.
    if !(report.window_s.is_finite() && report.window_s >= 0.001) {
        return Err(format!("its window_s is {}, which is no length of a window", report.window_s));
    }
    Ok(report)
}

/// Why the two windows do not see the same, in words.
fn unlike(before: &Diagnosis, now: &Diagnosis) -> Vec<String> {
    let mut why = Vec::new();
    if now.ended_unix_s < before.ended_unix_s {
        why.push("the report of --before is later than this one".to_owned());
    }
    if now.window_s < AS_LONG * before.window_s {
        let (old, new) = (before.window_s, now.window_s);
        why.push(format!("this window is shorter: {new:.1} s instead of {old:.1} s"));
    }
    let rank = |sight: Option<&Sight>| match sight {
        Some(Sight::Seen) => 2,
        Some(Sight::Partly(_)) => 1,
        Some(Sight::Blind(_)) | None => 0,
    };
    for (source, then) in &before.evidence_sources {
        let sight = now.evidence_sources.get(source);
        if rank(sight) < rank(Some(then)) {
            why.push(match sight {
                Some(Sight::Partly(reason)) => {
                    format!("{} is in sight only in part now: {reason}", source.words())
                }
                Some(Sight::Blind(reason)) => format!("{} is no longer in sight: {reason}", source.words()),
                _ => format!("{} is no longer in sight", source.words()),
            });
        }
    }
    why
}

/// The verdict, and its reasons beyond the findings.
fn judge(changes: &[FindingChange], traffic: &Traffic<'_>, unlike: &[String]) -> (SinceVerdict, Vec<String>) {
    if !unlike.is_empty() {
        return (SinceVerdict::NotComparable, unlike.to_vec());
    }
    if let Some(why) = traffic.none() {
        return (SinceVerdict::NotComparable, vec![why.to_owned()]);
    }
    let matters = |c: &&FindingChange| {
        c.counts || c.before.into_iter().chain(c.after).any(|h| h.severity > Severity::Note)
    };
    let found: BTreeSet<&str> = order::set(changes.iter().filter(matters).map(|c| c.place.as_str()));
    let fell = traffic.fell(&found);
    let loses = traffic.loses_more();
    let grew = |c: &FindingChange| c.change == HowChanged::More && !c.counts;
    let mut doubt: Vec<String> = traffic.may_lose_more().into_iter().collect();
    if changes.iter().any(grew) {
        doubt.push("a finding claims more packets, as many as the traffic grew by".to_owned());
    }
    let is = |c: &FindingChange, one, other| c.counts && (c.change == one || c.change == other);
    let harm = !loses.is_empty() || changes.iter().any(|c| is(c, HowChanged::New, HowChanged::More));
    // One loss in place of another is no help if it is greater.
    let moot = |c: &FindingChange| traffic.whole_loses_more() && !beyond_packets(c);
    let help = changes.iter().any(|c| is(c, HowChanged::Less, HowChanged::Gone) && !moot(c));
    let (verdict, why) = match (fell.is_empty(), harm, help) {
        (false, true, _) => (SinceVerdict::Worse, [fell, loses].concat()),
        (false, false, _) => (SinceVerdict::NotComparable, fell),
        (true, true, true) => (SinceVerdict::Mixed, loses),
        (true, true, false) => (SinceVerdict::Worse, loses),
        (true, false, true) if !doubt.is_empty() => (SinceVerdict::Mixed, doubt),
        (true, false, true) => (SinceVerdict::Better, Vec::new()),
        (true, false, false) => (SinceVerdict::Same, Vec::new()),
    };
    (verdict, why)
}

/// True if an improvement is one of a harm that lost packets do not express.
fn beyond_packets(change: &FindingChange) -> bool {
    let impact = |harm: Option<Harm>| harm.map_or(0.0, |h| h.impact);
    change.before.is_some_and(|h| h.packets == 0) || impact(change.before) - impact(change.after) >= IMPACT
}

fn change(pair: Pair, windows: (f64, f64), traffic: &Traffic<'_>) -> FindingChange {
    let (change, counts) = match (pair.before, pair.after) {
        (None, Some(after)) => (HowChanged::New, is_harm(after, windows)),
        (Some(before), None) => (HowChanged::Gone, was_harm(before, windows)),
        (Some(before), Some(after)) => between(before, after, windows, traffic.moved(&pair.place)),
        (None, None) => (HowChanged::Same, false),
    };
    let Pair { cause, place, object, before, after } = pair;
    FindingChange { change, cause, place, object, before, after, counts }
}

/// True unless a new finding is a note that harms nothing.
fn is_harm(new: Harm, (before_s, now_s): (f64, f64)) -> bool {
    let by_chance = rates::greater((new.packets, now_s), (0, before_s)) >= ALPHA;
    new.severity > Severity::Note || new.impact > 0.0 || !by_chance
}

/// True if the end of a finding is an improvement.
fn was_harm(gone: Harm, (before_s, now_s): (f64, f64)) -> bool {
    let by_chance = rates::greater((gone.packets, before_s), (0, now_s)) >= ALPHA;
    let unmeasured = gone.packets == 0 && gone.severity > Severity::Note;
    unmeasured || gone.impact >= IMPACT || !by_chance
}

/// The change of a finding that both reports have, and whether it counts.
fn between(before: Harm, after: Harm, (before_s, now_s): (f64, f64), traffic: Moved) -> (HowChanged, bool) {
    let moved = (after.impact - before.impact).abs() >= IMPACT;
    // More by a tenth and beyond chance, in a traffic that grew by this factor.
    let more_packets = |grown: f64| {
        let (old, new) = ((before.packets, before_s), (after.packets, now_s * grown));
        after.packets_per_s >= (1.0 + TENTH) * grown * before.packets_per_s
            && rates::greater(new, old) < ALPHA
    };
    if moved && after.impact >= (1.0 + TENTH) * before.impact || after.severity > before.severity {
        return (HowChanged::More, true);
    }
    if more_packets(1.0) {
        return (HowChanged::More, more_packets(traffic.grown));
    }
    let (old, new) = ((before.packets, before_s), (after.packets, now_s));
    let fewer_packets = after.packets_per_s <= (1.0 - TENTH) * traffic.kept * before.packets_per_s
        && rates::greater(old, new) < ALPHA;
    let less_impact = moved && after.impact <= (1.0 - TENTH) * before.impact;
    let measured = [before, after].iter().any(|harm| harm.packets > 0 || harm.impact > 0.0);
    if fewer_packets || less_impact || !measured && after.severity < before.severity {
        return (HowChanged::Less, true);
    }
    (HowChanged::Same, false)
}

/// Packets per second in words.
pub(crate) fn per_second(rate: f64) -> String {
    if rate >= 10.0 { count(rate.round() as u64) } else { number(rate, if rate > 0.0 { 1 } else { 0 }) }
}
