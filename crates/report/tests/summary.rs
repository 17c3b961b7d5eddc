//! The paragraph at the top of a report: what it says, and that it says no more than the verdicts.

mod fixture;

use weir_record::{MetricDef, Run, Status, Summary};
use weir_report::{Terminal, html, markdown, summary, terminal};
use weir_stats::Verdict;

fn of(run: &Run) -> Summary {
    summary(run, run.results.as_ref().unwrap(), None)
}

/// A run in which every verdict is the one that `pick` chooses by variant and metric.
fn judged(pick: impl Fn(&str, &str) -> Verdict) -> Run {
    let mut run = fixture::run(1);
    for cell in &mut run.results.as_mut().unwrap().cells {
        cell.verdict = cell.verdict.map(|_| pick(&cell.variant, &cell.metric));
    }
    run
}

const OPEN: Verdict = Verdict::Inconclusive { more_rounds: Some(8) };
const EQUAL: Verdict = Verdict::Equivalent { margin: 0.03 };

#[test]
fn every_form_begins_with_it() {
    let mut run = fixture::run(1);
    let money = "Money: it costs 3 USD.".to_owned();
    run.summary = Some(summary(&run, run.results.as_ref().unwrap(), Some(money)));
    let said = run.summary.clone().unwrap().sentences().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("How sure: ") && said.contains("To do: ") && said.contains("it costs 3 USD."),
        "{said}"
    );
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = flat(&terminal(&run, Terminal { width: 80, color: false }));
    let first = |text: &str, then: &str| text.find(&flat(&said)).unwrap() < text.find(then).unwrap();
    assert!(first(&text, "tcp-egress: one TCP stream"), "{text}");
    let plain = markdown(&run).replace('\\', "");
    assert!(plain.starts_with(&format!("## {}\n\n{said}\n\n", run.title)), "{plain}");
    let page = html(&run);
    assert!(page.contains(&format!("<p class=\"lead\">{}</p>", said.replace('\'', "&#39;"))), "{page}");
    let kept: Run = serde_json::from_str(&serde_json::to_string(&run).unwrap()).unwrap();
    assert_eq!(kept.summary, run.summary);
}

#[test]
fn it_names_what_was_compared_where_and_how_often() {
    let run = fixture::run(1);
    let expected = "This run compared direct, nft-masquerade and iptables-masquerade with routed: 5 workloads, \
                    8 complete rounds, in a lab on one machine.";
    assert_eq!(of(&run).compared, expected);
    let mut real = fixture::run(1);
    real.hosts[0].transport = "ssh://gateway".into();
    assert!(of(&real).compared.ends_with(", on real hosts."));
    assert!(of(&run).certainty.contains("one machine") && !of(&real).certainty.contains("one machine"));
    let mut many = fixture::run(1);
    for n in 0..4 {
        let mut more = many.variants[2].clone();
        more.name = format!("more-{n}");
        many.variants.push(more);
    }
    assert!(of(&many).compared.starts_with("This run compared 7 variants with routed: "));
    let mut alone = fixture::run(1);
    alone.variants.truncate(1);
    assert!(of(&alone).compared.starts_with("This run measured routed alone: "));
}

#[test]
fn advice_and_certainty_follow_the_verdicts() {
    let higher = |metric: &str| ["goodput_bps", "delivered_pps"].contains(&metric);
    let worse = |metric: &str| if higher(metric) { Verdict::Lower } else { Verdict::Higher };
    let better = |metric: &str| if higher(metric) { Verdict::Higher } else { Verdict::Lower };
    let run = judged(|variant, metric| match (variant, metric) {
        ("direct", "goodput_bps") => better(metric),
        ("nft-masquerade", "goodput_bps") => worse(metric),
        ("iptables-masquerade", "goodput_bps") => worse(metric),
        ("iptables-masquerade", "delivered_pps") => better(metric),
        _ => EQUAL,
    });
    let advice = of(&run).advice;
    for clause in [
        "choose nft-masquerade for function and not for speed: shown worse somewhere, better nowhere",
        "decide on iptables-masquerade by your own traffic: shown worse in some of it, better in other",
        "consider direct as a replacement: shown better somewhere, worse nowhere",
    ] {
        assert!(advice.contains(clause), "{advice}");
    }
    // Nine headline metrics on three variants; four of these verdicts are differences.
    let certainty = of(&run).certainty;
    let said = "How sure: 27 comparisons: 4 with a difference beyond chance and the baseline's own noise, \
                23 with equality, 0 with neither; ";
    assert!(certainty.starts_with(said), "{certainty}");

    let equal = of(&judged(|_, _| EQUAL)).advice;
    assert!(equal.contains("by price and operation: shown equal within the margin"), "{equal}");
    // One open verdict, and nothing is called alike.
    let open = of(&judged(|_, metric| if metric == "goodput_bps" { OPEN } else { EQUAL })).advice;
    assert!(open.contains("add rounds for ") && !open.contains("equal"), "{open}");
    // Nothing above the floor is not equality.
    let unseen = Verdict::NoDifferenceSeen { floor: 6.0f64.ln() };
    let unseen = of(&judged(|_, metric| if metric == "goodput_bps" { unseen } else { EQUAL })).advice;
    assert!(unseen.contains("if small differences matter: none above the noise was seen"), "{unseen}");
    assert!(!unseen.contains("equal"), "{unseen}");
    for text in [equal, open, unseen] {
        assert!(!text.contains("better") && !text.contains("worse"), "{text}");
    }
}

