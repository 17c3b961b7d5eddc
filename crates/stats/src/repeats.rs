//! Does a value jump between repeats? The variance between repeats, apart from the noise inside each of them.
//!
//! A repeat is one trial with connections of its own; its windows are the averages of so many transactions each, in the
//! order of time. The model is the one-way random-effects analysis of variance: average of a repeat = mean + what this
//! repeat happened to meet (another gateway, another path) + noise inside the repeat (Searle, Casella and McCulloch,
//! Variance Components, 1992, chapter 3). Its variance components are estimated by moments.
//!
//! Neighbouring windows are alike, because whatever disturbs a host lasts: taken as independent they would make the noise
//! of an average look too small and every path look restless. So windows are first joined to 16 to 31 longer batches (method
//! of batch means; Schmeiser, Operations Research 30, 1982), and what correlation is left between neighbouring batches is
//! estimated over all repeats together and accounted for as that of a first-order autoregression (Bayley and Hammersley,
//! Supplement to the J. R. Statist. Soc. 8, 1946).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::order::{mean, sd, sorted};
use crate::special::{chi_square_upper, f_upper, f_upper_tail};

/// Fewest repeats for any statement: with three the interval of the variance between them spans a factor of 12.
pub const LEAST_REPEATS: usize = 4;

/// Fewest windows of a repeat: one alone has no noise to be seen.
pub const LEAST_WINDOWS: usize = 2;

/// A repeat is divided into at least so many batches, where it has as many windows, and into less than twice as many: long
/// enough to be nearly independent, and enough of them to see how nearly.
const BATCHES: usize = 16;

/// With fewer batches of each repeat than this, their correlation looks the same as luck, so none is accounted for. A false
/// correlation would widen the noise of an average, and hide half of the real jumps.
const CORRELATED_FROM: usize = 6;

/// Largest correlation of neighbouring batches: beyond it, the noise of an average looks the same as a drift.
const MOST_CORRELATION: f64 = 0.9;

/// Both tails of 95 % intervals.
const TAIL: f64 = 0.025;

/// One trial.
#[derive(Debug, Clone, PartialEq)]
pub struct Repeat {
    /// Average over all its transactions, in any unit.
    pub average: f64,
    /// Averages of its windows in the order of time, in the same unit.
    pub windows: Vec<f64>,
}

/// The components of the variance of repeats' averages, as standard deviations in the unit of the values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Components {
    /// Repeats.
    pub repeats: usize,
    /// Repeats among these with at least two windows, which show the noise inside.
    pub inside: usize,
    /// Batches into which each of those was divided.
    pub batches: usize,
    /// Correlation of neighbouring batches, 0..=0.9; negative ones count as 0.
    pub correlation: f64,
    /// Mean of the averages.
    pub mean: f64,
    /// Standard deviation of the averages, all causes together.
    pub spread: f64,
    /// Standard deviation that an average has by the noise inside its repeat.
    pub within: f64,
    /// Standard deviation between repeats, without the noise; 0 if nothing remains.
    pub between: f64,
    /// 95 % interval of `between`.
    pub interval: (f64, f64),
}

/// Verdict on a path that was measured repeatedly.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Repeatability {
    /// It jumps: the averages differ by more than noise explains, and by more than the margin.
    Jumps,
    /// The whole interval of the standard deviation between repeats lies within the margin.
    Steady {
        /// The margin, relative to the mean.
        margin: f64,
    },
    /// Neither is shown.
    Open {
        /// Further repeats that would probably be needed to call it steady, if the number can be estimated.
        more_repeats: Option<u32>,
    },
    /// Fewer than four repeats, or repeats of fewer than two windows.
    TooFew,
}

/// Repeats whose averages lie close together, apart from all others.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Level {
    /// Mean of their averages.
    pub center: f64,
    /// How many they are.
    pub repeats: usize,
}

