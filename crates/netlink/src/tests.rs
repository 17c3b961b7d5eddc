use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use super::*;
use weir_sys::NetNs;
use weir_sys::privilege::test_needs_root;

/// The output of `ip` of iproute2 inside the namespace: the independent reader.
fn ip(ns: &NetNs, arguments: &str) -> String {
    let mut command = Command::new("ip");
    command.args(arguments.split_whitespace());
    ns.enter_on_spawn(&mut command);
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

fn end<'a>(name: &'a str, namespace: Option<&'a NetNs>) -> VethEnd<'a> {
    VethEnd {
        name,
        namespace,
        mtu: 1400,
        mac: Some([2, 0, 0, 0, 0, if namespace.is_some() { 2 } else { 1 }]),
    }
}

#[test]
fn root_links_are_what_iproute2_sees() {
    if test_needs_root() {
        return;
    }
    let (a, b) = (NetNs::create().unwrap(), NetNs::create().unwrap());
    let mut net = Rtnetlink::open_in(&a).unwrap();
    net.create_veth(end("here", None), end("there", Some(&b))).unwrap();
    net.create_bridge("br0", 1400, [2, 0, 0, 0, 0, 3]).unwrap();
    net.set_master("here", "br0").unwrap();
    for name in ["lo", "here", "br0"] {
        net.set_up(name).unwrap();
    }
    let shown = ip(&a, "-o -d link show here");
    for word in ["mtu 1400", "master br0", "02:00:00:00:00:01", " veth ", "UP"] {
        assert!(shown.contains(word), "{word} in {shown}");
    }
    assert!(ip(&a, "-o -d link show br0").contains("stp_state 0"));
    assert!(ip(&a, "-o -d link show br0").contains("mcast_snooping 0"));
    assert!(ip(&b, "-o link show there").contains("02:00:00:00:00:02"));

    net.set_mtu("here", 1300).unwrap();
    net.rename("here", "moved").unwrap();
    let interfaces = net.interfaces().unwrap();
    let moved = interfaces.iter().find(|i| i.name == "moved").unwrap();
    let bridge = interfaces.iter().find(|i| i.name == "br0").unwrap();
    assert_eq!(
        (moved.mtu, moved.master, moved.kind.as_str(), moved.up),
        (1300, Some(bridge.index), "veth", true)
    );
    net.delete("moved").unwrap();
    assert!(!ip(&b, "-o link show").contains("there"), "the other end goes with it");
}

#[test]
fn root_interfaces_without_an_ethernet_header_are_told_apart() {
    if test_needs_root() {
        return;
    }
    let ns = NetNs::create().unwrap();
    let mut net = Rtnetlink::open_in(&ns).unwrap();
    net.create_veth(end("here", None), VethEnd { name: "there", ..end("there", None) }.with_mac(9)).unwrap();
    ip(&ns, "tuntap add tap7 mode tap");
    ip(&ns, "tuntap add tun7 mode tun");
    for (name, expected) in [("lo", true), ("here", true), ("tap7", true), ("tun7", false)] {
        assert_eq!(net.interface(name).unwrap().has_ethernet_header(), expected, "{name}");
    }
}

#[test]
fn root_addresses_routes_and_neighbours_are_what_iproute2_sees() {
    if test_needs_root() {
        return;
    }
    let ns = NetNs::create().unwrap();
    let mut net = Rtnetlink::open_in(&ns).unwrap();
    net.create_veth(end("eth0", None), VethEnd { name: "eth1", ..end("eth1", None) }.with_mac(9)).unwrap();
    net.set_up("eth0").unwrap();
    net.set_up("eth1").unwrap();
    let v4: IpAddr = "198.18.0.2".parse().unwrap();
    let v6: IpAddr = "2001:2::2".parse().unwrap();
    net.add_address("eth0", v4, 24).unwrap();
    net.add_address("eth0", v6, 64).unwrap();
    let shown = ip(&ns, "-o addr show eth0");
    assert!(shown.contains("198.18.0.2/24") && shown.contains("2001:2::2/64"), "{shown}");
    assert!(!shown.contains("tentative 2001"), "{shown}");
    assert!(
        net.interfaces()
            .unwrap()
            .iter()
            .any(|i| i.addresses.contains(&(v4, 24)) && i.addresses.contains(&(v6, 64)))
    );

    for address in [v4, v6] {
        net.wait_until_local(address, Duration::from_secs(5)).unwrap();
        assert!(ip(&ns, &format!("route get {address}")).starts_with("local "), "{address}");
    }
    let elsewhere = "2001:2::3".parse().unwrap();
    let error = net.wait_until_local(elsewhere, Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);

    let via = Some("198.18.0.1".parse().unwrap());
    net.add_route(Route { destination: None, via, interface: "eth0", onlink: false }).unwrap();
    let network = Some(("198.19.1.0".parse().unwrap(), 24));
    net.add_route(Route { destination: network, via: None, interface: "eth0", onlink: false }).unwrap();
    let off_link = Some("203.0.113.1".parse().unwrap());
    let network = Some(("198.19.2.0".parse().unwrap(), 24));
    net.add_route(Route { destination: network, via: off_link, interface: "eth0", onlink: true }).unwrap();
    let shown = ip(&ns, "route show");
    for line in [
        "default via 198.18.0.1 dev eth0 proto static",
        "198.19.1.0/24 dev eth0 proto static scope link",
        "198.19.2.0/24 via 203.0.113.1 dev eth0 proto static onlink",
    ] {
        assert!(shown.contains(line), "{line} in {shown}");
    }
    let via = Some("2001:2::1".parse().unwrap());
    net.add_route(Route { destination: None, via, interface: "eth0", onlink: false }).unwrap();
    assert!(ip(&ns, "-6 route show").contains("default via 2001:2::1 dev eth0"));

    net.add_neighbour("eth0", "198.18.0.1".parse().unwrap(), [2, 0, 0, 0, 0, 7]).unwrap();
    net.add_neighbour("eth0", "2001:2::1".parse().unwrap(), [2, 0, 0, 0, 0, 7]).unwrap();
    for (family, address) in [("-4", "198.18.0.1"), ("-6", "2001:2::1")] {
        let shown = ip(&ns, &format!("{family} neigh show dev eth0"));
        assert!(shown.contains(&format!("{address} lladdr 02:00:00:00:00:07 PERMANENT")), "{shown}");
    }
}

impl VethEnd<'_> {
    fn with_mac(self, last: u8) -> Self {
        VethEnd { mac: Some([2, 0, 0, 0, 0, last]), ..self }
    }
}

