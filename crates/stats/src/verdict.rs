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

/// The verdict on a comparison. `better`/`worse` follow the metric's own direction.
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
        /// The floor, on the comparison's scale; infinite where the baseline itself fails in some rounds.
        #[serde(with = "crate::unbounded")]
        #[schemars(with = "crate::unbounded::Number")]
        floor: f64,
    },
    /// Neither a difference nor equivalence is shown.
    Inconclusive {
        /// Further rounds that would probably be needed, if the number can be estimated.
        more_rounds: Option<u32>,
    },
    /// Fewer than six rounds: no interval, no verdict.
    TooFewRounds,
    /// It would look better, but fails more of the workload's operations: what was left out may be why.
    FailsMore,
    /// It would look better, but more of its trials are void: those that are left may be the lucky ones.
    VoidMore,
}

/// Returns the verdict on a comparison.
///
/// The first that holds, in this order:
/// 1. fewer than six rounds: [`Verdict::TooFewRounds`];
/// 2. significant after Holm *and* an effect above the noise floor: [`Verdict::Higher`] or [`Verdict::Lower`]. It comes before
///    equivalence: the verdict names a difference that is shown, and the interval beside it shows how small it is;
/// 3. shown to lie within the margin: [`Verdict::Equivalent`], also for a significant effect below the floor;
/// 4. the whole interval within the floor: [`Verdict::NoDifferenceSeen`]. A small estimate is not enough,
///    for a wide interval around it still holds effects far above the floor;
/// 5. otherwise [`Verdict::Inconclusive`].
///
/// The interval stands for one comparison, the verdict for all variants together. So an interval may exclude "no effect" while
/// the verdict is inconclusive. With exactly six rounds the smallest p is 2/64 = 0.031, which shows no difference for any variant
/// among two or more ([`least_rounds`]); the forecast then asks for the rounds that it takes.
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

#[cfg(test)]
mod tests {
    use super::*;

    const MARGINS: Margins =
        Margins { equivalence: 0.03, floor: Some(0.02), alpha: 0.05, target_half_width: 0.02 };

    fn ratio(estimate: f64, interval: (f64, f64), n: usize, p: f64, p_holm: f64) -> Comparison {
        Comparison { estimate, interval: Some(interval), n, p, p_holm, ratio: true }
    }

    fn said(comparison: &Comparison, equivalence_p: f64) -> Verdict {
        let equivalence = Equivalence { margin: 1.03_f64.ln(), p: equivalence_p };
        verdict(comparison, Some(&equivalence), &MARGINS)
    }

    #[test]
    fn a_winner_needs_significance_and_an_effect_above_the_floor() {
        assert_eq!(said(&ratio(0.88, (0.86, 0.9), 10, 0.002, 0.006), 1.0), Verdict::Lower);
        assert_eq!(said(&ratio(1.12, (1.1, 1.14), 10, 0.002, 0.006), 1.0), Verdict::Higher);
        // The same effect, not significant after Holm.
        assert!(matches!(
            said(&ratio(1.12, (1.01, 1.24), 10, 0.03, 0.09), 1.0),
            Verdict::Inconclusive { more_rounds: Some(_) }
        ));
        // Significant, below the floor.
        assert_eq!(
            said(&ratio(1.01, (1.005, 1.015), 10, 0.002, 0.006), 0.2),
            Verdict::NoDifferenceSeen { floor: 0.02 }
        );
        // Without a floor it counts.
        let margins = Margins { floor: None, ..MARGINS };
        assert_eq!(verdict(&ratio(1.01, (1.005, 1.015), 10, 0.002, 0.006), None, &margins), Verdict::Higher);
    }

    #[test]
    fn equivalence_is_said_before_no_difference_and_after_a_difference() {
        let small = ratio(1.005, (0.99, 1.015), 10, 0.4, 1.0);
        assert_eq!(said(&small, 0.01), Verdict::Equivalent { margin: 0.03 });
        assert_eq!(said(&small, 0.06), Verdict::NoDifferenceSeen { floor: 0.02 });
        assert_eq!(said(&ratio(1.025, (1.021, 1.028), 10, 0.002, 0.006), 0.01), Verdict::Higher);
    }

    #[test]
    fn a_wide_interval_around_a_small_effect_is_inconclusive() {
        assert!(matches!(said(&ratio(1.001, (0.8, 1.25), 10, 0.9, 1.0), 1.0), Verdict::Inconclusive { .. }));
    }

    #[test]
    fn few_rounds_have_no_verdict() {
        let c = Comparison { interval: None, ..ratio(0.5, (0.4, 0.6), 5, 1.0, 1.0) };
        assert_eq!(said(&c, 1.0), Verdict::TooFewRounds);
    }

    #[test]
    fn six_rounds_cannot_tell_three_variants_apart_and_say_what_can() {
        // A 12 % effect in every round of six: p = 2/64, three variants: 6/64. Seven rounds make 6/128.
        let c = ratio(0.88, (0.87, 0.89), 6, 2.0 / 64.0, 6.0 / 64.0);
        assert_eq!(said(&c, 1.0), Verdict::Inconclusive { more_rounds: Some(1) });
    }

