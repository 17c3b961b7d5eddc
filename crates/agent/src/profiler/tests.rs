//! Stacks of a real kernel against the rules, and a profile of a busy one.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};

use super::parts::{Owner, Part, owner};
use super::stacks::summary;
use super::*;

/// The samples of `perf record -e cpu-clock:k -g` on 6.18 while live frames (UDP, 64 bytes) crossed a gateway of veth pairs with
/// nftables masquerade and a set of prefixes, towards an XDP receiver; another process was listing a large set meanwhile. Folded;
/// suffixes of the compiler and digests of BPF programs were taken off.
const LIVE_FRAMES: &str = include_str!("recorded/live-frames.folded");

/// The same gateway under iperf3's UDP, without the rarest stacks.
const SOCKETS: &str = include_str!("recorded/sockets.folded");

fn lines(folded: &str) -> impl Iterator<Item = (&str, u64)> {
    folded.lines().map(|line| {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        (stack, count.parse().unwrap())
    })
}

fn total(folded: &str, is_counted: impl Fn(&str) -> bool) -> u64 {
    lines(folded).filter(|(stack, _)| is_counted(stack)).map(|(_, count)| count).sum()
}

fn profile_of(folded: &str, shared: bool) -> weir_record::Profile {
    summary(lines(folded).map(|(stack, count)| (stack.split(';').collect(), count)), shared)
}

fn samples(profile: &weir_record::Profile, part: Part) -> u64 {
    profile.parts.iter().find(|p| p.name == part.words()).map_or(0, |p| p.samples)
}

fn inclusive(profile: &weir_record::Profile, function: &str) -> u64 {
    profile.functions.iter().find(|f| f.name == function).map_or(0, |f| f.total)
}

fn part_of(stack: &str) -> Option<Part> {
    match owner(&stack.split(';').collect::<Vec<_>>(), true) {
        Owner::Gateway { part, .. } => Some(part),
        _ => None,
    }
}

const SOFTIRQ: &str =
    "xdp_test_run_batch;do_softirq;handle_softirqs;net_rx_action;__napi_poll;veth_poll;veth_xdp_rcv";
const RECEIVE: &str = "veth_xdp_rcv_bulk_skb;gro_receive_skb;netif_receive_skb_list_internal;__netif_receive_skb_list_core;\
                       ip_list_rcv;ip_sublist_rcv";

