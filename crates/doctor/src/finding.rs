//! The doctor's conclusions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::command::{Command, Line, Unwritable, sysctl};
use crate::evidence::{Delta, EvidenceSource, Namespace};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing; it does no harm now.
    Note,
    /// Traffic is lost or delayed, or is about to be.
    Warning,
    /// A good part of it, or all of some kind.
    Critical,
}

/// How sure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// It fits, and so would something else.
    Low,
    /// All required evidence is present.
    Medium,
    /// Independent evidence sources agree.
    High,
}

/// A cause found in one place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Stable id of the cause (`conntrack-full`); its page is `docs/reference/causes/ID.md`.
    pub cause: String,
    /// Inode of the namespace, 0 for the machine as a whole.
    pub namespace: u64,
    /// Its name; text from outside.
    pub place: String,
    /// How bad.
    pub severity: Severity,
    /// How sure.
    pub confidence: Confidence,
    /// The exact object: the rule, the interface, the socket, the destination. Empty if the place says it all.
    pub object: String,
    /// One sentence: what happens.
    pub summary: String,
    /// The observed facts.
    pub evidence: Vec<Fact>,
    /// Causes that were ruled out, in words: "not a rule: no rule's counter moved".
    pub not: Vec<String>,
    /// Evidence sources that would have told more, and were not in sight.
    pub missing: Vec<EvidenceSource>,
    /// Packets lost in the window that it explains.
    pub claims: Vec<Claim>,
    /// Share of the traffic of its kind that it harms, 0 to 1, if lost packets cannot express the harm (connections that fail
    /// elsewhere, time that is lost). 0 if the claims say it all.
    pub impact: f64,
    /// The fixes, the best first.
    pub fixes: Vec<Fix>,
    /// Packets that it explains; [`crate::diagnosis`] sets it.
    #[serde(default)]
    pub explains_packets: u64,
    /// Their share of all that was lost, 0 to 1; [`crate::diagnosis`] sets it.
    #[serde(default)]
    pub explains_ratio: f64,
}

/// One thing seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fact {
    /// Evidence source that it comes from.
    #[serde(rename = "evidence_source")]
    pub source: EvidenceSource,
    /// In words, with the numbers.
    pub text: String,
    /// Name of the counter, setting or symbol, if it has one.
    pub name: Option<String>,
    /// At the window's beginning.
    pub before: Option<u64>,
    /// At its end.
    pub after: Option<u64>,
}

/// Part of what was lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "from")]
pub enum Claim {
    /// Packets of a group of [`crate::evidence::Evidence::drops`].
    Drops {
        /// Its place in that list.
        group: usize,
        /// How many of it.
        packets: u64,
    },
    /// Packets that the kernel lets go without a `kfree_skb` event, or while that evidence source is blind. Claims of the same counter
    /// are one and the same loss.
    Counter {
        /// Namespace, 0 of the machine.
        namespace: u64,
        /// Name of the counter, unique for the loss.
        counter: String,
        /// How many.
        packets: u64,
    },
}

impl Claim {
    /// How many.
    pub(crate) fn packets(&self) -> u64 {
        let (Claim::Drops { packets, .. } | Claim::Counter { packets, .. }) = self;
        *packets
    }
}

/// A fix.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fix {
    /// Its effect, in a few words.
    pub title: String,
    /// Commands as they would be typed, in order. Placeholders in capitals only where weir cannot know.
    pub commands: Vec<String>,
    /// The risk.
    pub risk: String,
    /// How to undo it, as commands.
    pub undo: Vec<String>,
    /// Why it has no commands, and what to look at instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_hand: Option<String>,
    /// The commands are for another host: the sender, a client.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
    /// The settings that `weir tune` would make for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tune: Vec<Setting>,
}

/// A setting that `weir tune` may change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Setting {
    /// Full sysctl name.
    pub name: String,
    /// Value now.
    pub now: String,
    /// Value proposed.
    pub proposed: String,
    /// The measured need behind it.
    pub why: String,
}

impl Fix {
    /// Commands that change something, and those that undo it. If one of them cannot be written, none is.
    pub(crate) fn new(
        title: impl Into<String>,
        risk: impl Into<String>,
        commands: impl IntoIterator<Item = Line>,
        undo: impl IntoIterator<Item = Line>,
    ) -> Fix {
        let mut fix = Fix { title: title.into(), risk: risk.into(), ..Fix::default() };
        let lines = |lines: &mut dyn Iterator<Item = Line>| -> Result<Vec<String>, Unwritable> {
            lines.map(|line| line.map(Command::into_line)).collect()
        };
        match lines(&mut commands.into_iter()).and_then(|c| Ok((c, lines(&mut undo.into_iter())?))) {
            Ok((commands, undo)) => (fix.commands, fix.undo) = (commands, undo),
            Err(why) => fix.by_hand = Some(why.words().to_owned()),
        }
        fix
    }

