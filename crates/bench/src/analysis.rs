//! Conclusions from trials, as the method has it: within rounds, with intervals, against the noise of the baseline itself.
//!
//! Pure: the same run gives the same results. Void trials count for nothing but the number of void trials. A round counts
//! in a comparison where both sides have a valid trial that measured the metric.

mod estimate;
mod fairness;
mod measured;
mod pairs;
mod patterns;

use std::collections::BTreeMap;

use weir_record::results::{Cell, Estimate, FaultCount, NoiseFloor, Results, WorkloadComparison};
use weir_record::{Better, FaultCode, MetricDef, Run, Scale, VariantInfo, WorkloadInfo, WorkloadPair};
use weir_stats::compare::holm_adjusted;
use weir_stats::signed_rank::LEAST_ROUNDS;
use weir_stats::{Margins, Verdict, verdict};

use estimate::{Depth, estimate};
pub(crate) use fairness::{fails_many, fails_more_than, is_void_more};
pub(crate) use measured::{Measured, Subject};
pub(crate) use pairs::{Effect, effect_of};

/// Level of significance: 95 % intervals.
const ALPHA: f64 = 0.05;

/// Concludes from all trials made so far.
///
/// While the run's status is `Running`, the intervals around merged quantiles are the order-statistics ones alone: they
/// take microseconds, and the run is asked after every round. Comparisons and verdicts are the same either way.
pub fn analyse(run: &Run) -> Results {
    let measured = Measured::of(run);
    let depth = Depth::of(run);
    let mut results = Results {
        complete_rounds: complete_rounds(run),
        faults: faults(run),
        void_biases: fairness::void_biases(run),
        widest: None,
        ..Results::default()
    };
    let mut widest = Widest::default();
    for workload in &run.workloads {
        for def in &workload.metrics {
            let floor = floor(run, &measured, &workload.name, def);
            let cells = cells(run, &measured, workload, def, floor.floor, depth);
            // A workload with only a few rounds never becomes more precise.
            if def.headline && def.scale == Scale::Ratio && workload.rounds.is_none() {
                cells.iter().for_each(|cell| widest.look(cell, run));
            }
            results.cells.extend(cells);
            results.floors.push(floor);
        }
    }
    results.widest = widest.told();
    for pair in &run.compare {
        results.workload_comparisons.extend(workload_comparisons(run, &measured, pair, &results.floors));
    }
    fairness::temper(run, &mut results);
    results.patterns =
        run.patterns.as_ref().and_then(|plan| patterns::conclude(run, &measured, plan, &results.floors));
    fairness::temper_dimensions(run, &mut results);
    results
}

/// The value of a metric over the valid trials of a subject, as [`analyse`] puts it into the cells.
pub(crate) fn estimate_of(
    run: &Run,
    measured: &Measured<'_>,
    def: &MetricDef,
    subject: Subject<'_>,
) -> Option<Estimate> {
    estimate(measured, def, subject, Depth::of(run))
}

/// Rounds in which every variant met every workload that takes part in them, whatever became of the trials.
fn complete_rounds(run: &Run) -> u32 {
    let mut rounds: BTreeMap<u32, Vec<(&str, &str)>> = BTreeMap::new();
    for trial in &run.trials {
        let made = rounds.entry(trial.round).or_default();
        let cell = (trial.variant.as_str(), trial.workload.as_str());
        if !made.contains(&cell) {
            made.push(cell);
        }
    }
    let all = |round: u32| run.variants.len() * run.workloads.iter().filter(|w| w.is_in_round(round)).count();
    let complete = |round: u32, made: usize| all(round) > 0 && made >= all(round);
    rounds.iter().filter(|(round, made)| complete(**round, made.len())).count() as u32
}

