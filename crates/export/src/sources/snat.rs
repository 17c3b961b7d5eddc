//! Ports that source NAT has left, by destination.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use weir_conntrack::{Pool, Question};
use weir_flows::Grouping;
use weir_sys::{ProcRoot, Stop};
use weir_text::order;

use crate::board::Source;
use crate::page::{Group, Metric, Page};

/// Fullest pools that are looked at. Those of one network share a series.
const POOLS: usize = 1000;
/// A pool that is used less has no series: destinations that come and go would make new series all the time.
const LEAST_USE: f64 = 0.01;

static FULLEST: Metric = Metric::gauge(
    "snat_fullest_pool_ratio",
    &[],
    "Share of ports in use of the pool that is nearest to exhaustion; 0 without source NAT.",
);
static POOLS_SEEN: Metric = Metric::gauge(
    "snat_pools",
    &[],
    "Pools of ports in use: pairs of an outside address with a destination address and port.",
);
static USED: Metric = Metric::gauge(
    "snat_ports_used",
    &["outside", "protocol", "destination", "port"],
    "Ports in use of the fullest pool towards that network.",
);
static AVAILABLE: Metric = Metric::gauge(
    "snat_ports_available",
    &["outside", "protocol", "destination", "port"],
    "Ports that this pool has.",
);

/// For the reference.
pub(crate) static GROUP: Group = Group {
    title: "Ports of source NAT",
    about: "The whole table is read every 30 s, and never for more than a tenth of the time. Two connections may share an outside \
            port if their destinations differ, so each destination address and port has a pool of its own. `destination` is the \
            network (`--prefix`, `--prefix6`); of its pools the fullest one is shown. The `--destinations` fullest (20) have \
            series, from 1 % of use on.",
    metrics: &[&FULLEST, &POOLS_SEEN, &USED, &AVAILABLE],
};

/// Pools of this namespace's source NAT.
#[derive(Debug)]
pub struct SnatPorts {
    destinations: usize,
    grouping: Grouping,
    every: Duration,
}

/// Usual time between two readings.
const EVERY: Duration = Duration::from_secs(30);

type Labels = (String, String, String, u16);

impl SnatPorts {
    /// At most `destinations` have series; their addresses are shown as prefixes of `grouping`.
    pub fn new(destinations: usize, grouping: Grouping) -> Self {
        SnatPorts { destinations, grouping, every: EVERY }
    }

    /// The fullest pool of each network, the fullest first.
    fn fullest<'a>(&self, pools: &'a [Pool]) -> Vec<(Labels, &'a Pool)> {
        let mut by_network: BTreeMap<Labels, &Pool> = BTreeMap::new();
        for pool in pools.iter().filter(|p| p.ratio >= LEAST_USE) {
            let destination = match pool.destination.parse::<IpAddr>() {
                Ok(address) => self.grouping.network_of(address),
                // Never a whole address by mistake.
                Err(_) => continue,
            };
            let labels = (pool.outside.clone(), pool.protocol.clone(), destination, pool.destination_port);
            let kept = by_network.entry(labels).or_insert(pool);
            if kept.ratio < pool.ratio {
                *kept = pool;
            }
        }
        let mut fullest: Vec<(Labels, &Pool)> = by_network.into_iter().collect();
        order::by(&mut fullest, |a, b| b.1.ratio.total_cmp(&a.1.ratio));
        fullest.truncate(self.destinations);
        fullest
    }

    fn write(&self, page: &mut Page, pools: &[Pool], distinct: u64) {
        page.single(&FULLEST, pools.iter().map(|p| p.ratio).fold(0.0, f64::max));
        page.single(&POOLS_SEEN, distinct as f64);
        let fullest = self.fullest(pools);
        let labels = |(outside, protocol, destination, port): &Labels| {
            [outside.clone(), protocol.clone(), destination.clone(), port.to_string()]
        };
        page.series(&USED, fullest.iter().map(|(of, pool)| (labels(of), pool.used as f64)));
        page.series(&AVAILABLE, fullest.iter().map(|(of, pool)| (labels(of), pool.available as f64)));
    }
}

impl Source for SnatPorts {
    fn name(&self) -> &'static str {
        "snat"
    }

    fn every(&self) -> Duration {
        self.every
    }

    fn read(&mut self, page: &mut Page, _stop: &Stop) -> Result<(), String> {
        let question = Question { top: POOLS, ..Question::default() };
        let table = match weir_conntrack::read(&ProcRoot::default(), &question) {
            Err(weir_conntrack::Error::Absent) => return Ok(()),
            table => table.map_err(|e| e.to_string())?,
        };
        self.every = EVERY.max(Duration::from_secs_f64(table.reading.took_ms / 100.0));
        let contents = table.contents.ok_or_else(|| table.reading.why.unwrap_or_default())?;
        self.write(page, &contents.nat_pools.top, contents.nat_pools.distinct);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(destination: &str, used: u64) -> Pool {
        Pool {
            outside: "198.18.1.1".into(),
            protocol: "tcp".into(),
            destination: destination.into(),
            destination_port: 443,
            zone: 0,
            used,
            error: 0,
            lowest_port: 1,
            highest_port: 1000,
            available: 1000,
            ratio: used as f64 / 1000.0,
            refused_ratio: 0.0,
        }
    }

    #[test]
    fn addresses_are_prefixes_and_the_fullest_pool_stands_for_its_network() {
        let pools = [
            pool("198.51.100.7", 900),
            pool("198.51.100.8", 400),
            pool("203.0.113.1", 500),
            pool("192.0.2.1", 5),
        ];
        let mut page = Page::default();
        SnatPorts::new(20, Grouping::default()).write(&mut page, &pools, 4);
        let text = page.into_text();
        let series: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
        let of = |name: &str, destination: &str, value: u32| {
            format!(
                "weir_snat_ports_{name}{{outside=\"198.18.1.1\",protocol=\"tcp\",destination=\"{destination}\",port=\"443\"}} {value}"
            )
        };
        assert_eq!(
            series,
            [
                "weir_snat_fullest_pool_ratio 0.9".to_owned(),
                "weir_snat_pools 4".to_owned(),
                of("used", "198.51.100.0/24", 900),
                of("used", "203.0.113.0/24", 500),
                of("available", "198.51.100.0/24", 1000),
                of("available", "203.0.113.0/24", 1000),
            ]
        );
    }

    #[test]
    fn no_more_destinations_than_asked_for() {
        let pools: Vec<Pool> = (0..50).map(|n| pool(&format!("198.51.{n}.1"), 20 + n)).collect();
        let source = SnatPorts::new(3, Grouping::default());
        let shown: Vec<String> = source.fullest(&pools).into_iter().map(|(labels, _)| labels.2).collect();
        assert_eq!(shown, ["198.51.49.0/24", "198.51.48.0/24", "198.51.47.0/24"]);
    }
}
