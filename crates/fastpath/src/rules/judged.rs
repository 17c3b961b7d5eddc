//! The effect of one rule on packets that are carried.

use super::ends::{Ends, Field, Values};

/// A noun for a counter.
pub(super) const COUNTER: &str = "its counter";

/// Which of the packets of a flow match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum When {
    Never,
    Always,
    /// All packets of a flow, or none.
    Constant,
    /// Some packets of a flow; nouns for what it depends on.
    Varies(Vec<String>),
}

/// The verdict of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RuleVerdict {
    Drop,
    Accept,
    Return,
    Jump(String),
    Goto(String),
    /// A program decides.
    Queue,
    /// It cannot be read; a noun for it.
    Unreadable(String),
}

/// An action of a rule, apart from its verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Act {
    /// Something counts or remembers the packet; a noun for it.
    Records(String),
    /// It changes the packet or its treatment, alike for all packets that match. An entry holds the result.
    Alters,
    /// Likewise, of the packet's mark.
    Marks,
    /// It changes each packet in another way; a sentence says so.
    Rewrites(String),
}

/// A rule, judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Judged {
    pub(super) when: When,
    pub(super) acts: Vec<Act>,
    /// One that is certain, or those that a map may give.
    pub(super) verdicts: Vec<RuleVerdict>,
    /// A map may give another of the verdicts, or none.
    pub(super) perhaps: bool,
    /// The packets that come to the first condition which keeps a count, or that match if there is none.
    pub(super) ends: Ends,
    /// Such a condition was met: what is asked behind it does not keep packets from being counted.
    pub(super) counts: bool,
    /// The outcome depends on what other rules do with other packets: a set that they fill, a limit that they share.
    pub(super) is_shared: bool,
}

impl When {
    pub(super) fn varies(what: impl Into<String>) -> When {
        When::Varies(vec![what.into()])
    }

    pub(super) fn of(matches: bool) -> When {
        if matches { When::Always } else { When::Never }
    }

    /// Both conditions together.
    pub(super) fn and(self, other: When) -> When {
        match (self, other) {
            (When::Never, _) | (_, When::Never) => When::Never,
            (When::Always, other) | (other, When::Always) => other,
            (When::Varies(mut mine), When::Varies(theirs)) => {
                let new: Vec<String> = theirs.into_iter().filter(|what| !mine.contains(what)).collect();
                mine.extend(new);
                When::Varies(mine)
            }
            (When::Varies(what), _) | (_, When::Varies(what)) => When::Varies(what),
            (When::Constant, When::Constant) => When::Constant,
        }
    }

    /// The opposite condition.
    pub(super) fn not(self) -> When {
        match self {
            When::Never => When::Always,
            When::Always => When::Never,
            other => other,
        }
    }
}

impl Default for Judged {
    fn default() -> Self {
        Judged {
            when: When::Always,
            acts: Vec::new(),
            verdicts: Vec::new(),
            perhaps: false,
            ends: Ends::default(),
            counts: false,
            is_shared: false,
        }
    }
}

impl Judged {
    pub(super) fn records(&mut self, what: impl Into<String>) {
        self.acts.push(Act::Records(what.into()));
    }

    /// The rule goes on for packets with these values only.
    pub(super) fn narrow(&mut self, field: Field, values: &Values) {
        if !self.counts {
            self.ends.narrow(field, values);
        }
    }
}