/// How often each fault was seen, by workload and variant in the run's order.
fn faults(run: &Run) -> Vec<FaultCount> {
    let of_workload = |name: &str| run.workloads.iter().position(|w| w.name == name);
    let of_variant = |name: &str| run.variants.iter().position(|v| v.name == name);
    let mut counts: BTreeMap<(Option<usize>, Option<usize>, FaultCode), FaultCount> = BTreeMap::new();
    for trial in &run.trials {
        let (workload, variant) = (of_workload(&trial.workload), of_variant(&trial.variant));
        let mut seen: Vec<FaultCode> = Vec::new();
        for fault in &trial.faults {
            // Two streams with the same fault are one trial with it.
            if seen.contains(&fault.code) {
                continue;
            }
            seen.push(fault.code);
            let count = counts.entry((workload, variant, fault.code)).or_insert_with(|| FaultCount {
                code: fault.code,
                variant: trial.variant.clone(),
                workload: trial.workload.clone(),
                trials: 0,
                void: 0,
                example: fault.detail.clone(),
            });
            count.trials += 1;
            count.void += usize::from(trial.faults.iter().any(|f| f.code == fault.code && f.void));
        }
    }
    counts.into_values().collect()
}

/// The noise floor of a metric: the twin against the variant that it doubles.
pub(crate) fn floor(run: &Run, measured: &Measured<'_>, workload: &str, def: &MetricDef) -> NoiseFloor {
    let twin = run.variants.iter().find_map(|v| Some((v.name.as_str(), v.twin_of.as_deref()?)));
    let effect = twin.and_then(|(twin, original)| {
        let subject = |variant| Subject { workload, variant };
        effect_of(measured, def, subject(twin), subject(original))
    });
    NoiseFloor {
        workload: workload.to_owned(),
        metric: def.name.clone(),
        floor: effect.as_ref().and_then(Effect::floor),
        n: effect.as_ref().map_or(0, Effect::rounds),
    }
}

fn margins(run: &Run, floor: Option<f64>) -> Margins {
    Margins {
        equivalence: run.plan.equivalence_margin,
        floor,
        alpha: ALPHA,
        target_half_width: run.plan.target_half_width,
    }
}

/// One metric of one workload on every variant.
fn cells(
    run: &Run,
    measured: &Measured<'_>,
    workload: &WorkloadInfo,
    def: &MetricDef,
    floor: Option<f64>,
    depth: Depth,
) -> Vec<Cell> {
    let baseline = run.baseline();
    let judged = workload.rounds.is_none_or(|rounds| rounds as usize >= LEAST_ROUNDS);
    let subject = |variant| Subject { workload: &workload.name, variant };
    let mut effects: Vec<Option<Effect>> = run
        .variants
        .iter()
        .map(|v| {
            let baseline = baseline.filter(|b| *b != v.name)?;
            effect_of(measured, def, subject(&v.name), subject(baseline))
        })
        .collect();
    for question in questions(run) {
        correct(&mut effects, &question);
    }
    let cell = |(variant, effect): (&VariantInfo, Option<Effect>)| {
        let subject = Subject { workload: &workload.name, variant: &variant.name };
        Cell {
            workload: workload.name.clone(),
            metric: def.name.clone(),
            variant: variant.name.clone(),
            estimate: estimate(measured, def, subject, depth),
            void: measured.void(subject),
            comparison: effect.as_ref().map(|e| e.comparison),
            // A workload with only a few rounds gets no verdict: none was intended, and more rounds are no remedy.
            verdict: effect.as_ref().filter(|_| judged).and_then(|e| words(e, def, &margins(run, floor))),
            per_round: effect.map(|e| e.per_round()).unwrap_or_default(),
        }
    };
    run.variants.iter().zip(effects).map(cell).collect()
}

/// Places of the variants that answer one question together, over which errors are held to 5 %: those that stand for
/// themselves ("which of these differs from the baseline?"), and the points of each curve ("from which value on?"). A long
/// curve takes no power from the variants beside it, nor from another curve. Points of a swept workload are compared like any
/// workloads, each within itself.
///
/// The twin is there to measure noise: it is no hypothesis of the user's, and takes no power from those that are.
fn questions(run: &Run) -> Vec<Vec<usize>> {
    let mut questions: BTreeMap<Option<&str>, Vec<usize>> = BTreeMap::new();
    for (place, variant) in run.variants.iter().enumerate().filter(|(_, v)| v.twin_of.is_none()) {
        questions.entry(variant.point.as_ref().map(|p| p.family.as_str())).or_default().push(place);
    }
    questions.into_values().collect()
}

