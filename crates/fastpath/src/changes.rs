//! Why everything was learnt anew: the changes that raised the generation, by kind.

use std::sync::atomic::{AtomicU64, Ordering};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_netlink::PathChange;

weir_text::listed! {
    /// A kind of change after which every flow is learnt anew.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum Change {
        /// Interfaces, and their forwarding.
        Links = "interfaces",
        /// Addresses of interfaces.
        Addresses = "addresses of interfaces",
        /// Routes.
        Routes = "routes",
        /// Routing rules.
        RoutingRules = "routing rules",
        /// Ethernet addresses of neighbours.
        Neighbours = "neighbours",
        /// Rules of nftables.
        PacketFilter = "nftables rules",
        /// IPsec states and policies.
        Ipsec = "IPsec policies",
        /// More events came than could be read: routes, rules or ends of connections.
        EventsLost = "events that were lost",
        /// Programs at an interface.
        Programs = "programs at an interface",
        /// Exclusions.
        Exclusions = "exclusions",
        /// The table's room: it was full, and has more now.
        Room = "more room in the table",
    }
}

impl From<PathChange> for Change {
    fn from(change: PathChange) -> Self {
        match change {
            PathChange::Link => Change::Links,
            PathChange::Address => Change::Addresses,
            PathChange::Route => Change::Routes,
            PathChange::RoutingRule => Change::RoutingRules,
            PathChange::Neighbour => Change::Neighbours,
            PathChange::PacketFilter => Change::PacketFilter,
            PathChange::Ipsec => Change::Ipsec,
            PathChange::Unknown => Change::EventsLost,
        }
    }
}

/// Times that everything was learnt anew because of a change.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ChangeCount {
    /// The kind of change.
    pub change: Change,
    /// Times. Changes of several kinds at the same time count for each.
    pub times: u64,
}

/// Times of each kind.
#[derive(Debug, Default)]
pub(crate) struct Changes([AtomicU64; Change::ALL.len()]);

impl Changes {
    pub(crate) fn note(&self, change: Change) {
        self.0[change as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Those that happened.
    pub(crate) fn counts(&self) -> Vec<ChangeCount> {
        let times = |change: Change| self.0[change as usize].load(Ordering::Relaxed);
        let count = |change| ChangeCount { change, times: times(change) };
        Change::ALL.into_iter().map(count).filter(|count| count.times > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_count_of_its_own() {
        let changes = Changes::default();
        for (n, change) in Change::ALL.into_iter().enumerate().skip(1) {
            (0..n).for_each(|_| changes.note(change));
        }
        let counts: Vec<_> = changes.counts().iter().map(|count| (count.change, count.times)).collect();
        let wanted: Vec<_> = Change::ALL.into_iter().zip(0..).skip(1).collect();
        assert_eq!(counts, wanted);
    }
}
