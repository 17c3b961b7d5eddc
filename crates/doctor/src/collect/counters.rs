//! Counters of protocols and of connection tracking.

use std::collections::BTreeMap;

use weir_netlink::conntrack::Conntrack;
use weir_sys::procfs::{parse_nfqueue, parse_pairs, parse_sockstat};
use weir_sys::{Error, ProcRoot, Result, modules};
use weir_text::order;

use crate::evidence::{Counters, Delta};

/// Columns of `/proc/net/stat/nf_conntrack`, which have kept the names of old (net/netfilter/nf_conntrack_standalone.c), and what
/// ctnetlink calls them.
const CONNTRACK: &[(&str, &str)] = &[
    ("found", "found"),
    ("invalid", "invalid"),
    ("insert", "insert"),
    ("insert_failed", "insert_failed"),
    ("drop", "drop"),
    ("early_drop", "early_drop"),
    ("icmp_error", "error"),
    ("search_restart", "search_restart"),
    ("clashres", "clash_resolve"),
    ("chainlength", "chain_toolong"),
];

/// Counters and gauges of the calling thread's namespace (see [`crate::evidence::Namespace::counters`]).
pub(super) fn protocols(root: &ProcRoot) -> Result<(Counters, BTreeMap<String, u64>)> {
    let mut counters = root.protocol_counters()?;
    let mut gauges = BTreeMap::new();
    if let Some(text) = root.net_file("xfrm_stat") {
        let named =
            |(name, value): (String, u64)| Some((format!("xfrm.{}", name.strip_prefix("Xfrm")?), value));
        counters.extend(parse_pairs(&text).into_iter().filter_map(named));
    }
    if let Some(text) = root.net_file("netfilter/nfnetlink_queue") {
        queues(&text, &mut counters, &mut gauges);
    }
    for file in ["sockstat", "sockstat6"] {
        let values = root.net_file(file).map(|text| parse_sockstat(&text)).unwrap_or_default();
        gauges.extend(values.into_iter().map(|(name, value)| (format!("{file}.{name}"), value)));
    }
    if let Some(count) = root.conntrack_count() {
        gauges.insert("conntrack.count".to_owned(), count);
    }
    let mut counters: Counters =
        order::map(counters.into_iter().map(|(name, value)| (name, Delta::at(value))));
    let tables = super::machine::tables(root);
    // Those of neighbours are shown in the first namespace alone; those of routes everywhere, though they are the same ones.
    if tables.keys().any(|name| name.starts_with("arp_cache.")) {
        counters.extend(tables);
    }
    Ok((counters, gauges))
}

/// Reads the losses of NFQUEUE, in all and by queue, and the packets that wait in it.
fn queues(text: &str, counters: &mut BTreeMap<String, u64>, gauges: &mut BTreeMap<String, u64>) {
    for queue in parse_nfqueue(text) {
        for (name, value) in [("queue_dropped", queue.queue_dropped), ("user_dropped", queue.user_dropped)] {
            *counters.entry(format!("nfqueue.{name}")).or_default() += value;
            counters.insert(format!("nfqueue.{}.{name}", queue.number), value);
        }
        counters.insert(format!("nfqueue.{}.packets", queue.number), queue.packets);
        gauges.insert(format!("nfqueue.{}.waiting", queue.number), queue.waiting);
    }
}

/// Statistics of connection tracking; nothing where there is none.
pub(super) fn conntrack(root: &ProcRoot) -> Result<Counters> {
    if root.conntrack_count().is_none() {
        return Ok(Counters::new());
    }
    let named = |name: &str, value: u64| (format!("conntrack.{name}"), Delta::at(value));
    let asked = match modules::is_loaded(root, "nf_conntrack_netlink") {
        true => Conntrack::open().and_then(|mut table| table.statistics()),
        // Asking ctnetlink would load it.
        false => Err(Error::other("read conntrack statistics", "nf_conntrack_netlink is not loaded")),
    };
    match asked {
        Ok(statistics) => Ok(order::map(statistics.into_iter().map(|(name, value)| named(name, value)))),
        // The same numbers, for everybody to read, where the kernel still prints them (CONFIG_NF_CONNTRACK_PROCFS).
        Err(e) => {
            let table = root.net_stat("nf_conntrack").ok_or(e)?;
            Ok(order::map(CONNTRACK.iter().filter_map(|(old, name)| Some(named(name, *table.get(*old)?)))))
        }
    }
}

