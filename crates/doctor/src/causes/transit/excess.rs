//! Whether losses took what came in addition to the usual.
//!
//! A bucket that is empty most of the time drops what comes above its rate: of one more byte that comes, one more is lost. Losses that
//! know nothing of the rate take the same share of all. Senders that lose slow down, so that of those even less is lost when much comes.

use crate::evidence::Moment;

/// Moments that are judged together, 0.6 s: losses are noticed late, and what a bucket holds blurs shorter times.
const TOGETHER: usize = 12;
/// The share of the additional bytes is greater than that of all by so many standard errors (chance of 2 % with 15 groups).
const SURE: f64 = 2.3;
/// By so many it may be less: a policer's is not.
const LESS: f64 = -1.0;
/// A bucket takes at least this share of the additional bytes. More cannot be lost than came; the rest is left to errors: if all comes at
/// one rate, the share is arbitrary.
const SHARE: std::ops::RangeInclusive<f64> = 0.2..=1.3;

/// Losses among the bytes that came in addition to the usual.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Excess {
    /// Their share.
    share: f64,
    /// By how many standard errors it is greater than the share of all.
    errors: f64,
}

/// Bytes, each second.
#[derive(Clone, Copy)]
struct Group {
    came: f64,
    lost: f64,
}

impl Excess {
    /// The excess of these moments; `None` of too few, and if nothing came in addition.
    pub(super) fn of(moments: &[Moment]) -> Option<Self> {
        let groups: Vec<Group> = moments.chunks_exact(TOGETHER).map(group).collect();
        let n = groups.len() as f64;
        let mean = |of: fn(&Group) -> f64| groups.iter().map(of).sum::<f64>() / n;
        let (came, lost) = (mean(|g| g.came), mean(|g| g.lost));
        let products = |of: fn(f64, f64) -> f64| -> f64 {
            groups.iter().map(|g| of(g.came - came, g.lost - lost)).sum::<f64>()
        };
        // The line of least squares, and the standard error of its slope.
        let (squares, both) = (products(|c, _| c * c), products(|c, l| c * l));
        if n <= 2.0 || squares <= 0.0 {
            return None;
        }
        let share = both / squares;
        let rest = (products(|_, l| l * l) - share * both).max(0.0);
        let error = (rest / (n - 2.0) / squares).sqrt();
        Some(Excess { share, errors: (share - lost / came) / error.max(1e-6) })
    }

    /// The share, if it is surely more than that of all.
    pub(super) fn is_lost(self) -> Option<f64> {
        (self.errors >= SURE && SHARE.contains(&self.share)).then_some(self.share)
    }

    /// Less was lost when more came.
    pub(super) fn passes(self) -> bool {
        self.errors < LESS
    }
}

fn group(moments: &[Moment]) -> Group {
    let seconds = moments.iter().map(|m| f64::from(m.us) / 1e6).sum::<f64>().max(1e-6);
    Group {
        came: moments.iter().map(|m| m.bytes as f64).sum::<f64>() / seconds,
        lost: moments.iter().map(|m| m.lost as f64).sum::<f64>() / seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups of moments with these numbers of thousands of bytes in each moment, and the bytes that were lost of them.
    fn moments(kb: &[u64], lost: impl Fn(u64) -> u64) -> Vec<Moment> {
        let moment = |kb: u64| Moment {
            us: 50_000,
            bytes: kb * 1000,
            lost: lost(kb * 1000) as i64,
            ..Moment::default()
        };
        kb.iter().flat_map(|kb| vec![moment(*kb); TOGETHER]).collect()
    }

    fn lost_of_more(moments: &[Moment]) -> Option<f64> {
        Excess::of(moments)?.is_lost()
    }

    const CAME: [u64; 8] = [120, 131, 125, 140, 128, 122, 137, 126];

    #[test]
    fn of_what_exceeds_a_rate_all_is_lost() {
        let share = lost_of_more(&moments(&CAME, |bytes| bytes - 119_000)).unwrap();
        assert!((share - 1.0).abs() < 1e-6, "{share}");
    }

    #[test]
    fn losses_that_know_nothing_of_the_rate_take_no_more() {
        assert_eq!(lost_of_more(&moments(&CAME, |bytes| bytes / 20 / 1500 * 1500)), None, "a share of all");
        assert_eq!(lost_of_more(&moments(&CAME, |_| 6000)), None, "the same number each time");
        assert_eq!(lost_of_more(&moments(&CAME, |bytes| 200_000 - bytes)), None, "less when more comes");
        assert_eq!(lost_of_more(&moments(&CAME, |_| 0)), None, "nothing");
        let passes = |lost: fn(u64) -> u64| Excess::of(&moments(&CAME, lost)).unwrap().passes();
        assert!(passes(|bytes| 200_000 - bytes) && !passes(|bytes| bytes - 119_000));
    }

    #[test]
    fn one_rate_and_too_few_moments_tell_nothing() {
        assert_eq!(lost_of_more(&moments(&[125; 8], |_| 6000)), None);
        // More is lost than came in addition.
        assert_eq!(lost_of_more(&moments(&CAME, |bytes| 2 * (bytes - 119_000))), None);
        assert_eq!(lost_of_more(&moments(&CAME[..2], |bytes| bytes - 119_000)), None);
        assert_eq!(lost_of_more(&[]), None);
        let odd = Moment { us: 0, bytes: u64::MAX, lost: i64::MIN, trips: u32::MAX, trips_ns: u64::MAX };
        assert_eq!(lost_of_more(&[odd; 50]), None);
    }
}
