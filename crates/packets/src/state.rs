//! The state table (RFC 9693 section 4.4): where the responder has seen each flow come from, after translation. Ingress frames
//! go back there.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_bpf::{Mapped, Plain};

use crate::flow_order::Tuple;
use crate::shared::{WeirSeen4, WeirSeen6};

/// Flows looked at to find the source that most of them have. More would not change the answer, and a table may have 64 million.
const SAMPLE: u32 = 65_536;

/// Flows as they arrived, by number. Filled by a receiver in this process ([`StateTable::learn`]) or by one in the kernel,
/// which goes on while the table is read.
#[derive(Debug)]
pub struct StateTable {
    /// The address at which all of them arrived.
    destination: IpAddr,
    seen: Seen,
}

#[derive(Debug)]
enum Seen {
    V4(Entries<WeirSeen4>),
    V6(Entries<WeirSeen6>),
}

/// Entries of either kind of receiver.
#[derive(Debug)]
enum Entries<T> {
    Own(Vec<T>),
    Kernel(Mapped<T>),
}

impl<T: Plain> Entries<T> {
    fn len(&self) -> usize {
        match self {
            Entries::Own(entries) => entries.len(),
            Entries::Kernel(entries) => entries.len(),
        }
    }

    fn get(&self, index: usize) -> Option<T> {
        match self {
            Entries::Own(entries) => entries.get(index).copied(),
            Entries::Kernel(entries) => (index < entries.len()).then(|| entries.get(index)),
        }
    }

    fn set(&mut self, index: usize, value: T) {
        match self {
            Entries::Own(entries) => entries[index] = value,
            Entries::Kernel(entries) => entries.set(index, value),
        }
    }

    /// Copies as much as there is and fits.
    fn take_over(&mut self, old: &Self) {
        for index in 0..self.len().min(old.len()) {
            if let Some(entry) = old.get(index) {
                self.set(index, entry);
            }
        }
    }
}

impl StateTable {
    /// A table in this process' memory for flows 0 to `flows - 1`, which all arrive at `destination`.
    pub fn new(destination: IpAddr, flows: u32) -> Self {
        let seen = match destination {
            IpAddr::V4(_) => Seen::V4(Entries::Own(vec![WeirSeen4::zeroed(); flows as usize])),
            IpAddr::V6(_) => Seen::V6(Entries::Own(vec![WeirSeen6::zeroed(); flows as usize])),
        };
        StateTable { destination, seen }
    }

    /// The table that a program in the kernel fills, over IPv4.
    pub(crate) fn of_kernel4(destination: IpAddr, entries: Mapped<WeirSeen4>) -> Self {
        StateTable { destination, seen: Seen::V4(Entries::Kernel(entries)) }
    }

    /// The table that a program in the kernel fills, over IPv6.
    pub(crate) fn of_kernel6(destination: IpAddr, entries: Mapped<WeirSeen6>) -> Self {
        StateTable { destination, seen: Seen::V6(Entries::Kernel(entries)) }
    }

    /// How many flows there is room for.
    pub fn room(&self) -> u32 {
        let room = match &self.seen {
            Seen::V4(entries) => entries.len(),
            Seen::V6(entries) => entries.len(),
        };
        u32::try_from(room).unwrap_or(u32::MAX)
    }

    /// The flow of that number as it arrived, if it has been seen; its source port is never 0.
    pub fn get(&self, flow: u32) -> Option<Tuple> {
        let index = flow as usize;
        let (source, ports) = match &self.seen {
            Seen::V4(entries) => {
                let entry = entries.get(index)?;
                (IpAddr::from(Ipv4Addr::from(entry.source.to_ne_bytes())), entry.ports)
            }
            Seen::V6(entries) => {
                let entry = entries.get(index)?;
                (IpAddr::from(address6(&entry.source)), entry.ports)
            }
        };
        if ports == 0 {
            return None;
        }
        let [a, b, c, d] = ports.to_ne_bytes();
        Some(Tuple {
            source,
            source_port: u16::from_be_bytes([a, b]),
            destination: self.destination,
            destination_port: u16::from_be_bytes([c, d]),
        })
    }

