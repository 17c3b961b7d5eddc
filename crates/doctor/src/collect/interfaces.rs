//! Interfaces and what hangs on them.

use std::collections::{BTreeMap, BTreeSet};

use weir_bpf::Direction;
use weir_netlink::ethtool::Ethtool;
use weir_netlink::{
    EGRESS_HOOK, Filter, INGRESS_HOOK, INGRESS_PARENT, Link, QueueingDiscipline, ROOT, Rtnetlink,
    XdpAttachment,
};
use weir_sys::{NetNs, ProcRoot, Result};
use weir_text::order;

use super::Found;
use crate::evidence::{
    BpfProgram, Delta, EvidenceSource, Interface, Namespace, Qdisc, TcFilter, counters_since,
};

/// Times that a list is asked for again because it changed while it was read.
const TRIES: usize = 5;

/// Receive queues of which the cores for Receive Packet Steering are read.
const MOST_QUEUES: u32 = 256;

/// Evidence sources that hang on interfaces and may be blind by themselves, with the reason.
type Unseen = BTreeMap<EvidenceSource, String>;

/// Reads the interfaces of the calling thread's namespace. It adds evidence sources that it could not see to `unseen`, and skips evidence sources in
/// `hidden`.
pub(super) fn read(
    root: &ProcRoot,
    hidden: &BTreeSet<EvidenceSource>,
    unseen: &mut Unseen,
) -> Result<Vec<Interface>> {
    let mut net = Rtnetlink::open()?;
    let own = NetNs::current()?.inode()?;
    let links = again(|| net.links())?;
    let mut interfaces: Vec<Interface> = links.iter().map(|l| described(l, own)).collect();
    if !hidden.contains(&EvidenceSource::Qdiscs)
        && let Err(e) = disciplines(&mut net, &mut interfaces)
    {
        unseen.insert(EvidenceSource::Qdiscs, e.to_string());
    }
    if !hidden.contains(&EvidenceSource::Programs) {
        programs(&links, &mut interfaces, unseen);
    }
    let ethtool = Ethtool::open()?;
    for (interface, link) in interfaces.iter_mut().zip(&links) {
        driver(&ethtool, interface, hidden, unseen);
        interface.rps = steering(root, link);
    }
    Ok(interfaces)
}

