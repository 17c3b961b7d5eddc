//! Labs as root: every topology carries TCP where it must, and nothing where it must not.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use weir_lab::{Family, Lab, LabOptions, Role, Site, SiteSpec, Topology};
use weir_netlink::Rtnetlink;
use weir_netlink::ethtool::Ethtool;
use weir_sys::{NetNs, ProcRoot, privilege, sysctl};

fn spec(topology: Topology) -> SiteSpec {
    SiteSpec { name: "site".into(), topology, return_route: topology != Topology::Direct, wan: false }
}

/// A lab of one site whose entry is in a directory of the test's own.
fn build(test: &str, options: &LabOptions, spec: SiteSpec) -> Lab {
    Lab::build(&format!("test-{test}-{}", std::process::id()), options, &[spec]).unwrap()
}

fn family(family: Family) -> LabOptions {
    LabOptions { family, ..LabOptions::default() }
}

fn forward(gateway: &NetNs, on: &str) {
    gateway
        .run(|| {
            let root = ProcRoot::new("/");
            sysctl::set(&root, "net.ipv4.ip_forward", on).unwrap();
            if sysctl::get_optional(&root, "net.ipv6.conf.all.forwarding").unwrap().is_some() {
                sysctl::set(&root, "net.ipv6.conf.all.forwarding", on).unwrap();
            }
        })
        .unwrap();
}

/// Opens a connection from the initiator to the responder and sends a word each way. The source that the responder saw.
fn talk(site: &Site, timeout: Duration) -> std::io::Result<IpAddr> {
    let (initiator, responder) = (site.host(Role::Initiator).unwrap(), site.host(Role::Responder).unwrap());
    let target = SocketAddr::new(site.addresses().responder, 0);
    let listener = responder.run(|| TcpListener::bind(target)).unwrap()?;
    let target = listener.local_addr()?;
    let mut client = initiator.run(|| TcpStream::connect_timeout(&target, timeout)).unwrap()?;
    let (mut server, source) = listener.accept()?;
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(timeout))?;
    }
    // More than an MTU, so that offloads and segmentation take part.
    let words: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    client.write_all(&words)?;
    let mut seen = vec![0; words.len()];
    server.read_exact(&mut seen)?;
    assert!(seen == words, "what arrives is what was sent");
    server.write_all(b"pong")?;
    let mut answer = [0; 4];
    client.read_exact(&mut answer)?;
    assert_eq!(&answer, b"pong");
    Ok(source.ip())
}

const LONG: Duration = Duration::from_secs(5);
/// For what must not come through: long enough for a loopback connection, short enough for a test.
const SHORT: Duration = Duration::from_millis(300);

fn each_topology(test: &str, options: &LabOptions) {
    for topology in [Topology::Direct, Topology::Routed, Topology::Bridged] {
        let lab = build(&format!("{test}-{topology:?}"), options, spec(topology));
        let site = lab.site("site").unwrap();
        if let Some(gateway) = site.host(Role::Gateway) {
            assert!(
                talk(site, SHORT).is_err(),
                "{topology:?}: a gateway that does not forward lets nothing through"
            );
            forward(gateway, "1");
        }
        assert_eq!(talk(site, LONG).unwrap(), site.addresses().initiator, "{topology:?}");
    }
}

#[test]
fn root_ipv4_sites_carry_tcp() {
    if !privilege::test_needs_root() {
        each_topology("v4", &family(Family::Ipv4));
    }
}

#[test]
fn root_ipv6_sites_carry_tcp() {
    if !privilege::test_needs_root() {
        each_topology("v6", &family(Family::Ipv6));
    }
}

#[test]
fn root_without_a_return_route_nothing_untranslated_is_answered() {
    if privilege::test_needs_root() {
        return;
    }
    for f in [Family::Ipv4, Family::Ipv6] {
        let spec = SiteSpec { return_route: false, ..spec(Topology::Routed) };
        let lab = build(&format!("noreturn-{f:?}"), &family(f), spec);
        let site = lab.site("site").unwrap();
        forward(site.host(Role::Gateway).unwrap(), "1");
        let error = talk(site, SHORT).unwrap_err();
        assert!(
            matches!(error.kind(), std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock),
            "{error}"
        );
    }
}

#[test]
fn root_a_wan_changes_no_address() {
    if privilege::test_needs_root() {
        return;
    }
    for f in [Family::Ipv4, Family::Ipv6] {
        for topology in [Topology::Direct, Topology::Routed, Topology::Bridged] {
            let lab = build(
                &format!("wan-{topology:?}-{f:?}"),
                &family(f),
                SiteSpec { wan: true, ..spec(topology) },
            );
            let site = lab.site("site").unwrap();
            if let Some(gateway) = site.host(Role::Gateway) {
                forward(gateway, "1");
            }
            assert_eq!(talk(site, LONG).unwrap(), site.addresses().initiator);
            let before = packets(site.wan().unwrap(), "far");
            talk(site, LONG).unwrap();
            assert!(packets(site.wan().unwrap(), "far") > before, "the path goes through the wan");
            forward(site.wan().unwrap(), "0");
            assert!(talk(site, SHORT).is_err(), "and there is no other");
        }
    }
}

