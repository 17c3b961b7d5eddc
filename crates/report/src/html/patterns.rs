//! Ways to connect: the table of averages, boxes and distribution functions, and what each dimension does.

use weir_record::{Unit, WorkloadInfo};
use weir_stats::{Censored, Delays};

use super::tables::{split_interval, verdict};
use crate::chart::{boxes, ecdf};
use crate::escape::line;
use crate::markup::Markup;
use crate::patterns::{View, matching, sides};
use crate::units::{delay_in, display_for_all};
use crate::view::trials;
use crate::words::plural;

pub(super) fn section(out: &mut Markup, view: &View<'_>) {
    table(out, view);
    out.note(&view.floor());
    out.open("figure", &[]);
    if boxes::draw(out, view, "boxes") {
        out.caption("Round trips of all repeats: the box holds the middle half, its line is the median, whiskers reach from p1 to \
                 p99. Each dot is the average of one repeat, which had a connection of its own; the diamond is the average \
                 of the long trial.",
        );
    }
    out.close();
    out.open("figure", &[]);
    if ecdf::draw(out, view, "ecdf") {
        out.caption("The share of round trips that took at most so long, all repeats together, up to 99 %. Marks are at the \
                 quartiles. Steps are connections that met different gateways.",
        );
    }
    out.close();
    if !view.found.dimensions.is_empty() {
        dimensions(out, view);
    }
    windows(out, view);
}

fn head(out: &mut Markup, text: &str, below: &str) {
    out.open("th", &[("scope", "col")]).text(text);
    if !below.is_empty() {
        out.leaf("span", &[("class", "what")], below);
    }
    out.close();
}

fn table(out: &mut Markup, view: &View<'_>) {
    let once = view.found.once.is_some();
    out.open("div", &[("class", "wide")]).open("table", &[]).open("thead", &[]).open("tr", &[]);
    head(out, "way to connect", "");
    if once {
        head(out, &format!("average, {}", view.shown.symbol), &view.once_head());
    }
    head(out, &format!("averages, {}", view.shown.symbol), &view.range_head());
    head(out, "between repeats", "standard deviation, medians");
    head(out, "inside a repeat", "noise alone");
    out.close().close().open("tbody", &[]);
    for row in &view.rows {
        out.open("tr", &[]);
        out.open("th", &[("scope", "row")]).text(&row.name);
        if !row.labels.is_empty() {
            out.leaf("span", &[("class", "what")], &row.labels);
        }
        out.close();
        if once {
            out.open("td", &[]).leaf("b", &[], &row.once).close();
        }
        out.open("td", &[]).leaf("b", &[], &row.range);
        out.leaf("span", &[("class", "what")], &row.counted).close();
        out.open("td", &[]);
        verdict(out, &row.words);
        let said = row.between.as_ref().filter(|b| !row.words.text.contains(b.as_str()));
        if let Some(between) = said {
            out.leaf("span", &[("class", "what")], between);
        }
        if let Some(levels) = &row.levels {
            out.leaf("span", &[("class", "what loose")], levels);
        }
        out.close();
        out.leaf("td", &[], row.within.as_deref().unwrap_or("–")).close();
    }
    out.close().close().close();
}

/// Writes the effect of each value of a label.
fn dimensions(out: &mut Markup, view: &View<'_>) {
    out.leaf("h3", &[], "By dimension");
    out.note("One value of a label against another, within rounds: the difference of the medians of the repeats, from variants \
             that are the same in all other labels where there are such. Holm's correction is over the pairs of a dimension.",
    );
    out.open("div", &[("class", "wide")]).open("table", &[]).open("thead", &[]).open("tr", &[]);
    for text in ["dimension", "values", "difference", "as a share", "made comparable by", "rounds"] {
        out.leaf("th", &[("scope", "col")], text);
    }
    out.close().close().open("tbody", &[]);
    for found in &view.found.dimensions {
        out.open("tr", &[]);
        out.leaf("th", &[("scope", "row")], &line(&found.dimension));
        out.leaf("td", &[], &sides(found));
        out.open("td", &[]);
        verdict(out, &view.effect_words(found));
        out.close().open("td", &[]);
        let share = view.effect_share(found);
        let (value, interval) = split_interval(&share);
        out.text(value);
        if let Some(interval) = interval {
            out.text(" ").leaf("span", &[("class", "whole")], interval);
        }
        out.close();
        out.open("td", &[]).leaf("span", &[("class", "loose")], &matching(found)).close();
        out.leaf("td", &[], &found.difference.n.to_string()).close();
    }
    out.close().close().close();
}

/// Columns of the table of percentiles, between least and greatest.
const QUANTILES: [(&str, f64); 6] =
    [("50 %", 0.5), ("90 %", 0.9), ("95 %", 0.95), ("99 %", 0.99), ("99.9 %", 0.999), ("99.99 %", 0.9999)];

/// Avg, Min, percentiles, Max of both workloads, as latency tools print them, folded.
fn windows(out: &mut Markup, view: &View<'_>) {
    let once = view.found.once.as_deref();
    let workloads: Vec<&WorkloadInfo> = view
        .run
        .workloads
        .iter()
        .filter(|w| Some(w.name.as_str()) == once || w.name == view.found.repeats)
        .collect();
    out.open("details", &[]);
    out.leaf("summary", &[], &format!("Percentiles of {}", plural(workloads.len(), "workload")));
    for workload in workloads {
        percentiles(out, view, workload);
    }
    out.close();
}

fn percentiles(out: &mut Markup, view: &View<'_>, workload: &WorkloadInfo) {
    let Some(name) = crate::chart::latency::histograms(workload).first().copied() else { return };
    out.open("div", &[("class", "wide")]).open("table", &[]);
    out.leaf("caption", &[], &format!("{}, {}", line(&workload.name), line(&workload.description)));
    out.open("thead", &[]).open("tr", &[]);
    for text in ["way to connect", "Avg", "Min"].into_iter().chain(QUANTILES.map(|q| q.0)).chain(["Max"]) {
        out.leaf("th", &[("scope", "col")], text);
    }
    out.close().close().open("tbody", &[]);
    for row in &view.rows {
        let mut all = Delays::new();
        let valid = trials(view.run, &workload.name, &row.pattern.variant).filter(|t| !t.is_void());
        valid.filter_map(|t| t.histograms.get(name)).for_each(|h| all.merge(h));
        out.open("tr", &[]).leaf("th", &[("scope", "row")], &row.name);
        let quantiles = QUANTILES.map(|(_, q)| all.reportable_quantile(q));
        let ended = all.answered();
        let there = |value: f64| (!ended.is_empty()).then_some(value.into());
        let figures = [there(ended.mean()), there(ended.min() as f64)]
            .into_iter()
            .chain(quantiles)
            .chain([there(ended.max() as f64)]);
        let shown = display_for_all(Unit::Ns, [ended.mean()]);
        for figure in figures {
            let text = figure.map_or("–".to_owned(), |v: Censored| delay_in(v, shown));
            out.leaf("td", &[], &text);
        }
        out.close();
    }
    out.close().close().close();
}
