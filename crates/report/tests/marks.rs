//! The mark of an effect that the values beside it do not show.

mod fixture;

use weir_record::Run;
use weir_report::{Terminal, markdown, terminal};
use weir_stats::Verdict;

fn plain(run: &Run) -> String {
    terminal(run, Terminal { width: 200, color: false })
}

#[test]
fn an_effect_that_its_values_do_not_show_is_marked_and_explained() {
    let mut run = fixture::run(1);
    let marks =
        |run: &Run| [plain(run), markdown(run), weir_report::html(run)].map(|t| t.matches('†').count());
    // The page explains the mark always, the other two where it stands.
    assert_eq!(marks(&run), [0, 0, 1]);
    let cells = &mut run.results.as_mut().unwrap().cells;
    for metric in ["goodput_bps", "rtt_p99_ns"] {
        let mut of_it = cells.iter_mut().filter(|c| c.metric == metric && c.variant == "nft-masquerade");
        let estimate = of_it.find_map(|c| c.estimate.as_mut()).unwrap();
        estimate.center *= 10.0;
    }
    assert_eq!(marks(&run), [4; 3], "two rows, the first sentence, and the explanation");
    assert!(plain(&run).contains("† value: of all trials"));
}

#[test]
fn too_few_rounds_for_an_interval_are_marked_where_value_and_effect_point_apart() {
    let mut run = fixture::run(1);
    for cell in &mut run.results.as_mut().unwrap().cells {
        cell.verdict = cell.verdict.map(|_| Verdict::TooFewRounds);
        if let Some(comparison) = &mut cell.comparison {
            comparison.interval = None;
        }
    }
    let marks = |run: &Run| plain(run).matches('†').count();
    assert!(plain(&run).contains("Too few rounds"));
    assert_eq!(marks(&run), 0);
    let mut cells = run.results.as_mut().unwrap().cells.iter_mut();
    let cell = cells.find(|c| c.metric == "goodput_bps" && c.variant == "nft-masquerade").unwrap();
    cell.estimate.as_mut().unwrap().center *= 10.0;
    assert!(cell.comparison.as_ref().unwrap().estimate < 1.0);
    assert_eq!(marks(&run), 2, "the row, and the explanation");
}

/// The page has every metric: one that is no headline is marked in its details.
#[test]
fn an_effect_in_the_details_of_the_page_is_marked_too() {
    let mut run = fixture::run(1);
    let metric = run.workloads.iter_mut().flat_map(|w| &mut w.metrics).find(|m| m.name == "goodput_bps");
    metric.unwrap().headline = false;
    let details = |run: &Run| {
        let page = weir_report::html(run);
        page.split_once("<details>").unwrap().1.split("</details>").next().unwrap().matches('†').count()
    };
    assert_eq!(details(&run), 0);
    let mut cells = run.results.as_mut().unwrap().cells.iter_mut();
    let cell = cells.find(|c| c.metric == "goodput_bps" && c.variant == "nft-masquerade").unwrap();
    cell.estimate.as_mut().unwrap().center *= 10.0;
    assert_eq!(details(&run), 1);
    // The value of all trials is among those that never ended, and that of a typical round is not.
    let mut cells = run.results.as_mut().unwrap().cells.iter_mut();
    let cell = cells.find(|c| c.metric == "goodput_bps" && c.variant == "nft-masquerade").unwrap();
    cell.estimate.as_mut().unwrap().center = f64::INFINITY;
    assert_eq!(details(&run), 1);
}
