//! Prices of one way to have the hop.

use std::fmt;

use rust_decimal::Decimal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Amount;

/// Greatest unit price accepted; keeps products inside the decimal type (see [`Amount`]).
const MAX_PRICE: u32 = 1_000_000;

/// Greatest number of equal things rented.
const MAX_COUNT: u32 = 10_000;

/// One way to have the hop, with everything it is billed for. An absent item costs nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PriceOption {
    /// Name to ask for, unique: letters, digits, `-`.
    pub name: String,
    /// Its description, in words.
    pub title: String,
    /// Region that the prices hold for; `any` or `not stated` where the source says no more.
    pub region: String,
    /// Currency of every price in the option.
    pub currency: Currency,
    /// Date at which the source had these prices, as far as it is known.
    pub as_of: AsOf,
    /// Source of the prices: a page, a document, an offer.
    pub source: String,
    /// Information for the reader that no other key holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// A managed gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Rent>,
    /// The virtual machine that is the hop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<Rent>,
    /// Its disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Rent>,
    /// Public addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_ip: Option<Rent>,
    /// Fee for traffic that the hop processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processing: Option<Fee>,
    /// Which traffic `processing` counts.
    #[serde(default)]
    pub processed: Processed,
    /// Fee for traffic that leaves the provider's network (egress).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer_out: Option<Fee>,
    /// Fee for traffic that comes in (ingress).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer_in: Option<Fee>,
}

impl PriceOption {
    /// Returns a problem with the option as a whole, if any; the reader checks single values.
    pub(crate) fn problem(&self) -> Option<String> {
        let name_ok =
            !self.name.is_empty() && self.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        if !name_ok {
            return Some("name: use letters, digits and \"-\"".to_owned());
        }
        if self.source.trim().is_empty() {
            return Some("source: say where the prices are from".to_owned());
        }
        let rents = [&self.gateway, &self.vm, &self.disk, &self.public_ip];
        let fees = [&self.processing, &self.transfer_out, &self.transfer_in];
        if rents.iter().all(|r| r.is_none()) && fees.iter().all(|f| f.is_none()) {
            return Some(
                "it has no price; give at least one of gateway, vm, disk, public-ip, processing, transfer-out, \
                 transfer-in"
                    .to_owned(),
            );
        }
        if self.processed != Processed::Both && self.processing.is_none() {
            return Some(
                "processed is given without processing; add processing = { per-gb = ... }".to_owned(),
            );
        }
        None
    }
}

/// A three-letter currency code (ISO 4217).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct Currency(String);

impl TryFrom<String> for Currency {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.len() == 3 && text.bytes().all(|b| b.is_ascii_uppercase()) {
            Ok(Currency(text))
        } else {
            Err(format!("\"{text}\" is no currency code; use three capital letters (ISO 4217), such as USD"))
        }
    }
}

impl From<Currency> for String {
    fn from(currency: Currency) -> String {
        currency.0
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The date of a source as far as it is known: `2026`, `2026-05` or `2026-05-31`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct AsOf(String);

impl TryFrom<String> for AsOf {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let part = |text: &str, len: usize, low: u32, high: u32| {
            text.len() == len
                && text.bytes().all(|b| b.is_ascii_digit())
                && text.parse().is_ok_and(|n: u32| (low..=high).contains(&n))
        };
        let parts: Vec<&str> = text.split('-').collect();
        let ok = match parts[..] {
            [y] => part(y, 4, 1990, 9999),
            [y, m] => part(y, 4, 1990, 9999) && part(m, 2, 1, 12),
            [y, m, d] => part(y, 4, 1990, 9999) && part(m, 2, 1, 12) && part(d, 2, 1, 31),
            _ => false,
        };
        if ok {
            Ok(AsOf(text))
        } else {
            Err(format!("\"{text}\" is no date; use 2026, 2026-05 or 2026-05-31"))
        }
    }
}

impl From<AsOf> for String {
    fn from(as_of: AsOf) -> String {
        as_of.0
    }
}

impl fmt::Display for AsOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Something paid for by time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "RentKeys", into = "RentKeys")]
pub struct Rent {
    /// Price of one.
    pub price: RentPrice,
    /// How many, 1..=10,000.
    pub count: u32,
    /// The exact item, for the bill.
    pub what: Option<String>,
}

