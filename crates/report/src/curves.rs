//! Scaling curves as every rendering shows them: a headline metric over the values of a sweep, one line per variant, or per
//! workload where it is the variant that is swept.

use weir_record::results::{Estimate, Results};
use weir_record::run::Point;
use weir_record::{MetricDef, Run, VariantInfo, WorkloadInfo};

use crate::escape::line;
use crate::units::{self, Display, display_for_all};
use crate::view::{everyone, is_seen, too_few, value_text};
use crate::words::{self, Words, effect};

/// The measurement at one value.
pub(crate) struct Spot {
    pub(crate) at: f64,
    pub(crate) estimate: Option<Estimate>,
    /// Verdict against the baseline; none for the baseline itself.
    pub(crate) words: Option<Words>,
}

/// One variant, or one workload.
pub(crate) struct Line {
    /// Colour and marker: the place of the variant in the run, or of the workload.
    pub(crate) style: usize,
    pub(crate) name: String,
    /// In the order of the sweep.
    pub(crate) spots: Vec<Spot>,
}

/// One headline metric of a swept entry.
pub(crate) struct Curve<'a> {
    /// Name of the entry.
    pub(crate) family: String,
    /// Name of the swept parameter, in words: `flows`, `rules`.
    pub(crate) key: String,
    pub(crate) def: &'a MetricDef,
    pub(crate) lines: Vec<Line>,
    /// One unit for all.
    pub(crate) shown: Display,
}

impl Curve<'_> {
    /// `load, delivered rate`.
    pub(crate) fn title(&self) -> String {
        format!("{}, {}", line(&self.family), line(&self.def.label))
    }

    /// Values of the sweep, ascending.
    pub(crate) fn values(&self) -> Vec<f64> {
        let mut values: Vec<f64> = self.spots().map(|s| s.at).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        values
    }

    pub(crate) fn spots(&self) -> impl Iterator<Item = &Spot> {
        self.lines.iter().flat_map(|l| &l.spots)
    }

    /// A value with its interval in the curve's unit, which is left out; a dash where nothing was measured.
    pub(crate) fn value(&self, spot: Option<&Spot>) -> String {
        let Some(e) = spot.and_then(|s| s.estimate) else { return "–".to_owned() };
        if e.at_least {
            return format!("> {}", units::bare(e.center, None, self.shown));
        }
        if units::bound_of_zero(self.def.unit, e.center, e.interval).is_some() {
            return units::in_display(self.def.unit, e.center, e.interval, self.shown);
        }
        units::bare(e.center, e.interval, self.shown)
    }

    /// `delivered rate, Mpps`.
    pub(crate) fn axis(&self) -> String {
        [line(&self.def.label), self.shown.symbol.to_owned()]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(", ")
    }
}

impl Line {
    pub(crate) fn at(&self, value: f64) -> Option<&Spot> {
        self.spots.iter().find(|s| s.at == value)
    }
}

/// Formats a value of a sweep: `64k`, `1M`, `1500`. Shortens exact values only.
pub(crate) fn figure(value: f64) -> String {
    for (divisor, letter) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value != 0.0 && value % divisor == 0.0 {
            return format!("{}{letter}", value / divisor);
        }
    }
    value.to_string()
}

/// The last part of a dotted key, in words.
fn key_words(key: &str) -> String {
    line(key.rsplit('.').next().unwrap_or(key)).replace(['-', '_'], " ")
}

/// Returns all curves of the run: those of its workloads, then those of its variants, in its order. If both are swept, their
/// results appear in the variant's curve alone, so that nothing appears twice.
pub(crate) fn curves<'a>(run: &'a Run, results: &Results) -> Vec<Curve<'a>> {
    let judged = too_few(run, results).is_none();
    let variants: Vec<(usize, &VariantInfo)> =
        run.variants.iter().enumerate().filter(|(_, v)| v.twin_of.is_none()).collect();
    let workloads: Vec<(usize, &WorkloadInfo)> = run.workloads.iter().enumerate().collect();
    let spot = |workload: &WorkloadInfo, variant: &VariantInfo, def: &MetricDef, point: &Point| {
        let cell = results.cell(&workload.name, &def.name, &variant.name);
        let comparison = cell.and_then(|c| c.comparison);
        // While no verdict is possible, the observed effect takes its place, marked as open.
        let said = |v| match words::verdict(def, comparison.as_ref(), v) {
            words if judged => words,
            words => Words { text: comparison.map(|c| effect(def, &c)).unwrap_or_default(), ..words },
        };
        Spot {
            at: point.value,
            estimate: cell.and_then(|c| c.estimate),
            words: cell.and_then(|c| c.verdict).map(said),
        }
    };
    let mut curves = Vec::new();
    for family in families(run.workloads.iter().filter_map(|w| w.point.as_ref())) {
        let points = of_family(&workloads, family, |w| w.point.as_ref());
        let Some((_, first, of_first)) = points.first() else { continue };
        let seen = |m: &MetricDef| points.iter().any(|(_, w, _)| is_seen(results, w, m));
        let (failures, others): (Vec<_>, Vec<_>) =
            first.metrics.iter().partition(|m| m.failure.is_some() && seen(m));
        for def in failures.into_iter().chain(others.into_iter().filter(|m| m.headline)) {
            let of_variant = |(style, variant): &(usize, &VariantInfo)| Line {
                style: *style,
                name: line(&variant.name),
                spots: points.iter().map(|(_, w, point)| spot(w, variant, def, point)).collect(),
            };
            let alone = variants.iter().filter(|(_, v)| v.baseline || v.point.is_none());
            curves.extend(curve(of_first, def, alone.map(of_variant).collect()));
        }
    }
    for family in families(everyone(run).filter_map(|v| v.point.as_ref())) {
        let points = of_family(&variants, family, |v| v.point.as_ref());
        let Some((_, _, of_first)) = points.first() else { continue };
        for def in headlines(run, results) {
            let has = |w: &WorkloadInfo| w.metrics.iter().any(|m| m.name == def.name && m.unit == def.unit);
            let of_workload = |(style, workload): &(usize, &WorkloadInfo)| Line {
                style: *style,
                name: line(&workload.name),
                spots: points.iter().map(|(_, v, point)| spot(workload, v, def, point)).collect(),
            };
            let lines = workloads.iter().filter(|(_, w)| has(w)).map(of_workload).collect();
            curves.extend(curve(of_first, def, lines));
        }
    }
    curves
}

