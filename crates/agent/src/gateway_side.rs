//! The gateway's side of measurements with single frames: prepares the gateway, and counts and flushes its connection table.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weir_gateway::Journal;
use weir_netlink::conntrack::Conntrack;
use weir_netlink::ethtool::Ethtool;
use weir_sys::{ProcRoot, sysctl};

use crate::error::{TaskError, lock};
use crate::undo;

/// The gateway tasks for measurements with single frames.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GatewayTask {
    /// Prepare the gateway, until [`GatewayTask::Restore`] or the agent's end. Settings that already fit stay unchanged.
    Prepare {
        /// Its interfaces on the path. A veth among them gets GRO: without it (and without an XDP program) a veth drops frames
        /// that were redirected to its peer (`veth_xdp_xmit`, drivers/net/veth.c).
        interfaces: Vec<String>,
        /// Cores that handle what each of these interfaces receives (Receive Packet Steering).
        steer: BTreeMap<String, Vec<usize>>,
        /// Whether the changes must survive a `kill -9` of the agent as an undo list on disk.
        journal: bool,
    },
    /// Take back what [`GatewayTask::Prepare`] changed.
    Restore,
    /// Forget all tracked connections of this network namespace.
    Flush,
    /// Describe the table of connections.
    Table,
}

impl GatewayTask {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            GatewayTask::Prepare { .. } => "getting the gateway ready for single frames",
            GatewayTask::Restore => "taking back what single frames needed",
            GatewayTask::Flush => "flushing the connection table",
            GatewayTask::Table => "counting tracked connections",
        }
    }

    pub(crate) fn outlives_agent(&self) -> bool {
        matches!(self, GatewayTask::Prepare { journal: true, .. })
    }
}

/// Outcome of a [`GatewayTask`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GatewayAnswer {
    /// [`GatewayTask::Restore`].
    Done,
    /// [`GatewayTask::Prepare`]: what was changed, a phrase each.
    Prepared(Vec<String>),
    /// [`GatewayTask::Flush`].
    Flushed(Flushed),
    /// [`GatewayTask::Table`]; `None` where the kernel does not track connections.
    Table(Option<Table>),
}

/// The result of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flushed {
    /// How long it took.
    pub took: Duration,
    /// Entries before and after; `None` where the kernel does not track connections.
    pub entries: Option<(u64, u64)>,
}

/// The table of connections of a network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Entries now.
    pub entries: u64,
    /// Most entries (nf_conntrack_max); 0: no limit.
    pub max: u64,
    /// Slots of the hash table (nf_conntrack_buckets).
    pub buckets: u64,
}

/// The changes made for single frames.
#[derive(Default)]
pub(crate) struct Gateway {
    prepared: Mutex<Prepared>,
}

#[derive(Default)]
struct Prepared {
    journal: Journal,
    /// Locked as long as this agent answers for the undo list on disk.
    held: Option<File>,
}

impl Gateway {
    pub(crate) fn perform(&self, task: GatewayTask) -> Result<GatewayAnswer, TaskError> {
        match task {
            GatewayTask::Prepare { interfaces, steer, journal } => {
                self.prepare(&interfaces, &steer, journal).map(GatewayAnswer::Prepared)
            }
            GatewayTask::Restore => {
                let left = self.restore();
                if left.is_empty() {
                    return Ok(GatewayAnswer::Done);
                }
                Err(TaskError::failed(left.join("; ")))
            }
            GatewayTask::Flush => Ok(GatewayAnswer::Flushed(flush()?)),
            GatewayTask::Table => Ok(GatewayAnswer::Table(table()?)),
        }
    }

    fn prepare(
        &self,
        interfaces: &[String],
        steer: &BTreeMap<String, Vec<usize>>,
        on_disk: bool,
    ) -> Result<Vec<String>, TaskError> {
        let mut prepared = lock(&self.prepared);
        if !prepared.journal.is_empty() {
            return Err(TaskError::failed("this gateway is prepared for single frames already"));
        }
        if on_disk {
            // Dropped first: preparing again on this host must not find its own lock taken.
            prepared.held = None;
            let (journal, held) = undo::open("packets")?;
            *prepared = Prepared { journal, held: Some(held) };
        }
        let changed = change(&mut prepared.journal, interfaces, steer);
        if changed.is_err() {
            prepared.journal.undo();
        }
        changed
    }

