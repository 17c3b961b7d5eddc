//! Two runs of one scenario: unchanged, changed, and made elsewhere.

mod fixture;

use unicode_width::UnicodeWidthStr;
use weir_record::Run;
use weir_report::{Terminal, compare_runs, comparison_markdown, comparison_terminal};
use weir_stats::Verdict;

fn differs(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Higher | Verdict::Lower)
}

/// The second run with one cell's rate changed by a factor.
fn slower(mut run: Run, variant: &str, factor: f64) -> Run {
    for trial in run.trials.iter_mut().filter(|t| t.variant == variant) {
        if let Some(v) = trial.metrics.get_mut("goodput_bps") {
            *v *= factor;
        }
    }
    fixture::conclude(&mut run);
    run
}

#[test]
fn a_run_against_itself_has_no_change() {
    let run = fixture::run(1);
    let c = compare_runs(&run, &run);
    assert!(c.warnings.is_empty(), "{:?}", c.warnings);
    // 9 headline metrics: 4 variants each, and 3 of them have a cost.
    assert_eq!((c.values.len(), c.costs.len()), (9 * 4, 9 * 3));
    for change in c.values.iter().chain(&c.costs) {
        assert!(!differs(change.verdict), "{change:?}");
        assert_eq!(change.before, change.after);
        let none = if change.comparison.ratio { 1.0 } else { 0.0 };
        assert!((change.comparison.estimate - none).abs() < 1e-12, "{change:?}");
    }
}

#[test]
fn a_change_on_purpose_is_found_in_its_cell_only() {
    let before = fixture::run(1);
    let after = slower(fixture::run(1), "nft-masquerade", 0.7);
    let c = compare_runs(&before, &after);
    for change in c.values.iter().chain(&c.costs) {
        let changed = change.variant == "nft-masquerade" && change.metric.name == "goodput_bps";
        assert_eq!(differs(change.verdict), changed, "{change:?}");
        if changed {
            assert!((change.comparison.estimate - 0.7).abs() < 1e-9);
            assert_eq!(change.verdict, Verdict::Lower);
        }
    }
    let text = comparison_terminal(&c, Terminal { width: 100, color: false });
    println!("{text}\n{}", comparison_terminal(&c, Terminal { width: 80, color: false }));
    assert!(text.contains("1 of 36 values changed; 1 of 27 costs against the baseline changed."), "{text}");
    assert!(text.contains("▼ slower by 30.0 % ["), "{text}");
}

/// A slower machine changes every value by the same factor; the costs stay.
#[test]
fn a_slower_machine_changes_values_and_not_costs() {
    let before = fixture::run(1);
    let mut after = fixture::run(1);
    for (name, _) in fixture::VARIANTS {
        after = slower(after, name, 0.7);
    }
    after.hosts[0].cpu_model = "something older".into();
    after.hosts[0].interfaces[0].offloads.insert("gro".into(), false);
    after.scenario_toml.push_str("# changed\n");
    let c = compare_runs(&before, &after);
    assert_eq!(c.values.iter().filter(|v| differs(v.verdict)).count(), 4);
    assert_eq!(c.costs.iter().filter(|v| differs(v.verdict)).count(), 0);
    let all = c.warnings.join("\n");
    for needed in
        ["CPU model of the gateway", "offload gro of inside", "on before, off after", "scenario's text"]
    {
        assert!(all.contains(needed), "{all}");
    }
    assert_eq!(c.warnings.len(), 3);
}

#[test]
fn what_only_one_run_has_is_named() {
    let before = fixture::run(1);
    let mut after = fixture::run(2);
    after.variants.retain(|v| v.name != "direct");
    let c = compare_runs(&before, &after);
    assert!(c.warnings.iter().any(|w| w.contains("variant direct is only in the first run")));
    assert!(c.values.iter().all(|v| v.variant != "direct"));
    assert!(!c.values.is_empty());
}

#[test]
fn text_fits_and_is_harmless() {
    let mut other = fixture::hostile();
    other.hosts[0].kernel = fixture::HOSTILE.into();
    other.id = fixture::HOSTILE.into();
    for (before, after) in [(fixture::run(1), fixture::run(2)), (fixture::hostile(), other)] {
        let c = compare_runs(&before, &after);
        assert!(!c.values.is_empty());
        for width in [80, 100, 140] {
            for line in comparison_terminal(&c, Terminal { width, color: false }).lines() {
                assert!(line.width() <= width, "{width}: {line}");
                assert!(line.chars().all(|c| !c.is_control()));
            }
        }
        let text = comparison_markdown(&c);
        assert!(!text.contains('<') && !text.contains('\u{1b}'));
        for row in text.lines().filter(|l| l.starts_with("| ")) {
            assert_eq!(row.replace("\\|", "").matches('|').count(), 9, "{row}");
        }
        let json = serde_json::to_value(&c).unwrap();
        assert_eq!(json["values"].as_array().unwrap().len(), c.values.len());
    }
}
