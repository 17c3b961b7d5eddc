//! The effect of each label: compares one value of a dimension with another one, within rounds, with the other dimensions matched
//! as far as the variants allow.

use std::collections::BTreeMap;

use weir_record::{DimensionEffect, Run, VariantInfo};
use weir_stats::compare::{compare_difference, compare_ratio, equivalence_ratio, holm_adjusted};
use weir_stats::{Censored, Comparison, verdict};

use super::super::margins;
use super::super::measured::{Measured, Subject};
use super::typical;

/// All pairs of values of all dimensions, each dimension corrected by itself: it is one question.
pub(super) fn effects(
    run: &Run,
    measured: &Measured<'_>,
    workload: &str,
    floor: Option<f64>,
) -> Vec<DimensionEffect> {
    let variants: Vec<&VariantInfo> = run.variants.iter().filter(|v| v.twin_of.is_none()).collect();
    let mut all = Vec::new();
    for dimension in dimensions(&variants) {
        let levels = levels(&variants, dimension);
        let mut of_dimension: Vec<(Contrast<'_>, Rounds)> = Vec::new();
        for (i, against) in levels.iter().enumerate() {
            for level in &levels[i + 1..] {
                let contrast = Contrast::of(&variants, dimension, level, against);
                let pairs = contrast.rounds(run, measured, workload);
                of_dimension.push((contrast, pairs));
            }
        }
        all.extend(judged(run, of_dimension, floor));
    }
    all
}

/// Keys of labels in the order in which they appear.
fn dimensions<'a>(variants: &[&'a VariantInfo]) -> Vec<&'a str> {
    let mut keys: Vec<&str> = Vec::new();
    for key in variants.iter().flat_map(|v| v.labels.keys()) {
        if !keys.contains(&key.as_str()) {
            keys.push(key);
        }
    }
    keys
}

/// Values of a label in the order in which they appear.
fn levels<'a>(variants: &[&'a VariantInfo], dimension: &str) -> Vec<&'a str> {
    let mut levels: Vec<&str> = Vec::new();
    for level in variants.iter().filter_map(|v| v.labels.get(dimension)) {
        if !levels.contains(&level.as_str()) {
            levels.push(level);
        }
    }
    levels
}

/// Variants of both sides that are alike in the matched dimensions.
#[derive(Default)]
struct Stratum<'a> {
    of_level: Vec<&'a str>,
    of_against: Vec<&'a str>,
}

/// One value of a dimension against another one.
struct Contrast<'a> {
    dimension: &'a str,
    level: &'a str,
    against: &'a str,
    matched: Vec<&'a str>,
    averaged: Vec<&'a str>,
    confounded: bool,
    strata: Vec<Stratum<'a>>,
}

