//! Every setting that `weir tune` may change, in one table: its scope, its range, its cost, and its risk. A setting that is not
//! here stays unchanged, whatever the source of the proposal.

use schemars::JsonSchema;
use serde::Serialize;

/// Scope of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// In the whole machine; it can be written in its own network namespace only.
    Machine,
    /// In one network namespace.
    Namespace,
}

/// Additional memory that a higher value takes of the machine, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cost {
    /// Nothing worth counting.
    None,
    /// An entry of the connection-tracking table each, when it is full.
    ConntrackEntries,
    /// A head of a hash chain each, at once.
    ConntrackBuckets,
    /// So many bytes each, when all are in use: an estimate from the kernel's structures.
    Each(u64),
    /// The value is in bytes.
    Bytes,
    /// The value is in pages; only the last of several numbers counts.
    Pages,
}

/// A setting that may be changed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Knob {
    /// Full sysctl name; `*` stands for one part of it, such as an interface.
    pub(crate) name: &'static str,
    pub(crate) scope: Scope,
    /// How many numbers it has.
    pub(crate) numbers: usize,
    /// Hard bounds of each number.
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) cost: Cost,
    pub(crate) risk: &'static str,
}

const DAY_S: u64 = 86_400;

/// One number in a namespace, free of charge.
const fn per_namespace(name: &'static str, min: u64, max: u64, risk: &'static str) -> Knob {
    Knob { name, scope: Scope::Namespace, numbers: 1, min, max, cost: Cost::None, risk }
}

/// The same of the machine.
const fn of_machine(name: &'static str, min: u64, max: u64, risk: &'static str) -> Knob {
    Knob { scope: Scope::Machine, ..per_namespace(name, min, max, risk) }
}

const SHORTER_OR_LONGER: &str =
    "shorter: quiet connections are forgotten and break; longer: dead ones stay in the table";
const CONNTRACK_TIMEOUT_MAX: u64 = 10 * DAY_S;

/// A timeout of connection tracking, s.
const fn timeout(name: &'static str, min: u64) -> Knob {
    per_namespace(name, min, CONNTRACK_TIMEOUT_MAX, SHORTER_OR_LONGER)
}

/// A switch, or a choice of few.
const fn choice(name: &'static str, max: u64, risk: &'static str) -> Knob {
    per_namespace(name, 0, max, risk)
}

