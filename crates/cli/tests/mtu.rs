//! `weir mtu` as a user calls it, in network namespaces of the test's own.

mod documents;

use std::time::{Duration, Instant};

use serde_json::Value;
use weir_sys::process::which;
use weir_testkit::{Background, CommandOutput, PATIENCE, Record, World, holds, measured};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A client, a router and a target, as namespaces with names in the world's own `/run`.
const PATH: &str = "set -e
for n in client router target; do
  ip netns add $n
  # Addresses of the link are usable at once.
  ip netns exec $n sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0
  ip -n $n link set lo up
done
ip -n client link add eth0 type veth peer name in0 netns router
ip -n router link add out0 type veth peer name eth0 netns target
ip -n client addr add 198.18.0.2/24 dev eth0
ip -n client addr add 2001:2::2/64 dev eth0 nodad
ip -n router addr add 198.18.0.1/24 dev in0
ip -n router addr add 2001:2::1/64 dev in0 nodad
ip -n router addr add 198.19.0.1/24 dev out0
ip -n router addr add 2001:2:0:1::1/64 dev out0 nodad
ip -n target addr add 198.19.0.2/24 dev eth0
ip -n target addr add 2001:2:0:1::2/64 dev eth0 nodad
for l in client/eth0 router/in0 router/out0 target/eth0; do ip -n ${l%/*} link set ${l#*/} up; done
ip -n client route add default via 198.18.0.1
ip -n client -6 route add default via 2001:2::1
ip -n target route add default via 198.19.0.1
ip -n target -6 route add default via 2001:2:0:1::1
ip netns exec router sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
";

const TARGETS: [(&str, &str); 2] = [("198.19.0.2", "IPv4"), ("2001:2:0:1::2", "IPv6")];

/// The path, unless it cannot be here.
fn path() -> Option<World> {
    if World::lacks(&["ip", "nft", "setpriv"]) {
        return None;
    }
    let world = World::root(WEIR)?;
    world.sh(PATH);
    Some(world)
}

/// `weir mtu` at the client.
fn mtu(world: &World, args: &[&str]) -> CommandOutput {
    let mut command = world.command("ip");
    command.args(["netns", "exec", "client"]).arg(world.binary()).arg("mtu").args(args);
    world.run(command)
}

fn json(world: &World, args: &[&str]) -> Value {
    documents::read(&mtu(world, &[args, &["--json"]].concat()).expect(0).stdout, "mtu")
}

fn causes(document: &Value) -> Vec<&str> {
    let findings = document["verdict"]["findings"].as_array().unwrap();
    findings.iter().map(|f| f["cause"].as_str().unwrap()).collect()
}

#[test]
fn help_and_wrong_usage() {
    let world = World::plain(WEIR);
    for flag in ["--help", "-h"] {
        let help = world.run(world.weir(&["mtu", flag])).expect(0).stdout;
        for word in ["TARGET", "--port", "--ipv6", "--for", "--json", "--fail-on-finding", "--help"] {
            assert!(help.contains(word), "{flag}: no {word} in {help}");
        }
    }
    for (args, word) in [
        (&["mtu"][..], "TARGET"),
        (&["mtu", "192.0.2.1", "--port", "0"], "--port"),
        (&["mtu", "192.0.2.1", "--for", "0"], "--for"),
        (&["mtu", "192.0.2.1", "-4", "-6"], "cannot be used with"),
        (&["mtu", "192.0.2.1:80"], "--port"),
        (&["mtu", "http://192.0.2.1/"], "host name or an address"),
        (&["mtu", "\u{1b}[31mred"], "host name or an address"),
        (&["mtu", ""], "host name or an address"),
        (&["mtu", "2001:2::1", "-4"], "not an IPv4 address"),
        (&["mtu", "224.0.0.1"], "not the address of one host"),
    ] {
        let outcome = world.run(world.weir(args)).expect(2);
        assert!(outcome.stderr.contains(word), "{args:?}: {}", outcome.stderr);
        assert!(outcome.stdout.is_empty() && !outcome.stderr.contains('\u{1b}'), "{args:?}");
    }
}

#[test]
fn loopback_needs_no_privilege() {
    let world = World::plain(WEIR);
    // A user who may not ping has the refusals of a closed port.
    let text = world.run(world.weir(&["mtu", "127.0.0.1", "--port", "9"])).expect(0).stdout;
    assert!(text.starts_with("The path carries 65,535 bytes"), "{text}");
    assert!(text.contains("-l 65507"), "{text}");
}

