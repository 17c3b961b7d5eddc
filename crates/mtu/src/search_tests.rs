//! Searches over paths that exist only here.

use super::*;
use proptest::prelude::*;

#[path = "search_tests/scripted.rs"]
mod scripted;

/// A path: links in a row, each with an MTU and the router before it.
struct Path {
    links: Vec<Hop>,
    /// Shares of packets lost at any length, by a generator that is the same in each run.
    loss: f64,
    dice: u64,
    sent: u32,
}

#[derive(Clone, Copy)]
struct Hop {
    mtu: u32,
    /// The answer of the router before it to packets that are too long.
    says: Option<u32>,
}

fn hop(mtu: u32) -> Hop {
    Hop { mtu, says: Some(mtu) }
}

fn silent(mtu: u32) -> Hop {
    Hop { mtu, says: None }
}

fn router() -> IpAddr {
    "192.0.2.1".parse().unwrap()
}

impl Path {
    fn of(links: &[Hop]) -> Self {
        Path { links: links.to_vec(), loss: 0.0, dice: 1, sent: 0 }
    }

    /// Marsaglia's xorshift, 0..1.
    fn chance(&mut self) -> f64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Prober for Path {
    fn least(&self) -> u32 {
        56
    }

    fn exchange(&mut self, probes: &[Probe], _: Duration) -> io::Result<Vec<ProbeOutcome>> {
        let fate = |path: &mut Path, probe: &Probe| {
            path.sent += 1;
            if path.chance() < path.loss {
                return ProbeOutcome::Silent;
            }
            match path.links.iter().find(|l| l.mtu < probe.size) {
                None => ProbeOutcome::Arrived,
                Some(Hop { says: Some(mtu), .. }) => ProbeOutcome::TooBig { mtu: *mtu, from: Some(router()) },
                Some(_) => ProbeOutcome::Silent,
            }
        };
        Ok(probes.iter().map(|p| fate(self, p)).collect())
    }

    fn is_over(&self) -> bool {
        false
    }
}

fn find(mut path: Path, most: u32) -> (PathMtu, u32) {
    let found = path_mtu(&mut path, Way::Egress, most).unwrap();
    (found, path.sent)
}

#[test]
fn a_path_like_its_first_link_takes_two_packets() {
    let (found, sent) = find(Path::of(&[hop(1500), hop(1500)]), 1500);
    assert_eq!((found.bytes, found.limit, found.claim, sent), (Some(1500), Limit::OwnLink, None, 2));
    assert!(found.is_exact());
}

#[test]
fn a_router_that_says_so_is_believed_after_a_trial() {
    let (found, _) = find(Path::of(&[hop(1500), hop(1400)]), 1500);
    let claim = Claim { mtu: 1400, from: Some(router()), right: Some(true) };
    assert_eq!((found.bytes, found.limit, found.claim), (Some(1400), Limit::Told, Some(claim)));
    let sizes: Vec<u32> = found.tries.iter().map(|t| t.size).collect();
    assert_eq!(sizes, [1500, 1400, 1401]);
}

#[test]
fn a_second_router_with_less_is_found_behind_the_first() {
    let (found, _) = find(Path::of(&[hop(1500), hop(1400), hop(1300)]), 1500);
    assert_eq!((found.bytes, found.limit), (Some(1300), Limit::Told));
    assert!(found.is_exact());
}

#[test]
fn wrong_words_of_routers_are_proved_wrong() {
    // Too much: what was named does not pass either.
    let (found, _) = find(Path::of(&[Hop { mtu: 1380, says: Some(1450) }]), 1500);
    assert_eq!((found.bytes, found.claim.unwrap().right), (Some(1380), Some(false)));
    // Too little: more than was named passes.
    let (found, _) = find(Path::of(&[Hop { mtu: 1450, says: Some(1280) }]), 1500);
    assert_eq!((found.bytes, found.claim.unwrap().right), (Some(1450), Some(false)));
    // None named, by a router older than RFC 1191; and nonsense.
    for says in [0, 1, 70_000] {
        let (found, _) = find(Path::of(&[Hop { mtu: 1006, says: Some(says) }]), 1500);
        assert_eq!((found.bytes, found.limit), (Some(1006), Limit::Told), "{says}");
    }
}

#[test]
fn what_vanishes_without_a_word_is_found_with_few_lengths() {
    for (mtu, lengths) in [(1400, 8), (1280, 8), (1492, 8), (1419, 12), (576, 8), (777, 18)] {
        let (found, _) = find(Path::of(&[hop(1500), silent(mtu)]), 1500);
        assert_eq!((found.bytes, found.limit, found.claim), (Some(mtu), Limit::Silence, None));
        assert!(found.is_exact() && found.tries.len() <= lengths, "{mtu}: {:?}", found.tries);
    }
}

#[test]
fn loss_at_any_length_is_not_blamed_on_the_length() {
    // One generator for each run: a path that loses a third of everything has no MTU but its own.
    for seed in 1..=200 {
        let path = Path { loss: 0.33, dice: seed * 7919, ..Path::of(&[hop(1500)]) };
        let (found, _) = find(path, 1500);
        assert_ne!(found.limit, Limit::Silence, "seed {seed}: {found:?}");
    }
}

#[test]
fn a_black_hole_is_found_through_loss() {
    let mut open = 0;
    for seed in 1..=200 {
        let path = Path { loss: 0.1, dice: seed * 104_729, ..Path::of(&[hop(1500), silent(1400)]) };
        let (found, _) = find(path, 1500);
        match found.limit {
            Limit::Silence => assert_eq!(found.bytes, Some(1400), "seed {seed}: {found:?}"),
            Limit::Open => open += 1,
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(open < 5, "{open} of 200 left open");
}

#[test]
fn nobody_there_is_nothing_found() {
    let (found, sent) = find(Path { loss: 1.0, ..Path::of(&[hop(1500)]) }, 1500);
    assert_eq!((found.bytes, found.limit), (None, Limit::Open));
    assert!(sent <= 2 * MOST_PROBES + 4, "{sent}");
}

proptest! {
    #[test]
    fn any_path_is_measured_to_the_byte(
        links in prop::collection::vec((68u32..=9000, any::<bool>(), 0u32..=9000, 0u8..4), 1..5),
        own in 600u32..=9000,
    ) {
        // Three of four routers name their link's MTU, the others anything.
        let links: Vec<Hop> = links
            .into_iter()
            .map(|(mtu, says, lie, truth)| Hop { mtu, says: says.then_some(if truth > 0 { mtu } else { lie }) })
            .collect();
        let expected = links.iter().map(|l| l.mtu).min().unwrap_or(own).min(own);
        let (found, _) = find(Path::of(&links), own);
        prop_assert_eq!(found.bytes, Some(expected), "{:?}", found);
        prop_assert!(found.is_exact());
        prop_assert!(found.tries.len() <= 40);
    }
}
