//! A run in a few sentences, with the money of its `[cost]` block.

use std::path::Path;

use weir_cost::{Answer, CostBlock, Measured, answer, render};
use weir_record::{Run, WorkloadInfo};

use crate::analysis::{analyse, fails_many};
use crate::scenario::{Scenario, Testbed};

/// Concludes from the trials of a run and sums it up, replacing what it held of both.
pub fn conclude(run: &mut Run) {
    run.results = Some(analyse(run));
    let money = money(run);
    run.summary = run.results.as_ref().map(|results| weir_report::summary(run, results, money));
}

/// The money in one sentence, if the scenario has prices.
fn money(run: &Run) -> Option<String> {
    let unreadable =
        || "Money: the prices of this run cannot be read; weir cost --run names the reason.".to_owned();
    match Scenario::load(&run.scenario_toml, "scenario") {
        Ok(scenario) => {
            let answer = price(scenario.cost.as_ref()?, &scenario.testbed, run, None);
            Some(answer.map_or_else(|_| unreadable(), |answer| render::in_short(&answer)))
        }
        // Written by another version of weir.
        Err(_) => run.scenario_toml.lines().any(|l| l.trim() == "[cost]").then(unreadable),
    }
}

/// The cost block's answer, with the rates that the run measured on real hosts. The links of a lab have nothing to do with the
/// machines whose prices these are. `prices` replaces the block's own price file.
///
/// # Errors
/// A message, if the price file cannot be read or the block does not fit its prices.
pub fn price(
    block: &CostBlock,
    testbed: &Testbed,
    run: &Run,
    prices: Option<&Path>,
) -> Result<Answer, String> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
    };
    let text = prices.or(block.prices.as_deref()).map(read).transpose()?;
    let options = block.select("[cost]", text.as_deref()).map_err(|e| e.to_string())?;
    let measured: Vec<Measured> = block
        .variants
        .iter()
        .filter(|_| !matches!(testbed, Testbed::Lab(_)))
        .filter(|(_, option)| options.iter().any(|o| o.name == **option))
        .filter_map(|(variant, option)| measured(run, variant, option))
        .collect();
    answer(&block.question(), &options, &measured).map_err(|e| e.to_string())
}

/// The best goodput of a variant over the bulk TCP workloads, and its connections per second, where they were measured and hardly
/// anything failed.
fn measured(run: &Run, variant: &str, option: &str) -> Option<Measured> {
    let results = run.results.as_ref()?;
    let center = |workload: &str, metric: &str| {
        results.cell(workload, metric, variant).and_then(|cell| cell.estimate).map(|estimate| estimate.center)
    };
    let stands = |w: &&WorkloadInfo| !fails_many(results, w, variant);
    let best = |metric: &str, kind: &str| {
        let of_kind = run.workloads.iter().filter(|w| w.kind == kind).filter(stands);
        let values = of_kind.filter_map(|w| center(&w.name, metric));
        values.max_by(f64::total_cmp)
    };
    Some(Measured {
        option: option.to_owned(),
        variant: variant.to_owned(),
        goodput_bps: best("goodput_bps", "tcp-stream")?,
        connections_per_second: best("transactions_per_second", "tcp-crr"),
    })
}
