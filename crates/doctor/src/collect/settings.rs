//! Settings of a namespace.

use std::collections::BTreeMap;

use weir_sys::{ProcRoot, Result, sysctl};

/// Settings that a cause asks for.
const SETTINGS: &[&str] = &[
    "net.ipv4.ip_forward",
    "net.ipv6.conf.all.forwarding",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.conf.default.rp_filter",
    "net.ipv4.conf.all.log_martians",
    "net.ipv4.conf.all.accept_local",
    "net.ipv4.conf.all.route_localnet",
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.arp_announce",
    "net.ipv4.icmp_msgs_per_sec",
    "net.ipv4.icmp_ratelimit",
    "net.ipv4.icmp_ratemask",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ipfrag_high_thresh",
    "net.ipv4.ipfrag_time",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_max_tw_buckets",
    "net.ipv4.tcp_tw_reuse",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_congestion_control",
    "net.core.somaxconn",
    "net.netfilter.nf_conntrack_tcp_be_liberal",
    "net.netfilter.nf_conntrack_tcp_loose",
    "net.netfilter.nf_conntrack_checksum",
    "net.netfilter.nf_conntrack_acct",
    "net.netfilter.nf_conntrack_tcp_timeout_established",
    "net.netfilter.nf_conntrack_tcp_timeout_time_wait",
    "net.netfilter.nf_conntrack_tcp_timeout_syn_sent",
    "net.netfilter.nf_conntrack_tcp_timeout_syn_recv",
    "net.netfilter.nf_conntrack_udp_timeout",
    "net.netfilter.nf_conntrack_udp_timeout_stream",
    "net.netfilter.nf_conntrack_icmp_timeout",
    "net.bridge.bridge-nf-call-iptables",
    "net.bridge.bridge-nf-call-ip6tables",
];

/// Settings that each interface has for itself.
const OF_INTERFACES: &[&str] = &["rp_filter", "forwarding", "accept_local"];

/// Those of the calling thread's namespace, and of its interfaces by name.
pub(super) fn read(root: &ProcRoot, interfaces: &[&str]) -> Result<BTreeMap<String, String>> {
    let mut settings = BTreeMap::new();
    let mut take = |name: String| {
        if let Ok(Some(value)) = sysctl::get_optional(root, &name) {
            settings.insert(name, value);
        }
    };
    for name in SETTINGS {
        take((*name).to_owned());
    }
    for interface in interfaces {
        for name in OF_INTERFACES {
            // A dot in an interface's name is written as a slash, as sysctl(8) does.
            take(format!("net.ipv4.conf.{}.{name}", interface.replace('.', "/")));
        }
    }
    Ok(settings)
}