/// The table. Bounds keep a wrong proposal from doing harm: lower ones are about the kernel's smallest useful value, upper ones
/// what a large machine may need.
pub(crate) const KNOBS: &[Knob] = &[
    // Connection tracking: net/netfilter/nf_conntrack_standalone.c.
    of_machine(
        "net.netfilter.nf_conntrack_max",
        256,
        1 << 26,
        "memory when it fills; it holds for every network namespace of the machine, each by its own count",
    )
    .costing(Cost::ConntrackEntries),
    of_machine(
        "net.netfilter.nf_conntrack_buckets",
        512,
        1 << 26,
        "the table is hashed anew: packets wait for some milliseconds per million entries",
    )
    .costing(Cost::ConntrackBuckets),
    of_machine(
        "net.netfilter.nf_conntrack_expect_max",
        64,
        1 << 20,
        "memory for connections that helpers expect",
    )
    .costing(Cost::Each(256)),
    timeout("net.netfilter.nf_conntrack_generic_timeout", 30),
    timeout("net.netfilter.nf_conntrack_gre_timeout", 30),
    timeout("net.netfilter.nf_conntrack_gre_timeout_stream", 60),
    timeout("net.netfilter.nf_conntrack_icmp_timeout", 10),
    timeout("net.netfilter.nf_conntrack_icmpv6_timeout", 10),
    timeout("net.netfilter.nf_conntrack_tcp_timeout_close", 5),
    timeout("net.netfilter.nf_conntrack_tcp_timeout_close_wait", 10),
    timeout("net.netfilter.nf_conntrack_tcp_timeout_established", 300),
    timeout("net.netfilter.nf_conntrack_tcp_timeout_fin_wait", 10),
    timeout("net.netfilter.nf_conntrack_tcp_timeout_last_ack", 10),
    timeout("net.netfilter.nf_conntrack_tcp_timeout_max_retrans", 30),
    timeout("net.netfilter.nf_conntrack_tcp_timeout_syn_recv", 10),
    timeout("net.netfilter.nf_conntrack_tcp_timeout_syn_sent", 10),
    timeout("net.netfilter.nf_conntrack_tcp_timeout_time_wait", 10),
    timeout("net.netfilter.nf_conntrack_tcp_timeout_unacknowledged", 30),
    timeout("net.netfilter.nf_conntrack_udp_timeout", 10),
    timeout("net.netfilter.nf_conntrack_udp_timeout_stream", 30),
    choice(
        "net.netfilter.nf_conntrack_tcp_be_liberal",
        1,
        "segments outside the window pass: less protection against forged ones",
    ),
    choice(
        "net.netfilter.nf_conntrack_tcp_loose",
        1,
        "1: connections are picked up in their middle; 0: those that were forgotten break",
    ),
    choice(
        "net.netfilter.nf_conntrack_checksum",
        1,
        "0: packets with wrong checksums are tracked and forwarded",
    ),
    of_machine("net.netfilter.nf_log_all_netns", 0, 1, "rules in containers write into the machine's log"),
    // Memory that the kernel keeps free for packets that cannot wait.
    of_machine("vm.min_free_kbytes", 1024, 1 << 22, "memory that programs do not get")
        .costing(Cost::Each(1024)),
    // Forwarding.
    choice(
        "net.ipv4.ip_forward",
        1,
        "this host becomes a router, and stops being one when it is rolled back",
    ),
    choice("net.ipv4.conf.*.forwarding", 1, "this interface forwards"),
    choice(
        "net.ipv6.conf.*.forwarding",
        1,
        "this interface forwards, and no longer takes router advertisements",
    ),
    choice(
        "net.ipv4.conf.*.rp_filter",
        2,
        "2 (loose): packets with a source that has a route by another interface pass",
    ),
    choice("net.ipv4.conf.*.accept_local", 1, "packets with this host's own address as source pass"),
    choice(
        "net.ipv4.conf.*.send_redirects",
        1,
        "whether the host sends neighbours redirects to a shorter path",
    ),
    choice(
        "net.bridge.bridge-nf-call-iptables",
        1,
        "whether bridged packets go through iptables; Kubernetes needs 1",
    ),
    choice(
        "net.bridge.bridge-nf-call-ip6tables",
        1,
        "whether bridged packets go through ip6tables; Kubernetes needs 1",
    ),
    choice("net.bridge.bridge-nf-call-arptables", 1, "whether bridged packets go through arptables"),
    per_namespace("net.ipv4.icmp_ratelimit", 0, 60_000, "0: no limit of ICMP messages to one address"),
    // This belongs to the machine as a whole before Linux 6.10 or so; a network namespace does not have it then.
    per_namespace("net.ipv4.icmp_msgs_per_sec", 100, 1_000_000, "more ICMP messages of this host"),
    per_namespace("net.ipv4.icmp_ratemask", 0, (1 << 19) - 1, "which kinds of ICMP messages are limited"),
    per_namespace("net.ipv6.icmp.ratelimit", 0, 60_000, "0: no limit of ICMPv6 messages to one address"),
    choice("net.ipv4.conf.*.log_martians", 1, "up to ten lines a second in the log"),
    choice(
        "net.ipv4.conf.*.route_localnet",
        1,
        "addresses of 127.0.0.0/8 are routed: services on them are in reach of others",
    ),
    per_namespace(
        "net.ipv4.route.min_pmtu",
        68,
        1500,
        "packets to paths with a smaller MTU are fragmented on the way, or lost",
    ),
    // Neighbours: a struct neighbour with its hardware header is about 0.5 KiB. Only the third threshold allows more of them; the
    // other two say which are forgotten first.
    of_machine("net.ipv4.neigh.default.gc_thresh1", 64, 1 << 20, "memory; below it nothing is forgotten"),
    of_machine("net.ipv4.neigh.default.gc_thresh2", 128, 1 << 20, "memory"),
    of_machine("net.ipv4.neigh.default.gc_thresh3", 256, 1 << 20, "memory when that many neighbours speak")
        .costing(Cost::Each(512)),
    of_machine("net.ipv6.neigh.default.gc_thresh1", 64, 1 << 20, "memory; below it nothing is forgotten"),
    of_machine("net.ipv6.neigh.default.gc_thresh2", 128, 1 << 20, "memory"),
    of_machine("net.ipv6.neigh.default.gc_thresh3", 256, 1 << 20, "memory when that many neighbours speak")
        .costing(Cost::Each(512)),
    per_namespace(
        "net.ipv4.neigh.*.unres_qlen_bytes",
        4096,
        1 << 24,
        "memory while a neighbour is looked for",
    )
    .costing(Cost::Bytes),
    per_namespace(
        "net.ipv6.neigh.*.unres_qlen_bytes",
        4096,
        1 << 24,
        "memory while a neighbour is looked for",
    )
    .costing(Cost::Bytes),
    // Fragments.
    per_namespace("net.ipv4.ipfrag_high_thresh", 1 << 16, 1 << 30, "memory for fragments")
        .costing(Cost::Bytes),
    per_namespace("net.ipv4.ipfrag_low_thresh", 1 << 16, 1 << 30, "memory for fragments"),
    per_namespace("net.ipv4.ipfrag_time", 1, 300, "longer: fragments of lost packets stay"),
    per_namespace("net.ipv4.ipfrag_max_dist", 0, 1 << 16, "0: reordered fragments are never given up"),
    per_namespace("net.ipv6.ip6frag_high_thresh", 1 << 16, 1 << 30, "memory for fragments")
        .costing(Cost::Bytes),
    per_namespace("net.ipv6.ip6frag_low_thresh", 1 << 16, 1 << 30, "memory for fragments"),
    // Receiving.
    of_machine(
        "net.core.netdev_max_backlog",
        100,
        1 << 17,
        "packets wait longer when a core cannot keep up; each holds its memory",
    ),
    of_machine("net.core.netdev_budget", 64, 1200, "other work on the core waits longer"),
    of_machine("net.core.netdev_budget_usecs", 1000, 16_000, "other work on the core waits longer"),
    of_machine("net.core.dev_weight", 16, 512, "other work on the core waits longer"),
    of_machine("net.core.rps_sock_flow_entries", 0, 1 << 20, "memory").costing(Cost::Each(4)),
    // Sockets.
    per_namespace(
        "net.core.somaxconn",
        16,
        1 << 16,
        "more connections wait for a program that does not take them",
    ),
    per_namespace("net.ipv4.tcp_max_syn_backlog", 16, 1 << 18, "memory for half-open connections")
        .costing(Cost::Each(304)),
    choice(
        "net.ipv4.tcp_syncookies",
        2,
        "0: a SYN flood fills the backlog; 2: options of TCP are lost always",
    ),
    per_namespace("net.ipv4.tcp_fin_timeout", 5, 300, "shorter: late segments meet no socket"),
    per_namespace("net.ipv4.tcp_max_tw_buckets", 1024, 1 << 22, "memory for sockets in TIME_WAIT")
        .costing(Cost::Each(256)),
    choice(
        "net.ipv4.tcp_tw_reuse",
        2,
        "a port is used again while old segments may be on the way; needs timestamps",
    ),
    choice("net.ipv4.tcp_timestamps", 2, "0: no protection against old segments, worse estimates of the RTT"),
    choice("net.ipv4.tcp_window_scaling", 1, "0: windows of 64 KiB at most"),
    choice("net.ipv4.tcp_sack", 1, "0: losses take longer to repair"),
    choice(
        "net.ipv4.tcp_mtu_probing",
        2,
        "smaller segments for a while after losses that have another reason",
    ),
    per_namespace(
        "net.ipv4.ip_local_port_range",
        1024,
        65_535,
        "ports of services in the range may be taken by clients",
    )
    .several(2),
    per_namespace("net.ipv4.tcp_rmem", 4096, 1 << 26, "each connection may buffer so much").several(3),
    per_namespace("net.ipv4.tcp_wmem", 4096, 1 << 26, "each connection may buffer so much").several(3),
    of_machine("net.core.rmem_max", 4096, 1 << 27, "a program may ask for so much for each socket"),
    of_machine("net.core.wmem_max", 4096, 1 << 27, "a program may ask for so much for each socket"),
    of_machine("net.core.rmem_default", 4096, 1 << 24, "each socket may hold so much"),
    of_machine("net.core.wmem_default", 4096, 1 << 24, "each socket may hold so much"),
    of_machine("net.ipv4.tcp_mem", 1024, 1 << 26, "memory for buffers of TCP")
        .costing(Cost::Pages)
        .several(3),
    of_machine("net.ipv4.udp_mem", 1024, 1 << 26, "memory for buffers of UDP")
        .costing(Cost::Pages)
        .several(3),
];

