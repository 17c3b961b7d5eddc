//! Which part of which host a call stack belongs to, told by the functions in it.
//!
//! The names are those of the kernel's own functions (net/core, net/ipv4, net/ipv6, net/netfilter, net/bridge,
//! drivers/net/veth.c). A function without a rule belongs to its caller: memory allocation for an entry of the connection table
//! counts as connection tracking.

/// A part of the gateway's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// Taking packets in: interrupts' softer half, the driver's loop, making socket buffers, handing them up.
    Driver,
    /// Merging packets of a flow (GRO).
    Gro,
    /// IP: checks of the header, route lookup, forwarding.
    Routing,
    /// Connection tracking.
    Conntrack,
    /// Network address translation.
    Nat,
    /// Netfilter's hooks and the rules that hang there, nftables and iptables.
    Rules,
    /// Lookups in sets: nftables' and ipset's.
    Sets,
    /// The bridge, with netfilter's part of it.
    Bridge,
    /// nftables' flow table.
    FlowTable,
    /// BPF programs and traffic control's classifiers.
    Bpf,
    /// Neighbour entry, queueing discipline, handing over to the next driver.
    Output,
    /// None of these.
    Other,
}

impl Part {
    /// All, in the order of the path.
    pub(super) const ALL: [Part; 12] = [
        Part::Driver,
        Part::Gro,
        Part::Bpf,
        Part::Bridge,
        Part::Routing,
        Part::Conntrack,
        Part::Nat,
        Part::Rules,
        Part::Sets,
        Part::FlowTable,
        Part::Output,
        Part::Other,
    ];

    /// As the record and the report call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Part::Driver => "driver and softirq",
            Part::Gro => "GRO",
            Part::Routing => "routing",
            Part::Conntrack => "connection tracking",
            Part::Nat => "NAT",
            Part::Rules => "hooks and rules",
            Part::Sets => "sets",
            Part::Bridge => "bridge",
            Part::FlowTable => "flow table",
            Part::Bpf => "BPF and traffic control",
            Part::Output => "neighbour and output",
            Part::Other => "other",
        }
    }
}

