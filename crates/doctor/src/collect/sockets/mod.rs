//! Sockets: at the window's beginning only what counts up, at its end all that is worth a look.
//!
//! A server may have 100,000 connections. The collector keeps a few numbers of each through the window, and describes only those
//! that stand out. It looks for names of processes only if a reader will want to know them.

mod flows;
mod plain;
mod ports;
mod top;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use weir_netlink::Protocol;
use weir_netlink::sock_diag::{Query, dump, state};
use weir_sys::{ProcRoot, Result};
use weir_text::order;

use super::Asked;
use crate::evidence::{Delta, Earlier, FileLimit, Listener, Sockets, UdpSocket};

/// Sockets of which the counters are kept through the window, of each kind and namespace: 100 bytes each.
const REMEMBERED: usize = 1 << 20;
/// Listening sockets, and UDP sockets, that are described.
const DESCRIBED: usize = 512;
/// Sockets of which the process is looked for.
const NAMED: usize = 64;
/// Descriptors looked at for that, which takes some 2 µs each.
const DESCRIPTORS: usize = 20_000;
/// A process this near to its limit of open files has reached it within the window (it closes and opens).
const NEAR_LIMIT: f64 = 0.95;

/// States of a connection that carries data, or did until a moment ago.
const CONNECTED: u32 = 1 << state::ESTABLISHED | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;
/// States of a connection that begins or is over.
const BRIEF: u32 = 1 << state::SYN_SENT | 1 << state::SYN_RECV | 1 << state::TIME_WAIT;

fn listening() -> Query {
    Query { protocol: Protocol::Tcp, states: 1 << state::LISTEN, memory: true, info: false }
}

fn udp() -> Query {
    Query { protocol: Protocol::Udp, states: u32::MAX, memory: true, info: false }
}

/// Reads the counters that only grow, of the sockets in the calling thread's namespace.
pub(super) fn begin(root: &ProcRoot) -> Result<Sockets> {
    let mut earlier = Earlier::default();
    let there = There::read(root);
    if there.tcp {
        or_else(begin_tcp(root, &mut earlier), || Ok(()))?;
    }
    if there.udp {
        or_else(remember_drops(root, udp(), &mut earlier), || plain::begin_udp(root, &mut earlier))?;
    }
    Ok(Sockets { earlier, ..Sockets::default() })
}

fn remember_drops(root: &ProcRoot, query: Query, earlier: &mut Earlier) -> Result<()> {
    dump(root, query, |e| {
        if earlier.drops.len() < REMEMBERED {
            earlier.drops.insert(e.cookie(), e.memory().map_or(0, |m| m.drops));
        } else {
            earlier.cut = true;
        }
        ControlFlow::Continue(())
    })
    .map(drop)
}

fn begin_tcp(root: &ProcRoot, earlier: &mut Earlier) -> Result<()> {
    remember_drops(root, listening(), earlier)?;
    let connected = Query { protocol: Protocol::Tcp, states: CONNECTED, memory: false, info: true };
    dump(root, connected, |e| {
        if earlier.tcp.len() < REMEMBERED {
            earlier.tcp.extend(e.tcp_info().map(|info| (e.cookie(), flows::counts(info))));
        } else {
            earlier.cut = true;
        }
        ControlFlow::Continue(())
    })
    .map(drop)
}

/// Uses sock_diag's result; if its module is not loaded, runs `otherwise` and returns the reason.
fn or_else(said: Result<()>, otherwise: impl FnOnce() -> Result<()>) -> Result<Option<String>> {
    match said {
        Ok(()) => Ok(None),
        Err(e) if e.kind() == std::io::ErrorKind::Unsupported => {
            otherwise()?;
            Ok(Some(format!("{e}; /proc/net has less: no limits, no windows, no retransmissions")))
        }
        Err(e) => Err(e),
    }
}

