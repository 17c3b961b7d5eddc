//! Bounds that a run has to meet, for use in CI: `nft-masquerade.tcp-egress >= 0.9 x routed`.
//!
//! ```text
//! VARIANT.WORKLOAD[.METRIC] (>=|<=|>|<|==) NUMBER [UNIT]
//! VARIANT.WORKLOAD[.METRIC] (>=|<=|>|<|==) NUMBER x VARIANT[.WORKLOAD]
//! ```
//!
//! Without a metric it is the workload's first headline one. A bound is met when the whole 95 % interval meets it, and not
//! met when the whole interval misses it. In between, without an interval (fewer than six rounds) and without a
//! measurement it is undecided, which counts as not met: a gate that opens when nothing was seen is none.
//! A multiple of another variant (or workload) is compared within rounds, like everything else.

mod judge;

use std::fmt;

use weir_record::{MetricDef, Run, Unit};
use weir_text::units;

use crate::scenario::{Load, Scenario, Testbed, nearest};
use crate::trial::common_metrics;

pub use judge::{Judgement, Outcome};

/// One bound, with names that exist.
#[derive(Debug, Clone, PartialEq)]
pub struct Requirement {
    text: String,
    target: Target,
    metric: MetricDef,
    relation: Relation,
    bound: Bound,
}

/// One workload on one variant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) variant: String,
    pub(crate) workload: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    AtLeast,
    AtMost,
    Above,
    Below,
    Equal,
}

/// Those of two characters first: `>=` is not `>` and a `=`.
const RELATIONS: [(&str, Relation); 5] = [
    (">=", Relation::AtLeast),
    ("<=", Relation::AtMost),
    ("==", Relation::Equal),
    (">", Relation::Above),
    ("<", Relation::Below),
];

#[derive(Debug, Clone, PartialEq)]
enum Bound {
    /// In the metric's own unit.
    Value(f64),
    Multiple {
        factor: f64,
        of: Target,
    },
}

/// A problem with the text of a bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) what: String,
    pub(crate) nearest: Option<String>,
}

impl Problem {
    fn new(what: impl Into<String>) -> Self {
        Problem { what: what.into(), nearest: None }
    }

    fn unknown<'a>(what: &str, written: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        let nearest = nearest(written, known).map(str::to_owned);
        Problem { what: format!("there is no {what} \"{written}\""), nearest }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        self.nearest.as_ref().map_or(Ok(()), |nearest| write!(f, "; nearest valid value: \"{nearest}\""))
    }
}

/// The names that a bound may use.
struct Known {
    variants: Vec<String>,
    workloads: Vec<(String, Vec<MetricDef>)>,
}

impl Known {
    fn of_run(run: &Run) -> Known {
        Known {
            variants: run.variants.iter().map(|v| v.name.clone()).collect(),
            workloads: run.workloads.iter().map(|w| (w.name.clone(), w.metrics.clone())).collect(),
        }
    }

    fn of_scenario(scenario: &Scenario) -> Known {
        let common = common_metrics(matches!(scenario.testbed, Testbed::Lab(_)));
        let delay = scenario.testbed.delay();
        let metrics = |w: &Load| [w.metrics(delay), common.clone()].concat();
        Known {
            variants: scenario.runs().into_iter().map(|v| v.name).collect(),
            workloads: scenario.workloads.iter().map(|w| (w.name.clone(), metrics(&w.workload))).collect(),
        }
    }

    fn target(&self, variant: &str, workload: &str) -> Result<(Target, &[MetricDef]), Problem> {
        if !self.variants.iter().any(|v| v == variant) {
            return Err(Problem::unknown("variant", variant, self.variants.iter().map(String::as_str)));
        }
        let names = || self.workloads.iter().map(|w| w.0.as_str());
        let (_, metrics) = self
            .workloads
            .iter()
            .find(|(name, _)| name == workload)
            .ok_or_else(|| Problem::unknown("workload", workload, names()))?;
        Ok((Target { variant: variant.to_owned(), workload: workload.to_owned() }, metrics))
    }
}

impl Requirement {
    /// Reads a bound on a run.
    ///
    /// # Errors
    /// One message that quotes the text and names what is wrong and the nearest valid value.
    pub fn parse(text: &str, run: &Run) -> Result<Self, String> {
        read(text, &Known::of_run(run)).map_err(|problem| format!("\"{text}\": {problem}"))
    }