/// Functions by part. The first rule that matches a name wins; a star stands for any end.
const RULES: &[(&str, Part)] = &[
    ("nft_set_*", Part::Sets),
    ("nft_lookup_*", Part::Sets),
    ("nft_rhash_*", Part::Sets),
    ("nft_hash_*", Part::Sets),
    ("nft_pipapo_*", Part::Sets),
    ("pipapo_*", Part::Sets),
    ("nft_rbtree_*", Part::Sets),
    ("__nft_rbtree_*", Part::Sets),
    ("nft_bitmap_*", Part::Sets),
    ("nft_array_*", Part::Sets),
    ("nft_dynset_*", Part::Sets),
    ("ip_set_*", Part::Sets),
    ("set_match_*", Part::Sets),
    ("set_target_*", Part::Sets),
    ("hash_ip*", Part::Sets),
    ("hash_net*", Part::Sets),
    ("hash_mac*", Part::Sets),
    ("bitmap_ip*", Part::Sets),
    ("bitmap_port*", Part::Sets),
    ("list_set_*", Part::Sets),
    ("nf_nat_*", Part::Nat),
    ("__nf_nat_*", Part::Nat),
    ("nf_ct_nat_*", Part::Nat),
    ("nft_nat_eval", Part::Nat),
    ("nft_masq_*", Part::Nat),
    ("nft_redir_*", Part::Nat),
    ("xt_snat_*", Part::Nat),
    ("xt_dnat_*", Part::Nat),
    ("masquerade_tg*", Part::Nat),
    ("nf_conntrack_*", Part::Conntrack),
    ("__nf_conntrack_*", Part::Conntrack),
    ("nf_ct_*", Part::Conntrack),
    ("__nf_ct_*", Part::Conntrack),
    ("nf_confirm", Part::Conntrack),
    ("nf_ipv4_confirm", Part::Conntrack),
    ("ipv4_conntrack_*", Part::Conntrack),
    ("ipv6_conntrack_*", Part::Conntrack),
    ("ipv4_confirm", Part::Conntrack),
    ("ipv6_confirm", Part::Conntrack),
    ("hash_conntrack*", Part::Conntrack),
    ("resolve_normal_ct", Part::Conntrack),
    ("init_conntrack", Part::Conntrack),
    ("early_drop*", Part::Conntrack),
    // The worker that takes expired entries out of the connection table.
    ("gc_worker", Part::Conntrack),
    ("nf_flow_*", Part::FlowTable),
    ("nft_flow_offload_*", Part::FlowTable),
    ("nf_hook*", Part::Rules),
    ("nft_*", Part::Rules),
    ("ipt_do_table", Part::Rules),
    ("ip6t_do_table", Part::Rules),
    ("iptable_*", Part::Rules),
    ("ip6table_*", Part::Rules),
    ("ebt_*", Part::Rules),
    ("br_*", Part::Bridge),
    ("__br_*", Part::Bridge),
    ("bpf_prog_*", Part::Bpf),
    ("bpf_dispatcher_*", Part::Bpf),
    ("tcf_*", Part::Bpf),
    ("tc_run", Part::Bpf),
    ("tcx_run", Part::Bpf),
    ("sch_handle_*", Part::Bpf),
    ("cls_bpf_*", Part::Bpf),
    ("xdp_do_redirect*", Part::Bpf),
    ("xdp_do_flush", Part::Bpf),
    ("napi_gro_*", Part::Gro),
    ("dev_gro_receive", Part::Gro),
    ("gro_*", Part::Gro),
    ("skb_gro_*", Part::Gro),
    ("inet_gro_*", Part::Gro),
    ("ipv6_gro_*", Part::Gro),
    ("tcp4_gro_*", Part::Gro),
    ("tcp6_gro_*", Part::Gro),
    ("tcp_gro_*", Part::Gro),
    ("udp4_gro_*", Part::Gro),
    ("udp6_gro_*", Part::Gro),
    ("udp_gro_*", Part::Gro),
    ("ip_output", Part::Output),
    ("ip_finish_output*", Part::Output),
    ("__ip_finish_output", Part::Output),
    ("ip_do_fragment", Part::Output),
    ("ip_fragment*", Part::Output),
    ("ip6_output", Part::Output),
    ("ip6_finish_output*", Part::Output),
    ("__ip6_finish_output", Part::Output),
    ("ip6_fragment*", Part::Output),
    ("neigh_*", Part::Output),
    ("__neigh_*", Part::Output),
    ("arp_*", Part::Output),
    ("ndisc_*", Part::Output),
    ("dev_queue_xmit*", Part::Output),
    ("__dev_queue_xmit", Part::Output),
    ("__dev_xmit_skb", Part::Output),
    ("dev_hard_start_xmit", Part::Output),
    ("sch_direct_xmit", Part::Output),
    ("__qdisc_run", Part::Output),
    ("validate_xmit_*", Part::Output),
    ("veth_xmit", Part::Output),
    ("ip_rcv*", Part::Routing),
    ("ip_list_rcv*", Part::Routing),
    ("ip_sublist_rcv*", Part::Routing),
    ("ip_forward*", Part::Routing),
    ("ip_route_*", Part::Routing),
    ("ip_mkroute_*", Part::Routing),
    ("fib_*", Part::Routing),
    ("__fib_*", Part::Routing),
    ("fib4_*", Part::Routing),
    ("fib6_*", Part::Routing),
    ("ipv6_rcv*", Part::Routing),
    ("ipv6_list_rcv*", Part::Routing),
    ("ip6_rcv*", Part::Routing),
    ("ip6_list_rcv*", Part::Routing),
    ("ip6_sublist_rcv*", Part::Routing),
    ("ip6_forward*", Part::Routing),
    ("ip6_route_*", Part::Routing),
    ("ip6_pol_route*", Part::Routing),
    ("net_rx_action", Part::Driver),
    ("net_tx_action", Part::Driver),
    ("napi_*", Part::Driver),
    ("__napi_*", Part::Driver),
    ("process_backlog", Part::Driver),
    ("veth_*", Part::Driver),
    ("netif_receive_skb*", Part::Driver),
    ("__netif_receive_skb*", Part::Driver),
    ("__xdp_build_skb_from_frame", Part::Driver),
    ("xdp_build_skb_from_*", Part::Driver),
];

/// Functions at which softirq work on packets begins. Functions outside of them were interrupted, or only happened to run
/// softirqs, and have nothing to do with the packets.
const BEGINS: &[&str] = &["net_rx_action", "net_tx_action", "napi_threaded_poll", "napi_threaded_poll_loop"];

