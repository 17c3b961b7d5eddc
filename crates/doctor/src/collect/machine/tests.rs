use std::collections::BTreeSet;

use super::*;
use crate::evidence::{CgroupThrottle, Core};
use weir_testkit::Files;

/// Recorded on a two-core virtual machine, kernel 6.18, shortened.
const BEFORE: &[(&str, &str)] = &[
    ("proc/sys/kernel/osrelease", "6.18.44\n"),
    ("proc/sys/net/core/netdev_max_backlog", "1000\n"),
    ("proc/stat", "cpu  1 1 1 1\ncpu0 100 0 50 1000 0 0 10 5\ncpu1 100 0 50 1000 0 0 10 5\n"),
    (
        "proc/thread-self/net/softnet_stat",
        "00000010 00000001 00000002 0 0 0 0 0 0 00000000 00000003 00000000 00000001\n\
         00000020 00000000 00000000 0 0 0 0 0 0 00000000 00000000 00000000 00000000\n",
    ),
    (
        "proc/interrupts",
        "           CPU0       CPU1\n 36:  0  828995 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0\n \
         38:  7   19218 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0\n 40: 1 1 PCI-MSIX 0-edge eth0-TxRx-0\n",
    ),
    ("proc/thread-self/net/stat/rt_cache", "entries in_martian_src\n00000005 00000002\n00000005 00000001\n"),
    ("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=100\n"),
    ("proc/meminfo", "MemTotal:        1000 kB\nHugePages_Total:       0\n"),
    ("proc/vmstat", "nr_free_pages 5\noom_kill 1\nallocstall_normal 4\n"),
    ("sys/fs/cgroup/cgroup.procs", ""),
    ("sys/fs/cgroup/cpu.stat", "usage_usec 5\n"),
    ("sys/fs/cgroup/web/cpu.stat", "usage_usec 5\nnr_periods 9\nnr_throttled 3\nthrottled_usec 700\n"),
    ("sys/fs/cgroup/web/memory.events", "low 0\nhigh 0\nmax 2\noom 0\n"),
    ("sys/fs/cgroup/quiet/cpu.stat", "nr_throttled 8\nthrottled_usec 900\n"),
];

const AFTER: &[(&str, &str)] = &[
    ("proc/stat", "cpu  1 1 1 1\ncpu0 110 0 60 1010 0 0 30 55\ncpu1 100 0 50 1100 0 0 10 5\n"),
    (
        "proc/thread-self/net/softnet_stat",
        "00000110 00000005 00000003 0 0 0 0 0 0 00000000 00000003 00000000 00000001\n\
         00000020 00000000 00000000 0 0 0 0 0 0 00000000 00000000 00000000 00000000\n",
    ),
    (
        "proc/interrupts",
        "           CPU0       CPU1\n 36:  0  828999 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0\n \
         38:  9   19228 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0\n 40: 4 1 PCI-MSIX 0-edge eth0-TxRx-0\n",
    ),
    ("proc/thread-self/net/stat/rt_cache", "entries in_martian_src\n00000005 00000012\n00000005 00000001\n"),
    ("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=350\n"),
    ("proc/vmstat", "nr_free_pages 5\noom_kill 2\nallocstall_normal 4\n"),
    ("sys/fs/cgroup/web/cpu.stat", "usage_usec 5\nnr_periods 19\nnr_throttled 8\nthrottled_usec 1700\n"),
];

fn watched(hidden: BTreeSet<EvidenceSource>) -> (Machine, BTreeMap<EvidenceSource, Sight>) {
    let files = Files::new(BEFORE);
    let options = Options { root: files.root(), hidden, ..Options::default() };
    let mut sources = BTreeMap::new();
    let mut looking = begin(&options, &mut sources);
    files.put_all(AFTER);
    let machine = looking.end(&options, &mut sources);
    (machine, sources)
}

