//! Workloads against each other: a forest plot and a table per pair.

use weir_record::Run;
use weir_record::results::Results;

use super::tables::{split_interval, verdict};
use crate::chart::forest;
use crate::escape::line;
use crate::markup::Markup;
use crate::pairs::PairRow;
use crate::spread;
use crate::words::{floor_text, plural};

pub(super) fn section(out: &mut Markup, run: &Run, results: &Results, rows: &[PairRow<'_>]) {
    out.note("Two workloads inside one variant, compared within rounds: each mark is the estimated effect of the first \
             against the second, each line its 95 % interval. The shaded band is the greater noise floor of the two. \
             Holm's correction is over the variants of a metric.",
    );
    for (i, pair) in rows.chunk_by(PairRow::same_pair).enumerate() {
        out.leaf("h3", &[], &pair[0].title());
        let (main, more): (Vec<&PairRow<'_>>, Vec<_>) = pair.iter().partition(|r| r.main);
        out.open("figure", &[]);
        forest::draw_pair(out, run, &main, &format!("pair{i}"));
        out.close();
        table(out, &main);
        if !more.is_empty() {
            out.open("details", &[]);
            out.leaf("summary", &[], &plural(more.len(), "more comparison"));
            table(out, &more);
            out.close();
        }
    }
    spreads(out, &spread::rows(run, results));
}

/// How well each of the compared workloads repeats.
fn spreads(out: &mut Markup, rows: &[spread::Spread]) {
    if rows.is_empty() {
        return;
    }
    let mut title = spread::TITLE.to_owned();
    title[..1].make_ascii_uppercase();
    out.leaf("h3", &[], &title);
    out.note("The coefficient of variation of each rate from trial to trial: of two workloads that measure the same thing, the one \
             that repeats better tells smaller differences apart.",
    );
    out.open("div", &[("class", "wide")]).open("table", &[]).open("thead", &[]).open("tr", &[]);
    for head in ["workload", "metric", "variant", "value", "coefficient of variation"] {
        out.leaf("th", &[("scope", "col")], head);
    }
    out.close().close().open("tbody", &[]);
    for row in rows {
        out.open("tr", &[]).leaf("th", &[("scope", "row")], &row.workload);
        for cell in [&row.metric, &row.variant, &row.value, &row.said] {
            out.leaf("td", &[], cell);
        }
        out.close();
    }
    out.close().close().close();
}

fn table(out: &mut Markup, rows: &[&PairRow<'_>]) {
    out.open("div", &[("class", "wide")]).open("table", &[]).open("thead", &[]).open("tr", &[]);
    for head in ["metric", "variant", "both values", "within rounds", "rounds"] {
        out.leaf("th", &[("scope", "col")], head);
    }
    out.close().close().open("tbody", &[]);
    for row in rows {
        out.open("tr", &[]);
        out.open("th", &[("scope", "row")]).text(&line(&row.def.label));
        if let Some(floor) = row.floor {
            let floor = format!("noise floor {}", floor_text(row.def, floor));
            out.leaf("span", &[("class", "what")], &floor);
        }
        out.close();
        out.leaf("td", &[], &line(&row.variant.name));
        out.open("td", &[]).leaf("b", &[], &row.values).close();
        out.open("td", &[]);
        if let Some(words) = &row.words {
            verdict(out, words);
        }
        if let Some(effect) = row.unsaid() {
            let (value, interval) = split_interval(effect);
            out.text(value);
            if let Some(interval) = interval {
                out.text(" ").leaf("span", &[("class", "whole")], interval);
            }
        }
        out.close();
        out.leaf("td", &[], &row.n.to_string()).close();
    }
    out.close().close().close();
}