    #[test]
    fn forecast_follows_the_width() {
        // The smallest m with w(m) <= w(n) * goal / half_width, w(n) = scipy.stats.t.isf(.025, n-1) / n**.5
        // (SciPy 1.17.1).
        for (n, half_width, goal, needed) in [(6, 0.04, 0.02, 17), (10, 0.05, 0.03, 24), (8, 0.1, 0.02, 140)]
        {
            assert_eq!(rounds_for(n, half_width, goal), Some(needed));
        }
        assert_eq!(rounds_for(10, 0.02, 0.02), Some(10));
        // Out of sight.
        assert_eq!(rounds_for(10, 0.5, 0.001), None);
    }

    #[test]
    fn forecast_takes_the_nearest_verdict() {
        // An effect of 1.2 %, +-4 %: equivalence needs a half-width of ln(1.03) - ln(1.012) = 1.8 % (at 90
        // %), the floor of 2 % one of 0.8 %. Equivalence is next; without it more rounds are needed.
        let c = ratio(1.012, (1.012 * 0.96, 1.012 / 0.96), 10, 0.5, 1.0);
        let forecast = |verdict| match verdict {
            Verdict::Inconclusive { more_rounds: Some(more) } => more,
            other => panic!("{other:?}"),
        };
        let (with, without) = (forecast(said(&c, 0.3)), forecast(verdict(&c, None, &MARGINS)));
        assert!(with < without, "{with} {without}");
    }

    /// A difference: its scale has no logarithms to round.
    fn difference(estimate: f64, interval: (f64, f64), n: usize, p: f64, p_holm: f64) -> Comparison {
        Comparison { ratio: false, ..ratio(estimate, interval, n, p, p_holm) }
    }

    #[test]
    fn a_value_on_its_bound_shows_no_difference() {
        let wide = |p_holm| difference(0.25, (0.01, 0.5), 10, 0.002, p_holm);
        assert_eq!(said(&wide(0.049), 1.0), Verdict::Higher);
        assert!(matches!(said(&wide(0.05), 1.0), Verdict::Inconclusive { .. }));
        let margins = Margins { floor: Some(0.25), ..MARGINS };
        assert!(matches!(verdict(&wide(0.049), None, &margins), Verdict::Inconclusive { .. }));
    }

    #[test]
    fn a_forecast_counts_what_holm_takes() {
        // SciPy 1.17.1: scipy.stats.t.isf(.025, n-1) / n**.5 has to halve from n = 6, which takes 17. With Holm's factor of 3
        // it has to be smaller by norm.isf(.025 / 3) / norm.isf(.025) once more, which takes 24.
        let margins = Margins { floor: None, ..MARGINS };
        for (p_holm, more) in [(0.1, 11), (0.3, 18)] {
            let c = difference(0.02, (-0.02, 0.06), 6, 0.1, p_holm);
            assert_eq!(verdict(&c, None, &margins), Verdict::Inconclusive { more_rounds: Some(more) });
        }
    }

    #[test]
    fn a_forecast_is_that_of_the_widest_goal() {
        // The smallest m with w(m) <= w(10) * goal / 0.05, w(n) = scipy.stats.t.isf(.025, n-1) / n**.5.
        let more = |c: &Comparison, margin: Option<f64>, floor: Option<f64>| {
            let equivalence = margin.map(|margin| Equivalence { margin, p: 1.0 });
            more_rounds(c, equivalence.as_ref(), &Margins { floor, ..MARGINS })
        };
        let c = difference(0.01, (-0.04, 0.06), 10, 0.5, 0.5);
        // Room for equivalence is 0.03, and a one-sided interval is shorter by norm.isf(.05) / norm.isf(.025).
        assert_eq!(more(&c, Some(0.04), None), Some(18 - 10));
        // Nearest without it: the floor, 0.02 away; and without a floor zero, 0.01 away.
        assert_eq!(more(&c, None, Some(0.03)), Some(50 - 10));
        assert_eq!(more(&c, None, None), Some(191 - 10));
        // On both bounds no verdict is ahead: only a ratio has a width to aim at, 0.02.
        let (low, high) = (-0.04_f64, 0.06_f64);
        let on_bounds = ratio(0.01_f64.exp(), (low.exp(), high.exp()), 10, 0.5, 0.5);
        let bound = Some(on_bounds.effect());
        assert_eq!(more(&on_bounds, bound, bound), Some(50 - 10));
        assert_eq!(more(&c, Some(c.effect()), Some(c.effect())), None);
    }

    #[test]
    fn a_forecast_survives_identical_rounds() {
        // No spread at all, and six rounds that Holm does not let through.
        let c = ratio(1.1, (1.1, 1.1), 6, 2.0 / 64.0, 8.0 / 64.0);
        assert_eq!(said(&c, 1.0), Verdict::Inconclusive { more_rounds: Some(2) });
    }
}
