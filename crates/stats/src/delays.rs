//! Delays of operations of which some never ended.
//!
//! An operation that failed, was lost or was still under way when the wait for it was over is an observation, not a gap:
//! leaving it out makes a hop that refuses every second connection look fast. RFC 7679 section 5.1 and RFC 2681 treat the
//! delay of a lost packet as infinite, and percentiles over all packets that were sent.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::histogram::Histogram;
use crate::order::rank;

/// Delays in nanoseconds of all operations of a trial, those without an end included.
///
/// Percentiles go by rank: the smallest x within which at least that share of *all* operations was seen to end. An operation that
/// was still under way counts as longer than that, so a percentile never profits from what it left out. The estimator of Kaplan
/// and Meier (1958) would use the ages, too. But it requires a cut-off that does not depend on the length of operations. An
/// operation that is under way when a window ends is there because it is long (Cox, Renewal Theory, 1962, section 5.3).
///
/// Serialises as the plain list of [`Histogram`] while every operation ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Delays {
    answered: Histogram,
    open: Histogram,
    failed: u64,
}

/// A value of which perhaps only a lower bound was seen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Censored {
    /// The value, infinite if what it belongs to failed; where it is not [`Self::known`], what it is greater than.
    pub value: f64,
    /// False if the value is somewhere above.
    pub known: bool,
}

impl From<f64> for Censored {
    fn from(value: f64) -> Self {
        Censored { value, known: true }
    }
}

impl Censored {
    /// The delay of an operation that failed.
    pub const FAILED: Censored = Censored { value: f64::INFINITY, known: true };

    /// More than `ns`.
    pub fn above(ns: u64) -> Self {
        Censored { value: ns as f64, known: false }
    }

    /// The value, if it was seen: neither a bound nor that of something that failed.
    pub fn seen(self) -> Option<f64> {
        Some(self.value).filter(|value| self.known && value.is_finite())
    }

    /// Least and greatest value that it may have.
    pub fn bounds(self) -> (f64, f64) {
        (self.value, if self.known { self.value } else { f64::INFINITY })
    }
}

impl From<Histogram> for Delays {
    fn from(answered: Histogram) -> Self {
        Delays { answered, ..Delays::default() }
    }
}

impl Delays {
    /// No operation.
    pub fn new() -> Self {
        Self::default()
    }

    /// An operation ended after `ns`.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.answered.record(ns);
    }

    /// `n` operations ended after `ns` each.
    pub fn record_n(&mut self, ns: u64, n: u64) {
        self.answered.record_n(ns, n);
    }

    /// An operation was still under way, `age_ns` after its start, when the wait for it was over.
    pub fn record_open(&mut self, age_ns: u64) {
        self.open.record(age_ns);
    }

    /// So many operations will never end: refused, lost, given up at their time limit.
    pub fn fail(&mut self, n: u64) {
        self.failed += n;
    }

    /// Those that ended.
    pub fn answered(&self) -> &Histogram {
        &self.answered
    }

    /// Ages of those that were still under way.
    pub fn open(&self) -> &Histogram {
        &self.open
    }

    /// Number of those that will never end.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// Number of all operations.
    pub fn len(&self) -> u64 {
        self.answered.len() + self.unanswered()
    }

    /// Number of operations that were not seen to end.
    pub fn unanswered(&self) -> u64 {
        self.open.len() + self.failed
    }

    /// True without operations.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Add all operations of others.
    pub fn merge(&mut self, other: &Delays) {
        self.answered.merge(&other.answered);
        self.open.merge(&other.open);
        self.failed += other.failed;
    }

    /// The smallest x within which at least the share `q` of all operations ended (RFC 2330 section 11.3); `None`
    /// without operations.
    pub fn quantile(&self, q: f64) -> Option<Censored> {
        if self.is_empty() {
            return None;
        }
        let wanted = rank(self.len(), q);
        if wanted <= self.answered.len() {
            return self.answered.of_rank(wanted).map(|ns| (ns as f64).into());
        }
        if wanted > self.answered.len() + self.open.len() {
            return Some(Censored::FAILED);
        }
        // Had everything under way ended the moment after: no smaller value is possible.
        let mut soonest = self.answered.clone();
        soonest.merge(&self.open);
        soonest.of_rank(wanted).map(Censored::above)
    }

    /// [`Self::quantile`], but only where at least six operations lie beyond it: n (1 - q) >= 6.
    pub fn reportable_quantile(&self, q: f64) -> Option<Censored> {
        // The small allowance keeps 600 x (1 - 0.99) = 5.999.. from failing by rounding.
        if self.len() as f64 * (1.0 - q) + 1e-9 >= 6.0 { self.quantile(q) } else { None }
    }
}

/// How it is written where some operations did not end.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parts<'a> {
    answered: Cow<'a, Histogram>,
    open: Cow<'a, Histogram>,
    failed: u64,
}

impl Serialize for Delays {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.unanswered() == 0 {
            return self.answered.serialize(serializer);
        }
        let (answered, open) = (Cow::Borrowed(&self.answered), Cow::Borrowed(&self.open));
        Parts { answered, open, failed: self.failed }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Delays {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            AllAnswered(Histogram),
            Parts(Parts<'static>),
        }
        Ok(match Written::deserialize(deserializer)? {
            Written::AllAnswered(histogram) => histogram.into(),
            Written::Parts(parts) => Delays {
                answered: parts.answered.into_owned(),
                open: parts.open.into_owned(),
                failed: parts.failed,
            },
        })
    }
}

