//! Counts of entries that are alike, and of who holds them, in bounded memory.

use std::collections::HashMap;
use std::net::IpAddr;

use foldhash::fast::RandomState;
use weir_netlink::conntrack::{Address, Entry, Status};

use crate::evidence::{ConnectionGroup, Connections, Service, Tuple};
use weir_conntrack::names::{self, SCTP, TCP};
use weir_conntrack::nat_ports::NatPorts;
use weir_conntrack::pools::Pools;
use weir_conntrack::top::Top;
use weir_text::order;

/// Groups that are counted separately while the table is read.
const GROUPS: usize = 1 << 14;
/// Groups that are kept, and as many again of unreplied ones.
const KEPT: usize = 100;
/// Places for exact counts of who holds the entries.
const PLACES: usize = 1 << 14;
/// Lines of "who holds them".
const HOLDERS: usize = 5;
/// Entries without an answer that are remembered to find their way back in another zone.
const HALVES: usize = 1 << 14;
/// Connections split between zones that are kept.
const SPLIT: usize = 64;

/// A group of this entry alone.
pub(super) fn group(entry: &Entry) -> ConnectionGroup {
    Key::of(entry).group(1, entry)
}

/// The key that alike entries share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    destination: Address,
    reply_source: Address,
    port: u16,
    zone: u16,
    protocol: u8,
    state: u8,
    /// As bits of [`Status`], and the two below.
    flags: u32,
}

/// Bits of the status that make a difference.
const DIFFER: u32 = Status::SEEN_REPLY.0
    | Status::ASSURED.0
    | Status::SOURCE_NAT.0
    | Status::DESTINATION_NAT.0
    | Status::HELPER.0;
/// Bits that no status has (`enum ip_conntrack_status` ends below).
const PRIVATE: u32 = 1 << 30;
const SAME_NETWORK: u32 = 1 << 31;

impl Key {
    fn of(entry: &Entry) -> Self {
        let (asks, answers) = (entry.original.source.ip(), entry.reply.source.ip());
        let mut flags = entry.status.0 & DIFFER;
        flags |= if is_private(asks) { PRIVATE } else { 0 };
        flags |= if in_same_network(asks, answers) { SAME_NETWORK } else { 0 };
        Key {
            destination: entry.original.destination,
            reply_source: entry.reply.source,
            port: entry.original.destination_port,
            zone: entry.zone,
            protocol: entry.original.protocol,
            state: if entry.original.protocol == TCP { entry.state.unwrap_or(0) } else { 0 },
            flags,
        }
    }

    fn group(&self, entries: u64, example: &Entry) -> ConnectionGroup {
        let has = |bits: u32| self.flags & bits != 0;
        ConnectionGroup {
            protocol: self.protocol,
            state: self.state,
            replied: has(Status::SEEN_REPLY.0),
            assured: has(Status::ASSURED.0),
            source_nat: has(Status::SOURCE_NAT.0),
            destination_nat: has(Status::DESTINATION_NAT.0),
            helper: has(Status::HELPER.0),
            private_source: has(PRIVATE),
            same_network: has(SAME_NETWORK),
            zone: self.zone,
            destination: self.destination.ip(),
            destination_port: self.port,
            reply_source: self.reply_source.ip(),
            entries,
            example: Some(tuple(&example.original)),
            example_reply: Some(tuple(&example.reply)),
        }
    }
}

/// RFC 1918, RFC 6598 (100.64.0.0/10), RFC 4193 (fc00::/7).
pub(crate) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_private() || v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64,
        IpAddr::V6(v6) => v6.is_unique_local(),
    }
}

fn in_same_network(a: IpAddr, b: IpAddr) -> bool {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => a != b && a.octets()[..3] == b.octets()[..3],
        (IpAddr::V6(a), IpAddr::V6(b)) => a != b && a.octets()[..8] == b.octets()[..8],
        _ => false,
    }
}