/// The knob of that name; `net.nf_conntrack_max` is another name of the same setting.
pub(crate) fn find(name: &str) -> Option<&'static Knob> {
    KNOBS.iter().find(|knob| matches(knob.name, name))
}

/// The one name of a setting that has several.
pub(crate) fn canonical(name: &str) -> &str {
    match name {
        "net.nf_conntrack_max" => "net.netfilter.nf_conntrack_max",
        other => other,
    }
}

/// Compares part by part. A dot in an interface's name is written as a slash, so it belongs to its part.
fn matches(pattern: &str, name: &str) -> bool {
    let (mut p, mut n) = (pattern.split('.'), name.split('.'));
    loop {
        match (p.next(), n.next()) {
            (None, None) => return true,
            (Some("*"), Some(part)) if is_interface(part) => {}
            (Some(a), Some(b)) if a == b => {}
            _ => return false,
        }
    }
}

/// Checks the name of an interface: dev_valid_name (net/core/dev.c) allows more, which no sysctl path could hold.
fn is_interface(part: &str) -> bool {
    (1..16).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_graphic()) && part != "/" && part != "//"
}

/// The numbers of a value, as the kernel prints it.
pub(crate) fn numbers(value: &str) -> Option<Vec<u64>> {
    value.split_whitespace().map(|word| word.parse().ok()).collect()
}

