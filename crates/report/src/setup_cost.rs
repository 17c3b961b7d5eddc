//! Costs of variants apart from traffic: load, update, memory. Measured once, so nothing here has an interval or a verdict.

use weir_record::{Run, VariantFact, VariantInfo};

use crate::escape::line;
use crate::units::quantity;
use crate::view::everyone;

/// A table of variants and what they take.
pub(crate) struct SetupCost<'a> {
    /// Labels of the columns.
    pub(crate) heads: Vec<String>,
    /// Variants with one text for each column.
    pub(crate) rows: Vec<(&'a VariantInfo, Vec<String>)>,
    /// How the columns were measured, a sentence each, and by whom where not by all in the same way.
    pub(crate) notes: Vec<String>,
}

/// Title of the table.
pub(crate) const TITLE: &str = "Setup cost of the variants, measured when they were set up";

/// The table; `None` where no variant takes anything that was measured. Twins are left out.
pub(crate) fn setup_cost(run: &Run) -> Option<SetupCost<'_>> {
    let variants: Vec<&VariantInfo> = everyone(run).filter(|v| !v.facts.is_empty()).collect();
    let mut names: Vec<&VariantFact> = Vec::new();
    for fact in variants.iter().flat_map(|v| &v.facts) {
        if names.iter().all(|known| known.name != fact.name) {
            names.push(fact);
        }
    }
    let cells = |variant: &VariantInfo| names.iter().map(|name| cell(variant, &name.name)).collect();
    let takes = SetupCost {
        heads: names.iter().map(|fact| line(&fact.label)).collect(),
        rows: variants.iter().map(|v| (*v, cells(v))).collect(),
        notes: names.iter().flat_map(|name| notes(&variants, name)).collect(),
    };
    (!takes.rows.is_empty()).then_some(takes)
}

fn of<'a>(variant: &'a VariantInfo, name: &str) -> Option<&'a VariantFact> {
    variant.facts.iter().find(|fact| fact.name == name)
}

fn cell(variant: &VariantInfo, name: &str) -> String {
    let value = of(variant, name).and_then(|fact| Some((fact.unit, fact.value?)));
    value.map_or_else(|| "–".to_owned(), |(unit, value)| quantity(unit, value, None))
}

/// `load: nft reads a file of it (nft-set, nft-million)`; without names where all are alike.
fn notes(variants: &[&VariantInfo], fact: &VariantFact) -> Vec<String> {
    let mut ways: Vec<(&str, Vec<String>)> = Vec::new();
    for variant in variants {
        let Some(found) = of(variant, &fact.name) else { continue };
        match ways.iter_mut().find(|(how, _)| *how == found.how) {
            Some((_, names)) => names.push(line(&variant.name)),
            None => ways.push((&found.how, vec![line(&variant.name)])),
        }
    }
    let alike = ways.len() == 1;
    let note = |(how, names): &(&str, Vec<String>)| {
        let who = if alike { String::new() } else { format!(" ({})", names.join(", ")) };
        format!("{}{who}: {}", line(&fact.label), line(how))
    };
    ways.iter().map(note).collect()
}