/// Splits the variance of the averages; `None` with fewer than [`LEAST_REPEATS`] repeats, fewer than [`LEAST_WINDOWS`]
/// windows in more than half of them, or values that are not finite.
///
/// Every repeat counts the same, however many windows it had (unweighted means: Thomas and Hultquist, Annals of Statistics
/// 6, 1978). The interval is that of Williams (Biometrika 49, 1962) and Tukey: it never covers less than it says by more
/// than a fraction of a per cent (Wang, Biometrics 46, 1990).
pub fn components(repeats: &[Repeat]) -> Option<Components> {
    let averages: Vec<f64> = repeats.iter().map(|r| r.average).collect();
    let finite = repeats.iter().all(|r| r.average.is_finite() && r.windows.iter().all(|w| w.is_finite()));
    // A repeat that was too slow for two windows still counts as a repeat, but shows nothing of the noise.
    let inside: Vec<&Repeat> = repeats.iter().filter(|r| r.windows.len() >= LEAST_WINDOWS).collect();
    let windows = inside.iter().map(|r| r.windows.len()).min()?;
    let batches = windows / (windows / BATCHES).max(1);
    if repeats.len() < LEAST_REPEATS || 2 * inside.len() < repeats.len() || !finite {
        return None;
    }
    let deviations: Vec<Vec<f64>> = inside.iter().map(|r| deviations(&r.windows, batches)).collect();
    let correlation = correlation(&deviations, batches);
    let squares: f64 = deviations.iter().flatten().map(|d| d * d).sum();
    let per_batch = squares / (inside.len() * (batches - 1)) as f64;
    let noise = per_batch / batches as f64 * inflation(correlation, batches);
    let spread = sd(&averages)?;
    let mut split = Components {
        repeats: repeats.len(),
        inside: inside.len(),
        batches,
        correlation,
        mean: mean(&averages)?,
        spread,
        within: noise.sqrt(),
        between: (spread * spread - noise).max(0.0).sqrt(),
        interval: (0.0, 0.0),
    };
    split.interval = split.bounds();
    Some(split)
}

/// Returns the averages of consecutive windows less their mean. If windows do not divide evenly, batches differ by one window,
/// and the noise comes out a few per cent too large rather than too small.
fn deviations(windows: &[f64], batches: usize) -> Vec<f64> {
    let n = windows.len();
    let averages: Vec<f64> = (0..batches)
        .map(|b| &windows[b * n / batches..(b + 1) * n / batches])
        .map(|batch| batch.iter().sum::<f64>() / batch.len() as f64)
        .collect();
    let center = averages.iter().sum::<f64>() / batches as f64;
    averages.into_iter().map(|a| a - center).collect()
}

/// Sum over pairs of batches of a first-order autoregression: `sum of (1 - l/n) rho^l` for l from 1 to n - 1. The mean of n
/// such values has `(1 + 2 sum)` times the variance that it would have if they were independent.
fn pairs_sum(rho: f64, n: usize) -> f64 {
    (1..n).map(|l| (1.0 - l as f64 / n as f64) * rho.powi(l as i32)).sum()
}

/// By what factor the variance of the batches around their own mean, taken as that of independent values, falls short.
fn inflation(rho: f64, n: usize) -> f64 {
    let sum = pairs_sum(rho, n);
    (1.0 + 2.0 * sum) / (1.0 - 2.0 * sum / (n - 1) as f64)
}

/// Returns the average ratio of the sums of neighbouring products and of squares, for values with that correlation from which
/// their own mean was taken: -1/n for independent ones.
fn expected_ratio(rho: f64, n: usize) -> f64 {
    let count = n as f64;
    let of_mean = (1.0 + 2.0 * pairs_sum(rho, n)) / count;
    let of_first_and_mean = (0..n).map(|l| rho.powi(l as i32)).sum::<f64>() / count;
    let products = (count - 1.0) * rho - (count + 1.0) * of_mean + 2.0 * of_first_and_mean;
    products / (count * (1.0 - of_mean))
}

