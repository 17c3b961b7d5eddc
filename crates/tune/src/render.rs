//! Plans and change sets as pages for people.

use std::fmt::Write as _;

use weir_guard::{Change, ChangeSet, Phase, RevertOutcome, Status, Step, StepNow, StepState, When};
use weir_text::escape::line;
use weir_text::layout::paragraph;
use weir_text::units::bytes;

use super::action::Action;
use super::beyond::Advice;
use super::metric::Counter;
use super::planned::{Row, TunePlan};
use super::watched::{NOTHING, OF_ACTIONS};

/// A value on one line.
fn value(text: &str) -> String {
    line(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Words behind a label, broken into lines of so many columns; those after the first begin below the words.
fn said(out: &mut String, columns: usize, label: &str, words: &str) {
    out.push_str(&paragraph(label, label.len(), words, columns));
}

/// A plan, in lines of so many columns but for values and commands, which are to be copied.
pub fn plan(plan: &TunePlan, columns: usize) -> String {
    let mut out = String::new();
    let from = plan.from.iter().map(|f| line(f)).collect::<Vec<_>>().join(", ");
    said(&mut out, columns, &format!("change set {}: ", plan.id), &format!("{from}; {}", line(&plan.place)));
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
    for one in &plan.advice {
        advice(&mut out, one, columns);
    }
    for one in &plan.beyond {
        let words = format!("{}: {}; instead: {}", one.rows.join(", "), one.why, one.instead);
        said(&mut out, columns, "out of reach: ", &line(&words));
    }
    if !plan.is_empty() {
        let _ = writeln!(
            out,
            "memory: all of it together {} more at most, of a budget of {}",
            bytes(plan.memory_bytes.max(0).unsigned_abs()),
            bytes(plan.budget_bytes)
        );
        if !plan.files.is_empty() {
            let _ = writeln!(out, "confirm writes {}", plan.files.join(" and "));
        }
    }
    for note in &plan.notes {
        said(&mut out, columns, "note: ", &line(note));
    }
    out
}

/// Returns the counters that roll a change back during the trial, in words.
fn watch(counters: &[Counter]) -> String {
    let words: Vec<&str> = counters.iter().map(|c| c.words()).collect();
    if words.is_empty() { NOTHING.to_owned() } else { words.join("; ") }
}

fn setting(out: &mut String, row: &Row, columns: usize) {
    let _ = writeln!(out, "{}  {} -> {}", line(&row.name), value(&row.now), value(&row.proposed));
    for why in &row.why {
        said(out, columns, "    why   ", &line(why));
    }
    if row.memory_bytes != 0 {
        let sign = if row.memory_bytes > 0 { "+" } else { "-" };
        let _ = writeln!(out, "    cost  {sign}{} at most", bytes(row.memory_bytes.unsigned_abs()));
    }
    said(out, columns, "    risk  ", &line(&row.risk));
    let _ = writeln!(out, "    undo  {}", line(&row.undo));
    said(out, columns, "    watch ", &watch(&row.watched));
    if let Some(other) = &row.overridden_by {
        said(out, columns, "    boot  ", &format!("{}, after ours: change it there", line(other)));
    }
    if let Some(held) = &row.held {
        said(out, columns, "    held  ", &format!("apply leaves it out: {}", line(held)));
    }
    out.push('\n');
}

/// Items that are shown each in a line; of more there is a number.
const MOST_ITEMS: usize = 12;

fn action(out: &mut String, action: &Action, columns: usize) {
    let head = format!("{}  ", line(&action.name));
    said(out, columns, &head, &format!("{} -> {}", line(&action.now), line(&action.proposed)));
    for item in action.items.iter().take(MOST_ITEMS) {
        said(out, columns, "    port  ", &line(item));
    }
    if let Some(more) = action.items.len().checked_sub(MOST_ITEMS).filter(|more| *more > 0) {
        let _ = writeln!(out, "    and {more} more (--json has all)");
    }
    for why in &action.why {
        said(out, columns, "    why   ", &line(why));
    }
    if action.memory_bytes != 0 {
        let _ = writeln!(out, "    cost  +{}", bytes(action.memory_bytes.unsigned_abs()));
    }
    said(out, columns, "    risk  ", &line(&action.risk));
    let _ = writeln!(out, "    undo  {}", line(&action.undo));
    said(out, columns, "    watch ", &watch(&OF_ACTIONS));
    if let Some(held) = &action.held {
        said(out, columns, "    held  ", &format!("apply leaves it out: {}", line(held)));
    }
    out.push('\n');
}

/// A change that the owner of a rule makes. The command is not broken into lines: it is to be copied.
fn advice(out: &mut String, advice: &Advice, columns: usize) {
    said(out, columns, "not changed  ", &line(&advice.rule));
    said(out, columns, "    why   ", &line(&advice.why));
    said(out, columns, "    price ", &line(&advice.price));
    match &advice.command {
        Some(command) => {
            let _ = writeln!(out, "    do    {}", line(command));
        }
        None => said(out, columns, "    do    ", "change it in the program that made it"),
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
    // A change made by programs has only names of states, which say nothing to a person.
    if matches!(step.change, Change::Commands { .. }) {
        return line(&step.change.target());
    }
    let made = match state {
        StepState::Applied { made } => made.as_deref(),
        _ => step.change.wanted(),
    };
    format!(
        "{}  {} -> {}",
        line(&step.change.target()),
        shown(step.old.as_deref(), &step.change),
        shown(made, &step.change)
    )
}

fn phase(set: &ChangeSet) -> String {
    match &set.phase {
        Phase::Applying => "is being applied".into(),
        Phase::Waiting { .. } => "is applied on trial, and waits to be confirmed".into(),
        Phase::Confirmed { .. } => "is confirmed".into(),
        Phase::Reverting { why } => format!("could not be rolled back as a whole ({})", line(why)),
        Phase::Reverted { why, .. } => format!("was rolled back: {}", line(why)),
    }
}

/// A change set with what became of each change.
pub fn set(set: &ChangeSet) -> String {
    let mut out = format!("change set {} ({}) {}\n", set.begin.id, line(&set.begin.title), phase(set));
    for (step, state) in set.begin.steps.iter().zip(&set.states) {
        // A file that would only have been written by `confirm` is of no interest where it was not.
        let unborn = step.when == When::Confirm
            && matches!(
                state,
                StepState::Planned | StepState::Reverted { outcome: RevertOutcome::Untouched }
            );
        if unborn {
            continue;
        }
        let became = match state {
            StepState::Planned => "not made yet".to_owned(),
            StepState::Writing => "was being made".to_owned(),
            StepState::Applied { .. } => "made".to_owned(),
            StepState::Undoing { .. } => "is being rolled back".to_owned(),
            StepState::Reverted { outcome: RevertOutcome::LeftToOthers { .. } }
                if matches!(step.change, Change::Commands { .. }) =>
            {
                "left alone: another program changed it".to_owned()
            }
            StepState::Reverted { outcome } => line(&outcome.words()),
            StepState::Stuck { why, .. } => format!("could not be restored: {}", line(why)),
        };
        let _ = writeln!(out, "  {}: {became}", change_line(step, state));
    }
    out
}

/// The state of the last change set.
pub fn status(status: &Status) -> String {
    let set = &status.set;
    let mut out = format!("change set {} ({}) {}\n", set.begin.id, line(&set.begin.title), phase(set));
    if status.busy {
        out.push_str("another weir is at work on it right now\n");
    }
    if let Some(trial) = status.trial() {
        let _ = writeln!(out, "{trial}");
        for watch in &set.begin.watches {
            let _ = writeln!(out, "  watched: {} (rolled back above {:.0})", line(&watch.name), watch.limit);
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
                format!("changed by another program, {} lines", found.lines().count())
            }
            (StepNow::Others { .. }, _) if matches!(step.change, Change::Commands { .. }) => {
                "another program changed it".into()
            }
            (StepNow::Others { found }, _) => format!("changed by another program: {}", value(found)),
            (StepNow::Absent, _) => "not there".into(),
            (StepNow::Unknown { why }, _) => format!("cannot be read: {}", line(why)),
        };
        let _ = writeln!(out, "  {}: {is}", change_line(step, state));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_reaches_the_terminal_raw() {
        assert_eq!(value("4096\t131072\n\u{1b}[31m"), "4096 131072");
    }
}
