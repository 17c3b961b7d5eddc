//! Settings of a namespace.

use std::collections::BTreeMap;

use weir_sys::{ProcRoot, Result, sysctl};

/// Settings that a cause asks for.
const SETTINGS: &[&str] = &[
    // Routing, and what a packet's addresses must be.
    "net.ipv4.ip_forward",
    "net.ipv4.ip_forward_use_pmtu",
    "net.ipv4.ip_no_pmtu_disc",
    "net.ipv4.ip_default_ttl",
    "net.ipv4.ip_early_demux",
    "net.ipv4.ip_nonlocal_bind",
    "net.ipv4.fwmark_reflect",
    "net.ipv4.route.min_pmtu",
    "net.ipv4.route.mtu_expires",
    "net.ipv4.conf.all.forwarding",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.conf.default.rp_filter",
    "net.ipv4.conf.all.log_martians",
    "net.ipv4.conf.all.accept_local",
    "net.ipv4.conf.all.accept_redirects",
    "net.ipv4.conf.all.send_redirects",
    "net.ipv4.conf.all.route_localnet",
    "net.ipv4.conf.all.src_valid_mark",
    "net.ipv6.conf.all.forwarding",
    "net.ipv6.conf.all.disable_ipv6",
    "net.ipv6.route.mtu_expires",
    // Neighbours.
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.arp_announce",
    "net.ipv4.conf.all.arp_filter",
    "net.ipv4.conf.all.proxy_arp",
    "net.ipv4.neigh.default.unres_qlen",
    "net.ipv4.neigh.default.unres_qlen_bytes",
    "net.ipv4.neigh.default.mcast_solicit",
    "net.ipv4.neigh.default.gc_stale_time",
    "net.ipv4.neigh.default.base_reachable_time_ms",
    "net.ipv6.neigh.default.unres_qlen_bytes",
    // ICMP and fragments.
    "net.ipv4.icmp_msgs_per_sec",
    "net.ipv4.icmp_msgs_burst",
    "net.ipv4.icmp_ratelimit",
    "net.ipv4.icmp_ratemask",
    "net.ipv4.icmp_echo_ignore_all",
    "net.ipv4.ipfrag_high_thresh",
    "net.ipv4.ipfrag_low_thresh",
    "net.ipv4.ipfrag_time",
    "net.ipv4.ipfrag_max_dist",
    "net.ipv6.icmp.ratelimit",
    "net.ipv6.ip6frag_high_thresh",
    "net.ipv6.ip6frag_time",
    // Ports and sockets.
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_abort_on_overflow",
    "net.ipv4.tcp_max_tw_buckets",
    "net.ipv4.tcp_tw_reuse",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_syn_retries",
    "net.ipv4.tcp_synack_retries",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_adv_win_scale",
    "net.ipv4.tcp_moderate_rcvbuf",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_base_mss",
    "net.ipv4.tcp_min_snd_mss",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.udp_rmem_min",
    "net.core.somaxconn",
    // Connection tracking, and what bridges hand to rules.
    "net.netfilter.nf_conntrack_tcp_be_liberal",
    "net.netfilter.nf_conntrack_tcp_loose",
    "net.netfilter.nf_conntrack_tcp_ignore_invalid_rst",
    "net.netfilter.nf_conntrack_tcp_max_retrans",
    "net.netfilter.nf_conntrack_checksum",
    "net.netfilter.nf_conntrack_acct",
    "net.netfilter.nf_conntrack_helper",
    "net.netfilter.nf_conntrack_log_invalid",
    "net.netfilter.nf_conntrack_generic_timeout",
    "net.netfilter.nf_conntrack_tcp_timeout_established",
    "net.netfilter.nf_conntrack_tcp_timeout_time_wait",
    "net.netfilter.nf_conntrack_tcp_timeout_close_wait",
    "net.netfilter.nf_conntrack_tcp_timeout_fin_wait",
    "net.netfilter.nf_conntrack_tcp_timeout_last_ack",
    "net.netfilter.nf_conntrack_tcp_timeout_unacknowledged",
    "net.netfilter.nf_conntrack_tcp_timeout_syn_sent",
    "net.netfilter.nf_conntrack_tcp_timeout_syn_recv",
    "net.netfilter.nf_conntrack_udp_timeout",
    "net.netfilter.nf_conntrack_udp_timeout_stream",
    "net.netfilter.nf_conntrack_icmp_timeout",
    "net.netfilter.nf_conntrack_frag6_high_thresh",
    "net.netfilter.nf_conntrack_frag6_timeout",
    "net.bridge.bridge-nf-call-iptables",
    "net.bridge.bridge-nf-call-ip6tables",
    "net.bridge.bridge-nf-call-arptables",
    "net.bridge.bridge-nf-filter-vlan-tagged",
];

