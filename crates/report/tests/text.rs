//! Terminal, Markdown and CSV: what is in them, and that nothing from outside breaks out of them.

mod fixture;

use unicode_width::UnicodeWidthStr;
use weir_record::Run;
use weir_report::{Terminal, csv_summary, csv_trials, markdown, terminal};

fn plain(run: &Run, width: usize) -> String {
    terminal(run, Terminal { width, color: false })
}

/// The same without line breaks, for sentences that wrap.
fn flat(run: &Run) -> String {
    plain(run, 100).split_whitespace().collect::<Vec<_>>().join(" ")
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
    let line = text.lines().find(|l| l.trim_start().starts_with("nft-masquerade  ")).unwrap();
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
    for text in [text, markdown(&fixture::hostile()), markdown(&fixture::spoil(fixture::engines()))] {
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
        assert!(rows.iter().all(|r| r.len() == 13));
        assert_eq!(rows.iter().filter(|r| r[8] == "1").count(), 2, "the void trial has two metrics");
        let summary = parse_csv(&csv_summary(&run));
        assert_eq!(summary.len(), 1 + run.results.as_ref().unwrap().cells.len());
        assert!(summary.iter().all(|r| r.len() == 24));
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
    let open = with(Verdict::Inconclusive { more_rounds: None });
    assert!(open.contains("direct is not yet told apart") && open.contains("open in 9"), "{open}");
    for text in [equal, open] {
        assert!(!text.contains("faster") && !text.contains("slower"), "{text}");
    }
    // When everything but one metric is open, the sentence is about that one.
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

#[test]
fn too_few_rounds_are_said_once() {
    let mut run = fixture::run(1);
    for cell in &mut run.results.as_mut().unwrap().cells {
        if let Some(c) = &mut cell.comparison {
            (c.n, c.interval) = (2, None);
        }
        cell.verdict = cell.verdict.map(|_| weir_stats::Verdict::TooFewRounds);
    }
    // Three variants in Holm's correction: 3 x 2^(1-7) < 5 %.
    let said = "Too few rounds for verdicts: 2 made, 7 needed.";
    let html = weir_report::html(&run);
    for text in [flat(&run), markdown(&run), html] {
        assert_eq!(text.matches(said).count(), 1, "{text}");
        assert!(!text.contains("too few rounds") && !text.contains("open in"), "{text}");
    }
    let text = plain(&run, 100);
    let row = text.lines().find(|l| l.contains(" direct ")).unwrap();
    assert!(row.contains(" Gbit/s [") && row.contains("? +19 %"), "{row}");
    assert!(!text.contains("floor unknown"), "that is said by the sentence: {text}");
    // One verdict that can be given, and the run is judged.
    run.results.as_mut().unwrap().cells[2].verdict = Some(weir_stats::Verdict::Equivalent { margin: 0.03 });
    assert!(!markdown(&run).contains(said) && markdown(&run).contains("too few rounds"));
}

#[test]
fn too_few_rounds_of_workloads_against_each_other() {
    let mut run = fixture::engines();
    let results = run.results.as_mut().unwrap();
    results.cells.iter_mut().for_each(|c| (c.comparison, c.verdict) = (None, None));
    for found in &mut results.workload_comparisons {
        if let Some(c) = &mut found.comparison {
            (c.n, c.interval) = (3, None);
        }
        found.verdict = found.verdict.map(|_| weir_stats::Verdict::TooFewRounds);
    }
    assert!(flat(&run).contains("Too few rounds for verdicts: 3 made, 6 needed."), "{}", flat(&run));
    let text = plain(&run, 100);
    assert!(text.lines().any(|l| l.contains("goodput") && l.ends_with("? ×2.0, n = 3")), "{text}");
    let page = weir_report::html(&run);
    let section = page.split("id=\"pairs\"").nth(1).unwrap();
    assert!(section.contains("<span class=\"verdict open\">? ×2.0</span></td><td>3</td>"), "{section}");
}

#[test]
fn none_lost_is_a_bound_and_no_row_of_zeros() {
    let run = fixture::run(1);
    for text in [plain(&run, 100), plain(&run, 80), markdown(&run), weir_report::html(&run)] {
        assert!(text.contains("below 0.00008 %"), "{text}");
        assert!(!text.contains("0.00000") && !text.contains("[0, 0]"), "{text}");
    }
    assert!(plain(&run, 100).contains("0 %, below 0.00008 %"));
    // No difference was seen in any round; it is as small as both bounds make it.
    assert!(weir_report::html(&run).contains("0 ±0.00008 points"));
}

#[test]
fn how_much_the_trials_of_compared_workloads_vary() {
    let run = fixture::engines();
    let cell = run.results.as_ref().unwrap().cell("tcp-egress", "goodput_bps", "routed").unwrap();
    let estimate = cell.estimate.unwrap();
    let said = format!("varies by {}, n = {}", weir_report::units::percent(estimate.cv), estimate.n);
    for width in [100, 80] {
        let text = plain(&run, width);
        let at = text.find("spread of the trials (coefficient of variation)\n").unwrap();
        let block = text[at..].split("\n\n").next().unwrap();
        assert!(block.lines().any(|l| l.contains("goodput") && l.contains(&said)), "{said}: {block}");
        assert!(!block.contains("skb"), "what is neither better nor worse stays out: {block}");
        assert!(text.lines().all(|l| l.width() <= width), "{text}");
    }
    let text = markdown(&run).replace('\\', "");
    let row = format!("| {said} |");
    assert!(text.lines().any(|l| l.starts_with("| tcp-egress | goodput |") && l.ends_with(&row)), "{text}");
    let page = weir_report::html(&run);
    let section = page.split("id=\"pairs\"").nth(1).unwrap().split("</section>").next().unwrap();
    let table = section.split("Spread of the trials</h3>").nth(1).unwrap();
    assert!(table.contains(&format!("<td>{said}</td></tr>")), "{said}: {table}");
    // A run that sets nothing side by side has no such table.
    assert!(!plain(&fixture::run(8), 100).contains("spread of the trials"));
}

#[test]
fn workloads_against_each_other() {
    let run = fixture::engines();
    let pair = "tcp-egress against tcp-egress-iperf3";
    for width in [100, 80] {
        let text = plain(&run, width);
        let at = text.find(&format!("{pair}, within rounds\n")).unwrap();
        let block = text[at..].split("\n\n").next().unwrap();
        // By construction goodput is twice and the tester's CPU half the other's in every round.
        assert!(block.contains("▲ faster ×2.00 [2.00, 2.00], n = 8"), "{block}");
        assert!(block.contains("100 against 200 ms/Gbit"), "{block}");
        assert!(block.contains("▲ less 50.0 % [50.0, 50.0], n = 8"), "{block}");
        assert!(!block.contains("skb"), "details stay out: {block}");
        assert!(text.lines().all(|l| l.width() <= width), "{text}");
    }
    // They lead, although tester CPU differs by the same factor.
    let first =
        format!("{pair} on routed is faster by a factor of 2.00 [2.00, 2.00] in goodput (and better in ");
    let text = markdown(&run);
    let summary = text.lines().nth(2).unwrap().replace('\\', "");
    assert!(summary.starts_with(&first), "{text}");
    assert!(summary.contains(" This run compared workloads with each other on routed: "), "{text}");
    assert!(!text.contains("nothing to compare"), "{text}");
    let table = text.lines().filter(|l| l.contains("| tcp") && l.contains("against"));
    for row in table {
        assert_eq!(row.matches('|').count(), 7, "{row}");
    }
    let csv = parse_csv(&csv_summary(&run));
    let results = run.results.as_ref().unwrap();
    assert_eq!(csv.len(), 1 + results.cells.len() + results.workload_comparisons.len());
    let found = |r: &&Vec<String>| r[20] == "tcp-egress-iperf3" && r[1] == "goodput_bps";
    let row = csv.iter().find(found).unwrap();
    assert!((row[14].parse::<f64>().unwrap() - 2.0).abs() < 1e-9 && row[4].is_empty(), "{row:?}");
    let hostile = plain(&fixture::spoil(fixture::engines()), 100);
    assert!(hostile.chars().all(|c| c == '\n' || !c.is_control()));
}

#[test]
fn the_gateways_packets_are_told() {
    let mut run = fixture::engines();
    let text = plain(&run, 100);
    let of = |text: &str, workload: &str| {
        let after = text.split(&format!("\n{workload}: ")).nth(1).unwrap().to_owned();
        after.lines().find(|l| l.contains("gateway handled")).unwrap().trim().to_owned()
    };
    assert_eq!(of(&text, "udp-64"), "gateway handled 173 kpps of 106 B each");
    assert_eq!(of(&text, "tcp-egress"), "gateway handled 173 kpps of 46189 B each, super-packets (GSO)");
    assert!(markdown(&run).replace('\\', "").contains("- udp-64: gateway handled 173 kpps of 106 B each"));
    // A link that carries such frames needs no super-packets for them.
    run.hosts[0].interfaces[0].mtu = 65_535;
    assert_eq!(of(&plain(&run, 100), "tcp-egress"), "gateway handled 173 kpps of 46189 B each");
    assert!(!plain(&fixture::run(1), 100).contains("gateway handled"), "nothing was watched");
}

#[test]
fn equal_faults_of_several_variants_are_one_line() {
    use weir_record::{Fault, FaultCode};
    let mut run = fixture::run(1);
    run.trials.iter_mut().for_each(|t| t.faults.clear());
    for (i, trial) in run.trials.iter_mut().filter(|t| t.workload == "tcp-connect").enumerate() {
        let detail = format!("p99 of the lateness is {} us", 100 + i);
        trial.faults.push(Fault::noted(FaultCode::LateSends, "initiator", detail));
    }
    let all = format!(
        "! sender behind its schedule in {} trials of tcp-connect (on all variants; left in): p99 of the lateness is \
         100 to {} us",
        8 * 5,
        100 + 8 * 5 - 1
    );
    let joined = |run: &Run| plain(run, 300).lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(joined(&run).contains(&all), "{:?}", joined(&run));
    // Words that differ in more than numbers have lines of their own; beyond six lines only their number.
    let names = ["one", "two", "three", "four", "five", "six", "seven"];
    for (trial, name) in run.trials.iter_mut().filter(|t| t.workload == "udp-64").zip(names) {
        trial.faults.push(Fault::void(FaultCode::External, "initiator", format!("{name} failed")));
    }
    let lines = joined(&run);
    let told = lines.iter().filter(|l| l.starts_with("! ")).count();
    assert_eq!(told, 7, "{lines:?}");
    assert!(lines.contains(&"! and 2 kinds more (see report.html)".to_owned()), "{lines:?}");
    assert!(!lines.contains(&all), "those that cost no trial come last");
}

#[test]
fn intervals_of_percentiles_are_called_what_they_are() {
    let said = "the interval of a percentile spans the trials seen";
    assert!(plain(&fixture::run(1), 100).contains(said));
    assert!(!plain(&fixture::engines(), 100).contains(said), "there is none");
    assert!(weir_report::html(&fixture::run(1)).contains("Its bracket is not a plain 95 % interval"));
}

/// The points of a sweep are in its table and nowhere else; every one of them is there.
#[test]
fn curves_are_tables_of_their_own() {
    let run = fixture::curves();
    for width in [200, 100, 80] {
        let text = plain(&run, width);
        assert!(text.lines().all(|line| line.width() <= width), "{width} columns: {text}");
        for point in ["load-1k", "load-64k", "load-1M"] {
            assert!(!text.contains(&format!("{point}:")), "{point} has no block: {text}");
        }
    }
    let text = plain(&run, 120);
    let (_, curve) =
        text.split_once("load: delivered, kpps over rate pps\n").unwrap_or_else(|| panic!("{text}"));
    let lines: Vec<&str> = curve.lines().take(4).collect();
    let heads: Vec<&str> = lines[0].split_whitespace().collect();
    assert_eq!(heads[..4], ["rate", "pps", "routed", "nft-masquerade"], "{curve}");
    let results = run.results.as_ref().unwrap();
    for ((_, name, _), line) in fixture::RATES.iter().zip(&lines[1..]) {
        let cell = results.cell(&format!("load-{name}"), "delivered_pps", "routed").unwrap();
        let shown: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(shown[0], *name);
        let value: f64 = shown[1].parse().unwrap();
        let center = cell.estimate.unwrap().center / 1e3;
        assert!((value / center - 1.0).abs() < 0.05, "{value} is {center}");
    }
    let sentence = "filled, tcp-egress: goodput from ";
    let told = markdown(&run);
    assert!(told.contains(sentence) && told.contains(" at 1k rules."), "{told}");
    let table = told.lines().filter(|l| l.starts_with("| tcp-egress |") || l.starts_with("|  |  |"));
    // Two metrics of routed and nft-masquerade: no point is in the result table.
    assert_eq!(table.count(), 2 * 2, "{told}");
    assert!(told.contains("|  |  | nft-masquerade |") && !told.contains("|  |  | filled-"), "{told}");
    assert!(told.contains("| rules | tcp-egress |"), "{told}");
    let row = told.lines().find(|l| l.starts_with("| 64k |")).unwrap_or_else(|| panic!("{told}"));
    // Routed and nft-masquerade; what the points of filled did is in the curve of filled.
    assert_eq!(row.matches(" | ").count(), 2, "{row}");
}

#[test]
fn a_run_of_curves_alone_is_told_as_that() {
    let mut run = fixture::curves();
    run.workloads.remove(0);
    run.trials.retain(|t| t.workload != "tcp-egress");
    fixture::conclude(&mut run);
    let text = plain(&run, 100);
    let said = "Measured over rate pps (1k to 1M) and over rules (0 to 1k).";
    assert!(flat(&run).contains(said), "{text}");
    assert!(text.contains("n = 8 per cell"), "{text}");
    assert!(!text.contains("nothing to compare"), "{text}");
}

#[test]
fn csv_and_charts_keep_the_trials_whose_percentiles_failed() {
    let mut run = fixture::run(1);
    let delays = |t: &&mut weir_record::Trial| t.histograms.contains_key("rtt");
    let mut trials = run.trials.iter_mut().filter(delays);
    let (first, second) = (trials.next().unwrap(), trials.next().unwrap());
    let n = first.histograms["rtt"].len().max(second.histograms["rtt"].len());
    first.histograms.get_mut("rtt").unwrap().fail(10 * n);
    (0..10 * n).for_each(|_| second.histograms.get_mut("rtt").unwrap().record_open(3_000_000_000));
    let rows = parse_csv(&csv_trials(&run));
    let of = |value: &dyn Fn(&str) -> bool, above: &str| {
        rows[1..].iter().filter(|r| r[5].contains("p50") && value(&r[7]) && r[12] == above).count()
    };
    assert_eq!(of(&|v| v == "inf", "0"), 1);
    assert_eq!(of(&|v| v.parse::<f64>().is_ok_and(|ns| (2.9e9..3.1e9).contains(&ns)), "1"), 1);
    let arrows = |run: &weir_record::Run| weir_report::html(run).matches("l3 3l-3 3").count();
    fixture::conclude(&mut run);
    assert!(arrows(&run) > arrows(&fixture::run(1)));
}

#[test]
fn csv_holds_the_values_of_sweeps() {
    let run = fixture::curves();
    let rows = parse_csv(&csv_trials(&run));
    assert_eq!(rows[0][10..], ["workload_value", "variant_value", "above"]);
    let of = |workload: &str, variant: &str| {
        let row = rows.iter().find(|r| r[4] == workload && r[3] == variant).unwrap();
        [row[10].clone(), row[11].clone()]
    };
    assert_eq!(of("load-64k", "filled-1k"), ["64000", "1000"]);
    assert_eq!(of("tcp-egress", "filled-0"), ["", "0"]);
    assert_eq!(of("load-1M", "routed"), ["1000000", ""]);
    let summary = parse_csv(&csv_summary(&run));
    assert_eq!(summary[0][21..], ["workload_value", "variant_value", "above"]);
    assert!(summary[1..].iter().all(|r| (r[0] == "tcp-egress") == r[21].is_empty()));
}