fn packets(host: &NetNs, interface: &str) -> u64 {
    let counters = Rtnetlink::open_in(host).unwrap().interface(interface).unwrap().counters;
    counters.rx_packets + counters.tx_packets
}

#[test]
fn root_sites_do_not_see_each_other() {
    if privilege::test_needs_root() {
        return;
    }
    let specs = ["a", "b"].map(|name| SiteSpec { name: name.into(), ..spec(Topology::Direct) });
    let lab =
        Lab::build(&format!("test-two-{}", std::process::id()), &LabOptions::default(), &specs).unwrap();
    // The same address in both: a listener in one is not what the other reaches.
    let a = lab.site("a").unwrap();
    let b = lab.site("b").unwrap();
    let target = SocketAddr::new(a.addresses().responder, 7777);
    let _listener = a.host(Role::Responder).unwrap().run(|| TcpListener::bind(target).unwrap()).unwrap();
    let from = |site: &Site| {
        site.host(Role::Initiator).unwrap().run(|| TcpStream::connect_timeout(&target, LONG)).unwrap()
    };
    assert!(from(a).is_ok());
    assert_eq!(from(b).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn root_options_take_effect_on_every_host() {
    if privilege::test_needs_root() {
        return;
    }
    let options: LabOptions = serde_json::from_str(
        r#"{"mtu": 1400, "offloads": "off", "rps": {"gateway": [0]},
            "sysctls": {"initiator": {"net.ipv4.ip_local_port_range": "1024\t65535"}}}"#,
    )
    .unwrap();
    let lab = build("options", &options, spec(Topology::Bridged));
    let site = lab.site("site").unwrap();
    for (role, host) in site.hosts() {
        let ethtool = host.run(Ethtool::open).unwrap().unwrap();
        for interface in site.interfaces(role) {
            assert_eq!(Rtnetlink::open_in(host).unwrap().interface(&interface).unwrap().mtu, 1400);
            if interface != "br0" {
                let features = ethtool.features(&interface).unwrap();
                for name in
                    ["rx-gro", "tx-generic-segmentation", "tx-tcp-segmentation", "tx-udp-segmentation"]
                {
                    assert!(!features[name], "{interface} {name}");
                }
            }
        }
    }
    let initiator = site.host(Role::Initiator).unwrap();
    let range =
        initiator.run(|| sysctl::get(&ProcRoot::new("/"), "net.ipv4.ip_local_port_range").unwrap()).unwrap();
    assert_eq!(range, "1024\t65535");
    let mask = |role, interface: &str| {
        let path = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
        let read = || std::fs::read_to_string(&path).unwrap();
        let text = site.host(role).unwrap().run_with_own_sysfs(read).unwrap();
        u64::from_str_radix(&text.trim().replace(',', ""), 16).unwrap()
    };
    assert_eq!(mask(Role::Gateway, "inside"), 1);
    assert_eq!(mask(Role::Responder, "eth0"), 0);
    forward(site.host(Role::Gateway).unwrap(), "1");
    talk(site, LONG).unwrap();
}

#[test]
fn root_hosts_are_silent_until_spoken_to() {
    if privilege::test_needs_root() {
        return;
    }
    for f in [Family::Ipv4, Family::Ipv6] {
        let lab = build(&format!("silent-{f:?}"), &family(f), spec(Topology::Routed));
        let site = lab.site("site").unwrap();
        for (role, host) in site.hosts() {
            for interface in site.interfaces(role) {
                let sent =
                    Rtnetlink::open_in(host).unwrap().interface(&interface).unwrap().counters.tx_packets;
                // IPv6 announces the group of its address (RFC 9777); nothing else is sent.
                assert!(
                    sent <= if f == Family::Ipv4 { 0 } else { 4 },
                    "{f:?} {role:?} {interface} sent {sent}"
                );
            }
        }
    }
}

#[test]
fn root_mistakes_leave_nothing_behind() {
    if privilege::test_needs_root() {
        return;
    }
    let run = format!("test-mistake-{}", std::process::id());
    let twice = [spec(Topology::Direct), spec(Topology::Direct)];
    let error = Lab::build(&run, &LabOptions::default(), &twice).unwrap_err().to_string();
    assert!(error.contains("two sites are called `site`"), "{error}");
    let options: LabOptions = serde_json::from_str(r#"{"offloads": {"no-such": true}}"#).unwrap();
    let error = Lab::build(&run, &options, &twice[..1]).unwrap_err().to_string();
    assert!(error.contains("no-such"), "{error}");
    let options: LabOptions =
        serde_json::from_str(r#"{"sysctls": {"gateway": {"net.ipv4.no_such": "1"}}}"#).unwrap();
    let error = Lab::build(&run, &options, &[spec(Topology::Routed)]).unwrap_err().to_string();
    assert!(error.contains("net.ipv4.no_such"), "{error}");
    let error = Lab::build("a/b", &LabOptions::default(), &twice[..1]).unwrap_err().to_string();
    assert!(error.contains("a/b"), "{error}");
    assert!(!weir_lab::registry::list().unwrap().iter().any(|entry| entry.run == run));
}
