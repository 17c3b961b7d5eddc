//! From prices and a question to a bill.

use rust_decimal::Decimal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::price::{Fee, PriceOption, Processed, Rent, RentPrice, Tier};
use crate::{Amount, Error, HOURS_PER_MONTH};

/// Traffic and time to be priced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Question {
    /// Traffic from the inside out (egress), GB of 10^9 bytes in the whole time.
    pub gb_out: Amount,
    /// Traffic from the outside in (ingress), GB of 10^9 bytes in the whole time.
    pub gb_in: Amount,
    /// Hours that the hop exists, 1..=1,000,000; a month has 730. Tiers count the traffic of this time, so more than a month is
    /// right only for prices without tiers.
    pub hours: Amount,
}

impl Default for Question {
    fn default() -> Self {
        Question { gb_out: Amount::ZERO, gb_in: Amount::ZERO, hours: Amount::from(HOURS_PER_MONTH) }
    }
}

impl Question {
    /// Checks the ranges that the type does not.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.hours < Amount::from(1) || self.hours > Amount::from(1_000_000) {
            return Err(Error::Number {
                what: "hours".to_owned(),
                value: self.hours.to_string(),
                expected: format!("expected 1 to 1,000,000; a month has {HOURS_PER_MONTH}"),
            });
        }
        Ok(())
    }

    /// Traffic both ways, GB.
    pub fn gb_total(&self) -> Amount {
        Amount(self.gb_out.0 + self.gb_in.0)
    }

    /// The same mix of directions for break-even: the asked traffic, or 1 GB in when none is asked.
    pub(crate) fn mix(&self) -> Question {
        if self.gb_total() == Amount::ZERO {
            return Question { gb_in: Amount::from(1), ..self.clone() };
        }
        self.clone()
    }
}

/// One line of a bill.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LineItem {
    /// The billed item.
    pub what: String,
    /// How much of it.
    pub quantity: Amount,
    /// Unit of `quantity`: `h`, `month`, `GB` (10^9 bytes) or `GiB` (2^30 bytes).
    pub unit: &'static str,
    /// Price of one unit.
    pub unit_price: Amount,
    /// `quantity` x `unit-price`.
    pub amount: Amount,
    /// True if the line grows with traffic, false if it grows with time.
    pub by_traffic: bool,
}

/// The cost of one option.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Bill {
    /// Name of the option.
    pub option: String,
    /// Its lines; a tier that no traffic reaches has none.
    pub items: Vec<LineItem>,
    /// Sum of the lines that grow with time.
    pub fixed: Amount,
    /// Sum of the lines that grow with traffic.
    pub traffic: Amount,
    /// Sum of all lines.
    pub total: Amount,
}

/// A fee with the traffic that it counts.
pub(crate) struct Metered<'a> {
    what: &'static str,
    pub(crate) fee: &'a Fee,
    /// Traffic counted, in the fee's own unit.
    pub(crate) quantity: Decimal,
}

/// The fees of `option` with the traffic of `question` that each counts.
pub(crate) fn metered<'a>(question: &Question, option: &'a PriceOption) -> Vec<Metered<'a>> {
    let (out, inward) = (question.gb_out.0, question.gb_in.0);
    let processed = match option.processed {
        Processed::Both => out + inward,
        Processed::Egress => out,
        Processed::Ingress => inward,
    };
    [
        ("processing", &option.processing, processed),
        ("transfer out", &option.transfer_out, out),
        ("transfer in", &option.transfer_in, inward),
    ]
    .into_iter()
    .filter_map(|(what, fee, gb)| {
        fee.as_ref().map(|fee| Metered { what, fee, quantity: gb * fee.unit.per_gb() })
    })
    .collect()
}

/// Computes the cost of `option` for the traffic and time of `question`.
pub fn bill(question: &Question, option: &PriceOption) -> Bill {
    let rents = [
        ("gateway", &option.gateway),
        ("VM", &option.vm),
        ("disk", &option.disk),
        ("public IP", &option.public_ip),
    ];
    let mut items: Vec<LineItem> = rents
        .into_iter()
        .filter_map(|(what, rent)| rent.as_ref().map(|rent| rent_line(what, rent, question.hours)))
        .collect();
    for metered in metered(question, option) {
        items.extend(fee_lines(&metered));
    }
    let sum = |by_traffic: bool| items.iter().filter(|i| i.by_traffic == by_traffic).map(|i| i.amount).sum();
    let (fixed, traffic): (Amount, Amount) = (sum(false), sum(true));
    Bill { option: option.name.clone(), fixed, traffic, total: Amount(fixed.0 + traffic.0), items }
}

fn rent_line(what: &str, rent: &Rent, hours: Amount) -> LineItem {
    let count = Decimal::from(rent.count);
    let month = Decimal::from(HOURS_PER_MONTH);
    // Multiplied before divided: a whole number of months then stays exact.
    let (unit, price, quantity, amount) = match rent.price {
        RentPrice::PerHour(price) => ("h", price, count * hours.0, price.0 * count * hours.0),
        RentPrice::PerMonth(price) => {
            ("month", price, count * hours.0 / month, price.0 * count * hours.0 / month)
        }
    };
    let times = if rent.count == 1 { String::new() } else { format!("{} x ", rent.count) };
    let detail = rent.what.as_ref().map(|w| format!(" ({w})")).unwrap_or_default();
    LineItem {
        what: format!("{times}{what}{detail}"),
        quantity: Amount(quantity),
        unit,
        unit_price: price,
        amount: Amount(amount),
        by_traffic: false,
    }
}

/// The parts of a quantity by the tiers of its fee: where each begins, how much it is, and the tier.
pub(crate) fn by_tier(fee: &Fee, quantity: Decimal) -> impl Iterator<Item = (Decimal, Decimal, &Tier)> {
    let mut next = Decimal::ZERO;
    fee.tiers.iter().map(move |tier| {
        let from = next;
        next = tier.up_to.map_or(quantity, |end| end.0.min(quantity));
        (from, next - from, tier)
    })
}

fn fee_lines(metered: &Metered<'_>) -> Vec<LineItem> {
    let several = metered.fee.tiers.len() > 1;
    let mut lines = Vec::new();
    for (from, quantity, tier) in by_tier(metered.fee, metered.quantity) {
        // A fee without tiers keeps its line at zero traffic, so that the bill shows that there is one.
        if quantity > Decimal::ZERO || !several {
            let unit = metered.fee.unit.symbol();
            let part = if several { format!(", from {} {unit}", from.normalize()) } else { String::new() };
            lines.push(LineItem {
                what: format!("{}{part}", metered.what),
                quantity: Amount(quantity),
                unit,
                unit_price: tier.per_gb,
                amount: Amount(quantity * tier.per_gb.0),
                by_traffic: true,
            });
        }
    }
    lines
}
