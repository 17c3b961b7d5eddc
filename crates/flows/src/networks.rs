//! Sums of flows by the network of one side, or by the name that a table has for it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use weir_prefix::Names;

use crate::shared::{self, WeirFlow, WeirUdpFlow};
use crate::side::{Side, SideSum};
use crate::table::{Tracked, ends, is};
use crate::udp::{Udp, UdpSum};

/// Networks of flows that are over, at most. Those beyond are summed up in one.
const MOST_PAST: usize = 4096;

/// By whose network flows are summed up, and how long its prefixes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grouping {
    /// By the client's network instead of the server's.
    pub by_client: bool,
    /// Length of IPv4 prefixes, 0 to 32.
    pub prefix4: u8,
    /// Length of IPv6 prefixes, 0 to 128.
    pub prefix6: u8,
    /// Names in place of prefixes, for the addresses that have one.
    pub names: Option<Arc<Names>>,
}

impl Default for Grouping {
    fn default() -> Self {
        Grouping { by_client: false, prefix4: 24, prefix6: 48, names: None }
    }
}

/// Flows that are summed up together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// The network with that address and prefix length.
    Prefix(IpAddr, u8),
    /// The networks that have the name of that number.
    Named(u32),
    /// All those beyond the bound.
    Others,
}

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
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Network {
    /// Address and prefix length, or the name of `--names`; null for all, and for those beyond the bound.
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
        self.name(self.key_of(address)).unwrap_or_default()
    }

    /// The name of the network that a flow is summed up with, if a table has one for it.
    pub(crate) fn named(&self, flow: &impl Tracked) -> Option<String> {
        let key = self.key(flow);
        matches!(key, Key::Named(_)).then(|| self.name(key)).flatten()
    }

    /// A group for people; `None` for those beyond the bound.
    pub(crate) fn name(&self, key: Key) -> Option<String> {
        match key {
            Key::Prefix(address, length) => Some(format!("{address}/{length}")),
            Key::Named(number) => self.names.as_ref()?.name(number).map(str::to_owned),
            Key::Others => None,
        }
    }

    pub(crate) fn key_of(&self, address: IpAddr) -> Key {
        let number = self.names.as_ref().and_then(|names| names.number_of(address));
        let length = if address.is_ipv4() { self.prefix4 } else { self.prefix6 };
        number.map_or_else(|| Key::Prefix(masked(address, length), length), Key::Named)
    }

    fn key(&self, flow: &impl Tracked) -> Key {
        let (client, server) = ends(&flow.ends()[0]);
        // The server behind destination NAT is the one that answers.
        let answers = is(flow, shared::WEIR_IS_JOINED).then(|| ends(&flow.ends()[1]).0);
        self.key_of(if self.by_client { client.ip() } else { answers.unwrap_or(server).ip() })
    }

    /// `now`: CLOCK_MONOTONIC, ns.
    pub(crate) fn add(&self, networks: &mut BTreeMap<Key, NetworkSum>, flow: &WeirFlow, now: u64) {
        let sum = networks.entry(self.key(flow)).or_default();
        let [client, server] = [0, 1].map(|n| SideSum::of(flow, n, now));
        sum.flows += 1;
        sum.connections += u64::from(flow.connections);
        if is(flow, shared::WEIR_IS_OPENING) {
            sum.unanswered_syns += client.side.syns;
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
            let least = past.iter().filter(|(key, _)| **key != Key::Others);
            let least = least.min_by_key(|(_, sum)| sum.bytes()).map(|(key, _)| *key);
            let Some(sum) = least.and_then(|key| past.remove(&key)) else { return };
            past.entry(Key::Others).or_default().merge(&sum);
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
        self.client.side.bytes + self.server.side.bytes + self.udp.bytes()
    }

    pub(crate) fn merge(&mut self, other: &NetworkSum) {
        self.flows += other.flows;
        self.connections += other.connections;
        self.unanswered_syns += other.unanswered_syns;
        self.client.add(&other.client);
        self.server.add(&other.server);
        self.udp.add(&other.udp);
    }

    pub(crate) fn report(&self, network: Option<String>) -> Network {
        Network {
            network,
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

    #[test]
    fn a_name_takes_the_place_of_a_prefix() {
        let table = "198.51.0.0/16 Paris\n2001:db8:1::/48 Paris\n";
        let names = Names::read([("names", table.as_bytes())]).unwrap();
        let grouping = Grouping { names: Some(Arc::new(names)), ..Grouping::default() };
        let of = |address: &str| grouping.network_of(address.parse().unwrap());
        let found = ["198.51.100.7", "2001:db8:1::9", "203.0.113.77", "2001:db8:2::9"].map(of);
        assert_eq!(found, ["Paris", "Paris", "203.0.113.0/24", "2001:db8:2::/48"]);
    }
}
