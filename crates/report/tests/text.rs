//! Terminal, Markdown and CSV: what is in them, and that nothing from outside breaks out of them.

mod fixture;

use unicode_width::UnicodeWidthStr;
use weir_record::Run;
use weir_report::{Terminal, csv_summary, csv_trials, markdown, terminal};

fn plain(run: &Run, width: usize) -> String {
    terminal(run, Terminal { width, color: false })
}

#[test]
fn terminal_fits_and_says_everything() {
    let run = fixture::run(1);
    for width in [200, 120, 100, 90, 80] {
        let text = plain(&run, width);
        for line in text.lines() {
            assert!(line.width() <= width, "{width} columns: {line}");
        }
    }
    let text = plain(&run, 100);
    println!("{text}\n{}", plain(&run, 80));
    for workload in &run.workloads {
        assert!(text.contains(&workload.name));
        for def in workload.metrics.iter().filter(|m| m.headline) {
            assert!(text.contains(&def.label), "{}", def.label);
        }
    }
    let goodput = run.results.as_ref().unwrap().cell("tcp-egress", "goodput_bps", "nft-masquerade").unwrap();
    let estimate = goodput.estimate.unwrap();
    let expected = format!("{:.1} Gbit/s [", estimate.center / 1e9);
    let line = text.lines().find(|l| l.contains("nft-masquerade")).unwrap();
    assert!(line.contains(&expected) && line.contains("slower by"), "{line} lacks {expected}");
    for needed in
        ["200 trials", "1 void", "noise floor ±", "hypervisor", "left out", "seed 1", "more loss 0.5"]
    {
        assert!(text.contains(needed), "lacks {needed}");
    }
    assert!(!text.contains("routed-again"), "the twin is the noise floor, not a variant to be judged");
}

#[test]
fn color_only_when_asked_for() {
    let run = fixture::run(1);
    let colored = terminal(&run, Terminal { width: 100, color: true });
    assert!(!plain(&run, 100).contains('\u{1b}'));
    assert!(colored.contains("\u{1b}[31m▼"));
    let mut stripped = colored;
    for code in
        ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[2m", "\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[36m"]
    {
        stripped = stripped.replace(code, "");
    }
    let trimmed = |text: &str| text.lines().map(|l| l.trim_end().to_owned()).collect::<Vec<_>>();
    assert_eq!(trimmed(&stripped), trimmed(&plain(&run, 100)), "colour changes nothing else");
}

#[test]
fn hostile_text_does_not_reach_the_terminal() {
    let text = plain(&fixture::hostile(), 100);
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
    assert!(!text.contains('\u{202e}'));
    for line in text.lines() {
        assert!(line.width() <= 100, "{line}");
    }
}

#[test]
fn markdown_is_a_table_without_html() {
    let run = fixture::run(1);
    let text = markdown(&run);
    let table: Vec<&str> = text.lines().filter(|l| l.starts_with('|')).collect();
    let (results, _faults) = table.split_at(table.iter().position(|l| l.starts_with("| fault")).unwrap());
    // 9 headline metrics on 4 variants, and the two lines of the head.
    assert_eq!(results.len(), 9 * 4 + 2);
    for row in results {
        assert_eq!(row.matches('|').count(), 7, "{row}");
    }
    for text in [text, markdown(&fixture::hostile())] {
        assert!(
            !text.contains('<') && !text.replace("\\](", "").contains("](") && !text.contains('\u{1b}'),
            "{text}"
        );
    }
}

#[test]
fn markdown_cells_survive_hostile_names() {
    let text = markdown(&fixture::hostile());
    for row in text.lines().filter(|l| l.starts_with("| ") && l.contains("masquerade")) {
        let bars = row.replace("\\|", "").matches('|').count();
        assert_eq!(bars, 7, "{row}");
    }
}

/// A reader after RFC 4180.
fn parse_csv(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut field, mut quoted) = (Vec::new(), Vec::new(), String::new(), false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, quoted) {
            ('"', true) if chars.next_if_eq(&'"').is_some() => field.push('"'),
            ('"', _) => quoted = !quoted,
            (',', false) => row.push(std::mem::take(&mut field)),
            ('\n', false) => {
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            _ => field.push(c),
        }
    }
    assert!(!quoted && field.is_empty() && row.is_empty());
    rows
}

#[test]
fn csv_comes_back_with_the_same_counts_and_values() {
    for run in [fixture::run(1), fixture::hostile()] {
        let rows = parse_csv(&csv_trials(&run));
        // Per round and variant: 3 + 2 + 2 + 2 + 1 metrics.
        assert_eq!(rows.len(), 1 + 8 * 5 * 10);
        assert!(rows.iter().all(|r| r.len() == 10));
        assert_eq!(rows.iter().filter(|r| r[8] == "1").count(), 2, "the void trial has two metrics");
        let summary = parse_csv(&csv_summary(&run));
        assert_eq!(summary.len(), 1 + run.results.as_ref().unwrap().cells.len());
        assert!(summary.iter().all(|r| r.len() == 20));
    }
    let run = fixture::run(1);
    let rows = parse_csv(&csv_trials(&run));
    let first = rows.iter().find(|r| r[5] == "goodput_bps").unwrap();
    assert_eq!(first[7].parse::<f64>().unwrap(), run.trials[0].metrics["goodput_bps"]);
    assert_eq!(first[6], "bps");
}

#[test]
fn a_run_without_results_says_so() {
    let mut run = fixture::run(1);
    run.results = None;
    assert!(plain(&run, 80).contains("no results"));
    assert!(markdown(&run).contains("No results"));
    assert_eq!(csv_summary(&run).lines().count(), 1);
}

/// The first sentence says no more than the verdicts do.
#[test]
fn sentences_follow_the_verdicts() {
    use weir_stats::Verdict;
    let with = |verdict: Verdict| {
        let mut run = fixture::run(1);
        for cell in &mut run.results.as_mut().unwrap().cells {
            cell.verdict = cell.verdict.map(|_| verdict);
        }
        markdown(&run)
    };
    let equal = with(Verdict::Equivalent { margin: 0.03 });
    assert!(equal.contains("direct shows no difference") && equal.contains("equivalent in 9"), "{equal}");
    let few = with(Verdict::TooFewRounds);
    assert!(few.contains("direct is not yet told apart") && few.contains("open in 9"), "{few}");
    for text in [equal, few] {
        assert!(!text.contains("faster") && !text.contains("slower"), "{text}");
    }
    // Where everything but one metric is open, the sentence is about that one.
    let only = |metric: &str, verdict: Verdict| {
        let mut run = fixture::run(1);
        for cell in &mut run.results.as_mut().unwrap().cells {
            let wanted = cell.metric == metric && cell.variant == "iptables-masquerade";
            cell.verdict = cell.verdict.map(|_| if wanted { verdict } else { Verdict::TooFewRounds });
        }
        markdown(&run)
    };
    let text = only("gateway_cpu_s_per_gbit", Verdict::Higher);
    assert!(text.contains("iptables-masquerade has more CPU per Gbit by "), "{text}");
    let text = only("loss_ratio", Verdict::Higher);
    assert!(
        text.contains("iptables-masquerade has more loss by 0.5") && text.contains("in udp-64."),
        "{text}"
    );
    let mut run = fixture::run(1);
    run.variants.iter_mut().for_each(|v| v.baseline = false);
    assert!(markdown(&run).contains("no baseline"));
    run.variants.truncate(1);
    run.variants[0].baseline = true;
    assert!(markdown(&run).contains("Only routed was measured"));
}
