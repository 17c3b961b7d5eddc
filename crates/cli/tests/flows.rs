//! `weir flows` on a gateway between two namespaces.

mod documents;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

use serde_json::Value;
use weir_sys::NetNs;
use weir_testkit::{PATIENCE, World, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A client and a server behind a gateway that forwards; the gateway is the world's own namespace.
struct Gateway {
    world: World,
    client: NetNs,
    server: NetNs,
}

impl Gateway {
    fn new() -> Option<Gateway> {
        let world = World::root(WEIR)?;
        let [client, server] = [(); 2].map(|()| NetNs::create().unwrap());
        for (ns, link, network) in [(&client, "in0", 0), (&server, "out0", 1)] {
            let path = format!("/proc/{}/fd/{}", std::process::id(), ns.as_fd().as_raw_fd());
            world.sh(&format!(
                "ip link add {link} type veth peer name e0 netns {path}; ip link set {link} up; \
                 ip addr add 198.18.{network}.1/24 dev {link}; \
                 nsenter --net={path} sh -c 'ip link set lo up; ip addr add 198.18.{network}.2/24 dev e0; ip link set e0 up; \
                 ip route add default via 198.18.{network}.1'"
            ));
        }
        world.sh("sysctl -q net.ipv4.conf.all.forwarding=1");
        Some(Gateway { world, client, server })
    }

    /// Sends a line through the gateway and waits for it.
    fn connect(&self) -> (TcpStream, TcpStream) {
        let listener = self.server.run(|| TcpListener::bind(("198.18.1.2", 0)).unwrap()).unwrap();
        let to = listener.local_addr().unwrap();
        let mut near = self.client.run(|| TcpStream::connect(to).unwrap()).unwrap();
        let mut far = listener.accept().unwrap().0;
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        near.write_all(b"hello").unwrap();
        far.read_exact(&mut [0; 5]).unwrap();
        (near, far)
    }
}

/// The programs that a process has attached (TCX), by number.
fn programs(pid: u32) -> Vec<u32> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten() {
        // A descriptor may be closed meanwhile.
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let value = |key: &str| text.lines().find_map(|l| l.strip_prefix(key)).map(str::trim);
        if value("link_type:") == Some("tcx") {
            numbers.push(value("prog_id:").unwrap().parse().unwrap());
        }
    }
    numbers
}

/// Waits until the kernel has freed them: it does so when nothing is attached and no process has them.
#[track_caller]
fn wait_until_gone(programs: &[u32]) {
    assert_eq!(programs.len(), 2, "one attachment at each interface");
    until("its programs are gone", PATIENCE, || {
        programs.iter().all(|number| weir_bpf::program_name(*number).is_err()).then_some(())
    });
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| documents::read(line, "flows")).collect()
}

#[test]
fn root_lines_show_a_flow_and_its_network() {
    let Some(gateway) = Gateway::new() else { return };
    let flows = gateway.world.start("flows", gateway.world.weir(&["flows", "--json", "--verbose"]));
    until("it watches", PATIENCE, || flows.said().contains("watches").then_some(()));
    let _ends = gateway.connect();
    let seen = until("a line with the flow", PATIENCE, || {
        lines(&flows.printed()).into_iter().find(|line| line["flows_now"] == 1)
    });
    assert_eq!(seen["interfaces"], serde_json::json!(["in0", "out0"]));
    assert_eq!(
        (&seen["networks"][0]["network"], &seen["all"]["flows"]),
        (&"198.18.1.0/24".into(), &1.into())
    );
    let flow = &seen["flows"][0];
    assert_eq!((&flow["client_interface"], &flow["server_interface"]), (&"in0".into(), &"out0".into()));
    assert_eq!((&flow["state"], &flow["seen_from_start"]), (&"open".into(), &true.into()));
    assert!(flow["client_side"]["round_trips"]["smallest_ns"].as_u64() > Some(0));
    // Both ends are in namespaces of this machine, which are looked for beside the watch.
    let containers = until("a line with their names", PATIENCE, || {
        let last = lines(&flows.printed()).into_iter().last()?;
        Some(last["containers"].clone()).filter(|all| all.as_array().is_some_and(|all| all.len() == 2))
    });
    for (n, address) in ["198.18.0.2", "198.18.1.2"].into_iter().enumerate() {
        assert_eq!(containers[n]["address"], address);
        assert!(containers[n]["name"].as_str().unwrap().starts_with("held by flows-"), "{containers}");
    }
    // Ctrl-C ends it, and its programs.
    let programs = programs(flows.pid());
    flows.signal("INT");
    flows.end_within(PATIENCE).expect(0);
    wait_until_gone(&programs);
}