    /// Whether the text is a bound on runs of this scenario.
    ///
    /// # Errors
    /// As [`Requirement::parse`].
    pub fn check(text: &str, scenario: &Scenario) -> Result<(), String> {
        Self::of_scenario(text, scenario).map(drop).map_err(|problem| format!("\"{text}\": {problem}"))
    }

    pub(crate) fn of_scenario(text: &str, scenario: &Scenario) -> Result<Self, Problem> {
        read(text, &Known::of_scenario(scenario))
    }

    /// The text as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// All that must be measured for it.
    pub(crate) fn targets(&self) -> Vec<&Target> {
        match &self.bound {
            Bound::Value(_) => vec![&self.target],
            Bound::Multiple { of, .. } => vec![&self.target, of],
        }
    }
}

const FORM: &str = "expected VARIANT.WORKLOAD[.METRIC] >= NUMBER [UNIT], or >= NUMBER x VARIANT[.WORKLOAD]";

fn read(text: &str, known: &Known) -> Result<Requirement, Problem> {
    let (left, relation, right) = RELATIONS
        .iter()
        .filter_map(|(sign, relation)| Some((text.find(sign)?, sign, *relation)))
        // The first sign in the text; of two at one place the longer, which comes first in the list.
        .min_by_key(|(at, ..)| *at)
        .map(|(at, sign, relation)| (&text[..at], relation, &text[at + sign.len()..]))
        .ok_or_else(|| Problem::new(format!("no >=, <=, >, < or ==; {FORM}")))?;
    let parts: Vec<&str> = left.trim().split('.').map(str::trim).collect();
    let (variant, workload, metric) = match parts[..] {
        [variant, workload] => (variant, workload, None),
        [variant, workload, metric] => (variant, workload, Some(metric)),
        _ => {
            return Err(Problem::new(format!(
                "\"{}\" does not name a variant and a workload; {FORM}",
                left.trim()
            )));
        }
    };
    let (target, metrics) = known.target(variant, workload)?;
    let metric = match metric {
        Some(name) => metrics.iter().find(|m| m.name == name).ok_or_else(|| {
            let all = metrics.iter().map(|m| m.name.as_str());
            Problem::unknown(&format!("metric of {workload}"), name, all)
        })?,
        None => metrics
            .iter()
            .find(|m| m.headline)
            .or(metrics.first())
            .ok_or_else(|| Problem::new(format!("workload \"{workload}\" has no metrics")))?,
    };
    let bound = bound(right.trim(), &target, metric, known)?;
    Ok(Requirement { text: text.trim().to_owned(), target, metric: metric.clone(), relation, bound })
}

/// Reads the right side of a bound.
fn bound(text: &str, target: &Target, metric: &MetricDef, known: &Known) -> Result<Bound, Problem> {
    let (number, rest) =
        number(text).ok_or_else(|| Problem::new(format!("\"{text}\" is not a number; {FORM}")))?;
    let multiple = ["x ", "× ", "* "].iter().find_map(|sign| rest.strip_prefix(sign));
    let Some(of) = multiple else {
        let factor = units::factor(metric.unit, rest).ok_or_else(|| match metric.unit {
            Unit::Count => Problem::new(format!("{} is a count: \"{rest}\" is no unit of it", metric.name)),
            unit => Problem::unknown(&format!("unit of {}", metric.name), rest, units::names(unit)),
        })?;
        return Ok(Bound::Value(number * factor));
    };
    if number <= 0.0 {
        return Err(Problem::new(format!("{number} x: a multiple must be above 0")));
    }
    let of = of.trim();
    let (variant, workload) = of.split_once('.').unwrap_or((of, &target.workload));
    let (of, others) = known.target(variant.trim(), workload.trim())?;
    if of == *target {
        return Err(Problem::new(format!("\"{text}\" is a multiple of itself")));
    }
    if !others.iter().any(|m| m.name == metric.name && m.unit == metric.unit) {
        return Err(Problem::new(format!("workload \"{}\" has no metric {}", of.workload, metric.name)));
    }
    Ok(Bound::Multiple { factor: number, of })
}

/// The number at the start of a text, and what follows it.
fn number(text: &str) -> Option<(f64, &str)> {
    // The longest start that reads as a number: `1e9`, but of `1 x` and `5.5e` only what comes before the letter.
    let plain = |c: char| c.is_ascii_digit() || ".+-eE".contains(c);
    let end = text.find(|c| !plain(c)).unwrap_or(text.len());
    let (number, rest) =
        (1..=end).rev().find_map(|end| Some((text[..end].parse::<f64>().ok()?, &text[end..])))?;
    number.is_finite().then(|| (number, rest.trim()))
}

#[cfg(test)]
mod tests;
