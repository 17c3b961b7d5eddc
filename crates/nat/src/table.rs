//! The table: every row with its verdict.

use std::ops::Deref;

use schemars::JsonSchema;
use serde::Serialize;

use crate::Observations;
use crate::capture::{Captured, Evidence, evidence};
use crate::rows::judge::{Dependence, Ipv6Kind, ipv6_kind, udp_filtering, udp_mapping};
use crate::rows::{self, Compliance, Judgement, Row};

/// All verdicts of one NAT.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Table {
    /// The kind of NAT.
    pub kind: NatKind,
    /// One line for each requirement, group by group.
    pub rows: Vec<Line>,
}

/// The kind of a NAT in the words of RFC 4787, and in older ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NatKind {
    /// Addresses or ports are changed; `None` if no packet arrived.
    pub translates: Option<bool>,
    /// The kind of translation of IPv6; `None` over IPv4.
    pub ipv6: Option<Ipv6Kind>,
    /// UDP mapping.
    pub mapping: Option<Dependence>,
    /// UDP filtering.
    pub filtering: Option<Dependence>,
    /// The word of RFC 3489 section 5.
    pub classic: Option<&'static str>,
}

/// One row and its verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Line {
    /// The requirement.
    #[serde(flatten)]
    pub row: &'static Row,
    /// The verdict.
    #[serde(flatten)]
    pub judgement: Judgement,
    /// The packets that it was judged by; empty where they were not kept.
    pub packets: Vec<Evidence>,
}

impl Deref for Line {
    type Target = Row;

    fn deref(&self) -> &Row {
        self.row
    }
}

impl Table {
    /// Judges observations.
    pub fn of(observations: &Observations) -> Self {
        let rows = rows::all()
            .filter(|row| rows::is_of(row, observations))
            .map(|row| Line { row, judgement: rows::judgement(row, observations), packets: Vec::new() })
            .collect();
        Table { kind: NatKind::of(observations), rows }
    }

    /// Names the packets of each row.
    #[must_use]
    pub fn with_packets(mut self, captured: &[Captured]) -> Self {
        let mut known = evidence(captured);
        for line in &mut self.rows {
            line.packets = known.remove(line.row.id).unwrap_or_default();
        }
        self
    }

    /// How many rows have that verdict.
    pub fn count(&self, verdict: Compliance) -> usize {
        self.rows.iter().filter(|line| line.judgement.verdict == verdict).count()
    }

    /// The line of a row.
    pub fn line(&self, id: &str) -> Option<&Line> {
        self.rows.iter().find(|line| line.id == id)
    }
}

impl NatKind {
    fn of(observations: &Observations) -> Self {
        let (mapping, filtering) = (udp_mapping(observations), udp_filtering(observations));
        let all = observations.udp_mapping.iter().flatten().flat_map(|m| m.seen);
        let changed = all.filter_map(|t| t.seen.map(|seen| seen != t.inside));
        let translates = changed.reduce(|a, b| a || b);
        let classic = match (mapping, filtering) {
            (Some(_), _) if translates != Some(true) => None,
            (Some(Dependence::EndpointIndependent), Some(Dependence::EndpointIndependent)) => {
                Some("full cone")
            }
            (Some(Dependence::EndpointIndependent), Some(Dependence::Address)) => Some("restricted cone"),
            (Some(Dependence::EndpointIndependent), Some(Dependence::AddressAndPort)) => {
                Some("port restricted cone")
            }
            (Some(Dependence::Address | Dependence::AddressAndPort), _) => Some("symmetric"),
            _ => None,
        };
        NatKind { translates, ipv6: ipv6_kind(observations), mapping, filtering, classic }
    }
}