/// All of those, as growth since `earlier`; and what was missing while it was read.
pub(super) fn end(
    root: &ProcRoot,
    earlier: Option<&Sockets>,
    asked: &Asked<'_>,
) -> Result<(Sockets, Option<String>)> {
    let none = Earlier { cut: true, ..Earlier::default() };
    let earlier = earlier.map_or(&none, |s| &s.earlier);
    let there = There::read(root);
    let mut sockets = Sockets::default();
    let mut inodes = Inodes::default();
    let mut missing = None;
    if there.tcp {
        let read = end_tcp(root, earlier, &mut sockets, &mut inodes);
        missing = or_else(read, || plain::end_tcp(root, &mut sockets, &mut inodes))?;
    }
    if there.udp {
        const UDP: u8 = libc::IPPROTO_UDP as u8;
        let tuples = asked.tuples.iter().map(|(t, _)| t).filter(|t| t.protocol == UDP);
        let ports = order::set(tuples.map(|t| t.destination_port));
        let read = read_udp(root, earlier, &ports, &mut sockets, &mut inodes);
        let plainly = || plain::end_udp(root, earlier, &ports, &mut sockets, &mut inodes);
        missing = missing.or(or_else(read, plainly)?);
    }
    name(root, &mut sockets, &inodes);
    Ok((sockets, missing))
}

fn end_tcp(root: &ProcRoot, earlier: &Earlier, sockets: &mut Sockets, inodes: &mut Inodes) -> Result<()> {
    let listeners = read_listeners(root, earlier)?;
    let ports = order::set(listeners.iter().map(|(l, _)| l.local.port()));
    let (flows, half_open) = flows::read(root, earlier, &ports, sockets)?;
    describe_listeners(sockets, listeners, &half_open, inodes);
    for (flow, inode) in flows {
        inodes.tcp.push(inode);
        sockets.tcp.push(flow);
    }
    Ok(())
}

/// Which protocols have a socket here at all (`/proc/net/sockstat`): the kernel goes through the sockets of all namespaces to
/// tell those of one.
struct There {
    tcp: bool,
    udp: bool,
}

impl There {
    fn read(root: &ProcRoot) -> Self {
        let read = |file: &str| root.read_optional(&format!("proc/thread-self/net/{file}"));
        match (read("sockstat"), read("sockstat6")) {
            // If the kernel does not report it, the collector queries each socket.
            (None, _) => There { tcp: true, udp: true },
            (Some(four), six) => {
                let six = six.unwrap_or_default();
                let any = |protocol: &str| four.lines().chain(six.lines()).any(|l| has_sockets(l, protocol));
                There { tcp: any("TCP"), udp: any("UDP") }
            }
        }
    }
}

/// True of a line `TCP: inuse 3 orphan 0 tw 0 alloc 5 mem 1` or `TCP6: inuse 1` with a socket in it.
fn has_sockets(line: &str, protocol: &str) -> bool {
    let Some((name, columns)) = line.split_once(':') else { return false };
    let words: Vec<&str> = columns.split_ascii_whitespace().collect();
    name.trim_end_matches('6') == protocol
        && words.chunks(2).any(|pair| matches!(pair, ["inuse" | "tw", number] if *number != "0"))
}

/// Inodes of what is described, in its order; 0 of what needs no name.
#[derive(Default)]
struct Inodes {
    listeners: Vec<u32>,
    udp: Vec<u32>,
    tcp: Vec<u32>,
}

fn drops_since(earlier: &Earlier, cookie: u64, now: u32) -> Delta {
    let before = match earlier.drops.get(&cookie) {
        Some(before) => *before,
        // It is unknown whether the socket is new: assume that it lost nothing in the window.
        None if earlier.cut => now,
        None => 0,
    };
    Delta { before: before.into(), after: now.into() }
}

fn read_listeners(root: &ProcRoot, earlier: &Earlier) -> Result<Vec<(Listener, u32)>> {
    let mut listeners = Vec::new();
    dump(root, listening(), |e| {
        let listener = Listener {
            local: e.local(),
            queued: e.receive_queue(),
            limit: e.send_queue(),
            half_open: 0,
            drops: drops_since(earlier, e.cookie(), e.memory().map_or(0, |m| m.drops)),
            process: None,
        };
        listeners.push((listener, e.inode()));
        ControlFlow::Continue(())
    })?;
    Ok(listeners)
}