    /// Takes everything back; returns what went wrong.
    pub(crate) fn restore(&self) -> Vec<String> {
        lock(&self.prepared).journal.undo().iter().map(ToString::to_string).collect()
    }
}

fn change(
    journal: &mut Journal,
    interfaces: &[String],
    steer: &BTreeMap<String, Vec<usize>>,
) -> Result<Vec<String>, TaskError> {
    let mut changed = Vec::new();
    let ethtool = Ethtool::open()?;
    for interface in interfaces {
        if ethtool.driver(interface)? == "veth" && journal.offload(interface, "gro", true)? {
            changed.push(format!("GRO on at {interface}"));
        }
    }
    for (interface, cpus) in steer {
        if journal.steer(interface, cpus)? {
            let cpus = cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            changed.push(format!("what {interface} receives is handled on core {cpus} (RPS)"));
        }
    }
    Ok(changed)
}

/// Empties the table. Asking ctnetlink on a host without tracking would make the kernel load it.
pub(crate) fn flush() -> Result<Flushed, TaskError> {
    let root = ProcRoot::new("/");
    let Some(before) = root.conntrack_count() else {
        return Ok(Flushed { took: Duration::ZERO, entries: None });
    };
    let mut conntrack = Conntrack::open()?;
    let begun = Instant::now();
    conntrack.flush()?;
    let took = begun.elapsed();
    Ok(Flushed { took, entries: root.conntrack_count().map(|after| (before, after)) })
}

fn table() -> Result<Option<Table>, TaskError> {
    let root = ProcRoot::new("/");
    let Some(entries) = root.conntrack_count() else { return Ok(None) };
    let number = |name: &str| -> Result<u64, TaskError> {
        let text = sysctl::get(&root, &format!("net.netfilter.{name}"))?;
        text.parse()
            .map_err(|_| TaskError::failed(format!("net.netfilter.{name} is `{text}`, which is no number")))
    };
    Ok(Some(Table { entries, max: number("nf_conntrack_max")?, buckets: number("nf_conntrack_buckets")? }))
}

#[cfg(test)]
mod tests {
    use weir_netlink::{Rtnetlink, VethEnd};
    use weir_sys::NetNs;
    use weir_sys::privilege::test_needs_root;

    use super::*;

    #[test]
    fn root_a_gateway_is_prepared_once_and_restored() {
        if test_needs_root() {
            return;
        }
        let ns = NetNs::create().unwrap();
        let end = |name| VethEnd { name, namespace: None, mtu: 1500, mac: None };
        let mut link = Rtnetlink::open_in(&ns).unwrap();
        link.create_veth(end("in0"), end("peer")).unwrap();
        link.create_bridge("br0", 1500, [2, 0, 0, 0, 0, 9]).unwrap();
        ns.run(|| {
            let gro = || Ethtool::open().unwrap().features("in0").unwrap()["rx-gro"];
            let gateway = Gateway::default();
            let interfaces = vec!["in0".to_owned(), "br0".to_owned()];
            let prepare = || GatewayTask::Prepare {
                interfaces: interfaces.clone(),
                steer: BTreeMap::from([("in0".to_owned(), vec![0])]),
                journal: false,
            };
            let GatewayAnswer::Prepared(words) = gateway.perform(prepare()).unwrap() else { panic!() };
            // A bridge takes its offloads from its ports.
            assert_eq!(words, ["GRO on at in0", "what in0 receives is handled on core 0 (RPS)"]);
            assert!(gro());
            assert!(gateway.perform(prepare()).is_err(), "prepared already");
            assert_eq!(gateway.perform(GatewayTask::Restore).unwrap(), GatewayAnswer::Done);
            assert!(!gro());
            let GatewayAnswer::Prepared(_) = gateway.perform(prepare()).unwrap() else { panic!() };
            drop(gateway);
            assert!(!gro(), "an agent that ends restores it, too");
        })
        .unwrap();
    }

    #[test]
    fn a_missing_interface_leaves_nothing_changed() {
        let gateway = Gateway::default();
        let task = GatewayTask::Prepare {
            interfaces: vec!["nosuch0".into()],
            steer: BTreeMap::new(),
            journal: false,
        };
        assert!(gateway.perform(task).unwrap_err().message.contains("nosuch0"));
        assert!(lock(&gateway.prepared).journal.is_empty());
    }
}
