//! Joining what several ends saw over time.

use weir_record::Series;

use crate::Part;

/// The points of that series added up over the parts, by position: all ends of a trial have windows of one length.
pub(crate) fn summed(parts: &[Part], name: &str) -> Option<Series> {
    joined(parts, name, |values| values.iter().sum())
}

/// The points of that series averaged over the parts that have one at the same time.
pub(crate) fn averaged(parts: &[Part], name: &str) -> Option<Series> {
    joined(parts, name, |values| values.iter().sum::<f64>() / values.len() as f64)
}

fn joined(parts: &[Part], name: &str, join: impl Fn(&[f64]) -> f64) -> Option<Series> {
    let all: Vec<&Series> = parts.iter().flat_map(|p| &p.series).filter(|s| s.name == name).collect();
    // Times are multiples of the same step, so equal ones are equal to the last bit; the key is theirs in ns.
    let mut by_time = std::collections::BTreeMap::<i64, (f64, Vec<f64>)>::new();
    for (t, v) in all.iter().flat_map(|s| &s.points) {
        by_time.entry((t * 1e9).round() as i64).or_insert_with(|| (*t, Vec::new())).1.push(*v);
    }
    let points = by_time.into_values().map(|(t, values)| (t, join(&values))).collect();
    (!all.is_empty()).then(|| Series { name: name.to_owned(), points })
}

/// The series under another name.
pub(crate) fn renamed(series: Series, name: &str) -> Series {
    Series { name: name.to_owned(), ..series }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_points_of_the_same_time() {
        let part = |points: &[(f64, f64)]| Part {
            series: vec![Series { name: "x".into(), points: points.to_vec() }],
            ..Part::default()
        };
        let parts = [part(&[(0.05, 1.0), (0.15, 2.0)]), part(&[(0.15, 4.0)])];
        assert_eq!(summed(&parts, "x").unwrap().points, [(0.05, 1.0), (0.15, 6.0)]);
        assert_eq!(averaged(&parts, "x").unwrap().points, [(0.05, 1.0), (0.15, 3.0)]);
        assert_eq!(summed(&parts, "y"), None);
    }
}
