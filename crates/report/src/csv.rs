//! CSV (RFC 4180, with a line feed at the end of each record): trials in the long format, and the summary.

use weir_record::results::Cell;
use weir_record::run::Point;
use weir_record::{MetricDef, Run, VariantFact};
use weir_stats::{Comparison, Verdict};

use crate::escape::csv as field;
use crate::view::trial_value;

/// One row per trial and metric: what a statistics program wants. Values are the stored ones, unscaled; a
/// metric that a trial did not measure has no row. A percentile among operations that failed is `inf`; `above` is 1 where it is
/// greater than `value`, because so many did not end. `void` is 1 where the trial is left out of comparisons;
/// `faults` are separated by a space. `workload_value` and `variant_value` are the values of the sweeps that the two are
/// points of.
pub fn csv_trials(run: &Run) -> String {
    let mut out = String::from(
        "round,position,start_s,variant,workload,metric,unit,value,void,faults,\
         workload_value,variant_value,above\n",
    );
    for trial in &run.trials {
        let Some(workload) = run.workloads.iter().find(|w| w.name == trial.workload) else { continue };
        let mut codes: Vec<String> = trial.faults.iter().map(|f| name_of(&f.code)).collect();
        codes.sort();
        codes.dedup();
        for def in &workload.metrics {
            let Some(value) = trial_value(trial, def) else { continue };
            out.push_str(&format!(
                "{},{},{},{},{},{},{},{},{},{},{},{}\n",
                trial.round,
                trial.position,
                trial.start_s,
                field(&trial.variant),
                field(&trial.workload),
                field(&def.name),
                name_of(&def.unit),
                value.value,
                u8::from(trial.is_void()),
                field(&codes.join(" ")),
                swept(run, &trial.workload, &trial.variant),
                u8::from(!value.known)
            ));
        }
    }
    out
}

/// One row per workload, metric and variant: value and comparison with their intervals; empty where there is none. Then one row
/// per workload, metric and variant that is compared with another workload on the same variant: `with_workload` names the other
/// one (empty if the comparison is with the baseline), and the effect and the verdict are against it. Then one row for each cost
/// of a variant apart from traffic (memory, time to load), without a workload. `above` is 1 where the percentile is greater than
/// `value`, because so many operations did not end.
pub fn csv_summary(run: &Run) -> String {
    let mut out = String::from(
        "workload,metric,unit,variant,baseline,n,void,value,value_low,value_high,cv,min,max,scale,\
         effect,effect_low,effect_high,p_holm,noise_floor,verdict,with_workload,workload_value,variant_value,above\n",
    );
    let Some(results) = &run.results else { return out };
    for cell in &results.cells {
        let Some(def) = definition(run, &cell.workload, &cell.metric) else { continue };
        let against = Against {
            baseline: run.baseline().unwrap_or_default(),
            with: "",
            comparison: cell.comparison,
            floor: crate::view::floor_value(results, &cell.workload, &cell.metric),
            verdict: cell.verdict,
        };
        push_row(&mut out, def, cell, &against, &swept(run, &cell.workload, &cell.variant));
    }
    for row in crate::pairs::rows(run, results) {
        let found = row.found;
        let Some(cell) = results.cell(&found.workload, &found.metric, &found.variant) else { continue };
        let against = Against {
            baseline: "",
            with: &found.with,
            comparison: found.comparison,
            floor: row.floor,
            verdict: found.verdict,
        };
        push_row(&mut out, row.def, cell, &against, &swept(run, &cell.workload, &cell.variant));
    }
    for variant in &run.variants {
        for fact in variant.facts.iter().filter(|fact| fact.value.is_some()) {
            push_fact(&mut out, run, &variant.name, fact);
        }
    }
    out
}

/// Adds the row of one cost of a variant apart from traffic.
fn push_fact(out: &mut String, run: &Run, variant: &str, fact: &VariantFact) {
    let value = fact.value.map(|v| v.to_string()).unwrap_or_default();
    let (name, unit, variant_field) = (field(&fact.name), name_of(&fact.unit), field(variant));
    let empty = ",".repeat(12);
    let swept = swept(run, "", variant);
    out.push_str(&format!(",{name},{unit},{variant_field},,{},0,{value}{empty},,{swept},0\n", fact.n));
}

