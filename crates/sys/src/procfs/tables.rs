//! Statistics that the kernel prints as tables: neighbours, routes, sockets, IPsec, NFQUEUE, pressure.

use std::collections::BTreeMap;

use super::ProcRoot;

/// A table of `/proc/net/stat`: a line of names, and for each core a line of hexadecimal numbers. Sums over the cores; of
/// `entries`, which every core repeats, the first.
pub fn parse_stat_table(text: &str) -> BTreeMap<String, u64> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_ascii_whitespace().collect();
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for line in lines {
        for (name, value) in names.iter().zip(line.split_ascii_whitespace()) {
            let Ok(value) = u64::from_str_radix(value, 16) else { continue };
            let sum = sums.entry((*name).to_owned()).or_default();
            *sum = if *name == "entries" { value } else { sum.wrapping_add(value) };
        }
    }
    sums
}

/// `/proc/net/sockstat` and `sockstat6`: `TCP: inuse 5 orphan 0 tw 2 alloc 6 mem 3` as `TCP.inuse`, `TCP.tw`, ...
pub fn parse_sockstat(text: &str) -> BTreeMap<String, u64> {
    let mut values = BTreeMap::new();
    for line in text.lines() {
        let Some((protocol, rest)) = line.split_once(':') else { continue };
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        for pair in words.chunks_exact(2) {
            if let Ok(value) = pair[1].parse() {
                values.insert(format!("{protocol}.{}", pair[0]), value);
            }
        }
    }
    values
}

/// Lines of a name and a number (`/proc/net/xfrm_stat`, `/proc/vmstat`, `cpu.stat` of a control group).
pub fn parse_pairs(text: &str) -> BTreeMap<String, u64> {
    let pair = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
    };
    sorted(text.lines().filter_map(pair))
}

/// A map of these, by its own code for single entries. `collect` would sort them first, by several kilobytes more.
fn sorted(pairs: impl Iterator<Item = (String, u64)>) -> BTreeMap<String, u64> {
    let mut map = BTreeMap::new();
    map.extend(pairs);
    map
}

/// One queue of NFQUEUE (`/proc/net/netfilter/nfnetlink_queue`, net/netfilter/nfnetlink_queue.c seq_show).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueStatistics {
    /// Its number.
    pub number: u16,
    /// Packets that wait for a verdict.
    pub waiting: u64,
    /// Dropped because the queue was full.
    pub queue_dropped: u64,
    /// Dropped because the program's socket had no room.
    pub user_dropped: u64,
    /// Packets queued since it was bound, modulo 2^32.
    pub packets: u64,
}

/// The queues of a namespace.
pub fn parse_nfqueue(text: &str) -> Vec<QueueStatistics> {
    let queue = |line: &str| {
        // number, port id, waiting, copy mode, copy range, queue_dropped, user_dropped, last packet's id, 1.
        let columns: Vec<u64> = line.split_ascii_whitespace().map_while(|w| w.parse().ok()).collect();
        (columns.len() >= 8).then(|| QueueStatistics {
            number: columns[0] as u16,
            waiting: columns[2],
            queue_dropped: columns[5],
            user_dropped: columns[6],
            packets: columns[7],
        })
    };
    text.lines().filter_map(queue).collect()
}

/// Time stalled since boot, us, by `some` and `full`, of a file of `/proc/pressure`.
pub fn parse_pressure(text: &str) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let kind = words.next()?.to_owned();
        Some((kind, words.find_map(|w| w.strip_prefix("total=")?.parse().ok())?))
    };
    sorted(text.lines().filter_map(line))
}

/// One line of `/proc/interrupts`: its number or name, counts by core, and what follows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interrupt {
    /// Number, or name of one that has none (`LOC`).
    pub name: String,
    /// Counts, in the order of the cores in the first line.
    pub counts: Vec<u64>,
    /// Chip, trigger and the names of those who asked for it.
    pub about: String,
}

