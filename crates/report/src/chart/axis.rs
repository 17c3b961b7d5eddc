//! Axes: from a value to a place between 0 and 1, and where the ticks are.

use weir_record::Unit;

use crate::units::{decimals, display_for, number};

/// A linear or logarithmic axis.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Axis {
    low: f64,
    high: f64,
    log: bool,
}

impl Axis {
    /// Linear, a little wider than the values; `None` without values.
    pub(crate) fn linear(values: impl Iterator<Item = f64>, from_zero: bool) -> Option<Self> {
        let (mut low, mut high) = bounds(values)?;
        if from_zero {
            low = low.min(0.0);
            high = high.max(0.0);
        }
        let room = if high > low { (high - low) * 0.06 } else { high.abs().max(1.0) * 0.1 };
        let floor = if low >= 0.0 { 0.0 } else { f64::NEG_INFINITY };
        let low = if from_zero && low == 0.0 { 0.0 } else { (low - room).max(floor) };
        Some(Axis { low, high: high + room, log: false })
    }

    /// Logarithmic, a little wider than the positive values; `None` without any.
    pub(crate) fn log(values: impl Iterator<Item = f64>) -> Option<Self> {
        let (low, high) = bounds(values.filter(|v| *v > 0.0))?;
        let room = (high / low).ln().max(0.02) * 0.06;
        Some(Axis { low: low * (-room).exp(), high: high * room.exp(), log: true })
    }

    /// Exactly from `low` to `high`.
    pub(crate) fn exact(low: f64, high: f64, log: bool) -> Self {
        Axis { low, high, log }
    }

    /// 0 at the low end, 1 at the high end; held between them.
    pub(crate) fn position(&self, value: f64) -> f64 {
        let (low, high, value) =
            if self.log { (self.low.ln(), self.high.ln(), value.ln()) } else { (self.low, self.high, value) };
        ((value - low) / (high - low)).clamp(0.0, 1.0)
    }

    pub(crate) fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Values at round places, about `wanted` of them.
    pub(crate) fn tick_values(&self, wanted: usize) -> Vec<f64> {
        if self.log && self.high / self.low > 6.0 {
            return self.log_ticks(wanted);
        }
        let step = round_step((self.high - self.low) / wanted.max(1) as f64);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        (first..=last).map(|i| i as f64 * step).collect()
    }

    fn log_ticks(&self, wanted: usize) -> Vec<f64> {
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        let with = |steps: &[f64]| -> Vec<f64> {
            (first..=last)
                .flat_map(|e| steps.iter().map(move |s| s * 10f64.powi(e)))
                .filter(|v| self.holds(*v))
                .collect()
        };
        let choices = [with(&[1.0, 2.0, 5.0]), with(&[1.0, 3.0]), with(&[1.0])];
        let fitting = choices.iter().find(|c| c.len() <= wanted.max(2)).unwrap_or(&choices[2]);
        fitting.clone()
    }

    /// Ticks with their labels, in the unit that fits the axis' high end; the unit is returned too.
    pub(crate) fn ticks(&self, unit: Unit, wanted: usize) -> (Vec<(f64, String)>, &'static str) {
        let values = self.tick_values(wanted);
        if self.log && self.high / self.low > 100.0 {
            // Over several decades each label carries its own unit.
            let label = |v: f64| {
                let shown = display_for(unit, v * 1.000_001);
                format!("{} {}", number(v / shown.divisor, 0), shown.symbol).trim_end().to_owned()
            };
            return (values.into_iter().map(|v| (v, label(v))).collect(), "");
        }
        let shown = display_for(unit, self.high);
        let spacing = values.windows(2).map(|w| w[1] - w[0]).fold(f64::INFINITY, f64::min) / shown.divisor;
        let places = if spacing.is_finite() {
            (-spacing.log10()).ceil().clamp(0.0, 6.0) as usize
        } else {
            decimals(self.high / shown.divisor, None)
        };
        // A step of 2.5 needs a decimal that its logarithm does not show.
        let half = (spacing * 10f64.powi(places as i32)).fract().abs();
        let places = if spacing.is_finite() && half > 0.01 && half < 0.99 { places + 1 } else { places };
        (values.into_iter().map(|v| (v, number(v / shown.divisor, places))).collect(), shown.symbol)
    }
}

/// 1, 2 or 5 times a power of ten, not below `least`.
fn round_step(least: f64) -> f64 {
    if least <= 0.0 || !least.is_finite() {
        return 1.0;
    }
    let power = 10f64.powi(least.log10().floor() as i32);
    let lead = least / power;
    power * [1.0, 2.0, 5.0].into_iter().find(|s| lead <= *s * 1.000_001).unwrap_or(10.0)
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|v| v.is_finite()).fold(None, |range: Option<(f64, f64)>, v| {
        Some(range.map_or((v, v), |(low, high)| (low.min(v), high.max(v))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        let axis = Axis::exact(0.0, 9.7e9, false);
        let (ticks, unit) = axis.ticks(Unit::Bps, 5);
        let labels: Vec<&str> = ticks.iter().map(|t| t.1.as_str()).collect();
        assert_eq!((labels, unit), (vec!["0", "2", "4", "6", "8"], "Gbit/s"));
        let (ticks, _) = Axis::exact(1e4, 1e7, true).ticks(Unit::Ns, 5);
        assert_eq!(
            ticks.iter().map(|t| t.1.as_str()).collect::<Vec<_>>(),
            ["10 µs", "100 µs", "1 ms", "10 ms"]
        );
    }

    #[test]
    fn positions() {
        let axis = Axis::exact(1.0, 100.0, true);
        assert!((axis.position(10.0) - 0.5).abs() < 1e-12);
        assert_eq!(axis.position(1e6), 1.0);
        assert!(Axis::linear(std::iter::empty(), true).is_none());
        assert!(Axis::linear([f64::NAN].into_iter(), false).is_none());
    }
}
