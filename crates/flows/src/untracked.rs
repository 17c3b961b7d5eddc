//! Traffic of flows that are not tracked: outside of the sample, without room, or neither TCP nor UDP. One packet of each 64 KiB is noted
//! with its ends, so that large flows and networks are known by their bytes, within bounds.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::Serialize;
use weir_bpf::{Map, Object};
use weir_text::order;

use crate::Result;
use crate::networks::{Grouping, Key};
use crate::shared::{WEIR_NOTE_BYTES, WeirEnds};
use crate::table::ends;

/// Directions that are kept, at most.
const MOST_FLOWS: usize = 4096;
/// Networks that are kept, at most; those beyond are summed up in one.
const MOST_NETWORKS: usize = 4096;
/// A direction that was noted less often is not listed: it might as well be a tenth as large.
const LEAST_NOTES: u64 = 4;

/// Bytes of packets, by an estimate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct Estimate {
    /// Bytes, with the header of the link.
    pub bytes: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
}

impl Estimate {
    /// For so many packets that were noted. The interval is that of a Poisson distribution, whose square root has a standard deviation of
    /// a half (Anscombe, Biometrika 1948); places drawn as here vary less.
    fn of(notes: u64) -> Self {
        const HALF_WIDTH: f64 = 0.98;
        let (count, bytes) = (notes as f64, WEIR_NOTE_BYTES as f64);
        let low = (count.sqrt() - HALF_WIDTH).max(0.0).powi(2);
        let high = (count.sqrt() + HALF_WIDTH).powi(2);
        Estimate { bytes: count * bytes, low: low * bytes, high: high * bytes }
    }
}

/// One direction of a flow that is not tracked.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct UntrackedFlow {
    /// IP protocol number; 6 is TCP, 17 UDP.
    pub protocol: u8,
    /// Source as the packets come in; port 0 where there are no ports, and for fragments.
    pub source: SocketAddr,
    /// Destination as the packets come in.
    pub destination: SocketAddr,
    /// Its size.
    #[serde(flatten)]
    pub size: Estimate,
}

impl UntrackedFlow {
    /// Both ends and the protocol, for people.
    pub fn words(&self) -> String {
        let end = |end: SocketAddr| if end.port() == 0 { end.ip().to_string() } else { end.to_string() };
        let protocol = match self.protocol {
            6 => "TCP".to_owned(),
            17 => "UDP".to_owned(),
            other => format!("protocol {other}"),
        };
        format!("{} > {} {protocol}", end(self.source), end(self.destination))
    }
}

/// Untracked traffic of a network.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct UntrackedNetwork {
    /// Address and prefix length, or the name of `--names`; null for those beyond the bound.
    pub network: Option<String>,
    /// From it.
    pub from: Estimate,
    /// To it.
    pub to: Estimate,
}

/// All of it since the beginning, the most bytes first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Untracked {
    /// The sum.
    pub all: Estimate,
    /// Directions of flows. Small ones are left out.
    pub flows: Vec<UntrackedFlow>,
    /// By network, each packet with that of its source and that of its destination.
    pub networks: Vec<UntrackedNetwork>,
}

/// A direction: protocol, source, destination.
type Ends = (u8, SocketAddr, SocketAddr);

/// All that was noted since the beginning.
#[derive(Debug)]
pub(crate) struct Notes {
    map: Map,
    sums: Sums,
}

#[derive(Debug, Default)]
struct Sums {
    all: u64,
    flows: BTreeMap<Ends, u64>,
    /// Notes from a network, and to it.
    networks: BTreeMap<Key, [u64; 2]>,
}

impl Notes {
    pub(crate) fn new(object: &Object) -> Result<Self> {
        Ok(Notes { map: object.map("notes")?, sums: Sums::default() })
    }

    /// Takes in what the kernel has noted since the last time.
    pub(crate) fn read(&mut self, grouping: &Grouping) -> Result<()> {
        for (noted, _) in self.map.all::<WeirEnds, u64>()? {
            if let Some(times) = self.map.take::<WeirEnds, u64>(&noted)? {
                let (source, destination) = ends(&noted);
                self.sums.add((noted.protocol, source, destination), times, grouping);
            }
        }
        self.sums.bound();
        Ok(())
    }

    /// The largest ones, so many networks and flows.
    pub(crate) fn report(&self, grouping: &Grouping, networks: usize, flows: usize) -> Untracked {
        self.sums.report(grouping, networks, flows)
    }
}

impl Sums {
    fn add(&mut self, of: Ends, times: u64, grouping: &Grouping) {
        self.all += times;
        *self.flows.entry(of).or_default() += times;
        let mut add = |address: IpAddr, side: usize| {
            self.networks.entry(grouping.key_of(address)).or_default()[side] += times;
        };
        add(of.1.ip(), 0);
        add(of.2.ip(), 1);
    }

