//! Forest plot: every variant's effect against the baseline with its interval, over the noise floor and the
//! margin of equivalence.

use weir_record::results::Results;
use weir_record::{MetricDef, Run, Scale, Unit, WorkloadInfo};
use weir_stats::Comparison;
use weir_text::layout::ellipsis;

use crate::chart::axis::Axis;
use crate::chart::{Area, begin, label, line, marker, path, rect};
use crate::escape;
use crate::markup::{Markup, px};
use crate::pairs::PairRow;
use crate::units::number;
use crate::view::{compared, effect_text, floor_value, headlines, too_few};
use crate::words::{floor_text, signed, verdict};

const WIDTH: f64 = 924.0;
const LEFT: f64 = 180.0;
const RIGHT: f64 = 190.0;
const ROW: f64 = 21.0;
const HEAD: f64 = 24.0;

/// Effects beyond a factor of eight are drawn at the edge, with an arrow; their figures stand beside.
const FURTHEST_RATIO: f64 = 8.0;

struct Line {
    style: usize,
    name: String,
    comparison: Comparison,
    /// The effect as it is, with its sign.
    effect: String,
    class: &'static str,
    words: String,
}

/// Subject of a figure.
struct Subject<'a> {
    title: String,
    margin: f64,
    id: &'a str,
}

struct Group<'a> {
    def: &'a MetricDef,
    floor: Option<f64>,
    lines: Vec<Line>,
}

/// The forest plots of one workload: one for all metrics that are compared by ratio, one for each that is
/// compared by difference, since those have units. Nothing is drawn where nothing was compared.
pub(crate) fn draw(out: &mut Markup, run: &Run, results: &Results, workload: &WorkloadInfo, id: &str) {
    let defs = headlines(results, workload);
    let groups = defs.into_iter().map(|def| group(run, results, workload, def)).collect();
    let baseline = run.baseline().unwrap_or_default();
    let title = format!("{}: effect of each variant against {baseline}", workload.name);
    plots(out, groups, &Subject { title, margin: run.plan.equivalence_margin, id });
}

/// The same for one workload against another one: rows of one pair, a mark for each variant.
pub(crate) fn draw_pair(out: &mut Markup, run: &Run, rows: &[&PairRow<'_>], id: &str) {
    let Some(first) = rows.first() else { return };
    let line_of = |r: &&PairRow<'_>| {
        let style = run.variants.iter().position(|v| v.name == r.variant.name)?;
        let comparison = r.found.comparison.filter(|c| !c.estimate.is_nan())?;
        Some(Line {
            style,
            name: escape::line(&r.variant.name),
            comparison,
            effect: r.effect.clone().unwrap_or_default(),
            class: r.words.as_ref().map_or("open", |w| w.tone.class()),
            words: r.said(),
        })
    };
    let of_metric = rows.chunk_by(|a, b| a.def.name == b.def.name);
    let groups = of_metric
        .map(|rows| Group {
            def: rows[0].def,
            floor: rows[0].floor,
            lines: rows.iter().filter_map(line_of).collect(),
        })
        .collect();
    plots(out, groups, &Subject { title: first.title(), margin: run.plan.equivalence_margin, id });
}

fn plots(out: &mut Markup, groups: Vec<Group<'_>>, subject: &Subject<'_>) {
    let id = subject.id;
    let (ratios, differences): (Vec<_>, Vec<_>) =
        groups.into_iter().filter(|g| !g.lines.is_empty()).partition(|g| g.def.scale == Scale::Ratio);
    if !ratios.is_empty() {
        figure(out, subject, &ratios, ratio_range(&ratios, subject.margin), &format!("{id}-r"));
    }
    for (i, single) in differences.iter().enumerate() {
        let values = extremes(single, 0.0);
        let Some(axis) = Axis::linear(values.into_iter().chain([0.0]), false) else { continue };
        let axis = symmetric(axis, single);
        figure(out, subject, std::slice::from_ref(single), axis, &format!("{id}-d{i}"));
    }
}