#[test]
fn failures_come_first_and_forbid_praise() {
    let mut run = judged(|_, metric| if metric == "goodput_bps" { Verdict::Higher } else { EQUAL });
    let failure = MetricDef::failure("failed_ratio", "failed", ("failed", "attempted"), "h");
    let loss =
        run.workloads.iter_mut().flat_map(|w| &mut w.metrics).find(|m| m.name == "loss_ratio").unwrap();
    loss.failure = failure.failure;
    for cell in run.results.as_mut().unwrap().cells.iter_mut().filter(|c| c.metric == "loss_ratio") {
        let estimate = cell.estimate.as_mut().unwrap();
        (estimate.center, estimate.range) = match cell.variant.as_str() {
            "direct" => (0.25, (0.2, 0.3)),
            "nft-masquerade" => (0.5, (0.4, 0.6)),
            _ => (0.02, (0.02, 0.02)),
        };
    }
    let found = of(&run);
    assert_eq!(found.failed.as_deref(), Some("The baseline routed itself fails 2 % of udp-64 (loss)."));
    // The greatest failure comes first, whatever the order of the run.
    assert!(
        found
            .result
            .starts_with("Against routed, nft-masquerade fails 50 % of udp-64 (loss; the baseline 2 %)")
    );
    assert!(found.result.contains("; direct fails 25 % of udp-64 (loss; the baseline 2 %)"));
    let read: Vec<&str> = found.sentences().take(3).collect();
    assert_eq!(read, [found.failed.as_deref().unwrap(), &found.result, &found.compared]);
    let first = "To do: use direct and nft-masquerade only after its failures and void trials are explained (weir doctor";
    assert!(found.advice.starts_with(first), "{}", found.advice);
    assert!(!found.advice.contains("consider direct"), "{}", found.advice);
    // A failure that the verdict saw, or trials that are void too often, forbid praise as well.
    let withheld = of(&judged(|variant, metric| match (variant, metric) {
        ("direct", "goodput_bps") => Verdict::Higher,
        ("direct", _) => Verdict::VoidMore,
        _ => EQUAL,
    }));
    assert!(withheld.advice.starts_with("To do: use direct only after"), "{}", withheld.advice);
}

/// A scenario that compares workloads asks about them first, unless a variant fails more than the baseline.
#[test]
fn a_failing_variant_comes_before_pairs_of_workloads() {
    let mut run = fixture::engines_at(3);
    let about = |run: &Run| {
        let result = of(run).result;
        (result.find("Against routed, direct ").unwrap(), result.find("tcp-egress-iperf3").unwrap(), result)
    };
    let (variant, pair, result) = about(&run);
    assert!(pair < variant, "{result}");
    let failure = MetricDef::failure("failed_ratio", "failed", ("failed", "attempted"), "h").failure;
    let metrics = run.workloads.iter_mut().flat_map(|w| &mut w.metrics);
    metrics.filter(|m| m.name == "loss_ratio").for_each(|m| m.failure.clone_from(&failure));
    let lost = |c: &&mut weir_record::results::Cell| {
        (c.workload.as_str(), c.metric.as_str(), c.variant.as_str()) == ("udp-64", "loss_ratio", "direct")
    };
    let cell = run.results.as_mut().unwrap().cells.iter_mut().find(lost).unwrap();
    let estimate = cell.estimate.as_mut().unwrap();
    (estimate.center, estimate.range) = (0.25, (0.2, 0.3));
    let (variant, pair, result) = about(&run);
    assert!(variant < pair && result.starts_with("Against routed, direct fails 25 % of udp-64"), "{result}");
}

