//! Failures in a sweep, and values that are known from below only, wherever they are written.

mod fixture;

use weir_record::results::{Cell, Estimate};
use weir_record::{MetricDef, Run};
use weir_report::{Terminal, csv_summary, failing as fails, html, markdown, summary, terminal};

fn plain(run: &Run) -> String {
    terminal(run, Terminal { width: 200, color: false })
}

fn change(run: &mut Run, which: impl Fn(&Cell) -> bool, change: impl Fn(&mut Estimate)) {
    let cells = run.results.as_mut().unwrap().cells.iter_mut().filter(|c| which(c));
    let mut changed = 0;
    for estimate in cells.filter_map(|c| c.estimate.as_mut()) {
        change(estimate);
        changed += 1;
    }
    assert!(changed > 0);
}

/// [`fixture::curves`] whose loss is a share of failures, of which `lost` of one point is lost.
fn failing(workload: &str, variant: &str, lost: f64) -> Run {
    let mut run = fixture::curves();
    let failure = MetricDef::failure("failed_ratio", "failed", ("failed", "attempted"), "h").failure;
    for def in run.workloads.iter_mut().flat_map(|w| &mut w.metrics).filter(|m| m.name == "loss_ratio") {
        (def.failure, def.headline) = (failure.clone(), false);
    }
    change(&mut run, |c| c.metric == "loss_ratio", |e| (e.center, e.range) = (0.0, (0.0, 0.0)));
    let it = |c: &Cell| {
        (c.metric.as_str(), c.workload.as_str(), c.variant.as_str()) == ("loss_ratio", workload, variant)
    };
    change(&mut run, it, |e| (e.center, e.range) = (lost, (lost, lost)));
    run
}

#[test]
fn a_point_of_a_sweep_that_fails_comes_first() {
    for (workload, variant) in [("load-1M", "nft-masquerade"), ("load-64k", "filled-1k")] {
        let run = failing(workload, variant, 0.3);
        let found = summary(&run, run.results.as_ref().unwrap(), None);
        let first = format!("Against routed, {variant} fails 30 % of {workload} (loss; the baseline 0 %).");
        assert!(found.result.starts_with(&first), "{}", found.result);
        assert!(plain(&run).contains(&first));
    }
    let sound = fixture::curves();
    assert!(!summary(&sound, sound.results.as_ref().unwrap(), None).result.contains("fails"));
}

/// The worst point of a curve is named.
#[test]
fn a_curve_that_fails_is_named_once() {
    let mut run = failing("load-64k", "filled-1k", 0.3);
    let other = |c: &Cell| c.metric == "loss_ratio" && c.workload == "load-1M" && c.variant == "filled-10";
    change(&mut run, other, |e| e.center = 0.2);
    let result = summary(&run, run.results.as_ref().unwrap(), None).result;
    assert_eq!(result.matches("fails").count(), 1, "{result}");
}

#[test]
fn a_curve_of_the_failures_is_drawn_where_there_are_some() {
    let pages = |run: &Run| [plain(run), markdown(run), html(run)];
    let drawn = |text: &String| ["load: loss", "load, loss"].iter().any(|title| text.contains(title));
    assert!(!pages(&failing("load-1M", "nft-masquerade", 0.0)).iter().any(drawn));
    assert!(pages(&failing("load-1M", "nft-masquerade", 0.3)).iter().all(drawn));
}

/// While a run is going on.
#[test]
fn the_worst_share_of_failures_is_one_line() {
    let line = |run: &Run| fails(run, run.results.as_ref().unwrap());
    let found = line(&failing("load-64k", "filled-1k", 0.3)).unwrap();
    assert!(found.contains("filled-1k fails 30 % of load-64k"), "{found}");
    assert_eq!(line(&fixture::curves()), None);
}

#[test]
fn a_baseline_that_fails_at_a_point_is_said() {
    let run = failing("load-1M", "routed", 0.3);
    let failed = summary(&run, run.results.as_ref().unwrap(), None).failed;
    assert_eq!(failed.as_deref(), Some("The baseline routed itself fails 30 % of load-1M (loss)."));
}

/// A delay that is greater than the value seen is never written as that value.
#[test]
fn a_lower_bound_is_written_as_one_in_curves_pairs_and_csv() {
    let mut run = fixture::curves();
    let it =
        |c: &Cell| c.workload == "load-1M" && c.variant == "nft-masquerade" && c.metric == "delivered_pps";
    change(&mut run, it, |e| e.at_least = true);
    let signs = |text: &str| text.matches("> ").count();
    let before = fixture::curves();
    for page in [plain, markdown] {
        assert!(signs(&page(&run)) > signs(&page(&before)));
    }
    let above = |run: &Run| csv_summary(run).lines().filter(|l| l.ends_with(",1")).count();
    assert_eq!((above(&before), above(&run)), (0, 1));

    let mut run = fixture::engines();
    let before = plain(&run);
    let it = |c: &Cell| c.workload == "tcp-egress-iperf3" && c.metric == "goodput_bps";
    change(&mut run, it, |e| e.at_least = true);
    assert!(plain(&run).contains("against > ") && !before.contains("against > "));
}
