//! `weir bench` prints the known properties of a path: rates, losses, copies and an order that were made by the
//! kernel or by the lab's wan.

mod measure;

use std::time::Duration;

use measure::{Resident, bench, turn, world};
use weir_lab::impair::{Impairment, Reorder, Way};
use weir_lab::{Lab, LabOptions, Role, SiteSpec, Topology};
use weir_record::{FaultCode, Status};
use weir_testkit::{World, holds, measured};

const TC: &str = "tc";
const IP: &str = "ip";
const NFT: &str = "nft";
const IPTABLES: &str = "iptables";
const IPERF3: &str = "iperf3";

/// A scenario in the lab. Nothing is void because a hypervisor takes time: what is asked here does not depend on it.
fn scenario(family: &str, plan: &str, entries: &str) -> String {
    format!(
        "name = \"truth\"\ntitle = \"A test\"\n[testbed]\nkind = \"lab\"\nfamily = \"{family}\"\n[plan]\nbudget = \"60s\"\n\
         max-steal = 1.0\ntwin = false\n{plan}\n{entries}"
    )
}

/// The hop without translation, with something done to it on top.
fn routed_with(name: &str, apply: &str, remove: &str, more: &str) -> String {
    format!(
        "[[variant]]\nname = \"{name}\"\nkind = \"custom\"\nseen-source = \"inside\"\n\
         apply.gateway = [\"sysctl -qw net.ipv4.ip_forward=1\", {apply}]\n\
         remove.gateway = [{remove}, \"sysctl -qw net.ipv4.ip_forward=0\"]\n{more}\n"
    )
}

const ROUTED: &str = "[[variant]]\nkind = \"routed\"\n";

#[test]
fn root_measured_goodput_through_100_mbit_is_the_payload_s_share_of_it() {
    let Some(world) = world(&[TC]) else { return };
    let _turn = turn();
    measured(2, 3, |_| holds(|| goodput_is_the_payload_s_share(&world)));
}

fn goodput_is_the_payload_s_share(world: &World) {
    // The bucket's 5 ms catch up what a late timer held back: with less, the rate would be below the one that is set.
    let tbf = routed_with(
        "tbf",
        "\"tc qdisc add dev outside root tbf rate 100mbit burst 64kb latency 50ms\"",
        "\"tc qdisc del dev outside root\"",
        "",
    );
    let workload = "[[workload]]\nname = \"tcp\"\nkind = \"tcp-stream\"\n";
    let plan = "min-rounds = 6\nmax-rounds = 6\nwarmup = \"300ms\"\nduration = \"600ms\"";
    let measured = bench(world, &scenario("ipv4", plan, &format!("{ROUTED}{tbf}{workload}")));
    // tbf counts bytes with Ethernet's header: 14, 20 of IPv4, 20 of TCP, 12 of its timestamps (RFC 7323) of every packet of an
    // MTU of 1500, those inside of super-packets too (qdisc_pkt_len_init of net/core/dev.c).
    let truth = 100e6 * (1500.0 - 52.0) / (1500.0 + 14.0);
    let goodput = measured.value("tcp", "goodput_bps", "tbf");
    println!("{goodput:?} of {truth}: {:.4}", goodput.center / truth);
    assert!((goodput.center / truth - 1.0).abs() < 0.01, "{goodput:?}, and the truth is {truth}");
    assert!(goodput.interval.is_some() && goodput.n == 6, "{goodput:?}");
    // The bucket alone limits it.
    assert!(measured.value("tcp", "goodput_bps", "routed").range.0 > 2.0 * truth);
}

