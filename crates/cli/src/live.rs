//! Progress on standard error: one line that is rewritten on a terminal, one line per round elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use weir_bench::progress::{Event, Progress};
use weir_record::{Run, Source, Trial};
use weir_report::units::{delay, quantity};
use weir_report::{failing, words};
use weir_text::time::duration;

use crate::output::{printable, range, width};
use crate::talk;

/// Tells a run's news to people.
pub(crate) struct Live {
    quiet: bool,
    terminal: bool,
    begun: Instant,
    run: Option<(usize, u32)>,
    now: String,
    measured: usize,
    remaining_s: Option<f64>,
    expected_s: f64,
    metrics: Vec<(String, weir_record::MetricDef)>,
    last: String,
}

impl Live {
    pub(crate) fn new(quiet: bool) -> Self {
        Live {
            quiet,
            terminal: io::stderr().is_terminal(),
            begun: Instant::now(),
            run: None,
            now: String::new(),
            measured: 0,
            remaining_s: None,
            expected_s: 0.0,
            metrics: Vec::new(),
            last: String::new(),
        }
    }

    /// A line that stays.
    fn line(&self, text: &str) {
        if !self.quiet {
            let clear = if self.terminal { "\r\x1b[K" } else { "" };
            // Standard error may be closed; the run goes on.
            let _ = writeln!(io::stderr(), "{clear}{}", printable(text));
        }
    }

    /// The line that is rewritten.
    fn status(&self) {
        // Steps would tear the line that is rewritten.
        if self.quiet || !self.terminal || talk::is_verbose() {
            return;
        }
        let left = match self.remaining_s {
            Some(seconds) => format!("at most {} left", duration(seconds)),
            None => format!(
                "about {} left",
                duration((self.expected_s - self.begun.elapsed().as_secs_f64()).max(1.0))
            ),
        };
        let text = format!("{} · {left}{}", self.now, self.last);
        let text: String = printable(&text).chars().take(width() - 1).collect();
        let _ = write!(io::stderr(), "\r\x1b[K{text}");
        let _ = io::stderr().flush();
    }

    /// The first headline value of a trial.
    fn headline(&self, trial: &Trial) -> Option<String> {
        let def = &self.metrics.iter().find(|(workload, _)| *workload == trial.workload)?.1;
        Some(match &def.source {
            Source::Value => quantity(def.unit, *trial.metrics.get(&def.name)?, None),
            Source::Quantile { histogram, q } => {
                delay(trial.histograms.get(histogram)?.reportable_quantile(*q)?)
            }
        })
    }

    /// The running estimate: the widest interval decides how long it takes.
    fn round(&self, run: &Run, rounds: u32) {
        let Some(results) = &run.results else { return };
        let estimate = match &results.widest {
            Some((width, cell)) => {
                format!(
                    "widest interval ±{:.1} % ({cell}), aim ±{:.1} %",
                    width * 100.0,
                    run.plan.target_half_width * 100.0
                )
            }
            None => "no interval yet".to_owned(),
        };
        let void: usize = run.trials.iter().filter(|t| t.is_void()).count();
        let void = if void > 0 { format!(", {}", words::plural(void, "void trial")) } else { String::new() };
        let left = self.remaining_s.map(|s| format!(", at most {} left", duration(s))).unwrap_or_default();
        self.line(&format!("round {rounds}: {estimate}{void}{left}"));
        if self.terminal {
            for line in failing(run, results).into_iter().chain(headlines(run)) {
                self.line(&line);
            }
        }
    }
}

/// A trial in a line, with the faults of the tester.
fn measured(trial: &Trial, headline: Option<String>) -> String {
    let value = headline.unwrap_or_else(|| "no value".to_owned());
    let state = if trial.is_void() { ", void" } else { "" };
    let faults: String = trial.faults.iter().map(|f| format!("; {}: {}", f.host, f.detail)).collect();
    format!("measured {} on {}: {value}{state}{faults}", trial.workload, trial.variant)
}

/// One line per variant: its first headline metric against the baseline, so far.
fn headlines(run: &Run) -> Vec<String> {
    let (Some(results), Some(workload)) = (&run.results, run.workloads.first()) else { return Vec::new() };
    let Some(def) = workload.metrics.iter().find(|m| m.headline) else { return Vec::new() };
    let line = |v: &weir_record::VariantInfo| {
        let cell = results.cell(&workload.name, &def.name, &v.name)?;
        let effect = words::effect(def, &cell.comparison?);
        Some(format!("  {} {}: {effect}", workload.name, v.name))
    };
    run.variants.iter().filter(|v| v.twin_of.is_none()).filter_map(line).collect()
}

impl Progress for Live {
    fn tell(&mut self, event: Event<'_>) {
        match event {
            Event::Planned { run, trials, seconds: (least, most) } => {
                self.expected_s = most;
                self.run = Some((trials, run.plan.max_rounds));
                for workload in &run.workloads {
                    if let Some(def) = workload.metrics.iter().find(|m| m.headline) {
                        self.metrics.push((workload.name.clone(), def.clone()));
                    }
                }
                self.line(&format!(
                    "{}: {} x {} = {} a round, {} rounds, about {} (seed {})",
                    run.scenario,
                    words::plural(run.variants.len(), "variant"),
                    words::plural(run.workloads.len(), "workload"),
                    words::plural(trials, "trial"),
                    range(run.plan.min_rounds.to_string(), run.plan.max_rounds.to_string()),
                    range(duration(least), duration(most)),
                    run.seed
                ));
                for note in &run.notes {
                    self.line(&format!("note: {note}"));
                }
            }
            Event::HostsUp { testbed, seconds } => {
                self.line(&format!("hosts up in {:.0} ms: {testbed}", seconds * 1e3));
            }
            Event::Proved { variant, proof } => self.line(&format!("{variant}: {}", proof.join("; "))),
            Event::Trial { round, position, of, variant, workload } => {
                self.now = format!("round {} · {}/{of} · {workload} on {variant}", round + 1, position + 1);
                talk::step(|| {
                    format!("trial {}/{of} of round {}: {workload} on {variant}", position + 1, round + 1)
                });
                self.status();
            }
            Event::Measured { trial } => {
                self.measured += 1;
                self.last = self.headline(trial).map(|v| format!(" · last {v}")).unwrap_or_default();
                talk::step(|| measured(trial, self.headline(trial)));
                self.status();
            }
            Event::Round { run, rounds, remaining_s } => {
                self.remaining_s = Some(remaining_s);
                self.round(run, rounds);
            }
            Event::Note(words) => self.line(words),
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if self.terminal && !self.quiet {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
