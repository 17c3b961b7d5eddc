//! Scaling curves: a figure and a table for each headline metric of a sweep.

use super::tables::{split_interval, verdict};
use crate::chart::curve as figure;
use crate::curves::{self, Curve};
use crate::escape::line;
use crate::markup::Markup;

pub(super) fn section(out: &mut Markup, curves: &[Curve<'_>]) {
    out.note("The same trial at several values of one option. Upright bars are 95 % intervals over trials; an axis that spans \
             more than two decades is logarithmic. Each value is compared with the baseline by itself, within rounds; Holm's \
             correction is over the points of a variant's curve.",
    );
    for (i, curve) in curves.iter().enumerate() {
        out.open("h3", &[]).text(&line(&curve.family));
        out.leaf("small", &[], &format!("{} over {}", line(&curve.def.label), curve.key)).close();
        out.open("figure", &[]);
        figure::draw(out, curve, &format!("curve{i}"));
        out.close();
        table(out, curve);
    }
}

/// Values down, lines across.
fn table(out: &mut Markup, curve: &Curve<'_>) {
    let class = format!("result min-{}", curve.lines.len().min(8));
    out.open("div", &[("class", "wide")]).open("table", &[("class", &class)]);
    out.leaf("caption", &[], &curve.axis());
    out.open("thead", &[]).open("tr", &[]);
    out.leaf("th", &[("scope", "col")], &curve.key);
    for line in &curve.lines {
        out.leaf("th", &[("scope", "col")], &line.name);
    }
    out.close().close().open("tbody", &[]);
    for value in curve.values() {
        out.open("tr", &[]).leaf("th", &[("scope", "row")], &curves::figure(value));
        for line in &curve.lines {
            let spot = line.at(value);
            out.open("td", &[]);
            let text = curve.value(spot);
            let (number, interval) = split_interval(&text);
            out.leaf("b", &[], number);
            if let Some(interval) = interval {
                out.text(" ").leaf("span", &[("class", "ci")], interval);
            }
            if let Some(words) = spot.and_then(|s| s.words.as_ref()) {
                verdict(out, words);
            }
            out.close();
        }
        out.close();
    }
    out.close().close().close();
}
