//! Everything needed to judge the results and to reproduce them: plan, variants with their proof, workloads, hosts, scenario, and
//! how to read it all.

use std::collections::BTreeMap;

use weir_record::{HostFacts, MetricDef, Run};
use weir_text::time::duration;

use crate::escape::{block, line};
use crate::html::pair;
use crate::markup::Markup;
use crate::units::percent;
use crate::words::plural;

pub(super) fn how_it_was_made(out: &mut Markup, run: &Run) {
    plan(out, run);
    variants(out, run);
    workloads(out, run);
    out.leaf("h3", &[], "Environment");
    run.hosts.iter().for_each(|host| environment(out, host));
    if !run.notes.is_empty() {
        out.leaf("h3", &[], "Notes");
        out.open("ul", &[]);
        for note in &run.notes {
            out.leaf("li", &[], &line(note));
        }
        out.close();
    }
    out.leaf("h3", &[], "Scenario");
    let seed = format!("Run this again with seed {} for the same order of trials.", run.seed);
    out.note(&seed);
    out.leaf("pre", &[], &block(&run.scenario_toml));
}

fn plan(out: &mut Markup, run: &Run) {
    let plan = &run.plan;
    out.leaf("h3", &[], "Plan and end");
    out.open("dl", &[]);
    pair(
        out,
        "Rounds",
        &format!(
            "at least {}, at most {}; each holds every variant × workload once, in random order",
            plan.min_rounds, plan.max_rounds
        ),
    );
    pair(out, "Time budget", &duration(plan.budget_s));
    pair(out, "Aim", &format!("every headline interval within ±{}", percent(plan.target_half_width)));
    pair(out, "Equivalence", &format!("within ±{}", percent(plan.equivalence_margin)));
    pair(out, "Steal", &format!("a trial is void above {} of CPU time", percent(plan.max_steal_ratio)));
    pair(out, "End", &crate::words::status(&run.status));
    pair(out, "Seed", &run.seed.to_string());
    pair(out, "Version", &format!("weir {}, record schema {}", line(&run.weir), run.schema));
    out.close();
}

fn variants(out: &mut Markup, run: &Run) {
    out.leaf("h3", &[], "Variants, and how each was proved to be in effect");
    table(out, &["variant", "kind", "what it is", "proof"]);
    for v in &run.variants {
        out.open("tr", &[]);
        out.open("th", &[("scope", "row")]).text(&line(&v.name));
        let role = match &v.twin_of {
            Some(of) => format!("A/A twin of {}", line(of)),
            None if v.baseline => "baseline".to_owned(),
            None => String::new(),
        };
        if !role.is_empty() {
            out.leaf("span", &[("class", "what")], &role);
        }
        out.close();
        out.leaf("td", &[], &line(&v.kind));
        let labels: Vec<String> =
            v.labels.iter().map(|(k, v)| format!("{} = {}", line(k), line(v))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!(" ({})", labels.join(", ")) };
        out.leaf("td", &[], &format!("{}{labels}", line(&v.description)));
        out.open("td", &[]);
        if v.proof.is_empty() {
            out.text("none recorded");
        }
        for (i, proof) in v.proof.iter().enumerate() {
            if i > 0 {
                out.empty("br", &[]);
            }
            out.text(&line(proof));
        }
        out.close().close();
    }
    out.close().close().close();
}

fn workloads(out: &mut Markup, run: &Run) {
    out.leaf("h3", &[], "Workloads and their metrics");
    table(out, &["workload", "metric", "what it is", "compared by"]);
    for w in &run.workloads {
        for (i, def) in w.metrics.iter().enumerate() {
            out.open("tr", &[("class", if i == 0 { "first" } else { "" })]);
            out.open("th", &[("scope", "row")]);
            if i == 0 {
                out.text(&line(&w.name)).leaf("span", &[("class", "what")], &line(&w.kind));
            }
            out.close();
            out.open("td", &[]).text(&line(&def.label)).text(" ");
            out.open("span", &[("class", "what")]).leaf("code", &[], &line(&def.name)).close().close();
            out.leaf("td", &[], &line(&def.help));
            out.leaf("td", &[], compared_by(def)).close();
        }
    }
    out.close().close().close();
}

fn compared_by(def: &MetricDef) -> &'static str {
    use weir_record::{Better, Scale};
    match (def.scale, def.better) {
        (Scale::Ratio, Better::Higher) => "ratio, higher is better",
        (Scale::Ratio, Better::Lower) => "ratio, lower is better",
        (Scale::Ratio, Better::Neither) => "ratio, not judged",
        (Scale::Difference, Better::Higher) => "difference, higher is better",
        (Scale::Difference, Better::Lower) => "difference, lower is better",
        (Scale::Difference, Better::Neither) => "difference, not judged",
    }
}

fn table(out: &mut Markup, heads: &[&str]) {
    out.open("div", &[("class", "wide")]).open("table", &[]).open("thead", &[]).open("tr", &[]);
    for head in heads {
        out.leaf("th", &[("scope", "col")], head);
    }
    out.close().close().open("tbody", &[]);
}

