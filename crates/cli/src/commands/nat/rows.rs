//! `weir nat rows`: the table without verdicts.

use schemars::JsonSchema;
use serde::Serialize;
use weir_nat::rows::{self, Group, Level};
use weir_text::layout::Terminal;

use super::page;
use crate::documents::{Document, Kind, print_json};
use crate::exit::CommandResult;
use crate::output::{Color, print, width};

/// `weir nat rows --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Rows {
    /// All rows, group by group.
    rows: Vec<Row>,
}

/// One requirement.
#[derive(Debug, Serialize, JsonSchema)]
struct Row {
    /// Stable name.
    id: &'static str,
    /// Subject.
    group: Group,
    /// Number of the RFC.
    rfc: u16,
    /// Its section.
    section: &'static str,
    /// Name of the requirement there; empty for a behaviour that the RFC only describes.
    requirement: &'static str,
    /// How strongly it is asked for.
    level: Level,
    /// The requirement in weir's words.
    asks: &'static str,
    /// The packets that are sent.
    sent: &'static str,
    /// The users and applications that a failure hurts, and how.
    breaks: &'static str,
}

impl Document for Rows {
    const KIND: Kind = Kind::NatRows;
}

pub(crate) fn run(json: bool, color: Color) -> CommandResult {
    if !json {
        return print(&page::rows(Terminal { width: width(), color: color.stdout }));
    }
    let row = |row: &rows::Row| Row {
        id: row.id,
        group: row.group,
        rfc: row.rfc,
        section: row.section,
        requirement: row.requirement,
        level: row.level,
        asks: row.asks,
        sent: row.sent,
        breaks: row.breaks,
    };
    print_json(&Rows { rows: rows::all().map(row).collect() })
}
