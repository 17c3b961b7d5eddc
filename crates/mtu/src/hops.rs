//! Behind which router packets above the path MTU vanish: a small and a long packet for each number of hops. The router at
//! which the hops of the long one end has seen it.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::prober::{Probe, ProbeOutcome, Prober, Way};

/// Hops tried at once. Each router answers two packets: limits of ICMP messages are per router.
const AT_ONCE: u8 = 8;
/// Hops at most; the Internet's paths have some 20.
const MOST: u8 = 32;
const GRACE: Duration = Duration::from_millis(100);

/// One router, or the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hop {
    /// Its place, from 1.
    pub hops: u8,
    /// Its address; `None` if it did not answer.
    pub address: Option<IpAddr>,
    /// A small packet got there.
    pub small: bool,
    /// A long one got there.
    pub long: bool,
}

/// The place at which long packets vanish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LossPoint {
    /// Between two places in the row of hops: the last that a long packet reached (0: this host) and the next one that only
    /// small ones reached.
    Between {
        /// The last.
        after: u8,
        /// Its address, if it has told it.
        address: Option<IpAddr>,
        /// The next.
        before: u8,
    },
    /// The routers do not answer.
    Hidden,
}

/// Follows the path to the target with packets of that length.
///
/// # Errors
/// The own host cannot send.
pub fn sweep(prober: &mut impl Prober, size: u32) -> io::Result<Vec<Hop>> {
    let mut found: Vec<Hop> = Vec::new();
    let mut from = 1;
    while from <= MOST && !prober.is_over() {
        let range = from..(from + AT_ONCE).min(MOST + 1);
        let probe = |hops: u8, size| Probe { hops: Some(hops), ..Probe::whole(Way::Egress, size) };
        let small: Vec<Probe> = range.clone().map(|h| probe(h, prober.least())).collect();
        let long: Vec<Probe> = range.clone().map(|h| probe(h, size)).collect();
        let (small, long) = (prober.exchange(&small, GRACE)?, prober.exchange(&long, GRACE)?);
        for ((hops, small), long) in range.zip(small).zip(long) {
            let address = address(small).or(address(long));
            found.push(Hop { hops, address, small: small.is_heard(), long: reached(long) });
        }
        if let Some(last) = found.iter().position(|h| h.small && h.address.is_none()) {
            // The target answers every packet with as many hops or more.
            found.truncate(last + 1);
            break;
        }
        // Two rows of routers that say nothing: the rest would not either.
        if found.iter().rev().take(2 * usize::from(AT_ONCE)).all(|h| !h.small) && from > AT_ONCE {
            break;
        }
        from += AT_ONCE;
    }
    while found.last().is_some_and(|h| !h.small && !h.long) {
        found.pop();
    }
    Ok(found)
}

fn address(outcome: ProbeOutcome) -> Option<IpAddr> {
    if let ProbeOutcome::HopsUsedUp { from } = outcome { Some(from) } else { None }
}

fn reached(outcome: ProbeOutcome) -> bool {
    matches!(outcome, ProbeOutcome::HopsUsedUp { .. } | ProbeOutcome::Arrived)
}

/// The place out of the row.
pub fn place(hops: &[Hop]) -> LossPoint {
    let after = hops.iter().rposition(|h| h.long);
    let next = hops.iter().enumerate().find(|(i, h)| h.small && after.is_none_or(|a| *i > a)).map(|(_, h)| h);
    match (after, next) {
        (_, None) => LossPoint::Hidden,
        (Some(i), Some(next)) => {
            LossPoint::Between { after: hops[i].hops, address: hops[i].address, before: next.hops }
        }
        // Not even the first router that answers had the long one.
        (None, Some(next)) => LossPoint::Between { after: 0, address: None, before: next.hops },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Routers in a row, the MTU of the link behind each, and who answers; then the target.
    struct Row {
        links: Vec<u32>,
        mute: Vec<u8>,
    }

    fn router(hops: u8) -> IpAddr {
        [192, 0, 2, hops].into()
    }

    impl Prober for Row {
        fn least(&self) -> u32 {
            56
        }

        fn exchange(&mut self, probes: &[Probe], _: Duration) -> io::Result<Vec<ProbeOutcome>> {
            let fate = |p: &Probe| {
                let hops = p.hops.unwrap();
                let stuck = self.links.iter().position(|mtu| *mtu < p.size).map(|i| i as u8 + 1);
                match stuck {
                    // The hops are counted before the length is looked at.
                    Some(at) if hops > at => ProbeOutcome::Silent,
                    _ if usize::from(hops) > self.links.len() => ProbeOutcome::Arrived,
                    _ if self.mute.contains(&hops) => ProbeOutcome::Silent,
                    _ => ProbeOutcome::HopsUsedUp { from: router(hops) },
                }
            };
            Ok(probes.iter().map(fate).collect())
        }

        fn is_over(&self) -> bool {
            false
        }
    }

    fn found(links: &[u32], mute: &[u8]) -> (usize, LossPoint) {
        let hops = sweep(&mut Row { links: links.to_vec(), mute: mute.to_vec() }, 1500).unwrap();
        (hops.len(), place(&hops))
    }

    #[test]
    fn the_router_before_the_black_hole_is_named() {
        let behind = |hops| LossPoint::Between { after: hops, address: Some(router(hops)), before: hops + 1 };
        assert_eq!(found(&[1500, 1400, 1500], &[]), (4, behind(2)));
        assert_eq!(found(&[1400], &[]), (2, behind(1)));
        // The last link, of a row that is longer than what is tried at once.
        assert_eq!(found(&[[1500; 11].as_slice(), &[1400]].concat(), &[]), (13, behind(12)));
    }

    #[test]
    fn routers_that_say_nothing_widen_the_place() {
        let between = |after, before| LossPoint::Between { after, address: Some(router(after)), before };
        assert_eq!(found(&[1500, 1500, 1400, 1500], &[3]).1, between(2, 4));
        assert_eq!(found(&[1500, 1400, 1500], &[3]).1, between(2, 4));
        // No router answers: only the target is left.
        assert_eq!(
            found(&[1500, 1400], &[1, 2]).1,
            LossPoint::Between { after: 0, address: None, before: 3 }
        );
    }

    #[test]
    fn a_path_without_a_black_hole_has_no_such_place() {
        assert_eq!(found(&[1500, 1500], &[]), (3, LossPoint::Hidden));
        let mute: Vec<u8> = (1..=32).collect();
        assert_eq!(found(&[1500; 40], &mute), (0, LossPoint::Hidden));
    }
}
