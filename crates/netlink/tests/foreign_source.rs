//! Sending from an address that the host does not have, between two namespaces.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use weir_netlink::{Rtnetlink, VethEnd};
use weir_sys::foreign_source::udp_from;
use weir_sys::privilege::test_needs_root;
use weir_sys::{NetNs, ProcRoot, sysctl};

#[test]
fn root_an_address_of_nobody_is_sent_from() {
    if test_needs_root() {
        return;
    }
    let (near, far) = (NetNs::create().unwrap(), NetNs::create().unwrap());
    let end = |name, ns| VethEnd { name, namespace: Some(ns), mtu: 1500, mac: None };
    let mut link = Rtnetlink::open_in(&near).unwrap();
    link.create_veth(end("a0", &near), end("b0", &far)).unwrap();
    for (own, other, nobody) in
        [("198.18.0.1", "198.18.0.2", "198.18.0.9"), ("2001:2::1", "2001:2::2", "2001:2::9")]
    {
        let (own, other, nobody): (IpAddr, IpAddr, IpAddr) =
            (own.parse().unwrap(), other.parse().unwrap(), nobody.parse().unwrap());
        let length = if own.is_ipv4() { 24 } else { 64 };
        for (ns, name, address) in [(&near, "a0", own), (&far, "b0", other)] {
            let mut net = Rtnetlink::open_in(ns).unwrap();
            ns.run(|| {
                let root = ProcRoot::new("/");
                sysctl::set(&root, &format!("net.ipv6.conf.{name}.accept_dad"), "0").unwrap();
            })
            .unwrap();
            net.set_up(name).unwrap();
            net.add_address(name, address, length).unwrap();
            net.wait_until_local(address, Duration::from_secs(5)).unwrap();
        }
        let there = far.run(|| UdpSocket::bind((other, 5001))).unwrap().unwrap();
        there.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let socket = near.run(|| udp_from(nobody)).unwrap().unwrap();
        socket.send_to(b"x", (other, 5001)).unwrap();
        assert_eq!(there.recv_from(&mut [0; 4]).unwrap().1.ip(), nobody);
    }
}
