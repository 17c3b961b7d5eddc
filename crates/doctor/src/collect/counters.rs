//! Counters of protocols and of connection tracking.

use std::collections::BTreeMap;

use weir_sys::conntrack::Conntrack;
use weir_sys::{ProcRoot, Result};

use crate::evidence::{Counters, Delta};

/// Counters and gauges of the calling thread's namespace (see [`crate::evidence::Namespace::counters`]).
pub(super) fn protocols(root: &ProcRoot) -> Result<(Counters, BTreeMap<String, u64>)> {
    let counters = root.protocol_counters()?;
    let counters = counters.into_iter().map(|(name, value)| (name, Delta::at(value))).collect();
    let mut gauges = BTreeMap::new();
    if let Some(count) = root.conntrack_count() {
        gauges.insert("conntrack.count".to_owned(), count);
    }
    Ok((counters, gauges))
}

/// Statistics of connection tracking; nothing where there is none.
pub(super) fn conntrack(root: &ProcRoot) -> Result<Counters> {
    // Asking ctnetlink would load it.
    if root.conntrack_count().is_none() {
        return Ok(Counters::new());
    }
    let statistics = Conntrack::open()?.statistics()?;
    Ok(statistics.into_iter().map(|(name, value)| (format!("conntrack.{name}"), Delta::at(value))).collect())
}