/// Innermost functions of stacks that were seen, with the part that a reader of the kernel's source would name.
#[test]
fn each_stack_belongs_to_the_part_that_its_innermost_known_function_names() {
    let cases = [
        ("nf_hook_slow_list;nf_hook_slow;nf_conntrack_in;__nf_conntrack_find_get", Part::Conntrack),
        (
            "nf_hook_slow_list;nf_hook_slow;nf_conntrack_in;hash_conntrack_raw;__siphash_unaligned",
            Part::Conntrack,
        ),
        ("ip_output;nf_hook_slow;nf_confirm", Part::Conntrack),
        (
            "nf_hook_slow;nf_conntrack_in;nf_conntrack_alloc;kmem_cache_alloc_noprof;___slab_alloc",
            Part::Conntrack,
        ),
        (
            "ip_output;nf_hook_slow;nf_nat_ipv4_out;nf_xfrm_me_harder;__xfrm_decode_session;__skb_flow_dissect",
            Part::Nat,
        ),
        ("nf_hook_slow;nf_nat_ipv4_pre_routing;nf_nat_manip_pkt;skb_ensure_writable", Part::Nat),
        ("nf_hook_slow;nf_nat_ipv4_out;nf_nat_inet_fn;nft_nat_do_chain;nft_do_chain", Part::Rules),
        ("nf_hook_slow;nft_nat_do_chain;nft_do_chain;nft_masq_inet_eval;nf_nat_masquerade_ipv4", Part::Nat),
        ("ip_forward;nf_hook_slow;nft_do_chain_ipv4;nft_do_chain", Part::Rules),
        ("ip_forward;nf_hook_slow;nft_do_chain_ipv4;nft_do_chain;nft_counter_eval", Part::Rules),
        ("ip_forward;nf_hook_slow;ipt_do_table", Part::Rules),
        ("ip_forward;nf_hook_slow;ipt_do_table;set_match_v4;ip_set_test;hash_net4_kadt", Part::Sets),
        (
            "nf_hook_slow;nft_do_chain;nft_lookup_eval;nft_set_do_lookup;nft_rbtree_lookup;nft_array_lookup_cmp",
            Part::Sets,
        ),
        ("ip_forward", Part::Routing),
        ("ip_rcv_finish_core;ip_route_input_noref;ip_route_input_slow;fib_table_lookup", Part::Routing),
        ("ip_output;ip_finish_output2;__dev_queue_xmit;dev_hard_start_xmit;veth_xmit", Part::Output),
        ("ip_output;ip_finish_output2;neigh_resolve_output;_raw_read_lock_bh", Part::Output),
    ];
    for (inner, part) in cases {
        assert_eq!(part_of(&format!("{SOFTIRQ};{RECEIVE};{inner}")), Some(part), "{inner}");
    }
    let outside_ip = [
        ("veth_xdp_rcv_bulk_skb;__xdp_build_skb_from_frame;__build_skb_around", Part::Driver),
        (
            "veth_xdp_rcv_bulk_skb;gro_receive_skb;dev_gro_receive;inet_gro_receive;udp4_gro_receive",
            Part::Gro,
        ),
        (
            "veth_xdp_rcv_bulk_skb;gro_receive_skb;netif_receive_skb_list_internal;__netif_receive_skb_list_core",
            Part::Driver,
        ),
        (
            "napi_gro_receive;netif_receive_skb;br_handle_frame;br_nf_pre_routing;nf_bridge_alloc",
            Part::Bridge,
        ),
        ("napi_gro_receive;netif_receive_skb;br_handle_frame;nf_hook_slow;nft_do_chain", Part::Rules),
        // Nothing says whose packets these are.
        ("", Part::Driver),
    ];
    for (inner, part) in outside_ip {
        assert_eq!(part_of(&format!("{SOFTIRQ};{inner}")), Some(part), "{inner}");
    }
    assert_eq!(
        part_of("kthread;worker_thread;process_one_work;gc_worker;nf_ct_gc_expired"),
        Some(Part::Conntrack)
    );
}

