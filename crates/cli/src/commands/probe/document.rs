//! A measurement as JSON.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::Serialize;
use weir_load::{FlowFigures, Part, Workload};
use weir_probe::client::{Measured, Span};
use weir_record::{Fault, PathFinding, Series};
use weir_stats::unbounded::{self, Number};
use weir_stats::{Censored, Delays, order};

use super::Turn;
use super::summary::{Counted, Headline};
use crate::args::probe::{Mode, ProbeArgs};
use crate::documents::{self, Kind};

/// See the module.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Document {
    /// Version of weir.
    weir: &'static str,
    /// RFC 3339, UTC: when the first measurement began.
    time: String,
    target: String,
    address: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    mode: String,
    workload: Workload,
    /// Name of the metric that the repeats are about.
    headline: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    long: Option<TrialDocument>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    repeats: Vec<TrialDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    over_repeats: Option<Repeats>,
    #[serde(skip)]
    kind: Mode,
}

#[derive(Debug, Serialize, JsonSchema)]
struct TrialDocument {
    warmup_s: f64,
    duration_s: f64,
    /// The main result of the measurement, over all operations; absent if none began.
    #[serde(skip_serializing_if = "Option::is_none")]
    headline: Option<Value>,
    /// True if nothing came through.
    failed: bool,
    /// Metrics of both ends together. Means, deviations, least and greatest times cover the operations that ended.
    metrics: BTreeMap<String, f64>,
    near: Seen,
    #[serde(skip_serializing_if = "Option::is_none")]
    far: Option<Seen>,
    /// The changes that the server's limits made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    faults: Vec<Fault>,
    /// The findings about the path.
    path: Vec<PathFinding>,
    histograms: BTreeMap<String, Delays>,
    series: Vec<Series>,
}

/// A value of the headline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
struct Value {
    /// `"infinite"` among operations that failed.
    #[serde(with = "unbounded")]
    #[schemars(with = "Number")]
    value: f64,
    /// It is but a lower bound: among operations that were not seen to end.
    at_least: bool,
}

impl From<Censored> for Value {
    fn from(value: Censored) -> Self {
        Value { value: value.value, at_least: !value.known }
    }
}

impl Value {
    fn censored(self) -> Censored {
        Censored { value: self.value, known: !self.at_least }
    }
}

/// The counters of one end.
#[derive(Debug, Serialize, JsonSchema)]
struct Seen {
    values: BTreeMap<String, f64>,
    cpu_s: f64,
    /// From their begin to their end, with the warm-up.
    streams: Vec<FlowFigures>,
}

/// The headline over the repeats, those in which operations failed included: any figure may be infinite.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
struct Repeats {
    n: usize,
    /// Repeats in which nothing came through.
    failed: usize,
    #[serde(with = "unbounded")]
    #[schemars(with = "Number")]
    min: f64,
    #[serde(with = "unbounded")]
    #[schemars(with = "Number")]
    max: f64,
    #[serde(with = "unbounded")]
    #[schemars(with = "Number")]
    mean: f64,
    #[serde(with = "unbounded")]
    #[schemars(with = "Number")]
    median: f64,
    /// 95 % interval of the median (order statistics); from six repeats on.
    #[serde(with = "unbounded", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<(Number, Number)>")]
    median_interval: Option<(f64, f64)>,
    /// Some of the repeats are known from below only, so that all figures are at least so much.
    at_least: bool,
}

impl Document {
    pub(super) fn new(
        args: &ProbeArgs,
        mode: Mode,
        workload: &Workload,
        address: SocketAddr,
        server: Option<&str>,
    ) -> Self {
        Document {
            weir: env!("CARGO_PKG_VERSION"),
            time: jiff::Timestamp::now().to_string(),
            target: args.target.clone(),
            address,
            server: server.map(str::to_owned),
            mode: mode.to_string(),
            workload: workload.clone(),
            headline: Headline::of(mode).name,
            long: None,
            repeats: Vec::new(),
            over_repeats: None,
            kind: mode,
        }
    }

