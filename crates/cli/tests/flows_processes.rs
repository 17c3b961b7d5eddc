//! Processes at the ends of the flows that `weir flows` sees. Each gateway has networks of its own: an address that several
//! namespaces have tells nothing.

mod documents;

use std::fs;
use std::io::Read;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

use serde_json::Value;
use weir_sys::NetNs;
use weir_testkit::{Background, PATIENCE, World, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A client and a server behind a gateway that forwards; the gateway is the world's own namespace.
struct Gateway {
    world: World,
    /// The first three bytes of the networks of the client and of the server.
    networks: [&'static str; 2],
    client: NetNs,
    server: NetNs,
}

/// The path of a namespace, as others find it.
fn path(ns: &NetNs) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), ns.as_fd().as_raw_fd())
}

impl Gateway {
    fn new(networks: [&'static str; 2]) -> Option<Gateway> {
        if World::lacks(&["bash", "nft", "setpriv"]) {
            return None;
        }
        let world = World::root(WEIR)?;
        let [client, server] = [(); 2].map(|()| NetNs::create().unwrap());
        for (ns, link, network) in [(&client, "in0", networks[0]), (&server, "out0", networks[1])] {
            let path = path(ns);
            world.sh(&format!(
                "ip link add {link} type veth peer name e0 netns {path}; ip link set {link} up; \
                 ip addr add {network}.1/24 dev {link}; \
                 nsenter --net={path} sh -c 'ip link set lo up; ip addr add {network}.2/24 dev e0; ip link set e0 up; \
                 ip route add default via {network}.1'"
            ));
        }
        world.sh("sysctl -q net.ipv4.conf.all.forwarding=1");
        Some(Gateway { world, networks, client, server })
    }

    /// The address of the client or the server.
    fn host(&self, n: usize) -> String {
        format!("{}.2", self.networks[n])
    }

    /// A server's socket.
    fn listen(&self) -> TcpListener {
        let any = (self.host(1).parse::<std::net::IpAddr>().unwrap(), 0);
        self.server.run(|| TcpListener::bind(any).unwrap()).unwrap()
    }

    /// A process in the client's namespace that connects to the server and gives itself a hostile name; its connection.
    fn process(&self) -> (Background, TcpStream) {
        let listener = self.listen();
        let to = self.host(1);
        let port = listener.local_addr().unwrap().port();
        let path = path(&self.client);
        let web = self.world.shell(&format!(
            "exec nsenter --net={path} bash -c 'exec 3<>/dev/tcp/{to}/{port}; \
             printf \"w\\033[31meb\" >/proc/$$/comm; echo hello >&3; read -r line <&3'"
        ));
        let web = self.world.start("web", web);
        let mut far = listener.accept().unwrap().0;
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        far.read_exact(&mut [0; 5]).unwrap();
        (web, far)
    }
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| documents::read(line, "flows")).collect()
}

/// The last line in which the flow from this address to the port has a process at its client's end.
fn with_process(printed: &str, client: &str) -> Option<Value> {
    let mut flows =
        lines(printed).into_iter().flat_map(|line| line["flows"].as_array().cloned().unwrap_or_default());
    flows.rfind(|f| {
        f["client"].as_str().is_some_and(|c| c.starts_with(client)) && f["client_here"]["pid"].is_u64()
    })
}

