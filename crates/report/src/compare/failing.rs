//! Which run fails more.

use weir_record::{MetricDef, Run, Trial, WorkloadInfo};

use crate::view::{floor_value, trials};

/// Whether one variant of a workload fails more or less in the second run than in the first, by any of the workload's failure
/// metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Failing {
    pub(super) more: bool,
    pub(super) less: bool,
}

impl Failing {
    /// By the shares over all valid trials of a run. A difference within the noise floor of either run counts as none; that a greater
    /// one is significant is not asked for, since the doubt must not make a hop look better.
    pub(super) fn of(before: &Run, after: &Run, workload: &WorkloadInfo, variant: &str) -> Failing {
        let mut found = Failing::default();
        for def in workload.metrics.iter().filter(|def| def.failure.is_some()) {
            let shares = share(before, workload, def, variant).zip(share(after, workload, def, variant));
            let Some((old, new)) = shares else { continue };
            let floors = [before, after].map(|run| {
                run.results.as_ref().and_then(|results| floor_value(results, &workload.name, &def.name))
            });
            let floor = floors.into_iter().flatten().fold(0.0, f64::max);
            found.more |= new - old > floor;
            found.less |= old - new > floor;
        }
        found
    }
}

/// Failed operations of all in a run's valid trials; without counts the mean of the trials' shares.
fn share(run: &Run, workload: &WorkloadInfo, def: &MetricDef, variant: &str) -> Option<f64> {
    let valid: Vec<&Trial> = trials(run, &workload.name, variant).filter(|trial| !trial.is_void()).collect();
    let sum = |name: &str| valid.iter().map(|trial| trial.metrics.get(name).copied()).sum::<Option<f64>>();
    let counted = def.failure.as_ref().and_then(|counts| Some((sum(&counts.failed)?, sum(&counts.of)?)));
    if let Some((failed, of)) = counted.filter(|(_, of)| *of > 0.0) {
        return Some(failed / of);
    }
    let shares: Vec<f64> = valid.iter().filter_map(|trial| trial.metrics.get(&def.name).copied()).collect();
    (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
}
