//! Named lines over a common axis: values over time, or shares over a delay.

use weir_record::Unit;

use crate::chart::axis::Axis;
use crate::chart::{Area, STYLES, begin, grid_x, grid_y, label, legend, line_path, marker, path};
use crate::markup::Markup;

const WIDTH: f64 = 924.0;
const HEIGHT: f64 = 240.0;

/// A line: its style, its name and its points in the order of x.
pub(crate) struct NamedLine {
    pub(crate) style: usize,
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// The subject of a figure.
pub(crate) struct Subject<'a> {
    /// Unique in the page.
    pub(crate) id: &'a str,
    pub(crate) title: &'a str,
    /// In words, for those who cannot see it.
    pub(crate) description: &'a str,
    /// Unit of the values.
    pub(crate) unit: Unit,
    /// Unit of x; delays have a logarithmic axis, others begin at zero.
    pub(crate) x_unit: Unit,
    /// Words below the axis.
    pub(crate) x_words: &'a str,
}

/// Draws the lines; false where no line has a point.
pub(crate) fn draw(out: &mut Markup, subject: &Subject<'_>, lines: &[NamedLine]) -> bool {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let Some(y) = Axis::linear(points().map(|p| p.1), true) else { return false };
    let x = match subject.x_unit {
        Unit::Ns => Axis::log(points().map(|p| p.0)),
        _ => Some(Axis::exact(0.0, points().map(|p| p.0).fold(1.0, f64::max), false)),
    };
    let Some(x) = x else { return false };
    begin(out, subject.id, (WIDTH, HEIGHT), subject.title, subject.description);
    let names: Vec<(usize, String)> = lines.iter().map(|line| (line.style, line.name.clone())).collect();
    let (y_ticks, unit) = y.ticks(subject.unit, 4);
    let unit = if unit.is_empty() { String::new() } else { format!(", {unit}") };
    label(out, (4.0, 14.0), "start", "head", &format!("{}{unit}", subject.title));
    let top = legend(out, &names, 60.0, 32.0, WIDTH - 70.0);
    let area = Area { left: 60.0, top, width: WIDTH - 84.0, height: HEIGHT - top - 38.0 };
    grid_y(out, &area, &y, &y_ticks);
    let (x_ticks, x_unit) = x.ticks(subject.x_unit, 8);
    grid_x(out, &area, &x, &x_ticks);
    let x_unit = if x_unit.is_empty() { String::new() } else { format!(", {x_unit}") };
    let words = format!("{}{x_unit}", subject.x_words);
    label(out, (area.left + area.width / 2.0, HEIGHT - 4.0), "middle", "tick", &words);
    for line in lines {
        let class = line.style % STYLES;
        let place = |(at, value): &(f64, f64)| (area.x(&x, *at), area.y(&y, *value));
        path(out, &format!("curve v{class}"), &line_path(line.points.iter().map(place)));
        if let Some((px, py)) = line.points.last().map(place) {
            path(out, &format!("mark v{class}"), &marker(line.style, px, py, 3.5));
        }
    }
    out.close();
    true
}
