//! Several subjects beside each other, by the requirements that each meets: what differs, and what breaks for whom.
//!
//! The subjects are gateways or NATs, the requirements those of standards. Verdicts are words, so that saved results of another
//! version of weir can be read.

mod render;

use schemars::JsonSchema;
use serde::Serialize;
use weir_text::order;

pub use render::{requirements_html, requirements_markdown, requirements_terminal};

/// Verdicts as documents have them, and as people read them; the worst first.
const VERDICTS: [(&str, &str); 6] = [
    ("fails", "fails"),
    ("partly", "partly"),
    ("not-sure", "not sure"),
    ("not-testable", "-"),
    ("meets", "meets"),
    ("described", "does"),
];

/// One gateway or NAT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// Its name.
    pub name: String,
    /// Its kind, in a few words.
    pub kind: String,
    /// Its settings, in one line.
    pub describes: String,
    /// Its verdicts.
    pub lines: Vec<Line>,
}

/// A requirement and the verdict of one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Stable name of the requirement.
    pub id: String,
    /// Standard, name and level, as `RFC 4787 REQ-1, MUST`.
    pub source: String,
    /// The requirement in a few words.
    pub asks: String,
    /// The users and applications that a failure hurts; may be empty.
    pub breaks: String,
    /// The verdict as documents have it, such as `not-testable`.
    pub verdict: String,
    /// The observation in one line.
    pub seen: String,
    /// The standard says MUST or MUST NOT.
    pub binding: bool,
    /// Files with the packets that it was judged by, and their numbers, as `udp-hairpin.pcapng 1-8`; empty if none were kept.
    pub packets: Vec<String>,
}

/// Subjects side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirements {
    /// A title.
    pub title: String,
    /// The circumstances, in one line.
    pub circumstances: String,
    /// The columns.
    pub subjects: Vec<Subject>,
}

/// A requirement with the verdict of each subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row<'a> {
    /// The requirement, as the first subject that has it gives it.
    pub line: &'a Line,
    /// One for each subject; `None` if it has no such row.
    pub cells: Vec<Option<&'a Line>>,
}

/// A requirement that some subjects do not meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Broken {
    /// Stable name of the requirement.
    pub id: String,
    /// Standard, name and level.
    pub source: String,
    /// The users and applications that a failure hurts.
    pub breaks: String,
    /// Subjects that fail.
    pub fails: Vec<String>,
    /// Subjects that meet it under some conditions only.
    pub partly: Vec<String>,
}

/// A requirement of MUST or MUST NOT that subjects do not meet, with the packets that show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof<'a> {
    /// Stable name of the requirement.
    pub id: &'a str,
    /// The verdict as documents have it.
    pub verdict: &'a str,
    /// The observation.
    pub seen: &'a str,
    /// The packets, in the folder of each subject.
    pub packets: &'a [String],
    /// Those of which this was seen, by those packets.
    pub subjects: Vec<&'a str>,
}

/// How a verdict changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// The requirement is met less than before.
    Worse,
    /// It is met more than before.
    Better,
    /// It can be seen now and could not before, or the other way round.
    Other,
}

impl Direction {
    /// From one verdict to another; `None` if they are the same.
    pub fn of(before: &str, after: &str) -> Option<Self> {
        let rank = |verdict: &str| ["fails", "partly", "meets"].iter().position(|known| *known == verdict);
        if before == after {
            return None;
        }
        Some(match (rank(before), rank(after)) {
            (Some(before), Some(after)) if after < before => Direction::Worse,
            (Some(_), Some(_)) => Direction::Better,
            _ => Direction::Other,
        })
    }
}

impl Row<'_> {
    /// Some subjects have other verdicts than others.
    pub fn differs(&self) -> bool {
        let verdict = |cell: &Option<&Line>| cell.map(|line| line.verdict.clone());
        self.cells.iter().any(|cell| verdict(cell) != verdict(&self.cells[0]))
    }

    /// Place of its worst verdict: less is worse.
    fn worst(&self) -> usize {
        let known = self.cells.iter().flatten();
        known.map(|line| place(&line.verdict)).min().unwrap_or(VERDICTS.len())
    }
}

/// Place of a verdict among all, the worst first.
fn place(verdict: &str) -> usize {
    VERDICTS.iter().position(|(known, _)| *known == verdict).unwrap_or(VERDICTS.len())
}

/// A verdict for people.
pub fn verdict_word(verdict: &str) -> &str {
    VERDICTS.iter().find(|(known, _)| *known == verdict).map_or(verdict, |(_, word)| word)
}