/// Names that do not come from the kernel's files.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = String> {
    let mut counters = BTreeMap::new();
    queues("0 1 0 2 65531 0 0 0 1\n", &mut counters, &mut BTreeMap::new());
    let conntrack = CONNTRACK.iter().map(|(_, name)| format!("conntrack.{name}"));
    counters.into_keys().chain(conntrack).chain(["conntrack.count".to_owned()])
}

#[cfg(test)]
mod tests {
    use weir_netlink::Rtnetlink;
    use weir_sys::NetNs;
    use weir_sys::privilege::test_needs_root;

    use super::*;
    use weir_testkit::Files;

    #[test]
    fn files_become_counters_and_gauges() {
        let files = Files::new(&[
            ("proc/thread-self/net/snmp", "Ip: Forwarding InAddrErrors\nIp: 1 7\n"),
            ("proc/thread-self/net/xfrm_stat", "XfrmInNoStates          \t17\n"),
            ("proc/thread-self/net/sockstat", "TCP: inuse 5 orphan 0 tw 2 alloc 6 mem 3\n"),
            ("proc/thread-self/net/sockstat6", "FRAG6: inuse 1 memory 99\n"),
            (
                "proc/thread-self/net/netfilter/nfnetlink_queue",
                "    0   4711    12 2  65531     3     5      900  1\n    7   4711    1 2  65531     1     0      90  1\n",
            ),
        ]);
        let (counters, gauges) = protocols(&files.root()).unwrap();
        let counter = |name: &str| counters[name].after;
        assert_eq!((counter("ip.InAddrErrors"), counter("xfrm.InNoStates")), (7, 17));
        assert_eq!((counter("nfqueue.queue_dropped"), counter("nfqueue.7.queue_dropped")), (4, 1));
        assert_eq!((counter("nfqueue.user_dropped"), counter("nfqueue.0.packets")), (5, 900));
        assert_eq!((gauges["sockstat.TCP.tw"], gauges["sockstat6.FRAG6.memory"]), (2, 99));
        assert_eq!((gauges["nfqueue.0.waiting"], gauges.get("conntrack.count")), (12, None));
    }

    #[test]
    fn conntrack_statistics_are_read_from_proc_where_ctnetlink_is_not_loaded() {
        let files = Files::new(&[
            ("proc/modules", "nf_conntrack 1 0 - Live 0x0\n"),
            ("proc/sys/net/netfilter/nf_conntrack_count", "5\n"),
            (
                "proc/thread-self/net/stat/nf_conntrack",
                "entries  clashres found new drop chainlength icmp_error\n00000005  00000001 00000002 00000003 00000010 00000004 00000006\n00000005  00000001 00000002 00000003 00000001 00000000 00000000\n",
            ),
        ]);
        let counters = conntrack(&files.root()).unwrap();
        std::fs::remove_file(files.path().join("proc/thread-self/net/stat/nf_conntrack")).unwrap();
        let without = conntrack(&files.root());
        let values: Vec<_> = counters.iter().map(|(name, d)| (name.as_str(), d.after)).collect();
        let wanted = [
            ("conntrack.chain_toolong", 4),
            ("conntrack.clash_resolve", 2),
            ("conntrack.drop", 17),
            ("conntrack.error", 6),
            ("conntrack.found", 4),
        ];
        assert_eq!(values, wanted);
        assert!(without.unwrap_err().to_string().contains("nf_conntrack_netlink"));
    }

    #[test]
    fn root_a_namespace_has_counters_of_its_own() {
        if test_needs_root() {
            return;
        }
        let namespace = NetNs::create().unwrap();
        let read = || protocols(&ProcRoot::default()).unwrap().0;
        let sent = namespace
            .run(|| {
                Rtnetlink::open().unwrap().set_up("lo").unwrap();
                let before = read();
                let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
                for _ in 0..7 {
                    socket.send_to(b"x", "127.0.0.1:4711").unwrap();
                }
                let mut after = read();
                crate::evidence::counters_since(&mut after, &before);
                after
            })
            .unwrap();
        // RFC 4113: datagrams for which there was no application at the destination port.
        assert_eq!((sent["udp.NoPorts"].change(), sent["udp.OutDatagrams"].change()), (7, 7));
    }
}