#[test]
fn the_testers_share_and_that_of_others_is_not_the_gateways() {
    let whose = |stack: &str, shared| owner(&stack.split(';').collect::<Vec<_>>(), shared);
    let syscall = "entry_SYSCALL_64_after_hwframe;do_syscall_64";
    for tester in [
        "__x64_sys_bpf;bpf_prog_test_run_xdp;bpf_test_run_xdp_live;xdp_test_run_batch;bpf_prog_generate4",
        "sock_write_iter;udp_sendmsg;udp_send_skb;ip_send_skb;ip_output;ip_finish_output2;__dev_queue_xmit;veth_xmit",
        "net_rx_action;__napi_poll;veth_poll;veth_xdp_rcv;veth_xdp_rcv_skb;bpf_prog_receive;read_tsc",
        // A gateway that redirects frames: they reach the receiver without a socket buffer.
        "net_rx_action;__napi_poll;veth_poll;veth_xdp_rcv;veth_xdp_rcv_one;bpf_prog_receive4",
        "net_rx_action;__napi_poll;veth_poll;veth_xdp_rcv;veth_xdp_rcv_one;xdp_return_frame;page_pool_put_unrefed_netmem",
        "net_rx_action;process_backlog;__netif_receive_skb_one_core;ip_local_deliver_finish;udp_queue_rcv_one_skb",
    ] {
        assert_eq!(whose(&format!("{syscall};{tester}"), true), Owner::Tester, "{tester}");
    }
    // Frames that the tester hands to the gateway's stack itself: its path begins there.
    let handed = "xdp_test_run_batch;netif_receive_skb_list_internal;ip_list_rcv;ip_forward";
    assert_eq!(whose(handed, true), Owner::Gateway { part: Part::Routing, from: 1 });
    // On a machine of its own everything that packets cause is the gateway's, but not what else runs there.
    let own = "net_rx_action;__napi_poll;virtnet_poll;napi_gro_receive;dev_gro_receive";
    assert_eq!(whose(own, false), Owner::Gateway { part: Part::Gro, from: 0 });
    assert_eq!(whose(&format!("{syscall};sock_write_iter;udp_sendmsg;ip_output"), false), Owner::Other);
    assert_eq!(whose(&format!("{syscall};netlink_recvmsg;netlink_dump;nft_rbtree_walk"), true), Owner::Other);
    // Softirqs of others.
    assert_eq!(whose("asm_sysvec_apic_timer_interrupt;handle_softirqs;rcu_core", false), Owner::Other);
    let idle =
        "common_startup_64;cpu_startup_entry;do_idle;default_idle_call;default_idle;pv_native_safe_halt";
    assert_eq!(whose(idle, false), Owner::Idle);
    // An interrupt while idle: this is how a gateway that is not overloaded works.
    let woken =
        format!("{idle};asm_common_interrupt;__irq_exit_rcu;handle_softirqs;net_rx_action;ip_forward");
    assert_eq!(whose(&woken, false), Owner::Gateway { part: Part::Routing, from: 9 });
}

/// Counted by words in whole lines, which no rule takes part in.
#[test]
fn a_recorded_kernel_is_divided_without_remainder() {
    let profile = profile_of(LIVE_FRAMES, true);
    let in_softirq = |stack: &str| stack.contains("net_rx_action");
    let received = |stack: &str| stack.contains("veth_xdp_rcv_skb");
    let sent = |stack: &str| stack.contains("xdp_test_run_batch") && !in_softirq(stack);
    assert_eq!(profile.samples, total(LIVE_FRAMES, |_| true));
    assert_eq!(profile.gateway_samples, total(LIVE_FRAMES, |s| in_softirq(s) && !received(s)));
    assert_eq!(profile.tester_samples, total(LIVE_FRAMES, |s| received(s) || sent(s)));
    // The process that listed a set used more than half of the machine, and none of it is booked on a host.
    assert_eq!(profile.samples - profile.path_samples(), total(LIVE_FRAMES, |s| s.contains("netlink_dump")));
    // nf_hook_slow_list calls nf_hook_slow: a stack with both counts once.
    assert_eq!(profile.hook_samples, total(LIVE_FRAMES, |s| s.contains("nf_hook_slow")));
    let sets = |s: &str| s.contains("nft_lookup_eval");
    assert_eq!(samples(&profile, Part::Sets), total(LIVE_FRAMES, sets));
    assert_eq!(
        samples(&profile, Part::Rules)
            + samples(&profile, Part::Sets)
            + samples(&profile, Part::Conntrack)
            + samples(&profile, Part::Nat),
        profile.hook_samples
    );
    // Translation asks connection tracking for the reverse tuple, which is that part's own.
    let nat = |s: &str| s.contains("nf_nat_") && !s.contains("nf_ct_invert_tuple");
    assert_eq!(samples(&profile, Part::Nat), total(LIVE_FRAMES, nat));
    let output = |s: &str| s.contains("ip_finish_output") || s.contains(";ip_output");
    assert_eq!(
        samples(&profile, Part::Output),
        total(LIVE_FRAMES, |s| output(s) && !s.contains("nf_hook_slow"))
    );
    assert_eq!(samples(&profile, Part::Other), 0);
    assert_eq!(profile.parts.iter().map(|p| p.samples).sum::<u64>(), profile.gateway_samples);
}

