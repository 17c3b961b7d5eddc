//! The traffic at which two options cost the same.
//!
//! At a fixed time and a fixed mix of directions, what an option costs is a continuous, piecewise linear function of
//! the traffic: the rents, plus for each fee the tier prices up to that traffic. So is the difference of two
//! options, and inside a piece, where it is `d0 + m (x - x0)`, it is zero at `x0 - d0 / m` and nowhere else. For
//! two options without tiers that is the well-known `(fixed_b - fixed_a) / (per_gb_a - per_gb_b)`.

use std::cmp::Ordering;

use rust_decimal::Decimal;
use schemars::JsonSchema;
use serde::Serialize;

use crate::bill::{Metered, bill, by_tier, metered};
use crate::{Amount, PriceOption, Question};

/// Differences below this many currency units are equality. A break point is a quotient, rounded at 28 digits: a
/// difference that is zero in truth may come out as 10^-20.
const SAME: Decimal = Decimal::from_parts(1, 0, 0, false, 12);

/// Greatest traffic considered, GB: 10^12, a zettabyte. Traffic above it is no answer to a question about one hop, and the bound
/// keeps every product inside the decimal type.
const MOST_GB: u64 = 1_000_000_000_000;

/// Which of two options is cheaper, over all traffic from none to 10^12 GB.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BreakEven {
    /// First option.
    pub a: String,
    /// Second option.
    pub b: String,
    /// Share of the traffic that goes out, 0..=1: that of the question, or 0 where it asks for no traffic.
    pub egress_ratio: Amount,
    /// Ranges of traffic, from zero up, without gaps; neighbours differ in `cheaper`.
    pub ranges: Vec<Range>,
}

/// A range of traffic in which one option is the cheaper one throughout.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Range {
    /// Its start, GB both ways together.
    pub from_gb: Amount,
    /// The cheaper option; absent where both cost the same.
    pub cheaper: Option<String>,
}

/// A [`BreakEven`] in one word.
#[derive(Debug, Clone, PartialEq)]
pub enum CostVerdict<'a> {
    /// This one is cheaper at any traffic (at zero traffic the two may be equal): the other one never is.
    Always(&'a str),
    /// Both cost the same at any traffic.
    Same,
    /// Which one is cheaper changes at these amounts of traffic (GB both ways together).
    At(Vec<Amount>),
}

impl BreakEven {
    /// The conclusion.
    pub fn verdict(&self) -> CostVerdict<'_> {
        match &self.ranges[..] {
            [Range { cheaper: Some(name), .. }] => CostVerdict::Always(name),
            [] | [Range { cheaper: None, .. }] => CostVerdict::Same,
            [_, rest @ ..] => CostVerdict::At(rest.iter().map(|r| r.from_gb).collect()),
        }
    }
}

/// Compares `a` and `b` over all traffic with the mix of directions and the hours of `question`.
pub fn break_even(question: &Question, a: &PriceOption, b: &PriceOption) -> BreakEven {
    let mix = question.mix();
    let gb_total = mix.gb_total().0;
    // The unknown is `scale`, the multiple of the mix's traffic; it becomes GB only at the very end.
    let meters = [metered(&mix, a), metered(&mix, b)];
    let most = Decimal::from(MOST_GB) / gb_total;
    let mut starts: Vec<Decimal> = meters
        .iter()
        .flatten()
        .flat_map(ends_of_tiers)
        .filter(|&end| end < most)
        .chain([Decimal::ZERO])
        .collect();
    starts.sort();
    starts.dedup();

    let fixed = bill(question, a).fixed.0 - bill(question, b).fixed.0;
    let mut pieces: Vec<(Decimal, Ordering)> = Vec::new();
    for (i, &start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).copied().unwrap_or(most);
        let difference = fixed + traffic_cost(&meters[0], start) - traffic_cost(&meters[1], start);
        let slope = slope(&meters[0], start) - slope(&meters[1], start);
        let now = sign(difference);
        let later = slope.cmp(&Decimal::ZERO);
        if now == Ordering::Equal {
            pieces.push((start, later));
            continue;
        }
        pieces.push((start, now));
        if later == now.reverse() {
            // Fails only by overflow: a zero that far out is beyond `most`.
            let zero = difference.abs().checked_div(slope.abs()).and_then(|way| start.checked_add(way));
            if let Some(zero) = zero.filter(|&zero| zero < end) {
                pieces.push((zero, later));
            }
        }
    }
    pieces.dedup_by(|next, kept| next.1 == kept.1);

    let ranges = pieces.into_iter().map(|(scale, sign)| Range {
        from_gb: Amount((scale * gb_total).normalize()),
        cheaper: match sign {
            Ordering::Less => Some(a.name.clone()),
            Ordering::Greater => Some(b.name.clone()),
            Ordering::Equal => None,
        },
    });
    BreakEven {
        a: a.name.clone(),
        b: b.name.clone(),
        egress_ratio: Amount((mix.gb_out.0 / gb_total).normalize()),
        ranges: ranges.collect(),
    }
}

fn sign(difference: Decimal) -> Ordering {
    if difference.abs() < SAME { Ordering::Equal } else { difference.cmp(&Decimal::ZERO) }
}

/// The scales at which the tiers of a fee end.
fn ends_of_tiers(metered: &Metered<'_>) -> Vec<Decimal> {
    if metered.quantity.is_zero() {
        return Vec::new();
    }
    metered.fee.tiers.iter().filter_map(|t| t.up_to).map(|end| end.0 / metered.quantity).collect()
}

/// Computes the fees at `scale` times their traffic.
fn traffic_cost(meters: &[Metered<'_>], scale: Decimal) -> Decimal {
    let parts = meters.iter().flat_map(|metered| by_tier(metered.fee, metered.quantity * scale));
    parts.map(|(_, quantity, tier)| quantity * tier.per_gb.0).sum()
}

/// By how much the fees grow per unit of scale, just above `scale`.
fn slope(meters: &[Metered<'_>], scale: Decimal) -> Decimal {
    meters
        .iter()
        .filter(|m| !m.quantity.is_zero())
        .filter_map(|m| {
            // The same quotient as in `ends_of_tiers`, so that a scale that is a tier's end is past that tier.
            let tier = m.fee.tiers.iter().find(|t| t.up_to.is_none_or(|end| end.0 / m.quantity > scale))?;
            Some(m.quantity * tier.per_gb.0)
        })
        .sum()
}