fn environment(out: &mut Markup, host: &HostFacts) {
    out.leaf("p", &[], &line(&crate::markdown::host_line(host)));
    out.open("dl", &[]);
    pair(out, "System", &line(&format!("{}; kernel build {}", host.os, host.kernel_build)));
    pair(out, "CPU governor", &line(host.governor.as_deref().unwrap_or("none (no cpufreq)")));
    for i in &host.interfaces {
        let (on, off): (Vec<_>, Vec<_>) = i.offloads.iter().partition(|(_, on)| **on);
        let names = |list: Vec<(&String, &bool)>| {
            let names: Vec<&str> = list.into_iter().map(|(name, _)| name.as_str()).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        let text = format!(
            "{}, MTU {}, {}; offloads on: {}; off: {}",
            if i.driver.is_empty() { "unknown driver" } else { &i.driver },
            i.mtu,
            i.addresses.join(", "),
            names(on),
            names(off)
        );
        pair(out, &line(&format!("Interface {}", i.name)), &line(&text));
    }
    facts(out, "Programs", &host.programs, " ");
    facts(out, "Kernel features", &host.features, ": ");
    out.close();
    let rest = host.sysctls.len() + host.mitigations.len();
    if rest > 0 {
        out.open("details", &[]);
        out.leaf("summary", &[], &format!("{} and CPU mitigations", plural(host.sysctls.len(), "sysctl")));
        out.open("dl", &[]);
        for (name, value) in host.sysctls.iter().chain(&host.mitigations) {
            pair(out, &line(name), &line(value));
        }
        out.close().close();
    }
}

fn facts(out: &mut Markup, term: &str, facts: &BTreeMap<String, String>, between: &str) {
    if facts.is_empty() {
        return;
    }
    let all: Vec<String> = facts.iter().map(|(k, v)| format!("{}{between}{}", line(k), line(v))).collect();
    pair(out, term, &all.join("; "));
}

/// The rules behind the words.
const RULES: [(&str, &str); 12] = [
    (
        "n",
        "Trials that count. A trial is one workload on one variant, once, from a fresh state; nothing shorter \
         is compared, because the seconds of one trial depend on each other.",
    ),
    (
        "Value",
        "Median of the trials; for a percentile, that of all trials' values merged. In brackets its 95 % \
         interval, from six trials on. A share of which nothing was seen has an upper bound instead: none lost of n \
         is below 3/n at 95 %.",
    ),
    (
        "What failed",
        "Counts. An operation that failed, was refused or was lost takes infinitely long in every percentile, one that \
         was still under way at least as long as it was waited for (RFC 7679 section 5.1): “failed” and “> 3 s” stand \
         where a percentile lies among them. The share that failed has a row wherever it is not 0. A variant that fails \
         more than the baseline is called better in nothing of that workload (!): means, CPU time and jitter are those \
         of answered operations.",
    ),
    (
        "Value of a percentile",
        "Its bracket is not a plain 95 % interval: a percentile of all trials merged also depends on trials so unlucky \
         that few of them are seen, and what was not seen widens nothing. In simulations with 6 to 20 trials it held \
         the true p99 in 94 to 97 % where the trials' luck was normal, but only in 63 to 86 % where it was skewed or \
         heavy-tailed. No verdict rests on it: effects are compared within rounds.",
    ),
    (
        "Effect",
        "Variant against baseline within each round, so that what a round's trials have in common cancels: \
         Hodges–Lehmann estimate with the interval of the Wilcoxon signed-rank test. Each round has a percentile of its own, and \
         these are compared in the same way.",
    ),
    (
        "Noise floor",
        "How far the baseline is from its own A/A twin: 95th percentile over rounds. A difference below it \
         may be the testbed's.",
    ),
    (
        "▲ better, ▼ worse",
        "Significant at 5 % after Holm's correction over the variants of a metric, and an estimate beyond the \
         noise floor. “faster” and “slower” speak of rates and times, “more” and “less” of everything else. ◆ \
         marks a difference of a metric that has no good direction.",
    ),
    ("= equivalent", "Two one-sided tests put the effect within the margin of equivalence."),
    (
        "≈ no difference seen",
        "The whole interval lies within the noise floor. This does not prove that they are equal.",
    ),
    (
        "? inconclusive",
        "Neither a difference nor equivalence is shown; the number of rounds is a forecast from the spread so \
         far. An interval may still exclude “no effect”, because the verdict is for all variants together.",
    ),
    (
        "†",
        "The values of the row do not show its effect: a value is of all trials, where one bad trial may weigh most, and an \
         effect is that of a typical round.",
    ),
    (
        "Added time",
        "Next to a percentage, the same effect in time units (the ratio applied to the baseline's value), \
         because those add up along a path.",
    ),
];

pub(super) fn how_to_read(out: &mut Markup) {
    out.open("dl", &[]);
    for (term, text) in RULES {
        pair(out, term, text);
    }
    out.close();
}