    fn bound(&mut self) {
        if self.flows.len() > MOST_FLOWS {
            let mut flows: Vec<(Ends, u64)> = std::mem::take(&mut self.flows).into_iter().collect();
            order::by_key(&mut flows, |(_, times)| Reverse(*times));
            flows.truncate(MOST_FLOWS / 2);
            self.flows = flows.into_iter().collect();
        }
        if self.networks.len() > MOST_NETWORKS {
            let mut networks: Vec<(Key, [u64; 2])> = std::mem::take(&mut self.networks).into_iter().collect();
            order::by_key(&mut networks, |(_, [from, to])| Reverse(from + to));
            for (at, (key, [from, to])) in networks.into_iter().enumerate() {
                let key = if at < MOST_NETWORKS / 2 { key } else { Key::Others };
                let sum = self.networks.entry(key).or_default();
                *sum = [sum[0] + from, sum[1] + to];
            }
        }
    }

    fn report(&self, grouping: &Grouping, most_networks: usize, most_flows: usize) -> Untracked {
        let mut flows: Vec<(&Ends, &u64)> =
            self.flows.iter().filter(|(_, times)| **times >= LEAST_NOTES).collect();
        order::by_key(&mut flows, |(_, times)| Reverse(**times));
        let mut networks: Vec<(&Key, &[u64; 2])> = self.networks.iter().collect();
        order::by_key(&mut networks, |(_, [from, to])| Reverse(from + to));
        Untracked {
            all: Estimate::of(self.all),
            flows: flows
                .into_iter()
                .take(most_flows)
                .map(|(&(protocol, source, destination), times)| UntrackedFlow {
                    protocol,
                    source,
                    destination,
                    size: Estimate::of(*times),
                })
                .collect(),
            networks: networks
                .into_iter()
                .take(most_networks)
                .map(|(key, sums)| UntrackedNetwork {
                    network: grouping.name(*key),
                    from: Estimate::of(sums[0]),
                    to: Estimate::of(sums[1]),
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(from: [u8; 4], port: u16) -> Ends {
        (17, SocketAddr::from((from, port)), "198.18.0.1:443".parse().unwrap())
    }

    #[test]
    fn few_notes_have_a_wide_interval_and_none_is_nothing() {
        let one = Estimate::of(4);
        assert_eq!(one.bytes, 262_144.0);
        assert!((one.low / 65_536.0 - 1.0404).abs() < 1e-9, "{one:?}");
        assert!((one.high / 65_536.0 - 8.8804).abs() < 1e-9, "{one:?}");
        let none = Estimate::of(0);
        assert_eq!((none.bytes, none.low), (0.0, 0.0));
        assert!(none.high < 65_536.0, "less than one note");
        let many = Estimate::of(10_000);
        assert!(many.low > 0.98 * many.bytes && many.high < 1.02 * many.bytes);
    }

    #[test]
    fn sums_are_by_flow_and_by_the_networks_of_both_ends() {
        let (grouping, mut sums) = (Grouping::default(), Sums::default());
        sums.add(flow([10, 0, 0, 1], 4000), 7, &grouping);
        sums.add(flow([10, 0, 0, 2], 4000), 100, &grouping);
        sums.add(flow([10, 0, 0, 1], 4000), 3, &grouping);
        sums.add(flow([10, 0, 1, 1], 4000), 3, &grouping);
        let report = sums.report(&grouping, 2, 10);
        let notes = |size: Estimate| size.bytes / WEIR_NOTE_BYTES as f64;
        assert_eq!(notes(report.all), 113.0);
        let flows: Vec<_> = report.flows.iter().map(|f| (f.words(), notes(f.size))).collect();
        assert_eq!(
            flows,
            [
                ("10.0.0.2:4000 > 198.18.0.1:443 UDP".to_owned(), 100.0),
                ("10.0.0.1:4000 > 198.18.0.1:443 UDP".to_owned(), 10.0),
            ],
            "three notes are too few"
        );
        let networks: Vec<_> = report
            .networks
            .iter()
            .map(|n| (n.network.clone().unwrap(), notes(n.from), notes(n.to)))
            .collect();
        assert_eq!(
            networks,
            [("198.18.0.0/24".to_owned(), 0.0, 113.0), ("10.0.0.0/24".to_owned(), 110.0, 0.0)]
        );
    }

    #[test]
    fn a_flood_of_ends_keeps_the_large_ones_and_the_sum_of_all() {
        let (grouping, mut sums) = (Grouping::default(), Sums::default());
        sums.add(flow([192, 0, 2, 1], 53), 50, &grouping);
        for n in 0..20_000_u32 {
            let [_, a, b, c] = n.to_be_bytes();
            sums.add(flow([10 + a, b, c, 1], 9), 1, &grouping);
            sums.bound();
        }
        assert!(sums.flows.len() <= MOST_FLOWS && sums.networks.len() <= MOST_NETWORKS + 1);
        assert_eq!(sums.flows[&flow([192, 0, 2, 1], 53)], 50);
        assert_eq!(sums.all, 20_050);
        let from: u64 = sums.networks.values().map(|[from, _]| from).sum();
        assert_eq!(from, 20_050, "what is beyond the bound is in one sum");
        assert!(sums.networks.contains_key(&Key::Others));
    }
}