/// Functions that only a host in the middle of the path spends its time in, or below.
const GATEWAY: &[&str] = &[
    "ip_rcv*",
    "ip_list_rcv*",
    "ip_sublist_rcv*",
    "ip_forward*",
    "ipv6_rcv*",
    "ipv6_list_rcv*",
    "ip6_rcv*",
    "ip6_list_rcv*",
    "ip6_sublist_rcv*",
    "ip6_forward*",
    "br_handle_frame*",
    "netif_receive_skb*",
    "__netif_receive_skb*",
    "napi_gro_*",
    "gro_receive_skb",
    "dev_gro_receive",
    // veth, for frames without a socket buffer: those of the tester on their way into the gateway's stack.
    "veth_xdp_rcv_bulk_skb",
    "veth_xdp_rcv_one",
    "gc_worker",
];

/// Functions of the tester on a machine that it shares with the gateway: sending, and receiving what went through the gateway.
const TESTER: &[&str] = &[
    "xdp_test_run_batch",
    "bpf_test_run_xdp_live",
    "bpf_prog_test_run*",
    "bpf_prog_receive*",
    // Frames that its receiver did not pass.
    "xdp_return_frame*",
    // veth, for packets with a socket buffer: those that the gateway's stack sent to a receiver in XDP.
    "veth_xdp_rcv_skb",
    "packet_sendmsg*",
    "packet_rcv*",
    "tpacket_rcv*",
    "ip_local_deliver*",
    "ip6_input*",
    "ip6_protocol_deliver_rcu",
    "inet_sendmsg",
    "inet6_sendmsg",
    "udp_sendmsg",
    "udpv6_sendmsg",
    "tcp_sendmsg*",
    "inet_recvmsg",
    "inet6_recvmsg",
    "udp_recvmsg",
    "udpv6_recvmsg",
    "tcp_recvmsg*",
    "inet_stream_connect",
    "__inet_stream_connect",
];

/// Idle loops, and what work can interrupt them.
const IDLE: &[&str] = &["do_idle", "cpu_startup_entry"];
const INTERRUPTS: &[&str] =
    &["asm_*", "el1_interrupt", "el1h_64_irq*", "handle_softirqs", "__do_softirq", "common_interrupt"];

/// Whose a sample is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// The core had nothing to do.
    Idle,
    /// The gateway's, in that part; its path begins with the function of that number in the stack.
    Gateway {
        /// The part.
        part: Part,
        /// Index of the function at which the path begins.
        from: usize,
    },
    /// The tester's.
    Tester,
    /// Neither one's.
    Other,
}

/// Tells whose a stack is; its functions are given from the outermost to the innermost. `shared`: the tester runs on the same
/// machine. Softirq work of which no function says whose packets it handles (about 2 % with veth pairs) is called the gateway's.
pub(super) fn owner(stack: &[&str], shared: bool) -> Owner {
    if is_idle(stack) {
        return Owner::Idle;
    }
    let softirq = stack.iter().rposition(|name| BEGINS.contains(name));
    let path = &stack[softirq.unwrap_or(0)..];
    let gateways = path.iter().rposition(|name| matches_any(name, GATEWAY));
    let testers = path.iter().rposition(|name| shared && matches_any(name, TESTER));
    // The innermost one decides: the gateway's work hangs below the tester's sending.
    if testers.is_some() && testers > gateways {
        return Owner::Tester;
    }
    let from = match (softirq, gateways) {
        (Some(from), _) => from,
        (None, Some(_)) => {
            // Frames that the tester handed to the gateway's stack: the path is what follows.
            let after = testers.map_or(0, |at| at + 1);
            let first = path[after..].iter().position(|name| matches_any(name, GATEWAY));
            after + first.unwrap_or(0)
        }
        (None, None) => return Owner::Other,
    };
    Owner::Gateway { part: part(&stack[from..]), from }
}

fn is_idle(stack: &[&str]) -> bool {
    stack
        .iter()
        .rposition(|name| IDLE.contains(name))
        .is_some_and(|at| !stack[at..].iter().any(|name| matches_any(name, INTERRUPTS)))
}

/// The part of the innermost function that a rule knows.
fn part(path: &[&str]) -> Part {
    let rule = |name: &&str| RULES.iter().find(|(pattern, _)| matches(name, pattern));
    path.iter().rev().find_map(rule).map_or(Part::Other, |(_, part)| *part)
}

fn matches_any(name: &str, patterns: &[&str]) -> bool {
    patterns.iter().any(|pattern| matches(name, pattern))
}

fn matches(name: &str, pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

/// True within a netfilter hook.
pub(super) fn in_hook(path: &[&str]) -> bool {
    path.iter().any(|name| matches!(*name, "nf_hook_slow" | "nf_hook_slow_list"))
}
