//! The cost of the hop: a managed gateway against one that you run yourself.
//!
//! Pure arithmetic: prices (a [`Catalogue`] of dated, sourced [`PriceOption`]s) and a [`Question`] (traffic and
//! hours) become an [`Answer`]: one [`Bill`] with its line items per option, the traffic at which any two options
//! cost the same ([`BreakEven`]), and, with a run's own measurement, what a Gbit/s costs ([`UnitCost`]).
//!
//! Money is decimal and exact: nothing is rounded before it is shown. See `docs/reference/cost.md` for the formulas.
#![forbid(unsafe_code)]

mod amount;
mod bill;
mod block;
mod break_even;
mod catalogue;
mod error;
mod price;
pub mod render;
mod unit_cost;

pub use amount::Amount;
pub use bill::{Bill, LineItem, Question, bill};
pub use block::CostBlock;
pub use break_even::{BreakEven, CostVerdict, Range, break_even};
pub use catalogue::{Catalogue, DEFAULT_OPTIONS};
pub use error::Error;
pub use price::{AsOf, Currency, Fee, GbUnit, PriceOption, Processed, Rent, RentPrice, Tier};
pub use unit_cost::{Measured, UnitCost, unit_cost};

use schemars::JsonSchema;
use serde::Serialize;

/// Hours in a month, the cloud providers' own convention (8,760 hours a year over 12).
pub const HOURS_PER_MONTH: u32 = 730;

/// Everything that follows from one question: what `weir cost --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Answer {
    /// The question.
    pub question: Question,
    /// Currency of every amount below.
    pub currency: Currency,
    /// One bill per option, in the order asked for.
    pub bills: Vec<Bill>,
    /// Every pair of options, in the order asked for.
    pub break_evens: Vec<BreakEven>,
    /// Price of speed, for the options that were measured.
    pub unit_costs: Vec<UnitCost>,
    /// The options as they were used, with the sources of their prices.
    pub prices: Vec<PriceOption>,
}

/// Answers `question` for `options`, with unit costs for those named in `measured`.
///
/// # Errors
/// When the hours are out of range, no option is given, two have one name, their currencies differ, or a measurement names an option that is
/// not there or carries a rate that is not a positive number.
pub fn answer(question: &Question, options: &[PriceOption], measured: &[Measured]) -> Result<Answer, Error> {
    question.check()?;
    let first = options.first().ok_or(Error::NoOptions)?;
    for (i, option) in options.iter().enumerate() {
        if option.currency != first.currency {
            return Err(Error::Currencies {
                a: first.name.clone(),
                a_currency: first.currency.to_string(),
                b: option.name.clone(),
                b_currency: option.currency.to_string(),
            });
        }
        if options[..i].iter().any(|o| o.name == option.name) {
            return Err(Error::Twice { name: option.name.clone() });
        }
    }
    let bills: Vec<Bill> = options.iter().map(|option| bill(question, option)).collect();
    let mut break_evens = Vec::new();
    for (i, a) in options.iter().enumerate() {
        break_evens.extend(options[i + 1..].iter().map(|b| break_even(question, a, b)));
    }
    let unit_costs =
        measured.iter().map(|m| unit_cost(question, &bills, m)).collect::<Result<Vec<UnitCost>, Error>>()?;
    Ok(Answer {
        question: question.clone(),
        currency: first.currency.clone(),
        bills,
        break_evens,
        unit_costs,
        prices: options.to_vec(),
    })
}
