//! Settings of a namespace.

use std::collections::BTreeMap;

use weir_sys::{ProcRoot, Result, sysctl};

/// Settings that a cause asks for, by what their names begin with.
const SETTINGS: &[(&str, &str)] = &[
    // Routing, and what a packet's addresses must be.
    (
        "net.ipv4",
        "ip_forward ip_forward_use_pmtu ip_no_pmtu_disc ip_default_ttl ip_early_demux ip_nonlocal_bind \
         fwmark_reflect",
    ),
    ("net.ipv4.route", "min_pmtu mtu_expires"),
    (
        "net.ipv4.conf.all",
        "forwarding rp_filter log_martians accept_local accept_redirects send_redirects route_localnet \
         src_valid_mark",
    ),
    ("net.ipv4.conf.default", "rp_filter"),
    ("net.ipv6.conf.all", "forwarding disable_ipv6"),
    ("net.ipv6.route", "mtu_expires"),
    // Neighbours.
    ("net.ipv4.conf.all", "arp_ignore arp_announce arp_filter proxy_arp"),
    (
        "net.ipv4.neigh.default",
        "unres_qlen unres_qlen_bytes mcast_solicit gc_stale_time base_reachable_time_ms",
    ),
    ("net.ipv6.neigh.default", "unres_qlen_bytes"),
    // ICMP and fragments.
    (
        "net.ipv4",
        "icmp_msgs_per_sec icmp_msgs_burst icmp_ratelimit icmp_ratemask icmp_echo_ignore_all \
         ipfrag_high_thresh ipfrag_low_thresh ipfrag_time ipfrag_max_dist",
    ),
    ("net.ipv6.icmp", "ratelimit"),
    ("net.ipv6", "ip6frag_high_thresh ip6frag_time"),
    // Ports and sockets.
    (
        "net.ipv4",
        "ip_local_port_range ip_local_reserved_ports tcp_syncookies tcp_max_syn_backlog \
         tcp_abort_on_overflow tcp_max_tw_buckets tcp_tw_reuse tcp_fin_timeout tcp_syn_retries \
         tcp_synack_retries tcp_timestamps tcp_sack tcp_window_scaling tcp_adv_win_scale \
         tcp_moderate_rcvbuf tcp_mtu_probing tcp_base_mss tcp_min_snd_mss tcp_rmem tcp_wmem \
         tcp_congestion_control udp_rmem_min",
    ),
    ("net.core", "somaxconn"),
    // Connection tracking, and what bridges hand to rules.
    (
        "net.netfilter",
        "nf_conntrack_tcp_be_liberal nf_conntrack_tcp_loose nf_conntrack_tcp_ignore_invalid_rst \
         nf_conntrack_tcp_max_retrans nf_conntrack_checksum nf_conntrack_acct nf_conntrack_helper \
         nf_conntrack_log_invalid nf_conntrack_generic_timeout nf_conntrack_tcp_timeout_established \
         nf_conntrack_tcp_timeout_time_wait nf_conntrack_tcp_timeout_close_wait \
         nf_conntrack_tcp_timeout_fin_wait nf_conntrack_tcp_timeout_last_ack \
         nf_conntrack_tcp_timeout_unacknowledged nf_conntrack_tcp_timeout_syn_sent \
         nf_conntrack_tcp_timeout_syn_recv nf_conntrack_tcp_timeout_close nf_conntrack_udp_timeout nf_conntrack_udp_timeout_stream \
         nf_conntrack_icmp_timeout nf_conntrack_icmpv6_timeout nf_conntrack_frag6_high_thresh nf_conntrack_frag6_timeout",
    ),
    (
        "net.bridge",
        "bridge-nf-call-iptables bridge-nf-call-ip6tables bridge-nf-call-arptables \
         bridge-nf-filter-vlan-tagged",
    ),
];

/// Settings that each interface has for itself, likewise.
const OF_INTERFACES: &[(&str, &str)] = &[
    (
        "net.ipv4.conf",
        "rp_filter forwarding accept_local route_localnet src_valid_mark arp_filter arp_ignore \
         ignore_routes_with_linkdown log_martians proxy_arp",
    ),
    ("net.ipv4.neigh", "unres_qlen_bytes"),
    ("net.ipv6.neigh", "unres_qlen_bytes"),
    ("net.ipv6.conf", "forwarding disable_ipv6 accept_ra"),
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
    let of = |(begin, names): &(&str, &str), interface: &str| -> Vec<String> {
        names.split(' ').map(|name| format!("{begin}.{interface}{name}")).collect()
    };
    // A dot in an interface's name is written as a slash, as sysctl(8) does.
    let interfaces: Vec<String> = interfaces.iter().map(|name| name.replace('.', "/") + ".").collect();
    let of_interface =
        move |interface: String| OF_INTERFACES.iter().flat_map(move |group| of(group, &interface));
    SETTINGS.iter().flat_map(move |group| of(group, "")).chain(interfaces.into_iter().flat_map(of_interface))
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
        let distinct: std::collections::BTreeSet<_> = names(&[]).collect();
        assert_eq!(distinct.len(), names(&[]).count());
    }
}