/// Price by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RentPrice {
    /// For each hour.
    PerHour(Amount),
    /// For each month of [`crate::HOURS_PER_MONTH`] hours, charged in proportion.
    PerMonth(Amount),
}

/// The keys of a [`Rent`] as they are written: exactly one of `per-hour` and `per-month`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct RentKeys {
    /// Price for each hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    per_hour: Option<Amount>,
    /// Price for a month of 730 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    per_month: Option<Amount>,
    /// How many.
    #[serde(default = "one")]
    count: u32,
    /// The exact item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    what: Option<String>,
}

fn one() -> u32 {
    1
}

fn price_in_range(price: Amount) -> Result<Amount, String> {
    if price > Amount::from(MAX_PRICE) {
        return Err(format!(
            "a price of {price} is above {MAX_PRICE}; prices are per hour, per month or per GB"
        ));
    }
    Ok(price)
}

impl TryFrom<RentKeys> for Rent {
    type Error = String;

    fn try_from(keys: RentKeys) -> Result<Self, String> {
        let price = match (keys.per_hour, keys.per_month) {
            (Some(price), None) => RentPrice::PerHour(price_in_range(price)?),
            (None, Some(price)) => RentPrice::PerMonth(price_in_range(price)?),
            _ => return Err("give exactly one of per-hour and per-month".to_owned()),
        };
        if !(1..=MAX_COUNT).contains(&keys.count) {
            return Err(format!("count is {}; it goes from 1 to {MAX_COUNT}", keys.count));
        }
        Ok(Rent { price, count: keys.count, what: keys.what })
    }
}

impl From<Rent> for RentKeys {
    fn from(rent: Rent) -> RentKeys {
        let (per_hour, per_month) = match rent.price {
            RentPrice::PerHour(price) => (Some(price), None),
            RentPrice::PerMonth(price) => (None, Some(price)),
        };
        RentKeys { per_hour, per_month, count: rent.count, what: rent.what }
    }
}

/// Something paid for by traffic: one price, or graduated tiers (each tier's price holds for the traffic inside it).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "FeeKeys", into = "FeeKeys")]
pub struct Fee {
    /// Tiers in rising order; the last one has no end.
    pub tiers: Vec<Tier>,
    /// The size of the provider's GB.
    pub unit: GbUnit,
}

/// A part of the traffic with one price.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Tier {
    /// Traffic at which the tier ends, counted from zero, in the fee's unit; absent in the last tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to: Option<Amount>,
    /// Price of each GB (or GiB, see the fee's `unit`) inside the tier; 0 for a free one.
    pub per_gb: Amount,
}

/// The keys of a [`Fee`] as they are written: exactly one of `per-gb` and `tiers`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct FeeKeys {
    /// One price for all traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    per_gb: Option<Amount>,
    /// Graduated prices, e.g. `[{ up-to = 100, per-gb = 0 }, { per-gb = 0.09 }]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tiers: Vec<Tier>,
    /// The size of the provider's GB.
    #[serde(default)]
    unit: GbUnit,
}

impl TryFrom<FeeKeys> for Fee {
    type Error = String;

    fn try_from(keys: FeeKeys) -> Result<Self, String> {
        let tiers = match (keys.per_gb, keys.tiers.is_empty()) {
            (Some(per_gb), true) => vec![Tier { up_to: None, per_gb }],
            (None, false) => keys.tiers,
            _ => return Err("give exactly one of per-gb and tiers".to_owned()),
        };
        let mut from = Amount::ZERO;
        for (i, tier) in tiers.iter().enumerate() {
            price_in_range(tier.per_gb)?;
            match (tier.up_to, i + 1 == tiers.len()) {
                (None, true) => {}
                (Some(end), false) if end > from => from = end,
                (Some(end), false) => {
                    return Err(format!("tier {} ends at {end}, which is not above {from}", i + 1));
                }
                (None, false) => return Err(format!("tier {} needs up-to: only the last has no end", i + 1)),
                (Some(_), true) => {
                    return Err("the last tier must have no up-to: it holds for the rest".to_owned());
                }
            }
        }
        Ok(Fee { tiers, unit: keys.unit })
    }
}