/// Settings that each interface has for itself.
const OF_INTERFACES: &[(&str, &[&str])] = &[
    (
        "ipv4.conf",
        &[
            "rp_filter",
            "forwarding",
            "accept_local",
            "route_localnet",
            "src_valid_mark",
            "arp_filter",
            "arp_ignore",
            "ignore_routes_with_linkdown",
            "log_martians",
            "proxy_arp",
        ],
    ),
    ("ipv4.neigh", &["unres_qlen_bytes"]),
    ("ipv6.neigh", &["unres_qlen_bytes"]),
    ("ipv6.conf", &["forwarding", "disable_ipv6", "accept_ra"]),
];

/// Those of the calling thread's namespace, and of its interfaces by name.
pub(super) fn read(root: &ProcRoot, interfaces: &[&str]) -> Result<BTreeMap<String, String>> {
    let mut settings = BTreeMap::new();
    let mut take = |name: String| {
        if let Ok(Some(value)) = sysctl::get_optional(root, &name) {
            settings.insert(name, value);
        }
    };
    names(interfaces).for_each(&mut take);
    Ok(settings)
}

/// Names of all that is read.
pub(super) fn names(interfaces: &[&str]) -> impl Iterator<Item = String> {
    let of_interface = |interface: &&str| {
        // A dot in an interface's name is written as a slash, as sysctl(8) does.
        let interface = interface.replace('.', "/");
        let of = move |(group, names): &(&str, &[&str])| -> Vec<String> {
            names.iter().map(|name| format!("net.{}.{interface}.{name}", group)).collect()
        };
        OF_INTERFACES.iter().flat_map(of).collect::<Vec<_>>()
    };
    let of_interfaces: Vec<String> = interfaces.iter().flat_map(of_interface).collect();
    SETTINGS.iter().map(|name| (*name).to_owned()).chain(of_interfaces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_testkit::Files;

    #[test]
    fn settings_of_interfaces_have_the_interface_in_their_name() {
        let files = Files::new(&[
            ("proc/sys/net/ipv4/ip_forward", "1\n"),
            ("proc/sys/net/ipv4/conf/eth0.100/rp_filter", "2\n"),
            ("proc/sys/net/ipv6/conf/eth0.100/forwarding", "0\n"),
            ("proc/sys/net/ipv4/conf/other/rp_filter", "1\n"),
        ]);
        let settings = read(&files.root(), &["eth0.100", "gone"]).unwrap();
        let read: Vec<_> = settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let wanted = [
            ("net.ipv4.conf.eth0/100.rp_filter", "2"),
            ("net.ipv4.ip_forward", "1"),
            ("net.ipv6.conf.eth0/100.forwarding", "0"),
        ];
        assert_eq!(read, wanted);
    }

    #[test]
    fn no_setting_is_asked_for_twice() {
        let distinct: std::collections::BTreeSet<_> = SETTINGS.iter().collect();
        assert_eq!(distinct.len(), SETTINGS.len());
    }
}