#[test]
fn root_a_clean_path_and_a_tunnel_and_a_black_hole() {
    let Some(world) = path() else { return };
    for (target, family) in TARGETS {
        let document = json(&world, &[target]);
        assert_eq!(causes(&document), [""; 0], "{family}: {document:#}");
        assert_eq!(document["verdict"]["path_mtu_bytes"], 1500, "{family}");
        assert_eq!(document["verdict"]["safe_payload_bytes"], if family == "IPv4" { 1472 } else { 1452 });
        mtu(&world, &[target, "--fail-on-finding"]).expect(0);
    }
    world.sh("ip -n router link set out0 mtu 1400; ip -n target link set eth0 mtu 1400");
    for (target, family) in TARGETS {
        let document = json(&world, &[target]);
        assert_eq!(causes(&document), ["smaller-mtu"], "{family}: {document:#}");
        assert_eq!(document["verdict"]["path_mtu_bytes"], 1400, "{family}");
        let router = if family == "IPv4" { "198.18.0.1" } else { "2001:2::1" };
        assert_eq!(document["survey"]["egress"]["claim"]["from"], router);
        assert_eq!(document["survey"]["egress"]["claim"]["right"], true);
    }
    world.sh(
        "printf 'table inet f {\n chain o {\n type filter hook output priority 0;\n icmp type destination-unreachable icmp code \
         frag-needed drop\n icmpv6 type packet-too-big drop\n }\n}\n' | ip netns exec router nft -f -",
    );
    for (target, family) in TARGETS {
        let outcome = mtu(&world, &[target, "--fail-on-finding"]).expect(3);
        let text = outcome.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        let router = if family == "IPv4" { "198.18.0.1" } else { "2001:2::1" };
        let words = format!("Packets of more than 1,400 bytes vanish, between hop 1 ({router}) and hop 2");
        assert!(text.starts_with(&words), "{family}: {text}");
        let (payload, mss) = if family == "IPv4" { (1372, 1360) } else { (1352, 1340) };
        assert!(
            text.contains(&format!("-l {payload}")) && text.contains(&format!("size set {mss}")),
            "{text}"
        );
    }
}

#[test]
fn root_the_kernel_s_own_discovery_finds_the_same() {
    let Some(world) = path() else { return };
    if World::lacks(&["python3"]) {
        return;
    }
    // An independent program: the kernel's own path MTU discovery (RFC 1191), by a plain UDP socket that asks until it knows.
    let program = "import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, 10, 2)
s.connect((sys.argv[1], 9))
end = time.monotonic() + 20
while True:
    size = s.getsockopt(socket.IPPROTO_IP, 14) - 28
    try:
        s.send(bytes(size))
        time.sleep(0.05)
        s.send(b'')
    except OSError:
        pass
    if s.getsockopt(socket.IPPROTO_IP, 14) - 28 == size or time.monotonic() > end:
        break
print(size + 28)
";
    world.write("pmtu.py", program);
    for tunnel in [1500, 1437, 1280] {
        world
            .sh(&format!("ip -n router link set out0 mtu {tunnel}; ip -n target link set eth0 mtu {tunnel}"));
        world.sh("ip -n client route flush cache");
        let told = world.sh("ip netns exec client python3 pmtu.py 198.19.0.2");
        if which("tracepath").is_some() {
            world.sh("ip -n client route flush cache");
            let told = world.sh("ip netns exec client tracepath -n 198.19.0.2");
            assert!(told.contains(&format!("Resume: pmtu {tunnel} ")), "{told}");
        }
        let found = json(&world, &["198.19.0.2"])["verdict"]["path_mtu_bytes"].to_string();
        assert_eq!((found.as_str(), told.trim()), (tunnel.to_string().as_str(), tunnel.to_string().as_str()));
    }
}

#[test]
fn root_without_privilege_a_closed_port_has_to_do() {
    let Some(world) = path() else { return };
    world.sh("ip netns exec client sysctl -qw net.ipv4.ping_group_range='1 0'");
    let unprivileged = |args: &[&str]| {
        let mut command = world.command("ip");
        command.args(["netns", "exec", "client", "setpriv", "--reuid", "65534", "--regid", "65534"]);
        command
            .args(["--clear-groups", "--inh-caps=-all"])
            .arg(world.folder().join("weir"))
            .arg("mtu")
            .args(args);
        let outcome = world.run(command).expect(0);
        serde_json::from_str::<Value>(&outcome.stdout).unwrap()
    };
    // In a folder that only root may read, the program is copied.
    std::fs::copy(WEIR, world.folder().join("weir")).unwrap();
    let clean = unprivileged(&["198.19.0.2", "--json"]);
    assert_eq!(clean["survey"]["method"], "closed-port", "{clean:#}");
    assert_eq!(clean["verdict"]["path_mtu_bytes"], 1500, "{clean:#}");
    assert_eq!(clean["survey"]["egress_fragments"]["fate"], "whole", "{clean:#}");
    assert!(clean["survey"]["unknown"].to_string().contains("ping_group_range"), "{clean:#}");
    world.sh("ip -n router link set out0 mtu 1400; ip -n target link set eth0 mtu 1400");
    // The host refuses once a second by now.
    let tunnel = unprivileged(&["198.19.0.2", "--json", "--for", "30"]);
    assert_eq!(tunnel["verdict"]["path_mtu_bytes"], 1400, "{tunnel:#}");
    assert_eq!(causes(&tunnel), ["smaller-mtu"]);
}

