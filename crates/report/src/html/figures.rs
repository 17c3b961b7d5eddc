//! The figures with their captions.

use weir_record::results::Results;
use weir_record::{Run, WorkloadInfo};

use crate::chart::time::{Origin, Subject};
use crate::chart::{forest, latency as percentiles, legend, rounds, time as over_time};
use crate::escape::line;
use crate::markup::Markup;
use crate::units::percent;
use crate::view::{compared, headlines, workloads};

fn heading(out: &mut Markup, workload: &WorkloadInfo) {
    out.open("h3", &[]).text(&line(&workload.name));
    out.leaf("small", &[], &line(&workload.description)).close();
}

/// Forest plots, one figure per workload.
pub(super) fn effects(out: &mut Markup, run: &Run, results: &Results) {
    let baseline = run.baseline().map_or("the baseline".to_owned(), line);
    out.note(&format!(
        "Each mark is the estimated effect against {baseline}, each line its 95 % interval. The shaded \
         band is the noise floor ({baseline} against its own twin); dotted lines are the margin of \
         equivalence (±{}). A mark to the left is less than the baseline, which is good or bad by the \
         metric; colour and the words in the table tell which.",
        percent(run.plan.equivalence_margin)
    ));
    for (i, workload) in workloads(run).enumerate() {
        heading(out, workload);
        out.open("figure", &[]);
        forest::draw(out, run, results, workload, &format!("forest{i}"));
        out.close();
    }
}

/// Percentile curves of every workload that measures times.
pub(super) fn latency(out: &mut Markup, run: &Run) {
    let mut any = false;
    for (i, workload) in workloads(run).enumerate() {
        for (j, histogram) in percentiles::histograms(workload).into_iter().enumerate() {
            let mut figure = Markup::new();
            if !percentiles::draw(&mut figure, run, workload, histogram, &format!("latency{i}-{j}")) {
                continue;
            }
            any = true;
            heading(out, workload);
            out.open("figure", &[]);
            out.append(figure);
            out.caption(&format!(
                    "{}: all valid trials merged. A curve ends where fewer than six values lie beyond; one that begins \
                     at the lower edge begins below it. Further down is faster; both axes are logarithmic.",
                    line(histogram)
                ),
            );
            out.close();
        }
    }
    if !any {
        out.leaf("p", &[], "No workload of this run measures times.");
    }
}

/// Load and gateway over time; memory, network and further series are folded.
pub(super) fn time(out: &mut Markup, run: &Run) {
    out.note(
        "Median over the valid trials at each second of the measuring window; the band is the middle half of \
         them. In the lab all hosts share one machine, so the gateway's CPU is the machine's.",
    );
    let mut any = false;
    for (i, workload) in workloads(run).enumerate() {
        let subjects = over_time::subjects(run, workload);
        let (first, more): (Vec<_>, Vec<_>) = subjects.into_iter().partition(is_first);
        let drawn = |subjects: &[Subject], kind: &str| -> Vec<Markup> {
            let mut figures = Vec::new();
            for (j, subject) in subjects.iter().enumerate() {
                let mut figure = Markup::new();
                if over_time::draw(&mut figure, run, workload, subject, &format!("time{i}-{kind}{j}")) {
                    figures.push(figure);
                }
            }
            figures
        };
        let (first, more) = (drawn(&first, "a"), drawn(&more, "b"));
        if first.is_empty() && more.is_empty() {
            continue;
        }
        any = true;
        heading(out, workload);
        out.open("figure", &[]);
        key(out, run, i);
        pairs(out, first);
        out.close();
        if !more.is_empty() {
            out.open("details", &[]);
            out.leaf("summary", &[], "Memory, network and other series");
            pairs(out, more);
            out.close();
        }
    }
    if !any {
        out.leaf("p", &[], "The trials of this run hold no series.");
    }
}

fn is_first(subject: &Subject) -> bool {
    match subject.origin {
        Origin::Load => true,
        Origin::Host(_) => matches!(subject.series.as_str(), "cpu_busy_cores" | "softirq_cores"),
    }
}

fn pairs(out: &mut Markup, figures: Vec<Markup>) {
    out.open("div", &[("class", "pair")]);
    figures.into_iter().for_each(|figure| out.append(figure));
    out.close();
}

/// The legend of the small figures under it.
fn key(out: &mut Markup, run: &Run, index: usize) {
    let names: Vec<(usize, String)> = run
        .variants
        .iter()
        .enumerate()
        .filter(|(_, v)| compared(run).any(|c| c.name == v.name))
        .map(|(style, v)| (style, line(&v.name)))
        .collect();
    let mut rows = Markup::new();
    let height = legend(&mut rows, &names, 0.0, 10.0, 880.0);
    crate::chart::begin(
        out,
        &format!("key{index}"),
        (880.0, height),
        "Legend",
        "Line style and marker of each variant",
    );
    out.append(rows);
    out.close();
}

/// Every single trial of every headline metric.
pub(super) fn every_trial(out: &mut Markup, run: &Run, results: &Results) {
    out.note("One dot per trial, the first round at the top of its lane and the last at the bottom, so that drift \
             shows; × is a void trial. The upright line is the estimate, the shade its 95 % interval. How far the \
             baseline and its A/A twin differ is what the testbed does by itself.",
    );
    for (i, workload) in run.workloads.iter().enumerate() {
        for (j, def) in headlines(results, workload).into_iter().enumerate() {
            let mut figure = Markup::new();
            if rounds::draw(&mut figure, run, results, (workload, def), &format!("trials{i}-{j}")) {
                out.open("h3", &[]).text(&line(&workload.name));
                out.leaf("small", &[], &line(&def.label)).close();
                out.open("figure", &[]);
                out.append(figure);
                out.close();
            }
        }
    }
}