#[test]
fn two_readings_make_a_window() {
    let (machine, sources) = watched(BTreeSet::new());
    assert_eq!(
        (machine.kernel.as_str(), machine.setting("net.core.netdev_max_backlog")),
        ("6.18.44", Some(1000))
    );
    let [first, second]: [Core; 2] = machine.cores.clone().try_into().unwrap();
    // 10 user, 10 system, 10 idle, 20 softirq, 50 stolen.
    assert!((first.share("steal") - 0.5).abs() < 1e-9 && (second.share("idle") - 1.0).abs() < 1e-9);
    // The line of softnet_stat says which core it is: the thirteenth column.
    assert_eq!((second.processed.change(), second.dropped.change(), second.squeezed.change()), (0x100, 4, 1));
    assert_eq!((first.processed.change(), first.dropped.change()), (0, 0));
    // Both cards, and not the disk.
    assert_eq!((first.interrupts.change(), second.interrupts.change()), (2 + 3, 10));
    assert_eq!(machine.counters["rt_cache.in_martian_src"].change(), 16);
    assert!(!machine.counters.contains_key("rt_cache.entries"));
    assert_eq!(machine.pressure_us["cpu.some"].change(), 250);
    assert_eq!(
        (machine.memory_events["oom_kill"].change(), machine.memory_events["allocstall_normal"].change()),
        (1, 0)
    );
    assert_eq!(machine.memory_bytes, BTreeMap::from([("MemTotal".to_owned(), 1_024_000)]));
    let held_back = CgroupThrottle {
        path: "/web".into(),
        throttled: Delta { before: 3, after: 8 },
        throttled_us: Delta { before: 700, after: 1700 },
        memory_max: Delta { before: 2, after: 2 },
        sockets: 0,
    };
    assert_eq!(machine.throttled, [held_back]);
    assert_eq!(
        (&sources[&EvidenceSource::Cores], &sources[&EvidenceSource::Pressure]),
        (&Sight::Seen, &Sight::Seen)
    );
    // There is no /dev/kmsg here, and the evidence source says so.
    assert!(matches!(&sources[&EvidenceSource::Log], Sight::Blind(why) if why.contains("kmsg")));
}

#[test]
fn hidden_sources_stay_empty() {
    let sources = [EvidenceSource::Cores, EvidenceSource::Pressure, EvidenceSource::Log];
    let (machine, sights) = watched(BTreeSet::from(sources));
    assert!(machine.cores.is_empty() && machine.pressure_us.is_empty() && machine.throttled.is_empty());
    for source in sources {
        assert_eq!(sights[&source], hidden());
    }
}

#[test]
fn an_empty_machine_is_blind_and_not_broken() {
    let options = Options { root: ProcRoot::new("/no/such"), ..Options::default() };
    let mut sources = BTreeMap::new();
    let mut looking = begin(&options, &mut sources);
    let machine = looking.end(&options, &mut sources);
    assert_eq!(machine, Machine::default());
    assert!(matches!(&sources[&EvidenceSource::Cores], Sight::Blind(why) if why.contains("proc/stat")));
    assert!(matches!(&sources[&EvidenceSource::Pressure], Sight::Partly(why) if why.contains("PSI")));
}

#[test]
fn sockets_of_a_group_are_those_of_its_processes() {
    let pid = std::process::id();
    let files = Files::new(BEFORE);
    files.put("sys/fs/cgroup/web/worker/cgroup.procs", &format!("{pid}\n"));
    files.link(&format!("proc/{pid}"), &format!("/proc/{pid}"));
    let _socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let options = Options { root: files.root(), ..Options::default() };
    let mut sources = BTreeMap::new();
    let mut looking = begin(&options, &mut sources);
    files.put_all(AFTER);
    let machine = looking.end(&options, &mut sources);
    assert!(machine.throttled[0].sockets >= 1, "{:?}", machine.throttled);
}

#[test]
fn lines_about_packets_are_told_from_the_others() {
    for line in [
        "nf_conntrack: nf_conntrack: table full in netns 4026532281, dropping packet",
        "neighbour: arp_cache: neighbor table overflow!",
        "IPv4: martian source 198.18.0.2 from 127.0.0.1, on dev in0",
        "TCP: request_sock_TCP: Possible SYN flooding on port 80. Sending cookies.",
        "dropped: IN=eth0 OUT= MAC=aa SRC=198.18.0.1",
        "NETDEV WATCHDOG: eth0 (virtio_net): transmit queue 0 timed out",
    ] {
        assert!(log::is_about_packets(line), "{line}");
    }
    for line in ["EXT4-fs (vda): mounted filesystem", "usb 1-1: new high-speed USB device"] {
        assert!(!log::is_about_packets(line), "{line}");
    }
}

#[test]
fn the_running_machine_is_read() {
    let options = Options::default();
    let mut sources = BTreeMap::new();
    let mut looking = begin(&options, &mut sources);
    // At least a tick of the clock, spent by this thread or by others.
    let started = std::time::Instant::now();
    let mut spun = 0_u64;
    while started.elapsed() < Duration::from_millis(30) {
        spun = std::hint::black_box(spun + 1);
    }
    let machine = looking.end(&options, &mut sources);
    assert_eq!(sources[&EvidenceSource::Cores], Sight::Seen);
    assert!(machine.cores.iter().any(|c| c.ticks.values().any(|d| d.change() > 0)), "{:?}", machine.cores);
    assert!(machine.memory_bytes["MemTotal"] > 0);
    let mut cost = Cost::default();
    looking.own_cost(&options.root, &mut cost);
    assert!(cost.cpu_ns > 1_000_000 && cost.memory_bytes > 1 << 20, "{cost:?}");
}