/// The server has a name in a registry's file, and the narrower one of a plain file counts.
#[test]
fn root_names_take_the_place_of_prefixes() {
    let Some(gateway) = Gateway::new() else { return };
    let world = &gateway.world;
    let registry =
        "2|apnic|1|1|19830613|20261127|+1000\napnic|JP|ipv4|198.18.0.0|131072|20100101|allocated\n";
    fs::write(world.work().join("registry"), registry).unwrap();
    fs::write(world.work().join("sites"), "198.18.1.2 Paris, the servers\n").unwrap();
    let args = ["flows", "--json", "--verbose", "--names", "registry", "--names", "sites"];
    let flows = world.start("flows", world.weir(&args));
    until("it watches", PATIENCE, || flows.said().contains("watches").then_some(()));
    let _ends = gateway.connect();
    let seen = until("a line with the flow", PATIENCE, || {
        lines(&flows.printed()).into_iter().find(|line| line["flows_now"] == 1)
    });
    let name = serde_json::json!("Paris, the servers");
    assert_eq!([&seen["networks"][0]["network"], &seen["flows"][0]["network_name"]], [&name, &name]);
    flows.signal("INT");
    flows.end_within(PATIENCE).expect(0);
    let by_client = ["flows", "--json", "--verbose", "--names", "registry", "--by-client"];
    let flows = world.start("flows", world.weir(&by_client));
    until("it watches", PATIENCE, || flows.said().contains("watches").then_some(()));
    let _ends = gateway.connect();
    let seen = until("a line with the flow", PATIENCE, || {
        lines(&flows.printed()).into_iter().find(|line| line["flows_now"] == 1)
    });
    assert_eq!(seen["networks"][0]["network"], "JP");
    flows.signal("INT");
    flows.end_within(PATIENCE).expect(0);
}

#[test]
fn names_that_cannot_be_read_are_a_usage_error() {
    let world = World::plain(WEIR);
    fs::write(world.work().join("names"), "198.18.0.0/15 lab\n198.18.0.0/40 lab\n").unwrap();
    for command in [&["flows"][..], &["export", "--textfile", "weir.prom"]] {
        let refused = world.run(world.weir(&[command, &["--names", "names"]].concat())).expect(2);
        let what = "names:2: expected a prefix length of 0 to 32";
        assert!(refused.stderr.contains(what), "{command:?}: {}", refused.stderr);
    }
    let refused = world.run(world.weir(&["flows", "--names", "missing"])).expect(2);
    assert!(refused.stderr.contains("cannot read missing"), "{}", refused.stderr);
}

