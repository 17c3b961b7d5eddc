//! Whether a run names a variant better or worse than its baseline, anywhere.
//!
//! It reads what a user reads: the JSON of the run, the report's table and sentences, and the outcome of bounds.

use serde_json::Value;

use super::impairment::Harm;

/// Words that praise, and words that blame, in a sentence about a variant.
const PRAISE: &[&str] = &["faster", "better", "fewer", "less"];
const BLAME: &[&str] =
    &["slower", "worse", "more", "fail", "lost", "loss", "unanswered", "nothing", "broken", "refused"];

/// The costs of a busy machine or a tester, and spreads. If a hop slows everything down, less is carried and all of it waits
/// alike: that these are less is true, and no praise of operations.
const SPENDING: &[&str] = &["busy_cores", "cpu", "retransmits", "lateness", "rtt_m", "out_of_order", "_sd_"];

/// The claims about one variant.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Said {
    /// The places that name it better.
    pub(crate) better: Vec<String>,
    /// The places that name it worse.
    pub(crate) worse: Vec<String>,
}

/// A metric's definition.
struct Metric<'a> {
    workload: &'a str,
    def: &'a Value,
}

impl Metric<'_> {
    fn name(&self) -> &str {
        self.def["name"].as_str().unwrap()
    }

    fn higher_is_better(&self) -> Option<bool> {
        match self.def["better"].as_str().unwrap() {
            "higher" => Some(true),
            "lower" => Some(false),
            _ => None,
        }
    }

    fn is_headline(&self) -> bool {
        self.def["headline"] == true
    }
}

fn metrics(run: &Value) -> impl Iterator<Item = Metric<'_>> {
    let workloads = run["workloads"].as_array().unwrap().iter();
    workloads.flat_map(|w| {
        let workload = w["name"].as_str().unwrap();
        w["metrics"].as_array().unwrap().iter().map(move |def| Metric { workload, def })
    })
}

/// The verdicts of the run's JSON on a variant.
pub(crate) fn verdicts(run: &Value, variant: &str, harm: Harm) -> Said {
    let mut said = Said::default();
    for metric in metrics(run) {
        let Some(higher_is_better) = metric.higher_is_better() else { continue };
        let cells = run["results"]["cells"].as_array().unwrap().iter();
        let of = |c: &&Value| {
            c["workload"] == metric.workload && c["metric"] == metric.name() && c["variant"] == variant
        };
        let Some(cell) = cells.clone().find(of) else { continue };
        let higher = match cell["verdict"]["verdict"].as_str() {
            Some("higher") => true,
            Some("lower") => false,
            _ => continue,
        };
        let estimate = &cell["comparison"]["estimate"];
        let kind = if metric.is_headline() { "headline" } else { "detail" };
        let text = format!("{kind} {}: {} ({estimate})", metric.name(), cell["verdict"]["verdict"]);
        if higher != higher_is_better {
            said.worse.push(text);
        } else if metric.is_headline()
            || harm == Harm::Fails
            || !SPENDING.iter().any(|s| metric.name().contains(s))
        {
            said.better.push(text);
        }
    }
    said
}

/// The claims of the terminal's report about a variant: rows with its name and a sign, and sentences that begin with it.
pub(crate) fn report(text: &str, variant: &str) -> Said {
    let mut said = Said::default();
    for line in text.lines().filter(|l| words(l).any(|w| w == variant)) {
        if line.contains('▲') {
            said.better.push(format!("row: {}", line.trim()));
        }
        if line.contains('▼') {
            said.worse.push(format!("row: {}", line.trim()));
        }
    }
    for clause in sentences(text, variant) {
        match tone(&clause) {
            Some(true) => said.better.push(format!("sentence: {clause}")),
            Some(false) => said.worse.push(format!("sentence: {clause}")),
            None => {}
        }
    }
    said
}

/// How sentences begin that may stand before the result, since they name failures, too.
const EARLIER: &[&str] = &["No winner is named for ", "The baseline "];

