//! The share of round trips that took at most so long, by way to connect (RFC 2330 section 11.3): a way that jumps between
//! gateways climbs in steps.

use weir_record::Unit;
use weir_stats::Delays;

use crate::chart::axis::Axis;
use crate::chart::boxes::{axis, merged};
use crate::chart::{Area, STYLES, begin, grid_x, grid_y, label, legend, line_path, marker, path};
use crate::markup::Markup;
use crate::patterns::View;
use crate::units::delay;

const WIDTH: f64 = 924.0;
const HEIGHT: f64 = 360.0;

/// The axis ends at this share: what few stragglers take would press the rest together.
const SHOWN: f64 = 0.99;

/// Points of a line.
const POINTS: usize = 200;

/// Draws the distribution functions; false where nothing was measured.
pub(crate) fn draw(out: &mut Markup, view: &View<'_>, id: &str) -> bool {
    let merged = merged(view);
    let lines: Vec<(usize, String, &Delays)> = view
        .rows
        .iter()
        .filter_map(|row| Some((row.style, row.name.clone(), merged.get(row.pattern.variant.as_str())?)))
        .collect();
    let ends = lines.iter().flat_map(|(_, _, h)| [h.quantile(0.001), h.quantile(SHOWN)]);
    let Some(x) = axis(ends.flatten().filter_map(|end| end.seen())) else { return false };
    let y = Axis::exact(0.0, 1.0, false);
    let title = format!("{}: share of round trips up to a time", crate::escape::line(&view.repeats.name));
    begin(out, id, (WIDTH, HEIGHT), &title, &describe(&lines));
    let names: Vec<(usize, String)> = lines.iter().map(|(style, name, _)| (*style, name.clone())).collect();
    let top = legend(out, &names, 60.0, 12.0, WIDTH - 70.0);
    let area = Area { left: 60.0, top, width: WIDTH - 84.0, height: HEIGHT - top - 38.0 };
    let (ticks, unit) = x.ticks(Unit::Ns, 8);
    grid_x(out, &area, &x, &ticks);
    let shares: Vec<(f64, String)> =
        [0.0, 0.25, 0.5, 0.75, 1.0].map(|share| (share, format!("{} %", share * 100.0))).into();
    grid_y(out, &area, &y, &shares);
    for (style, _, histogram) in &lines {
        let points = points(histogram);
        let place = |(value, share): &(f64, f64)| (area.x(&x, *value), area.y(&y, *share));
        let class = style % STYLES;
        path(out, &format!("curve v{class}"), &line_path(points.iter().map(place)));
        for q in [0.25, 0.5, 0.75] {
            if let Some(value) = histogram.quantile(q).and_then(|value| value.seen()) {
                let (px, py) = place(&(value, q));
                path(out, &format!("mark v{class}"), &marker(*style, px, py, 3.5));
            }
        }
    }
    let words = if unit.is_empty() { "round trip".to_owned() } else { format!("round trip, {unit}") };
    label(out, (area.left + area.width / 2.0, HEIGHT - 4.0), "middle", "tick", &words);
    out.close();
    true
}

/// Values at evenly spaced shares, up to the last one shown.
fn points(histogram: &Delays) -> Vec<(f64, f64)> {
    let share = |i: usize| 0.001 + (SHOWN - 0.001) * i as f64 / POINTS as f64;
    (0..=POINTS).filter_map(|i| Some((histogram.quantile(share(i))?.seen()?, share(i)))).collect()
}

fn describe(lines: &[(usize, String, &Delays)]) -> String {
    let one = |(_, name, histogram): &(usize, String, &Delays)| {
        let at = |q: f64| histogram.quantile(q).map_or("–".to_owned(), delay);
        format!("{name}: half within {}, nine in ten within {}", at(0.5), at(0.9))
    };
    lines.iter().map(one).collect::<Vec<_>>().join("; ")
}
