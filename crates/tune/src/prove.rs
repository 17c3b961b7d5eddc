//! Before and after in alternating windows: does a change help, and by how much?
//!
//! Each round has a window without and one with the change, in random order. A drift over the whole trial affects both sides of a
//! round alike. Signed ranks compare the effects of the rounds, as in `weir bench`.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use schemars::JsonSchema;
use serde::Serialize;
use weir_stats::compare::{
    Comparison, compare_difference, compare_ratio, equivalence_difference, equivalence_ratio,
};
use weir_stats::signed_rank::LEAST_ROUNDS;
use weir_stats::verdict::Margins;
use weir_stats::{Verdict, verdict};

/// Fewest rounds that can show anything at the 5 % level.
pub const LEAST: usize = LEAST_ROUNDS;
/// Effects within 3 % are called equivalent.
const EQUIVALENCE: f64 = 0.03;

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// More is better, e.g. requests per second.
    Higher,
    /// Less is better, e.g. drops.
    Lower,
}

/// The values of a round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Round {
    /// Without the change.
    pub before: f64,
    /// With it.
    pub after: f64,
    /// Whether the window without it came first.
    pub before_first: bool,
}

/// The rounds and their result.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Proof {
    /// The rounds.
    pub rounds: Vec<Round>,
    /// Seed of the order.
    pub seed: u64,
    /// Which way is better.
    pub better: Better,
    /// After against before; on the difference scale where a value was zero.
    pub comparison: Option<Comparison>,
    /// Verdict on the comparison.
    pub verdict: Option<Verdict>,
}

/// For each round, whether the window without the change comes first: half of the rounds each way, in random order.
pub fn order(rounds: usize, seed: u64) -> Vec<bool> {
    let mut order: Vec<bool> = (0..rounds).map(|n| n % 2 == 0).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    order
}

/// Measures all rounds. `window` receives whether the change must be in effect, and returns the value of one window.
///
/// # Errors
/// The first of `window`.
pub fn measure<E>(
    rounds: usize,
    seed: u64,
    mut window: impl FnMut(bool) -> Result<f64, E>,
) -> Result<Vec<Round>, E> {
    let mut all = Vec::with_capacity(rounds);
    for before_first in order(rounds, seed) {
        let first = window(!before_first)?;
        let second = window(before_first)?;
        let (before, after) = if before_first { (first, second) } else { (second, first) };
        all.push(Round { before, after, before_first });
    }
    Ok(all)
}

impl Proof {
    /// Evaluates the rounds.
    pub fn of(rounds: Vec<Round>, seed: u64, better: Better) -> Self {
        let pairs: Vec<(f64, f64)> = rounds.iter().map(|r| (r.after, r.before)).collect();
        // "Infinitely more" than none says less than how many.
        let (comparison, equivalence) = if pairs.iter().all(|(after, before)| *after > 0.0 && *before > 0.0) {
            (compare_ratio(&pairs), equivalence_ratio(&pairs, EQUIVALENCE))
        } else {
            (compare_difference(&pairs), equivalence_difference(&pairs, EQUIVALENCE))
        };
        let margins =
            Margins { equivalence: EQUIVALENCE, floor: None, alpha: 0.05, target_half_width: EQUIVALENCE };
        let verdict = comparison.as_ref().map(|c| verdict(c, equivalence.as_ref(), &margins));
        Proof { rounds, seed, better, comparison, verdict }
    }

    /// True if the change is shown to help.
    pub fn helps(&self) -> bool {
        matches!(
            (self.verdict, self.better),
            (Some(Verdict::Higher), Better::Higher) | (Some(Verdict::Lower), Better::Lower)
        )
    }