/// The part of the first sentence that is about the variant, and whether it blames it. None if the text begins with anything but
/// failures and the result.
pub(crate) fn first_sentence(text: &str, variant: &str) -> Option<(String, bool)> {
    let summary = paragraphs(text).into_iter().find(|p| p.contains("Against "))?;
    let (before, _) = summary.split_once("Against ")?;
    let mut earlier = before.split(". ").filter(|s| !s.trim().is_empty());
    let fails = |s: &str| {
        s.contains("has no trial that counts") || is_of_path(s) || EARLIER.iter().any(|e| s.starts_with(e))
    };
    if !earlier.all(fails) {
        return None;
    }
    let first = sentences(text, variant).into_iter().next()?;
    let blamed = tone(&first) == Some(false);
    Some((first, blamed))
}

/// True of what the path does not carry: `Path MTU black hole: ..., on bad-1`.
fn is_of_path(sentence: &str) -> bool {
    let names = sentence.trim_end_matches([' ', '.']).rsplit_once(", on ").map(|(_, names)| names);
    names.is_some_and(|names| names != "real hosts")
}

/// Parts of sentences that begin with the variant's name: of "Against good, one is slower by 5 %; other shows no difference." two,
/// and "one: better in 1 (goodput)."
fn sentences(text: &str, variant: &str) -> Vec<String> {
    let said = |paragraph: &String| match paragraph.find("Against ") {
        Some(at) => paragraph[at..].split_once(", ").map(|(_, rest)| rest.to_owned()),
        None => paragraph.starts_with(&format!("{variant}:")).then(|| paragraph.clone()),
    };
    let said: Vec<String> = paragraphs(text).iter().filter_map(said).collect();
    let parts = said.iter().flat_map(|l| l.split("; ")).flat_map(|l| l.split(". "));
    let begins = |p: &&str| p.strip_prefix(variant).is_some_and(|rest| rest.starts_with([' ', ':']));
    parts.filter(begins).map(str::to_owned).collect()
}

/// Lines with those that continue them, which are indented.
fn paragraphs(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for line in text.lines() {
        match all.last_mut() {
            Some(last) if line.starts_with("  ") && !last.is_empty() => {
                last.push(' ');
                last.push_str(line.trim_start());
            }
            _ => all.push(line.to_owned()),
        }
    }
    all
}

/// Praise is true and blame is false, whichever comes first. The end of "(and worse in 2 more metrics)" counts for neither.
fn tone(clause: &str) -> Option<bool> {
    words(clause).find_map(|word| {
        if PRAISE.contains(&word) {
            return Some(true);
        }
        BLAME.iter().any(|b| word.starts_with(b)).then_some(false)
    })
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '-' || c == '_')).filter(|w| !w.is_empty())
}

/// Bounds that a worse variant must not meet: to be better than the baseline, and where half of the operations fail not even
/// to be nearly as good.
pub(crate) fn bounds(run: &Value, variant: &str, baseline: &str, fails_half: bool) -> Vec<String> {
    let mut all = Vec::new();
    for metric in metrics(run).filter(Metric::is_headline) {
        let of = format!("{variant}.{}.{}", metric.workload, metric.name());
        match metric.higher_is_better() {
            Some(true) => all.push(format!("{of} > 1 x {baseline}")),
            Some(false) => all.push(format!("{of} < 1 x {baseline}")),
            None => {}
        }
        let by_ratio = metric.def["scale"] == "ratio";
        match metric.higher_is_better().filter(|_| fails_half && by_ratio) {
            Some(true) => all.push(format!("{of} >= 0.9 x {baseline}")),
            Some(false) => all.push(format!("{of} <= 1.1 x {baseline}")),
            None => {}
        }
    }
    all
}