/// A server at the target, and what `weir mtu` then says of the path.
fn served(world: &World) -> (Background, Value) {
    let mut command = world.command("ip");
    command.args(["netns", "exec", "target"]).arg(world.binary());
    command.args(["serve", "--bind", "198.19.0.2", "--open"]);
    let server = world.start("serve", command);
    let deadline = Instant::now() + Duration::from_secs(20);
    // No probe is answered before it listens.
    loop {
        let document = json(world, &["198.19.0.2"]);
        if document["survey"]["method"] == "far-end" {
            return (server, document);
        }
        assert!(Instant::now() < deadline, "{}\n{document:#}", server.said());
    }
}

/// Bulk TCP connects and stands still: the probe says why, in each direction, though the server lets in no more streams than it was
/// asked for.
#[test]
fn root_a_tcp_probe_names_a_black_hole() {
    let Some(world) = path() else { return };
    let (server, _) = served(&world);
    world.sh("ip -n router route replace 198.19.0.0/24 dev out0 mtu 1400
         ip -n router route replace 198.18.0.0/24 dev in0 mtu 1300
         ip netns exec router nft 'add table ip t; add chain ip t o { type filter hook output priority 0; }; \
         add rule ip t o icmp type destination-unreachable drop'");
    for (more, way, lost, passes) in
        [(&[][..], "egress", 1420, 1400), (&["--reverse"], "ingress", 1340, 1280)]
    {
        let mut command = world.command("ip");
        command.args(["netns", "exec", "client"]).arg(world.binary());
        command.args(["probe", "198.19.0.2", "tcp", "--time", "1", "--json"]).args(more);
        // Nothing is what the path lets through: a result, and its reason is beside it.
        let outcome = world.run(command).expect(0);
        assert!(!outcome.stderr.contains("nothing was measured"), "{}", outcome.stderr);
        let document: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let trial = &document["long"];
        assert_eq!(trial["path"][0]["cause"], "path-mtu-black-hole", "{document:#}");
        let (lost, passes, mss) =
            [lost, passes, passes - 40].map(|n| format!("{},{:03}", n / 1000, n % 1000)).into();
        let words = format!(
            "path MTU black hole: TCP connects and then nothing moves {way}: packets of {lost} bytes and more vanish, those of up to \
             {passes} arrive, and no ICMP too-big says so; clamp TCP's MSS to {mss}"
        );
        assert_eq!(trial["path"][0]["summary"], words);
        assert_eq!(trial["metrics"]["goodput_bps"], 0.0, "{document:#}");
    }
    server.signal("TERM");
    server.end_within(PATIENCE);
}

#[test]
fn root_weir_serve_shows_each_direction() {
    let Some(world) = path() else { return };
    let (server, seen) = served(&world);
    assert_eq!(causes(&seen), [""; 0], "{seen:#}");
    assert_eq!(seen["survey"]["ingress"]["bytes"], 1500);
    assert_eq!(seen["survey"]["segments"]["arrived"], 1460, "{seen:#}");
    // Clamped on the way there, and fragments without a UDP header dropped both ways.
    world.sh(
        "printf 'table inet f {\n chain p {\n type filter hook prerouting priority raw;\n ip frag-off & 0x1fff != 0 drop\n }\n chain f \
         {\n type filter hook forward priority 0;\n tcp flags syn tcp option maxseg size set 1200\n }\n}\n' | ip netns exec router nft -f -",
    );
    let seen = json(&world, &["198.19.0.2"]);
    assert_eq!(causes(&seen), ["headerless-fragments-dropped"], "{seen:#}");
    assert_eq!(seen["survey"]["segments"]["arrived"], 1200, "{seen:#}");
    assert_eq!(seen["survey"]["egress_fragments"]["fate"], "first-only");
    let text = mtu(&world, &["198.19.0.2"]).expect(0).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let sentence = "Fragments of UDP datagrams that carry no UDP header are dropped on the path: send at most 1,472 bytes (-l 1472).";
    assert!(text.starts_with(sentence), "{text}");
    assert!(text.contains("arrived there as 1200: clamped on the path"), "{text}");
    server.signal("TERM");
    server.end_within(PATIENCE);
}

#[test]
fn root_the_scenario_says_what_is_the_matter_on_each_path() {
    if World::lacks(&["nft", "iptables"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    for family in ["ipv4", "ipv6"] {
        let setting = format!("testbed.family={family}");
        let mut args =
            vec!["bench", "udp-fragments", "--workload", "path", "--rounds", "1..1", "--output", family];
        args.extend(["--set", "plan.twin=false", "--set", "plan.max-steal=1.0", "--set", &setting]);
        let outcome = world.run(world.weir(&args)).expect(0);
        let record = Record::read(world.work().join(family));
        for (variant, cause) in [
            ("clean", None),
            ("drop-rest", Some("headerless-fragments-dropped")),
            ("drop-all", Some("fragments-dropped")),
            ("icmp-dropped", Some("path-mtu-black-hole")),
            ("tunnel", Some("smaller-mtu")),
            ("reordered", Some("fragments-reordered")),
        ] {
            let trials = record.valid_trials();
            let trial = trials.iter().find(|t| t["variant"] == variant).unwrap();
            let found = trial["path"].as_array().map_or(&[][..], Vec::as_slice);
            let causes: Vec<&str> = found.iter().map(|f| f["cause"].as_str().unwrap()).collect();
            assert_eq!(causes, cause.into_iter().collect::<Vec<_>>(), "{family} {variant}: {trial:#}");
        }
        let safe = if family == "ipv4" { "1,472 bytes (-l 1472)" } else { "1,452 bytes (-l 1452)" };
        let sentence = format!(
            "Fragments of UDP datagrams that carry no UDP header are dropped on the path: send at most {safe}, on drop-rest."
        );
        let said = outcome.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(&sentence), "{said}");
        let page = std::fs::read_to_string(world.work().join(family).join("report.html")).unwrap();
        let lead = format!("<p class=\"lead\">{sentence}");
        assert!(page.contains(&lead), "the page begins with something else");
    }
}

/// Nothing is what TCP moves through a black hole: a result with its reason, and no void trial.
#[test]
fn root_paced_the_scenario_s_tcp_counts_where_it_moves_nothing() {
    if World::lacks(&["nft", "iptables"]) {
        return;
    }
    measured(2, 3, |_| holds(the_scenario_s_tcp));
}

fn the_scenario_s_tcp() {
    let Some(world) = World::root(WEIR) else { return };
    let mut args =
        vec!["bench", "udp-fragments", "--workload", "tcp-1", "--rounds", "1..1", "--output", "run"];
    args.extend(["--variant", "clean", "--variant", "icmp-dropped"]);
    args.extend(["--set", "plan.twin=false", "--set", "plan.max-steal=1.0"]);
    let outcome = world.run(world.weir(&args)).expect(0);
    let record = Record::read(world.work().join("run"));
    let trials = record.valid_trials();
    let of = |variant: &str| trials.iter().find(|t| t["variant"] == variant).unwrap();
    let (clean, hole) = (of("clean"), of("icmp-dropped"));
    assert_eq!(hole["metrics"]["goodput_bps"], 0.0, "{hole:#}");
    assert_eq!(hole["path"][0]["cause"], "path-mtu-black-hole", "{hole:#}");
    assert!(
        clean["metrics"]["goodput_bps"].as_f64().unwrap() > 0.0 && clean.get("path").is_none(),
        "{clean:#}"
    );
    let said = outcome.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("clamp TCP's MSS to 1,360, on icmp-dropped."), "{said}");
}

#[test]
fn root_nobody_is_told_in_time() {
    let Some(world) = path() else { return };
    let begun = Instant::now();
    // No host has that address on the link; nothing leads to the other.
    for (target, word) in [("198.18.0.77", "198.18.0.77"), ("203.0.113.1", "203.0.113.1 is unreachable")] {
        let outcome = mtu(&world, &[target]).expect(1);
        assert!(outcome.stderr.contains(word) && outcome.stdout.is_empty(), "{}", outcome.stderr);
    }
    world.sh("printf 'table inet f {\n chain i {\n type filter hook input priority 0;\n drop\n }\n}\n' | ip netns exec target nft -f -");
    let outcome = mtu(&world, &["198.19.0.2"]).expect(1);
    assert!(
        outcome.stderr.contains("no answer at all") && outcome.stderr.contains("weir serve"),
        "{}",
        outcome.stderr
    );
    world.sh("ip netns exec target nft flush ruleset; printf 'table inet f {\n chain i {\n type filter hook input priority 0;\n reject with icmpx type admin-prohibited\n }\n}\n' | ip netns exec target nft -f -");
    let outcome = mtu(&world, &["198.19.0.2"]).expect(1);
    assert!(
        outcome.stderr.contains("198.19.0.2 says") && outcome.stderr.contains("prohibited"),
        "{}",
        outcome.stderr
    );
    // Three targets in vain, ten seconds each at most.
    assert!(begun.elapsed() < Duration::from_secs(60));
}
