//! The rows of the table: what each requirement asks, and how the observations answer it.
//!
//! Wording and numbers of requirements follow the RFCs' own lists; section numbers are those of the sections that hold them.

mod afterwards;
mod carriage;
mod crafted;
mod exhaustion;
mod icmp;
mod ip;
mod ipv6;
pub mod judge;
mod opening;
mod published;
mod reuse;
mod sequence;
mod tcp;
pub(crate) mod types;
mod udp;
mod verdicts;

use schemars::JsonSchema;
use serde::Serialize;

use crate::Observations;

/// How strongly an RFC asks (RFC 2119).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub enum Level {
    /// An absolute requirement.
    #[serde(rename = "MUST")]
    Must,
    /// An absolute prohibition.
    #[serde(rename = "MUST NOT")]
    MustNot,
    /// Valid reasons to do otherwise may exist.
    #[serde(rename = "SHOULD")]
    Should,
    /// The same as SHOULD, as most of these RFCs write it.
    #[serde(rename = "RECOMMENDED")]
    Recommended,
    /// Left to the NAT.
    #[serde(rename = "MAY")]
    May,
    /// Described by the RFC, and not asked for.
    #[serde(rename = "none")]
    Described,
}

impl Level {
    /// As the RFC writes it.
    pub fn word(self) -> &'static str {
        match self {
            Level::Must => "MUST",
            Level::MustNot => "MUST NOT",
            Level::Should => "SHOULD",
            Level::Recommended => "RECOMMENDED",
            Level::May => "MAY",
            Level::Described => "-",
        }
    }
}

/// Subject of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// How IPv6 addresses are changed, if they are. Only paths over IPv6 have these rows.
    Ipv6,
    /// Which outside address and port an inside one gets.
    Mapping,
    /// Which packets from outside pass.
    Filtering,
    /// How inside hosts reach each other's outside ports.
    Hairpin,
    /// How TCP connections begin.
    Openings,
    /// How segments of TCP are carried, and how connections end.
    Carriage,
    /// Queries, and errors about other packets.
    Icmp,
    /// Fragments and fields of the IP header.
    Ip,
    /// Protocols other than UDP, TCP and ICMP.
    Others,
    /// How long mappings live.
    Timers,
    /// Packets for which no outside port is left.
    Exhaustion,
}

impl Group {
    /// All, in the order of the table.
    pub const ALL: [Group; 11] = [
        Group::Ipv6,
        Group::Mapping,
        Group::Filtering,
        Group::Hairpin,
        Group::Openings,
        Group::Carriage,
        Group::Icmp,
        Group::Ip,
        Group::Others,
        Group::Timers,
        Group::Exhaustion,
    ];

    /// Its title.
    pub fn title(self) -> &'static str {
        match self {
            Group::Ipv6 => "IPv6 translation",
            Group::Mapping => "mapping",
            Group::Filtering => "filtering",
            Group::Hairpin => "hairpinning",
            Group::Openings => "TCP openings",
            Group::Carriage => "TCP connections",
            Group::Icmp => "ICMP",
            Group::Ip => "fragments and headers",
            Group::Others => "other protocols",
            Group::Timers => "timers",
            Group::Exhaustion => "the end of ports",
        }
    }
}

/// Whether the requirement is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Compliance {
    /// It is not.
    Fails,
    /// It is under some conditions only.
    Partly,
    /// The observations contradict each other, or the path lost control packets.
    NotSure,
    /// It cannot be seen here, for the reason given.
    NotTestable,
    /// It is.
    Meets,
    /// The RFC asks for nothing: this is what the NAT does.
    Described,
}

impl Compliance {
    /// For people.
    pub fn word(self) -> &'static str {
        match self {
            Compliance::Fails => "fails",
            Compliance::Partly => "partly",
            Compliance::NotSure => "not sure",
            Compliance::NotTestable => "not testable",
            Compliance::Meets => "meets",
            Compliance::Described => "does",
        }
    }
}

/// How sure a verdict is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// Seen directly, each time, with a control.
    High,
    /// Seen directly, in a sample that could mislead.
    Medium,
    /// Inferred.
    Low,
}

/// The verdict of one row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Judgement {
    /// Whether the requirement is met.
    pub verdict: Compliance,
    /// How sure that is.
    pub confidence: Confidence,
    /// The observation, or why none could be made; one line.
    pub seen: String,
    /// It rests on packets that vanished. Between two real ends a firewall may have dropped them.
    #[serde(skip)]
    pub(crate) vanished: bool,
}

/// One requirement.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub struct Row {
    /// Stable name.
    pub id: &'static str,
    /// Subject.
    pub group: Group,
    /// Number of the RFC.
    pub rfc: u16,
    /// Its section.
    pub section: &'static str,
    /// Name of the requirement in the RFC; empty for a behaviour that it only describes.
    pub requirement: &'static str,
    /// How strongly it is asked for.
    pub level: Level,
    /// The requirement in weir's words.
    pub asks: &'static str,
    /// The packets that are sent.
    pub sent: &'static str,
    /// The users and applications that a failure hurts, and how; empty for rows that cannot fail.
    pub breaks: &'static str,
    /// The verdict of some observations.
    #[serde(skip)]
    pub judge: fn(&Observations) -> Judgement,
}

/// By name: whether two functions are the same has no answer that lasts.
impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Row {}

/// All rows, group by group.
pub const ROWS: &[&[Row]] = &[
    ipv6::ROWS,
    udp::ROWS,
    tcp::ROWS,
    carriage::ROWS,
    icmp::ROWS,
    crafted::ROWS,
    types::ROWS,
    ip::ROWS,
    exhaustion::ROWS,
    reuse::ROWS,
    sequence::ROWS,
    opening::ROWS,
    afterwards::ROWS,
];

/// All rows, in the order of the table.
pub fn all() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().flat_map(|rows| rows.iter())
}

/// Whether such a path has that row.
pub(crate) fn is_of(row: &Row, observations: &Observations) -> bool {
    row.group != Group::Ipv6 || judge::is_ipv6(observations)
}

/// The verdict of a row: by what published ports or IPv6 are, or else by its own question.
pub(crate) fn judgement(row: &Row, observations: &Observations) -> Judgement {
    let fixed = published::by_design(row, observations).or_else(|| ipv6::by_version(row, observations));
    fixed.unwrap_or_else(|| (row.judge)(observations))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_every_row_that_can_fail_tells_what_breaks() {
        let ids: Vec<&str> = all().map(|row| row.id).collect();
        for (n, row) in all().enumerate() {
            assert!(!ids[..n].contains(&row.id), "{} twice", row.id);
            assert!(
                row.id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'),
                "{}",
                row.id
            );
            let can_fail = !matches!(row.level, Level::Described | Level::May);
            assert_eq!(can_fail, !row.breaks.is_empty(), "{}", row.id);
            assert_eq!(row.level == Level::Described, row.requirement.is_empty(), "{}", row.id);
            for text in [row.asks, row.sent, row.section] {
                assert!(!text.is_empty(), "{}", row.id);
            }
        }
    }

    #[test]
    fn without_observations_no_row_has_a_verdict() {
        for row in all() {
            let judgement = (row.judge)(&Observations::default());
            assert_eq!(judgement.verdict, Compliance::NotTestable, "{}: {}", row.id, judgement.seen);
        }
    }
}
