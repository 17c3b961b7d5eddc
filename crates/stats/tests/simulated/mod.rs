//! Noise with known truth, from a seeded generator.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::f64::consts::PI;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_stats::Delays;

/// Shape of a trial's noise on the logarithm, with a spread of about one.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    /// Normal: the textbook.
    Normal,
    /// Lognormal, mostly small and sometimes far up: a neighbour that interferes.
    Skewed,
    /// Student's t with two degrees of freedom: no finite variance.
    HeavyTailed,
}

pub(crate) const SHAPES: [Shape; 3] = [Shape::Normal, Shape::Skewed, Shape::HeavyTailed];

/// Standard deviation of the logarithm of the delays within a trial.
pub(crate) const WITHIN_TRIAL: f64 = 0.3;

/// The generator.
pub(crate) struct Source(ChaCha8Rng);

impl Source {
    pub(crate) fn new(seed: u64) -> Self {
        Source(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Uniform in 0..1, both ends excluded.
    pub(crate) fn uniform(&mut self) -> f64 {
        (f64::from(self.0.next_u32()) + 0.5) / 4_294_967_296.0
    }

    /// Standard normal (Box and Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (2.0 * PI * self.uniform()).cos()
    }

    pub(crate) fn noise(&mut self, shape: Shape) -> f64 {
        match shape {
            Shape::Normal => self.normal(),
            Shape::Skewed => 0.6 * self.normal().exp(),
            // Normal over the root of a chi-square with two degrees of freedom, which is exponential.
            Shape::HeavyTailed => self.normal() / (-self.uniform().ln()).sqrt(),
        }
    }

    /// A trial's value around `level`.
    pub(crate) fn value(&mut self, level: f64, spread: f64, shape: Shape) -> f64 {
        level * (spread * self.noise(shape)).exp()
    }

    /// Number of successes, for a small mean.
    pub(crate) fn poisson(&mut self, mean: f64) -> u64 {
        let limit = (-mean).exp();
        let mut product = self.uniform();
        let mut n = 0;
        while product > limit {
            product *= self.uniform();
            n += 1;
        }
        n
    }

    /// Delays of one trial: a lognormal around `scale_ns`, moved as a whole by the luck of the trial.
    pub(crate) fn delays(&mut self, packets: u32, scale_ns: f64, spread: f64, shape: Shape) -> Delays {
        self.censored_delays(packets, scale_ns, (spread, shape), 0.0)
    }

    /// The same where operations fail with a probability of `failing`. Half of these are refused, half are under way for ten
    /// times the scale.
    pub(crate) fn censored_delays(
        &mut self,
        packets: u32,
        scale_ns: f64,
        (spread, shape): (f64, Shape),
        failing: f64,
    ) -> Delays {
        let luck = self.value(scale_ns, spread, shape);
        let mut delays = Delays::new();
        for nth in 0..packets {
            let ns = luck * (WITHIN_TRIAL * self.normal()).exp();
            match failing > 0.0 && self.uniform() < failing {
                false => delays.record(ns as u64),
                true if nth % 2 == 0 => delays.fail(1),
                true => delays.record_open((10.0 * scale_ns) as u64),
            }
        }
        delays
    }
}
