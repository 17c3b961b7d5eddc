//! A rate above which everything is lost, in the moments of a network.
//!
//! A token bucket is empty when it drops. Between two losses it takes in what its rate makes, and gives all of it to what arrives: the
//! rate of what arrives from one loss to another is that of the bucket, however senders vary meanwhile. Random losses leave any rate. The
//! idea to compare the rate between losses with a bucket's is that of Flach et al.: An Internet-Wide Analysis of Traffic Policing
//! (SIGCOMM 2016), for single flows in traces.

use weir_text::order;

use super::excess::Excess;
use crate::evidence::{Moment, TransitNetwork};

/// A stretch from one loss to another takes at least this, s: looks are late by some ms, and segments in flight at both ends blur it.
const STRETCH_S: f64 = 0.4;
/// Stretches that say something: few of them may agree by chance. Fewer do if the rate varied so much more between others than losses.
const STRETCHES: usize = 5;
const FEW_STRETCHES: usize = 3;
const CONTRAST: f64 = 0.2;
/// Share of the time of all stretches in which their rate is the usual one.
const AGREE: f64 = 0.75;
/// The usual rate is not exceeded for one of these shares of the time: a bucket that fills up meanwhile gives less than its rate.
const USUAL: [f64; 2] = [0.5, 0.7];
/// How far a stretch may be from the usual rate, as a share of it: this, and what an end that is wrong by this time makes, s.
const NEAR: f64 = 0.015;
const END_S: f64 = 0.008;
/// Bytes of losses in a moment from which on a stretch begins or ends there: two segments.
const LOST: i64 = 3000;
/// The rate of bytes that came here varied at least this many times as much as that of those that arrived, in the stretches that have the
/// usual rate. A slower line before this host brings the same each time, and random losses behind it are no ceiling.
const AS_MUCH: f64 = 0.7;
/// Lost segments of a moment differ by so many times more than independent losses (variance to mean, of which Poisson's is 1): an empty
/// bucket drops many in a row, unless it is empty most of the time.
const BURSTS: f64 = 2.5;
/// A moment with less than this share of the mean traffic is a pause, in which a bucket fills up.
const PAUSE: f64 = 0.3;
/// A moment that lost more than this share is a sender that starts: its losses are noticed over many moments.
const BREAK: f64 = 0.5;
/// Moments at the beginning in which losses of earlier segments are not judged.
const EARLY: usize = 4;
/// Bytes of a segment, for the number of lost ones.
const SEGMENT: f64 = 1500.0;
/// Senders that wait for the network less than this share of the time set their rate themselves.
const LIMITED: f64 = 0.8;
/// Round trips at losses are at most so much longer than the shortest one, ns, and as a share of it.
const RISE_NS: f64 = 5e6;
const RISE: f64 = 0.15;
/// Round trips that were measured there.
const TRIPS: u32 = 8;

/// The rate above which a network loses everything.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Ceiling {
    /// The usual rate of what arrived from one loss to another, bit/s of IP packets.
    pub(super) bit_rate: f64,
    /// Half of the time it was between these, bit/s.
    pub(super) between: (f64, f64),
    /// Stretches from one loss to another.
    pub(super) stretches: usize,
    /// Their time, s.
    pub(super) seconds: f64,
    /// How much longer than the shortest one round trips at losses took, ns.
    pub(super) rise_ns: f64,
    /// See [`Excess::is_lost`].
    pub(super) lost_of_more: Option<f64>,
}

