//! Stock iperf3 clients behind one NAT, at once over UDP: to the server they are one address, and a greeting does not say whose it is.

use serde_json::Value;
use weir_testkit::{PATIENCE, World, holds, measured, until};

use super::WEIR;
use super::iperf3_cases::{Case, check, of_iperf3, udp, under_way};

/// Two clients' hosts, a gateway that translates both to its own address, and the server's host.
const WORLD: &str = "set -e
    for n in one two out; do ip netns add $n; ip -n $n link set lo up; done
    link() {
        ip link add $1 type veth peer name e0 netns $1
        ip addr add 198.18.$2.1/24 dev $1; ip link set $1 up
        ip -n $1 addr add 198.18.$2.2/24 dev e0; ip -n $1 link set e0 up
    }
    link one 1; link two 2; link out 3
    ip -n one route add default via 198.18.1.1; ip -n two route add default via 198.18.2.1
    echo 1 > /proc/sys/net/ipv4/ip_forward
    nft 'table ip n { chain p { type nat hook postrouting priority 100; oifname out masquerade; }; }'";

/// The tests that run at once, half of them on each host: no two have the same rate, and what goes to a wrong one is missing at
/// the right one.
const AT_ONCE: [Case; 6] = [
    // The same port on both hosts: the gateway has to give one of them another.
    udp("-t 1 -b 1M -l 300 --cport 7000"),
    udp("-t 1 -b 2M -l 400 --cport 7000"),
    udp("-t 1 -b 700K -l 500 -P 4"),
    udp("-t 1 -b 900K -l 600 -P 3 -R"),
    udp("-t 1 -b 1500K -l 700 -P 2 --bidir"),
    udp("-t 1 -b 600K -l 800 -P 5"),
];

/// How many rounds must be right: the order in which the clients greet is another each time. A busy machine can spoil a round: a
/// stock receiver that does not get to run loses datagrams.
const NEEDED: usize = 4;
const ROUNDS: usize = 6;

#[test]
fn root_measured_clients_behind_one_nat_have_their_own_streams() {
    if World::lacks(&["ip", "nft", "iperf3"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    world.sh(WORLD);
    let within = |host: &str, program: &str, args: &[&str]| {
        let mut command = world.command("ip");
        command.args(["netns", "exec", host, program]).args(args);
        command
    };
    let mut server = world.start("serve", within("out", WEIR, &["serve", "--open", "--json"]));
    server.wait_for("Ctrl-C ends it");
    let round = |name: &str| {
        let start = |(nth, case): (usize, &Case)| {
            let options: Vec<&str> = case.options.split_whitespace().collect();
            let args = [&["-J", "-u", "-c", "198.18.3.2", "-p", "9347"][..], &options].concat();
            let host = ["one", "two"][nth % 2];
            world.start(&format!("{name}-{nth}"), within(host, "iperf3", &args))
        };
        let clients: Vec<_> = AT_ONCE.iter().enumerate().map(start).collect();
        let reports: Vec<_> = clients.into_iter().map(|c| c.end_within(PATIENCE).expect(0)).collect();
        for (case, report) in AT_ONCE.iter().zip(&reports) {
            let report: Value = serde_json::from_str(&report.stdout).unwrap();
            check(case, &of_iperf3(&report), under_way(case));
        }
    };
    let mut tried = 0;
    measured(NEEDED, ROUNDS, |nth| {
        tried += 1;
        holds(|| round(&format!("round-{nth}")))
    });
    let all = tried * AT_ONCE.len();
    until("a line of each", PATIENCE, || (server.printed().lines().count() == all).then_some(()));
    for line in server.printed().lines() {
        let note: Value = serde_json::from_str(line).unwrap();
        let peer = note["peer"].as_str().unwrap();
        assert!(peer.starts_with("198.18.3.1:") && note["end"] == "done", "{note}");
    }
}
