//! The fate of fragments of a datagram that is longer than the path's MTU.

use std::io;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::message::FarCounts;
use crate::prober::{Probe, ProbeOutcome, Prober, Way};

/// Payload of the datagrams that are split, bytes: iperf3's default of UDP was that for long.
pub const PAYLOAD: u32 = 8192;
/// Largest payload of UDP over IPv4, bytes.
const LARGEST: u32 = 65_507;
/// Datagrams in a row; where they do not agree, as many again, twice.
pub const ROW: u32 = 5;
/// The same towards a closed port, whose host refuses six times at once and then once a second (icmp_ratelimit).
pub const SHORT_ROW: u32 = 2;
/// Most rows.
const ROWS: u32 = 3;
/// How long fragments are waited for after a later small control.
const GRACE: Duration = Duration::from_millis(50);

/// The fate of fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// The datagrams arrive.
    Whole,
    /// They arrive, and their fragments came in another order than they were sent in.
    OutOfOrder,
    /// Only the fragment with the UDP header of each datagram arrives.
    FirstOnly,
    /// Only fragments without a UDP header arrive.
    LaterOnly,
    /// No fragment arrives.
    Gone,
    /// Some fragments arrive, and no datagram.
    Some,
    /// No datagram arrives; single fragments could not be observed.
    NotWhole,
    /// Some datagrams arrive and others do not.
    Lossy,
    /// It was not found out.
    Unknown,
}

impl Fate {
    /// Datagrams above the path's MTU are as good as others.
    pub fn is_good(self) -> bool {
        matches!(self, Fate::Whole | Fate::OutOfOrder)
    }

    /// They are lost because they are split.
    pub fn is_bad(self) -> bool {
        matches!(self, Fate::FirstOnly | Fate::LaterOnly | Fate::Gone | Fate::Some | Fate::NotWhole)
    }
}

/// The observations in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Fragments {
    /// Which way.
    pub way: Way,
    /// The fate of the fragments.
    pub fate: Fate,
    /// Payload of each datagram, bytes.
    pub payload_bytes: u32,
    /// Fragments that each was sent as.
    pub pieces: u32,
    /// Datagrams sent.
    pub sent: u32,
    /// Sent datagrams that the other end reassembled.
    pub whole: u32,
    /// Small controls between them, and those unanswered.
    pub controls: u32,
    /// Unanswered controls.
    pub controls_lost: u32,
    /// Fragments with a UDP header that the receiving host saw; `None` where it could not see them.
    pub first: Option<u32>,
    /// Fragments without.
    pub later: Option<u32>,
}

impl Fragments {
    /// Nothing was found out.
    pub fn unknown(way: Way) -> Self {
        Fragments {
            way,
            fate: Fate::Unknown,
            payload_bytes: PAYLOAD,
            pieces: 0,
            sent: 0,
            whole: 0,
            controls: 0,
            controls_lost: 0,
            first: None,
            later: None,
        }
    }
}

/// Fragments of a UDP datagram with that payload on a link with that MTU (RFC 791 section 3.2, RFC 8200 section 4.5: all but
/// the last carry a multiple of eight bytes).
pub fn pieces(payload: u32, mtu: u32, ipv6: bool) -> u32 {
    let (whole, split) = if ipv6 { (40, 48) } else { (20, 20) };
    let datagram = payload + 8;
    if datagram + whole <= mtu {
        return 1;
    }
    let each = (mtu.saturating_sub(split) / 8 * 8).max(8);
    datagram.div_ceil(each)
}

/// Payload that is split on a link with that MTU: [`PAYLOAD`], or on jumbo frames more; `None` where nothing is (loopback).
pub fn payload(mtu: u32, ipv6: bool) -> Option<u32> {
    [PAYLOAD, (2 * mtu).min(LARGEST)].into_iter().find(|p| pieces(*p, mtu, ipv6) > 1)
}

/// Sends datagrams that are split, and says what becomes of them. `receiver` tells what the receiving host has seen so far, where
/// anybody can; `mtu` is what the sender splits them to, bytes; `row` how many go at once.
///
/// # Errors
/// The own host cannot send.
pub fn try_out<P: Prober>(
    prober: &mut P,
    way: Way,
    mtu: u32,
    ipv6: bool,
    row: u32,
    mut receiver: impl FnMut(&mut P) -> io::Result<Option<FarCounts>>,
) -> io::Result<Fragments> {
    let mut seen = Fragments::unknown(way);
    let Some(payload) = payload(mtu, ipv6) else { return Ok(seen) };
    (seen.payload_bytes, seen.pieces) = (payload, pieces(payload, mtu, ipv6));
    let size = payload + crate::net::overhead(ipv6);
    let split = Probe { size, splits: true, way, hops: None };
    let control = Probe::whole(way, prober.least());
    let short = row < ROW;
    let row: Vec<Probe> = (0..row).flat_map(|_| [split, control]).collect();
    let before = receiver(prober)?;
    let mut tally = None;
    for _ in 0..ROWS {
        for (nth, outcome) in prober.exchange(&row, GRACE)?.into_iter().enumerate() {
            let arrived = u32::from(outcome == ProbeOutcome::Arrived);
            if nth % 2 == 0 {
                seen.sent += 1;
                seen.whole += arrived;
            } else {
                seen.controls += 1;
                seen.controls_lost += 1 - arrived;
            }
        }
        tally = before.zip(receiver(prober)?).map(|(before, after)| after.since(&before));
        // If fragments of both kinds arrive, more datagrams tell chance from a rule.
        let by_chance = tally.is_some_and(|t| t.first > 0 && t.later > 0);
        let agree = seen.whole == seen.sent || (seen.whole == 0 && seen.controls_lost == 0 && !by_chance);
        if agree || short || prober.is_over() {
            break;
        }
    }
    if let Some(tally) = tally.filter(|t| t.sees_fragments && !t.missed) {
        (seen.first, seen.later) = (Some(tally.first), Some(tally.later));
    }
    seen.fate = fate(&seen, tally.as_ref());
    Ok(seen)
}

