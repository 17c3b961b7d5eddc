//! Ways to connect as every rendering shows them: the two-column table of averages, whether each way jumps between repeats,
//! and what each dimension of their labels does.

use weir_record::results::Results;
use weir_record::{DimensionEffect, MetricDef, Pattern, Patterns, Run, Unit, VariantInfo, WorkloadInfo};
use weir_stats::repeats::{LEAST_REPEATS, Repeatability};
use weir_text::order;

use crate::escape::line;
use crate::units::{self, Display, bare, display_for_all, number, percent, quantity};
use crate::words::{self, Tone, Words, effect, plural};

/// The part of a report that is about patterns.
pub(crate) struct View<'a> {
    pub(crate) run: &'a Run,
    pub(crate) found: &'a Patterns,
    /// The workload of the repeats.
    pub(crate) repeats: &'a WorkloadInfo,
    def: &'a MetricDef,
    /// One unit for all averages, with so many decimals.
    pub(crate) shown: Display,
    decimals: usize,
    pub(crate) rows: Vec<Row<'a>>,
}

/// One way to connect.
pub(crate) struct Row<'a> {
    /// Place of the variant in the run, for colour and marker.
    pub(crate) style: usize,
    pub(crate) pattern: &'a Pattern,
    pub(crate) name: String,
    /// `zone 1, sku small`.
    pub(crate) labels: String,
    /// Average over the one long trial, without its unit.
    pub(crate) once: String,
    /// Least and greatest average of the repeats.
    pub(crate) range: String,
    /// The verdict on the difference between repeats.
    pub(crate) words: Words,
    /// `±0.40 ms [0.27, 0.70]`, where it was found out.
    pub(crate) between: Option<String>,
    /// Effect of the noise inside a repeat on its median: `±0.004 ms`.
    pub(crate) within: Option<String>,
    /// `3 repeats near 2.29 ms, 7 near 2.89 ms`.
    pub(crate) levels: Option<String>,
    /// `n = 10, 1 void`.
    pub(crate) counted: String,
}

/// Returns the report's view of patterns; `None` if the run did not ask for them.
pub(crate) fn view<'a>(run: &'a Run, results: &'a Results) -> Option<View<'a>> {
    let found = results.patterns.as_ref()?;
    let repeats = run.workloads.iter().find(|w| w.name == found.repeats)?;
    let def = repeats.metrics.iter().find(|m| m.name == found.judged)?;
    let shown = display_for_all(Unit::Ns, found.patterns.iter().filter_map(|p| p.mean_ns));
    let greatest = found.patterns.iter().filter_map(|p| p.mean_ns).fold(0.0, f64::max);
    // Three digits, as people compare averages: 2.79 ms.
    let decimals = units::decimals_for_digits(greatest / shown.divisor, 3).clamp(0, 6) as usize;
    let mut view = View { run, found, repeats, def, shown, decimals, rows: Vec::new() };
    view.rows = found.patterns.iter().filter_map(|p| view.row(p)).collect();
    Some(view)
}

