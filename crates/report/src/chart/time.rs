//! Values over time within a trial: per variant the median over all valid trials, with the middle half as a
//! band.

use std::collections::BTreeMap;

use weir_record::{Run, Trial, WorkloadInfo};

use crate::chart::axis::Axis;
use crate::chart::{Area, STYLES, begin, grid_x, grid_y, label, line_path, marker, path};
use crate::escape;
use crate::markup::{Markup, px};
use crate::units::quantity;
use crate::view::{compared, label_of_name, trials, unit_of_name};

const WIDTH: f64 = 452.0;
const HEIGHT: f64 = 190.0;

/// At most this many points per curve; longer trials are averaged into wider bins.
const BINS: usize = 90;

/// Source of a series.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// The load engine.
    Load,
    /// The samplers on the host of that role.
    Host(String),
}

/// One figure's subject.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Subject {
    pub(crate) origin: Origin,
    pub(crate) series: String,
}

impl Subject {
    pub(crate) fn title(&self) -> String {
        let name = match self.series.as_str() {
            "cpu_busy_cores" => "busy CPU".to_owned(),
            "softirq_cores" => "CPU in soft interrupts".to_owned(),
            "steal_cores" => "CPU stolen by the hypervisor".to_owned(),
            "memory_used_bytes" => "memory in use".to_owned(),
            "rx_bps" => "received".to_owned(),
            "tx_bps" => "sent".to_owned(),
            "conntrack_count" => "conntrack entries".to_owned(),
            name => label_of_name(name),
        };
        match &self.origin {
            Origin::Load => name,
            Origin::Host(role) => format!("{}: {name}", escape::line(role)),
        }
    }

    fn points<'a>(&self, trial: &'a Trial) -> Option<&'a [(f64, f64)]> {
        let all = match &self.origin {
            Origin::Load => &trial.series,
            Origin::Host(role) => &trial.hosts.get(role)?.series,
        };
        all.iter().find(|s| s.name == self.series).map(|s| s.points.as_slice())
    }
}

/// Returns the series of a workload's trials: first the load's own, then CPU, memory, network and conntrack of the gateway.
/// Series of the other hosts stay in the record.
pub(crate) fn subjects(run: &Run, workload: &WorkloadInfo) -> Vec<Subject> {
    let mut load: Vec<Subject> = Vec::new();
    let mut gateway: Vec<Subject> = Vec::new();
    for trial in run.trials.iter().filter(|t| t.workload == workload.name) {
        for s in &trial.series {
            push_new(&mut load, Subject { origin: Origin::Load, series: s.name.clone() });
        }
        for s in trial.hosts.get("gateway").map(|h| h.series.as_slice()).unwrap_or_default() {
            push_new(
                &mut gateway,
                Subject { origin: Origin::Host("gateway".to_owned()), series: s.name.clone() },
            );
        }
    }
    load.extend(gateway);
    load
}

fn push_new(subjects: &mut Vec<Subject>, subject: Subject) {
    if !subjects.contains(&subject) {
        subjects.push(subject);
    }
}

struct Curve {
    style: usize,
    name: String,
    /// Time, lower quartile, median, upper quartile.
    points: Vec<(f64, [f64; 3])>,
}

/// Draw one subject; false if there is nothing to draw or nothing but zeros.
pub(crate) fn draw(
    out: &mut Markup,
    run: &Run,
    workload: &WorkloadInfo,
    subject: &Subject,
    id: &str,
) -> bool {
    let curves = curves(run, workload, subject);
    let values = || curves.iter().flat_map(|c| c.points.iter().flat_map(|p| p.1));
    if values().all(|v| v == 0.0) {
        return false;
    }
    let end = curves.iter().flat_map(|c| c.points.iter().map(|p| p.0)).fold(0.0, f64::max);
    let Some(y) = Axis::linear(values(), true) else { return false };
    let x = Axis::exact(0.0, end.max(1.0), false);
    let title = format!("{}, {}, over time", escape::line(&workload.name), subject.title());
    begin(out, id, (WIDTH, HEIGHT), &title, &describe(&curves, subject));
    let (y_ticks, unit) = y.ticks(unit_of_name(&subject.series), 4);
    let area = Area { left: 52.0, top: 26.0, width: WIDTH - 64.0, height: HEIGHT - 58.0 };
    let unit = if unit.is_empty() { String::new() } else { format!(", {unit}") };
    label(out, (4.0, 14.0), "start", "head", &format!("{}{unit}", subject.title()));
    grid_y(out, &area, &y, &y_ticks);
    let (x_ticks, _) = x.ticks(weir_record::Unit::Count, 6);
    grid_x(out, &area, &x, &x_ticks);
    label(out, (area.right(), HEIGHT - 4.0), "end", "tick", "seconds");
    for c in &curves {
        draw_curve(out, &area, (&x, &y), c);
    }
    out.close();
    true
}

