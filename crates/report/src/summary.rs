//! The run in a few sentences, for readers who decide and do not measure. No sentence claims more than the verdicts do.

use weir_record::results::Results;
use weir_record::{MetricDef, Run, Status, Summary, WorkloadInfo};
use weir_stats::Verdict;

use crate::escape::line;
use crate::failures::LEAST_SAID;
use crate::sentences::{Standing, sentences, standing};
use crate::units::percent;
use crate::view::{everyone, headlines, too_few};
use crate::words::plural;
use crate::{diagnosed, pairs, path};

/// Most variants that a sentence names; of more it gives the number.
const MOST_NAMED: usize = 4;

/// Sums a run up. `money` is a sentence about its prices, if it has any.
pub fn summary(run: &Run, results: &Results, money: Option<String>) -> Summary {
    Summary {
        failed: failed(run, results),
        result: sentences(run, results).into_iter().next().unwrap_or_default(),
        compared: compared(run, results),
        money,
        advice: advice(run, results),
        certainty: certainty(run, results),
    }
}

/// The sentences as one paragraph: those of the record, or without money those of a run that was not summed up before.
pub(crate) fn text(run: &Run, results: &Results) -> String {
    let summary = run.summary.clone().unwrap_or_else(|| summary(run, results, None));
    summary.sentences().map(line).collect::<Vec<_>>().join(" ")
}

/// `This run compared a and b with c: 4 workloads, 8 complete rounds, in a lab on one machine.`
fn compared(run: &Run, results: &Results) -> String {
    let others: Vec<String> = everyone(run).filter(|v| !v.baseline).map(|v| line(&v.name)).collect();
    let names = if others.len() > MOST_NAMED { plural(others.len(), "variant") } else { list(&others) };
    let what = match (run.baseline().map(line), others.is_empty()) {
        (Some(only), true) if !run.compare.is_empty() => {
            format!("compared workloads with each other on {only}")
        }
        (Some(only), true) => format!("measured {only} alone"),
        (Some(baseline), false) => format!("compared {names} with {baseline}"),
        (None, _) => format!("measured {names}"),
    };
    let place = match run.hosts.as_slice() {
        [] => "",
        _ if in_lab(run) => ", in a lab on one machine",
        _ => ", on real hosts",
    };
    let workloads = plural(run.workloads.len(), "workload");
    let rounds = plural(results.complete_rounds as usize, "complete round");
    format!("This run {what}: {workloads}, {rounds}{place}.")
}

/// True if all hosts are network namespaces of one machine.
fn in_lab(run: &Run) -> bool {
    run.hosts.iter().all(|h| h.transport == "netns")
}

/// Failures that no comparison with the baseline shows.
fn failed(run: &Run, results: &Results) -> Option<String> {
    let mut all = Vec::new();
    match &run.status {
        Status::Running => all.push("The run has not reached its end.".to_owned()),
        Status::Interrupted => all.push("The run was stopped before its end.".to_owned()),
        Status::Failed { message } => all.push(format!("The run could not go on: {}.", line(message))),
        Status::Precise | Status::RoundsDone | Status::BudgetSpent => {}
    }
    for variant in everyone(run) {
        let mut cells = results.cells.iter().filter(|c| c.variant == variant.name).peekable();
        if cells.peek().is_some() && cells.all(|c| c.estimate.is_none()) {
            all.push(format!("{} has no trial that counts.", line(&variant.name)));
        }
    }
    all.extend(baseline_fails(run, results));
    (!all.is_empty()).then(|| all.join(" "))
}

/// `The baseline good itself fails 3 % of http (failed).`: what the others are compared with is no sound hop, either.
fn baseline_fails(run: &Run, results: &Results) -> Option<String> {
    let baseline = run.baseline()?;
    let defs = run.workloads.iter().flat_map(|w| w.metrics.iter().map(move |def| (w, def)));
    let shares = defs.filter(|(_, def)| def.failure.is_some()).filter_map(|(workload, def)| {
        let center = results.cell(&workload.name, &def.name, baseline)?.estimate?.center;
        (center > LEAST_SAID).then_some((center, (workload, def)))
    });
    let all: Vec<_> = shares.collect();
    let (share, (workload, def)) = all.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let more = match all.len() {
        1 => String::new(),
        n => format!(", and some of {}", plural(n - 1, "more metric")),
    };
    Some(format!(
        "The baseline {} itself fails {} of {} ({}){more}.",
        line(baseline),
        percent(*share),
        line(&workload.name),
        line(&def.label)
    ))
}