    pub(super) fn add(&mut self, measured: &Measured, turn: Turn, span: Span) {
        let seen = |part: &Part, streams: &[FlowFigures]| Seen {
            values: part.values.clone(),
            cpu_s: part.cpu_s,
            streams: streams.to_vec(),
        };
        let (headline, counted) = (
            Headline::of(self.kind),
            Counted { values: &measured.trial.values, histograms: &measured.trial.histograms },
        );
        let trial = TrialDocument {
            headline: headline.value(counted).map(Value::from),
            failed: !headline.came_through(counted),
            warmup_s: span.warmup.as_secs_f64(),
            duration_s: span.duration.as_secs_f64(),
            metrics: measured.trial.values.clone(),
            near: seen(&measured.near, &measured.near_flows),
            far: measured.far.as_ref().map(|far| seen(far, &measured.far_flows)),
            notes: measured.notes.clone(),
            faults: measured.trial.faults.clone(),
            path: measured.trial.path.clone(),
            histograms: measured.trial.histograms.clone(),
            series: measured.trial.series.clone(),
        };
        match turn {
            Turn::Long => self.long = Some(trial),
            Turn::Repeat(_) => self.repeats.push(trial),
        }
        let values: Vec<Value> = self.repeats.iter().map(|trial| trial.headline.unwrap_or(NOTHING)).collect();
        let failed = self.repeats.iter().filter(|trial| trial.failed).count();
        self.over_repeats = over(&values, failed);
    }

    /// The trials are printed and need not be kept.
    pub(super) fn forget(&mut self) {
        self.long = None;
        self.time = jiff::Timestamp::now().to_string();
    }

    /// True if nothing came through in any trial. A trial that shows that the path blocks everything is a result with its reason,
    /// so it does not count.
    pub(super) fn measured_nothing(&self) -> bool {
        let explained = |t: &TrialDocument| !t.path.is_empty() && t.faults.iter().all(|fault| !fault.void);
        !self.long.iter().chain(&self.repeats).any(|t| !t.failed || explained(t))
    }

    /// The two columns of the study: the value of the long one, and the range of the values over the repeats.
    pub(super) fn repeats_in_words(&self) -> Vec<String> {
        let Some(repeats) = &self.over_repeats else { return Vec::new() };
        let headline = Headline::of(self.kind);
        let text = |value: f64| headline.text(Censored { value, known: !repeats.at_least });
        let mut lines = Vec::new();
        if repeats.failed > 0 {
            lines.push(format!("nothing came through in {} of {} repeats", repeats.failed, repeats.n));
        }
        if let Some((long, value)) = self.long.as_ref().and_then(|long| Some((long, long.headline?))) {
            let (words, value) = (headline.words, headline.text(value.censored()));
            lines.push(format!("{words} over {} s: {value}", long.duration_s));
        }
        let (least, most) = (text(repeats.min), text(repeats.max));
        lines.push(format!("{} of each of {} repeats: {least} to {most}", headline.words, repeats.n));
        let median = text(repeats.median);
        lines.push(match repeats.median_interval {
            Some((low, high)) => format!("median of them: {median} [{}, {}]", text(low), text(high)),
            None => format!("median of them: {median}; from 6 repeats on with a 95 % interval"),
        });
        lines
    }
}

impl documents::Document for Document {
    const KIND: Kind = Kind::Probe;
}

/// A repeat in which no operation was even begun.
const NOTHING: Value = Value { value: f64::INFINITY, at_least: false };

fn over(values: &[Value], failed: usize) -> Option<Repeats> {
    let at_least = values.iter().any(|value| value.at_least);
    let values: Vec<f64> = values.iter().map(|value| value.value).collect();
    Some(Repeats {
        n: values.len(),
        failed,
        min: values.iter().copied().reduce(f64::min)?,
        max: values.iter().copied().reduce(f64::max)?,
        mean: order::mean(&values)?,
        median: order::median(&values)?,
        median_interval: order::median_interval(&values),
        at_least,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(values: &[f64]) -> Vec<Value> {
        values.iter().map(|value| Censored::from(*value).into()).collect()
    }

    #[test]
    fn repeats_have_an_interval_from_six_on() {
        assert_eq!(over(&[], 0), None);
        let four = over(&seen(&[3.0, 1.0, 4.0, 2.0]), 0).unwrap();
        assert_eq!(
            (four.min, four.max, four.mean, four.median, four.median_interval),
            (1.0, 4.0, 2.5, 2.5, None)
        );
        // With six values the interval is from the least to the greatest (Bin(6, 1/2): 96.9 %).
        let six = over(&seen(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 0).unwrap();
        assert_eq!(six.median_interval, Some((1.0, 6.0)));
    }

    #[test]
    fn repeats_that_failed_are_among_them() {
        let never = f64::INFINITY;
        let some = over(&seen(&[1.0, never, 2.0, never, 3.0, 4.0]), 2).unwrap();
        assert_eq!((some.n, some.failed, some.median, some.max), (6, 2, 3.5, never));
        assert_eq!((some.mean, some.median_interval), (never, Some((1.0, never))));
        let json = serde_json::to_value(some).unwrap();
        assert_eq!((&json["max"], &json["median_interval"][1]), (&"infinite".into(), &"infinite".into()));
        let open = over(&[Censored::above(3_000).into()], 1).unwrap();
        assert_eq!((open.median, open.at_least), (3000.0, true));
    }
}
