//! The aggregates of one pass over the table.

use weir_netlink::conntrack::{Address, Entry, Status};
use weir_text::order;

use super::contents::{Contents, Flags, OfAddress, OfNumber, OfPort, Protocol, Ranking, Talker, Times};
use super::memory::Evidence;
use super::names::{self, REPLY_STATES, TCP, UDP};
use super::nat_ports::NatPorts;
use super::pools::Pools;
use super::spread::Spread;
use super::top::{Top, TopEntry};

/// ESTABLISHED of `enum tcp_conntrack`.
const ESTABLISHED: u8 = 3;
/// Separately counted states of a protocol; the last one also counts all states beyond it.
const STATES: usize = 16;

/// Counts while the table is read.
#[derive(Debug)]
pub(crate) struct TableCounts {
    entries: u64,
    v6: u64,
    bytes: u64,
    packets: u64,
    counted: u64,
    extended: u64,
    /// By protocol number and state.
    states: Vec<[u64; STATES]>,
    flags: Flags,
    zones: Top<u16>,
    marks: Top<u32>,
    sources: Top<Address>,
    destinations: Top<Address>,
    ports: Top<(u8, u16)>,
    talkers: Top<TalkerKey>,
    pools: Pools,
    remaining: [Spread; GROUPS.len()],
    idle: Spread,
    age: Option<Spread>,
    now_ns: u64,
    established_s: Option<u64>,
}

/// Groups of the distribution of timeouts.
const GROUPS: [&str; 4] = ["tcp-established", "tcp-other", "udp", "other"];

type TalkerKey = (Address, Address, u8, u16);

/// The settings that a tally needs before it begins.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    /// Distinct keys of which counts are exact.
    pub(crate) places: usize,
    /// The known rules of source NAT.
    pub(crate) given: NatPorts,
    /// `nf_conntrack_tcp_timeout_established`, s.
    pub(crate) established_s: Option<u64>,
    /// Wall clock, ns since 1970.
    pub(crate) now_ns: u64,
}

impl TableCounts {
    pub(crate) fn new(settings: &Settings) -> Self {
        let places = settings.places;
        TableCounts {
            entries: 0,
            v6: 0,
            bytes: 0,
            packets: 0,
            counted: 0,
            extended: 0,
            states: vec![[0; STATES]; 256],
            flags: Flags::default(),
            zones: Top::new(places),
            marks: Top::new(places),
            sources: Top::new(places),
            destinations: Top::new(places),
            ports: Top::new(places),
            talkers: Top::new((places / 4).max(1)),
            pools: Pools::new(places, settings.given.clone()),
            remaining: Default::default(),
            idle: Spread::default(),
            age: None,
            now_ns: settings.now_ns,
            established_s: settings.established_s,
        }
    }

    /// Counts an entry.
    pub(crate) fn add(&mut self, entry: &Entry) {
        self.entries += 1;
        let original = &entry.original;
        self.v6 += u64::from(original.source.ip().is_ipv6());
        let bytes = entry.counters.map_or(0, |c| c.bytes);
        if let Some(counters) = entry.counters {
            self.counted += 1;
            self.packets = self.packets.saturating_add(counters.packets);
            self.bytes = self.bytes.saturating_add(bytes);
        }
        self.states[usize::from(original.protocol)][state_slot(entry)] += 1;
        self.add_flags(entry);
        self.add_times(entry);
        // Most tables have neither, and what is left to the first number needs no look-up.
        if entry.zone != 0 {
            self.zones.add(entry.zone, 0);
        }
        if entry.mark != 0 {
            self.marks.add(entry.mark, 0);
        }
        self.sources.add(original.source, bytes);
        self.destinations.add(original.destination, bytes);
        self.ports.add((original.protocol, original.destination_port), bytes);
        let talker = (original.source, original.destination, original.protocol, original.destination_port);
        self.talkers.add(talker, bytes);
        self.pools.add(entry);
    }

    fn add_flags(&mut self, entry: &Entry) {
        let flags = &mut self.flags;
        let count = |counter: &mut u64, flag: Status| *counter += u64::from(entry.status.has(flag));
        count(&mut flags.replied, Status::SEEN_REPLY);
        count(&mut flags.assured, Status::ASSURED);
        count(&mut flags.source_nat, Status::SOURCE_NAT);
        count(&mut flags.destination_nat, Status::DESTINATION_NAT);
        count(&mut flags.expected, Status::EXPECTED);
        count(&mut flags.offloaded, Status::OFFLOAD);
        count(&mut flags.hardware_offloaded, Status::HARDWARE_OFFLOAD);
        count(&mut flags.fixed_timeout, Status::FIXED_TIMEOUT);
        flags.unreplied = self.entries - flags.replied;
        let status = entry.status.0;
        let with = Status::SOURCE_NAT.0 | Status::DESTINATION_NAT.0 | Status::HELPER.0;
        let extended = status & with != 0 || entry.counters.is_some() || entry.start_ns.is_some();
        self.extended += u64::from(extended);
    }

