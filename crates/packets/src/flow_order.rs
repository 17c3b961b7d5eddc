//! The flows of a transfer in the order of their use.
//!
//! Drawing a flow for each frame would cost the sender a random number and a look at random memory. The order is drawn once instead
//! and read from front to back, again and again.

use std::net::IpAddr;

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Error;
use crate::transfer::{Order, Tuples, address_after};

/// Least number of draws with replacement, so that a few flows do not come in a short cycle. 16 MiB of IPv4 tuples.
const DRAWS: u32 = 1 << 20;
/// Most tuples that are kept: 512 MiB for IPv4.
const MOST: u32 = 1 << 25;

/// Addresses and ports of one frame, as its sender writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple {
    /// Source address.
    pub source: IpAddr,
    /// Source port.
    pub source_port: u16,
    /// Destination address.
    pub destination: IpAddr,
    /// Destination port.
    pub destination_port: u16,
}

impl Tuple {
    /// The tuple of the answers.
    pub(crate) fn reversed(self) -> Self {
        Tuple {
            source: self.destination,
            source_port: self.destination_port,
            destination: self.source,
            destination_port: self.source_port,
        }
    }
}

/// Numbers of flows in the order of their use: [`Order::Permutation`] has each once, [`Order::Random`] at least 2^20 draws (one is
/// enough for a single flow).
///
/// # Errors
/// [`Error::Unfit`] for no flows, for more than 2^25, and for a range without ports.
pub fn order(tuples: &Tuples) -> Result<Vec<u32>, Error> {
    let flows = tuples.flows;
    if flows == 0 || flows > MOST {
        return Err(Error::Unfit(format!("{flows} flows: there must be 1 to {MOST}")));
    }
    for ports in [&tuples.source_ports, &tuples.destination_ports] {
        if ports.is_empty() {
            return Err(Error::Unfit(format!("no port lies in {} to {}", ports.start(), ports.end())));
        }
    }
    let mut random = ChaCha8Rng::seed_from_u64(tuples.seed);
    Ok(match tuples.order {
        Order::Permutation => {
            let mut numbers: Vec<u32> = (0..flows).collect();
            numbers.shuffle(&mut random);
            numbers
        }
        Order::Random if flows == 1 => vec![0],
        Order::Random => (0..flows.max(DRAWS)).map(|_| random.random_range(0..flows)).collect(),
    })
}

/// Returns the tuple that an initiator writes into a frame of a flow.
#[inline]
pub fn outgoing(tuples: &Tuples, first: IpAddr, target: IpAddr, flow: u32) -> Tuple {
    let (source_port, destination_port, host) = tuples.flow(flow);
    Tuple { source: address_after(first, host), source_port, destination: target, destination_port }
}

/// The part of `total` that the thread `index` of `count` has: where it begins, and how long it is. It is as long as if the
/// threads took turns, and all parts together are the whole.
pub fn share(total: u64, index: usize, count: usize) -> (u64, u64) {
    let (index, count) = (index as u64, count as u64);
    let (each, more) = (total / count, total % count);
    (index * each + index.min(more), each + u64::from(index < more))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tuples(flows: u32, order: Order, seed: u64) -> Tuples {
        Tuples { flows, source_ports: 1024..=65535, destination_ports: 1..=49151, order, seed }
    }

    proptest! {
        #[test]
        fn a_permutation_has_each_flow_once(flows in 1u32..5000, seed: u64) {
            let numbers = order(&tuples(flows, Order::Permutation, seed)).unwrap();
            let mut sorted = numbers.clone();
            sorted.sort_unstable();
            prop_assert!(sorted.iter().copied().eq(0..flows));
            prop_assert_eq!(numbers, order(&tuples(flows, Order::Permutation, seed)).unwrap());
        }

        #[test]
        fn shares_are_the_whole(total: u64, count in 1usize..=16) {
            let mut next = 0;
            for index in 0..count {
                let (start, length) = share(total, index, count);
                prop_assert_eq!(start, next);
                // Turns: the frames index, index + count, index + 2 * count, ... below total.
                prop_assert_eq!(length, total.saturating_sub(index as u64).div_ceil(count as u64));
                next = start + length;
            }
            prop_assert_eq!(next, total);
        }
    }

    #[test]
    fn random_draws_are_uniform_and_their_seed_decides_them() {
        let flows = 1000u32;
        let numbers = order(&tuples(flows, Order::Random, 7)).unwrap();
        assert_eq!(numbers.len(), DRAWS as usize);
        let mut counts = vec![0u32; flows as usize];
        numbers.iter().for_each(|flow| counts[*flow as usize] += 1);
        // Pearson's statistic has 999 degrees of freedom: mean 999, standard deviation sqrt(2 * 999) = 44.7; six of them.
        let mean = f64::from(DRAWS) / f64::from(flows);
        let statistic: f64 = counts.iter().map(|c| (f64::from(*c) - mean).powi(2) / mean).sum();
        assert!((statistic - 999.0).abs() < 6.0 * 44.7, "{statistic}");
        assert_ne!(numbers, order(&tuples(flows, Order::Random, 8)).unwrap());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(order(&tuples(0, Order::Permutation, 0)).is_err());
        assert!(order(&tuples(MOST + 1, Order::Permutation, 0)).is_err());
        #[expect(clippy::reversed_empty_ranges, reason = "it is what is refused")]
        let none = Tuples { source_ports: 2..=1, ..tuples(1, Order::Permutation, 0) };
        assert!(order(&none).is_err());
    }
}