/// The ceiling of what goes to a network, if its losses show one and round trips do not grow with them.
pub(super) fn ceiling(network: &TransitNetwork) -> Option<Ceiling> {
    let moments = network.moments.get(EARLY..)?;
    let rise_ns = rise(network)?;
    let excess = Excess::of(moments)?;
    let lost_of_more = excess.is_lost();
    if network.network_limited < LIMITED
        || excess.passes()
        || dispersion(moments) < BURSTS && lost_of_more.is_none()
    {
        return None;
    }
    let stretches = stretches(moments);
    let rates = Rates::of(&stretches);
    let few = stretches.len() < STRETCHES;
    if stretches.len() < FEW_STRETCHES
        || few && rates.width() > CONTRAST * Rates::of(&between_any(moments, &stretches)).width()
    {
        return None;
    }
    let near = |bit_rate: f64| {
        stretches
            .iter()
            .filter(move |s| (s.bit_rate - bit_rate).abs() <= (NEAR + END_S / s.seconds) * bit_rate)
    };
    let agrees = |bit_rate: &f64| near(*bit_rate).map(|s| s.seconds).sum::<f64>() >= AGREE * rates.seconds;
    let bit_rate = USUAL.iter().map(|share| rates.at(*share)).find(agrees)?;
    let arrived: Vec<Stretch> = near(bit_rate).copied().collect();
    let came: Vec<Stretch> = arrived.iter().map(|s| Stretch { bit_rate: s.came, ..*s }).collect();
    if Rates::of(&came).spread() < AS_MUCH * Rates::of(&arrived).spread() {
        return None;
    }
    Some(Ceiling {
        bit_rate,
        between: (rates.at(0.25), rates.at(0.75)),
        stretches: stretches.len(),
        seconds: rates.seconds,
        rise_ns,
        lost_of_more,
    })
}

/// From one loss to another.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    /// Rate of arrived bytes.
    bit_rate: f64,
    /// Rate of bytes that came here, bit/s.
    came: f64,
    seconds: f64,
}

impl Stretch {
    /// The rates of so many bytes.
    fn of(came: f64, arrived: f64, seconds: f64) -> Self {
        let rate = |bytes: f64| 8.0 * bytes / seconds.max(1e-6);
        Stretch { bit_rate: rate(arrived), came: rate(came), seconds }
    }
}

/// The rates of some stretches, the lowest first, with their time.
struct Rates {
    sorted: Vec<Stretch>,
    seconds: f64,
}

impl Rates {
    fn of(stretches: &[Stretch]) -> Self {
        let mut sorted = stretches.to_vec();
        order::by(&mut sorted, |a, b| a.bit_rate.total_cmp(&b.bit_rate));
        Rates { seconds: sorted.iter().map(|s| s.seconds).sum(), sorted }
    }

    /// The rate that is not exceeded for that share of the time, bit/s; 0 of none.
    fn at(&self, share: f64) -> f64 {
        let mut before = 0.0;
        let found = self.sorted.iter().find(|s| {
            before += s.seconds;
            before >= share * self.seconds
        });
        found.map_or(0.0, |s| s.bit_rate)
    }

    /// Width of the middle half of the time, bit/s.
    fn width(&self) -> f64 {
        self.at(0.75) - self.at(0.25)
    }

    /// Mean distance from the middle, bit/s.
    fn spread(&self) -> f64 {
        let middle = self.at(0.5);
        let all: f64 = self.sorted.iter().map(|s| (s.bit_rate - middle).abs() * s.seconds).sum();
        all / self.seconds.max(1e-6)
    }
}

/// Stretches as long as the mean of these, which begin and end at any moment.
fn between_any(moments: &[Moment], like: &[Stretch]) -> Vec<Stretch> {
    let seconds = like.iter().map(|s| s.seconds).sum::<f64>() / like.len().max(1) as f64;
    let all: f64 = moments.iter().map(|m| f64::from(m.us) / 1e6).sum();
    let number = (seconds * moments.len() as f64 / all.max(seconds)).round().max(1.0) as usize;
    let of = |window: &[Moment]| {
        let seconds = window.iter().map(|m| f64::from(m.us) / 1e6).sum::<f64>();
        let came: f64 = window.iter().map(|m| m.bytes as f64).sum();
        let lost: f64 = window.iter().map(|m| m.lost.max(0) as f64).sum();
        Stretch::of(came, came - lost, seconds)
    };
    moments.windows(number).map(of).collect()
}

