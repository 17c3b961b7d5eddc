//! A metric over the values of a sweep: a mark with its 95 % interval at each value, joined along each line.

use weir_record::results::Estimate;
use weir_text::order;

use crate::chart::axis::Axis;
use crate::chart::{Area, STYLES, begin, grid_x, grid_y, label, legend, line_path, marker, path};
use crate::curves::{Curve, Line, Spot, figure};
use crate::markup::Markup;
use crate::view::value_text;

const WIDTH: f64 = 924.0;
const HEIGHT: f64 = 320.0;

/// Above this ratio of greatest to least an axis is logarithmic.
const TWO_DECADES: f64 = 100.0;

/// On a logarithmic axis nothing lies at zero: zero stands this factor left of the least value.
const ZERO_LEFT_OF_LEAST: f64 = 10.0;

/// Room for the label of a value, px.
const LABEL: f64 = 44.0;

/// Positions of the sweep's values.
struct Across {
    axis: Axis,
    /// Position of zero, if the axis is logarithmic.
    zero: Option<f64>,
}

impl Across {
    fn of(values: &[f64]) -> Option<Across> {
        let least = values.iter().copied().find(|v| *v > 0.0);
        let greatest = values.last().copied()?;
        match least {
            Some(least) if greatest / left_end(values, least) > TWO_DECADES => {
                let zero = least / ZERO_LEFT_OF_LEAST;
                let has_zero = values.contains(&0.0);
                let drawn = values.iter().map(|v| if *v > 0.0 { *v } else { zero });
                Some(Across { axis: Axis::log(drawn)?, zero: has_zero.then_some(zero) })
            }
            _ => Some(Across { axis: Axis::linear(values.iter().copied(), false)?, zero: None }),
        }
    }

    fn place(&self, value: f64) -> f64 {
        if value > 0.0 { value } else { self.zero.unwrap_or(value) }
    }
}

/// Returns the start of a logarithmic axis.
fn left_end(values: &[f64], least: f64) -> f64 {
    if values.contains(&0.0) { least / ZERO_LEFT_OF_LEAST } else { least }
}

/// The scale of the metric: from zero, so that a small change does not look like a great one, unless it spans decades.
fn upright(curve: &Curve<'_>) -> Option<Axis> {
    let ends = |s: &Spot| s.estimate.into_iter().flat_map(|e| [e.center, low(&e), high(&e)]);
    let all: Vec<f64> = curve.spots().flat_map(ends).collect();
    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = all.iter().copied().fold(0.0, f64::max);
    if least > 0.0 && greatest / least > TWO_DECADES {
        return Axis::log(all.into_iter());
    }
    Axis::linear(all.into_iter(), true)
}

fn low(e: &weir_record::results::Estimate) -> f64 {
    e.interval.map_or(e.center, |i| i.0)
}

fn high(e: &weir_record::results::Estimate) -> f64 {
    e.interval.map_or(e.center, |i| i.1)
}

/// Draws a curve; false where nothing was measured.
pub(crate) fn draw(out: &mut Markup, curve: &Curve<'_>, id: &str) -> bool {
    let values = curve.values();
    let (Some(x), Some(y)) = (Across::of(&values), upright(curve)) else { return false };
    begin(out, id, (WIDTH, HEIGHT), &format!("{} over {}", curve.title(), curve.key), &describe(curve));
    let names: Vec<(usize, String)> = curve.lines.iter().map(|l| (l.style, l.name.clone())).collect();
    let top = legend(out, &names, 70.0, 12.0, WIDTH - 80.0);
    let area = Area { left: 70.0, top: top + 12.0, width: WIDTH - 90.0, height: HEIGHT - top - 50.0 };
    grid_x(out, &area, &x.axis, &labels(&area, &x, &values));
    let (ticks, unit) = y.ticks(curve.def.unit, 5);
    grid_y(out, &area, &y, &ticks);
    label(out, (area.left - 6.0, area.top - 8.0), "end", "tick", unit);
    for line in &curve.lines {
        draw_line(out, &area, (&x, &y), line);
    }
    label(out, (area.left + area.width / 2.0, HEIGHT - 4.0), "middle", "tick", &curve.key);
    out.close();
    true
}

fn draw_line(out: &mut Markup, area: &Area, (x, y): (&Across, &Axis), line: &Line) {
    let style = line.style % STYLES;
    let mut seen: Vec<(f64, &weir_record::results::Estimate)> =
        line.spots.iter().filter_map(|s| Some((s.at, s.estimate.as_ref()?))).collect();
    order::by(&mut seen, |a, b| a.0.total_cmp(&b.0));
    let across = |at: f64| area.x(&x.axis, x.place(at));
    let points = seen.iter().map(|(at, e)| (across(*at), area.y(y, e.center)));
    path(out, &format!("curve v{style}"), &line_path(points));
    for (at, e) in seen {
        let ends = [(across(at), area.y(y, low(e))), (across(at), area.y(y, high(e)))];
        path(out, &format!("bar v{style}"), &line_path(ends.into_iter()));
        path(out, &format!("mark v{style}"), &marker(line.style, across(at), area.y(y, e.center), 3.5));
    }
}

/// The values themselves as labels, as far as there is room.
fn labels(area: &Area, x: &Across, values: &[f64]) -> Vec<(f64, String)> {
    let mut labels: Vec<(f64, String)> = Vec::new();
    let mut free_from = f64::NEG_INFINITY;
    for value in values {
        let place = area.x(&x.axis, x.place(*value));
        if place >= free_from {
            free_from = place + LABEL;
            labels.push((x.place(*value), figure(*value)));
        }
    }
    labels
}

fn describe(curve: &Curve<'_>) -> String {
    let one = |line: &Line| {
        let spots = line.spots.iter().filter_map(|s| {
            let e = s.estimate?;
            let alone = Estimate { interval: None, ..e };
            Some(format!("{} at {}", value_text(curve.def, &alone, None), figure(s.at)))
        });
        format!("{}: {}", line.name, spots.collect::<Vec<_>>().join(", "))
    };
    curve.lines.iter().map(one).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_two_decades_are_logarithmic_and_zero_has_a_place() {
        let log = Across::of(&[0.0, 1.0, 10.0, 1000.0]).unwrap();
        let at = |v: f64| log.axis.position(log.place(v));
        assert!((at(1.0) - at(0.0) - (at(10.0) - at(1.0))).abs() < 1e-9, "zero is a decade left of 1");
        assert!((at(1000.0) - at(10.0) - 2.0 * (at(10.0) - at(1.0))).abs() < 1e-9);
        assert!(Across::of(&[0.0, 10.0, 1000.0]).unwrap().zero.is_some());
        assert!(
            Across::of(&[10.0, 1000.0]).unwrap().axis.position(505.0) < 0.55,
            "two decades are not more than two"
        );
        let linear = Across::of(&[64.0, 512.0, 1518.0]).unwrap();
        let at = |v: f64| linear.axis.position(linear.place(v));
        let slope = (at(512.0) - at(64.0)) / (512.0 - 64.0);
        assert!((at(1518.0) - at(512.0) - slope * (1518.0 - 512.0)).abs() < 1e-9);
        assert!(Across::of(&[]).is_none());
        assert!(Across::of(&[7.0]).is_some());
    }
}
