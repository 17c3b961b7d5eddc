//! The score: cause injected against first finding.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::case::{Case, Kind};
use crate::trial::{Answer, CaseTrial};

/// The answer of a doctor that finds nothing.
pub(crate) const NOTHING: &str = "nothing";

/// The word for the first finding where a load did not happen.
const NO_LOAD: &str = "(the load failed)";

/// One case over its repetitions.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Row {
    /// Name of the case.
    pub case: String,
    /// Its subject.
    pub kind: Kind,
    /// Times it was tried.
    pub tried: u32,
    /// Times the answer was right.
    pub right: u32,
    /// First findings, by cause, of the times it was tried.
    pub first: BTreeMap<String, u32>,
    /// Why it was not tried.
    pub skipped: Option<String>,
    /// The faults of the recipe.
    pub troubles: Vec<String>,
}

/// All cases.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct Matrix {
    /// In the order in which they are listed.
    pub rows: Vec<Row>,
}

impl Matrix {
    /// Adds how a case went.
    pub fn add(&mut self, case: &Case, trial: &CaseTrial) {
        let row = self.row(case);
        row.skipped.clone_from(&trial.skipped);
        row.troubles.extend(trial.troubles.iter().cloned());
        let Some(answer) = trial.answer else { return };
        row.tried += 1;
        row.right += u32::from(answer == Answer::Right);
        let first = match answer {
            Answer::Void => NO_LOAD,
            _ => trial.found.first().map_or(NOTHING, |(cause, _, _)| cause.as_str()),
        };
        *row.first.entry(first.to_owned()).or_default() += 1;
    }

    /// Adds a case that broke before the doctor was asked.
    pub fn broken(&mut self, case: &Case, why: String) {
        let row = self.row(case);
        row.tried += 1;
        *row.first.entry("(the recipe failed)".into()).or_default() += 1;
        row.troubles.push(why);
    }

    fn row(&mut self, case: &Case) -> &mut Row {
        let at = self.rows.iter().position(|r| r.case == case.name).unwrap_or_else(|| {
            self.rows.push(Row {
                case: case.name.clone(),
                kind: case.kind,
                tried: 0,
                right: 0,
                first: BTreeMap::new(),
                skipped: None,
                troubles: Vec::new(),
            });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    /// Right and tried, of all cases of a kind.
    pub fn score(&self, kind: Kind) -> (u32, u32) {
        let of = |f: fn(&Row) -> u32| self.rows.iter().filter(|r| r.kind == kind).map(f).sum();
        (of(|r| r.right), of(|r| r.tried))
    }

    /// Trials of all cases.
    pub fn tried(&self) -> u32 {
        self.rows.iter().map(|r| r.tried).sum()
    }

    /// Cases that were not tried, with the reason.
    pub fn skipped(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rows.iter().filter_map(|r| Some((r.case.as_str(), r.skipped.as_deref()?)))
    }
}