#[test]
fn root_alone_losses_and_copies_are_told_apart() {
    let Some(world) = world(&[TC, IP, NFT]) else { return };
    let _turn = turn();
    // Drops of the datagrams alone, which are as long as no other packet here.
    let loss = routed_with(
        "loss",
        "\"nft 'table ip truth { chain c { type filter hook forward priority 0; \
         udp length 108 numgen inc mod 100 == 0 drop; }; }'\"",
        "\"nft delete table ip truth\"",
        "",
    );
    // Every datagram whose number ends in five zero bits is copied past the routing. The low word of the number is at
    // 20 + 8 + 12 = 40 from the IP header. The copy has the Ethernet address of the gateway's inside, which the responder
    // takes for the time being.
    let copies = routed_with(
        "copies",
        "\"tc qdisc add dev inside clsact\", \
         \"tc filter add dev inside ingress protocol ip prio 1 u32 match ip protocol 17 0xff match u16 108 0xffff at 24 \
         match u32 0 0x1f at 40 action mirred egress mirror dev outside\", \
         \"ip neigh replace $WEIR_RESPONDER lladdr $(cat /sys/class/net/inside/address) dev outside nud permanent\"",
        "\"tc qdisc del dev inside clsact\"",
        "apply.responder = [\"ip link set eth0 address 02:77:65:69:72:02\", \
         \"ip neigh replace $WEIR_GATEWAY_OUTSIDE lladdr 02:77:65:69:72:03 dev eth0 nud permanent\"]\n\
         remove.responder = [\"ip link set eth0 address 02:77:65:69:72:04\"]",
    )
    .replace("$(cat /sys/class/net/inside/address)", "02:77:65:69:72:02");
    // Without a schedule nothing is late on a busy machine, and all of it fits into the receiver's buffer.
    let workload = "[[workload]]\nname = \"udp\"\nkind = \"udp-stream\"\npayload-bytes = 100\n";
    let plan = "min-rounds = 7\nmax-rounds = 7\nwarmup = \"50ms\"\nduration = \"150ms\"";
    let measured = bench(&world, &scenario("ipv4", plan, &format!("{ROUTED}{loss}{copies}{workload}")));

    let lost = measured.value("udp", "loss_ratio", "loss");
    let (low, high) = lost.interval.unwrap_or_else(|| panic!("{lost:?}"));
    println!("lost: {lost:?}");
    assert!(low < 0.01 && 0.01 < high && high - low < 0.01, "1 % is lost: {lost:?}");
    for (variant, share) in [("routed", 0.0), ("loss", 0.0), ("copies", 1.0 / 32.0)] {
        let sent = measured.by_trial("udp", "sent", variant);
        let duplicated = measured.by_trial("udp", "duplicated", variant);
        println!("{variant}: {duplicated:?} of {sent:?} twice");
        for (sent, duplicated) in sent.iter().zip(&duplicated) {
            assert!(
                *sent > 2000.0 && (duplicated - share * sent).abs() <= 1.0,
                "{variant}: {duplicated} of {sent}"
            );
        }
        let reordered = measured.value("udp", "reordered", variant);
        assert_eq!(reordered.range, (0.0, 0.0), "{variant}");
    }
    for variant in ["routed", "copies"] {
        let lost = measured.value("udp", "loss_ratio", variant);
        let bound = 3.0 / measured.by_trial("udp", "sent", variant).iter().sum::<f64>();
        assert_eq!((lost.center, lost.range), (0.0, (0.0, 0.0)), "{variant}");
        // Zero of n is printed as at most 3/n.
        assert!(
            lost.interval.is_none_or(|i| i.0 == 0.0 && (i.1 - bound).abs() < 1e-12),
            "{variant} {lost:?}"
        );
    }
}

#[test]
fn root_alone_an_order_that_was_changed_is_reordering_and_not_loss() {
    let Some(world) = world(&[IP, IPTABLES]) else { return };
    let _turn = turn();
    let spec = SiteSpec { name: "s".into(), topology: Topology::Direct, return_route: false, wan: true };
    let run = format!("test-truth-order-{}", std::process::id());
    let lab = Lab::build(&run, &LabOptions::default(), &[spec]).unwrap();
    let site = lab.site("s").unwrap();
    let ends = [("initiator", Role::Initiator), ("responder", Role::Responder)]
        .map(|(name, role)| Resident::named(&world, name, site.host(role).unwrap()));
    let egress = Way { reorder: Some(Reorder { every: 10, behind: 3 }), ..Way::default() };
    let impairment = Impairment::start(site, egress, Way::default()).unwrap();
    let addresses = site.addresses();
    let text = format!(
        "name = \"truth\"\ntitle = \"A test\"\n[testbed]\nkind = \"hosts\"\n\
         [testbed.initiator]\nhost = \"netns:initiator\"\naddress = \"{}\"\n\
         [testbed.responder]\nhost = \"netns:responder\"\naddress = \"{}\"\n\
         [plan]\ntwin = false\nmax-steal = 1.0\nmin-rounds = 3\nmax-rounds = 3\nwarmup = \"50ms\"\nduration = \"500ms\"\n\
         [[variant]]\nkind = \"path\"\n\
         [[workload]]\nname = \"udp\"\nkind = \"udp-stream\"\nrate-pps = 2000\npayload-bytes = 200\n",
        addresses.initiator, addresses.responder
    );
    let measured = bench(&world, &text);
    let (passed, _) = impairment.finish().unwrap();
    drop(ends);
    let figures = |metric| measured.by_trial("udp", metric, "path");
    println!(
        "{:?} of {:?}; {} of {} in all",
        figures("reordered"),
        figures("sent"),
        passed.reordered,
        passed.packets
    );
    for (reordered, sent) in figures("reordered").iter().zip(figures("sent")) {
        // At both ends of a window one may belong to the other side. RFC 4737 counts the one that comes late, not those
        // that overtook it.
        assert!((reordered - sent / 10.0).abs() <= 2.0, "{reordered} of {sent}");
    }
    assert!(figures("lost").iter().chain(&figures("duplicated")).all(|n| *n == 0.0), "{:?}", figures("lost"));
}

