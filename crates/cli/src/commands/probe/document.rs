//! A measurement as JSON.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::Serialize;
use weir_load::{FlowFigures, Part, Workload};
use weir_probe::client::{Measured, Span};
use weir_record::{Fault, PathFinding, Series};
use weir_stats::{Histogram, order};

use super::Turn;
use super::summary::headline;
use crate::args::probe::{Mode, ProbeArgs};
use crate::exit::{Failure, Outcome};
use crate::output::{print, print_json};

/// Name and version of what is printed. The number grows when something is removed or changes its meaning.
const SCHEMA: &str = "weir-probe/1";

/// See the module.
#[derive(Debug, Serialize)]
pub(super) struct Document {
    schema: &'static str,
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
    long: Option<Trial>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    repeats: Vec<Trial>,
    #[serde(skip_serializing_if = "Option::is_none")]
    over_repeats: Option<Repeats>,
    #[serde(skip)]
    kind: Mode,
}

#[derive(Debug, Serialize)]
struct Trial {
    warmup_s: f64,
    duration_s: f64,
    /// Of both ends together.
    metrics: BTreeMap<String, f64>,
    near: Seen,
    #[serde(skip_serializing_if = "Option::is_none")]
    far: Option<Seen>,
    /// What the server's limits changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    faults: Vec<Fault>,
    /// What was found out about the path.
    path: Vec<PathFinding>,
    histograms: BTreeMap<String, Histogram>,
    series: Vec<Series>,
}

/// What one end counted.
#[derive(Debug, Serialize)]
struct Seen {
    values: BTreeMap<String, f64>,
    cpu_s: f64,
    /// From their begin to their end, with the warm-up.
    streams: Vec<FlowFigures>,
}

/// The headline over the repeats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Repeats {
    n: usize,
    min: f64,
    max: f64,
    mean: f64,
    median: f64,
    /// 95 % interval of the median (order statistics); from six repeats on.
    #[serde(skip_serializing_if = "Option::is_none")]
    median_interval: Option<(f64, f64)>,
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
            schema: SCHEMA,
            weir: env!("CARGO_PKG_VERSION"),
            time: jiff::Timestamp::now().to_string(),
            target: args.target.clone(),
            address,
            server: server.map(str::to_owned),
            mode: mode.to_string(),
            workload: workload.clone(),
            headline: headline(mode).0,
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
        let trial = Trial {
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
        let values: Vec<f64> = self.repeats.iter().filter_map(|t| self.value(t)).collect();
        self.over_repeats = over(&values);
    }

    /// The trials are printed and need not be kept.
    pub(super) fn forget(&mut self) {
        self.long = None;
        self.time = jiff::Timestamp::now().to_string();
    }

    fn value(&self, trial: &Trial) -> Option<f64> {
        trial.metrics.get(self.headline).copied()
    }

    /// True if no trial has a value of what it is about. Nothing is a value where the path was found to let nothing through.
    pub(super) fn measured_nothing(&self) -> bool {
        let measured = |t: &Trial| {
            let explained = !t.path.is_empty() && t.faults.iter().all(|fault| !fault.void);
            self.value(t).is_some_and(|v| v > 0.0 || explained)
        };
        !self.long.iter().chain(&self.repeats).any(measured)
    }

    /// The two columns of the study: the average of the long one, and the range of the averages over the repeats.
    pub(super) fn repeats_in_words(&self) -> Vec<String> {
        let Some(repeats) = &self.over_repeats else { return Vec::new() };
        let (_, words, text) = headline(self.kind);
        let mut lines = Vec::new();
        if let Some(value) = self.long.as_ref().and_then(|t| self.value(t)) {
            let seconds = self.long.as_ref().map_or(0.0, |t| t.duration_s);
            lines.push(format!("average {words} over {seconds} s: {}", text(value)));
        }
        lines.push(format!(
            "range of the averages over {} repeats: {} to {}",
            repeats.n,
            text(repeats.min),
            text(repeats.max)
        ));
        lines.push(match repeats.median_interval {
            Some((low, high)) => {
                format!("median of them: {} [{}, {}]", text(repeats.median), text(low), text(high))
            }
            None => {
                format!("median of them: {}; from 6 repeats on with a 95 % interval", text(repeats.median))
            }
        });
        lines
    }

    pub(super) fn print(&self) -> Outcome {
        print_json(self)
    }

    pub(super) fn print_line(&self) -> Outcome {
        let text = serde_json::to_string(self).map_err(Failure::failed)?;
        print(&format!("{text}\n"))
    }
}

fn over(values: &[f64]) -> Option<Repeats> {
    Some(Repeats {
        n: values.len(),
        min: values.iter().copied().reduce(f64::min)?,
        max: values.iter().copied().reduce(f64::max)?,
        mean: order::mean(values)?,
        median: order::median(values)?,
        median_interval: order::median_interval(values),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_have_an_interval_from_six_on() {
        assert_eq!(over(&[]), None);
        let four = over(&[3.0, 1.0, 4.0, 2.0]).unwrap();
        assert_eq!(
            (four.min, four.max, four.mean, four.median, four.median_interval),
            (1.0, 4.0, 2.5, 2.5, None)
        );
        // Of six the interval is from the least to the greatest (Bin(6, 1/2): 96.9 %).
        let six = over(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        assert_eq!(six.median_interval, Some((1.0, 6.0)));
    }
}
