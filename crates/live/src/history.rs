//! Rates and losses over time, from the differences between readings.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use weir_flows::{Flow, Reading, Side};

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
}

/// Values between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Tick {
    /// Bits per second from the client, and from the server.
    pub(crate) bps: [f32; 2],
    /// Segments lost by part of the path ([`PARTS`]).
    pub(crate) lost: [u32; 4],
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

    /// Bits per second of both directions.
    pub(crate) fn bps(&self) -> f64 {
        self.ticks.back().map_or(0.0, |tick| tick.bps.iter().map(|bps| f64::from(*bps)).sum())
    }
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
}

impl History {
    pub(crate) fn add(&mut self, reading: &Reading) {
        let seconds = reading.seconds - std::mem::replace(&mut self.seconds, reading.seconds);
        self.all.add(Counters::of(&reading.all.client_side, &reading.all.server_side), seconds);
        let mut networks = std::mem::take(&mut self.networks);
        for network in &reading.networks {
            let mut past = networks.remove(&network.network).unwrap_or_default();
            past.add(Counters::of(&network.client_side, &network.server_side), seconds);
            self.networks.insert(network.network.clone(), past);
        }
        let mut flows = std::mem::take(&mut self.flows);
        for flow in &reading.flows {
            let counters = Counters::of(&flow.client_side, &flow.server_side);
            let mut past = flows.remove(&ends(flow)).unwrap_or_else(|| {
                // An older flow was beyond the bound of the readings before: its counters are not those of a second.
                let is_older = flow.age_seconds > seconds;
                Past { counters: if is_older { counters } else { Counters::default() }, ..Past::default() }
            });
            past.add(counters, seconds);
            self.flows.insert(ends(flow), past);
        }
    }

    pub(crate) fn network(&self, name: &Option<String>) -> f64 {
        self.networks.get(name).map_or(0.0, Past::bps)
    }

    pub(crate) fn flow(&self, ends: &Ends) -> Option<&Past> {
        self.flows.get(ends)
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
}
