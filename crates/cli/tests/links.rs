//! `weir bench` measures the properties that a link of the lab was asked to have, and it ends as every lab does.

mod measure;

use measure::{Resident, bench, turn, world};
use serde_json::Value;
use weir_netlink::{Rtnetlink, VethEnd};
use weir_record::Trial;
use weir_sys::NetNs;
use weir_testkit::{NamespaceWatch, PATIENCE, World, until};

const IPTABLES: &str = "iptables";
const NFT: &str = "nft";

fn scenario(plan: &str, entries: &str) -> String {
    format!(
        "name = \"links\"\ntitle = \"A test\"\n[plan]\nbudget = \"60s\"\nmax-steal = 1.0\ntwin = false\n{plan}\n{entries}"
    )
}

fn trials<'a>(run: &'a weir_record::Run, workload: &str, variant: &str) -> Vec<&'a Trial> {
    run.trials.iter().filter(|t| t.workload == workload && t.variant == variant).collect()
}

#[test]
fn root_paced_each_trial_takes_one_of_two_gateways_and_the_bypass_none() {
    let Some(world) = world(&[IPTABLES, NFT]) else { return };
    let _turn = turn();
    let entries = "[[variant]]\nkind = \"path\"\nname = \"one\"\nlink = { egress = { delay = \"1.8ms\" } }\n\
        [[variant]]\nkind = \"path\"\nname = \"either\"\nlabels = { zone = \"any\" }\n\
        link = { egress = { delays = [\"1.8ms\", \"3.0ms\"] } }\n\
        [[variant]]\nkind = \"path\"\nname = \"bypass\"\n\
        [[workload]]\nname = \"rr\"\nkind = \"tcp-rr\"\n";
    let plan = "min-rounds = 12\nmax-rounds = 12\nwarmup = \"50ms\"\nduration = \"300ms\"";
    let measured = bench(&world, &scenario(plan, entries));
    let run = &measured.run;
    let either = run.variants.iter().find(|v| v.name == "either").unwrap();
    assert_eq!(either.labels["zone"], "any");
    assert!(either.description.contains("egress waits 1.8ms or 3ms by hash"), "{}", either.description);
    let proof = either.proof.join("; ");
    assert!(proof.contains("link, egress: waits 1.8ms or 3ms by hash of the connection by"), "{proof}");

    // The least of a trial's round trips is what the link made of it, however busy the machine was.
    let least_ms = |trial: &Trial| trial.histograms["rtt"].answered().min() as f64 / 1e6;
    let mut slow = 0;
    for trial in trials(run, "rr", "either") {
        let (least, gateways) = (least_ms(trial), &trial.link["egress"].gateways);
        // One connection: all its packets took one gateway, and it is that whose delay was measured.
        let slower = gateways[1] > gateways[0];
        println!("{least} ms, {gateways:?}");
        assert!(gateways.iter().any(|n| *n > 10));
        let delay = if slower { 3.0 } else { 1.8 };
        assert!((delay..delay * 1.3).contains(&least), "{least} ms through the gateway of {delay} ms");
        slow += u32::from(slower);
    }
    // All twelve through the same one happens once in 2048 runs with random seeds; here the seed is given.
    assert!((1..12).contains(&slow), "{slow} of 12");
    for trial in trials(run, "rr", "one") {
        assert!(least_ms(trial) >= 1.8 && trial.link["egress"].packets > 10, "{:?}", trial.link);
        assert_eq!(trial.link["egress"].overflows, 0);
        assert!(trial.link["ingress"].packets == 0);
    }
    for trial in trials(run, "rr", "bypass") {
        assert!(trial.link.is_empty() && least_ms(trial) < 1.0);
    }
}

#[test]
fn root_paced_what_a_link_loses_and_lets_pass() {
    let Some(world) = world(&[IPTABLES, NFT]) else { return };
    let _turn = turn();
    let entries = "[testbed.link]\nrate = \"100mbit\"\n\
        [[variant]]\nkind = \"path\"\nname = \"slow\"\n\
        [[variant]]\nkind = \"routed\"\nname = \"lossy\"\nlink = { egress = { loss = 0.02 } }\n\
        [[workload]]\nname = \"tcp\"\nkind = \"tcp-stream\"\n\
        [[workload]]\nname = \"udp\"\nkind = \"udp-stream\"\nrate-pps = 2000\npayload-bytes = 100\n";
    let plan = "min-rounds = 6\nmax-rounds = 6\nwarmup = \"100ms\"\nduration = \"600ms\"";
    let measured = bench(&world, &scenario(plan, entries));
    // Each frame of 1,514 bytes, as tbf counts it, has 1,448 of payload: 20 of IPv4, 20 of TCP, 12 of its timestamps, 14 of
    // Ethernet.
    let truth = 100e6 * 1448.0 / 1514.0;
    let goodput = measured.value("tcp", "goodput_bps", "slow");
    // A machine that is busy with other things sends less in one trial or another; none gets more through.
    let best = goodput.range.1 / truth;
    println!("{best:.4} of {truth}: {goodput:?}");
    assert!((best - 1.0).abs() < 0.02, "{goodput:?}, and the truth is {truth}");

    let (sent, lost): (f64, f64) = (
        measured.by_trial("udp", "sent", "lossy").iter().sum(),
        measured.by_trial("udp", "lost", "lossy").iter().sum(),
    );
    // Five standard deviations of a binomial distribution.
    let width = 5.0 * (sent * 0.02 * 0.98).sqrt();
    println!("{lost} of {sent} lost");
    assert!(sent > 5000.0 && (lost - 0.02 * sent).abs() < width, "{lost} of {sent}");
    // The link's own count holds the warm-up, too.
    let counted: u64 = trials(&measured.run, "udp", "lossy").iter().map(|t| t.link["egress"].lost).sum();
    assert!(counted as f64 >= lost, "{counted}");
}