/// Advice: a clause for each kind of standing, failures first.
fn advice(run: &Run, results: &Results) -> String {
    if !matches!(run.status, Status::Precise | Status::RoundsDone | Status::BudgetSpent) {
        return "To do: repeat the run and let it reach its end before you decide.".to_owned();
    }
    if let Some((_, needed)) = too_few(run, results) {
        return format!("To do: decide nothing yet, and repeat it with at least {needed} rounds.");
    }
    let mut all = Vec::new();
    if !path::sentences(run).is_empty() {
        all.push("first explain what the path does not carry".to_owned());
    }
    let standings = standing(run, results);
    let of = |kind: Standing| -> Vec<String> {
        standings.iter().filter(|(_, s)| *s == kind).map(|(name, _)| line(name)).collect()
    };
    let found = diagnosed::said(run);
    let explained = found.iter().any(|s| of(Standing::Fails).contains(&line(&s.variant.name)));
    let how =
        if explained { "the doctor's findings below name causes" } else { "weir doctor looks for causes" };
    let texts: [(Standing, [&str; 2]); 7] = [
        (Standing::Fails, ["use", &format!("only after its failures and void trials are explained ({how})")]),
        (
            Standing::Worse,
            ["choose", "for function and not for speed: shown worse somewhere, better nowhere"],
        ),
        (Standing::Mixed, ["decide on", "by your own traffic: shown worse in some of it, better in other"]),
        (Standing::Better, ["consider", "as a replacement: shown better somewhere, worse nowhere"]),
        (Standing::Equal, ["decide on", "by price and operation: shown equal within the margin"]),
        (
            Standing::Unseen,
            ["measure", "on a quieter machine if small differences matter: none above the noise was seen"],
        ),
        (Standing::Open, ["add rounds for", "before you decide: comparisons are still open"]),
    ];
    for (kind, [before, after]) in texts {
        let names = match of(kind) {
            names if names.is_empty() => continue,
            names if names.len() > MOST_NAMED => plural(names.len(), "variant"),
            names => list(&names),
        };
        all.push(format!("{before} {names} {after}"));
    }
    if !found.is_empty() && of(Standing::Fails).is_empty() {
        all.push("read the doctor's findings below, which name causes".to_owned());
    }
    if all.is_empty() {
        return "To do: read the figures below; no variant was judged by itself.".to_owned();
    }
    format!("To do: {}.", all.join("; "))
}

/// How sure the verdicts are, and what the figures leave out.
fn certainty(run: &Run, results: &Results) -> String {
    let mut all = vec![verdicts(run, results)];
    let void = run.trials.iter().filter(|t| t.is_void()).count();
    let faulty = run.trials.iter().filter(|t| !t.faults.is_empty()).count();
    let trials = plural(run.trials.len(), "trial");
    match (void, faulty) {
        (0, 0) => {}
        (0, _) => all.push(format!("{faulty} of {trials} had a fault of the tester")),
        _ => all.push(format!("{faulty} of {trials} had a fault of the tester, {void} left out as void")),
    }
    let headline = |workload: &str, metric: &str| {
        let of_it = run.workloads.iter().filter(|w| w.name == workload).flat_map(|w| &w.metrics);
        of_it.into_iter().any(|m| m.name == metric && m.headline)
    };
    let below = results.cells.iter().filter(|c| c.estimate.is_some_and(|e| e.at_least));
    if below.into_iter().any(|c| headline(&c.workload, &c.metric)) {
        all.push("some percentiles are known from below only (>)".to_owned());
    }
    if !run.hosts.is_empty() && in_lab(run) {
        all.push("all hosts shared one machine, so trust ratios and not absolute values".to_owned());
    }
    format!("How sure: {}.", all.join("; "))
}

/// `36 comparisons: 20 with a difference beyond chance and the baseline's own noise, 4 with equality, 12 with neither`.
fn verdicts(run: &Run, results: &Results) -> String {
    if let Some((made, _)) = too_few(run, results) {
        return format!("not yet, since {} cannot tell a difference from chance", plural(made, "round"));
    }
    let twin = |name: &str| run.variants.iter().any(|v| v.name == name && v.twin_of.is_some());
    let cells = run.workloads.iter().flat_map(|w| headlines(results, w).into_iter().map(move |m| (w, m)));
    let of = |(w, m): (&WorkloadInfo, &MetricDef)| -> Vec<Verdict> {
        let own = results.cells.iter().filter(|c| c.workload == w.name && c.metric == m.name);
        own.filter(|c| !twin(&c.variant)).filter_map(|c| c.verdict).collect()
    };
    let pairs = pairs::rows(run, results).into_iter().filter(|r| r.main).filter_map(|r| r.found.verdict);
    let all: Vec<Verdict> = cells.flat_map(of).chain(pairs).collect();
    if all.is_empty() {
        return "nothing was compared, so nothing is shown".to_owned();
    }
    let count = |is: fn(&Verdict) -> bool| all.iter().filter(|v| is(v)).count();
    let differ = count(|v| matches!(v, Verdict::Higher | Verdict::Lower));
    let equal = count(|v| matches!(v, Verdict::Equivalent { .. }));
    let noise =
        if run.variants.iter().any(|v| v.twin_of.is_some()) { " and the baseline's own noise" } else { "" };
    let rest = all.len() - differ - equal;
    format!(
        "{}: {differ} with a difference beyond chance{noise}, {equal} with equality, {rest} with neither",
        plural(all.len(), "comparison")
    )
}

/// `a`, `a and b`, `a, b and c`.
fn list(names: &[String]) -> String {
    match names {
        [] => "nothing".to_owned(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
