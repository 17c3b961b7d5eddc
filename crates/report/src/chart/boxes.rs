//! Box plots of round trips by way to connect, with the average of every repeat beneath the box: a way that jumps has its
//! dots in several places.

use std::collections::BTreeMap;

use weir_record::{Trial, Unit};
use weir_stats::Delays;
use weir_text::layout::ellipsis;

use crate::chart::axis::Axis;
use crate::chart::{Area, STYLES, begin, grid_x, label, line, marker, path, rect};
use crate::escape;
use crate::markup::Markup;
use crate::patterns::View;
use crate::units::quantity;
use crate::view::trials;

const WIDTH: f64 = 924.0;
const LANE: f64 = 40.0;
const LEFT: f64 = 190.0;

/// Whiskers, box and middle.
const QUANTILES: [f64; 5] = [0.01, 0.25, 0.5, 0.75, 0.99];

/// Round trips of the repeats of each variant, merged: what both figures of patterns draw.
pub(crate) fn merged<'a>(view: &View<'a>) -> BTreeMap<&'a str, Delays> {
    let mut all: BTreeMap<&str, Delays> = BTreeMap::new();
    let Some(name) = super::latency::histograms(view.repeats).first().copied() else { return all };
    for row in &view.rows {
        let valid = |t: &&Trial| !t.is_void();
        for trial in trials(view.run, &view.repeats.name, &row.pattern.variant).filter(valid) {
            if let Some(histogram) = trial.histograms.get(name) {
                all.entry(&row.pattern.variant).or_default().merge(histogram);
            }
        }
    }
    all.retain(|_, histogram| !histogram.is_empty());
    all
}

/// One lane.
struct Lane {
    style: usize,
    name: String,
    bounds: [f64; 5],
    averages: Vec<f64>,
    once: Option<f64>,
}

/// Draws the boxes; false where nothing was measured.
pub(crate) fn draw(out: &mut Markup, view: &View<'_>, id: &str) -> bool {
    let merged = merged(view);
    let lanes: Vec<Lane> = view
        .rows
        .iter()
        .filter_map(|row| {
            let histogram = merged.get(row.pattern.variant.as_str())?;
            let mut bounds = [0.0; 5];
            for (bound, q) in bounds.iter_mut().zip(QUANTILES) {
                *bound = histogram.quantile(q)?.seen()?;
            }
            let valid = trials(view.run, &view.repeats.name, &row.pattern.variant).filter(|t| !t.is_void());
            let averages = valid.filter_map(|t| t.metrics.get(&view.found.metric).copied()).collect();
            Some(Lane {
                style: row.style,
                name: row.name.clone(),
                bounds,
                averages,
                once: row.pattern.once_ns,
            })
        })
        .collect();
    let values =
        lanes.iter().flat_map(|l| l.bounds.into_iter().chain(l.averages.iter().copied()).chain(l.once));
    let Some(axis) = axis(values) else { return false };
    let height = 12.0 + LANE * lanes.len() as f64 + 38.0;
    let title = format!("{}: round trips by way to connect", escape::line(&view.repeats.name));
    begin(out, id, (WIDTH, height), &title, &describe(&lanes));
    let area = Area { left: LEFT, top: 8.0, width: WIDTH - LEFT - 24.0, height: LANE * lanes.len() as f64 };
    let (ticks, unit) = axis.ticks(Unit::Ns, 8);
    grid_x(out, &area, &axis, &ticks);
    for (i, lane) in lanes.iter().enumerate() {
        draw_lane(out, &area, &axis, lane, area.top + LANE * i as f64);
    }
    let words = if unit.is_empty() { "round trip".to_owned() } else { format!("round trip, {unit}") };
    label(out, (area.left + area.width / 2.0, height - 4.0), "middle", "tick", &words);
    out.close();
    true
}

/// Above this ratio of greatest to least the axis is logarithmic.
const MOST_LINEAR: f64 = 20.0;

/// An axis that holds the values with a little room, linear unless they span too much.
pub(super) fn axis(values: impl Iterator<Item = f64>) -> Option<Axis> {
    let values: Vec<f64> = values.filter(|v| *v > 0.0 && v.is_finite()).collect();
    let least = values.iter().copied().reduce(f64::min)?;
    let greatest = values.iter().copied().reduce(f64::max)?;
    if greatest / least > MOST_LINEAR {
        Axis::log(values.into_iter())
    } else {
        Axis::linear(values.into_iter(), false)
    }
}

fn draw_lane(out: &mut Markup, area: &Area, axis: &Axis, lane: &Lane, top: f64) {
    let style = lane.style % STYLES;
    let (bar, mark) = (format!("bar v{style}"), format!("mark v{style}"));
    let x = |value: f64| area.x(axis, value);
    let (y, half) = (top + 13.0, 7.0);
    let [low, first, middle, third, high] = lane.bounds.map(x);
    label(out, (LEFT - 10.0, y + 4.0), "end", "name", &ellipsis(&lane.name, 28));
    for (from, to) in [(low, first), (third, high)] {
        line(out, &bar, (from, y), (to, y));
    }
    for end in [low, high] {
        line(out, &bar, (end, y - 4.0), (end, y + 4.0));
    }
    rect(out, &format!("spread v{style}"), first, y - half, third - first, 2.0 * half);
    let corners = [(first, -half), (third, -half), (third, half), (first, half), (first, -half)];
    path(out, &bar, &super::line_path(corners.into_iter().map(|(x, dy)| (x, y + dy))));
    line(out, &format!("centre v{style}"), (middle, y - half), (middle, y + half));
    for average in &lane.averages {
        path(out, &mark, &marker(0, x(*average), y + half + 8.0, 3.2));
    }
    if let Some(once) = lane.once {
        path(out, &mark, &marker(3, x(once), y + half + 8.0, 4.6));
    }
}

fn describe(lanes: &[Lane]) -> String {
    let one = |lane: &Lane| {
        let [_, first, middle, third, _] = lane.bounds.map(|v| quantity(Unit::Ns, v, None));
        format!("{}: median {middle}, half of the round trips from {first} to {third}", lane.name)
    };
    lanes.iter().map(one).collect::<Vec<_>>().join("; ")
}
