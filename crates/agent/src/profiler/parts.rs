//! Which part of which host a call stack belongs to, told by the functions in it.
//!
//! The names are those of the kernel's own functions (net/core, net/ipv4, net/ipv6, net/netfilter, net/bridge,
//! drivers/net/veth.c). A function without a rule belongs to its caller: memory allocation for an entry of the connection table
//! counts as connection tracking.

weir_text::listed! {
    /// A part of the gateway's path, in the order of the path, with the record's and the report's name for it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum Part {
        /// Taking packets in: interrupts' softer half, the driver's loop, making socket buffers, handing them up.
        Driver = "driver and softirq",
        /// Merging packets of a flow (GRO).
        Gro = "GRO",
        /// BPF programs and traffic control's classifiers.
        Bpf = "BPF and traffic control",
        /// The bridge, with netfilter's part of it.
        Bridge = "bridge",
        /// IP: checks of the header, route lookup, forwarding.
        Routing = "routing",
        /// Connection tracking.
        Conntrack = "connection tracking",
        /// Network address translation.
        Nat = "NAT",
        /// Netfilter's hooks and the rules that hang there, nftables and iptables.
        Rules = "hooks and rules",
        /// Lookups in sets: nftables' and ipset's.
        Sets = "sets",
        /// nftables' flow table.
        FlowTable = "flow table",
        /// Neighbour entry, queueing discipline, handing over to the next driver.
        Output = "neighbour and output",
        /// None of these.
        Other = "other",
    }
}

/// Functions by part. The first name that matches wins; a star stands for any end. `gc_worker` takes expired entries out of the
/// connection table.
const RULES: &[(Part, &str)] = &[
    (
        Part::Sets,
        "nft_set_* nft_lookup_* nft_rhash_* nft_hash_* nft_pipapo_* pipapo_* nft_rbtree_* __nft_rbtree_* \
         nft_bitmap_* nft_array_* nft_dynset_* ip_set_* set_match_* set_target_* hash_ip* hash_net* \
         hash_mac* bitmap_ip* bitmap_port* list_set_*",
    ),
    (
        Part::Nat,
        "nf_nat_* __nf_nat_* nf_ct_nat_* nft_nat_eval nft_masq_* nft_redir_* xt_snat_* xt_dnat_* \
         masquerade_tg*",
    ),
    (
        Part::Conntrack,
        "nf_conntrack_* __nf_conntrack_* nf_ct_* __nf_ct_* nf_confirm nf_ipv4_confirm ipv4_conntrack_* \
         ipv6_conntrack_* ipv4_confirm ipv6_confirm hash_conntrack* resolve_normal_ct init_conntrack \
         early_drop* gc_worker",
    ),
    (Part::FlowTable, "nf_flow_* nft_flow_offload_*"),
    (Part::Rules, "nf_hook* nft_* ipt_do_table ip6t_do_table iptable_* ip6table_* ebt_*"),
    (Part::Bridge, "br_* __br_*"),
    (
        Part::Bpf,
        "bpf_prog_* bpf_dispatcher_* tcf_* tc_run tcx_run sch_handle_* cls_bpf_* xdp_do_redirect* \
         xdp_do_flush",
    ),
    (
        Part::Gro,
        "napi_gro_* dev_gro_receive gro_* skb_gro_* inet_gro_* ipv6_gro_* tcp4_gro_* tcp6_gro_* \
         tcp_gro_* udp4_gro_* udp6_gro_* udp_gro_*",
    ),
    (
        Part::Output,
        "ip_output ip_finish_output* __ip_finish_output ip_do_fragment ip_fragment* ip6_output \
         ip6_finish_output* __ip6_finish_output ip6_fragment* neigh_* __neigh_* arp_* ndisc_* \
         dev_queue_xmit* __dev_queue_xmit __dev_xmit_skb dev_hard_start_xmit sch_direct_xmit __qdisc_run \
         validate_xmit_* veth_xmit",
    ),
    (
        Part::Routing,
        "ip_rcv* ip_list_rcv* ip_sublist_rcv* ip_forward* ip_route_* ip_mkroute_* fib_* __fib_* fib4_* \
         fib6_* ipv6_rcv* ipv6_list_rcv* ip6_rcv* ip6_list_rcv* ip6_sublist_rcv* ip6_forward* \
         ip6_route_* ip6_pol_route*",
    ),
    (
        Part::Driver,
        "net_rx_action net_tx_action napi_* __napi_* process_backlog veth_* netif_receive_skb* \
         __netif_receive_skb* __xdp_build_skb_from_frame xdp_build_skb_from_*",
    ),
];

/// Functions at which softirq work on packets begins. Functions outside of them were interrupted, or only happened to run
/// softirqs, and have nothing to do with the packets.
const BEGINS: &[&str] = &["net_rx_action", "net_tx_action", "napi_threaded_poll", "napi_threaded_poll_loop"];

/// Functions that only a host in the middle of the path spends its time in, or below. Those of veth are for frames without a socket
/// buffer: the tester's, on their way into the gateway's stack.
const GATEWAY: &str = "\
    ip_rcv* ip_list_rcv* ip_sublist_rcv* ip_forward* ipv6_rcv* ipv6_list_rcv* ip6_rcv* ip6_list_rcv* \
    ip6_sublist_rcv* ip6_forward* br_handle_frame* netif_receive_skb* __netif_receive_skb* napi_gro_* \
    gro_receive_skb dev_gro_receive veth_xdp_rcv_bulk_skb veth_xdp_rcv_one gc_worker";

/// Functions of the tester on a machine that it shares with the gateway: sending, and receiving what went through the gateway.
/// `xdp_return_frame` returns frames that its receiver did not pass; the one of veth is for packets with a socket buffer: those that
/// the gateway's stack sent to a receiver in XDP.
const TESTER: &str = "\
    xdp_test_run_batch bpf_test_run_xdp_live bpf_prog_test_run* bpf_prog_receive* xdp_return_frame* \
    veth_xdp_rcv_skb packet_sendmsg* packet_rcv* tpacket_rcv* ip_local_deliver* ip6_input* \
    ip6_protocol_deliver_rcu inet_sendmsg inet6_sendmsg udp_sendmsg udpv6_sendmsg tcp_sendmsg* inet_recvmsg \
    inet6_recvmsg udp_recvmsg udpv6_recvmsg tcp_recvmsg* inet_stream_connect __inet_stream_connect";

/// Idle loops, and what work can interrupt them.
const IDLE: &[&str] = &["do_idle", "cpu_startup_entry"];
const INTERRUPTS: &str = "asm_* el1_interrupt el1h_64_irq* handle_softirqs __do_softirq common_interrupt";

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
    let rule = |name: &&str| RULES.iter().find(|(_, patterns)| matches_any(name, patterns));
    path.iter().rev().find_map(rule).map_or(Part::Other, |(part, _)| *part)
}

fn matches_any(name: &str, patterns: &str) -> bool {
    patterns.split(' ').any(|pattern| matches(name, pattern))
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
