//! Ports that source NAT has given away, against those that it may give.
//!
//! Two connections may share an outside address and port as long as they go to different destinations: only the tuple of the
//! reply packets must be unique. So each outside address, protocol, destination address and destination port (and zone) has its
//! own pool of ports. A single busy destination exhausts one.
//!
//! The size of a pool is not `ip_local_port_range`, which is about sockets of the host itself. Without a port range in the rule,
//! `nf_nat_l4proto_unique_tuple` (net/netfilter/nf_nat_core.c) keeps to the class of the original source port: 1 to 511, 600 to
//! 1023, or 1024 to 65535; ICMP has all 65,536 identifiers.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use foldhash::fast::RandomState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_netlink::conntrack::{Address, Entry, Status};
use weir_text::order;

use super::names::{self, ICMP, ICMPV6, SCTP, TCP, UDP, UDPLITE};
use super::nat_ports::NatPorts;
use super::top::{Top, TopEntry};

/// IPPROTO_DCCP.
const DCCP: u8 = 33;

/// Tuples that the kernel tries before it gives up: 128 (`NF_NAT_MAX_ATTEMPTS`) in a row from a random port, then half as many
/// from another one, down to 8. Ranges of up to 128 ports are tried as a whole.
const TRIES: i32 = 128 + 64 + 32 + 16 + 8;
const WHOLE: u64 = 128;

/// Which ports a connection may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Class {
    /// The range of a rule.
    Rule(u16, u16),
    /// Original port below 512.
    Low,
    /// Original port 512 to 1023.
    Middle,
    /// Original port from 1024 on.
    High,
    /// Identifiers of ICMP echo.
    Identifier,
}

/// Ports that source NAT has given away towards one destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SnatPool {
    /// Outside address.
    pub outside: IpAddr,
    /// IP protocol.
    pub protocol: u8,
    /// Destination address.
    pub destination: IpAddr,
    /// Port there.
    pub destination_port: u16,
    /// Lowest port that may be given.
    pub first_port: u16,
    /// Highest port that may be given.
    pub last_port: u16,
    /// Ports in use.
    pub used: u64,
    /// Ports there are.
    pub available: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    outside: Address,
    destination: Address,
    port: u16,
    zone: u16,
    protocol: u8,
    class: Class,
}

/// Counts entries by pool.
#[derive(Debug)]
pub struct Pools {
    top: Top<Key>,
    given: NatPorts,
    /// The ranges from `given` for each outside address; unused if only the kernel's own ranges are possible.
    ranges: Option<HashMap<Address, Vec<RangeInclusive<u16>>, RandomState>>,
}

/// Outside addresses of which the ranges are remembered. A host has a few.
const REMEMBERED: usize = 4096;

/// One pool of outside ports.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Pool {
    /// The address that the source is translated to.
    pub outside: String,
    /// Protocol by name.
    pub protocol: String,
    /// Destination of the connections, after any translation of the destination.
    pub destination: String,
    /// Its port; of ICMP `type x 256 + code` of the reply; 0 of protocols without ports.
    pub destination_port: u16,
    /// Zone of the connections.
    pub zone: u16,
    /// Ports in use.
    pub used: u64,
    /// By how much `used` may be too high.
    pub error: u64,
    /// Lowest port that may be given.
    pub lowest_port: u16,
    /// Highest port that may be given.
    pub highest_port: u16,
    /// Ports that may be given.
    pub available: u64,
    /// `used / available`.
    pub ratio: f64,
    /// Chance that a new connection finds no port although some may be free, if the free ones lie at random: the kernel
    /// tries 248 of them and then drops the packet.
    pub refused_ratio: f64,
}

impl Pools {
    /// With so many places, and what is known of the rules.
    pub fn new(capacity: usize, given: NatPorts) -> Self {
        let ranges = (!given.is_plain()).then(HashMap::default);
        Pools { top: Top::new(capacity), given, ranges }
    }

