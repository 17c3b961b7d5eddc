//! `weir export` on a gateway, read by curl and checked by promtool.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;

use weir_netlink::conntrack::{Conntrack, NewEntry};
use weir_sys::NetNs;
use weir_sys::process::which;
use weir_testkit::{Background, PATIENCE, World, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A gateway with a connection through it; its two ends.
fn gateway() -> Option<(World, TcpStream, TcpStream)> {
    let (world, near, far, _) = listening_gateway()?;
    Some((world, near, far))
}

/// The same, with the listener at the server.
fn listening_gateway() -> Option<(World, TcpStream, TcpStream, TcpListener)> {
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
    let listener = server.run(|| weir_testkit::bound(|| TcpListener::bind(("198.18.1.2", 5001)))).unwrap();
    let near = client.run(|| TcpStream::connect(("198.18.1.2", 5001)).unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    Some((world, near, far, listener))
}

/// The path by which another process reaches a namespace of this one.
fn path_of(ns: &NetNs) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), ns.as_fd().as_raw_fd())
}

fn start(world: &World) -> (Background, String) {
    start_with(world, &["--listen", "127.0.0.1:0"])
}

/// With these options; its URL.
fn start_with(world: &World, options: &[&str]) -> (Background, String) {
    let mut export = world.start("export", world.weir(&[&["export"], options].concat()));
    export.wait_for("/metrics");
    let said = export.said();
    let url = said.split_whitespace().find(|w| w.starts_with("http")).unwrap();
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
fn what_is_refused_is_told_with_what_is_needed() {
    let world = World::plain(WEIR);
    let weir = |args: &[&str]| world.run(world.weir(&[&["export"], args].concat()));
    let output = weir(&["--listen", "0.0.0.0:9348"]).expect(2);
    for words in ["0.0.0.0:9348 is off the loopback", "--token-file FILE", "--tls-cert FILE --tls-key FILE"] {
        assert!(output.stderr.contains(words), "{}", output.stderr);
    }
    assert_eq!(output.complaints().len(), 1, "{}", output.stderr);
    for (args, words) in [
        (&["--textfile", "page.txt"][..], ".prom"),
        (&["--tls-cert", "a"], "--tls-key"),
        (&["--probe", "example.org"], "HOST:PORT"),
        (&["--without", "flow"], "flows"),
        (&["--textfile", "a.prom", "--token-file", "token"], "--listen"),
    ] {
        world.write("token", "0123456789abcdef");
        world.sh("chmod 600 token");
        let output = weir(args).expect(2);
        assert!(output.stderr.contains(words), "{}", output.stderr);
    }
    let token = world.write("token", "0123456789abcdef");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
    let output = weir(&["--token-file", "token"]).expect(2);
    assert!(output.stderr.contains("chmod 600"), "{}", output.stderr);
    weir(&["--token-file", "no-such-file"]).expect(4);
}

/// Sources that need no interface that forwards.
const NO_FLOWS: [&str; 2] = ["--without", "flows"];

#[test]
fn root_every_source_has_figures_and_every_figure_is_in_the_reference() {
    let Some(world) = World::root(WEIR) else { return };
    if World::lacks(&["curl"]) {
        return;
    }
    let options = ["--listen", "127.0.0.1:0", "--doctor-window", "1s", "--probe", "127.0.0.1:9"];
    let (export, url) = start_with(&world, &[&options[..], &NO_FLOWS].concat());
    let page = until("figures of all sources", PATIENCE, || {
        let page = world.sh(&format!("curl -sf {url}"));
        let all = ["conntrack", "snat", "doctor", "fastpath", "publish", "allow", "lists", "probe"];
        let up = |source| page.contains(&format!("weir_source_up{{source=\"{source}\"}} 1\n"));
        all.into_iter().all(up).then_some(page)
    });
    let known: BTreeSet<String> =
        weir_export::GROUPS.iter().flat_map(|g| g.metrics).map(|m| format!("weir_{}", m.name)).collect();
    for line in page.lines().filter_map(|l| l.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap();
        assert!(known.contains(name), "{name} is not in the reference");
    }
    for line in [
        "weir_fastpath_in_effect 0",
        "weir_publish_containers 0",
        "weir_allow_in_effect 0",
        "weir_probe_connects_total{target=\"127.0.0.1:9\",outcome=\"refused\"}",
        "weir_doctor_drops_total{cause=\"conntrack-full\"} ",
    ] {
        assert!(page.lines().any(|l| l.starts_with(line)), "no `{line}` in:\n{page}");
    }
    if which("promtool").is_some() {
        world.write("page", &page);
        let checked = world.run(world.shell("promtool check metrics < page")).expect(0);
        assert_eq!((checked.stdout.as_str(), checked.stderr.as_str()), ("", ""));
    }
    export.signal("TERM");
    export.end_within(PATIENCE).expect(0);
}

#[test]
fn root_a_textfile_is_whole_and_goes_at_the_end() {
    let Some(world) = World::root(WEIR) else { return };
    let file = world.work().join("weir.prom");
    let args = [&["export", "--textfile", "weir.prom", "--without", "doctor"][..], &NO_FLOWS].concat();
    let mut export = world.start("export", world.weir(&args));
    export.wait_for("weir.prom");
    assert!(!export.said().contains("http"), "{}", export.said());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    // Whenever it is read, it is whole: its last line has an end, and its first one is there.
    let first = fs::metadata(&file).unwrap().modified().unwrap();
    until("a later page", PATIENCE, || {
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("# HELP weir_build_info ") && text.ends_with('\n'), "{text}");
        (fs::metadata(&file).unwrap().modified().unwrap() > first).then_some(())
    });
    let names: Vec<String> = fs::read_dir(world.work())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".prom"))
        .collect();
    assert_eq!(names, ["weir.prom"], "node_exporter would read a draft");
    export.signal("TERM");
    export.end_within(PATIENCE).expect(0);
    assert!(!file.exists());
}

