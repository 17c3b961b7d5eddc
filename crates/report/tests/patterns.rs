//! Ways to connect: the table of averages, jumps, dimensions and figures, in every rendering.

mod fixture;

use unicode_width::UnicodeWidthStr;
use weir_record::results::Results;
use weir_record::{
    Better, DimensionEffect, MetricDef, Pattern, PatternPlan, Patterns, Run, Series, Trial, Unit,
    VariantInfo, WorkloadInfo,
};
use weir_report::{Terminal, csv_patterns, html, markdown, terminal};
use weir_stats::compare::{compare_difference, compare_ratio};
use weir_stats::repeats::{Repeat, components};
use weir_stats::{Histogram, Verdict};

/// Name, labels, and the averages of eight repeats, ms.
type Way = (&'static str, &'static [(&'static str, &'static str)], [f64; 8]);

const WAYS: [Way; 3] = [
    ("fast", &[("sku", "s4")], [1.70, 1.71, 1.69, 1.70, 1.70, 1.72, 1.69, 1.70]),
    ("zone1", &[("placement", "zonal"), ("sku", "s1")], [1.99, 2.0, 2.01, 2.0, 2.02, 2.0, 1.98, 2.0]),
    ("redundant", &[("placement", "redundant"), ("sku", "s1")], [1.8, 3.0, 1.8, 3.0, 3.0, 1.8, 3.0, 3.0]),
];

fn ways() -> Run {
    let mut run = fixture::run(1);
    let plain = run.variants[0].clone();
    run.variants.clear();
    run.trials.clear();
    let mut patterns = Vec::new();
    for (place, (name, labels, averages)) in WAYS.iter().enumerate() {
        run.variants.push(VariantInfo {
            name: (*name).into(),
            baseline: place == 0,
            labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            ..plain.clone()
        });
        let mut repeats = Vec::new();
        for (round, average) in averages.iter().enumerate() {
            let mut rtt = Histogram::new();
            (0..1000u64).for_each(|i| rtt.record((average * 1e6) as u64 + i * 20));
            let windows: Vec<f64> = (0..5).map(|i| average * 1e6 + f64::from(i % 2) * 4e3).collect();
            repeats.push(Repeat { average: average * 1e6, windows: windows.clone() });
            run.trials.push(Trial {
                round: round as u32,
                variant: (*name).into(),
                workload: "repeats".into(),
                // 500 transactions a second for ten seconds.
                metrics: [
                    ("rtt_mean_ns", average * 1e6),
                    ("answered", 5000.0),
                    ("transactions_per_second", 500.0),
                ]
                .map(|(k, v)| (k.to_owned(), v))
                .into(),
                histograms: [("rtt".to_owned(), rtt.into())].into(),
                series: vec![Series {
                    name: "window_p50_ns".into(),
                    points: windows.iter().map(|w| (0.0, *w)).collect(),
                }],
                ..Trial::default()
            });
        }
        let split = components(&repeats).unwrap();
        let p = split.p_above(0.03 * split.mean);
        let verdict = split.verdict(p, 0.03, 0.05);
        let of = |pick: fn(f64, f64) -> f64| averages.iter().copied().reduce(pick).unwrap() * 1e6;
        patterns.push(Pattern {
            variant: (*name).into(),
            once_ns: Some(split.mean),
            repeats: 8,
            void: 0,
            failed: 0,
            mean_ns: Some(split.mean),
            range_ns: Some((of(f64::min), of(f64::max))),
            components: Some(split),
            p: Some(p),
            p_holm: Some(p),
            verdict,
            levels: split.levels(&averages.map(|a| a * 1e6), 0.03),
        });
    }
    // 0.5 to 0.7 ms less in each of six rounds.
    let pairs: Vec<(f64, f64)> = [0.5, 0.55, 0.6, 0.6, 0.65, 0.7].map(|d| ((2.4 - d) * 1e6, 2.4e6)).into();
    let effect = DimensionEffect {
        dimension: "placement".into(),
        level: "zonal".into(),
        against: "redundant".into(),
        variants: vec!["zone1".into()],
        against_variants: vec!["redundant".into()],
        matched: vec!["sku".into()],
        averaged: vec!["zone".into()],
        confounded: false,
        difference: compare_difference(&pairs).unwrap(),
        ratio: compare_ratio(&pairs).unwrap(),
        verdict: Verdict::Lower,
        reserve: None,
        per_round_ns: pairs.iter().map(|(a, b)| a - b).collect(),
    };
    run.workloads = vec![WorkloadInfo {
        name: "repeats".into(),
        kind: "tcp-rr".into(),
        description: "TCP request/response".into(),
        metrics: vec![
            MetricDef::quantile("rtt_p50_ns", "RTT p50", "rtt", 0.5, "").detail(),
            MetricDef::value("rtt_mean_ns", "RTT mean", Unit::Ns, Better::Lower, "").detail(),
        ],
        rounds: None,
        point: None,
    }];
    run.patterns = Some(PatternPlan { repeats: "repeats".into(), once: None });
    run.results = Some(Results {
        patterns: Some(Patterns {
            metric: "rtt_mean_ns".into(),
            judged: "rtt_p50_ns".into(),
            repeats: "repeats".into(),
            once: Some("long".into()),
            margin: 0.03,
            twin_spread_ns: Some(12_000.0),
            patterns,
            dimensions: vec![effect],
        }),
        ..Results::default()
    });
    run
}