impl<'a> View<'a> {
    fn row(&self, pattern: &'a Pattern) -> Option<Row<'a>> {
        let (style, variant) =
            self.run.variants.iter().enumerate().find(|(_, v)| v.name == pattern.variant)?;
        let void = if pattern.void > 0 { format!(", {} void", pattern.void) } else { String::new() };
        Some(Row {
            style,
            pattern,
            name: line(&variant.name),
            labels: labels(variant),
            once: pattern.once_ns.map_or("–".to_owned(), |v| self.average(v)),
            range: pattern.range_ns.map_or("–".to_owned(), |range| self.range(range)),
            words: self.words(pattern),
            between: pattern.components.map(|c| self.spread(c.between, Some(c.interval))),
            within: pattern.components.map(|c| self.spread(c.within, None)),
            levels: self.levels(pattern),
            counted: format!("n = {}{void}", pattern.repeats),
        })
    }

    /// An average in the unit of all, without it.
    fn average(&self, ns: f64) -> String {
        number(ns / self.shown.divisor, self.decimals)
    }

    fn range(&self, (low, high): (f64, f64)) -> String {
        format!("{}–{}", self.average(low), self.average(high))
    }

    /// A standard deviation: `±0.40 ms [0.27, 0.70]`.
    fn spread(&self, ns: f64, interval: Option<(f64, f64)>) -> String {
        let text = match interval {
            // As many decimals as averages have: a standard deviation needs no more.
            None => quantity(Unit::Ns, ns, None),
            Some(interval) => {
                let text = bare(ns, Some(interval), self.shown);
                let (value, interval) = text.split_once(' ').unwrap_or((&text, ""));
                format!("{value} {} {interval}", self.shown.symbol)
            }
        };
        format!("±{text}")
    }

    fn words(&self, pattern: &Pattern) -> Words {
        let between =
            pattern.components.map(|c| self.spread(c.between, Some(c.interval))).unwrap_or_default();
        let (tone, text) = match pattern.verdict {
            Repeatability::Jumps => (Tone::Worse, format!("jumps by {between}")),
            Repeatability::Steady { margin } => {
                (Tone::Equivalent, format!("steady within ±{}", percent(margin)))
            }
            Repeatability::Open { more_repeats: Some(more) } => {
                (Tone::Open, format!("{between}, open: ~{} more", plural(more as usize, "repeat")))
            }
            Repeatability::Open { more_repeats: None } => (Tone::Open, format!("{between}, open")),
            Repeatability::TooFew if pattern.repeats < LEAST_REPEATS => {
                (Tone::Open, format!("too few repeats: {} of {LEAST_REPEATS}", pattern.repeats))
            }
            Repeatability::TooFew => (Tone::Open, "repeats too short: fewer than two windows".to_owned()),
        };
        if pattern.failed > 0 {
            let all = pattern.failed + pattern.repeats;
            let text =
                format!("{} of {} failed; of the others: {text}", pattern.failed, plural(all, "repeat"));
            return Words { tone: Tone::Worse, text };
        }
        Words { tone, text }
    }

    fn levels(&self, pattern: &Pattern) -> Option<String> {
        let mut parts = pattern.levels.iter().enumerate().map(|(i, level)| {
            let what = if i == 0 { plural(level.repeats, "repeat") } else { level.repeats.to_string() };
            format!("{what} near {}", self.average(level.center))
        });
        let first = parts.next()?;
        let all: Vec<String> = std::iter::once(first).chain(parts).collect();
        Some(format!("{} {}", all.join(", "), self.shown.symbol))
    }

    /// Returns the heading of the first column: `once, 60 s`.
    pub(crate) fn once_head(&self) -> String {
        let once = self.found.once.as_deref().unwrap_or_default();
        match self.seconds(once) {
            Some(seconds) => format!("over {}", weir_text::time::duration(seconds)),
            None => line(once),
        }
    }

    /// Returns the heading of the second column: `range over repeats of 10 s`.
    pub(crate) fn range_head(&self) -> String {
        match self.seconds(&self.found.repeats) {
            Some(seconds) if seconds >= 1.0 && seconds.fract() == 0.0 => {
                format!("range over {} repeats", weir_text::time::duration(seconds))
            }
            Some(seconds) => format!("range over {seconds} s repeats"),
            None => "range over repeats".to_owned(),
        }
    }

    /// Measured seconds of a workload's trials, to a tenth: how long transactions were sent, in the record's own figures.
    fn seconds(&self, workload: &str) -> Option<f64> {
        let trial = self.run.trials.iter().find(|t| t.workload == workload && !t.is_void())?;
        let rate = trial.metrics.get("transactions_per_second").filter(|r| **r > 0.0)?;
        let seconds = trial.metrics.get("answered")? / rate;
        Some((seconds * 10.0).round() / 10.0)
    }

    /// Below the table: what the noise floor is and how it was found.
    pub(crate) fn floor(&self) -> String {
        let margin = percent(self.found.margin);
        match self.found.twin_spread_ns {
            Some(ns) => format!(
                "A jump is of the median round trip, more than noise inside the repeats explains, more than ±{margin}, and more than \
                 the place itself does between trials (±{} by the baseline and its twin).",
                quantity(Unit::Ns, ns, None)
            ),
            None => format!(
                "A jump is of the median round trip, more than noise inside the repeats explains, and more than ±{margin}. The changes \
                 of the testbed itself between trials are not known{}.",
                self.why_no_twin()
            ),
        }
    }

    fn why_no_twin(&self) -> &'static str {
        if self.run.variants.iter().all(|v| v.twin_of.is_none()) {
            ": the run has no A/A twin"
        } else if self.found.patterns.iter().any(|p| p.repeats < LEAST_REPEATS) {
            ": too few repeats"
        } else {
            ": the baseline jumps itself"
        }
    }