    fn add_times(&mut self, entry: &Entry) {
        if let Some(seconds) = entry.timeout_s.map(u64::from) {
            let established = entry.original.protocol == TCP && entry.state == Some(ESTABLISHED);
            let group = match entry.original.protocol {
                _ if established => 0,
                TCP => 1,
                UDP => 2,
                _ => 3,
            };
            self.remaining[group].add(seconds);
            if let (true, Some(timeout)) = (established, self.established_s) {
                self.idle.add(timeout.saturating_sub(seconds));
            }
        }
        if let Some(start) = entry.start_ns {
            let age = self.now_ns.saturating_sub(start) / 1_000_000_000;
            self.age.get_or_insert_default().add(age);
        }
    }

    /// Returns the evidence of how many entries have extensions.
    pub(crate) fn evidence(&self, always: bool) -> Evidence {
        Evidence { entries: self.entries, extended: self.extended, always }
    }

    /// The result with the `n` first of each ranking.
    pub(crate) fn contents(&self, n: usize) -> Contents {
        let counted = self.counted > 0;
        let some = |bytes: u64| counted.then_some(bytes);
        let of_address = |p: TopEntry<Address>| OfAddress {
            address: p.key.ip().to_string(),
            entries: p.count,
            error: p.error,
            bytes: some(p.bytes),
        };
        let of_number = |value: u32, count: u64, error: u64| OfNumber { value, entries: count, error };
        Contents {
            entries: self.entries,
            ipv6: self.v6,
            counted: self.counted,
            packets: self.packets,
            bytes: self.bytes,
            protocols: self.protocols(),
            flags: self.flags,
            zones: ranking(&self.zones, n, |p| of_number(p.key.into(), p.count, p.error)),
            marks: ranking(&self.marks, n, |p| of_number(p.key, p.count, p.error)),
            sources: ranking(&self.sources, n, of_address),
            destinations: ranking(&self.destinations, n, of_address),
            destination_ports: ranking(&self.ports, n, |p| OfPort {
                protocol: names::protocol(p.key.0),
                port: p.key.1,
                service: names::service(p.key.0, p.key.1),
                entries: p.count,
                error: p.error,
                bytes: some(p.bytes),
            }),
            talkers: ranking(&self.talkers, n, |p| Talker {
                source: p.key.0.ip().to_string(),
                destination: p.key.1.ip().to_string(),
                protocol: names::protocol(p.key.2),
                port: p.key.3,
                service: names::service(p.key.2, p.key.3),
                entries: p.count,
                error: p.error,
                bytes: some(p.bytes),
            }),
            nat_pools: Ranking {
                exact: self.pools.is_exact(),
                distinct: self.pools.distinct(),
                error_at_most: self.pools.most_error(),
                top: self.pools.fullest(n),
            },
            times: self.times(),
        }
    }

    fn protocols(&self) -> Vec<Protocol> {
        let mut protocols: Vec<Protocol> = (0..=u8::MAX)
            .zip(&self.states)
            .filter(|(_, states)| states.iter().any(|n| *n > 0))
            .map(|(number, states)| Protocol {
                protocol: names::protocol(number),
                number,
                entries: states.iter().sum(),
                states: order::map(
                    (0..STATES)
                        .filter(|slot| states[*slot] > 0)
                        .map(|slot| (state_name(number, slot), states[slot])),
                ),
            })
            .collect();
        order::by_key(&mut protocols, |p| (std::cmp::Reverse(p.entries), p.number));
        protocols
    }

    fn times(&self) -> Times {
        Times {
            remaining: GROUPS.into_iter().zip(self.remaining.iter().map(Spread::classes)).collect(),
            idle_established: self.established_s.map(|_| self.idle.classes()),
            age: self.age.as_ref().map(Spread::classes),
        }
    }
}

fn ranking<K: Copy + Eq + std::hash::Hash + Ord, T>(
    top: &Top<K>,
    n: usize,
    each: impl Fn(TopEntry<K>) -> T,
) -> Ranking<T> {
    Ranking {
        exact: top.is_exact(),
        distinct: top.distinct(),
        error_at_most: top.most_error(),
        top: top.highest(n).into_iter().map(each).collect(),
    }
}