#[test]
fn root_alone_variants_hold_over_ipv6() {
    let Some(world) = world(&[NFT, "ip6tables-nft"]) else { return };
    let _turn = turn();
    // (variant, address that the responder must see, whether it has a rule whose counter moves); RFC 5180's block.
    let variants = [
        ("routed", "2001:2::2", false),
        ("nft-masquerade", "2001:2:0:1::1", true),
        ("nft-stateless", "2001:2:0:2::1", true),
        ("bpf-stateless", "2001:2:0:2::1", true),
        ("docker-publish", "2001:2::2", true),
        ("bpf-publish", "2001:2::2", true),
    ];
    let entries: String =
        variants.iter().map(|(kind, ..)| format!("[[variant]]\nkind = \"{kind}\"\n")).collect();
    let workloads = ["tcp-stream", "tcp-rr", "udp-rr"];
    let entries = workloads
        .iter()
        .fold(entries, |all, w| format!("{all}[[workload]]\nname = \"{w}\"\nkind = \"{w}\"\n"));
    let plan = "min-rounds = 1\nmax-rounds = 1\nwarmup = \"50ms\"\nduration = \"150ms\"";
    let measured = bench(&world, &scenario("ipv6", plan, &entries));
    assert_eq!(measured.run.status, Status::RoundsDone);
    assert_eq!(measured.run.notes, Vec::<String>::new());
    for (info, (kind, seen, counted)) in measured.run.variants.iter().zip(variants) {
        let proof = info.proof.join("; ");
        assert_eq!(info.kind, kind);
        assert!(proof.contains(&format!("the responder sees {seen} ")), "{kind}: {proof}");
        assert_eq!(proof.contains("counter moved"), counted, "{kind}: {proof}");
        for (workload, metric) in
            [("tcp-stream", "goodput_bps"), ("tcp-rr", "rtt_p50_ns"), ("udp-rr", "rtt_p50_ns")]
        {
            let value = measured.value(workload, metric, kind);
            assert!(value.center > 0.0 && value.n == 1, "{kind} {workload}: {value:?}");
        }
    }
}

#[test]
fn root_measured_five_variants_are_up_in_two_seconds_and_down_in_two() {
    let _turn = turn();
    measured(2, 3, |_| holds(up_and_down_in_two_seconds));
}

fn up_and_down_in_two_seconds() {
    let Some(world) = world(&[NFT]) else { return };
    let kinds = ["direct", "routed", "nft-masquerade", "nft-snat", "nft-stateless"];
    let mut entries: String = kinds.iter().map(|kind| format!("[[variant]]\nkind = \"{kind}\"\n")).collect();
    entries += "[[workload]]\nname = \"rr\"\nkind = \"tcp-rr\"\n";
    let plan = "min-rounds = 1\nmax-rounds = 1\nwarmup = \"0ms\"\nduration = \"100ms\"";
    let measured = bench(&world, &scenario("ipv4", plan, &entries));
    let up = measured.told.iter().find_map(|l| l.strip_prefix("hosts up in ")?.split_once(" ms")).unwrap().0;
    let up = Duration::from_millis(up.parse().unwrap());
    println!("up in {up:?}; concluded and down in {:?}", measured.closing);
    assert!(up < Duration::from_secs(2), "{up:?}");
    assert!(measured.closing < Duration::from_secs(2), "{:?}", measured.closing);
    assert_eq!(world.labs(), Vec::<String>::new());
}

#[test]
fn root_paced_iperf3_beside_ours_finds_the_same() {
    let Some(world) = world(&[IPERF3]) else { return };
    let _turn = turn();
    measured(2, 3, |_| holds(|| iperf3_finds_the_same(&world)));
}

fn iperf3_finds_the_same(world: &World) {
    let udp = "rate-bps = 20000000\npayload-bytes = 1000\n";
    let workloads = format!(
        "[[workload]]\nname = \"weir\"\nkind = \"udp-stream\"\n{udp}\
         [[workload]]\nname = \"iperf3\"\nkind = \"external\"\nprogram = \"iperf3\"\nprotocol = \"udp\"\n{udp}\
         [[compare]]\nworkload = \"weir\"\nwith = \"iperf3\"\n"
    );
    let plan = "min-rounds = 4\nmax-rounds = 4\nwarmup = \"100ms\"\nduration = \"1s\"";
    let measured = bench(world, &scenario("ipv4", plan, &format!("{ROUTED}{workloads}")));
    let [ours, theirs] = ["weir", "iperf3"].map(|workload| {
        let figures = |metric| measured.by_trial(workload, metric, "routed");
        figures("goodput_bps").into_iter().zip(figures("loss_ratio")).collect::<Vec<_>>()
    });
    println!("weir: {ours:?}\niperf3: {theirs:?}");
    let right = |(goodput, loss): &(f64, f64)| (goodput / 20e6 - 1.0).abs() < 0.01 && *loss == 0.0;
    assert!(ours.len() == 4 && ours.iter().all(right), "{ours:?}");
    // On a busy machine iperf3 counts what its own full buffer dropped as lost: not in each trial, but in some.
    assert!(theirs.len() == 4 && theirs.iter().any(right), "{theirs:?}");
    // A metric that both measure has one name, and is compared.
    let results = measured.run.results.as_ref().unwrap();
    for metric in ["goodput_bps", "loss_ratio", "jitter_ns"] {
        assert!(results.workload_comparisons.iter().any(|c| c.metric == metric), "{metric}");
    }
    assert!(!results.faults.iter().any(|f| f.code == FaultCode::External), "{:?}", results.faults);
}