#[test]
fn the_record_of_a_recorded_kernel_is_whole_and_small() {
    let profile = profile_of(LIVE_FRAMES, true);
    let folded: BTreeMap<String, u64> = profile.calls.folded().into_iter().collect();
    assert_eq!(folded.values().sum::<u64>(), profile.gateway_samples);
    // All of it begins where softirq work on packets does, whichever task it interrupted.
    assert!(folded.keys().all(|stack| stack.starts_with("net_rx_action")));
    let forwarding = |s: &str| s.split(';').any(|name| name == "ip_forward");
    let function = profile.functions.iter().find(|f| f.name == "ip_forward").unwrap();
    assert_eq!(function.total, total(LIVE_FRAMES, forwarding));
    assert_eq!(function.own, total(LIVE_FRAMES, |s| s.ends_with(";ip_forward")));
    assert_eq!(
        profile.functions.iter().map(|f| f.total).max(),
        Some(profile.gateway_samples),
        "net_rx_action"
    );
    let bytes = serde_json::to_string(&profile).unwrap().len();
    assert!(bytes < 25_000, "{bytes} bytes for {} stacks", folded.len());
}

#[test]
fn the_ends_of_a_socket_workload_are_the_testers() {
    let profile = profile_of(SOCKETS, true);
    let delivered = |s: &str| s.contains("ip_local_deliver");
    let sent = |s: &str| s.contains("udp_sendmsg") && !s.contains("net_rx_action");
    assert_eq!(profile.tester_samples, total(SOCKETS, |s| delivered(s) || sent(s)));
    assert_eq!(profile.gateway_samples, total(SOCKETS, |s| s.contains("net_rx_action") && !delivered(s)));
    assert_eq!(samples(&profile, Part::Gro), 0, "veth without GRO");
}

/// A missing program must not end a run; a failure must not pass for something missing.
#[test]
fn a_refusal_for_want_of_something_is_told_apart() {
    let error = |kind| {
        weir_sys::Error::new("sample core 0 at 997 Hz", std::io::Error::new(kind, "needs CAP_PERFMON"))
    };
    let missing = refused(error(ErrorKind::PermissionDenied));
    assert!(missing.missing && missing.message.contains("needs CAP_PERFMON"), "{missing:?}");
    assert!(refused(error(ErrorKind::Unsupported)).missing);
    assert!(!refused(error(ErrorKind::OutOfMemory)).missing);
}

/// Datagrams over the loopback interface: nothing is forwarded, and yet their receiving is softirq work of this machine.
#[test]
fn a_busy_network_stack_is_profiled_as_root() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    let enough = AtomicBool::new(false);
    let deadline = Instant::now() + Duration::from_secs(60);
    let ended = move || Instant::now() > deadline;
    let profile = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !enough.load(Ordering::Relaxed) && !ended() {
                // The receiver's buffer is full soon; what is dropped there has crossed the stack.
                let _ = sender.send(&[0; 18]);
            }
        });
        // Until there are enough samples, however busy the machine is with others, which are sampled as well.
        let profile = loop {
            let profile =
                profile(Duration::from_millis(10), Duration::from_secs(2), HZ, false, &ended).unwrap();
            if inclusive(&profile, "process_backlog") >= 50 || ended() {
                break profile;
            }
        };
        enough.store(true, Ordering::Relaxed);
        profile
    });
    assert_eq!(profile.hz, HZ);
    // The loopback interface's queue.
    let backlog = inclusive(&profile, "process_backlog");
    assert!(backlog >= 50, "{profile:?}");
    assert!(inclusive(&profile, "net_rx_action") >= backlog);
    assert_eq!(profile.parts.iter().map(|p| p.samples).sum::<u64>(), profile.gateway_samples);
    assert_eq!(profile.calls.folded().iter().map(|(_, n)| n).sum::<u64>(), profile.gateway_samples);
    assert!(profile.window_s > 0.0);
}
