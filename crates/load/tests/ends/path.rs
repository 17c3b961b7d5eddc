//! A routed path of three unnamed namespaces: initiator -- gateway -- responder. Gone when it is dropped.

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use weir_netlink::ethtool::Ethtool;
use weir_netlink::{Rtnetlink, VethEnd};
use weir_sys::NetNs;
use weir_sys::process::run_with_input;

use super::Site;

/// RFC 2544 addresses: inside from 198.18/16, outside from 198.19/16.
const INITIATOR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 7, 2));
const INSIDE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 7, 1));
const OUTSIDE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 19, 7, 1));
const RESPONDER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 19, 7, 2));

/// The gateway's `gi` and the responder's `rg` have one address, on different links: a frame that is copied from the one
/// to the other without being routed is taken in.
const COPIED: [u8; 6] = [2, 0, 0, 0, 7, 7];

pub(crate) struct Path {
    pub(crate) initiator: NetNs,
    pub(crate) gateway: NetNs,
    pub(crate) responder: NetNs,
}

impl Path {
    /// Interfaces: initiator `ig`; gateway `gi` and `gr`; responder `rg`. UDP super-packets are split before each link.
    pub(crate) fn new() -> Path {
        let make = || NetNs::create().unwrap();
        let path = Path { initiator: make(), gateway: make(), responder: make() };
        let end = |name, namespace, mac| VethEnd { name, namespace: Some(namespace), mtu: 1500, mac };
        let mut gateway = Rtnetlink::open_in(&path.gateway).unwrap();
        let inner = end("ig", &path.initiator, None);
        gateway.create_veth(end("gi", &path.gateway, Some(COPIED)), inner).unwrap();
        let outer = end("rg", &path.responder, Some(COPIED));
        gateway.create_veth(end("gr", &path.gateway, None), outer).unwrap();
        let initiator = [("ig", INITIATOR)];
        let both = [("gi", INSIDE), ("gr", OUTSIDE)];
        let responder = [("rg", RESPONDER)];
        for (namespace, interfaces) in
            [(&path.initiator, &initiator[..]), (&path.gateway, &both), (&path.responder, &responder)]
        {
            let mut links = Rtnetlink::open_in(namespace).unwrap();
            for (name, address) in interfaces {
                links.add_address(name, *address, 24).unwrap();
                links.set_up(name).unwrap();
                let off = [("tx-udp-segmentation".to_owned(), false)].into();
                namespace.run(|| Ethtool::open().unwrap().set(name, &off).unwrap()).unwrap();
            }
        }
        path.run(&path.initiator, "ip route add default via 198.18.7.1", "");
        path.run(&path.responder, "ip route add default via 198.19.7.1", "");
        path.run(&path.gateway, "sysctl -qw net.ipv4.ip_forward=1", "");
        path
    }

    /// Run a command in one of the namespaces, with something on its standard input.
    pub(crate) fn run(&self, namespace: &NetNs, command: &str, input: &str) -> String {
        let words: Vec<&str> = command.split_whitespace().collect();
        let program =
            weir_sys::process::which(words[0]).unwrap_or_else(|| panic!("{} is not installed", words[0]));
        let mut child = Command::new(program);
        child.args(&words[1..]);
        namespace.enter_on_spawn(&mut child);
        let output = run_with_input(child, input.as_bytes(), Duration::from_secs(10)).unwrap();
        assert!(output.status.success(), "{command}: {}", output.message());
        output.stdout_text()
    }

    pub(crate) fn site(&self) -> Site<'_> {
        Site { initiator: Some(&self.initiator), responder: Some(&self.responder), address: RESPONDER }
    }
}
