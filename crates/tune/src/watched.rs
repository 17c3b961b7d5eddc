//! Counters to watch while a plan is on trial: for each setting, those that prove the causes which it is meant to fix.

use std::time::Duration;

use serde::Serialize;
use weir_guard::{Metric, WatchedNumber, Worse};

use super::knobs;
use super::metric::Counter;
use super::need::View;
use super::planned::TunePlan;

/// How often the guard reads.
const EVERY: Duration = Duration::from_secs(1);
/// Readings in a row that take a change back.
const STRIKES: u32 = 3;
/// A change may cost so much more than before without being blamed: events a second, and as a factor. Traffic varies.
const SLACK_PER_S: f64 = 10.0;
/// See [`SLACK_PER_S`].
const FACTOR: f64 = 2.0;

/// Text for a setting without any counter.
pub(super) const NOTHING: &str = "nothing to watch: only the time limit rolls it back";

/// Another way for packets is to relieve the table; if it goes wrong, what the host itself exchanges with containers suffers.
pub(super) const OF_ACTIONS: [Counter; 2] = [Counter::ConntrackDrops, Counter::Retransmits];

/// Beginnings of the names of settings, `*` for one part, and the counters that show whether they did harm. The first match
/// applies. If a list is empty, the kernel counts nothing that such a setting could make worse: a program that finds no port, for
/// example, gets only an error.
const BY_SETTING: &[(&str, &[Counter])] = &[
    ("net.netfilter.nf_log_all_netns", &[]),
    ("net.netfilter.nf_conntrack_tcp_be_liberal", &[Counter::ConntrackInvalid, Counter::ConntrackDrops]),
    ("net.netfilter.nf_conntrack_tcp_loose", &[Counter::ConntrackInvalid, Counter::ConntrackDrops]),
    ("net.netfilter.nf_conntrack_checksum", &[Counter::ConntrackInvalid, Counter::ConntrackDrops]),
    ("net.netfilter.nf_conntrack_max", &[Counter::ConntrackDrops]),
    ("net.netfilter.nf_conntrack_buckets", &[Counter::ConntrackDrops]),
    ("net.netfilter.nf_conntrack_expect_max", &[Counter::ConntrackDrops]),
    // Timeouts: too long, and the table fills; too short, and what is forgotten comes again as invalid.
    ("net.netfilter.nf_conntrack_", &[Counter::ConntrackDrops, Counter::ConntrackInvalid]),
    ("vm.min_free_kbytes", &[Counter::MemoryStalls]),
    ("net.ipv4.ip_forward", &[Counter::Unroutable]),
    ("net.ipv4.conf.*.forwarding", &[Counter::Unroutable]),
    ("net.ipv6.conf.*.forwarding", &[Counter::Unroutable]),
    ("net.ipv4.conf.*.rp_filter", &[Counter::ReversePath]),
    ("net.ipv4.conf.*.accept_local", &[Counter::Martians]),
    ("net.ipv4.conf.*.route_localnet", &[Counter::Martians]),
    ("net.ipv4.conf.*.send_redirects", &[]),
    ("net.ipv4.conf.*.log_martians", &[]),
    // Whether rules see bridged packets: what they then do is counted by rules alone.
    ("net.bridge.", &[]),
    ("net.ipv4.icmp_", &[Counter::IcmpLimited]),
    ("net.ipv6.icmp.ratelimit", &[Counter::IcmpLimited]),
    ("net.ipv4.route.min_pmtu", &[Counter::FragmentationFailures]),
    ("net.ipv4.neigh.*.unres_qlen_bytes", &[Counter::NeighbourWaits]),
    ("net.ipv6.neigh.*.unres_qlen_bytes", &[Counter::NeighbourWaits]),
    ("net.ipv4.neigh.default.gc_thresh", &[Counter::NeighbourOverflows]),
    ("net.ipv6.neigh.default.gc_thresh", &[Counter::NeighbourOverflows]),
    ("net.ipv4.ipfrag_", &[Counter::ReassemblyFailures]),
    ("net.ipv6.ip6frag_", &[Counter::ReassemblyFailures]),
    ("net.core.netdev_max_backlog", &[Counter::SoftnetDrops]),
    ("net.core.netdev_budget", &[Counter::SoftnetSqueezes, Counter::SoftnetDrops]),
    ("net.core.dev_weight", &[Counter::SoftnetSqueezes, Counter::SoftnetDrops]),
    ("net.core.rps_sock_flow_entries", &[Counter::SoftnetDrops]),
    ("net.core.somaxconn", &[Counter::ListenOverflows]),
    ("net.ipv4.tcp_max_syn_backlog", &[Counter::ListenOverflows]),
    ("net.ipv4.tcp_syncookies", &[Counter::ListenOverflows]),
    ("net.ipv4.tcp_max_tw_buckets", &[Counter::TimeWaitOverflows]),
    ("net.ipv4.tcp_timestamps", &[Counter::OldTimestamps, Counter::Retransmits]),
    ("net.ipv4.tcp_tw_reuse", &[Counter::OldTimestamps, Counter::Retransmits]),
    ("net.ipv4.ip_local_port_range", &[]),
    ("net.ipv4.tcp_mem", &[Counter::TcpMemory]),
    ("net.ipv4.tcp_rmem", &[Counter::TcpMemory, Counter::Retransmits]),
    ("net.ipv4.tcp_wmem", &[Counter::TcpMemory, Counter::Retransmits]),
    ("net.ipv4.tcp_", &[Counter::Retransmits]),
    ("net.ipv4.udp_mem", &[Counter::UdpBufferErrors]),
    // These hold for sockets of all protocols; only UDP sockets lose packets that do not fit.
    ("net.core.rmem_", &[Counter::UdpBufferErrors]),
    ("net.core.wmem_", &[Counter::UdpBufferErrors]),
];