impl Knob {
    /// With its cost.
    const fn costing(self, cost: Cost) -> Knob {
        Knob { cost, ..self }
    }

    /// The same with several numbers.
    const fn several(self, numbers: usize) -> Knob {
        Knob { numbers, ..self }
    }

    /// The value within the bounds, as it is written; in words if it is none.
    pub(crate) fn bounded(&self, value: &str) -> Result<String, String> {
        let given = numbers(value).filter(|n| n.len() == self.numbers);
        let given = given.ok_or_else(|| {
            let what = if self.numbers == 1 {
                "a whole number".to_owned()
            } else {
                format!("{} whole numbers", self.numbers)
            };
            format!("{value:?} is not {what}")
        })?;
        if given.windows(2).any(|pair| pair[0] > pair[1]) {
            return Err(format!("{value:?} does not rise"));
        }
        let bounded = given.iter().map(|n| n.clamp(&self.min, &self.max).to_string());
        Ok(bounded.collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_consistent() {
        for (n, knob) in KNOBS.iter().enumerate() {
            assert!(knob.min < knob.max && knob.numbers >= 1 && !knob.risk.is_empty(), "{}", knob.name);
            assert!(KNOBS[n + 1..].iter().all(|other| other.name != knob.name), "{} twice", knob.name);
            assert_eq!(canonical(knob.name), knob.name);
        }
    }

    /// Every knob without an interface in its name exists on the kernels that we know, where its module is loaded; a typing
    /// error would never be noticed otherwise. The network namespace of a test may not show those of the machine.
    #[test]
    fn names_are_those_of_the_kernel() {
        let mut found = 0;
        for knob in KNOBS.iter().filter(|k| !k.name.contains('*')) {
            let path = std::path::Path::new("/proc/sys").join(knob.name.replace('.', "/"));
            let Ok(value) = std::fs::read_to_string(&path) else { continue };
            found += 1;
            let numbers = numbers(&value).unwrap();
            assert_eq!(numbers.len(), knob.numbers, "{}", knob.name);
        }
        assert!(found >= 10, "{found}");
    }

    #[test]
    fn an_interface_may_have_dots_and_dashes() {
        for name in [
            "net.ipv4.conf.eth0.rp_filter",
            "net.ipv4.conf.br-1a2b/100.rp_filter",
            "net.ipv4.conf.all.rp_filter",
        ] {
            assert_eq!(find(name).unwrap().name, "net.ipv4.conf.*.rp_filter", "{name}");
        }
        for name in [
            "net.ipv4.conf.eth0.100.rp_filter",
            "net.ipv4.conf..rp_filter",
            "net.ipv4.conf.a-name-that-is-too-long.rp_filter",
            "net.ipv4.conf.eth 0.rp_filter",
            "net.ipv4.conf.rp_filter",
            "kernel.panic",
            "",
        ] {
            assert!(find(name).is_none(), "{name}");
        }
        assert_eq!(canonical("net.nf_conntrack_max"), "net.netfilter.nf_conntrack_max");
    }

    #[test]
    fn values_are_bounded_and_must_be_numbers() {
        let max = find("net.netfilter.nf_conntrack_max").unwrap();
        assert_eq!(max.bounded("1000").unwrap(), "1000");
        assert_eq!(max.bounded("1").unwrap(), "256");
        assert_eq!(max.bounded("18446744073709551615").unwrap(), (1_u64 << 26).to_string());
        for bad in ["", "-1", "1 2", "1e6", "x", "18446744073709551616"] {
            assert!(max.bounded(bad).is_err(), "{bad}");
        }
        let range = find("net.ipv4.ip_local_port_range").unwrap();
        assert_eq!(range.bounded("32768\t60999").unwrap(), "32768 60999");
        assert!(range.bounded("60999 32768").is_err());
    }

    proptest::proptest! {
        /// Whatever a file of findings proposes, what comes out is within the bounds.
        #[test]
        fn nothing_leaves_the_bounds(which in 0..KNOBS.len(), value in "[0-9 \t-]{0,60}") {
            let knob = &KNOBS[which];
            if let Ok(bounded) = knob.bounded(&value) {
                let numbers = numbers(&bounded).unwrap();
                proptest::prop_assert_eq!(numbers.len(), knob.numbers);
                proptest::prop_assert!(numbers.iter().all(|n| (knob.min..=knob.max).contains(n)));
            }
        }
    }
}