impl<'a> Contrast<'a> {
    /// Pairs variants that differ in nothing else. If it finds none, it ignores the dimensions that only one side has. If it
    /// still finds none, it compares all with all.
    fn of(variants: &[&'a VariantInfo], dimension: &'a str, level: &'a str, against: &'a str) -> Self {
        let side = |value: &str| -> Vec<&'a VariantInfo> {
            variants.iter().copied().filter(|v| v.labels.get(dimension).is_some_and(|l| l == value)).collect()
        };
        let sides = (side(level), side(against));
        let others: Vec<&str> = dimensions(&[&sides.0[..], &sides.1[..]].concat())
            .into_iter()
            .filter(|key| *key != dimension)
            .collect();
        let on = |side: &[&VariantInfo], key: &str| side.iter().any(|v| v.labels.contains_key(key));
        let (shared, nested): (Vec<&str>, Vec<&str>) =
            others.iter().copied().partition(|key| on(&sides.0, key) && on(&sides.1, key));
        let contrast = |matched: Vec<&'a str>, averaged, confounded| Contrast {
            dimension,
            level,
            against,
            strata: strata(&sides.0, &sides.1, &matched),
            matched,
            averaged,
            confounded,
        };
        [contrast(others.clone(), Vec::new(), false), contrast(shared, nested, false)]
            .into_iter()
            .find(|c| !c.strata.is_empty())
            .unwrap_or_else(|| contrast(Vec::new(), others, true))
    }

    /// Both averages of every round in which all variants that take part have a valid trial: with one of them missing the
    /// others would stand for something else.
    fn rounds(&self, run: &Run, measured: &Measured<'_>, workload: &str) -> Rounds {
        let rounds = run.trials.iter().map(|t| t.round + 1).max().unwrap_or(0);
        let value =
            |round: u32, variant: &str| typical(measured.trial(Subject { workload, variant }, round)?);
        let side = |round: u32, variants: &[&str]| -> Option<Censored> {
            let values: Option<Vec<Censored>> = variants.iter().map(|v| value(round, v)).collect();
            mean(&values?)
        };
        (0..rounds)
            .filter_map(|round| {
                let sides: Option<Vec<(Censored, Censored)>> = self
                    .strata
                    .iter()
                    .map(|s| Some((side(round, &s.of_level)?, side(round, &s.of_against)?)))
                    .collect();
                let (level, against): (Vec<Censored>, Vec<Censored>) = sides?.into_iter().unzip();
                Some((mean(&level)?, mean(&against)?))
            })
            .collect()
    }

    fn effect(
        &self,
        run: &Run,
        found: Pair,
        pairs: &[(Censored, Censored)],
        floor: Option<f64>,
    ) -> DimensionEffect {
        let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<String>>();
        let margins = margins(run, floor);
        let equivalence = equivalence_ratio(pairs, margins.equivalence);
        DimensionEffect {
            dimension: self.dimension.to_owned(),
            level: self.level.to_owned(),
            against: self.against.to_owned(),
            variants: self.strata.iter().flat_map(|s| owned(&s.of_level)).collect(),
            against_variants: self.strata.iter().flat_map(|s| owned(&s.of_against)).collect(),
            matched: owned(&self.matched),
            averaged: owned(&self.averaged),
            confounded: self.confounded,
            difference: found.difference,
            ratio: found.ratio,
            verdict: verdict(&found.ratio, equivalence.as_ref(), &margins),
            reserve: None,
            per_round_ns: pairs.iter().filter_map(|(a, b)| Some(a.seen()? - b.seen()?)).collect(),
        }
    }
}

/// Variants of both sides by their values in these dimensions, where both sides have some. A missing label is a value of its
/// own.
fn strata<'a>(level: &[&'a VariantInfo], against: &[&'a VariantInfo], keys: &[&str]) -> Vec<Stratum<'a>> {
    let of = |v: &VariantInfo| -> Vec<Option<String>> {
        keys.iter().map(|key| v.labels.get(*key).cloned()).collect()
    };
    let mut strata: BTreeMap<Vec<Option<String>>, Stratum<'a>> = BTreeMap::new();
    for v in level {
        strata.entry(of(v)).or_default().of_level.push(&v.name);
    }
    for v in against {
        strata.entry(of(v)).or_default().of_against.push(&v.name);
    }
    strata.into_values().filter(|s| !s.of_level.is_empty() && !s.of_against.is_empty()).collect()
}

/// The mean of medians; greater than seen if one of them is, infinite if one of them failed.
fn mean(medians: &[Censored]) -> Option<Censored> {
    let value = weir_stats::order::mean(&medians.iter().map(|m| m.value).collect::<Vec<f64>>())?;
    Some(Censored { value, known: value.is_infinite() || medians.iter().all(|m| m.known) })
}

/// Both values of every round.
type Rounds = Vec<(Censored, Censored)>;

/// Both ways to say how much.
#[derive(Clone, Copy)]
struct Pair {
    difference: Comparison,
    ratio: Comparison,
}

/// The contrasts of one dimension, corrected for their number.
fn judged(run: &Run, contrasts: Vec<(Contrast<'_>, Rounds)>, floor: Option<f64>) -> Vec<DimensionEffect> {
    let mut found: Vec<(Contrast<'_>, Rounds, Pair)> = contrasts
        .into_iter()
        .filter_map(|(contrast, pairs)| {
            let pair = Pair { difference: compare_difference(&pairs)?, ratio: compare_ratio(&pairs)? };
            Some((contrast, pairs, pair))
        })
        .collect();
    let adjusted = |p: fn(&Pair) -> f64| holm_adjusted(&found.iter().map(|f| p(&f.2)).collect::<Vec<f64>>());
    let of_both = [adjusted(|p| p.difference.p), adjusted(|p| p.ratio.p)];
    for (i, (_, _, pair)) in found.iter_mut().enumerate() {
        pair.difference.p_holm = of_both[0][i];
        pair.ratio.p_holm = of_both[1][i];
    }
    found.into_iter().map(|(contrast, pairs, pair)| contrast.effect(run, pair, &pairs, floor)).collect()
}