/// Ways to connect, one row each, then what each dimension does: the columns of the other kind are empty. Times are
/// nanoseconds. Nothing but the head where the run did not ask about patterns.
///
/// `kind` is `pattern` or `dimension`. A pattern has: labels as `key=value` separated by a blank, the average of the long trial,
/// repeats, void ones, mean, least and greatest of their averages, standard deviation between repeats with its interval, the
/// standard deviation that noise inside a repeat explains, p-value after Holm's correction, verdict. A dimension has: its two
/// values, difference and ratio with their intervals, rounds, p-value, verdict, dimensions that were matched and averaged.
pub fn csv_patterns(run: &Run) -> String {
    let mut out = String::from(
        "kind,variant,labels,once_ns,repeats,void,mean_ns,min_ns,max_ns,between_ns,between_low_ns,between_high_ns,within_ns,\
         dimension,level,against,difference_ns,difference_low_ns,difference_high_ns,ratio,ratio_low,ratio_high,rounds,\
         matched,averaged,confounded,p_holm,verdict\n",
    );
    let Some(results) = &run.results else { return out };
    let Some(view) = crate::patterns::view(run, results) else { return out };
    let number = |value: Option<f64>| value.map(|v| v.to_string()).unwrap_or_default();
    for row in &view.rows {
        let p = row.pattern;
        let (low, high) = (p.range_ns.map(|r| r.0), p.range_ns.map(|r| r.1));
        let split = p.components;
        let variant = run.variants.iter().find(|v| v.name == p.variant);
        let labels: Vec<String> =
            variant.iter().flat_map(|v| &v.labels).map(|(key, value)| format!("{key}={value}")).collect();
        let mut fields = vec!["pattern".to_owned(), field(&p.variant), field(&labels.join(" "))];
        fields.extend([number(p.once_ns), p.repeats.to_string(), p.void.to_string(), number(p.mean_ns)]);
        fields.extend([number(low), number(high), number(split.map(|s| s.between))]);
        fields.extend([number(split.map(|s| s.interval.0)), number(split.map(|s| s.interval.1))]);
        fields.push(number(split.map(|s| s.within)));
        fields.extend(std::iter::repeat_n(String::new(), 13));
        fields.extend([number(p.p_holm), field(&row.words.text)]);
        out.push_str(&(fields.join(",") + "\n"));
    }
    for d in &view.found.dimensions {
        let mut fields = vec!["dimension".to_owned()];
        fields.extend(std::iter::repeat_n(String::new(), 12));
        fields.extend([field(&d.dimension), field(&d.level), field(&d.against)]);
        for c in [&d.difference, &d.ratio] {
            let (low, high) = (c.interval.map(|i| i.0), c.interval.map(|i| i.1));
            fields.extend([c.estimate.to_string(), number(low), number(high)]);
        }
        fields.push(d.difference.n.to_string());
        fields.extend([field(&d.matched.join(" ")), field(&d.averaged.join(" "))]);
        fields.push(u8::from(d.confounded).to_string());
        fields.extend([d.ratio.p_holm.to_string(), field(&view.effect_words(d).text)]);
        out.push_str(&(fields.join(",") + "\n"));
    }
    out
}

/// The other side of a cell's comparison, and the result.
struct Against<'a> {
    baseline: &'a str,
    with: &'a str,
    comparison: Option<Comparison>,
    floor: Option<f64>,
    verdict: Option<Verdict>,
}

fn push_row(out: &mut String, def: &MetricDef, cell: &Cell, against: &Against<'_>, swept: &str) {
    let e = cell.estimate;
    let c = against.comparison;
    let verdict = against.verdict.map(|v| crate::words::verdict(def, c.as_ref(), v).text).unwrap_or_default();
    let number = |value: Option<f64>| value.map(|v| v.to_string()).unwrap_or_default();
    let fields = [
        field(&cell.workload),
        field(&cell.metric),
        name_of(&def.unit),
        field(&cell.variant),
        field(against.baseline),
        e.map_or(0, |e| e.n).to_string(),
        cell.void.to_string(),
        number(e.map(|e| e.center)),
        number(e.and_then(|e| e.interval).map(|i| i.0)),
        number(e.and_then(|e| e.interval).map(|i| i.1)),
        number(e.map(|e| e.cv)),
        number(e.map(|e| e.range.0)),
        number(e.map(|e| e.range.1)),
        name_of(&def.scale),
        number(c.map(|c| c.estimate)),
        number(c.and_then(|c| c.interval).map(|i| i.0)),
        number(c.and_then(|c| c.interval).map(|i| i.1)),
        number(c.map(|c| c.p_holm)),
        number(against.floor),
        field(&verdict),
        field(against.with),
        swept.to_owned(),
        u8::from(e.is_some_and(|e| e.at_least)).to_string(),
    ];
    out.push_str(&fields.join(","));
    out.push('\n');
}

/// The value of the sweep that the workload is a point of, and that of the variant's; empty where there is none.
fn swept(run: &Run, workload: &str, variant: &str) -> String {
    let value = |point: Option<&Point>| point.map(|p| p.value.to_string()).unwrap_or_default();
    let workload = run.workloads.iter().find(|w| w.name == workload).and_then(|w| w.point.as_ref());
    let variant = run.variants.iter().find(|v| v.name == variant).and_then(|v| v.point.as_ref());
    format!("{},{}", value(workload), value(variant))
}

fn definition<'a>(run: &'a Run, workload: &str, metric: &str) -> Option<&'a MetricDef> {
    run.workloads.iter().find(|w| w.name == workload)?.metrics.iter().find(|m| m.name == metric)
}

/// The name that a unit, scale or fault code has in `run.json`.
pub(crate) fn name_of<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        // Only enums without fields are written here, and those serialise as strings.
        other => unreachable!("not a plain enum: {other:?}"),
    }
}