/// Stretches without a pause or a start. A loss is one of the bytes at the end of its moment or soon after: it is known when the sender
/// has noticed.
fn stretches(moments: &[Moment]) -> Vec<Stretch> {
    let mean = moments.iter().map(|m| m.bytes as f64).sum::<f64>() / moments.len().max(1) as f64;
    let mut found = Vec::new();
    // Bytes that came and that arrived, and time, since the last loss.
    let mut since: Option<(f64, f64, f64)> = None;
    for moment in moments {
        let (bytes, lost) = (moment.bytes as f64, moment.lost.max(0) as f64);
        if bytes < PAUSE * mean || lost > BREAK * bytes {
            since = None;
            continue;
        }
        if let Some((came, arrived, seconds)) = &mut since {
            *came += bytes;
            *arrived += bytes - lost;
            *seconds += f64::from(moment.us) / 1e6;
        }
        if moment.lost < LOST {
            continue;
        }
        match since {
            Some((_, _, seconds)) if seconds < STRETCH_S => {}
            Some((came, arrived, seconds)) => {
                found.push(Stretch::of(came, arrived, seconds));
                since = Some((0.0, 0.0, 0.0));
            }
            None => since = Some((0.0, 0.0, 0.0)),
        }
    }
    found
}

/// Variance of the lost segments of a moment, to their mean.
fn dispersion(moments: &[Moment]) -> f64 {
    let lost = || moments.iter().map(|m| m.lost.max(0) as f64 / SEGMENT);
    let n = moments.len().max(1) as f64;
    let mean = lost().sum::<f64>() / n;
    let variance = lost().map(|lost| (lost - mean).powi(2)).sum::<f64>() / n;
    if mean > 0.0 { variance / mean } else { 0.0 }
}