fn describe_listeners(
    sockets: &mut Sockets,
    mut listeners: Vec<(Listener, u32)>,
    half_open: &BTreeMap<std::net::SocketAddr, u32>,
    inodes: &mut Inodes,
) {
    for (address, count) in half_open {
        // One bound to the very address is the one that took it; else one bound to any.
        let fits = |l: &Listener| match l.local.port() == address.port() {
            true if l.local.ip() == address.ip() => 2,
            true if l.local.ip().is_unspecified() => 1,
            _ => 0,
        };
        let best = listeners.iter_mut().max_by_key(|(l, _)| fits(l));
        if let Some((listener, _)) = best.filter(|(l, _)| fits(l) > 0) {
            listener.half_open += count;
        }
    }
    order::by_key(&mut listeners, |(l, _)| std::cmp::Reverse((l.drops.change(), l.queued, l.half_open)));
    for (listener, inode) in listeners.into_iter().take(DESCRIBED) {
        let troubled = listener.drops.change() > 0 || listener.queued > 0 || listener.half_open > 0;
        inodes.listeners.push(if troubled { inode } else { 0 });
        sockets.listeners.push(listener);
    }
}

fn read_udp(
    root: &ProcRoot,
    earlier: &Earlier,
    ports: &BTreeSet<u16>,
    sockets: &mut Sockets,
    inodes: &mut Inodes,
) -> Result<()> {
    let mut found = Vec::new();
    dump(root, udp(), |e| {
        let memory = e.memory().unwrap_or_default();
        let local = e.local();
        if ports.contains(&local.port()) && e.remote().port() == 0 && sockets.udp_bound.len() < DESCRIBED {
            sockets.udp_bound.push(local);
        }
        let socket = UdpSocket {
            local,
            queued_bytes: memory.received,
            limit_bytes: memory.receive_limit,
            drops: drops_since(earlier, e.cookie(), memory.drops),
            process: None,
        };
        if socket.drops.change() > 0 || memory.received > memory.receive_limit / 2 {
            found.push((socket, e.inode()));
        }
        ControlFlow::Continue(())
    })?;
    order::by_key(&mut found, |(s, _)| std::cmp::Reverse((s.drops.change(), s.queued_bytes)));
    for (socket, inode) in found.into_iter().take(DESCRIBED) {
        inodes.udp.push(inode);
        sockets.udp.push(socket);
    }
    Ok(())
}

/// Looks for the processes of the sockets that stand out, and whether they may open files still.
fn name(root: &ProcRoot, sockets: &mut Sockets, inodes: &Inodes) {
    let each = [&inodes.listeners, &inodes.udp, &inodes.tcp];
    let wanted: BTreeSet<u32> =
        order::set(each.iter().flat_map(|list| list.iter().copied().filter(|inode| *inode != 0).take(NAMED)));
    if wanted.is_empty() {
        return;
    }
    let holders = root.socket_holders(&wanted, DESCRIPTORS);
    let called = |inode: &u32| holders.get(inode).map(|h| format!("{} (pid {})", h.name, h.pid));
    for (listener, inode) in sockets.listeners.iter_mut().zip(&inodes.listeners) {
        listener.process = called(inode);
    }
    for (socket, inode) in sockets.udp.iter_mut().zip(&inodes.udp) {
        socket.process = called(inode);
    }
    for (flow, inode) in sockets.tcp.iter_mut().zip(&inodes.tcp) {
        flow.process = called(inode);
    }
    for holder in order::set(holders.into_values()) {
        if let Some((open, limit)) = root.open_files(holder.pid)
            && open as f64 >= NEAR_LIMIT * limit as f64
        {
            sockets.near_file_limit.push(FileLimit { process: holder.name, pid: holder.pid, open, limit });
        }
    }
}

#[cfg(test)]
mod tests;
