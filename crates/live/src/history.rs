//! Rates and losses over time, from the differences between readings.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::net::SocketAddr;

use weir_flows::{Flow, Network, Reading, Side, UdpFlow, UntrackedFlow};

/// Readings that are kept, of all flows and of each.
pub(crate) const KEPT: usize = 120;

/// Parts of the path, in the order of the tables.
pub(crate) const PARTS: [&str; 4] = ["from client", "to server", "from server", "to client"];

/// Counters of both sides.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counters {
    bytes: [u64; 2],
    lost: [u64; 4],
}

impl Counters {
    fn of(client: &Side, server: &Side) -> Self {
        let parts = [&client.lost_from, &server.lost_to, &server.lost_from, &client.lost_to];
        Counters { bytes: [client.bytes, server.bytes], lost: parts.map(|part| part.segments) }
    }

    /// TCP and UDP; segments are of TCP.
    fn of_network(network: &Network) -> Self {
        let mut counters = Counters::of(&network.client_side, &network.server_side);
        counters.bytes[0] += network.udp.client_side.bytes;
        counters.bytes[1] += network.udp.server_side.bytes;
        counters
    }

    fn of_untracked(flow: &UntrackedFlow) -> Self {
        Counters { bytes: [flow.size.bytes as u64, 0], lost: [0; 4] }
    }

    fn of_udp(flow: &UdpFlow) -> Self {
        Counters { bytes: [flow.client_side.bytes, flow.server_side.bytes], lost: [0; 4] }
    }
}

/// Values between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Tick {
    /// Bits per second from the client, and from the server.
    pub(crate) bps: [f32; 2],
    /// Segments lost by part of the path ([`PARTS`]).
    pub(crate) lost: [u32; 4],
}

impl Tick {
    fn bps(&self) -> f64 {
        self.bps.iter().map(|bps| f64::from(*bps)).sum()
    }
}

/// The latest counters, and what was between those before.
#[derive(Debug, Clone, Default)]
pub(crate) struct Past {
    counters: Counters,
    ticks: VecDeque<Tick>,
}

impl Past {
    fn add(&mut self, counters: Counters, seconds: f64) {
        let before = std::mem::replace(&mut self.counters, counters);
        let bps = |n: usize| {
            let bytes = counters.bytes[n].saturating_sub(before.bytes[n]);
            if seconds > 0.0 { (bytes as f64 * 8.0 / seconds) as f32 } else { 0.0 }
        };
        let lost = |n: usize| counters.lost[n].saturating_sub(before.lost[n]).min(u64::from(u32::MAX)) as u32;
        if self.ticks.len() == KEPT {
            self.ticks.pop_front();
        }
        self.ticks.push_back(Tick { bps: [bps(0), bps(1)], lost: [lost(0), lost(1), lost(2), lost(3)] });
    }

    /// The oldest first.
    pub(crate) fn ticks(&self) -> impl DoubleEndedIterator<Item = &Tick> + ExactSizeIterator {
        self.ticks.iter()
    }

    /// The mean of so many readings, at most, bits per second of both directions.
    pub(crate) fn mean_bps(&self, readings: usize) -> f64 {
        let all: Vec<f64> = self.ticks().rev().take(readings).map(Tick::bps).collect();
        if all.is_empty() { 0.0 } else { all.iter().sum::<f64>() / all.len() as f64 }
    }

    /// Bits per second of both directions.
    pub(crate) fn bps(&self) -> f64 {
        self.ticks.back().map_or(0.0, Tick::bps)
    }
}

/// Readings whose mean is the rate of a flow that is not tracked: one of a second would be that of a few packets.
const MEAN_OF: usize = 10;

/// Protocol and both ends of one direction.
pub(crate) type Direction = (u8, Ends);

pub(crate) fn direction(flow: &UntrackedFlow) -> Direction {
    (flow.protocol, (flow.source, flow.destination))
}

/// Both ends of a flow.
pub(crate) type Ends = (SocketAddr, SocketAddr);

pub(crate) fn ends(flow: &Flow) -> Ends {
    (flow.client, flow.server)
}

/// The past of all flows, and of each network and flow of the latest reading.
#[derive(Debug, Default)]
pub(crate) struct History {
    seconds: f64,
    pub(crate) all: Past,
    networks: HashMap<Option<String>, Past>,
    flows: HashMap<Ends, Past>,
    udp: HashMap<Ends, Past>,
    untracked: HashMap<Direction, Past>,
}

/// Adds the counters of flows to their past, and forgets flows that are not among them: ends, counters, and age in seconds.
fn follow<K: Eq + Hash>(
    past: &mut HashMap<K, Past>,
    flows: impl Iterator<Item = (K, Counters, f64)>,
    seconds: f64,
) {
    let mut before = std::mem::take(past);
    for (ends, counters, age) in flows {
        let one = match before.remove(&ends) {
            // An older flow was beyond the bound of the readings before: its counters are not those of a second.
            None if age > seconds => Past { counters, ..Past::default() },
            known => {
                let mut one = known.unwrap_or_default();
                one.add(counters, seconds);
                one
            }
        };
        past.insert(ends, one);
    }
}

