//! A mergeable histogram of durations in nanoseconds.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::order::rank;

/// HDR histogram of nanoseconds: 1 ns to about 9 minutes, three significant digits (0.1 %).
/// Serialises as a list of `[value_ns, count]` pairs, so that nothing is lost in the record.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    inner: hdrhistogram::Histogram<u64>,
}

/// Values above are counted as this one (2^39 ns, 549.8 s).
pub const MAX_NS: u64 = 1 << 39;

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// An empty histogram. It grows with the values it is given.
    pub fn new() -> Self {
        let mut inner = hdrhistogram::Histogram::new(3).expect("three significant digits are in range");
        inner.auto(true);
        Histogram { inner }
    }

    /// Count one value. Zero counts as 1 ns, values above [`MAX_NS`] as that.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.record_n(ns, 1);
    }

    /// Count a value `n` times.
    pub fn record_n(&mut self, ns: u64, n: u64) {
        self.inner.record_n(ns.clamp(1, MAX_NS), n).expect("value is clamped to the range");
    }

    /// Add all counts of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        self.inner.add(&other.inner).expect("both resize by themselves");
    }

    /// Number of values.
    pub fn len(&self) -> u64 {
        self.inner.len()
    }

    /// True without values.
    pub fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    /// Least value, ns; 0 when empty.
    pub fn min(&self) -> u64 {
        if self.is_empty() { 0 } else { self.inner.min() }
    }

    /// Greatest value, ns; 0 when empty.
    pub fn max(&self) -> u64 {
        self.inner.max()
    }

    /// Mean, ns.
    pub fn mean(&self) -> f64 {
        self.inner.mean()
    }

    /// Standard deviation (of the population), ns.
    pub fn sd(&self) -> f64 {
        self.inner.stdev()
    }

    /// The smallest value x with F(x) >= q (RFC 2330 section 11.3), ns; `None` when empty.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        // By rank, so that 100 x 0.07 = 7.000000000000001 does not become the 8th value.
        self.of_rank(rank(self.len(), q))
    }

    /// The value of that rank, counted from 1 at the least, ns; `None` when empty.
    pub(crate) fn of_rank(&self, rank: u64) -> Option<u64> {
        // The half is in the middle of the share that the wanted value has of F.
        (!self.is_empty()).then(|| self.inner.value_at_quantile((rank as f64 - 0.5) / self.len() as f64))
    }

    /// [`Self::quantile`], but only where at least six values lie beyond it: n (1 - q) >= 6.
    /// Fewer would make a single outlier the result.
    pub fn reportable_quantile(&self, q: f64) -> Option<u64> {
        // The small allowance keeps 600 x (1 - 0.99) = 5.999.. from failing by rounding.
        if self.len() as f64 * (1.0 - q) + 1e-9 >= 6.0 { self.quantile(q) } else { None }
    }

    /// Non-empty buckets as (value in ns, count), ascending.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.inner.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value()))
    }
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.buckets())
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut histogram = Histogram::new();
        for (value, count) in Vec::<(u64, u64)>::deserialize(deserializer)? {
            histogram.record_n(value, count);
        }
        Ok(histogram)
    }
}

impl JsonSchema for Histogram {
    fn schema_name() -> Cow<'static, str> {
        "Histogram".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Non-empty buckets as [value in ns, count], ascending",
            "type": "array",
            "items": {
                "type": "array",
                "prefixItems": [{"type": "integer", "minimum": 1}, {"type": "integer", "minimum": 1}],
                "minItems": 2,
                "maxItems": 2
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_has_the_name_of_the_type() {
        assert_eq!(Histogram::schema_name(), "Histogram");
    }

    #[test]
    fn serialises_without_loss() {
        let mut h = Histogram::new();
        for v in [1, 999, 123_456, 5_000_000_000] {
            h.record_n(v, 3);
        }
        let text = serde_json::to_string(&h).unwrap();
        assert_eq!(
            serde_json::from_str::<Histogram>(&text).unwrap().buckets().collect::<Vec<_>>(),
            h.buckets().collect::<Vec<_>>()
        );
    }

    #[test]
    fn moments_and_ends_are_those_of_the_values() {
        let mut h = Histogram::new();
        assert_eq!((h.is_empty(), h.len(), h.min(), h.max()), (true, 0, 0, 0));
        assert_eq!(h.quantile(0.5), None);
        // Small values have buckets of their own: mean 5, and sd 2 of the population.
        [2, 4, 4, 4, 5, 5, 7, 9].into_iter().for_each(|ns| h.record(ns));
        assert_eq!((h.is_empty(), h.len(), h.min(), h.max()), (false, 8, 2, 9));
        assert_eq!((h.mean(), h.sd()), (5.0, 2.0));
        assert_eq!([0.0, 0.125, 0.126, 0.5, 0.51, 1.0].map(|q| h.quantile(q).unwrap()), [2, 2, 4, 4, 5, 9]);
    }

    #[test]
    fn quantile_needs_six_values_beyond_it() {
        let mut h = Histogram::new();
        h.record_n(10, 599);
        assert_eq!(h.reportable_quantile(0.99), None);
        h.record(10);
        assert_eq!(h.reportable_quantile(0.99), Some(10));
    }
}