/// A curve of the lines along which anything was measured; none where there is no such line.
fn curve<'a>(point: &Point, def: &'a MetricDef, mut lines: Vec<Line>) -> Option<Curve<'a>> {
    lines.retain(|l| l.spots.iter().any(|s| s.estimate.is_some()));
    let centers = lines.iter().flat_map(|l| &l.spots).filter_map(|s| s.estimate).map(|e| e.center);
    let shown = display_for_all(def.unit, centers);
    let (family, key) = (point.family.clone(), key_words(&point.key));
    (!lines.is_empty()).then_some(Curve { family, key, def, lines, shown })
}

/// Headline metrics of all workloads, each name and unit once; shares of failures that are not 0 come first.
fn headlines<'a>(run: &'a Run, results: &Results) -> Vec<&'a MetricDef> {
    let all = || run.workloads.iter().flat_map(|w| w.metrics.iter().map(move |def| (w, def)));
    let failures = all().filter(|(w, def)| def.failure.is_some() && is_seen(results, w, def));
    let mut defs: Vec<&MetricDef> = Vec::new();
    for (_, def) in failures.chain(all().filter(|(_, def)| def.headline)) {
        if !defs.iter().any(|d| d.name == def.name && d.unit == def.unit) {
            defs.push(def);
        }
    }
    defs
}

fn families<'a>(points: impl Iterator<Item = &'a Point>) -> Vec<&'a str> {
    let mut families: Vec<&str> = points.map(|p| p.family.as_str()).collect();
    families.dedup();
    families
}

/// Place, entry and point of each entry of a family.
fn of_family<'a, T>(
    entries: &[(usize, &'a T)],
    family: &str,
    point: impl Fn(&'a T) -> Option<&'a Point>,
) -> Vec<(usize, &'a T, &'a Point)> {
    let of_it = |(place, entry): &(usize, &'a T)| {
        point(entry).filter(|p| p.family == family).map(|p| (*place, *entry, p))
    };
    entries.iter().filter_map(of_it).collect()
}

/// Names the subject of the run, if nothing stands beside its curves: `Measured over flows (1 to 1M).`
pub(crate) fn lead(curves: &[Curve<'_>]) -> String {
    let mut spans: Vec<String> = Vec::new();
    for curve in curves {
        let values = curve.values();
        let (Some(first), Some(last)) = (values.first(), values.last()) else { continue };
        let span = format!("{} ({} to {})", curve.key, figure(*first), figure(*last));
        if !spans.contains(&span) {
            spans.push(span);
        }
    }
    format!("Measured over {}.", spans.join(" and over "))
}

/// Lines of a curve that the summary tells of; of more the table tells.
const MOST_TOLD: usize = 4;

/// How far each line goes, for the summary: the shares of failures and the first headline metric of each sweep.
pub(crate) fn sentences(curves: &[Curve<'_>]) -> Vec<String> {
    let mut out = Vec::new();
    for of_family in curves.chunk_by(|a, b| a.family == b.family) {
        let first = of_family.iter().find(|c| c.def.failure.is_none());
        let told = of_family.iter().filter(|c| c.def.failure.is_some()).chain(first);
        for (curve, l) in told.flat_map(|curve| curve.lines.iter().take(MOST_TOLD).map(move |l| (curve, l))) {
            let seen = |s: &&Spot| s.estimate.is_some();
            let (Some(first), Some(last)) = (l.spots.iter().find(seen), l.spots.iter().rev().find(seen))
            else {
                continue;
            };
            if first.at == last.at {
                continue;
            }
            let value = |s: &Spot| s.estimate.map_or(String::new(), |e| value_text(curve.def, &e, None));
            out.push(format!(
                "{}, {}: {} from {} at {} {key} to {} at {} {key}.",
                line(&curve.family),
                l.name,
                line(&curve.def.label),
                value(first),
                figure(first.at),
                value(last),
                figure(last.at),
                key = curve.key,
            ));
        }
    }
    out
}