fn plain(run: &Run, width: usize) -> String {
    terminal(run, Terminal { width, color: false })
}

#[test]
fn the_terminal_has_both_columns_and_fits() {
    let run = ways();
    for width in [80, 100, 140] {
        let text = plain(&run, width);
        println!("{text}");
        for line in text.lines() {
            assert!(line.width() <= width, "{width} columns: {line}");
        }
        for needed in
            ["range over 10 s repeats", "1.69–1.72", "1.98–2.02", "1.80–3.00", "zonal against redundant"]
        {
            assert!(text.contains(needed), "lacks {needed}");
        }
        let line = text.lines().find(|l| l.contains("1.80–3.00")).unwrap();
        assert!(line.contains("2.55") && line.contains("▼ jumps by ±0.6"), "{line}");
        let line = text.lines().find(|l| l.contains("1.98–2.02")).unwrap();
        assert!(line.contains("= steady within ±3 %"), "{line}");
        // The median of the Walsh averages of the six differences, and their least and greatest.
        let line = text.lines().find(|l| l.contains("zonal against")).unwrap();
        assert!(
            line.contains("▲ faster by 0.60 ms [0.50, 0.70]") || line.contains("600 µs [500, 700]"),
            "{line}"
        );
    }
    assert!(plain(&run, 140).contains("3 repeats near 1.80, 5 near 3.00 ms"));
}

#[test]
fn the_first_sentence_says_what_jumps_and_what_is_faster() {
    let run = ways();
    let said = "redundant jumps between repeats: averages from 1.80 to 3.00 ms";
    let first = markdown(&run).lines().nth(2).unwrap().replace('\\', "");
    assert!(first.starts_with(said), "{first}");
    let page = html(&run);
    let lead = page.split("<p class=\"lead\">").nth(1).unwrap();
    let lead = lead.split("</p>").next().unwrap();
    assert!(lead.starts_with(said), "{lead}");
    assert!(lead.contains("of the others 2 steady within ±3 %"), "{lead}");
    assert!(lead.contains("placement zonal is faster than redundant by "), "{lead}");
}

