//! A share of segments, with its interval.

use schemars::JsonSchema;
use serde::Serialize;
use weir_stats::loss;

/// Some of a number of segments.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Fraction {
    /// How many.
    pub segments: u64,
    /// The total.
    pub of: u64,
    /// The share, 0 to 1; null if `of` is 0.
    pub share: Option<f64>,
    /// The 95 % interval of the share. Its upper end includes losses that leave no trace here.
    pub low: Option<f64>,
    /// See `low`.
    pub high: Option<f64>,
    /// More of them that may have been lost without a trace; they are part of `high`.
    #[serde(skip)]
    pub doubtful: u64,
}

/// Counts of one flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) segments: u64,
    pub(crate) of: u64,
    /// More of them that may have been lost without a trace.
    pub(crate) doubtful: u64,
}

impl Fraction {
    /// Over flows. Losses come in bursts, so that flows differ by more than chance: with enough of them the interval is widened by
    /// that ([`loss::interval_over_trials`]).
    pub(crate) fn over(flows: &[Counts]) -> Self {
        let sum = |field: fn(&Counts) -> u64| flows.iter().map(field).sum::<u64>();
        let (of, doubtful) = (sum(|c| c.of), sum(|c| c.doubtful));
        // A snapshot may have the one counter and not yet the other.
        let segments = sum(|c| c.segments).min(of);
        let trials = |more: bool| -> Vec<(u64, u64)> {
            let one = |c: &Counts| ((c.segments + if more { c.doubtful } else { 0 }).min(c.of), c.of);
            flows.iter().map(one).collect()
        };
        let interval = |lost: u64, trials: &[(u64, u64)]| {
            loss::interval_over_trials(trials).and_then(|(_, i)| i).or_else(|| loss::interval(lost, of))
        };
        let known = interval(segments, &trials(false));
        let possible =
            if doubtful == 0 { known } else { interval((segments + doubtful).min(of), &trials(true)) };
        Fraction {
            segments,
            of,
            share: (of > 0).then(|| segments as f64 / of as f64),
            low: known.map(|i| i.0),
            high: known.zip(possible).map(|(k, p)| k.1.max(p.1)),
            doubtful,
        }
    }

    /// The fraction of several flows, or of several parts of the path, together.
    pub fn sum<'a>(parts: impl IntoIterator<Item = &'a Fraction>) -> Self {
        let counts = |f: &Fraction| Counts { segments: f.segments, of: f.of, doubtful: f.doubtful };
        let parts: Vec<Counts> = parts.into_iter().map(counts).filter(|c| c.of > 0).collect();
        Fraction::over(&parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flow_has_the_exact_interval_and_many_the_wider_one() {
        let one = Fraction::over(&[Counts { segments: 10, of: 1000, doubtful: 0 }]);
        assert_eq!(one.low.zip(one.high), loss::interval(10, 1000));
        let uneven: Vec<Counts> =
            (0..10).map(|n| Counts { segments: if n == 0 { 10 } else { 0 }, of: 100, doubtful: 0 }).collect();
        let many = Fraction::over(&uneven);
        assert_eq!((many.share, many.of), (Some(0.01), 1000));
        assert!(many.high > one.high && many.low < one.low, "{many:?} {one:?}");
    }

    #[test]
    fn losses_without_a_trace_raise_the_upper_end_alone() {
        let sure = Fraction::over(&[Counts { segments: 10, of: 1000, doubtful: 0 }]);
        let doubtful = Fraction::over(&[Counts { segments: 10, of: 1000, doubtful: 5 }]);
        assert_eq!((sure.low, sure.share), (doubtful.low, doubtful.share));
        assert_eq!(doubtful.high, loss::interval(15, 1000).map(|i| i.1));
    }

    #[test]
    fn a_sum_is_that_of_its_flows() {
        let flows: Vec<Counts> = (1..10).map(|n| Counts { segments: n, of: 100, doubtful: 1 }).collect();
        let each: Vec<Fraction> = flows.iter().map(|c| Fraction::over(&[*c])).collect();
        assert_eq!(Fraction::sum(&each), Fraction::over(&flows));
    }

    #[test]
    fn nothing_has_no_share() {
        let none = Fraction::over(&[]);
        assert_eq!((none.share, none.low, none.high), (None, None, None));
        assert_eq!(Fraction::sum([&none]), none);
    }
}