fn draw_curve(out: &mut Markup, area: &Area, (x, y): (&Axis, &Axis), c: &Curve) {
    let at = |p: &(f64, [f64; 3]), which: usize| (area.x(x, p.0), area.y(y, p.1[which]));
    let mut band = line_path(c.points.iter().map(|p| at(p, 0)));
    for p in c.points.iter().rev() {
        let (bx, by) = at(p, 2);
        band.push_str(&format!("L{} {}", px(bx), px(by)));
    }
    band.push('Z');
    path(out, &format!("band v{}", c.style % STYLES), &band);
    path(out, &format!("curve v{}", c.style % STYLES), &line_path(c.points.iter().map(|p| at(p, 1))));
    // Markers at a few places, a different one for each variant, so that crossing lines stay told apart.
    let every = (c.points.len() / 3).max(1);
    for p in c.points.iter().skip(c.style % every).step_by(every) {
        let (mx, my) = at(p, 1);
        path(out, &format!("mark v{}", c.style % STYLES), &marker(c.style, mx, my, 3.2));
    }
}

fn curves(run: &Run, workload: &WorkloadInfo, subject: &Subject) -> Vec<Curve> {
    let mut all = Vec::new();
    for (style, variant) in
        run.variants.iter().enumerate().filter(|(_, v)| compared(run).any(|c| c.name == v.name))
    {
        let valid = || trials(run, &workload.name, &variant.name).filter(|t| !t.is_void());
        let end = valid().filter_map(|t| subject.points(t)?.last().map(|p| p.0)).fold(0.0, f64::max);
        let width = (end / BINS as f64).max(1.0).ceil();
        let mut bins: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for trial in valid() {
            for (bin, value) in binned(subject.points(trial).unwrap_or_default(), width) {
                bins.entry(bin).or_default().push(value);
            }
        }
        let points: Vec<_> = bins.into_iter().map(|(bin, v)| (bin as f64 * width, quartiles(v))).collect();
        if points.len() > 1 {
            all.push(Curve { style, name: escape::line(&variant.name), points });
        }
    }
    all
}

/// One value per bin and trial: the mean of the points in it, so that a trial with more points has no more
/// weight.
fn binned(points: &[(f64, f64)], width: f64) -> BTreeMap<u64, f64> {
    let mut bins: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for (t, value) in points.iter().filter(|(t, v)| *t >= 0.0 && t.is_finite() && v.is_finite()) {
        let bin = bins.entry((t / width).round() as u64).or_default();
        *bin = (bin.0 + value, bin.1 + 1.0);
    }
    bins.into_iter().map(|(bin, (sum, n))| (bin, sum / n)).collect()
}

/// Lower quartile, median and upper quartile, interpolated (Hyndman and Fan, 1996, type 7).
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [0.25, 0.5, 0.75].map(|q| {
        let place = q * (values.len() - 1) as f64;
        let below = place.floor() as usize;
        let above = values[(below + 1).min(values.len() - 1)];
        values[below] + (above - values[below]) * place.fract()
    })
}

fn describe(curves: &[Curve], subject: &Subject) -> String {
    let unit = unit_of_name(&subject.series);
    let one = |c: &Curve| {
        let mut medians: Vec<f64> = c.points.iter().map(|p| p.1[1]).collect();
        medians.sort_by(f64::total_cmp);
        let (low, high) = (medians[0], medians[medians.len() - 1]);
        format!("{}: {} to {}", c.name, quantity(unit, low, None), quantity(unit, high, None))
    };
    curves.iter().map(one).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Type 7 of Hyndman and Fan, as numpy.percentile and R's default give it for 1, 2, 3, 4: 1.75, 2.5,
    /// 3.25.
    #[test]
    fn quartiles_of_four() {
        assert_eq!(quartiles(vec![4.0, 1.0, 3.0, 2.0]), [1.75, 2.5, 3.25]);
        assert_eq!(quartiles(vec![7.0]), [7.0, 7.0, 7.0]);
    }

    #[test]
    fn bins_weigh_trials_alike() {
        let bins = binned(&[(0.0, 2.0), (0.2, 4.0), (1.0, 5.0), (-3.0, 9.0)], 1.0);
        assert_eq!(bins.into_iter().collect::<Vec<_>>(), [(0, 3.0), (1, 5.0)]);
    }
}