/// The counters that show whether a setting did harm; none where there is nothing to watch.
pub(super) fn of_setting(name: &str) -> &'static [Counter] {
    let pattern = knobs::find(name).map_or(name, |knob| knob.name);
    BY_SETTING.iter().find(|(begins, _)| pattern.starts_with(begins)).map_or(&[], |(_, counters)| counters)
}

/// Watched counters of a plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Watched {
    /// With limits from how fast the counters grow now.
    pub watches: Vec<WatchedNumber>,
    /// Unwatched parts, with the reason: settings without any counter, and counters that cannot be read.
    pub gaps: Vec<String>,
}

/// Returns the counters to watch while a plan is on trial: those of its settings, with limits from how fast they grow now,
/// measured over `baseline`.
pub fn watches(plan: &TunePlan, view: &View, baseline: Duration) -> Watched {
    let mut watched = Watched::default();
    let mut counters: Vec<Counter> = Vec::new();
    for row in plan.rows.iter().filter(|r| r.held.is_none()) {
        counters.extend(&row.watched);
        if row.watched.is_empty() {
            watched.gaps.push(format!("{}: {NOTHING}", row.name));
        }
    }
    if plan.actions.iter().any(|a| a.held.is_none()) {
        counters.extend(OF_ACTIONS);
    }
    // In the order of the list, each once.
    let counters: Vec<Counter> = Counter::ALL.into_iter().filter(|c| counters.contains(c)).collect();
    if counters.is_empty() {
        return watched;
    }
    let read =
        |counter: &Counter| view.inside(|| counter.read(&view.root)).map_err(|e| e.to_string()).flatten();
    let (begun, before) = (std::time::Instant::now(), counters.iter().map(read).collect::<Vec<_>>());
    std::thread::sleep(baseline);
    for (counter, before) in counters.iter().zip(before) {
        match before.and_then(|before| Ok(read(counter)?.saturating_sub(before))) {
            Ok(grew) => watched.watches.push(watch(*counter, grew as f64 / begun.elapsed().as_secs_f64())),
            Err(why) => watched.gaps.push(format!("{}: not watched, {why}", counter.words())),
        }
    }
    watched
}