/// Counts while the table is read.
pub(super) struct ConnectionCounts {
    read: u64,
    assured: u64,
    unreplied: u64,
    states: HashMap<(u8, u8), u64, RandomState>,
    sources: Top<Address>,
    services: Top<(Address, u8, u16)>,
    pools: Pools,
    groups: HashMap<Key, (u64, Entry), RandomState>,
    /// Groups of up to so many entries were let go of for others.
    pruned: u64,
    beyond: u64,
    /// Original and reply directions of entries without an answer, with their zone.
    halves: [HashMap<weir_netlink::conntrack::Tuple, u16, RandomState>; 2],
    split: Vec<(Tuple, u16, u16)>,
    /// Packets without an entry in the default zone.
    absent: Vec<Tuple>,
    joined: Vec<(Tuple, ConnectionGroup)>,
}

impl ConnectionCounts {
    /// Looks in other zones for entries of `absent`.
    pub(super) fn new(absent: Vec<Tuple>, given: NatPorts) -> Self {
        ConnectionCounts {
            read: 0,
            assured: 0,
            unreplied: 0,
            states: HashMap::default(),
            sources: Top::new(PLACES),
            services: Top::new(PLACES),
            pools: Pools::new(PLACES, given),
            groups: HashMap::default(),
            pruned: 0,
            beyond: 0,
            halves: Default::default(),
            split: Vec::new(),
            absent,
            joined: Vec::new(),
        }
    }

    /// Entries so far.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// Counts an entry.
    pub(super) fn add(&mut self, entry: &Entry) {
        self.read += 1;
        let original = &entry.original;
        let replied = entry.status.has(Status::SEEN_REPLY);
        let assured = entry.status.has(Status::ASSURED);
        self.assured += u64::from(assured);
        self.unreplied += u64::from(!replied);
        let state = match original.protocol {
            TCP | SCTP => entry.state.unwrap_or(0),
            _ => u8::from(replied) + u8::from(assured),
        };
        *self.states.entry((original.protocol, state)).or_default() += 1;
        self.sources.add(original.source, 0);
        self.services.add((original.destination, original.protocol, original.destination_port), 0);
        self.pools.add(entry);
        let key = Key::of(entry);
        if let Some((entries, _)) = self.groups.get_mut(&key) {
            *entries += 1;
        } else {
            self.make_room();
            self.groups.insert(key, (1, *entry));
        }
        if !replied {
            self.look_for_other_half(entry);
        }
        if entry.zone != 0 {
            self.join_in_zone(entry);
        }
    }

    /// Lets go of the smallest groups when there are too many, as in lossy counting (Manku and Motwani, VLDB 2002): what is
    /// large stays, and its count is too low by no more than what was let go of.
    fn make_room(&mut self) {
        while self.groups.len() >= GROUPS {
            self.pruned += 1;
            let (pruned, beyond) = (self.pruned, &mut self.beyond);
            self.groups.retain(|_, (entries, _)| {
                let stays = *entries > pruned;
                *beyond += if stays { 0 } else { *entries };
                stays
            });
        }
    }

    /// Two entries of different zones, neither of them answered, of which one is made of the answers to the other.
    fn look_for_other_half(&mut self, entry: &Entry) {
        let [originals, replies] = &mut self.halves;
        let elsewhere = |zone: Option<&u16>| zone.copied().filter(|zone| *zone != entry.zone);
        let found = match (elsewhere(originals.get(&entry.reply)), elsewhere(replies.get(&entry.original))) {
            (Some(answers), _) => Some((tuple(&entry.reply), entry.zone, answers)),
            (None, Some(asks)) => Some((tuple(&entry.original), asks, entry.zone)),
            (None, None) => None,
        };
        if let Some(found) = found.filter(|_| self.split.len() < SPLIT) {
            self.split.push(found);
        }
        if originals.len() < HALVES {
            originals.insert(entry.original, entry.zone);
            replies.insert(entry.reply, entry.zone);
        }
    }