    /// The most that noise inside a repeat does to the median of any pattern.
    fn most_within(&self) -> Option<String> {
        let within = self.found.patterns.iter().filter_map(|p| p.components).map(|c| c.within);
        within.reduce(f64::max).map(|ns| quantity(Unit::Ns, ns, None))
    }

    /// Returns the effect in words, such as `sku s1 is slower than s2 by 0.04 ms [0.03, 0.05]`, or another verdict.
    pub(crate) fn effect_words(&self, found: &DimensionEffect) -> Words {
        let said = words::verdict(self.def, Some(&found.difference), found.verdict);
        let text = match said.tone {
            Tone::Better if found.difference.estimate.is_infinite() => {
                format!("faster: {} fails", line(&found.against))
            }
            Tone::Worse if found.difference.estimate.is_infinite() => "slower: it fails".to_owned(),
            Tone::Open => format!("{}, open", effect(self.def, &found.difference)),
            _ => said.text,
        };
        words::with_reserve(Words { text, ..said }, found.reserve, &found.against)
    }

    /// The effect as a share, with its sign.
    pub(crate) fn effect_share(&self, found: &DimensionEffect) -> String {
        effect(self.def, &found.ratio)
    }

    /// The result in sentences: which ways jump and what the dimensions do; then each jump by itself.
    pub(crate) fn sentences(&self) -> (String, Vec<String>) {
        let mut lead = self.failed_sentence() + &self.jump_sentence();
        let mut told: Vec<&DimensionEffect> = Vec::new();
        for of_dimension in self.found.dimensions.chunk_by(|a, b| a.dimension == b.dimension) {
            let differing = of_dimension
                .iter()
                .filter(|d| matches!(self.effect_words(d).tone, Tone::Better | Tone::Worse) && !d.confounded);
            told.extend(differing.max_by(|a, b| certain(a).total_cmp(&certain(b))));
        }
        order::by(&mut told, |a, b| certain(b).total_cmp(&certain(a)));
        let clauses: Vec<String> = told.iter().map(|d| self.clause(d)).collect();
        if !clauses.is_empty() {
            lead.push_str(&format!(" By dimension: {}.", clauses.join("; ")));
        }
        let details = self.rows.iter().filter(|r| r.pattern.verdict == Repeatability::Jumps).map(|r| {
            let levels = r.levels.as_ref().map(|l| format!(": {l}")).unwrap_or_default();
            let within = r
                .within
                .as_ref()
                .map(|w| format!("; noise inside a repeat explains {w}"))
                .unwrap_or_default();
            format!("{} {}{levels}{within}.", r.name, r.words.text)
        });
        (lead, details.collect())
    }

    /// First what fails: `fast fails 2 of 10 repeats. `
    fn failed_sentence(&self) -> String {
        let failing = self.found.patterns.iter().filter(|p| p.failed > 0);
        let of = |p: &Pattern| {
            let all = plural(p.failed + p.repeats, "repeat");
            format!("{} fails {} of {all}", line(&p.variant), p.failed)
        };
        let all: Vec<String> = failing.map(of).collect();
        if all.is_empty() { String::new() } else { all.join("; ") + ". " }
    }