    /// In one sentence.
    pub fn words(&self) -> String {
        let n = self.rounds.len();
        let Some(c) = &self.comparison else { return "no round was measured".into() };
        let number = |x: f64| if c.ratio { format!("x {x:.3}") } else { format!("{x:+.3}") };
        let interval = c
            .interval
            .map_or("no interval".to_owned(), |(l, h)| format!("95 % [{}, {}]", number(l), number(h)));
        let effect =
            format!("after / before {}", number(c.estimate)).replace("after / before +", "after - before +");
        let effect = if c.ratio { effect } else { effect.replace("after / before", "after - before") };
        let said = match self.verdict {
            Some(Verdict::Higher | Verdict::Lower) if self.helps() => "better".to_owned(),
            Some(Verdict::Higher | Verdict::Lower) => "worse".to_owned(),
            Some(Verdict::Equivalent { margin }) => format!("no more than {:.0} % apart", margin * 100.0),
            Some(Verdict::TooFewRounds) | None => format!("too few rounds to say more: {LEAST} at least"),
            Some(Verdict::NoDifferenceSeen { .. }) => "no difference seen".into(),
            Some(Verdict::Inconclusive { more_rounds: Some(more) }) => {
                format!("inconclusive, needs about {more} more rounds")
            }
            Some(Verdict::FailsMore | Verdict::VoidMore) => "not better: more of it fails".into(),
            Some(Verdict::Inconclusive { more_rounds: None }) => "inconclusive".into(),
        };
        format!("{said}: {effect}, {interval}, {n} rounds, p = {:.3}", c.p)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_balanced_and_the_seeds() {
        for rounds in [6, 7, 20] {
            let first = order(rounds, 1).iter().filter(|b| **b).count();
            assert_eq!(first, rounds.div_ceil(2));
        }
        assert_eq!(order(20, 5), order(20, 5));
        assert!((0..20).any(|seed| order(20, seed) != order(20, 5)));
    }

    #[test]
    fn windows_come_in_the_order_that_was_drawn() {
        let mut asked = Vec::new();
        let rounds = measure::<()>(8, 3, |made| {
            asked.push(made);
            Ok(if made { 2.0 } else { 1.0 })
        })
        .unwrap();
        assert!(rounds.iter().all(|r| (r.before, r.after) == (1.0, 2.0)));
        let expected: Vec<bool> =
            order(8, 3).into_iter().flat_map(|before_first| [!before_first, before_first]).collect();
        assert_eq!(asked, expected);
        assert_eq!(measure(8, 3, |_| Err::<f64, _>("broken")).unwrap_err(), "broken");
    }

    fn proof(pairs: &[(f64, f64)], better: Better) -> Proof {
        let rounds =
            pairs.iter().map(|&(before, after)| Round { before, after, before_first: true }).collect();
        Proof::of(rounds, 0, better)
    }

    #[test]
    fn a_shown_effect_is_said_with_its_direction() {
        // Twice as much in every round, with some noise: the estimate lies between the least and the largest ratio.
        let pairs: Vec<(f64, f64)> =
            (0..8).map(|n| (100.0 + f64::from(n), 2.0 * (100.0 + f64::from(n * 3 % 8)))).collect();
        let up = proof(&pairs, Better::Higher);
        assert!(up.helps(), "{up:?}");
        let c = up.comparison.unwrap();
        let (low, high) = c.interval.unwrap();
        assert!(c.ratio && low <= c.estimate && c.estimate <= high && low > 1.8 && high < 2.2);
        // 2 x 2^-8, the smallest p of eight rounds.
        assert!((c.p - 2.0 / 256.0).abs() < 1e-12);
        assert!(up.words().starts_with("better: after / before x 2."), "{}", up.words());
        let down = proof(&pairs, Better::Lower);
        assert!(!down.helps() && down.words().starts_with("worse"), "{}", down.words());
    }

    #[test]
    fn zeros_are_compared_by_difference() {
        let pairs: Vec<(f64, f64)> = (0..7).map(|n| (500.0 + f64::from(n), 0.0)).collect();
        let gone = proof(&pairs, Better::Lower);
        assert!(gone.helps());
        let c = gone.comparison.unwrap();
        assert!(!c.ratio && c.estimate == -503.0, "{c:?}");
        assert!(gone.words().starts_with("better: after - before -503"), "{}", gone.words());
    }

    #[test]
    fn few_rounds_and_no_effect_show_nothing() {
        let few = proof(&[(1.0, 2.0); 5], Better::Higher);
        assert!(!few.helps() && few.words().starts_with("too few rounds"), "{}", few.words());
        let same = proof(&[(1.0, 1.0); 8], Better::Higher);
        assert!(!same.helps() && same.words().starts_with("no more than 3 % apart"), "{}", same.words());
        assert!(!proof(&[], Better::Higher).helps());
    }
}