fn group<'a>(run: &Run, results: &Results, workload: &WorkloadInfo, def: &'a MetricDef) -> Group<'a> {
    let cell = |variant: &str| results.cell(&workload.name, &def.name, variant);
    let baseline = run.baseline().and_then(|b| cell(b)?.estimate);
    // The page says once that rounds are too few.
    let judged = too_few(run, results).is_none();
    let lines = run
        .variants
        .iter()
        .enumerate()
        .filter(|(_, v)| !v.baseline && compared(run).any(|c| c.name == v.name))
        .filter_map(|(style, v)| {
            let cell = cell(&v.name)?;
            let comparison = cell.comparison.filter(|c| !c.estimate.is_nan())?;
            let said = cell.verdict.map(|w| verdict(def, Some(&comparison), w));
            Some(Line {
                style,
                name: escape::line(&v.name),
                comparison,
                effect: effect_text(def, &comparison, cell.estimate, baseline),
                class: said.as_ref().map_or("open", |w| w.tone.class()),
                words: said
                    .filter(|_| judged)
                    .map(|w| format!("{} {}", w.tone.symbol(), w.text))
                    .unwrap_or_default(),
            })
        })
        .collect();
    Group { def, floor: floor_value(results, &workload.name, &def.name), lines }
}

fn extremes(group: &Group<'_>, extra: f64) -> Vec<f64> {
    let mut values = vec![extra];
    for l in &group.lines {
        values.push(l.comparison.estimate);
        values.extend(l.comparison.interval.into_iter().flat_map(|(low, high)| [low, high]));
    }
    // Failed operations lie at the edge, wherever it is.
    values.retain(|value| value.is_finite());
    values
}

fn ratio_range(groups: &[Group<'_>], margin: f64) -> Axis {
    let mut reach = (2.0 * margin).max(0.05).ln_1p();
    for g in groups {
        let seen =
            extremes(g, 1.0).into_iter().filter(|v| *v > 0.0).map(|v| v.ln().abs()).fold(0.0, f64::max);
        reach = reach.max(seen * 1.08).max(g.floor.unwrap_or(0.0).min(seen.max(reach)) * 1.05);
    }
    let reach = reach.min(FURTHEST_RATIO.ln());
    Axis::exact((-reach).exp(), reach.exp(), true)
}

fn symmetric(axis: Axis, group: &Group<'_>) -> Axis {
    let reach = extremes(group, 0.0).into_iter().chain(group.floor).map(f64::abs).fold(0.0, f64::max);
    if reach == 0.0 {
        let one = if group.def.unit == Unit::Ratio { 0.01 } else { 1.0 };
        return Axis::exact(-one, one, false);
    }
    if axis.holds(-reach) && axis.holds(reach) { axis } else { Axis::exact(-reach * 1.1, reach * 1.1, false) }
}

fn ratio_ticks(axis: &Axis, width: f64) -> Vec<(f64, String)> {
    let text = |r: f64| {
        if r >= 2.0 || r <= 0.25 {
            format!("×{}", if r < 1.0 { number(r, 3).trim_end_matches('0').to_owned() } else { number(r, 0) })
        } else if (r - 1.0).abs() < 1e-9 {
            "equal".to_owned()
        } else {
            format!("{} %", signed((r - 1.0) * 100.0, 0))
        }
    };
    // The most important first; a later one is left out where it would touch an earlier one.
    let order = [
        1.0, 0.5, 2.0, 0.8, 1.25, 0.9, 1.1, 0.95, 1.05, 0.25, 4.0, 0.125, 8.0, 0.7, 1.5, 0.98, 1.02, 0.99,
        1.01,
    ];
    let mut kept: Vec<f64> = Vec::new();
    for r in order.into_iter().filter(|r| axis.holds(*r)) {
        let free = |k: &f64| (axis.position(*k) - axis.position(r)).abs() * width >= 46.0;
        if kept.iter().all(free) {
            kept.push(r);
        }
    }
    kept.sort_by(f64::total_cmp);
    kept.into_iter().map(|r| (r, text(r))).collect()
}

fn figure(out: &mut Markup, subject: &Subject<'_>, groups: &[Group<'_>], axis: Axis, id: &str) {
    let rows: usize = groups.iter().map(|g| g.lines.len()).sum();
    let height = rows as f64 * ROW + groups.len() as f64 * HEAD + 36.0;
    let area = Area { left: LEFT, top: 6.0, width: WIDTH - LEFT - RIGHT, height: height - 38.0 };
    let ratio = groups[0].def.scale == Scale::Ratio;
    begin(out, id, (WIDTH, height), &escape::line(&subject.title), &describe(groups));
    let ticks =
        if ratio { ratio_ticks(&axis, area.width) } else { difference_ticks(&axis, groups[0].def.unit) };
    super::grid_x(out, &area, &axis, &ticks);
    let mut y = area.top;
    for g in groups {
        let inner = g.lines.len() as f64 * ROW + HEAD;
        if let Some(floor) = g.floor {
            let (low, high) = if ratio { ((-floor).exp(), floor.exp()) } else { (-floor, floor) };
            let (x1, x2) = (area.x(&axis, low), area.x(&axis, high));
            rect(out, "floor", x1, y + 2.0, x2 - x1, inner - 4.0);
        }
        let floor = g.floor.map(|f| format!("noise floor {}", floor_text(g.def, f))).unwrap_or_default();
        label(out, (4.0, y + 16.0), "start", "head", &ellipsis(&escape::line(&g.def.label), 28));
        label(out, (WIDTH - 4.0, y + 16.0), "end", "tick", &floor);
        y += HEAD;
        for l in &g.lines {
            draw_line(out, &area, &axis, l, y + ROW / 2.0);
            y += ROW;
        }
    }
    let zero = area.x(&axis, if ratio { 1.0 } else { 0.0 });
    line(out, "zero", (zero, area.top), (zero, area.bottom()));
    if ratio {
        let margin = subject.margin;
        for r in [1.0 / (1.0 + margin), 1.0 + margin].into_iter().filter(|r| axis.holds(*r)) {
            line(out, "margin", (area.x(&axis, r), area.top), (area.x(&axis, r), area.bottom()));
        }
    }
    out.close();
}