    /// Flows that have been seen, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Tuple)> + '_ {
        (0..self.room()).filter_map(|flow| Some((flow, self.get(flow)?)))
    }

    /// Records a flow as it arrived. Returns true if the flow is new. Ignores flows beyond the table's room, of another family,
    /// or from port 0 (which cannot be answered).
    pub fn learn(&mut self, flow: u32, source: IpAddr, source_port: u16, destination_port: u16) -> bool {
        if flow >= self.room() || source_port == 0 {
            return false;
        }
        let index = flow as usize;
        let ([a, b], [c, d]) = (source_port.to_be_bytes(), destination_port.to_be_bytes());
        let ports = u32::from_ne_bytes([a, b, c, d]);
        match (&mut self.seen, source) {
            (Seen::V4(entries), IpAddr::V4(source)) => {
                let old = entries.get(index);
                entries.set(index, WeirSeen4 { source: u32::from_ne_bytes(source.octets()), ports });
                old.is_some_and(|old| old.ports == 0)
            }
            (Seen::V6(entries), IpAddr::V6(source)) => {
                let old = entries.get(index);
                entries.set(index, WeirSeen6 { source: words6(source), ports, pad: 0 });
                old.is_some_and(|old| old.ports == 0)
            }
            _ => false,
        }
    }

    /// Forgets all flows.
    pub fn forget(&mut self) {
        match &mut self.seen {
            Seen::V4(entries) => (0..entries.len()).for_each(|i| entries.set(i, Plain::zeroed())),
            Seen::V6(entries) => (0..entries.len()).for_each(|i| entries.set(i, Plain::zeroed())),
        }
    }

    /// Takes over what another table of the same family has seen, as far as there is room.
    pub(crate) fn take_over(&mut self, old: &Self) {
        match (&mut self.seen, &old.seen) {
            (Seen::V4(entries), Seen::V4(old)) => entries.take_over(old),
            (Seen::V6(entries), Seen::V6(old)) => entries.take_over(old),
            _ => {}
        }
    }

    /// The source address that most of the flows 0 to `flows - 1` have: of all, or of 65,536 evenly spread over more. The lowest of
    /// those that are equally frequent; `None` if none has been seen.
    pub fn main_source(&self, flows: u32) -> Option<IpAddr> {
        let flows = flows.min(self.room());
        let stride = (flows / SAMPLE).max(1) as usize;
        // With very few flows seen, the sample may miss them all; then every flow is checked.
        self.most_frequent((0..flows).step_by(stride)).or_else(|| self.most_frequent(0..flows))
    }

    fn most_frequent(&self, flows: impl Iterator<Item = u32>) -> Option<IpAddr> {
        let mut sources: HashMap<IpAddr, u32> = HashMap::new();
        for learnt in flows.filter_map(|flow| self.get(flow)) {
            *sources.entry(learnt.source).or_default() += 1;
        }
        let most = sources.values().copied().max()?;
        sources.into_iter().filter(|(_, count)| *count == most).map(|(source, _)| source).min()
    }
}

/// Words of an IPv6 address as they lie in memory.
pub(crate) fn words6(address: Ipv6Addr) -> [u32; 4] {
    let octets = address.octets();
    std::array::from_fn(|i| u32::from_ne_bytes(std::array::from_fn(|j| octets[4 * i + j])))
}

fn address6(words: &[u32; 4]) -> Ipv6Addr {
    let mut octets = [0; 16];
    for (four, word) in octets.chunks_exact_mut(4).zip(words) {
        four.copy_from_slice(&word.to_ne_bytes());
    }
    octets.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn what_was_learnt_comes_back_in_both_families() {
        for (own, source) in
            [("198.19.0.2", "198.19.0.1"), ("2001:2:0:1::2", "2001:2:0:1:1234:5678:9abc:def0")]
        {
            let mut table = StateTable::new(address(own), 4);
            assert!(table.learn(3, address(source), 1024, 49151));
            assert!(!table.learn(3, address(source), 65535, 1), "seen before");
            let expected = Tuple {
                source: address(source),
                source_port: 65535,
                destination: address(own),
                destination_port: 1,
            };
            assert_eq!(table.iter().collect::<Vec<_>>(), [(3, expected)]);
            table.forget();
            assert_eq!(table.iter().count(), 0);
        }
    }

    #[test]
    fn what_nobody_could_answer_is_not_learnt() {
        let mut table = StateTable::new(address("198.19.0.2"), 4);
        assert!(!table.learn(0, address("198.19.0.1"), 0, 80), "port 0");
        assert!(!table.learn(4, address("198.19.0.1"), 1024, 80), "no room");
        assert!(!table.learn(0, address("2001:2::1"), 1024, 80), "another family");
        assert_eq!(table.iter().count(), 0);
        assert_eq!(table.get(4), None);
    }

    #[test]
    fn the_main_source_is_the_most_frequent_one_also_in_a_sample() {
        let mut table = StateTable::new(address("198.19.0.2"), 300_000);
        assert_eq!(table.main_source(300_000), None);
        // A single flow, which a sample of every fourth misses.
        table.learn(1, address("198.19.0.9"), 1024, 80);
        assert_eq!(table.main_source(300_000), Some(address("198.19.0.9")));
        assert_eq!(table.main_source(1), None, "not among those asked for");
        for flow in 0..300_000 {
            let source = if flow % 3 == 0 { "198.19.0.7" } else { "198.19.0.8" };
            table.learn(flow, address(source), 1024, 80);
        }
        assert_eq!(table.main_source(300_000), Some(address("198.19.0.8")));
    }
}