    /// The kernel was asked in the default zone only.
    fn join_in_zone(&mut self, entry: &Entry) {
        let (original, reply) = (tuple(&entry.original), tuple(&entry.reply));
        for packet in self.absent.iter().filter(|p| **p == original || **p == reply) {
            self.joined.push((*packet, group(entry)));
        }
    }

    /// Writes the counts into the table.
    pub(super) fn finish(self, table: &mut Connections) {
        table.read = self.read;
        (table.assured, table.unreplied) = (self.assured, self.unreplied);
        let name = |protocol: u8, state: u8| {
            let state = names::state(protocol, state)
                .unwrap_or_else(|| names::REPLY_STATES[usize::from(state).min(2)].to_owned());
            format!("{} {state}", names::protocol(protocol))
        };
        for ((protocol, state), entries) in self.states {
            *table.states.entry(name(protocol, state)).or_default() += entries;
        }
        table.sources = self.sources.highest(HOLDERS).iter().map(|p| (p.key.ip(), p.count)).collect();
        let service = |p: &weir_conntrack::top::TopEntry<(Address, u8, u16)>| Service {
            destination: p.key.0.ip(),
            protocol: p.key.1,
            port: p.key.2,
            entries: p.count,
        };
        table.services = self.services.highest(HOLDERS).iter().map(service).collect();
        table.pools = self.pools.nearly_used_up(0.5, KEPT);
        table.joined.extend(self.joined);
        table.absent.retain(|p| !table.joined.iter().any(|(joined, _)| joined == p));
        table.split = self.split;
        let mut groups: Vec<(Key, (u64, Entry))> = self.groups.into_iter().collect();
        order::by(&mut groups, |a, b| b.1.0.cmp(&a.1.0).then(a.0.cmp(&b.0)));
        let mut unanswered = 0;
        let mut beyond = self.beyond;
        for (at, (key, (entries, example))) in groups.iter().enumerate() {
            let without_answer = key.flags & Status::SEEN_REPLY.0 == 0 && unanswered < KEPT;
            if at < KEPT || without_answer {
                unanswered += usize::from(without_answer);
                table.groups.push(key.group(*entries, example));
            } else {
                beyond += entries;
            }
        }
        table.beyond = beyond;
    }
}

fn tuple(of: &weir_netlink::conntrack::Tuple) -> Tuple {
    Tuple {
        source: of.source.ip(),
        destination: of.destination.ip(),
        protocol: of.protocol,
        source_port: of.source_port,
        destination_port: of.destination_port,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The large groups stay, with counts that are too low by little, for any number of groups.
    #[test]
    fn memory_is_bounded_and_large_groups_stay() {
        let mut tally = ConnectionCounts::new(Vec::new(), NatPorts::default());
        let mut entry = Entry { status: Status::SEEN_REPLY, ..Entry::default() };
        for n in 0..200_000_u32 {
            let often = n.is_multiple_of(4);
            let last = if often { [198, 18, 0, 1] } else { n.to_be_bytes() };
            entry.original.destination = IpAddr::from(last).into();
            tally.add(&entry);
            assert!(tally.groups.len() <= GROUPS);
        }
        let pruned = tally.pruned;
        let mut table = Connections::default();
        tally.finish(&mut table);
        assert_eq!(table.groups.len(), KEPT);
        assert!(table.groups[0].entries + pruned >= 50_000 && table.groups[0].entries <= 50_000);
        assert_eq!(table.groups.iter().map(|g| g.entries).sum::<u64>() + table.beyond, 200_000);
        assert_eq!(table.read, 200_000);
    }

    #[test]
    fn private_addresses_are_those_of_the_rfcs() {
        for (text, private) in [
            ("10.1.2.3", true),
            ("172.31.255.255", true),
            ("172.32.0.0", false),
            ("100.64.0.1", true),
            ("100.128.0.1", false),
            ("198.18.0.1", false),
            ("fd00::1", true),
            ("2001:2::1", false),
        ] {
            assert_eq!(is_private(text.parse().unwrap()), private, "{text}");
        }
    }
}