/// Slot of an entry's state; the last one is for "not told".
fn state_slot(entry: &Entry) -> usize {
    if names::state(entry.original.protocol, 0).is_some() {
        return entry.state.map_or(STATES - 1, |s| usize::from(s).min(STATES - 2));
    }
    match entry.status {
        s if s.has(Status::ASSURED) => 2,
        s if s.has(Status::SEEN_REPLY) => 1,
        _ => 0,
    }
}

fn state_name(protocol: u8, slot: usize) -> String {
    if slot == STATES - 1 {
        return "unknown".to_owned();
    }
    let name = names::state(protocol, slot as u8);
    name.unwrap_or_else(|| REPLY_STATES[slot.min(REPLY_STATES.len() - 1)].to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use weir_netlink::conntrack::Counters;

    use super::super::spread::Class;
    use super::*;

    fn entry(protocol: u8, state: Option<u8>, status: u32, timeout_s: u32) -> Entry {
        let address = |text: &str| Address::from(text.parse::<IpAddr>().unwrap());
        let mut entry =
            Entry { state, status: Status(status), timeout_s: Some(timeout_s), ..Entry::default() };
        entry.original.protocol = protocol;
        entry.original.source = address("10.0.0.1");
        entry.original.destination = address("198.18.0.1");
        entry
    }

    fn tallied(entries: &[Entry]) -> Contents {
        let settings = Settings {
            places: 100,
            established_s: Some(432_000),
            now_ns: 5_000_000_000_000,
            given: NatPorts::default(),
        };
        let mut tally = TableCounts::new(&settings);
        entries.iter().for_each(|e| tally.add(e));
        tally.contents(10)
    }

    #[test]
    fn entries_are_sorted_by_protocol_and_state() {
        let contents = tallied(&[
            entry(TCP, Some(3), 0x6, 431_990),
            entry(TCP, Some(3), 0x6, 400_000),
            entry(TCP, Some(7), 0x6, 100),
            entry(TCP, None, 0x4006, 0),
            entry(TCP, Some(200), 0, 1),
            entry(UDP, None, 0, 20),
            entry(UDP, None, 0x2, 20),
            entry(UDP, None, 0x6, 100),
        ]);
        let tcp = &contents.protocols[0];
        assert_eq!((tcp.protocol.as_str(), tcp.entries), ("tcp", 5));
        let states: Vec<_> = tcp.states.iter().map(|(s, n)| (s.as_str(), *n)).collect();
        assert_eq!(states, [("established", 2), ("state-14", 1), ("time-wait", 1), ("unknown", 1)]);
        let udp: Vec<_> = contents.protocols[1].states.iter().map(|(s, n)| (s.as_str(), *n)).collect();
        assert_eq!(udp, [("assured", 1), ("replied", 1), ("unreplied", 1)]);
        let flags = contents.flags;
        assert_eq!((flags.replied, flags.unreplied, flags.assured, flags.offloaded), (6, 2, 5, 1));
        let below = |classes: &[Class], s| classes.iter().find(|c| c.below_s == Some(s)).unwrap().entries;
        assert_eq!(below(&contents.times.remaining["tcp-established"], 432_000), 2);
        assert_eq!(below(&contents.times.remaining["udp"], 30), 2);
        // 432,000 - 431,990 = 10 s idle, and 32,000 s.
        let idle = contents.times.idle_established.unwrap();
        assert_eq!((below(&idle, 30), below(&idle, 86_400)), (1, 1));
        assert_eq!(contents.times.age, None);
    }

    #[test]
    fn traffic_and_age_are_told_where_the_kernel_has_them() {
        let mut counted = entry(TCP, Some(3), 0x6, 10);
        counted.counters = Some(Counters { packets: 3, bytes: 1500 });
        counted.start_ns = Some(4_990_000_000_000);
        let contents = tallied(&[counted, entry(UDP, None, 0, 10)]);
        assert_eq!((contents.counted, contents.packets, contents.bytes), (1, 3, 1500));
        assert_eq!(contents.sources.top[0].bytes, Some(1500));
        // 5,000 s - 4,990 s.
        let age = contents.times.age.unwrap();
        assert_eq!(age.iter().find(|c| c.below_s == Some(30)).unwrap().entries, 1);
        assert_eq!(tallied(&[entry(UDP, None, 0, 10)]).sources.top[0].bytes, None);
    }

    #[test]
    fn what_makes_an_extension_is_seen() {
        let settings = Settings { places: 4, ..Settings::default() };
        let mut tally = TableCounts::new(&settings);
        for status in [0x6, 0x16, 0x26, 0x2006] {
            tally.add(&entry(UDP, None, status, 1));
        }
        assert_eq!(tally.evidence(false), Evidence { entries: 4, extended: 3, always: false });
    }
}
