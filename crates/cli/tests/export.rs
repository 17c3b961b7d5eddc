//! `weir export` on a gateway, read by curl and checked by promtool.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};

use weir_sys::NetNs;
use weir_sys::process::which;
use weir_testkit::{Background, PATIENCE, World, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A gateway with a connection through it; its two ends.
fn gateway() -> Option<(World, TcpStream, TcpStream)> {
    let world = World::root(WEIR)?;
    let [client, server] = [(); 2].map(|()| NetNs::create().unwrap());
    for (ns, link, network) in [(&client, "in0", 0), (&server, "out0", 1)] {
        let path = format!("/proc/{}/fd/{}", std::process::id(), ns.as_fd().as_raw_fd());
        world.sh(&format!(
            "ip link add {link} type veth peer name e0 netns {path}; ip link set {link} up; \
             ip addr add 198.18.{network}.1/24 dev {link}; \
             nsenter --net={path} sh -c 'ip addr add 198.18.{network}.2/24 dev e0; ip link set e0 up; \
             ip route add default via 198.18.{network}.1'"
        ));
    }
    world.sh("sysctl -q net.ipv4.conf.all.forwarding=1");
    let listener = server.run(|| TcpListener::bind(("198.18.1.2", 5001)).unwrap()).unwrap();
    let near = client.run(|| TcpStream::connect(("198.18.1.2", 5001)).unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    Some((world, near, far))
}

fn start(world: &World) -> (Background, String) {
    let mut export = world.start("export", world.weir(&["export", "--listen", "127.0.0.1:0"]));
    export.wait_for("/metrics");
    let said = export.said();
    let url = said.split_whitespace().find(|w| w.starts_with("http://")).unwrap();
    let url = url.trim_end_matches(';').to_owned();
    (export, url)
}

/// The page, once it has the bytes of the flow.
fn page_with_flow(world: &World, near: &mut TcpStream, far: &mut TcpStream, url: &str) -> String {
    near.write_all(&[1; 5000]).unwrap();
    far.read_exact(&mut [0; 5000]).unwrap();
    let series = "weir_network_bytes_total{network=\"198.18.1.0/24\",side=\"client\"} ";
    until("the bytes of the flow", PATIENCE, || {
        let page = world.sh(&format!("curl -sf {url}"));
        let value = page.lines().find_map(|l| l.strip_prefix(series)).map(|v| v.parse::<u64>().unwrap());
        value.is_some_and(|bytes| bytes > 5000).then_some(page)
    })
}

#[test]
fn root_the_page_has_the_flow() {
    let Some((world, mut near, mut far)) = gateway() else { return };
    if World::lacks(&["curl"]) {
        return;
    }
    let (export, url) = start(&world);
    let page = page_with_flow(&world, &mut near, &mut far, &url);
    assert!(page.contains("\nweir_flows 1\n"), "{page}");
    let absent = world.sh(&format!("curl -s -o /dev/null -w '%{{http_code}}' {url}/more"));
    assert_eq!(absent, "404");
    export.signal("TERM");
    export.end_within(PATIENCE).expect(0);
}

#[test]
fn root_promtool_has_nothing_to_say_of_the_page() {
    let Some((world, mut near, mut far)) = gateway() else { return };
    if World::lacks(&["curl"]) {
        return;
    }
    if which("promtool").is_none() {
        println!("SKIP: needs promtool (apt-get install prometheus)");
        return;
    }
    let (_export, url) = start(&world);
    let page = page_with_flow(&world, &mut near, &mut far, &url);
    world.write("page", &page);
    let checked = world.run(world.shell("promtool check metrics < page")).expect(0);
    assert_eq!((checked.stdout.as_str(), checked.stderr.as_str()), ("", ""));
}

#[test]
fn addresses_off_the_loopback_are_refused() {
    let world = World::plain(WEIR);
    let output = world.run(world.weir(&["export", "--listen", "0.0.0.0:9348"])).expect(2);
    assert!(output.stderr.contains("loopback"), "{}", output.stderr);
}

#[test]
fn root_a_port_that_is_taken_is_named() {
    // The sockets keep their namespaces, and so the links.
    let Some((world, _near, _far)) = gateway() else { return };
    let (export, url) = start(&world);
    let address = url.trim_start_matches("http://").trim_end_matches("/metrics").to_owned();
    let output = world.run(world.weir(&["export", "--listen", &address])).expect(4);
    assert!(output.stderr.contains(&address), "{}", output.stderr);
    drop(export);
}