/// Asks again while what is listed changes under the reader.
fn again<T>(mut read: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..TRIES {
        match read() {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
    read()
}

fn described(link: &Link, own: u64) -> Interface {
    // Only of veth and its like is the other end meant; a VLAN lies on its link.
    let paired = matches!(link.kind.as_str(), "veth" | "netkit");
    Interface {
        index: link.index,
        name: link.name.clone(),
        kind: link.kind.clone(),
        mtu: link.mtu,
        up: link.up,
        carrier: link.carrier,
        carrier_changes: Delta::at(link.carrier_changes),
        master: link.master,
        peer: link.link.filter(|_| paired).map(|i| (i, link.link_namespace.is_none().then_some(own))),
        peer_number: link.link_namespace.filter(|_| paired),
        addresses: link.addresses.clone(),
        counters: order::map(link.counters.iter().map(|(name, n)| ((*name).to_owned(), Delta::at(*n)))),
        rx_queues: link.rx_queues,
        tx_queue_length: link.tx_queue_length,
        ..Interface::default()
    }
}

/// Queueing disciplines and classic filters.
fn disciplines(net: &mut Rtnetlink, interfaces: &mut [Interface]) -> Result<()> {
    for found in again(|| net.queueing_disciplines())? {
        let Some(interface) = interfaces.iter_mut().find(|i| i.index == found.interface) else { continue };
        let mut hooks = Vec::new();
        match found.kind.as_str() {
            "clsact" => {
                hooks.extend([("ingress".to_owned(), INGRESS_HOOK), ("egress".to_owned(), EGRESS_HOOK)])
            }
            "ingress" => hooks.push(("ingress".to_owned(), INGRESS_HOOK)),
            // Those that sort packets into classes.
            "htb" | "hfsc" | "drr" | "qfq" | "prio" | "multiq" | "ets" if !found.class => {
                hooks.push((handle(found.handle), found.handle));
            }
            _ => {}
        }
        for (direction, parent) in hooks {
            let filters = again(|| net.filters(found.interface, parent))?;
            // A filter without a program or an action only sorts.
            let acts = |f: &Filter| f.program.is_some() || f.kind == "bpf" || !f.actions.is_empty();
            interface.filters.extend(filters.iter().filter(|f| acts(f)).map(|f| filter(f, &direction)));
        }
        interface.qdiscs.push(discipline(&found));
    }
    Ok(())
}

fn discipline(found: &QueueingDiscipline) -> Qdisc {
    let parent = match found.parent {
        ROOT => "root".to_owned(),
        INGRESS_PARENT if found.kind == "clsact" => "clsact".to_owned(),
        INGRESS_PARENT => "ingress".to_owned(),
        parent => handle(parent),
    };
    Qdisc {
        kind: found.kind.clone(),
        class: found.class,
        handle: handle(found.handle),
        parent,
        packets: Delta::at(found.packets),
        bytes: Delta::at(found.bytes),
        dropped: Delta::at(found.dropped),
        overlimits: Delta::at(found.overlimits),
        backlog_packets_before: found.backlog_packets,
        backlog_packets: found.backlog_packets,
        backlog_bytes: found.backlog_bytes,
        rate_bps: found.rate_bps,
        limit_packets: found.limit_packets,
        limit_bytes: found.limit_bytes,
    }
}

/// As tc(8) writes it.
fn handle(number: u32) -> String {
    match (number >> 16, number & 0xffff) {
        (major, 0) => format!("{major:x}:"),
        (major, minor) => format!("{major:x}:{minor:x}"),
    }
}

fn filter(found: &Filter, direction: &str) -> TcFilter {
    let dropped = found.actions.iter().map(|(_, _, dropped)| dropped).sum();
    TcFilter {
        direction: direction.to_owned(),
        kind: found.kind.clone(),
        preference: found.preference,
        handle: found.handle,
        program: found.program.as_ref().map(|(id, name)| BpfProgram {
            id: *id,
            name: name.clone(),
            mode: direction.to_owned(),
        }),
        actions: found.actions.iter().map(|(kind, _, _)| kind.clone()).collect(),
        dropped: Delta::at(dropped),
    }
}

/// XDP and TCX, and the names of all programs.
fn programs(links: &[Link], interfaces: &mut [Interface], unseen: &mut Unseen) {
    let mut names: BTreeMap<u32, String> = BTreeMap::new();
    let mut name = |id: u32, otherwise: &str, unseen: &mut Unseen| {
        names
            .entry(id)
            .or_insert_with(|| {
                weir_bpf::program_name(id).unwrap_or_else(|e| {
                    unseen.insert(EvidenceSource::Programs, e.to_string());
                    otherwise.to_owned()
                })
            })
            .clone()
    };
    let mut ask_tcx = true;
    for (interface, link) in interfaces.iter_mut().zip(links) {
        if let Some((mode, id)) = link.xdp.first() {
            let mode = match mode {
                XdpAttachment::Native => "native",
                XdpAttachment::Generic => "generic",
                XdpAttachment::Offloaded => "offloaded",
            };
            interface.xdp = Some(BpfProgram { id: *id, name: name(*id, "", unseen), mode: mode.to_owned() });
        }
        for program in interface.filters.iter_mut().filter_map(|f| f.program.as_mut()) {
            program.name = name(program.id, &program.name, unseen);
        }
        for (direction, text) in [(Direction::Ingress, "ingress"), (Direction::Egress, "egress")] {
            if !ask_tcx {
                break;
            }
            match weir_bpf::tcx_programs(interface.index, direction) {
                Ok(ids) => {
                    let of = |id: u32| BpfProgram { id, name: name(id, "", unseen), mode: text.to_owned() };
                    interface.filters.extend(ids.into_iter().map(of).map(|program| TcFilter {
                        direction: text.to_owned(),
                        kind: "tcx".to_owned(),
                        handle: program.id,
                        program: Some(program),
                        ..TcFilter::default()
                    }));
                }
                // One that went away meanwhile has no programs either.
                Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {}
                Err(e) => {
                    unseen.insert(EvidenceSource::Programs, e.to_string());
                    ask_tcx = false;
                }
            }
        }
    }
}

/// Reads the driver's data.
fn driver(
    ethtool: &Ethtool,
    interface: &mut Interface,
    hidden: &BTreeSet<EvidenceSource>,
    unseen: &mut Unseen,
) {
    let name = interface.name.clone();
    interface.driver = ethtool.driver(&name).unwrap_or_default();
    interface.features = ethtool.features(&name).unwrap_or_default();
    let rings = ethtool.rings(&name).ok().flatten();
    interface.rx_ring = rings.filter(|r| r.rx > 0).map(|r| (r.rx, r.rx_most));
    interface.channels = ethtool.channels(&name).ok().flatten().map(|c| (c.rx, c.rx_most));
    if hidden.contains(&EvidenceSource::Driver) || interface.kind == "bridge" || name == "lo" {
        return;
    }
    match ethtool.counters(&name) {
        Ok(counters) => {
            interface.driver_counters = order::map(counters.into_iter().map(|(n, v)| (n, Delta::at(v))));
        }
        // It went away, or was renamed, since the list was made.
        Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {}
        Err(e) => {
            unseen.insert(EvidenceSource::Driver, e.to_string());
        }
    }
}

/// Cores for Receive Packet Steering. `/sys` shows the namespace that it was mounted in: it is believed where number and
/// address of the interface there are those of this one.
fn steering(root: &ProcRoot, link: &Link) -> Vec<String> {
    let Ok(base) = sysfs(root, link) else { return Vec::new() };
    let masks = (0..link.rx_queues.min(MOST_QUEUES))
        .map_while(|queue| root.read_optional(&format!("{base}/queues/rx-{queue}/rps_cpus")));
    let masks: Vec<String> = masks.collect();
    // All zeros: switched off.
    let none = masks.iter().all(|m| m.bytes().all(|b| matches!(b, b'0' | b',')));
    if none { Vec::new() } else { masks }
}

fn sysfs(root: &ProcRoot, link: &Link) -> std::result::Result<String, ()> {
    if link.name.contains('/') || link.name.starts_with('.') {
        return Err(());
    }
    let base = format!("sys/class/net/{}", link.name);
    let number = root.read_optional(&format!("{base}/ifindex")).and_then(|n| n.parse().ok());
    let address = root.read_optional(&format!("{base}/address")).unwrap_or_default();
    let own: Vec<String> = link.address.iter().map(|b| format!("{b:02x}")).collect();
    if number == Some(link.index) && address == own.join(":") { Ok(base) } else { Err(()) }
}

/// Makes a reading the end of a window.
pub(super) fn since(now: &mut [Interface], earlier: &[Interface]) {
    let nothing = Interface::default();
    for interface in now {
        let same = |e: &&Interface| e.index == interface.index && e.kind == interface.kind;
        let before = earlier.iter().find(same).unwrap_or(&nothing);
        counters_since(&mut interface.counters, &before.counters);
        counters_since(&mut interface.driver_counters, &before.driver_counters);
        // Cards have thousands, most of which never move.
        interface.driver_counters.retain(|_, d| d.change() > 0);
        interface.carrier_changes.since(before.carrier_changes);
        for qdisc in &mut interface.qdiscs {
            let same = |q: &&Qdisc| {
                (&q.kind, q.class, &q.handle, &q.parent)
                    == (&qdisc.kind, qdisc.class, &qdisc.handle, &qdisc.parent)
            };
            let before = before.qdiscs.iter().find(same).cloned().unwrap_or_default();
            qdisc.packets.since(before.packets);
            qdisc.bytes.since(before.bytes);
            qdisc.dropped.since(before.dropped);
            qdisc.overlimits.since(before.overlimits);
            qdisc.backlog_packets_before = before.backlog_packets;
        }
        for filter in &mut interface.filters {
            let same = |f: &&TcFilter| {
                (&f.direction, &f.kind, f.preference, f.handle)
                    == (&filter.direction, &filter.kind, filter.preference, filter.handle)
            };
            filter.dropped.since(before.filters.iter().find(same).map(|f| f.dropped).unwrap_or_default());
        }
    }
}

/// Finds the namespaces and the MTUs of the other ends of veth pairs among the namespaces that were read.
pub(super) fn join(namespaces: &mut [Namespace], found: &[Found]) {
    let mut pairs = Vec::new();
    for (at, namespace) in namespaces.iter().enumerate() {
        for (number, interface) in namespace.interfaces.iter().enumerate() {
            let Some((index, place)) = interface.peer else { continue };
            let mirrored = |other: &Namespace| {
                let back =
                    |i: &&Interface| i.index == index && i.peer.is_some_and(|p| p.0 == interface.index);
                other.interfaces.iter().find(back).map(|i| (other.id, i.mtu))
            };
            let there = match (place, interface.peer_number) {
                (Some(id), _) => namespaces.iter().find(|n| n.id == id).and_then(mirrored),
                (None, Some(known_as)) => {
                    let candidates: Vec<_> = namespaces.iter().filter_map(mirrored).collect();
                    candidates.into_iter().find(|(id, _)| is_known_as(&found[at], found, *id, known_as))
                }
                (None, None) => None,
            };
            pairs.extend(there.map(|(id, mtu)| (at, number, id, mtu)));
        }
    }
    for (at, number, id, mtu) in pairs {
        let interface = &mut namespaces[at].interfaces[number];
        interface.peer = interface.peer.map(|(index, _)| (index, Some(id)));
        interface.peer_mtu = Some(mtu);
    }
}

/// True if the namespace of inode `id` has that number in the one of `here`.
fn is_known_as(here: &Found, found: &[Found], id: u64, number: u32) -> bool {
    let Some(there) = found.iter().find(|f| f.id == id) else { return false };
    let ask = || -> Result<bool> {
        // The namespace that one is in has no handle among those found.
        let there = there.handle.clone().map_or_else(NetNs::current, Ok)?;
        let mut net = here.handle.as_ref().map_or_else(Rtnetlink::open, Rtnetlink::open_in)?;
        Ok(net.number_of(&there)? == Some(number))
    };
    // Without an answer the pair stays unjoined.
    ask().unwrap_or(false)
}

#[cfg(test)]
mod tests;
