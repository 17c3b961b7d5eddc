//! A share of segments, with its interval.

use schemars::JsonSchema;
use serde::Serialize;
use weir_stats::loss;

/// Some of a number of segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct Fraction {
    /// How many.
    pub segments: u64,
    /// The total.
    pub of: u64,
    /// The share, 0 to 1; null if `of` is 0.
    pub share: Option<f64>,
    /// The 95 % interval of the share. Its upper end includes losses that leave no trace here; its lower end leaves out as many as
    /// senders are known, or seem, to have sent again needlessly: there may be as many more.
    pub low: Option<f64>,
    /// See `low`.
    pub high: Option<f64>,
    /// They are part of `low` and `high`.
    #[serde(skip)]
    pub doubts: Doubts,
}

/// Counts of one flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Segments that are counted.
    pub segments: u64,
    /// The total.
    pub of: u64,
    /// How far the counts may be wrong.
    pub doubts: Doubts,
}

/// Segments by which counts of losses may be wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Doubts {
    /// More of them may have been lost without a trace.
    pub traceless: u64,
    /// So many of the total came after a pause: the loss of one before it would have left no trace.
    pub pauses: u64,
    /// So many were sent again needlessly beside those that count as lost, or are among these and may have been.
    pub needless: u64,
}

impl Counts {
    /// The sum of several flows.
    pub(crate) fn sum(flows: &[Counts]) -> Counts {
        let sum = |field: fn(&Counts) -> u64| flows.iter().map(field).sum::<u64>();
        Counts {
            segments: sum(|c| c.segments),
            of: sum(|c| c.of),
            doubts: Doubts {
                traceless: sum(|c| c.doubts.traceless),
                pauses: sum(|c| c.doubts.pauses),
                needless: sum(|c| c.doubts.needless),
            },
        }
    }

    /// A snapshot may have one counter and not yet the other.
    fn sound(self) -> Counts {
        Counts { segments: self.segments.min(self.of), ..self }
    }
}

/// Losses come in bursts, so that flows differ by more than chance: with enough of them the interval is widened by that
/// ([`loss::interval_over_trials`]).
fn interval(flows: &[Counts], lost_of: impl Fn(&Counts) -> (u64, u64)) -> Option<(f64, f64)> {
    let trials: Vec<(u64, u64)> = flows.iter().map(|flow| lost_of(&flow.sound())).collect();
    let (lost, of) = trials.iter().fold((0, 0), |sum, trial| (sum.0 + trial.0, sum.1 + trial.1));
    loss::interval_over_trials(&trials).and_then(|(_, i)| i).or_else(|| loss::interval(lost, of))
}

impl Fraction {
    /// Over flows.
    pub fn over(flows: &[Counts]) -> Self {
        let Counts { segments, of, doubts } = Counts::sum(flows).sound();
        let known = interval(flows, |c| (c.segments, c.of));
        let sure = segments.saturating_sub(doubts.needless) as f64 / segments.max(1) as f64;
        let possible = interval(flows, |c| ((c.segments + c.doubts.traceless).min(c.of), c.of));
        // Only a loss that another segment follows shows.
        let visible = interval(flows, |c| (c.segments, c.of - c.doubts.pauses.min(c.of - c.segments)));
        let high = possible.into_iter().chain(visible).map(|(_, high)| high).reduce(f64::max);
        let share = (of > 0).then(|| segments as f64 / of as f64);
        Fraction { segments, of, share, low: known.map(|(low, _)| low * sure), high, doubts }
    }

    /// The fraction of several flows, or of several parts of the path, together.
    pub fn sum<'a>(parts: impl IntoIterator<Item = &'a Fraction>) -> Self {
        let counts = |f: &Fraction| Counts { segments: f.segments, of: f.of, doubts: f.doubts };
        let parts: Vec<Counts> = parts.into_iter().map(counts).filter(|c| c.of > 0).collect();
        Fraction::over(&parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(segments: u64, of: u64) -> Counts {
        Counts { segments, of, doubts: Doubts::default() }
    }

    #[test]
    fn one_flow_has_the_exact_interval_and_many_the_wider_one() {
        let one = Fraction::over(&[counts(10, 1000)]);
        assert_eq!(one.low.zip(one.high), loss::interval(10, 1000));
        let uneven: Vec<Counts> = (0..10).map(|n| counts(if n == 0 { 10 } else { 0 }, 100)).collect();
        let many = Fraction::over(&uneven);
        assert_eq!((many.share, many.of), (Some(0.01), 1000));
        assert!(many.high > one.high && many.low < one.low, "{many:?} {one:?}");
    }

    #[test]
    fn losses_without_a_trace_raise_the_upper_end_alone() {
        let sure = Fraction::over(&[counts(10, 1000)]);
        let with = |doubts| Fraction::over(&[Counts { doubts, ..counts(10, 1000) }]);
        let traceless = with(Doubts { traceless: 5, ..Doubts::default() });
        assert_eq!((sure.low, sure.share), (traceless.low, traceless.share));
        assert_eq!(traceless.high, loss::interval(15, 1000).map(|i| i.1));
        // As if those after pauses were not there.
        let pauses = with(Doubts { pauses: 200, ..Doubts::default() });
        assert_eq!((sure.low, sure.share), (pauses.low, pauses.share));
        assert_eq!(pauses.high, loss::interval(10, 800).map(|i| i.1));
        let all = with(Doubts { pauses: 1000, ..Doubts::default() });
        assert_eq!(all.high, loss::interval(10, 10).map(|i| i.1));
    }

    #[test]
    fn a_sender_that_sends_needlessly_lowers_the_lower_end_alone() {
        let with = |needless| {
            Fraction::over(&[Counts { doubts: Doubts { needless, ..Doubts::default() }, ..counts(26, 4000) }])
        };
        assert_eq!((with(96).low, with(96).high), (Some(0.0), with(0).high));
        assert_eq!(with(13).low, loss::interval(26, 4000).map(|i| i.0 / 2.0));
    }

    #[test]
    fn a_sum_is_that_of_its_flows() {
        let doubts = Doubts { traceless: 1, pauses: 2, needless: 3 };
        let flows: Vec<Counts> = (1..10).map(|n| Counts { doubts, ..counts(n, 100) }).collect();
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
