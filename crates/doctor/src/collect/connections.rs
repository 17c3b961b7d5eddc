//! The table of connections, summed up.
//!
//! It is read once, at the window's end, entry by entry; only counts and a few examples are kept. All tables of the machine
//! are in one hash of the kernel, so every reading walks over the entries of all namespaces: the time for all of them is
//! bounded, and what was not read is said.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use weir_sys::conntrack::{Address, Conntrack, Entry, Filter, Status, dump};
use weir_sys::slab::Slab;
use weir_sys::{Error, ProcRoot, Result, modules, sysctl};

use super::Asked;
use crate::evidence::{ConnectionGroup, Connections, FlowEventKind, Service, Tuple};
use crate::table::given::Given;
use crate::table::names::{self, SCTP, TCP};
use crate::table::pools::Pools;
use crate::table::top::Top;

/// Time for the tables of all namespaces together.
const TIME: Duration = Duration::from_millis(2500);
/// What a table gets at least while there is time.
const LEAST: Duration = Duration::from_millis(300);
/// Time beyond that, for namespaces that lost something.
const RESERVE: Duration = Duration::from_millis(500);
/// Entries that no cause would conclude anything from, where nothing was lost. Each reading walks the hash of all namespaces,
/// some milliseconds, and idle containers are many.
const TOO_FEW: u64 = 3;
/// Entries between two looks at the clock.
const STRIDE: u64 = 4096;
/// Tuples of packets that are asked for.
const ASKED: usize = 512;
/// Groups that are told apart while the table is read.
const GROUPS: usize = 1 << 14;
/// Groups that are kept, and as many again of those that nobody answered.
const KEPT: usize = 100;
/// Places for exact counts of who holds the entries.
const PLACES: usize = 1 << 14;
/// Lines of "who holds them".
const HOLDERS: usize = 5;
/// Entries without an answer that are remembered to find their way back in another zone.
const HALVES: usize = 1 << 14;
/// Connections split between zones that are kept.
const SPLIT: usize = 64;

/// What the readings of all namespaces share.
#[derive(Debug)]
pub(super) struct Common {
    ends: Instant,
    memory: OnceLock<(Option<u64>, Option<u64>)>,
}

impl Common {
    /// From now on.
    pub(super) fn new() -> Self {
        Common { ends: Instant::now() + TIME, memory: OnceLock::new() }
    }

    /// When a reading that begins now must end, if it may begin: it gets half of what is left, so that one large table does
    /// not take it all.
    fn end_of(&self, now: Instant, explains: bool) -> Option<Instant> {
        let ends = if explains { self.ends + RESERVE } else { self.ends };
        let left = ends.saturating_duration_since(now);
        (left > Duration::ZERO).then(|| now + (left / 2).max(LEAST).min(left))
    }

    /// Bytes of an entry with its block of extensions (NF_CT_EXT_PREALLOC: a kmalloc of 128), and of all entries there are.
    fn memory(&self, root: &ProcRoot) -> (Option<u64>, Option<u64>) {
        *self.memory.get_or_init(|| {
            let entries = Slab::read(root, "nf_conntrack");
            let extensions = Slab::read(root, "kmalloc-128");
            let each = entries.zip(extensions).map(|(e, x)| e.bytes_each() + x.bytes_each());
            (each, entries.map(|s| s.bytes()))
        })
    }
}

