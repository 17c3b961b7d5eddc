//! Sums of flows by the network of one side.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Serialize;

use crate::shared::{self, WeirFlow, WeirUdpFlow};
use crate::side::{Side, SideSum};
use crate::table::{Tracked, ends, is};
use crate::udp::{Udp, UdpSum};

/// Networks of flows that are over, at most. Those beyond are summed up in one.
const MOST_PAST: usize = 4096;

/// By whose network flows are summed up, and how long its prefixes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouping {
    /// By the client's network instead of the server's.
    pub by_client: bool,
    /// Length of IPv4 prefixes, 0 to 32.
    pub prefix4: u8,
    /// Length of IPv6 prefixes, 0 to 128.
    pub prefix6: u8,
}

impl Default for Grouping {
    fn default() -> Self {
        Grouping { by_client: false, prefix4: 24, prefix6: 48 }
    }
}

/// A network; `None`: all those beyond the bound.
pub(crate) type Key = Option<(IpAddr, u8)>;

/// Sums of the flows of a network.
#[derive(Debug, Clone, Default)]
pub(crate) struct NetworkSum {
    flows: u64,
    connections: u64,
    unanswered_syns: u64,
    client: SideSum,
    server: SideSum,
    udp: UdpSum,
}

/// The flows of one network.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Network {
    /// Address and prefix length; null for all, and for those beyond the bound.
    pub network: Option<String>,
    /// TCP flows, with those that are over.
    pub flows: u64,
    /// Connections that began meanwhile.
    pub connections: u64,
    /// SYNs of flows that have no answer yet, or never had one.
    pub unanswered_syns: u64,
    /// TCP of the clients.
    pub client_side: Side,
    /// TCP of the servers.
    pub server_side: Side,
    /// UDP.
    pub udp: Udp,
}

impl Network {
    /// Bytes of both sides, TCP and UDP.
    pub fn bytes(&self) -> u64 {
        self.client_side.bytes + self.server_side.bytes + self.udp.bytes()
    }
}

/// The address with all bits behind the prefix cleared.
pub fn masked(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0);
            IpAddr::from((u32::from(a) & mask).to_be_bytes())
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0);
            IpAddr::from((u128::from(a) & mask).to_be_bytes())
        }
    }
}

impl Grouping {
    /// The network of an address, as [`Network::network`] has it.
    pub fn network_of(&self, address: IpAddr) -> String {
        let length = if address.is_ipv4() { self.prefix4 } else { self.prefix6 };
        format!("{}/{length}", masked(address, length))
    }

    fn key(&self, flow: &impl Tracked) -> Key {
        let (client, server) = ends(&flow.ends()[0]);
        // The server behind destination NAT is the one that answers.
        let answers = is(flow, shared::WEIR_IS_JOINED).then(|| ends(&flow.ends()[1]).0);
        let address = if self.by_client { client.ip() } else { answers.unwrap_or(server).ip() };
        let length = if address.is_ipv4() { self.prefix4 } else { self.prefix6 };
        Some((masked(address, length), length))
    }

    /// `now`: CLOCK_MONOTONIC, ns.
    pub(crate) fn add(&self, networks: &mut BTreeMap<Key, NetworkSum>, flow: &WeirFlow, now: u64) {
        let sum = networks.entry(self.key(flow)).or_default();
        let [client, server] = [0, 1].map(|n| SideSum::of(flow, n, now));
        sum.flows += 1;
        sum.connections += u64::from(flow.connections);
        if is(flow, shared::WEIR_IS_OPENING) {
            sum.unanswered_syns += client.syns;
        }
        sum.client.add(&client);
        sum.server.add(&server);
    }

    /// `own`: addresses of this host; `now`: CLOCK_MONOTONIC, ns.
    pub(crate) fn add_udp(
        &self,
        networks: &mut BTreeMap<Key, NetworkSum>,
        flow: &WeirUdpFlow,
        own: &BTreeSet<IpAddr>,
        now: u64,
    ) {
        networks.entry(self.key(flow)).or_default().udp.add_flow(flow, own, now);
    }

    /// Keeps sums of the past within bounds.
    pub(crate) fn bound(&self, past: &mut BTreeMap<Key, NetworkSum>) {
        while past.len() > MOST_PAST {
            // The one with the fewest bytes.
            let least = past.iter().filter(|(key, _)| key.is_some());
            let least = least.min_by_key(|(_, sum)| sum.bytes()).map(|(key, _)| *key);
            let Some(sum) = least.and_then(|key| past.remove(&key)) else { return };
            past.entry(None).or_default().merge(&sum);
        }
        for sum in past.values_mut() {
            sum.client.compact();
            sum.server.compact();
        }
    }
}

impl NetworkSum {
    /// Bytes of both sides.
    pub(crate) fn bytes(&self) -> u64 {
        self.client.bytes + self.server.bytes + self.udp.bytes()
    }

    pub(crate) fn merge(&mut self, other: &NetworkSum) {
        self.flows += other.flows;
        self.connections += other.connections;
        self.unanswered_syns += other.unanswered_syns;
        self.client.add(&other.client);
        self.server.add(&other.server);
        self.udp.add(&other.udp);
    }

    pub(crate) fn report(&self, key: &Key) -> Network {
        Network {
            network: key.map(|(address, length)| format!("{address}/{length}")),
            flows: self.flows,
            connections: self.connections,
            unanswered_syns: self.unanswered_syns,
            client_side: self.client.report(),
            server_side: self.server.report(),
            udp: self.udp.report(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_clear_the_bits_behind_the_prefix() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(masked(ip("198.51.100.77"), 24), ip("198.51.100.0"));
        assert_eq!(masked(ip("198.51.100.77"), 0), ip("0.0.0.0"));
        assert_eq!(masked(ip("198.51.100.77"), 32), ip("198.51.100.77"));
        assert_eq!(masked(ip("2001:db8:1:2::3"), 48), ip("2001:db8:1::"));
        assert_eq!(masked(ip("2001:db8:1:2::3"), 128), ip("2001:db8:1:2::3"));
        assert_eq!(masked(ip("2001:db8::3"), 0), ip("::"));
    }
}
