//! Connections of TCP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::ControlFlow;

use weir_netlink::Protocol;
use weir_netlink::sock_diag::{Entry, Query, TcpInfo, dump, state};
use weir_sys::{ProcRoot, Result};

use super::ports::Ports;
use super::top::Top;
use super::{BRIEF, CONNECTED};
use crate::evidence::{Delta, Earlier, Sockets, TcpCounts, TcpFlow, TcpTotals};

/// Connections described for each thing that may be wrong with one.
const OF_EACH: usize = 32;
/// A segment size that every network carries (RFC 879, RFC 9293 section 3.7.1): a sender that uses less was configured or asked
/// to.
const DEFAULT_MSS: u32 = 536;

/// Returns the counters that only grow.
pub(super) fn counts(info: TcpInfo<'_>) -> TcpCounts {
    TcpCounts {
        retransmits: info.total_retransmits(),
        segments_out: info.segments_out(),
        segments_in: info.segments_in(),
        dsack: info.dsack_duplicates(),
        out_of_order: info.out_of_order(),
        bytes_acked: info.bytes_acked(),
        bytes_received: info.bytes_received(),
        busy_us: info.busy_us(),
        window_limited_us: info.window_limited_us(),
        buffer_limited_us: info.buffer_limited_us(),
    }
}

/// Connections that stand out, with the inodes of their sockets; and request sockets by where they came to. Fills in the states,
/// totals and ports of `sockets`.
#[expect(clippy::type_complexity, reason = "two lists, named at the one call")]
pub(super) fn read(
    root: &ProcRoot,
    earlier: &Earlier,
    listening: &BTreeSet<u16>,
    sockets: &mut Sockets,
) -> Result<(Vec<(TcpFlow, u32)>, BTreeMap<SocketAddr, u32>)> {
    let mut half_open = BTreeMap::new();
    let mut ports = Ports::read(root, listening);
    let mut chosen = Chosen::default();
    let query = Query { protocol: Protocol::Tcp, states: CONNECTED | BRIEF, memory: true, info: true };
    dump(root, query, |e| {
        *sockets.tcp_states.entry(e.state()).or_default() += 1;
        match e.state() {
            state::SYN_RECV => *half_open.entry(e.local()).or_insert(0) += 1,
            state::TIME_WAIT => ports.count(e),
            _ => {
                ports.count(e);
                let outgoing = !listening.contains(&e.local().port());
                if let Some(info) = e.tcp_info() {
                    chosen.look_at(e, info, earlier, outgoing, &mut sockets.totals);
                }
            }
        }
        ControlFlow::Continue(())
    })?;
    sockets.established = sockets.tcp_states.get(&state::ESTABLISHED).copied().unwrap_or(0);
    sockets.ports = ports.busiest();
    Ok((chosen.into_flows(), half_open))
}

/// Who stands out, in each way that one may.
struct Chosen {
    lists: [Top<(u64, TcpFlow, u32)>; 8],
}

impl Default for Chosen {
    fn default() -> Self {
        Chosen { lists: std::array::from_fn(|_| Top::new(OF_EACH)) }
    }
}

impl Chosen {
    fn look_at(
        &mut self,
        e: &Entry<'_>,
        info: TcpInfo<'_>,
        earlier: &Earlier,
        outgoing: bool,
        totals: &mut TcpTotals,
    ) {
        let now = counts(info);
        let before = match earlier.tcp.get(&e.cookie()) {
            Some(before) => *before,
            None if earlier.cut => now,
            None => TcpCounts::default(),
        };
        let since = Since { before, now };
        since.add_to(totals);
        let bytes = since.grew(|c| c.bytes_acked + c.bytes_received);
        let if_so = |so: bool, size: u64| if so { size } else { 0 };
        let opening = e.state() == state::SYN_SENT;
        let sizes = [
            if_so(!opening, since.grew(|c| c.retransmits.into())),
            since.grew(|c| c.window_limited_us),
            since.grew(|c| c.buffer_limited_us),
            if_so(!opening && !info.window_scaling(), bytes),
            if_so(!opening && info.send_mss() < DEFAULT_MSS, bytes),
            if_so(!opening, e.receive_queue().into()),
            if_so(opening, u64::from(e.retransmits()) + 1),
            bytes,
        ];
        if !self.lists.iter().zip(sizes).any(|(list, size)| list.takes(size)) {
            return;
        }
        let flow = describe(e, info, &since, outgoing);
        for (list, size) in self.lists.iter_mut().zip(sizes) {
            list.put(size, (e.cookie(), flow.clone(), e.inode()));
        }
    }

    /// Each once.
    fn into_flows(self) -> Vec<(TcpFlow, u32)> {
        let all = self.lists.into_iter().flat_map(Top::into_items);
        let mut seen = BTreeSet::new();
        all.filter(|(cookie, ..)| seen.insert(*cookie)).map(|(_, flow, inode)| (flow, inode)).collect()
    }
}

/// A connection at the two ends of the window.
struct Since {
    before: TcpCounts,
    now: TcpCounts,
}

impl Since {
    fn of(&self, counter: impl Fn(&TcpCounts) -> u64) -> Delta {
        Delta { before: counter(&self.before), after: counter(&self.now) }
    }

    fn grew(&self, counter: impl Fn(&TcpCounts) -> u64) -> u64 {
        self.of(counter).change()
    }

    fn add_to(&self, totals: &mut TcpTotals) {
        let bytes = self.grew(|c| c.bytes_acked + c.bytes_received);
        totals.connections += 1;
        totals.active += u64::from(bytes > 0);
        totals.bytes += bytes;
        totals.retransmits += self.grew(|c| c.retransmits.into());
        totals.segments_out += self.grew(|c| c.segments_out.into());
        totals.segments_in += self.grew(|c| c.segments_in.into());
        totals.out_of_order += self.grew(|c| c.out_of_order.into());
        totals.dsack += self.grew(|c| c.dsack.into());
        totals.busy_us += self.grew(|c| c.busy_us);
        totals.window_limited_us += self.grew(|c| c.window_limited_us);
        totals.buffer_limited_us += self.grew(|c| c.buffer_limited_us);
    }
}

fn describe(e: &Entry<'_>, info: TcpInfo<'_>, since: &Since, outgoing: bool) -> TcpFlow {
    let memory = e.memory().unwrap_or_default();
    TcpFlow {
        local: e.local(),
        remote: e.remote(),
        state: e.state(),
        retransmits: since.of(|c| c.retransmits.into()),
        segments_out: since.of(|c| c.segments_out.into()),
        segments_in: since.of(|c| c.segments_in.into()),
        out_of_order: since.of(|c| c.out_of_order.into()),
        bytes_acked: since.of(|c| c.bytes_acked),
        bytes_received: since.of(|c| c.bytes_received),
        dsack: since.of(|c| c.dsack.into()),
        rtt_us: info.rtt_us(),
        min_rtt_us: info.min_rtt_us(),
        mss: info.send_mss(),
        received_mss: info.receive_mss(),
        pmtu: info.path_mtu(),
        window_scaling: info.window_scaling(),
        timestamps: info.timestamps(),
        outgoing,
        send_window: info.send_window(),
        receive_window: info.receive_window(),
        receive_limit: memory.receive_limit,
        send_limit: memory.send_limit,
        busy_us: since.of(|c| c.busy_us),
        window_limited_us: since.of(|c| c.window_limited_us),
        buffer_limited_us: since.of(|c| c.buffer_limited_us),
        send_queue: e.send_queue(),
        receive_queue: e.receive_queue(),
        backoff: info.backoff(),
        process: None,
    }
}
