//! `weir nat rows`: the table without verdicts.

use schemars::JsonSchema;
use serde::Serialize;
use weir_nat::rows::{self, Row};

use super::page;
use crate::documents::{Document, Kind, print_json};
use crate::exit::CommandResult;
use crate::output::{Color, print};

/// `weir nat rows --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Rows {
    /// All rows, group by group.
    rows: Vec<&'static Row>,
}

impl Document for Rows {
    const KIND: Kind = Kind::NatRows;
}

pub(crate) fn run(json: bool, color: Color) -> CommandResult {
    if !json {
        return print(&page::rows(color.terminal()));
    }
    print_json(&Rows { rows: rows::all().collect() })
}
