//! The `[cost]` block of a scenario.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Amount, Catalogue, DEFAULT_OPTIONS, Error, HOURS_PER_MONTH, PriceOption, Question};

/// The `[cost]` block of a scenario: what to price, with which prices, and which variant stands for which option.
///
/// ```toml
/// [cost]
/// gb-in = 1000
/// options = ["managed-gateway", "nat-instance"]
/// variants = { nft-masquerade = "nat-instance" }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct CostBlock {
    /// Traffic from the inside out (egress) in the whole time, GB of 10^9 bytes.
    pub gb_out: Amount,
    /// Traffic from the outside in (ingress) in the whole time, GB of 10^9 bytes.
    pub gb_in: Amount,
    /// Hours that the hop exists; a month has 730.
    pub hours: Amount,
    /// A price file, relative to the working directory. Its options add to the built-in ones and replace those of one name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prices: Option<PathBuf>,
    /// Options to compare, by name. Default: the block's own, or where it has none, `managed-gateway` and
    /// `nat-instance`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Options of the block's own, as in a price file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub option: Vec<PriceOption>,
    /// Which option a measured variant stands for: variant name = option name. Gives the price of a Gbit/s.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub variants: BTreeMap<String, String>,
}

impl Default for CostBlock {
    fn default() -> Self {
        CostBlock {
            gb_out: Amount::ZERO,
            gb_in: Amount::ZERO,
            hours: Amount::from(HOURS_PER_MONTH),
            prices: None,
            options: Vec::new(),
            option: Vec::new(),
            variants: BTreeMap::new(),
        }
    }
}

impl CostBlock {
    /// Returns the question.
    pub fn question(&self) -> Question {
        Question { gb_out: self.gb_out, gb_in: self.gb_in, hours: self.hours }
    }

    /// The options to compare. `origin` is the scenario's name, for messages; `prices` is the text of the file that
    /// [`CostBlock::prices`] names, which the caller has read.
    ///
    /// # Errors
    /// When prices are wrong, an option is not known, or `variants` names one that is not compared.
    pub fn select(&self, origin: &str, prices: Option<&str>) -> Result<Vec<PriceOption>, Error> {
        let mut catalogue = Catalogue::built_in()?;
        if let (Some(path), Some(text)) = (&self.prices, prices) {
            catalogue.add_toml(&path.display().to_string(), text)?;
        }
        catalogue.add(origin, &self.option)?;
        let names: Vec<String> = match (&self.options[..], &self.option[..]) {
            ([], []) => DEFAULT_OPTIONS.map(str::to_owned).to_vec(),
            ([], own) => own.iter().map(|o| o.name.clone()).collect(),
            (named, _) => named.to_vec(),
        };
        let selected = catalogue.select(&names)?;
        for name in self.variants.values() {
            if !names.contains(name) {
                return Err(Error::Unknown { name: name.clone(), known: names });
            }
        }
        Ok(selected)
    }
}
