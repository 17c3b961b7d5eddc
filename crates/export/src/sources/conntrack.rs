//! The connection-tracking table: its fill, and what the kernel counts about it.

use std::time::Duration;

use weir_netlink::conntrack::Conntrack;
use weir_sys::{ProcRoot, Stop, sysctl};

use crate::board::Source;
use crate::page::{Group, Metric, Page};

static ENTRIES: Metric = Metric::gauge("conntrack_entries", &[], "Entries of the connection-tracking table.");
static LIMIT: Metric =
    Metric::gauge("conntrack_entries_limit", &[], "The limit of entries (nf_conntrack_max); 0 is none.");
static BUCKETS: Metric = Metric::gauge(
    "conntrack_buckets",
    &[],
    "Heads of hash chains of the table, of all namespaces together (nf_conntrack_buckets).",
);
static EVENTS: Metric = Metric::counter(
    "conntrack_events_total",
    &["event"],
    "Events of the table that the kernel counts, by the names of conntrack(8).",
);

/// For the reference.
pub(crate) static GROUP: Group = Group {
    title: "Connection tracking",
    about: "Read every 2 s, if the kernel has connection tracking now. `event` is one of the statistics of `conntrack -S`, such \
            as `insert_failed`, `drop` (no room) and `early_drop`. The kernel does not count new connections: \
            `weir_network_syns_total` does, for TCP.",
    metrics: &[&ENTRIES, &LIMIT, &BUCKETS, &EVENTS],
};

/// Fill and statistics of this namespace's table.
#[derive(Debug, Default)]
pub struct ConntrackTable {
    root: ProcRoot,
}

impl Source for ConntrackTable {
    fn name(&self) -> &'static str {
        "conntrack"
    }

    fn every(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn read(&mut self, page: &mut Page, _stop: &Stop) -> Result<(), String> {
        let number = |name: &str| -> Result<Option<f64>, String> {
            let text = sysctl::get_optional(&self.root, &format!("net.netfilter.{name}"));
            let text = text.map_err(|e| e.to_string())?;
            text.map(|t| t.trim().parse::<f64>().map_err(|e| format!("{name}: {e}"))).transpose()
        };
        // Without the module there is no table; asking by netlink would load it.
        let Some(limit) = number("nf_conntrack_max")? else { return Ok(()) };
        let statistics = Conntrack::open().and_then(|mut c| c.statistics()).map_err(|e| e.to_string())?;
        page.single(&ENTRIES, number("nf_conntrack_count")?.unwrap_or(0.0));
        page.single(&LIMIT, limit);
        if let Some(buckets) = number("nf_conntrack_buckets")? {
            page.single(&BUCKETS, buckets);
        }
        page.series(&EVENTS, statistics.into_iter().map(|(name, value)| ([name], value as f64)));
        Ok(())
    }
}
