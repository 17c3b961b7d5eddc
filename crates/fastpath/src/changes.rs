//! Why everything was learnt anew: the changes that raised the generation, by kind.

use std::sync::atomic::{AtomicU64, Ordering};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_netlink::PathChange;

/// A kind of change after which every flow is learnt anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// Interfaces, and their forwarding.
    Links,
    /// Addresses of interfaces.
    Addresses,
    /// Routes.
    Routes,
    /// Routing rules.
    RoutingRules,
    /// Ethernet addresses of neighbours.
    Neighbours,
    /// Rules of nftables.
    PacketFilter,
    /// IPsec states and policies.
    Ipsec,
    /// More events came than could be read: routes, rules or ends of connections.
    EventsLost,
    /// Programs at an interface.
    Programs,
    /// Exclusions.
    Exclusions,
    /// The table's room: it was full, and has more now.
    Room,
}

impl Change {
    /// All of them.
    pub const ALL: [Change; 11] = [
        Change::Links,
        Change::Addresses,
        Change::Routes,
        Change::RoutingRules,
        Change::Neighbours,
        Change::PacketFilter,
        Change::Ipsec,
        Change::EventsLost,
        Change::Programs,
        Change::Exclusions,
        Change::Room,
    ];

    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Change::Links => "interfaces",
            Change::Addresses => "addresses of interfaces",
            Change::Routes => "routes",
            Change::RoutingRules => "routing rules",
            Change::Neighbours => "neighbours",
            Change::PacketFilter => "nftables rules",
            Change::Ipsec => "IPsec policies",
            Change::EventsLost => "events that were lost",
            Change::Programs => "programs at an interface",
            Change::Exclusions => "exclusions",
            Change::Room => "more room in the table",
        }
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