impl Requirements {
    /// All requirements: those in which subjects differ first, and in both parts the worst first.
    pub fn rows(&self) -> Vec<Row<'_>> {
        let mut ids: Vec<&str> = Vec::new();
        for line in self.subjects.iter().flat_map(|subject| &subject.lines) {
            if !ids.contains(&line.id.as_str()) {
                ids.push(&line.id);
            }
        }
        let mut rows: Vec<Row<'_>> = ids.into_iter().filter_map(|id| self.row(id)).collect();
        // Stable: rows of one rank keep the order of the standards.
        order::by_key(&mut rows, |row| (!row.differs(), row.worst()));
        rows
    }

    fn row(&self, id: &str) -> Option<Row<'_>> {
        let find = |subject: &'_ Subject| subject.lines.iter().position(|line| line.id == id);
        let cells: Vec<Option<&Line>> = self.subjects.iter().map(|s| find(s).map(|n| &s.lines[n])).collect();
        let line = cells.iter().flatten().next()?;
        Some(Row { line, cells: cells.clone() })
    }

    /// The requirements that are not met: those that most subjects fail first.
    pub fn broken(&self) -> Vec<Broken> {
        let mut all = Vec::new();
        for row in self.rows() {
            let with = |verdict: &str| -> Vec<String> {
                let pairs = self.subjects.iter().zip(&row.cells);
                let fitting = pairs.filter(|(_, cell)| cell.is_some_and(|line| line.verdict == verdict));
                fitting.map(|(subject, _)| subject.name.clone()).collect()
            };
            let (fails, partly) = (with("fails"), with("partly"));
            if !fails.is_empty() || !partly.is_empty() {
                let Line { id, source, breaks, .. } = row.line.clone();
                all.push(Broken { id, source, breaks, fails, partly });
            }
        }
        order::by_key(&mut all, |broken| std::cmp::Reverse((broken.fails.len(), broken.partly.len())));
        all
    }

    /// Every claim that a MUST is not met, with its packets; empty if no packets were kept. Requirements are in the order of
    /// [`Requirements::broken`].
    pub fn proofs(&self) -> Vec<Proof<'_>> {
        let mut all: Vec<Proof<'_>> = Vec::new();
        for broken in self.broken() {
            for subject in &self.subjects {
                let unmet = |line: &&Line| {
                    line.id == broken.id
                        && line.binding
                        && ["fails", "partly"].contains(&line.verdict.as_str())
                };
                let Some(line) = subject.lines.iter().find(unmet).filter(|line| !line.packets.is_empty())
                else {
                    continue;
                };
                let Line { id, verdict, seen, packets, .. } = line;
                let same = |p: &&mut Proof<'_>| {
                    (p.id, p.verdict, p.seen) == (id, verdict, seen) && p.packets == packets.as_slice()
                };
                match all.iter_mut().find(same) {
                    Some(known) => known.subjects.push(&subject.name),
                    None => all.push(Proof { id, verdict, seen, packets, subjects: vec![&subject.name] }),
                }
            }
        }
        all
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn subject(name: &str, verdicts: &[(&str, &str)]) -> Subject {
        let line = |(id, verdict): &(&str, &str)| Line {
            id: (*id).to_owned(),
            source: format!("RFC 1 {id}, MUST"),
            asks: format!("asks of {id}"),
            breaks: format!("breaks of {id}"),
            verdict: (*verdict).to_owned(),
            seen: format!("{name} {id} {verdict}"),
            binding: *id != "r4",
            packets: vec![format!("{id}.pcapng 1-8")],
        };
        Subject {
            name: name.to_owned(),
            kind: "symmetric".to_owned(),
            describes: "some <rules>".to_owned(),
            lines: verdicts.iter().map(line).collect(),
        }
    }

    pub(crate) fn two() -> Requirements {
        Requirements {
            title: "two".to_owned(),
            circumstances: "Linux 6".to_owned(),
            subjects: vec![
                subject("a", &[("r1", "meets"), ("r2", "fails"), ("r3", "meets"), ("r4", "partly")]),
                subject("b", &[("r1", "meets"), ("r2", "fails"), ("r3", "fails"), ("r5", "described")]),
            ],
        }
    }

    #[test]
    fn rows_that_differ_come_first_and_of_those_the_worst() {
        let two = two();
        let order: Vec<&str> = two.rows().iter().map(|row| row.line.id.as_str()).collect();
        assert_eq!(order, ["r3", "r4", "r5", "r2", "r1"]);
        assert_eq!(two.rows()[1].cells[1], None);
    }

    #[test]
    fn what_most_fail_comes_first() {
        let broken = two().broken();
        let short: Vec<(&str, usize, usize)> =
            broken.iter().map(|b| (b.id.as_str(), b.fails.len(), b.partly.len())).collect();
        assert_eq!(short, [("r2", 2, 0), ("r3", 1, 0), ("r4", 0, 1)]);
        assert_eq!(broken[1].fails, ["b"]);
    }

    #[test]
    fn every_unmet_must_has_its_packets_and_equal_ones_share_a_line() {
        let mut two = two();
        let short = |two: &Requirements| -> Vec<(String, usize)> {
            two.proofs().iter().map(|p| (p.id.to_owned(), p.subjects.len())).collect()
        };
        // r4 is no MUST, and what was seen of r2 differs.
        assert_eq!(short(&two), [("r2".to_owned(), 1), ("r2".to_owned(), 1), ("r3".to_owned(), 1)]);
        for subject in &mut two.subjects {
            subject.lines[1].seen = "the same".to_owned();
        }
        assert_eq!(short(&two), [("r2".to_owned(), 2), ("r3".to_owned(), 1)]);
        assert_eq!(two.proofs()[0].packets, ["r2.pcapng 1-8"]);
        two.subjects[1].lines[2].packets.clear();
        assert_eq!(short(&two), [("r2".to_owned(), 2)]);
    }

    #[test]
    fn a_verdict_gets_better_worse_or_visible() {
        for (before, after, direction) in [
            ("meets", "fails", Some(Direction::Worse)),
            ("partly", "fails", Some(Direction::Worse)),
            ("fails", "partly", Some(Direction::Better)),
            ("not-testable", "fails", Some(Direction::Other)),
            ("meets", "not-sure", Some(Direction::Other)),
            ("fails", "fails", None),
        ] {
            assert_eq!(Direction::of(before, after), direction, "{before} {after}");
        }
    }
}