fn difference_ticks(axis: &Axis, unit: Unit) -> Vec<(f64, String)> {
    let (ticks, symbol) = axis.ticks(unit, 6);
    let symbol = if unit == Unit::Ratio { "points" } else { symbol };
    ticks
        .into_iter()
        .map(|(v, text)| {
            let sign = if v > 0.0 { "+" } else { "" };
            let unit = if v == 0.0 { "equal".to_owned() } else { format!("{sign}{text} {symbol}") };
            (v, unit)
        })
        .collect()
}

fn draw_line(out: &mut Markup, area: &Area, axis: &Axis, l: &Line, y: f64) {
    let c = &l.comparison;
    out.open("g", &[("class", l.class)]);
    out.leaf("title", &[], &format!("{}: {} {}", l.name, l.effect, l.words));
    label(out, (16.0, y + 4.0), "start", "name", &ellipsis(&l.name, 25));
    if let Some((low, high)) = c.interval {
        let (x1, x2) = (area.x(axis, low), area.x(axis, high));
        line(out, "whisker", (x1, y), (x2, y));
        for (value, x, way) in [(low, x1, -1.0), (high, x2, 1.0)] {
            if axis.holds(value) {
                line(out, "whisker", (x, y - 4.0), (x, y + 4.0));
            } else {
                let tip = format!(
                    "M{} {}L{} {}L{} {}",
                    px(x - 6.0 * way),
                    px(y - 4.0),
                    px(x),
                    px(y),
                    px(x - 6.0 * way),
                    px(y + 4.0)
                );
                path(out, "whisker", &tip);
            }
        }
    }
    path(out, "point", &marker(l.style, area.x(axis, c.estimate), y, 4.2));
    label(out, (area.right() + 12.0, y + 4.0), "start", "value", &l.effect);
    out.close();
}

fn describe(groups: &[Group<'_>]) -> String {
    let mut parts = Vec::new();
    for g in groups {
        for l in &g.lines {
            parts.push(format!("{}, {}: {}", escape::line(&g.def.label), l.name, l.effect));
        }
    }
    parts.join("; ")
}