/// Three hosts on one bridge, of which one has two addresses.
fn bridged(world: &World) -> (NetNs, Vec<Resident>) {
    let middle = NetNs::create().unwrap();
    let mut residents = Vec::new();
    let mut net = Rtnetlink::open_in(&middle).unwrap();
    net.create_bridge("br0", 1500, [2, 0, 0, 0, 0, 1]).unwrap();
    net.set_up("br0").unwrap();
    for (number, name) in (1u8..).zip(["initiator", "first", "second"]) {
        let host = NetNs::create().unwrap();
        let port = format!("p{number}");
        let end = |name, namespace| VethEnd { name, namespace: Some(namespace), mtu: 1500, mac: None };
        net.create_veth(end(&port, &middle), end("eth0", &host)).unwrap();
        net.set_master(&port, "br0").unwrap();
        net.set_up(&port).unwrap();
        let mut own = Rtnetlink::open_in(&host).unwrap();
        own.set_up("lo").unwrap();
        own.set_up("eth0").unwrap();
        own.add_address("eth0", [198, 18, 7, number].into(), 24).unwrap();
        if name == "first" {
            own.add_address("eth0", [198, 18, 7, 22].into(), 24).unwrap();
        }
        residents.push(Resident::named(world, name, &host));
    }
    (middle, residents)
}

#[test]
fn root_alone_paths_lead_to_responders_of_their_own() {
    let Some(world) = world(&["ip"]) else { return };
    let _turn = turn();
    let (_middle, residents) = bridged(&world);
    let text = "name = \"targets\"\ntitle = \"A test\"\n[testbed]\nkind = \"hosts\"\n\
        [testbed.initiator]\nhost = \"netns:initiator\"\naddress = \"198.18.7.1\"\n\
        [[testbed.responder]]\nhost = \"netns:first\"\naddress = \"198.18.7.2\"\n\
        [[testbed.responder]]\nhost = \"netns:second\"\naddress = \"198.18.7.3\"\n\
        [plan]\ntwin = false\nmax-steal = 1.0\nmin-rounds = 1\nmax-rounds = 1\nwarmup = \"0ms\"\nduration = \"200ms\"\n\
        [[variant]]\nkind = \"path\"\nname = \"first\"\n\
        [[variant]]\nkind = \"path\"\nname = \"other-address\"\ntarget = \"198.18.7.22\"\n\
        [[variant]]\nkind = \"path\"\nname = \"second\"\ntarget = \"198.18.7.3\"\n\
        [[workload]]\nname = \"rr\"\nkind = \"udp-rr\"\n";
    let measured = bench(&world, text);
    drop(residents);
    let hosts: Vec<&str> = measured.run.hosts.iter().map(|h| h.transport.as_str()).collect();
    assert_eq!(hosts, ["netns:initiator", "netns:first", "netns:second"]);
    for variant in ["first", "other-address", "second"] {
        assert!(measured.value("rr", "rtt_p50_ns", variant).center > 0.0);
    }
}

#[test]
fn root_a_run_over_links_leaves_nothing_however_it_ends() {
    let entries = "[testbed.link]\ndelay = \"1ms\"\nloss = 0.001\n\
        [[variant]]\nkind = \"path\"\n[[variant]]\nkind = \"routed\"\n\
        [[workload]]\nname = \"rr\"\nkind = \"udp-rr\"\nduration = \"60s\"\n";
    for signal in ["INT", "KILL"] {
        let Some(world) = world(&[IPTABLES, NFT]) else { return };
        world.write("s.toml", scenario("min-rounds = 1\nmax-rounds = 1", entries));
        let mut run = world.start("weir", world.weir(&["bench", "s.toml", "-o", "out"]));
        run.wait_for("routed: the responder sees");
        let list = world.run(world.weir(&["lab", "list", "--json"])).expect(0).stdout;
        let list: Value = serde_json::from_str(&list).unwrap();
        let entry = &list["labs"][0];
        let pid = entry["runner"]["pid"].as_u64().unwrap() as u32;
        let watches: Vec<NamespaceWatch> = entry["hosts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|host| NamespaceWatch::on(pid, host["fd"].as_i64().unwrap() as i32))
            .collect();
        assert_eq!(watches.len(), 5);
        run.signal(signal);
        let outcome = run.end_within(PATIENCE);
        drop(outcome);
        watches.iter().for_each(NamespaceWatch::wait_until_gone);
        until("nothing of the run is there", PATIENCE, || world.processes().is_empty().then_some(()));
        world.run(world.weir(&["lab", "clean"])).expect(0);
        assert!(world.labs().is_empty(), "{:?}", world.labs());
    }
}