/// `/proc/interrupts`: the cores of its columns, and its lines.
pub fn parse_interrupts(text: &str) -> (Vec<usize>, Vec<Interrupt>) {
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default().split_ascii_whitespace();
    let cores: Vec<usize> = head.filter_map(|w| w.strip_prefix("CPU")?.parse().ok()).collect();
    let interrupt = |line: &str| {
        let (name, rest) = line.trim_start().split_once(':')?;
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        let counts: Vec<u64> = words.iter().take(cores.len()).map_while(|w| w.parse().ok()).collect();
        let about = words[counts.len()..].join(" ");
        Some(Interrupt { name: name.to_owned(), counts, about })
    };
    let interrupts = lines.filter_map(interrupt).collect();
    (cores, interrupts)
}

impl ProcRoot {
    /// A table of `/proc/net/stat` in the calling thread's namespace; `None` where it is not.
    pub fn net_stat(&self, table: &str) -> Option<BTreeMap<String, u64>> {
        Some(parse_stat_table(&self.read_optional(&format!("proc/thread-self/net/stat/{table}"))?))
    }

    /// A file of the calling thread's namespace below `/proc/net`; `None` where it is not.
    pub fn net_file(&self, name: &str) -> Option<String> {
        self.read_optional(&format!("proc/thread-self/net/{name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_summed_over_the_cores() {
        let text = "entries  allocs   table_fulls\n00000006 0000000a 00000001\n00000006 00000010 00000002\n";
        let sums = parse_stat_table(text);
        assert_eq!((sums["entries"], sums["allocs"], sums["table_fulls"]), (6, 26, 3));
        assert_eq!(parse_stat_table(""), BTreeMap::new());
        assert_eq!(parse_stat_table("a b\nzz\n"), BTreeMap::new());
    }

    #[test]
    fn recorded_files_are_read() {
        let sockets = parse_sockstat(
            "sockets: used 140\nTCP: inuse 5 orphan 0 tw 2 alloc 6 mem 3\nFRAG: inuse 1 memory 4096\n",
        );
        assert_eq!((sockets["sockets.used"], sockets["TCP.tw"], sockets["FRAG.memory"]), (140, 2, 4096));
        let ipsec = parse_pairs("XfrmInError             \t0\nXfrmInNoStates          \t17\n\nbroken\n");
        assert_eq!((ipsec.len(), ipsec["XfrmInNoStates"]), (2, 17));
        let queues = parse_nfqueue("    0   4711    12 2  65531     3     5      900  1\n    1  x\n");
        let wanted =
            QueueStatistics { number: 0, waiting: 12, queue_dropped: 3, user_dropped: 5, packets: 900 };
        assert_eq!(queues, [wanted]);
        let stalled = parse_pressure(
            "some avg10=89.17 avg60=70.15 avg300=41.96 total=7319466359\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=12\n",
        );
        assert_eq!((stalled["some"], stalled["full"]), (7_319_466_359, 12));
    }

    #[test]
    fn interrupts_have_a_column_for_each_core() {
        let text = "           CPU0       CPU2       \n 38:          7      19218 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0\nLOC:   16552751   26300913   Local timer interrupts\nERR:          0\n";
        let (cores, interrupts) = parse_interrupts(text);
        assert_eq!(cores, [0, 2]);
        assert_eq!(interrupts[0].counts, [7, 19218]);
        assert_eq!(interrupts[0].about, "PCI-MSIX-0000:00:03.0 1-edge virtio2-input.0");
        assert_eq!((interrupts[2].name.as_str(), interrupts[2].counts.as_slice()), ("ERR", &[0][..]));
    }

    proptest::proptest! {
        #[test]
        fn garbage_is_left_out(text in "([a-zA-Z0-9:.= \t]{0,12}\n?){0,12}") {
            let _ = parse_stat_table(&text);
            let _ = parse_sockstat(&text);
            let _ = parse_pairs(&text);
            let _ = parse_pressure(&text);
            let (cores, interrupts) = parse_interrupts(&text);
            proptest::prop_assert!(interrupts.iter().all(|i| i.counts.len() <= cores.len()));
            proptest::prop_assert!(parse_nfqueue(&text).len() <= text.lines().count());
        }
    }
}