#[test]
fn root_off_the_loopback_the_token_is_needed() {
    let Some((world, _near, _far)) = gateway() else { return };
    if World::lacks(&["curl"]) {
        return;
    }
    world.write("token", "0123456789abcdef\n");
    world.sh("chmod 600 token");
    let (_export, url) = start_with(&world, &["--listen", "198.18.0.1:0", "--token-file", "token"]);
    let code = |options: &str| world.sh(&format!("curl -s -o page -w '%{{http_code}}' {options} {url}"));
    assert_eq!(code(""), "401");
    assert!(!world.sh("cat page").contains("weir_"));
    assert_eq!(code("-H 'Authorization: Bearer 0123456789abcdeF'"), "401");
    assert_eq!(code("-u user:0123456789abcdef"), "401");
    assert_eq!(code("-H 'Authorization: Bearer 0123456789abcdef'"), "200");
    assert!(world.sh("cat page").contains("\nweir_flows "));
}

#[test]
fn root_tls_serves_a_new_certificate_without_a_restart() {
    let Some(world) = World::root(WEIR) else { return };
    if World::lacks(&["curl"]) {
        return;
    }
    // The key first: as long as the two do not fit, weir keeps the old ones.
    let issue = |name: &str| {
        let made = rcgen::generate_simple_self_signed(vec!["gateway.example".into()]).unwrap();
        world.write(&format!("{name}.key"), made.signing_key.serialize_pem());
        world.write(&format!("{name}.pem"), made.cert.pem());
        world.sh(&format!(
            "chmod 600 {name}.key && mv {name}.key tls.key && cp {name}.pem tls.new && mv tls.new tls.pem"
        ));
    };
    issue("first");
    let tls =
        ["--listen", "127.0.0.1:0", "--tls-cert", "tls.pem", "--tls-key", "tls.key", "--without", "doctor"];
    let (_export, url) = start_with(&world, &[&tls[..], &NO_FLOWS].concat());
    let port = url.trim_end_matches("/metrics").rsplit(':').next().unwrap().to_owned();
    let curl = |authority: &str| {
        let script = format!(
            "curl -sf --cacert {authority}.pem --resolve gateway.example:{port}:127.0.0.1 https://gateway.example:{port}/metrics"
        );
        world.run(world.shell(&script))
    };
    assert!(curl("first").expect(0).stdout.contains("weir_build_info"));
    // Plain HTTP gets nothing.
    let plain = world.run(world.shell(&format!("curl -s http://127.0.0.1:{port}/metrics")));
    assert!(plain.code != 0 && !plain.stdout.contains("weir_"), "{}", plain.stdout);
    issue("second");
    until("the new certificate", PATIENCE, || (curl("second").code == 0).then_some(()));
    assert_ne!(curl("first").code, 0);
}

#[test]
fn root_interfaces_that_come_later_are_watched_and_may_go() {
    let Some((world, mut near, mut far, _listener)) = listening_gateway() else { return };
    if World::lacks(&["curl"]) {
        return;
    }
    let (export, url) =
        start_with(&world, &["--listen", "127.0.0.1:0", "--by-client", "--without", "doctor"]);
    let page = || world.sh(&format!("curl -sf {url}"));
    let of = |network: &str| format!("weir_network_bytes_total{{network=\"{network}\",side=\"client\"}} ");
    let exchange = |near: &mut TcpStream, far: &mut TcpStream| {
        near.write_all(&[1; 500]).unwrap();
        far.read_exact(&mut [0; 500]).unwrap();
    };
    let late = NetNs::create().unwrap();
    let path = path_of(&late);
    world.sh(&format!(
        "ip link add in1 type veth peer name e0 netns {path}; ip link set in1 up; ip addr add 198.18.2.1/24 dev in1; \
         nsenter --net={path} sh -c 'ip addr add 198.18.2.2/24 dev e0; ip link set e0 up; \
         ip route add default via 198.18.2.1'"
    ));
    // Connected before weir sees the interface or after: the bytes that follow are counted.
    let mut second = late.run(|| TcpStream::connect(("198.18.1.2", 5001)).unwrap()).unwrap();
    until("flows of the new interface", PATIENCE, || {
        exchange(&mut near, &mut far);
        second.write_all(&[1; 500]).unwrap();
        let page = page();
        (page.contains(&of("198.18.2.0/24")) && page.contains(&of("198.18.0.0/24"))).then_some(())
    });
    world.sh("ip link del in1");
    let before = page();
    until("a page after it went", PATIENCE, || {
        exchange(&mut near, &mut far);
        (page() != before).then_some(())
    });
    // Earlier counts stay.
    assert!(page().contains(&of("198.18.2.0/24")));
    export.signal("TERM");
    export.end_within(PATIENCE).expect(0);
}

