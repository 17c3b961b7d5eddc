//! The cost of speed: a bill set against a measurement.

use rust_decimal::Decimal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Amount, Bill, Error, Question};

/// A run's measurements for one option.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Measured {
    /// Name of the price option.
    pub option: String,
    /// Name of the variant that was measured.
    pub variant: String,
    /// Bits per second that the hop delivered (goodput), above 0.
    pub goodput_bps: f64,
    /// New connections per second that it carried, above 0.
    #[serde(default)]
    pub connections_per_second: Option<f64>,
}

/// The cost of one option relative to its performance.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct UnitCost {
    /// Name of the price option.
    pub option: String,
    /// Name of the variant that was measured.
    pub variant: String,
    /// The bit rate that was measured.
    pub goodput_bps: Amount,
    /// The whole bill divided by the Gbit/s (10^9 bits per second) that the hop delivers.
    pub per_gbps: Amount,
    /// The part of the bill that does not depend on traffic, divided by the same.
    pub fixed_per_gbps: Amount,
    /// The rate the asked traffic needs on average, as a share of the measured rate. Above 1 the hop cannot carry
    /// it. Both directions are added, so a hop that is measured one way may carry more.
    pub used_ratio: Amount,
    /// The part of the bill that does not depend on traffic, divided by the millions of connections that the hop
    /// could carry in the time of the question at the measured rate.
    pub fixed_per_million_connections: Option<Amount>,
}

/// Sets the bill of the measured option against its measurement.
///
/// # Errors
/// When the hours are out of range, no bill has the option's name, or a rate is not a positive number.
pub fn unit_cost(question: &Question, bills: &[Bill], measured: &Measured) -> Result<UnitCost, Error> {
    question.check()?;
    let bill = bills.iter().find(|b| b.option == measured.option).ok_or_else(|| Error::Unknown {
        name: measured.option.clone(),
        known: bills.iter().map(|b| b.option.clone()).collect(),
    })?;
    let goodput_bps = rate(measured.goodput_bps, &measured.variant, "goodput in bits per second")?;
    let gbps = goodput_bps / Decimal::from(1_000_000_000);
    let seconds = question.hours.0 * Decimal::from(3600);
    let needed_bps = question.gb_total().0 * Decimal::from(8) / seconds * Decimal::from(1_000_000_000);
    let fixed_per_million_connections = measured
        .connections_per_second
        .map(|value| rate(value, &measured.variant, "connections per second"))
        .transpose()?
        .map(|per_second| per_second * seconds / Decimal::from(1_000_000))
        .map(|millions| Amount(bill.fixed.0 / millions));
    Ok(UnitCost {
        option: measured.option.clone(),
        variant: measured.variant.clone(),
        goodput_bps: Amount(goodput_bps),
        per_gbps: Amount(bill.total.0 / gbps),
        fixed_per_gbps: Amount(bill.fixed.0 / gbps),
        used_ratio: Amount(needed_bps / goodput_bps),
        fixed_per_million_connections,
    })
}

/// Converts a measured rate to a decimal. The rate must be at least one per second: a slower one is no rate of a hop, and its
/// inverse could leave the decimal's range.
fn rate(value: f64, variant: &str, what: &str) -> Result<Decimal, Error> {
    if !(1.0..=1e15).contains(&value) {
        return Err(Error::Number {
            what: format!("{variant}: {what}"),
            value: value.to_string(),
            expected: "expected a measured rate from 1 to 10^15".to_owned(),
        });
    }
    // Whole units: the fraction of one bit or connection per second is below any measurement's precision.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked above")]
    let whole = value.round() as u64;
    Ok(Decimal::from(whole))
}