impl JsonSchema for Delays {
    fn schema_name() -> Cow<'static, str> {
        "Delays".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let histogram = generator.subschema_for::<Histogram>();
        json_schema!({
            "description": "Delays of all operations: the list of those that ended, or, where some did not end, an object",
            "anyOf": [
                histogram,
                {
                    "type": "object",
                    "properties": {
                        "answered": histogram,
                        "open": histogram,
                        "failed": {"type": "integer", "minimum": 0}
                    },
                    "required": ["answered", "open", "failed"],
                    "additionalProperties": false
                }
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(answered: &[u64], open: &[u64], failed: u64) -> Delays {
        let mut all = Delays::new();
        answered.iter().for_each(|ns| all.record(*ns));
        open.iter().for_each(|ns| all.record_open(*ns));
        all.fail(failed);
        all
    }

    #[test]
    fn the_schema_has_the_name_of_the_type() {
        assert_eq!(Delays::schema_name(), "Delays");
    }

    #[test]
    fn failed_operations_lie_beyond_all_others() {
        let half = delays(&[10, 20, 30, 40], &[], 4);
        assert_eq!(half.quantile(0.5), Some(Censored::from(40.0)));
        assert_eq!(half.quantile(0.51), Some(Censored::FAILED));
        assert_eq!(half.quantile(0.25), Some(Censored::from(20.0)), "and move every rank");
        assert_eq!(delays(&[], &[], 1).quantile(0.5), Some(Censored::FAILED));
        assert_eq!(Delays::new().quantile(0.5), None);
    }

    #[test]
    fn operations_under_way_are_at_least_their_age() {
        let all = delays(&[10, 20, 30, 40, 50], &[15, 45, 60], 2);
        // Seen to end within x: 5 of 10.
        assert_eq!(all.quantile(0.5), Some(Censored::from(50.0)));
        // At the soonest 10 15 20 30 40 45 50 60 and two never.
        assert_eq!(all.quantile(0.6), Some(Censored::above(45)));
        assert_eq!(all.quantile(0.8), Some(Censored::above(60)));
        assert_eq!(all.quantile(0.9), Some(Censored::FAILED));
    }

    #[test]
    fn the_schema_allows_both_written_forms() {
        let schema = schemars::schema_for!(Delays).to_value();
        let [list, object] = schema["anyOf"].as_array().unwrap().as_slice() else { panic!("{schema}") };
        assert_eq!(list["$ref"], "#/$defs/Histogram");
        assert_eq!(object["required"], serde_json::json!(["answered", "open", "failed"]));
        assert_eq!(schema["$defs"]["Histogram"]["type"], "array");
        assert_eq!(schema["$defs"]["Histogram"]["items"]["minItems"], 2);
    }

    #[test]
    fn every_operation_counts_once() {
        let mut all = delays(&[10, 20], &[15], 4);
        assert_eq!((all.len(), all.unanswered(), all.failed()), (7, 5, 4));
        assert_eq!((all.answered().len(), all.open().len()), (2, 1));
        all.merge(&delays(&[30], &[25, 35], 7));
        assert_eq!(all, delays(&[10, 20, 30], &[15, 25, 35], 11));
        assert_eq!((all.len(), all.is_empty(), Delays::new().is_empty()), (17, false, true));
        all.record_n(40, 3);
        assert_eq!(all.answered().len(), 6);
    }

    #[test]
    fn six_operations_lie_beyond_what_is_reported() {
        assert_eq!(delays(&[10; 599], &[], 0).reportable_quantile(0.99), None);
        assert_eq!(delays(&[10; 600], &[], 0).reportable_quantile(0.99), Some(Censored::from(10.0)));
        // Those that failed lie beyond as well.
        assert_eq!(delays(&[10; 6], &[], 5).reportable_quantile(0.5), None);
        assert_eq!(delays(&[10; 6], &[], 6).reportable_quantile(0.5), Some(Censored::from(10.0)));
    }

    #[test]
    fn only_a_known_end_was_seen() {
        assert_eq!((Censored::from(5.0).seen(), Censored::from(5.0).bounds()), (Some(5.0), (5.0, 5.0)));
        assert_eq!((Censored::above(5).seen(), Censored::above(5).bounds()), (None, (5.0, f64::INFINITY)));
        assert_eq!(Censored::FAILED.seen(), None);
    }

    #[test]
    fn no_failure_ever_lowers_a_quantile() {
        let mut all = delays(&(1..=1000).collect::<Vec<_>>(), &[], 0);
        let mut before: Vec<f64> = Vec::new();
        for step in 0..200u64 {
            let now: Vec<f64> =
                [0.1, 0.5, 0.9, 0.99].iter().map(|q| all.quantile(*q).unwrap().value).collect();
            assert!(before.iter().zip(&now).all(|(b, n)| n >= b), "{before:?} {now:?}");
            before = now;
            if step % 2 == 0 { all.fail(7) } else { all.record_open(1000) }
        }
    }

    #[test]
    fn is_written_as_a_list_while_everything_ended() {
        let plain = delays(&[5, 5, 7], &[], 0);
        assert_eq!(serde_json::to_string(&plain).unwrap(), "[[5,2],[7,1]]");
        for all in [plain, delays(&[5], &[9], 0), delays(&[], &[], 3)] {
            let text = serde_json::to_string(&all).unwrap();
            assert_eq!(serde_json::from_str::<Delays>(&text).unwrap(), all, "{text}");
        }
    }
}