    /// The same on another host, where the finding's namespace means nothing.
    pub(crate) fn elsewhere(self) -> Fix {
        Fix { elsewhere: true, ..self }
    }

    /// The same as something that `weir tune` does not do.
    pub(crate) fn not_tuned(self) -> Fix {
        Fix { tune: Vec::new(), ..self }
    }

    /// Commands that only show something.
    pub(crate) fn look(title: impl Into<String>, commands: impl IntoIterator<Item = Line>) -> Fix {
        Fix::new(title, "none, it only shows", commands, [])
    }

    /// Writes settings, which `weir tune` may do as well; the undo writes them back in reverse order.
    pub(crate) fn set(title: impl Into<String>, risk: impl Into<String>, settings: Vec<Setting>) -> Fix {
        let commands: Vec<Line> = settings.iter().map(|s| sysctl::set(&s.name, &s.proposed)).collect();
        let undo: Vec<Line> = settings.iter().rev().map(|s| sysctl::set(&s.name, &s.now)).collect();
        Fix { tune: settings, ..Fix::new(title, risk, commands, undo) }
    }
}

impl Setting {
    pub(crate) fn new(
        name: impl Into<String>,
        now: impl ToString,
        proposed: impl ToString,
        why: impl Into<String>,
    ) -> Setting {
        Setting { name: name.into(), now: now.to_string(), proposed: proposed.to_string(), why: why.into() }
    }
}

impl Finding {
    /// The fix to begin with: the best that changes something, which is one with a way back, or the first where all of them only
    /// show.
    pub fn remedy(&self) -> Option<&Fix> {
        self.fixes.iter().find(|fix| !fix.undo.is_empty()).or(self.fixes.first())
    }

    /// Adds a [`Fact::seen`].
    pub(crate) fn seen(&mut self, source: EvidenceSource, text: impl Into<String>) {
        self.evidence.push(Fact::seen(source, text));
    }

    /// Adds a [`Fact::counter`].
    pub(crate) fn counter(
        &mut self,
        source: EvidenceSource,
        name: &str,
        delta: Delta,
        text: impl Into<String>,
    ) {
        self.evidence.push(Fact::counter(source, name, delta, text));
    }

    /// Adds those of these counters of TCP that grew, as "ListenDrops by 17".
    pub(crate) fn grew_by(&mut self, namespace: &Namespace, names: &[&str]) {
        for name in names {
            if let Some(delta) = namespace.counters.get(*name).filter(|delta| delta.change() > 0) {
                let text = format!("{} by {}", name.trim_start_matches("tcpext."), delta.change());
                self.counter(EvidenceSource::Counters, name, *delta, text);
            }
        }
    }

    /// Adds a counter of a namespace if it grew, as "17 `words`".
    pub(crate) fn grew(&mut self, namespace: &Namespace, name: &str, words: &str) {
        if let Some(delta) = namespace.counters.get(name).filter(|delta| delta.change() > 0) {
            self.counter(EvidenceSource::Counters, name, *delta, format!("{} {words}", delta.change()));
        }
    }
}

impl Fact {
    /// Something seen that is no counter.
    pub fn seen(source: EvidenceSource, text: impl Into<String>) -> Self {
        Fact { source, text: text.into(), name: None, before: None, after: None }
    }

    /// A counter that moved.
    pub fn counter(source: EvidenceSource, name: &str, delta: Delta, text: impl Into<String>) -> Self {
        Fact {
            source,
            text: text.into(),
            name: Some(name.to_owned()),
            before: Some(delta.before),
            after: Some(delta.after),
        }
    }
}

/// How bad a loss is: by its share of what passed, and by its number.
///
/// One packet in a hundred halves what a long TCP transfer gets (Mathis et al. 1997: rate ~ 1/sqrt(loss)), and a handful of
/// packets in a window is what any host has.
pub fn severity_of_loss(lost: u64, passed: u64, window_s: f64) -> Severity {
    let ratio = lost as f64 / (lost + passed).max(1) as f64;
    let per_second = lost as f64 / window_s.max(0.1);
    if ratio >= 0.01 && per_second >= 1.0 {
        Severity::Critical
    } else if ratio >= 0.0001 && per_second >= 0.5 || per_second >= 10.0 {
        Severity::Warning
    } else {
        Severity::Note
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn severity_grows_with_share_and_rate() {
        assert_eq!(severity_of_loss(1, 1_000_000, 10.0), Severity::Note);
        assert_eq!(severity_of_loss(3, 10, 10.0), Severity::Note);
        assert_eq!(severity_of_loss(500, 1_000_000, 10.0), Severity::Warning);
        assert_eq!(severity_of_loss(500, 1_000, 10.0), Severity::Critical);
    }
}