impl History {
    pub(crate) fn add(&mut self, reading: &Reading) {
        let seconds = reading.seconds - std::mem::replace(&mut self.seconds, reading.seconds);
        self.all.add(Counters::of_network(&reading.all), seconds);
        let mut networks = std::mem::take(&mut self.networks);
        for network in &reading.networks {
            let mut past = networks.remove(&network.network).unwrap_or_default();
            past.add(Counters::of_network(network), seconds);
            self.networks.insert(network.network.clone(), past);
        }
        let tcp = reading.flows.iter();
        let tcp = tcp.map(|f| (ends(f), Counters::of(&f.client_side, &f.server_side), f.age_seconds));
        follow(&mut self.flows, tcp, seconds);
        let udp = reading.udp_flows.iter();
        let udp = udp.map(|f| ((f.client, f.server), Counters::of_udp(f), f.age_seconds));
        follow(&mut self.udp, udp, seconds);
        let untracked = reading.untracked.flows.iter();
        // Its age is not known. The bytes of the first reading that has it are not those of a second.
        let untracked = untracked.map(|f| (direction(f), Counters::of_untracked(f), f64::INFINITY));
        follow(&mut self.untracked, untracked, seconds);
    }

    pub(crate) fn network(&self, name: &Option<String>) -> f64 {
        self.networks.get(name).map_or(0.0, Past::bps)
    }

    pub(crate) fn flow(&self, ends: &Ends) -> Option<&Past> {
        self.flows.get(ends)
    }

    pub(crate) fn udp(&self, ends: &Ends) -> Option<&Past> {
        self.udp.get(ends)
    }

    /// Bits per second of a flow that is not tracked.
    pub(crate) fn untracked(&self, direction: &Direction) -> f64 {
        self.untracked.get(direction).map_or(0.0, |past| past.mean_bps(MEAN_OF))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(seconds: f64, bytes: u64, lost: u64) -> Reading {
        let mut flow = Flow::empty();
        flow.client_side.bytes = bytes;
        flow.server_side.lost_to.segments = lost;
        let mut reading = Reading::empty();
        reading.seconds = seconds;
        reading.all.client_side = flow.client_side.clone();
        reading.flows = vec![flow];
        reading
    }

    #[test]
    fn rates_are_differences_by_the_time_between() {
        let mut history = History::default();
        history.add(&reading(1.0, 1000, 0));
        history.add(&reading(3.0, 2000, 5));
        assert_eq!(history.all.bps(), 4000.0);
        let of_flow = history.flow(&ends(&Flow::empty())).unwrap();
        assert_eq!(of_flow.ticks().last(), Some(&Tick { bps: [4000.0, 0.0], lost: [0, 5, 0, 0] }));
        // A flow that was there unseen has no rate yet, and a new one has.
        let mut older = reading(3.5, 5000, 0);
        older.flows[0].client = "10.0.0.1:1".parse().unwrap();
        older.flows[0].age_seconds = 3.0;
        let mut new = older.flows[0].clone();
        (new.client, new.age_seconds) = ("10.0.0.2:1".parse().unwrap(), 0.4);
        older.flows.push(new);
        history.add(&older);
        let bps = older.flows.iter().map(|flow| history.flow(&ends(flow)).unwrap().bps());
        assert_eq!(bps.collect::<Vec<_>>(), [0.0, 80_000.0]);
        // A new connection between the same ends begins anew.
        history.add(&reading(4.0, 10, 0));
        assert_eq!(history.all.bps(), 0.0);
        // The past has a bound, and flows that are gone are forgotten.
        (5..500).for_each(|n| history.add(&reading(f64::from(n), 10, 0)));
        assert_eq!(history.all.ticks().len(), KEPT);
        history.add(&Reading::empty());
        assert!(history.flow(&ends(&Flow::empty())).is_none());
    }

    #[test]
    fn udp_has_a_past_of_its_own_and_is_part_of_all() {
        let at = |seconds: f64, bytes: u64| {
            let mut reading = reading(seconds, 0, 0);
            let mut udp = UdpFlow::empty();
            udp.server_side.bytes = bytes;
            reading.all.udp.server_side = udp.server_side;
            reading.udp_flows = vec![udp];
            reading
        };
        let mut history = History::default();
        history.add(&at(1.0, 1000));
        history.add(&at(3.0, 3000));
        let udp = history.udp(&ends(&Flow::empty())).unwrap();
        assert_eq!((udp.bps(), history.all.bps()), (8000.0, 8000.0));
        assert_eq!(history.flow(&ends(&Flow::empty())).unwrap().bps(), 0.0);
    }
}