impl From<Fee> for FeeKeys {
    fn from(fee: Fee) -> FeeKeys {
        match fee.tiers[..] {
            [Tier { up_to: None, per_gb }] => {
                FeeKeys { per_gb: Some(per_gb), tiers: Vec::new(), unit: fee.unit }
            }
            _ => FeeKeys { per_gb: None, tiers: fee.tiers, unit: fee.unit },
        }
    }
}

/// The size of a provider's GB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GbUnit {
    /// 10^9 bytes.
    #[default]
    Gb,
    /// 2^30 bytes.
    Gib,
}

impl GbUnit {
    /// How many of this unit 1 GB (10^9 bytes) is. 10^9 / 2^30 = 5^9 / 2^21, a finite decimal: the conversion is exact.
    pub(crate) fn per_gb(self) -> Decimal {
        match self {
            GbUnit::Gb => Decimal::ONE,
            GbUnit::Gib => Decimal::from(1_953_125) / Decimal::from(2_097_152),
        }
    }

    /// The unit's symbol.
    pub fn symbol(self) -> &'static str {
        match self {
            GbUnit::Gb => "GB",
            GbUnit::Gib => "GiB",
        }
    }
}

/// Which traffic a processing fee counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Processed {
    /// Both ways, the rule for managed NAT gateways.
    #[default]
    Both,
    /// Only from the inside out.
    Egress,
    /// Only from the outside in.
    Ingress,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gb_in_gib_is_exact() {
        // 0.931322574615478515625 = 10^9 / 2^30: bc -l says so with scale=30.
        assert_eq!(GbUnit::Gib.per_gb().to_string(), "0.931322574615478515625");
        assert_eq!(GbUnit::Gib.per_gb() * Decimal::from(1_u64 << 30), Decimal::from(1_000_000_000));
    }

    #[test]
    fn values_that_make_no_sense_are_refused_with_the_remedy() {
        let fee = |text: &str| toml::from_str::<Fee>(text).map_err(|e| e.to_string());
        let rent = |text: &str| toml::from_str::<Rent>(text).map_err(|e| e.to_string());
        let cases: [(Result<(), String>, &str); 10] = [
            (rent("count = 1").map(drop), "exactly one of per-hour and per-month"),
            (rent("per-hour = 1\nper-month = 1").map(drop), "exactly one of per-hour and per-month"),
            (rent("per-hour = 1\ncount = 0").map(drop), "count is 0"),
            (rent("per-hour = 1000001").map(drop), "above 1000000"),
            (rent("per-day = 1").map(drop), "unknown field `per-day`"),
            (fee("").map(drop), "exactly one of per-gb and tiers"),
            (fee("tiers = [{ up-to = 10, per-gb = 1 }]").map(drop), "last tier must have no up-to"),
            (fee("tiers = [{ per-gb = 1 }, { per-gb = 2 }]").map(drop), "tier 1 needs up-to"),
            (
                fee("tiers = [{ up-to = 10, per-gb = 1 }, { up-to = 10, per-gb = 2 }, { per-gb = 3 }]")
                    .map(drop),
                "tier 2 ends at 10, which is not above 10",
            ),
            (fee("per-gb = 1\nunit = \"mb\"").map(drop), "unknown variant `mb`"),
        ];
        for (result, expected) in cases {
            let message = result.unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn dates_and_currencies_are_checked() {
        for good in ["2026", "2026-05", "2026-12-31"] {
            assert!(AsOf::try_from(good.to_owned()).is_ok(), "{good}");
        }
        for bad in ["", "26", "2026-13", "2026-1", "2026-01-32", "2026-01-01-01", "today"] {
            assert!(AsOf::try_from(bad.to_owned()).is_err(), "{bad}");
        }
        assert!(Currency::try_from("USD".to_owned()).is_ok());
        for bad in ["usd", "US", "$", "EURO"] {
            assert!(Currency::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
