//! The comparison with an earlier report, the first section of the page.

use weir_text::page::{Page, Tone};
use weir_text::time::duration;
use weir_text::units::percent;

use crate::comparison::{FindingChange, Harm, HowChanged, Since, SinceVerdict};
use crate::finding::Severity;
use crate::since::per_second;

/// Writes the section.
pub(super) fn show(page: &mut Page, since: &Since) {
    let verdict = match since.verdict {
        SinceVerdict::Better => "better",
        SinceVerdict::Worse => "worse",
        SinceVerdict::Mixed => "partly worse, partly better",
        SinceVerdict::Same => "the same",
        SinceVerdict::NotComparable => "not comparable",
    };
    let time = duration(since.earlier_s.unsigned_abs() as f64);
    let order = if since.earlier_s < 0 { "later" } else { "earlier" };
    page.section(&format!("Since {} ({time} {order}): {verdict}.", since.file));
    for why in &since.why {
        let tone = if since.verdict == SinceVerdict::NotComparable { Tone::Warning } else { Tone::Bad };
        page.line(&sentence(why), 0, Some(tone));
    }
    for change in since.changes.iter().filter(|c| c.change != HowChanged::Same) {
        let tone = match change.change {
            HowChanged::New | HowChanged::More if change.counts => Some(Tone::Bad),
            _ if change.counts => None,
            _ => Some(Tone::Faint),
        };
        page.line(&line(change), 1, tone);
    }
    let (lost, handled) = (since.lost_ratio, since.handled_per_s);
    let words = format!(
        "lost: {} -> {} of the packets; delivered and forwarded: {} -> {} packets/s",
        percent(lost.before),
        percent(lost.after),
        per_second(handled.before),
        per_second(handled.after)
    );
    page.line(&words, 1, Some(Tone::Faint));
}

fn sentence(why: &str) -> String {
    let mut letters = why.chars();
    let first = letters.next().map(char::to_uppercase);
    first.into_iter().flatten().chain(letters).chain(['.']).collect()
}

fn line(change: &FindingChange) -> String {
    let word = match change.change {
        HowChanged::New => "new",
        HowChanged::More => "more",
        HowChanged::Less => "less",
        HowChanged::Gone => "gone",
        HowChanged::Same => "same",
    };
    let object = if change.object.is_empty() { String::new() } else { format!(" ({})", change.object) };
    let harm = match (change.before, change.after) {
        (Some(before), Some(after)) => both(before, after),
        (Some(harm), None) => format!(", {}", one(harm)),
        (None, Some(harm)) => format!(", {}", one(harm)),
        (None, None) => String::new(),
    };
    let chance = match (change.counts, change.change) {
        (false, HowChanged::Gone) => "; too little to count as better",
        (false, HowChanged::More) => "; no more than the traffic grew by",
        (false, _) => "; harmless",
        _ => "",
    };
    format!("{word}: {} in {}{object}{harm}{chance}", change.cause, change.place)
}

/// The measure of the harm; the severity where it is the only one.
fn one(harm: Harm) -> String {
    if harm.packets > 0 {
        format!("{} packets/s", per_second(harm.packets_per_s))
    } else if harm.impact > 0.0 {
        format!("{} of its traffic", percent(harm.impact))
    } else {
        severity(harm.severity).to_owned()
    }
}

fn both(before: Harm, after: Harm) -> String {
    let mut words = Vec::new();
    if before.packets > 0 || after.packets > 0 {
        let (old, new) = (per_second(before.packets_per_s), per_second(after.packets_per_s));
        words.push(format!("{old} -> {new} packets/s"));
    }
    if before.impact > 0.0 || after.impact > 0.0 {
        words.push(format!("{} -> {} of its traffic", percent(before.impact), percent(after.impact)));
    }
    if before.severity != after.severity || words.is_empty() {
        words.push(format!("{} -> {}", severity(before.severity), severity(after.severity)));
    }
    format!(", {}", words.join(", "))
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
}