/// A process of a container, this test at the other end, and a flow between hosts that no namespace of this machine has the
/// addresses of.
#[test]
fn root_processes_at_the_ends_of_flows_are_named() {
    let Some(gateway) = Gateway::new(["198.18.0", "198.18.1"]) else { return };
    let world = &gateway.world;
    let [client, server] = [&gateway.client, &gateway.server].map(path);
    world.sh(&format!(
        "ip route add 198.18.0.77 via 198.18.0.2; ip route add 198.18.1.77 via 198.18.1.2; \
         nsenter --net={client} nft 'table ip t {{ chain c {{ type nat hook postrouting priority 100; \
         ip daddr 198.18.1.77 snat to 198.18.0.77; }}; }}'; \
         nsenter --net={server} nft 'table ip t {{ chain c {{ type nat hook prerouting priority -100; \
         ip daddr 198.18.1.77 dnat to 198.18.1.2; }}; }}'"
    ));
    let flows = world.start("flows", world.weir(&["flows", "--json", "--verbose"]));
    until("it watches", PATIENCE, || flows.said().contains("watches").then_some(()));
    let (web, far) = gateway.process();
    let seen = until("a line with its process", PATIENCE, || with_process(&flows.printed(), "198.18.0.2:"));
    let own = std::process::id();
    assert_eq!(seen["client_here"], serde_json::json!({"pid": web.pid(), "process": "w\u{1b}[31meb"}));
    assert_eq!(seen["server_here"]["pid"], own, "{seen}");
    // UDP of this test, from the client's namespace.
    let udp = gateway.client.run(|| UdpSocket::bind("198.18.0.2:0").unwrap()).unwrap();
    udp.send_to(b"hello", "198.18.1.2:7").unwrap();
    let udp = until("a line with the process of UDP", PATIENCE, || {
        let last = lines(&flows.printed()).pop()?;
        Some(last["udp_flows"][0].clone()).filter(|flow| flow["client_here"]["pid"].is_u64())
    });
    assert_eq!(
        (&udp["client_here"]["pid"], &udp["server_here"]),
        (&own.into(), &serde_json::json!({"pid": null, "process": null}))
    );
    // Two hosts behind hosts.
    let listener = gateway.listen();
    let port = listener.local_addr().unwrap().port();
    let _beyond = gateway.client.run(|| TcpStream::connect(("198.18.1.77", port)).unwrap()).unwrap();
    let last = until("a line with three flows", PATIENCE, || {
        lines(&flows.printed()).pop().filter(|line| line["flows_now"] == 2)
    });
    let beyond = last["flows"]
        .as_array()
        .unwrap()
        .iter()
        .find(|f| f["client"].as_str().unwrap().starts_with("198.18.0.77:"));
    let beyond = beyond.unwrap_or_else(|| panic!("{last}"));
    assert_eq!((&beyond["client_here"], &beyond["server_here"]), (&Value::Null, &Value::Null));
    let sum = |pid: &Value, udp_flows: u64| {
        let all = last["processes"].as_array().unwrap();
        let fits = |one: &&Value| one["end"]["pid"] == *pid && one["udp_flows"] == udp_flows;
        all.iter().find(fits).unwrap_or_else(|| panic!("{pid}: {all:#?}")).clone()
    };
    let of_web = sum(&web.pid().into(), 0);
    assert_eq!((&of_web["flows"], &last["processes_missing"]), (&1.into(), &Value::Null));
    assert!(of_web["sent_bytes"].as_u64() > Some(100) && of_web["container"].is_string(), "{of_web}");
    sum(&own.into(), 1);
    let elsewhere = last["processes"].as_array().unwrap().iter().find(|one| one["end"].is_null());
    assert_eq!(elsewhere.map(|one| &one["flows"]), Some(&1.into()));
    // A process that has ended keeps its name as long as the flow is in the table.
    drop(far);
    web.end_within(PATIENCE);
    let ended = until("a line with the flow's end", PATIENCE, || {
        with_process(&flows.printed(), "198.18.0.2:").filter(|flow| flow["state"] != "open")
    });
    assert_eq!(ended["client_here"], seen["client_here"], "{ended}");
    flows.signal("INT");
    flows.end_within(PATIENCE).expect(0);
}

/// The page, the recording and its report have the same table; without the privilege the page says so.
#[test]
fn root_a_page_and_a_report_list_processes_or_say_why_not() {
    let Some(gateway) = Gateway::new(["198.19.0", "198.19.1"]) else { return };
    let world = &gateway.world;
    let options = "flows --once --for 5 --verbose";
    let all = world.start("all", world.shell(&format!("exec {WEIR} {options} --save r.jsonl")));
    let less = "exec setpriv --inh-caps=-sys_ptrace --bounding-set=-sys_ptrace";
    let less = world.start("less", world.shell(&format!("{less} {WEIR} {options}")));
    for watch in [&all, &less] {
        until("it watches", PATIENCE, || watch.said().contains("watches").then_some(()));
    }
    let (web, _far) = gateway.process();
    let name = format!("web (pid {})", web.pid());
    let page = all.end_within(PATIENCE).expect(0).stdout;
    println!("{page}");
    assert!(page.contains(&name) && page.contains("(pid ") && !page.contains("processes: "), "{page}");
    let report = world.run(world.weir(&["report", "r.jsonl"])).expect(0).stdout;
    assert!(report.contains(&name), "{report}");
    world.run(world.weir(&["report", "r.jsonl", "--html", "--output", "r.html"])).expect(0);
    let html = fs::read_to_string(world.work().join("r.html")).unwrap();
    assert!(html.contains(&name), "{html}");
    let page = less.end_within(PATIENCE).expect(0).stdout;
    println!("{page}");
    assert!(!page.contains(&name) && page.contains("processes: CAP_SYS_PTRACE is missing"), "{page}");
    for text in [page, report, html] {
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
