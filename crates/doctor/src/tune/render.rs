//! Plans and change sets as pages for people.

use std::fmt::Write as _;

use weir_guard::{Change, ChangeSet, Outcome, Phase, Status, Step, StepNow, StepState, When};

use super::action::Action;
use super::display;
use super::metric::Counter;
use super::plan::{Plan, Row};
use super::watched::{NOTHING, OF_ACTIONS};
use crate::page::wrap;

/// Three digits and a unit.
fn bytes(n: i64) -> String {
    let (sign, n) = (if n < 0 { "-" } else { "" }, n.unsigned_abs());
    for (unit, size) in [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if n >= size {
            let value = n as f64 / size as f64;
            return if value < 100.0 {
                format!("{sign}{value:.1} {unit}")
            } else {
                format!("{sign}{value:.0} {unit}")
            };
        }
    }
    format!("{sign}{n} bytes")
}

/// A value on one line.
fn value(text: &str) -> String {
    display(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Words behind a label, broken into lines of so many columns; those after the first begin below the words.
fn said(out: &mut String, columns: usize, label: &str, words: &str) {
    for (n, line) in wrap(words, columns.saturating_sub(label.len())).into_iter().enumerate() {
        let pad = " ".repeat(label.len());
        let _ = writeln!(out, "{}{line}", if n == 0 { label } else { &pad });
    }
}

/// A plan, in lines of so many columns but for values and commands, which are to be copied.
pub fn plan(plan: &Plan, columns: usize) -> String {
    let mut out = String::new();
    let from = plan.from.iter().map(|f| display(f)).collect::<Vec<_>>().join(", ");
    said(
        &mut out,
        columns,
        &format!("change set {}: ", plan.id),
        &format!("{from}; {}", display(&plan.place)),
    );
    out.push('\n');
    if plan.rows.is_empty() && plan.actions.is_empty() {
        out.push_str("nothing to change\n\n");
    }
    for row in &plan.rows {
        setting(&mut out, row, columns);
    }
    for one in &plan.actions {
        action(&mut out, one, columns);
    }
    if !plan.is_empty() {
        let _ = writeln!(
            out,
            "memory: all of it together {} more at most, of a budget of {}",
            bytes(plan.memory_bytes.max(0)),
            bytes(i64::try_from(plan.budget_bytes).unwrap_or(i64::MAX))
        );
        if !plan.files.is_empty() {
            let _ = writeln!(out, "confirm writes {}", plan.files.join(" and "));
        }
    }
    for note in &plan.notes {
        said(&mut out, columns, "note: ", &display(note));
    }
    out
}

/// What takes a change back while it is on trial.
fn watch(counters: &[Counter]) -> String {
    let words: Vec<&str> = counters.iter().map(|c| c.words()).collect();
    if words.is_empty() { NOTHING.to_owned() } else { words.join("; ") }
}

fn setting(out: &mut String, row: &Row, columns: usize) {
    let _ = writeln!(out, "{}  {} -> {}", display(&row.name), value(&row.now), value(&row.proposed));
    for why in &row.why {
        said(out, columns, "    why   ", &display(why));
    }
    if row.memory_bytes != 0 {
        let sign = if row.memory_bytes > 0 { "+" } else { "" };
        let _ = writeln!(out, "    cost  {sign}{} at most", bytes(row.memory_bytes));
    }
    said(out, columns, "    risk  ", &display(&row.risk));
    let _ = writeln!(out, "    undo  {}", display(&row.undo));
    said(out, columns, "    watch ", &watch(&row.watched));
    if let Some(other) = &row.overridden_by {
        said(out, columns, "    boot  ", &format!("{}, after ours: change it there", display(other)));
    }
    if let Some(held) = &row.held {
        said(out, columns, "    held  ", &format!("apply leaves it out: {}", display(held)));
    }
    out.push('\n');
}

/// Items that are shown each in a line; of more there is a number.
const MOST_ITEMS: usize = 12;

fn action(out: &mut String, action: &Action, columns: usize) {
    let head = format!("{}  ", display(&action.name));
    said(out, columns, &head, &format!("{} -> {}", display(&action.now), display(&action.proposed)));
    for item in action.items.iter().take(MOST_ITEMS) {
        said(out, columns, "    port  ", &display(item));
    }
    if let Some(more) = action.items.len().checked_sub(MOST_ITEMS).filter(|more| *more > 0) {
        let _ = writeln!(out, "    and {more} more (--json has all)");
    }
    for why in &action.why {
        said(out, columns, "    why   ", &display(why));
    }
    if action.memory_bytes != 0 {
        let _ = writeln!(out, "    cost  +{}", bytes(action.memory_bytes));
    }
    said(out, columns, "    risk  ", &display(&action.risk));
    let _ = writeln!(out, "    undo  {}", display(&action.undo));
    said(out, columns, "    watch ", &watch(&OF_ACTIONS));
    if let Some(held) = &action.held {
        said(out, columns, "    held  ", &format!("apply leaves it out: {}", display(held)));
    }
    out.push('\n');
}

fn shown(value: Option<&str>, change: &Change) -> String {
    match (value, change) {
        (None, _) => "absent".into(),
        (Some(text), Change::TextFile { .. }) => format!("{} lines", text.lines().count()),
        (Some(text), _) => self::value(text),
    }
}

fn change_line(step: &Step, state: &StepState) -> String {
    // Of what programs change there are names of states only, which say nothing to a person.
    if matches!(step.change, Change::Commands { .. }) {
        return display(&step.change.target());
    }
    let made = match state {
        StepState::Applied { made } => made.as_deref(),
        _ => step.change.wanted(),
    };
    format!(
        "{}  {} -> {}",
        display(&step.change.target()),
        shown(step.old.as_deref(), &step.change),
        shown(made, &step.change)
    )
}

fn phase(set: &ChangeSet) -> String {
    match &set.phase {
        Phase::Applying => "is being applied".into(),
        Phase::Waiting { .. } => "is applied on trial, and waits to be confirmed".into(),
        Phase::Confirmed { .. } => "is confirmed".into(),
        Phase::Reverting { why } => format!("could not be taken back as a whole ({})", display(why)),
        Phase::Reverted { why, .. } => format!("was taken back: {}", display(why)),
    }
}

/// A change set with what became of each change.
pub fn set(set: &ChangeSet) -> String {
    let mut out = format!("change set {} ({}) {}\n", set.begin.id, display(&set.begin.title), phase(set));
    for (step, state) in set.begin.steps.iter().zip(&set.states) {
        // A file that would only have been written by `confirm` is of no interest where it was not.
        let unborn = step.when == When::Confirm
            && matches!(state, StepState::Planned | StepState::Reverted { outcome: Outcome::Untouched });
        if unborn {
            continue;
        }
        let became = match state {
            StepState::Planned => "not made yet".to_owned(),
            StepState::Writing => "was being made".to_owned(),
            StepState::Applied { .. } => "made".to_owned(),
            StepState::Reverted { outcome: Outcome::LeftToOthers { .. } }
                if matches!(step.change, Change::Commands { .. }) =>
            {
                "left alone: somebody else changed it".to_owned()
            }
            StepState::Reverted { outcome } => display(&outcome.words()),
            StepState::Stuck { why, .. } => format!("could not be put back: {}", display(why)),
        };
        let _ = writeln!(out, "  {}: {became}", change_line(step, state));
    }
    out
}

/// The state of the last change set.
pub fn status(status: &Status) -> String {
    let set = &status.set;
    let mut out = format!("change set {} ({}) {}\n", set.begin.id, display(&set.begin.title), phase(set));
    if status.busy {
        out.push_str("another weir is at work on it right now\n");
    }
    if let Some(left) = status.remaining_s {
        if status.guarded {
            let _ =
                writeln!(out, "its guard takes it back in {left} s, unless: weir {} confirm", set.begin.by);
        } else {
            let _ = writeln!(
                out,
                "NOBODY GUARDS IT: its guard process is gone. It is taken back by the first weir {0} command in {left} s or \
                 later; weir {0} confirm or weir {0} rollback settles it now",
                set.begin.by
            );
        }
        for watch in &set.begin.watches {
            let _ =
                writeln!(out, "  watched: {} (taken back above {:.0})", display(&watch.name), watch.limit);
        }
    }
    if status.rebooted && set.confirmed_unix_s.is_some() {
        out.push_str("the machine was rebooted since\n");
    }
    for ((step, state), now) in set.begin.steps.iter().zip(&set.states).zip(&status.now) {
        let unwritten = step.when == When::Confirm && !matches!(state, StepState::Applied { .. });
        if unwritten && !matches!(set.phase, Phase::Confirmed { .. }) {
            continue;
        }
        let is = match (now, state) {
            (_, StepState::Planned | StepState::Writing) if unwritten => {
                "not written yet: weir tune confirm does it".to_owned()
            }
            (StepNow::Ours, _) => "as weir made it".into(),
            (StepNow::Before, _) => "as before".into(),
            (StepNow::Others { found }, _) if matches!(step.change, Change::TextFile { .. }) => {
                format!("somebody else's, {} lines", found.lines().count())
            }
            (StepNow::Others { .. }, _) if matches!(step.change, Change::Commands { .. }) => {
                "somebody else changed it".into()
            }
            (StepNow::Others { found }, _) => format!("somebody else's: {}", value(found)),
            (StepNow::Absent, _) => "not there".into(),
            (StepNow::Unknown { why }, _) => format!("cannot be read: {}", display(why)),
        };
        let _ = writeln!(out, "  {}: {is}", change_line(step, state));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_three_digits() {
        for (n, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1536, "1.5 KiB"),
            (-(100 << 20), "-100 MiB"),
            (5 << 30, "5.0 GiB"),
        ] {
            assert_eq!(bytes(n), text);
        }
    }

    #[test]
    fn nothing_from_outside_reaches_the_terminal_raw() {
        assert_eq!(value("4096\t131072\n\u{1b}[31m"), "4096 131072 \u{fffd}[31m");
    }
}