#[test]
fn root_drops_are_counted_by_cause() {
    let Some(world) = World::root(WEIR) else { return };
    if World::lacks(&["curl", "nft"]) {
        return;
    }
    let ns = NetNs::create().unwrap();
    let path = path_of(&ns);
    world.sh(&format!(
        "nsenter --net={path} sh -euc \"ip link set lo up; nft 'add table ip t; \
         add chain ip t c {{ type filter hook input priority 0; }}; add rule ip t c udp dport 7000 counter drop'\""
    ));
    let options = ["--netns", &path, "--listen", "127.0.0.1:0", "--doctor-window", "1s"];
    let (export, url) = start_with(&world, &[&options[..], &NO_FLOWS].concat());
    let socket = ns.run(|| UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
    let series = "weir_doctor_drops_total{cause=\"nft-rule-drop\"} ";
    until("drops by the rule", PATIENCE, || {
        for _ in 0..200 {
            // Refused by the rule: that is the point.
            let _ = socket.send_to(b"x", ("127.0.0.1", 7000));
        }
        let page = world.sh(&format!("curl -sf {url}"));
        let found = page.contains("weir_doctor_findings{cause=\"nft-rule-drop\",severity=");
        let drops = page.lines().find_map(|l| l.strip_prefix(series)).map(|v| v.parse::<f64>().unwrap());
        (found && drops.is_some_and(|drops| drops >= 200.0)).then_some(())
    });
    export.signal("TERM");
    export.end_within(PATIENCE).expect(0);
}

#[test]
fn root_ports_of_source_nat_are_counted_by_network() {
    let Some(world) = World::root(WEIR) else { return };
    if World::lacks(&["curl"]) {
        return;
    }
    let ns = NetNs::create().unwrap();
    let at = |text: &str, port: u16| SocketAddr::new(text.parse().unwrap(), port);
    ns.run(|| {
        let entries = (0..1000).map(|n| NewEntry {
            source_nat: Some(at("198.18.1.1", 2000 + n)),
            ..NewEntry::tcp(at("198.18.0.2", 2000 + n), at("198.18.7.9", 443), 3)
        });
        Conntrack::open().unwrap().insert(entries).unwrap();
    })
    .unwrap();
    let options = ["--netns", &path_of(&ns), "--listen", "127.0.0.1:0", "--without", "doctor"];
    let (_export, url) = start_with(&world, &[&options[..], &NO_FLOWS].concat());
    let labels = "{outside=\"198.18.1.1\",protocol=\"tcp\",destination=\"198.18.7.0/24\",port=\"443\"}";
    let page = until("ports in use", PATIENCE, || {
        let page = world.sh(&format!("curl -sf {url}"));
        page.contains("weir_snat_fullest_pool_ratio").then_some(page)
    });
    for line in [
        format!("weir_snat_ports_used{labels} 1000"),
        // 1024 to 65535.
        format!("weir_snat_ports_available{labels} 64512"),
        "weir_conntrack_entries 1000".into(),
    ] {
        assert!(page.lines().any(|l| l == line), "no `{line}` in:\n{page}");
    }
    assert!(!page.contains("198.18.7.9"), "a whole address:\n{page}");
}

#[test]
fn root_a_namespace_that_is_made_anew_is_entered_anew() {
    let Some(world) = World::root(WEIR) else { return };
    if World::lacks(&["curl"]) {
        return;
    }
    world.sh("ip netns add gw");
    let options = ["--netns", "gw", "--listen", "127.0.0.1:0", "--without", "doctor"];
    let (mut export, url) = start_with(&world, &[&options[..], &NO_FLOWS].concat());
    world.sh("ip netns del gw");
    assert!(world.sh(&format!("curl -sf {url}")).contains("weir_build_info"));
    world.sh("ip netns add gw");
    export.wait_for("gw is another namespace now");
    assert!(world.sh(&format!("curl -sf {url}")).contains("weir_build_info"));
    export.signal("TERM");
    export.end_within(PATIENCE).expect(0);
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
