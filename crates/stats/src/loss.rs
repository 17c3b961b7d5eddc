//! Intervals of a loss ratio.

use crate::special::{beta_quantile, normal_quantile, student_upper};

/// 95 % interval of a loss ratio, `lost` of `sent`, for losses that do not depend on each other.
///
/// Zero lost gives 0 to 3/n, the rule of three: (1 - 3/n)^n = 5 % (Hanley and Lippman-Hand, JAMA 249:1743,
/// 1983), one-sided, as there is nothing below. Otherwise the exact binomial interval of Clopper and Pearson
/// (1934). Real losses come in bursts: with several trials use [`interval_over_trials`]. `None` if nothing
/// was sent, or more was lost than sent.
pub fn interval(lost: u64, sent: u64) -> Option<(f64, f64)> {
    if sent == 0 || lost > sent {
        return None;
    }
    if lost == 0 {
        return Some((0.0, (3.0 / sent as f64).min(1.0)));
    }
    Some(clopper_pearson(lost as f64, sent as f64))
}

/// The Clopper-Pearson 95 % interval; counts need not be whole.
fn clopper_pearson(lost: f64, sent: f64) -> (f64, f64) {
    let kept = sent - lost;
    let low = if lost > 0.0 { beta_quantile(0.025, lost, kept + 1.0) } else { 0.0 };
    let high = if kept > 0.0 { beta_quantile(0.975, lost + 1.0, kept) } else { 1.0 };
    (low, high)
}

/// Ratio of all lost to all sent over trials `(lost, sent)`, with a 95 % interval that stays true when
/// losses come in bursts.
///
/// Bursts make trials differ by more than chance; the interval is Clopper-Pearson's with the number of
/// packets divided by that excess (the design effect), and with Student's t for the few trials (Korn and
/// Graubard, Survey Methodology 24:193, 1998). So it is never narrower than the one for independent losses,
/// and a trial counts as one observation when losses are all or nothing. Zero lost gives 0 to 3/n like
/// [`interval`]: trials without any loss cannot tell whether it would come in bursts.
///
/// With losses the interval is absent below six trials. `None` if nothing was sent or a trial lost more than it sent.
pub fn interval_over_trials(trials: &[(u64, u64)]) -> Option<(f64, Option<(f64, f64)>)> {
    let lost: u64 = trials.iter().map(|t| t.0).sum();
    let sent: u64 = trials.iter().map(|t| t.1).sum();
    if sent == 0 || trials.iter().any(|(lost, sent)| lost > sent) {
        return None;
    }
    let ratio = lost as f64 / sent as f64;
    let used: Vec<(f64, f64)> = trials.iter().filter(|t| t.1 > 0).map(|t| (t.0 as f64, t.1 as f64)).collect();
    // Zero of n comes with its bound, however few the trials.
    if lost == 0 {
        return Some((ratio, interval(lost, sent)));
    }
    if used.len() < crate::signed_rank::LEAST_ROUNDS {
        return Some((ratio, None));
    }
    if lost == sent {
        return Some((ratio, interval(lost, sent)));
    }
    let trials = used.len() as f64;
    let sent = sent as f64;
    // Variance of a ratio of sums over clusters (Cochran, Sampling Techniques, 3rd ed., section 3.12).
    let between: f64 = used.iter().map(|(l, s)| (l - ratio * s).powi(2)).sum();
    let variance = trials / (trials - 1.0) * between / (sent * sent);
    let design_effect = variance / (ratio * (1.0 - ratio) / sent);
    let few = normal_quantile(0.975) / student_upper(0.025, trials - 1.0);
    let effective = (sent / design_effect * few * few).min(sent);
    Some((ratio, Some(clopper_pearson(ratio * effective, effective))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn near(got: (f64, f64), want: (f64, f64)) {
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-8 * b.abs();
        assert!(close(got.0, want.0) && close(got.1, want.1), "{got:?} instead of {want:?}");
    }

    #[test]
    fn clopper_pearson_as_scipy() {
        // SciPy 1.17.1: scipy.stats.binomtest(lost, sent).proportion_ci(0.95, 'exact')
        near(interval(1, 100).unwrap(), (0.00025314603268189283, 0.054459385392080666));
        near(interval(7, 1000).unwrap(), (0.0028188587596180135, 0.014369194979269567));
        near(interval(50, 50).unwrap(), (0.9288782635357954, 1.0));
        near(interval(1000, 100_000).unwrap(), (0.00939255608906815, 0.010636111529339097));
        // scipy.special.betaincinv(lost, sent - lost + 1, .025), betaincinv(lost + 1, sent - lost, .975)
        near(interval(3, 10_000_000).unwrap(), (6.186721656250593e-08, 8.767270541303173e-07));
    }

    #[test]
    fn zero_lost_gives_the_rule_of_three() {
        assert_eq!(interval(0, 3000), Some((0.0, 0.001)));
        assert_eq!(interval(0, 2), Some((0.0, 1.0)));
        assert_eq!(interval_over_trials(&[(0, 500); 6]), Some((0.0, Some((0.0, 0.001)))));
    }

    #[test]
    fn impossible_counts_give_nothing() {
        assert_eq!(interval(0, 0), None);
        assert_eq!(interval(2, 1), None);
        assert_eq!(interval_over_trials(&[]), None);
        assert_eq!(interval_over_trials(&[(5, 10), (11, 10)]), None);
    }

    #[test]
    fn few_trials_give_no_interval() {
        assert_eq!(interval_over_trials(&[(10, 100); 5]), Some((0.1, None)));
        // One that sent nothing is none.
        let with_idle = [(10, 100), (10, 100), (10, 100), (10, 100), (10, 100), (0, 0)];
        assert_eq!(interval_over_trials(&with_idle), Some((0.1, None)));
        assert!(interval_over_trials(&[(10, 100); 6]).unwrap().1.is_some());
    }

    #[test]
    fn evenly_spread_losses_are_taken_as_independent() {
        // No trial differs from another, so nothing speaks for bursts.
        let (ratio, over_trials) = interval_over_trials(&[(10, 1000); 10]).unwrap();
        assert_eq!(ratio, 0.01);
        assert_eq!(over_trials, interval(100, 10_000));
    }

    #[test]
    fn all_or_nothing_trials_count_as_one_observation_each() {
        // Two of eight trials lost everything: a design effect of 8000/7 leaves seven observations, and
        // Student's t n = 7 * (scipy.special.ndtri(.975) / scipy.stats.t.isf(.025, 7))**2 =
        // 4.809167940104842. With x = n/4 the limits are scipy.special.betaincinv(x, n-x+1, .025) and
        // betaincinv(x+1, n-x, .975).
        let trials =
            [(1000, 1000), (0, 1000), (0, 1000), (0, 1000), (1000, 1000), (0, 1000), (0, 1000), (0, 1000)];
        let (ratio, limits) = interval_over_trials(&trials).unwrap();
        assert_eq!(ratio, 0.25);
        near(limits.unwrap(), (0.010921072616382862, 0.76392852609082));
    }
}