/// Those of them that were met, from what `weir report --require` wrote.
pub(crate) fn met(told: &str) -> Vec<String> {
    told.lines().filter(|l| l.starts_with("met: ")).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(better: &str, verdict: &str, headline: bool) -> Value {
        let metric = json!({ "name": "cpu_ns", "better": better, "headline": headline, "scale": "ratio" });
        let cell = json!({ "workload": "w", "metric": "cpu_ns", "variant": "v", "verdict": { "verdict": verdict },
                           "comparison": { "estimate": 0.5 } });
        json!({ "workloads": [{ "name": "w", "metrics": [metric] }], "results": { "cells": [cell] } })
    }

    #[test]
    fn a_verdict_is_read_in_the_metric_s_own_direction() {
        let counts = |better, verdict, headline, harm| {
            let said = verdicts(&run(better, verdict, headline), "v", harm);
            (said.better.len(), said.worse.len())
        };
        assert_eq!(counts("lower", "lower", true, Harm::Slows), (1, 0));
        assert_eq!(counts("higher", "higher", true, Harm::Fails), (1, 0));
        assert_eq!(counts("higher", "lower", true, Harm::Fails), (0, 1));
        assert_eq!(counts("lower", "higher", false, Harm::Slows), (0, 1));
        assert_eq!(counts("lower", "equivalent", true, Harm::Slows), (0, 0));
        assert_eq!(counts("neither", "higher", true, Harm::Fails), (0, 0));
        // Spending less while less is done is true; where operations fail it is praise of nothing.
        assert_eq!(counts("lower", "lower", false, Harm::Slows), (0, 0));
        assert_eq!(counts("lower", "lower", false, Harm::Fails), (1, 0));
        assert_eq!(verdicts(&run("lower", "lower", true), "other", Harm::Fails), Said::default());
    }

    #[test]
    fn sentences_and_rows_are_read_as_people_read_them() {
        let text = "crr\n transactions  good   6 k/s   baseline\n               bad-1  9 k/s   ▲ faster by 50 %\n\n\
            Against good, bad-1 is faster by 50 % [40, 60] in crr transactions (and better in 2 more metrics); bad-9 is\n  \
            slower by 99.5 % [98.8, 99.7] in crr; late-bad-1 shows no difference.\nbad-1: better in 1 (goodput).\n";
        assert_eq!(report(text, "bad-1").better.len(), 3, "{:?}", report(text, "bad-1"));
        assert_eq!((report(text, "bad-9").better.len(), report(text, "bad-9").worse.len()), (0, 1));
        assert_eq!(report(text, "late-bad-1"), Said::default());
        let first = |variant| first_sentence(text, variant).unwrap();
        assert_eq!(first("bad-9"), ("bad-9 is slower by 99.5 % [98.8, 99.7] in crr".to_owned(), true));
        assert!(!first("bad-1").1 && !first("late-bad-1").1);
        let begun = |with: &str| first_sentence(&text.replace("Against", &format!("{with}Against")), "bad-9");
        assert_eq!(begun("This run compared bad-9 with good: 1 workload. "), None);
        let failures = "No winner is named for bad-1 in crr: 5 of 6 trials are void. The baseline good itself fails 3 %. ";
        assert_eq!(begun(failures), Some(first("bad-9")));
        assert_eq!(
            begun("Path MTU black hole: TCP connects and nothing moves, on bad-1. "),
            Some(first("bad-9"))
        );
        assert_eq!(begun("This run compared bad-9 with good: 1 workload, on real hosts. "), None);
        let few = "Against good, bad-9 fails 92 % of udp (loss; of the baseline no trial counts); bad-5 fails 50 % of udp. Too few \
                   rounds for verdicts: 1 made, 8 needed.\n";
        assert!(first_sentence(few, "bad-9").unwrap().1 && report(few, "bad-5").worse.len() == 1);
        assert_eq!(tone("bad has more loss by 50 points"), Some(false));
        assert_eq!(tone("bad is faster by 3 % in rtt, but 50 % of its requests failed"), Some(true));
        assert_eq!(tone("bad is not yet told apart"), None);
    }

    #[test]
    fn bounds_are_those_that_a_worse_variant_misses() {
        let text = bounds(&run("lower", "lower", true), "v", "good", true);
        assert_eq!(text, ["v.w.cpu_ns < 1 x good", "v.w.cpu_ns <= 1.1 x good"]);
        let text = bounds(&run("higher", "lower", true), "v", "good", false);
        assert_eq!(text, ["v.w.cpu_ns > 1 x good"]);
        assert_eq!(bounds(&run("lower", "lower", false), "v", "good", true), [] as [&str; 0]);
        assert_eq!(met("met: a: b\nNOT MET: c: d\nNOT MET (undecided): e: f"), ["met: a: b"]);
    }
}