    #[inline]
    /// Counts an entry, if source NAT changed it.
    pub fn add(&mut self, entry: &Entry) {
        if !entry.status.has(Status::SOURCE_NAT) {
            return;
        }
        let Some(class) = self.class(entry) else { return };
        // Reply packets go from the destination to the outside address.
        let reply = &entry.reply;
        let port = if class == Class::Identifier { reply.destination_port } else { reply.source_port };
        let key = Key {
            outside: reply.destination,
            destination: reply.source,
            port,
            zone: entry.zone,
            protocol: reply.protocol,
            class,
        };
        self.top.add(key, 0);
    }

    fn class(&mut self, entry: &Entry) -> Option<Class> {
        let ports = match entry.original.protocol {
            TCP | UDP | SCTP | UDPLITE | DCCP => true,
            ICMP | ICMPV6 => false,
            // For other protocols, NAT translates only the address.
            _ => return None,
        };
        if !ports {
            return Some(Class::Identifier);
        }
        if let Some(range) = self.range_of_rule(entry) {
            return Some(range);
        }
        Some(match entry.original.source_port {
            0..512 => Class::Low,
            512..1024 => Class::Middle,
            1024.. => Class::High,
        })
    }

    fn range_of_rule(&mut self, entry: &Entry) -> Option<Class> {
        let known = self.ranges.as_mut()?;
        if known.len() >= REMEMBERED {
            known.clear();
        }
        let outside = entry.reply.destination;
        let ranges = known.entry(outside).or_insert_with(|| self.given.ranges(outside));
        let range = ranges.iter().find(|r| r.contains(&entry.reply.destination_port))?;
        Some(Class::Rule(*range.start(), *range.end()))
    }

    fn range(class: Class) -> RangeInclusive<u16> {
        match class {
            Class::Rule(first, last) => first..=last,
            Class::Low => 1..=511,
            Class::Middle => 600..=1023,
            Class::High => 1024..=u16::MAX,
            Class::Identifier => 0..=u16::MAX,
        }
    }

    /// True if every pool is there with its exact count.
    pub fn is_exact(&self) -> bool {
        self.top.is_exact()
    }

    pub(crate) fn distinct(&self) -> u64 {
        self.top.distinct()
    }

    pub(crate) fn most_error(&self) -> u64 {
        self.top.most_error()
    }

    /// Pools with the share of them that is used, the fullest first.
    fn ranked(&self) -> Vec<(f64, &TopEntry<Key>)> {
        let share = |place: &TopEntry<Key>| place.count as f64 / size(&Self::range(place.key.class)) as f64;
        let mut pools: Vec<_> = self.top.places().iter().map(|place| (share(place), place)).collect();
        order::by(&mut pools, |a, b| b.0.total_cmp(&a.0).then(a.1.key.cmp(&b.1.key)));
        pools
    }

    /// Up to `n` pools of which at least that share is used, the fullest first.
    pub fn nearly_used_up(&self, share: f64, n: usize) -> Vec<SnatPool> {
        let full = self.ranked().into_iter().take_while(|(used, _)| *used >= share).take(n);
        full.map(|(_, place)| {
            let range = Self::range(place.key.class);
            SnatPool {
                outside: place.key.outside.ip(),
                protocol: place.key.protocol,
                destination: place.key.destination.ip(),
                destination_port: place.key.port,
                first_port: *range.start(),
                last_port: *range.end(),
                used: place.count,
                available: size(&range),
            }
        })
        .collect()
    }

    /// The `n` pools that are nearest to exhaustion.
    pub fn fullest(&self, n: usize) -> Vec<Pool> {
        self.ranked()
            .into_iter()
            .take(n)
            .map(|(ratio, place)| {
                let range = Self::range(place.key.class);
                Pool {
                    outside: place.key.outside.ip().to_string(),
                    protocol: names::protocol(place.key.protocol),
                    destination: place.key.destination.ip().to_string(),
                    destination_port: place.key.port,
                    zone: place.key.zone,
                    used: place.count,
                    error: place.error,
                    lowest_port: *range.start(),
                    highest_port: *range.end(),
                    available: size(&range),
                    ratio,
                    refused_ratio: refused(ratio, size(&range)),
                }
            })
            .collect()
    }
}

fn size(range: &RangeInclusive<u16>) -> u64 {
    u64::from(range.end() - range.start()) + 1
}