/// Correlation of neighbouring batches, over all repeats: the one of which the ratio seen is the expectation.
fn correlation(deviations: &[Vec<f64>], batches: usize) -> f64 {
    let squares: f64 = deviations.iter().flatten().map(|d| d * d).sum();
    let products: f64 = deviations.iter().flat_map(|d| d.windows(2)).map(|pair| pair[0] * pair[1]).sum();
    if squares <= 0.0 || batches < CORRELATED_FROM {
        return 0.0;
    }
    let seen = products / squares;
    let (mut low, mut high) = (0.0, MOST_CORRELATION);
    if seen <= expected_ratio(low, batches) {
        return low;
    }
    for _ in 0..50 {
        let middle = 0.5 * (low + high);
        if expected_ratio(middle, batches) < seen {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

impl Components {
    fn between_df(&self) -> f64 {
        (self.repeats - 1) as f64
    }

    fn within_df(&self) -> f64 {
        (self.inside * (self.batches - 1)) as f64
    }

    fn bounds(&self) -> (f64, f64) {
        let (df, within_df, squares) = (self.between_df(), self.within_df(), self.spread * self.spread);
        if squares <= 0.0 {
            return (0.0, 0.0);
        }
        let share_of_noise = self.within * self.within / squares;
        let bound = |tail: f64| {
            let left = 1.0 - f_upper(tail, df, within_df) * share_of_noise;
            (df * squares / chi_square_upper(tail, df) * left).max(0.0).sqrt()
        };
        (bound(TAIL), bound(1.0 - TAIL))
    }

    /// p-value of "the standard deviation between repeats is at most `floor`", which is in the unit of the values. With a
    /// floor of 0 it is that of the F test of the analysis of variance.
    ///
    /// The variances of noise and floor add; what is known of their sum follows Satterthwaite (Biometrics 2, 1946).
    pub fn p_above(&self, floor: f64) -> f64 {
        let noise = self.within * self.within;
        let explained = noise + floor * floor;
        if self.spread <= 0.0 {
            return 1.0;
        }
        if explained <= 0.0 {
            return 0.0;
        }
        // Infinite without noise.
        let df = self.within_df() * (explained / noise).powi(2);
        // Beyond a million the sum is known as well as any number: F no longer changes with it.
        f_upper_tail(self.spread * self.spread / explained, self.between_df(), df.min(1e6))
    }

    /// p-value of "the averages spread no more than those of a path that is known to be the same": `differences` are those
    /// of two doubles of it, one per round. `None` with fewer than [`LEAST_REPEATS`] of them.
    ///
    /// The variance of a difference is twice that of an average, so half of it is what the place itself does between one
    /// trial and the next.
    pub fn p_above_twins(&self, differences: &[f64]) -> Option<f64> {
        let floor = twin_spread(differences)?;
        if self.spread <= 0.0 {
            return Some(1.0);
        }
        if floor <= 0.0 {
            return Some(0.0);
        }
        let df = (differences.len() - 1) as f64;
        Some(f_upper_tail((self.spread / floor).powi(2), self.between_df(), df))
    }

    /// Returns the verdict, given the p-value after correction for the number of paths, and the margin relative to the mean
    /// within which a path is called steady.
    pub fn verdict(&self, p: f64, margin: f64, alpha: f64) -> Repeatability {
        let bound = margin * self.mean.abs();
        if p < alpha {
            return Repeatability::Jumps;
        }
        if self.interval.1 <= bound {
            return Repeatability::Steady { margin };
        }
        Repeatability::Open { more_repeats: self.more_repeats(bound) }
    }

    /// Repeats on top until the interval probably lies within the bound, if the spread stays as it is.
    fn more_repeats(&self, bound: f64) -> Option<u32> {
        const FURTHEST: usize = 50;
        let within = |n: usize| {
            let df = (n - 1) as f64;
            self.spread * (df / chi_square_upper(1.0 - TAIL, df)).sqrt() <= bound
        };
        (self.repeats + 1..=self.repeats * FURTHEST).find(|n| within(*n)).map(|n| (n - self.repeats) as u32)
    }

    /// The levels between which the averages jump: groups that lie further apart than noise and margin explain. Empty where
    /// there are not two to four of them with fewer levels than half the repeats: then it is a spread, and no few levels.
    pub fn levels(&self, averages: &[f64], margin: f64) -> Vec<Level> {
        const MOST_LEVELS: usize = 4;
        // Six standard deviations of one average: the gap between neighbours of one level is below it, whatever their number.
        let apart = (6.0 * self.within).max(margin * self.mean.abs());
        let sorted = sorted(averages);
        let levels: Vec<Level> = sorted
            .chunk_by(|a, b| b - a <= apart)
            .filter_map(|c| Some(Level { center: mean(c)?, repeats: c.len() }))
            .collect();
        let few = (2..=MOST_LEVELS).contains(&levels.len()) && 2 * levels.len() <= averages.len();
        if few { levels } else { Vec::new() }
    }
}

/// Standard deviation that the place itself gives an average between one trial and the next, from the differences of two
/// doubles of one path, one per round. `None` with fewer than [`LEAST_REPEATS`].
pub fn twin_spread(differences: &[f64]) -> Option<f64> {
    if differences.len() < LEAST_REPEATS {
        return None;
    }
    sd(differences).map(|d| d / 2f64.sqrt()).filter(|d| d.is_finite())
}

#[cfg(test)]
mod tests;
