//! `weir nat compare`: two saved results beside each other.

use schemars::JsonSchema;
use serde::Serialize;
use weir_report::requirements::{
    Direction, Requirements, Subject, requirements_html, requirements_markdown, requirements_terminal,
    verdict_word,
};
use weir_text::layout::Terminal;
use weir_text::order;
use weir_text::page::{Page, Tone};

use super::saved::Saved;
use crate::args::nat::NatCompareArgs;
use crate::documents::{Document, Kind, print_json};
use crate::exit::{CommandResult, Failure, NOT_MET};
use crate::output::{Color, print, printable};

/// `weir nat compare --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct NatCompare {
    /// When the earlier result was made; RFC 3339, UTC.
    before: String,
    /// When the later one was made.
    after: String,
    /// Names of the pairs that were compared, each as before and after.
    pairs: Vec<[String; 2]>,
    /// Rows whose verdicts differ: those that became worse first.
    changes: Vec<Changed>,
    /// Number of rows of these pairs with the same verdict.
    same: usize,
    /// Gateways of the earlier result without a partner.
    only_before: Vec<String>,
    /// Gateways of the later result without a partner.
    only_after: Vec<String>,
}

/// A row whose verdict differs.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Changed {
    /// The gateway, in the later result.
    gateway: String,
    /// The row.
    id: String,
    /// RFC, requirement and level.
    source: String,
    /// The users and applications that a failure hurts.
    breaks: String,
    /// Verdict before; null if there was no such row.
    before: Option<String>,
    /// Verdict after; null if there is no such row.
    after: Option<String>,
    /// Better, worse, or neither.
    direction: Direction,
    /// The observation before.
    seen_before: String,
    /// The observation after.
    seen_after: String,
}

impl Document for NatCompare {
    const KIND: Kind = Kind::NatCompare;
}

pub(crate) fn run(args: &NatCompareArgs, color: Color) -> CommandResult {
    let (before, after) = (Saved::read(&args.before)?, Saved::read(&args.after)?);
    let (left, right) = (before.requirements(), after.requirements());
    let comparison = compare(&before.time, &left, &after.time, &right)?;
    let beside = beside(&comparison, &left, &right);
    if args.json {
        print_json(&comparison)?;
    } else if args.markdown {
        print(&requirements_markdown(&beside))?;
    } else if args.html {
        print(&requirements_html(&beside))?;
    } else {
        let terminal = color.terminal();
        print(&printable(
            &(changes(&comparison, terminal) + "\n" + &requirements_terminal(&beside, terminal)),
        ))?;
    }
    let worse = comparison.changes.iter().any(|change| change.direction == Direction::Worse);
    if args.fail_on_worse && worse { Err(Failure::Silent(NOT_MET)) } else { Ok(()) }
}

/// Gateways of one name, or the only ones of each.
fn pairs<'a>(left: &'a Requirements, right: &'a Requirements) -> Vec<(&'a Subject, &'a Subject)> {
    if let ([one], [other]) = (&left.subjects[..], &right.subjects[..]) {
        return vec![(one, other)];
    }
    let partner = |subject: &Subject| right.subjects.iter().find(|other| other.name == subject.name);
    left.subjects.iter().filter_map(|subject| partner(subject).map(|other| (subject, other))).collect()
}

fn compare(
    before: &str,
    left: &Requirements,
    after: &str,
    right: &Requirements,
) -> Result<NatCompare, Failure> {
    let pairs = pairs(left, right);
    if pairs.is_empty() {
        return Err(Failure::usage("the results have no gateway in common, and not one each"));
    }
    let (mut changes, mut same) = (Vec::new(), 0);
    for (one, other) in &pairs {
        let table = Requirements {
            title: String::new(),
            circumstances: String::new(),
            subjects: vec![(*one).clone(), (*other).clone()],
        };
        for row in table.rows() {
            let [before, after] = [row.cells[0], row.cells[1]];
            let verdict =
                |cell: Option<&weir_report::requirements::Line>| cell.map(|line| line.verdict.clone());
            let seen = |cell: Option<&weir_report::requirements::Line>| {
                cell.map_or_else(String::new, |line| line.seen.clone())
            };
            let words = [verdict(before), verdict(after)];
            let [old, new] = words.each_ref().map(|word| word.as_deref().unwrap_or_default());
            let Some(direction) = Direction::of(old, new) else {
                same += 1;
                continue;
            };
            changes.push(Changed {
                gateway: other.name.clone(),
                id: row.line.id.clone(),
                source: row.line.source.clone(),
                breaks: row.line.breaks.clone(),
                before: verdict(before),
                after: verdict(after),
                direction,
                seen_before: seen(before),
                seen_after: seen(after),
            });
        }
    }
    order::by_key(&mut changes, |change| change.direction);
    let alone = |all: &Requirements, taken: &dyn Fn(&Subject) -> bool| -> Vec<String> {
        all.subjects.iter().filter(|s| !taken(s)).map(|s| s.name.clone()).collect()
    };
    Ok(NatCompare {
        before: before.to_owned(),
        after: after.to_owned(),
        changes,
        same,
        only_before: alone(left, &|s| pairs.iter().any(|(one, _)| std::ptr::eq(*one, s))),
        only_after: alone(right, &|s| pairs.iter().any(|(_, other)| std::ptr::eq(*other, s))),
        pairs: pairs.iter().map(|(one, other)| [one.name.clone(), other.name.clone()]).collect(),
    })
}

/// The pairs as columns.
fn beside(comparison: &NatCompare, left: &Requirements, right: &Requirements) -> Requirements {
    let columns = pairs(left, right).into_iter().flat_map(|(one, other)| {
        [(one, "before"), (other, "after")]
            .map(|(subject, when)| Subject { name: format!("{}, {when}", subject.name), ..subject.clone() })
    });
    let directions = |wanted| comparison.changes.iter().filter(|c| c.direction == wanted).count();
    Requirements {
        title: format!(
            "NAT behaviour compared: {} worse, {} better, {} other changes",
            directions(Direction::Worse),
            directions(Direction::Better),
            directions(Direction::Other)
        ),
        circumstances: format!("before: {}; after: {}", left.circumstances, right.circumstances),
        subjects: columns.collect(),
    }
}

/// Each change in one line, the worse first.
fn changes(comparison: &NatCompare, terminal: Terminal) -> String {
    let mut page = Page::new(terminal);
    page.section(if comparison.changes.is_empty() { "no verdict changed" } else { "changes" });
    for change in &comparison.changes {
        let (word, tone) = match change.direction {
            Direction::Worse => ("worse", Some(Tone::Bad)),
            Direction::Better => ("better", None),
            Direction::Other => ("other", Some(Tone::Faint)),
        };
        let verdict = |v: &Option<String>| v.as_deref().map_or("no row", verdict_word).to_owned();
        let (before, after) = (verdict(&change.before), verdict(&change.after));
        let line = format!("{word}: {} {}: {before}, now {after}", change.gateway, change.id);
        page.line(&line, 2, tone);
        page.line(&format!("{}; now {}", change.seen_before, change.seen_after), 4, None);
    }
    for (names, which) in [(&comparison.only_before, "earlier"), (&comparison.only_after, "later")] {
        if !names.is_empty() {
            page.line(&format!("only in the {which} result: {}", names.join(", ")), 2, Some(Tone::Faint));
        }
    }
    page.finish()
}