#[test]
fn what_is_missing_is_said() {
    let mut run = fixture::run(1);
    for cell in run.results.as_mut().unwrap().cells.iter_mut().filter(|c| c.variant == "direct") {
        (cell.estimate, cell.comparison, cell.verdict) = (None, None, None);
    }
    assert_eq!(of(&run).failed.as_deref(), Some("direct has no trial that counts."));
    run.status = Status::Failed { message: "agent\u{1b}[31m lost".into() };
    let failed = of(&run);
    assert!(failed.failed.unwrap().starts_with("The run could not go on: agent"));
    assert_eq!(failed.advice, "To do: repeat the run and let it reach its end before you decide.");
    // A percentile among operations that were not seen to end.
    let mut run = fixture::run(1);
    assert!(!of(&run).certainty.contains("from below"));
    let cell = run.results.as_mut().unwrap().cells.iter_mut().find(|c| c.metric == "rtt_p99_ns").unwrap();
    cell.estimate.as_mut().unwrap().at_least = true;
    assert!(of(&run).certainty.contains("some percentiles are known from below only (>)"));
}

#[test]
fn the_doctor_s_findings_are_part_of_the_advice() {
    let mut run = judged(|_, _| EQUAL);
    assert!(!of(&run).advice.contains("doctor"));
    let finding = serde_json::json!({ "cause": "conntrack-full", "critical": true, "summary": "s", "explains_packets": 9,
                                      "commands": ["c"], "risk": "r", "undo": ["u"] });
    let diagnosed = serde_json::json!({ "findings": [finding], "not_in_sight": [], "lost_packets": 9,
                                        "explained_packets": 9 });
    let trial = run.trials.iter_mut().find(|t| t.variant == "direct").unwrap();
    trial.diagnosed = Some(serde_json::from_value(diagnosed).unwrap());
    let advice = of(&run).advice;
    assert!(advice.ends_with("; read the doctor's findings below, which name causes."), "{advice}");
}

#[test]
fn too_few_rounds_advise_nothing_else() {
    let mut run = judged(|_, _| Verdict::TooFewRounds);
    for cell in &mut run.results.as_mut().unwrap().cells {
        if let Some(c) = &mut cell.comparison {
            (c.n, c.interval) = (2, None);
        }
    }
    let found = of(&run);
    assert_eq!(found.advice, "To do: decide nothing yet, and repeat it with at least 7 rounds.");
    assert!(
        found.certainty.starts_with("How sure: not yet, since 2 rounds cannot tell a difference from chance")
    );
}

/// The share that fails needs no verdict, and no trial of the baseline.
#[test]
fn failures_come_first_before_verdicts_are_possible() {
    let mut run = judged(|_, _| Verdict::TooFewRounds);
    let failure = MetricDef::failure("failed_ratio", "failed", ("failed", "attempted"), "h").failure;
    let metrics = run.workloads.iter_mut().flat_map(|w| &mut w.metrics);
    metrics.filter(|m| m.name == "loss_ratio").for_each(|m| m.failure.clone_from(&failure));
    for cell in &mut run.results.as_mut().unwrap().cells {
        if let Some(c) = &mut cell.comparison {
            (c.n, c.interval) = (2, None);
        }
        let share = match (cell.metric.as_str(), cell.variant.as_str()) {
            ("loss_ratio", "direct") => 0.25,
            ("loss_ratio", "nft-masquerade") => 0.5,
            _ => continue,
        };
        let estimate = cell.estimate.as_mut().unwrap();
        (estimate.center, estimate.range) = (share, (share, share));
    }
    let start = "Against routed, nft-masquerade fails 50 % of udp-64 (loss; the baseline 0 %); direct fails 25 % of udp-64 \
                 (loss; the baseline 0 %); iptables-masquerade fails ";
    let result = of(&run).result;
    assert!(
        result.starts_with(start) && result.contains(". Too few rounds for verdicts: 2 made, "),
        "{result}"
    );
    for cell in run.results.as_mut().unwrap().cells.iter_mut().filter(|c| c.variant == "routed") {
        cell.estimate = None;
    }
    let start =
        "Against routed, nft-masquerade fails 50 % of udp-64 (loss; of the baseline no trial counts); ";
    assert!(of(&run).result.starts_with(start), "{}", of(&run).result);
}

#[test]
fn words_from_outside_are_made_harmless() {
    let mut run = fixture::hostile();
    let money = Some(fixture::HOSTILE.to_owned());
    run.summary = Some(summary(&run, run.results.as_ref().unwrap(), money));
    let text = terminal(&run, Terminal { width: 100, color: false });
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
    assert!(!html(&run).contains("<script"));
}
