//! Every trial of a metric: one lane per variant, the rounds from top to bottom within it.

use weir_record::results::Results;
use weir_record::{MetricDef, Run, WorkloadInfo};
use weir_stats::Censored;
use weir_text::layout::ellipsis;

use crate::chart::axis::Axis;
use crate::chart::{Area, STYLES, begin, grid_x, label, line, path, rect};
use crate::escape;
use crate::markup::{Markup, px};
use crate::view::{estimate_text, trial_value, trials};
use crate::words::plural;

const WIDTH: f64 = 924.0;
const LEFT: f64 = 180.0;
const LANE: f64 = 34.0;

/// Draw all trials of one metric; false if there are none.
pub(crate) fn draw(
    out: &mut Markup,
    run: &Run,
    results: &Results,
    (workload, def): (&WorkloadInfo, &MetricDef),
    id: &str,
) -> bool {
    let lanes: Vec<Vec<(u32, Censored, bool)>> = run
        .variants
        .iter()
        .map(|v| {
            let of = trials(run, &workload.name, &v.name);
            of.filter_map(|t| Some((t.round, trial_value(t, def)?, t.is_void()))).collect()
        })
        .collect();
    let Some(axis) = Axis::linear(lanes.iter().flatten().map(|t| t.1.value).filter(|v| v.is_finite()), false)
    else {
        return false;
    };
    let rounds = lanes.iter().flatten().map(|t| t.0 + 1).max().unwrap_or(1);
    let height = 8.0 + LANE * lanes.len() as f64 + 36.0;
    let area = Area { left: LEFT, top: 6.0, width: WIDTH - LEFT - 30.0, height: LANE * lanes.len() as f64 };
    let title = format!("{}, {}: every trial", workload.name, def.label);
    begin(out, id, (WIDTH, height), &escape::line(&title), &describe(run, results, workload, def));
    let (ticks, unit) = axis.ticks(def.unit, 7);
    grid_x(out, &area, &axis, &ticks);
    for (style, (variant, lane)) in run.variants.iter().zip(&lanes).enumerate() {
        let top = area.top + LANE * style as f64;
        if style % 2 == 1 {
            rect(out, "lane", 0.0, top, WIDTH, LANE);
        }
        let name = ellipsis(&escape::line(&variant.name), 27);
        label(out, (4.0, top + LANE / 2.0 - 1.0), "start", "name", &name);
        let role = match (&variant.twin_of, variant.baseline) {
            (Some(of), _) => format!("A/A twin of {}", ellipsis(&escape::line(of), 16)),
            (None, true) => "baseline".to_owned(),
            _ => String::new(),
        };
        label(out, (4.0, top + LANE / 2.0 + 11.0), "start", "small", &role);
        if let Some(estimate) =
            results.cell(&workload.name, &def.name, &variant.name).and_then(|c| c.estimate)
        {
            if let Some((low, high)) = estimate.interval {
                let (x1, x2) = (area.x(&axis, low), area.x(&axis, high));
                rect(out, &format!("spread v{}", style % STYLES), x1, top + 3.0, x2 - x1, LANE - 6.0);
            }
            let x = area.x(&axis, estimate.center);
            line(out, &format!("centre v{}", style % STYLES), (x, top + 3.0), (x, top + LANE - 3.0));
        }
        draw_dots(out, &area, &axis, lane, (top, rounds, style));
    }
    label(out, (area.right(), height - 4.0), "end", "tick", unit);
    out.close();
    true
}

/// Draws all dots of a lane as two paths (valid, void), which keeps a long run's page small. A value that is only a lower bound
/// points to the right; a failed one lies at the edge.
fn draw_dots(
    out: &mut Markup,
    area: &Area,
    axis: &Axis,
    lane: &[(u32, Censored, bool)],
    (top, rounds, style): (f64, u32, usize),
) {
    let (mut valid, mut void) = (String::new(), String::new());
    for (round, value, is_void) in lane {
        let x = if value.value.is_finite() { area.x(axis, value.value) } else { area.right() };
        let y = top + 6.0 + (LANE - 12.0) * (f64::from(*round) + 0.5) / f64::from(rounds);
        let seen = value.seen().is_some();
        if *is_void {
            void.push_str(&format!("M{} {}l6 6m0 -6l-6 6", px(x - 3.0), px(y - 3.0)));
        } else if !seen {
            valid.push_str(&format!("M{} {}l3 3l-3 3", px(x), px(y - 3.0)));
        } else {
            valid.push_str(&format!("M{} {}h0", px(x), px(y)));
        }
    }
    if !valid.is_empty() {
        path(out, &format!("dots v{}", style % STYLES), &valid);
    }
    if !void.is_empty() {
        path(out, "void", &void);
    }
}

fn describe(run: &Run, results: &Results, workload: &WorkloadInfo, def: &MetricDef) -> String {
    let one = |v: &weir_record::VariantInfo| {
        let cell = results.cell(&workload.name, &def.name, &v.name)?;
        let n = cell.estimate.map_or(0, |e| e.n);
        Some(format!("{}: {}, {}", escape::line(&v.name), estimate_text(def, cell), plural(n, "trial")))
    };
    run.variants.iter().filter_map(one).collect::<Vec<_>>().join("; ")
}