/// A query of DNS and its answer, in lines, in a table, and in the report of a recording.
#[test]
fn root_dns_is_in_lines_and_in_the_report() {
    let Some(gateway) = Gateway::new() else { return };
    let world = &gateway.world;
    let flows = world
        .start("flows", world.weir(&["flows", "--json", "--for", "6", "--save", "r.jsonl", "--verbose"]));
    until("it watches", PATIENCE, || flows.said().contains("watches").then_some(()));
    let socket = |ns: &NetNs, address: &str| {
        let socket = ns.run(|| UdpSocket::bind(address).unwrap()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    };
    let (client, server) =
        (socket(&gateway.client, "198.18.0.2:0"), socket(&gateway.server, "198.18.1.2:53"));
    let mut message = [0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1];
    client.send_to(&message, "198.18.1.2:53").unwrap();
    let (_, from) = server.recv_from(&mut [0; 100]).unwrap();
    // SERVFAIL.
    (message[2], message[3]) = (0x81, 0x82);
    server.send_to(&message, from).unwrap();
    client.recv_from(&mut [0; 100]).unwrap();
    let printed = flows.end_within(PATIENCE).expect(0).stdout;
    let last = lines(&printed).pop().unwrap();
    let flow = &last["udp_flows"][0];
    assert_eq!((&flow["kind"], &flow["client"]), (&"dns".into(), &"198.18.0.2:0".into()));
    let dns = &last["all"]["udp"]["dns"];
    assert_eq!((&dns["queries"], &dns["answers"], &dns["servfail"]), (&1.into(), &1.into(), &1.into()));
    let text = world.run(world.weir(&["report", "r.jsonl"])).expect(0).stdout;
    assert!(text.contains("DNS: 1 queries") && text.contains("198.18.0.2 > 198.18.1.2, open"), "{text}");
}

#[test]
fn root_nothing_stays_after_kill() {
    let Some(gateway) = Gateway::new() else { return };
    let flows = gateway.world.start("flows", gateway.world.weir(&["flows", "--verbose"]));
    until("it watches", PATIENCE, || flows.said().contains("watches").then_some(()));
    let programs = programs(flows.pid());
    flows.signal("KILL");
    assert_eq!(flows.end_within(PATIENCE).code, -1);
    wait_until_gone(&programs);
    drop(gateway.connect());
}

#[test]
fn root_once_prints_a_table_after_its_time() {
    let Some(gateway) = Gateway::new() else { return };
    let flows = gateway.world.start(
        "flows",
        gateway.world.weir(&["flows", "--once", "--for", "3", "--by-client", "--prefix", "16", "--verbose"]),
    );
    until("it watches", PATIENCE, || flows.said().contains("watches").then_some(()));
    let _ends = gateway.connect();
    let page = flows.end_within(PATIENCE).expect(0).stdout;
    println!("{page}");
    for word in ["TCP and UDP through in0, out0", "198.18.0.0/16", "198.18.0.2:", "RTT c"] {
        assert!(page.contains(word), "{word}:\n{page}");
    }
}

#[test]
fn root_a_recording_is_whole_and_becomes_a_report() {
    let Some(gateway) = Gateway::new() else { return };
    let world = &gateway.world;
    let flows = world
        .start("flows", world.weir(&["flows", "--json", "--for", "6", "--save", "r.jsonl", "--verbose"]));
    until("it watches", PATIENCE, || flows.said().contains("watches").then_some(()));
    let _ends = gateway.connect();
    let printed = flows.end_within(PATIENCE).expect(0).stdout;
    let recorded = lines(&std::fs::read_to_string(world.work().join("r.jsonl")).unwrap());
    let seconds = |lines: &[Value]| lines.iter().map(|line| line["seconds"].clone()).collect::<Vec<_>>();
    assert_eq!(seconds(&recorded), seconds(&lines(&printed)), "the same readings");
    assert!(recorded.len() > 1, "{recorded:?}");
    let text = world.run(world.weir(&["report", "r.jsonl"])).expect(0).stdout;
    assert!(text.contains("passed through in0, out0") && text.contains("198.18.1.0/24"), "{text}");
    world.run(world.weir(&["report", "r.jsonl", "--html", "--output", "r.html"])).expect(0);
    let page = std::fs::read_to_string(world.work().join("r.html")).unwrap();
    assert!(page.contains("Median round trip") && page.contains("198.18.1.2:"), "{page}");
    for args in [&["report", "r.jsonl", "--csv"][..], &["flows", "--for", "1", "--save", "r.jsonl"]] {
        world.run(world.weir(args)).expect(2);
    }
}

#[test]
fn root_a_full_disk_ends_the_recording_with_a_whole_line_and_not_the_watch() {
    let Some(gateway) = Gateway::new() else { return };
    let world = &gateway.world;
    // A line takes about 3 kB: a page has room for one.
    world.sh("mkdir small && mount -t tmpfs -o size=4k tmpfs small");
    let output =
        world.run(world.weir(&["flows", "--json", "--for", "6", "--save", "small/r.jsonl"])).expect(1);
    assert!(
        output.stderr.contains("No space left") && output.stderr.contains("recording ends"),
        "{}",
        output.stderr
    );
    let text = world.sh("cat small/r.jsonl");
    let recorded = lines(&text);
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    assert!(recorded.len() < lines(&output.stdout).len(), "the watch goes on: {}", recorded.len());
}

#[test]
fn root_what_is_missing_is_named() {
    let Some(gateway) = Gateway::new() else { return };
    let world = &gateway.world;
    let output = world.run(world.weir(&["flows", "--once", "--for", "1", "--interface", "eth9"])).expect(2);
    assert!(output.stderr.contains("eth9"), "{}", output.stderr);
    world.sh("sysctl -q net.ipv4.conf.all.forwarding=0");
    let output = world.run(world.weir(&["flows", "--once", "--for", "1"])).expect(2);
    assert!(output.stderr.contains("--interface"), "{}", output.stderr);
    let output =
        world.run(world.weir_as_nobody(&["flows", "--once", "--for", "1", "--interface", "in0"])).expect(4);
    assert!(output.stderr.contains("root"), "{}", output.stderr);
    if World::lacks(&["setpriv"]) {
        return;
    }
    // The verifier is stricter without this one alone, and its words name a register.
    let without = "exec setpriv --inh-caps=-perfmon,-sys_admin --bounding-set=-perfmon,-sys_admin";
    let output =
        world.run(world.shell(&format!("{without} {WEIR} flows --once --for 1 --interface in0"))).expect(4);
    assert!(output.stderr.contains("CAP_PERFMON"), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
}

#[test]
fn bad_shares_and_times_are_refused() {
    let world = World::plain(WEIR);
    for (args, word) in [
        (["flows", "--share=0"], "share"),
        (["flows", "--share=101%"], "share"),
        (["flows", "--for=0.5"], "1 s"),
        (["flows", "--prefix=33"], "32"),
        (["flows", "--flows=0"], "--flows"),
    ] {
        let output = world.run(world.weir(&args)).expect(2);
        assert!(output.stderr.contains(word), "{args:?}: {}", output.stderr);
    }
}
