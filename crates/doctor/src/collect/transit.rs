//! TCP that passes through namespaces, watched by a program at their interfaces for as long as the window is open.

mod moments;
mod sums;
mod waits;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use weir_bpf::{RunStatistics, count_run_time};
use weir_flows::{Error, FlowCounts, NotTracked, Watch, forwarding};
use weir_text::order;

use super::namespaces::Found;
use crate::evidence::{Cost, EvidenceSource, Namespace, Transit};

/// Flows that are tracked in all namespaces together, and in one: 2.4 kB each.
const FLOWS: u32 = 16_384;
const MOST_FLOWS: u32 = 4096;
/// Namespaces that are watched at most: those that have forwarded the most.
const MOST_NAMESPACES: usize = 16;

/// The programs at the interfaces of some namespaces. They end with it.
#[derive(Debug, Default)]
pub(super) struct Watches {
    /// With the inode of the namespace.
    watches: Vec<(u64, Watch)>,
    looking: moments::Looking,
    /// The time of some runs is taken.
    timed: bool,
}

/// IP packets that a namespace has forwarded since it is there.
fn forwarded(namespace: &Namespace) -> u64 {
    ["ip.ForwDatagrams", "ip6.OutForwDatagrams"]
        .iter()
        .filter_map(|name| namespace.counters.get(*name))
        .map(|delta| delta.after)
        .sum()
}

/// True if it has forwarded packets, or has two interfaces that could: a path may stand still before the first packet comes.
fn may_forward(namespace: &Namespace) -> bool {
    let usable = namespace.interfaces.iter().filter(|i| i.up && i.name != "lo").count();
    forwarded(namespace) > 0 || usable >= 2
}

/// Why nothing is known of a namespace that was not watched, if it forwarded packets in the window.
pub(super) fn unwatched(namespace: &Namespace) -> Option<String> {
    let grew = namespace.grew("ip.ForwDatagrams") + namespace.grew("ip6.OutForwDatagrams");
    (grew > 0).then(|| "it forwarded nothing before the window began; watch again".to_owned())
}

impl Watches {
    /// Begins to watch the namespaces that forward packets, or could. One that cannot be watched is blind, with the reason.
    pub(super) fn begin(namespaces: &mut [(Found, Namespace)]) -> Self {
        let mut forwarders: Vec<_> = namespaces.iter_mut().filter(|(_, n)| may_forward(n)).collect();
        order::by_key(&mut forwarders, |(_, namespace)| Reverse(forwarded(namespace)));
        let watched = forwarders.len().clamp(1, MOST_NAMESPACES);
        let flows = (FLOWS / watched as u32).min(MOST_FLOWS);
        let mut watches = Vec::new();
        for (number, (found, namespace)) in forwarders.into_iter().enumerate() {
            let least = if forwarded(namespace) > 0 { 1 } else { 2 };
            let begun = if number < MOST_NAMESPACES {
                found.inside(|| watch(flows, least)).unwrap_or_else(|e| Err(e.into()))
            } else if least > 1 {
                Ok(None)
            } else {
                Err(Error::Options(format!("{MOST_NAMESPACES} others forward more, and are watched")))
            };
            match begun {
                Ok(watch) => watches.extend(watch.map(|watch| (found.id, watch))),
                Err(e) => _ = namespace.blind.insert(EvidenceSource::Transit, e.to_string()),
            }
        }
        let timed = !watches.is_empty() && time_some_runs(&watches).is_some();
        let readers = watches.iter().filter_map(|(id, watch)| Some((*id, watch.progress_reader().ok()?)));
        let looking = moments::Looking::begin(readers.collect());
        Watches { watches, looking, timed }
    }

    /// Reads what passed, by the inode of the namespace, or why it cannot be read, and ends the programs.
    pub(super) fn end(self, cost: &mut Cost) -> BTreeMap<u64, Result<Transit, String>> {
        let mut all = BTreeMap::new();
        let mut seen = self.looking.end();
        let (mut timed, mut runs) = (RunStatistics::default(), 0);
        for (namespace, mut watch) in self.watches {
            let took = watch.program().ok().and_then(|program| program.statistics().ok()).unwrap_or_default();
            timed.time_ns += took.time_ns;
            timed.runs += took.runs;
            let interfaces = watch.interfaces().into_iter().map(str::to_owned).collect();
            let read = watch.read_counts().map_err(|e| e.to_string());
            all.insert(
                namespace,
                read.map(|(flows, packets)| {
                    runs += packets.packets();
                    transit(interfaces, &flows, seen.remove(&namespace).unwrap_or_default(), &packets)
                }),
            );
        }
        if self.timed && timed.runs > 0 {
            let each = timed.time_ns as f64 / timed.runs as f64;
            cost.bpf_runs = Some(cost.bpf_runs.unwrap_or(0) + runs);
            cost.bpf_ns = Some(cost.bpf_ns.unwrap_or(0) + (each * runs as f64) as u64);
        }
        all
    }
}

/// The watch of the calling thread's namespace; `None` if fewer than `least` of its interfaces forward now.
fn watch(flows: u32, least: usize) -> Result<Option<Watch>, Error> {
    let interfaces = forwarding()?;
    if interfaces.len() < least {
        return Ok(None);
    }
    Watch::start(weir_flows::Options { interfaces, flows, udp: false, ..weir_flows::Options::default() })
        .map(Some)
}

/// Has the kernel take the time of the first runs, for the cost.
fn time_some_runs(watches: &[(u64, Watch)]) -> Option<()> {
    let programs = watches.iter().map(|(_, watch)| watch.program()).collect::<Result<Vec<_>, _>>().ok()?;
    let counting = count_run_time().ok()?;
    super::drops::stop_later(counting, vec![programs.into()]).ok()
}

fn transit(interfaces: Vec<String>, flows: &[FlowCounts], seen: sums::Seen, packets: &NotTracked) -> Transit {
    let (networks, more) = sums::networks(flows, seen);
    Transit {
        interfaces,
        flows: flows.len() as u64,
        judged: packets.judged,
        untracked: packets.no_room + packets.too_many_opening,
        networks,
        more,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Interface;

    fn host(names: &[&str], forwarded: (u64, u64)) -> Namespace {
        let interface = |name: &&str| Interface { name: (*name).into(), up: true, ..Interface::default() };
        Namespace {
            interfaces: names.iter().map(interface).collect(),
            counters: [("ip6.OutForwDatagrams".to_owned(), forwarded.into())].into(),
            ..Namespace::default()
        }
    }

    #[test]
    fn two_interfaces_may_forward_and_one_that_has_does() {
        assert!(!may_forward(&host(&["lo", "eth0"], (0, 0))));
        assert!(may_forward(&host(&["lo", "eth0"], (1, 1))));
        assert!(may_forward(&host(&["lo", "eth0", "eth1"], (0, 0))));
    }

    #[test]
    fn packets_that_no_watch_saw_are_missing_evidence() {
        assert_eq!(unwatched(&host(&["eth0"], (7, 7))), None);
        assert!(unwatched(&host(&["eth0"], (0, 7))).unwrap().contains("watch again"));
    }
}
