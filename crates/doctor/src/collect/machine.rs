//! What belongs to no namespace.

use std::collections::BTreeMap;

use weir_sys::{ProcRoot, sysctl};

use crate::evidence::{Cost, Machine, Plane, Sight};

/// Global settings that a cause asks for.
const SETTINGS: &[&str] = &[
    "net.netfilter.nf_conntrack_max",
    "net.netfilter.nf_conntrack_buckets",
    "net.core.netdev_max_backlog",
    "net.core.netdev_budget",
    "net.core.netdev_budget_usecs",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.tcp_mem",
    "net.ipv4.udp_mem",
    "net.ipv4.neigh.default.gc_thresh1",
    "net.ipv4.neigh.default.gc_thresh2",
    "net.ipv4.neigh.default.gc_thresh3",
    "net.ipv6.neigh.default.gc_thresh3",
];

/// The machine now.
pub(super) fn read(root: &ProcRoot, planes: &mut BTreeMap<Plane, Sight>) -> Machine {
    let kernel = root.read_optional("proc/sys/kernel/osrelease").unwrap_or_default();
    let mut machine = Machine { kernel, ..Machine::default() };
    for name in SETTINGS {
        if let Ok(Some(value)) = sysctl::get_optional(root, name) {
            machine.settings.insert((*name).to_owned(), value);
        }
    }
    planes.entry(Plane::Settings).or_insert(Sight::Seen);
    machine
}

/// Makes it the end of a window.
pub(super) fn since(_now: &mut Machine, _earlier: &Machine) {}

/// What weir itself has used.
pub(super) fn own_cost(_root: &ProcRoot, _cost: &mut Cost) {}
