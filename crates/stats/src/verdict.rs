//! The verdict in words, and the forecast of rounds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::compare::{Comparison, Equivalence};
use crate::signed_rank::{LEAST_ROUNDS, least_rounds};
use crate::special::{normal_quantile, student_upper};

/// Bounds that turn figures into a verdict.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Margins {
    /// Relative margin of equivalence (0.03: within 3 %).
    pub equivalence: f64,
    /// A/A noise floor on the comparison's own scale (|ln ratio| or |difference|), if known.
    pub floor: Option<f64>,
    /// Level of significance, 0.05.
    pub alpha: f64,
    /// Relative half-width of the interval that the run aims at, for the forecast of rounds.
    pub target_half_width: f64,
}

/// What may be said. `better`/`worse` follow the metric's own direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Verdict {
    /// The variant's value is higher (significant after Holm, and above the noise floor).
    Higher,
    /// The variant's value is lower (likewise).
    Lower,
    /// The two one-sided tests put the effect within the margin.
    Equivalent {
        /// The relative margin.
        margin: f64,
    },
    /// Whatever there is lies below the noise floor of the baseline against itself.
    NoDifferenceSeen {
        /// The floor, on the comparison's scale.
        floor: f64,
    },
    /// Neither a difference nor equivalence is shown.
    Inconclusive {
        /// Rounds that would probably be needed on top, if that can be said.
        more_rounds: Option<u32>,
    },
    /// Fewer than six rounds: no interval, no verdict.
    TooFewRounds,
}

/// What may be said about a comparison.
///
/// The first that holds, in this order:
/// 1. fewer than six rounds: [`Verdict::TooFewRounds`];
/// 2. significant after Holm *and* an effect above the noise floor: [`Verdict::Higher`] or
///    [`Verdict::Lower`]. It comes
///    before equivalence: a difference that is shown is said, and the interval beside it says how small it is;
/// 3. shown to lie within the margin: [`Verdict::Equivalent`], also for a significant effect below the floor;
/// 4. the whole interval within the floor: [`Verdict::NoDifferenceSeen`]. A small estimate is not enough,
///    for a wide
///    interval around it still holds effects far above the floor;
/// 5. otherwise [`Verdict::Inconclusive`].
///
/// The interval stands for one comparison, the verdict for all variants together, so an interval may exclude
/// "no effect" while the verdict is inconclusive. With exactly six rounds the smallest p is 2/64 = 0.031,
/// and no variant among two or more can be told apart ([`least_rounds`]); the forecast then asks for the
/// rounds that it takes.
pub fn verdict(comparison: &Comparison, equivalence: Option<&Equivalence>, margins: &Margins) -> Verdict {
    let Some((low, high)) = comparison.effect_interval().filter(|_| comparison.n >= LEAST_ROUNDS) else {
        return Verdict::TooFewRounds;
    };
    let effect = comparison.effect();
    if comparison.p_holm < margins.alpha && effect.abs() > margins.floor.unwrap_or(0.0) {
        return if effect > 0.0 { Verdict::Higher } else { Verdict::Lower };
    }
    if equivalence.is_some_and(|e| e.p <= margins.alpha) {
        return Verdict::Equivalent { margin: margins.equivalence };
    }
    if let Some(floor) = margins.floor.filter(|floor| -floor <= low && high <= *floor) {
        return Verdict::NoDifferenceSeen { floor };
    }
    Verdict::Inconclusive { more_rounds: more_rounds(comparison, equivalence, margins) }
}

/// Beyond this many times the rounds made, a forecast says more about the noise in it than about the run.
const FORECAST_LIMIT: usize = 50;

/// Rounds on top until a verdict is likely, if the effect and the noise stay as they are: at least 1; `None`
/// if that is out of sight.
///
/// The half-width shrinks like t(n-1) / sqrt(n). It has to come down to the widest of: the distance of the
/// effect to zero (with Holm's tighter level), to the margin of equivalence, to the noise floor; or, if the
/// effect sits on one of these bounds so that no verdict is ahead, to the width that the run aims at.
fn more_rounds(c: &Comparison, equivalence: Option<&Equivalence>, margins: &Margins) -> Option<u32> {
    let half_width = c.half_width()?;
    let effect = c.effect().abs();
    let floor = margins.floor.unwrap_or(0.0);
    // Holm multiplied p by this; 1 when p_holm was capped, and then the width decides anyway.
    let factor = if c.p > 0.0 { (c.p_holm / c.p).max(1.0) } else { 1.0 };
    let tighter = normal_quantile(margins.alpha / 2.0 / factor) / normal_quantile(margins.alpha / 2.0);

    // Half-widths at which a verdict is due, each with the rounds that it takes at least.
    let mut goals = Vec::new();
    if effect > floor {
        goals.push((effect / tighter, least_rounds(factor.round() as usize, margins.alpha)));
    }
    if let Some(room) = equivalence.map(|e| e.margin - effect).filter(|room| *room > 0.0) {
        // One-sided tests at alpha are an interval at 1 - 2 alpha.
        let looser = normal_quantile(margins.alpha) / normal_quantile(margins.alpha / 2.0);
        goals.push((room / looser, LEAST_ROUNDS));
    }
    if effect < floor {
        goals.push((floor - effect, LEAST_ROUNDS));
    }
    if goals.is_empty() && c.ratio {
        goals.push((margins.target_half_width, LEAST_ROUNDS));
    }
    let needed = goals
        .into_iter()
        .filter_map(|(goal, least)| rounds_for(c.n, half_width, goal).map(|rounds| rounds.max(least)))
        .min()?;
    Some(needed.saturating_sub(c.n).max(1) as u32)
}

/// Smallest number of rounds whose half-width is probably at most `goal`, given `half_width` after `n`
/// rounds.
fn rounds_for(n: usize, half_width: f64, goal: f64) -> Option<usize> {
    let width = |n: usize| student_upper(0.025, (n - 1) as f64) / (n as f64).sqrt();
    let wanted = width(n) * goal / half_width;
    let (mut low, mut high) = (LEAST_ROUNDS, n * FORECAST_LIMIT);
    if half_width <= goal {
        return Some(n);
    }
    if width(high) > wanted {
        return None;
    }
    while low < high {
        let middle = (low + high) / 2;
        if width(middle) <= wanted {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Some(high)
}