/// How much longer than the shortest one the round trips at losses took, ns; `None` if they grew by more than a policer's do, or too few
/// were measured.
fn rise(network: &TransitNetwork) -> Option<f64> {
    let moments = &network.moments;
    let next_loses = |at: usize| moments.get(at + 1).is_some_and(|m| m.lost > 0);
    let at_losses = || moments.iter().enumerate().filter(|(at, m)| m.lost > 0 || next_loses(*at));
    let trips: u32 = at_losses().map(|(_, m)| m.trips).sum();
    let total: f64 = at_losses().map(|(_, m)| m.trips_ns as f64).sum();
    let least = network.smallest_ns as f64;
    let rise = total / f64::from(trips.max(1)) - least;
    (trips >= TRIPS && rise <= RISE_NS.max(RISE * least)).then_some(rise.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::network;
    use super::*;

    /// A network whose moments were recorded behind a gateway (kernel 6.18), and what was planted on the way there.
    #[derive(serde::Deserialize)]
    struct Planted {
        name: String,
        /// The rate of the policer, Mbit/s; `None`: another fault.
        mbit: Option<f64>,
        network: TransitNetwork,
    }

    fn recorded() -> Vec<Planted> {
        serde_json::from_str(include_str!("moments/recorded.json")).unwrap()
    }

    #[test]
    fn recorded_policers_have_a_ceiling_at_their_rate_and_other_faults_have_none() {
        let all = recorded();
        assert_eq!(all.iter().filter(|planted| planted.mbit.is_some()).count(), 5);
        for Planted { name, mbit, network } in all {
            let found = ceiling(&network);
            assert_eq!(found.is_some(), mbit.is_some(), "{name}: {found:?}");
            if let (Some(found), Some(mbit)) = (found, mbit) {
                assert!((found.bit_rate / (mbit * 1e6) - 1.0).abs() < 0.03, "{name}: {found:?}");
                assert!(found.between.0 <= found.bit_rate && found.bit_rate <= found.between.1, "{name}");
            }
        }
    }

    /// So many moments of 50 ms: bytes that a sender passes which speeds up after each loss, and those that `lose` says of them.
    fn sawtooth(moments: usize, mut lose: impl FnMut(usize, u64) -> u64) -> TransitNetwork {
        let (mut kb, mut all) = (100, Vec::new());
        for at in 0..moments {
            let bytes = kb * 1000;
            let lost = lose(at, bytes);
            kb = if lost > 0 { kb * 7 / 10 } else { kb + 3 + at as u64 % 5 };
            let (trips, trips_ns) = (20, 20 * 2_500_000);
            all.push(Moment { us: 50_000, bytes, lost: lost as i64, trips, trips_ns });
        }
        TransitNetwork { moments: all, network_limited: 0.95, ..network(true) }
    }

    /// A bucket of 200 kB that gets 125 kB in each moment: 20 Mbit/s.
    fn bucket(_: usize, bytes: u64, level: &mut u64) -> u64 {
        *level = (*level + 125_000).min(200_000);
        let lost = bytes.saturating_sub(*level);
        *level -= bytes - lost;
        lost
    }

    fn policed() -> TransitNetwork {
        let mut level = 200_000;
        sawtooth(200, |at, bytes| bucket(at, bytes, &mut level))
    }

    #[test]
    fn a_token_bucket_has_a_ceiling() {
        let found = ceiling(&policed()).unwrap();
        assert!((found.bit_rate - 20e6).abs() < 0.4e6, "{found:?}");
        assert!(found.stretches >= STRETCHES, "{found:?}");
    }

    #[test]
    fn losses_at_any_time_have_none() {
        // An LCG of Knuth (MMIX): bursts of ten segments with a chance of 1 in 12 moments.
        let mut state = 4711_u64;
        let random = sawtooth(200, |_, _| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if (state >> 33).is_multiple_of(12) { 15_000 } else { 0 }
        });
        assert_eq!(ceiling(&random), None);
        assert_eq!(ceiling(&sawtooth(200, |_, _| 0)), None, "no loss");
    }

    #[test]
    fn a_queue_a_sender_with_its_own_rate_and_a_short_look_have_none() {
        let mut queue = policed();
        queue.moments.iter_mut().for_each(|m| m.trips_ns += u64::from(m.trips) * 6_000_000);
        assert_eq!(ceiling(&queue), None);
        let mut blind = policed();
        blind.moments.iter_mut().for_each(|m| (m.trips, m.trips_ns) = (0, 0));
        assert_eq!(ceiling(&blind), None, "no round trips");
        assert_eq!(ceiling(&TransitNetwork { network_limited: 0.5, ..policed() }), None);
        let mut short = policed();
        short.moments.truncate(20);
        assert_eq!(ceiling(&short), None);
        assert_eq!(ceiling(&TransitNetwork { moments: Vec::new(), ..policed() }), None);
    }

    /// Nothing that evidence from a file may hold ends the analysis.
    #[test]
    fn odd_moments_have_none() {
        let odd = Moment { us: 0, bytes: u64::MAX, lost: i64::MIN, trips: u32::MAX, trips_ns: u64::MAX };
        assert_eq!(ceiling(&TransitNetwork { moments: vec![odd; 50], ..policed() }), None);
        let none = Moment { us: 50_000, ..Moment::default() };
        assert_eq!(ceiling(&TransitNetwork { moments: vec![none; 50], ..policed() }), None);
    }

    /// A second of pauses fills the bucket, and what it holds then is no part of its rate.
    #[test]
    fn pauses_do_not_change_the_rate() {
        let mut network = policed();
        let half = network.moments.len() / 2;
        let pause = Moment { us: 50_000, ..Moment::default() };
        network.moments.splice(half..half, std::iter::repeat_n(pause, 20));
        let found = ceiling(&network).unwrap();
        assert!((found.bit_rate - 20e6).abs() < 0.4e6, "{found:?}");
    }
}