/// Holm's correction over the effects of these places, as far as there are any.
fn correct(effects: &mut [Option<Effect>], places: &[usize]) {
    let there: Vec<usize> = places.iter().copied().filter(|i| effects[*i].is_some()).collect();
    let p: Vec<f64> = there.iter().filter_map(|i| effects[*i].as_ref()).map(|e| e.comparison.p).collect();
    for (place, adjusted) in there.into_iter().zip(holm_adjusted(&p)) {
        if let Some(effect) = &mut effects[place] {
            effect.comparison.p_holm = adjusted;
        }
    }
}

fn words(effect: &Effect, def: &MetricDef, margins: &Margins) -> Option<Verdict> {
    if def.better == Better::Neither {
        return None;
    }
    let equivalence = effect.equivalence(margins.equivalence);
    Some(verdict(&effect.comparison, equivalence.as_ref(), margins))
}

/// The metrics that both workloads have, compared inside each variant.
fn workload_comparisons(
    run: &Run,
    measured: &Measured<'_>,
    pair: &WorkloadPair,
    floors: &[NoiseFloor],
) -> Vec<WorkloadComparison> {
    let metrics =
        |name: &str| run.workloads.iter().find(|w| w.name == name).map_or(&[][..], |w| w.metrics.as_slice());
    let others = metrics(&pair.with);
    let shared =
        |m: &&MetricDef| others.iter().any(|o| o.name == m.name && o.unit == m.unit && o.scale == m.scale);
    let mut all = Vec::new();
    for def in metrics(&pair.workload).iter().filter(shared) {
        // The noise of both took part in the comparison: the greater of their floors is the cautious one.
        let floor = floors
            .iter()
            .filter(|f| f.metric == def.name && [&pair.workload, &pair.with].contains(&&f.workload))
            .filter_map(|f| f.floor)
            .reduce(f64::max);
        let variants: Vec<&VariantInfo> = run.variants.iter().filter(|v| v.twin_of.is_none()).collect();
        let mut effects: Vec<Option<Effect>> = variants
            .iter()
            .map(|v| {
                let subject = |workload| Subject { workload, variant: &v.name };
                effect_of(measured, def, subject(&pair.workload), subject(&pair.with))
            })
            .collect();
        let everyone: Vec<usize> = (0..effects.len()).collect();
        correct(&mut effects, &everyone);
        all.extend(variants.iter().zip(effects).map(|(variant, effect)| WorkloadComparison {
            workload: pair.workload.clone(),
            with: pair.with.clone(),
            metric: def.name.clone(),
            variant: variant.name.clone(),
            comparison: effect.as_ref().map(|e| e.comparison),
            verdict: effect.as_ref().and_then(|e| words(e, def, &margins(run, floor))),
            reserve: None,
            per_round: effect.map(|e| e.per_round()).unwrap_or_default(),
        }));
    }
    all
}

/// The widest headline interval, for the stop rule.
#[derive(Default)]
struct Widest {
    found: Option<(f64, String)>,
    /// A comparison that was begun and has no interval yet: the run is not precise, whatever the others say.
    open: bool,
}

impl Widest {
    fn look(&mut self, cell: &Cell, run: &Run) {
        if run.baseline().is_none_or(|baseline| baseline == cell.variant) {
            return;
        }
        match cell.comparison.and_then(|c| c.half_width()) {
            // Between a value and an operation that failed no number of rounds makes an interval narrow.
            Some(width) if width.is_finite() => {
                if self.found.as_ref().is_none_or(|(widest, _)| width > *widest) {
                    let place = format!("{}/{}/{}", cell.workload, cell.metric, cell.variant);
                    self.found = Some((width, place));
                }
            }
            _ => self.open = true,
        }
    }

    fn told(self) -> Option<(f64, String)> {
        self.found.filter(|_| !self.open)
    }
}

#[cfg(test)]
mod tests;