fn watch(counter: Counter, rate: f64) -> WatchedNumber {
    WatchedNumber {
        name: counter.words().to_owned(),
        metric: Metric::Named(counter.name().to_owned()),
        rate: true,
        every_ms: EVERY.as_millis() as u64,
        worse: Worse::Above,
        limit: (rate * FACTOR).max(rate + SLACK_PER_S),
        strikes: STRIKES,
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::{machine, request};
    use super::super::{Request, plan, render_plan};
    use super::knobs::KNOBS;
    use super::*;

    #[test]
    fn limits_leave_room_for_what_varies() {
        assert_eq!(watch(Counter::ConntrackDrops, 0.0).limit, 10.0);
        assert_eq!(watch(Counter::ConntrackDrops, 1000.0).limit, 2000.0);
    }

    /// None is forgotten, and no line of the table is for a setting that is not there or was caught by an earlier one.
    #[test]
    fn of_every_setting_it_is_known_what_to_watch() {
        let line = |name: &str| BY_SETTING.iter().position(|(begins, _)| name.starts_with(begins));
        let used: Vec<_> =
            KNOBS.iter().map(|k| line(k.name).unwrap_or_else(|| panic!("{}", k.name))).collect();
        for (at, (begins, _)) in BY_SETTING.iter().enumerate() {
            assert!(used.contains(&at), "{begins}");
        }
    }

    #[test]
    fn a_setting_is_watched_by_what_convicts_its_cause() {
        for (name, counters) in [
            ("net.ipv4.tcp_mem", &[Counter::TcpMemory][..]),
            ("net.ipv4.udp_mem", &[Counter::UdpBufferErrors]),
            (
                "net.netfilter.nf_conntrack_tcp_be_liberal",
                &[Counter::ConntrackInvalid, Counter::ConntrackDrops],
            ),
            ("net.ipv4.conf.eth0/7.rp_filter", &[Counter::ReversePath]),
            ("net.ipv4.conf.all.accept_local", &[Counter::Martians]),
            ("net.ipv4.ip_forward", &[Counter::Unroutable]),
            ("net.ipv4.icmp_msgs_per_sec", &[Counter::IcmpLimited]),
            ("net.ipv4.ip_local_port_range", &[]),
            ("net.bridge.bridge-nf-call-iptables", &[]),
            ("net.ipv4.tcp_sack", &[Counter::Retransmits]),
        ] {
            assert_eq!(of_setting(name), counters, "{name}");
        }
    }

    #[test]
    fn what_is_not_watched_is_said() {
        let (files, place) = machine(&[
            ("net.ipv4.ip_local_port_range", "32768 60999"),
            ("net.ipv4.tcp_mem", "1024 1024 1024"),
            ("net.ipv4.conf.all.rp_filter", "1"),
            ("net.ipv4.tcp_syncookies", "0"),
        ]);
        files.put("proc/thread-self/net/snmp", "Tcp: RetransSegs\nTcp: 5\n");
        files.put("proc/thread-self/net/netstat", "TcpExt: PruneCalled ListenDrops\nTcpExt: 7 1\n");
        let pairs = [
            ("net.ipv4.ip_local_port_range", "1024 60999"),
            ("net.ipv4.tcp_mem", "1024 1024 2048"),
            ("net.ipv4.conf.all.rp_filter", "2"),
            ("net.ipv4.tcp_syncookies", "1"),
        ];
        let set = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let plan = plan(&place, &Request { set, ..request() }).unwrap();
        let watched = watches(&plan, &place.view, Duration::from_millis(1));
        let names: Vec<&str> = watched.watches.iter().map(|w| w.name.as_str()).collect();
        assert_eq!(names, [Counter::ListenOverflows.words(), Counter::TcpMemory.words()]);
        assert_eq!(watched.gaps.len(), 2, "{:?}", watched.gaps);
        assert_eq!(watched.gaps[0], format!("net.ipv4.ip_local_port_range: {NOTHING}"));
        assert!(
            watched.gaps[1].contains("reverse path filter") && watched.gaps[1].contains("does not count")
        );
        let page = render_plan(&plan, 80);
        for words in [NOTHING, "    watch times that buffers of TCP were short of memory, per second"] {
            assert!(page.contains(words), "{words}:\n{page}");
        }
        assert_eq!(
            serde_json::to_value(&plan).unwrap()["rows"][1]["watched"],
            serde_json::json!(["tcp-memory"])
        );
    }
}