/// Derives the fate from the observations.
fn fate(seen: &Fragments, tally: Option<&FarCounts>) -> Fate {
    let controls = seen.controls - seen.controls_lost;
    if seen.whole > 0 {
        let reordered = tally.filter(|t| t.sees_fragments).map_or(0, |t| t.out_of_order);
        // A path of several equal ways swaps some now and then.
        return if 2 * seen.whole < seen.sent && seen.controls_lost == 0 {
            Fate::Lossy
        } else if 2 * reordered > seen.whole {
            Fate::OutOfOrder
        } else {
            Fate::Whole
        };
    }
    // Loss at any length says nothing about fragments.
    if controls == 0 || seen.controls_lost * 2 > seen.controls {
        return Fate::Unknown;
    }
    let Some(tally) = tally else { return Fate::NotWhole };
    if tally.sees_fragments && !tally.missed {
        return match (tally.first, tally.later) {
            (0, 0) => Fate::Gone,
            (_, 0) => Fate::FirstOnly,
            (0, _) => Fate::LaterOnly,
            _ => Fate::Some,
        };
    }
    // A host's own counter has everybody's fragments in it: none is none, and one for each datagram is its first, which is what
    // firewalls that look at ports let through.
    match tally.host_fragments {
        Some(0) => Fate::Gone,
        Some(n) if n == seen.sent => Fate::FirstOnly,
        _ => Fate::NotWhole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_standards_arithmetic() {
        // 8192 + 8 bytes of UDP in pieces of 1480: five of them and 800 bytes.
        assert_eq!(pieces(8192, 1500, false), 6);
        // IPv6: (1500 - 48) / 8 * 8 = 1448.
        assert_eq!(pieces(8192, 1500, true), 6);
        assert_eq!((pieces(1472, 1500, false), pieces(1473, 1500, false)), (1, 2));
        assert_eq!((pieces(1452, 1500, true), pieces(1453, 1500, true)), (1, 2));
        // 1400 - 20 = 1380, of which 1376 is a multiple of 8.
        assert_eq!(pieces(8192, 1400, false), 6);
        assert_eq!(pieces(1372 + 1376, 1400, false), 3);
    }

    #[test]
    fn what_is_sent_is_split() {
        assert_eq!((payload(1500, false), payload(9000, false)), (Some(8192), Some(18_000)));
        assert_eq!((payload(40_000, true), payload(65_536, false)), (Some(65_507), None));
    }

    fn seen(whole: u32, controls_lost: u32) -> Fragments {
        Fragments { sent: 5, whole, controls: 5, controls_lost, ..Fragments::unknown(Way::Egress) }
    }

    fn told(first: u32, later: u32, out_of_order: u32) -> FarCounts {
        FarCounts { sees_fragments: true, first, later, out_of_order, ..FarCounts::default() }
    }

    #[test]
    fn what_the_far_end_saw_tells_the_fates_apart() {
        for (whole, tally, expected) in [
            (5, Some(told(5, 25, 0)), Fate::Whole),
            (5, Some(told(5, 25, 5)), Fate::OutOfOrder),
            (5, Some(told(5, 25, 1)), Fate::Whole),
            (5, None, Fate::Whole),
            (0, Some(told(5, 0, 0)), Fate::FirstOnly),
            (0, Some(told(0, 25, 0)), Fate::LaterOnly),
            (0, Some(told(0, 0, 0)), Fate::Gone),
            (0, Some(told(5, 20, 0)), Fate::Some),
            (0, None, Fate::NotWhole),
            (2, Some(told(5, 20, 0)), Fate::Lossy),
        ] {
            assert_eq!(fate(&seen(whole, 0), tally.as_ref()), expected, "{whole} {tally:?}");
        }
    }

    #[test]
    fn without_privilege_the_host_s_counter_has_to_do() {
        for (fragments, expected) in
            [(0, Fate::Gone), (5, Fate::FirstOnly), (30, Fate::NotWhole), (3, Fate::NotWhole)]
        {
            let tally = FarCounts { host_fragments: Some(fragments), ..FarCounts::default() };
            assert_eq!(fate(&seen(0, 0), Some(&tally)), expected, "{fragments}");
        }
        let missed = FarCounts { missed: true, ..told(0, 0, 0) };
        assert_eq!(fate(&seen(0, 0), Some(&missed)), Fate::NotWhole, "a tap that missed some proves nothing");
    }

    #[test]
    fn what_is_lost_at_any_length_is_not_the_fragments_fault() {
        assert_eq!(fate(&seen(0, 5), Some(&told(0, 0, 0))), Fate::Unknown);
        assert_eq!(fate(&seen(0, 3), None), Fate::Unknown);
        assert_eq!(fate(&seen(2, 2), None), Fate::Whole);
    }
}
