//! Latency by percentile: the merged histogram of each variant, on two logarithmic axes.

use std::collections::BTreeMap;

use weir_record::{Run, Source, Unit, WorkloadInfo};
use weir_stats::Delays;

use crate::chart::axis::Axis;
use crate::chart::{Area, STYLES, begin, grid_x, grid_y, label, legend, line_path, marker, path};
use crate::escape;
use crate::markup::Markup;
use crate::units::quantity;
use crate::view::{compared, trials};

const WIDTH: f64 = 924.0;
const HEIGHT: f64 = 340.0;

/// Points of one curve.
const POINTS: usize = 120;

/// Values that are smaller than the least median by more than this lie at the edge.
const MOST_BELOW_MEDIAN: f64 = 10.0;

/// Labelled percentiles, as shares.
const PERCENTILES: [f64; 8] = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999_999];

/// Names of the histograms that the workload's metrics read, in their order.
pub(crate) fn histograms(workload: &WorkloadInfo) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for metric in &workload.metrics {
        if let Source::Quantile { histogram, .. } = &metric.source
            && !names.contains(&histogram.as_str())
        {
            names.push(histogram);
        }
    }
    names
}

/// One variant's curve: share of values beyond (1 - q) and the value there.
struct Curve {
    style: usize,
    name: String,
    points: Vec<(f64, f64)>,
    /// The same exactly at the labelled percentiles.
    marks: Vec<(f64, f64)>,
}

/// Draw the percentile curves of one histogram of one workload; false if no variant has values.
pub(crate) fn draw(out: &mut Markup, run: &Run, workload: &WorkloadInfo, histogram: &str, id: &str) -> bool {
    let mut merged: BTreeMap<&str, Delays> = BTreeMap::new();
    for variant in compared(run) {
        for trial in trials(run, &workload.name, &variant.name).filter(|t| !t.is_void()) {
            if let Some(h) = trial.histograms.get(histogram) {
                merged.entry(&variant.name).or_default().merge(h);
            }
        }
    }
    let curves: Vec<Curve> = run
        .variants
        .iter()
        .enumerate()
        .filter_map(|(style, v)| Some((style, v, merged.get(v.name.as_str())?)))
        .map(|(style, v, h)| Curve { style, name: escape::line(&v.name), points: curve(h), marks: marks(h) })
        .filter(|c| c.points.len() > 1)
        .collect();
    let shortest = shortest_shown(&curves);
    let values = curves.iter().flat_map(|c| c.points.iter().map(|p| p.1.max(shortest)));
    let Some(y) = Axis::log(values) else { return false };
    let least = curves.iter().filter_map(|c| c.points.last()).map(|p| p.0).fold(0.1, f64::min);
    // From the fastest value at the left to the rarest at the right: the axis holds 1/(1 - q).
    let x = Axis::exact(1.0, 1.0 / least, true);
    let title = format!("{}: {histogram} by percentile", workload.name);
    begin(out, id, (WIDTH, HEIGHT), &escape::line(&title), &describe(&curves));
    let names: Vec<(usize, String)> = curves.iter().map(|c| (c.style, c.name.clone())).collect();
    let top = legend(out, &names, 70.0, 12.0, WIDTH - 80.0);
    let area = Area { left: 70.0, top, width: WIDTH - 90.0, height: HEIGHT - top - 38.0 };
    let ticks: Vec<(f64, String)> = PERCENTILES
        .into_iter()
        .map(|q| (1.0 / (1.0 - q), if q == 0.0 { "min".to_owned() } else { format!("p{}", short(q)) }))
        .filter(|(v, _)| x.holds(*v))
        .collect();
    grid_x(out, &area, &x, &ticks);
    let (y_ticks, unit) = y.ticks(Unit::Ns, 6);
    let with_unit: Vec<(f64, String)> =
        y_ticks.into_iter().map(|(v, t)| (v, format!("{t} {unit}").trim_end().to_owned())).collect();
    grid_y(out, &area, &y, &with_unit);
    for c in &curves {
        let class = format!("curve v{}", c.style % STYLES);
        let place = |p: &(f64, f64)| (area.x(&x, 1.0 / p.0), area.y(&y, p.1));
        path(out, &class, &line_path(c.points.iter().map(place)));
        for p in c.marks.iter().filter(|p| x.holds(1.0 / p.0)) {
            let (px, py) = place(p);
            path(out, &format!("mark v{}", c.style % STYLES), &marker(c.style, px, py, 3.5));
        }
    }
    label(
        out,
        (area.left + area.width / 2.0, HEIGHT - 4.0),
        "middle",
        "tick",
        "percentile (rarer to the right)",
    );
    out.close();
    true
}

/// The bottom of the axis. Delay variation begins at nothing by definition; were a single value of 1 ns drawn at its
/// place, the decades below the median would take the room of those that differ.
fn shortest_shown(curves: &[Curve]) -> f64 {
    let median = |c: &Curve| c.marks.iter().find(|p| p.0 == 0.5).map(|p| p.1);
    curves.iter().filter_map(median).reduce(f64::min).map_or(0.0, |least| least / MOST_BELOW_MEDIAN)
}

fn short(q: f64) -> String {
    format!("{:.4}", q * 100.0).trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Quantiles evenly spaced on the axis, as far as six values lie beyond and operations were seen to end.
fn curve(h: &Delays) -> Vec<(f64, f64)> {
    let n = h.len() as f64;
    if n < 12.0 {
        return Vec::new();
    }
    let decades = (n / 6.0).log10();
    (0..=POINTS)
        .map(|i| 10f64.powf(-decades * i as f64 / POINTS as f64))
        .filter_map(|beyond| Some((beyond, h.reportable_quantile(1.0 - beyond)?.seen()?)))
        .collect()
}

fn marks(h: &Delays) -> Vec<(f64, f64)> {
    PERCENTILES.into_iter().filter_map(|q| Some((1.0 - q, h.reportable_quantile(q)?.seen()?))).collect()
}

fn describe(curves: &[Curve]) -> String {
    let at =
        |c: &Curve, q: f64| c.marks.iter().find(|p| p.0 == 1.0 - q).map(|p| quantity(Unit::Ns, p.1, None));
    let one = |c: &Curve| {
        let parts: Vec<String> = [(0.5, "p50"), (0.99, "p99")]
            .into_iter()
            .filter_map(|(q, name)| Some(format!("{name} {}", at(c, q)?)))
            .collect();
        format!("{}: {}", c.name, parts.join(", "))
    };
    curves.iter().map(one).collect::<Vec<_>>().join("; ")
}