#[test]
fn root_a_refusal_carries_the_kernels_words() {
    if test_needs_root() {
        return;
    }
    let ns = NetNs::create().unwrap();
    let mut net = Rtnetlink::open_in(&ns).unwrap();
    net.set_up("lo").unwrap();
    let via = Some("198.18.0.1".parse().unwrap());
    let error = net.add_route(Route { destination: None, via, interface: "lo", onlink: false }).unwrap_err();
    // fib_semantics.c: "Nexthop has invalid gateway" (ENETUNREACH).
    assert!(error.to_string().contains("Nexthop has invalid gateway"), "{error}");
    assert_eq!(error.raw_os_error(), Some(libc::ENETUNREACH));
    let error = net.set_up("nothing").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{error}");
    let error = net.set_mtu("lo", u32::MAX).unwrap_err();
    assert!(error.to_string().contains("mtu"), "{error}");
}

#[test]
fn names_that_are_none_are_refused_before_the_kernel() {
    let mut net = Rtnetlink::open().unwrap();
    for name in ["", "a/b", "sixteen-bytes-xx", "a b", ".."] {
        assert!(net.interface(name).unwrap_err().to_string().contains("not an interface name"), "{name}");
    }
    assert_eq!(net.interface("lo").unwrap().name, "lo");
    assert!(
        net.add_address("lo", "198.18.0.1".parse().unwrap(), 33)
            .unwrap_err()
            .to_string()
            .contains("above 32")
    );
}