    fn jump_sentence(&self) -> String {
        let of = |is: fn(&Repeatability) -> bool| -> Vec<&Row<'_>> {
            self.rows.iter().filter(|r| is(&r.pattern.verdict)).collect()
        };
        let jumping = of(|v| matches!(v, Repeatability::Jumps));
        let steady = of(|v| matches!(v, Repeatability::Steady { .. })).len();
        let open = self.rows.len() - jumping.len() - steady;
        let rest = match (steady, open) {
            (0, 0) => String::new(),
            (steady, 0) => format!("{steady} steady within ±{}", percent(self.found.margin)),
            (0, open) => format!("{open} open"),
            (steady, open) => format!("{steady} steady within ±{}, {open} open", percent(self.found.margin)),
        };
        if jumping.is_empty() {
            let none = format!("No jump between repeats was found in {}", plural(self.rows.len(), "way"));
            return format!("{none} to connect: {rest}.");
        }
        let names: Vec<&str> = jumping.iter().map(|r| r.name.as_str()).collect();
        let averages = |r: &&Row<'_>| r.pattern.range_ns;
        let range = jumping
            .iter()
            .filter_map(averages)
            .fold((f64::INFINITY, 0.0f64), |all, one| (all.0.min(one.0), all.1.max(one.1)));
        let verb = if names.len() == 1 { "jumps" } else { "jump" };
        let noise = self
            .most_within()
            .map(|w| format!(", where noise inside a repeat explains ±{w}"))
            .unwrap_or_default();
        let rest = if rest.is_empty() { String::new() } else { format!("; of the others {rest}") };
        format!(
            "{} {verb} between repeats: averages from {} to {} {}{noise}{rest}.",
            listed(&names),
            self.average(range.0),
            self.average(range.1),
            self.shown.symbol
        )
    }

    /// `placement zonal is faster than redundant by 0.86 ms [0.60, 1.10]`.
    fn clause(&self, found: &DimensionEffect) -> String {
        let text = self.effect_words(found).text;
        let (dimension, level, against) = (line(&found.dimension), line(&found.level), line(&found.against));
        match text.split_once(" by ").or(text.split_once(": ")) {
            Some((way, why)) if found.difference.estimate.is_infinite() => {
                format!("{dimension} {level} is {way} than {against} ({why})")
            }
            Some((way, amount)) => format!("{dimension} {level} is {way} than {against} by {amount}"),
            None => format!("{dimension} {level} is {text} than {against}"),
        }
    }
}

/// `a`, `a and b`, `a, b and c`.
fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn labels(variant: &VariantInfo) -> String {
    let one = |(key, value): (&String, &String)| format!("{} {}", line(key), line(value));
    variant.labels.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Returns the certain part of an effect: |ln ratio| at the near end of its interval.
fn certain(found: &DimensionEffect) -> f64 {
    found.ratio.effect_interval().map_or(0.0, |(low, high)| low.abs().min(high.abs()))
}

/// How the sides of an effect were made comparable: `same fastpath, sku; averaged over zone`.
pub(crate) fn matching(found: &DimensionEffect) -> String {
    let list = |names: &[String]| names.iter().map(|n| line(n)).collect::<Vec<_>>().join(", ");
    if found.confounded {
        return format!("nothing matches: may be the effect of {}", list(&found.averaged));
    }
    let matched = (!found.matched.is_empty()).then(|| format!("same {}", list(&found.matched)));
    let averaged = (!found.averaged.is_empty()).then(|| format!("averaged over {}", list(&found.averaged)));
    [matched, averaged].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// The two values of an effect: `zonal against redundant`.
pub(crate) fn sides(found: &DimensionEffect) -> String {
    format!("{} against {}", line(&found.level), line(&found.against))
}