#[test]
fn the_page_has_boxes_and_distribution_functions() {
    let page = html(&ways());
    for id in ["boxes-t", "ecdf-t"] {
        assert!(page.contains(&format!("id=\"{id}\"")), "no {id}");
    }
    let boxes = page.split("id=\"boxes-d\">").nth(1).unwrap().split("</svg>").next().unwrap();
    // A dot for each of 24 repeats, and a diamond for each way's long trial.
    assert_eq!(boxes.matches("class=\"mark v").count(), 24 + 3);
    // 3.0 ms and 1000 steps of 20 ns: in the upper half of all round trips of five repeats out of eight.
    assert!(boxes.contains("redundant: median 3.0"), "{}", &boxes[..300]);
    let ecdf = page.split("id=\"ecdf-d\">").nth(1).unwrap().split("</svg>").next().unwrap();
    assert_eq!(ecdf.matches("class=\"curve v").count(), 2 * 3, "legend and lines");
}

#[test]
fn repeats_that_failed_are_told_and_an_effect_may_be_infinite() {
    let mut run = ways();
    let found = run.results.as_mut().unwrap().patterns.as_mut().unwrap();
    found.patterns[0].failed = 2;
    let pairs = [(2.4e6, f64::INFINITY); 6];
    let effect = &mut found.dimensions[0];
    (effect.difference, effect.ratio) = (compare_difference(&pairs).unwrap(), compare_ratio(&pairs).unwrap());
    effect.per_round_ns.clear();
    let text = plain(&run, 200);
    assert!(text.contains("2 of 10 repeats failed; of the others: "), "{text}");
    assert!(text.contains("\nfast fails 2 of 10 repeats. redundant jumps between repeats"), "{text}");
    assert!(text.contains("zonal is faster than redundant (redundant fails)"), "{text}");
    assert!(!text.contains("NaN") && !text.contains("by failed"), "{text}");
    assert!(!html(&run).contains("NaN"));
    let written = serde_json::to_string(&run.results).unwrap();
    let read = serde_json::from_str::<Results>(&written).unwrap().patterns.unwrap();
    let difference = read.dimensions[0].difference;
    assert_eq!((read.patterns[0].failed, difference.estimate), (2, f64::NEG_INFINITY));
}

#[test]
fn csv_has_a_row_for_each_way_and_each_effect() {
    let text = csv_patterns(&ways());
    let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split(',').collect()).collect();
    let column = |name: &str| rows[0].iter().position(|c| *c == name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(
        rows.iter().map(|r| r[0]).collect::<Vec<_>>(),
        ["kind", "pattern", "pattern", "pattern", "dimension"]
    );
    assert_eq!(rows[3][column("variant")], "redundant");
    assert_eq!(rows[3][column("labels")], "placement=redundant sku=s1");
    assert_eq!((rows[3][column("min_ns")], rows[3][column("max_ns")]), ("1800000", "3000000"));
    // 3 x 1.8 and 5 x 3.0: a standard deviation of 0.62106 ms, of which the noise of the windows is little.
    let between: f64 = rows[3][column("between_ns")].parse().unwrap();
    assert!((between - 621_059.0).abs() < 50.0, "{between}");
    let effect: f64 = rows[4][column("difference_ns")].parse().unwrap();
    assert!((effect + 600_000.0).abs() < 1.0, "{effect}");
    assert_eq!((rows[4][column("matched")], rows[4][column("averaged")]), ("sku", "zone"));
    let without = fixture::run(1);
    assert_eq!(csv_patterns(&without).lines().count(), 1);
}

#[test]
fn hostile_labels_reach_nobody() {
    let mut run = ways();
    for variant in &mut run.variants {
        variant.labels.insert(fixture::HOSTILE.into(), fixture::HOSTILE.into());
    }
    let patterns = run.results.as_mut().unwrap().patterns.as_mut().unwrap();
    let effect = &mut patterns.dimensions[0];
    effect.dimension = fixture::HOSTILE.into();
    effect.level = fixture::HOSTILE.into();
    effect.matched = vec![fixture::HOSTILE.into()];
    let seen = plain(&run, 100);
    assert!(!seen.contains(['\u{1b}', '\u{7}', '\r', '\u{202e}']), "{seen:?}");
    for text in [html(&run), markdown(&run)] {
        assert!(!text.contains("<script") && !text.contains('\u{1b}'));
    }
    let rows = csv_patterns(&run);
    assert_eq!(rows.lines().count(), 5);
}