/// The table of the calling thread's namespace; `None` where nothing is tracked.
pub(super) fn read(root: &ProcRoot, asked: &Asked<'_>, common: &Common) -> Result<Option<Connections>> {
    let Some(count) = root.conntrack_count() else { return Ok(None) };
    let number = |name: &str| sysctl::get_optional(root, name).ok().flatten()?.trim().parse::<u64>().ok();
    let (entry_bytes, slab_bytes) = common.memory(root);
    let mut table = Connections {
        count,
        max: number("net.netfilter.nf_conntrack_max"),
        buckets: number("net.netfilter.nf_conntrack_buckets"),
        entry_bytes,
        slab_bytes,
        ..Connections::default()
    };
    let packets = packets(asked);
    if count == 0 {
        table.absent = packets;
        table.source_nat_rules = rules(&Given::find(root, None));
        return Ok(Some(table));
    }
    // Asking would load it.
    if !modules::is_loaded(root, "nf_conntrack_netlink") {
        let why = "the kernel has no ctnetlink now (module nf_conntrack_netlink, CONFIG_NF_CT_NETLINK)";
        return Err(Error::other("read the conntrack table", why));
    }
    let given = Given::find(root, None);
    table.source_nat_rules = rules(&given);
    join(&mut table, &packets)?;
    if count < TOO_FEW && packets.is_empty() {
        table.partial = Some("a table of one or two entries, in which nothing was lost, is not read".into());
        return Ok(Some(table));
    }
    let Some(ends) = common.end_of(Instant::now(), !packets.is_empty()) else {
        table.partial = Some("the time for the tables of all namespaces was over".into());
        return Ok(Some(table));
    };
    let mut tally = Tally::new(table.absent.clone(), given);
    let dumped = dump(&Filter::default(), |entry| {
        tally.add(entry);
        let over = tally.read.is_multiple_of(STRIDE) && Instant::now() >= ends;
        if over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if dumped.stopped {
        table.partial =
            Some(format!("only {} of {count} entries were read in the time there was", tally.read));
    }
    tally.finish(&mut table);
    Ok(Some(table))
}

/// Rules that translate sources, where all of them could be read.
fn rules(given: &Given) -> Option<u64> {
    given.count().map(|n| n as u64)
}

/// Packets that an entry may explain: those refused by netfilter, and those that no socket took.
fn packets(asked: &Asked<'_>) -> Vec<Tuple> {
    let mut packets = BTreeSet::new();
    let resets = asked.flows.iter().filter(|f| f.kind == FlowEventKind::ResetSent);
    packets.extend(resets.filter_map(|f| f.tuple));
    for reason in ["NO_SOCKET", "NETFILTER_DROP"] {
        let samples = asked.drops.iter().filter(|d| d.reason == reason).flat_map(|d| &d.samples);
        let room = ASKED.saturating_sub(packets.len());
        packets.extend(samples.filter_map(|s| s.tuple()).take(room));
    }
    // Without ports a packet says too little of its entry.
    packets.retain(|t| t.source_port != 0 && t.destination_port != 0);
    packets.into_iter().take(ASKED).collect()
}

/// Asks the kernel for the entry of each packet.
fn join(table: &mut Connections, packets: &[Tuple]) -> Result<()> {
    if packets.is_empty() {
        return Ok(());
    }
    let mut conntrack = Conntrack::open()?;
    for packet in packets {
        match conntrack.get(&to_kernel(packet))? {
            Some(entry) => table.joined.push((*packet, group(&entry))),
            None => table.absent.push(*packet),
        }
    }
    Ok(())
}

fn to_kernel(packet: &Tuple) -> weir_sys::conntrack::Tuple {
    weir_sys::conntrack::Tuple {
        source: packet.source.into(),
        destination: packet.destination.into(),
        protocol: packet.protocol,
        source_port: packet.source_port,
        destination_port: packet.destination_port,
    }
}

fn tuple(of: &weir_sys::conntrack::Tuple) -> Tuple {
    Tuple {
        source: of.source.ip(),
        destination: of.destination.ip(),
        protocol: of.protocol,
        source_port: of.source_port,
        destination_port: of.destination_port,
    }
}

/// A group of this entry alone.
fn group(entry: &Entry) -> ConnectionGroup {
    Key::of(entry).group(1, entry)
}

/// What makes entries alike.
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
struct Tally {
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
    halves: [HashMap<weir_sys::conntrack::Tuple, u16, RandomState>; 2],
    split: Vec<(Tuple, u16, u16)>,
    /// Packets without an entry in the default zone.
    absent: Vec<Tuple>,
    joined: Vec<(Tuple, ConnectionGroup)>,
}

impl Tally {
    fn new(absent: Vec<Tuple>, given: Given) -> Self {
        Tally {
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

    fn add(&mut self, entry: &Entry) {
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

    fn finish(self, table: &mut Connections) {
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
        let service = |p: &crate::table::top::Place<(Address, u8, u16)>| Service {
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
        groups.sort_unstable_by(|a, b| b.1.0.cmp(&a.1.0).then(a.0.cmp(&b.0)));
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use weir_sys::NetNs;
    use weir_sys::conntrack::NewEntry;
    use weir_sys::privilege::test_needs_root;

    use super::*;
    use crate::evidence::FlowEvent;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn packet(from: &str, to: &str, protocol: u8) -> Tuple {
        let (from, to) = (at(from), at(to));
        let (source_port, destination_port) = (from.port(), to.port());
        Tuple { source: from.ip(), destination: to.ip(), protocol, source_port, destination_port }
    }

    /// What a new namespace with these entries says when it is asked about these packets.
    fn seen(entries: Vec<NewEntry>, packets: &[Tuple]) -> Connections {
        let reset = |tuple: &Tuple| FlowEvent {
            namespace: 0,
            kind: FlowEventKind::ResetSent,
            tuple: Some(*tuple),
            state: 0,
            times: 1,
            largest_bytes: 0,
            smallest_bytes: 0,
        };
        let flows: Vec<FlowEvent> = packets.iter().map(reset).collect();
        let asked = Asked { flows: flows.iter().collect(), ..Asked::default() };
        let ns = NetNs::create().unwrap();
        ns.run(|| {
            Conntrack::open().unwrap().insert(entries).unwrap();
            read(&ProcRoot::new("/"), &asked, &Common::new()).unwrap().unwrap()
        })
        .unwrap()
    }

    #[test]
    fn root_a_table_is_summed_up_by_who_holds_it() {
        if test_needs_root() {
            return;
        }
        let mut entries = Vec::new();
        for port in 0..300 {
            entries.push(NewEntry::udp(at(&format!("10.0.0.1:{}", 1000 + port)), at("198.18.0.53:53")));
        }
        for port in 0..100 {
            let client = at(&format!("[2001:2::1]:{}", 1000 + port));
            entries.push(NewEntry::tcp(client, at("[2001:2::2]:443"), 7));
        }
        let lonely = NewEntry { status: Status(0), ..NewEntry::tcp(at("10.0.0.9:5"), at("10.0.0.8:80"), 1) };
        entries.push(lonely);
        let table = seen(entries, &[]);
        assert_eq!((table.count, table.read, table.beyond), (401, 401, 0));
        assert_eq!((table.assured, table.unreplied, table.partial), (400, 1, None));
        let states = [("tcp syn-sent", 1), ("tcp time-wait", 100), ("udp assured", 300)];
        assert_eq!(table.states, states.map(|(name, n)| (name.to_owned(), n)).into());
        assert_eq!(table.sources[0], ("10.0.0.1".parse().unwrap(), 300));
        assert_eq!((table.services[0].port, table.services[0].entries), (53, 300));
        let groups: Vec<_> = table.groups.iter().map(|g| (g.entries, g.state, g.replied)).collect();
        assert_eq!(groups, [(300, 0, true), (100, 7, true), (1, 1, false)]);
        assert!(table.groups[0].private_source && !table.groups[0].same_network);
        assert!(!table.groups[1].private_source && table.groups[1].same_network);
        assert_eq!(table.groups[2].example, Some(packet("10.0.0.9:5", "10.0.0.8:80", 6)));
        assert!(table.entry_bytes.is_none_or(|n| (200..2000).contains(&n)), "{:?}", table.entry_bytes);
        assert_eq!((table.pools, table.split), (vec![], vec![]));
    }

    /// A packet finds its entry by either direction, behind translation, and in another zone.
    #[test]
    fn root_packets_are_joined_with_their_entries() {
        if test_needs_root() {
            return;
        }
        let outside = Some(at("198.18.0.9:2000"));
        let translated =
            NewEntry { source_nat: outside, ..NewEntry::tcp(at("10.0.0.1:40000"), at("198.18.0.1:443"), 3) };
        let zoned = NewEntry { zone: 5, ..NewEntry::udp(at("10.0.0.2:7"), at("198.18.0.1:8")) };
        let back = packet("198.18.0.1:443", "198.18.0.9:2000", 6);
        let other = packet("198.18.0.1:443", "198.18.0.9:2001", 6);
        let elsewhere = packet("198.18.0.1:8", "10.0.0.2:7", 17);
        let table = seen(vec![translated, zoned], &[back, other, elsewhere]);
        assert_eq!(table.absent, [other]);
        let joined: Vec<_> = table.joined.iter().map(|(t, g)| (*t, g.state, g.source_nat, g.zone)).collect();
        assert_eq!(joined, [(back, 3, true, 0), (elsewhere, 0, false, 5)]);
        assert_eq!(table.joined[0].1.example, Some(packet("10.0.0.1:40000", "198.18.0.1:443", 6)));
    }

    #[test]
    fn root_a_connection_in_two_zones_is_seen() {
        if test_needs_root() {
            return;
        }
        let half = |from: &str, to: &str, zone| NewEntry {
            zone,
            status: Status(0),
            ..NewEntry::udp(at(from), at(to))
        };
        let table = seen(
            vec![
                half("10.0.0.1:7", "198.18.0.1:8", 5),
                half("198.18.0.1:8", "10.0.0.1:7", 0),
                // One that goes through two zones one after the other is none.
                half("10.0.0.1:9", "198.18.0.1:8", 5),
                half("10.0.0.1:9", "198.18.0.1:8", 6),
            ],
            &[],
        );
        // Without translation each is the answer of the other, and which comes first is the hash's to say.
        let [(answer, asks, answers)] = table.split[..] else { panic!("{:?}", table.split) };
        let expected = if answer.source_port == 8 { (5, 0) } else { (0, 5) };
        assert_eq!((asks, answers), expected, "{answer:?}");
    }

    #[test]
    fn time_is_shared_and_who_lost_something_has_a_reserve() {
        let common = Common::new();
        let began = common.ends - TIME;
        let given = |after: Duration, explains| {
            let now = began + after;
            common.end_of(now, explains).map(|end| end - now)
        };
        assert_eq!(given(Duration::ZERO, false), Some(TIME / 2));
        assert_eq!(given(TIME - LEAST, false), Some(LEAST));
        assert_eq!(given(TIME - LEAST / 3, false), Some(LEAST / 3));
        assert_eq!(given(TIME, false), None);
        assert_eq!(given(TIME, true), Some(LEAST));
        assert_eq!(given(TIME + RESERVE, true), None);
    }

    /// However many groups there are, the large ones stay with counts that are too low by little.
    #[test]
    fn memory_is_bounded_and_large_groups_stay() {
        let mut tally = Tally::new(Vec::new(), Given::default());
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