/// Chance that all tries meet a used port.
fn refused(ratio: f64, available: u64) -> f64 {
    if ratio >= 1.0 {
        1.0
    } else if available <= WHOLE {
        0.0
    } else {
        ratio.max(0.0).powi(TRIES)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn entry(protocol: u8, source_port: u16, outside_port: u16, destination: &str) -> Entry {
        let address = |text: &str| Address::from(text.parse::<IpAddr>().unwrap());
        let mut entry = Entry { status: Status::SOURCE_NAT, ..Entry::default() };
        (entry.original.protocol, entry.reply.protocol) = (protocol, protocol);
        entry.original.source_port = source_port;
        entry.reply.source = address(destination);
        entry.reply.destination = address("198.18.0.9");
        if protocol == ICMP {
            entry.reply.source_port = outside_port;
        } else {
            (entry.reply.source_port, entry.reply.destination_port) = (443, outside_port);
        }
        entry
    }

    #[test]
    fn a_pool_is_one_destination_of_one_outside_address() {
        let mut pools = Pools::new(100, NatPorts::default());
        for port in 0..1000 {
            pools.add(&entry(TCP, 40_000, 2000 + port, "198.18.1.1"));
            pools.add(&entry(TCP, 40_000, 2000 + port, "198.18.1.2"));
            pools.add(&entry(UDP, 40_000, 2000 + port, "198.18.1.1"));
        }
        let mut not_translated = entry(TCP, 40_000, 40_000, "198.18.1.1");
        not_translated.status = Status::ASSURED;
        pools.add(&not_translated);
        // Its own address only: GRE has no ports.
        pools.add(&entry(47, 0, 0, "198.18.1.1"));
        assert_eq!((pools.distinct(), pools.is_exact(), pools.most_error()), (3, true, 0));
        let fullest = pools.fullest(10);
        assert!(fullest.iter().all(|p| p.used == 1000 && p.available == 64_512), "{fullest:?}");
        assert_eq!(fullest[0].ratio, 1000.0 / 64_512.0);
    }

    /// The classes of nf_nat_l4proto_unique_tuple.
    #[test]
    fn the_original_port_decides_the_range() {
        let mut pools = Pools::new(100, NatPorts::default());
        for (source, outside) in [(500, 1), (511, 2), (512, 700), (1023, 701), (1024, 1024), (65_535, 1025)] {
            pools.add(&entry(UDP, source, outside, "198.18.1.1"));
        }
        pools.add(&entry(ICMP, 7, 7, "198.18.1.1"));
        let mut ranges: Vec<_> =
            pools.fullest(9).iter().map(|p| (p.lowest_port, p.highest_port, p.available, p.used)).collect();
        ranges.sort_unstable();
        assert_eq!(
            ranges,
            [(0, 65_535, 65_536, 1), (1, 511, 511, 2), (600, 1023, 424, 2), (1024, 65_535, 64_512, 2)]
        );
    }

    #[test]
    fn a_rules_own_range_is_the_smaller_pool_and_comes_first() {
        let mut pools = Pools::new(100, NatPorts::of(Vec::new(), Some(6000..=6009)));
        for port in 6000..6010 {
            pools.add(&entry(TCP, 50_000, port, "198.18.1.1"));
        }
        for port in 10_000..10_500 {
            pools.add(&entry(TCP, 50_000, port, "198.18.1.1"));
        }
        let fullest = pools.fullest(2);
        assert_eq!((fullest[0].used, fullest[0].available, fullest[0].ratio), (10, 10, 1.0));
        assert_eq!(fullest[0].refused_ratio, 1.0);
        assert_eq!((fullest[1].used, fullest[1].available), (500, 64_512));
        let full = pools.nearly_used_up(0.5, 9);
        assert_eq!(full.len(), 1);
        assert_eq!(
            (full[0].first_port, full[0].last_port, full[0].used, full[0].available),
            (6000, 6009, 10, 10)
        );
    }

    #[test]
    fn refusal_begins_before_the_last_port() {
        // 0.99^248 = exp(248 ln 0.99) = exp(-2.4925) = 0.0827.
        assert!((refused(0.99, 64_512) - 0.0827).abs() < 1e-4);
        assert!(refused(0.5, 64_512) < 1e-70);
        assert_eq!((refused(0.99, 100), refused(1.0, 100)), (0.0, 1.0));
    }
}
